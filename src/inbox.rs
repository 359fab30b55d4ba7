//! What the module was told outside a command, until the timer or the next order looks at it.
//!
//! Callbacks of the keyspace, of clients and of the server must not write: they leave a note here
//! and arm the timer. Noting borrows nothing but the inbox, and that for no longer than the note.

use std::cell::RefCell;
use std::collections::HashSet;

use lazy_static::lazy_static;
use redis_lock_core::hand_over::HandOver;
use redis_lock_core::name::Name;
use redis_lock_core::queue::Seat;
use redis_lock_core::session::TieId;
use redis_module::RedisGILGuard;

use crate::{alarm, api, flow};

/// What happened to grants and waiters behind the desk's back.
pub enum Event {
    /// The values with these ties left their keys: to be gone, or to arrive elsewhere.
    Unlinked(Vec<TieId>),
    /// A key was renamed or moved: the value with these ties is here.
    Arrived(Vec<TieId>, Name),
    /// Two databases changed places.
    Swapped(i32, i32),
    /// A database was emptied.
    Flushed(i32),
    /// This server became a replica: leases run on untied, whatever it is by now.
    Demoted,
    /// A connection is gone that had ties.
    Closed(u64),
    /// A seat's connection is gone, or was answered by the server.
    Left(Seat),
}

/// Stands for all databases in [`Inbox::databases`] and [`Event::Flushed`], as in the server's flush event.
pub const ALL_DATABASES: i32 = -1;

/// The notes that were not looked at yet.
#[derive(Default)]
pub struct Inbox {
    /// Names that somebody may wait for, where a key came, went or changed.
    pub touched: HashSet<Name>,
    /// Names of restored locks, until they were settled: their own expiry says nothing, their
    /// leases do.
    pub restored: HashSet<Name>,
    /// Touched names where nothing may be written now.
    pub held_back: HashSet<Name>,
    /// When to look at those again, on the steady clock in ms.
    pub held_back_until_ms: u64,
    /// Databases that were flushed or swapped.
    pub databases: HashSet<i32>,
    /// The name that a key is just leaving by RENAME or MOVE.
    pub leaving: Option<Name>,
    /// What happened, in this order.
    pub events: Vec<Event>,
    /// Hand-overs whose client was gone before it could know of them.
    pub undelivered: Vec<HandOver>,
}

lazy_static! {
    static ref INBOX: RedisGILGuard<RefCell<Inbox>> = RedisGILGuard::default();
}

/// Works on the inbox. The work must not call the server.
pub fn with<T>(work: impl FnOnce(&mut Inbox) -> T) -> T
where
    T: Default,
{
    let ctx = api::own_context();
    let inbox = INBOX.lock(&ctx);
    let Ok(mut inbox) = inbox.try_borrow_mut() else {
        api::log(
            &ctx,
            c"warning",
            "a note was left while another was taken; it is lost",
        );
        return T::default();
    };
    work(&mut inbox)
}

/// Leaves a note and has the timer look at it in the next pass of the server's loop.
pub fn note(note: impl FnOnce(&mut Inbox)) {
    with(note);
    alarm::ring_at_once();
}

/// A key came, went or changed: of interest where somebody waits for it.
pub fn note_touched(name: Name) {
    if flow::may_have_line(&name) {
        note(|inbox| {
            inbox.touched.insert(name);
        });
    }
}

impl Inbox {
    /// Whether a key of this name may have come, gone or changed since it was settled last.
    pub fn may_have_touched(&self, name: &Name) -> bool {
        self.touched.contains(name)
            || self.databases.contains(&name.db)
            || self.databases.contains(&ALL_DATABASES)
    }

    /// Names that were held back are to be looked at again, once their time has come.
    pub fn release_held_back(&mut self, steady_ms: u64) {
        if self.held_back_until_ms <= steady_ms {
            self.touched.extend(self.held_back.drain());
        }
    }

    /// Holds a name back until `until_ms`, or until those are looked at that are held back already.
    pub fn hold_back(&mut self, name: Name, until_ms: u64) {
        if self.held_back.is_empty() {
            self.held_back_until_ms = until_ms;
        }
        self.held_back.insert(name);
    }

    /// Two databases changed places, and with them what their names mean.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        for names in [&mut self.touched, &mut self.restored, &mut self.held_back] {
            let swapped = std::mem::take(names).into_iter().map(|mut name| {
                name.swap_databases(one, other);
                name
            });
            names.extend(swapped);
        }
        self.events.push(Event::Swapped(one, other));
    }
}
