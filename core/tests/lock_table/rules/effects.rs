//! Effects: the changes that are stored and replicated.
//!
//! - A command that is refused, waits or fails has no effect.
//! - Every success has an effect for each key, even if it changes nothing.
//! - A hand-over is one effect.

use redis_lock_core::effect::Change;

use super::scene::play;

#[test]
fn a_refused_or_vain_command_has_no_effect() {
    let mut world = play("ACQUIRE k a -> granted");
    let before = world.stream.len();
    for line in [
        "ACQUIRE k b",
        "WAIT k c",
        "RELEASE k b",
        "EXTEND k b",
        "ACQUIRE k b PX 0",
    ] {
        world.say(line);
        assert_eq!(world.stream.len(), before, "{line}");
    }
}

#[test]
fn every_success_is_told_to_the_replicas_even_if_it_changes_nothing() {
    let mut world = play("ACQUIRE k a PX 100 -> granted\nMACQUIRE 2 x y a PX 100 -> granted");
    for (line, effects) in [
        ("ACQUIRE k a PX 100", 1),
        ("WAIT k a PX 100", 1),
        ("EXTEND k a PX 100", 1),
        ("MACQUIRE 2 x y a PX 100", 2),
        ("MEXTEND 2 x y a PX 100", 2),
    ] {
        let before = world.stream.len();
        let answer = world.say(line);
        assert!(
            ["granted", "1", "2"].contains(&answer.as_str()),
            "{line}: {answer}"
        );
        assert_eq!(world.stream.len() - before, effects, "{line}");
    }
}

/// Only renewals of exclusive locks can share one command.
#[test]
fn a_renewal_of_a_session_is_one_unless_the_lock_is_shared() {
    for (mode, is_alone) in [
        ("", true),
        ("DATA why", true),
        ("HOLDS 2", true),
        ("SHARED", false),
    ] {
        let mut world = play(&format!("ACQUIRE k a PX 90 SESSION {mode} -> granted"));
        let before = world.stream.len();
        world.pass_ms(30);
        assert_eq!(world.stream.len() - before, 1, "{mode}");
        let is_renewal = matches!(world.changes().last(), Some(Change::Renew { .. }));
        assert_eq!(is_renewal, is_alone, "{mode}");
    }
    let mut world = play(
        "ACQUIRE k a PX 90 SESSION -> granted
         EXTEND k a PX 90 -> 1",
    );
    let is_grant = matches!(world.changes().last(), Some(Change::Grant { .. }));
    assert!(is_grant, "an extension is for WAIT of its own connection");
    world.pass_ms(30);
    assert_eq!(world.lease_ms("k", "a"), 90);
}

#[test]
fn a_hand_over_is_one_effect() {
    let mut world =
        play("ACQUIRE k a PX 10 -> granted\nWAIT k b PX 10 -> waits\nWAIT k c -> waits");
    for hand_over in ["RELEASE k a", "a lease end"] {
        let before = world.stream.len();
        match hand_over {
            "a lease end" => world.pass_ms(11),
            line => drop(world.say(line)),
        }
        assert_eq!(world.stream.len() - before, 1, "{hand_over}");
    }
}
