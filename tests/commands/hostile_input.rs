//! Arguments and payloads that no client should send. The reply is the right error, and nothing
//! changes.

use std::time::Duration;

use support::payload;
use support::payload::{Frame, StoredHolder};
use support::{
    packed, unix_time_ms, unix_time_us, until, Client, Command, Expect, Server, LONG, WRONGTYPE,
};

const SYNTAX: &str = "ERR syntax error";
const TOKEN: &str = "ERR token must be 1 to 256 bytes";
const STAR: &str = "ERR '*' ";
const LEASE: &str = "ERR invalid lease";
const TIMEOUT: &str = "ERR invalid timeout";
const LIMIT: &str = "ERR invalid limit";
const PERMITS: &str = "ERR invalid permits";
const HOLDS: &str = "ERR invalid holds";
const COUNT: &str = "ERR invalid count";
const NUMKEYS: &str = "ERR numkeys ";
const DUPLICATE: &str = "ERR duplicate key";
const KEEP: &str = "ERR invalid keep";
const DATA: &str = "ERR invalid data";
const REPLICAS: &str = "ERR invalid replicas";
const WITHIN: &str = "ERR invalid within";
const FENCE: &str = "ERR invalid fence";
const MESSAGE: &str = "ERR invalid message";
const MAX_WAITERS: &str = "MAXWAITERS ";
const BAD_PAYLOAD: &str = "ERR Bad data format";

/// More than 1024 bytes.
const TOO_LONG: &str = match std::str::from_utf8(&[b'x'; 1025]) {
    Ok(text) => text,
    Err(_) => "",
};

/// Everything that a refused command must not change.
#[derive(Debug, PartialEq)]
struct State {
    digest: String,
    keys: i64,
    waiters: String,
    last_fence: String,
}

impl State {
    #[track_caller]
    fn of(server: &Server) -> State {
        State {
            digest: server.call("DEBUG DIGEST").text(),
            keys: server.call("DBSIZE").int(),
            waiters: server.info("lock", "lock_waiters"),
            last_fence: server.info("lock", "lock_last_fence"),
        }
    }
}

/// Starts a server with a held lock `held`, a string `text`, and one client that waits for `held`.
/// No further client may wait.
fn crowded_server() -> (Server, Client) {
    let server = Server::builder().config("lock.max-waiters 1").start();
    server.call(format!("LOCK.ACQUIRE held a {LONG}")).grant();
    server.call("SET text value").okay();
    let waiter = server.waiter(format!("LOCK.WAIT held w {LONG}"));
    (server, waiter)
}

/// Sends a command and asserts that its error starts with `prefix`.
#[track_caller]
fn assert_refused(server: &Server, command: &[Vec<u8>], prefix: &str) {
    let shown: Vec<_> = command
        .iter()
        .map(|word| word.escape_ascii().to_string())
        .collect();
    let reply = server.call(command);
    let Err(error) = reply else {
        panic!("{shown:?} should be refused with {prefix:?}: {reply:?}");
    };
    assert!(error.starts_with(prefix), "{shown:?}: {error:?}");
}

/// Returns the words of a command with one more word at the end, of any bytes.
fn with_word(command: &str, word: &[u8]) -> Vec<Vec<u8>> {
    let mut words = command.words();
    words.push(word.to_vec());
    words
}

// ---- errors and their precedence

#[test]
fn the_number_of_words_is_checked_first() {
    let (server, _waiter) = crowded_server();
    let before = State::of(&server);
    for command in [
        "LOCK.ACQUIRE",
        "LOCK.ACQUIRE text",
        "LOCK.WAIT",
        "LOCK.WAIT text",
        "LOCK.QUEUE",
        "LOCK.QUEUE text",
        "LOCK.CANCEL",
        "LOCK.CANCEL text",
        "LOCK.CANCEL text * surplus",
        "LOCK.EXTEND",
        "LOCK.EXTEND text",
        "LOCK.RELEASE",
        "LOCK.RELEASE text",
        "LOCK.CHECK",
        "LOCK.CHECK text",
        "LOCK.CHECK text * surplus",
        "LOCK.INFO",
        "LOCK.HELP surplus",
        "LOCK.APPLY",
        "LOCK.APPLY text",
        "LOCK.MACQUIRE",
        "LOCK.MACQUIRE 1 text",
        "LOCK.MACQUIRE x text",
        "LOCK.MWAIT",
        "LOCK.MWAIT 1 text",
        "LOCK.MEXTEND",
        "LOCK.MEXTEND 1 text",
        "LOCK.MRELEASE",
        "LOCK.MRELEASE 1 text",
    ] {
        let name = command.split(' ').next().unwrap().to_lowercase();
        let text = format!("ERR wrong number of arguments for '{name}' command");
        assert_eq!(server.call(command), Err(text), "{command}");
    }
    assert_eq!(State::of(&server), before);
}

#[test]
fn options_that_are_unknown_repeated_contradictory_or_cut_short_are_syntax_errors() {
    let (server, _waiter) = crowded_server();
    let before = State::of(&server);
    let of_asking = [
        "BOGUS",
        "PX",
        "EX",
        "PX 5 EX",
        "PX 5 PX 5",
        "EX 5 EX 5",
        "PX 5 EX 5",
        "EX 5 PX 5",
        "px 5 Px 6",
        "REENTRANT REENTRANT",
        "REENTRANT reentrant",
        "PX 5 REENTRANT PX",
        "5",
        "PX5",
        "PX=5",
        "NX",
        "ALL",
        "WAITERS 5",
        "LIMIT 5",
        "SHARED SHARED",
        "SHARED LIMIT",
        "SHARED LIMIT 5 LIMIT 5",
        "SESSION SESSION",
        "PERMITS 5",
        "KEEP",
        "KEEP 5 KEEP 5",
        "SESSION KEEP",
        "SESSION KEEP 5 KEEP 5",
        "SHARED PERMITS 5",
        "LIMIT 5 PERMITS 5",
        "SHARED LIMIT 5 PERMITS",
        "SHARED LIMIT 5 PERMITS 5 PERMITS 5",
        "HOLDS",
        "HOLDS 5 HOLDS 5",
        "HOLDS 5 REENTRANT",
        "reentrant holds 5",
    ];
    for options in of_asking {
        for command in [
            "LOCK.ACQUIRE text *",
            "LOCK.WAIT text *",
            "LOCK.MWAIT 1 text *",
        ] {
            assert_refused(&server, &format!("{command} {options}").words(), SYNTAX);
        }
    }
    for command in [
        "LOCK.ACQUIRE text t BLOCK 5",
        "LOCK.ACQUIRE text t KEEP 5",
        "LOCK.EXTEND text t KEEP 5",
        "LOCK.WAIT text t NOTIFY c m",
        "LOCK.QUEUE text t NOTIFY c",
        "LOCK.QUEUE text t NOTIFY c m NOTIFY c m",
        "LOCK.ACQUIRE text t BLOCK",
        "LOCK.WAIT text t BLOCK",
        "LOCK.WAIT text t BLOCK 5 BLOCK 5",
        "LOCK.WAIT text t BLOCK 5 block 6",
        "LOCK.WAIT text t TIMEOUT 5",
        "LOCK.EXTEND text t PX",
        "LOCK.EXTEND text t PX 5 PX 5",
        "LOCK.EXTEND text t PX 5 EX 5",
        "LOCK.EXTEND text t REENTRANT",
        "LOCK.EXTEND text t BLOCK 5",
        "LOCK.EXTEND text t SHARED",
        "LOCK.EXTEND text t ALL",
        "LOCK.EXTEND text t 5",
        "LOCK.RELEASE text t ALL ALL",
        "LOCK.RELEASE text t BOGUS",
        "LOCK.RELEASE text t PX 5",
        "LOCK.RELEASE text t REENTRANT",
        "LOCK.RELEASE text t HOLDS",
        "LOCK.RELEASE text t HOLDS 1 ALL",
        "LOCK.MRELEASE 1 text t ALL HOLDS 0",
        "LOCK.RELEASE text t HOLDS 1 HOLDS 1",
        "LOCK.EXTEND text t HOLDS 1",
        "LOCK.EXTEND text t NOSESSION SESSION",
        "LOCK.EXTEND text t KEEP 5",
        "LOCK.EXTEND text t NOSESSION KEEP 5",
        "LOCK.RELEASE text t KEEP 5",
        "LOCK.EXTEND text t NOSESSION NOSESSION",
        "LOCK.ACQUIRE text t NOSESSION",
        "LOCK.WAIT text t SESSION NOSESSION",
        "LOCK.INFO text WAITERS",
        "LOCK.INFO text WAITERS 5 WAITERS 5",
        "LOCK.INFO text BOGUS",
        "LOCK.INFO text 5",
        "LOCK.INFO text ALL",
    ] {
        assert_refused(&server, &command.words(), SYNTAX);
    }
    // Words that only look like an option.
    for word in [
        b"".as_slice(),
        b" PX",
        b"PX ",
        b"PX\0",
        b"\xd0\xa0X",
        b"ALL\0",
    ] {
        for command in [
            "LOCK.ACQUIRE text t",
            "LOCK.WAIT text t",
            "LOCK.EXTEND text t",
        ] {
            let mut words = with_word(command, word);
            words.push(b"5".to_vec());
            assert_refused(&server, &words, SYNTAX);
        }
        assert_refused(&server, &with_word("LOCK.RELEASE text t", word), SYNTAX);
    }
    assert_eq!(State::of(&server), before);
}

/// A fault to put into a command, and the error that it causes alone.
#[derive(Clone, Copy)]
struct Fault {
    /// The placeholder in the template, followed by its faulty replacement.
    place: &'static str,
    faulty: &'static str,
    error: &'static str,
}

/// Asserts, for every combination of `faults`, that a command's error is that of the first fault.
#[track_caller]
fn assert_precedence(server: &Server, template: &str, sound: &[(&str, &str)], faults: &[Fault]) {
    for chosen in 1..1usize << faults.len() {
        let mut line = template.to_owned();
        let mut first = None;
        for (number, fault) in faults.iter().enumerate() {
            if chosen >> number & 1 == 1 {
                line = line.replace(fault.place, fault.faulty);
                first = first.or(Some(fault.error));
            }
        }
        for (place, word) in sound {
            line = line.replace(place, word);
        }
        // "-" stands for an empty word.
        let words: Vec<Vec<u8>> = line
            .words()
            .into_iter()
            .map(|word| if word == b"-" { Vec::new() } else { word })
            .collect();
        assert_refused(server, &words, first.expect("a fault"));
    }
}

const fn fault(place: &'static str, faulty: &'static str, error: &'static str) -> Fault {
    Fault {
        place,
        faulty,
        error,
    }
}

#[test]
fn of_several_errors_the_first_in_the_order_of_the_contract_is_given() {
    let (server, _waiter) = crowded_server();
    let before = State::of(&server);
    let bogus = fault("<syntax>", "BOGUS", SYNTAX);
    let no_token = fault("<token>", "-", TOKEN);
    let star = fault("<token>", "*", STAR);
    let lease = fault("<lease>", "0", LEASE);
    let foreign = fault("<key>", "text", WRONGTYPE);
    let sound = [
        ("<syntax>", ""),
        ("<token>", "t"),
        ("<lease>", "5"),
        ("<block>", "5"),
        ("<limit>", "5"),
        ("<permits>", "1"),
        ("<keep>", "5"),
        ("<holds>", "5"),
        ("<count>", "5"),
        ("<numkeys>", "2"),
        ("<other>", "other"),
        ("<key>", "held"),
    ];
    assert_precedence(
        &server,
        "LOCK.ACQUIRE <key> <token> SESSION KEEP <keep> HOLDS <holds> PERMITS <permits> SHARED LIMIT <limit> <syntax> PX <lease>",
        &sound,
        &[
            bogus,
            no_token,
            lease,
            fault("<keep>", "0", KEEP),
            fault("<limit>", "0", LIMIT),
            fault("<permits>", "6", PERMITS),
            fault("<holds>", "0", HOLDS),
            foreign,
        ],
    );
    assert_precedence(
        &server,
        "LOCK.WAIT <key> <token> SESSION KEEP <keep> HOLDS <holds> PERMITS <permits> BLOCK <block> SHARED LIMIT <limit> EX <lease> <syntax>",
        &sound,
        &[
            bogus,
            no_token,
            lease,
            fault("<block>", "-5", TIMEOUT),
            fault("<keep>", "x", KEEP),
            fault("<limit>", "x", LIMIT),
            fault("<permits>", "0", PERMITS),
            fault("<holds>", "x", HOLDS),
            foreign,
            // Not a fault of the arguments: the one client that may wait is waiting.
            fault("<key>", "held", MAX_WAITERS),
        ],
    );
    let long_data = fault("<data>", TOO_LONG, DATA);
    let sound = [
        &sound[..],
        &[("<data>", "why"), ("<replicas>", "1"), ("<within>", "1")],
        &[("<fence>", "1")],
    ]
    .concat();
    assert_precedence(
        &server,
        "LOCK.EXTEND <key> <token> FENCE <fence> DATA <data> SESSION KEEP <keep> <syntax> PX <lease>",
        &sound,
        &[
            bogus,
            star,
            lease,
            fault("<keep>", "0", KEEP),
            long_data,
            fault("<fence>", "9007199254740991", FENCE),
            foreign,
        ],
    );
    assert_precedence(
        &server,
        "LOCK.MEXTEND 1 text t WITHIN <within> FENCE <fence> REPLICAS <replicas> DATA <data>",
        &sound,
        &[
            long_data,
            fault("<replicas>", "1001", REPLICAS),
            fault("<within>", "0", WITHIN),
            fault("<fence>", "0", FENCE),
        ],
    );
    assert_precedence(
        &server,
        "LOCK.QUEUE <key> <token> DATA <data> NOTIFY channel <message> HOLDS <holds>",
        &[&sound[..], &[("<message>", "m")]].concat(),
        &[
            fault("<holds>", "0", HOLDS),
            long_data,
            fault("<message>", TOO_LONG, MESSAGE),
            foreign,
        ],
    );
    for token in [no_token, star] {
        assert_precedence(
            &server,
            "LOCK.EXTEND <key> <token> PX <lease> <syntax>",
            &sound,
            &[bogus, token, lease, foreign],
        );
        assert_precedence(
            &server,
            "LOCK.RELEASE <key> <token> ALL <syntax>",
            &sound,
            &[bogus, token, foreign],
        );
        let arity = fault("<syntax>", "surplus", "ERR wrong number of arguments");
        for command in ["CANCEL", "CHECK"] {
            assert_precedence(
                &server,
                &format!("LOCK.{command} <key> <token> <syntax>"),
                &sound,
                &[arity, token, foreign],
            );
        }
    }
    assert_precedence(
        &server,
        "LOCK.INFO <key> WAITERS <count> <syntax>",
        &sound,
        &[bogus, fault("<count>", "-1", COUNT), foreign],
    );
    assert_precedence(
        &server,
        "LOCK.MWAIT <numkeys> <other> <key> <token> PX <lease> BLOCK <block> <syntax>",
        &sound,
        &[
            fault("<numkeys>", "0", NUMKEYS),
            bogus,
            fault("<other>", "<key>", DUPLICATE),
            no_token,
            lease,
            fault("<block>", "x", TIMEOUT),
            foreign,
            fault("<key>", "held", MAX_WAITERS),
        ],
    );
    assert_eq!(State::of(&server), before);
}

#[test]
fn any_order_and_case_of_options_means_the_same() {
    let server = Server::start();
    let options = ["PX 70000", "BLOCK 5", "REENTRANT"];
    let cases: [fn(&str) -> String; 3] = [str::to_uppercase, str::to_lowercase, |word| {
        let (head, tail) = word.split_at(1);
        head.to_lowercase() + &tail.to_uppercase()
    }];
    for (number, order) in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ]
    .iter()
    .enumerate()
    {
        for (variant, spelt) in cases.iter().enumerate() {
            let key = format!("k{number}-{variant}");
            let words: Vec<_> = order.iter().map(|place| spelt(options[*place])).collect();
            let command = format!("LOCK.WAIT {key} a {}", words.join(" "));
            server.call(&command).grant();
            server.call(&command).grant();
            // All three options took effect: the holds, the lease and the waiter's timeout.
            assert_eq!(server.lock_info(&key).unwrap().holder().int("holds"), 2);
            let left_ms = server.call(&["LOCK.CHECK", &key, "a"]).int();
            assert!((60_000..=70_000).contains(&left_ms), "{command}: {left_ms}");
            server.call(command.replace(" a ", " b ")).nil();
        }
    }
}

// ---- numbers

/// Words that no option accepts as a number.
const NO_NUMBERS: [&[u8]; 32] = [
    b"",
    b"-1",
    b"-0",
    b"+5",
    b"+0",
    b" 5",
    b"5 ",
    b"\t5",
    b"5\n",
    b"5\0",
    b"\0",
    b"05",
    b"00",
    b"0x5",
    b"1e3",
    b"5.0",
    b"1.5",
    b".5",
    b"5,000",
    b"5_000",
    b"NaN",
    b"nan",
    b"inf",
    b"-inf",
    b"1e400",
    b"9007199254740992",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551617",
    b"999999999999999999999999999999999999999999",
    b"\xd9\xa5",
];

/// Commands without their last word, a number, and the error for a bad number.
const NUMBERED: [(&str, &str); 30] = [
    ("LOCK.ACQUIRE free t PX", LEASE),
    ("LOCK.ACQUIRE free t EX", LEASE),
    ("LOCK.ACQUIRE free t REENTRANT px", LEASE),
    ("LOCK.ACQUIRE free t SHARED LIMIT", LIMIT),
    ("LOCK.WAIT free t PX", LEASE),
    ("LOCK.WAIT free t EX", LEASE),
    ("LOCK.WAIT free t BLOCK", TIMEOUT),
    ("LOCK.WAIT free t SHARED LIMIT", LIMIT),
    ("LOCK.ACQUIRE free t SHARED LIMIT 9 PERMITS", PERMITS),
    ("LOCK.WAIT free t SHARED LIMIT 9 PERMITS", PERMITS),
    ("LOCK.ACQUIRE free t SESSION KEEP", KEEP),
    ("LOCK.WAIT free t SESSION KEEP", KEEP),
    ("LOCK.EXTEND held a SESSION KEEP", KEEP),
    ("LOCK.WAIT free t HOLDS", HOLDS),
    ("LOCK.QUEUE held t PX", LEASE),
    ("LOCK.QUEUE held t KEEP", KEEP),
    ("LOCK.QUEUE held t HOLDS", HOLDS),
    ("LOCK.MQUEUE 1 held t KEEP", KEEP),
    ("LOCK.ACQUIRE free t HOLDS", HOLDS),
    ("LOCK.RELEASE held a HOLDS", HOLDS),
    ("LOCK.EXTEND held a PX", LEASE),
    ("LOCK.EXTEND held a EX", LEASE),
    ("LOCK.INFO held WAITERS", COUNT),
    ("LOCK.MACQUIRE 1 free t PX", LEASE),
    ("LOCK.MWAIT 1 free t BLOCK", TIMEOUT),
    ("LOCK.MEXTEND 1 held a EX", LEASE),
    ("LOCK.EXTEND held a FENCE", FENCE),
    ("LOCK.MEXTEND 1 held a FENCE", FENCE),
    ("LOCK.EXTEND held a REPLICAS", REPLICAS),
    ("LOCK.ACQUIRE free t REPLICAS 1 WITHIN", WITHIN),
];

#[test]
fn words_that_are_no_number_are_refused() {
    let (server, _waiter) = crowded_server();
    let before = State::of(&server);
    for (command, error) in NUMBERED {
        for word in NO_NUMBERS {
            assert_refused(&server, &with_word(command, word), error);
        }
    }
    for word in NO_NUMBERS {
        for command in ["MACQUIRE", "MWAIT", "MQUEUE", "MEXTEND", "MRELEASE"] {
            let mut words = with_word(&format!("LOCK.{command}"), word);
            words.extend("free t".words());
            assert_refused(&server, &words, NUMKEYS);
        }
    }
    assert_eq!(State::of(&server), before);
}

#[test]
fn numbers_are_taken_up_to_their_limits_and_not_beyond() {
    let server = Server::start();
    const LONGEST_MS: u64 = 9_007_199_254_740_991;
    for (command, error, least, most) in [
        ("LOCK.ACQUIRE free t PX", LEASE, 1, LONGEST_MS),
        ("LOCK.ACQUIRE free t EX", LEASE, 1, LONGEST_MS / 1000),
        ("LOCK.ACQUIRE free t SHARED LIMIT", LIMIT, 1, 4_294_967_295),
        ("LOCK.WAIT free t PX", LEASE, 1, LONGEST_MS),
        ("LOCK.WAIT free t EX", LEASE, 1, LONGEST_MS / 1000),
        ("LOCK.WAIT free t BLOCK", TIMEOUT, 0, LONGEST_MS),
        ("LOCK.WAIT free t SHARED LIMIT", LIMIT, 1, 4_294_967_295),
        ("LOCK.QUEUE free t PX", LEASE, 1, LONGEST_MS),
        ("LOCK.QUEUE free t KEEP", KEEP, 1, LONGEST_MS),
        ("LOCK.ACQUIRE free t SHARED LIMIT 9 PERMITS", PERMITS, 1, 9),
        (
            "LOCK.WAIT free t SHARED LIMIT 4294967295 PERMITS",
            PERMITS,
            1,
            4_294_967_295,
        ),
        ("LOCK.ACQUIRE free t SESSION KEEP", KEEP, 1, LONGEST_MS),
        ("LOCK.WAIT free t SESSION KEEP", KEEP, 1, LONGEST_MS),
        ("LOCK.EXTEND held a SESSION KEEP", KEEP, 1, LONGEST_MS),
        ("LOCK.ACQUIRE free t HOLDS", HOLDS, 1, 4_294_967_295),
        ("LOCK.WAIT free t HOLDS", HOLDS, 1, 4_294_967_295),
        ("LOCK.RELEASE held a HOLDS", HOLDS, 0, 4_294_967_295),
        ("LOCK.EXTEND held a PX", LEASE, 1, LONGEST_MS),
        ("LOCK.EXTEND held a EX", LEASE, 1, LONGEST_MS / 1000),
        ("LOCK.INFO held WAITERS", COUNT, 0, LONGEST_MS),
    ] {
        server.call(format!("LOCK.ACQUIRE held a {LONG}")).grant();
        let before = State::of(&server);
        if least > 0 {
            assert_refused(&server, &with_word(command, b"0"), error);
        }
        let beyond = (most + 1).to_string();
        assert_refused(&server, &with_word(command, beyond.as_bytes()), error);
        assert_eq!(State::of(&server), before, "{command}");
        for number in [most, least] {
            let reply = server.call(format!("{command} {number}"));
            assert!(reply.is_ok(), "{command} {number}: {reply:?}");
            let longest = number == most && (error == LEASE);
            for (key, token) in [("free", "t"), ("held", "a")] {
                let left_ms = server.call(&["LOCK.CHECK", key, token]).int();
                if longest && command.contains(key) {
                    assert!(left_ms > 9_007_199_254_000_000, "{command}: {left_ms}");
                }
            }
            server.call("DEL free").int();
        }
    }
}

#[test]
fn the_longest_block_waits() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG} BLOCK 9007199254740991"));
    let left_ms = server.lock_info("k").unwrap().queue[0].int("timeout-ms");
    assert!(
        (9_007_199_254_680_991..=9_007_199_254_740_991).contains(&left_ms),
        "{left_ms}"
    );
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(waiter.recv().grant().token, "b");
}

// ---- tokens and keys

#[test]
fn tokens_have_1_to_256_bytes() {
    let (server, _waiter) = crowded_server();
    let before = State::of(&server);
    let bad = [
        Vec::new(),
        vec![b't'; 257],
        vec![0; 257],
        vec![0xff; 70_000],
    ];
    for command in ["ACQUIRE", "WAIT", "EXTEND", "RELEASE", "CHECK"] {
        for token in &bad {
            let words = with_word(&format!("LOCK.{command} free"), token);
            assert_refused(&server, &words, TOKEN);
        }
    }
    for command in ["MACQUIRE", "MWAIT", "MEXTEND", "MRELEASE"] {
        for token in &bad {
            let words = with_word(&format!("LOCK.{command} 1 free"), token);
            assert_refused(&server, &words, TOKEN);
        }
    }
    assert_eq!(State::of(&server), before);
}

#[test]
fn a_token_may_have_any_bytes() {
    let server = Server::start();
    let every_byte: Vec<u8> = (0..=255).collect();
    let tokens: [&[u8]; 12] = [
        &every_byte,
        &[0],
        &[0, 0],
        &[0; 255],
        &[0; 256],
        &[0xff; 256],
        b"**",
        b"* ",
        b" ",
        b"PX",
        b"\r\n",
        b"\xc3\x28",
    ];
    // All tokens ask for one lock, so the server has to distinguish each from all others.
    for token in tokens {
        let reply = server
            .call(&[b"LOCK.ACQUIRE", b"k".as_slice(), token])
            .list();
        assert_eq!(Ok(reply[0].clone()).bytes(), token);
        for other in tokens.into_iter().filter(|other| *other != token) {
            assert_eq!(
                server.call(&[b"LOCK.CHECK", b"k".as_slice(), other]).int(),
                0
            );
            server
                .call(&[b"LOCK.ACQUIRE", b"k".as_slice(), other])
                .nil();
            assert_eq!(
                server
                    .call(&[b"LOCK.RELEASE", b"k".as_slice(), other])
                    .int(),
                0
            );
        }
        assert!(server.call(&[b"LOCK.CHECK", b"k".as_slice(), token]).int() > 0);
        let info = server.lock_info("k").unwrap();
        assert_eq!(Ok(info.holder().get("token")).bytes(), token);
        assert_eq!(
            server
                .call(&[b"LOCK.RELEASE", b"k".as_slice(), token])
                .int(),
            1
        );
    }
}

#[test]
fn a_key_may_have_any_bytes_and_any_length() {
    let server = Server::start();
    let keys: [&[u8]; 8] = [
        b"",
        b"\0",
        b"\0\0",
        b"\xff\xfe",
        b"a b\r\n",
        &[b'k'; 256],
        &[b'k'; 257],
        &[0xff; 1 << 20],
    ];
    for (number, key) in keys.into_iter().enumerate() {
        let token = format!("t{number}");
        let token = token.as_bytes();
        server.call(&[b"LOCK.ACQUIRE", key, token]).grant();
        let mut waiter = server.waiter(&[b"LOCK.WAIT".as_slice(), key, b"w"]);
        assert!(server.call(&[b"LOCK.CHECK", key, token]).int() > 0);
        assert_eq!(server.call(&[b"LOCK.RELEASE", key, token]).int(), 1);
        assert_eq!(waiter.recv().grant().token, "w");
    }
    // Each key is a separate lock.
    assert_eq!(server.call("DBSIZE").int(), 8);
}

/// The longest argument that a server accepts by default: 512 MiB. It is sent in pieces.
const HUGE: usize = 512 << 20;

#[track_caller]
fn call_with_huge_last_word(client: &mut Client, words: &[&str], byte: u8) -> String {
    let mut head = format!("*{}\r\n", words.len() + 1);
    for word in words {
        head += &format!("${}\r\n{word}\r\n", word.len());
    }
    head += &format!("${HUGE}\r\n");
    client.send_bytes(head.as_bytes());
    let piece = vec![byte; 1 << 20];
    for _ in 0..HUGE / piece.len() {
        client.send_bytes(&piece);
    }
    client.send_bytes(b"\r\n");
    // Half a gigabyte takes a while on a loaded machine.
    let reply = client.try_recv(Duration::from_secs(60));
    reply.expect("an answer").error()
}

#[test]
fn an_argument_of_512_mb_is_refused_and_not_kept() {
    let (server, _waiter) = crowded_server();
    let before = State::of(&server);
    let used = |server: &Server| -> usize { server.info("memory", "used_memory").parse().unwrap() };
    let used_before = used(&server);
    for (words, byte, prefix) in [
        (["LOCK.WAIT", "held"].as_slice(), b't', TOKEN),
        (["LOCK.ACQUIRE", "free", "t", "PX"].as_slice(), b'9', LEASE),
    ] {
        let mut client = server.client();
        let error = call_with_huge_last_word(&mut client, words, byte);
        assert!(error.starts_with(prefix), "{words:?}: {error}");
        assert!(error.len() < 100, "the error doesn't repeat the argument");
        client.close();
        until("the memory is given back", || {
            used(&server) < used_before + (8 << 20)
        });
    }
    assert_eq!(State::of(&server), before);
}

// ---- keys of other types

#[test]
fn a_key_of_any_other_type_is_refused_and_left_alone() {
    let server = Server::start();
    for make in [
        "SET k value",
        "RPUSH k a b",
        "SADD k a b",
        "ZADD k 1 a",
        "HSET k a b",
        "XADD k * a b",
    ] {
        server.call("DEL k").int();
        server.call(make).value();
        let before = State::of(&server);
        for command in [
            "LOCK.ACQUIRE k t",
            "LOCK.ACQUIRE k * PX 5 REENTRANT",
            "LOCK.WAIT k t",
            "LOCK.WAIT k t BLOCK 5",
            "LOCK.QUEUE k t",
            "LOCK.CANCEL k t",
            "LOCK.EXTEND k t PX 5",
            "LOCK.RELEASE k t",
            "LOCK.RELEASE k t ALL",
            "LOCK.CHECK k t",
            "LOCK.INFO k",
            "LOCK.INFO k WAITERS 0",
            "LOCK.MACQUIRE 2 free k t",
            "LOCK.MWAIT 2 free k t",
            "LOCK.MEXTEND 2 free k t",
            "LOCK.MRELEASE 2 free k t",
        ] {
            assert_eq!(
                server.call(command),
                Err(WRONGTYPE.into()),
                "{make}: {command}"
            );
        }
        assert_eq!(State::of(&server), before, "{make}");
    }
}

#[test]
fn other_types_commands_refuse_a_lock() {
    let server = Server::start();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let before = State::of(&server);
    for command in [
        "GET k",
        "APPEND k x",
        "INCR k",
        "LPUSH k x",
        "SADD k x",
        "ZADD k 1 x",
        "HSET k a b",
        "XADD k * a b",
        "SETBIT k 1 1",
        "PFADD k x",
        "BLPOP k 0",
    ] {
        let error = server.call(command).error();
        assert!(error.starts_with("WRONGTYPE "), "{command}: {error}");
    }
    assert_eq!(State::of(&server), before);
}

// ---- payloads

/// Starts a server that dumps without compression, so that each byte of a payload counts by itself.
fn dumping_server() -> Server {
    Server::builder().config("rdbcompression no").start()
}

#[track_caller]
fn dump(server: &Server, key: &str) -> Vec<u8> {
    server.call(&["DUMP", key]).bytes()
}

fn restore(server: &Server, key: &str, payload: &[u8]) -> support::Reply {
    server.call(&[b"RESTORE".as_slice(), key.as_bytes(), b"0", payload])
}

fn replace(server: &Server, key: &str, payload: &[u8]) -> support::Reply {
    server.call(&[
        b"RESTORE".as_slice(),
        key.as_bytes(),
        b"0",
        payload,
        b"REPLACE",
    ])
}

/// Returns copies of the payload, each with one bit or all bits of one byte flipped, and the byte's
/// index.
fn flips(payload: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> + '_ {
    (0..payload.len()).flat_map(move |place| {
        let masks = (0..8).map(|bit| 1u8 << bit).chain([0xff]);
        masks.map(move |mask| {
            let mut flipped = payload.to_vec();
            flipped[place] ^= mask;
            (place, flipped)
        })
    })
}

#[test]
fn no_flipped_and_no_cut_payload_is_restored() {
    let server = dumping_server();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call(format!("LOCK.ACQUIRE other b {LONG}")).grant();
    let payload = dump(&server, "k");
    let before = State::of(&server);
    for (place, flipped) in flips(&payload) {
        restore(&server, "copy", &flipped).error();
        let reply = replace(&server, "other", &flipped);
        assert!(reply.is_err(), "byte {place}: {reply:?}");
    }
    for len in 0..payload.len() {
        restore(&server, "copy", &payload[..len]).error();
        let reply = replace(&server, "other", &payload[..len]);
        assert!(reply.is_err(), "the first {len} bytes: {reply:?}");
    }
    assert_eq!(State::of(&server), before);
    // The unchanged payload is valid.
    restore(&server, "copy", &payload).okay();
    assert!(server.call("LOCK.CHECK copy a").int() > 0);
}

/// The number of bytes in a payload that are the server's own: the RDB version and a checksum.
const FOOTER_LEN: usize = 10;

#[test]
fn without_the_servers_checksum_the_modules_own_still_guards_the_lock() {
    let server = dumping_server();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call(format!("LOCK.ACQUIRE other b {LONG}")).grant();
    let payload = dump(&server, "k");
    let own_len = payload.len() - FOOTER_LEN;
    server.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1").okay();
    let before = State::of(&server);
    let lock = server.call("DEBUG DIGEST-VALUE k").list();
    let cuts = (0..payload.len()).map(|len| (len, payload[..len].to_vec()));
    for (place, changed) in flips(&payload).chain(cuts) {
        if restore(&server, "copy", &changed).is_err() {
            let reply = replace(&server, "other", &changed);
            assert!(reply.is_err(), "byte {place}: {reply:?}");
            continue;
        }
        // Without its checksum, the server checks in its ten bytes only that the version isn't
        // above its own. So a change or a cut there leaves the lock unchanged.
        assert!(place >= own_len, "byte {place} of {own_len}");
        assert_eq!(server.call("DEBUG DIGEST-VALUE copy").list(), lock);
        assert_eq!(server.call("DEL copy").int(), 1);
    }
    assert_eq!(State::of(&server), before);
}

#[test]
fn a_compressed_payload_is_checked_too() {
    let server = Server::start();
    let token = "t".repeat(200);
    server
        .call(&["LOCK.ACQUIRE", "k", &token, "PX", "600000"])
        .grant();
    let payload = dump(&server, "k");
    assert!(payload.len() < 150, "compressed: {}", payload.len());
    server.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1").okay();
    let before = State::of(&server);
    let lock = server.call("DEBUG DIGEST-VALUE k").list();
    for (place, flipped) in flips(&payload) {
        // The same bytes can be compressed in two ways. Other bytes are never accepted.
        if restore(&server, "copy", &flipped).is_ok() {
            let copy = server.call("DEBUG DIGEST-VALUE copy").list();
            assert_eq!(copy, lock, "byte {place}");
            assert_eq!(server.call("DEL copy").int(), 1);
        }
    }
    assert_eq!(State::of(&server), before);
}

#[test]
fn a_payload_made_by_hand_is_restored_where_it_is_sound() {
    let server = dumping_server();
    let frame = Frame::from(&server);
    let holder = StoredHolder {
        holds: 7,
        lease_ms: 700_000,
        ..StoredHolder::new(&[0xfe; 256])
    };
    let body = payload::body(0, std::slice::from_ref(&holder));
    restore(&server, "k", &frame.payload(&body)).okay();
    let info = server.lock_info("k").unwrap();
    assert_eq!(info.mode, "exclusive");
    assert_eq!(Ok(info.holder().get("token")).bytes(), holder.token);
    assert_eq!(info.holder().int("fence"), holder.fence as i64);
    assert_eq!(info.holder().int("holds"), 7);
    assert!(info.holder().int("lease-ms") > 500_000);
    until("the key expires with the lease", || {
        server.call("PEXPIRETIME k").int() == holder.deadline_ms as i64
    });
    let extend = [b"LOCK.EXTEND".as_slice(), b"k", &holder.token];
    assert_eq!(server.call(&extend).int(), 1);
    let left_ms = server.call("PTTL k").int();
    assert!((600_000..=700_000).contains(&left_ms), "{left_ms}");
}

#[test]
fn a_body_that_is_no_sound_lock_is_refused_even_with_right_checksums() {
    let server = dumping_server();
    let frame = Frame::from(&server);
    let one = StoredHolder::new(b"t");
    let sound = || one.clone();
    let with_data = |len| StoredHolder {
        data: vec![7; len],
        ..sound()
    };
    let year_2255_ms = 1 << 43;
    let longest_ms = (1 << 53) - 1;
    let with_sum_of_zeros = |mut body: Vec<u8>| {
        let from = body.len() - 4;
        body[from..].fill(0);
        body
    };
    let counted = |count: u32| {
        let mut bytes = vec![0];
        bytes.extend(count.to_le_bytes());
        payload::sealed(bytes)
    };
    let followed_by = |more: &[u8]| {
        let body = payload::body(0, &[sound()]);
        payload::sealed([&body[..body.len() - 4], more].concat())
    };
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("nothing at all", vec![]),
        ("a checksum of nothing", payload::sealed(vec![])),
        ("a mode alone", payload::sealed(vec![0])),
        ("no holder", payload::body(0, &[])),
        ("no shared holder", payload::body(1, &[])),
        ("an unknown mode", payload::body(2, &[sound()])),
        ("the greatest mode", payload::body(255, &[sound()])),
        ("more holders than bytes", counted(1)),
        ("4 billion holders", counted(u32::MAX)),
        ("a byte too many", followed_by(b"\0")),
        (
            "a second lock behind",
            followed_by(&payload::body(0, &[sound()])),
        ),
        (
            "two exclusive holders",
            payload::body(0, &[sound(), StoredHolder::new(b"u")]),
        ),
        ("one token twice", payload::body(1, &[sound(), sound()])),
        ("no token", payload::body(0, &[StoredHolder::new(b"")])),
        (
            "a token too long",
            payload::body(0, &[StoredHolder::new(&[b't'; 257])]),
        ),
        (
            "no holds",
            payload::body(
                0,
                &[StoredHolder {
                    holds: 0,
                    ..sound()
                }],
            ),
        ),
        (
            "no permits",
            payload::body(
                1,
                &[StoredHolder {
                    limit: 3,
                    permits: 0,
                    ..sound()
                }],
            ),
        ),
        (
            "more permits than the limit",
            payload::body(
                1,
                &[StoredHolder {
                    limit: 3,
                    permits: 4,
                    ..sound()
                }],
            ),
        ),
        (
            "several permits without a limit",
            payload::body(
                1,
                &[StoredHolder {
                    permits: 2,
                    ..sound()
                }],
            ),
        ),
        (
            "several permits of an exclusive holder",
            payload::body(
                0,
                &[StoredHolder {
                    permits: 2,
                    ..sound()
                }],
            ),
        ),
        (
            "no length",
            payload::body(
                0,
                &[StoredHolder {
                    lease_ms: 0,
                    ..sound()
                }],
            ),
        ),
        (
            "a length beyond the longest",
            payload::body(
                0,
                &[StoredHolder {
                    lease_ms: longest_ms + 1,
                    ..sound()
                }],
            ),
        ),
        (
            "an exclusive holder with a limit",
            payload::body(
                0,
                &[StoredHolder {
                    limit: 1,
                    ..sound()
                }],
            ),
        ),
        (
            "fences that fall",
            payload::body(
                1,
                &[
                    sound(),
                    StoredHolder {
                        fence: 1,
                        ..StoredHolder::new(b"u")
                    },
                ],
            ),
        ),
        (
            "tokens of one fence out of order",
            payload::body(
                1,
                &[
                    StoredHolder {
                        token: b"u".to_vec(),
                        ..sound()
                    },
                    sound(),
                ],
            ),
        ),
        (
            "tokens of one fence out of order behind another fence",
            payload::body(
                1,
                &[
                    StoredHolder {
                        fence: sound().fence - 1,
                        ..sound()
                    },
                    StoredHolder {
                        token: b"v".to_vec(),
                        ..sound()
                    },
                    StoredHolder {
                        token: b"u".to_vec(),
                        ..sound()
                    },
                ],
            ),
        ),
        ("version 2 alone", payload::sealed(vec![2])),
        (
            "version 2 without data",
            payload::body_with_data(0, &[sound()]),
        ),
        ("version 2 without the length of the data", {
            let body = payload::body(0, &[sound()]);
            payload::sealed([&[2], &body[..body.len() - 4]].concat())
        }),
        (
            "data too long",
            payload::body_with_data(0, &[with_data(1_025)]),
        ),
        ("less data than its length says", {
            let body = payload::body_with_data(0, &[with_data(9)]);
            payload::sealed(body[..body.len() - 5].to_vec())
        }),
        ("more data than its length says", {
            let body = payload::body_with_data(0, &[with_data(9)]);
            payload::sealed([&body[..body.len() - 4], b"x"].concat())
        }),
        (
            "an unknown mode with data",
            payload::body_with_data(2, &[with_data(9)]),
        ),
        ("a version that doesn't exist", {
            let body = payload::body_with_data(0, &[with_data(9)]);
            payload::sealed([&[3], &body[1..body.len() - 4]].concat())
        }),
        (
            "a deadline after the last possible one",
            payload::body(
                0,
                &[StoredHolder {
                    deadline_ms: longest_ms + year_2255_ms + 1,
                    ..sound()
                }],
            ),
        ),
        (
            "the greatest deadline",
            payload::body(
                0,
                &[StoredHolder {
                    deadline_ms: u64::MAX,
                    ..sound()
                }],
            ),
        ),
        (
            "a grant at the end of time",
            payload::body(
                0,
                &[StoredHolder {
                    since_ms: u64::MAX,
                    ..sound()
                }],
            ),
        ),
        (
            "the greatest fence",
            payload::body(
                0,
                &[StoredHolder {
                    fence: u64::MAX,
                    ..sound()
                }],
            ),
        ),
        (
            "a checksum of zeros",
            with_sum_of_zeros(payload::body(0, &[sound()])),
        ),
    ];
    server.call(format!("LOCK.ACQUIRE other b {LONG}")).grant();
    let before = State::of(&server);
    for (what, body) in bodies {
        let payload = frame.payload(&body);
        let error = restore(&server, "k", &payload).error();
        assert!(error.starts_with(BAD_PAYLOAD), "{what}: {error}");
        replace(&server, "other", &payload).error();
        assert_eq!(State::of(&server), before, "{what}");
    }
}

#[test]
fn a_payload_with_data_made_by_hand_is_restored_where_it_is_sound() {
    let server = dumping_server();
    let frame = Frame::from(&server);
    let with_data = |token: &[u8], data: &[u8]| StoredHolder {
        data: data.to_vec(),
        ..StoredHolder::new(token)
    };
    let longest = [0xff; 1024];
    let body = payload::body_with_data(0, &[with_data(b"a", &longest)]);
    restore(&server, "k", &frame.payload(&body)).okay();
    let info = server.known_lock("k");
    assert_eq!(Ok(info.holder().get("data")).bytes(), longest);
    // Two holders under one fence, as FENCE can leave them.
    let fence = StoredHolder::new(b"x").fence;
    let holders = [with_data(b"a", b""), with_data(b"b", b"why")];
    let holders = holders.map(|holder| StoredHolder { fence, ..holder });
    let body = payload::body_with_data(1, &holders);
    restore(&server, "shared", &frame.payload(&body)).okay();
    let info = server.known_lock("shared");
    assert_eq!(info.holder_tokens(), ["a", "b"]);
    let data: Vec<String> = info.holders.iter().map(|own| own.text("data")).collect();
    assert_eq!(data, ["", "why"]);
    assert_eq!(
        dump(&server, "shared"),
        frame.payload(&body),
        "one form for each lock"
    );
}

#[test]
fn another_encoding_version_is_refused() {
    let server = dumping_server();
    let frame = Frame::from(&server);
    let body = payload::body(0, &[StoredHolder::new(b"t")]);
    for version in [0, 2, 1023] {
        let payload = frame.with_encoding_version(version).payload(&body);
        let error = restore(&server, "k", &payload).error();
        assert!(error.starts_with(BAD_PAYLOAD), "{version}: {error}");
    }
    // Any client could fill the log with such payloads.
    assert!(!server.log().contains("a stored lock has format"));
    let payload = frame.with_encoding_version(1).payload(&body);
    restore(&server, "k", &payload).okay();
}

#[test]
fn a_restored_lock_whose_deadline_has_passed_is_free() {
    let server = dumping_server();
    let frame = Frame::from(&server);
    let now_ms = StoredHolder::new(b"x").since_ms;
    for (number, deadline_ms) in [0, 1, now_ms - 86_400_000, now_ms - 1]
        .into_iter()
        .enumerate()
    {
        let key = format!("k{number}");
        let holder = StoredHolder {
            deadline_ms,
            ..StoredHolder::new(b"t")
        };
        restore(&server, &key, &frame.payload(&payload::body(0, &[holder]))).okay();
        assert_eq!(server.lock_info(&key), None, "{deadline_ms}");
        assert_eq!(server.call(&["LOCK.CHECK", &key, "t"]).int(), 0);
        assert_eq!(server.call(&["LOCK.EXTEND", &key, "t"]).int(), 0);
        assert_eq!(server.call(&["LOCK.RELEASE", &key, "t"]).int(), 0);
        assert_eq!(server.call(&["LOCK.ACQUIRE", &key, "u"]).grant().token, "u");
    }
    // The server deletes the key even if no lock command reads it.
    let holder = StoredHolder {
        deadline_ms: 1,
        ..StoredHolder::new(b"t")
    };
    restore(&server, "k", &frame.payload(&payload::body(0, &[holder]))).okay();
    until("it is gone", || server.call("EXISTS k").int() == 0);
}

#[test]
fn a_fence_more_than_a_day_ahead_is_refused_and_doesnt_raise_the_counter() {
    let server = dumping_server();
    let frame = Frame::from(&server);
    let now_us = u64::try_from(unix_time_us()).unwrap();
    let day_us = 86_400_000_000;
    let with_fence = |fence| {
        frame.payload(&payload::body(
            0,
            &[StoredHolder {
                fence,
                ..StoredHolder::new(b"t")
            }],
        ))
    };
    let before = State::of(&server);
    // One minute allows for the time that the test itself takes.
    for fence in [
        now_us + day_us + 60_000_000,
        (1 << 53) - 1,
        1 << 53,
        u64::MAX - 1,
    ] {
        let error = restore(&server, "k", &with_fence(fence)).error();
        assert!(error.starts_with(BAD_PAYLOAD), "{fence}: {error}");
    }
    assert_eq!(State::of(&server), before);
    let grant = server.call("LOCK.ACQUIRE k t").grant();
    assert!((grant.fence as u64) < now_us + day_us);

    // A fence within a day is accepted, and every later grant has a higher fence. That includes a
    // grant in the same write, before the module has looked at the restored lock.
    let ahead = now_us + day_us - 60_000_000;
    let payload = with_fence(ahead);
    let mut client = server.client();
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"0", &payload, b"REPLACE"];
    client.send_bytes(&[packed(&restore), packed("LOCK.ACQUIRE l t")].concat());
    client.recv().okay();
    let grant = client.recv().grant();
    assert!(grant.fence as u64 > ahead, "{} after {ahead}", grant.fence);
    let restored = server.lock_info("k").unwrap();
    assert_eq!(restored.holder().int("fence") as u64, ahead);
}

// ---- rights and room

const EVERY_COMMAND: [&str; 13] = [
    "LOCK.ACQUIRE <key> t",
    "LOCK.WAIT <key> t BLOCK 5",
    "LOCK.QUEUE <key> t",
    "LOCK.CANCEL <key> t",
    "LOCK.EXTEND <key> t",
    "LOCK.RELEASE <key> t",
    "LOCK.CHECK <key> t",
    "LOCK.INFO <key>",
    "LOCK.MACQUIRE 2 allowed:k <key> t",
    "LOCK.MWAIT 2 allowed:k <key> t BLOCK 5",
    "LOCK.MQUEUE 2 allowed:k <key> t",
    "LOCK.MEXTEND 2 allowed:k <key> t",
    "LOCK.MRELEASE 2 allowed:k <key> t",
];

#[test]
fn a_user_without_rights_to_the_key_gets_noperm() {
    let server = Server::start();
    server
        .call("ACL SETUSER limited on >secret ~allowed:* +@all")
        .okay();
    server.call(format!("LOCK.ACQUIRE held a {LONG}")).grant();
    let mut client = server.client();
    client.call("AUTH limited secret").okay();
    let before = State::of(&server);
    for command in EVERY_COMMAND {
        let error = client.call(command.replace("<key>", "held")).error();
        assert!(error.starts_with("NOPERM"), "{command}: {error}");
    }
    // A transaction or a script doesn't give the user the right either.
    client.call("MULTI").okay();
    let error = client.call("LOCK.RELEASE held a").error();
    assert!(error.starts_with("NOPERM"), "{error}");
    assert!(client.call("EXEC").error().starts_with("EXECABORT"));
    let script = "return redis.call('LOCK.RELEASE', 'held', 'a')";
    client.call(&["EVAL", script, "0"]).error();
    assert_eq!(State::of(&server), before);
    for command in EVERY_COMMAND {
        let reply = client.call(command.replace("<key>", "allowed:l"));
        assert!(reply.is_ok(), "{command}: {reply:?}");
    }
}

#[test]
fn a_user_without_rights_to_the_command_gets_noperm() {
    let server = Server::start();
    server
        .call("ACL SETUSER limited on >secret ~* +@all -lock.release")
        .okay();
    server
        .call("ACL SETUSER looker on >secret ~* -@all +lock.check +lock.info")
        .okay();
    server
        .call(format!("LOCK.ACQUIRE allowed:l t {LONG}"))
        .grant();
    for (user, allowed) in [
        ("limited", ["LOCK.EXTEND", "LOCK.WAIT"]),
        ("looker", ["LOCK.CHECK", "LOCK.INFO"]),
    ] {
        let mut client = server.client();
        client.call(format!("AUTH {user} secret")).okay();
        let error = client.call("LOCK.RELEASE allowed:l t").error();
        assert!(error.starts_with("NOPERM"), "{user}: {error}");
        for command in EVERY_COMMAND.iter().filter(|it| {
            allowed
                .iter()
                .any(|name| it.starts_with(&format!("{name} ")))
        }) {
            let reply = client.call(command.replace("<key>", "allowed:l"));
            assert!(reply.is_ok(), "{user}: {command}: {reply:?}");
        }
    }
    assert!(server.call("LOCK.CHECK allowed:l t").int() > 0);
}

#[test]
fn short_memory_stops_taking_locks_and_not_giving_them_back() {
    let server = Server::builder()
        .config("maxmemory-policy noeviction")
        .start();
    for key in ["released", "extended", "passed"] {
        server
            .call(&["LOCK.ACQUIRE", key, "a", "PX", "600000"])
            .grant();
    }
    let mut waiter = server.waiter(format!("LOCK.WAIT passed w {LONG}"));
    server.call("CONFIG SET maxmemory 1").okay();
    let before = State::of(&server);
    for command in [
        "LOCK.ACQUIRE free t",
        // The server refuses even the holder's repeat, because it doesn't ask the module.
        "LOCK.ACQUIRE extended a",
        "LOCK.WAIT free t",
        "LOCK.WAIT passed t",
        "LOCK.MACQUIRE 1 free t",
        "LOCK.MWAIT 1 free t",
    ] {
        let error = server.call(command).error();
        assert!(error.starts_with("OOM "), "{command}: {error}");
    }
    assert_eq!(State::of(&server), before);
    assert_eq!(server.call("LOCK.EXTEND extended a PX 700000").int(), 1);
    assert!(server.call("LOCK.CHECK extended a").int() > 600_000);
    assert!(server.lock_info("passed").is_some());
    assert_eq!(server.call("LOCK.RELEASE released a").int(), 1);
    assert_eq!(server.lock_info("released"), None);
    // The waiter is granted the lock.
    assert_eq!(server.call("LOCK.RELEASE passed a").int(), 1);
    assert_eq!(waiter.recv().grant().token, "w");
    assert!(server.call("LOCK.CHECK passed w").int() > 0);
    server.call("CONFIG SET maxmemory 0").okay();
    server.call("LOCK.ACQUIRE free t").grant();
}

// ---- the internal command

#[test]
fn lock_apply_is_refused_to_clients_wherever_they_send_it() {
    let (server, _waiter) = crowded_server();
    let before = State::of(&server);
    let now_ms = unix_time_ms();
    let grant = format!(
        "exclusive 0 {} 1 {} {now_ms} 600000 1",
        unix_time_us(),
        now_ms + 600_000
    );
    let effects: [&[&str]; 4] = [
        &["LOCK.APPLY", "held", "GRANT", "thief", &grant],
        &["LOCK.APPLY", "held", "DROP", "a"],
        &["LOCK.APPLY", "held", "nonsense"],
        &["LOCK.APPLY", "text", "DROP", "a"],
    ];
    for effect in effects {
        assert_eq!(server.call(effect).error(), "ERR LOCK.APPLY is internal");
    }
    let mut client = server.client();
    client.call("MULTI").okay();
    for effect in effects {
        assert_eq!(client.call(effect).text(), "QUEUED");
    }
    client.send("EXEC");
    let refused = "-ERR LOCK.APPLY is internal\r\n".repeat(effects.len());
    let answer = String::from_utf8(client.recv_raw()).unwrap();
    assert_eq!(answer, format!("*{}\r\n{refused}", effects.len()));
    let script = "return redis.call(unpack(ARGV))";
    for effect in effects {
        let mut words: Vec<Vec<u8>> = vec![b"EVAL".to_vec(), script.into(), b"0".to_vec()];
        words.extend(effect.iter().map(|word| word.as_bytes().to_vec()));
        let error = server.call(&words).error();
        assert!(error.starts_with("ERR LOCK.APPLY is internal"), "{error}");
    }
    assert_eq!(State::of(&server), before);
    assert_eq!(server.lock_info("held").unwrap().holder_tokens(), ["a"]);
}
