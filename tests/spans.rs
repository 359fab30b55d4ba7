//! Leases, BLOCKs and KEEPs: none is ever shorter than asked, by the caller's own clock.

mod support;

use std::time::{Duration, Instant};

use support::{server_with_holder, Expect, Server, PATIENCE};

/// Short enough that many are played, and no whole number of anything that a server does by the clock.
const SPAN: Duration = Duration::from_millis(20);

/// Where the clock was cut down and a deadline that equals now had ended, two of three leases ended early.
const TRIES: usize = 100;

/// Asserts that no span is over before its time, as its caller measures it: `play` begins it and returns when it is
/// seen to be over.
#[track_caller]
fn assert_none_is_short(mut play: impl FnMut(usize) -> Instant) {
    let mut short = Vec::new();
    for number in 0..TRIES {
        let begun = Instant::now();
        let took = play(number) - begun;
        if took < SPAN {
            short.push(took);
        }
    }
    assert!(short.is_empty(), "{} of {TRIES}: {short:?}", short.len());
}

/// Asks again and again, without a pause that would hide a short span. The span was over when that was sent back.
#[track_caller]
fn seen_over(mut is_over: impl FnMut() -> bool) -> Instant {
    let deadline = Instant::now() + PATIENCE;
    while !is_over() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}");
    }
    Instant::now()
}

#[test]
fn a_lease_is_never_shorter_than_asked() {
    let server = Server::start();
    let mut client = server.client();
    assert_none_is_short(|number| {
        client
            .call(format!("LOCK.ACQUIRE k{number} a PX 20"))
            .grant();
        let check = format!("LOCK.CHECK k{number} a");
        seen_over(|| client.call(&check).int() == 0)
    });
}

#[test]
fn a_lease_is_never_shorter_than_asked_for_who_waits_for_its_end() {
    let server = Server::start();
    let mut client = server.client();
    assert_none_is_short(|number| {
        client
            .call(format!("LOCK.ACQUIRE k{number} a PX 20"))
            .grant();
        client
            .call(format!("LOCK.WAIT k{number} b PX 9000"))
            .grant();
        Instant::now()
    });
}

#[test]
fn an_extension_is_never_shorter_than_asked() {
    let server = server_with_holder();
    let mut client = server.client();
    assert_none_is_short(|_| {
        assert_eq!(client.call("LOCK.EXTEND k a PX 20").int(), 1);
        let over = seen_over(|| client.call("LOCK.CHECK k a").int() == 0);
        client.call("LOCK.ACQUIRE k a PX 60000").grant();
        over
    });
}

#[test]
fn a_block_is_never_shorter_than_asked() {
    let server = server_with_holder();
    let mut client = server.client();
    assert_none_is_short(|_| {
        client.call("LOCK.WAIT k b BLOCK 20").nil();
        Instant::now()
    });
}

#[test]
fn a_place_is_kept_for_no_less_than_asked() {
    let server = server_with_holder();
    let mut client = server.client();
    assert_none_is_short(|number| {
        client.call(format!("LOCK.QUEUE k t{number} KEEP 20")).int();
        seen_over(|| server.waiters("k") == 0)
    });
}

#[test]
fn what_is_left_of_a_lease_is_at_least_1_while_it_lasts() {
    let server = Server::start();
    for number in 0..TRIES {
        let key = format!("k{number}");
        server.call(format!("LOCK.ACQUIRE {key} a PX 20")).grant();
        while let Some(lock) = server.lock_info(&key) {
            assert!(lock.holders.iter().all(|own| own.int("lease-ms") >= 1));
        }
    }
}
