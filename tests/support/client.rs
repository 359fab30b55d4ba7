//! A plain client on a socket: what it sends and when it reads is up to the test.

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

/// How long a test waits for anything before it fails. Generous: reaching it is a failure.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// A command as words: a string is split at white space, a list is taken as it is.
pub trait Command {
    /// The words of the command.
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

/// The bytes of a command on the wire.
pub fn packed(command: impl Command) -> Vec<u8> {
    redis_lock_rig::packed(&command.words())
}

/// Where it is set, before how many of 1,000 steps a client stands still for a moment, as a test
/// does on a machine that is busy with other work. A test that fails by it relies on its own speed.
pub const STALLS: &str = "LOCK_TEST_STALLS";

/// How long it stands still at most.
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

/// Why no reply could be read.
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

    /// As `connect`, where the server may not be up or not be ready yet.
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

    /// A connection that has sent nothing yet.
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

    /// The server's number for this connection.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Sends one command and reads its reply.
    #[track_caller]
    pub fn call(&mut self, command: impl Command) -> Reply {
        self.send(command);
        self.recv()
    }

    /// As `call`, where the server may close the connection instead of answering.
    pub fn try_call(&mut self, command: impl Command) -> Reply {
        self.try_call_within(PATIENCE, command)
    }

    /// As `try_call`, where no answer within `patience` is an error too.
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

    /// Sends several commands in one write, so that the server reads them in one go.
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

    /// As `call_batch`, where none of them may be answered with an error.
    #[track_caller]
    pub fn call_all(&mut self, commands: &[impl AsRef<str>]) {
        let commands: Vec<&str> = commands.iter().map(AsRef::as_ref).collect();
        for (command, reply) in commands.iter().zip(self.call_batch(&commands)) {
            assert!(reply.is_ok(), "{command}: {reply:?}");
        }
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        stall();
        self.stream
            .write_all(bytes)
            .expect("the server reads what is sent");
    }

    /// Reads the next reply; no reply in time fails the test.
    #[track_caller]
    pub fn recv(&mut self) -> Reply {
        decoded(&self.recv_raw())
    }

    /// The next reply if it comes within `patience`.
    #[track_caller]
    pub fn try_recv(&mut self, patience: Duration) -> Option<Reply> {
        match self.read_reply(patience) {
            Ok(bytes) => Some(decoded(&bytes)),
            Err(NoReply::Silence) => None,
            Err(NoReply::Closed) => panic!("the server closed the connection"),
        }
    }

    /// Asserts that no reply has arrived so far. What the server had written before it answered
    /// another client has arrived.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        if let Some(reply) = self.try_recv(Duration::ZERO) {
            panic!("a reply where none was expected: {reply:?}");
        }
    }

    /// The next reply as it stands on the wire.
    #[track_caller]
    pub fn recv_raw(&mut self) -> Vec<u8> {
        match self.read_reply(PATIENCE) {
            Ok(bytes) => bytes,
            Err(NoReply::Silence) => panic!("no reply within {PATIENCE:?}"),
            Err(NoReply::Closed) => panic!("the server closed the connection"),
        }
    }

    /// Sends one command and answers its reply as it stands on the wire.
    #[track_caller]
    pub fn call_raw(&mut self, command: impl Command) -> String {
        self.send(command);
        String::from_utf8(self.recv_raw()).expect("a reply in UTF-8")
    }

    /// Reads until the server closes the connection; a reply before that fails the test.
    #[track_caller]
    pub fn expect_close(&mut self) {
        match self.read_reply(PATIENCE) {
            Err(NoReply::Closed) => {}
            other => panic!("the connection should have been closed: {other:?}"),
        }
    }

    /// Reads until the server closes the connection; everything that came before.
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

    /// Reads until the server closes the connection and throws away what comes before.
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

    /// Sends a FIN and goes on reading: to the server it is as good as gone, and the test sees
    /// what the server still told it.
    pub fn hang_up(&mut self) {
        self.stream
            .shutdown(Shutdown::Write)
            .expect("an open connection");
    }

    /// Dies with a FIN, as a process does that ends.
    pub fn close(self) {
        self.stream
            .shutdown(Shutdown::Both)
            .expect("an open connection");
    }

    /// The port that this end of the connection has.
    #[track_caller]
    pub fn local_port(&self) -> u16 {
        self.stream.local_addr().expect("an open connection").port()
    }

    /// Dies with a RST, as a machine does that comes back and knows nothing of the connection.
    pub fn reset(self) {
        SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .expect("a socket that can be reset");
    }

    /// The bytes of the next reply; nothing is taken while it is incomplete.
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

    /// Exactly `count` bytes, for the payload that has no frame of its own.
    pub(super) fn read_exact(&mut self, count: usize) -> Result<Vec<u8>, NoReply> {
        let deadline = Instant::now() + PATIENCE;
        while self.unread.len() < count {
            self.read_more(deadline)?;
        }
        Ok(self.unread.drain(..count).collect())
    }

    /// Takes in what arrives before the deadline; past it, only what has arrived already.
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

/// The reply that the bytes stand for. An error's text is kept whole, with its prefix.
fn decoded(bytes: &[u8]) -> Reply {
    if let [b'-', text @ .., b'\r', b'\n'] = bytes {
        return Err(String::from_utf8_lossy(text).into_owned());
    }
    match redis::parse_redis_value(bytes) {
        Ok(value) => Ok(value),
        Err(error) => panic!("not a reply: {error}: {:?}", String::from_utf8_lossy(bytes)),
    }
}
