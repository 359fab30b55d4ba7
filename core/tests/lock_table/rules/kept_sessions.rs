//! SESSION KEEP: a grant that outlives its connection for a while.
//!
//! - When the connection closes, the rest of the lease is set to KEEP. It counts from the close.
//! - From then on the grant has a plain lease, until a command with SESSION ties it again.
//! - KEEP belongs to the session, so the latest command with SESSION sets or removes it.

use super::scene::play;
use crate::world::{self, World};

#[test]
fn a_kept_grant_lasts_so_long_after_its_connection() {
    for keep_ms in [1, 30, 5_000] {
        let line = format!("ACQUIRE k a PX 300 SESSION KEEP {keep_ms}");
        let mut world = World::new();
        assert_eq!(world.say(&line), "granted");
        world.say("WAIT k b PX 7");
        world.pass_ms(1_000);
        world.close(&line);
        assert_eq!(world.lease_ms("k", "a"), keep_ms);
        assert!(world.table.sessions().is_empty());
        world.pass_ms(keep_ms);
        assert_eq!(world.holders("k"), ["a#1"], "KEEP {keep_ms}");
        world.pass_ms(1);
        assert_eq!(world.heard(), ["WAIT k b PX 7: granted"]);
    }
}

#[test]
fn a_kept_grant_is_a_plain_lease_of_its_own_length_from_then_on() {
    let mut world = play("ACQUIRE k a PX 300 SESSION KEEP 50 -> granted");
    world.close("ACQUIRE k a PX 300 SESSION KEEP 50");
    world.pass_ms(20);
    assert_eq!(world.say("EXTEND k a"), "1");
    assert_eq!(world.lease_ms("k", "a"), 300, "its own length, not KEEP");
    world.pass_ms(301);
    assert!(world.holders("k").is_empty(), "nothing renews it");
}

#[test]
fn a_kept_grant_can_be_tied_again_before_its_end() {
    let mut world = play("MACQUIRE 2 x y a PX 300 SESSION KEEP 50 -> granted");
    world.close("MACQUIRE 2 x y a PX 300 SESSION KEEP 50");
    world.pass_ms(49);
    assert_eq!(world.say("MEXTEND 2 x y a SESSION KEEP 80"), "2");
    world.pass_ms(1_000);
    assert_eq!(world.holders("x"), ["a#1"]);
    world.close("MEXTEND 2 x y a SESSION KEEP 80");
    assert_eq!(world.lease_ms("y", "a"), 80);
    world.pass_ms(81);
    assert_eq!(world.say("MEXTEND 2 x y a SESSION"), "0", "too late");
}

#[test]
fn the_latest_session_says_how_long_a_grant_is_kept() {
    let scenes = [
        (
            "ACQUIRE k a PX 300 SESSION KEEP 50",
            "ACQUIRE k a PX 300",
            Some(50),
        ),
        (
            "ACQUIRE k a PX 300 SESSION KEEP 50",
            "EXTEND k a PX 200",
            Some(50),
        ),
        (
            "ACQUIRE k a PX 300 SESSION KEEP 50",
            "EXTEND k a SESSION",
            None,
        ),
        (
            "ACQUIRE k a PX 300 SESSION KEEP 50",
            "WAIT k a SESSION KEEP 70",
            Some(70),
        ),
        (
            "ACQUIRE k a PX 300 SESSION",
            "MEXTEND 1 k a SESSION KEEP 70",
            Some(70),
        ),
        (
            "ACQUIRE k a PX 300 SHARED SESSION KEEP 50",
            "ACQUIRE k a",
            Some(50),
        ),
    ];
    for (first, then, kept_ms) in scenes {
        let mut world = World::new();
        assert_eq!(world.say(first), "granted");
        let client_id = world.client_of(first);
        assert_ne!(world.say_as(client_id, then), "0");
        world.close(first);
        let left_ms = (!world.holders("k").is_empty()).then(|| world.lease_ms("k", "a"));
        assert_eq!(left_ms, kept_ms, "{first}, then {then}");
    }
    let mut world = play(
        "ACQUIRE k a PX 300 SESSION KEEP 50 -> granted
         EXTEND k a NOSESSION -> 1",
    );
    world.close("ACQUIRE k a PX 300 SESSION KEEP 50");
    assert_eq!(world.lease_ms("k", "a"), 300, "untied before");
}

#[test]
fn what_is_kept_counts_from_the_close_however_late_anybody_looks() {
    let line = "ACQUIRE k a SHARED PX 300 SESSION KEEP 50";
    for (late_ms, left_ms) in [(0, Some(50)), (20, Some(30)), (50, Some(0)), (51, None)] {
        let mut world = play("ACQUIRE k z SHARED PX 9000 -> granted");
        assert_eq!(world.say(line), "granted");
        world.orphan_all();
        world.now_ms += late_ms;
        assert_eq!(world.say("ACQUIRE k b SHARED PX 9000"), "granted");
        let lock = world.lock("k");
        let own = lock.holder(&world::token("a"));
        let left = own.map(|own| own.deadline_ms - world.wall_ms());
        assert_eq!(left, left_ms, "looked at {late_ms} ms later");
        world.fire(Vec::new());
        assert!(world.table.sessions().is_empty());
    }
    // A lease that was over when the connection ended is not restored.
    let mut world = World::new();
    assert_eq!(world.say(line), "granted");
    world.expire("k", Some(world.wall_ms() + 5));
    world.now_ms += 6;
    world.orphan_all();
    assert_eq!(world.say("EXTEND k a"), "0");
}
