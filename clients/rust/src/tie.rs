//! The connections that the grant of a session is tied to.
//!
//! The server ties the grant to the connection of the latest EXTEND, and releases the lock when that
//! one closes. A command without a reply may arrive late and move the tie back. So its connection
//! stays open for a lease, and until the server has moved the tie to another one.

use std::time::Duration;

use tokio::time::Instant;

use crate::connections::Link;
use crate::mutex::Mutex;

pub(crate) struct Tie {
    lease: Duration,
    strands: Mutex<Vec<Strand>>,
}

struct Strand {
    link: Link,
    /// True if its last command got a reply, so the next command may use it.
    is_clean: bool,
    /// The time after which no command of it can still arrive at the server.
    settled_at: Instant,
}

impl Tie {
    pub(crate) fn new(lease: Duration) -> Tie {
        Tie {
            lease,
            strands: Mutex::default(),
        }
    }

    /// Returns the connection for the next command, or `None` if it needs a new one.
    pub(crate) fn latest(&self) -> Option<Link> {
        let strands = self.strands.lock();
        let mut latest = strands.iter().rev();
        latest.find(|it| it.is_clean).map(|it| it.link.clone())
    }

    /// Keeps the connection of a command that is sent now.
    pub(crate) fn sends(&self, link: &Link) {
        let mut strands = self.strands.lock();
        strands.retain(|it| !it.link.is_same(link));
        strands.push(Strand {
            link: link.clone(),
            is_clean: false,
            settled_at: Instant::now() + self.lease,
        });
    }

    pub(crate) fn replied(&self, link: &Link) {
        let mut strands = self.strands.lock();
        for strand in strands.iter_mut().filter(|it| it.link.is_same(link)) {
            strand.is_clean = true;
            strand.settled_at = Instant::now();
        }
    }

    /// Closes the connections whose commands arrived before the one that moved the tie.
    pub(crate) fn moved(&self, asked_at: Instant) {
        let mut strands = self.strands.lock();
        strands.retain(|strand| strand.settled_at >= asked_at);
    }

    /// Gives up the connections. Returns those that another call may use, and closes the others.
    pub(crate) fn give_up(&self) -> impl Iterator<Item = Link> {
        let strands = std::mem::take(&mut *self.strands.lock());
        let clean = strands.into_iter().filter(|it| it.is_clean);
        clean.map(|it| it.link)
    }
}
