//! Commands: their common form, and the entry point for the server.

use std::ffi::c_int;
use std::marker::PhantomData;

use redis_lock_core::grammar::syntax::{Keys, Syntax, Verb};
use redis_lock_core::grammar::ParseContext;
use redis_lock_core::hints::unlikely;
use redis_lock_core::operation::Operation;
use redis_lock_core::values::decimal;
use redis_lock_core::values::fence::MAX_RAISED_AHEAD_US;
use redis_lock_core::values::refusal::Refusal;
use redis_module::{raw, Context};
use smallvec::SmallVec;

use super::spec::{self, CommandDoc, Spec};
use crate::engine::blocking;
use crate::engine::execute::execute;
use crate::server::calls::{self, Str};
use crate::server::key_string::CommandStrings;
use crate::server::{api, boundary, clock, config, random, reply};
use crate::state::entered::Entered;
use crate::state::{State, FENCES};

/// A command: its description for the server, and its work.
pub trait Command {
    /// The description for COMMAND DOCS, ACL and cluster clients.
    const SPEC: Spec;

    /// Runs the command and replies, unless the client waits or the command is refused.
    fn run(call: &Call<'_>) -> Result<(), Refusal>;
}

/// A verb with two commands: one for a single key, and one for several keys at once.
pub trait SingleAndMulti {
    /// The syntax of both.
    const VERB: &Verb;
    /// The description of `LOCK.VERB`.
    const ONE: CommandDoc;
    /// The description of `LOCK.MVERB`.
    const MANY: CommandDoc;

    /// Runs both commands, like [`Command::run`].
    fn run_on(call: &Call<'_>, keys: Keys) -> Result<(), Refusal>;
}

/// The command for a single key.
struct OnOne<T>(PhantomData<T>);

/// The command for several keys.
struct OnMany<T>(PhantomData<T>);

impl<T: SingleAndMulti> Command for OnOne<T> {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: T::VERB,
            keys: Some(Keys::One),
        },
        about: T::ONE,
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        T::run_on(call, Keys::One)
    }
}

impl<T: SingleAndMulti> Command for OnMany<T> {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: T::VERB,
            keys: Some(Keys::Many),
        },
        about: T::MANY,
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        T::run_on(call, Keys::Many)
    }
}

/// The most words for which a command needs no allocation.
const MOST_INLINE: usize = 8;

/// A call of a command by a client.
pub struct Call<'a> {
    /// The server's context of the call.
    pub ctx: &'a Context,
    /// The words behind the command's name.
    pub words: &'a [&'a [u8]],
    /// The context in which the words are read.
    pub parse_context: ParseContext<'static>,
    strings: CommandStrings<'a>,
    /// The module's state.
    pub state: &'a State,
}

impl Call<'_> {
    /// Submits the parsed operation to the engine and replies, unless the client now waits.
    // perf: the operation is passed by reference, because moving it costs as much as deciding it.
    pub fn submit(&self, operation: &Result<Operation, Refusal>) -> Result<(), Refusal> {
        let operation = operation.as_ref().map_err(|why| *why)?;
        blocking::check_may_wait_for_replicas(self.ctx, self.state, operation)?;
        let answer = execute(self.ctx, self.state, operation, self.strings)?;
        reply::answer(self.ctx, &answer, || operation.action.token());
        Ok(())
    }
}

/// Registers a command.
pub fn register<C: Command>(ctx: &Context) -> Result<(), String> {
    spec::register(ctx, &C::SPEC, entry::<C>)
}

/// Registers both commands of a verb.
pub fn register_single_and_multi<T: SingleAndMulti>(ctx: &Context) -> Result<(), String> {
    register::<OnOne<T>>(ctx)?;
    register::<OnMany<T>>(ctx)
}

/// Runs a command: the server's entry point.
unsafe extern "C" fn entry<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server calls this with its lock held. It keeps the context and `argc` strings
    // until this returns.
    let (entered, ctx, strings) =
        unsafe { (Entered::new(), api::context(ctx), api::strings(argv, argc)) };
    enter(entered, &ctx, strings, C::SPEC.syntax.keys, C::run);
    raw::REDISMODULE_OK as c_int
}

/// Runs a command on these strings, unless the server only asks for the positions of its keys.
/// Replies the error if the command is refused or panics.
// perf: not generic, so that different commands execute the same code.
#[inline(never)]
fn enter(
    entered: Entered,
    ctx: &Context,
    strings: &[Str<'_>],
    keys: Option<Keys>,
    command: fn(&Call<'_>) -> Result<(), Refusal>,
) {
    let run = |state: &State| call(state, ctx, strings, keys, command).err();
    let refused = boundary::guard(entered, run);
    if let Some(why) = refused.unwrap_or(Some(Refusal::Panicked)) {
        reply::refusal(ctx, why);
    }
}

/// Calls a command with its words, unless the server only asks for the positions of its keys.
#[inline(always)]
fn call(
    state: &State,
    ctx: &Context,
    strings: &[Str<'_>],
    keys: Option<Keys>,
    command: fn(&Call<'_>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    // The first string is the command's name.
    let strings = strings.get(1..).unwrap_or_default();
    // perf: filled in place, because a collected list is moved.
    let mut words = SmallVec::<[&[u8]; MOST_INLINE]>::new();
    words.extend(strings.iter().map(|string| string.bytes()));
    let words = words.as_slice();
    if unlikely(keys == Some(Keys::Many)) && reports_key_positions(ctx, words) {
        return Ok(());
    }
    command(&Call {
        ctx,
        words,
        parse_context: parse_context(ctx, state),
        strings: CommandStrings::new(strings, words),
        state,
    })
}

#[inline(always)]
fn parse_context(ctx: &Context, state: &State) -> ParseContext<'static> {
    ParseContext {
        db: api::selected_db(ctx),
        default_lease_ms: config::default_lease_ms(),
        default_keep_ms: config::default_keep_ms(),
        default_within_ms: config::replicas_timeout_ms(),
        sharding: state.server.get().sharding(),
        is_credible_fence: &is_credible_fence,
        draw_token: &random::draw,
    }
}

/// Returns true if FENCE may raise a fence to this number now.
fn is_credible_fence(fence: u64) -> bool {
    FENCES.is_credible(fence, clock::wall_us(), MAX_RAISED_AHEAD_US)
}

/// Reports the positions of the keys of an M command, if the server asks for them. Returns true if
/// it does. In a cluster, Redis 7.0 and Valkey ask the command itself instead of using its key
/// spec. A count that is not a number is left for the command to refuse.
#[inline(never)]
fn reports_key_positions(ctx: &Context, words: &[&[u8]]) -> bool {
    if calls::is_keys_position_request(ctx) != 1 {
        return false;
    }
    let numkeys = words
        .first()
        .and_then(|word| decimal::parse(word))
        .unwrap_or(0);
    for position in (2..=words.len()).take(usize::try_from(numkeys).unwrap_or(0)) {
        calls::key_at_pos(ctx, position as c_int);
    }
    true
}
