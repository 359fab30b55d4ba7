//! Locks and the clients by which a server runs scripts and functions.
//!
//! The server calls a script's commands with a client of its own, which has no connection. The
//! module must not show that client as a holder, and on some servers must not even look it up. So
//! these tests read a grant made in a script in every possible way. A SESSION begun in a script
//! belongs to the caller of the script. A command that another client has sent only in part never
//! changes that.

use support::{packed, until, Client, Expect, Flavour, LockInfo, Reply, Server};

/// A script that acquires `KEYS[1]` for the token `ARGV[1]`, with the options after it.
const TAKE: &str = "return redis.call('LOCK.ACQUIRE', KEYS[1], unpack(ARGV))";

/// A script that returns LOCK.INFO of `KEYS[1]`.
const LOOK: &str = "return redis.call('LOCK.INFO', KEYS[1])";

const LIBRARY: &str = "#!lua name=locks
    redis.register_function('take', function(keys, args)
        return redis.call('LOCK.ACQUIRE', keys[1], unpack(args))
    end)
    redis.register_function{
        function_name = 'look',
        callback = function(keys) return redis.call('LOCK.INFO', keys[1]) end,
        flags = {'no-writes'},
    }";

/// The way in which a client calls a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Eval,
    Evalsha,
    Fcall,
    EvalInTransaction,
    FcallInTransaction,
}

const WAYS: [Way; 5] = [
    Way::Eval,
    Way::Evalsha,
    Way::Fcall,
    Way::EvalInTransaction,
    Way::FcallInTransaction,
];

/// A script, and the function that does the same.
#[derive(Debug, Clone, Copy)]
struct Code {
    script: &'static str,
    function: &'static str,
}

const TAKING: Code = Code {
    script: TAKE,
    function: "take",
};

const LOOKING: Code = Code {
    script: LOOK,
    function: "look",
};

/// Starts a server that knows the functions. The client that loaded them is gone.
#[track_caller]
fn server_with_functions() -> Server {
    let server = Server::start();
    let mut loader = server.client();
    let words = ["FUNCTION", "LOAD", LIBRARY];
    assert_eq!(loader.call(&words).text(), "locks");
    let id = loader.id();
    loader.close();
    until("the client that loaded the functions is gone", || {
        !server.is_connected(id)
    });
    server
}

/// Returns the words that run the code for one key.
#[track_caller]
fn words<'a>(
    client: &mut Client,
    way: Way,
    code: Code,
    key: &'a str,
    args: &[&'a str],
) -> Vec<String> {
    let mut words = match way {
        Way::Eval | Way::EvalInTransaction => vec!["EVAL".to_owned(), code.script.to_owned()],
        Way::Evalsha => {
            let digest = client.call(&["SCRIPT", "LOAD", code.script]).text();
            vec!["EVALSHA".to_owned(), digest]
        }
        Way::Fcall | Way::FcallInTransaction => {
            vec!["FCALL".to_owned(), code.function.to_owned()]
        }
    };
    words.extend(["1", key].map(str::to_owned));
    words.extend(args.iter().map(|arg| (*arg).to_owned()));
    words
}

/// Runs the code for one key, and returns its reply.
#[track_caller]
fn run(client: &mut Client, way: Way, code: Code, key: &str, args: &[&str]) -> Reply {
    let words = words(client, way, code, key, args);
    match way {
        Way::Eval | Way::Evalsha | Way::Fcall => client.call(&words),
        Way::EvalInTransaction | Way::FcallInTransaction => {
            client.call("MULTI").okay();
            assert_eq!(client.call(&words).text(), "QUEUED");
            Ok(client.call("EXEC").list().remove(0))
        }
    }
}

// ---- a grant made in a script is looked at

#[test]
fn a_script_looks_at_the_lock_that_it_has_just_taken() {
    let server = Server::start();
    let script = "redis.call('LOCK.ACQUIRE', KEYS[1], 't') return redis.call('LOCK.INFO', KEYS[1])";
    let told = server.call(&["EVAL", script, "1", "k"]).value();
    let info = LockInfo::of(told).expect("a lock");
    assert_eq!(info.holder_tokens(), ["t"]);
    assert!(!info.holder().has("client-id"), "{info:?}");
}

#[test]
fn a_lock_taken_in_a_script_is_looked_at_by_a_plain_client() {
    for taken in WAYS {
        let server = server_with_functions();
        run(&mut server.client(), taken, TAKING, "k", &["t"]).grant();
        for mut client in [server.client(), server.client().into_resp3()] {
            let info = LockInfo::of(client.call("LOCK.INFO k").value()).expect("a lock");
            assert_eq!(info.holder_tokens(), ["t"], "{taken:?}");
            assert!(!info.holder().has("client-id"), "{taken:?}: {info:?}");
        }
    }
}

#[test]
fn a_lock_taken_in_a_script_is_looked_at_in_every_later_one() {
    for taken in WAYS {
        for looked_at in WAYS {
            let server = server_with_functions();
            run(&mut server.client(), taken, TAKING, "k", &["t"]).grant();
            let told = run(&mut server.client(), looked_at, LOOKING, "k", &[]).value();
            let info = LockInfo::of(told).expect("a lock");
            assert_eq!(info.holder_tokens(), ["t"], "{taken:?}, {looked_at:?}");
            assert!(!info.holder().has("client-id"), "{taken:?}, {looked_at:?}");
        }
    }
}

#[test]
fn a_user_that_may_only_read_looks_at_a_lock_taken_in_a_script() {
    for taken in WAYS {
        let server = server_with_functions();
        run(&mut server.client(), taken, TAKING, "k", &["t"]).grant();
        let user = "ACL SETUSER reader on >secret %R~* -@all +lock.info +eval_ro +fcall_ro";
        server.call(user).okay();
        let mut reader = server.client();
        reader.call("AUTH reader secret").okay();
        let looks = [
            vec!["LOCK.INFO", "k"],
            vec!["EVAL_RO", LOOK, "1", "k"],
            vec!["FCALL_RO", "look", "1", "k"],
        ];
        for look in &looks {
            let info = LockInfo::of(reader.call(look).value()).expect("a lock");
            assert_eq!(info.holder_tokens(), [""], "{taken:?}, {look:?}");
        }
    }
}

#[test]
fn a_lock_taken_in_a_script_is_extended_handed_on_and_released_by_anybody_with_its_token() {
    for taken in WAYS {
        let server = server_with_functions();
        let mut first = server.client();
        run(&mut first, taken, TAKING, "k", &["t", "PX", "600000"]).grant();
        first.close();
        assert_eq!(server.call("LOCK.EXTEND k t PX 600000").int(), 1);
        let again = server.call("LOCK.ACQUIRE k t PX 600000").grant();
        assert_eq!(again.token, "t", "{taken:?}");
        assert!(server.known_lock("k").holder().has("client-id"));
        // A script acquires the lock again, so the last grant again has no connection.
        run(&mut server.client(), taken, TAKING, "k", &["t"]).grant();
        let info = server.known_lock("k");
        assert!(!info.holder().has("client-id"), "{taken:?}: {info:?}");
        let mut waiter = server.waiter("LOCK.WAIT k next PX 600000");
        let script = "return redis.call('LOCK.RELEASE', KEYS[1], ARGV[1])";
        let release = ["EVAL", script, "1", "k", "t"];
        assert_eq!(server.call(&release).int(), 1, "{taken:?}");
        assert_eq!(waiter.recv().grant().token, "next");
        let info = server.known_lock("k");
        assert_eq!(info.holder().int("client-id"), waiter.id(), "{taken:?}");
    }
}

// ---- the caller of a session

/// Asserts that the session of `k` is the caller's, also after the end of the others.
#[track_caller]
fn assert_tied_to(server: &Server, caller: Client, others: Vec<Client>, what: &str) {
    let tied = |server: &Server| {
        let info = server.known_lock("k");
        (info.holder().int("session"), info.holder().int("client-id"))
    };
    assert_eq!(tied(server), (1, caller.id()), "{what}");
    for other in others {
        let id = other.id();
        other.close();
        until("the other client is gone", || !server.is_connected(id));
    }
    server.settle();
    assert_eq!(tied(server), (1, caller.id()), "{what}: others are gone");
    caller.close();
    until(&format!("the lock went with its caller, {what}"), || {
        server.lock_info("k").is_none()
    });
}

const SESSION: [&str; 4] = ["t", "PX", "600000", "SESSION"];

#[test]
fn a_session_begun_in_a_script_is_the_callers() {
    let server = server_with_functions();
    for way in WAYS {
        let mut caller = server.client();
        run(&mut caller, way, TAKING, "k", &SESSION).grant();
        assert_tied_to(&server, caller, Vec::new(), &format!("{way:?}"));
    }
}

/// The server has just run a script of another client, which has sent a part of its next command.
#[test]
fn a_session_begun_in_a_script_by_a_command_in_any_case_is_the_callers() {
    let server = server_with_functions();
    let mixed = |word: &str| word[..1].to_uppercase() + &word[1..].to_lowercase();
    let cases: [&dyn Fn(&str) -> String; 3] = [&str::to_lowercase, &mixed, &str::to_uppercase];
    for way in WAYS {
        for spelt in cases {
            let other = half_sender(&server, way, b"*3\r\n$4\r\nEVAL\r\n$6\r\nret");
            let mut caller = server.client();
            let mut words = words(&mut caller, way, TAKING, "k", &SESSION);
            words[0] = spelt(&words[0]);
            let what = format!("{way:?} as {}", words[0]);
            if matches!(way, Way::EvalInTransaction | Way::FcallInTransaction) {
                caller.call("MULTI").okay();
                caller.call(&words).text();
                let mut replies = caller.call(&*spelt("EXEC")).list();
                Ok(replies.remove(0)).grant();
            } else {
                caller.call(&words).grant();
            }
            assert_tied_to(&server, caller, vec![other], &what);
        }
    }
}

/// Returns the first parts of commands that a client begins to send. The cuts fall into the number
/// of words, a word's length, a word, and before the last byte.
fn halves() -> Vec<Vec<u8>> {
    let short = packed(&["EVAL", "return ARGV[1]", "0", "some words"]);
    let cuts = [
        1,
        3,
        4,
        6,
        10,
        12,
        14,
        20,
        short.len() - 12,
        short.len() - 1,
    ];
    let mut halves: Vec<Vec<u8>> = cuts.iter().map(|cut| short[..*cut].to_vec()).collect();
    // The server reads longer words into a buffer of their own, and words from 32 KB on in another
    // way.
    for long in [1_000, 16_000, 40_000, 300_000] {
        let command = packed(&["EVAL", "return 1", "0", &"x".repeat(long)]);
        halves.push(command[..command.len() / 2].to_vec());
        halves.push(command[..command.len() - 1].to_vec());
    }
    halves.push(b"PIN".to_vec());
    halves
}

/// Connects a client that runs a script and sends, in the same write, a part of its next command.
#[track_caller]
fn half_sender(server: &Server, way: Way, half: &[u8]) -> Client {
    let mut client = server.client();
    let words = words(&mut client, way, LOOKING, "elsewhere", &[]);
    let mut bytes = packed(&words);
    if matches!(way, Way::EvalInTransaction | Way::FcallInTransaction) {
        client.call("MULTI").okay();
        client.call(&words).value();
        bytes = packed("EXEC");
    }
    bytes.extend_from_slice(half);
    client.send_bytes(&bytes);
    client.recv().value();
    client
}

#[test]
fn clients_that_sent_half_of_a_command_leave_sessions_in_scripts_alone() {
    for half_sent_after in WAYS {
        let server = server_with_functions();
        let others: Vec<Client> = halves()
            .iter()
            .map(|half| half_sender(&server, half_sent_after, half))
            .collect();
        for way in WAYS {
            let mut caller = server.client();
            run(&mut caller, way, TAKING, "k", &SESSION).grant();
            let what = format!("{way:?} beside halves after {half_sent_after:?}");
            assert_tied_to(&server, caller, Vec::new(), &what);
        }
        let mut caller = server.client();
        run(&mut caller, Way::Eval, TAKING, "k", &SESSION).grant();
        let what = format!("halves after {half_sent_after:?}");
        assert_tied_to(&server, caller, others, &what);
    }
}

#[test]
fn a_half_sent_command_of_any_length_leaves_sessions_in_scripts_alone() {
    let server = server_with_functions();
    for half in halves() {
        let other = half_sender(&server, Way::Eval, &half);
        let mut caller = server.client();
        run(&mut caller, Way::Eval, TAKING, "k", &SESSION).grant();
        let what = format!("{} bytes sent", half.len());
        assert_tied_to(&server, caller, vec![other], &what);
    }
}

#[test]
fn who_sent_the_same_words_and_not_the_last_leaves_a_session_in_a_script_alone() {
    let server = server_with_functions();
    for way in [Way::Eval, Way::Evalsha, Way::Fcall] {
        let mut other = server.client();
        run(&mut other, way, TAKING, "elsewhere", &["t"]).grant();
        // The client announces one word more than it completes, so the server has the same words of
        // it as of the caller.
        let mut longer = words(&mut other, way, TAKING, "k", &SESSION);
        longer.push("REENTRANT".to_owned());
        let sent = packed(&longer);
        let mut caller = server.client();
        let bytes = [packed(&words(&mut other, way, LOOKING, "k", &[])), sent];
        let mut bytes = bytes.concat();
        bytes.truncate(bytes.len() - 3);
        other.send_bytes(&bytes);
        other.recv().nil();
        if tells_filters_the_client(&server) {
            run(&mut caller, way, TAKING, "k", &SESSION).grant();
            assert_tied_to(&server, caller, vec![other], &format!("{way:?}"));
        } else {
            // Such a server can't tell the two clients apart. No session is better than the other
            // client's.
            let error = format!("{:?}", run(&mut caller, way, TAKING, "k", &SESSION));
            assert!(error.contains("caller could not be made out"), "{error}");
            assert_eq!(server.lock_info("k"), None);
        }
    }
}

/// Returns true if the server gives a command filter the command's client: Redis does from 7.2 on.
fn tells_filters_the_client(server: &Server) -> bool {
    server.flavour() == Flavour::Valkey || server.version() >= (7, 2, 0)
}

#[test]
fn clients_that_wait_or_stand_in_a_transaction_leave_sessions_in_scripts_alone() {
    let server = server_with_functions();
    let mut others = vec![server.waiter("BLPOP nothing 0")];
    let mut queued = server.client();
    queued.call("MULTI").okay();
    queued.call(&["EVAL", LOOK, "1", "k"]).value();
    others.push(queued);
    let mut behind = server.client();
    server.block(&mut behind, "BLPOP nothing 0");
    behind.send(&["EVAL", LOOK, "1", "k"]);
    others.push(behind);
    for way in WAYS {
        let mut caller = server.client();
        run(&mut caller, way, TAKING, "k", &SESSION).grant();
        assert_tied_to(&server, caller, Vec::new(), &format!("{way:?}"));
    }
    let mut caller = server.client();
    run(&mut caller, Way::Eval, TAKING, "k", &SESSION).grant();
    assert_tied_to(&server, caller, others, "the waiting clients are gone");
}

#[test]
fn a_session_begun_in_a_script_of_a_client_that_sent_half_of_its_next_command_is_its_own() {
    let server = server_with_functions();
    let bystander = half_sender(&server, Way::Eval, b"*3\r\n$4\r\nEVAL\r\n$6\r\nret");
    let mut caller = server.client();
    let mut words = vec!["EVAL", TAKE, "1", "k"];
    words.extend(SESSION);
    let mut bytes = packed(&words);
    bytes.extend_from_slice(b"*3\r\n$4\r\nEVAL\r\n$6\r\nret");
    caller.send_bytes(&bytes);
    caller.recv().grant();
    assert_tied_to(&server, caller, vec![bystander], "both sent halves");
}
