//! Where a lock lives: a database and a key.

use std::fmt;
use std::sync::Arc;

/// A key in one of the server's databases. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The database's number.
    pub db: i32,
    /// The key's bytes.
    pub key: Arc<[u8]>,
}

impl Name {
    /// The key `key` of database `db`.
    pub fn new(db: i32, key: &[u8]) -> Self {
        Self {
            db,
            key: Arc::from(key),
        }
    }

    /// Follows the key where two databases changed places.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        if self.db == one {
            self.db = other;
        } else if self.db == other {
            self.db = one;
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.db, self.key.escape_ascii())
    }
}
