//! A plain client on a socket. The test decides what it sends and when it reads.

use std::env;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream, ToSocketAddrs};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_rig::reply_end;
use socket2::SockRef;

use super::reply::{Expect, Reply};
use super::sockets::Ends;

/// The time that a test waits for a state before it fails. It is generous, because only a failure
/// reaches it.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A command as words. A string is split at white space, and a list stays unchanged.
pub trait Command {
    /// Returns the words of the command.
    fn words(&self) -> Vec<Vec<u8>>;
}

impl Command for &str {
    fn words(&self) -> Vec<Vec<u8>> {
        self.split_whitespace()
            .map(|word| word.as_bytes().to_vec())
            .collect()
    }
}

impl Command for String {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_str().words()
    }
}

impl Command for &String {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_str().words()
    }
}

impl<A: AsRef<[u8]>, const N: usize> Command for &[A; N] {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_slice().words()
    }
}

impl<A: AsRef<[u8]>> Command for &[A] {
    fn words(&self) -> Vec<Vec<u8>> {
        self.iter().map(|word| word.as_ref().to_vec()).collect()
    }
}

impl<A: AsRef<[u8]>> Command for &Vec<A> {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_slice().words()
    }
}

/// Returns the bytes of a command on the wire.
pub fn packed(command: impl Command) -> Vec<u8> {
    redis_lock_rig::packed(&command.words())
}

/// The environment variable with the number of stalls in 1,000 steps. A client stalls for a moment
/// before a step, like a test on a machine that is busy with other work. A test that fails by it
/// relies on its own speed.
pub const STALLS: &str = "LOCK_TEST_STALLS";

/// The longest stall, in ms.
const STALL_MS: u64 = 200;

fn stall() {
    static PER_MILLE: LazyLock<u32> = LazyLock::new(|| {
        let set = env::var(STALLS);
        set.map_or(0, |words| words.parse().expect("stalls in 1,000 steps"))
    });
    if rand::random_range(0..1_000) < *PER_MILLE {
        thread::sleep(Duration::from_millis(rand::random_range(1..=STALL_MS)));
    }
}

/// One connection. It starts in RESP2 and in database 0.
pub struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
    id: i64,
}

/// The reason why no reply could be read.
#[derive(Debug, PartialEq, Eq)]
pub enum NoReply {
    /// The time allowed has passed.
    Silence,
    /// The server closed the connection.
    Closed,
}

impl Client {
    /// Connects to a server on this machine.
    pub fn connect(port: u16) -> Client {
        Client::try_connect(port).expect("the server takes connections")
    }

    /// Connects to a server on another machine.
    pub fn connect_to(address: impl ToSocketAddrs) -> Client {
        Client::identified(address).expect("the server takes connections")
    }

    /// Like `connect`, but returns an error if the server isn't up or isn't ready yet.
    pub fn try_connect(port: u16) -> Result<Client, String> {
        Client::identified((Ipv4Addr::LOCALHOST, port))
    }

    fn identified(address: impl ToSocketAddrs) -> Result<Client, String> {
        let mut client = Client::opened(address)?;
        client.id = match client.try_call("CLIENT ID")? {
            Value::Int(id) => id,
            other => return Err(format!("CLIENT ID answered {other:?}")),
        };
        Ok(client)
    }

    /// Opens a connection that has sent nothing yet.
    pub fn unidentified(port: u16) -> Result<Client, String> {
        Client::opened((Ipv4Addr::LOCALHOST, port))
    }

    fn opened(address: impl ToSocketAddrs) -> Result<Client, String> {
        let stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        Ok(Client {
            stream,
            unread: Vec::new(),
            id: 0,
        })
    }

    /// Returns the server's id of this connection.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Sends one command and reads its reply.
    #[track_caller]
    pub fn call(&mut self, command: impl Command) -> Reply {
        self.send(command);
        self.recv()
    }

    /// Like `call`, but returns an error if the server closes the connection, or doesn't reply
    /// within [`PATIENCE`].
    pub fn try_call(&mut self, command: impl Command) -> Reply {
        self.try_call_within(PATIENCE, command)
    }

    /// Like `try_call`, with `patience` instead of [`PATIENCE`].
    pub fn try_call_within(&mut self, patience: Duration, command: impl Command) -> Reply {
        stall();
        self.stream
            .write_all(&packed(command))
            .map_err(|error| error.to_string())?;
        match self.read_reply(patience) {
            Ok(bytes) => decoded(&bytes),
            Err(reason) => Err(format!("no reply: {reason:?}")),
        }
    }

    /// Sends one command and leaves its reply unread.
    #[track_caller]
    pub fn send(&mut self, command: impl Command) {
        self.send_bytes(&packed(command));
    }

    /// Sends several commands in one write, so that the server reads them at once.
    #[track_caller]
    pub fn send_batch(&mut self, commands: &[&str]) {
        let bytes: Vec<u8> = commands
            .iter()
            .flat_map(|command| packed(*command))
            .collect();
        self.send_bytes(&bytes);
    }

    /// Sends several commands in one write and reads all their replies.
    #[track_caller]
    pub fn call_batch(&mut self, commands: &[&str]) -> Vec<Reply> {
        self.send_batch(commands);
        commands.iter().map(|_| self.recv()).collect()
    }

    /// Like `call_batch`, and asserts that no reply is an error.
    #[track_caller]
    pub fn call_all(&mut self, commands: &[impl AsRef<str>]) {
        let commands: Vec<&str> = commands.iter().map(AsRef::as_ref).collect();
        for (command, reply) in commands.iter().zip(self.call_batch(&commands)) {
            assert!(reply.is_ok(), "{command}: {reply:?}");
        }
    }

    /// Sends bytes unchanged.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        stall();
        self.stream
            .write_all(bytes)
            .expect("the server reads what is sent");
    }

    /// Reads the next reply. If none comes in time, the test fails.
    #[track_caller]
    pub fn recv(&mut self) -> Reply {
        decoded(&self.recv_raw())
    }

    /// Returns the next reply if it comes within `patience`.
    #[track_caller]
    pub fn try_recv(&mut self, patience: Duration) -> Option<Reply> {
        match self.read_reply(patience) {
            Ok(bytes) => Some(decoded(&bytes)),
            Err(NoReply::Silence) => None,
            Err(NoReply::Closed) => panic!("the server closed the connection"),
        }
    }

    /// Asserts that no reply has arrived so far. Everything that the server wrote before a reply to
    /// another client has arrived.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        if let Some(reply) = self.try_recv(Duration::ZERO) {
            panic!("a reply where none was expected: {reply:?}");
        }
    }

    /// Returns the bytes of the next reply on the wire.
    #[track_caller]
    pub fn recv_raw(&mut self) -> Vec<u8> {
        match self.read_reply(PATIENCE) {
            Ok(bytes) => bytes,
            Err(NoReply::Silence) => panic!("no reply within {PATIENCE:?}"),
            Err(NoReply::Closed) => panic!("the server closed the connection"),
        }
    }

    /// Sends one command and returns its reply in the form that it has on the wire.
    #[track_caller]
    pub fn call_raw(&mut self, command: impl Command) -> String {
        self.send(command);
        String::from_utf8(self.recv_raw()).expect("a reply in UTF-8")
    }

    /// Reads until the server closes the connection. A reply before that fails the test.
    #[track_caller]
    pub fn expect_close(&mut self) {
        match self.read_reply(PATIENCE) {
            Err(NoReply::Closed) => {}
            other => panic!("the connection should have been closed: {other:?}"),
        }
    }

    /// Reads until the server closes the connection, and returns the replies before that.
    #[track_caller]
    pub fn replies_to_close(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            match self.read_reply(PATIENCE) {
                Ok(bytes) => replies.push(decoded(&bytes)),
                Err(NoReply::Closed) => return replies,
                Err(NoReply::Silence) => panic!("still open after {PATIENCE:?}"),
            }
        }
    }

    /// Reads until the server closes the connection, and drops the replies before that.
    #[track_caller]
    pub fn drain_to_close(&mut self) {
        drop(self.replies_to_close());
    }

    /// Switches to RESP3.
    #[track_caller]
    pub fn into_resp3(mut self) -> Client {
        self.call("HELLO 3").value();
        self
    }

    /// Switches to another database.
    #[track_caller]
    pub fn into_db(mut self, db: u32) -> Client {
        self.call(format!("SELECT {db}")).okay();
        self
    }

    /// Sends a FIN and keeps the connection readable. The server takes the client for gone, and the
    /// test sees the server's last replies.
    pub fn hang_up(&mut self) {
        self.stream
            .shutdown(Shutdown::Write)
            .expect("an open connection");
    }

    /// Closes the connection with a FIN, like a process that ends.
    pub fn close(self) {
        self.stream
            .shutdown(Shutdown::Both)
            .expect("an open connection");
    }

    /// Returns the addresses of the connection.
    #[track_caller]
    pub fn ends(&self) -> Ends {
        let stream = &self.stream;
        Ends {
            server: stream.peer_addr().expect("an open connection"),
            client: stream.local_addr().expect("an open connection"),
        }
    }

    /// Closes the connection with a RST, like a machine that restarts and doesn't know the
    /// connection.
    pub fn reset(self) {
        SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .expect("a socket that can be reset");
    }

    /// Returns the bytes of the next reply. Takes nothing while the reply is incomplete.
    pub(super) fn read_reply(&mut self, patience: Duration) -> Result<Vec<u8>, NoReply> {
        stall();
        let deadline = Instant::now() + patience;
        loop {
            if let Some(end) = reply_end(&self.unread).expect("a reply") {
                return Ok(self.unread.drain(..end).collect());
            }
            self.read_more(deadline)?;
        }
    }

    /// Returns exactly `count` bytes: a payload without a frame of its own.
    pub(super) fn read_exact(&mut self, count: usize) -> Result<Vec<u8>, NoReply> {
        let deadline = Instant::now() + PATIENCE;
        while self.unread.len() < count {
            self.read_more(deadline)?;
        }
        Ok(self.unread.drain(..count).collect())
    }

    /// Takes in bytes that arrive before the deadline. After the deadline, takes only bytes that
    /// have arrived already.
    fn read_more(&mut self, deadline: Instant) -> Result<(), NoReply> {
        let left = deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            self.stream
                .set_read_timeout(Some(left))
                .expect("a timeout above zero");
        }
        self.stream
            .set_nonblocking(left.is_zero())
            .expect("a socket");
        let mut chunk = [0; 64 * 1024];
        let read = self.stream.read(&mut chunk);
        self.stream.set_nonblocking(false).expect("a socket");
        match read {
            Ok(0) => Err(NoReply::Closed),
            Ok(count) => {
                self.unread.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut if left.is_zero() => {
                    Err(NoReply::Silence)
                }
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(NoReply::Closed),
                _ => panic!("reading a reply: {error}"),
            },
        }
    }
}

/// Returns the reply of these bytes. An error's text is kept whole, with its prefix.
fn decoded(bytes: &[u8]) -> Reply {
    if let [b'-', text @ .., b'\r', b'\n'] = bytes {
        return Err(String::from_utf8_lossy(text).into_owned());
    }
    match redis::parse_redis_value(bytes) {
        Ok(value) => Ok(value),
        Err(error) => panic!("not a reply: {error}: {:?}", String::from_utf8_lossy(bytes)),
    }
}
