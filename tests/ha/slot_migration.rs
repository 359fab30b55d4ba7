//! Slots that move key by key with CLUSTER SETSLOT and MIGRATE, while clients hold and wait.

use std::time::Instant;

use redis::cluster::ClusterClient;

use crate::nodes::{assert_take_turns, digests, hold_every_kind, moved_to, Cluster, EVERY_KIND};
use support::{
    cluster_node, eventually, unix_time_ms, until, Client, Expect, Grant, Reply, Server, LONG,
};

/// Calls a command after ASKING, for a slot that the server is importing.
fn ask(server: &Server, command: &str) -> Reply {
    let mut client = server.client();
    client.call("ASKING").okay();
    client.call(command)
}

/// Returns a client that waits after ASKING, as the server's only waiter.
#[track_caller]
fn asking_waiter(server: &Server, token: &str) -> Client {
    let mut client = server.client();
    client.call("ASKING").okay();
    client.send(format!("LOCK.WAIT {{t}} {token} {LONG}"));
    until("one waiter", || server.info("lock", "lock_waiters") == "1");
    client
}

/// Lets the lease of `a` expire at the node that has the key.
#[track_caller]
fn let_lapse(server: &Server) {
    assert_eq!(ask(server, "LOCK.EXTEND {t} a PX 30").int(), 1);
    until("the lease is over", || {
        ask(server, "LOCK.CHECK {t} a").int() == 0
    });
}

#[test]
fn locks_travel_with_token_fence_holds_and_lease() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    let [grant, several] = hold_every_kind(source);
    let before = digests(source, &EVERY_KIND);

    slot.begin();
    slot.all_keys();
    assert_eq!(digests(target, &EVERY_KIND), before);
    // The source redirects to the target. The target redirects a client without ASKING back.
    let error = source.call("LOCK.EXTEND {t}x a").error();
    assert!(error.starts_with("ASK "), "{error}");
    assert!(target
        .call("LOCK.EXTEND {t}x a")
        .error()
        .starts_with("MOVED "));
    ask(target, "LOCK.ACQUIRE {t}x c").nil();
    ask(target, "LOCK.ACQUIRE {t}s r SHARED LIMIT 3").nil();
    assert_eq!(
        ask(target, "LOCK.RELEASE {t}x a").int(),
        1,
        "one of two holds"
    );
    slot.end();

    assert_eq!(
        target.call(format!("LOCK.ACQUIRE {{t}}x a {LONG}")).grant(),
        grant
    );
    let again = target
        .call(format!("LOCK.MACQUIRE 2 {{t}}m {{t}}n b {LONG}"))
        .grant();
    assert_eq!(again, several);
    assert_eq!(target.call("LOCK.RELEASE {t}x a").int(), 1, "second hold");
    let next = target.call("LOCK.ACQUIRE {t}x c").grant();
    assert!(next.fence > several.fence, "{next:?} after {several:?}");
}

#[test]
fn nodes_that_restart_from_their_files_in_the_middle_of_a_move_have_each_lock_once() {
    let mut cluster = Cluster::of_primaries();
    let [grant, several] = hold_every_kind(cluster.next_move("{t}").source);
    let before = digests(cluster.next_move("{t}").source, &EVERY_KIND);
    let slot = cluster.next_move("{t}");
    let numbers = [cluster.owner("{t}"), slot.to];
    slot.begin();
    for key in &EVERY_KIND[..2] {
        slot.key(key);
    }
    for number in numbers {
        let node = cluster.node_mut(number);
        node.call("SAVE").okay();
        node.kill9();
    }
    for number in numbers {
        cluster.node_mut(number).restart();
    }
    cluster.until_all_serve();

    // The source serves this key, and sends clients on with those that it no longer has.
    let slot = cluster.next_move(EVERY_KIND[2]);
    let (source, target) = (slot.source, slot.target);
    assert_eq!(digests(target, &EVERY_KIND[..2]), before[..2]);
    assert_eq!(digests(source, &EVERY_KIND[2..]), before[2..]);
    ask(target, "LOCK.ACQUIRE {t}x c").nil();
    source.call("LOCK.ACQUIRE {t}m c").nil();
    slot.all_keys();
    slot.end();
    assert_eq!(digests(target, &EVERY_KIND), before);
    let again = target.call("LOCK.ACQUIRE {t}x a PX 600000").grant();
    assert_eq!(again, grant);
    let next = target.call("LOCK.ACQUIRE {t}other c").grant();
    assert!(next.fence > several.fence, "{next:?} after {several:?}");
}

#[test]
fn waiters_are_sent_on_and_queue_again_where_the_slot_is() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    let held = source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    let commands = [
        format!("LOCK.WAIT {{t}} b {LONG}"),
        format!("LOCK.WAIT {{t}} c {LONG} SHARED"),
        format!("LOCK.MWAIT 2 {{t}} {{t}}m d {LONG}"),
    ];
    let mut waiters: Vec<Client> = commands.iter().map(|it| source.waiter(it)).collect();

    slot.begin();
    slot.all_keys();
    // The lock has left the source, which must not take that for a release.
    source.settle();
    for waiter in &mut waiters {
        waiter.expect_silence();
    }
    let since = slot.end();
    for waiter in &mut waiters {
        assert_eq!(moved_to(&waiter.recv().error()), Some(target.port()));
    }
    let told_after = since.elapsed();
    assert!(told_after.as_millis() < 1_000, "{told_after:?}");
    until("no client waits at the source", || {
        source.info("lock", "lock_waiters") == "0"
    });

    let mut waiters: Vec<Client> = commands.iter().map(|it| target.waiter(it)).collect();
    assert_eq!(target.call("LOCK.RELEASE {t} a").int(), 1);
    assert_take_turns(target, "{t}", &mut waiters, &["b", "c", "d"], held.fence);
}

/// Makes `a` hold `{t}` with a long lease and `b` wait for it. Returns the grant and the waiter.
#[track_caller]
fn hold_and_wait(source: &Server) -> (Grant, Client) {
    let held = source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    (held, source.waiter(format!("LOCK.WAIT {{t}} b {LONG}")))
}

#[test]
fn a_lease_that_ends_between_two_nodes_is_granted_once() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    let (first, mut here) = hold_and_wait(source);
    slot.begin();
    slot.all_keys();
    // Both nodes have a waiter when the lease expires.
    let mut there = asking_waiter(target, "c");
    let_lapse(target);
    source.settle();
    here.expect_silence();
    // A command of a redirected client makes the target settle the queue.
    ask(target, "LOCK.ACQUIRE {t} d").nil();
    let second = there.recv().grant();
    assert!(second.fence > first.fence);
    slot.end();
    assert_eq!(moved_to(&here.recv().error()), Some(target.port()));
    target.call(format!("LOCK.ACQUIRE {{t}} b {LONG}")).nil();
    assert_eq!(target.lock_info("{t}").unwrap().holder_tokens(), ["c"]);
}

#[test]
fn who_waits_at_the_new_node_already_is_granted_when_the_slot_is_its() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    slot.begin();
    slot.all_keys();
    let mut there = asking_waiter(target, "b");
    let_lapse(target);
    let since = slot.end();
    assert_eq!(there.recv().grant().token, "b");
    let stuck = since.elapsed();
    assert!(stuck.as_millis() < 1_000, "{stuck:?}");
}

#[test]
fn leases_end_where_their_keys_still_are() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let source = slot.source;
    let keys: Vec<String> = (0..40).map(|number| format!("{{t}}{number}")).collect();
    let mut waiters: Vec<Client> = Vec::new();
    for key in &keys {
        source.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        waiters.push(source.waiter(format!("LOCK.WAIT {key} b {LONG}")));
    }
    slot.begin();
    // Longer than the time before a lease's end at which its key is made to outlive it.
    let ends: Vec<String> = keys
        .iter()
        .map(|key| format!("LOCK.EXTEND {key} a PX 700"))
        .collect();
    source.call_all(&ends);
    // The slot is migrating but no key has moved, so the source hands each lock over at once.
    for (key, waiter) in keys.iter().zip(&mut waiters) {
        assert_eq!(waiter.recv().grant().token, "b", "{key}");
        source.call(format!("LOCK.ACQUIRE {key} c")).nil();
        let left_ms = source.call(format!("PTTL {key}")).int();
        assert!((1..=600_000).contains(&left_ms), "{key}: {left_ms}");
    }
}

#[test]
fn a_lease_that_ends_while_its_node_stands_still_is_handed_on_there() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let source = slot.source;
    let (_, mut waiter) = hold_and_wait(source);
    slot.begin();
    assert_eq!(source.call("LOCK.EXTEND {t} a PX 1000").int(), 1);
    let over_ms = unix_time_ms() + 1_000;
    until("the lease is about to end", || {
        unix_time_ms() > over_ms - 150
    });
    source.freeze();
    until("the lease is over", || unix_time_ms() > over_ms + 50);
    source.thaw();
    assert_eq!(waiter.recv().grant().token, "b");
    assert_eq!(source.known_lock("{t}").holder_tokens(), ["b"]);
}

#[test]
fn the_key_of_a_lock_that_somebody_waits_for_outlives_its_lease() {
    let cluster = Cluster::of_primaries();
    let source = cluster.next_move("{t}").source;
    for key in ["{t}alone", "{t}contended"] {
        source.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
    }
    let _waiter = source.waiter(format!("LOCK.WAIT {{t}}contended b {LONG}"));
    source.call_all(&[
        "LOCK.EXTEND {t}contended a PX 490",
        "LOCK.EXTEND {t}alone a PX 490",
    ]);
    // The timer extends the key's expiry a moment after the command.
    let [kept_ms, alone_ms, held_ms] = eventually("the key is kept", || {
        let answers = source.call_batch(&[
            "PTTL {t}contended",
            "PTTL {t}alone",
            "LOCK.CHECK {t}contended a",
        ]);
        let numbers: Vec<i64> = answers.into_iter().map(Expect::int).collect();
        let numbers: [i64; 3] = numbers.try_into().expect("three answers");
        (numbers[0] > 490).then_some(numbers)
    });
    assert!((500..=990).contains(&kept_ms), "the key is kept");
    assert!((1..=490).contains(&alone_ms), "no client waits for the key");
    assert!((1..=490).contains(&held_ms), "the lease is what it was");
}

#[test]
fn contended_keys_outlive_their_leases_beside_other_traffic() {
    let server = cluster_node();
    let keys: Vec<String> = (0..20).map(|number| format!("{{k{number}}}")).collect();
    for key in &keys {
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
    }
    let _waiters: Vec<Client> = keys
        .iter()
        .map(|key| server.waiter(format!("LOCK.WAIT {key} b {LONG}")))
        .collect();
    for key in &keys {
        assert_eq!(server.call(format!("LOCK.EXTEND {key} a PX 1500")).int(), 1);
    }
    let mut other = server.client();
    let mut beside = || {
        other.call("LOCK.ACQUIRE other o").grant();
        assert_eq!(other.call("LOCK.RELEASE other o").int(), 1);
    };
    for key in &keys {
        until("the end of the lease is near", || {
            beside();
            server.call(format!("LOCK.CHECK {key} a")).int() < 350
        });
        let both = server.call_batch(&[&format!("PTTL {key}"), &format!("LOCK.CHECK {key} a")]);
        let [kept_ms, held_ms] = both.try_into().expect("two answers");
        let [kept_ms, held_ms] = [kept_ms.int(), held_ms.int()];
        assert!(
            held_ms == 0 || kept_ms - held_ms > 400,
            "{key}: {kept_ms}, {held_ms}"
        );
        assert!(held_ms > 0, "{key}: too late to see it");
    }
}

#[test]
fn a_key_that_was_told_to_expire_sooner_does_not_outlive_its_lease() {
    let cluster = Cluster::of_primaries();
    let source = cluster.next_move("{t}").source;
    let (_, mut waiter) = hold_and_wait(source);
    // The time to let the key outlive its lease comes between PEXPIRE and its settling.
    let mut replies = source.call_batch(&[
        "LOCK.EXTEND {t} a PX 505",
        "DEBUG SLEEP 0.01",
        "PEXPIRE {t} 100",
        "LOCK.ACQUIRE {t}other a",
        "LOCK.CHECK {t} a",
    ]);
    let left_ms = replies.remove(4).int();
    assert!((1..=100).contains(&left_ms), "{left_ms} ms left of 100");
    assert_eq!(waiter.recv().grant().token, "b");
}

#[test]
fn a_session_lasts_at_the_new_node_while_its_slot_is_on_its_way() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    slot.begin();
    slot.all_keys();
    let mut session = target.client();
    session.call("ASKING").okay();
    assert_eq!(session.call("LOCK.EXTEND {t} a PX 900 SESSION").int(), 1);
    let renewed_until_ms = unix_time_ms() + 2_000;
    until("two leases are over", || unix_time_ms() > renewed_until_ms);
    ask(target, "LOCK.ACQUIRE {t} b").nil();
    let mut waiter = asking_waiter(target, "b");
    session.close();
    assert_eq!(waiter.recv().grant().token, "b");
    slot.end();
    target.call("LOCK.ACQUIRE {t} c").nil();
}

#[test]
fn a_migration_given_up_leaves_lock_and_queue_where_they_were() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let source = slot.source;
    let (_, mut waiter) = hold_and_wait(source);
    slot.begin();
    assert_eq!(source.call("LOCK.EXTEND {t} a PX 300").int(), 1);
    slot.give_up();
    assert_eq!(waiter.recv().grant().token, "b");
}

#[test]
fn a_session_runs_on_untied_and_is_taken_up_again() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    let mut holder = source.client();
    let grant = holder.call("LOCK.ACQUIRE {t} a PX 6000 SESSION").grant();
    let mut orphan = source.client();
    orphan.call("LOCK.ACQUIRE {t}o a PX 1500 SESSION").grant();
    slot.begin();
    slot.all_keys();
    orphan.close();
    slot.end();
    assert_eq!(target.lock_info("{t}").unwrap().holder().int("session"), 0);
    let mut again = target.client();
    assert_eq!(again.call("LOCK.EXTEND {t} a PX 500 SESSION").int(), 1);
    assert_eq!(target.lock_info("{t}").unwrap().holder().int("session"), 1);
    assert_eq!(
        target.call("LOCK.ACQUIRE {t} a SESSION").grant().fence,
        grant.fence
    );
    // The source has no session left to renew or to end, and tries neither.
    until("the sessions are dropped", || {
        source.info("lock", "lock_sessions") == "0"
    });
    assert_eq!(source.info("lock", "lock_deferred"), "0");
    until("the lease of the closed session has ended", || {
        target.call("LOCK.CHECK {t}o a").int() == 0
    });
}

#[test]
fn several_keys_have_to_be_in_one_slot_and_at_one_node() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    for command in ["MACQUIRE", "MWAIT", "MEXTEND", "MRELEASE"] {
        let error = source
            .call(format!("LOCK.{command} 2 {{t}}1 {{u}}1 a"))
            .error();
        assert!(error.starts_with("CROSSSLOT "), "{command}: {error}");
    }
    source
        .call(format!("LOCK.MACQUIRE 2 {{t}}1 {{t}}2 a {LONG}"))
        .grant();
    slot.begin();
    slot.key("{t}1");
    for command in ["MACQUIRE", "MWAIT", "MEXTEND", "MRELEASE"] {
        let error = source
            .call(format!("LOCK.{command} 2 {{t}}1 {{t}}2 a"))
            .error();
        assert!(error.starts_with("TRYAGAIN "), "{command}: {error}");
        let error = ask(target, &format!("LOCK.{command} 2 {{t}}1 {{t}}2 a")).error();
        assert!(error.starts_with("TRYAGAIN "), "{command}: {error}");
    }
    slot.all_keys();
    slot.end();
    assert_eq!(target.call("LOCK.MRELEASE 2 {t}1 {t}2 a").int(), 2);
}

#[test]
fn a_wait_for_several_is_not_granted_while_one_of_them_is_elsewhere() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    source.call(format!("LOCK.ACQUIRE {{t}}1 x {LONG}")).grant();
    source.call(format!("LOCK.ACQUIRE {{t}}2 y {LONG}")).grant();
    source.call(format!("LOCK.ACQUIRE {{t}}3 z {LONG}")).grant();
    let mut both = source.waiter(format!("LOCK.MWAIT 2 {{t}}1 {{t}}2 b {LONG}"));
    let mut timed = source.waiter(format!("LOCK.MWAIT 2 {{t}}1 {{t}}3 t {LONG} BLOCK 1500"));
    let mut behind = source.waiter(format!("LOCK.WAIT {{t}}1 c {LONG}"));
    slot.begin();
    slot.key("{t}1");
    // The second key is released and the third key's lease expires. The first is still held.
    assert_eq!(source.call("LOCK.EXTEND {t}3 z PX 30").int(), 1);
    assert_eq!(source.call("LOCK.RELEASE {t}2 y").int(), 1);
    timed.recv().nil();
    source.settle();
    both.expect_silence();
    behind.expect_silence();
    assert_eq!(ask(target, "LOCK.RELEASE {t}1 x").int(), 1);
    source.settle();
    both.expect_silence();
    slot.all_keys();
    slot.end();
    for waiter in [&mut both, &mut behind] {
        assert_eq!(moved_to(&waiter.recv().error()), Some(target.port()));
    }
}

/// Waits for the key in a thread of its own, like an application. Returns the grant and its time.
pub fn wait_through(
    cluster: &Cluster,
    key: &'static str,
) -> std::thread::JoinHandle<(Grant, Instant)> {
    let urls = cluster
        .nodes()
        .iter()
        .map(|node| format!("redis://127.0.0.1:{}", node.port()));
    let client = ClusterClient::new(urls.collect::<Vec<_>>()).expect("addresses");
    std::thread::spawn(move || {
        let mut connection = client
            .get_connection()
            .expect("a connection to the cluster");
        let (token, fence) = redis::cmd("LOCK.WAIT")
            .arg(key)
            .arg("client")
            .arg("PX")
            .arg(600_000)
            .query(&mut connection)
            .expect("a grant");
        (Grant { token, fence }, Instant::now())
    })
}

#[test]
fn a_cluster_client_follows_its_wait_to_the_new_node() {
    let cluster = Cluster::of_primaries();
    let slot = cluster.next_move("{t}");
    let (source, target) = (slot.source, slot.target);
    let held = source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    let waiter = wait_through(&cluster, "{t}");
    source.until_waiters("{t}", 1);
    slot.begin();
    slot.all_keys();
    slot.end();
    target.until_waiters("{t}", 1);
    let released = Instant::now();
    assert_eq!(target.call("LOCK.RELEASE {t} a").int(), 1);
    let (grant, granted) = waiter.join().expect("the client got its grant");
    assert_eq!(grant.token, "client");
    assert!(grant.fence > held.fence);
    assert!((granted - released).as_millis() < 1_000);
    let holder = eventually("the lock is the client's", || target.lock_info("{t}"));
    assert_eq!(holder.holder_tokens(), ["client"]);
}
