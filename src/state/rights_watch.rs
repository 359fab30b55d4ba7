//! The changes of users' rights, as far as the module can see them.

use foldhash::HashSet;

/// The version of rights that were checked while they could change. It is never current.
pub const UNSEEN: u64 = 0;

/// Counts the changes of users' rights, so that rights need to be checked again only after a
/// change.
///
/// A command that changes rights passes the command filter when it arrives. The server may run it
/// later: after CLIENT PAUSE, or at the EXEC of its transaction. So each such command makes a new
/// version. Until its client sends another command there is no current version, and all rights are
/// checked again.
#[derive(Default)]
pub struct RightsWatch {
    /// The number of such commands that were seen.
    changes: u64,
    /// The connected clients whose last such command may not have run yet.
    changers: HashSet<u64>,
    /// True if rights can change without a command that the filter sees.
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

    /// Returns true if no rights can have changed since they were checked in this version.
    #[inline]
    pub fn is_current(&self, version: u64) -> bool {
        version != UNSEEN && version == self.version()
    }

    /// Returns true if no rights can have changed since the module was loaded.
    #[inline]
    pub const fn have_never_changed(&self) -> bool {
        self.changes == 0 && !self.is_blind
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

    /// Records that no command of a client that changes rights is left to run.
    pub fn forget_changer(&mut self, client_id: u64) {
        self.changers.remove(&client_id);
    }

    /// Gives up watching for as long as the server runs. Rights are then checked each time.
    pub fn go_blind(&mut self) {
        self.is_blind = true;
        self.changers.clear();
    }
}
