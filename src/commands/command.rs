//! What a command is, and how the server enters one.

use std::ffi::c_int;
use std::marker::PhantomData;

use redis_lock_core::branch::unlikely;
use redis_lock_core::grammar::syntax::{Keys, Syntax, Verb};
use redis_lock_core::grammar::Setting;
use redis_lock_core::operation::Operation;
use redis_lock_core::values::decimal;
use redis_lock_core::values::refusal::Refusal;
use redis_module::{raw, Context, RedisString};
use smallvec::SmallVec;

use super::spec::{self, About, Spec};
use crate::engine::execute::execute;
use crate::server::api::{self, server};
use crate::server::key_string::CommandStrings;
use crate::server::{boundary, config, random, reply};
use crate::state::{self, State};

/// A command: what the server is told of it, and what it does.
pub trait Command {
    /// For COMMAND DOCS, ACL and cluster clients.
    const SPEC: Spec;

    /// Carries the command out and replies, unless the client waits or the command is refused.
    fn run(call: &Call<'_>) -> Result<(), Refusal>;
}

/// A verb that is two commands: on one key, and on several at once.
pub trait Twins {
    /// How both are written.
    const VERB: &Verb;
    /// For `LOCK.VERB`.
    const ONE: About;
    /// For `LOCK.MVERB`.
    const MANY: About;

    /// As [`Command::run`].
    fn run(call: &Call<'_>, keys: Keys) -> Result<(), Refusal>;
}

/// The twin on one key.
struct OnOne<T>(PhantomData<T>);

/// The twin on several keys.
struct OnMany<T>(PhantomData<T>);

impl<T: Twins> Command for OnOne<T> {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: T::VERB,
            keys: Some(Keys::One),
        },
        about: T::ONE,
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        T::run(call, Keys::One)
    }
}

impl<T: Twins> Command for OnMany<T> {
    const SPEC: Spec = Spec {
        syntax: Syntax {
            verb: T::VERB,
            keys: Some(Keys::Many),
        },
        about: T::MANY,
    };

    fn run(call: &Call<'_>) -> Result<(), Refusal> {
        T::run(call, Keys::Many)
    }
}

/// How many words a command has that needs no allocation for them.
const MOST_INLINE: usize = 8;

/// A command as a client sent it.
pub struct Call<'a> {
    /// The server's context for it.
    pub ctx: &'a Context,
    /// The words behind its name.
    pub words: &'a [&'a [u8]],
    /// What those are read against.
    pub setting: Setting<'static>,
    strings: CommandStrings<'a>,
    state: &'a State,
}

impl Call<'_> {
    /// Carries out what the words came to and replies, unless the client waits now. The operation is read where
    /// it was made: to move it costs as much as to decide it.
    pub fn execute(&self, operation: &Result<Operation, Refusal>) -> Result<(), Refusal> {
        let operation = operation.as_ref().map_err(|why| *why)?;
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
pub fn register_twins<T: Twins>(ctx: &Context) -> Result<(), String> {
    register::<OnOne<T>>(ctx)?;
    register::<OnMany<T>>(ctx)
}

/// Where the server enters a command.
extern "C" fn entry<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes `argc` strings, alive for the time of the call.
    let strings = unsafe { api::strings(argv, argc) };
    enter(&Context::new(ctx), strings, C::SPEC.syntax.keys, C::run);
    raw::REDISMODULE_OK as c_int
}

/// Runs a command on these strings. One for all of them: what is executed for several commands is fetched once.
#[inline(never)]
fn enter(
    ctx: &Context,
    strings: &[*mut raw::RedisModuleString],
    keys: Option<Keys>,
    command: fn(&Call<'_>) -> Result<(), Refusal>,
) {
    let refused = boundary::guard(|| run(ctx, strings, keys, command).err());
    if let Some(why) = refused.unwrap_or(Some(Refusal::Panicked)) {
        reply::refusal(ctx, why);
    }
}

#[inline(always)]
fn run(
    ctx: &Context,
    strings: &[*mut raw::RedisModuleString],
    keys: Option<Keys>,
    command: fn(&Call<'_>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    // The first one is the command's name.
    let strings = strings.get(1..).unwrap_or_default();
    let words = strings.iter();
    let words = words.map(|string| RedisString::string_as_slice(*string));
    let words: SmallVec<[&[u8]; MOST_INLINE]> = words.collect();
    let words = words.as_slice();
    if unlikely(keys == Some(Keys::Many)) && tells_keys(ctx, words) {
        return Ok(());
    }
    state::with(|state| {
        command(&Call {
            ctx,
            words,
            setting: setting(ctx, state),
            // SAFETY: the strings are those of the command that runs, and the words are theirs.
            strings: unsafe { CommandStrings::new(strings, words) },
            state,
        })
    })
}

#[inline(always)]
fn setting(ctx: &Context, state: &State) -> Setting<'static> {
    Setting {
        db: api::selected_db(ctx),
        default_lease_ms: config::default_lease_ms(),
        default_keep_ms: config::default_keep_ms(),
        sharding: state.server.get().sharding(),
        draw_token: &random::draw,
    }
}

/// Tells where the keys of an M command with these words are, if that is what the server wants to know. In a cluster,
/// Redis 7.0 and Valkey ask the command itself and not its key spec. A number that is no number is left for the command
/// to refuse.
#[inline(never)]
fn tells_keys(ctx: &Context, words: &[&[u8]]) -> bool {
    if server!(RedisModule_IsKeysPositionRequest(ctx.ctx)) != Some(1) {
        return false;
    }
    let numkeys = words
        .first()
        .and_then(|word| decimal::parse(word))
        .unwrap_or(0);
    for position in (2..=words.len()).take(usize::try_from(numkeys).unwrap_or(0)) {
        server!(RedisModule_KeyAtPos(ctx.ctx, position as c_int));
    }
    true
}
