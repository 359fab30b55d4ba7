//! LOCK.QUEUE ... NOTIFY: the server publishes a message when a place is granted, cancelled or
//! overwritten.

use redis::Value;
use support::{cluster_node, server_with_holder, until, Client, Expect, Server};

/// Connects a RESP3 client that subscribes. Its messages arrive between its replies.
fn subscriber(server: &Server, command: &str) -> Client {
    let mut client = server.client().into_resp3();
    client.send(command);
    let confirmed = client.recv();
    assert!(matches!(confirmed, Ok(Value::Push { .. })), "{confirmed:?}");
    client
}

/// Returns the next published message: channel and text.
#[track_caller]
fn message(client: &mut Client) -> (String, String) {
    channel_and_message(client.recv().expect("a message"))
}

#[track_caller]
fn channel_and_message(value: Value) -> (String, String) {
    let words: Vec<Value> = match value {
        Value::Push { data, kind } => {
            let kind = kind.to_string();
            assert!(kind == "message" || kind == "smessage", "{kind}");
            data
        }
        Value::Array(words) => words.into_iter().skip(1).collect(),
        other => panic!("no message: {other:?}"),
    };
    let words: Vec<String> = words
        .iter()
        .map(|word| redis::from_redis_value_ref(word).expect("a text"))
        .collect();
    let [channel, message] = words.as_slice() else {
        panic!("{words:?}")
    };
    (channel.clone(), message.clone())
}

fn told(channel: &str, message: &str) -> (String, String) {
    (channel.to_owned(), message.to_owned())
}

#[test]
fn the_message_comes_with_the_grant_by_release_by_lease_and_by_deletion() {
    for end in ["LOCK.RELEASE k a", "LOCK.EXTEND k a PX 30", "DEL k"] {
        let server = server_with_holder();
        let mut listener = subscriber(&server, "SUBSCRIBE jobs");
        let queue = "LOCK.QUEUE k b KEEP 600000 NOTIFY jobs 17";
        assert_eq!(server.call(queue).int(), 1);
        assert_eq!(server.call(queue).int(), 1);
        server.call(end).int();
        assert_eq!(message(&mut listener), told("jobs", "17"), "{end}");
        assert_eq!(server.call(queue).grant().token, "b", "{end}");
        listener.expect_silence();
    }
}

#[test]
fn a_subscriber_of_resp2_hears_it_on_a_connection_of_its_own() {
    let server = server_with_holder();
    let mut listener = server.client();
    listener.call("SUBSCRIBE jobs").list();
    let queue = ["LOCK.QUEUE", "k", "b", "NOTIFY", "jobs", "a b\r\n\0"];
    server.call(&queue).int();
    server.call("LOCK.RELEASE k a").int();
    let told = listener.recv().list();
    assert_eq!(told[2], Value::BulkString(b"a b\r\n\0".to_vec()));
}

/// The releasing client is the subscriber itself: the message must not split the reply.
#[test]
fn one_connection_does_it_all_in_resp3() {
    let server = server_with_holder();
    let mut client = subscriber(&server, "SUBSCRIBE jobs");
    client.call("LOCK.QUEUE k b NOTIFY jobs 1").int();
    client.call("LOCK.QUEUE k c NOTIFY jobs 2").int();
    client.send("LOCK.RELEASE k a");
    let mut both = [client.recv(), client.recv()].map(|reply| reply.expect("no error"));
    both.sort_by_key(|value| matches!(value, Value::Push { .. }));
    let [reply, told_of] = both;
    assert_eq!(reply, Value::Int(1));
    assert_eq!(channel_and_message(told_of), told("jobs", "1"));
    let batch = [
        "MULTI",
        "LOCK.CHECK k b",
        "LOCK.RELEASE k b",
        "LOCK.CHECK k c",
        "EXEC",
    ];
    client.send_batch(&batch);
    let replies = (0..6).map(|_| client.recv().expect("no error"));
    let (pushed, replies): (Vec<Value>, Vec<Value>) =
        replies.partition(|reply| matches!(reply, Value::Push { .. }));
    assert_eq!(pushed.len(), 1);
    let Some(Value::Array(results)) = replies.last() else {
        panic!("{replies:?}")
    };
    assert_eq!(results.len(), 3, "{results:?}");
    assert!(results.iter().all(|one| matches!(one, Value::Int(1..))));
    let script = "redis.call('LOCK.RELEASE', KEYS[1], 'c') return {1, redis.call('LOCK.QUEUE', KEYS[1], 'e')}";
    client.call("LOCK.QUEUE k d NOTIFY jobs 3").int();
    client.send(&["EVAL", script, "1", "k"]);
    let replies = [client.recv(), client.recv()].map(|reply| reply.expect("no error"));
    assert!(replies.contains(&Value::Array(vec![Value::Int(1), Value::Int(1)])));
    assert_eq!(client.call("PING"), Ok(Value::SimpleString("PONG".into())));
}

#[test]
fn a_place_that_was_cancelled_or_written_over_is_told_of_and_no_other_end() {
    let server = server_with_holder();
    let mut listener = subscriber(&server, "SUBSCRIBE jobs");
    server.call("LOCK.QUEUE k b NOTIFY jobs cancelled").int();
    server.call("LOCK.CANCEL k b").int();
    assert_eq!(message(&mut listener), told("jobs", "cancelled"));
    server
        .call("LOCK.QUEUE k b KEEP 30 NOTIFY jobs lapses")
        .int();
    server.call("LOCK.QUEUE k c NOTIFY jobs overtaken").int();
    server.call("LOCK.QUEUE k d NOTIFY jobs overwritten").int();
    until("the place has lapsed", || {
        server.info("lock", "lock_lapsed_places") == "1"
    });
    let _waiter = server.waiter("LOCK.WAIT k c");
    server.call("SET k text").okay();
    assert_eq!(message(&mut listener), told("jobs", "overwritten"));
    listener.expect_silence();
}

#[test]
fn a_message_and_its_channel_are_looked_at_last() {
    let server = server_with_holder();
    server.call("SET text 1").okay();
    let most = "x".repeat(1024);
    let refused = |command: String| server.call(&command).error();
    server.call(format!("LOCK.QUEUE k b NOTIFY c {most}")).int();
    server
        .call(&["LOCK.QUEUE", "k", "b", "NOTIFY", "", ""])
        .int();
    let message = "ERR invalid message, must be 0 to 1024 bytes";
    for key in ["k", "text"] {
        assert_eq!(
            refused(format!("LOCK.QUEUE {key} b NOTIFY c {most}x")),
            message
        );
    }
    let channel = "ERR channel must be 0 to 1024 bytes";
    server.call(format!("LOCK.QUEUE k b NOTIFY {most} m")).int();
    for key in ["k", "text"] {
        let line = format!("LOCK.QUEUE {key} b NOTIFY {most}x m");
        assert_eq!(refused(line), channel);
        let line = format!("LOCK.QUEUE {key} b NOTIFY {most}x {most}x");
        assert_eq!(refused(line), message);
    }
    let holds = refused(format!("LOCK.QUEUE k b HOLDS 0 NOTIFY c {most}x"));
    assert!(holds.starts_with("ERR invalid holds"), "{holds}");
    let error = refused("LOCK.QUEUE text b NOTIFY c m".to_owned());
    assert!(error.starts_with("WRONGTYPE"), "{error}");
    for line in [
        "LOCK.QUEUE k b NOTIFY c",
        "LOCK.QUEUE k b NOTIFY",
        "LOCK.QUEUE k b NOTIFY c m NOTIFY c m",
        "LOCK.WAIT k b NOTIFY c m",
    ] {
        assert_eq!(refused(line.to_owned()), "ERR syntax error", "{line}");
    }
}

#[test]
fn the_caller_needs_the_right_to_the_channel_then_and_when_it_is_published() {
    let server = server_with_holder();
    server
        .call("ACL SETUSER guest on >secret ~k* resetchannels &mine:* +lock.queue +lock.mqueue")
        .okay();
    let mut listener = subscriber(&server, "SUBSCRIBE mine:1 mine:2 other");
    listener.recv().value();
    listener.recv().value();
    let mut guest = server.client();
    guest.call("AUTH guest secret").okay();
    for (command, refusal) in [
        ("LOCK.QUEUE k b NOTIFY other 1", "NOPERM"),
        ("LOCK.MQUEUE 1 k b NOTIFY other 1", "NOPERM"),
        ("LOCK.MQUEUE 2 k k2 b NOTIFY other 1", "NOPERM"),
        ("LOCK.QUEUE k b HOLDS 0 NOTIFY other 1", "ERR invalid holds"),
    ] {
        let error = guest.call(command).error();
        assert!(error.starts_with(refusal), "{command}: {error}");
    }
    assert_eq!(server.waiters("k"), 0, "a refused command changes nothing");
    guest.call("LOCK.QUEUE k b NOTIFY mine:1 1").int();
    guest.call("LOCK.MQUEUE 2 k k2 c NOTIFY mine:2 2").int();
    server.call("LOCK.RELEASE k a").int();
    assert_eq!(message(&mut listener), told("mine:1", "1"));
    server
        .call("ACL SETUSER guest resetchannels &mine:1")
        .okay();
    server.call("LOCK.RELEASE k b").int();
    assert_eq!(server.known_lock("k").holder_tokens(), ["c"]);
    listener.expect_silence();
}

#[test]
fn in_a_cluster_it_is_published_on_the_shard_channel_of_the_slot() {
    let server = cluster_node();
    server.call("LOCK.ACQUIRE {t}k a PX 600000").grant();
    let mut shard = subscriber(&server, "SSUBSCRIBE {t}jobs");
    let mut plain = subscriber(&server, "SUBSCRIBE {t}jobs");
    let error = server.call("LOCK.QUEUE {t}k b NOTIFY jobs 1").error();
    assert!(error.starts_with("ERR channel"), "{error}");
    server.call("LOCK.QUEUE {t}k b NOTIFY {t}jobs 1").int();
    server
        .call("LOCK.MQUEUE 2 {t}k {t}j c NOTIFY {t}jobs 2")
        .int();
    server.call("LOCK.RELEASE {t}k a").int();
    assert_eq!(message(&mut shard), told("{t}jobs", "1"));
    server.call("LOCK.RELEASE {t}k b").int();
    assert_eq!(message(&mut shard), told("{t}jobs", "2"));
    plain.expect_silence();
}

/// Without a subscriber, or with a slow one, the next LOCK.QUEUE still returns the grant.
#[test]
fn a_message_that_is_lost_loses_no_grant() {
    let server = server_with_holder();
    server
        .call(&[
            "CONFIG",
            "SET",
            "client-output-buffer-limit",
            "pubsub 4096 4096 1",
        ])
        .okay();
    let mut deaf = server.client().into_resp3();
    let deaf_id = deaf.id();
    deaf.call("SUBSCRIBE jobs").value();
    let long = "m".repeat(1024);
    server
        .call(format!("LOCK.QUEUE k t0 NOTIFY jobs {long}"))
        .int();
    server.call("LOCK.RELEASE k a").int();
    let mut count = 0;
    while server.is_connected(deaf_id) {
        assert!(count < 20_000, "the subscriber lives on");
        let next = count + 1;
        server
            .call(format!("LOCK.QUEUE k t{next} NOTIFY jobs {long}"))
            .int();
        server.call(format!("LOCK.RELEASE k t{count}")).int();
        count = next;
    }
    let last = server.call(format!("LOCK.QUEUE k t{count} NOTIFY jobs {long}"));
    assert_eq!(last.grant().token, format!("t{count}"));
}
