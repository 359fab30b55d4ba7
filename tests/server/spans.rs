//! Leases, BLOCKs and KEEPs are never shorter than requested, by the caller's own clock.

use std::time::{Duration, Instant, SystemTime};

use support::{server_with_holder, Expect, Server, LONG, PATIENCE};

/// The length of a span: short, so that a test can play many, and no multiple of a period of the
/// server's clock.
const SPAN: Duration = Duration::from_millis(20);

/// The number of spans of a test. When the server rounded its clock down and ended a lease at its
/// very deadline, two of three leases ended early.
const TRIES: usize = 100;

/// The part of a lease's last millisecond in which the server may have expired its key, in
/// microseconds.
const LATE_US: i64 = 600;

/// Asserts that no span is over before its time, by the caller's clock. `play` begins a span and
/// returns the time at which it saw the span's end.
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

/// Starts a server that looks for expired keys as often as it can. Redis since 8.0 expires a key
/// that it finds in the last millisecond of its life.
fn server_that_expires_early() -> Server {
    Server::builder().config("hz 500").start()
}

/// Returns the wall clock, which the server shares, in microseconds.
fn wall_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.expect("a time after 1970");
    i64::try_from(since.as_micros()).expect("a time before the year 294000")
}

/// Polls until `is_over` is true, and returns the time then. A pause would hide a short span, so
/// there is none. The span was over when the server sent its last reply.
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
    let server = server_that_expires_early();
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
    let server = server_that_expires_early();
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

/// The last millisecond of a lease is the holder's, even if the server has expired the key in it.
#[test]
fn a_lock_is_released_once_in_its_last_millisecond() {
    let server = server_that_expires_early();
    let mut client = server.client();
    for number in 0..TRIES {
        let key = format!("k{number}");
        client.call(format!("LOCK.ACQUIRE {key} a PX 20")).grant();
        let deadline_ms = client.call(format!("PEXPIRETIME {key}")).int();
        while wall_us() < deadline_ms * 1000 + LATE_US {}
        let released = client.call(format!("LOCK.RELEASE {key} a")).int();
        client.call(format!("LOCK.ACQUIRE {key} b PX 9000")).grant();
        assert!(released == 1 || wall_us() / 1000 > deadline_ms, "{number}");
    }
}

#[test]
fn an_extension_is_never_shorter_than_asked() {
    let server = server_that_expires_early();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
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
    let server = server_that_expires_early();
    for number in 0..TRIES {
        let key = format!("k{number}");
        server.call(format!("LOCK.ACQUIRE {key} a PX 20")).grant();
        while let Some(lock) = server.lock_info(&key) {
            assert!(lock.holders.iter().all(|own| own.int("lease-ms") >= 1));
        }
    }
}
