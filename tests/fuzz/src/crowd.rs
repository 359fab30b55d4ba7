//! All connections of a run, driven by one thread.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::connection::{Connection, What};
use crate::grammar::Grammar;
use crate::known::Known;
use crate::server::Server;

/// Number of connections.
pub const CONNECTIONS: usize = 16;

/// Time between two checks that the servers are alive.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Time without any reply after which the servers count as hung.
const HUNG_AFTER: Duration = Duration::from_secs(10);

/// Time that a poll of the sockets waits for an event.
const POLL_FOR: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// All connections of a run.
pub struct Crowd {
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

impl Crowd {
    /// Returns one connection for each entry of `nodes`, to the node with that index.
    pub fn new(nodes: [usize; CONNECTIONS], seed: u64) -> Crowd {
        let connection = |(number, node)| {
            let own_seed = seed
                .wrapping_mul(CONNECTIONS as u64)
                .wrapping_add(number as u64);
            Connection::new(number, node, own_seed)
        };
        Crowd {
            connections: nodes.into_iter().enumerate().map(connection).collect(),
            buffer: vec![0; 1 << 16],
        }
    }

    /// Sends and reads until `until`. Returns an error once a server has died or hung, or has sent
    /// a malformed reply.
    pub fn run(
        &mut self,
        grammar: &Grammar,
        known: &Known,
        servers: &[Server],
        until: Instant,
        mut tick: impl FnMut(),
    ) -> Result<()> {
        let mut looked = Instant::now();
        let mut progress = (0, Instant::now());
        while Instant::now() < until {
            for connection in &mut self.connections {
                connection.act(grammar, known);
            }
            self.read(known)?;
            if looked.elapsed() < LOOK_EVERY {
                continue;
            }
            looked = Instant::now();
            tick();
            if let Some(death) = servers.iter().find_map(Server::death) {
                bail!("{death}");
            }
            if self.answers() != progress.0 {
                progress = (self.answers(), Instant::now());
            } else if progress.1.elapsed() > HUNG_AFTER {
                bail!("nobody was answered for {HUNG_AFTER:?}");
            }
        }
        Ok(())
    }

    fn read(&mut self, known: &Known) -> Result<()> {
        let Crowd {
            connections,
            buffer,
        } = self;
        let ready: Vec<bool> = {
            let mut fds: Vec<PollFd> = connections
                .iter()
                .filter_map(|connection| {
                    let mut flags = PollFlags::IN;
                    flags.set(PollFlags::OUT, connection.is_writing());
                    Some(PollFd::new(connection.stream()?, flags))
                })
                .collect();
            poll(&mut fds, Some(&POLL_FOR))?;
            let quiet = PollFlags::empty() | PollFlags::OUT;
            fds.iter().map(|fd| !quiet.contains(fd.revents())).collect()
        };
        let open = connections
            .iter_mut()
            .filter(|connection| connection.stream().is_some());
        for (connection, _) in open.zip(ready).filter(|(_, ready)| *ready) {
            connection.receive(buffer, known)?;
        }
        Ok(())
    }

    /// Returns the number of commands that were answered.
    pub fn answers(&self) -> u64 {
        self.connections.iter().map(Connection::answers).sum()
    }

    /// Returns the latest deeds of all connections as text, in their order.
    pub fn record(&self) -> String {
        let mut deeds: Vec<(u64, usize, String)> = Vec::new();
        for (number, connection) in self.connections.iter().enumerate() {
            for deed in connection.record() {
                deeds.push((deed.number, number, told(&deed.what)));
            }
        }
        deeds.sort();
        let mut text = String::new();
        for (_, connection, deed) in deeds {
            // Writing to a string doesn't fail.
            let _ = writeln!(text, "{connection:>2}> {deed}");
        }
        text
    }
}

fn told(what: &What) -> String {
    match what {
        What::Opened => "(opened)".to_owned(),
        What::Ended(how) => format!("({how})"),
        What::Sent(command) => line(command),
        What::Cut(command) => format!("(a part of) {}", line(command)),
    }
}

/// Returns the command in the form in which redis-cli reads it.
fn line(command: &[Vec<u8>]) -> String {
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

fn quoted(word: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'\\".contains(byte);
    if !word.is_empty() && word.iter().all(is_plain) {
        return String::from_utf8_lossy(word).into_owned();
    }
    let mut text = "\"".to_owned();
    for byte in word {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(*byte)]),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_as_they_are_typed() {
        let command = ["SET", "a b", "", "\"\\\0"].map(|word| word.as_bytes().to_vec());
        assert_eq!(line(&command), r#"SET "a b" "" "\"\\\x00""#);
    }
}
