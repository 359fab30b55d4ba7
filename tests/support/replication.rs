//! The commands that a replica receives, word for word.

use std::sync::atomic::{AtomicU64, Ordering};

use super::client::{Client, Command, NoReply, PATIENCE};
use super::reply::Expect;
use super::server::Server;
use super::{eventually, until};

const MARKER_KEY: &str = "replication-stream-marker";

/// Returns a command in the form that the stream yields.
pub fn words(command: impl Command) -> Vec<Vec<u8>> {
    command.words()
}

/// Asserts that replicas have the data of their primary, and returns the digest that they share.
///
/// A primary also writes by itself: the next look at an expired lease deletes it, and the module's
/// timer may look. So digests count only if nothing was written while they were taken.
///
/// A replica that has just attached holds the key of the last fence. The primary has no such key,
/// and deletes it on the replica.
#[track_caller]
pub fn assert_same_data(primary: &Server, replicas: &[&Server]) -> String {
    for replica in replicas {
        until("the replica has no key that its primary hasn't", || {
            replica.call("DBSIZE") == primary.call("DBSIZE")
        });
    }
    let (digest, copies) = eventually("the primary writes nothing while it is compared", || {
        let sent = primary.info("replication", "master_repl_offset");
        let digest = primary.call("DEBUG DIGEST").text();
        let copies = replicas.iter().map(|replica| {
            replica.until_in_step(primary);
            replica.call("DEBUG DIGEST").text()
        });
        let copies: Vec<String> = copies.collect();
        let stood_still = primary.info("replication", "master_repl_offset") == sent;
        stood_still.then_some((digest, copies))
    });
    for (replica, copy) in replicas.iter().zip(copies) {
        assert_eq!(copy, digest, "the replica at port {}", replica.port());
    }
    digest
}

/// A connection that the primary takes for a replica.
///
/// It acknowledges when it attaches, and when the primary asks. It yields neither PING nor
/// REPLCONF, but it yields SELECT.
pub struct ReplicationStream {
    client: Client,
    offset: u64,
}

impl ReplicationStream {
    /// Attaches to the primary and reads past its data set. The stream starts in database 0.
    #[track_caller]
    pub fn attach(server: &Server) -> ReplicationStream {
        ReplicationStream::attach_by(server, "PSYNC ? -1")
    }

    /// Like `attach`, by a PSYNC or a SYNC. A primary tells no offset to a replica that sends SYNC.
    #[track_caller]
    pub fn attach_by(server: &Server, command: &str) -> ReplicationStream {
        let mut client = Client::unidentified(server.port()).expect("a primary that listens");
        // Without the `eof` capability the primary saves to disk and starts at once.
        client.call("REPLCONF capa psync2").okay();
        client.send(command);
        let offset = match command.eq_ignore_ascii_case("SYNC") {
            true => 0,
            false => offset_of_resync(&line(&mut client)),
        };
        skip_data_set(&mut client);
        let mut stream = ReplicationStream { client, offset };
        stream.acknowledge();
        stream.up_to_now(server);
        stream
    }

    /// Returns every command that the primary has sent since the last call. Each batch starts in
    /// database 0. The SELECT back to it belongs to the marker, and isn't part of the batch.
    #[track_caller]
    pub fn up_to_now(&mut self, server: &Server) -> Vec<Vec<Vec<u8>>> {
        static NEXT_MARKER: AtomicU64 = AtomicU64::new(0);
        let number = NEXT_MARKER.fetch_add(1, Ordering::Relaxed);
        let marker = format!("SET {MARKER_KEY} {number}");
        server.call(&marker).okay();
        let marker = words(&marker);
        let mut commands = Vec::new();
        loop {
            let command = self.next_command();
            if command == marker {
                break;
            }
            commands.push(command);
        }
        if commands.last() == Some(&words("SELECT 0")) {
            commands.pop();
        }
        commands
    }

    /// Like `up_to_now`, with each command in one line. The stream must have no binary words.
    #[track_caller]
    pub fn lines_up_to_now(&mut self, server: &Server) -> Vec<String> {
        let as_line = |command: Vec<Vec<u8>>| {
            let words: Vec<_> = command
                .iter()
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            words.join(" ")
        };
        self.up_to_now(server).into_iter().map(as_line).collect()
    }

    /// Sends the primary the offset up to which this replica has read, so that WAIT counts it.
    #[track_caller]
    pub fn acknowledge(&mut self) {
        let offset = self.offset;
        self.client.send(format!("REPLCONF ACK {offset}"));
    }

    #[track_caller]
    fn next_command(&mut self) -> Vec<Vec<u8>> {
        loop {
            let bytes = match self.client.read_reply(PATIENCE) {
                Ok(bytes) => bytes,
                Err(NoReply::Silence) => panic!("the marker didn't come within {PATIENCE:?}"),
                Err(NoReply::Closed) => panic!("the primary closed the replication stream"),
            };
            let value = redis::parse_redis_value(&bytes).expect("a command in the stream");
            let command: Vec<Vec<u8>> = Ok(value)
                .list()
                .into_iter()
                .map(|word| Ok(word).bytes())
                .collect();
            self.offset += bytes.len() as u64;
            match command[0].to_ascii_uppercase().as_slice() {
                b"PING" => {}
                b"REPLCONF" => self.acknowledge(),
                _ => return command,
            }
        }
    }
}

#[track_caller]
fn offset_of_resync(resync: &str) -> u64 {
    let offset = resync
        .strip_prefix("+FULLRESYNC ")
        .and_then(|it| it.split_once(' '));
    let offset = offset.and_then(|(_, offset)| offset.parse().ok());
    offset.unwrap_or_else(|| panic!("not a full resync: {resync}"))
}

/// Reads past `$<length>\r\n<RDB>`.
#[track_caller]
fn skip_data_set(client: &mut Client) {
    let header = line(client);
    let length = header
        .strip_prefix('$')
        .and_then(|length| length.parse().ok());
    let length = length.unwrap_or_else(|| panic!("not a data set: {header}"));
    client.read_exact(length).expect("the whole data set");
}

/// Returns the next line. Skips the bare line feeds by which a primary that prepares a data set
/// shows that it is alive.
#[track_caller]
fn line(client: &mut Client) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let byte = client.read_exact(1).expect("a line from the primary");
        if byte != b"\n" || !line.is_empty() {
            line.extend(byte);
        }
    }
    String::from_utf8(line)
        .expect("a line in ASCII")
        .trim_end()
        .to_owned()
}
