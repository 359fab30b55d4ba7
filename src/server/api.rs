//! The server's module API: functions that the crate `redis-module` doesn't wrap, or wraps with a
//! panic.
//!
//! Each is a pointer that the server sets at load. [`probe`] checks once those that every supported
//! server has. All calls use [`server!`], which returns `None` for a missing function.

use std::borrow::Cow;
use std::ffi::{c_int, c_void, CStr, CString};
use std::ptr;
use std::sync::atomic::Ordering;

use redis_module::{raw, Context, RedisString, RedisValue};

use crate::state::{self, CheckPermissions, ServerFacts, OWN_CONTEXT};

/// Calls a function of the module API. Yields `None` if the server lacks it.
///
/// The caller must fulfil the API's contract for the function, because the macro wraps the call in
/// `unsafe`.
macro_rules! server {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the server set the pointer before the module's init ran, and never changes it
        // after.
        let function = unsafe { redis_module::raw::$function };
        match function {
            // SAFETY: the user of the macro passes what the API's documentation requires.
            Some(function) => Some(unsafe { function($($argument),*) }),
            None => {
                redis_lock_core::hints::cold_path();
                None
            }
        }
    }};
}
pub(crate) use server;

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

/// Returns true if the server can block a client that is subscribed to a channel, which RESP3
/// allows.
pub fn blocks_subscribers() -> bool {
    facts().blocks_subscribers
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
pub fn unblock_must_wait_for_sleep() -> bool {
    is_redis_before_7_2()
}

/// Returns true if the server would write a published message between the elements of a reply. That
/// happens to a subscriber that publishes in its own transaction or script: Redis before 7.2.
pub fn pushes_amid_replies(ctx: &Context) -> bool {
    let amid = raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA;
    is_redis_before_7_2() && context_flags(ctx) & amid != 0
}

/// Tells Redis before 7.2 by the lack of a function that came with 7.2 and that every Valkey has.
fn is_redis_before_7_2() -> bool {
    // SAFETY: as in `server!`. The pointer is only compared with null.
    let old = unsafe { raw::RedisModule_AddPostNotificationJob }.is_none();
    old && !is_valkey()
}

/// Returns true if the server gave the module its allocator. Without it not even a log line can be
/// made.
pub fn has_memory() -> bool {
    // SAFETY: as in `server!`. The pointers are only compared with null.
    unsafe { { raw::RedisModule_Alloc }.is_some() && { raw::RedisModule_Free }.is_some() }
}

/// Writes a line to the server's log, with the module's name. The server adds that name only once
/// it knows the module.
pub fn log(ctx: &Context, level: &CStr, text: &str) {
    let text = CString::new(format!("lock: {text}").replace('\0', "")).unwrap_or_default();
    server!(RedisModule_Log(
        ctx.ctx,
        level.as_ptr(),
        c"%s".as_ptr(),
        text.as_ptr()
    ));
}

/// Returns an error if the server lacks a function that the module can't do without. The list has
/// all functions that the module or the crate calls, except those called only if they exist.
pub fn probe(_: &Context) -> Result<(), String> {
    macro_rules! missing {
        ($($function:ident),* $(,)?) => {{
            // SAFETY: as in `server!`. The pointers are only compared with null.
            unsafe { [$((stringify!($function), { raw::$function }.is_none())),*] }
        }};
    }
    let missing = missing![
        RedisModule_ACLCheckChannelPermissions,
        RedisModule_ACLCheckCommandPermissions,
        RedisModule_ACLCheckKeyPermissions,
        RedisModule_AvoidReplicaTraffic,
        RedisModule_BlockClientOnKeys,
        RedisModule_Call,
        RedisModule_CallReplyType,
        RedisModule_CloseKey,
        RedisModule_CommandFilterArgGet,
        RedisModule_CommandFilterArgsCount,
        RedisModule_CreateCommand,
        RedisModule_CreateDataType,
        RedisModule_CreateString,
        RedisModule_CreateTimer,
        RedisModule_DeleteKey,
        RedisModule_DigestAddStringBuffer,
        RedisModule_DigestEndSequence,
        RedisModule_EmitAOF,
        RedisModule_FreeCallReply,
        RedisModule_FreeModuleUser,
        RedisModule_FreeServerInfo,
        RedisModule_FreeString,
        RedisModule_GetAbsExpire,
        RedisModule_GetBlockedClientPrivateData,
        RedisModule_GetClientId,
        RedisModule_GetClientInfoById,
        RedisModule_GetClientNameById,
        RedisModule_GetClientUserNameById,
        RedisModule_GetCommand,
        RedisModule_GetContextFlags,
        RedisModule_GetCurrentUserName,
        RedisModule_GetDbIdFromOptCtx,
        RedisModule_GetDetachedThreadSafeContext,
        RedisModule_GetKeyNameFromOptCtx,
        RedisModule_GetModuleUserFromUserName,
        RedisModule_GetNotifyKeyspaceEvents,
        RedisModule_GetSelectedDb,
        RedisModule_GetServerInfo,
        RedisModule_InfoAddFieldCString,
        RedisModule_InfoAddFieldULongLong,
        RedisModule_InfoAddSection,
        RedisModule_InfoBeginDictField,
        RedisModule_InfoEndDictField,
        RedisModule_IsKeysPositionRequest,
        RedisModule_KeyAtPos,
        RedisModule_KeyType,
        RedisModule_LoadConfigs,
        RedisModule_LoadStringBuffer,
        RedisModule_ModuleTypeGetType,
        RedisModule_ModuleTypeGetValue,
        RedisModule_ModuleTypeSetValue,
        RedisModule_NotifyKeyspaceEvent,
        RedisModule_OpenKey,
        RedisModule_PublishMessage,
        RedisModule_PublishMessageShard,
        RedisModule_RegisterCommandFilter,
        RedisModule_RegisterInfoFunc,
        RedisModule_RegisterNumericConfig,
        RedisModule_Replicate,
        RedisModule_ReplicateVerbatim,
        RedisModule_ReplyWithArray,
        RedisModule_ReplyWithError,
        RedisModule_ReplyWithLongLong,
        RedisModule_ReplyWithMap,
        RedisModule_ReplyWithNull,
        RedisModule_ReplyWithNullArray,
        RedisModule_ReplyWithSimpleString,
        RedisModule_ReplyWithStringBuffer,
        RedisModule_SaveStringBuffer,
        RedisModule_SelectDb,
        RedisModule_ServerInfoGetFieldC,
        RedisModule_SetAbsExpire,
        RedisModule_StringDMA,
        RedisModule_StringSet,
        RedisModule_SetCommandInfo,
        RedisModule_SetDisconnectCallback,
        RedisModule_SetModuleOptions,
        RedisModule_SignalModifiedKey,
        RedisModule_StopTimer,
        RedisModule_StringPtrLen,
        RedisModule_SubscribeToKeyspaceEvents,
        RedisModule_SubscribeToServerEvent,
        RedisModule_UnblockClient,
        RedisModule_WrongArity,
    ];
    match missing.iter().find(|(_, missing)| *missing) {
        Some((name, _)) => Err(format!(
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

/// A section of the server's INFO, freed when the value is dropped. The crate's own call for this
/// leaks memory.
pub struct ServerInfo(*mut raw::RedisModuleServerInfoData);

impl ServerInfo {
    /// Asks the server for a section.
    pub fn of(ctx: &Context, section: &CStr) -> Option<Self> {
        let info = server!(RedisModule_GetServerInfo(ctx.ctx, section.as_ptr()));
        info.filter(|info| !info.is_null()).map(Self)
    }

    /// Returns a field.
    pub fn field(&self, name: &CStr) -> Option<Cow<'_, str>> {
        let text = server!(RedisModule_ServerInfoGetFieldC(self.0, name.as_ptr()));
        let text = text.filter(|text| !text.is_null())?;
        // SAFETY: the server returned a string with its NUL, which is valid until `self` is dropped.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }

    /// Returns the number in a field; 0 if there is none.
    pub fn number(&self, name: &CStr) -> u64 {
        let text = self.field(name);
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

impl Drop for ServerInfo {
    fn drop(&mut self) {
        // The context matters only to modules whose memory the server manages.
        server!(RedisModule_FreeServerInfo(ptr::null_mut(), self.0));
    }
}

/// Returns a function of the server that the crate doesn't know, if the server has it.
fn function(name: &CStr) -> Option<ptr::NonNull<c_void>> {
    let mut function: *mut c_void = ptr::null_mut();
    let status = server!(RedisModule_GetApi(
        name.as_ptr(),
        (&raw mut function).cast()
    ));
    ptr::NonNull::new(function).filter(|_| status == Some(0))
}

/// Returns the server's check of rights that may be limited to databases, if it has such rights.
pub fn check_permissions() -> Option<CheckPermissions> {
    facts().check_permissions
}

fn find_check_permissions() -> Option<CheckPermissions> {
    let found = function(c"RedisModule_ACLCheckPermissions")?;
    // SAFETY: Valkey has declared its function of this name with this type since it exists.
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
    let own = server!(RedisModule_GetDetachedThreadSafeContext(ctx.ctx));
    OWN_CONTEXT.store(own.unwrap_or(ptr::null_mut()), Ordering::Relaxed);
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
    server!(RedisModule_SetModuleOptions(ctx.ctx, options as c_int));
}

/// Returns the module's own context. It replies to no client. Its database is the one that was
/// selected last.
pub fn own_context() -> Context {
    Context::new(OWN_CONTEXT.load(Ordering::Relaxed))
}

/// Returns the server's flags for this context, `REDISMODULE_CTX_FLAGS_*`.
pub fn context_flags(ctx: &Context) -> u32 {
    server!(RedisModule_GetContextFlags(ctx.ctx)).unwrap_or(0) as u32
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
    server!(RedisModule_AvoidReplicaTraffic()) != Some(0)
}

/// Returns the id of the client that the context serves, 0 if there is none.
pub fn client_id(ctx: &Context) -> u64 {
    server!(RedisModule_GetClientId(ctx.ctx)).unwrap_or(0)
}

/// Returns the server's information about the client with this id, if it is connected. The id must
/// not be a script's, because Valkey 9.1 crashes on it.
pub fn client_info(id: u64) -> Option<raw::RedisModuleClientInfo> {
    let mut info = raw::RedisModuleClientInfo {
        version: 1,
        flags: 0,
        id: 0,
        addr: [0; 46],
        port: 0,
        db: 0,
    };
    let status = server!(RedisModule_GetClientInfoById((&raw mut info).cast(), id));
    (id != 0 && status == Some(0)).then_some(info)
}

/// Returns true if the client with this id is in a transaction, its EXEC included.
pub fn is_in_transaction(id: u64) -> bool {
    let flag = u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_MULTI);
    client_info(id).is_some_and(|info| info.flags & flag != 0)
}

/// Returns the database that the context has selected.
pub fn selected_db(ctx: &Context) -> i32 {
    server!(RedisModule_GetSelectedDb(ctx.ctx)).unwrap_or(0)
}

/// Selects a database, unless it is selected.
pub fn select_db(ctx: &Context, db: i32) {
    if selected_db(ctx) != db {
        server!(RedisModule_SelectDb(ctx.ctx, db));
    }
}

/// Returns the strings of a vector from the server, which may be null if there are none.
///
/// # Safety
/// The server passes `count` strings, and they outlive the returned slice.
pub unsafe fn strings<'a>(
    vector: *mut *mut raw::RedisModuleString,
    count: c_int,
) -> &'a [*mut raw::RedisModuleString] {
    match usize::try_from(count) {
        // SAFETY: the caller guarantees `count` strings that outlive the slice.
        Ok(count) if !vector.is_null() => unsafe { std::slice::from_raw_parts(vector, count) },
        _ => &[],
    }
}

/// Makes a string of the server, freed when the value is dropped.
pub fn string(bytes: &[u8]) -> RedisString {
    RedisString::create_from_slice(ptr::null_mut(), bytes)
}

/// Returns the server's pointers to strings, for calls that take a vector. They are valid as long
/// as `strings`.
pub fn pointers(strings: &[RedisString]) -> Vec<*mut raw::RedisModuleString> {
    strings.iter().map(|string| string.inner).collect()
}

/// Subscribes to one of the server's events.
pub fn subscribe(
    ctx: &Context,
    id: u64,
    callback: raw::RedisModuleEventCallback,
) -> Result<(), String> {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    match server!(RedisModule_SubscribeToServerEvent(ctx.ctx, event, callback)) {
        Some(0) => Ok(()),
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
    server!(RedisModule_Free(memory));
}
