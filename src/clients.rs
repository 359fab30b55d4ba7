//! The clients that orders come from: who they are, and what LOCK.INFO tells of them.

use std::ffi::CStr;
use std::ptr::NonNull;

use redis_lock_core::order::Life;
use redis_lock_core::refusal::Refusal;
use redis_module::{raw, Context, RedisString, RedisValue};

use crate::api::{self, server};

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

/// Who gives an order.
///
/// A script's commands are run by a client of the server's own, which outlives them all. A session
/// has to be tied to the connection that called the script; the API doesn't tell which that is, so
/// it is looked up in CLIENT LIST. For a plain grant that is not worth it: LOCK.INFO, which doesn't
/// find the server's own client, shows none.
///
/// # Errors
/// [`Refusal::CallerUnknown`] where the caller of a script is not to be made out.
pub fn caller(ctx: &Context, life: Life) -> Result<u64, Refusal> {
    let scripted = || api::context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_LUA != 0;
    if life == Life::Session && scripted() {
        return script_caller(ctx).ok_or(Refusal::CallerUnknown);
    }
    Ok(api::client_id(ctx))
}

fn script_caller(ctx: &Context) -> Option<u64> {
    let list = match ctx.call("CLIENT", &["LIST"]) {
        Ok(RedisValue::SimpleString(text) | RedisValue::BulkString(text)) => text.into_bytes(),
        Ok(RedisValue::StringBuffer(bytes) | RedisValue::VerbatimString((_, bytes))) => bytes,
        _ => return None,
    };
    only_script_caller(&list)
}

/// The commands that run a script or, in a transaction, may run one.
const RUNNERS: [&[u8]; 7] = [
    b"eval",
    b"eval_ro",
    b"evalsha",
    b"evalsha_ro",
    b"fcall",
    b"fcall_ro",
    b"exec",
];

/// The id of the one client in `list` that is running a script just now.
///
/// While a client's command runs, the server still holds its arguments: `argv-mem` is not 0. A
/// blocked or paused client's are held too, so those are left out. A client that has sent a part of
/// its next command looks the same if its last one was a script: where two fit, neither is told.
fn only_script_caller(list: &[u8]) -> Option<u64> {
    let mut callers = list.split(|byte| *byte == b'\n').filter_map(running_script);
    let caller = callers.next()?;
    callers.next().is_none().then_some(caller)
}

fn running_script(line: &[u8]) -> Option<u64> {
    let field = |name: &str| {
        let mut fields = line.split(|byte| byte.is_ascii_whitespace());
        fields.find_map(|field| field.strip_prefix(name.as_bytes()))
    };
    let runs = RUNNERS.contains(&field("cmd=")?);
    let holds_arguments = field("argv-mem=")? != b"0";
    let blocked = field("flags=")?.contains(&b'b');
    if !runs || !holds_arguments || blocked {
        return None;
    }
    std::str::from_utf8(field("id=")?).ok()?.parse().ok()
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
