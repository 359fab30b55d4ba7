//! The lock table's invariant, checked after each operation in debug builds: no waiter is
//! admissible and still waits.
//!
//! The check covers the names that the operation has read. It uses the locks and the queues only.
//! So it finds errors in the records that save the table work.

use super::lock_table::WaitQueues;
use crate::budget::MOST_STEPS;
use crate::state::queue::Position;
use crate::state::waiter::Waiter;
use crate::transaction::Transaction;
use crate::values::lock::{Compatibility, Lock};
use crate::values::name::Name;
use crate::values::time::Now;

/// The most names checked, and the most waiters checked for each name. A debug build may serve
/// thousands.
const MOST_CHECKED: usize = 32;

/// The most waiters left to the timer. Beyond this nothing is checked, because each waiter is
/// compared with all of them.
const MOST_LEFT: usize = 1024;

/// A waiter that is admissible and still waits, with what the check saw of its names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overlooked {
    waiter: Waiter,
    seen: Vec<Seen>,
    now: Now,
}

/// A name as the check saw it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    is_read: bool,
    lock: Option<Lock>,
    due_ms: Option<u64>,
}

impl WaitQueues {
    /// Returns a waiter that is admissible and still waits, if there is one.
    pub(super) fn overlooked(&self, tx: &mut Transaction) -> Option<Overlooked> {
        let is_left_to_timer = self.queues.is_anyone_leaving() || self.backlog.len() > MOST_LEFT;
        if self.queues.is_empty() || tx.steps >= MOST_STEPS || is_left_to_timer {
            return None;
        }
        let names: Vec<Name> = tx.names_read().take(MOST_CHECKED).cloned().collect();
        let queued = names.iter().flat_map(|name| {
            let queue = self.queues.queue(name).take(MOST_CHECKED);
            queue.map(|(position, _)| position).collect::<Vec<_>>()
        });
        let overlooked = queued
            .into_iter()
            .find(|position| self.is_overlooked(*position, tx))?;
        let waiter = self.queues.at(overlooked).cloned()?;
        let seen = waiter.names.iter().map(|name| Seen {
            is_read: tx.has_read(name),
            lock: tx.peek(name),
            due_ms: self.schedule.time_of(name),
        });
        Some(Overlooked {
            seen: seen.collect(),
            now: tx.now(),
            waiter,
        })
    }

    fn is_overlooked(&self, position: Position, tx: &mut Transaction) -> bool {
        let is_left_to_timer =
            |waiter: &Waiter| self.backlog.includes(position, &waiter.request.token);
        let waiter = self.queues.at(position);
        let waiter = waiter.filter(|it| !it.kind.is_absent() && !is_left_to_timer(it));
        waiter.is_some_and(|waiter| {
            let mut names = waiter.names.iter();
            names.all(|name| self.is_open_to(name, position, waiter, tx))
        })
    }

    /// Returns true if no holder and no other waiter blocks a waiter at a name. Returns false if
    /// the timer is to look at the name first.
    fn is_open_to(
        &self,
        name: &Name,
        position: Position,
        waiter: &Waiter,
        tx: &mut Transaction,
    ) -> bool {
        let is_read = tx.has_read(name);
        let Some(lock) = tx.peek(name) else {
            return false;
        };
        // A lease may have ended at a name that is due. The timer looks at it, because the server
        // may just have deleted the key.
        let due_ms = self.schedule.time_of(name);
        let is_due = !is_read && due_ms.is_some_and(|ms| ms <= tx.steady_ms());
        // A free name is scheduled if its lock may be on another server. The timer looks again
        // soon.
        let is_due = is_due || (lock.is_free() && due_ms.is_some());
        if is_due || tx.environment.store.is_touched(name) {
            return false;
        }
        match lock.compatibility(&waiter.request) {
            Compatibility::Reentry { .. }
            | Compatibility::Downgrade { .. }
            | Compatibility::Upgrade
            | Compatibility::Raise { .. } => true,
            Compatibility::Admitted => {
                self.queues.head_at(name) == Some(position) && tx.environment.store.is_here(name)
            }
            Compatibility::UpgradeBlocked
            | Compatibility::RaiseBlocked { .. }
            | Compatibility::Blocked => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::effect::Effects;
    use crate::state::queue::End;
    use crate::state::waiter::{User, WaiterId, WaiterKind};
    use crate::store::{Environment, KeyState, Limits, Store};
    use crate::table::LockTable;
    use crate::transaction::Workspace;
    use crate::values::data::Data;
    use crate::values::fence::Fences;
    use crate::values::holder::{Holder, Mode};
    use crate::values::lock::Stored;
    use crate::values::name::Names;
    use crate::values::refusal::Refusal;
    use crate::values::request::{LeaseKind, Reentry, Request};
    use crate::values::session_id::SessionId;
    use crate::values::token::Token;

    /// A keyspace in which every key is the same.
    #[derive(Default)]
    struct Keys {
        holder: Option<&'static str>,
        is_away: bool,
        is_touched: bool,
    }

    impl Store for Keys {
        fn read(&mut self, _: &Name) -> KeyState {
            self.holder.map_or(KeyState::Empty, |of| {
                KeyState::Lock(Stored {
                    lock: Lock::sole(Mode::Exclusive, own(of)),
                    expiry_ms: Some(9_000),
                })
            })
        }

        fn can_read(&mut self, _: &Name, _: &Name) -> bool {
            true
        }

        fn is_here(&mut self, _: &Name) -> bool {
            !self.is_away
        }

        fn is_touched(&mut self, _: &Name) -> bool {
            self.is_touched
        }

        fn is_any_touched(&mut self) -> bool {
            self.is_touched
        }

        fn is_settling(&mut self, _: &Name) -> bool {
            false
        }

        fn steady_ms(&mut self) -> u64 {
            100
        }

        fn user(&mut self) -> User {
            User::default()
        }

        fn has_replicas(&mut self, _: NonZeroU16) -> bool {
            true
        }

        fn may_be_granted(&mut self, _: &Waiter) -> bool {
            true
        }
    }

    fn token(text: &str) -> Token {
        Token::new(text.as_bytes()).expect("a token")
    }

    fn name(key: &str) -> Name {
        Name::new(0, key.as_bytes())
    }

    fn own(of: &str) -> Holder {
        Holder {
            token: token(of),
            fence: 1,
            holds: 1,
            limit: 0,
            permits: 1,
            deadline_ms: 9_000,
            lease_ms: 9,
            since_ms: 0,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        }
    }

    fn waiter(of: &str, kind: WaiterKind) -> Waiter {
        Waiter {
            waiter_id: WaiterId(1),
            client_id: 1,
            kind,
            names: Names::one(name("x")),
            request: Request {
                token: token(of),
                mode: Mode::Exclusive,
                limit: 0,
                permits: 1,
                lease_ms: 10,
                reentry: Reentry::Renews,
                lease_kind: LeaseKind::Lease,
                data: None,
            },
            since_ms: 0,
            timeout_ms: None,
            replicas: None,
        }
    }

    /// Returns the token that the check finds among the waiters of a table.
    fn found(table: &mut LockTable, mut keys: Keys, read: &[&str], steps: u64) -> Option<Token> {
        let mut effects = Effects::new();
        let limits = || Limits {
            max_waiters: 0,
            max_waiters_refusal: Refusal::MaxWaiters,
            max_tickets: 0,
        };
        let mut environment = Environment {
            wall_us: 100_000,
            fences: &Fences::new(),
            limits: &limits,
            store: &mut keys,
            effects: &mut effects,
        };
        let LockTable {
            wait_queues,
            sessions,
            replica_waits,
            ..
        } = table;
        let mut workspace = Workspace::default();
        let ties = (sessions, replica_waits);
        let mut tx = Transaction::new(&[], &mut environment, ties, &mut workspace);
        for key in read {
            tx.entry(&name(key));
        }
        tx.steps = steps;
        let overlooked = wait_queues.overlooked(&mut tx);
        overlooked.map(|overlooked| overlooked.waiter.request.token)
    }

    const BLOCKED: WaiterKind = WaiterKind::Blocked { keep_ms: None };

    /// Returns a table in which a waits for x.
    fn table() -> LockTable {
        let mut table = LockTable::new();
        let queues = &mut table.wait_queues.queues;
        queues.enqueue(waiter("a", BLOCKED), End::Back, None, None);
        table
    }

    #[test]
    fn an_admissible_waiter_that_still_waits_is_found() {
        let free = Keys::default;
        let held = |of| Keys {
            holder: Some(of),
            ..Keys::default()
        };
        assert_eq!(found(&mut table(), free(), &["x"], 0), Some(token("a")));
        assert_eq!(found(&mut table(), held("a"), &["x"], 0), Some(token("a")));
        for (keys, read, steps, why) in [
            (held("b"), "x", 0, "another holds"),
            (free(), "y", 0, "the operation has not read the name"),
            (free(), "x", MOST_STEPS, "the rest is left to the timer"),
        ] {
            assert_eq!(found(&mut table(), keys, &[read], steps), None, "{why}");
        }
        let (is_away, is_touched) = (true, true);
        let away = Keys { is_away, ..free() };
        assert_eq!(found(&mut table(), away, &["x"], 0), None, "elsewhere");
        let touched = Keys {
            is_touched,
            ..free()
        };
        assert_eq!(found(&mut table(), touched, &["x"], 0), None, "touched");
    }

    #[test]
    fn a_waiter_that_is_behind_another_or_left_to_the_timer_is_not_found() {
        let absent = WaiterKind::Absent { until_ms: 900 };
        for (kind, expected) in [(BLOCKED, Some("a")), (absent, None)] {
            let mut table = LockTable::new();
            let queues = &mut table.wait_queues.queues;
            queues.enqueue(waiter("a", kind), End::Back, None, None);
            let expected = expected.map(token);
            assert_eq!(found(&mut table, Keys::default(), &["x"], 0), expected);
        }
        let mut second = table();
        let queues = &mut second.wait_queues.queues;
        queues.enqueue(waiter("b", BLOCKED), End::Front, None, None);
        let first = found(&mut second, Keys::default(), &["x"], 0);
        assert_eq!(first, Some(token("b")));
        let held = Keys {
            holder: Some("b"),
            ..Keys::default()
        };
        assert_eq!(found(&mut second, held, &["x"], 0), Some(token("b")));

        let mut left = table();
        let position = left
            .wait_queues
            .queues
            .head_at(&name("x"))
            .expect("a waiter");
        left.wait_queues.backlog.insert(200, position, Vec::new());
        assert_eq!(found(&mut left, Keys::default(), &["x"], 0), None);
        let mut due = table();
        due.wait_queues.schedule.set(&name("x"), 500, 0);
        assert_eq!(
            found(&mut due, Keys::default(), &["x"], 0),
            None,
            "perhaps away"
        );
    }

    /// Nothing is checked while positions that were left are in the lists, or while many waiters are
    /// left to the timer.
    #[test]
    fn nothing_is_found_while_much_is_left_to_the_timer() {
        let mut leaving = table();
        let queues = &mut leaving.wait_queues.queues;
        let names = Names::set(vec![name("y"), name("z")]).expect("two names");
        let other = Waiter {
            names,
            ..waiter("b", BLOCKED)
        };
        let (position, _) = queues.enqueue(other, End::Back, None, None);
        queues.leave(position);
        assert_eq!(found(&mut leaving, Keys::default(), &["x"], 0), None);

        for (left, expected) in [(MOST_LEFT, Some(token("a"))), (MOST_LEFT + 1, None)] {
            let mut table = table();
            let WaitQueues {
                queues, backlog, ..
            } = &mut table.wait_queues;
            for number in 0..left {
                let other = Waiter {
                    names: Names::one(name("y")),
                    ..waiter(&format!("t{number}"), BLOCKED)
                };
                let (position, _) = queues.enqueue(other, End::Back, None, None);
                backlog.insert(200, position, Vec::new());
            }
            assert_eq!(found(&mut table, Keys::default(), &["x"], 0), expected);
        }
    }

    /// A name that the operation has not read may be due. Then the timer looks at it.
    #[test]
    fn a_waiter_for_a_second_name_that_is_due_is_left_to_the_timer() {
        for (due_ms, expected) in [(99, None), (100, None), (101, Some(token("a")))] {
            let mut table = LockTable::new();
            let names = Names::set(vec![name("x"), name("y")]).expect("two names");
            let waiter = Waiter {
                names,
                ..waiter("a", BLOCKED)
            };
            let queues = &mut table.wait_queues.queues;
            queues.enqueue(waiter, End::Back, None, None);
            table.wait_queues.schedule.set(&name("y"), due_ms, 0);
            let held = Keys {
                holder: Some("a"),
                ..Keys::default()
            };
            assert_eq!(found(&mut table, held, &["x"], 0), expected, "{due_ms}");
        }
    }
}
