//! Many connections served by one thread.
//!
//! Each reply costs little more than a read and a write, so ten thousand connections don't limit
//! the server.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::reply::{self, Reply};

const CHUNK: usize = 16 * 1024;

struct Member {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// Connections, each identified by its index.
pub struct Clients {
    poll: Poll,
    events: Events,
    members: Vec<Member>,
    chunk: Box<[u8]>,
}

impl Clients {
    /// Opens `count` connections. Each has received a reply, so the server has accepted all of
    /// them.
    pub fn connect(port: u16, count: usize) -> Result<Clients> {
        let poll = Poll::new()?;
        let mut members = Vec::with_capacity(count);
        for index in 0..count {
            let stream = greeted(port).with_context(|| format!("connection {index}"))?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry()
                .register(&mut stream, Token(index), Interest::READABLE)?;
            let unread = Vec::new();
            members.push(Member { stream, unread });
        }
        Ok(Clients {
            poll,
            events: Events::with_capacity(1024),
            members,
            chunk: vec![0; CHUNK].into_boxed_slice(),
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

    /// Sends bytes on the connection `index` with one write. The socket buffer has room, because
    /// the bytes are few and little is in flight.
    pub fn send(&mut self, index: usize, bytes: &[u8]) -> Result<()> {
        let written = self.members[index].stream.write(bytes);
        let written = written.with_context(|| format!("client {index} can't send"))?;
        ensure!(written == bytes.len(), "client {index} has sent too much");
        Ok(())
    }

    /// Appends to `replies` the replies that have arrived, with the index of their connection.
    /// Waits up to `patience` for the first reply.
    pub fn receive(&mut self, patience: Duration, replies: &mut Vec<(usize, Reply)>) -> Result<()> {
        match self.poll.poll(&mut self.events, Some(patience)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        for event in &self.events {
            let index = event.token().0;
            let member = &mut self.members[index];
            member
                .read(&mut self.chunk)
                .and_then(|()| member.take(|reply| replies.push((index, reply))))
                .with_context(|| format!("client {index}"))?;
        }
        Ok(())
    }

    /// Sends bytes on every connection, and waits for the `wanted` reply on each. Push messages are
    /// skipped.
    pub fn all(&mut self, bytes: &[u8], wanted: Reply) -> Result<()> {
        for index in 0..self.len() {
            self.send(index, bytes)?;
        }
        let mut answered = 0;
        let mut replies = Vec::new();
        while answered < self.len() {
            self.receive(redis_lock_load::PATIENCE, &mut replies)?;
            ensure!(!replies.is_empty(), "{answered} were answered");
            for (index, reply) in replies.drain(..) {
                if reply == wanted {
                    answered += 1;
                } else {
                    ensure!(
                        reply == Reply::Push,
                        "client {index} was answered {reply:?}"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Opens a connection, and checks that the server replies to a PING.
fn greeted(port: u16) -> Result<std::net::TcpStream> {
    let mut stream = std::net::TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.write_all(b"PING\r\n")?;
    let mut pong = [0; 7];
    stream.read_exact(&mut pong)?;
    ensure!(&pong == b"+PONG\r\n", "PING wasn't answered PONG");
    stream.set_nonblocking(true)?;
    Ok(stream)
}

impl Member {
    /// Reads all available bytes. A chunk that isn't full was the last chunk.
    fn read(&mut self, chunk: &mut [u8]) -> Result<()> {
        loop {
            match self.stream.read(chunk) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => {
                    self.unread.extend_from_slice(&chunk[..count]);
                    if count < chunk.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("reading"),
            }
        }
    }

    /// Passes each complete reply to `each`.
    fn take(&mut self, mut each: impl FnMut(Reply)) -> Result<()> {
        let mut taken = 0;
        while let Some((reply, length)) = reply::first(&self.unread[taken..])? {
            each(reply);
            taken += length;
        }
        self.unread.drain(..taken);
        Ok(())
    }
}
