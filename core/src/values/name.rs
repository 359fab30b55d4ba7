//! Names: a database and a key.

use std::fmt;
use std::sync::Arc;

use crate::hints::cold_path;
use crate::values::short_bytes::ShortBytes;

/// The longest key that a name stores without an allocation, in bytes.
const INLINE_KEY_LEN: usize = 54;

/// A key in one of the server's databases. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The database's number.
    pub db: i32,
    key: ShortBytes<INLINE_KEY_LEN>,
}

impl Name {
    /// Returns the name of the key `key` in database `db`.
    pub fn new(db: i32, key: &[u8]) -> Self {
        Self {
            db,
            key: ShortBytes::new(key),
        }
    }

    /// Returns the bytes of the key.
    pub fn key(&self) -> &[u8] {
        self.key.as_slice()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.db, self.key().escape_ascii())
    }
}

/// The names that an operation is about. Cheap to clone.
///
/// Invariants:
/// 1. The names are sorted and distinct, so two sets of the same names compare equal.
/// 2. One name is always `One`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Names(Form);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Form {
    One(Name),
    Many(Arc<[Name]>),
}

impl Names {
    /// Returns this name alone.
    pub const fn one(name: Name) -> Self {
        Self(Form::One(name))
    }

    /// Returns the set of these names; `None` if a name occurs twice.
    pub fn set(mut names: Vec<Name>) -> Option<Self> {
        if let [name] = names.as_slice() {
            return Some(Self::one(name.clone()));
        }
        let given = names.len();
        names.sort_unstable();
        names.dedup();
        (names.len() == given).then(|| Self(Form::Many(names.into())))
    }

    /// Returns the names, sorted.
    pub fn iter(&self) -> std::slice::Iter<'_, Name> {
        self.as_slice().iter()
    }

    /// Returns the names as a slice, sorted.
    pub fn as_slice(&self) -> &[Name] {
        match &self.0 {
            Form::One(name) => std::slice::from_ref(name),
            Form::Many(names) => {
                cold_path();
                names
            }
        }
    }

    /// Returns the name if there is only one.
    pub fn only(&self) -> Option<&Name> {
        match &self.0 {
            Form::One(name) => Some(name),
            Form::Many(_) => None,
        }
    }

    /// Returns true if this name is in the set.
    pub fn contains(&self, name: &Name) -> bool {
        self.as_slice().binary_search(name).is_ok()
    }

    /// Returns the number of names.
    pub fn count(&self) -> usize {
        self.as_slice().len()
    }
}

/// A change of the names of values, by RENAME, MOVE or SWAPDB.
#[derive(Clone, Debug)]
pub enum Relocation {
    /// The value of the first name is at the second one, whose own value is gone.
    Moved(Name, Name),
    /// Two databases changed places.
    Swapped(i32, i32),
}

impl Relocation {
    /// Returns true if the value at this name has moved, or is gone.
    pub fn concerns(&self, name: &Name) -> bool {
        match self {
            Self::Moved(from, to) => name == from || name == to,
            Self::Swapped(one, other) => name.db == *one || name.db == *other,
        }
    }

    /// Returns the name of a value now that was at this name before; `None` if the value is gone.
    pub fn follow(&self, name: &Name) -> Option<Name> {
        if !self.concerns(name) {
            return Some(name.clone());
        }
        match self {
            Self::Moved(from, to) => (name == from).then(|| to.clone()),
            Self::Swapped(one, other) => Some(Name {
                db: if name.db == *one { *other } else { *one },
                ..name.clone()
            }),
        }
    }
}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a Name;
    type IntoIter = std::slice::Iter<'a, Name>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_shown_with_its_database_and_escapes() {
        assert_eq!(format!("{:?}", Name::new(3, b"a\x00")), "3:a\\x00");
    }

    #[test]
    fn a_value_is_followed_to_its_new_name() {
        let name = |db, key: &str| Name::new(db, key.as_bytes());
        let moved = Relocation::Moved(name(0, "k"), name(1, "j"));
        let swapped = Relocation::Swapped(0, 2);
        for (relocation, before, now) in [
            (&moved, name(0, "k"), Some(name(1, "j"))),
            (&moved, name(1, "j"), None),
            (&moved, name(0, "j"), Some(name(0, "j"))),
            (&moved, name(1, "k"), Some(name(1, "k"))),
            (&swapped, name(0, "k"), Some(name(2, "k"))),
            (&swapped, name(2, "k"), Some(name(0, "k"))),
            (&swapped, name(1, "k"), Some(name(1, "k"))),
        ] {
            assert_eq!(relocation.follow(&before), now, "{relocation:?} {before:?}");
        }
    }
}
