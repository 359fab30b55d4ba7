//! What users may do: whether one may still do what one of its clients began to wait for, and to which
//! keys the caller of a command has rights.

use std::ffi::c_int;
use std::sync::Arc;

use redis_lock_core::state::place::{self, Identity};
use redis_lock_core::values::name::Names;
use redis_lock_core::values::token::Token;
use redis_module::{raw, CallOptionsBuilder, CallResult, Context, RedisString};

use crate::server::api::{self, server};
use crate::state;
use crate::state::rights::UNSEEN;

/// A user, as the API hands it out; given back when the value goes.
struct User(*mut raw::RedisModuleUser);

impl Drop for User {
    fn drop(&mut self) {
        server!(RedisModule_FreeModuleUser(self.0));
    }
}

/// Returns the version in which rights are seen that are looked at now, outside a transaction.
#[inline]
pub fn version() -> u64 {
    state::with(|state| state.rights.borrow().version())
}

/// Returns the version in which rights are seen that are looked at in this context. What follows in the same transaction
/// may change them.
pub fn version_in(ctx: &Context) -> u64 {
    if api::context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_MULTI == 0 {
        version()
    } else {
        UNSEEN
    }
}

/// Returns true if no rights can have changed since they were looked at in this version.
#[inline]
pub fn is_current(version: u64) -> bool {
    state::with(|state| state.rights.borrow().is_current(version))
}

/// Whether the client's user may wait for these names now. A client that is gone may not.
pub fn may_wait(ctx: &Context, client_id: u64, names: &Names, token: &Token) -> bool {
    user_of(ctx, client_id)
        .is_some_and(|user| may_run(&user, &command(["LOCK.WAIT", "LOCK.MWAIT"], names, token)))
}

fn user_of(ctx: &Context, client_id: u64) -> Option<User> {
    let name = server!(RedisModule_GetClientUserNameById(ctx.ctx, client_id));
    named(&owned(ctx, name)?)
}

/// A name that the server made for us, if it did; freed when the value goes.
fn owned(ctx: &Context, name: Option<*mut raw::RedisModuleString>) -> Option<RedisString> {
    let name = name.filter(|name| !name.is_null())?;
    Some(RedisString::from_redis_module_string(ctx.ctx, name))
}

/// The user with this name, if there is one.
fn named(name: &RedisString) -> Option<User> {
    let user = server!(RedisModule_GetModuleUserFromUserName(name.inner));
    user.filter(|user| !user.is_null()).map(User)
}

/// On whose behalf a command runs, be it in a script or in a transaction.
///
/// The server dies of being asked for the name of a user where there is none, as where another module
/// calls. So a command is called first that doesn't exist, with the user's rights: a server looks for
/// the user before it finds that out. What it answers may be another module's doing, by a command filter;
/// an answer that is neither of the two tells nothing.
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
    let name = owned(ctx, server!(RedisModule_GetCurrentUserName(ctx.ctx)));
    name.map_or(Identity::Unknown, |name| {
        Identity::Named(shared(name.as_slice()))
    })
}

/// A user's name, the one that the last place has if it is the same: most are of one user.
fn shared(name: &[u8]) -> Arc<[u8]> {
    state::with(|state| {
        let mut last = state.last_user.borrow_mut();
        match &*last {
            Some(last) if **last == *name => Arc::clone(last),
            _ => Arc::clone(last.insert(Arc::from(name))),
        }
    })
}

/// Whether a place's user may still queue for these names.
pub fn may_queue(user: &place::User, names: &Names, token: &Token) -> bool {
    match &user.identity {
        Identity::NoUser => true,
        Identity::Unknown => false,
        Identity::Named(name) => named(&api::string(name)).is_some_and(|user| {
            may_run(&user, &command(["LOCK.QUEUE", "LOCK.MQUEUE"], names, token))
        }),
    }
}

/// Whether a place's user may still publish on a channel.
pub fn may_still_publish(user: &place::User, channel: &[u8]) -> bool {
    match &user.identity {
        Identity::NoUser => true,
        Identity::Unknown => false,
        Identity::Named(name) => {
            named(&api::string(name)).is_some_and(|user| may_publish(&user, channel))
        }
    }
}

/// On whose behalf a command runs, be it in a script or in a transaction.
pub struct Caller(Rights);

enum Rights {
    /// The server's own, or another module's: there is no user.
    All,
    /// Those of a user.
    Of(User),
    /// It can't be told who it is, or the user can't be looked up, as one that a module made.
    None,
}

impl Caller {
    /// The caller of the command that runs in this context.
    pub fn of(ctx: &Context) -> Self {
        Self(match identity(ctx) {
            Identity::NoUser => Rights::All,
            Identity::Unknown => Rights::None,
            Identity::Named(name) => named(&api::string(&name)).map_or(Rights::None, Rights::Of),
        })
    }

    /// Whether the caller may read a key, as far as key patterns go.
    pub fn may_read(&self, key: &[u8]) -> bool {
        self.may(key, raw::REDISMODULE_CMD_KEY_ACCESS)
    }

    /// Whether the caller may write to a key, as far as key patterns go.
    pub fn may_write(&self, key: &[u8]) -> bool {
        self.may(key, raw::REDISMODULE_CMD_KEY_UPDATE)
    }

    /// Whether the caller may publish on a channel, as far as channel patterns go.
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
                let allowed = server!(RedisModule_ACLCheckKeyPermissions(
                    user.0,
                    key.inner,
                    access as c_int
                ));
                allowed == Some(0)
            }
        }
    }
}

fn may_publish(user: &User, channel: &[u8]) -> bool {
    let channel = api::string(channel);
    let allowed = server!(RedisModule_ACLCheckChannelPermissions(
        user.0,
        channel.inner,
        raw::REDISMODULE_CMD_CHANNEL_PUBLISH as c_int
    ));
    allowed == Some(0)
}

/// The least command that waits for these names: the first of two for one name, or the second.
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

fn may_run(user: &User, command: &[RedisString]) -> bool {
    let mut pointers = api::pointers(command);
    let allowed = server!(RedisModule_ACLCheckCommandPermissions(
        user.0,
        pointers.as_mut_ptr(),
        pointers.len() as i32
    ));
    allowed == Some(0)
}
