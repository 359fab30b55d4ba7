//! Effects: changes to the keyspace as values. Only effects are stored and replicated.
//!
//! 1. An effect has absolute times and no conditions. So effects applied in order give the same
//!    locks on every replica and in every replay.
//! 2. A command is never replicated in the form in which the client sent it.
//! 3. RENEW combines renewals of many sessions. Each session after the first adds only its key.
//!
//! ```text
//! LOCK.APPLY key GRANT token "mode limit fence holds deadline-ms since-ms lease-ms permits" [data]
//! LOCK.APPLY key DROP token
//! LOCK.APPLY key RENEW deadline-ms [key ...]    another deadline for exclusive locks
//! DEL key                                       the last holder is gone
//! ```

use std::cell::Cell;
use std::ops::Deref;

use smallvec::{smallvec, SmallVec};

use crate::hints::unlikely;
use crate::values::data::Data;
use crate::values::decimal;
use crate::values::holder::{Holder, Mode};
use crate::values::holders::Difference;
use crate::values::lock::{Lock, Stored};
use crate::values::name::Name;
use crate::values::refusal::Refusal;
use crate::values::time::MAX_DEADLINE_MS;
use crate::values::token::Token;

/// One change of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes or renews a grant. The grant replaces all holders unless the lock and the grant are
    /// both shared. So a hand-over is a single effect.
    Grant {
        /// The mode of the grant.
        mode: Mode,
        /// The grant.
        holder: Holder,
    },
    /// Raises the fence of a grant in force, and renews it. The grant stays the same one.
    Raise {
        /// The mode of the grant.
        mode: Mode,
        /// The grant, with the new fence.
        holder: Holder,
    },
    /// Gives the only holder of an exclusive lock another deadline, and changes nothing else.
    Renew {
        /// The grant, with the new deadline.
        holder: Holder,
    },
    /// Removes a holder; other holders stay.
    Drop {
        /// The holder's token.
        token: Token,
    },
    /// Removes the last holder, and the key with it.
    Delete,
}

/// The name that an effect changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectName<'n> {
    /// The first of the operation's names.
    Own(&'n Name),
    /// Another name.
    Other(Box<Name>),
}

impl Deref for EffectName<'_> {
    type Target = Name;

    #[inline]
    fn deref(&self) -> &Name {
        match self {
            Self::Own(name) => name,
            Self::Other(name) => name,
        }
    }
}

/// A change and the name that it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect<'n> {
    /// The name.
    pub name: EffectName<'n>,
    /// The change.
    pub change: Change,
}

/// The changes of one lock: mostly one.
pub type Changes = SmallVec<[Change; 1]>;

/// The effects of one operation: mostly one.
pub type Effects<'n> = SmallVec<[Effect<'n>; 1]>;

/// The meaning of a LOCK.APPLY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Changes the lock of the key.
    Change(Change),
    /// Sets the deadline of the only holder of the key, and of each of the other keys.
    Renew {
        /// The deadline, in ms since the epoch.
        deadline_ms: u64,
        /// The other keys.
        others: &'a [&'a [u8]],
    },
}

/// One word of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// A word that exists already, borrowed.
    Borrowed(&'a [u8]),
    /// A word made for the effect.
    Made(SmallVec<[u8; GRANT_TEXT_LEN]>),
}

/// The bytes of a grant's text that need no allocation. Numbers of usual size fit.
const GRANT_TEXT_LEN: usize = 128;

/// The words of an effect.
pub type Words<'a> = SmallVec<[Word<'a>; 3]>;

impl Word<'_> {
    /// Returns the bytes of the word.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

/// Returns the words that follow `LOCK.APPLY key`; `None` for a change that is a plain DEL.
pub fn words(change: &Change) -> Option<Words<'_>> {
    match change {
        Change::Grant { mode, holder } | Change::Raise { mode, holder } => {
            Some(grant_words(*mode, holder))
        }
        Change::Renew { holder } => Some(grant_words(Mode::Exclusive, holder)),
        Change::Drop { token } => Some(
            [Word::Borrowed(b"DROP"), Word::Borrowed(token.as_bytes())]
                .into_iter()
                .collect(),
        ),
        Change::Delete => None,
    }
}

/// Returns the words of a grant, with all numbers in one word, and with the data if there is any.
// perf: each word costs the server a string, and each replica another one.
fn grant_words(mode: Mode, holder: &Holder) -> Words<'_> {
    let mut text = SmallVec::new();
    text.extend_from_slice(mode.as_str().as_bytes());
    let numbers = [
        holder.limit.into(),
        holder.fence,
        holder.holds,
        holder.deadline_ms,
        holder.stored_since_ms(),
        holder.lease_ms,
        holder.permits.into(),
    ];
    for number in numbers {
        text.push(b' ');
        text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
    let mut words: Words<'_> = smallvec![
        Word::Borrowed(b"GRANT"),
        Word::Borrowed(holder.token.as_bytes()),
        Word::Made(text),
    ];
    if unlikely(!holder.data.is_empty()) {
        words.push(Word::Borrowed(holder.data.as_bytes()));
    }
    words
}

/// Returns the words that follow `LOCK.APPLY key` when the locks of several keys are renewed
/// together. The other keys follow these words.
pub fn renewal_words<'a>(deadline_ms: u64) -> Words<'a> {
    let deadline = itoa::Buffer::new().format(deadline_ms).as_bytes().into();
    smallvec![Word::Borrowed(b"RENEW"), Word::Made(deadline)]
}

/// Parses the words that [`words`] and [`renewal_words`] return.
///
/// # Errors
/// [`Refusal::ApplyMalformed`] for all other words.
pub fn parse<'a>(words: &'a [&'a [u8]]) -> Result<Parsed<'a>, Refusal> {
    let order = match words {
        [b"GRANT", token, text] => parse_grant(token, text, Data::NONE).map(Parsed::Change),
        [b"GRANT", token, text, data] => parse_data(data)
            .and_then(|data| parse_grant(token, text, data))
            .map(Parsed::Change),
        [b"DROP", token] => Token::new(token)
            .ok()
            .map(|token| Parsed::Change(Change::Drop { token })),
        [b"RENEW", deadline_ms, others @ ..] => decimal::parse(deadline_ms)
            .filter(|ms| *ms <= MAX_DEADLINE_MS)
            .map(|deadline_ms| Parsed::Renew {
                deadline_ms,
                others,
            }),
        _ => None,
    };
    order.ok_or(Refusal::ApplyMalformed)
}

/// Parses the data of a grant. Without data the word is missing.
fn parse_data(bytes: &[u8]) -> Option<Data> {
    Data::new(bytes).ok().filter(|data| !data.is_empty())
}

fn parse_grant(token: &[u8], text: &[u8], data: Data) -> Option<Change> {
    let mut words = text.split(|byte| *byte == b' ');
    let mode = match words.next()? {
        b"exclusive" => Mode::Exclusive,
        b"shared" => Mode::Shared,
        _ => return None,
    };
    let mut number = || words.next().and_then(decimal::parse);
    let [limit, fence, holds, deadline_ms, since_ms, lease_ms, permits] =
        [(); 7].map(|()| number());
    if words.next().is_some() {
        return None;
    }
    let (since_ms, session) = Holder::read_since_ms(since_ms?)?;
    let holder = Holder {
        token: Token::new(token).ok()?,
        fence: fence?,
        holds: holds?,
        limit: u32::try_from(limit?).ok()?,
        deadline_ms: deadline_ms?,
        since_ms,
        lease_ms: lease_ms?,
        permits: u32::try_from(permits?).ok()?,
        client_id: 0,
        session,
        data,
    };
    let in_range = holder.deadline_ms <= MAX_DEADLINE_MS && holder.since_ms <= MAX_DEADLINE_MS;
    let sound = Lock::held(mode, vec![holder.clone()]).is_some();
    (in_range && sound).then_some(Change::Grant { mode, holder })
}

/// Applies a change to a lock.
pub fn apply(lock: &mut Lock, change: &Change) {
    match change {
        Change::Grant { mode, holder } | Change::Raise { mode, holder } => {
            lock.grant(*mode, holder.clone());
        }
        Change::Renew { holder } => lock.grant(Mode::Exclusive, holder.clone()),
        Change::Drop { token } => {
            lock.remove(token);
        }
        Change::Delete => *lock = Lock::free(),
    }
}

/// Passes to `add` the changes that make a lock at a name without one.
#[inline(always)]
pub fn make(lock: &Lock, mut add: impl FnMut(Change)) {
    match lock.holders().only() {
        Some(own) => add(grant_of(lock, own)),
        None => make_shared(lock, &mut add),
    }
}

#[inline(never)]
fn make_shared(lock: &Lock, add: &mut dyn FnMut(Change)) {
    let holders = lock.holders().iter();
    holders.map(|own| grant_of(lock, own)).for_each(add);
}

/// Passes to `add` the changes that turn `before` into `after`, which has a holder. Passes nothing
/// if nothing changed.
///
/// 1. Grants come before drops, so no replica sees the lock free in between.
/// 2. If only the key's own expiry differs from the last deadline, the latest grant is repeated.
///    Applying it sets the expiry.
pub fn between(before: &Stored, after: &Lock, add: &mut dyn FnMut(Change)) {
    let is_as_before = Cell::new(true);
    let mut add = |change| {
        is_as_before.set(false);
        add(change);
    };
    match (before.lock.mode(), after.mode()) {
        (Mode::Shared, Mode::Shared) => between_shared(&before.lock, after, &mut add),
        (Mode::Exclusive, Mode::Exclusive) => between_exclusive(&before.lock, after, &mut add),
        _ => {
            let grants = after.holders().iter().map(|own| grant_of(after, own));
            grants.for_each(&mut add);
        }
    }
    if is_as_before.get() && before.expiry_ms != after.latest_deadline_ms() {
        let last = after.holders().last();
        last.map(|own| grant_of(after, own))
            .into_iter()
            .for_each(add);
    }
}

/// Returns the grant of a token if the token holds `lock` and `changes` have no grant to it yet.
pub fn forced(changes: &[Effect<'_>], lock: &Lock, token: &Token) -> Option<Change> {
    let granted = |effect: &Effect<'_>| match &effect.change {
        Change::Grant { holder, .. } | Change::Raise { holder, .. } | Change::Renew { holder } => {
            holder.token == *token
        }
        Change::Drop { .. } | Change::Delete => false,
    };
    let own = lock.holder(token).filter(|_| !changes.iter().any(granted));
    own.map(|own| grant_of(lock, own))
}

/// Returns a grant for each holder. Together they make the lock anew.
pub fn all_grants(lock: &Lock) -> Changes {
    let holders = lock.holders().iter();
    holders.map(|own| grant_of(lock, own)).collect()
}

fn between_shared(before: &Lock, after: &Lock, mut add: impl FnMut(Change)) {
    let mut drops = Changes::new();
    for Difference { before, after: own } in before.holders().differences(after.holders()) {
        match (own, before) {
            (Some(own), _) => add(grant_of(after, own)),
            (None, Some(gone)) => drops.push(Change::Drop {
                token: gone.token.clone(),
            }),
            (None, None) => {}
        }
    }
    drops.into_iter().for_each(add);
}

fn between_exclusive(before: &Lock, after: &Lock, add: impl FnMut(Change)) {
    let own = after.holders().only();
    let own = own.filter(|own| before.holders().only() != Some(own));
    own.map(|own| grant_of(after, own))
        .into_iter()
        .for_each(add);
}

/// Replaces a single grant by [`Change::Renew`] if the lock is exclusive and only the deadline
/// differs.
pub fn condense(changes: &mut [Effect<'_>], before: &Stored) {
    let [Effect { change, .. }] = changes else {
        return;
    };
    if let Change::Grant { mode, holder } = change {
        let same = before.lock.holders().only();
        let renewed = same.is_some_and(|own| differs_in_deadline(own, holder));
        if *mode == Mode::Exclusive && before.lock.mode() == *mode && renewed {
            let holder = holder.clone();
            *change = Change::Renew { holder };
        }
    }
}

/// Replaces grants by [`Change::Raise`] if they are in force already and only FENCE can have given
/// them another fence. The changes are those of an operation that extends or repeats a grant.
pub fn mark_raised(changes: &mut [Effect<'_>], before: &Lock) {
    for Effect { change, .. } in changes {
        if let Change::Grant { mode, holder } = change {
            if is_raised(before, *mode, holder) {
                let (mode, holder) = (*mode, holder.clone());
                *change = Change::Raise { mode, holder };
            }
        }
    }
}

/// Returns a change from a stream as its primary decided it, for the lock that it changes.
///
/// A raised fence has the words of a grant, so an older version can apply it. It is recognized by
/// the time of the grant. Only a new grant in the same millisecond can be mistaken for it.
pub fn as_decided(change: Change, lock: &Lock) -> Change {
    match change {
        Change::Grant { mode, holder } if is_raised(lock, mode, &holder) => {
            Change::Raise { mode, holder }
        }
        change => change,
    }
}

/// Returns true if a grant has the mode and the `since` that it had before, and a greater fence.
fn is_raised(before: &Lock, mode: Mode, after: &Holder) -> bool {
    let is_same = |own: &Holder| own.fence < after.fence && own.since_ms == after.since_ms;
    before.mode() == mode && before.holder(&after.token).is_some_and(is_same)
}

/// Returns true if the deadline differs and every other stored field is equal. The session is not
/// compared, because a renewal keeps it.
fn differs_in_deadline(before: &Holder, after: &Holder) -> bool {
    let known = Holder {
        deadline_ms: before.deadline_ms,
        client_id: before.client_id,
        session: before.session,
        ..after.clone()
    };
    known == *before && before.deadline_ms != after.deadline_ms
}

#[inline(always)]
fn grant_of(lock: &Lock, holder: &Holder) -> Change {
    Change::Grant {
        mode: lock.mode(),
        holder: holder.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::values::session_id::SessionId;

    fn data() -> impl Strategy<Value = Data> {
        proptest::sample::select(vec!["", "", "who", "why"])
            .prop_map(|data| Data::new(data.as_bytes()).unwrap())
    }

    fn holders(mode: Mode) -> impl Strategy<Value = Vec<Holder>> {
        let most = if mode == Mode::Exclusive { 1 } else { 5 };
        proptest::collection::btree_map(
            0u8..6,
            (1u64..40, 1u64..4, 0u32..3, 1u64..90, data()),
            1..=most,
        )
        .prop_map(move |map| {
            let mut fences: Vec<u64> = map.values().map(|v| v.0).collect();
            fences.sort_unstable();
            map.into_iter()
                .zip(fences)
                .map(
                    |((token, (_, holds, limit, deadline_ms, data)), fence)| Holder {
                        token: Token::new(&[token]).unwrap(),
                        fence,
                        holds,
                        limit: if mode == Mode::Exclusive { 0 } else { limit },
                        deadline_ms,
                        permits: if mode == Mode::Shared {
                            limit.max(1)
                        } else {
                            1
                        },
                        lease_ms: 10,
                        since_ms: 7,
                        client_id: 0,
                        session: SessionId::NONE,
                        data,
                    },
                )
                .collect()
        })
    }

    fn lock() -> impl Strategy<Value = Lock> {
        prop_oneof![
            Just(Lock::free()),
            holders(Mode::Exclusive).prop_map(|h| Lock::held(Mode::Exclusive, h).unwrap()),
            holders(Mode::Shared).prop_map(|h| Lock::held(Mode::Shared, h).unwrap()),
        ]
    }

    fn all_between(before: Option<&Stored>, after: &Lock) -> Vec<Change> {
        let mut changes = Vec::new();
        match before {
            Some(_) if after.is_free() => changes.push(Change::Delete),
            Some(before) => between(before, after, &mut |change| changes.push(change)),
            None => make(after, |change| changes.push(change)),
        }
        changes
    }

    proptest! {
        #[test]
        fn changes_lead_from_before_to_after(before in lock(), after in lock()) {
            let expiry_ms = before.latest_deadline_ms();
            let stored = (!before.is_free()).then(|| Stored { lock: before.clone(), expiry_ms });
            let mut replica = before;
            for change in all_between(stored.as_ref(), &after) {
                apply(&mut replica, &change);
            }
            prop_assert_eq!(replica.holders(), after.holders());
            prop_assert!(replica.is_free() || replica.mode() == after.mode());
        }

        #[test]
        fn what_is_written_is_read(lock in lock()) {
            for change in all_grants(&lock) {
                let words = words(&change).unwrap();
                let words: Vec<&[u8]> = words.iter().map(Word::as_slice).collect();
                prop_assert_eq!(parse(&words), Ok(Parsed::Change(change.clone())));
            }
        }

        #[test]
        fn nothing_changed_means_no_effect(lock in lock()) {
            prop_assume!(!lock.is_free());
            let stored = Stored { lock: lock.clone(), expiry_ms: lock.latest_deadline_ms() };
            prop_assert!(all_between(Some(&stored), &lock).is_empty());
        }
    }

    #[test]
    fn an_expiry_set_by_hand_is_put_back_by_one_grant() {
        let holder = Holder {
            token: Token::new(b"a").unwrap(),
            fence: 1,
            holds: 1,
            limit: 0,
            deadline_ms: 50,
            permits: 1,
            lease_ms: 10,
            since_ms: 0,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        };
        let lock = Lock::held(Mode::Exclusive, vec![holder]).unwrap();
        for expiry_ms in [None, Some(80)] {
            let stored = Stored {
                lock: lock.clone(),
                expiry_ms,
            };
            assert_eq!(all_between(Some(&stored), &lock).len(), 1, "{expiry_ms:?}");
        }
    }

    #[test]
    fn an_unclaimed_grant_is_marked_where_an_older_version_reads_a_time() {
        let text = "exclusive 0 9 1 50 4503599627370503 10 1";
        let change = Change::Grant {
            mode: Mode::Exclusive,
            holder: Holder {
                token: Token::new(b"t").unwrap(),
                fence: 9,
                holds: 1,
                limit: 0,
                permits: 1,
                deadline_ms: 50,
                lease_ms: 10,
                since_ms: 7,
                client_id: 0,
                session: SessionId::UNCLAIMED,
                data: Data::NONE,
            },
        };
        let words = words(&change).unwrap();
        assert_eq!(words[2].as_slice(), text.as_bytes());
        let words: [&[u8]; 3] = [b"GRANT", b"t", text.as_bytes()];
        assert_eq!(parse(&words), Ok(Parsed::Change(change.clone())));
    }

    #[test]
    fn data_is_a_word_of_its_own_and_without_data_there_is_none() {
        let text: &[u8] = b"exclusive 0 9 1 50 7 10 1";
        let plain: [&[u8]; 3] = [b"GRANT", b"t", text];
        let with_data: [&[u8]; 4] = [b"GRANT", b"t", text, b"a\0 b"];
        for written in [plain.as_slice(), &with_data] {
            let Ok(Parsed::Change(change)) = parse(written) else {
                unreachable!("{written:?}");
            };
            let words = words(&change).unwrap();
            let words: Vec<&[u8]> = words.iter().map(Word::as_slice).collect();
            assert_eq!(words, written);
        }
    }

    #[test]
    fn malformed_effects_are_refused() {
        let good = "shared 2 9 1 50 7 10 2";
        assert!(parse(&[b"GRANT", b"t", good.as_bytes()]).is_ok());
        let bad = [
            "both 2 9 1 50 7 10 1",
            "shared 4294967296 9 1 50 7 10 1",
            "shared 2 -1 1 50 7 10 1",
            "shared 2 9 0 50 7 10 1",
            "shared 2 9 1 99999999999999999 7 10 1",
            "shared 2 9 1 50 x 10 1",
            "shared 2 9 1 50 7 0 1",
            "shared 2 9 1 50 7 9007199254740992 1",
            "shared 2 9 1 50 7 10 0",
            "shared 2 9 1 50 7 10 3",
            "shared 2 9 1 50 7 10 4294967297",
            "shared 0 9 1 50 7 10 2",
            "exclusive 0 9 1 50 7 10 2",
            "shared 2 9 1 50 7 10",
            "shared 2 9 1 50 7 10 2 ",
            "shared 2 9 1 50 7 10 2 0",
            "shared  2 9 1 50 7 10 2",
            "exclusive 2 9 1 50 7 10 1",
            "",
        ];
        for text in bad {
            let words = [b"GRANT", b"t".as_slice(), text.as_bytes()];
            assert_eq!(parse(&words), Err(Refusal::ApplyMalformed), "{text:?}");
        }
        let good = good.as_bytes();
        let too_long = [7; 1025];
        let bad: [&[&[u8]]; 11] = [
            &[],
            &[b"DROP"],
            &[b"RENEW"],
            &[b"RENEW", b"-1"],
            &[b"grant", b"t", good],
            &[b"GRANT", b"", good],
            &[b"GRANT", b"t"],
            &[b"GRANT", b"t", good, b""],
            &[b"GRANT", b"t", good, &too_long],
            &[b"GRANT", b"t", good, b"x", b""],
            &[b"GRANT"],
        ];
        for words in bad {
            assert_eq!(parse(words), Err(Refusal::ApplyMalformed), "{words:?}");
        }
    }

    #[test]
    fn only_what_differs_in_its_deadline_alone_is_a_renewal() {
        let own = |fence, deadline_ms| Holder {
            token: Token::new(b"a").unwrap(),
            fence,
            holds: 1,
            limit: 0,
            deadline_ms,
            permits: 1,
            lease_ms: 10,
            since_ms: 0,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        };
        let held = |mode, holder| Lock::held(mode, vec![holder]).unwrap();
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let table = [
            (exclusive, own(1, 50), exclusive, own(1, 90), true),
            (exclusive, own(1, 50), exclusive, own(2, 90), false),
            (shared, own(1, 50), exclusive, own(1, 90), false),
            (shared, own(1, 50), shared, own(1, 90), false),
        ];
        for (mode, before, new_mode, after, is_renewal) in table {
            let stored = Stored {
                expiry_ms: Some(before.deadline_ms),
                lock: held(mode, before),
            };
            let changes = all_between(Some(&stored), &held(new_mode, after));
            let k = Name::new(0, b"k");
            let at_k = |change| Effect {
                name: EffectName::Own(&k),
                change,
            };
            let mut changes: Effects<'_> = changes.into_iter().map(at_k).collect();
            condense(&mut changes, &stored);
            let renewed = matches!(
                changes.as_slice(),
                [Effect {
                    change: Change::Renew { .. },
                    ..
                }]
            );
            assert_eq!(
                renewed, is_renewal,
                "{stored:?} to {new_mode:?}: {changes:?}"
            );
        }
    }

    #[test]
    fn renewals_are_read_as_they_are_written() {
        let words = renewal_words(90);
        let mut words: Vec<&[u8]> = words.iter().map(Word::as_slice).collect();
        words.extend([b"y".as_slice(), b"z"]);
        let others: [&[u8]; 2] = [b"y", b"z"];
        let renewal = Parsed::Renew {
            deadline_ms: 90,
            others: &others,
        };
        assert_eq!(parse(&words), Ok(renewal));
    }

    fn own(token: &[u8], fence: u64) -> Holder {
        Holder {
            token: Token::new(token).unwrap(),
            fence,
            holds: 1,
            limit: 0,
            permits: 1,
            deadline_ms: 90,
            lease_ms: 10,
            since_ms: 7,
            client_id: 0,
            session: SessionId::NONE,
            data: Data::NONE,
        }
    }

    /// A grant of the same time with a greater fence is a raised one.
    #[test]
    fn a_raised_fence_is_known_by_the_time_of_its_grant() {
        let (one, other) = (own(b"a", 5), own(b"b", 6));
        let shared = Lock::held(Mode::Shared, vec![one.clone(), other]).unwrap();
        let exclusive = Lock::sole(Mode::Exclusive, one.clone());
        for (lock, mode, fence, since_ms, is_raised) in [
            (&shared, Mode::Shared, 9, 7, true),
            (&exclusive, Mode::Exclusive, 6, 7, true),
            (&exclusive, Mode::Exclusive, 5, 7, false),
            (&exclusive, Mode::Exclusive, 4, 7, false),
            (&exclusive, Mode::Exclusive, 6, 8, false),
            (&exclusive, Mode::Shared, 6, 7, false),
            (&Lock::free(), Mode::Exclusive, 6, 7, false),
        ] {
            let holder = Holder {
                fence,
                since_ms,
                ..one.clone()
            };
            let grant = Change::Grant {
                mode,
                holder: holder.clone(),
            };
            let expected = match is_raised {
                true => Change::Raise { mode, holder },
                false => grant.clone(),
            };
            assert_eq!(
                as_decided(grant, lock),
                expected,
                "{mode:?} {fence} {since_ms}"
            );
        }
        let drop = Change::Drop { token: one.token };
        assert_eq!(as_decided(drop.clone(), &shared), drop);
    }

    #[test]
    fn a_renewal_differs_in_the_deadline_only() {
        let before = own(b"a", 5);
        let tied = Holder {
            client_id: 3,
            session: SessionId::numbered(4),
            deadline_ms: 91,
            ..before.clone()
        };
        for (after, is_renewal) in [
            (before.clone(), false),
            (
                Holder {
                    deadline_ms: 91,
                    ..before.clone()
                },
                true,
            ),
            (tied, true),
            (
                Holder {
                    deadline_ms: 91,
                    fence: 6,
                    ..before.clone()
                },
                false,
            ),
        ] {
            assert_eq!(
                differs_in_deadline(&before, &after),
                is_renewal,
                "{after:?}"
            );
        }
    }

    #[test]
    fn the_grants_of_a_lock_make_it_anew() {
        let lock = Lock::held(Mode::Shared, vec![own(b"a", 5), own(b"b", 6)]).unwrap();
        let mut made = Changes::new();
        make(&lock, |change| made.push(change));
        for changes in [all_grants(&lock), made] {
            let mut copy = Lock::free();
            changes.iter().for_each(|change| apply(&mut copy, change));
            assert_eq!(copy, lock);
        }
    }

    #[test]
    fn the_words_of_a_drop_are_read() {
        let words: [&[u8]; 2] = [b"DROP", b"a"];
        let token = Token::new(b"a").unwrap();
        assert_eq!(parse(&words), Ok(Parsed::Change(Change::Drop { token })));
        assert_eq!(parse(&[b"DROP", b""]), Err(Refusal::ApplyMalformed));
    }
}
