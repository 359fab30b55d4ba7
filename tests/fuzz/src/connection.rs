//! One connection of the crowd: what it sent, what it waits for, and how it ends.

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

/// More is sent once no more than so many commands are unanswered.
const LOW_WATER: usize = 8;

/// The most commands, or groups of them, in one write.
const MOST_AT_ONCE: usize = 40;

/// How many commands are kept for the record.
const RECORDED: usize = 300;

/// How often a connection that waits in vain sends more behind what it waits for.
const MOST_ON_TOP: u32 = 2;

/// Something that a connection did.
pub struct Deed {
    /// Its place among those of all connections.
    pub number: u64,
    /// What it was.
    pub what: What,
}

/// What a connection can do.
pub enum What {
    /// It was made.
    Opened,
    /// It sent a command.
    Sent(Command),
    /// It sent a part of a command.
    Cut(Command),
    /// It went, or the server closed it.
    Ended(&'static str),
}

/// What is to become of a connection.
enum Plan {
    /// It goes on.
    Talk,
    /// It is closed as soon as all was sent, whatever comes back.
    CloseOnceSent,
    /// It sends no more and is closed when it has waited in vain.
    CloseInTheEnd,
}

/// One of the crowd. It is made anew each time it ends.
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
    /// What is sent depends on these numbers alone.
    words: StdRng,
    /// How it ends depends on these, and on when the server answers.
    life: StdRng,
    answers: u64,
    record: VecDeque<Deed>,
}

impl Connection {
    /// One that sends to a node of the run. The seed tells what.
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

    /// Its socket, while it has one.
    pub fn stream(&self) -> Option<&TcpStream> {
        self.stream.as_ref()
    }

    /// Whether there is something that the socket didn't take yet.
    pub fn is_writing(&self) -> bool {
        !self.out.is_empty()
    }

    /// How many commands were answered.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// What it did last.
    pub fn record(&self) -> impl Iterator<Item = &Deed> {
        self.record.iter()
    }

    /// Sends what is due, or gives up waiting.
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

    /// Some more commands.
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

    /// Reads what has come. An error is an answer that no client could read.
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
        // What isn't understood is an error with a text that isn't UTF-8.
        match redis::parse_redis_value(reply) {
            Ok(Value::Int(id)) if !self.knows_id => known.is_now(self.number, id.unsigned_abs()),
            Ok(Value::BulkString(text)) => known.payloads.keep(&text),
            _ => {}
        }
        self.knows_id = true;
    }

    /// Nothing has come for long.
    fn lose_patience(&mut self, known: &Known) {
        self.patience = Duration::from_millis(self.life.random_range(5..60));
        self.progress = Instant::now();
        let goes_on = matches!(self.plan, Plan::Talk) && self.on_top < MOST_ON_TOP;
        if goes_on && self.life.random_ratio(1, 3) {
            // What comes later is taken as the answers to what is sent from now on.
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
        // Either may fail where the server was quicker.
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
