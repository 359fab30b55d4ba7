//! What LOCK.INFO tells of a client.

use std::ffi::CStr;
use std::ptr::NonNull;

use redis_module::{raw, Context, RedisString};

use crate::api::server;

/// A connected client.
pub struct Client {
    /// Its id, as in CLIENT LIST.
    pub id: u64,
    /// Its address and port.
    pub addr: String,
    /// Its name; empty when unset.
    pub name: Vec<u8>,
}

/// The client with this id, while it is connected.
pub fn find(ctx: &Context, id: u64) -> Option<Client> {
    let mut info = raw::RedisModuleClientInfo {
        version: 1,
        flags: 0,
        id: 0,
        addr: [0; 46],
        port: 0,
        db: 0,
    };
    let status = server!(RedisModule_GetClientInfoById((&raw mut info).cast(), id));
    if id == 0 || status != Some(0) {
        return None;
    }
    // SAFETY: the server wrote a string with its end into `addr`, which was all zeros before.
    let addr = unsafe { CStr::from_ptr(info.addr.as_ptr()) };
    Some(Client {
        id,
        addr: format!("{}:{}", addr.to_string_lossy(), info.port),
        name: name(ctx, id),
    })
}

fn name(ctx: &Context, id: u64) -> Vec<u8> {
    let name = server!(RedisModule_GetClientNameById(ctx.ctx, id));
    let Some(name) = name.and_then(NonNull::new) else {
        return Vec::new();
    };
    // The server made this string for us: the value frees it as it goes.
    let name = RedisString::from_redis_module_string(ctx.ctx, name.as_ptr());
    name.as_slice().to_vec()
}
