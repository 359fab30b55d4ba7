//! The words of commands. The words are separated by spaces, the first is the command without
//! `LOCK.`, and its case says nothing.
//!
//! 1. Words that are read as an operation are within the documented bounds.
//! 2. The operation, written in one way and read again, is the same operation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_lock_core::grammar::{self, Keys, ParseContext};
use redis_lock_core::operation::{Action, LeaseRule, Operation, ReleaseCount};
use redis_lock_core::values::holder::Mode;
use redis_lock_core::values::notification::Notification;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::request::{LeaseKind, Reentry, Replicas, Request};
use redis_lock_core::values::slot::Sharding;
use redis_lock_core::values::token::Token;

type Line = Vec<Vec<u8>>;

/// The longest lease, timeout and KEEP, in ms.
const MOST_MS: u64 = (1 << 53) - 1;

fuzz_target!(|bytes: &[u8]| {
    let (sharding, bytes) = match bytes.split_first() {
        Some((b'#', rest)) => (Sharding::BySlot, rest),
        _ => (Sharding::None, bytes),
    };
    let words: Vec<&[u8]> = bytes.split(|byte| *byte == b' ').collect();
    let Some(Ok(operation)) = read(&words, sharding) else {
        return;
    };
    check(&operation);
    let line = written(&operation);
    let words: Vec<&[u8]> = line.iter().map(Vec::as_slice).collect();
    let again = read(&words, sharding);
    assert_eq!(
        again,
        Some(Ok(operation)),
        "{:?}",
        line.iter()
            .map(|word| word.escape_ascii().to_string())
            .collect::<Vec<_>>()
    );
});

/// Reads a command; `None`: there is no such command, or it makes no operation.
fn read(words: &[&[u8]], sharding: Sharding) -> Option<Result<Operation, Refusal>> {
    let (command, words) = words.split_first()?;
    let context = ParseContext {
        db: 0,
        default_lease_ms: 30_000,
        default_keep_ms: 10_000,
        default_within_ms: 2_000,
        sharding,
        is_credible_fence: &|fence| fence < 1 << 53,
        draw_token: &|| Ok(Token::from_bits(7)),
    };
    let command = command.to_ascii_uppercase();
    let (keys, verb) = match command.strip_prefix(b"M") {
        Some(verb) => (Keys::Many, verb),
        None => (Keys::One, command.as_slice()),
    };
    Some(match verb {
        b"ACQUIRE" => grammar::acquire(words, keys, &context),
        b"WAIT" => grammar::wait(words, keys, &context),
        b"QUEUE" => grammar::queue(words, keys, &context),
        b"EXTEND" => grammar::extend(words, keys, &context),
        b"RELEASE" => grammar::release(words, keys, &context),
        b"CANCEL" => grammar::cancel(words, &context),
        b"CHECK" => {
            return grammar::check(words, &context)
                .map(|_| None)
                .unwrap_or(None)
        }
        b"INFO" => return grammar::info(words, &context).map(|_| None).unwrap_or(None),
        b"HOT" => return grammar::hot(words).map(|_| None).unwrap_or(None),
        _ => return None,
    })
}

fn check(operation: &Operation) {
    let names = operation.names.as_slice();
    assert!(!names.is_empty() && names.len() <= 1 << 16);
    let distinct: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "a key twice");
    assert!((1..=256).contains(&operation.action.token().as_bytes().len()));
    match &operation.action {
        Action::Acquire(request) => check_request(request),
        Action::Wait {
            request,
            block_ms,
            keep_ms,
        } => {
            check_request(request);
            assert!(*block_ms <= MOST_MS && *keep_ms <= MOST_MS);
        }
        Action::Queue {
            request, keep_ms, ..
        } => {
            check_request(request);
            assert!((1..=MOST_MS).contains(keep_ms));
        }
        Action::Extend { lease_ms, data, .. } => {
            assert!(lease_ms.is_none_or(|ms| (1..=MOST_MS).contains(&ms)));
            assert!(data
                .as_ref()
                .is_none_or(|data| data.as_bytes().len() <= 1024));
        }
        Action::Leave { leave_ms, .. } => assert!((1..=MOST_MS).contains(leave_ms)),
        Action::Release { .. } | Action::Cancel { .. } => {}
    }
    if let Some(Replicas { count, .. }) = operation.replicas {
        assert!(count.get() >= 1);
    }
}

fn check_request(request: &Request) {
    assert!((1..=MOST_MS).contains(&request.lease_ms));
    assert!(request.permits >= 1);
    assert!(request.limit == 0 || request.permits <= request.limit);
    assert!(request.limit == 0 || request.mode == Mode::Shared);
    let data = request.data.as_ref();
    assert!(data.is_none_or(|data| data.as_bytes().len() <= 1024));
}

/// Writes an operation as a command for many keys.
fn written(operation: &Operation) -> Line {
    let mut line = Line::new();
    let verb = match &operation.action {
        Action::Acquire(_) => "MACQUIRE",
        Action::Wait { .. } => "MWAIT",
        Action::Queue { .. } => "MQUEUE",
        Action::Extend { .. } => "MEXTEND",
        Action::Leave { .. } | Action::Release { .. } => "MRELEASE",
        Action::Cancel { .. } => "CANCEL",
    };
    line.push(verb.into());
    let names = operation.names.as_slice();
    if verb != "CANCEL" {
        line.push(names.len().to_string().into());
    }
    line.extend(names.iter().map(|name| name.key().to_vec()));
    line.push(match operation.action.token().as_bytes() {
        token if *token == *Token::from_bits(7).as_bytes() => b"*".to_vec(),
        token => token.to_vec(),
    });
    write_options(&mut line, &operation.action);
    if let Some(replicas) = operation.replicas {
        number(&mut line, "REPLICAS", replicas.count.get().into());
        number(&mut line, "WITHIN", replicas.within_ms);
    }
    line
}

fn write_options(line: &mut Line, action: &Action) {
    match action {
        Action::Acquire(request) => write_request(line, request),
        Action::Wait {
            request,
            block_ms,
            keep_ms,
        } => {
            write_request(line, request);
            number(line, "BLOCK", *block_ms);
            let is_session = matches!(request.lease_kind, LeaseKind::Session { .. });
            if *keep_ms > 0 && !is_session {
                number(line, "KEEP", *keep_ms);
            }
        }
        Action::Queue {
            request,
            keep_ms,
            notification,
        } => {
            write_request(line, request);
            number(line, "KEEP", *keep_ms);
            if let Some(notification) = notification {
                write_notification(line, notification);
            }
        }
        Action::Extend {
            lease_ms,
            lease_rule,
            lease_kind,
            data,
            fence,
            ..
        } => {
            lease_ms.iter().for_each(|ms| number(line, "PX", *ms));
            if *lease_rule == LeaseRule::Lengthen {
                line.push(b"GT".to_vec());
            }
            write_kind(line, *lease_kind);
            write_data(line, data.as_ref().map(|data| data.as_bytes()));
            fence.iter().for_each(|fence| number(line, "FENCE", *fence));
        }
        Action::Leave { leave_ms, .. } => number(line, "LEAVE", *leave_ms),
        Action::Release { release_count, .. } => match release_count {
            ReleaseCount::One => {}
            ReleaseCount::AllBut(0) => line.push(b"ALL".to_vec()),
            ReleaseCount::AllBut(holds) => number(line, "HOLDS", *holds),
        },
        Action::Cancel { .. } => {}
    }
}

fn write_request(line: &mut Line, request: &Request) {
    number(line, "PX", request.lease_ms);
    if request.mode == Mode::Shared {
        line.push(b"SHARED".to_vec());
    }
    if request.limit > 0 {
        number(line, "LIMIT", request.limit.into());
    }
    if request.permits > 1 {
        number(line, "PERMITS", request.permits.into());
    }
    match request.reentry {
        Reentry::Renews => {}
        Reentry::Counts => line.push(b"REENTRANT".to_vec()),
        Reentry::Sets(holds) => number(line, "HOLDS", holds.into()),
    }
    write_kind(line, request.lease_kind);
    write_data(line, request.data.as_ref().map(|data| data.as_bytes()));
}

fn write_kind(line: &mut Line, kind: LeaseKind) {
    match kind {
        LeaseKind::Lease => {}
        LeaseKind::Untied => line.push(b"NOSESSION".to_vec()),
        LeaseKind::Session { keep_ms } => {
            line.push(b"SESSION".to_vec());
            keep_ms.iter().for_each(|ms| number(line, "KEEP", *ms));
        }
    }
}

fn write_data(line: &mut Line, data: Option<&[u8]>) {
    if let Some(data) = data {
        line.extend([b"DATA".to_vec(), data.to_vec()]);
    }
}

fn write_notification(line: &mut Line, notification: &Notification) {
    let (channel, message) = (notification.channel(), notification.message());
    line.extend([b"NOTIFY".to_vec(), channel.to_vec(), message.to_vec()]);
}

fn number(line: &mut Line, option: &str, number: u64) {
    line.extend([option.into(), number.to_string().into()]);
}
