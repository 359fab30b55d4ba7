//! LOCK.CANCEL ends a wait from another connection.

use support::{server_with_holder, until, Client, Expect, Server, LONG};

/// Asserts that LOCK.CANCEL ended the client's wait with its error, and that the client is usable
/// again.
#[track_caller]
fn assert_cancelled(client: &mut Client) {
    assert_eq!(
        client.recv().error(),
        "UNBLOCKED this wait was given up by LOCK.CANCEL or LEAVE"
    );
    assert_eq!(client.call("PING").text(), "PONG");
}

#[test]
fn a_wait_is_given_up_and_a_grant_is_not() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut behind = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    assert_eq!(server.call("LOCK.CANCEL k b").int(), 1);
    assert_cancelled(&mut waiter);
    for command in [
        "LOCK.CANCEL k b",
        "LOCK.CANCEL k a",
        "LOCK.CANCEL k nobody",
        "LOCK.CANCEL free a",
    ] {
        assert_eq!(server.call(command).int(), 0, "{command}");
    }
    behind.expect_silence();
    let info = server.known_lock("k");
    assert_eq!(info.holder_tokens(), ["a"]);
    assert_eq!(info.queue_tokens(), ["c"]);
    server.call("LOCK.RELEASE k a").int();
    behind.recv().grant();
}

#[test]
fn a_wait_for_several_keys_is_given_up_as_a_whole_by_each_of_them() {
    let server = server_with_holder();
    for key in ["j", "k"] {
        let mut waiter = server.waiter(format!("LOCK.MWAIT 2 j k b {LONG}"));
        let mut behind = server.waiter(format!("LOCK.WAIT j c {LONG}"));
        assert_eq!(server.call(format!("LOCK.CANCEL {key} b")).int(), 1);
        assert_cancelled(&mut waiter);
        assert_eq!(behind.recv().grant().token, "c", "by {key}");
        server.call("LOCK.RELEASE j c").int();
        assert_eq!(server.waiters("k"), 0);
    }
}

#[test]
fn all_waits_that_need_the_key_are_given_up_and_no_others() {
    let server = server_with_holder();
    server.call(format!("LOCK.ACQUIRE j a {LONG}")).grant();
    let commands = ["LOCK.WAIT k b", "LOCK.MWAIT 2 j k b", "LOCK.MWAIT 2 k l b"];
    let mut given_up = commands.map(|command| server.waiter(format!("{command} {LONG}")));
    let mut others = ["LOCK.WAIT j b", "LOCK.WAIT k c"]
        .map(|command| server.waiter(format!("{command} {LONG}")));
    assert_eq!(server.call("LOCK.CANCEL k b").int(), 1);
    given_up.iter_mut().for_each(assert_cancelled);
    others.iter_mut().for_each(Client::expect_silence);
    assert_eq!((server.waiters("j"), server.waiters("k")), (1, 1));
}

#[test]
fn a_cancel_in_a_transaction_or_script_gives_up_the_wait() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let batch = ["MULTI", "LOCK.CANCEL k b", "LOCK.CANCEL k b", "EXEC"];
    let replies = server.call_batch(&batch);
    assert_eq!(format!("{:?}", replies[3]), "Ok(array([int(1), int(0)]))");
    assert_cancelled(&mut waiter);
    server.block(&mut waiter, format!("LOCK.WAIT k b {LONG}"));
    let script = "return redis.call('LOCK.CANCEL', KEYS[1], ARGV[1])";
    let eval = ["EVAL", script, "1", "k", "b"];
    assert_eq!(server.call(&eval).int(), 1);
    assert_cancelled(&mut waiter);
    assert_eq!(server.waiters("k"), 0);
}

#[test]
fn who_is_granted_in_the_same_transaction_before_keeps_the_lock() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call_batch(&["MULTI", "LOCK.RELEASE k a", "LOCK.CANCEL k b", "EXEC"]);
    assert_eq!(waiter.recv().grant().token, "b");
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
    let mut next = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    server.call_batch(&["MULTI", "LOCK.CANCEL k c", "LOCK.RELEASE k b", "EXEC"]);
    assert_cancelled(&mut next);
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn a_wait_whose_client_dies_in_the_same_batch_leaves_nothing() {
    let server = server_with_holder();
    for kill_first in [true, false] {
        let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
        let kill = format!("CLIENT KILL ID {}", waiter.id());
        let unblock = format!("CLIENT UNBLOCK {} ERROR", waiter.id());
        let mut batch = vec!["LOCK.CANCEL k b", unblock.as_str(), kill.as_str()];
        if kill_first {
            batch.reverse();
        }
        server.call_batch(&batch);
        waiter.drain_to_close();
        until("the queue is empty", || server.waiters("k") == 0);
        assert_eq!(server.call("LOCK.CANCEL k b").int(), 0);
    }
    // The token can wait again.
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("LOCK.RELEASE k a").int();
    waiter.recv().grant();
}

#[test]
fn what_is_pipelined_behind_a_wait_that_is_given_up_is_answered() {
    let server = server_with_holder();
    let mut client = server.client();
    client.send_batch(&[
        "LOCK.WAIT k b",
        "PING",
        "LOCK.CANCEL k b",
        "LOCK.WAIT k b BLOCK 1",
    ]);
    server.until_blocked(&mut client);
    assert_eq!(server.call("LOCK.CANCEL k b").int(), 1);
    assert!(client.recv().error().starts_with("UNBLOCKED "));
    assert_eq!(client.recv().text(), "PONG");
    assert_eq!(client.recv().int(), 0);
    client.recv().nil();
}

#[test]
fn a_cancel_works_when_memory_is_short() {
    let server = server_with_holder();
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    server.call("CONFIG SET maxmemory 1").okay();
    assert!(server.call("LOCK.ACQUIRE k c").error().starts_with("OOM"));
    assert_eq!(server.call("LOCK.CANCEL k b").int(), 1);
    assert_cancelled(&mut waiter);
}

#[test]
fn a_replica_refuses_and_is_sent_nothing() {
    let primary = server_with_holder();
    let replica = Server::start();
    replica.replica_of(&primary);
    let error = replica.call("LOCK.CANCEL k a").error();
    assert!(error.starts_with("READONLY"), "{error}");
    let mut waiter = primary.waiter(format!("LOCK.WAIT k b {LONG}"));
    replica.until_in_step(&primary);
    let changes = || primary.info("persistence", "rdb_changes_since_last_save");
    let before = changes();
    assert_eq!(primary.call("LOCK.CANCEL k b").int(), 1);
    assert_cancelled(&mut waiter);
    assert_eq!(changes(), before);
    // A primary that becomes a replica has no wait left to cancel.
    primary.replica_of(&Server::start());
}

#[test]
fn a_node_of_a_cluster_gives_up_waits_of_its_own_slots() {
    let server = Server::builder().config("cluster-enabled yes").start();
    server.call("CLUSTER ADDSLOTSRANGE 0 16383").okay();
    until("the node serves its slots", || {
        server.call("SET there 1").is_ok()
    });
    server.call(format!("LOCK.ACQUIRE {{k}}1 a {LONG}")).grant();
    let mut waiter = server.waiter(format!("LOCK.MWAIT 2 {{k}}1 {{k}}2 b {LONG}"));
    assert_eq!(server.call("LOCK.CANCEL {k}2 b").int(), 1);
    assert_cancelled(&mut waiter);
    server.call("CLUSTER DELSLOTS 7629").okay();
    let error = server.call("LOCK.CANCEL {k}1 b").error();
    assert!(error.starts_with("CLUSTERDOWN"), "{error}");
}
