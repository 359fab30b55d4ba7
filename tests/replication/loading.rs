//! Loading the module on a server that can't load it, loading it twice, and its messages when it is
//! loaded.
//!
//! tests/loading/hiding.c imitates a server that is too old. It is a module that hides functions of
//! the module API from the lock module.

use std::fs;
use std::path::Path;

use support::compiled::shared_object;
use support::{module_path, until, Expect, Fields, Reply, Server, LONG};

/// The functions of the module API that came with Redis 7.0.
const NEW_IN_7_0: [&str; 57] = [
    "RedisModule_ACLAddLogEntry",
    "RedisModule_ACLCheckChannelPermissions",
    "RedisModule_ACLCheckCommandPermissions",
    "RedisModule_ACLCheckKeyPermissions",
    "RedisModule_CallReplyAttribute",
    "RedisModule_CallReplyAttributeElement",
    "RedisModule_CallReplyBigNumber",
    "RedisModule_CallReplyBool",
    "RedisModule_CallReplyDouble",
    "RedisModule_CallReplyMapElement",
    "RedisModule_CallReplySetElement",
    "RedisModule_CallReplyVerbatim",
    "RedisModule_ChannelAtPosWithFlags",
    "RedisModule_CreateSubcommand",
    "RedisModule_EventLoopAdd",
    "RedisModule_EventLoopAddOneShot",
    "RedisModule_EventLoopDel",
    "RedisModule_GetClientNameById",
    "RedisModule_GetCommand",
    "RedisModule_GetCurrentUserName",
    "RedisModule_GetDbIdFromDefragCtx",
    "RedisModule_GetDbIdFromDigest",
    "RedisModule_GetDbIdFromOptCtx",
    "RedisModule_GetKeyNameFromDefragCtx",
    "RedisModule_GetKeyNameFromDigest",
    "RedisModule_GetKeyNameFromOptCtx",
    "RedisModule_GetModuleUserFromUserName",
    "RedisModule_GetToDbIdFromOptCtx",
    "RedisModule_GetToKeyNameFromOptCtx",
    "RedisModule_IsChannelsPositionRequest",
    "RedisModule_KeyAtPosWithFlags",
    "RedisModule_KeyExists",
    "RedisModule_LoadConfigs",
    "RedisModule_MallocSizeDict",
    "RedisModule_MallocSizeString",
    "RedisModule_MonotonicMicroseconds",
    "RedisModule_PublishMessage",
    "RedisModule_PublishMessageShard",
    "RedisModule_RedactClientCommandArguments",
    "RedisModule_RegisterBoolConfig",
    "RedisModule_RegisterEnumConfig",
    "RedisModule_RegisterNumericConfig",
    "RedisModule_RegisterStringConfig",
    "RedisModule_ReplySetAttributeLength",
    "RedisModule_ReplySetMapLength",
    "RedisModule_ReplySetSetLength",
    "RedisModule_ReplyWithAttribute",
    "RedisModule_ReplyWithBigNumber",
    "RedisModule_ReplyWithBool",
    "RedisModule_ReplyWithMap",
    "RedisModule_ReplyWithSet",
    "RedisModule_ReplyWithVerbatimStringType",
    "RedisModule_SetClientNameById",
    "RedisModule_SetCommandInfo",
    "RedisModule_StringToStreamID",
    "RedisModule_TrimStringAllocation",
    "RedisModule_Yield",
];

/// Returns the API functions that the module needs, from the table and the list in
/// src/server/calls.rs.
fn needed() -> Vec<String> {
    let source = include_str!("../../src/server/calls.rs");
    let between = |start, end| {
        let rest = source.split_once(start).expect("a start").1;
        rest.split_once(end).expect("its end").0
    };
    let table = between("    required {\n", "    optional {\n");
    let table = table.split("= ").skip(1).map(|rest| rest.split(';'));
    let list = between("missing![\n", "]").split(',').map(str::trim);
    let names = table.filter_map(|mut rest| rest.next()).chain(list);
    let names: Vec<String> = names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 80, "{names:?}");
    names
}

#[track_caller]
fn words(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Loads a module while these functions are hidden from it.
#[track_caller]
fn load_without(server: &Server, module: &Path, hidden: &[&str]) -> Reply {
    let hiding = server
        .dir()
        .join("hiding")
        .with_extension(std::env::consts::DLL_EXTENSION);
    if !hiding.exists() {
        shared_object("replication/hiding.c", server.dir());
    }
    let mut load = vec!["MODULE", "LOAD", words(&hiding), words(module)];
    load.extend(hidden);
    server.call(&load)
}

/// Runs `work` and returns its result, with the lines that the log has gained.
#[track_caller]
fn log_of<T>(server: &Server, work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let before = server.log().len();
    let done = work();
    let log = server.log();
    (done, log[before..].lines().map(str::to_owned).collect())
}

#[track_caller]
fn modules(server: &Server) -> Vec<Fields> {
    let list = server.call("MODULE LIST").list();
    list.into_iter().map(Fields::of).collect()
}

#[track_caller]
fn assert_not_loaded(server: &Server) {
    assert!(modules(server).iter().all(|it| it.text("name") != "lock"));
    let error = server.call("LOCK.HELP").error();
    assert!(error.starts_with("ERR unknown command"), "{error}");
    assert_eq!(server.call("CONFIG GET lock.*").list(), []);
    server.call("SET alive 1").okay();
    server.call("FLUSHALL").okay();
}

/// Asserts that locks are granted, waited for, expired and deleted, and that the module gets each
/// event of the server exactly once.
#[track_caller]
fn assert_locks_work(server: &Server) {
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(server.call("LOCK.EXTEND k a PX 30").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
    let mut waiter = server.waiter(format!("LOCK.WAIT k c {LONG} SESSION"));
    server.call("FLUSHALL").okay();
    assert_eq!(waiter.recv().grant().token, "c");
    waiter.close();
    until("the session has ended", || server.lock_info("k").is_none());
    assert_eq!(server.info("lock", "lock_hand_overs"), "2");
    assert_eq!(server.info("lock", "lock_expirations"), "1");
}

// ---- a server that lacks functions

/// Asserts that the module doesn't load without these functions, and that the log names `needed`.
#[track_caller]
fn assert_refused(server: &Server, hidden: &[&str], needed: &str) {
    let (reply, log) = log_of(server, || load_without(server, &module_path(), hidden));
    reply.error();
    let told = log
        .iter()
        .any(|line| line.contains("lock") && line.contains(needed));
    assert!(told, "{needed}: {log:#?}");
    assert_not_loaded(server);
}

#[test]
fn a_server_that_is_too_old_refuses_the_module_and_lives_on() {
    let server = Server::builder().without_module().start();
    for _ in 0..2 {
        assert_refused(&server, &NEW_IN_7_0, "Redis 7.0");
    }
    server
        .call(&["MODULE", "LOAD", words(&module_path())])
        .okay();
    assert_locks_work(&server);
}

#[test]
fn a_server_that_lacks_one_function_refuses_the_module_and_lives_on() {
    for function in &needed() {
        // A new server each time: functions found by one load are still set at the next load in the
        // process.
        let server = Server::builder().without_module().start();
        assert_refused(&server, &[function], function);
        server
            .call(&["MODULE", "LOAD", words(&module_path())])
            .okay();
        assert_locks_work(&server);
    }
}

#[test]
fn a_server_that_lacks_what_the_module_can_do_without_loads_it() {
    for function in [
        "RedisModule_AddPostNotificationJob",
        "RedisModule_SetCommandACLCategories",
        "RedisModule_SomethingUnheardOf",
    ] {
        let server = Server::builder().without_module().start();
        load_without(&server, &module_path(), &[function]).okay();
        assert_locks_work(&server);
    }
}

// ---- a module that is loaded already

#[test]
fn a_second_load_is_refused_and_locks_go_on() {
    let server = Server::start();
    let mut held = server.client();
    held.call("LOCK.ACQUIRE held h PX 1500 SESSION").grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT held w {LONG}"));
    // The server recognizes the same file by its handle. A copy is another module for the server.
    let copy = server.dir().join("copy.so");
    fs::copy(module_path(), &copy).expect("a copy of the module");
    for path in [module_path(), copy] {
        let load = || server.call(&["MODULE", "LOAD", words(&path)]);
        let (reply, log) = log_of(&server, load);
        reply.error();
        let told = log
            .iter()
            .any(|line| line.contains("lock") && line.contains("already"));
        assert!(told, "{}: {log:#?}", path.display());
        assert_eq!(
            modules(&server)
                .iter()
                .filter(|it| it.text("name") == "lock")
                .count(),
            1
        );
    }
    assert_eq!(server.known_lock("held").holder().int("session"), 1);
    held.close();
    assert_eq!(waiter.recv().grant().token, "w");
    assert_eq!(server.call("LOCK.RELEASE held w").int(), 1);
    server.call("CONFIG SET lock.default-lease 7000").okay();
    server.call("LOCK.ACQUIRE k a").grant();
    assert!(server.call("LOCK.CHECK k a").int() <= 7_000);
}

#[test]
fn a_bad_value_in_loadex_is_named_in_the_log_and_the_server_lives_on() {
    for (name, value) in [
        ("lock.default-lease", "0"),
        ("lock.default-lease", "soon"),
        ("lock.max-waiters", "-1"),
        ("lock.max-waiters", "4294967296"),
    ] {
        let server = Server::builder().without_module().start();
        let path = module_path();
        let load = ["MODULE", "LOADEX", words(&path), "CONFIG", name, value];
        let (reply, log) = log_of(&server, || server.call(&load));
        reply.error();
        let told = log
            .iter()
            .any(|line| line.contains("lock") && line.contains("not loaded"));
        assert!(told, "{name} {value}: {log:#?}");
        assert_not_loaded(&server);
        server.call(&["MODULE", "LOAD", words(&path)]).okay();
        assert_locks_work(&server);
    }
}

// ---- the module's messages

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn the_version_is_told_everywhere() {
    let parts = VERSION
        .split('.')
        .map(|part| part.parse::<i64>().expect("a number"));
    let number = parts.fold(0, |number, part| number * 100 + part);
    let server = Server::start();
    let module = modules(&server)
        .into_iter()
        .find(|module| module.text("name") == "lock")
        .expect("the module");
    assert_eq!(module.int("ver"), number);
    assert_eq!(server.info("lock", "lock_version"), VERSION);
    let help = server.call("LOCK.HELP").list();
    let head = Ok(help[0].clone()).text();
    assert!(head.contains(VERSION), "{head}");
    let log = server.log();
    let told = log
        .lines()
        .any(|line| line.contains("lock") && line.contains(VERSION));
    assert!(told, "{log}");
}

/// Returns the log line that warns of a server that closes idle connections.
fn warning_of_timeout(server: &Server) -> Option<String> {
    let log = server.log();
    let line = log
        .lines()
        .find(|line| line.contains("lock") && line.contains("timeout"));
    line.map(str::to_owned)
}

#[test]
fn the_log_warns_of_a_timeout_that_would_end_sessions() {
    for (timeout, warns) in [("0", false), ("60", true), ("300", true)] {
        let server = Server::builder()
            .config(&format!("timeout {timeout}"))
            .start();
        let warning = warning_of_timeout(&server);
        assert_eq!(warning.is_some(), warns, "timeout {timeout}: {warning:?}");
        if let Some(line) = warning {
            assert!(line.contains("SESSION") && line.contains(timeout), "{line}");
            // The log's mark for a warning.
            assert!(line.contains(" # "), "{line}");
        }
        assert_locks_work(&server);
    }
}

#[test]
fn the_log_warns_of_a_timeout_when_the_module_is_loaded_by_hand() {
    let server = Server::builder().without_module().start();
    server.call("CONFIG SET timeout 77").okay();
    server
        .call(&["MODULE", "LOAD", words(&module_path())])
        .okay();
    let warning = warning_of_timeout(&server).expect("a warning");
    assert!(warning.contains("77"), "{warning}");
}
