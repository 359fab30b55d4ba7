//! A server in memory: a keyspace, a replica, clocks that the test moves, and clients that send
//! command lines. Every command passes the grammar and the table, like on a real server.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::num::NonZeroU16;

use crate::judge::{cause_of, is_refused, session_keep, CLOSED};
use crate::stream::{Replica, Written};
use redis_lock_core::decision::{
    Acknowledged, Answer, Caller, Completion, Decision, Outcome, Publication,
};
use redis_lock_core::effect::{self, Change, Effect, Effects};
use redis_lock_core::grammar::{self, Keys, ParseContext};
use redis_lock_core::operation::Action;
use redis_lock_core::state::hand_over::{self, HandOver};
use redis_lock_core::state::queue::Position;
use redis_lock_core::state::replica_waits::Progress;
use redis_lock_core::state::waiter::{User, Waiter, WaiterId};
use redis_lock_core::store::{Environment, KeyState, Limits, Store};
use redis_lock_core::table::LockTable;
use redis_lock_core::values::data::Data;
use redis_lock_core::values::fence::{Fences, MAX_RAISED_AHEAD_US};
use redis_lock_core::values::holder::Holder;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::lock::Stored;
pub use redis_lock_core::values::name::{Name, Relocation};
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::session_id::SessionId;
use redis_lock_core::values::slot::{self, Sharding};
use redis_lock_core::values::token::Token;
use redis_lock_promises::step::Cause;

/// The start of the steady clock, in ms. It is far enough from 0 that no underflow stays unnoticed.
pub const START_MS: u64 = 400_000;

/// The time by which the wall clock is ahead of the steady clock until it is set, in ms. The clocks
/// are apart, so that a time on one of them that is taken for a time on the other is noticed.
const WALL_AHEAD_MS: u64 = 600_000;

/// Returns the wall clock in ms, after it was set by `set_by_ms`.
pub const fn wall_of(steady_ms: u64, set_by_ms: i64) -> u64 {
    (steady_ms + WALL_AHEAD_MS).saturating_add_signed(set_by_ms)
}

#[derive(Default)]
pub struct Memory {
    pub keys: BTreeMap<Name, KeyState>,
    pub reads: usize,
    /// The read that panics; 0: none does.
    pub panics_at: usize,
    pub steady_ms: u64,
    /// Keys whose slot migrates to another server.
    pub away: BTreeSet<Name>,
    /// Keys that were created, deleted or changed without an operation, until the timer fires.
    pub touched: BTreeSet<Name>,
    /// The same keys while the timer settles them.
    settling: BTreeSet<Name>,
    /// Tokens of users that have lost their rights.
    pub barred: BTreeSet<Token>,
    pub sharding: Option<Sharding>,
    /// The number of replicas that are online.
    pub replicas: u16,
    /// The slot of the running command's keys. In a cluster, keys of other slots are not found
    /// meanwhile.
    running: Option<u16>,
}

impl Memory {
    fn is_found(&self, name: &Name) -> bool {
        let is_in = |running| slot::of_key(name.key()) == running;
        self.sharding != Some(Sharding::BySlot) || self.running.is_none_or(is_in)
    }
}

impl Store for Memory {
    fn read(&mut self, name: &Name) -> KeyState {
        self.reads += 1;
        assert_ne!(self.reads, self.panics_at, "a planted panic");
        let found = self.keys.get(name).filter(|_| self.is_found(name));
        found.cloned().unwrap_or(KeyState::Empty)
    }

    fn can_read(&mut self, name: &Name, own: &Name) -> bool {
        let slots = [name, own].map(|name| slot::of_key(name.key()));
        self.sharding != Some(Sharding::BySlot) || slots[0] == slots[1]
    }

    fn is_here(&mut self, name: &Name) -> bool {
        !self.away.contains(name)
    }

    fn is_touched(&mut self, name: &Name) -> bool {
        self.touched.contains(name)
    }

    fn is_any_touched(&mut self) -> bool {
        !self.touched.is_empty()
    }

    fn is_settling(&mut self, name: &Name) -> bool {
        self.settling.contains(name)
    }

    fn steady_ms(&mut self) -> u64 {
        self.steady_ms
    }

    fn user(&mut self) -> User {
        User::default()
    }

    fn has_replicas(&mut self, count: NonZeroU16) -> bool {
        self.replicas >= count.get()
    }

    fn may_be_granted(&mut self, waiter: &Waiter) -> bool {
        !self.barred.contains(&waiter.request.token)
    }
}

pub struct World {
    pub table: LockTable,
    pub store: Memory,
    /// A replica without lag.
    pub replica: Replica,
    /// All that was written for replicas and files so far.
    pub stream: Vec<Written>,
    /// The steady clock.
    pub now_ms: u64,
    /// The time by which the wall clock was set forward; negative: back.
    pub clock_set_by_ms: i64,
    pub max_waiters: usize,
    pub max_tickets: usize,
    fences: Fences,
    next_id: u64,
    /// The waiters with their command lines and positions. A client that waits for replicas only has
    /// no position.
    waiting: HashMap<WaiterId, (String, Option<Position>)>,
    /// The client of each wait.
    callers: BTreeMap<WaiterId, u64>,
    /// The connection that sent each line last.
    said: HashMap<String, u64>,
    /// Replies to waiters and published messages since the last call of `heard`.
    heard: Vec<String>,
    effects: Vec<(Name, Change)>,
    /// All hand-overs, oldest first.
    pub handed_over: Vec<HandOver>,
    /// The ends of the marks that a token has left a key.
    pub marks: BTreeMap<(Name, String), u64>,
    /// The lock that was dumped last.
    pub dumped: Option<Lock>,
    /// The clients whose connections have closed.
    pub gone: BTreeSet<u64>,
    /// The KEEP in ms of each session that has one.
    pub keeps: BTreeMap<SessionId, u64>,
    /// The times at which the connections of such sessions closed, and the ends of their KEEP, by
    /// the wall clock.
    pub kept: BTreeMap<SessionId, (u64, u64)>,
    /// The deadlines of the grants that hand-overs replaced, by the key and the fence of the
    /// hand-over.
    pub replaced: BTreeMap<(String, u64), u64>,
    /// The greatest fence so far.
    pub last_fence: u64,
    /// The fence of the last command that was granted at once.
    pub answered_fence: u64,
    /// True if each decision is judged by the promises.
    pub is_judged: bool,
}

fn sessions_of(state: &KeyState) -> Vec<SessionId> {
    match state {
        KeyState::Lock(stored) => stored
            .lock
            .holders()
            .iter()
            .map(|own| own.session)
            .collect(),
        KeyState::Empty | KeyState::OtherType => Vec::new(),
    }
}

pub fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).expect("a token")
}

pub fn name(key: &str) -> Name {
    Name::new(0, key.as_bytes())
}

/// Returns the keys of a command.
pub fn keys_of(line: &str) -> Vec<&str> {
    let mut words = line.split_whitespace();
    let is_of_many = words.next().is_some_and(|verb| verb.starts_with('M'));
    let count = if is_of_many {
        words.next().and_then(|count| count.parse().ok())
    } else {
        Some(1)
    };
    words.take(count.expect("numkeys")).collect()
}

impl World {
    pub fn new() -> Self {
        Self {
            table: LockTable::new(),
            store: Memory::default(),
            replica: Replica::default(),
            stream: Vec::new(),
            now_ms: START_MS,
            clock_set_by_ms: 0,
            max_waiters: 0,
            max_tickets: 0,
            fences: Fences::new(),
            next_id: 1,
            waiting: HashMap::new(),
            callers: BTreeMap::new(),
            said: HashMap::new(),
            heard: Vec::new(),
            effects: Vec::new(),
            handed_over: Vec::new(),
            marks: BTreeMap::new(),
            dumped: None,
            gone: BTreeSet::from([CLOSED]),
            keeps: BTreeMap::new(),
            kept: BTreeMap::new(),
            replaced: BTreeMap::new(),
            last_fence: 0,
            answered_fence: 0,
            is_judged: true,
        }
    }

    /// Returns a server that has loaded the keys of a replica or a file, and has no client yet.
    pub fn loaded(from: &Replica) -> Self {
        let mut world = Self::new();
        world.replica = from.as_loaded();
        world.fences.raise(from.last_fence);
        let locks = world.replica.locks.iter();
        let keys = locks.map(|(name, stored)| (name.clone(), KeyState::Lock(stored.clone())));
        world.store.keys = keys.collect();
        world
    }

    /// Returns the counter of fences.
    pub const fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Returns a world that is a cluster node with all slots.
    pub fn in_cluster() -> Self {
        let mut world = Self::new();
        world.store.sharding = Some(Sharding::BySlot);
        world
    }

    /// Returns the wall clock in microseconds.
    pub const fn wall_us(&self) -> u64 {
        self.wall_ms() * 1000
    }

    /// Returns the time of the steady clock until which this token is marked as having left this key, as
    /// the lines that were sent say.
    pub fn marked_until_ms(&self, key: &Name, token: &str) -> Option<u64> {
        let mark = (key.clone(), token.to_owned());
        self.marks
            .get(&mark)
            .copied()
            .filter(|ms| *ms >= self.now_ms)
    }

    /// Sends a line like `WAIT k a PX 100` on a new connection. Returns the shortened answer:
    /// `granted`, `nil`, `waits`, `place 1`, a number, or the error's text.
    pub fn say(&mut self, line: &str) -> String {
        let client_id = self.next_id;
        self.say_as(client_id, line)
    }

    /// Returns the client that sent this line last.
    pub fn client_of(&self, line: &str) -> u64 {
        self.said.get(line).copied().expect("a line that was sent")
    }

    /// Like `say`, on an existing connection.
    pub fn say_as<'l>(&mut self, client_id: u64, line: &'l str) -> String {
        let word = |word: &'l str| if word == "\"\"" { b"" } else { word.as_bytes() };
        let words: Vec<&[u8]> = line.split_whitespace().map(word).collect();
        let (command, words) = words.split_first().expect("a command");
        let command = std::str::from_utf8(command).expect("text");
        let (many, verb) = match command.strip_prefix('M') {
            Some(verb) => (Keys::Many, verb),
            None => (Keys::One, command),
        };
        let draw = || Ok(Token::from_bits(1));
        let wall_us = self.wall_us();
        let is_credible_fence =
            |fence| self.fences.is_credible(fence, wall_us, MAX_RAISED_AHEAD_US);
        let context = ParseContext {
            db: 0,
            default_lease_ms: 1000,
            default_keep_ms: 500,
            default_within_ms: 100,
            sharding: Sharding::None,
            is_credible_fence: &is_credible_fence,
            draw_token: &draw,
        };
        let operation = match verb {
            "CANCEL" => grammar::cancel(words, &context),
            "ACQUIRE" => grammar::acquire(words, many, &context),
            "WAIT" => grammar::wait(words, many, &context),
            "QUEUE" => grammar::queue(words, many, &context),
            "EXTEND" => grammar::extend(words, many, &context),
            "RELEASE" => grammar::release(words, many, &context),
            other => unreachable!("{other}"),
        };
        let operation = match operation {
            Ok(operation) => operation,
            Err(refusal) => return refusal.to_string(),
        };
        let waiter_id = WaiterId(self.next_id);
        self.next_id += 1;
        self.said.insert(line.to_owned(), client_id);
        let own = operation.names.iter().next();
        self.store.running = own.map(|name| slot::of_key(name.key()));
        self.gone.remove(&client_id);
        let before = self.before();
        let decision = self.outside(|table, outside| {
            table.decide(
                &operation,
                Caller {
                    client_id,
                    waiter_id,
                },
                outside,
            )
        });
        self.store.running = None;
        if let (Action::Leave { token, leave_ms }, Ok(_)) = (&operation.action, &decision.answer) {
            let token = String::from_utf8_lossy(token.as_bytes()).into_owned();
            for name in &operation.names {
                let mark = (name.clone(), token.clone());
                let end_ms = self.marks.entry(mark).or_default();
                *end_ms = (*end_ms).max(self.now_ms + leave_ms);
            }
        }
        let position = match decision.answer {
            Ok(Answer::Queued(_, position)) => Some(Some(position)),
            Ok(Answer::HeldBack) => Some(None),
            _ => None,
        };
        if let Some(position) = position {
            self.callers.insert(waiter_id, client_id);
            self.waiting.insert(waiter_id, (line.to_owned(), position));
        }
        let fence = match decision.answer {
            Ok(Answer::Granted(fence)) => Some(fence),
            _ => None,
        };
        self.answered_fence = fence.unwrap_or(self.answered_fence);
        let said = match &decision.answer {
            Ok(Answer::Granted(_)) => "granted".to_owned(),
            Ok(Answer::NotNow) => "nil".to_owned(),
            Ok(Answer::Queued(..)) => "waits".to_owned(),
            Ok(Answer::HeldBack) => "held back".to_owned(),
            Ok(Answer::Place(place, _)) => format!("place {place}"),
            Ok(Answer::Count(count)) => count.to_string(),
            Err(refusal) => refusal.to_string(),
        };
        let is_refused = is_refused(&decision, &operation, waiter_id, &self.effects);
        let cause = cause_of(&operation, is_refused);
        let is_held = matches!(decision.answer, Ok(Answer::Granted(_) | Answer::Count(1..)));
        let keep_ms = session_keep(&operation.action).filter(|_| is_held);
        self.carry_out(decision);
        if let Some(keep_ms) = keep_ms {
            self.note_keep(&operation, keep_ms, fence);
        }
        self.judge(before, &cause);
        said
    }

    /// Advances the clock. Then the timer fires.
    pub fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
        self.fire(Vec::new());
    }

    /// Fires the timer after these keys were changed without an operation.
    pub fn fire(&mut self, touched: Vec<Name>) {
        self.store.touched.extend(touched);
        loop {
            self.table.leave_marks().sweep(self.now_ms);
            self.store.settling = std::mem::take(&mut self.store.touched);
            let mut names: Vec<Name> = self.store.settling.iter().cloned().collect();
            names.extend(self.table.due_names(self.now_ms, 1000));
            let before = self.before();
            let decision = self.outside(|table, outside| table.settle_due(&names, 1000, outside));
            self.carry_out(decision);
            self.judge(before, &Cause::Timer);
            self.store.settling.clear();
            if self.table.next_due_ms().is_none_or(|ms| ms > self.now_ms) {
                return;
            }
        }
    }

    /// Loses the connection that sent this line. Then the timer fires.
    pub fn hang_up(&mut self, line: &str) {
        let vacated = self.hang_up_unseen(line);
        self.fire(vacated.into_iter().collect());
    }

    /// Like `hang_up`, but the timer doesn't fire yet. Returns the name to settle besides the names
    /// that are due.
    pub fn hang_up_unseen(&mut self, line: &str) -> Option<Name> {
        let (waiter_id, position) = self.forget(line);
        if self.table.replica_waits().contains(waiter_id) {
            self.close_connection(self.callers[&waiter_id]);
        }
        if let Some(undelivered) = self.table.lose_replica_wait(waiter_id) {
            if let Some(hand_over) = undelivered {
                self.take_back(&hand_over);
            }
            return None;
        }
        self.table
            .lose(waiter_id, position?, self.now_ms, self.max_tickets)
    }

    /// Has this many replicas acknowledge all effects so far. Others have acknowledged none.
    pub fn acknowledge(&mut self, replicas: usize) {
        self.record_offset();
        self.look_at_replicas(vec![self.stream.len() as u64; replicas]);
    }

    /// Records the offset of the commands that wait for replicas, like a server before it sleeps.
    pub fn record_offset(&mut self) {
        self.table.record_offset(self.stream.len() as u64);
    }

    /// Looks how far the replicas have come.
    pub fn look_at_replicas(&mut self, acknowledged: Vec<u64>) {
        let progress = Progress { acknowledged };
        let before = self.before();
        let decision = self.outside(|table, outside| table.acknowledge(&progress, 1000, outside));
        self.check_acknowledged(&decision);
        self.carry_out(decision);
        self.judge(before, &Cause::Timer);
    }

    /// Checks that each reply that was held back has the greatest fence that its token has at its keys
    /// now.
    fn check_acknowledged(&self, decision: &Decision) {
        let completions = decision.deliveries.iter().flat_map(|it| &it.completions);
        for Completion { waiter_id, outcome } in completions {
            let (Outcome::Granted(HandOver { grant, .. })
            | Outcome::Acknowledged(Acknowledged::Grant(grant))) = outcome
            else {
                continue;
            };
            let (line, _) = &self.waiting[waiter_id];
            let token = String::from_utf8_lossy(grant.token.as_bytes());
            let fences = keys_of(line).into_iter().map(|key| self.fence(key, &token));
            assert_eq!(Some(grant.fence), fences.max(), "{line}");
        }
    }

    /// Cuts the wait for replicas short that this line began, by an administrator. Returns false if
    /// it waits for a lock.
    pub fn cut_short(&mut self, line: &str) -> bool {
        let (waiter_id, position) = self.forget(line);
        let is_cut = self.table.cut_short(waiter_id);
        if !is_cut {
            self.waiting.insert(waiter_id, (line.to_owned(), position));
        }
        is_cut
    }

    /// Answers the connection that sent this line from the server itself. Then the timer fires.
    pub fn unblock(&mut self, line: &str) {
        let (waiter_id, position) = self.forget(line);
        let vacated = match self.table.leave_replica_wait(waiter_id) {
            Some(_) => None,
            None => {
                position.and_then(|position| self.table.leave(waiter_id, position, self.now_ms))
            }
        };
        self.fire(vacated.into_iter().collect());
    }

    fn forget(&mut self, line: &str) -> (WaiterId, Option<Position>) {
        let wait = self
            .waiting
            .iter()
            .find(|(_, (said, _))| *said == line)
            .map(|(waiter_id, (_, position))| (*waiter_id, *position));
        let wait = wait.unwrap_or_else(|| panic!("no waiter sent {line:?}"));
        self.waiting.remove(&wait.0);
        wait
    }

    /// Closes the connection that sent this line. Then the timer fires.
    pub fn close(&mut self, line: &str) {
        let client_id = self.said.get(line).copied();
        let client_id = client_id.unwrap_or_else(|| panic!("no client sent {line:?}"));
        self.close_connection(client_id);
        self.fire(Vec::new());
    }

    /// Closes a connection. The timer doesn't fire yet.
    pub fn close_connection(&mut self, client_id: u64) {
        let wall_ms = self.wall_ms();
        self.note_close(client_id);
        self.table.close_client(client_id, wall_ms);
        self.gone.insert(client_id);
    }

    /// Closes all connections that don't wait. Then the timer fires.
    pub fn close_all(&mut self) {
        self.orphan_all();
        self.fire(Vec::new());
    }

    /// Like `close_all`, but the timer doesn't fire yet.
    pub fn orphan_all(&mut self) {
        let waiting: Vec<u64> = self.waiting.keys().map(|waiter_id| waiter_id.0).collect();
        let gone = (1..self.next_id).filter(|id| !waiting.contains(id));
        gone.for_each(|id| self.close_connection(id));
    }

    /// Flushes the database. Then the timer fires.
    pub fn flush(&mut self) {
        let names: Vec<Name> = self.store.keys.keys().cloned().collect();
        self.store.keys.clear();
        self.write(Written::Flushed);
        self.table.end_sessions_in(0);
        self.table.doubt_grants_in(Some(0));
        self.fire(names);
    }

    /// Renames a key. Then the timer fires.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.rename_unseen(from, to);
        self.fire(Vec::new());
    }

    /// Like `rename`, but the timer doesn't fire yet.
    pub fn rename_unseen(&mut self, from: &str, to: &str) {
        let state = self.store.keys.remove(&name(from)).expect("a key");
        self.unlink(to);
        self.lose_grants_at(from, &state);
        let sessions = sessions_of(&state);
        self.table.relocate(&sessions, &name(to));
        let moved = Relocation::Moved(name(from), name(to));
        self.table.follow(&moved);
        hand_over::relocate(&mut self.handed_over, &moved);
        self.replaced.retain(|(key, _), _| key != to);
        let replaced = mem::take(&mut self.replaced).into_iter();
        let replaced = replaced.map(|((key, fence), ms)| match key == from {
            true => ((to.to_owned(), fence), ms),
            false => ((key, fence), ms),
        });
        self.replaced = replaced.collect();
        self.store.keys.insert(name(to), state);
        self.write(Written::Renamed(name(from), name(to)));
        self.store.touched.extend([name(from), name(to)]);
    }

    /// Returns the lock at a key like DUMP: without its clients and its sessions.
    pub fn dump(&self, key: &str) -> Option<Lock> {
        let KeyState::Lock(stored) = self.store.keys.get(&name(key))? else {
            return None;
        };
        let holders = stored.lock.holders().iter().cloned().map(|own| Holder {
            client_id: 0,
            session: SessionId::NONE,
            ..own
        });
        Lock::held(stored.lock.mode(), holders.collect())
    }

    /// Restores a lock over a key, like a server that loads it. The timer doesn't fire yet.
    pub fn restore_unseen(&mut self, key: &str, lock: &Lock) {
        self.unlink(key);
        self.fences.raise(lock.highest_fence());
        let expiry_ms = lock.latest_deadline_ms();
        let lock = lock.clone();
        self.write(Written::Restored(name(key), lock.clone()));
        let stored = Stored { lock, expiry_ms };
        self.store.keys.insert(name(key), KeyState::Lock(stored));
        self.store.touched.insert(name(key));
    }

    /// Deletes a key. Then the timer fires.
    pub fn delete(&mut self, key: &str) {
        self.unlink(key);
        self.fire(vec![name(key)]);
    }

    /// Overwrites a key with another type. Then the timer fires.
    pub fn overwrite(&mut self, key: &str) {
        self.unlink(key);
        self.store.keys.insert(name(key), KeyState::OtherType);
        self.fire(vec![name(key)]);
    }

    fn unlink(&mut self, key: &str) {
        let state = self.store.keys.remove(&name(key));
        self.write(Written::Deleted(name(key)));
        self.table.end_session(state.iter().flat_map(sessions_of));
        if let Some(state) = state {
            self.lose_grants_at(key, &state);
        }
    }

    fn lose_grants_at(&mut self, key: &str, left: &KeyState) {
        if let KeyState::Lock(stored) = left {
            self.table.lose_grants_at(&name(key), &stored.lock, false);
        }
    }

    /// Starts the migration of a key's slot to another server. The key has already moved.
    pub fn send_away(&mut self, key: &str) {
        self.unlink(key);
        self.store.away.insert(name(key));
    }

    /// Cancels the migration of a key's slot.
    pub fn bring_back(&mut self, key: &str) {
        self.store.away.remove(&name(key));
    }

    /// Sets the key's own expiry, or removes it.
    pub fn expire(&mut self, key: &str, expiry_ms: Option<u64>) {
        if let Some(KeyState::Lock(stored)) = self.store.keys.get_mut(&name(key)) {
            stored.expiry_ms = expiry_ms;
            self.write(Written::Expires(name(key), expiry_ms));
        }
    }

    /// Returns the replies to waiters since the last call, like `WAIT k a: granted`, and the
    /// published messages, like `channel: message`.
    pub fn heard(&mut self) -> Vec<String> {
        std::mem::take(&mut self.heard)
    }

    pub fn waiting(&self) -> Vec<String> {
        self.waiting
            .values()
            .map(|(line, _)| line.clone())
            .collect()
    }

    /// Returns the tokens that hold a key with their holds, like `["a#1"]`.
    pub fn holders(&self, key: &str) -> Vec<String> {
        self.lock(key)
            .holders()
            .iter()
            .map(|h| {
                let (token, data) = (h.token.as_bytes(), h.data.as_bytes());
                let data = if data.is_empty() { "" } else { ":" }
                    .bytes()
                    .chain(data.iter().copied());
                let data = String::from_utf8(data.collect()).expect("text");
                format!("{}#{}{data}", token.escape_ascii(), h.holds)
            })
            .collect()
    }

    /// Returns the data of the waiters of a key, in their order, as `a:data`.
    pub fn data_of_queue(&self, key: &str) -> Vec<String> {
        let queue = self.table.queues().queue(&name(key));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        queue
            .map(|(_, waiter)| {
                let request = &waiter.request;
                let data = request.data.as_ref().map_or(&[][..], Data::as_bytes);
                format!("{}:{}", text(request.token.as_bytes()), text(data))
            })
            .collect()
    }

    /// Returns the wall clock in ms.
    pub const fn wall_ms(&self) -> u64 {
        wall_of(self.now_ms, self.clock_set_by_ms)
    }

    /// Returns the time of the steady clock at a time of the wall clock, in ms.
    pub const fn steady_at(&self, wall_ms: u64) -> u64 {
        wall_ms.saturating_add_signed(self.now_ms.cast_signed() - self.wall_ms().cast_signed())
    }

    /// Sets the wall clock. The module notices, and the timer fires.
    pub fn set_clock(&mut self, by_ms: i64) {
        self.clock_set_by_ms = by_ms;
        self.table.clock_was_set(self.now_ms);
        self.fire(Vec::new());
    }

    /// Returns the lock at a key as a reader sees it.
    pub fn lock(&self, key: &str) -> Lock {
        match self.store.keys.get(&name(key)) {
            Some(KeyState::Lock(stored)) => {
                redis_lock_core::table::as_of(stored.clone(), self.wall_ms())
            }
            _ => Lock::free(),
        }
    }

    pub fn fence(&self, key: &str, token: &str) -> u64 {
        let token = self::token(token);
        self.lock(key).holder(&token).map_or(0, |own| own.fence)
    }

    pub fn lease_ms(&self, key: &str, token: &str) -> u64 {
        let token = self::token(token);
        self.lock(key)
            .holder(&token)
            .map_or(0, |own| own.deadline_ms - self.wall_ms())
    }

    /// Takes the last hand-over back, because its client was gone before it got the reply.
    pub fn take_back_last(&mut self) {
        let hand_over = self.handed_over.pop().expect("a hand-over");
        self.take_back(&hand_over);
    }

    /// Takes a hand-over back.
    pub fn take_back(&mut self, hand_over: &HandOver) {
        let (before, cause) = (self.before(), self.take_back_of(hand_over));
        let decision = self.outside(|table, outside| table.take_back(hand_over, outside));
        self.carry_out(decision);
        self.judge(before, &cause);
    }

    /// Postpones what is due at these keys, because nothing may be granted there now.
    pub fn defer(&mut self, keys: &[&str]) {
        let names: Vec<Name> = keys.iter().map(|key| name(key)).collect();
        self.outside(|table, outside| table.defer(&names, 1000, outside));
    }

    pub fn outside<'n, T>(
        &mut self,
        decision: impl FnOnce(&mut LockTable, &mut Environment<'_, 'n>) -> T,
    ) -> T {
        self.store.steady_ms = self.now_ms;
        let mut effects = Effects::new();
        let limits = Limits {
            max_waiters: self.max_waiters,
            max_waiters_refusal: Refusal::MaxWaiters,
            max_tickets: self.max_tickets,
        };
        let mut outside = Environment {
            wall_us: self.wall_us(),
            fences: &self.fences,
            limits: &|| limits,
            store: &mut self.store,
            effects: &mut effects,
        };
        let decided = decision(&mut self.table, &mut outside);
        let owned = |effect: Effect<'_>| (Name::clone(&effect.name), effect.change);
        self.effects.extend(effects.into_iter().map(owned));
        decided
    }

    /// Returns the changes of all effects so far.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.stream.iter().filter_map(|written| match written {
            Written::Changed(_, change) => Some(change),
            _ => None,
        })
    }

    fn write(&mut self, written: Written) {
        self.replica.apply(&written);
        self.stream.push(written);
    }

    pub fn carry_out(&mut self, decision: Decision) {
        let effects = std::mem::take(&mut self.effects);
        for (name, change) in effects {
            let state = self.store.keys.remove(&name);
            let mut lock = match state {
                Some(KeyState::Lock(stored)) => stored.lock,
                Some(KeyState::OtherType) => panic!("an effect on a key of another type"),
                _ => Lock::free(),
            };
            effect::apply(&mut lock, &change);
            let expiry_ms = lock.latest_deadline_ms();
            if expiry_ms.is_some() {
                self.store
                    .keys
                    .insert(name.clone(), KeyState::Lock(Stored { lock, expiry_ms }));
            }
            self.write(Written::Changed(name, change));
        }
        let Some(mut deliveries) = decision.deliveries else {
            return;
        };
        for completion in deliveries.completions.drain(..) {
            let (line, _) = self
                .waiting
                .remove(&completion.waiter_id)
                .expect("a waiter");
            let said = match &completion.outcome {
                Outcome::Granted(_) | Outcome::Acknowledged(Acknowledged::Grant(_)) => {
                    "granted".to_owned()
                }
                Outcome::Acknowledged(Acknowledged::Count(count)) => count.to_string(),
                Outcome::TimedOut => "nil".to_owned(),
                Outcome::Refused(refusal) => refusal.text().split(' ').next().unwrap().to_owned(),
            };
            if let Outcome::Granted(hand_over) = completion.outcome {
                self.handed_over.push(hand_over);
            }
            self.heard.push(format!("{line}: {said}"));
        }
        for Publication { notification, .. } in deliveries.publications.drain(..) {
            let (channel, message) = (notification.channel(), notification.message());
            let words = [channel, message].map(|word| word.escape_ascii().to_string());
            self.heard.push(words.join(": "));
        }
        self.table.reuse(deliveries);
    }
}
