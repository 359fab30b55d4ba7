//! The keyspace events of locks, on the primary and on its replica, for clients and for other
//! modules.
//!
//! tests/keyspace_events/hearing.c is a module that subscribes to them.

use redis::Value;
use support::compiled::shared_object;
use support::{module_path, until, Client, Expect, Server, LONG};

/// Returns a client that receives the events of classes g, d and x in database 0.
fn listener(server: &Server) -> Client {
    server.call("CONFIG SET notify-keyspace-events Egdx").okay();
    let mut client = server.client();
    client.call("PSUBSCRIBE __keyevent@0__:*").list();
    client
}

fn text(value: &Value) -> String {
    Ok(value.clone()).text()
}

/// Returns the next event, like `lock.grant k`.
#[track_caller]
fn next(listener: &mut Client) -> String {
    let message = listener.recv().list();
    let channel = text(&message[2]);
    let event = channel.rsplit_once(':').expect("an event").1;
    format!("{event} {}", text(&message[3]))
}

/// Asserts the events since the last check.
#[track_caller]
fn assert_heard(server: &Server, listener: &mut Client, expected: &[&str], what: &str) {
    server.call("PUBLISH __keyevent@0__:end end").int();
    let mut heard = Vec::new();
    loop {
        let event = next(listener);
        if event == "end end" {
            break;
        }
        heard.push(event);
    }
    assert_eq!(heard, expected, "{what}");
}

#[test]
fn each_change_of_a_lock_is_told_once() {
    let server = Server::start();
    let mut listener = listener(&server);
    let raised = support::unix_time_us() + 30_000_000;
    let raise = format!("LOCK.EXTEND k a FENCE {raised}");
    let scenes: [(&[&str], &[&str]); 25] = [
        (&["LOCK.ACQUIRE k a PX 60000"], &["lock.grant k"]),
        (&["LOCK.ACQUIRE k b"], &[]),
        (&["LOCK.ACQUIRE k a PX 60000"], &["lock.renew k"]),
        (&["LOCK.WAIT k a PX 60000 REENTRANT"], &["lock.renew k"]),
        (&["LOCK.EXTEND k a PX 70000 SESSION"], &["lock.renew k"]),
        (&["LOCK.EXTEND k a DATA why"], &["lock.renew k"]),
        (&["LOCK.EXTEND k a PX 1 GT"], &["lock.renew k"]),
        (&[&raise], &["lock.renew k"]),
        (
            &["LOCK.EXTEND k b", "LOCK.RELEASE k b", "LOCK.CHECK k a"],
            &[],
        ),
        (&["LOCK.CANCEL k a", "LOCK.WAIT k b BLOCK"], &[]),
        (&["MULTI", "LOCK.WAIT k b", "EXEC"], &[]),
        // One hold of two.
        (&["LOCK.RELEASE k a"], &["lock.renew k"]),
        // To shared, with the same fence.
        (&["LOCK.ACQUIRE k a PX 60000 SHARED"], &["lock.renew k"]),
        (&["LOCK.ACQUIRE k b PX 60000 SHARED"], &["lock.grant k"]),
        (&["LOCK.RELEASE k b LEAVE 60000"], &["lock.drop k"]),
        (&["LOCK.ACQUIRE k b PX 60000 SHARED"], &[]),
        (&["LOCK.RELEASE k b LEAVE 60000"], &[]),
        // To exclusive, with a new fence.
        (&["LOCK.ACQUIRE k a PX 60000"], &["lock.grant k"]),
        (&["LOCK.RELEASE k a"], &["del k"]),
        (&["LOCK.WAIT k a PX 60000"], &["lock.grant k"]),
        (&["DEL k"], &["del k"]),
        (
            &["LOCK.MACQUIRE 2 j k a PX 60000"],
            &["lock.grant j", "lock.grant k"],
        ),
        (
            &["LOCK.MEXTEND 2 j k a PX 60000"],
            &["lock.renew j", "lock.renew k"],
        ),
        (&["LOCK.MRELEASE 2 j k a"], &["del j", "del k"]),
        // A new fence in the same millisecond is a new grant all the same.
        (
            &[
                "LOCK.ACQUIRE j a PX 60000",
                "LOCK.ACQUIRE k a PX 60000",
                "LOCK.MACQUIRE 2 j k a PX 60000",
            ],
            &[
                "lock.grant j",
                "lock.grant k",
                "lock.grant j",
                "lock.grant k",
            ],
        ),
    ];
    for (commands, expected) in scenes {
        server.call_batch(commands);
        assert_heard(&server, &mut listener, expected, &format!("{commands:?}"));
    }
}

#[test]
fn a_wait_is_told_once_for_each_of_its_keys() {
    let server = Server::start();
    let mut listener = listener(&server);
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut first = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let expected = ["lock.grant k", "lock.queue k"];
    assert_heard(&server, &mut listener, &expected, "a wait");
    let mut newer = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut newest = server.waiter(format!("LOCK.WAIT k b {LONG} SHARED"));
    assert_heard(&server, &mut listener, &[], "its take-overs");
    for (command, expected) in [
        ("LOCK.QUEUE k p KEEP 60000", &["lock.queue k"][..]),
        ("LOCK.QUEUE k p KEEP 70000 DATA why", &[]),
        ("LOCK.WAIT k p BLOCK 1 KEEP 60000", &[]),
        ("LOCK.QUEUE k p KEEP 60000", &[]),
        (
            "LOCK.MQUEUE 2 k j p KEEP 60000",
            &["lock.queue j", "lock.queue k"],
        ),
        ("LOCK.MQUEUE 2 j k p KEEP 60000", &[]),
        ("LOCK.CANCEL k p", &[]),
    ] {
        server.call(command).expect("a reply");
        assert_heard(&server, &mut listener, expected, command);
    }
    first.recv().error();
    newer.recv().error();
    let mut several = server.waiter(format!("LOCK.MWAIT 2 j k c {LONG}"));
    let expected = ["lock.queue j", "lock.queue k"];
    assert_heard(&server, &mut listener, &expected, "a wait for several");
    server.call("LOCK.RELEASE k a").int();
    newest.recv().grant();
    assert_heard(&server, &mut listener, &["lock.grant k"], "a hand-over");
    server.call("LOCK.RELEASE k b").int();
    several.recv().grant();
    let heard = ["lock.grant k", "lock.grant j"];
    let mut sorted = heard;
    sorted.sort_unstable();
    let mut events = [next(&mut listener), next(&mut listener)];
    events.sort_unstable();
    assert_eq!(events, sorted, "a hand-over of several");
    server.call("LOCK.MRELEASE 2 j k c").int();
    let expected = ["del j", "del k"];
    assert_heard(&server, &mut listener, &expected, "the end");
    let mut hasty = server.client();
    hasty.call("LOCK.WAIT k d BLOCK 1").grant();
    assert_heard(&server, &mut listener, &["lock.grant k"], "a grant at once");
}

#[test]
fn the_renewal_of_a_session_is_told() {
    let server = Server::start();
    let mut listener = listener(&server);
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k a PX 1500 SESSION").grant();
    assert_eq!(next(&mut listener), "lock.grant k");
    assert_eq!(next(&mut listener), "lock.renew k");
    // Two sessions renewed at once are one command in the stream and two events.
    let batch = [
        "LOCK.ACQUIRE m a PX 1500 SESSION",
        "LOCK.ACQUIRE n a PX 1500 SESSION",
    ];
    holder.call_all(&batch);
    let mut renewed = Vec::new();
    until("both sessions are renewed", || {
        renewed.push(next(&mut listener));
        ["lock.renew m", "lock.renew n"]
            .iter()
            .all(|it| renewed.iter().any(|event| event == it))
    });
    holder.close();
    until("a deletion is published", || {
        next(&mut listener).starts_with("del ")
    });
}

#[test]
fn a_lease_that_ends_is_told_by_the_server_or_by_the_next_grant() {
    let server = Server::start();
    let mut listener = listener(&server);
    server.call_all(&[
        "LOCK.ACQUIRE k a SHARED PX 60000",
        "LOCK.ACQUIRE k b SHARED PX 60000",
    ]);
    server.call("LOCK.EXTEND k b PX 1").int();
    for expected in [
        "lock.grant k",
        "lock.grant k",
        "lock.renew k",
        "lock.drop k",
    ] {
        assert_eq!(next(&mut listener), expected);
    }
    server.call("LOCK.EXTEND k a PX 1").int();
    assert_eq!(next(&mut listener), "lock.renew k");
    until("the key is gone", || server.call("EXISTS k").int() == 0);
    let end = next(&mut listener);
    assert!(end == "expired k" || end == "del k", "{end}");
}

/// Allows `expired` before the grant, because the server may expire the key before the module's
/// hand-over.
#[test]
fn a_hand_over_at_the_end_of_a_lease_is_a_grant_that_expired_may_precede() {
    let server = Server::start();
    let mut listener = listener(&server);
    server.call("LOCK.ACQUIRE k 0 PX 600000").grant();
    assert_heard(&server, &mut listener, &["lock.grant k"], "a grant");
    for round in 0..20 {
        let command = format!("LOCK.WAIT k {} PX 600000", round + 1);
        let mut next_holder = server.waiter(command);
        assert_heard(&server, &mut listener, &["lock.queue k"], "a wait");
        server.call(format!("LOCK.EXTEND k {round} PX 1")).int();
        assert_eq!(next(&mut listener), "lock.renew k");
        next_holder.recv().grant();
        let mut told = next(&mut listener);
        if told == "expired k" {
            told = next(&mut listener);
        }
        assert_eq!(told, "lock.grant k", "round {round}");
        assert_heard(&server, &mut listener, &[], "nothing else");
    }
}

#[test]
fn a_replica_tells_of_the_same_but_not_of_who_waits() {
    let primary = Server::start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut listener = listener(&replica);
    primary.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    primary.call(format!("LOCK.EXTEND k a {LONG}")).int();
    let mut waiter = primary.waiter(format!("LOCK.WAIT k b {LONG}"));
    primary.call("LOCK.RELEASE k a").int();
    waiter.recv().grant();
    primary.call("LOCK.RELEASE k b").int();
    replica.until_in_step(&primary);
    let expected = ["lock.grant k", "lock.renew k", "lock.grant k", "del k"];
    assert_heard(&replica, &mut listener, &expected, "exclusive");
    primary.call_all(&[
        "LOCK.ACQUIRE k a SHARED",
        "LOCK.ACQUIRE k b SHARED",
        "LOCK.RELEASE k a",
    ]);
    replica.until_in_step(&primary);
    let expected = ["lock.grant k", "lock.grant k", "lock.drop k"];
    assert_heard(&replica, &mut listener, &expected, "shared");
}

/// Asserts that the module hearing.c receives a lock's events.
#[track_caller]
fn assert_module_hears(server: &Server, what: &str) {
    server.call("hearing.heard").text();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.call(format!("LOCK.EXTEND k a {LONG}")).int();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("LOCK.RELEASE k a").int();
    waiter.recv().grant();
    server.call("LOCK.RELEASE k b").int();
    let heard = server.call("hearing.heard").text();
    let expected = "lock.grant k, lock.renew k, lock.queue k, lock.grant k, del k";
    assert_eq!(heard, expected, "{what}");
}

/// Checks that modules receive the events if no client listens, whichever module was loaded first
/// and whenever it subscribed.
#[test]
fn other_modules_hear_of_what_no_client_listens_to() {
    for (order, begins) in [
        (["lock", "hearing"], "begin"),
        (["hearing", "lock"], "begin"),
        (["lock", "hearing"], ""),
    ] {
        let server = Server::builder().without_module().start();
        let hearing = shared_object("contexts/hearing.c", server.dir());
        for module in order {
            let path = if module == "lock" {
                module_path()
            } else {
                hearing.clone()
            };
            let mut load = vec!["MODULE", "LOAD", path.to_str().expect("a path")];
            if module == "hearing" && !begins.is_empty() {
                load.push(begins);
            }
            server.call(&load).okay();
        }
        let what = format!("{order:?} {begins:?}");
        if begins.is_empty() {
            server.call("LOCK.ACQUIRE unheard a").grant();
            server.call("hearing.begin").okay();
        }
        assert_module_hears(&server, &what);
        // The module also receives them after clients have listened for a while.
        for classes in ["Egd", ""] {
            let set = ["CONFIG", "SET", "notify-keyspace-events", classes];
            server.call(&set).okay();
        }
        assert_module_hears(&server, &what);
        server.call("MODULE UNLOAD hearing").okay();
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1, "{what}");
        server
            .call(&["MODULE", "LOAD", hearing.to_str().expect("a path"), "begin"])
            .okay();
        assert_module_hears(&server, &what);
    }
}

/// Checks each class by itself: a client of one class receives no events of the other.
#[test]
fn clients_hear_of_the_classes_that_they_asked_for() {
    let server = Server::start();
    let mut client = server.client();
    client.call("PSUBSCRIBE __keyevent@0__:*").list();
    for (classes, expected) in [
        ("Eg", &["del k"][..]),
        ("Ed", &["lock.grant k"]),
        ("", &[]),
        ("Egd", &["lock.grant k", "del k"]),
    ] {
        server
            .call(&["CONFIG", "SET", "notify-keyspace-events", classes])
            .okay();
        server.call("LOCK.ACQUIRE k a PX 60000").grant();
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
        assert_heard(&server, &mut client, expected, classes);
    }
}
