//! Every command in every context: its reply and its effects, by rule.
//!
//! A row has a command and its reply to a plain client. The rules give the outcome in a
//! transaction, a script or a function, if the script or the user may not write, and while another
//! client's script is busy. Each cell is tried in both protocols.

use std::time::{Duration, Instant};

use redis::Value;
use support::{until, Client, Expect, LockInfo, Reply, Server, LONG, WRONGTYPE};

/// A command's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Nil,
    Grant(&'static str),
    Int(i64),
    /// The time that a lease has left: above 0.
    Left,
    /// A lock with this token as its only holder.
    Holders(&'static str),
    Lines,
    /// An error that contains this text.
    Error(&'static str),
    /// No reply until the client is unblocked, then a nil. A nil at once if the client may not
    /// block.
    None,
}

/// A command and its outcome if `a` holds `held`, `text` is a string and `free` doesn't exist.
struct Row {
    command: &'static str,
    writes: bool,
    answer: Answer,
    /// The holders of `held` and of `free` afterwards; empty if the key is free.
    holders: [&'static str; 2],
}

const fn write(command: &'static str, answer: Answer, holders: [&'static str; 2]) -> Row {
    Row {
        command,
        writes: true,
        answer,
        holders,
    }
}

const fn read(command: &'static str, answer: Answer) -> Row {
    Row {
        command,
        writes: false,
        answer,
        holders: AS_BEFORE,
    }
}

const AS_BEFORE: [&str; 2] = ["a", ""];
const INTERNAL: &str = "ERR LOCK.APPLY is internal";

const TABLE: [Row; 45] = [
    write("LOCK.ACQUIRE held b", Answer::Nil, AS_BEFORE),
    write("LOCK.ACQUIRE held a", Answer::Grant("a"), AS_BEFORE),
    write(
        "LOCK.ACQUIRE free b PX 60000",
        Answer::Grant("b"),
        ["a", "b"],
    ),
    write(
        "LOCK.ACQUIRE free b SHARED LIMIT 2",
        Answer::Grant("b"),
        ["a", "b"],
    ),
    write(
        "LOCK.ACQUIRE free b SESSION",
        Answer::Grant("b"),
        ["a", "b"],
    ),
    write(
        "LOCK.ACQUIRE free b PX 0",
        Answer::Error("ERR invalid lease"),
        AS_BEFORE,
    ),
    write(
        "LOCK.ACQUIRE free b BLOCK 1",
        Answer::Error("ERR syntax error"),
        AS_BEFORE,
    ),
    write("LOCK.ACQUIRE text b", Answer::Error(WRONGTYPE), AS_BEFORE),
    write("LOCK.WAIT held b", Answer::None, AS_BEFORE),
    write(
        "LOCK.WAIT held b BLOCK 600000 SESSION",
        Answer::None,
        AS_BEFORE,
    ),
    write("LOCK.WAIT held a", Answer::Grant("a"), AS_BEFORE),
    write("LOCK.WAIT free b", Answer::Grant("b"), ["a", "b"]),
    write("LOCK.WAIT text b", Answer::Error(WRONGTYPE), AS_BEFORE),
    write("LOCK.QUEUE held a", Answer::Grant("a"), AS_BEFORE),
    write("LOCK.QUEUE free b", Answer::Grant("b"), ["a", "b"]),
    write("LOCK.QUEUE text b", Answer::Error(WRONGTYPE), AS_BEFORE),
    write("LOCK.CANCEL held a", Answer::Int(0), AS_BEFORE),
    write("LOCK.CANCEL free b", Answer::Int(0), AS_BEFORE),
    write(
        "LOCK.CANCEL held *",
        Answer::Error("ERR '*' asks for a new token"),
        AS_BEFORE,
    ),
    write("LOCK.CANCEL text a", Answer::Error(WRONGTYPE), AS_BEFORE),
    write("LOCK.EXTEND held a", Answer::Int(1), AS_BEFORE),
    write(
        "LOCK.EXTEND held a PX 600000 SESSION",
        Answer::Int(1),
        AS_BEFORE,
    ),
    write("LOCK.EXTEND held b", Answer::Int(0), AS_BEFORE),
    write("LOCK.EXTEND text a", Answer::Error(WRONGTYPE), AS_BEFORE),
    write("LOCK.RELEASE held a", Answer::Int(1), ["", ""]),
    write("LOCK.RELEASE held b ALL", Answer::Int(0), AS_BEFORE),
    write("LOCK.RELEASE free a", Answer::Int(0), AS_BEFORE),
    write("LOCK.MACQUIRE 2 free held b", Answer::Nil, AS_BEFORE),
    write(
        "LOCK.MACQUIRE 2 free held a",
        Answer::Grant("a"),
        ["a", "a"],
    ),
    write(
        "LOCK.MACQUIRE 2 free free b",
        Answer::Error("ERR duplicate key"),
        AS_BEFORE,
    ),
    write(
        "LOCK.MACQUIRE 9 free held b",
        Answer::Error("ERR numkeys"),
        AS_BEFORE,
    ),
    write("LOCK.MWAIT 2 free held b", Answer::None, AS_BEFORE),
    write("LOCK.MWAIT 2 free free2 b", Answer::Grant("b"), ["a", "b"]),
    write("LOCK.MEXTEND 1 held a", Answer::Int(1), AS_BEFORE),
    write("LOCK.MEXTEND 2 held free a", Answer::Int(0), AS_BEFORE),
    write("LOCK.MRELEASE 2 held free a", Answer::Int(1), ["", ""]),
    write("LOCK.APPLY held DROP a", Answer::Error(INTERNAL), AS_BEFORE),
    write("LOCK.APPLY held ASK", Answer::Error(INTERNAL), AS_BEFORE),
    read("LOCK.CHECK held a", Answer::Left),
    read("LOCK.CHECK held b", Answer::Int(0)),
    read("LOCK.CHECK text a", Answer::Error(WRONGTYPE)),
    read("LOCK.INFO held", Answer::Holders("a")),
    read("LOCK.INFO held WAITERS 0", Answer::Holders("a")),
    read("LOCK.INFO free", Answer::Nil),
    read("LOCK.HELP", Answer::Lines),
];

/// The way a command reaches the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Context {
    Plain,
    Transaction,
    Eval,
    Evalsha,
    EvalInTransaction,
    Function,
    EvalRo,
    NoWritesScript,
    FunctionRo,
}

const CONTEXTS: [Context; 9] = [
    Context::Plain,
    Context::Transaction,
    Context::Eval,
    Context::Evalsha,
    Context::EvalInTransaction,
    Context::Function,
    Context::EvalRo,
    Context::NoWritesScript,
    Context::FunctionRo,
];

const RUN: &str = "return redis.call(unpack(ARGV))";
const RUN_WITHOUT_WRITES: &str = "#!lua flags=no-writes\nreturn redis.call(unpack(ARGV))";
const LIBRARY: &str = "#!lua name=locks
    local function run(keys, args) return redis.call(unpack(args)) end
    redis.register_function('run', run)
    redis.register_function{function_name = 'run_ro', callback = run, flags = {'no-writes'}}";

impl Context {
    fn may_block(self) -> bool {
        self == Context::Plain
    }

    fn may_write(self) -> bool {
        !matches!(
            self,
            Context::EvalRo | Context::NoWritesScript | Context::FunctionRo
        )
    }

    /// Returns the words that run the command. Two contexts need a transaction around them.
    #[track_caller]
    fn words(self, client: &mut Client, command: &str) -> Vec<String> {
        let head = match self {
            Context::Plain | Context::Transaction => Vec::new(),
            Context::Eval | Context::EvalInTransaction => vec!["EVAL", RUN, "0"],
            Context::EvalRo => vec!["EVAL_RO", RUN, "0"],
            Context::NoWritesScript => vec!["EVAL", RUN_WITHOUT_WRITES, "0"],
            Context::Function => vec!["FCALL", "run", "0"],
            Context::FunctionRo => vec!["FCALL_RO", "run_ro", "0"],
            Context::Evalsha => {
                let digest = client.call(&["SCRIPT", "LOAD", RUN]).text();
                return ["EVALSHA", &digest, "0"]
                    .into_iter()
                    .chain(command.split(' '))
                    .map(str::to_owned)
                    .collect();
            }
        };
        let words = head.into_iter().chain(command.split(' '));
        words.map(str::to_owned).collect()
    }

    /// Sends the command and returns its reply.
    #[track_caller]
    fn run(self, client: &mut Client, command: &str) -> Reply {
        let words = self.words(client, command);
        match self {
            Context::Transaction | Context::EvalInTransaction => {
                client.call("MULTI").okay();
                assert_eq!(client.call(&words).text(), "QUEUED");
                client.send("EXEC");
                only_reply(&client.recv_raw())
            }
            _ => client.call(&words),
        }
    }
}

/// Returns the only reply inside the reply of EXEC. It may be an error.
#[track_caller]
fn only_reply(raw: &[u8]) -> Reply {
    let inner = raw.strip_prefix(b"*1\r\n").expect("an array of one reply");
    if let [b'-', text @ ..] = inner {
        return Err(String::from_utf8_lossy(text).trim_end().to_owned());
    }
    Ok(redis::parse_redis_value(inner).expect("a reply"))
}

/// Starts a server with the functions. The default user may do everything; user `reader` may not
/// write.
#[track_caller]
fn server() -> Server {
    let server = Server::start();
    server.call(&["FUNCTION", "LOAD", LIBRARY]).text();
    server
        .call("ACL SETUSER reader on >secret %R~* +@all")
        .okay();
    server
}

/// Resets the server to the state that every row starts from.
#[track_caller]
fn set_up(server: &Server) {
    server.call_all(&[
        "FLUSHALL",
        "SET text words",
        &format!("LOCK.ACQUIRE held a {LONG}"),
    ]);
}

/// Returns the holders of `held` and of `free`.
#[track_caller]
fn holders(server: &Server) -> [String; 2] {
    ["held", "free"].map(|key| {
        let info = server.lock_info(key);
        info.map_or(String::new(), |info| info.holder_tokens().join(" "))
    })
}

/// Returns a summary of everything that a row could change.
#[track_caller]
fn everything(server: &Server) -> String {
    let list = server
        .call("DEBUG DIGEST-VALUE held free free2 text")
        .list();
    let digests: Vec<String> = list.into_iter().map(|it| Ok(it).text()).collect();
    let fence = server.info("lock", "lock_last_fence");
    let sessions = server.info("lock", "lock_sessions");
    format!("{digests:?} {fence} {sessions}")
}

#[track_caller]
fn assert_answers(reply: Reply, expected: Answer, cell: &str) {
    match expected {
        Answer::Nil | Answer::None => assert_eq!(reply, Ok(Value::Nil), "{cell}"),
        Answer::Grant(token) => assert_eq!(reply.grant().token, token, "{cell}"),
        Answer::Int(number) => assert_eq!(reply, Ok(Value::Int(number)), "{cell}"),
        Answer::Left => assert!(reply.int() > 0, "{cell}"),
        Answer::Holders(token) => {
            let info = LockInfo::of(reply.value()).expect("a lock");
            assert_eq!(info.holder_tokens(), [token], "{cell}");
        }
        Answer::Lines => assert!(reply.list().len() > 10, "{cell}"),
        Answer::Error(words) => {
            let error = reply.error();
            assert!(error.contains(words), "{cell}: {error}");
        }
    }
}

/// Sends a command that waits, unblocks the client once it is blocked, and reads the nil.
#[track_caller]
fn assert_waits(server: &Server, client: &mut Client, command: &str) {
    server.block(client, command);
    let id = client.id();
    assert_eq!(server.call(format!("CLIENT UNBLOCK {id}")).int(), 1);
    client.recv().nil();
}

/// Returns two clients, one for each protocol.
#[track_caller]
fn clients(server: &Server) -> [Client; 2] {
    [server.client(), server.client().into_resp3()]
}

#[test]
fn every_command_answers_by_the_rule_of_its_context() {
    let server = server();
    for context in CONTEXTS {
        for row in &TABLE {
            for mut client in clients(&server) {
                set_up(&server);
                let cell = format!("{} in {context:?}", row.command);
                let before = everything(&server);
                if row.writes && !context.may_write() {
                    let error = context.run(&mut client, row.command).error().to_lowercase();
                    let refused = error.contains("write commands are not allowed");
                    assert!(refused, "{cell}: {error}");
                    assert_eq!(everything(&server), before, "{cell}");
                    continue;
                }
                match row.answer {
                    Answer::None if context.may_block() => {
                        assert_waits(&server, &mut client, row.command);
                    }
                    answer => assert_answers(context.run(&mut client, row.command), answer, &cell),
                }
                assert_eq!(holders(&server), row.holders, "{cell}");
                assert_eq!(server.info("lock", "lock_waiters"), "0", "{cell}");
                if !row.writes || matches!(row.answer, Answer::Error(_)) {
                    assert_eq!(everything(&server), before, "{cell}");
                }
            }
        }
    }
}

#[test]
fn a_user_that_may_not_write_only_reads_in_every_context() {
    let server = server();
    for context in CONTEXTS {
        // EVAL gets no keys of its own, so the server refuses the command inside the script.
        for row in &TABLE {
            for mut client in clients(&server) {
                client.call("AUTH reader secret").okay();
                set_up(&server);
                let cell = format!("{} in {context:?}", row.command);
                let before = everything(&server);
                if !row.writes {
                    let answer = match row.answer {
                        // A user that may not write gets no tokens.
                        Answer::Holders(_) => Answer::Holders(""),
                        answer => answer,
                    };
                    assert_answers(context.run(&mut client, row.command), answer, &cell);
                } else {
                    assert_refused(context, &mut client, row.command);
                }
                assert_eq!(everything(&server), before, "{cell}");
                assert_eq!(server.info("lock", "lock_waiters"), "0", "{cell}");
            }
        }
    }
}

/// Asserts that a command that writes fails. A transaction refuses to queue it.
#[track_caller]
fn assert_refused(context: Context, client: &mut Client, command: &str) {
    if context != Context::Transaction {
        context.run(client, command).error();
        return;
    }
    client.call("MULTI").okay();
    let error = client.call(command).error();
    assert!(error.starts_with("NOPERM"), "{command}: {error}");
    assert!(client.call("EXEC").error().starts_with("EXECABORT"));
}

// ---- while a script is busy

/// An endless script of another client.
struct BusyScript {
    server: Server,
    caller: Client,
}

impl BusyScript {
    /// Starts the script and waits until the server replies BUSY to other clients.
    #[track_caller]
    fn begin(server: Server) -> BusyScript {
        server.call("CONFIG SET busy-reply-threshold 1").okay();
        let mut caller = server.client();
        caller.send(&["EVAL", "while true do end", "0"]);
        until("the script is busy", || {
            server
                .call("PING")
                .is_err_and(|error| error.starts_with("BUSY"))
        });
        BusyScript { server, caller }
    }

    #[track_caller]
    fn end(mut self) -> Server {
        self.server.call("SCRIPT KILL").okay();
        self.caller.recv().error();
        self.server
    }
}

#[test]
fn every_command_is_refused_while_a_script_is_busy() {
    let mut server = server();
    for protocol in ["2", "3"] {
        set_up(&server);
        let before = everything(&server);
        let mut client = server.client();
        client.call(format!("HELLO {protocol}")).value();
        let digest = client.call(&["SCRIPT", "LOAD", RUN]).text();
        let busy = BusyScript::begin(server);
        for row in &TABLE {
            let heads = [
                vec![],
                vec!["EVAL", RUN, "0"],
                vec!["EVALSHA", &digest, "0"],
                vec!["EVAL_RO", RUN, "0"],
                vec!["FCALL", "run", "0"],
                vec!["FCALL_RO", "run_ro", "0"],
            ];
            for head in heads {
                let words: Vec<&str> = head.into_iter().chain(row.command.split(' ')).collect();
                let error = client.call(&words).error();
                assert!(error.starts_with("BUSY"), "{words:?}: {error}");
            }
            client.call("MULTI").okay();
            let error = client.call(row.command).error();
            assert!(error.starts_with("BUSY"), "{}: {error}", row.command);
            client.call("DISCARD").okay();
        }
        server = busy.end();
        assert_eq!(everything(&server), before);
        assert_eq!(server.info("lock", "lock_waiters"), "0");
    }
}

#[test]
fn who_dies_while_a_script_is_busy_is_gone_when_it_ends() {
    let server = Server::start();
    let mut session = server.client();
    session
        .call(format!("LOCK.ACQUIRE k s {LONG} SESSION"))
        .grant();
    let dying = [
        server.waiter(format!("LOCK.WAIT k w1 {LONG}")),
        server.waiter(format!("LOCK.MWAIT 2 k k2 w2 {LONG}")),
    ];
    let mut last = server.waiter(format!("LOCK.WAIT k w3 {LONG}"));
    let mut timed = server.waiter(format!("LOCK.WAIT k w4 {LONG} BLOCK 1500"));
    let busy = BusyScript::begin(server);
    // The server notices closed connections while it runs the script.
    for client in dying {
        client.close();
    }
    session.close();
    let server = busy.end();
    assert_eq!(last.recv().grant().token, "w3");
    timed.recv().nil();
    assert_eq!(server.known_lock("k").holder_tokens(), ["w3"]);
    until("no client waits", || {
        server.info("lock", "lock_waiters") == "0"
    });
    assert_eq!(server.info("lock", "lock_sessions"), "0");
}

#[test]
fn what_falls_due_while_a_script_is_busy_is_done_when_it_ends() {
    let server = Server::start();
    server.call("LOCK.ACQUIRE k a PX 1500").grant();
    let mut next = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call(format!("LOCK.ACQUIRE l a {LONG}")).grant();
    let mut timed = server.waiter("LOCK.WAIT l b BLOCK 1500");
    let busy = BusyScript::begin(server);
    let since = Instant::now();
    until("both are due", || {
        since.elapsed() > Duration::from_millis(1_600)
    });
    let server = busy.end();
    assert_eq!(next.recv().grant().token, "b");
    timed.recv().nil();
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
}
