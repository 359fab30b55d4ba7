//! The commands in transactions, scripts and functions, in pipelines and in both protocols.

use redis::Value;
use redis_lock_rig::{Plan, Process};
use support::compiled::shared_object;
use support::{
    module_path, server_binary, server_with_holder, until, Client, Expect, Flavour, Server, LONG,
};

/// Runs a transaction and returns its replies.
#[track_caller]
fn transaction(client: &mut Client, commands: &[&str]) -> Vec<Value> {
    client.call("MULTI").okay();
    for command in commands {
        assert_eq!(client.call(*command).text(), "QUEUED");
    }
    client.call("EXEC").list()
}

/// Runs a script with one key and arguments.
#[track_caller]
fn eval(client: &mut Client, script: &str, key: &str, args: &[&str]) -> support::Reply {
    let mut words = vec!["EVAL", script, "1", key];
    words.extend(args);
    client.call(&words)
}

const CALL_WAIT: &str =
    "return redis.call('LOCK.WAIT', KEYS[1], ARGV[1], 'PX', '600000', 'BLOCK', '0')";

// ---- WAIT acts like ACQUIRE if the client may not block

#[test]
fn wait_in_a_transaction_acts_as_acquire() {
    let server = server_with_holder();
    for mut client in [server.client(), server.client().into_resp3()] {
        let wait = format!("LOCK.WAIT k b {LONG} BLOCK 0");
        let free = format!("LOCK.WAIT free b {LONG} BLOCK 0");
        let replies = transaction(&mut client, &[&wait, &free, "PING", &wait]);
        assert_eq!(replies[0], Value::Nil);
        assert_eq!(Ok(replies[1].clone()).grant().token, "b");
        assert_eq!(Ok(replies[2].clone()).text(), "PONG");
        assert_eq!(replies[3], Value::Nil);
        assert_eq!(server.waiters("k"), 0, "no client was enqueued");
    }
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn wait_in_a_script_acts_as_acquire() {
    let server = server_with_holder();
    for mut client in [server.client(), server.client().into_resp3()] {
        eval(&mut client, CALL_WAIT, "k", &["b"]).nil();
        assert_eq!(server.waiters("k"), 0, "no client was enqueued");
        let grant = eval(&mut client, CALL_WAIT, "free", &["b"]).grant();
        assert_eq!(grant.token, "b");
        assert_eq!(
            server.lock_info("free").unwrap().holder().int("fence"),
            grant.fence
        );
    }
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn a_script_sees_nil_as_false() {
    let server = server_with_holder();
    let mut client = server.client();
    let commands = [
        "'LOCK.ACQUIRE', KEYS[1], 'b'",
        "'LOCK.WAIT', KEYS[1], 'b'",
        "'LOCK.MACQUIRE', 1, KEYS[1], 'b'",
        "'LOCK.MWAIT', 1, KEYS[1], 'b'",
        "'LOCK.INFO', 'free'",
    ];
    for command in commands {
        let script = format!("return tostring(redis.call({command}))");
        assert_eq!(
            eval(&mut client, &script, "k", &[]).text(),
            "false",
            "{command}"
        );
        // A nil that the script returns reaches the client as the null bulk string.
        let script = format!("return redis.call({command})");
        client.send(&["EVAL", &script, "1", "k"]);
        assert_eq!(received(&mut client), "$-1\r\n", "{command}");
    }
}

#[test]
fn wait_in_a_script_that_speaks_resp3_acts_as_acquire() {
    let server = server_with_holder();
    let script = "redis.setresp(3) local got = redis.call('LOCK.WAIT', KEYS[1], ARGV[1])
                  if got == nil then return 'nil' end
                  return got";
    let mut client = server.client().into_resp3();
    assert_eq!(eval(&mut client, script, "k", &["b"]).text(), "nil");
    assert_eq!(eval(&mut client, script, "free", &["b"]).grant().token, "b");
}

#[test]
fn wait_in_a_function_acts_as_acquire() {
    let server = server_with_holder();
    let library = "#!lua name=locks
        redis.register_function('wait', function(keys, args)
            return redis.call('LOCK.WAIT', keys[1], args[1], 'PX', '600000')
        end)";
    assert_eq!(server.call(&["FUNCTION", "LOAD", library]).text(), "locks");
    server.call("FCALL wait 1 k b").nil();
    assert_eq!(server.waiters("k"), 0, "no client was enqueued");
    assert_eq!(server.call("FCALL wait 1 free b").grant().token, "b");
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn wait_in_a_script_within_a_transaction_acts_as_acquire() {
    let server = server_with_holder();
    let mut client = server.client();
    client.call("MULTI").okay();
    for key in ["k", "free"] {
        assert_eq!(eval(&mut client, CALL_WAIT, key, &["b"]).text(), "QUEUED");
    }
    let replies = client.call("EXEC").list();
    assert_eq!(replies[0], Value::Nil);
    assert_eq!(Ok(replies[1].clone()).grant().token, "b");
    assert_eq!(server.waiters("k"), 0, "no client was enqueued");
}

#[test]
fn the_limit_of_waiters_means_nothing_to_a_client_that_may_not_block() {
    let server = server_with_holder();
    server.call("CONFIG SET lock.max-waiters 1").okay();
    let _waiter = server.waiter("LOCK.WAIT k b");
    let replies = transaction(&mut server.client(), &["LOCK.WAIT k c"]);
    assert_eq!(replies, [Value::Nil]);
    eval(&mut server.client(), CALL_WAIT, "k", &["c"]).nil();
}

#[test]
fn a_wait_in_a_transaction_leaves_the_position_of_its_token_alone() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(
        transaction(&mut server.client(), &["LOCK.WAIT k b"]),
        [Value::Nil]
    );
    waiter.expect_silence();
    assert_eq!(server.waiters("k"), 1);
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(waiter.recv().grant().token, "b");
}

/// Uses RESP3, because a subscriber in RESP2 may not send LOCK.WAIT. From Valkey 8.1 on, a
/// subscriber may not block.
#[test]
fn a_subscriber_that_may_not_block_leaves_the_position_of_its_token_alone() {
    let server = server_with_holder();
    let blocks = server.flavour() == Flavour::Redis || server.version() < (8, 1, 0);
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut subscriber = server.client().into_resp3();
    subscriber.call("SUBSCRIBE news").value();
    subscriber.send(format!("LOCK.WAIT k b {LONG}"));
    if blocks {
        let error = waiter.recv().error();
        assert!(error.starts_with("UNBLOCKED a newer"), "{error}");
        server.call("LOCK.RELEASE k a").int();
        assert_eq!(subscriber.recv().grant().token, "b");
        return;
    }
    subscriber.recv().nil();
    waiter.expect_silence();
    subscriber.call("UNSUBSCRIBE news").value();
    subscriber.send(format!("LOCK.WAIT k b {LONG}"));
    let error = waiter.recv().error();
    assert!(error.starts_with("UNBLOCKED a newer"), "{error}");
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(subscriber.recv().grant().token, "b");
}

// ---- transactions and scripts while clients wait

#[test]
fn nobody_barges_in_within_a_transaction() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let replies = transaction(
        &mut server.client(),
        &[
            "LOCK.RELEASE k a",
            "LOCK.ACQUIRE k c",
            "LOCK.WAIT k c",
            "LOCK.CHECK k c",
        ],
    );
    assert_eq!(
        replies,
        [Value::Int(1), Value::Nil, Value::Nil, Value::Int(0)]
    );
    assert_eq!(waiter.recv().grant().token, "b");
    assert!(server.call("LOCK.CHECK k b").int() > 0);
}

#[test]
fn nobody_barges_in_within_a_script() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let script = "redis.call('DEL', KEYS[1])
                  return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1])";
    eval(&mut server.client(), script, "k", &["c"]).nil();
    assert_eq!(waiter.recv().grant().token, "b");
    assert!(server.call("LOCK.CHECK k b").int() > 0);
}

#[test]
fn a_lock_given_and_released_within_a_transaction_leaves_nothing() {
    let server = Server::start();
    let replies = transaction(
        &mut server.client(),
        &[
            "LOCK.ACQUIRE k a",
            "LOCK.EXTEND k a PX 5000",
            "LOCK.RELEASE k a",
        ],
    );
    assert_eq!(Ok(replies[0].clone()).grant().token, "a");
    assert_eq!(replies[1..], [Value::Int(1), Value::Int(1)]);
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn check_guards_a_write_in_a_script() {
    let server = server_with_holder();
    let script = "if redis.call('LOCK.CHECK', KEYS[1], ARGV[1]) == 0 then return 0 end
                  redis.call('SET', 'stock', ARGV[2])
                  return 1";
    let mut client = server.client();
    assert_eq!(eval(&mut client, script, "k", &["b", "17"]).int(), 0);
    server.call("GET stock").nil();
    assert_eq!(eval(&mut client, script, "k", &["a", "18"]).int(), 1);
    assert_eq!(server.call("GET stock").text(), "18");
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(eval(&mut client, script, "k", &["a", "19"]).int(), 0);
    assert_eq!(server.call("GET stock").text(), "18");
}

#[test]
fn check_tells_the_lease_in_a_transaction() {
    let server = server_with_holder();
    let replies = transaction(&mut server.client(), &["LOCK.CHECK k a", "LOCK.CHECK k b"]);
    assert!(Ok(replies[0].clone()).int() > 0);
    assert_eq!(replies[1], Value::Int(0));
}

#[test]
fn an_error_of_a_lock_command_reaches_the_script() {
    let server = Server::start();
    server.call("SET text value").okay();
    let script = "local reply = redis.pcall('LOCK.ACQUIRE', KEYS[1], ARGV[1])
                  return reply.err";
    let error = eval(&mut server.client(), script, "text", &["a"]).text();
    assert!(error.starts_with("WRONGTYPE "), "{error}");
    let error = eval(&mut server.client(), script, "k", &[""]).text();
    assert_eq!(error, "ERR token must be 1 to 256 bytes");
}

// ---- scripts that may not write

/// Commands that write, as the words of a script's call.
const WRITES: [&str; 6] = [
    "'LOCK.ACQUIRE', KEYS[1], 'b'",
    "'LOCK.WAIT', KEYS[1], 'b'",
    "'LOCK.QUEUE', KEYS[1], 'b'",
    "'LOCK.CANCEL', KEYS[1], 'a'",
    "'LOCK.EXTEND', KEYS[1], 'a'",
    "'LOCK.RELEASE', KEYS[1], 'a'",
];

/// Commands that only read, as expressions of a script that are above 0 for the holder.
const READS: [&str; 2] = [
    "redis.call('LOCK.CHECK', KEYS[1], 'a')",
    "#redis.call('LOCK.INFO', KEYS[1])",
];

#[track_caller]
fn assert_refused_as_a_write(error: &str) {
    let lower = error.to_ascii_lowercase();
    assert!(lower.contains("write commands are not allowed"), "{error}");
}

#[test]
fn eval_ro_refuses_writes_and_allows_reads() {
    let server = server_with_holder();
    for write in WRITES {
        let script = format!("return redis.call({write})");
        for key in ["k", "free"] {
            let error = server.call(&["EVAL_RO", &script, "1", key]).error();
            assert_refused_as_a_write(&error);
        }
    }
    for read in READS {
        let script = format!("return {read}");
        assert!(
            server.call(&["EVAL_RO", &script, "1", "k"]).int() > 0,
            "{read}"
        );
    }
    assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["a"]);
    assert_eq!(server.lock_info("free"), None);
}

#[test]
fn a_script_flagged_no_writes_refuses_writes_and_allows_reads() {
    let server = server_with_holder();
    for write in WRITES {
        let script = format!("#!lua flags=no-writes\nreturn redis.call({write})");
        let error = server.call(&["EVAL", &script, "1", "k"]).error();
        assert_refused_as_a_write(&error);
    }
    for read in READS {
        let script = format!("#!lua flags=no-writes\nreturn {read}");
        assert!(
            server.call(&["EVAL", &script, "1", "k"]).int() > 0,
            "{read}"
        );
    }
    assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["a"]);
}

#[test]
fn a_function_flagged_no_writes_refuses_writes_and_allows_reads() {
    let server = server_with_holder();
    let library = "#!lua name=locks
        local function acquire(keys) return redis.call('LOCK.ACQUIRE', keys[1], 'b') end
        local function check(keys) return redis.call('LOCK.CHECK', keys[1], 'a') end
        redis.register_function{
            function_name = 'acquire', callback = acquire, flags = { 'no-writes' } }
        redis.register_function{
            function_name = 'check', callback = check, flags = { 'no-writes' } }";
    server.call(&["FUNCTION", "LOAD", library]).text();
    assert_refused_as_a_write(&server.call("FCALL_RO acquire 1 k").error());
    assert_refused_as_a_write(&server.call("FCALL acquire 1 free").error());
    assert!(server.call("FCALL_RO check 1 k").int() > 0);
    assert_eq!(server.lock_info("free"), None);
}

// ---- WATCH

/// Watches `k`, runs `meanwhile`, and returns true if a transaction still runs.
#[track_caller]
fn still_runs(server: &Server, meanwhile: impl FnOnce()) -> bool {
    still_runs_after(server, &[], meanwhile)
}

/// Like `still_runs`, but sends `before` in one batch with the WATCH. So a later effect of these
/// commands can't precede the WATCH.
#[track_caller]
fn still_runs_after(server: &Server, before: &[&str], meanwhile: impl FnOnce()) -> bool {
    let mut client = server.client();
    client.call_all(&[before, &["WATCH k"]].concat());
    meanwhile();
    client.call("MULTI").okay();
    client.call("PING").text();
    client.call("EXEC").value() != Value::Nil
}

#[test]
fn watch_sees_grants_and_releases() {
    let server = Server::start();
    let change = |command: &str| {
        let command = command.to_owned();
        assert!(
            !still_runs(&server, || drop(server.call(&command).value())),
            "{command}"
        );
    };
    change("LOCK.ACQUIRE k a PX 600000");
    change("LOCK.ACQUIRE k a PX 600000 REENTRANT");
    change("LOCK.RELEASE k a");
    change("LOCK.RELEASE k a");
    change("LOCK.WAIT k b PX 600000");
    change("LOCK.RELEASE k b ALL");
}

#[test]
fn watch_sees_a_hand_over() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert!(!still_runs(&server, || {
        server.call("LOCK.RELEASE k a").int();
        waiter.recv().grant();
    }));
    // WATCH also sees a hand-over by the timer, without a command.
    let mut waiter = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert!(!still_runs_after(
        &server,
        &["LOCK.EXTEND k b PX 30"],
        || drop(waiter.recv().grant())
    ));
}

#[test]
fn watch_sees_the_end_of_a_lease() {
    let server = Server::start();
    assert!(!still_runs(&server, || {
        server.call("LOCK.ACQUIRE k a PX 30").grant();
        until("the lease has ended", || server.lock_info("k").is_none());
    }));
    assert!(!still_runs_after(
        &server,
        &["LOCK.ACQUIRE k a PX 30"],
        || until("the key is gone", || server.call("DBSIZE").int() == 0)
    ));
}

#[test]
fn watch_sees_nothing_where_nothing_changed() {
    let server = server_with_holder();
    let _waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    for command in [
        "LOCK.ACQUIRE k c",
        "LOCK.WAIT k c BLOCK 1",
        "LOCK.EXTEND k c",
        "LOCK.RELEASE k c",
        "LOCK.CHECK k a",
        "LOCK.INFO k",
    ] {
        let unchanged = still_runs(&server, || {
            server.client().call(command).value();
        });
        assert!(unchanged, "{command}");
    }
    let free = Server::start();
    for command in [
        "LOCK.EXTEND k c",
        "LOCK.RELEASE k c",
        "LOCK.CHECK k c",
        "LOCK.INFO k",
    ] {
        assert!(
            still_runs(&free, || drop(free.call(command).value())),
            "{command} when free"
        );
    }
}

// ---- replies on the wire

/// Returns the grant of `k` in the form of the wire.
fn wire_grant(server: &Server, token: &str) -> String {
    let fence = server.lock_info("k").unwrap().holder().int("fence");
    format!("*2\r\n${}\r\n{token}\r\n:{fence}\r\n", token.len())
}

#[test]
fn a_grant_has_the_same_shape_in_both_protocols_and_by_every_way() {
    let server = Server::start();
    for mut client in [server.client(), server.client().into_resp3()] {
        assert_eq!(
            client.call_raw("LOCK.ACQUIRE k bob"),
            wire_grant(&server, "bob")
        );
        assert_eq!(
            client.call_raw("LOCK.WAIT k bob"),
            wire_grant(&server, "bob")
        );
        // By a hand-over.
        server.block(&mut client, "LOCK.WAIT k carol");
        server.call("LOCK.RELEASE k bob").int();
        assert_eq!(received(&mut client), wire_grant(&server, "carol"));
        // By the end of a lease.
        server.call("LOCK.EXTEND k carol PX 50").int();
        client.send("LOCK.WAIT k dave");
        assert_eq!(received(&mut client), wire_grant(&server, "dave"));
        assert_eq!(server.call("LOCK.RELEASE k dave").int(), 1);
    }
}

/// Returns the next reply as text.
fn received(client: &mut Client) -> String {
    String::from_utf8(client.recv_raw()).expect("a reply in UTF-8")
}

#[test]
fn a_wait_given_up_has_the_same_shape_by_every_way() {
    let server = server_with_holder();
    let clients = [server.client(), server.client().into_resp3()];
    for (mut client, nil) in clients.into_iter().zip(["*-1\r\n", "_\r\n"]) {
        // By its timeout.
        client.send("LOCK.WAIT k b BLOCK 100");
        assert_eq!(received(&mut client), nil);
        // By another client.
        server.block(&mut client, "LOCK.WAIT k b");
        server
            .call(format!("CLIENT UNBLOCK {} TIMEOUT", client.id()))
            .int();
        assert_eq!(received(&mut client), nil);
        // In a transaction, because the client may not block there.
        client.call("MULTI").okay();
        client.call("LOCK.WAIT k b").text();
        client.call("LOCK.MWAIT 2 j k b").text();
        client.call("LOCK.INFO free").text();
        assert_eq!(client.call_raw("EXEC"), format!("*3\r\n{nil}{nil}{nil}"));
    }
}

#[test]
fn errors_to_those_who_wait_are_errors_in_both_protocols() {
    for resp3 in [false, true] {
        let server = server_with_holder();
        let mut client = server.client();
        if resp3 {
            client = client.into_resp3();
        }
        server.block(&mut client, "LOCK.WAIT k b");
        let mut other = server.waiter("LOCK.WAIT k b");
        assert!(received(&mut client).starts_with("-UNBLOCKED "));
        server.block(&mut client, "LOCK.WAIT k c");
        server.call("SET k value").okay();
        assert!(received(&mut client).starts_with("-WRONGTYPE "));
        assert!(received(&mut other).starts_with("-WRONGTYPE "));
    }
}

// ---- pipelines

#[test]
fn commands_behind_a_wait_are_answered_in_order() {
    let server = server_with_holder();
    let mut client = server.client();
    let wait = format!("LOCK.WAIT k b {LONG}");
    client.send_batch(&[
        &wait,
        "PING",
        "INCR n",
        "LOCK.CHECK k b",
        "LOCK.RELEASE k b",
        "ECHO end",
    ]);
    server.until_blocked(&mut client);
    client.expect_silence();
    server.call("GET n").nil();
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(client.recv().grant().token, "b");
    assert_eq!(client.recv().text(), "PONG");
    assert_eq!(client.recv().int(), 1);
    assert!(
        client.recv().int() > 0,
        "the lock is held when the next command runs"
    );
    assert_eq!(client.recv().int(), 1);
    assert_eq!(client.recv().text(), "end");
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn commands_in_front_of_a_wait_are_answered_before_it_blocks() {
    let server = server_with_holder();
    let mut client = server.client();
    client.send_batch(&["SET x 1", "LOCK.ACQUIRE k b", "LOCK.WAIT k b"]);
    client.recv().okay();
    client.recv().nil();
    server.until_blocked(&mut client);
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(client.recv().grant().token, "b");
}

#[test]
fn waits_in_one_pipeline_block_one_after_the_other() {
    let server = server_with_holder();
    server.call(format!("LOCK.ACQUIRE k2 a {LONG}")).grant();
    let mut client = server.client();
    let (first, second) = (
        format!("LOCK.WAIT k b {LONG}"),
        format!("LOCK.WAIT k2 c {LONG}"),
    );
    client.send_batch(&[
        &first,
        &second,
        "LOCK.WAIT k b",
        "LOCK.WAIT k z BLOCK 20",
        "PING",
    ]);
    server.until_waiters("k", 1);
    assert_eq!(
        server.waiters("k2"),
        0,
        "the second wait is read after the first reply"
    );
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(client.recv().grant().token, "b");
    server.until_waiters("k2", 1);
    server.call("LOCK.RELEASE k2 a").int();
    assert_eq!(client.recv().grant().token, "c");
    assert_eq!(client.recv().grant().token, "b", "a repeat by the holder");
    client.recv().nil();
    assert_eq!(client.recv().text(), "PONG");
}

#[test]
fn commands_behind_a_wait_are_answered_however_it_ends() {
    let server = server_with_holder();
    let behind = |wait: &str, end: &dyn Fn(&Client)| {
        let mut client = server.client();
        client.send_batch(&[wait, "INCR n", "PING"]);
        if !wait.contains("BLOCK") {
            server.until_blocked(&mut client);
        }
        end(&client);
        let reply = client.recv();
        client.recv().int();
        assert_eq!(client.recv().text(), "PONG", "{wait}");
        reply
    };
    behind("LOCK.WAIT k b BLOCK 30", &|_| {}).nil();
    behind("LOCK.WAIT k b", &|client| {
        server.call(format!("CLIENT UNBLOCK {}", client.id())).int();
    })
    .nil();
    let error = behind("LOCK.WAIT k b", &|client| {
        server
            .call(format!("CLIENT UNBLOCK {} ERROR", client.id()))
            .int();
    });
    assert!(error.error().starts_with("UNBLOCKED "));
    let error = behind("LOCK.WAIT k b", &|_| server.call("SET k value").okay());
    assert_eq!(error.error(), support::WRONGTYPE);
    assert_eq!(server.call("GET n").text(), "4");
}

// ---- HELLO on an open connection

#[test]
fn hello_changes_the_shapes_in_mid_session() {
    let server = server_with_holder();
    let mut client = server.client();
    let is_map = |client: &mut Client| matches!(client.call("LOCK.INFO k"), Ok(Value::Map(_)));
    assert!(!is_map(&mut client));
    client.call("HELLO 3").value();
    assert!(is_map(&mut client));
    assert_eq!(client.call_raw("LOCK.WAIT k b BLOCK 1"), "_\r\n");
    client.call("HELLO 2").value();
    assert!(!is_map(&mut client));
    assert_ne!(client.call_raw("LOCK.WAIT k b BLOCK 1"), "_\r\n");
}

#[test]
fn hello_behind_a_wait_counts_from_there_on() {
    let server = server_with_holder();
    let mut client = server.client();
    let nil = client.call_raw("LOCK.ACQUIRE k b");
    client.send_batch(&[
        "LOCK.WAIT k b",
        "HELLO 3",
        "LOCK.WAIT k b BLOCK 20",
        "LOCK.INFO k",
    ]);
    server.until_blocked(&mut client);
    server.call(format!("CLIENT UNBLOCK {}", client.id())).int();
    assert_eq!(
        received(&mut client),
        nil,
        "the nil of the protocol at the request"
    );
    assert!(
        matches!(client.recv(), Ok(Value::Map(_))),
        "the reply of HELLO"
    );
    assert_eq!(received(&mut client), "_\r\n");
    assert!(
        matches!(client.recv(), Ok(Value::Map(_))),
        "the reply of LOCK.INFO"
    );
}

// ---- commands that another module calls on a thread of its own

/// The thread has taken the server's lock. So the server runs the module's callbacks on it too.
#[test]
fn a_thread_of_another_module_calls_commands() {
    let server = Server::start();
    let calling = shared_object("security/calling.c", server.dir());
    server
        .call(&["MODULE", "LOAD", calling.to_str().expect("a path")])
        .okay();
    let call = |words: &str| server.call(format!("calling.call_on_thread {words}"));
    assert_eq!(call("LOCK.ACQUIRE k thread").grant().token, "thread");
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    assert_eq!(call("LOCK.RELEASE k thread").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
    let mut next = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert_eq!(call("DEL k other").int(), 1);
    assert_eq!(next.recv().grant().token, "c");
}

// ---- a crash of the server

#[test]
fn a_crash_report_has_the_section_of_the_module() {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = Plan {
        module: Some(module_path()),
        lines: vec!["crash-memcheck-enabled no".to_owned()],
        ..Plan::new(&server_binary())
    };
    let process = Process::start(plan, dir.path()).expect("a server");
    Client::connect(process.port()).send("DEBUG SEGFAULT");
    until("the server has crashed", || {
        process.ended().expect("a child").is_some()
    });
    let report = process.log();
    assert!(report.contains("lock_last_fence:"), "{report}");
}
