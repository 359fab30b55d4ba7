//! The holders of one lock, indexed by token, fence, deadline, limit and session.
//!
//! Most locks have one holder, and semaphores have a few: those are a list. Many holders are kept
//! in persistent trees. A copy costs O(1), and a change costs O(log n). A comparison of two copies
//! skips what they share.

use std::collections::BTreeMap;
use std::sync::Arc;

use either::Either;
use imbl::ordmap::DiffItem;
use imbl::{OrdMap, OrdSet};
use smallvec::SmallVec;

use crate::hints::{likely, unlikely};
use crate::values::holder::Holder;
use crate::values::session_id::SessionId;
use crate::values::token::Token;

/// The most holders in a list. More holders are kept in trees.
const LONGEST_LIST: usize = 32;

/// The number of holders at which the trees become a list again.
const SHORTEST_TREE: usize = 16;

/// The holders of one lock, oldest grant first. No token occurs twice. Holders with the same fence,
/// which FENCE can cause, are in the order of their tokens.
#[derive(Clone, Debug)]
pub struct Holders(Form);

/// The form in which the holders are kept. Invariant: a list is not empty.
// perf: the list and the trees are reference-counted, so a lock with one holder is dropped and
// copied with little work.
#[derive(Clone, Debug)]
enum Form {
    Nobody,
    One(Holder),
    List(Arc<Vec<Holder>>),
    Trees(Arc<Trees>),
}

/// Many holders, in one tree for each index.
///
/// Invariants:
/// 1. All trees have the same holders. `limits` and `sessions` leave out holders without a limit or
///    a session.
/// 2. `permits` is the sum of the holders' permits.
/// 3. Holders with the same fence are in no particular order.
#[derive(Clone, Debug, Default)]
struct Trees {
    by_key: OrdMap<Key, Arc<Holder>>,
    keys: OrdMap<Token, Key>,
    deadlines: OrdSet<(u64, Key)>,
    limits: OrdSet<(u32, Key)>,
    sessions: OrdMap<SessionId, Key>,
    permits: u64,
    /// The number of keys that do not have the number 0.
    numbered: usize,
}

/// The key of a holder in the trees.
// perf: small and without a reference count, because each change copies hundreds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    fence: u64,
    /// Differs among holders with the same fence; mostly 0.
    number: u64,
}

/// The change of one token's grant between two copies of a lock.
#[derive(Clone, Copy, Debug)]
pub struct Difference<'a> {
    /// The grant before, if there was one.
    pub before: Option<&'a Holder>,
    /// The grant after, if there is one.
    pub after: Option<&'a Holder>,
}

/// The differences between two copies of a lock: rarely more than one new holder and one that is
/// gone.
pub type Differences<'a> = SmallVec<[Difference<'a>; 2]>;

impl Default for Holders {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Holders {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Holders {}

impl Holders {
    /// Returns no holders.
    pub const fn new() -> Self {
        Self(Form::Nobody)
    }

    /// Returns this holder alone.
    #[inline(always)]
    pub fn sole(holder: Holder) -> Self {
        Self(Form::One(holder))
    }

    /// Returns the trees, or else the holders as a list.
    fn form(&self) -> Either<&Trees, &[Holder]> {
        match &self.0 {
            Form::Nobody => Either::Right(&[]),
            Form::One(holder) => Either::Right(std::slice::from_ref(holder)),
            Form::List(list) => Either::Right(list),
            Form::Trees(trees) => Either::Left(trees),
        }
    }

    /// Returns the number of holders.
    pub fn len(&self) -> usize {
        self.form()
            .either(|trees| trees.by_key.len(), <[Holder]>::len)
    }

    /// Returns true if there is no holder.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Form::Nobody)
    }

    /// Returns the holders, oldest grant first.
    pub fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.form().map_either(Trees::iter, |list| list.iter())
    }

    /// Returns true if there is exactly one holder.
    #[inline(always)]
    pub fn is_one(&self) -> bool {
        self.only().is_some()
    }

    /// Returns the only holder, or the one that `of_several` returns.
    #[inline(always)]
    fn one_or(&self, of_several: fn(&Self) -> Option<&Holder>) -> Option<&Holder> {
        match &self.0 {
            Form::One(own) => Some(own),
            Form::Nobody => None,
            Form::List(_) | Form::Trees(_) => of_several(self),
        }
    }

    /// Returns the holder if there is exactly one.
    #[inline(always)]
    pub fn only(&self) -> Option<&Holder> {
        self.one_or(Self::only_of_several)
    }

    /// Like [`Holders::only`], for a list or trees.
    #[inline(never)]
    fn only_of_several(&self) -> Option<&Holder> {
        match self.form() {
            Either::Right([only]) => Some(only),
            Either::Right(_) | Either::Left(_) => None,
        }
    }

    /// Returns the grant of a token.
    #[inline(always)]
    pub fn get(&self, token: &Token) -> Option<&Holder> {
        match &self.0 {
            Form::Nobody => None,
            Form::One(own) => likely(own.token == *token).then_some(own),
            Form::List(_) | Form::Trees(_) => self.get_of_several(token),
        }
    }

    /// Like [`Holders::get`], for a list or trees.
    #[inline(never)]
    fn get_of_several(&self, token: &Token) -> Option<&Holder> {
        match self.form() {
            Either::Right(list) => list.iter().find(|own| own.token == *token),
            Either::Left(trees) => trees.get(token),
        }
    }

    /// Returns the grant with a session.
    pub fn with_session(&self, session: SessionId) -> Option<&Holder> {
        match self.form() {
            Either::Right(list) => list.iter().find(|own| own.session == session),
            Either::Left(trees) => trees.at(*trees.sessions.get(&session)?),
        }
    }

    /// Returns a grant with the greatest fence.
    pub fn last(&self) -> Option<&Holder> {
        match self.form() {
            Either::Right(list) => list.last(),
            Either::Left(trees) => trees.by_key.get_max().map(|(_, own)| &**own),
        }
    }

    /// Returns the grant whose lease ends first.
    #[inline(always)]
    pub fn first_to_end(&self) -> Option<&Holder> {
        self.one_or(Self::first_of_several_to_end)
    }

    #[inline(never)]
    fn first_of_several_to_end(&self) -> Option<&Holder> {
        match self.form() {
            Either::Right(list) => list.iter().min_by_key(|own| own.deadline_ms),
            Either::Left(trees) => trees.at(trees.deadlines.get_min()?.1),
        }
    }

    /// Returns the grant whose lease ends last.
    #[inline(always)]
    pub fn last_to_end(&self) -> Option<&Holder> {
        self.one_or(Self::last_of_several_to_end)
    }

    #[inline(never)]
    fn last_of_several_to_end(&self) -> Option<&Holder> {
        match self.form() {
            Either::Right(list) => list.iter().max_by_key(|own| own.deadline_ms),
            Either::Left(trees) => trees.at(trees.deadlines.get_max()?.1),
        }
    }

    /// Returns the smallest limit of all holders; `None` if no holder has one.
    pub fn smallest_limit(&self) -> Option<u32> {
        match self.form() {
            Either::Right(list) => list.iter().map(|own| own.limit).filter(|&l| l > 0).min(),
            Either::Left(trees) => trees.limits.get_min().map(|(limit, _)| *limit),
        }
    }

    /// Returns the smallest limit of the other holders; `None` if none of them has one.
    pub fn smallest_limit_beside(&self, own: &Holder) -> Option<u32> {
        let Either::Left(trees) = self.form() else {
            let others = self.iter().filter(|other| other.token != own.token);
            return others.map(|other| other.limit).filter(|&l| l > 0).min();
        };
        let own = trees.keys.get(&own.token);
        let mut limits = trees.limits.iter();
        let other = limits.find(|(_, key)| own != Some(key));
        other.map(|(limit, _)| *limit)
    }

    /// Returns the holder with the smallest limit, if no other holder has the same limit.
    pub fn alone_with_smallest_limit(&self) -> Option<&Holder> {
        let smallest = self.smallest_limit()?;
        let own = match self.form() {
            Either::Right(list) => list.iter().find(|own| own.limit == smallest),
            Either::Left(trees) => trees.at(trees.limits.get_min()?.1),
        };
        own.filter(|own| self.smallest_limit_beside(own) != Some(smallest))
    }

    /// Returns the number of permits that all holders take.
    pub fn permits(&self) -> u64 {
        match self.form() {
            Either::Right(list) => list.iter().map(|own| u64::from(own.permits)).sum(),
            Either::Left(trees) => trees.permits,
        }
    }

    /// Adds a grant, which replaces the grant that its token had.
    pub fn insert(&mut self, holder: Holder) {
        if self.is_empty() {
            *self = Self::sole(holder);
            return;
        }
        self.remove(&holder.token);
        self.make_list();
        match &mut self.0 {
            Form::List(list) => {
                let list = Arc::make_mut(list);
                let position = list.partition_point(|own| own.rank() < holder.rank());
                list.insert(position, holder);
            }
            Form::Trees(trees) => Arc::make_mut(trees).insert(holder),
            Form::Nobody | Form::One(_) => {}
        }
        self.fit_form();
    }

    /// Turns no holder or one holder into a list, so that another holder fits in.
    fn make_list(&mut self) {
        self.0 = match std::mem::replace(&mut self.0, Form::Nobody) {
            Form::Nobody => Form::List(Arc::default()),
            Form::One(holder) => Form::List(Arc::new(vec![holder])),
            form => form,
        };
    }

    /// Removes and returns the grant of a token.
    pub fn remove(&mut self, token: &Token) -> Option<Holder> {
        let removed = match &mut self.0 {
            Form::Nobody => None,
            Form::One(own) => {
                if own.token != *token {
                    return None;
                }
                match std::mem::replace(&mut self.0, Form::Nobody) {
                    Form::One(own) => Some(own),
                    Form::Nobody | Form::List(_) | Form::Trees(_) => None,
                }
            }
            Form::List(list) => {
                let position = list.iter().position(|own| own.token == *token)?;
                Some(Arc::make_mut(list).remove(position))
            }
            Form::Trees(trees) => Arc::make_mut(trees).remove(token),
        };
        self.fit_form();
        removed
    }

    /// Changes the grant of a token. `change` must keep the token. Returns true if the token had a
    /// grant.
    pub fn update(&mut self, token: &Token, change: impl FnOnce(&mut Holder)) -> bool {
        match &mut self.0 {
            Form::Nobody => false,
            Form::One(own) => {
                let is_own = own.token == *token;
                if is_own {
                    change(own);
                }
                is_own
            }
            Form::List(list) => {
                let list = Arc::make_mut(list);
                let Some(own) = list.iter_mut().find(|own| own.token == *token) else {
                    return false;
                };
                let fence = own.fence;
                change(own);
                if own.fence != fence {
                    list.sort_by(|one, other| one.rank().cmp(&other.rank()));
                }
                true
            }
            Form::Trees(trees) => {
                let trees = Arc::make_mut(trees);
                let Some(mut own) = trees.remove(token) else {
                    return false;
                };
                change(&mut own);
                trees.insert(own);
                true
            }
        }
    }

    /// Returns the bytes held outside the value itself.
    pub fn heap_bytes(&self) -> usize {
        let of_one = |own: &Holder| own.token.heap_bytes() + own.data.heap_bytes();
        let of_all: usize = self.iter().map(of_one).sum();
        let own = match &self.0 {
            Form::Nobody | Form::One(_) => 0,
            Form::List(list) => {
                size_of::<Vec<Holder>>() + COUNTS_BYTES + list.capacity() * size_of::<Holder>()
            }
            Form::Trees(trees) => {
                size_of::<Trees>() + COUNTS_BYTES + trees.by_key.len() * TREE_BYTES
            }
        };
        own + of_all
    }

    /// Returns the differences between these holders and those of a later copy, one for each token.
    pub fn differences<'a>(&'a self, after: &'a Self) -> Differences<'a> {
        match (&self.0, &after.0) {
            (Form::Trees(before), Form::Trees(after)) => before.differences(after),
            _ => self.differences_one_by_one(after),
        }
    }

    fn differences_one_by_one<'a>(&'a self, after: &'a Self) -> Differences<'a> {
        let mut found = Differences::new();
        for own in after.iter() {
            let before = self.get(&own.token);
            if before != Some(own) {
                let after = Some(own);
                found.push(Difference { before, after });
            }
        }
        for own in self.iter().filter(|own| after.get(&own.token).is_none()) {
            found.push(Difference {
                before: Some(own),
                after: None,
            });
        }
        found
    }

    fn fit_form(&mut self) {
        match &mut self.0 {
            Form::List(list) if list.is_empty() => self.0 = Form::Nobody,
            Form::List(list) if list.len() > LONGEST_LIST => {
                let mut trees = Trees::default();
                list.iter().for_each(|own| trees.insert(own.clone()));
                self.0 = Form::Trees(Arc::new(trees));
            }
            Form::Trees(trees) if trees.by_key.len() <= SHORTEST_TREE => {
                let list = trees.by_key.values().map(|own| Holder::clone(own));
                self.0 = Form::List(Arc::new(list.collect()));
            }
            Form::Nobody | Form::One(_) | Form::List(_) | Form::Trees(_) => {}
        }
    }
}

impl FromIterator<Holder> for Holders {
    fn from_iter<I: IntoIterator<Item = Holder>>(holders: I) -> Self {
        let mut collected = Self::new();
        for holder in holders {
            collected.insert(holder);
        }
        collected
    }
}

/// The bytes that a reference-counted pointer adds to its target.
const COUNTS_BYTES: usize = 2 * size_of::<usize>();

/// The approximate bytes of a holder in the trees: the holder itself, and its entries in five
/// trees.
const TREE_BYTES: usize = size_of::<Holder>()
    + 16
    + size_of::<(Key, usize)>()
    + size_of::<(Token, Key)>()
    + size_of::<(SessionId, Key)>()
    + size_of::<(u64, Key)>()
    + size_of::<(u32, Key)>();

impl Trees {
    #[inline(never)]
    fn get(&self, token: &Token) -> Option<&Holder> {
        self.at(*self.keys.get(token)?)
    }

    fn at(&self, key: Key) -> Option<&Holder> {
        self.by_key.get(&key).map(|own| &**own)
    }

    /// Returns the holders in the order of their ranks.
    fn iter(&self) -> impl Iterator<Item = &Holder> {
        let holders = self.by_key.values().map(|own| &**own);
        if likely(self.numbered == 0) {
            return Either::Left(holders);
        }
        let mut sorted: Vec<&Holder> = holders.collect();
        sorted.sort_by(|one, other| one.rank().cmp(&other.rank()));
        Either::Right(sorted.into_iter())
    }

    /// Returns a key that no holder has.
    fn new_key(&self, fence: u64) -> Key {
        let greatest = Key {
            fence,
            number: u64::MAX,
        };
        let before = self.by_key.get_prev(&greatest);
        let number = match before {
            Some((key, _)) if key.fence == fence => key.number.saturating_add(1),
            Some(_) | None => 0,
        };
        Key { fence, number }
    }

    /// Adds a holder to the tree of keys. Returns its key.
    fn insert_by_key(&mut self, own: &Arc<Holder>) -> Key {
        let key = Key {
            fence: own.fence,
            number: 0,
        };
        match self.by_key.insert(key, Arc::clone(own)) {
            None => key,
            Some(other) => self.insert_numbered(other, own),
        }
    }

    /// Like [`Trees::insert_by_key`], for a holder that took the place of `other` in the tree of
    /// keys.
    #[cold]
    #[inline(never)]
    fn insert_numbered(&mut self, other: Arc<Holder>, own: &Arc<Holder>) -> Key {
        let first = Key {
            fence: own.fence,
            number: 0,
        };
        self.by_key.insert(first, other);
        let key = self.new_key(own.fence);
        self.by_key.insert(key, Arc::clone(own));
        self.numbered += 1;
        key
    }

    fn insert(&mut self, holder: Holder) {
        let holder = Arc::new(holder);
        let key = self.insert_by_key(&holder);
        self.keys.insert(holder.token.clone(), key);
        self.deadlines.insert((holder.deadline_ms, key));
        if holder.limit > 0 {
            self.limits.insert((holder.limit, key));
        }
        if holder.session.is_session() {
            self.sessions.insert(holder.session, key);
        }
        self.permits += u64::from(holder.permits);
    }

    fn remove(&mut self, token: &Token) -> Option<Holder> {
        let key = self.keys.remove(token)?;
        let holder = self.by_key.remove(&key)?;
        self.permits -= u64::from(holder.permits);
        self.numbered -= usize::from(key.number > 0);
        self.deadlines.remove(&(holder.deadline_ms, key));
        self.sessions.remove(&holder.session);
        self.limits.remove(&(holder.limit, key));
        Some(Arc::unwrap_or_clone(holder))
    }

    fn differences<'a>(&'a self, after: &'a Self) -> Differences<'a> {
        let mut found = Differences::new();
        // A token with a new or raised fence is gone at one key and new at another.
        let mut gone: BTreeMap<&Token, &Holder> = BTreeMap::new();
        let added = |own: &'a Holder| Difference {
            before: None,
            after: Some(own),
        };
        for item in self.by_key.diff(&after.by_key) {
            match item {
                DiffItem::Add(_, own) => found.push(added(own)),
                DiffItem::Update { old, new } if old.1.token == new.1.token => {
                    found.push(Difference {
                        before: Some(&**old.1),
                        after: Some(&**new.1),
                    });
                }
                DiffItem::Update { old, new } => {
                    gone.insert(&old.1.token, &**old.1);
                    found.push(added(new.1));
                }
                DiffItem::Remove(_, own) => {
                    gone.insert(&own.token, &**own);
                }
            }
        }
        for difference in &mut found {
            if let (None, Some(own)) = (difference.before, difference.after) {
                difference.before = gone.remove(&own.token);
            }
        }
        found.extend(gone.into_values().map(|own| Difference {
            before: Some(own),
            after: None,
        }));
        // A holder with a number may have another one now, and be the same otherwise.
        if unlikely(self.numbered > 0 || after.numbered > 0) {
            found.retain(|difference| difference.before != difference.after);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::values::data::Data;

    /// A step of a test: the token's number, and the values of its grant.
    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u64, u32, u64),
        Remove(u8),
        Extend(u8, u64),
        /// Raises the fence by this much, mostly to that of another holder.
        Raise(u8, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (any::<u8>(), 1u64..500, 0u32..3, 0u64..4).prop_map(|(t, d, l, session)| Step::Insert(t, d, l, session)),
            2 => any::<u8>().prop_map(Step::Remove),
            1 => (any::<u8>(), 1u64..500).prop_map(|(t, d)| Step::Extend(t, d)),
            2 => (any::<u8>(), 0u64..9).prop_map(|(t, by)| Step::Raise(t, by)),
        ]
    }

    fn token(number: u8) -> Token {
        Token::new(&[number]).unwrap()
    }

    fn take(holders: &mut Holders, plain: &mut BTreeMap<u8, Holder>, step: &Step, fence: u64) {
        match *step {
            Step::Insert(number, deadline_ms, limit, with_session) => {
                let session = if with_session == 0 {
                    SessionId::NONE
                } else {
                    SessionId::numbered(fence)
                };
                let holder = Holder {
                    token: token(number),
                    fence,
                    holds: 1,
                    limit,
                    permits: 1 + limit * limit,
                    deadline_ms,
                    lease_ms: 10,
                    since_ms: 0,
                    client_id: 0,
                    session,
                    data: Data::NONE,
                };
                plain.insert(number, holder.clone());
                holders.insert(holder);
            }
            Step::Remove(number) => {
                let removed = holders.remove(&token(number));
                assert_eq!(removed, plain.remove(&number));
            }
            Step::Extend(number, deadline_ms) => {
                let there = holders.update(&token(number), |own| own.deadline_ms = deadline_ms);
                assert_eq!(there, plain.contains_key(&number));
                if let Some(own) = plain.get_mut(&number) {
                    own.deadline_ms = deadline_ms;
                }
            }
            Step::Raise(number, by) => {
                let there = holders.update(&token(number), |own| own.fence += by);
                assert_eq!(there, plain.contains_key(&number));
                if let Some(own) = plain.get_mut(&number) {
                    own.fence += by;
                }
            }
        }
    }

    fn check(holders: &Holders, plain: &BTreeMap<u8, Holder>) {
        let mut by_rank: Vec<&Holder> = plain.values().collect();
        by_rank.sort_by_key(|own| (own.fence, own.token.clone()));
        assert!(holders.iter().eq(by_rank.iter().copied()));
        assert_eq!(holders.len(), plain.len());
        let highest = by_rank.last().map(|own| own.fence);
        assert_eq!(holders.last().map(|own| own.fence), highest);
        let deadlines = || plain.values().map(|own| own.deadline_ms);
        let end = |own: Option<&Holder>| own.map(|own| own.deadline_ms);
        assert_eq!(end(holders.first_to_end()), deadlines().min());
        assert_eq!(end(holders.last_to_end()), deadlines().max());
        let limits = plain.values().map(|own| own.limit).filter(|&l| l > 0);
        let mut limits: Vec<u32> = limits.collect();
        limits.sort_unstable();
        assert_eq!(holders.smallest_limit(), limits.first().copied());
        let is_alone = limits.first() != limits.get(1);
        let alone = holders.alone_with_smallest_limit().map(|own| own.limit);
        assert_eq!(alone, limits.first().copied().filter(|_| is_alone));
        let permits = plain.values().map(|own| u64::from(own.permits));
        assert_eq!(holders.permits(), permits.sum());
        for own in plain.values() {
            let mut others = limits.clone();
            if let Some(at) = others.iter().position(|limit| *limit == own.limit) {
                others.remove(at);
            }
            let other = others.first().copied();
            assert_eq!(holders.smallest_limit_beside(own), other);
            assert_eq!(holders.get(&own.token), Some(own));
            if own.session != SessionId::NONE {
                assert_eq!(holders.with_session(own.session), Some(own));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn lists_and_trees_are_as_a_plain_map(steps in proptest::collection::vec(step(), 1..200)) {
            let (mut holders, mut plain) = (Holders::new(), BTreeMap::new());
            for (fence, step) in (1..).zip(&steps) {
                take(&mut holders, &mut plain, step, fence);
                check(&holders, &plain);
            }
        }

        #[test]
        fn differences_lead_from_before_to_after(
            steps in proptest::collection::vec(step(), 1..150),
            more in proptest::collection::vec(step(), 0..20),
        ) {
            let (mut holders, mut plain) = (Holders::new(), BTreeMap::new());
            for (fence, step) in (1..).zip(&steps) {
                take(&mut holders, &mut plain, step, fence);
            }
            let before = holders.clone();
            for (fence, step) in (1_000..).zip(&more) {
                take(&mut holders, &mut plain, step, fence);
            }
            let mut led = before.clone();
            for Difference { before: old, after } in before.differences(&holders) {
                prop_assert_ne!(old, after);
                if let Some(old) = old {
                    prop_assert_eq!(before.get(&old.token), Some(old));
                    led.remove(&old.token);
                }
            }
            for Difference { after, .. } in before.differences(&holders) {
                after.into_iter().for_each(|own| led.insert(own.clone()));
            }
            prop_assert_eq!(led, holders);
        }
    }

    fn holder(number: u8, fence: u64) -> Holder {
        Holder {
            token: token(number),
            fence,
            holds: 1,
            limit: 0,
            permits: 1,
            deadline_ms: 100,
            lease_ms: 10,
            since_ms: 0,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        }
    }

    /// The bytes are approximate, and the documents have those that follow from them.
    #[test]
    fn it_counts_the_bytes_of_each_form() {
        let with_data = |number| Holder {
            data: Data::new(&[7; 10]).unwrap(),
            token: Token::new(&[number; 50]).unwrap(),
            ..holder(number, number.into())
        };
        let of_one = (50 + 16) + (16 + 16 + 10);
        let own = size_of::<Holder>();
        let key = size_of::<Key>();
        let entries = [size_of::<Token>() + key, size_of::<SessionId>() + key];
        let in_trees = own + 16 + (key + 8) + entries.iter().sum::<usize>() + (8 + key) + (8 + key);
        let mut holders = Holders::new();
        assert_eq!(holders.heap_bytes(), 0);
        for number in 0..=LONGEST_LIST as u8 {
            holders.insert(with_data(number));
            let count = holders.len();
            let expected = match &holders.0 {
                Form::Nobody | Form::One(_) => 0,
                Form::List(list) => 24 + 16 + list.capacity() * own,
                Form::Trees(_) => size_of::<Trees>() + 16 + count * in_trees,
            };
            assert_eq!(
                holders.heap_bytes(),
                expected + count * of_one,
                "{count} holders"
            );
        }
        assert!(matches!(holders.0, Form::Trees(_)));
    }

    /// The forms by the number of holders: more than 32 are in trees, until 16 are left.
    #[test]
    fn it_changes_its_form_at_33_and_at_16_holders() {
        let mut holders = Holders::new();
        let are_trees = |holders: &Holders| matches!(holders.0, Form::Trees(_));
        for number in 0..40u8 {
            holders.insert(holder(number, number.into()));
            assert_eq!(
                are_trees(&holders),
                holders.len() > 32,
                "{} up",
                holders.len()
            );
        }
        for number in 0..40u8 {
            holders.remove(&token(number));
            assert_eq!(
                are_trees(&holders),
                holders.len() > 16,
                "{} down",
                holders.len()
            );
            assert_eq!(holders.is_one(), holders.len() == 1);
        }
    }

    #[test]
    fn holders_are_equal_if_each_grant_is() {
        for count in [1, 2, 40u8] {
            let all = |fence: u64| -> Holders {
                let own = |number| holder(number, 100 + u64::from(number));
                let mut holders: Holders = (0..count).map(own).collect();
                holders.update(&token(0), |own| own.fence = fence);
                holders
            };
            assert_eq!(all(7), all(7));
            assert_ne!(all(7), all(8), "{count} holders");
            let mut fewer = all(7);
            fewer.remove(&token(count - 1));
            assert_ne!(fewer, all(7));
        }
    }

    /// Tokens with one fence exchange their keys in the trees.
    #[test]
    fn differences_in_trees_are_those_of_the_tokens() {
        let before: Holders = (0..40).map(|number| holder(number, 9)).collect();
        let mut after = before.clone();
        after.remove(&token(0));
        after.remove(&token(1));
        after.insert(holder(1, 9));
        after.insert(Holder {
            deadline_ms: 200,
            ..holder(2, 9)
        });
        after.insert(holder(50, 9));
        after.update(&token(3), |own| own.fence = 10);
        let mut found: Vec<(Vec<u8>, bool, bool)> = before
            .differences(&after)
            .iter()
            .map(|difference| {
                let own = difference.before.or(difference.after).expect("a grant");
                let token = own.token.as_bytes().to_vec();
                (
                    token,
                    difference.before.is_some(),
                    difference.after.is_some(),
                )
            })
            .collect();
        found.sort();
        let expected = [
            (vec![0], true, false),
            (vec![2], true, true),
            (vec![3], true, true),
            (vec![50], false, true),
        ];
        assert_eq!(found, expected);
    }

    /// A holder that shared its fence with another one has a new key when the other one has gone.
    #[test]
    fn a_holder_that_has_another_key_is_no_difference() {
        let mut before: Holders = (0..40).map(|it| holder(it, 100 + u64::from(it))).collect();
        before.insert(holder(40, 100));
        let mut after = before.clone();
        after.remove(&token(0));
        after.remove(&token(40));
        after.insert(holder(40, 100));
        for (one, other) in [(&before, &after), (&after, &before)] {
            let found = one.differences(other);
            let tokens = found.iter().filter_map(|it| it.before.or(it.after));
            let tokens: Vec<&Token> = tokens.map(|own| &own.token).collect();
            assert_eq!(tokens, [&token(0)]);
        }
    }
}
