//! The changes of users' rights, as far as the module can see them.

use foldhash::HashSet;

/// The version of rights that were looked at while they could change: it is never current.
pub const UNSEEN: u64 = 0;

/// Counts the changes of users' rights, so that rights that were looked at once need not be looked at again.
///
/// A command that changes rights passes the command filter as it arrives, and the server may run it later: after
/// CLIENT PAUSE, or at the EXEC of its transaction. So each such command makes a new version, and from then until its
/// client has gone on there is no current version at all: whatever is looked at meanwhile is looked at again.
#[derive(Default)]
pub struct RightsWatch {
    /// The commands that were seen.
    changes: u64,
    /// The connected clients whose last such command may not have run yet.
    changers: HashSet<u64>,
    /// Set where rights can change without a command that the filter knows.
    is_blind: bool,
}

impl RightsWatch {
    /// Returns the current version, or [`UNSEEN`] while rights may change without a further sign.
    #[inline]
    pub fn version(&self) -> u64 {
        if self.is_blind || self.is_changing() {
            UNSEEN
        } else {
            self.changes + 1
        }
    }

    /// Returns true if no rights can have changed since they were looked at in this version.
    #[inline]
    pub fn is_current(&self, version: u64) -> bool {
        version != UNSEEN && version == self.version()
    }

    /// Returns true while a command that changes rights may not have run yet.
    #[inline]
    pub fn is_changing(&self) -> bool {
        !self.changers.is_empty()
    }

    /// Returns true if the last such command of this client may not have run yet.
    pub fn has_changer(&self, client_id: u64) -> bool {
        self.changers.contains(&client_id)
    }

    /// Records a command that changes rights and runs at once.
    pub fn record_change(&mut self) {
        self.changes += 1;
    }

    /// Records a command that changes rights, of a client that the server may hold back.
    pub fn record_changer(&mut self, client_id: u64) {
        self.record_change();
        if !self.is_blind {
            self.changers.insert(client_id);
        }
    }

    /// Records that nothing of a client is to run any more that changes rights.
    pub fn forget_changer(&mut self, client_id: u64) {
        self.changers.remove(&client_id);
    }

    /// Gives up watching for as long as the server runs: rights are looked at each time.
    pub fn go_blind(&mut self) {
        self.is_blind = true;
        self.changers.clear();
    }
}
