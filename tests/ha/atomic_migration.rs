//! Slots that move atomically: CLUSTER MIGRATESLOTS of Valkey 9, CLUSTER MIGRATION of Redis 8.4.
//!
//! If the server has neither command, each test asserts its error and ends there.

use crate::nodes::{
    assert_take_turns, digests, hold_every_kind, moved_to, Cluster, Move, EVERY_KIND,
};
use crate::slot_migration::wait_through;
use support::{assert_same_data, until, Client, Expect, Server, LONG};

/// Slows the move of the slot of `{t}` to at least `keys` times 1.5 ms. The source sends `keys`
/// keys in addition to the locks, and pauses before each.
#[track_caller]
fn slow_down(source: &Server, keys: u32) {
    source.call(format!("DEBUG POPULATE {keys} {{t}}")).okay();
    source.call("CONFIG SET rdb-key-save-delay 1500").okay();
}

/// Begins to move the slot of `{t}` to the next primary. Returns `None` if the server cannot move
/// slots atomically.
fn begin(cluster: &Cluster) -> Option<Move<'_>> {
    let slot = cluster.next_move("{t}");
    match slot.begin_as_a_whole() {
        Ok(()) => Some(slot),
        Err(error) => {
            assert!(error.starts_with("ERR unknown subcommand"), "{error}");
            None
        }
    }
}

#[test]
fn locks_move_with_their_slot_and_waiters_are_sent_on() {
    let cluster = Cluster::start();
    let source = cluster.node(cluster.owner("{t}"));
    let [held, several] = hold_every_kind(source);
    let mut session = source.client();
    let tied = session
        .call("LOCK.ACQUIRE {t}session c PX 2000 SESSION")
        .grant();
    let commands = [
        format!("LOCK.WAIT {{t}}x w {LONG}"),
        format!("LOCK.WAIT {{t}}x v {LONG} SHARED"),
        format!("LOCK.MWAIT 2 {{t}}x {{t}}m u {LONG}"),
    ];
    let mut waiters: Vec<Client> = commands.iter().map(|it| source.waiter(it)).collect();
    let before = digests(source, &EVERY_KIND);

    let Some(slot) = begin(&cluster) else {
        return;
    };
    let target = slot.target;
    for waiter in &mut waiters {
        assert_eq!(moved_to(&waiter.recv().error()), Some(target.port()));
    }
    slot.until_known();
    assert_eq!(digests(target, &EVERY_KIND), before);
    let replica = cluster.node(slot.to + 3);
    assert_same_data(target, &[replica]);

    // The source keeps none of the slot's state.
    until("the source has none of the locks", || {
        source.info("lock", "lock_locks") == "0"
    });
    until("the source has no sessions", || {
        source.info("lock", "lock_sessions") == "0"
    });
    assert_eq!(source.info("lock", "lock_waiters"), "0");
    assert_eq!(source.info("lock", "lock_deferred"), "0");

    // The target has taken over the locks.
    assert_eq!(
        target
            .call("LOCK.EXTEND {t}session c PX 60000 SESSION")
            .int(),
        1
    );
    assert_eq!(
        target
            .lock_info("{t}session")
            .unwrap()
            .holder()
            .int("fence"),
        tied.fence
    );
    let mut waiters: Vec<Client> = commands.iter().map(|it| target.waiter(it)).collect();
    assert_eq!(target.call("LOCK.RELEASE {t}x a ALL").int(), 1);
    assert_eq!(target.call("LOCK.MRELEASE 2 {t}m {t}n b").int(), 2);
    let last = held.fence.max(several.fence).max(tied.fence);
    assert_take_turns(target, "{t}x", &mut waiters, &["w", "v", "u"], last);
}

#[test]
fn hand_overs_by_the_timer_reach_the_new_node() {
    let cluster = Cluster::of_primaries();
    let source = cluster.node(cluster.owner("{t}"));
    slow_down(source, 1_000);
    source.call(format!("LOCK.ACQUIRE {{t}} w0 {LONG}")).grant();
    let commands: Vec<String> = (1..100)
        .map(|n| format!("LOCK.WAIT {{t}} w{n} PX 50"))
        .collect();
    let mut waiters: Vec<Client> = commands.iter().map(|it| source.waiter(it)).collect();
    let mut fences = Vec::new();

    let Some(slot) = begin(&cluster) else {
        return;
    };
    // From here on the leases expire one after the other.
    assert_eq!(source.call("LOCK.EXTEND {t} w0 PX 50").int(), 1);
    let mut sent_on = 0;
    for waiter in &mut waiters {
        match waiter.recv() {
            Ok(grant) => fences.push(Ok(grant).grant().fence),
            Err(error) => {
                assert_eq!(moved_to(&error), Some(slot.target.port()));
                sent_on += 1;
            }
        }
    }
    assert!(sent_on > 0, "the move took longer than 99 leases");
    assert!(fences.len() > 1, "no lease ended while the slot moved");
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    slot.until_known();
    // The new node has seen the old node's last grant, so its fences continue from there.
    let last: i64 = slot
        .target
        .info("lock", "lock_last_fence")
        .parse()
        .expect("a number");
    assert_eq!(Some(&last), fences.last());
}

#[test]
fn a_move_called_off_leaves_lock_and_queue_where_they_were() {
    let cluster = Cluster::of_primaries();
    let source = cluster.node(cluster.owner("{t}"));
    // The move takes longer than it takes to cancel it.
    slow_down(source, 2_000);
    source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    for n in 0..50 {
        source
            .call(format!("LOCK.ACQUIRE {{t}}{n} a {LONG}"))
            .grant();
    }
    let mut waiter = source.waiter(format!("LOCK.WAIT {{t}} b {LONG}"));

    assert_eq!(source.call("LOCK.EXTEND {t} a PX 500").int(), 1);
    let Some(slot) = begin(&cluster) else {
        return;
    };
    until("locks arrive", || {
        slot.target.info("lock", "lock_locks") != "0"
    });
    slot.call_off();
    assert_eq!(waiter.recv().grant().token, "b");
    assert_eq!(source.lock_info("{t}").unwrap().holder_tokens(), ["b"]);
    // The target keeps nothing of the locks.
    let target = slot.target;
    until("the target has none of the locks", || {
        target.info("lock", "lock_locks") == "0"
    });
    until("the target has nothing left to settle", || {
        target.info("lock", "lock_deferred") == "0"
    });
    assert!(target.call("LOCK.INFO {t}").error().starts_with("MOVED "));
}

#[test]
fn a_cluster_client_follows_its_wait_with_the_slot() {
    let cluster = Cluster::of_primaries();
    let source = cluster.node(cluster.owner("{t}"));
    let held = source.call(format!("LOCK.ACQUIRE {{t}} a {LONG}")).grant();
    let waiter = wait_through(&cluster, "{t}");
    source.until_waiters("{t}", 1);
    let moving = begin(&cluster);
    let holder = moving.map_or(source, |slot| slot.target);
    until("the client waits at the lock's node", || {
        holder.find_info("lock", "lock_waiters").as_deref() == Some("1")
            && holder.call("LOCK.CHECK {t} a").is_ok()
    });
    assert_eq!(holder.call("LOCK.RELEASE {t} a").int(), 1);
    let (grant, _) = waiter.join().expect("the client got its grant");
    assert_eq!(grant.token, "client");
    assert!(grant.fence > held.fence);
}
