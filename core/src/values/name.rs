//! Where a lock lives: a database and a key.

use std::fmt;
use std::sync::Arc;

use crate::branch::seldom;
use crate::values::short_bytes::ShortBytes;

/// How long a key may be to lie in its name without an allocation.
const INLINE_KEY_LEN: usize = 54;

/// A key in one of the server's databases. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The database's number.
    pub db: i32,
    key: ShortBytes<INLINE_KEY_LEN>,
}

impl Name {
    /// The key `key` of database `db`.
    pub fn new(db: i32, key: &[u8]) -> Self {
        Self {
            db,
            key: ShortBytes::new(key),
        }
    }

    /// The key's bytes.
    pub fn key(&self) -> &[u8] {
        self.key.as_slice()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.db, self.key().escape_ascii())
    }
}

/// The names an operation is about. Cheap to clone. Invariant: sorted, none twice, so that equal sets
/// are equal; one name is always `One`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Names(Form);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Form {
    One(Name),
    Many(Arc<[Name]>),
}

impl Names {
    /// The one name.
    pub const fn one(name: Name) -> Self {
        Self(Form::One(name))
    }

    /// A set of names; `None` where one is there twice.
    pub fn set(mut names: Vec<Name>) -> Option<Self> {
        if let [name] = names.as_slice() {
            return Some(Self::one(name.clone()));
        }
        let given = names.len();
        names.sort_unstable();
        names.dedup();
        (names.len() == given).then(|| Self(Form::Many(names.into())))
    }

    /// The names, in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, Name> {
        self.as_slice().iter()
    }

    /// The names as a slice, in their order.
    pub fn as_slice(&self) -> &[Name] {
        match &self.0 {
            Form::One(name) => std::slice::from_ref(name),
            Form::Many(names) => {
                seldom();
                names
            }
        }
    }

    /// The name, if it is the only one.
    pub fn only(&self) -> Option<&Name> {
        match &self.0 {
            Form::One(name) => Some(name),
            Form::Many(_) => None,
        }
    }

    /// Whether this name is one of them.
    pub fn contains(&self, name: &Name) -> bool {
        self.as_slice().binary_search(name).is_ok()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.as_slice().len()
    }
}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a Name;
    type IntoIter = std::slice::Iter<'a, Name>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
