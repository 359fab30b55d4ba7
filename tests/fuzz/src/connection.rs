//! One connection of the crowd: its commands, its missing replies and its end.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis_lock_rig::{packed, reply_end};
use socket2::SockRef;

use crate::grammar::{Command, Draw, Grammar};
use crate::known::{Known, View};

/// Number of unanswered commands at which a connection sends more.
const LOW_WATER: usize = 8;

/// The most commands, or groups of commands, in one write.
const MOST_AT_ONCE: usize = 40;

/// Number of deeds that are kept for the record.
const RECORDED: usize = 300;

/// Number of times that a connection without replies sends more behind the unanswered commands.
const MOST_ON_TOP: u32 = 2;

/// A deed of a connection.
pub struct Deed {
    /// The number among the deeds of all connections.
    pub number: u64,
    /// The kind of deed.
    pub what: What,
}

/// The kinds of deeds.
pub enum What {
    /// The connection was opened.
    Opened,
    /// The connection sent a command.
    Sent(Command),
    /// The connection sent a part of a command.
    Cut(Command),
    /// The connection ended: its client or the server closed it.
    Ended(&'static str),
}

/// The plan for a connection.
enum Plan {
    /// The connection goes on sending.
    Talk,
    /// The connection is closed as soon as everything is sent, whatever the replies.
    CloseOnceSent,
    /// The connection sends no more, and is closed once no reply has come in time.
    CloseInTheEnd,
}

/// A connection of the crowd. It is reopened each time it ends.
pub struct Connection {
    number: usize,
    node: usize,
    stream: Option<TcpStream>,
    out: Vec<u8>,
    inbox: Vec<u8>,
    unanswered: usize,
    plan: Plan,
    in_multi: bool,
    knows_id: bool,
    on_top: u32,
    progress: Instant,
    patience: Duration,
    /// The random numbers that alone decide the commands.
    words: StdRng,
    /// The random numbers that decide the end, together with the timing of replies.
    life: StdRng,
    answers: u64,
    record: VecDeque<Deed>,
}

impl Connection {
    /// Returns a connection that sends to a node of the run. The seed decides the commands.
    pub fn new(number: usize, node: usize, seed: u64) -> Connection {
        Connection {
            number,
            node,
            stream: None,
            out: Vec::new(),
            inbox: Vec::new(),
            unanswered: 0,
            plan: Plan::Talk,
            in_multi: false,
            knows_id: false,
            on_top: 0,
            progress: Instant::now(),
            patience: Duration::from_millis(10),
            words: StdRng::seed_from_u64(seed),
            life: StdRng::seed_from_u64(!seed),
            answers: 0,
            record: VecDeque::new(),
        }
    }

    /// Returns the socket, if the connection is open.
    pub fn stream(&self) -> Option<&TcpStream> {
        self.stream.as_ref()
    }

    /// Returns true if the socket has not accepted all output yet.
    pub fn is_writing(&self) -> bool {
        !self.out.is_empty()
    }

    /// Returns the number of commands that were answered.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Returns the latest deeds.
    pub fn record(&self) -> impl Iterator<Item = &Deed> {
        self.record.iter()
    }

    /// Sends the commands that are due, or gives up waiting. Opens the connection if it is closed.
    pub fn act(&mut self, grammar: &Grammar, known: &Known) {
        if self.stream.is_none() && self.open(known).is_err() {
            return;
        }
        let has_sent = self.out.is_empty();
        match self.plan {
            Plan::Talk if has_sent && self.unanswered <= LOW_WATER => self.say(grammar, known),
            Plan::CloseOnceSent if has_sent => return self.end(known),
            _ if self.progress.elapsed() > self.patience => return self.lose_patience(known),
            _ => {}
        }
        if self.flush().is_err() {
            self.ended("the server closed it", known);
        }
    }

    fn open(&mut self, known: &Known) -> io::Result<()> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, known.port(self.node)))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.stream = Some(stream);
        self.out.clear();
        self.inbox.clear();
        self.plan = Plan::Talk;
        self.in_multi = false;
        self.knows_id = false;
        self.unanswered = 0;
        self.on_top = 0;
        self.progress = Instant::now();
        self.note(What::Opened, known);
        self.send(vec![b"CLIENT".to_vec(), b"ID".to_vec()], known);
        Ok(())
    }

    /// Draws some more commands for sending.
    fn say(&mut self, grammar: &Grammar, known: &Known) {
        let view = View {
            known,
            node: self.node,
        };
        for _ in 0..self.words.random_range(1..=MOST_AT_ONCE) {
            let commands = Draw {
                grammar,
                rng: &mut self.words,
                surroundings: &view,
                in_multi: &mut self.in_multi,
            }
            .commands();
            for command in commands {
                self.send(command, known);
            }
        }
        match self.words.random_range(0..200) {
            0 => self.plan = Plan::CloseOnceSent,
            1 => self.cut(grammar, known),
            _ => {}
        }
    }

    fn send(&mut self, command: Command, known: &Known) {
        self.out.extend(packed(&command));
        self.unanswered += 1;
        self.note(What::Sent(command), known);
    }

    /// Sends a command without its end.
    fn cut(&mut self, grammar: &Grammar, known: &Known) {
        let view = View {
            known,
            node: self.node,
        };
        let mut draw = Draw {
            grammar,
            rng: &mut self.words,
            surroundings: &view,
            in_multi: &mut self.in_multi,
        };
        if let Some(command) = draw.commands().pop() {
            let bytes = packed(&command);
            let len = self.words.random_range(1..bytes.len());
            self.out.extend(&bytes[..len]);
            self.note(What::Cut(command), known);
        }
        self.plan = Plan::CloseInTheEnd;
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(stream) = self.stream.as_mut() else {
            return Ok(());
        };
        while !self.out.is_empty() {
            match stream.write(&self.out) {
                Ok(len) => drop(self.out.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the available input. Returns an error if a reply is malformed.
    pub fn receive(&mut self, buffer: &mut [u8], known: &Known) -> Result<()> {
        let Some(stream) = self.stream.as_mut() else {
            return Ok(());
        };
        match stream.read(buffer) {
            Ok(len) if len > 0 => {
                self.inbox.extend(&buffer[..len]);
                self.progress = Instant::now();
                self.on_top = 0;
                return self.take_replies(known);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => self.ended("the server closed it", known),
        }
        Ok(())
    }

    fn take_replies(&mut self, known: &Known) -> Result<()> {
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = inbox.as_slice();
        while let Some(end) = reply_end(rest)? {
            self.take(&rest[..end], known);
            rest = &rest[end..];
        }
        self.inbox = rest.to_vec();
        Ok(())
    }

    fn take(&mut self, reply: &[u8], known: &Known) {
        // A RESP3 push answers no command.
        if !reply.starts_with(b">") {
            self.unanswered = self.unanswered.saturating_sub(1);
            self.answers += 1;
        }
        // A reply that isn't understood is an error with a text that isn't UTF-8.
        match redis::parse_redis_value(reply) {
            Ok(Value::Int(id)) if !self.knows_id => known.is_now(self.number, id.unsigned_abs()),
            Ok(Value::BulkString(text)) => known.payloads.keep(&text),
            _ => {}
        }
        self.knows_id = true;
    }

    /// Closes the connection after a time without input, or lets it send more.
    fn lose_patience(&mut self, known: &Known) {
        self.patience = Duration::from_millis(self.life.random_range(5..60));
        self.progress = Instant::now();
        let goes_on = matches!(self.plan, Plan::Talk) && self.on_top < MOST_ON_TOP;
        if goes_on && self.life.random_ratio(1, 3) {
            // Later replies count for the commands that are sent from now on.
            self.unanswered = 0;
            self.on_top += 1;
        } else {
            self.end(known);
        }
    }

    fn end(&mut self, known: &Known) {
        let Some(stream) = self.stream.as_ref() else {
            return;
        };
        // Either call may fail if the server was quicker.
        if self.life.random_ratio(1, 2) {
            drop(SockRef::from(stream).set_linger(Some(Duration::ZERO)));
            self.ended("closed by RST", known);
        } else {
            drop(stream.shutdown(Shutdown::Write));
            self.ended("closed by FIN", known);
        }
    }

    fn ended(&mut self, how: &'static str, known: &Known) {
        self.stream = None;
        self.note(What::Ended(how), known);
    }

    fn note(&mut self, what: What, known: &Known) {
        if self.record.len() == RECORDED {
            self.record.pop_front();
        }
        let number = known.next_number();
        self.record.push_back(Deed { number, what });
    }
}
