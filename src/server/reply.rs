//! Replies, in RESP2 and RESP3.

use std::ffi::{c_long, CString};

use redis_lock_core::decision::{Acknowledged, Answer, Outcome};
use redis_lock_core::state::hand_over::HandOver;
use redis_lock_core::values::refusal::Refusal;
use redis_lock_core::values::token::Token;
use redis_module::Context;

use crate::server::calls::{self, function};

/// Replies nil in the place of a value.
pub fn nil(ctx: &Context) {
    calls::reply_with_null(ctx);
}

/// Replies nil in the place of an array or a map, like BLPOP: the null array in RESP2, null in
/// RESP3.
pub fn null_array(ctx: &Context) {
    calls::reply_with_null_array(ctx);
}

/// Replies a number, at most `i64::MAX`.
pub fn integer(ctx: &Context, number: u64) {
    calls::reply_with_long_long(ctx, i64::try_from(number).unwrap_or(i64::MAX));
}

/// Replies a string of any bytes.
pub fn bulk(ctx: &Context, bytes: &[u8]) {
    let (text, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the context is valid by its type, and `text` has `len` bytes.
    unsafe { function!(RedisModule_ReplyWithStringBuffer)(ctx.ctx, text, len) };
}

/// Replies a short text without a line break.
pub fn simple(ctx: &Context, text: &str) {
    calls::reply_with_simple_string(ctx, &CString::new(text).unwrap_or_default());
}

/// Starts an array of `len` elements.
pub fn array(ctx: &Context, len: usize) {
    calls::reply_with_array(ctx, len as c_long);
}

/// Starts a map of `len` pairs, which RESP2 gets as a flat array.
pub fn map(ctx: &Context, len: usize) {
    calls::reply_with_map(ctx, len as c_long);
}

/// Replies `[token, fence]`.
#[inline]
fn grant(ctx: &Context, token: &Token, fence: u64) {
    array(ctx, 2);
    bulk(ctx, token.as_bytes());
    integer(ctx, fence);
}

/// Replies an error.
#[cold]
#[inline(never)]
pub fn refusal(ctx: &Context, refusal: Refusal) {
    if refusal == Refusal::Arity {
        // SAFETY: only the grammar refuses for this reason, so the context is that of a command,
        // whose name the server replies.
        unsafe { function!(RedisModule_WrongArity)(ctx.ctx) };
        return;
    }
    // No text has a NUL, so this can't fail.
    calls::reply_with_error(ctx, &CString::new(refusal.text()).unwrap_or_default());
}

/// Replies the answer to an operation of this token. A client that waits gets no reply yet.
#[inline]
pub fn answer<'t>(ctx: &Context, answer: &Answer, token: impl FnOnce() -> &'t Token) {
    match answer {
        Answer::Granted(fence) => grant(ctx, token(), *fence),
        Answer::NotNow => null_array(ctx),
        Answer::Queued(..) | Answer::HeldBack => {}
        Answer::Place(count, _) | Answer::Count(count) => integer(ctx, *count as u64),
    }
}

/// Replies the outcome of a wait.
pub fn outcome(ctx: &Context, outcome: &Outcome) {
    match outcome {
        Outcome::Granted(HandOver { grant: own, .. }) => grant(ctx, &own.token, own.fence),
        Outcome::Acknowledged(Acknowledged::Grant(own)) => grant(ctx, &own.token, own.fence),
        Outcome::Acknowledged(Acknowledged::Count(count)) => integer(ctx, *count as u64),
        Outcome::TimedOut => null_array(ctx),
        Outcome::Refused(why) => refusal(ctx, *why),
    }
}
