//! The grammar: the words of each command, and their meaning.
//!
//! Each function takes the words behind the command's name. The order of errors is part of the
//! contract: arity, numkeys (if it is bad, the rest cannot be read), syntax, duplicate key, token,
//! lease, timeout, keep, limit, permits, holds, count, data, replicas, within, fence or leave, message,
//! channel. So a function first collects the words and reads their values afterwards.
//!
//! 1. [`syntax`] defines the form of each command.
//! 2. `arguments` splits a command's words by its syntax.
//! 3. `options` reads the values of the options.
//! 4. `numbers` reads numbers with bounds.
//! 5. `synopsis` derives the texts for LOCK.HELP and COMMAND DOCS from the syntax.

mod arguments;
mod context;
mod numbers;
mod options;
mod synopsis;
pub mod syntax;

use crate::operation::{Action, Operation};
use crate::values::name::Name;
use crate::values::refusal::Refusal;
use crate::values::token::Token;

use arguments::Arguments;
pub use context::ParseContext;
pub use options::DEFAULT_WAITERS_SHOWN;
pub use syntax::Keys;

/// Parses `LOCK.ACQUIRE` and `LOCK.MACQUIRE`.
///
/// # Errors
/// The errors at the head of this file, in their order.
#[inline]
pub fn acquire(
    words: &[&[u8]],
    keys: Keys,
    context: &ParseContext<'_>,
) -> Result<Operation, Refusal> {
    let mut arguments = Arguments::of(&syntax::ACQUIRE);
    let (names, token) = arguments.subject(words, keys, context)?;
    let lease_ms = arguments
        .options
        .lease_ms()?
        .unwrap_or(context.default_lease_ms);
    let within_ms = context.default_within_ms;
    let (request, replicas) = arguments.options.request(token, lease_ms, within_ms)?;
    Ok(Operation {
        names,
        action: Action::Acquire(request),
        replicas,
    })
}

/// Parses `LOCK.WAIT` and `LOCK.MWAIT`.
///
/// # Errors
/// The errors at the head of this file, in their order.
#[inline]
pub fn wait(words: &[&[u8]], keys: Keys, context: &ParseContext<'_>) -> Result<Operation, Refusal> {
    let mut arguments = Arguments::of(&syntax::WAIT);
    let (names, token) = arguments.subject(words, keys, context)?;
    let lease_ms = arguments
        .options
        .lease_ms()?
        .unwrap_or(context.default_lease_ms);
    let block_ms = arguments.options.block_ms()?;
    let keep_ms = arguments.options.keep_ms()?.unwrap_or(0);
    let within_ms = context.default_within_ms;
    let (request, replicas) = arguments.options.request(token, lease_ms, within_ms)?;
    Ok(Operation {
        names,
        action: Action::Wait {
            request,
            block_ms,
            keep_ms,
        },
        replicas,
    })
}

/// Parses `LOCK.QUEUE` and `LOCK.MQUEUE`.
///
/// # Errors
/// The errors at the head of this file, in their order.
pub fn queue(
    words: &[&[u8]],
    keys: Keys,
    context: &ParseContext<'_>,
) -> Result<Operation, Refusal> {
    let mut arguments = Arguments::of(&syntax::QUEUE);
    let (names, token) = arguments.subject(words, keys, context)?;
    let lease_ms = arguments
        .options
        .lease_ms()?
        .unwrap_or(context.default_lease_ms);
    let keep_ms = arguments
        .options
        .keep_ms()?
        .unwrap_or(context.default_keep_ms);
    let within_ms = context.default_within_ms;
    let (request, _) = arguments.options.request(token, lease_ms, within_ms)?;
    let notification = arguments.options.notification(&names, context.sharding)?;
    let action = Action::Queue {
        request,
        keep_ms,
        notification,
    };
    Ok(Operation {
        names,
        action,
        replicas: None,
    })
}

/// Parses `LOCK.CANCEL`.
///
/// # Errors
/// The errors at the head of this file, in their order.
pub fn cancel(words: &[&[u8]], context: &ParseContext<'_>) -> Result<Operation, Refusal> {
    let mut arguments = Arguments::of(&syntax::CANCEL);
    let (names, token) = arguments.subject(words, Keys::One, context)?;
    let action = Action::Cancel { token };
    Ok(Operation {
        names,
        action,
        replicas: None,
    })
}

/// Parses `LOCK.EXTEND` and `LOCK.MEXTEND`.
///
/// # Errors
/// The errors at the head of this file, in their order.
#[inline]
pub fn extend(
    words: &[&[u8]],
    keys: Keys,
    context: &ParseContext<'_>,
) -> Result<Operation, Refusal> {
    let mut arguments = Arguments::of(&syntax::EXTEND);
    let (names, token) = arguments.subject(words, keys, context)?;
    let lease_ms = arguments.options.lease_ms()?;
    let lease_kind = arguments.options.lease_kind()?;
    let data = arguments.options.data()?;
    let replicas = arguments.options.replicas(context.default_within_ms)?;
    let action = Action::Extend {
        token,
        lease_ms,
        lease_rule: arguments.options.lease_rule(),
        lease_kind,
        data,
        fence: arguments.options.fence(context)?,
    };
    Ok(Operation {
        names,
        action,
        replicas,
    })
}

/// Parses `LOCK.RELEASE` and `LOCK.MRELEASE`.
///
/// # Errors
/// The errors at the head of this file, in their order.
#[inline]
pub fn release(
    words: &[&[u8]],
    keys: Keys,
    context: &ParseContext<'_>,
) -> Result<Operation, Refusal> {
    let mut arguments = Arguments::of(&syntax::RELEASE);
    let (names, token) = arguments.subject(words, keys, context)?;
    let release_count = arguments.options.release_count()?;
    let action = match arguments.options.leave_ms()? {
        None => Action::Release {
            token,
            release_count,
        },
        Some(leave_ms) => Action::Leave { token, leave_ms },
    };
    Ok(Operation {
        names,
        action,
        replicas: None,
    })
}

/// Parses `LOCK.CHECK`. Returns the name and the token to check.
///
/// # Errors
/// The errors at the head of this file, in their order.
pub fn check(words: &[&[u8]], context: &ParseContext<'_>) -> Result<(Name, Token), Refusal> {
    let mut arguments = Arguments::of(&syntax::CHECK);
    arguments.cut(words, Keys::One)?;
    let name = arguments.name(context.db)?;
    let token = arguments.token(context.draw_token)?;
    Ok((name, token))
}

/// Parses `LOCK.INFO`. Returns the name, and the number of waiters to show.
///
/// # Errors
/// The errors at the head of this file, in their order.
pub fn info(words: &[&[u8]], context: &ParseContext<'_>) -> Result<(Name, u64), Refusal> {
    let mut arguments = Arguments::of(&syntax::INFO);
    arguments.cut(words, Keys::One)?;
    Ok((
        arguments.name(context.db)?,
        arguments.options.waiters_shown()?,
    ))
}

/// Parses `LOCK.HOT`. Returns the number of keys to show.
///
/// # Errors
/// The errors at the head of this file, in their order.
pub fn hot(words: &[&[u8]]) -> Result<u64, Refusal> {
    let mut arguments = Arguments::of(&syntax::HOT);
    arguments.cut_options(words)?;
    arguments.options.hot_keys_shown()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::values::request::Replicas;
    use crate::values::slot::Sharding;
    use crate::values::time::MAX_SPAN_MS;

    fn context(draw_token: &dyn Fn() -> Result<Token, Refusal>) -> ParseContext<'_> {
        ParseContext {
            db: 0,
            default_lease_ms: 30_000,
            default_keep_ms: 10_000,
            default_within_ms: 2_000,
            sharding: Sharding::None,
            is_credible_fence: &|fence| fence != 77,
            draw_token,
        }
    }

    /// Parses a line of words by the command named first.
    fn parse(line: &str) -> Result<Operation, Refusal> {
        let words: Vec<&[u8]> = line
            .split(' ')
            .skip(1)
            .map(|w| if w == "\"\"" { b"" } else { w.as_bytes() })
            .collect();
        let drawn = || Ok(Token::from_bits(7));
        let context = context(&drawn);
        match line.split(' ').next().unwrap() {
            "ACQUIRE" => acquire(&words, Keys::One, &context),
            "WAIT" => wait(&words, Keys::One, &context),
            "QUEUE" => queue(&words, Keys::One, &context),
            "CANCEL" => cancel(&words, &context),
            "EXTEND" => extend(&words, Keys::One, &context),
            "RELEASE" => release(&words, Keys::One, &context),
            "MACQUIRE" => acquire(&words, Keys::Many, &context),
            "MWAIT" => wait(&words, Keys::Many, &context),
            "MQUEUE" => queue(&words, Keys::Many, &context),
            "MEXTEND" => extend(&words, Keys::Many, &context),
            "MRELEASE" => release(&words, Keys::Many, &context),
            other => unreachable!("{other}"),
        }
    }

    #[test]
    fn refusals_as_a_table() {
        use Refusal::*;
        let long = format!("ACQUIRE k {}", "x".repeat(257));
        let long_data = format!("ACQUIRE k t DATA {}", "x".repeat(1025));
        let long_message = format!("QUEUE k t NOTIFY c {}", "x".repeat(1025));
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
            (
                "QUEUE k *",
                TokenStar,
                "no client could ask for its place again",
            ),
            ("RELEASE k t LEAVE", Syntax, "no value"),
            ("RELEASE k t LEAVE 0", Leave, "none"),
            ("RELEASE k t LEAVE 86400001", Leave, "more than a day"),
            ("MRELEASE 2 j k t LEAVE x", Leave, "no number"),
            ("RELEASE k t LEAVE 5 ALL", Syntax, "two ends"),
            ("RELEASE k t HOLDS 1 LEAVE 5", Syntax, "two ends"),
            ("RELEASE k * LEAVE 0", TokenStar, "token goes before leave"),
            ("WAIT k t LEAVE 5", Syntax, "not of this command"),
            ("EXTEND k t GT GT", Syntax, "twice"),
            ("EXTEND k t GT 5", Syntax, "it takes no value"),
            ("EXTEND k t PX 0 GT", Lease, "of PX"),
            ("ACQUIRE k t GT", Syntax, "not of this command"),
            ("QUEUE k t BLOCK 1", Syntax, "not of this command"),
            ("QUEUE k t REENTRANT", Syntax, "not of this command"),
            ("QUEUE k t SESSION", Syntax, "not of this command"),
            ("ACQUIRE k t KEEP 1", Syntax, "not of this command"),
            ("QUEUE k t KEEP 1 KEEP 2", Syntax, "twice"),
            ("QUEUE k t PX 0 KEEP 0", Lease, "lease goes before keep"),
            ("QUEUE k t KEEP 0", Keep, "none"),
            ("QUEUE k t NOTIFY c", Syntax, "no message"),
            ("QUEUE k t NOTIFY c m NOTIFY c m", Syntax, "twice"),
            ("WAIT k t NOTIFY c m", Syntax, "not of this command"),
            (&long_message, Message, "1025 bytes"),
            (
                &format!("{long_message} HOLDS 0"),
                Holds,
                "holds goes before message",
            ),
            ("ACQUIRE k t DATA", Syntax, "no value"),
            ("ACQUIRE k t DATA a DATA a", Syntax, "twice"),
            ("RELEASE k t DATA a", Syntax, "not of this command"),
            ("CANCEL k t DATA a", Arity, "not of this command"),
            (&long_data, Data, "1025 bytes"),
            (
                &format!("{long_data} HOLDS 0"),
                Holds,
                "holds goes before data",
            ),
            (
                &format!("{long_data} REPLICAS 0"),
                Data,
                "data goes before replicas",
            ),
            (
                &format!("QUEUE {} NOTIFY c {}", &long_data[8..], "x".repeat(1025)),
                Data,
                "data goes before message",
            ),
            ("ACQUIRE k t WITHIN 5", Syntax, "WITHIN without REPLICAS"),
            ("ACQUIRE k t REPLICAS", Syntax, "no value"),
            ("ACQUIRE k t REPLICAS 1 WITHIN", Syntax, "no value"),
            ("ACQUIRE k t REPLICAS 1 REPLICAS 1", Syntax, "twice"),
            ("QUEUE k t REPLICAS 1", Syntax, "not of this command"),
            ("RELEASE k t REPLICAS 1", Syntax, "not of this command"),
            ("ACQUIRE k t REPLICAS 0", Replicas, "none"),
            ("WAIT k t REPLICAS 1001", Replicas, "too many"),
            ("EXTEND k t REPLICAS 01", Replicas, "leading zero"),
            ("EXTEND k t REPLICAS 1 WITHIN 0", Within, "none"),
            (
                "WAIT k t WITHIN 9007199254740992 REPLICAS 1",
                Within,
                "2^53",
            ),
            (
                "WAIT k t WITHIN 0 REPLICAS 0",
                Replicas,
                "replicas goes before within",
            ),
            ("ACQUIRE k t FENCE 5", Syntax, "not of this command"),
            ("EXTEND k t FENCE", Syntax, "no value"),
            ("EXTEND k t FENCE 5 FENCE 5", Syntax, "twice"),
            ("EXTEND k t FENCE 0", Fence, "none"),
            ("EXTEND k t FENCE 9007199254740992", Fence, "2^53"),
            (
                "MEXTEND 1 k t FENCE 0 REPLICAS 1 WITHIN 0",
                Within,
                "within goes before fence",
            ),
            ("QUEUE k t KEEP 9007199254740992", Keep, "2^53"),
            (
                "MQUEUE 1 k t KEEP -1 SHARED LIMIT 0",
                Keep,
                "keep goes before limit",
            ),
            ("QUEUE k t HOLDS 0", Holds, "none"),
            ("CANCEL k *", TokenStar, "waits for nothing yet"),
            ("CANCEL k", Arity, "no token"),
            ("CANCEL k t ALL", Arity, "not of this command"),
            ("ACQUIRE k t HOLDS", Syntax, "no value"),
            (
                "ACQUIRE k t HOLDS 1 REENTRANT",
                Syntax,
                "counted by both sides",
            ),
            ("RELEASE k t ALL HOLDS 0", Syntax, "all, or a number left"),
            ("EXTEND k t HOLDS 1", Syntax, "not of this command"),
            ("ACQUIRE k t HOLDS 0", Holds, "none"),
            ("WAIT k t HOLDS 4294967296", Holds, "2^32"),
            ("RELEASE k t HOLDS 4294967296", HoldsLeft, "2^32"),
            ("RELEASE k t HOLDS -1", HoldsLeft, "negative"),
            (
                "ACQUIRE k t HOLDS 0 SHARED LIMIT 0",
                Limit,
                "limit goes before holds",
            ),
            (
                "RELEASE k \"\" HOLDS x",
                TokenLength,
                "token goes before holds",
            ),
            ("EXTEND k t NOSESSION SESSION", Syntax, "tied and untied"),
            ("EXTEND k t NOSESSION NOSESSION", Syntax, "twice"),
            ("ACQUIRE k t NOSESSION", Syntax, "not of this command"),
            (
                "ACQUIRE k t SHARED PERMITS 1",
                Syntax,
                "PERMITS without LIMIT",
            ),
            ("ACQUIRE k t PERMITS 1", Syntax, "PERMITS alone"),
            ("ACQUIRE k t LIMIT 2 PERMITS 1", Syntax, "without SHARED"),
            ("WAIT k t SHARED LIMIT 2 PERMITS", Syntax, "no value"),
            ("WAIT k t PERMITS 0 SHARED LIMIT 2", Permits, "none"),
            (
                "ACQUIRE k t PERMITS 3 SHARED LIMIT 2",
                Permits,
                "above the limit",
            ),
            (
                "ACQUIRE k t SHARED LIMIT 4294967295 PERMITS 4294967296",
                Permits,
                "2^32",
            ),
            (
                "ACQUIRE k t SHARED LIMIT 0 PERMITS 1",
                Limit,
                "limit goes before permits",
            ),
            (
                "ACQUIRE k t HOLDS 0 SHARED LIMIT 2 PERMITS 3",
                Permits,
                "permits go before holds",
            ),
            ("ACQUIRE k t KEEP 5", Syntax, "KEEP without SESSION"),
            ("WAIT k t KEEP 0", Keep, "none, without a SESSION too"),
            (
                "WAIT k t KEEP 0 BLOCK x",
                Timeout,
                "timeout goes before keep",
            ),
            ("WAIT k t KEEP 5 SESSION KEEP 5", Syntax, "twice"),
            ("EXTEND k t KEEP 5", Syntax, "KEEP without SESSION"),
            (
                "EXTEND k t NOSESSION KEEP 5",
                Syntax,
                "untied, it keeps nothing",
            ),
            ("ACQUIRE k t SESSION KEEP", Syntax, "no value"),
            ("RELEASE k t SESSION KEEP 5", Syntax, "not of this command"),
            ("ACQUIRE k t KEEP 0 SESSION", Keep, "none"),
            ("EXTEND k t SESSION KEEP 9007199254740992", Keep, "2^53"),
            (
                "EXTEND k t SESSION KEEP x PX 0",
                Lease,
                "lease goes before keep",
            ),
            (
                "WAIT k t SESSION KEEP 0 BLOCK x",
                Timeout,
                "timeout goes before keep",
            ),
            (
                "WAIT k t SHARED LIMIT 0 SESSION KEEP 0",
                Keep,
                "keep goes before limit",
            ),
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
        let lease_of = |line: &str| match parse(line).unwrap().action {
            Action::Acquire(request) | Action::Wait { request, .. } => request.lease_ms,
            Action::Extend { lease_ms, .. } => lease_ms.expect("a lease"),
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
        let Operation { action, .. } = parse("ACQUIRE k *").unwrap();
        assert_eq!(*action.token(), Token::from_bits(7));
    }

    #[test]
    fn many_keys_of_one_are_one_key() {
        assert_eq!(parse("MWAIT 1 k t BLOCK 5"), parse("WAIT k t BLOCK 5"));
    }

    #[test]
    fn in_a_cluster_a_channel_is_in_the_slot_of_its_keys() {
        let drawn = || Err(Refusal::NoRandomness);
        let table = [
            ("1 {a}k t NOTIFY {a}c m", true),
            ("1 a t NOTIFY {a}c m", true),
            ("1 k t NOTIFY k m", true),
            ("1 k t NOTIFY c m", false),
            ("1 {a}k t NOTIFY a}c m", false),
            ("2 {a}k {a}j t NOTIFY x{a} m", true),
            ("2 {a}k {b}j t NOTIFY x{a} m", false),
        ];
        for (line, fits) in table {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let alone = context(&drawn);
            assert!(queue(&words, Keys::Many, &alone).is_ok(), "{line}");
            let clustered = ParseContext {
                sharding: Sharding::BySlot,
                ..alone
            };
            let refusal = queue(&words, Keys::Many, &clustered).err();
            assert_eq!(refusal, (!fits).then_some(Refusal::Channel), "{line}");
        }
        let long = "x".repeat(1025);
        let words: [&[u8]; 5] = [b"k", b"t", b"NOTIFY", b"c", long.as_bytes()];
        let clustered = ParseContext {
            sharding: Sharding::BySlot,
            ..context(&drawn)
        };
        assert_eq!(
            queue(&words, Keys::One, &clustered),
            Err(Refusal::Message),
            "message goes before channel"
        );
        let words: [&[u8]; 5] = [b"k", b"t", b"NOTIFY", long.as_bytes(), b"m"];
        assert_eq!(
            queue(&words, Keys::One, &clustered),
            Err(Refusal::ChannelLength),
            "the channel's length goes before its slot"
        );
    }

    #[test]
    fn info_and_check_take_what_they_take() {
        let drawn = || Err(Refusal::NoRandomness);
        let context = context(&drawn);
        assert_eq!(info(&[b"k"], &context).unwrap().1, 10);
        assert_eq!(info(&[b"k", b"waiters", b"0"], &context).unwrap().1, 0);
        assert_eq!(
            info(&[b"k", b"WAITERS", b"-1"], &context),
            Err(Refusal::Count)
        );
        assert_eq!(info(&[b"k", b"WAITERS"], &context), Err(Refusal::Syntax));
        assert_eq!(info(&[b"k", b"x"], &context), Err(Refusal::Syntax));
        assert_eq!(check(&[b"k", b"*"], &context), Err(Refusal::TokenStar));
        assert_eq!(check(&[b"k", b""], &context), Err(Refusal::TokenLength));
        assert_eq!(check(&[b"k"], &context), Err(Refusal::Arity));
        assert_eq!(hot(&[]), Ok(16));
        assert_eq!(hot(&[b"count", b"128"]), Ok(128));
        for (words, refusal) in [
            (&[b"COUNT" as &[u8], b"0"] as &[&[u8]], Refusal::HotCount),
            (&[b"COUNT", b"129"], Refusal::HotCount),
            (&[b"COUNT", b"-1"], Refusal::HotCount),
            (&[b"COUNT"], Refusal::Syntax),
            (&[b"k"], Refusal::Syntax),
            (&[b"COUNT", b"1", b"COUNT", b"1"], Refusal::Syntax),
        ] {
            assert_eq!(hot(words), Err(refusal), "{words:?}");
        }
    }

    #[test]
    fn what_a_grant_carries_is_read() {
        let Operation {
            action, replicas, ..
        } = parse("WAIT k t WITHIN 7 DATA why REPLICAS 2").unwrap();
        let Action::Wait { request, .. } = action else {
            unreachable!("{action:?}");
        };
        assert_eq!(request.data.unwrap().as_bytes(), b"why");
        let expected = Replicas {
            count: NonZeroU16::new(2).unwrap(),
            within_ms: 7,
        };
        assert_eq!(replicas, Some(expected));
        let within = parse("ACQUIRE k t REPLICAS 1000").unwrap().replicas;
        assert_eq!(within.unwrap().within_ms, 2_000);
        let Action::Extend { data, fence, .. } =
            parse("EXTEND k t FENCE 5 DATA \"\"").unwrap().action
        else {
            unreachable!("no extension");
        };
        assert_eq!(fence, Some(5));
        assert!(data.unwrap().is_empty());
        let Action::Extend { data, .. } = parse("EXTEND k t").unwrap().action else {
            unreachable!("no extension");
        };
        assert_eq!(data, None);
    }

    #[test]
    fn the_longest_leave_and_the_greatest_fence_are_those_of_the_documents() {
        for (line, is_read) in [
            ("RELEASE k t LEAVE 86400000", true),
            ("RELEASE k t LEAVE 86400001", false),
            ("EXTEND k t FENCE 9007199254740991", true),
            ("EXTEND k t FENCE 9007199254740992", false),
        ] {
            assert_eq!(parse(line).is_ok(), is_read, "{line}");
        }
    }
}
