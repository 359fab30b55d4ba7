//! The server's module API: contexts, facts about the server, and what the crate `redis-module`
//! doesn't wrap, or wraps with a panic.

use std::borrow::Cow;
use std::ffi::{c_int, c_void, CStr, CString};
use std::ptr;
use std::sync::atomic::Ordering;

use redis_module::{raw, Context, RedisString, RedisValue};

use crate::server::calls::{self, function, Owned, Str};
use crate::state::{self, entered, CheckPermissions, ServerFacts, State, OWN_CONTEXT};

/// Returns the context that the server passes to a call of the module.
///
/// # Safety
/// The context is the server's and valid as long as the value is used.
#[inline(always)]
#[expect(clippy::disallowed_methods, reason = "the caller guarantees that")]
pub unsafe fn context(ctx: *mut raw::RedisModuleCtx) -> Context {
    Context::new(ctx)
}

fn facts() -> ServerFacts {
    state::with(|state| state.server.get())
}

/// Returns true if the server is a Valkey. Used only for calls that behave differently there.
pub fn is_valkey() -> bool {
    facts().is_valkey
}

/// Returns true if the server is a node of a cluster.
pub fn is_clustered() -> bool {
    facts().is_clustered
}

/// Returns true if the server is a replica.
pub fn is_replica() -> bool {
    facts().is_replica
}

/// Returns true if the server loads a file, or the data that its primary sends instead of one.
pub fn is_loading() -> bool {
    context_flags(&own_context()) & raw::REDISMODULE_CTX_FLAGS_LOADING != 0
}

/// Records the server's role.
pub fn record_role(ctx: &Context) {
    let is_replica = context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_SLAVE != 0;
    state::with(|state| {
        state.server.set(ServerFacts {
            is_replica,
            ..state.server.get()
        });
    });
}

/// Returns true if the module must unblock clients just before the server sleeps: on Redis before
/// 7.2, which replies to a client as soon as the module unblocks it.
pub fn unblock_must_wait_for_sleep(state: &State) -> bool {
    is_redis_before_7_2(state.server.get())
}

/// Returns true if the server would write a published message between the elements of a reply. That
/// happens to a subscriber that publishes in its own transaction or script: Redis before 7.2.
pub fn pushes_amid_replies(ctx: &Context) -> bool {
    let amid = raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA;
    is_redis_before_7_2(facts()) && context_flags(ctx) & amid != 0
}

/// Tells Redis before 7.2 by the lack of a function that came with 7.2 and that every Valkey has.
fn is_redis_before_7_2(facts: ServerFacts) -> bool {
    // SAFETY: as in `function!`. The pointer is only compared with null.
    let old = unsafe { raw::RedisModule_AddPostNotificationJob }.is_none();
    old && !facts.is_valkey
}

/// Returns true if the server gave the module its allocator. Without it not even a log line can be
/// made.
pub fn has_memory() -> bool {
    // SAFETY: as in `function!`. The pointers are only compared with null.
    unsafe { { raw::RedisModule_Alloc }.is_some() && { raw::RedisModule_Free }.is_some() }
}

/// Writes a line to the server's log, with the module's name. The server adds that name only once
/// it knows the module.
pub fn log(ctx: &Context, level: &CStr, text: &str) {
    let text = CString::new(format!("lock: {text}").replace('\0', "")).unwrap_or_default();
    let (level, format, text) = (level.as_ptr(), c"%s".as_ptr(), text.as_ptr());
    // SAFETY: as in `function!`.
    if let Some(log) = unsafe { raw::RedisModule_Log } {
        // SAFETY: the context is valid by its type. The format takes one C string, which is valid
        // until the call returns.
        unsafe { log(ctx.ctx, level, format, text) };
    }
}

/// Writes a line to the server's log on any thread.
pub fn log_anywhere(level: &CStr, text: &str) {
    // SAFETY: the own context is never freed, and `RM_Log` takes null before it is made. It reads
    // only the module's name from a context, so it needs no lock.
    log(
        &unsafe { context(OWN_CONTEXT.load(Ordering::Relaxed)) },
        level,
        text,
    );
}

/// Returns an error if the server lacks a function that the module can't do without.
pub fn probe(_: &Context) -> Result<(), String> {
    match calls::missing() {
        Some(name) => Err(format!(
            "the server has no {name}; it takes Redis 7.0 or later, or Valkey 8.0 or later"
        )),
        None => Ok(()),
    }
}

/// Returns a field of a section of the server's INFO.
pub fn server_info(ctx: &Context, section: &CStr, field: &CStr) -> Option<String> {
    let info = ServerInfo::of(ctx, section)?;
    info.field(field).map(Cow::into_owned)
}

/// A section of the server's INFO. The crate's own call for this leaks memory.
pub struct ServerInfo(Owned<raw::RedisModuleServerInfoData>);

impl ServerInfo {
    /// Asks the server for a section.
    pub fn of(ctx: &Context, section: &CStr) -> Option<Self> {
        // SAFETY: the server makes the information for the module.
        unsafe { Owned::new(calls::get_server_info(ctx, section)) }.map(Self)
    }

    /// Returns a field.
    pub fn field(&self, name: &CStr) -> Option<Cow<'_, str>> {
        let text = calls::get_field(&self.0, name);
        // SAFETY: the server returns null, or a C string that is part of the information, which
        // exists as long as `self`.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }

    /// Returns the number in a field; 0 if there is none.
    pub fn number(&self, name: &CStr) -> u64 {
        let text = self.field(name);
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// Returns a function of the server that the crate doesn't know, if the server has it.
fn function(name: &CStr) -> Option<ptr::NonNull<c_void>> {
    let mut function: *mut c_void = ptr::null_mut();
    // SAFETY: the name is a C string. The server writes a pointer to `function`, a local variable.
    let status =
        unsafe { function!(RedisModule_GetApi)(name.as_ptr(), (&raw mut function).cast()) };
    ptr::NonNull::new(function).filter(|_| status == 0)
}

/// Returns the server's check of rights that may be limited to databases, if it has such rights.
pub fn check_permissions() -> Option<CheckPermissions> {
    facts().check_permissions
}

fn find_check_permissions() -> Option<CheckPermissions> {
    let found = function(c"RedisModule_ACLCheckPermissions")?;
    // SAFETY: Valkey has declared its function of this name with this type since 9.1, the first
    // version that has it. No Redis has a function of this name.
    Some(unsafe { std::mem::transmute::<*mut c_void, CheckPermissions>(found.as_ptr()) })
}

/// Returns the reply of a command that replies with text.
pub fn call_text(ctx: &Context, command: &str, words: &[&str]) -> Option<Vec<u8>> {
    ctx.call(command, words).ok().and_then(text)
}

/// Returns the text of a value, if the value is text.
pub fn text(value: RedisValue) -> Option<Vec<u8>> {
    match value {
        RedisValue::SimpleString(text) | RedisValue::BulkString(text) => Some(text.into_bytes()),
        RedisValue::StringBuffer(bytes) | RedisValue::VerbatimString((_, bytes)) => Some(bytes),
        _ => None,
    }
}

/// Records the server's kind and role, and makes [`own_context`].
pub fn prepare(ctx: &Context) -> Result<(), String> {
    // SAFETY: the context is valid by its type. The new one is never freed, and outlives the load.
    let own = unsafe { function!(RedisModule_GetDetachedThreadSafeContext)(ctx.ctx) };
    OWN_CONTEXT.store(own, Ordering::Relaxed);
    let is_valkey = server_info(ctx, c"server", c"valkey_version").is_some();
    let is_clustered = context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0;
    state::with(|state| {
        state.server.set(ServerFacts {
            is_valkey,
            is_clustered,
            blocks_subscribers: function(c"RedisModule_RegisterScriptingEngine").is_none(),
            check_permissions: find_check_permissions(),
            is_replica: false,
            has_other_modules: true,
        });
    });
    record_role(ctx);
    set_module_options(ctx);
    Ok(())
}

/// Valkey's `VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION`, new in 9.0. Without it CLUSTER
/// MIGRATESLOTS is refused. Older versions ignore it, and Redis has no such option.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// Sets the module's options:
///
/// - Read errors are returned instead of ending the server.
/// - Only this module signals its keys as modified, so that WATCH sees real changes only.
/// - Slots may migrate atomically.
fn set_module_options(ctx: &Context) {
    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
    if is_valkey() {
        options |= HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    calls::set_module_options(ctx, options as c_int);
}

/// Returns the module's own context. It replies to no client. Its database is the one that was
/// selected last.
pub fn own_context() -> Context {
    entered::check();
    // SAFETY: the server made the context in `prepare`, the first step of loading that needs one,
    // and it is never freed. By the check, this thread runs a call of the server.
    unsafe { context(OWN_CONTEXT.load(Ordering::Relaxed)) }
}

/// Returns the server's flags for this context, `REDISMODULE_CTX_FLAGS_*`.
pub fn context_flags(ctx: &Context) -> u32 {
    calls::get_context_flags(ctx) as u32
}

/// Returns true if a script or function is running.
pub fn is_script_running(ctx: &Context) -> bool {
    context_flags(ctx) & raw::REDISMODULE_CTX_FLAGS_LUA != 0
}

/// Returns true if the module may write now without a client's command. It may not on a replica,
/// while data is loaded, and during CLIENT PAUSE or a failover. During the last two the server
/// asserts that nothing is sent to its replicas.
pub fn may_write_unasked(ctx: &Context) -> bool {
    let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    !is_replica() && context_flags(ctx) & loading == 0 && !is_paused()
}

/// Returns true if the server pauses writes, for CLIENT PAUSE or a failover.
pub fn is_paused() -> bool {
    calls::avoid_replica_traffic() != 0
}

/// Returns the id of the client that the context serves, 0 if there is none.
pub fn client_id(ctx: &Context) -> u64 {
    calls::get_client_id(ctx)
}

/// Returns the server's information about the client with this id, if it is connected.
///
/// # Safety
/// The id is not that of a client that runs scripts, for which Valkey 9.1 reads a connection that
/// isn't there.
pub unsafe fn client_info(id: u64) -> Option<raw::RedisModuleClientInfo> {
    let mut info = raw::RedisModuleClientInfo {
        version: 1,
        flags: 0,
        id: 0,
        addr: [0; 46],
        port: 0,
        db: 0,
    };
    // SAFETY: the server writes to `info`, a local variable of the version that it names. The caller
    // guarantees what the id is.
    let status = unsafe { function!(RedisModule_GetClientInfoById)((&raw mut info).cast(), id) };
    (id != 0 && status == 0).then_some(info)
}

/// Returns true if the client with this id is in a transaction, its EXEC included.
///
/// # Safety
/// As [`client_info`].
pub unsafe fn is_in_transaction(id: u64) -> bool {
    let flag = u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_MULTI);
    // SAFETY: by the caller.
    unsafe { client_info(id) }.is_some_and(|info| info.flags & flag != 0)
}

/// Returns the database that the context has selected.
pub fn selected_db(ctx: &Context) -> i32 {
    calls::get_selected_db(ctx)
}

/// Selects a database, unless it is selected.
pub fn select_db(ctx: &Context, db: i32) {
    if selected_db(ctx) != db {
        calls::select_db(ctx, db);
    }
}

/// Selects one database after the other and yields its number.
pub fn databases(ctx: &Context) -> impl Iterator<Item = i32> + '_ {
    (0..).take_while(|db| calls::select_db(ctx, *db) == raw::REDISMODULE_OK as c_int)
}

/// Returns the strings of a vector from the server, which may be null if there are none.
///
/// # Safety
/// The server passes `count` strings. They and the vector are valid for `'a`.
pub unsafe fn strings<'a>(vector: *mut *mut raw::RedisModuleString, count: c_int) -> &'a [Str<'a>] {
    match usize::try_from(count) {
        // SAFETY: the caller guarantees `count` strings for `'a`, and `Str` has the layout of the
        // pointer that it wraps.
        Ok(count) if !vector.is_null() => unsafe {
            std::slice::from_raw_parts(vector.cast(), count)
        },
        _ => &[],
    }
}

/// Makes a string of the server, freed when the value is dropped.
pub fn string(bytes: &[u8]) -> RedisString {
    RedisString::create_from_slice(ptr::null_mut(), bytes)
}

/// Takes a string that the server made for the module, if it made one. It is freed when the value
/// is dropped.
///
/// # Safety
/// The string is null, or the module has to free it. No other value does.
#[expect(clippy::disallowed_methods, reason = "the caller guarantees that")]
pub unsafe fn owned_string(string: *mut raw::RedisModuleString) -> Option<RedisString> {
    let is_there = !string.is_null();
    is_there.then(|| RedisString::from_redis_module_string(ptr::null_mut(), string))
}

/// Subscribes to one of the server's events.
///
/// # Safety
/// The callback requires nothing but what the server passes it for this event.
pub unsafe fn subscribe(
    ctx: &Context,
    id: u64,
    callback: raw::RedisModuleEventCallback,
) -> Result<(), String> {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the context is valid by its type. The caller guarantees the callback.
    match unsafe { function!(RedisModule_SubscribeToServerEvent)(ctx.ctx, event, callback) } {
        0 => Ok(()),
        _ => Err(format!(
            "the server refused a subscription to its event {id}"
        )),
    }
}

/// Frees memory that the server allocated for the module.
///
/// # Safety
/// `memory` came from an API function whose result the caller has to free. It is not used after.
pub unsafe fn free(memory: *mut c_void) {
    // SAFETY: by the caller.
    unsafe { function!(RedisModule_Free)(memory) };
}
