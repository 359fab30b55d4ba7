//! Whether a user may still do what one of its clients began to wait for.

use std::sync::Arc;

use redis_lock_core::state::place;
use redis_lock_core::values::name::Names;
use redis_lock_core::values::token::Token;
use redis_module::{raw, Context, RedisString};

use crate::server::api::{self, server};
use crate::server::clients;

/// A user, as the API hands it out; given back when the value goes.
struct User(*mut raw::RedisModuleUser);

impl Drop for User {
    fn drop(&mut self) {
        server!(RedisModule_FreeModuleUser(self.0));
    }
}

/// Whether the client's user may wait for these names now. A client that is gone may not.
pub fn may_wait(ctx: &Context, client_id: u64, names: &Names, token: &Token) -> bool {
    user_of(ctx, client_id)
        .is_some_and(|user| may_run(&user, &command(["LOCK.WAIT", "LOCK.MWAIT"], names, token)))
}

fn user_of(ctx: &Context, client_id: u64) -> Option<User> {
    named(&name_of(ctx, client_id)?)
}

fn name_of(ctx: &Context, client_id: u64) -> Option<RedisString> {
    let name = server!(RedisModule_GetClientUserNameById(ctx.ctx, client_id));
    let name = name.filter(|name| !name.is_null())?;
    // The server made this string for us: the value frees it as it goes.
    Some(RedisString::from_redis_module_string(ctx.ctx, name))
}

/// The user of this name, if there is one.
fn named(name: &RedisString) -> Option<User> {
    let user = server!(RedisModule_GetModuleUserFromUserName(name.inner));
    user.filter(|user| !user.is_null()).map(User)
}

/// The name of the user on whose behalf a command runs; `None` for one that has none and may do anything,
/// as another module that calls it.
pub fn caller(ctx: &Context, flags: u32) -> Option<Arc<[u8]>> {
    let name = name_of(ctx, clients::running(ctx, flags)?)?;
    Some(Arc::from(name.as_slice()))
}

/// Whether a place's user may still queue for these names.
pub fn may_queue(user: &place::User, names: &Names, token: &Token) -> bool {
    let Some(name) = &user.name else { return true };
    let user = named(&api::string(name));
    user.is_some_and(|user| may_run(&user, &command(["LOCK.QUEUE", "LOCK.MQUEUE"], names, token)))
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
