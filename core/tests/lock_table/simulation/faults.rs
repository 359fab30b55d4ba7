//! Faults of a simulation, and the holds that they cost.
//!
//! A fault may end what a client holds, and the client learns of it later. Such a hold is judged
//! until the fault only. All other holds stay judged, so a fault costs no more than it must.

use redis_lock_core::values::fence::PROMOTION_JUMP;
use redis_lock_core::values::lock::Lock;
use redis_lock_core::values::name::Name;

use super::clients::SLOTS;
use super::random::Random;
use super::{Event, Run, REPLICAS, SERVERS};
use crate::stream::Replica;
use crate::world;

/// A fault, or how one goes on.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A program dies.
    Death,
    /// A program is paused, also for longer than its lease.
    Pause,
    /// A server hangs.
    Stall,
    /// The connection of a blocked client breaks.
    BreakAny,
    Break(u64),
    /// The server replies to a blocked client by itself.
    Unblock,
    /// The clock of a server is set. The module notices, and the clock is put right.
    SetClock,
    NoticeClock(usize),
    PutClockRight(usize),
    /// A replica that may lag is promoted.
    Failover,
    /// A server becomes a replica and a primary again.
    Demotion,
    /// A server starts again with its append-only file, with its snapshot, or with nothing.
    Restart,
    /// A replica reads later, or not at all for a time.
    Lag,
    Offline,
    Online(usize, usize),
    /// A slot moves to the other server.
    MoveSlot,
    Arrive(usize),
    /// Commands of an administrator.
    Flush,
    Delete,
    Overwrite,
    DeleteKey(&'static str),
    Rename,
    Expire,
    Restore,
    RestoreKey(&'static str, Box<Lock>),
}

/// All faults that strike by themselves.
const ALL: [Fault; 20] = [
    Fault::Death,
    Fault::Pause,
    Fault::Stall,
    Fault::BreakAny,
    Fault::BreakAny,
    Fault::Unblock,
    Fault::SetClock,
    Fault::Failover,
    Fault::Demotion,
    Fault::Restart,
    Fault::Lag,
    Fault::Offline,
    Fault::MoveSlot,
    Fault::Flush,
    Fault::Delete,
    Fault::Rename,
    Fault::Rename,
    Fault::Rename,
    Fault::Expire,
    Fault::Restore,
];

impl Fault {
    /// Returns the faults of a run: none, a few or all.
    pub fn some(random: &mut Random) -> Vec<Self> {
        let share = random.pick(&[0, 1, 2, 4, 4]);
        let chosen = ALL.iter().filter(|_| random.below(4) < share);
        let mut chosen: Vec<Self> = chosen.cloned().collect();
        if random.one_in(2) {
            chosen.push(Self::Overwrite);
        }
        chosen
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Death => "death",
            Self::Pause => "pause",
            Self::Stall => "stall",
            Self::BreakAny | Self::Break(_) => "break",
            Self::Unblock => "unblock",
            Self::SetClock | Self::NoticeClock(_) | Self::PutClockRight(_) => "clock",
            Self::Failover => "failover",
            Self::Demotion => "demotion",
            Self::Restart => "restart",
            Self::Lag => "lag",
            Self::Offline | Self::Online(..) => "offline",
            Self::MoveSlot | Self::Arrive(_) => "slot",
            Self::Flush => "flush",
            Self::Delete | Self::DeleteKey(_) => "delete",
            Self::Overwrite => "overwrite",
            Self::Rename => "rename",
            Self::Expire => "expire",
            Self::Restore | Self::RestoreKey(..) => "restore",
        }
    }
}

impl Run {
    /// Has a fault strike. Ends the holds that it takes.
    pub(super) fn strike(&mut self, fault: Fault) {
        *self.tally.faults.entry(fault.kind()).or_default() += 1;
        if self.is_traced {
            self.note(format!("FAULT {fault:?}"));
        }
        if let Fault::Break(connection) = fault {
            return self.close(connection);
        }
        let held = self.held();
        for client in &held {
            let client = *client;
            assert!(
                self.is_backed(client),
                "client {client} holds {:?} by its own clock alone",
                self.clients[client].wish.keys
            );
        }
        self.carry_out(fault);
        self.fault_number += 1;
        for client in held {
            if !self.is_backed(client) {
                self.end_hold(client, self.now_ms);
            }
        }
        (0..SERVERS).for_each(|server| {
            self.servers[server].collect();
            self.go_on(server);
        });
    }

    /// Returns the clients that hold something now by their own clocks.
    fn held(&mut self) -> Vec<usize> {
        for server in 0..SERVERS {
            self.server(server);
        }
        let now_ms = self.now_ms;
        let is_held = |client: &usize| {
            let client = &self.clients[*client];
            client.held_since_ms.is_some() && now_ms <= client.held_until_ms()
        };
        (0..self.clients.len()).filter(is_held).collect()
    }

    fn carry_out(&mut self, fault: Fault) {
        let number = self.random.index(SERVERS);
        let client = self.random.index(self.clients.len());
        let slot = self.random.index(SLOTS.len());
        let key = self.random.pick(&SLOTS[slot]);
        let ms = 1 + self.random.below(200);
        let now_ms = self.now_ms;
        let at_key = self.owners[slot];
        match fault {
            Fault::Death => {
                let until_ms = self.clients[client].held_until_ms();
                self.end_hold(client, until_ms);
                self.drive(client, |client, now_ms, _, out| client.die(now_ms, out));
            }
            Fault::Pause => self.clients[client].paused_until_ms = now_ms + ms,
            Fault::Stall => self.servers[number].stalled_until_ms = now_ms + ms,
            Fault::BreakAny => {
                if let Some((connection, _)) = self.any_waiting(number) {
                    let (start, in_ms) = (self.servers[number].start, self.delay());
                    self.push(in_ms, Event::Close(number, start, connection));
                }
            }
            Fault::Break(_) => {}
            Fault::Unblock => {
                if let Some((connection, _)) = self.any_waiting(number) {
                    self.unblock(number, connection, "UNBLOCKED");
                }
            }
            Fault::SetClock => {
                let back = self.random.one_in(2);
                let by_ms = if back {
                    -ms.cast_signed()
                } else {
                    ms.cast_signed()
                };
                self.servers[number].world.clock_set_by_ms += by_ms;
                self.servers[number].knows_time = false;
                self.begin_eras_ahead_of(number);
                self.later(10, Fault::NoticeClock(number));
                if self.random.one_in(2) {
                    self.later(300, Fault::PutClockRight(number));
                }
            }
            Fault::NoticeClock(number) => {
                let by_ms = self.servers[number].world.clock_set_by_ms;
                self.set_clock(number, by_ms);
            }
            Fault::PutClockRight(number) => self.set_clock(number, 0),
            Fault::Failover => self.fail_over(number),
            Fault::Demotion => self.demote(number),
            Fault::Restart => self.restart(number),
            Fault::Lag => {
                let lag_ms = self.random.pick(&[0, 0, 1, 5, 30, 200]);
                let replica = self.random.index(REPLICAS);
                self.servers[number].replicas[replica].lag_ms = lag_ms;
            }
            Fault::Offline => {
                let replica = self.random.index(REPLICAS);
                self.servers[number].replicas[replica].is_offline = true;
                self.servers[number].count_replicas();
                self.later(100, Fault::Online(number, replica));
            }
            Fault::Online(number, replica) => {
                self.servers[number].replicas[replica].is_offline = false;
                self.servers[number].count_replicas();
            }
            Fault::MoveSlot => self.begin_move(slot),
            Fault::Arrive(slot) => self.end_move(slot),
            Fault::Flush => self.server(number).world.flush(),
            Fault::Delete => self.server(at_key).world.delete(key),
            Fault::Overwrite => {
                self.server(at_key).world.overwrite(key);
                self.later(10, Fault::DeleteKey(key));
            }
            Fault::DeleteKey(key) => {
                for number in 0..SERVERS {
                    self.server(number).world.delete(key);
                }
            }
            Fault::Rename => {
                let to = SLOTS[slot][usize::from(key == SLOTS[slot][0])];
                let server = self.server(at_key);
                if server.world.store.keys.contains_key(&world::name(key)) {
                    server.rename(key, to);
                    self.begin_era_at(at_key, slot, to);
                }
            }
            Fault::Expire => {
                let world = &mut self.server(at_key).world;
                world.expire(key, Some(world.wall_ms() + ms));
                world.store.touched.insert(world::name(key));
            }
            Fault::Restore => {
                let lock = self.server(at_key).world.dump(key);
                if let Some(lock) = lock.map(Box::new) {
                    self.later(100, Fault::RestoreKey(key, lock));
                }
            }
            Fault::RestoreKey(key, lock) => {
                let slot = SLOTS.iter().position(|keys| keys.contains(&key));
                let slot = slot.expect("a key of a slot");
                let owner = self.owners[slot];
                self.server(owner).world.restore_unseen(key, &lock);
                self.begin_era_at(owner, slot, key);
            }
        }
    }

    /// Begins a new era if a lock came to a key that has grants: the key may have been granted since, or
    /// be granted before their clients learn of them.
    fn begin_era_at(&mut self, number: usize, slot: usize, key: &str) {
        if !self.servers[number].world.lock(key).holders().is_empty() {
            self.eras[slot] += 1;
        }
    }

    fn later(&mut self, most_ms: u64, fault: Fault) {
        let in_ms = self.random.below(most_ms);
        self.push(in_ms, Event::Later(fault));
    }

    fn any_waiting(&mut self, server: usize) -> Option<(u64, usize)> {
        let waiting = self.servers[server].waiting();
        (!waiting.is_empty()).then(|| self.random.pick(&waiting))
    }

    fn unblock(&mut self, server: usize, connection: u64, answer: &str) {
        let reply = self.server(server).unblock(connection, answer);
        reply.into_iter().for_each(|reply| self.reply(reply));
    }

    // ---- Starts of servers

    fn fail_over(&mut self, number: usize) {
        let server = &self.servers[number];
        let chosen = self.random.index(REPLICAS);
        let most = server.replicas.iter().max_by_key(|it| it.read);
        let replica = match self.random.below(3) {
            0 => server.replicas[chosen].clone(),
            _ => most.expect("a replica").clone(),
        };
        self.start(number, &replica.copy, replica.clock_ms, Start::Promotion);
    }

    fn restart(&mut self, number: usize) {
        let server = &self.servers[number];
        let from = match self.random.below(5) {
            0 => Replica::default(),
            1 => server.snapshot.clone(),
            _ => server.log.copy.clone(),
        };
        let clock_ms = server.world.clock_set_by_ms;
        self.start(number, &from, clock_ms, Start::Load);
    }

    /// Starts a server after some time, in which it is not there.
    fn start(&mut self, number: usize, from: &Replica, clock_ms: i64, how: Start) {
        let down_ms = 5 + self.random.below(40);
        let old = &self.servers[number].world;
        let (last, last_judged) = (old.fences().last(), old.last_fence);
        let server = &mut self.servers[number];
        server.stalled_until_ms = self.now_ms + down_ms;
        server.start_with(from, clock_ms);
        let wall_us = world::wall_of(self.now_ms + down_ms, clock_ms) * 1000;
        if how == Start::Promotion {
            server.world.fences().promote(wall_us);
        }
        server.sync_all();
        let is_past = last < wall_us;
        // A promotion skips more fences than were lost, unless the last such skip was lost too.
        let was_ahead = from.last_fence > wall_us && last <= from.last_fence + PROMOTION_JUMP;
        let keeps_fences = match how {
            Start::Promotion => is_past || was_ahead,
            Start::Load => from.last_fence >= last,
        };
        // The clock of a machine that starts is often set soon.
        self.later(100, Fault::SetClock);
        if keeps_fences {
            self.servers[number].world.last_fence = last_judged;
        } else {
            self.begin_era(|owner| owner == number);
        }
    }

    fn begin_era(&mut self, is_meant: impl Fn(usize) -> bool) {
        for (era, owner) in self.eras.iter_mut().zip(self.owners) {
            *era += u32::from(is_meant(owner));
        }
    }

    fn demote(&mut self, number: usize) {
        for (connection, _) in self.servers[number].waiting() {
            self.unblock(number, connection, "UNBLOCKED");
        }
        let now_ms = self.now_ms;
        let world = &mut self.server(number).world;
        let touched = world.table.demote(now_ms);
        world.store.touched.extend(touched);
        world.fences().promote(world.wall_us());
    }

    // ---- Slots

    /// Sets a clock, which the module notices.
    fn set_clock(&mut self, number: usize, by_ms: i64) {
        self.server(number).set_clock(by_ms);
        self.begin_eras_ahead_of(number);
    }

    /// Begins an era of each slot that had greater fences than the next one of its server. If a clock goes
    /// back, fences of a slot whose lock was free when it came may fall.
    fn begin_eras_ahead_of(&mut self, number: usize) {
        let world = &self.servers[number].world;
        let next = world.fences().last().max(world.wall_us());
        for slot in 0..SLOTS.len() {
            if self.owners[slot] == number && self.last_fences[slot] >= next {
                self.eras[slot] += 1;
                self.last_fences[slot] = 0;
            }
        }
    }

    fn begin_move(&mut self, slot: usize) {
        if self.is_moving[slot] {
            return;
        }
        self.is_moving[slot] = true;
        let names = SLOTS[slot].map(world::name);
        self.servers[self.owners[slot]]
            .world
            .store
            .away
            .extend(names);
        self.later(30, Fault::Arrive(slot));
    }

    /// Moves the keys of a slot whole, and the slot with them.
    fn end_move(&mut self, slot: usize) {
        let (from, to) = (self.owners[slot], 1 - self.owners[slot]);
        for key in SLOTS[slot] {
            let lock = self.server(from).world.dump(key);
            self.server(from).world.send_away(key);
            let target = &mut self.server(to).world;
            target.bring_back(key);
            if let Some(lock) = lock {
                target.restore_unseen(key, &lock);
            }
        }
        self.owners[slot] = to;
        self.is_moving[slot] = false;
        for (connection, of) in self.servers[from].waiting() {
            if of == slot {
                self.unblock(from, connection, "MOVED");
            }
        }
        let names = SLOTS[slot].map(world::name);
        let now_ms = self.now_ms;
        let source = &mut self.server(from).world;
        let left: Vec<Name> = source.table.drop_places_at(&names, 100, now_ms);
        source.store.touched.extend(left);
        self.last_fences[slot] = source.fences().last();
        let by_ms = self.servers[to].world.clock_set_by_ms;
        self.set_clock(to, by_ms);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Promotion,
    Load,
}
