//! The words of each command, and what they mean.
//!
//! Each function takes the words behind the command's name. Errors come in the order of precedence
//! of the contract: arity, numkeys (where it is bad, the rest can't be read), syntax, duplicate
//! key, token, then the numbers: lease, timeout, limit, count. So words are collected first and
//! their values are looked at afterwards.

use crate::lock::Mode;
use crate::name::Name;
use crate::order::{Ask, Leave, Life, Names, Order, Repeat};
use crate::refusal::Refusal;
use crate::token::Token;
use crate::MAX_SPAN_MS;

/// What a command's words are read against.
pub struct Setting<'a> {
    /// The database that the client has selected.
    pub db: i32,
    /// The lease of a command that names none.
    pub default_lease_ms: u64,
    /// Draws a token for `*`.
    pub draw_token: &'a dyn Fn() -> Result<Token, Refusal>,
}

/// How many of the queue LOCK.INFO shows when it isn't told.
pub const DEFAULT_WAITERS_SHOWN: u64 = 10;

/// A whole number of decimal digits: no sign, space, fraction or leading zero.
pub fn decimal(word: &[u8]) -> Option<u64> {
    let digits = word.iter().all(u8::is_ascii_digit);
    let padded = word.len() > 1 && word.first() == Some(&b'0');
    if !digits || padded {
        return None;
    }
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn within(word: &[u8], least: u64, most: u64, otherwise: Refusal) -> Result<u64, Refusal> {
    decimal(word)
        .filter(|n| (least..=most).contains(n))
        .ok_or(otherwise)
}

/// The options that a command takes, as they were found: words whose values are still unread.
#[derive(Default)]
struct Options<'a> {
    px: Option<&'a [u8]>,
    ex: Option<&'a [u8]>,
    block: Option<&'a [u8]>,
    limit: Option<&'a [u8]>,
    waiters: Option<&'a [u8]>,
    shared: Option<()>,
    reentrant: Option<()>,
    session: Option<()>,
    all: Option<()>,
}

/// An option's place in [`Options`]; a command names those it takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Px,
    Ex,
    Block,
    Limit,
    Waiters,
    Shared,
    Reentrant,
    Session,
    All,
}

const WORDS: [(&[u8], Word); 9] = [
    (b"PX", Word::Px),
    (b"EX", Word::Ex),
    (b"BLOCK", Word::Block),
    (b"LIMIT", Word::Limit),
    (b"WAITERS", Word::Waiters),
    (b"SHARED", Word::Shared),
    (b"REENTRANT", Word::Reentrant),
    (b"SESSION", Word::Session),
    (b"ALL", Word::All),
];

const ACQUIRE: &[Word] = &[
    Word::Px,
    Word::Ex,
    Word::Shared,
    Word::Limit,
    Word::Reentrant,
    Word::Session,
];
const WAIT: &[Word] = &[
    Word::Px,
    Word::Ex,
    Word::Block,
    Word::Shared,
    Word::Limit,
    Word::Reentrant,
    Word::Session,
];
const EXTEND: &[Word] = &[Word::Px, Word::Ex, Word::Session];
const RELEASE: &[Word] = &[Word::All];
const INFO: &[Word] = &[Word::Waiters];

impl<'a> Options<'a> {
    /// Finds the options among `words`: any order, any case, none twice, none that isn't `taken`.
    fn find(words: &[&'a [u8]], taken: &[Word]) -> Result<Self, Refusal> {
        let mut found = Self::default();
        let mut words = words.iter();
        while let Some(spelt) = words.next() {
            let known = WORDS
                .iter()
                .find(|(name, _)| spelt.eq_ignore_ascii_case(name));
            let word = known
                .map(|(_, word)| *word)
                .filter(|word| taken.contains(word));
            found.note(word.ok_or(Refusal::Syntax)?, &mut words)?;
        }
        let lease_twice = found.px.is_some() && found.ex.is_some();
        let limit_alone = found.limit.is_some() && found.shared.is_none();
        if lease_twice || limit_alone {
            return Err(Refusal::Syntax);
        }
        Ok(found)
    }

    fn note(
        &mut self,
        word: Word,
        rest: &mut std::slice::Iter<'_, &'a [u8]>,
    ) -> Result<(), Refusal> {
        let value = match word {
            Word::Px => &mut self.px,
            Word::Ex => &mut self.ex,
            Word::Block => &mut self.block,
            Word::Limit => &mut self.limit,
            Word::Waiters => &mut self.waiters,
            Word::Shared => return once(&mut self.shared, ()),
            Word::Reentrant => return once(&mut self.reentrant, ()),
            Word::Session => return once(&mut self.session, ()),
            Word::All => return once(&mut self.all, ()),
        };
        once(value, rest.next().copied().ok_or(Refusal::Syntax)?)
    }

    fn lease_ms(&self, default_ms: u64) -> Result<u64, Refusal> {
        match (self.px, self.ex) {
            (Some(ms), _) => within(ms, 1, MAX_SPAN_MS, Refusal::Lease),
            (None, Some(s)) => Ok(within(s, 1, MAX_SPAN_MS / 1000, Refusal::Lease)? * 1000),
            (None, None) => Ok(default_ms),
        }
    }

    fn block_ms(&self) -> Result<u64, Refusal> {
        self.block
            .map_or(Ok(0), |ms| within(ms, 0, MAX_SPAN_MS, Refusal::Timeout))
    }

    fn life(&self) -> Life {
        self.session.map_or(Life::Lease, |()| Life::Session)
    }

    fn limit(&self) -> Result<u32, Refusal> {
        let Some(limit) = self.limit else {
            return Ok(0);
        };
        let limit = within(limit, 1, u32::MAX.into(), Refusal::Limit)?;
        u32::try_from(limit).map_err(|_| Refusal::Limit)
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Refusal> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::Syntax),
    }
}

/// A command's words, cut into its parts but not read yet.
struct Parts<'a> {
    keys: &'a [&'a [u8]],
    token: &'a [u8],
    rest: &'a [&'a [u8]],
}

/// How a command names its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// `key token ...`
    One,
    /// `numkeys key [key ...] token ...`
    Many,
}

impl<'a> Parts<'a> {
    fn cut(words: &'a [&'a [u8]], keys: Keys) -> Result<Self, Refusal> {
        let (count, words) = match keys {
            Keys::One => (1, words),
            Keys::Many => {
                let (numkeys, words) = words.split_first().ok_or(Refusal::Arity)?;
                // Behind the keys there is a token at least.
                let most = words
                    .len()
                    .checked_sub(1)
                    .filter(|&most| most > 0)
                    .ok_or(Refusal::Arity)?;
                let count = within(numkeys, 1, most as u64, Refusal::Numkeys)?;
                (count as usize, words)
            }
        };
        let (keys, words) = words.split_at_checked(count).ok_or(Refusal::Arity)?;
        let (token, rest) = words.split_first().ok_or(Refusal::Arity)?;
        Ok(Self { keys, token, rest })
    }

    fn names(&self, db: i32) -> Result<Names, Refusal> {
        let names = self.keys.iter().map(|key| Name::new(db, key)).collect();
        Names::set(names).ok_or(Refusal::DuplicateKey)
    }

    /// A token that owns or wants to own: `*` draws one.
    fn token_or_new(&self, setting: &Setting<'_>) -> Result<Token, Refusal> {
        match self.token {
            b"*" => (setting.draw_token)(),
            bytes => Token::new(bytes),
        }
    }

    /// A token that exists already.
    fn token(&self) -> Result<Token, Refusal> {
        match self.token {
            b"*" => Err(Refusal::TokenStar),
            bytes => Token::new(bytes),
        }
    }
}

fn ask(token: Token, options: &Options<'_>, lease_ms: u64, limit: u32) -> Ask {
    Ask {
        token,
        mode: options.shared.map_or(Mode::Exclusive, |()| Mode::Shared),
        limit,
        lease_ms,
        repeat: options
            .reentrant
            .map_or(Repeat::Renews, |()| Repeat::Counts),
        life: options.life(),
    }
}

/// `LOCK.ACQUIRE` and `LOCK.MACQUIRE`.
///
/// # Errors
/// As the head of this file tells.
pub fn acquire(words: &[&[u8]], keys: Keys, setting: &Setting<'_>) -> Result<Order, Refusal> {
    let parts = Parts::cut(words, keys)?;
    let options = Options::find(parts.rest, ACQUIRE)?;
    let names = parts.names(setting.db)?;
    let token = parts.token_or_new(setting)?;
    let lease_ms = options.lease_ms(setting.default_lease_ms)?;
    let limit = options.limit()?;
    let ask = ask(token, &options, lease_ms, limit);
    Ok(Order::Acquire { names, ask })
}

/// `LOCK.WAIT` and `LOCK.MWAIT`.
///
/// # Errors
/// As the head of this file tells.
pub fn wait(words: &[&[u8]], keys: Keys, setting: &Setting<'_>) -> Result<Order, Refusal> {
    let parts = Parts::cut(words, keys)?;
    let options = Options::find(parts.rest, WAIT)?;
    let names = parts.names(setting.db)?;
    let token = parts.token_or_new(setting)?;
    let lease_ms = options.lease_ms(setting.default_lease_ms)?;
    let block_ms = options.block_ms()?;
    let limit = options.limit()?;
    let ask = ask(token, &options, lease_ms, limit);
    Ok(Order::Wait {
        names,
        ask,
        block_ms,
    })
}

/// `LOCK.EXTEND` and `LOCK.MEXTEND`.
///
/// # Errors
/// As the head of this file tells.
pub fn extend(words: &[&[u8]], keys: Keys, setting: &Setting<'_>) -> Result<Order, Refusal> {
    let parts = Parts::cut(words, keys)?;
    let options = Options::find(parts.rest, EXTEND)?;
    let names = parts.names(setting.db)?;
    let token = parts.token()?;
    let lease_ms = options.lease_ms(setting.default_lease_ms)?;
    Ok(Order::Extend {
        names,
        token,
        lease_ms,
        life: options.life(),
    })
}

/// `LOCK.RELEASE` and `LOCK.MRELEASE`.
///
/// # Errors
/// As the head of this file tells.
pub fn release(words: &[&[u8]], keys: Keys, setting: &Setting<'_>) -> Result<Order, Refusal> {
    let parts = Parts::cut(words, keys)?;
    let options = Options::find(parts.rest, RELEASE)?;
    let names = parts.names(setting.db)?;
    let token = parts.token()?;
    let leave = options.all.map_or(Leave::One, |()| Leave::All);
    Ok(Order::Release {
        names,
        token,
        leave,
    })
}

/// `LOCK.CHECK`: whose lease to look at.
///
/// # Errors
/// As the head of this file tells.
pub fn check(words: &[&[u8]], setting: &Setting<'_>) -> Result<(Name, Token), Refusal> {
    let [key, token] = words else {
        return Err(Refusal::Arity);
    };
    let parts = Parts {
        keys: &[key],
        token,
        rest: &[],
    };
    Ok((Name::new(setting.db, key), parts.token()?))
}

/// `LOCK.INFO`: which lock to look at, and how many of its queue to show.
///
/// # Errors
/// As the head of this file tells.
pub fn info(words: &[&[u8]], setting: &Setting<'_>) -> Result<(Name, u64), Refusal> {
    let (key, rest) = words.split_first().ok_or(Refusal::Arity)?;
    let options = Options::find(rest, INFO)?;
    let shown = options.waiters.map_or(Ok(DEFAULT_WAITERS_SHOWN), |count| {
        within(count, 0, MAX_SPAN_MS, Refusal::Count)
    })?;
    Ok((Name::new(setting.db, key), shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(draw_token: &dyn Fn() -> Result<Token, Refusal>) -> Setting<'_> {
        Setting {
            db: 0,
            default_lease_ms: 30_000,
            draw_token,
        }
    }

    /// Parses a line of words by the command named first.
    fn parse(line: &str) -> Result<Order, Refusal> {
        let words: Vec<&[u8]> = line
            .split(' ')
            .skip(1)
            .map(|w| if w == "\"\"" { b"" } else { w.as_bytes() })
            .collect();
        let drawn = || Ok(Token::from_bits(7));
        let setting = setting(&drawn);
        match line.split(' ').next().unwrap() {
            "ACQUIRE" => acquire(&words, Keys::One, &setting),
            "WAIT" => wait(&words, Keys::One, &setting),
            "EXTEND" => extend(&words, Keys::One, &setting),
            "RELEASE" => release(&words, Keys::One, &setting),
            "MACQUIRE" => acquire(&words, Keys::Many, &setting),
            "MWAIT" => wait(&words, Keys::Many, &setting),
            "MEXTEND" => extend(&words, Keys::Many, &setting),
            "MRELEASE" => release(&words, Keys::Many, &setting),
            other => unreachable!("{other}"),
        }
    }

    #[test]
    fn refusals_as_a_table() {
        use Refusal::*;
        let long = format!("ACQUIRE k {}", "x".repeat(257));
        let table = [
            ("ACQUIRE k", Arity, "no token"),
            ("ACQUIRE k t PX", Syntax, "no value"),
            ("ACQUIRE k t PX 1 EX 1", Syntax, "two leases"),
            ("ACQUIRE k t PX 1 px 2", Syntax, "twice"),
            ("ACQUIRE k t REENTRANT REENTRANT", Syntax, "twice"),
            ("ACQUIRE k t NOPE", Syntax, "unknown"),
            ("ACQUIRE k t BLOCK 1", Syntax, "not of this command"),
            ("ACQUIRE k t ALL", Syntax, "not of this command"),
            ("ACQUIRE k t LIMIT 3", Syntax, "LIMIT without SHARED"),
            ("ACQUIRE k \"\"", TokenLength, "empty"),
            (&long, TokenLength, "257 bytes"),
            ("ACQUIRE k \"\" NOPE", Syntax, "syntax goes before token"),
            (
                "ACQUIRE k \"\" PX 0",
                TokenLength,
                "token goes before lease",
            ),
            ("ACQUIRE k t PX 0", Lease, "none"),
            ("ACQUIRE k t PX 9007199254740992", Lease, "2^53"),
            (
                "ACQUIRE k t EX 9007199254741",
                Lease,
                "in seconds, above 2^53 - 1 ms",
            ),
            ("ACQUIRE k t PX +5", Lease, "sign"),
            ("ACQUIRE k t PX -5", Lease, "sign"),
            ("ACQUIRE k t PX 5.0", Lease, "fraction"),
            ("ACQUIRE k t PX 05", Lease, "leading zero"),
            ("ACQUIRE k t PX NaN", Lease, "no number"),
            ("ACQUIRE k t PX 1e3", Lease, "no integer"),
            ("ACQUIRE k t PX \"\"", Lease, "no digits"),
            (
                "ACQUIRE k t PX 99999999999999999999999",
                Lease,
                "beyond 64 bits",
            ),
            ("WAIT k t PX 0 BLOCK x", Lease, "lease goes before timeout"),
            ("WAIT k t BLOCK -1", Timeout, "negative"),
            ("WAIT k t BLOCK 9007199254740992", Timeout, "2^53"),
            (
                "WAIT k t BLOCK x SHARED LIMIT 0",
                Timeout,
                "timeout goes before limit",
            ),
            ("WAIT k t SHARED LIMIT 0", Limit, "none"),
            ("WAIT k t SHARED LIMIT 4294967296", Limit, "2^32"),
            ("EXTEND k *", TokenStar, "holds nothing yet"),
            ("RELEASE k *", TokenStar, "holds nothing yet"),
            ("RELEASE k t PX 1", Syntax, "not of this command"),
            ("EXTEND k t BLOCK 1", Syntax, "not of this command"),
            ("MACQUIRE 1 k", Arity, "no token"),
            ("MACQUIRE 0 k t", Numkeys, "none"),
            ("MACQUIRE x k t", Numkeys, "no number"),
            ("MACQUIRE 2 k t", Numkeys, "no token left"),
            ("MACQUIRE 9 k t NOPE", Numkeys, "the rest can't be read"),
            ("MACQUIRE 2 k k t", DuplicateKey, "twice"),
            (
                "MACQUIRE 2 k k t NOPE",
                Syntax,
                "syntax goes before duplicate key",
            ),
            (
                "MACQUIRE 2 k k \"\"",
                DuplicateKey,
                "duplicate key goes before token",
            ),
        ];
        for (line, refusal, why) in table {
            assert_eq!(parse(line), Err(refusal), "{line}: {why}");
        }
    }

    #[test]
    fn leases_and_options_are_read() {
        let lease_of = |line: &str| match parse(line).unwrap() {
            Order::Acquire { ask, .. } | Order::Wait { ask, .. } => ask.lease_ms,
            Order::Extend { lease_ms, .. } => lease_ms,
            other => unreachable!("{other:?}"),
        };
        assert_eq!(lease_of("ACQUIRE k t"), 30_000);
        assert_eq!(lease_of("ACQUIRE k t px 1"), 1);
        assert_eq!(lease_of("WAIT k t BLOCK 0 Ex 2 reentrant"), 2000);
        assert_eq!(lease_of("EXTEND k t PX 9007199254740991"), MAX_SPAN_MS);
        assert_eq!(
            lease_of("ACQUIRE k t EX 9007199254740"),
            9_007_199_254_740_000
        );
    }

    #[test]
    fn a_star_draws_a_token() {
        let Order::Acquire { ask, .. } = parse("ACQUIRE k *").unwrap() else {
            unreachable!()
        };
        assert_eq!(ask.token, Token::from_bits(7));
    }

    #[test]
    fn many_keys_of_one_are_one_key() {
        assert_eq!(parse("MWAIT 1 k t BLOCK 5"), parse("WAIT k t BLOCK 5"));
    }

    #[test]
    fn info_and_check_take_what_they_take() {
        let drawn = || Err(Refusal::NoRandomness);
        let setting = setting(&drawn);
        assert_eq!(info(&[b"k"], &setting).unwrap().1, 10);
        assert_eq!(info(&[b"k", b"waiters", b"0"], &setting).unwrap().1, 0);
        assert_eq!(
            info(&[b"k", b"WAITERS", b"-1"], &setting),
            Err(Refusal::Count)
        );
        assert_eq!(info(&[b"k", b"WAITERS"], &setting), Err(Refusal::Syntax));
        assert_eq!(info(&[b"k", b"x"], &setting), Err(Refusal::Syntax));
        assert_eq!(check(&[b"k", b"*"], &setting), Err(Refusal::TokenStar));
        assert_eq!(check(&[b"k", b""], &setting), Err(Refusal::TokenLength));
        assert_eq!(check(&[b"k"], &setting), Err(Refusal::Arity));
    }
}
