//! Servers that change from one build of the module to another, and primaries and replicas with
//! different builds. `make test-upgrade` builds the other modules. REDIS_LOCK_OLD_MODULE is an
//! older build that stores and replicates like this build. REDIS_LOCK_NEXT_MODULE is a build that
//! does both in a format that this build doesn't know.

use std::env;
use std::path::PathBuf;

use redis_lock_rig::{Plan, Process};
use support::{
    eventually, module_path, server_binary, until, Client, Expect, Fields, Server, LONG,
};

#[track_caller]
fn other_build(variable: &str) -> PathBuf {
    let path = env::var_os(variable);
    let path = path.unwrap_or_else(|| panic!("{variable} isn't set: run `make test-upgrade`"));
    PathBuf::from(path).canonicalize().expect("a module")
}

fn old() -> PathBuf {
    other_build("REDIS_LOCK_OLD_MODULE")
}

fn next() -> PathBuf {
    other_build("REDIS_LOCK_NEXT_MODULE")
}

/// Returns the change to a newer build, and the way back.
fn both_ways() -> [[PathBuf; 2]; 2] {
    [[old(), module_path()], [module_path(), old()]]
}

const KEYS: [&str; 3] = ["plain", "counted", "several"];

/// Acquires locks of each kind.
#[track_caller]
fn make_locks(server: &Server) {
    server.call_all(&[
        format!("LOCK.ACQUIRE plain a {LONG} SESSION"),
        format!("LOCK.ACQUIRE counted a {LONG} HOLDS 3"),
        format!("LOCK.ACQUIRE several a {LONG} SHARED LIMIT 5 PERMITS 2"),
        format!("LOCK.ACQUIRE several b {LONG} SHARED LIMIT 5"),
    ]);
}

/// The stored fields of a holder.
#[derive(Debug, PartialEq)]
struct Holder {
    token: String,
    fence: i64,
    holds: i64,
    limit: i64,
    permits: i64,
}

fn holder(fields: &Fields) -> Holder {
    let lease_ms = fields.int("lease-ms");
    assert!((1..=600_000).contains(&lease_ms), "{lease_ms}");
    Holder {
        token: fields.text("token"),
        fence: fields.int("fence"),
        holds: fields.int("holds"),
        limit: fields.int("limit"),
        permits: fields.int("permits"),
    }
}

/// Returns the locks from LOCK.INFO: their modes, and the stored fields of the holders.
#[track_caller]
fn locks(server: &Server) -> Vec<(String, Vec<Holder>)> {
    let lock = |key: &&str| {
        let info = server.known_lock(key);
        let mut holders: Vec<Holder> = info.holders.iter().map(holder).collect();
        holders.sort_by_key(|holder| holder.fence);
        (info.mode, holders)
    };
    KEYS.iter().map(lock).collect()
}

/// Asserts that the locks of a server work like before: they are extended, released and granted
/// again.
#[track_caller]
fn assert_in_use(server: &Server) {
    let last = server.known_lock("several").holders.len();
    assert_eq!(last, 2);
    assert_eq!(server.call("LOCK.EXTEND plain a PX 50000").int(), 1);
    assert_eq!(server.call("LOCK.RELEASE counted a HOLDS 1").int(), 1);
    assert_eq!(server.known_lock("counted").holder().int("holds"), 1);
    let before = server.known_lock("plain").holder().int("fence");
    let mut waiter = server.waiter(format!("LOCK.WAIT plain next {LONG}"));
    assert_eq!(server.call("LOCK.RELEASE plain a").int(), 1);
    assert!(waiter.recv().grant().fence > before);
    // Three of five permits are taken.
    server
        .call("LOCK.ACQUIRE several c SHARED LIMIT 5 PERMITS 3")
        .nil();
    server
        .call("LOCK.ACQUIRE several c SHARED LIMIT 5 PERMITS 2")
        .grant();
}

// --- files --------------------------------------------------------------------------------------

/// Stops a server with one build, starts it with the other build, and asserts that its locks are
/// the same and work. Does so in both directions.
#[track_caller]
fn carried_over(settings: &[&str], how: &str) {
    for [before, after] in both_ways() {
        let builder = Server::builder().module(&before);
        let builder = settings.iter().fold(builder, |it, line| it.config(line));
        let mut server = builder.start();
        make_locks(&server);
        let made = locks(&server);
        server.shutdown(how);
        server.restart_with_module(&after);
        assert_eq!(locks(&server), made, "{settings:?}");
        assert_in_use(&server);
    }
}

#[test]
fn a_snapshot_is_carried_over() {
    carried_over(&[], "SAVE");
}

#[test]
fn an_append_only_file_of_commands_is_carried_over() {
    carried_over(&["appendonly yes", "aof-use-rdb-preamble no"], "NOSAVE");
}

#[test]
fn a_rewritten_append_only_file_is_carried_over() {
    for preamble in ["yes", "no"] {
        for [before, after] in both_ways() {
            let mut server = Server::builder()
                .module(&before)
                .config("appendonly yes")
                .config(&format!("aof-use-rdb-preamble {preamble}"))
                .start();
            make_locks(&server);
            let made = locks(&server);
            server.call("BGREWRITEAOF").text();
            server.until_rewritten();
            server.shutdown("NOSAVE");
            server.restart_with_module(&after);
            assert_eq!(locks(&server), made, "preamble {preamble}");
            assert_in_use(&server);
        }
    }
}

#[test]
fn a_dump_is_restored() {
    for [before, after] in both_ways() {
        let (from, to) = (
            Server::builder().module(&before).start(),
            Server::builder().module(&after).start(),
        );
        make_locks(&from);
        for key in KEYS {
            let dump = from.call(&["DUMP", key]).bytes();
            let restore: [&[u8]; 4] = [b"RESTORE", key.as_bytes(), b"0", &dump];
            to.call(&restore).okay();
        }
        assert_eq!(locks(&to), locks(&from));
        assert_in_use(&to);
    }
}

// --- replicas -----------------------------------------------------------------------------------

#[test]
fn a_replica_with_another_build_follows_and_takes_over() {
    for [primary, replica] in both_ways() {
        let primary = Server::builder().module(&primary).start();
        let replica = Server::builder().module(&replica).start();
        // The replica gets some locks with the whole data set, and some one by one.
        primary.call(format!("LOCK.ACQUIRE whole a {LONG}")).grant();
        replica.replica_of(&primary);
        make_locks(&primary);
        primary.call("LOCK.EXTEND whole a PX 700000").int();
        let next = primary.waiter(format!("LOCK.WAIT whole b {LONG}"));
        primary.call("LOCK.RELEASE whole a").int();
        replica.until_in_step(&primary);
        assert_eq!(locks(&replica), locks(&primary));
        assert_eq!(replica.known_lock("whole").holder_tokens(), ["b"]);
        drop(next);
        let fence = primary.known_lock("whole").holder().int("fence");
        replica.call("REPLICAOF NO ONE").okay();
        assert_in_use(&replica);
        let fresh = replica.call("LOCK.ACQUIRE fresh c").grant().fence;
        assert!(fresh > fence);
    }
}

/// The order that docs/operate/upgrade-remove.md gives: the replica gets the new build first, then
/// takes over.
#[test]
fn a_failover_to_the_new_build_sends_those_who_wait_to_it() {
    let primary = Server::builder().module(&old()).start();
    let replica = Server::start();
    replica.replica_of(&primary);
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = primary.waiter(format!("LOCK.WAIT k b {LONG}"));
    until("the replica can take over", || {
        primary.call("FAILOVER").is_ok()
    });
    assert!(waiter.recv().error().starts_with("UNBLOCKED"));
    until("the replica has taken over", || {
        replica.info("replication", "role") == "master"
    });
    let mut waiter = replica.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(replica.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
    eventually("the old build follows the new one", || {
        let mut client = Client::try_connect(primary.port()).ok()?;
        let holders = client.try_call("LOCK.CHECK k b").ok()?;
        (Ok(holders).int() > 0).then_some(())
    });
    primary.reconnect();
}

// --- data, which an older build doesn't know ----------------------------------------------------

/// Acquires a lock with data, and one that had data.
#[track_caller]
fn make_data(server: &Server) {
    server.call_all(&[
        format!("LOCK.ACQUIRE data a {LONG} DATA why"),
        format!("LOCK.ACQUIRE plain a {LONG} DATA why"),
    ]);
    clear(server, "plain");
}

#[track_caller]
fn clear(server: &Server, key: &str) {
    assert_eq!(server.call(&["LOCK.EXTEND", key, "a", "DATA", ""]).int(), 1);
}

#[track_caller]
fn assert_has_data(server: &Server) {
    assert_eq!(server.known_lock("data").holder().text("data"), "why");
}

#[test]
fn a_snapshot_with_data_keeps_an_older_build_from_starting_and_stays_as_it_is() {
    let mut server = Server::start();
    make_data(&server);
    server.shutdown("SAVE");
    let refused = server.refused_with_module(&old());
    assert!(refused.contains("redislock"), "{refused}");
    server.restart_with_module(&module_path());
    assert_has_data(&server);
    // Without the data the older build reads the file.
    clear(&server, "data");
    server.shutdown("SAVE");
    server.restart_with_module(&old());
    assert_eq!(server.known_lock("data").holder_tokens(), ["a"]);
    assert_eq!(server.known_lock("plain").holder_tokens(), ["a"]);
}

#[test]
fn a_rewritten_append_only_file_with_data_keeps_an_older_build_from_starting() {
    let mut server = Server::builder().config("appendonly yes").start();
    make_data(&server);
    server.call("BGREWRITEAOF").text();
    server.until_rewritten();
    server.shutdown("NOSAVE");
    let refused = server.refused_with_module(&old());
    assert!(refused.contains("redislock"), "{refused}");
    server.restart_with_module(&module_path());
    assert_has_data(&server);
}

/// The server itself continues after a refused command of the file.
#[test]
fn an_older_build_loses_a_grant_with_data_from_an_append_only_file_of_commands() {
    let mut server = Server::builder()
        .config("appendonly yes")
        .config("aof-use-rdb-preamble no")
        .start();
    server.call(format!("LOCK.ACQUIRE plain a {LONG}")).grant();
    server
        .call(format!("LOCK.ACQUIRE data a {LONG} DATA why"))
        .grant();
    server.shutdown("NOSAVE");
    server.restart_with_module(&old());
    assert_eq!(server.lock_info("data"), None);
    assert_eq!(server.known_lock("plain").holder_tokens(), ["a"]);
    let log = server.log();
    assert!(
        log.contains("CRITICAL") && log.contains("lock.apply"),
        "{log}"
    );
}

#[test]
fn an_older_build_refuses_a_dump_with_data_and_restores_one_without() {
    let (from, to) = (Server::start(), Server::builder().module(&old()).start());
    make_data(&from);
    let restore = |key: &str| {
        let dump = from.call(&["DUMP", key]).bytes();
        let restore: [&[u8]; 4] = [b"RESTORE", key.as_bytes(), b"0", &dump];
        to.call(&restore)
    };
    let refused = restore("data").error();
    assert!(refused.contains("Bad data format"), "{refused}");
    assert_eq!(to.call("EXISTS data").int(), 0);
    restore("plain").okay();
    assert_eq!(to.known_lock("plain").holder_tokens(), ["a"]);
    clear(&from, "data");
    restore("data").okay();
    assert_eq!(to.call("DUMP data").bytes(), from.call("DUMP data").bytes());
}

#[test]
fn an_older_replica_lacks_a_grant_with_data_until_the_data_is_gone() {
    let primary = Server::start();
    let replica = Server::builder().module(&old()).start();
    replica.replica_of(&primary);
    make_data(&primary);
    primary.call(format!("LOCK.ACQUIRE other b {LONG}")).grant();
    replica.until_in_step(&primary);
    assert_eq!(replica.lock_info("data"), None);
    assert_eq!(replica.known_lock("plain").holder_tokens(), ["a"]);
    assert_eq!(replica.known_lock("other").holder_tokens(), ["b"]);
    assert!(replica.log().contains("lock.apply"), "{}", replica.log());
    clear(&primary, "data");
    replica.until_in_step(&primary);
    assert_eq!(replica.known_lock("data").holder_tokens(), ["a"]);
}

#[test]
fn an_older_replica_that_becomes_primary_grants_what_it_lacks() {
    let primary = Server::start();
    let replica = Server::builder().module(&old()).start();
    replica.replica_of(&primary);
    let acquire = format!("LOCK.ACQUIRE data a {LONG} DATA why");
    let lost = primary.call(acquire).grant();
    replica.until_in_step(&primary);
    replica.call("REPLICAOF NO ONE").okay();
    let granted = replica.call(format!("LOCK.ACQUIRE data b {LONG}")).grant();
    assert!(granted.fence > lost.fence);
}

/// Starts a replica with a build. Returns its log when it has ended.
#[track_caller]
fn log_of_ended_replica(build: PathBuf, primary: &Server) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = Plan {
        module: Some(build),
        ..Plan::new(&server_binary())
    };
    let replica = Process::start(plan, folder.path()).expect("a server");
    let follow = format!("REPLICAOF 127.0.0.1 {}", primary.port());
    Client::connect(replica.port()).call(follow).okay();
    eventually("the replica ends", || replica.ended().expect("a child"));
    replica.log()
}

#[test]
fn an_older_replica_of_a_primary_with_data_ends_at_its_full_synchronisation() {
    let primary = Server::start();
    make_data(&primary);
    let log = log_of_ended_replica(old(), &primary);
    assert!(log.contains("redislock"), "{log}");
}

/// The order that docs/operate/upgrade-remove.md gives.
#[test]
fn an_upgraded_replica_has_the_data_of_its_upgraded_primary() {
    let mut primary = Server::builder().module(&old()).start();
    let replica = Server::start();
    primary.call(format!("LOCK.ACQUIRE data a {LONG}")).grant();
    replica.replica_of(&primary);
    replica.until_in_step(&primary);
    primary.shutdown("SAVE");
    primary.restart_with_module(&module_path());
    assert_eq!(primary.call("LOCK.EXTEND data a DATA why").int(), 1);
    replica.until_in_step(&primary);
    assert_has_data(&replica);
    let digest = |server: &Server| server.call("DEBUG DIGEST").text();
    assert_eq!(digest(&replica), digest(&primary));
}

/// A raised fence is a plain grant for an older build.
#[test]
fn a_raised_fence_is_carried_to_an_older_build() {
    let mut primary = Server::start();
    let replica = Server::builder().module(&old()).start();
    replica.replica_of(&primary);
    let first = primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let raised = first.fence + 50_000_000;
    let extend = format!("LOCK.EXTEND k a FENCE {raised}");
    assert_eq!(primary.call(extend).int(), 1);
    replica.until_in_step(&primary);
    assert_eq!(replica.known_lock("k").holder().int("fence"), raised);
    primary.shutdown("SAVE");
    primary.restart_with_module(&old());
    assert_eq!(primary.known_lock("k").holder().int("fence"), raised);
    assert!(primary.call("LOCK.ACQUIRE j b").grant().fence > raised);
}

/// Makes two shared holders with one fence, which an older build refuses.
#[track_caller]
fn make_equal_fences(server: &Server) {
    server
        .call(format!("LOCK.ACQUIRE k a {LONG} SHARED"))
        .grant();
    let second = format!("LOCK.ACQUIRE k b {LONG} SHARED");
    let fence = server.call(second).grant().fence;
    let extend = format!("LOCK.EXTEND k a FENCE {fence}");
    assert_eq!(server.call(extend).int(), 1);
}

#[test]
fn an_older_build_refuses_two_holders_with_one_fence() {
    let (from, to) = (Server::start(), Server::builder().module(&old()).start());
    make_equal_fences(&from);
    let dump = from.call("DUMP k").bytes();
    let restore: [&[u8]; 4] = [b"RESTORE", b"k", b"0", &dump];
    let refused = to.call(&restore).error();
    assert!(refused.contains("Bad data format"), "{refused}");
}

#[test]
fn an_older_replica_applies_two_equal_fences_and_cannot_load_them() {
    let primary = Server::start();
    let mut replica = Server::builder().module(&old()).start();
    replica.replica_of(&primary);
    make_equal_fences(&primary);
    replica.until_in_step(&primary);
    let fences = |server: &Server| {
        let holders = server.known_lock("k").holders;
        holders
            .iter()
            .map(|it| it.int("fence"))
            .collect::<Vec<i64>>()
    };
    assert_eq!(fences(&replica), fences(&primary));
    let log = log_of_ended_replica(old(), &primary);
    assert!(log.contains("redislock"), "{log}");
    replica.shutdown("SAVE");
    let refused = replica.refused_with_module(&old());
    assert!(refused.contains("redislock"), "{refused}");
    replica.restart_with_module(&module_path());
    assert_eq!(fences(&replica), fences(&primary));
}

// --- a format that isn't known ------------------------------------------------------------------

/// The module's own message about a format that isn't known.
const TOLD: &str = "a stored lock has format 3, and redis-lock";

#[test]
fn a_snapshot_in_a_newer_format_keeps_the_server_from_starting_and_stays_as_it_is() {
    let mut server = Server::builder().module(&next()).start();
    make_locks(&server);
    let made = locks(&server);
    server.shutdown("SAVE");
    let refused = server.refused_with_module(&module_path());
    assert!(refused.contains(TOLD), "{refused}");
    assert!(refused.contains("redislock"), "{refused}");
    server.restart_with_module(&next());
    assert_eq!(locks(&server), made);
}

#[test]
fn a_rewritten_append_only_file_in_a_newer_format_keeps_the_server_from_starting() {
    let mut server = Server::builder()
        .module(&next())
        .config("appendonly yes")
        .start();
    make_locks(&server);
    server.call("BGREWRITEAOF").text();
    server.until_rewritten();
    server.shutdown("NOSAVE");
    let refused = server.refused_with_module(&module_path());
    assert!(refused.contains(TOLD), "{refused}");
}

/// The server itself continues after a refused command of the file.
#[test]
fn effects_in_an_append_only_file_that_are_not_known_are_lost_and_told_of() {
    let mut server = Server::builder()
        .module(&next())
        .config("appendonly yes")
        .config("aof-use-rdb-preamble no")
        .start();
    make_locks(&server);
    server.shutdown("NOSAVE");
    server.restart_with_module(&module_path());
    assert_eq!(server.call("DBSIZE").int(), 0);
    let log = server.log();
    assert!(
        log.contains("CRITICAL") && log.contains("lock.apply"),
        "{log}"
    );
}

#[test]
fn a_server_without_locks_is_carried_over_whatever_its_format_was() {
    let mut server = Server::builder().module(&next()).start();
    make_locks(&server);
    server.call("SET other 1").okay();
    for key in KEYS {
        assert_eq!(server.call(&["DEL", key]).int(), 1);
    }
    server.shutdown("SAVE");
    server.restart_with_module(&module_path());
    assert_eq!(server.call("GET other").text(), "1");
    make_locks(&server);
}

#[test]
fn a_dump_in_a_newer_format_is_refused() {
    let from = Server::builder().module(&next()).start();
    from.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let dump = from.call("DUMP k").bytes();
    let to = Server::start();
    let restore: [&[u8]; 4] = [b"RESTORE", b"k", b"0", &dump];
    let refused = to.call(&restore).error();
    assert!(refused.contains("Bad data format"), "{refused}");
    assert_eq!(to.call("EXISTS k").int(), 0);
    assert!(!to.log().contains(TOLD), "clients can't fill the log");
}

#[test]
fn a_replica_whose_primary_has_a_newer_format_ends_and_says_why() {
    let primary = Server::builder().module(&next()).start();
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let log = log_of_ended_replica(module_path(), &primary);
    assert!(log.contains(TOLD), "{log}");
}

#[test]
fn a_replica_lacks_a_grant_whose_form_it_does_not_know_and_says_so() {
    let primary = Server::builder().module(&next()).start();
    let replica = Server::start();
    replica.replica_of(&primary);
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    primary.call("SET other 1").okay();
    replica.until_in_step(&primary);
    assert_eq!(replica.lock_info("k"), None);
    assert_eq!(replica.call("GET other").text(), "1");
    let log = replica.log();
    assert!(
        log.contains("CRITICAL") && log.contains("lock.apply"),
        "{log}"
    );
}
