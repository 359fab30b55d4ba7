//! Every interleaving of a small world of two keys and three clients. Client a waits for both keys,
//! client b has a place in a queue, and client c ties its grants to its connection.
//!
//! States that differ only by the names of the keys count as different states. The table sorts the
//! names of a command, so a mistake can hit the second name alone: a search that swapped the names
//! missed one that we had planted.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::{Hash, Hasher};

use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::state::queue::KnownQueue;
use redis_lock_core::state::waiter::{Waiter, WaiterKind};
use redis_lock_core::store::KeyState;
use redis_lock_core::values::holder::Holder;
use redis_lock_core::values::session_id::SessionId;

use crate::search::{search, Bounds, Scene};
use crate::world::{self, Name, World};

/// The connection of client c.
const CONNECTION_OF_C: u64 = 1_000_003;

const KEYS: [&str; 2] = ["x", "y"];

/// One action of the world.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A client sends a command. Each command has a connection of its own, except those of client c.
    Say(&'static str),
    /// Time passes until the next deadline is over. Then the timer fires.
    Pass,
    /// Time passes until the next deadline, which isn't over then. The timer fires.
    PassAlmost,
    /// Time passes until the next deadline is over, but the timer is late.
    PassUnseen,
    /// The timer fires.
    Fire,
    /// The connection of the only blocked client, or of the first or last of several, is lost.
    LoseFirst,
    LoseLast,
    /// The same, but the timer is late.
    LoseUnseen,
    /// The server itself replies to a blocked client.
    Unblock,
    /// The replica acknowledges all effects so far.
    Acknowledge,
    /// The connection of client c closes. The timer fires, or is late.
    Close,
    CloseUnseen,
    /// The client of the last hand-over was gone before its reply.
    TakeBack,
    /// A key is renamed to the other key's name. The timer fires, or is late.
    Rename(&'static str, &'static str),
    RenameUnseen(&'static str, &'static str),
    /// A key is deleted.
    Delete(&'static str),
    /// A key gets an expiry by hand.
    Expire(&'static str),
}

/// The roles of the three clients, and all events.
const ROLES: [Act; 46] = [
    Act::Say("MWAIT 2 x y a PX 20 BLOCK 10"),
    Act::Say("MWAIT 2 x y a PX 20 BLOCK 10 KEEP 15"),
    Act::Say("MRELEASE 2 x y a"),
    Act::Say("MRELEASE 2 x y a LEAVE 25"),
    Act::Say("MEXTEND 2 x y a PX 30 GT"),
    Act::Say("RELEASE x a LEAVE 25"),
    Act::Say("RELEASE y a LEAVE 25"),
    Act::Say("CANCEL x a"),
    Act::Say("CANCEL y a"),
    Act::Say("QUEUE x b PX 21 KEEP 12"),
    Act::Say("QUEUE y b PX 21 KEEP 12"),
    Act::Say("QUEUE x b PX 21 KEEP 12 SHARED"),
    Act::Say("QUEUE y b PX 21 KEEP 12 SHARED"),
    Act::Say("CANCEL x b"),
    Act::Say("CANCEL y b"),
    Act::Say("RELEASE x b"),
    Act::Say("RELEASE y b"),
    Act::Say("RELEASE x b LEAVE 25"),
    Act::Say("RELEASE y b LEAVE 25"),
    Act::Say("ACQUIRE x c PX 22 SESSION"),
    Act::Say("ACQUIRE y c PX 22 SESSION"),
    Act::Say("ACQUIRE x c PX 22 SHARED SESSION KEEP 9"),
    Act::Say("ACQUIRE y c PX 22 SHARED SESSION KEEP 9"),
    Act::Say("WAIT x c PX 22 BLOCK 30 SESSION"),
    Act::Say("WAIT y c PX 22 BLOCK 30 SESSION"),
    Act::Say("EXTEND x c NOSESSION"),
    Act::Say("EXTEND y c NOSESSION"),
    Act::Say("RELEASE x c"),
    Act::Say("RELEASE y c"),
    Act::Pass,
    Act::PassAlmost,
    Act::PassUnseen,
    Act::Fire,
    Act::LoseFirst,
    Act::LoseLast,
    Act::LoseUnseen,
    Act::Unblock,
    Act::Close,
    Act::CloseUnseen,
    Act::TakeBack,
    Act::Rename("x", "y"),
    Act::Rename("y", "x"),
    Act::RenameUnseen("x", "y"),
    Act::RenameUnseen("y", "x"),
    Act::Delete("x"),
    Act::Delete("y"),
];

/// Every option of each command, and the events.
const OPTIONS: [Act; 58] = [
    Act::Say("MACQUIRE 2 x y a PX 20"),
    Act::Say("MACQUIRE 2 x y a PX 20 SHARED LIMIT 2 PERMITS 2"),
    Act::Say("MWAIT 2 x y a PX 20"),
    Act::Say("MWAIT 2 x y a PX 20 BLOCK 10 SHARED LIMIT 3 PERMITS 2"),
    Act::Say("MWAIT 2 x y a PX 20 BLOCK 10 REENTRANT DATA who"),
    Act::Say("MWAIT 2 x y a PX 20 KEEP 15 HOLDS 2"),
    Act::Say("MWAIT 2 x y a PX 20 BLOCK 10 REPLICAS 1 WITHIN 8"),
    Act::Say("MWAIT 2 x y a PX 20 SESSION KEEP 9"),
    Act::Say("MRELEASE 2 x y a ALL"),
    Act::Say("MRELEASE 2 x y a LEAVE 25"),
    Act::Say("MEXTEND 2 x y a PX 30 REPLICAS 1"),
    Act::Say("CANCEL x a"),
    Act::Say("CANCEL y a"),
    Act::Say("QUEUE x b PX 21 KEEP 12 NOTIFY jobs b"),
    Act::Say("QUEUE y b PX 21 KEEP 12 NOTIFY jobs b"),
    Act::Say("QUEUE x b PX 21 KEEP 12 SHARED LIMIT 2"),
    Act::Say("QUEUE y b PX 21 KEEP 12 SHARED LIMIT 2"),
    Act::Say("QUEUE x b PX 21 KEEP 12 HOLDS 2 SHARED LIMIT 3 PERMITS 2"),
    Act::Say("QUEUE y b PX 21 KEEP 12 HOLDS 2 SHARED LIMIT 3 PERMITS 2"),
    Act::Say("MQUEUE 2 x y b PX 21 KEEP 12 SHARED"),
    Act::Say("EXTEND x b PX 40"),
    Act::Say("EXTEND y b PX 40"),
    Act::Say("RELEASE x b HOLDS 1"),
    Act::Say("RELEASE y b HOLDS 1"),
    Act::Say("ACQUIRE x c PX 22 SHARED LIMIT 3 PERMITS 3 SESSION"),
    Act::Say("ACQUIRE y c PX 22 SHARED LIMIT 3 PERMITS 3 SESSION"),
    Act::Say("ACQUIRE x c PX 22 SHARED LIMIT 3 PERMITS 1"),
    Act::Say("ACQUIRE y c PX 22 SHARED LIMIT 3 PERMITS 1"),
    Act::Say("ACQUIRE x c PX 22 REENTRANT"),
    Act::Say("ACQUIRE y c PX 22 REENTRANT"),
    Act::Say("ACQUIRE x c PX 22 SHARED REPLICAS 1"),
    Act::Say("ACQUIRE y c PX 22 SHARED REPLICAS 1"),
    Act::Say("WAIT x c PX 22 SHARED SESSION KEEP 9"),
    Act::Say("WAIT y c PX 22 SHARED SESSION KEEP 9"),
    Act::Say("WAIT x c PX 22 BLOCK 30"),
    Act::Say("WAIT y c PX 22 BLOCK 30"),
    Act::Say("EXTEND x c SESSION KEEP 9"),
    Act::Say("EXTEND y c SESSION KEEP 9"),
    Act::Say("EXTEND x c FENCE 1000050000"),
    Act::Say("EXTEND y c FENCE 1000050000"),
    Act::Say("RELEASE x c"),
    Act::Say("RELEASE y c"),
    Act::Pass,
    Act::PassAlmost,
    Act::PassUnseen,
    Act::Fire,
    Act::LoseFirst,
    Act::LoseLast,
    Act::Unblock,
    Act::Acknowledge,
    Act::Close,
    Act::TakeBack,
    Act::Rename("x", "y"),
    Act::Rename("y", "x"),
    Act::Expire("x"),
    Act::Expire("y"),
    Act::Delete("x"),
    Act::Delete("y"),
];

/// The world with its actions.
struct SmallWorld {
    world: World,
    acts: &'static [Act],
    /// True if the last hand-over may still be taken back.
    is_undelivered: bool,
}

impl SmallWorld {
    fn new(acts: &'static [Act]) -> Self {
        let mut world = World::new();
        world.store.replicas = 1;
        Self {
            world,
            acts,
            is_undelivered: false,
        }
    }

    fn carry_out(&mut self, act: Act) {
        let (next_moment, blocked) = (self.next_moment(), self.blocked());
        let world = &mut self.world;
        match act {
            Act::Say(line) if line.contains(" c ") || line.ends_with(" c") => {
                world.say_as(CONNECTION_OF_C, line);
            }
            Act::Say(line) => drop(world.say(line)),
            Act::Pass => {
                world.now_ms = next_moment;
                world.fire(Vec::new());
            }
            Act::PassAlmost => {
                world.now_ms = next_moment - 1;
                world.fire(Vec::new());
            }
            Act::PassUnseen => world.now_ms = next_moment,
            Act::Fire => world.fire(Vec::new()),
            Act::LoseFirst => world.hang_up(&blocked[0]),
            Act::LoseLast => world.hang_up(&blocked[1]),
            Act::LoseUnseen => {
                let vacated = world.hang_up_unseen(&blocked[0]);
                world.store.touched.extend(vacated);
            }
            Act::Unblock => world.unblock(&blocked[0]),
            Act::Acknowledge => world.acknowledge(1),
            Act::Close => {
                world.close_connection(CONNECTION_OF_C);
                world.fire(Vec::new());
            }
            Act::CloseUnseen => world.close_connection(CONNECTION_OF_C),
            Act::TakeBack => world.take_back_last(),
            Act::Rename(from, to) => world.rename(from, to),
            Act::RenameUnseen(from, to) => world.rename_unseen(from, to),
            Act::Delete(key) => world.delete(key),
            Act::Expire(key) => {
                world.expire(key, Some(world.wall_ms() + 5));
                world.fire(vec![world::name(key)]);
            }
        }
    }

    fn is_possible(&self, act: Act) -> bool {
        let has_lock = |key: &str| self.world.store.keys.contains_key(&world::name(key));
        match act {
            Act::Say(line) => !self.is_blocked_on(line),
            Act::Pass | Act::PassUnseen => self.next_moment() > self.world.now_ms,
            Act::PassAlmost => self.next_moment() > self.world.now_ms + 1,
            Act::Fire => self.is_due(),
            Act::LoseFirst | Act::LoseUnseen | Act::Unblock => !self.blocked().is_empty(),
            Act::LoseLast => self.blocked().len() > 1,
            Act::Acknowledge => !self.world.table.replica_waits().is_empty(),
            Act::Close | Act::CloseUnseen => {
                let sessions = self.world.table.sessions();
                sessions.has_client(CONNECTION_OF_C) && !self.is_blocked_on("RELEASE x c")
            }
            Act::TakeBack => {
                let last = self.world.handed_over.last();
                self.is_undelivered && last.is_some_and(HandOver::is_revocable)
            }
            Act::Rename(key, _)
            | Act::RenameUnseen(key, _)
            | Act::Delete(key)
            | Act::Expire(key) => has_lock(key),
        }
    }

    /// Returns true if the connection that sends this line is blocked. Only client c has one
    /// connection for all its commands.
    fn is_blocked_on(&self, line: &str) -> bool {
        let is_of_c = |line: &str| line.contains(" c ") || line.ends_with(" c");
        is_of_c(line) && self.world.waiting().iter().any(|line| is_of_c(line))
    }

    /// Returns the lines of blocked clients, in their order.
    fn blocked(&self) -> Vec<String> {
        let mut blocked = self.world.waiting();
        blocked.sort_unstable();
        blocked
    }

    fn is_due(&self) -> bool {
        let due_ms = self.world.table.next_due_ms();
        let is_touched = !self.world.store.touched.is_empty();
        is_touched || due_ms.is_some_and(|ms| ms <= self.world.now_ms)
    }

    /// Returns the next time at which something is over or due.
    fn next_moment(&self) -> u64 {
        let World {
            table,
            store,
            marks,
            now_ms,
            ..
        } = &self.world;
        let leases = store.keys.values().flat_map(|state| match state {
            KeyState::Lock(stored) => {
                let holders = stored.lock.holders().iter();
                let ends = holders.map(|own| own.deadline_ms).chain(stored.expiry_ms);
                ends.map(|ms| self.world.steady_at(ms)).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        });
        let waiters = table.queues().by_name().flat_map(|(_, waiters)| waiters);
        let ends = waiters.filter_map(Waiter::end_ms);
        let ends = leases.chain(ends).chain(marks.values().copied());
        let over = ends.filter(|ms| ms >= now_ms).map(|ms| ms + 1);
        let due = table.next_due_ms().filter(|ms| ms > now_ms);
        over.chain(due).min().unwrap_or(*now_ms)
    }

    /// Returns the state as a text in which times count from now and fences by their rank.
    fn view(&self) -> String {
        let mut view = String::with_capacity(512);
        let names = KEYS.map(world::name);
        let fences = self.fences();
        for name in &names {
            self.view_lock(name, &fences, &mut view);
        }
        self.view_waiters(&names, &mut view);
        self.view_rest(&names, &fences, &mut view);
        view
    }

    fn fences(&self) -> Vec<u64> {
        let locks = self.world.store.keys.values();
        let holders = locks.flat_map(|state| match state {
            KeyState::Lock(stored) => stored.lock.holders().iter().cloned().collect(),
            _ => Vec::new(),
        });
        let mut fences: Vec<u64> = holders.map(|own: Holder| own.fence).collect();
        fences.sort_unstable();
        fences
    }

    fn view_lock(&self, name: &Name, fences: &[u64], view: &mut String) {
        let World { table, store, .. } = &self.world;
        if let Some(KeyState::Lock(stored)) = store.keys.get(name) {
            let _ = write!(
                view,
                "{:?} {:?}",
                stored.lock.mode(),
                self.left(stored.expiry_ms)
            );
            for own in stored.lock.holders().iter() {
                self.view_holder(own, fences, view);
            }
        }
        let known = table.queues().known(name);
        let known = known
            .and_then(KnownQueue::lock)
            .map(|lock| lock.holders().len());
        let is_touched = store.touched.contains(name);
        let _ = write!(
            view,
            "/{known:?} {is_touched} {}/",
            table.is_scheduled(name)
        );
    }

    fn view_holder(&self, own: &Holder, fences: &[u64], view: &mut String) {
        let sessions = self.world.table.sessions();
        let tie = match own.session {
            SessionId::NONE => "",
            SessionId::UNCLAIMED => "unclaimed",
            id if sessions.is_alive(id) => "tied",
            id if sessions.contains(id) => "orphan",
            _ => "unknown",
        };
        let rank = fences.partition_point(|fence| *fence < own.fence);
        let token = own.token.as_bytes();
        let left = self.left(Some(self.world.steady_at(own.deadline_ms)));
        let _ = write!(
            view,
            "{token:?} {rank} {} {} {} {left:?} {} {tie},",
            own.holds, own.limit, own.permits, own.lease_ms
        );
    }

    fn view_waiters(&self, names: &[Name; 2], view: &mut String) {
        let queues = names
            .iter()
            .flat_map(|name| self.world.table.queues().queue(name));
        let mut waiters: Vec<_> = queues.collect();
        waiters.sort_unstable_by_key(|(position, _)| *position);
        waiters.dedup_by_key(|(position, _)| *position);
        for (_, waiter) in waiters {
            let needs = names.each_ref().map(|name| waiter.names.contains(name));
            let request = &waiter.request;
            let asked = (
                request.mode,
                request.limit,
                request.permits,
                request.lease_ms,
            );
            let (reentry, tie) = (request.reentry, request.lease_kind);
            let end = self.left(waiter.end_ms());
            let keep = match &waiter.kind {
                WaiterKind::Place(place) => Some(place.keep_ms),
                kind => kind.keep_ms(self.world.now_ms),
            };
            let kind = waiter.kind.as_str();
            let replicas = waiter.replicas.is_some();
            let token = request.token.as_bytes();
            let _ = write!(
                view,
                "{token:?} {needs:?} {kind} {asked:?} {reentry:?} {tie:?} {end:?} {keep:?} {replicas};"
            );
        }
    }

    fn view_rest(&self, names: &[Name; 2], fences: &[u64], view: &mut String) {
        let World { table, marks, .. } = &self.world;
        let due = self.left(table.next_due_ms());
        let _ = write!(view, "/{due:?} {}", table.sessions().len());
        for ((name, token), until_ms) in marks {
            if *until_ms >= self.world.now_ms {
                let number = names.iter().position(|it| it == name);
                let _ = write!(view, " {number:?} {token} {:?}", self.left(Some(*until_ms)));
            }
        }
        let mut waits: Vec<_> = table.replica_waits().followed().collect();
        waits.sort_unstable();
        for (name, token, fence) in waits {
            let number = names.iter().position(|it| it == name);
            let rank = fences.partition_point(|it| *it < fence);
            let _ = write!(view, " {number:?} {:?} {rank}", token.as_bytes());
        }
        let undelivered = self
            .world
            .handed_over
            .last()
            .filter(|_| self.is_undelivered);
        if let Some(hand_over) = undelivered {
            let needs = names.each_ref().map(|name| hand_over.names.contains(name));
            let token = hand_over.grant.token.as_bytes();
            let _ = write!(view, "/{token:?} {needs:?} {}", hand_over.kept.is_some());
            for replaced in &hand_over.replaced {
                self.view_holder(&replaced.holder, fences, view);
            }
        }
    }

    /// Returns the time until `ms`, which may have passed.
    fn left(&self, ms: Option<u64>) -> Option<i64> {
        ms.map(|ms| ms.cast_signed() - self.world.now_ms.cast_signed())
    }

    fn check(&self) -> Result<(), String> {
        let World { table, .. } = &self.world;
        table.queues().check()?;
        table.sessions().check()?;
        table.replica_waits().check()?;
        let settled = self.world.check_settled();
        settled.map_err(|broken| broken.to_string())
    }
}

impl Scene for SmallWorld {
    fn possible(&self) -> Vec<u8> {
        let numbered = self.acts.iter().zip(0..);
        let possible = numbered.filter(|(act, _)| self.is_possible(**act));
        possible.map(|(_, number)| number).collect()
    }

    fn act(&mut self, action: u8, is_judged: bool) -> Result<(), String> {
        self.world.is_judged = is_judged;
        let act = self.acts[usize::from(action)];
        let (handed_over, now_ms) = (self.world.handed_over.len(), self.world.now_ms);
        self.carry_out(act);
        let stays = self.world.now_ms == now_ms && !matches!(act, Act::Say(_) | Act::TakeBack);
        let is_new = self.world.handed_over.len() > handed_over;
        self.is_undelivered = is_new || (self.is_undelivered && stays);
        if is_judged {
            self.check()?;
        }
        Ok(())
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.view().hash(&mut hasher);
        hasher.finish()
    }

    fn end(mut self) -> Result<(), String> {
        self.world.is_judged = false;
        while let Some(line) = self.blocked().first() {
            self.world.hang_up(line);
        }
        self.world.close_connection(CONNECTION_OF_C);
        self.world.close_all();
        self.world.pass_ms(1_000);
        self.world.pass_ms(1_000);
        let left = self.world.check_nothing_left();
        left.map_err(|broken| broken.to_string())
    }

    fn text(&self, action: u8) -> String {
        match self.acts[usize::from(action)] {
            Act::Say(line) => line.to_owned(),
            act => format!("{act:?}"),
        }
    }
}

/// Asserts that no path of this length breaks a promise.
#[track_caller]
fn assert_kept(start: fn() -> SmallWorld, depth: usize) {
    let found = search(start, Bounds::normally(depth));
    if let Some(harm) = &found.harm {
        panic!("{harm}");
    }
    assert!(found.depth >= depth, "only {found:?}");
}

#[test]
fn every_interleaving_of_three_roles_keeps_the_promises() {
    assert_kept(|| SmallWorld::new(&ROLES), 3);
}

#[test]
fn every_interleaving_of_all_options_keeps_the_promises() {
    assert_kept(|| SmallWorld::new(&OPTIONS), 3);
}
