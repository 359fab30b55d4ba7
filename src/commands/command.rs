//! What a command is, and how the server enters one.

use std::ffi::c_int;
use std::marker::PhantomData;

use redis_lock_core::grammar::syntax::{Keys, Syntax, Verb};
use redis_lock_core::grammar::Setting;
use redis_lock_core::operation::Operation;
use redis_lock_core::values::decimal;
use redis_lock_core::values::refusal::Refusal;
use redis_module::{raw, Context, RedisString};

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
    strings: CommandStrings<'a>,
    state: &'a State,
}

impl Call<'_> {
    /// What the client's words are read against.
    pub fn setting(&self) -> Setting<'static> {
        Setting {
            db: api::selected_db(self.ctx),
            default_lease_ms: config::default_lease_ms(),
            default_keep_ms: config::default_keep_ms(),
            sharding: self.state.server.get().sharding(),
            draw_token: &random::draw,
        }
    }

    /// Carries out what the words came to and replies, unless the client waits now. The operation is read where
    /// it was made: to move it costs as much as to decide it.
    pub fn execute(&self, operation: &Result<Operation, Refusal>) -> Result<(), Refusal> {
        let operation = operation.as_ref().map_err(|why| *why)?;
        let answer = execute(self.ctx, self.state, operation, self.strings)?;
        reply::answer(self.ctx, &answer, operation.token());
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
    let ctx = Context::new(ctx);
    let refused = boundary::guard(|| {
        // SAFETY: the server passes `argc` strings, alive for the time of the call.
        let strings = unsafe { api::strings(argv, argc) };
        run::<C>(&ctx, strings).err()
    });
    if let Some(why) = refused.unwrap_or(Some(Refusal::Panicked)) {
        reply::refusal(&ctx, why);
    }
    raw::REDISMODULE_OK as c_int
}

fn run<C: Command>(ctx: &Context, strings: &[*mut raw::RedisModuleString]) -> Result<(), Refusal> {
    // The first one is the command's name.
    let strings = strings.get(1..).unwrap_or_default();
    let (mut few, mut many) = ([[].as_slice(); MOST_INLINE], Vec::new());
    let words = match few.get_mut(..strings.len()) {
        Some(words) => words,
        None => {
            many.resize(strings.len(), [].as_slice());
            &mut many
        }
    };
    for (word, string) in words.iter_mut().zip(strings) {
        *word = RedisString::string_as_slice(*string);
    }
    let words = &*words;
    let asks_for_keys = C::SPEC.syntax.keys == Some(Keys::Many)
        && server!(RedisModule_IsKeysPositionRequest(ctx.ctx)) == Some(1);
    if asks_for_keys {
        tell_keys(ctx, words);
        return Ok(());
    }
    state::with(|state| {
        C::run(&Call {
            ctx,
            words,
            // SAFETY: the strings are those of the command that runs, and the words are theirs.
            strings: unsafe { CommandStrings::new(strings, words) },
            state,
        })
    })
}

/// Tells where the keys of an M command with these words are. In a cluster, Redis 7.0 and Valkey ask the command itself
/// and not its key spec. A number that is no number is left for the command to refuse.
fn tell_keys(ctx: &Context, words: &[&[u8]]) {
    let numkeys = words
        .first()
        .and_then(|word| decimal::parse(word))
        .unwrap_or(0);
    for position in (2..=words.len()).take(usize::try_from(numkeys).unwrap_or(0)) {
        server!(RedisModule_KeyAtPos(ctx.ctx, position as c_int));
    }
}
