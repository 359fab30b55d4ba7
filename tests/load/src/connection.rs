//! A connection with separate sending and reading.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use redis::{InfoDict, Parser, RedisError, Value};

use crate::{until, PATIENCE};

/// Number of commands in flight in a pipeline. Their replies must fit into the buffers of the
/// sockets, because the connection reads none while it writes the commands.
const PIPELINED: usize = 1_000;

/// Returns the bytes of a command on the wire. Spaces separate the words.
pub fn packed(command: &str) -> Vec<u8> {
    let words: Vec<&str> = command.split(' ').collect();
    redis_lock_rig::packed(&words)
}

/// Returns the beginning of a command, for messages.
fn shown(command: &str) -> String {
    command.chars().take(40).collect()
}

/// A connection in RESP2 and database 0.
pub struct Connection {
    stream: TcpStream,
    parser: Parser,
}

impl Connection {
    /// Connects to a server on this machine.
    pub fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection {
            stream,
            parser: Parser::new(),
        })
    }

    /// Reads and discards input until the server closes the connection.
    pub fn drain_to_close(&mut self) -> Result<()> {
        let mut chunk = [0; 64 * 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error).context("the connection should be closed"),
            }
        }
    }

    /// Returns the socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a command and leaves its reply unread.
    pub fn send(&mut self, command: &str) -> Result<()> {
        self.send_bytes(&packed(command))
    }

    /// Sends bytes that are packed already.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("sending")
    }

    /// Reads one reply. Returns an error if the reply, or one of a transaction's replies, is an
    /// error.
    pub fn reply(&mut self) -> Result<Value> {
        let value = self.parser.parse_value(&self.stream);
        if value.as_ref().is_err_and(RedisError::is_timeout) {
            bail!("no answer in {PATIENCE:?}");
        }
        Ok(value.context("reading a reply")?.extract_error()?)
    }

    /// Sends a command and reads its reply.
    pub fn call(&mut self, command: &str) -> Result<Value> {
        self.send(command)?;
        self.reply().with_context(|| shown(command))
    }

    /// Like `call`, for words with any bytes.
    pub fn call_words(&mut self, words: &[&[u8]]) -> Result<Value> {
        self.send_bytes(&redis_lock_rig::packed(words))?;
        self.reply()
    }

    /// Like `call`, for a reply that must be a number.
    pub fn count(&mut self, command: &str) -> Result<i64> {
        match self.call(command)? {
            Value::Int(count) => Ok(count),
            other => bail!("{} answered {other:?}", shown(command)),
        }
    }

    /// Like `call`, but returns an error if the reply is nil, because the request is not granted.
    pub fn granted(&mut self, command: &str) -> Result<Value> {
        match self.call(command)? {
            Value::Nil => bail!("not granted: {}", shown(command)),
            granted => Ok(granted),
        }
    }

    /// Sends commands, many at a time, and passes each reply to `judge`.
    pub fn pipeline(
        &mut self,
        commands: impl IntoIterator<Item = String>,
        mut judge: impl FnMut(Value) -> Result<()>,
    ) -> Result<()> {
        let mut commands = commands.into_iter().peekable();
        while commands.peek().is_some() {
            let mut batch = Vec::new();
            let mut count = 0;
            for command in commands.by_ref().take(PIPELINED) {
                batch.extend_from_slice(&packed(&command));
                count += 1;
            }
            self.send_bytes(&batch)?;
            for _ in 0..count {
                judge(self.reply()?)?;
            }
        }
        Ok(())
    }

    /// Sends commands, many at a time. Returns an error if a reply is nil, like for a refused lock.
    pub fn pipeline_granted(&mut self, commands: impl IntoIterator<Item = String>) -> Result<()> {
        self.pipeline(commands, |reply| match reply {
            Value::Nil => bail!("not granted"),
            _ => Ok(()),
        })
    }

    /// Returns a field of INFO's `section`.
    pub fn info(&mut self, section: &str, field: &str) -> Result<String> {
        let info: InfoDict = redis::from_redis_value(self.call(&format!("INFO {section}"))?)?;
        info.get(field)
            .with_context(|| format!("INFO {section} has no {field}"))
    }

    /// Waits until `count` replicas acknowledge. A replica that has just been synchronised does so
    /// only after its first own acknowledgement, so it is asked twice.
    pub fn until_acknowledged_by(&mut self, count: i64) -> Result<()> {
        let wait = format!("WAIT {count} 2000");
        for _ in 0..2 {
            until("the replicas acknowledge", PATIENCE, || {
                self.call("SET attached 1")?;
                Ok(self.count(&wait)? == count)
            })?;
        }
        Ok(())
    }

    /// Waits until the server has `count` blocked clients.
    pub fn until_blocked(&mut self, count: usize) -> Result<()> {
        let what = format!("{count} blocked clients");
        until(&what, PATIENCE, || {
            let blocked: usize = self.info("clients", "blocked_clients")?.parse()?;
            Ok(blocked == count)
        })
    }

    /// Returns the processor time that the server has used so far.
    pub fn server_cpu(&mut self) -> Result<Duration> {
        let user: f64 = self.info("cpu", "used_cpu_user")?.parse()?;
        let system: f64 = self.info("cpu", "used_cpu_sys")?.parse()?;
        Ok(Duration::from_secs_f64(user + system))
    }
}
