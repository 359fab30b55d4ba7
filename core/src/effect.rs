//! What changes in the keyspace, as values: the only thing that is stored and replicated.
//!
//! Effects carry absolute times and no conditions, so applying them in order gives the same locks
//! on every replica and at every replay. A command is never replicated as it came.
//!
//! ```text
//! LOCK.APPLY key GRANT token mode limit fence holds deadline-ms since-ms
//! LOCK.APPLY key DROP token
//! DEL key                     when the last holder goes
//! ```

use std::collections::HashMap;

use crate::lock::{Holder, Lock, Mode};
use crate::name::Name;
use crate::refusal::Refusal;
use crate::session::TieId;
use crate::token::Token;
use crate::{grammar, MAX_SPAN_MS};

/// The latest deadline that an effect or a payload may carry, in ms since the epoch: the longest
/// lease, granted in the year 2255.
pub const MAX_DEADLINE_MS: u64 = MAX_SPAN_MS + (1 << 43);

/// What happens to one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A grant is made or renewed. Unless the lock and the grant are both shared it replaces all
    /// holders, so that a hand-over is a single effect.
    Grant {
        /// Alone or beside others.
        mode: Mode,
        /// The grant.
        holder: Holder,
    },
    /// A holder goes, others stay.
    Drop {
        /// Who goes.
        token: Token,
    },
    /// The last holder goes.
    Delete,
}

/// A change and where it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Where.
    pub name: Name,
    /// What.
    pub change: Change,
}

/// The words that follow `LOCK.APPLY key`, or `None` for a change that is a plain `DEL key`.
pub fn words(change: &Change) -> Option<Vec<Vec<u8>>> {
    match change {
        Change::Grant { mode, holder } => Some(vec![
            b"GRANT".to_vec(),
            holder.token.as_bytes().to_vec(),
            mode.as_str().into(),
            holder.limit.to_string().into(),
            holder.fence.to_string().into(),
            holder.holds.to_string().into(),
            holder.deadline_ms.to_string().into(),
            holder.since_ms.to_string().into(),
        ]),
        Change::Drop { token } => Some(vec![b"DROP".to_vec(), token.as_bytes().to_vec()]),
        Change::Delete => None,
    }
}

/// Reads what [`words`] wrote.
///
/// # Errors
/// [`Refusal::ApplyMalformed`] for everything that [`words`] doesn't write.
pub fn parse(words: &[&[u8]]) -> Result<Change, Refusal> {
    let change = match words {
        [b"GRANT", token, mode, limit, fence, holds, deadline_ms, since_ms] => {
            parse_grant(token, mode, [limit, fence, holds, deadline_ms, since_ms])
        }
        [b"DROP", token] => Token::new(token).ok().map(|token| Change::Drop { token }),
        _ => None,
    };
    change.ok_or(Refusal::ApplyMalformed)
}

fn parse_grant(token: &[u8], mode: &[u8], numbers: [&[u8]; 5]) -> Option<Change> {
    let mode = match mode {
        b"exclusive" => Mode::Exclusive,
        b"shared" => Mode::Shared,
        _ => return None,
    };
    let [limit, fence, holds, deadline_ms, since_ms] = numbers.map(grammar::decimal);
    let holder = Holder {
        token: Token::new(token).ok()?,
        fence: fence?,
        holds: holds?,
        limit: u32::try_from(limit?).ok()?,
        deadline_ms: deadline_ms?,
        since_ms: since_ms?,
        client_id: 0,
        tie: TieId::NONE,
    };
    let in_range = holder.deadline_ms <= MAX_DEADLINE_MS && holder.since_ms <= MAX_DEADLINE_MS;
    let sound = Lock::held(mode, vec![holder.clone()]).is_some();
    (in_range && sound).then_some(Change::Grant { mode, holder })
}

/// Makes a change to a lock.
pub fn apply(lock: &mut Lock, change: &Change) {
    match change {
        Change::Grant { mode, holder } => lock.grant(*mode, holder.clone()),
        Change::Drop { token } => {
            lock.remove(token);
        }
        Change::Delete => *lock = Lock::free(),
    }
}

/// A lock as the keyspace has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its value.
    pub lock: Lock,
    /// When the key itself expires, in ms since the epoch. Somebody's EXPIRE or PERSIST may have
    /// set it apart from the leases.
    pub expiry_ms: Option<u64>,
}

/// The changes that turn `before` into `after`, fewest first: nothing when nothing changed.
///
/// Grants come before drops, so that no replica sees the lock free in between.
pub fn between(before: Option<&Stored>, after: &Lock) -> Vec<Change> {
    let Some(before) = before else {
        return after.holders().iter().map(|h| grant_of(after, h)).collect();
    };
    if after.is_free() {
        return vec![Change::Delete];
    }
    let mut changes = match (before.lock.mode(), after.mode()) {
        (Mode::Shared, Mode::Shared) => between_shared(&before.lock, after),
        _ if before.lock == *after => Vec::new(),
        _ => after.holders().iter().map(|h| grant_of(after, h)).collect(),
    };
    if changes.is_empty() && before.expiry_ms != after.latest_deadline_ms() {
        changes.extend(after.holders().last().map(|h| grant_of(after, h)));
    }
    changes
}

/// Adds the grant of a token to the changes, if it is none of them yet.
pub fn affirm(changes: &mut Vec<Change>, lock: &Lock, token: &Token) {
    let granted =
        |change: &Change| matches!(change, Change::Grant { holder, .. } if holder.token == *token);
    if !changes.iter().any(granted) {
        changes.extend(lock.holder(token).map(|own| grant_of(lock, own)));
    }
}

fn between_shared(before: &Lock, after: &Lock) -> Vec<Change> {
    let (old, new) = (by_token(before), by_token(after));
    let grants = after
        .holders()
        .iter()
        .filter(|&h| old.get(&h.token) != Some(&h));
    let gone = before
        .holders()
        .iter()
        .filter(|h| !new.contains_key(&h.token));
    let drops = gone.map(|h| Change::Drop {
        token: h.token.clone(),
    });
    grants.map(|h| grant_of(after, h)).chain(drops).collect()
}

fn by_token(lock: &Lock) -> HashMap<&Token, &Holder> {
    lock.holders().iter().map(|h| (&h.token, h)).collect()
}

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

    fn holders(mode: Mode) -> impl Strategy<Value = Vec<Holder>> {
        let most = if mode == Mode::Exclusive { 1 } else { 5 };
        proptest::collection::btree_map(0u8..6, (1u64..40, 1u64..4, 0u32..3, 1u64..90), 1..=most)
            .prop_map(move |map| {
                let mut fences: Vec<u64> = map.values().map(|v| v.0).collect();
                fences.sort_unstable();
                map.into_iter()
                    .zip(fences)
                    .map(|((token, (_, holds, limit, deadline_ms)), fence)| Holder {
                        token: Token::new(&[token]).unwrap(),
                        fence,
                        holds,
                        limit: if mode == Mode::Exclusive { 0 } else { limit },
                        deadline_ms,
                        since_ms: 7,
                        client_id: 0,
                        tie: TieId::NONE,
                    })
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

    fn sorted_by_token(lock: &Lock) -> Vec<Holder> {
        let mut holders = lock.holders().to_vec();
        holders.sort_by(|a, b| a.token.cmp(&b.token));
        holders
    }

    proptest! {
        #[test]
        fn changes_lead_from_before_to_after(before in lock(), after in lock()) {
            let expiry_ms = before.latest_deadline_ms();
            let stored = (!before.is_free()).then(|| Stored { lock: before.clone(), expiry_ms });
            let mut replica = before;
            for change in between(stored.as_ref(), &after) {
                apply(&mut replica, &change);
            }
            prop_assert_eq!(sorted_by_token(&replica), sorted_by_token(&after));
            prop_assert!(replica.is_free() || replica.mode() == after.mode());
        }

        #[test]
        fn what_is_written_is_read(lock in lock()) {
            for change in between(None, &lock) {
                let words = words(&change).unwrap();
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                prop_assert_eq!(parse(&words), Ok(change));
            }
        }

        #[test]
        fn nothing_changed_means_no_effect(lock in lock()) {
            prop_assume!(!lock.is_free());
            let stored = Stored { lock: lock.clone(), expiry_ms: lock.latest_deadline_ms() };
            prop_assert!(between(Some(&stored), &lock).is_empty());
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
            since_ms: 0,
            client_id: 0,
            tie: TieId::NONE,
        };
        let lock = Lock::held(Mode::Exclusive, vec![holder]).unwrap();
        for expiry_ms in [None, Some(80)] {
            let stored = Stored {
                lock: lock.clone(),
                expiry_ms,
            };
            assert_eq!(between(Some(&stored), &lock).len(), 1, "{expiry_ms:?}");
        }
    }

    #[test]
    fn malformed_effects_are_refused() {
        let good: [&[u8]; 8] = [b"GRANT", b"t", b"shared", b"2", b"9", b"1", b"50", b"7"];
        assert!(parse(&good).is_ok());
        let bad: [(usize, &[u8]); 9] = [
            (0, b"grant"),
            (1, b""),
            (2, b"both"),
            (3, b"4294967296"),
            (4, b"-1"),
            (5, b"0"),
            (6, b"99999999999999999"),
            (7, b"x"),
            (2, b"exclusive"), // with a limit
        ];
        for (place, word) in bad {
            let mut words = good;
            words[place] = word;
            assert_eq!(
                parse(&words),
                Err(Refusal::ApplyMalformed),
                "{place}: {word:?}"
            );
        }
        assert_eq!(parse(&good[..7]), Err(Refusal::ApplyMalformed));
        assert_eq!(parse(&[]), Err(Refusal::ApplyMalformed));
        assert_eq!(parse(&[b"DROP"]), Err(Refusal::ApplyMalformed));
    }
}
