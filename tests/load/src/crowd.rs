//! Many connections that one thread speaks for.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use redis::Value;

use crate::{packed, Connection, PATIENCE};

/// By how much a crowd stands back behind the server and who measures it.
const NICENESS: libc::c_int = 10;

/// Connections, each known by its index.
pub struct Crowd {
    members: Vec<Connection>,
}

impl Crowd {
    /// Opens `count` connections. Each has had an answer, so the server has taken them all in.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// All send, one right after the other, what `command` says for their index.
    pub fn send(&mut self, command: impl Fn(usize) -> String + Sync) -> Result<()> {
        in_background(|| {
            for (index, member) in self.members.iter_mut().enumerate() {
                member.send(&command(index))?;
            }
            Ok(())
        })
    }

    /// Reads a reply of each and gives it to `judge`.
    pub fn replies(&mut self, judge: impl Fn(Value) -> Result<()> + Sync) -> Result<()> {
        in_background(|| {
            for (index, member) in self.members.iter_mut().enumerate() {
                let judged = member.reply().and_then(&judge);
                judged.with_context(|| format!("client {index}"))?;
            }
            Ok(())
        })
    }

    /// How many have a reply that they haven't read.
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

    /// Each, as soon as it has read the reply that it waits for, sends what `command` says for its
    /// index and reads the reply to that. Ends when all have.
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
            // One event for the grant, and one for the reply to what was sent upon it.
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

/// Does the work of many clients, who would be machines of their own, without keeping those waiting
/// who measure the server on this one.
fn in_background<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // SAFETY: takes and changes nothing but numbers. On Linux it is this thread's own
            // niceness; on a system where it is the process's, all of it stands back.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
            work()
        });
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
