//! Users' rights: the rights of a waiter's user when it is granted, and of the caller of a command.

use std::ffi::c_int;
use std::sync::Arc;

use redis_lock_core::state::waiter::{self, Identity};
use redis_lock_core::values::name::Names;
use redis_lock_core::values::token::Token;
use redis_module::{raw, CallOptionsBuilder, CallResult, Context, RedisString};

use crate::server::api;
use crate::server::calls::{self, function, Passed, Str, User};
use crate::state;
use crate::state::rights_watch::UNSEEN;

/// Returns the version of rights that are checked now, outside a transaction.
#[inline]
pub fn version() -> u64 {
    state::with(|state| state.rights.borrow().version())
}

/// Returns the version of rights that are checked in this context. In a transaction that is
/// [`UNSEEN`], because the rest of it may change them.
pub fn version_in(ctx: &Context) -> u64 {
    if api::context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_MULTI == 0 {
        version()
    } else {
        UNSEEN
    }
}

/// Returns true if no rights can have changed since they were checked in this version.
#[inline]
pub fn is_current(version: u64) -> bool {
    state::with(|state| state.rights.borrow().is_current(version))
}

/// Returns true if the client's user may wait for these names now. Returns false if the client is
/// gone.
pub fn may_wait(ctx: &Context, client_id: u64, names: &Names, token: &Token) -> bool {
    user_of(ctx, client_id)
        .is_some_and(|user| may_take(&user, ["LOCK.WAIT", "LOCK.MWAIT"], names, token))
}

fn user_of(ctx: &Context, client_id: u64) -> Option<User> {
    named(&user_name_of(ctx, client_id)?)
}

/// Returns the name of a client's user, if the client is connected.
pub fn user_name_of(ctx: &Context, client_id: u64) -> Option<RedisString> {
    // SAFETY: the server makes the name for the module.
    unsafe { api::owned_string(calls::get_client_user_name_by_id(ctx, client_id)) }
}

/// Returns the user with this name, if there is one.
fn named(name: &RedisString) -> Option<User> {
    // SAFETY: the server makes the user for the module.
    unsafe { User::new(calls::get_module_user(name.into())) }
}

/// Returns the user for whom a command runs, in a script or a transaction too.
///
/// A server crashes if it is asked for a user's name without a user, as in another module's call.
/// So an unknown command is called first, with the user's rights: the server looks up the user
/// before the command. A command filter of another module may change the error. An error that is
/// neither of the two expected ones gives [`Identity::Unknown`].
pub fn identity(ctx: &Context) -> Identity {
    let options = CallOptionsBuilder::new()
        .verify_acl()
        .errors_as_replies()
        .build();
    let reply: CallResult<'_> = ctx.call_ext::<&[&[u8]; 0], _>("LOCK.NONE", &options, &[]);
    let error = reply.err().and_then(|error| error.to_utf8_string());
    let text = error.unwrap_or_default().to_ascii_lowercase();
    if text.contains("no user") {
        return Identity::NoUser;
    }
    if !text.contains("unknown") {
        return Identity::Unknown;
    }
    // SAFETY: the context has a user, because the server has looked it up for the call above. The
    // server makes the name for the module.
    let name = unsafe { api::owned_string(function!(RedisModule_GetCurrentUserName)(ctx.ctx)) };
    name.map_or(Identity::Unknown, |name| {
        Identity::Named(shared(name.as_slice()))
    })
}

/// Returns a user's name as a shared string.
// perf: most places are of one user, so the string of the last place is used again if it is equal.
fn shared(name: &[u8]) -> Arc<[u8]> {
    state::with(|state| {
        let mut last = state.last_user.borrow_mut();
        match &*last {
            Some(last) if **last == *name => Arc::clone(last),
            _ => Arc::clone(last.insert(Arc::from(name))),
        }
    })
}

/// Returns true if a place's user may still queue for these names.
pub fn may_queue(user: &waiter::User, names: &Names, token: &Token) -> bool {
    match &user.identity {
        Identity::NoUser => true,
        Identity::Unknown => false,
        Identity::Named(name) => named(&api::string(name))
            .is_some_and(|user| may_take(&user, ["LOCK.QUEUE", "LOCK.MQUEUE"], names, token)),
    }
}

/// Returns true if a place's user may still publish on a channel.
pub fn may_still_publish(user: &waiter::User, channel: &[u8]) -> bool {
    match &user.identity {
        Identity::NoUser => true,
        Identity::Unknown => false,
        Identity::Named(name) => {
            named(&api::string(name)).is_some_and(|user| may_publish(&user, channel))
        }
    }
}

/// The caller of a command, in a script or a transaction too, with its rights.
pub struct Caller(Rights);

enum Rights {
    /// All rights: the server itself or another module calls, without a user.
    All,
    /// The rights of a user.
    Of(User),
    /// No rights: the user is not known or can't be looked up, like a user made by a module.
    None,
}

impl Caller {
    /// Returns the caller of the command that runs in this context.
    pub fn of(ctx: &Context) -> Self {
        Self(match identity(ctx) {
            Identity::NoUser => Rights::All,
            Identity::Unknown => Rights::None,
            Identity::Named(name) => named(&api::string(&name)).map_or(Rights::None, Rights::Of),
        })
    }

    /// Returns true if the caller may run LOCK.HOT in this database. Servers without rights that are
    /// limited to databases have refused the caller already.
    pub fn may_look_at(&self, db: i32) -> bool {
        match &self.0 {
            Rights::All => true,
            Rights::None => false,
            Rights::Of(user) => {
                let hot = [api::string(b"LOCK.HOT")];
                api::check_permissions().is_none() || may_run(user, &hot, db)
            }
        }
    }

    /// Returns true if key patterns let the caller read a key.
    pub fn may_read(&self, key: &[u8]) -> bool {
        self.may(key, raw::REDISMODULE_CMD_KEY_ACCESS)
    }

    /// Returns true if key patterns let the caller write a key.
    pub fn may_write(&self, key: &[u8]) -> bool {
        self.may(key, raw::REDISMODULE_CMD_KEY_UPDATE)
    }

    /// Returns true if channel patterns let the caller publish on a channel.
    pub fn may_publish(&self, channel: &[u8]) -> bool {
        match &self.0 {
            Rights::All => true,
            Rights::None => false,
            Rights::Of(user) => may_publish(user, channel),
        }
    }

    fn may(&self, key: &[u8], access: u32) -> bool {
        match &self.0 {
            Rights::All => true,
            Rights::None => false,
            Rights::Of(user) => {
                let key = api::string(key);
                calls::acl_check_key(user, Str::from(&key), access as c_int) == 0
            }
        }
    }
}

fn may_publish(user: &User, channel: &[u8]) -> bool {
    let channel = api::string(channel);
    let access = raw::REDISMODULE_CMD_CHANNEL_PUBLISH as c_int;
    calls::acl_check_channel(user, Str::from(&channel), access) == 0
}

/// Returns the shortest command that waits for these names: the first verb for one name, the second
/// for several.
fn command([one, many]: [&str; 2], names: &Names, token: &Token) -> Vec<RedisString> {
    let mut words = Vec::with_capacity(names.count() + 3);
    if names.count() == 1 {
        words.push(api::string(one.as_bytes()));
    } else {
        words.push(api::string(many.as_bytes()));
        words.push(api::string(names.count().to_string().as_bytes()));
    }
    words.extend(names.iter().map(|name| api::string(name.key())));
    words.push(api::string(token.as_bytes()));
    words
}

/// Returns true if a user may wait for these names by one of the verbs, see [`command`].
fn may_take(user: &User, verbs: [&str; 2], names: &Names, token: &Token) -> bool {
    let db = names.as_slice().first().map_or(0, |name| name.db);
    may_run(user, &command(verbs, names, token), db)
}

/// Returns true if a user may run a command in this database. Rights are limited to databases only
/// where the server has [`api::check_permissions`]. There the older function refuses such a user
/// everything, because it names no database.
fn may_run(user: &User, command: &[RedisString], db: i32) -> bool {
    let mut pointers: Vec<_> = command.iter().map(|word| word.inner).collect();
    let (user, count) = (Passed::raw(&user), pointers.len() as c_int);
    let words = pointers.as_mut_ptr();
    let refused = match api::check_permissions() {
        Some(check) => {
            let mut reason = 0;
            // SAFETY: the user and the `count` strings are valid until the call returns. The server
            // writes the reason to a local variable.
            unsafe { check(user, words, count, db, &raw mut reason) }
        }
        // SAFETY: as above.
        None => unsafe { function!(RedisModule_ACLCheckCommandPermissions)(user, words, count) },
    };
    refused == 0
}
