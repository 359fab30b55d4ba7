//! A blocking connection that writes packed commands and reads replies.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{ensure, Context, Result};
use redis_lock_load::PATIENCE;

use crate::reply::{self, Reply};

const CHUNK: usize = 64 * 1024;

/// The connection. Its methods block until the server has read or replied.
pub struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
    /// The number of bytes of `unread` that were already parsed.
    taken: usize,
    chunk: Box<[u8]>,
}

impl Wire {
    /// Connects to a server on this machine.
    pub fn open(port: u16) -> Result<Wire> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Wire {
            stream,
            unread: Vec::new(),
            taken: 0,
            chunk: vec![0; CHUNK].into_boxed_slice(),
        })
    }

    /// Writes all bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("sending")
    }

    /// Reads the next reply.
    pub fn reply(&mut self) -> Result<Reply> {
        loop {
            if let Some((reply, length)) = reply::first(&self.unread[self.taken..])? {
                self.taken += length;
                return Ok(reply);
            }
            self.unread.drain(..self.taken);
            self.taken = 0;
            let count = self.stream.read(&mut self.chunk).context("no answer")?;
            ensure!(count > 0, "the server closed the connection");
            self.unread.extend_from_slice(&self.chunk[..count]);
        }
    }

    /// Reads the next reply, and fails if it differs from `wanted`.
    pub fn expect(&mut self, wanted: Reply) -> Result<()> {
        let reply = self.reply()?;
        ensure!(reply == wanted, "answered {reply:?}, not {wanted:?}");
        Ok(())
    }

    /// Writes all bytes, reads the reply, and fails if it differs from `wanted`.
    pub fn call(&mut self, bytes: &[u8], wanted: Reply) -> Result<()> {
        self.send(bytes)?;
        self.expect(wanted)
    }
}
