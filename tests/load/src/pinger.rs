//! A PING every millisecond, on a connection of its own.
//!
//! The pinger keeps its pace whether or not the server replies. Each latency counts from the time
//! at which the PING was due. So a server that stalls for 100 ms delays a hundred PINGs, and would
//! delay a hundred clients likewise.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use hdrhistogram::Histogram;

use crate::{packed, Connection};

const INTERVAL: Duration = Duration::from_millis(1);

/// The reply to a subscriber's PING in RESP2.
const PONG: &[u8] = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n";

/// The latency of PING during other work.
pub struct Latency {
    /// The latencies, in microseconds.
    histogram: Histogram<u64>,
    /// The longest time by which the machine let the pinger itself oversleep.
    late: Duration,
}

impl Latency {
    /// Returns the time within which `percent` percent were answered, in ms.
    pub fn percentile_ms(&self, percent: f64) -> f64 {
        self.histogram.value_at_percentile(percent) as f64 / 1e3
    }

    /// Returns the longest latency, in ms.
    pub fn max_ms(&self) -> f64 {
        self.histogram.max() as f64 / 1e3
    }

    /// Returns the longest time by which the pinger sent too late, independent of the server.
    pub fn late(&self) -> Duration {
        self.late
    }
}

/// A pinger of two threads: a sender and a receiver.
pub struct Pinger {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Result<Duration>>,
    receiver: JoinHandle<Result<Histogram<u64>>>,
}

impl Pinger {
    /// Starts a pinger. Its connection is a subscriber's, so it survives CLIENT KILL TYPE normal.
    pub fn start(port: u16) -> Result<Pinger> {
        let mut connection = Connection::open(port)?;
        connection.call("SUBSCRIBE pinger")?;
        let out = connection.stream().try_clone()?;
        let input = connection.stream().try_clone()?;
        let stop = Arc::new(AtomicBool::new(false));
        let total = Arc::new(AtomicU64::new(u64::MAX));
        let begin = Instant::now();
        let sender = {
            let (stop, total) = (Arc::clone(&stop), Arc::clone(&total));
            thread::spawn(move || send(out, begin, &stop, &total))
        };
        let receiver = thread::spawn(move || receive(input, begin, &total));
        Ok(Pinger {
            stop,
            sender,
            receiver,
        })
    }

    /// Sends one more PING, reads all outstanding replies, and returns the latencies.
    pub fn stop(self) -> Result<Latency> {
        self.stop.store(true, Ordering::Release);
        let late = joined(self.sender);
        let histogram = joined(self.receiver);
        Ok(Latency {
            histogram: histogram?,
            late: late?,
        })
    }
}

fn joined<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("the pinger panicked"))?
}

fn due(begin: Instant, number: u64) -> Instant {
    begin + Duration::from_nanos(INTERVAL.as_nanos() as u64 * number)
}

/// Sends the PINGs, and returns the longest time by which one was sent too late.
fn send(
    mut out: TcpStream,
    begin: Instant,
    stop: &AtomicBool,
    total: &AtomicU64,
) -> Result<Duration> {
    let ping = packed("PING");
    let mut late = Duration::ZERO;
    for number in 0.. {
        let due = due(begin, number);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        late = late.max(due.elapsed());
        let last = stop.load(Ordering::Acquire);
        if last {
            // Set before the last PING is sent, so the receiver knows the total at its reply.
            total.store(number + 1, Ordering::Release);
        }
        out.write_all(&ping).context("sending PING")?;
        if last {
            break;
        }
    }
    Ok(late)
}

fn receive(mut input: TcpStream, begin: Instant, total: &AtomicU64) -> Result<Histogram<u64>> {
    let mut histogram = Histogram::new(3)?;
    let mut unread = Vec::new();
    let mut chunk = [0; 64 * 1024];
    let mut answered = 0;
    while answered < total.load(Ordering::Acquire) {
        let count = input.read(&mut chunk).context("PING isn't answered")?;
        if count == 0 {
            bail!("the server closed the pinger's connection");
        }
        unread.extend_from_slice(&chunk[..count]);
        let whole = unread.len() / PONG.len();
        for pong in unread
            .drain(..whole * PONG.len())
            .as_slice()
            .chunks(PONG.len())
        {
            if pong != PONG {
                bail!("PING was answered {:?}", String::from_utf8_lossy(pong));
            }
            histogram.record(due(begin, answered).elapsed().as_micros() as u64)?;
            answered += 1;
        }
    }
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const STALL: Duration = Duration::from_millis(200);

    /// Replies like a server, and stalls once.
    fn stalling_server(listener: &TcpListener) -> Result<()> {
        let (mut client, _) = listener.accept()?;
        let mut chunk = [0; 64 * 1024];
        client.read_exact(&mut chunk[..packed("SUBSCRIBE pinger").len()])?;
        client.write_all(b"*3\r\n$9\r\nsubscribe\r\n$6\r\npinger\r\n:1\r\n")?;
        let ping = packed("PING").len();
        let mut unread = 0;
        for pass in 0.. {
            match client.read(&mut chunk)? {
                0 => break,
                count => unread += count,
            }
            if pass == 2 {
                thread::sleep(STALL);
            }
            client.write_all(&PONG.repeat(unread / ping))?;
            unread %= ping;
        }
        Ok(())
    }

    #[test]
    fn a_stall_is_seen_by_every_ping_that_was_due_in_it() -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let latency = thread::scope(|scope| {
            let server = scope.spawn(|| stalling_server(&listener));
            let pinger = Pinger::start(port)?;
            thread::sleep(2 * STALL);
            let latency = pinger.stop();
            drop(server.join());
            latency
        })?;
        assert!(latency.max_ms() > 190.0, "max {}", latency.max_ms());
        // About 150 PINGs were due in the stall more than 50 ms before its end.
        let waited = latency.histogram.count_between(50_000, u64::MAX);
        assert!(waited > 100, "{waited} PINGs waited");
        Ok(())
    }
}
