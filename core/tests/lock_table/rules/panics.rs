//! Panics: what an operation leaves behind when it panics, which the module catches.

use std::panic::{catch_unwind, AssertUnwindSafe};

use super::scene::play;
use crate::world::World;

/// Returns a world after this scene, in which a line has panicked at its `nth` read of a key.
fn panicked(scene: &str, line: &str, nth: usize) -> World {
    let mut world = play(scene);
    world.is_judged = false;
    world.store.panics_at = world.store.reads + nth;
    let said = catch_unwind(AssertUnwindSafe(|| world.say(line)));
    assert!(said.is_err(), "no read {nth}");
    world.store.panics_at = 0;
    world
}

/// The operation has changed no key. The next one carries nothing of it out.
#[test]
fn the_next_operation_carries_out_nothing_of_one_that_panicked() {
    let scene = "ACQUIRE x a -> granted
         ACQUIRE y a -> granted
         MWAIT 2 x y b -> waits
         WAIT x c -> waits";
    for nth in 1..=2 {
        let mut world = panicked(scene, "MRELEASE 2 x y a", nth);
        let effects = world.changes().count();
        assert_eq!(world.say("ACQUIRE z d"), "granted");
        assert_eq!(world.changes().count(), effects + 1, "at read {nth}");
        assert_eq!(world.heard(), [""; 0]);
        assert_eq!(world.holders("x"), ["a#1"]);
        assert_eq!(world.say("MRELEASE 2 x y a"), "2");
        assert_eq!(world.heard(), ["MWAIT 2 x y b: granted"]);
    }
}

/// The release has granted x to b, and then reads y for the next waiter.
#[test]
fn a_hand_over_of_an_operation_that_panicked_is_not_carried_out() {
    let scene = "ACQUIRE x a -> granted
         ACQUIRE y h -> granted
         WAIT x b SHARED -> waits
         MWAIT 2 x y c SHARED -> waits";
    let mut world = panicked(scene, "RELEASE x a", 2);
    let effects = world.changes().count();
    assert_eq!(world.say("ACQUIRE z d"), "granted");
    assert_eq!(world.changes().count(), effects + 1);
    assert_eq!(world.heard(), [""; 0]);
    assert_eq!(world.holders("x"), ["a#1"]);
}
