//! A lock on a majority of three independent masters: what their fences tell a resource, and what a
//! master costs that forgets.

use redis::Value;
use support::{payload, unix_time_us, Expect, Server, LONG};

/// The fences of a holder, each with its master.
type Fences = Vec<(usize, i64)>;

/// Acquires `k` at these masters. Returns the fences of those that granted it.
#[track_caller]
fn acquire(masters: &[Server; 3], token: &str, of: &[usize]) -> Fences {
    let asked = of.iter().map(|at| {
        let acquire = format!("LOCK.ACQUIRE k {token} {LONG}");
        (*at, masters[*at].call(acquire))
    });
    let granted = asked.filter(|(_, reply)| *reply != Ok(Value::Nil));
    granted
        .map(|(at, reply)| (at, reply.grant().fence))
        .collect()
}

/// A resource that keeps the greatest fence of each master.
#[derive(Default)]
struct Resource {
    highest: [i64; 3],
}

impl Resource {
    /// Returns true if a request with these fences is accepted: none is lower than one before.
    fn takes(&mut self, fences: &Fences) -> bool {
        let is_late = fences.iter().any(|(at, fence)| *fence < self.highest[*at]);
        if !is_late {
            for (at, fence) in fences {
                self.highest[*at] = *fence;
            }
        }
        !is_late
    }
}

#[test]
fn fences_tell_holders_apart_master_by_master_and_not_by_the_greatest() {
    let masters = [Server::start(), Server::start(), Server::start()];
    payload::restore_with_fence(&masters[2], "ahead", unix_time_us() + 3_600_000_000);
    let mut holds = Vec::new();
    for (token, of) in [("a", &[1, 2][..]), ("b", &[0, 1]), ("c", &[0, 1, 2])] {
        holds.push(acquire(&masters, token, of));
        for at in of {
            assert_eq!(masters[*at].call("DEL k").int(), 1);
        }
    }
    let greatest = |hold: &Fences| hold.iter().map(|(_, fence)| *fence).max();
    assert!(greatest(&holds[0]) > greatest(&holds[1]));

    let mut resource = Resource::default();
    for (hold, is_taken) in [(0, true), (0, true), (1, true), (0, false), (1, true)] {
        assert_eq!(resource.takes(&holds[hold]), is_taken, "{holds:?}");
    }
    for (hold, is_taken) in [(2, true), (1, false), (0, false)] {
        assert_eq!(resource.takes(&holds[hold]), is_taken, "{holds:?}");
    }
}

/// Lets `a` hold `k` at the first two masters, restarts the second at once, and lets `b` ask it and
/// the third. Returns the fences of both.
fn holders_around_a_restart(second: Server) -> [Fences; 2] {
    let mut masters = [Server::start(), second, Server::start()];
    let first = acquire(&masters, "a", &[0, 1]);
    assert_eq!(first.len(), 2);
    masters[1].restart();
    [first, acquire(&masters, "b", &[1, 2])]
}

#[test]
fn a_master_that_forgets_and_is_back_too_soon_makes_a_second_holder_whom_fences_tell() {
    let [first, second] = holders_around_a_restart(Server::start());
    assert_eq!(second.len(), 2, "a majority");
    let mut resource = Resource::default();
    assert!(resource.takes(&first));
    assert!(resource.takes(&second));
    assert!(!resource.takes(&first));
}

#[test]
fn a_master_that_writes_all_grants_to_disk_may_be_back_at_once() {
    let durable = Server::builder()
        .config("appendonly yes")
        .config("appendfsync always")
        .start();
    let [_, second] = holders_around_a_restart(durable);
    assert_eq!(second.len(), 1, "no majority");
}
