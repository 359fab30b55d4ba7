//! A server of a simulation: a primary with its replicas and files.
//!
//! 1. A blocked client gets its reply when the server sleeps, like on Redis 8. If the server
//!    notices the client's end before, a timer takes the hand-over back.
//! 2. A replica reads the stream late. It can be promoted before it has read all of it.
//! 3. A restart loads what a file has, and a promotion what the replica has.

use std::collections::HashSet;

use redis_lock_core::state::hand_over::{self, HandOver, TakeBack};
use redis_lock_core::values::name::{Name, Relocation};
use redis_lock_core::values::slot::Sharding;
use redis_lock_core::values::token::Token;
use redis_lock_promises::rebuilt;

use crate::stream::{Replica, Written};
use crate::world::{self, World};

/// The purpose of a command, for the client that gets its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ask,
    Extend,
    /// An extension with SESSION.
    Tie,
    Leave,
}

/// A command under way, or one that is blocked.
#[derive(Clone, Debug)]
pub struct Command {
    /// The connection. Only sessions use one for several commands.
    pub connection: u64,
    /// The client and the number of its acquire; `None`: a stranger, which reads no reply.
    pub sender: Option<(usize, u32)>,
    pub kind: Kind,
    pub line: String,
    pub token: String,
    pub keys: &'static [&'static str],
    pub slot: usize,
    pub sent_ms: u64,
    /// The server that it was sent to, and which start of that server.
    pub server: usize,
    pub start: u32,
    /// The number of faults before it arrived.
    pub faults: u64,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub command: Command,
    pub answer: String,
    /// The fence of a grant, and the number of exceptions by which fences of its slot could fall
    /// before.
    pub fence: u64,
    pub era: u32,
}

/// A copy that reads a server's stream.
#[derive(Clone, Default)]
pub struct Follower {
    pub copy: Replica,
    /// The number of entries that it has read.
    pub read: usize,
    /// The difference of its clock.
    pub clock_ms: i64,
    /// The time that an entry takes to it.
    pub lag_ms: u64,
    pub is_offline: bool,
    pub is_reading: bool,
}

impl Follower {
    /// Reads at most this many entries of the stream.
    pub fn follow(&mut self, stream: &[Written], most: usize) {
        let rest = stream.iter().skip(self.read).take(most);
        for written in rest {
            self.copy.read(written);
            self.read += 1;
        }
    }

    fn sync(&mut self, world: &World) {
        self.copy = world.replica.clone();
        self.copy.last_fence = world.fences().last();
        self.read = world.stream.len();
        self.is_reading = false;
    }
}

/// A reply that is sent when the server sleeps.
struct Unsent {
    reply: Reply,
    hand_over: Option<HandOver>,
}

pub struct Server {
    pub world: World,
    pub replicas: Vec<Follower>,
    /// The append-only file.
    pub log: Follower,
    /// The last RDB file.
    pub snapshot: Replica,
    /// The number of starts and promotions.
    pub start: u32,
    /// The time for which the timer is armed.
    pub armed_ms: Option<u64>,
    /// The number of the timer that is armed.
    pub timer: u64,
    /// True if the server is to sleep.
    pub is_awake: bool,
    pub stalled_until_ms: u64,
    /// False after the clock was set, until the module notices.
    pub knows_time: bool,
    blocked: Vec<Command>,
    unsent: Vec<Unsent>,
    /// Hand-overs to take back.
    undelivered: Vec<HandOver>,
    /// Grants that a reply to another connection has confirmed.
    known: HashSet<(Token, Name)>,
    /// The keys and fences of grants that were replied at once since the server last slept.
    replied: HashSet<(&'static str, u64)>,
    /// Channels on which a message was published.
    pub messages: Vec<String>,
}

impl Server {
    pub fn new(replicas: usize, sharding: Sharding) -> Self {
        let mut server = Self {
            world: World::new(),
            replicas: vec![Follower::default(); replicas],
            log: Follower::default(),
            snapshot: Replica::default(),
            start: 0,
            armed_ms: None,
            timer: 0,
            is_awake: false,
            stalled_until_ms: 0,
            knows_time: true,
            blocked: Vec::new(),
            unsent: Vec::new(),
            undelivered: Vec::new(),
            known: HashSet::new(),
            replied: HashSet::new(),
            messages: Vec::new(),
        };
        server.world.store.sharding = Some(sharding);
        server.count_replicas();
        server
    }

    pub fn count_replicas(&mut self) {
        let online = self.replicas.iter().filter(|it| !it.is_offline);
        self.world.store.replicas = online.count() as u16;
    }

    // ---- Commands

    /// Executes a command. Returns its reply, unless the client is blocked.
    pub fn execute(&mut self, command: Command) -> Option<Reply> {
        let answer = self.world.say_as(command.connection, &command.line);
        let is_held_back = answer == "held back";
        let is_grant = answer == "granted" || is_held_back;
        let is_extension = matches!(command.kind, Kind::Extend | Kind::Tie);
        if is_grant || (is_extension && answer != "0") {
            self.confirm(&command);
        }
        let reply = if answer == "waits" || is_held_back {
            self.blocked.push(command);
            None
        } else {
            let is_granted = answer == "granted";
            let fence = if is_granted {
                self.world.answered_fence
            } else {
                0
            };
            self.replied
                .extend(command.keys.iter().map(|key| (*key, fence)));
            Some(Reply {
                command,
                answer,
                fence,
                era: 0,
            })
        };
        self.collect();
        reply
    }

    /// Records that a reply confirms a token's grants. They are not taken back any more.
    fn confirm(&mut self, command: &Command) {
        if self.unsent.is_empty() && self.undelivered.is_empty() {
            return;
        }
        let token = world::token(&command.token);
        for key in command.keys {
            let name = world::name(key);
            self.undelivered
                .retain(|it| it.grant.token != token || !it.names.contains(&name));
            self.known.insert((token.clone(), name));
        }
    }

    fn is_known(&self, hand_over: &HandOver) -> bool {
        let token = &hand_over.grant.token;
        let mut names = hand_over.names.iter();
        names.any(|name| self.known.contains(&(token.clone(), name.clone())))
    }

    /// Renames a key. The hand-overs that may be taken back follow their locks, like the module's.
    pub fn rename(&mut self, from: &str, to: &'static str) {
        self.world.rename_unseen(from, to);
        let moved = Relocation::Moved(world::name(from), world::name(to));
        let mut unsent = std::mem::take(&mut self.unsent);
        for hand_over in unsent.iter_mut().filter_map(|it| it.hand_over.as_mut()) {
            if self.is_known(hand_over) {
                hand_over.take_back = TakeBack::Never;
            }
            hand_over.relocate(&moved);
        }
        self.unsent = unsent;
        self.known.clear();
        hand_over::relocate(&mut self.undelivered, &moved);
        let replied = std::mem::take(&mut self.replied).into_iter();
        let replied = replied.filter(|(key, _)| *key != to);
        let replied = replied.map(|(key, fence)| (if key == from { to } else { key }, fence));
        self.replied = replied.collect();
    }

    fn fence_of(&self, command: &Command) -> u64 {
        self.world.fence(command.keys[0], &command.token)
    }

    /// Collects the replies to blocked clients, and the messages.
    pub fn collect(&mut self) {
        let mut handed_over = std::mem::take(&mut self.world.handed_over);
        for heard in self.world.heard() {
            let (line, answer) = heard.rsplit_once(": ").expect("a reply");
            let Some(at) = self.blocked.iter().position(|it| it.line == line) else {
                self.messages.push(line.to_owned());
                continue;
            };
            let command = self.blocked.remove(at);
            let connection = command.connection;
            let of = handed_over.iter().position(|it| it.client_id == connection);
            let hand_over = of.map(|at| handed_over.remove(at));
            let fence = match &hand_over {
                Some(hand_over) => hand_over.grant.fence,
                None => self.fence_of(&command),
            };
            if let Some(hand_over) = hand_over.as_ref().filter(|it| it.is_revocable()) {
                for name in &hand_over.names {
                    let pair = (hand_over.grant.token.clone(), name.clone());
                    self.known.remove(&pair);
                }
            }
            let answer = answer.to_owned();
            let reply = Reply {
                command,
                answer,
                fence,
                era: 0,
            };
            self.unsent.push(Unsent { reply, hand_over });
        }
    }

    // ---- The event loop

    /// Returns true if there is something to send when the server sleeps.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.world.table.replica_waits().has_unsent()
    }

    /// Sends the replies to blocked clients, before the server waits for events.
    pub fn sleep(&mut self) -> Vec<Reply> {
        if !self.world.table.replica_waits().is_empty() {
            self.world.record_offset();
            self.look_at_replicas();
        }
        self.known.clear();
        if self.undelivered.is_empty() {
            self.replied.clear();
        }
        self.unsent.drain(..).map(|it| it.reply).collect()
    }

    fn look_at_replicas(&mut self) {
        let online = self.replicas.iter().filter(|it| !it.is_offline);
        let offsets = online.map(|it| it.read as u64).collect();
        self.world.look_at_replicas(offsets);
        self.collect();
    }

    /// Returns the time until a replica reads the stream, if it is behind and not about to.
    pub fn begins_to_read(&mut self, replica: usize) -> Option<u64> {
        let replica = &mut self.replicas[replica];
        let is_behind = replica.read < self.world.stream.len();
        let begins = is_behind && !replica.is_offline && !replica.is_reading;
        replica.is_reading |= begins;
        begins.then_some(replica.lag_ms)
    }

    /// Writes the append-only file, and a snapshot.
    pub fn save(&mut self, has_snapshot: bool) {
        self.log.follow(&self.world.stream, usize::MAX);
        if has_snapshot {
            self.snapshot = self.world.replica.clone();
            self.snapshot.last_fence = self.world.fences().last();
        }
    }

    /// Has a replica read a part of the stream.
    pub fn replicate(&mut self, replica: usize, most: usize) {
        let replica = &mut self.replicas[replica];
        replica.follow(&self.world.stream, most);
        let is_behind = replica.read < self.world.stream.len();
        if !is_behind {
            let locks = (&self.world.replica.locks, &replica.copy.locks);
            let are_alike = locks.0.len() == locks.1.len()
                && locks.0.iter().zip(locks.1).all(|(own, other)| own == other);
            if !are_alike {
                let copy = self.world.replica.as_loaded();
                kept(rebuilt(&copy.locks, &replica.copy.as_loaded().locks));
            }
        }
        if !self.world.table.replica_waits().is_empty() {
            self.look_at_replicas();
        }
    }

    /// Sets the clock, and the module notices.
    pub fn set_clock(&mut self, by_ms: i64) {
        self.world.set_clock(by_ms);
        self.knows_time = true;
    }

    /// Runs the timer.
    pub fn fire(&mut self) {
        for hand_over in std::mem::take(&mut self.undelivered) {
            self.check_unreplied(&hand_over);
            self.world.take_back(&hand_over);
        }
        self.world.fire(Vec::new());
        self.collect();
        if self.knows_time {
            kept(self.world.check_quiet());
        }
    }

    /// Checks that no other connection got a reply with the grant that is to be taken back.
    fn check_unreplied(&self, HandOver { grant, names, .. }: &HandOver) {
        let token = String::from_utf8_lossy(grant.token.as_bytes());
        for (key, fence) in &self.replied {
            let is_meant = *fence == grant.fence && names.contains(&world::name(key));
            let is_held = is_meant && self.world.fence(key, &token) == *fence;
            assert!(!is_held, "takes {key} back from {token}, which has a reply");
        }
    }

    /// Returns when the timer is to fire.
    pub fn due_ms(&self) -> Option<u64> {
        if !self.undelivered.is_empty() || !self.world.store.touched.is_empty() {
            return Some(0);
        }
        self.world.table.next_due_ms()
    }

    // ---- Connections

    /// Closes a connection. A hand-over whose reply was not sent is taken back by the timer.
    pub fn close(&mut self, connection: u64) {
        let unsent = &self.unsent;
        let of = unsent
            .iter()
            .position(|it| it.reply.command.connection == connection);
        if let Some(hand_over) = of.and_then(|at| self.unsent.remove(at).hand_over) {
            if hand_over.is_revocable() && !self.is_known(&hand_over) {
                self.undelivered.push(hand_over);
            }
        }
        if let Some(line) = self.unblocked(connection) {
            let vacated = self.world.hang_up_unseen(&line);
            self.world.store.touched.extend(vacated);
        }
        if self.world.table.sessions().has_client(connection) {
            let undelivered = self.undelivered.iter();
            undelivered
                .filter(|it| it.client_id == connection)
                .for_each(|it| self.world.table.untie(it));
        }
        self.world.close_connection(connection);
        self.collect();
    }

    /// Has the server itself reply to a blocked client. Returns the reply.
    pub fn unblock(&mut self, connection: u64, answer: &str) -> Option<Reply> {
        let of = self
            .unsent
            .iter()
            .position(|it| it.reply.command.connection == connection);
        let command = if let Some(at) = of {
            let Unsent { reply, hand_over } = self.unsent.remove(at);
            let lost = hand_over.filter(|it| it.is_revocable() && !self.is_known(it));
            let lost = lost.filter(|it| it.take_back == TakeBack::IfUndelivered);
            let lost = lost.map(|it| HandOver { kept: None, ..it });
            self.undelivered.extend(lost);
            reply.command
        } else {
            let at = self
                .blocked
                .iter()
                .position(|it| it.connection == connection)?;
            let command = self.blocked.remove(at);
            self.world.unblock(&command.line);
            self.collect();
            command
        };
        Some(Reply {
            command,
            answer: answer.to_owned(),
            fence: 0,
            era: 0,
        })
    }

    /// Closes all connections up to this number.
    pub fn close_all(&mut self, last: u64) {
        for connection in 1..=last {
            if self.world.table.sessions().has_client(connection) {
                self.world.close_connection(connection);
            }
        }
    }

    fn unblocked(&mut self, connection: u64) -> Option<String> {
        let at = self
            .blocked
            .iter()
            .position(|it| it.connection == connection)?;
        Some(self.blocked.remove(at).line)
    }

    /// Returns the connections that are blocked, or whose reply is not sent yet.
    pub fn waiting(&self) -> Vec<(u64, usize)> {
        let unsent = self.unsent.iter().map(|it| &it.reply.command);
        let waiting = self.blocked.iter().chain(unsent);
        waiting.map(|it| (it.connection, it.slot)).collect()
    }

    // ---- Starts

    /// Replaces the primary by one that starts with the keys of a copy. All connections are lost.
    pub fn start_with(&mut self, from: &Replica, clock_ms: i64) {
        let mut world = World::loaded(from);
        world.now_ms = self.world.now_ms;
        world.clock_set_by_ms = clock_ms;
        world.store.sharding = self.world.store.sharding;
        world.store.away = std::mem::take(&mut self.world.store.away);
        self.world = world;
        self.start += 1;
        self.armed_ms = None;
        self.timer += 1;
        self.is_awake = false;
        self.knows_time = true;
        self.blocked.clear();
        self.unsent.clear();
        self.undelivered.clear();
        self.known.clear();
        self.replied.clear();
        let names: Vec<Name> = self.world.store.keys.keys().cloned().collect();
        self.world.store.touched.extend(names);
    }

    /// Has all replicas and files copy the primary.
    pub fn sync_all(&mut self) {
        let followers = self.replicas.iter_mut().chain([&mut self.log]);
        followers.for_each(|it| it.sync(&self.world));
        self.snapshot = self.log.copy.clone();
        self.count_replicas();
    }
}

/// Panics if a promise is broken.
#[track_caller]
pub fn kept(verdict: redis_lock_promises::Verdict) {
    verdict.unwrap_or_else(|broken| panic!("{broken}"));
}
