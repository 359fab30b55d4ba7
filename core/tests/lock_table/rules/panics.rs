//! Panics: what an operation leaves behind when it panics, which the module catches.

use std::panic::{catch_unwind, AssertUnwindSafe};

use super::scene::play;
use crate::world::World;

/// Returns a world in which b and c wait for x and y, after the release of x has panicked at its
/// `nth` read of a key.
fn panicked(nth: usize) -> World {
    let mut world = play(
        "ACQUIRE x a -> granted
         ACQUIRE y a -> granted
         MWAIT 2 x y b -> waits
         WAIT x c -> waits",
    );
    world.is_judged = false;
    world.store.panics_at = world.store.reads + nth;
    let release = catch_unwind(AssertUnwindSafe(|| world.say("MRELEASE 2 x y a")));
    assert!(release.is_err(), "no read {nth}");
    world.store.panics_at = 0;
    world
}

/// The operation has changed no key. The next one carries nothing of it out.
#[test]
fn the_next_operation_carries_out_nothing_of_one_that_panicked() {
    for nth in 1..=2 {
        let mut world = panicked(nth);
        let effects = world.changes().count();
        assert_eq!(world.say("ACQUIRE z d"), "granted");
        assert_eq!(world.changes().count(), effects + 1, "at read {nth}");
        assert_eq!(world.heard(), [""; 0]);
        assert_eq!(world.holders("x"), ["a#1"]);
        assert_eq!(world.say("MRELEASE 2 x y a"), "2");
        assert_eq!(world.heard(), ["MWAIT 2 x y b: granted"]);
    }
}
