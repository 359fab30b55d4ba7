//! Many connections that one thread drives.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use redis::Value;

use crate::{packed, Connection, PATIENCE};

/// Niceness of a crowd's thread, which ranks it behind the server and the pinger.
const NICENESS: libc::c_int = 10;

/// Connections that are numbered by their index.
pub struct Crowd {
    members: Vec<Connection>,
}

impl Crowd {
    /// Opens `count` connections. Each has had a reply, so the server has accepted them all.
    pub fn connect(port: u16, count: usize) -> Result<Crowd> {
        let members = (0..count).map(|index| {
            let mut member = Connection::open(port)?;
            member
                .call("PING")
                .with_context(|| format!("connection {index} of {count}"))?;
            Ok(member)
        });
        Ok(Crowd {
            members: members.collect::<Result<_>>()?,
        })
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if there are no connections.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Sends `command(index)` on each connection, one right after the other.
    pub fn send(&mut self, command: impl Fn(usize) -> String + Sync) -> Result<()> {
        in_background(|| {
            for (index, member) in self.members.iter_mut().enumerate() {
                member.send(&command(index))?;
            }
            Ok(())
        })
    }

    /// Reads one reply on each connection and passes it to `judge`.
    pub fn replies(&mut self, judge: impl Fn(Value) -> Result<()> + Sync) -> Result<()> {
        in_background(|| {
            for (index, member) in self.members.iter_mut().enumerate() {
                let judged = member.reply().and_then(&judge);
                judged.with_context(|| format!("client {index}"))?;
            }
            Ok(())
        })
    }

    /// Reads one reply on each connection, which must be an error that begins with `prefix`.
    pub fn errors(&mut self, prefix: &str) -> Result<()> {
        in_background(|| {
            for (index, member) in self.members.iter_mut().enumerate() {
                match member.reply() {
                    Ok(value) => bail!("client {index} got {value:?}"),
                    Err(error) if format!("{error:#}").contains(prefix) => {}
                    Err(error) => return Err(error.context(format!("client {index}"))),
                }
            }
            Ok(())
        })
    }

    /// Returns the number of connections with an unread reply.
    pub fn answered(&self) -> Result<usize> {
        let mut answered = 0;
        for member in &self.members {
            let stream = member.stream();
            stream.set_nonblocking(true)?;
            match stream.peek(&mut [0]) {
                Ok(1) => answered += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                ended => ensure!(ended.is_err(), "the server closed a connection"),
            }
            stream.set_nonblocking(false)?;
        }
        Ok(answered)
    }

    /// Reads the pending reply of each connection as soon as it comes, then sends `command(index)`
    /// there and reads that reply too. Returns when all connections are done.
    pub fn relay(&mut self, command: impl Fn(usize) -> String + Sync) -> Result<()> {
        in_background(|| {
            let mut poll = Poll::new()?;
            for (index, member) in self.members.iter().enumerate() {
                let fd = member.stream().as_raw_fd();
                let readable = Interest::READABLE;
                poll.registry()
                    .register(&mut SourceFd(&fd), Token(index), readable)?;
            }
            let mut events = Events::with_capacity(1024);
            // One event for the grant, and one for the reply to the command that follows it.
            let mut sent = vec![false; self.members.len()];
            let mut unfinished = self.members.len();
            let deadline = Instant::now() + PATIENCE;
            while unfinished > 0 {
                let left = deadline.saturating_duration_since(Instant::now());
                ensure!(!left.is_zero(), "{unfinished} not served in {PATIENCE:?}");
                poll.poll(&mut events, Some(left))?;
                for event in &events {
                    let index = event.token().0;
                    let member = &mut self.members[index];
                    ensure!(member.reply()? != Value::Nil, "client {index} got nil");
                    if sent[index] {
                        unfinished -= 1;
                    } else {
                        member.send_bytes(&packed(&command(index)))?;
                        sent[index] = true;
                    }
                }
            }
            Ok(())
        })
    }
}

/// Does the work of many clients at a low priority. These clients would be other machines, so they
/// must not delay the client that measures the server on this machine.
fn in_background<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // SAFETY: the call takes and changes only numbers. On Linux it sets this thread's
            // niceness. On a system with one niceness for the process, it sets that.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
            work()
        });
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
