//! A server in memory: a keyspace, a replica, a clock that is moved by hand, and clients that say
//! command lines. Everything goes through the grammar and the desk, as on a real server.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use redis_lock_core::desk::{
    Answer, Caller, Desk, Outcome, Server, Slot, Verdict, World as Outside,
};
use redis_lock_core::effect::{self, Stored};
use redis_lock_core::fence::Fences;
use redis_lock_core::grammar::{self, Keys, Setting};
use redis_lock_core::hand_over::HandOver;
use redis_lock_core::lock::Lock;
use redis_lock_core::name::Name;
use redis_lock_core::order::Order;
use redis_lock_core::queue::{Seat, Waiter};
use redis_lock_core::session::TieId;
use redis_lock_core::token::Token;
use redis_lock_core::Moment;

/// When the clock starts, in ms: far enough from 0 that nothing underflows unseen.
pub const START_MS: u64 = 1_000_000;

#[derive(Default)]
pub struct Store {
    pub keys: BTreeMap<Name, Slot>,
    pub reads: usize,
    /// Keys whose slot is on its way to another server.
    pub away: BTreeSet<Name>,
    /// Tokens of users that lost their rights.
    pub barred: BTreeSet<Token>,
}

impl Server for Store {
    fn read(&mut self, name: &Name) -> Slot {
        self.reads += 1;
        self.keys.get(name).cloned().unwrap_or(Slot::Empty)
    }

    fn is_here(&mut self, name: &Name) -> bool {
        !self.away.contains(name)
    }

    fn is_touched(&mut self, _: &Name) -> bool {
        false
    }

    fn is_any_touched(&mut self) -> bool {
        false
    }

    fn permits(&mut self, waiter: &Waiter) -> bool {
        !self.barred.contains(&waiter.ask.token)
    }
}

pub struct World {
    pub desk: Desk,
    pub store: Store,
    /// What a replica has that sees nothing but the effects.
    pub replica: BTreeMap<Name, Lock>,
    /// The steady clock.
    pub now_ms: u64,
    /// How far the wall clock was set ahead of it, or behind.
    pub clock_set_by_ms: i64,
    pub max_waiters: usize,
    fences: Fences,
    next_seat: u64,
    /// Who sits where.
    seated: HashMap<Seat, String>,
    /// Which connection said what, the last time it was said.
    said: HashMap<String, u64>,
    /// What was said to whom since the last look.
    heard: Vec<String>,
    pub effects_seen: usize,
    /// All hand-overs, oldest first.
    pub handed_over: Vec<HandOver>,
}

fn ties_of(slot: &Slot) -> Vec<TieId> {
    match slot {
        Slot::Lock(stored) => stored.lock.holders().iter().map(|own| own.tie).collect(),
        Slot::Empty | Slot::Foreign => Vec::new(),
    }
}

pub fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).expect("a token")
}

pub fn name(key: &str) -> Name {
    Name::new(0, key.as_bytes())
}

impl World {
    pub fn new() -> Self {
        Self {
            desk: Desk::new(),
            store: Store::default(),
            replica: BTreeMap::new(),
            now_ms: START_MS,
            clock_set_by_ms: 0,
            max_waiters: 0,
            fences: Fences::new(),
            next_seat: 1,
            seated: HashMap::new(),
            said: HashMap::new(),
            heard: Vec::new(),
            effects_seen: 0,
            handed_over: Vec::new(),
        }
    }

    /// A client says a line such as `WAIT k a PX 100`; the answer, shortened: `granted`, `nil`,
    /// `waits`, a number, or the error's text.
    pub fn say(&mut self, line: &str) -> String {
        let client_id = self.next_seat;
        self.say_as(client_id, line)
    }

    /// The client that said this line last.
    pub fn client_of(&self, line: &str) -> u64 {
        self.said.get(line).copied().expect("a line that was said")
    }

    /// As `say`, on a connection that is there already.
    pub fn say_as(&mut self, client_id: u64, line: &str) -> String {
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        let (command, words) = words.split_first().expect("a command");
        let command = std::str::from_utf8(command).expect("text");
        let (many, verb) = match command.strip_prefix('M') {
            Some(verb) => (Keys::Many, verb),
            None => (Keys::One, command),
        };
        let draw = || Ok(Token::from_bits(1));
        let setting = Setting {
            db: 0,
            default_lease_ms: 1000,
            draw_token: &draw,
        };
        let order = match verb {
            "ACQUIRE" => grammar::acquire(words, many, &setting),
            "WAIT" => grammar::wait(words, many, &setting),
            "EXTEND" => grammar::extend(words, many, &setting),
            "RELEASE" => grammar::release(words, many, &setting),
            other => unreachable!("{other}"),
        };
        let order = match order {
            Ok(order) => order,
            Err(refusal) => return refusal.to_string(),
        };
        let seat = Seat(self.next_seat);
        self.next_seat += 1;
        self.said.insert(line.to_owned(), client_id);
        let outcome = self
            .outside(|desk, outside| desk.carry_out(order, Caller { client_id, seat }, outside));
        if outcome.answer == Ok(Answer::Queued) {
            self.seated.insert(seat, line.to_owned());
        }
        let said = match &outcome.answer {
            Ok(Answer::Granted(_)) => "granted".to_owned(),
            Ok(Answer::NotNow) => "nil".to_owned(),
            Ok(Answer::Queued) => "waits".to_owned(),
            Ok(Answer::Count(count)) => count.to_string(),
            Err(refusal) => refusal.to_string(),
        };
        self.take_in(outcome);
        said
    }

    /// Moves the clock and rings the alarm, as the timer does.
    pub fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
        self.ring(Vec::new());
    }

    /// Settles these keys and whatever is due.
    pub fn ring(&mut self, mut names: Vec<Name>) {
        loop {
            names.extend(self.desk.due_names(self.now_ms, 1000));
            let outcome = self.outside(|desk, outside| desk.settle_due(&names, 1000, outside));
            self.take_in(outcome);
            names.clear();
            if self.desk.next_due_ms().is_none_or(|ms| ms > self.now_ms) {
                return;
            }
        }
    }

    /// The connection that said this line is gone.
    pub fn hang_up(&mut self, line: &str) {
        let seat = self
            .seated
            .iter()
            .find(|(_, said)| *said == line)
            .map(|(seat, _)| *seat);
        let seat = seat.unwrap_or_else(|| panic!("nobody waits with {line:?}"));
        self.seated.remove(&seat);
        let vacated = self.desk.leave(seat);
        self.ring(vacated);
    }

    /// The connection that said this line closes.
    pub fn close(&mut self, line: &str) {
        let client_id = self.said.get(line).copied();
        let client_id = client_id.unwrap_or_else(|| panic!("nobody said {line:?}"));
        self.desk.orphan(client_id);
        self.ring(Vec::new());
    }

    /// All connections that don't wait close.
    pub fn close_all(&mut self) {
        self.orphan_all();
        self.ring(Vec::new());
    }

    /// As `close_all`, but the timer doesn't ring yet.
    pub fn orphan_all(&mut self) {
        let waiting: Vec<u64> = self.seated.keys().map(|seat| seat.0).collect();
        let gone = (1..self.next_seat).filter(|id| !waiting.contains(id));
        gone.for_each(|id| self.desk.orphan(id));
    }

    /// Somebody renames a key.
    pub fn rename(&mut self, from: &str, to: &str) {
        let slot = self.store.keys.remove(&name(from)).expect("a key");
        let ties = ties_of(&slot);
        self.desk.relocate(&ties, &name(to));
        self.store.keys.insert(name(to), slot);
        let copy = self.replica.remove(&name(from));
        self.replica.extend(copy.map(|copy| (name(to), copy)));
        self.ring(vec![name(from), name(to)]);
    }

    /// Somebody deletes the key.
    pub fn delete(&mut self, key: &str) {
        self.unlink(key);
        self.ring(vec![name(key)]);
    }

    /// Somebody writes another type over the key.
    pub fn overwrite(&mut self, key: &str) {
        self.unlink(key);
        self.store.keys.insert(name(key), Slot::Foreign);
        self.ring(vec![name(key)]);
    }

    fn unlink(&mut self, key: &str) {
        let slot = self.store.keys.remove(&name(key));
        self.replica.remove(&name(key));
        self.desk.untie(slot.iter().flat_map(ties_of));
    }

    /// The key's slot is on its way to another server, the key went ahead.
    pub fn send_away(&mut self, key: &str) {
        self.store.keys.remove(&name(key));
        self.store.away.insert(name(key));
        self.replica.remove(&name(key));
    }

    /// The key's slot stays here after all.
    pub fn bring_back(&mut self, key: &str) {
        self.store.away.remove(&name(key));
    }

    /// Somebody gives the key an expiry of its own, or takes it away.
    pub fn expire(&mut self, key: &str, expiry_ms: Option<u64>) {
        if let Some(Slot::Lock(stored)) = self.store.keys.get_mut(&name(key)) {
            stored.expiry_ms = expiry_ms;
        }
    }

    /// What was said to those who waited since the last look, such as `WAIT k a: granted`.
    pub fn heard(&mut self) -> Vec<String> {
        std::mem::take(&mut self.heard)
    }

    pub fn waiting(&self) -> Vec<String> {
        self.seated.values().cloned().collect()
    }

    /// Who holds a key, such as `["a#1"]`: token, holds.
    pub fn holders(&self, key: &str) -> Vec<String> {
        self.lock(key)
            .holders()
            .iter()
            .map(|h| format!("{}#{}", h.token.as_bytes().escape_ascii(), h.holds))
            .collect()
    }

    /// The wall clock.
    pub fn wall_ms(&self) -> u64 {
        self.now_ms.saturating_add_signed(self.clock_set_by_ms)
    }

    /// Somebody sets the wall clock; the module notices.
    pub fn set_clock(&mut self, by_ms: i64) {
        self.clock_set_by_ms = by_ms;
        self.desk.clock_was_set(self.now_ms);
        self.ring(Vec::new());
    }

    /// The lock as a reader sees it.
    pub fn lock(&self, key: &str) -> Lock {
        match self.store.keys.get(&name(key)) {
            Some(Slot::Lock(stored)) => redis_lock_core::desk::seen(stored.clone(), self.wall_ms()),
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

    /// The client of the last hand-over was gone before it could know of it.
    pub fn take_back_last(&mut self) {
        let hand_over = self.handed_over.pop().expect("a hand-over");
        let nobody = Caller {
            client_id: 0,
            seat: Seat(0),
        };
        let order = Order::TakeBack(hand_over);
        let outcome = self.outside(|desk, outside| desk.carry_out(order, nobody, outside));
        self.take_in(outcome);
    }

    /// Nothing may be granted at these keys now: whatever is due there waits.
    pub fn put_off(&mut self, keys: &[&str]) {
        let names: Vec<Name> = keys.iter().map(|key| name(key)).collect();
        self.outside(|desk, outside| desk.put_off(&names, 1000, outside));
    }

    pub fn outside<T>(&mut self, decision: impl FnOnce(&mut Desk, &mut Outside<'_>) -> T) -> T {
        let mut outside = Outside {
            moment: Moment {
                us: self.now_ms.saturating_add_signed(self.clock_set_by_ms) * 1000,
                steady_ms: self.now_ms,
            },
            fences: &self.fences,
            max_waiters: self.max_waiters,
            server: &mut self.store,
        };
        decision(&mut self.desk, &mut outside)
    }

    pub fn take_in(&mut self, outcome: Outcome) {
        self.effects_seen += outcome.effects.len();
        for effect in outcome.effects {
            let slot = self.store.keys.remove(&effect.name);
            let mut lock = match slot {
                Some(Slot::Lock(stored)) => stored.lock,
                Some(Slot::Foreign) => panic!("an effect on another type's key"),
                _ => Lock::free(),
            };
            effect::apply(&mut lock, &effect.change);
            let expiry_ms = lock.latest_deadline_ms();
            if expiry_ms.is_some() {
                self.store
                    .keys
                    .insert(effect.name.clone(), Slot::Lock(Stored { lock, expiry_ms }));
            }
            let copy = self.replica.entry(effect.name.clone()).or_default();
            effect::apply(copy, &effect.change);
            if copy.is_free() {
                self.replica.remove(&effect.name);
            }
        }
        for wake in outcome.wakes {
            let line = self
                .seated
                .remove(&wake.seat)
                .expect("a wake for somebody seated");
            let said = match &wake.verdict {
                Verdict::Granted(_) => "granted".to_owned(),
                Verdict::TimedOut => "nil".to_owned(),
                Verdict::Refused(refusal) => refusal.text().split(' ').next().unwrap().to_owned(),
            };
            if let Verdict::Granted(hand_over) = wake.verdict {
                self.handed_over.push(hand_over);
            }
            self.heard.push(format!("{line}: {said}"));
        }
    }
}
