//! The calls of the server's module API, with typed arguments.
//!
//! A function of the API is a pointer that the server sets at load. It requires:
//!
//! 1. Its presence. [`missing`] checks at load that the server has all `required` functions. If one
//!    is called without that, the call panics. `optional` functions return `None`.
//! 2. Valid pointers. The types of the table's functions guarantee that: a [`Context`], a [`Lent`]
//!    or [`Owned`] pointer, a C string.
//! 3. The server's lock. Contexts and pointers are made in calls of the server, which holds its
//!    lock, see [`Entered`](crate::state::entered::Entered).
//! 4. More than that, for some functions. They are not in the table but called by [`function!`], in
//!    an `unsafe` block that says who guarantees it.

use std::ffi::{c_char, c_int, c_long, c_longlong, c_void, CStr};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use redis_module::{raw, Context, RedisString};

/// A value that the server may be passed.
///
/// # Safety
/// `raw` returns the form that the API takes. A pointer in it is valid as long as the value.
pub unsafe trait Passed {
    /// The form that the API takes.
    type Raw;

    /// Returns the value in that form.
    fn raw(&self) -> Self::Raw;
}

macro_rules! passed_as_is {
    ($($number:ty),*) => {$(
        // SAFETY: a number has no pointer.
        unsafe impl Passed for $number {
            type Raw = Self;

            #[inline(always)]
            fn raw(&self) -> Self {
                *self
            }
        }
    )*};
}
passed_as_is!(c_int, c_longlong, u64);

// SAFETY: the value is valid as long as the reference to it.
unsafe impl<T: Passed + ?Sized> Passed for &T {
    type Raw = T::Raw;

    #[inline(always)]
    fn raw(&self) -> T::Raw {
        (**self).raw()
    }
}

// SAFETY: only `api::context` makes contexts, whose caller guarantees that they are valid. Clippy
// refuses the crate's own functions that make one, see clippy.toml.
unsafe impl Passed for Context {
    type Raw = *mut raw::RedisModuleCtx;

    #[inline(always)]
    fn raw(&self) -> Self::Raw {
        self.ctx
    }
}

// SAFETY: a C string has its NUL.
unsafe impl Passed for CStr {
    type Raw = *const c_char;

    #[inline(always)]
    fn raw(&self) -> Self::Raw {
        self.as_ptr()
    }
}

/// A pointer that the server lends the module for `'a`.
#[repr(transparent)]
pub struct Lent<'a, T>(*mut T, PhantomData<&'a T>);

impl<T> Clone for Lent<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Lent<'_, T> {}

impl<T> Lent<'_, T> {
    /// Takes a pointer from the server.
    ///
    /// # Safety
    /// The pointer is not null, and the server keeps its object for `'a`.
    #[inline(always)]
    pub const unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer, PhantomData)
    }
}

// SAFETY: the pointer is valid for `'a`, by the contract of `Lent::new`.
unsafe impl<T> Passed for Lent<'_, T> {
    type Raw = *mut T;

    #[inline(always)]
    fn raw(&self) -> *mut T {
        self.0
    }
}

/// A string of the server.
pub type Str<'a> = Lent<'a, raw::RedisModuleString>;

impl<'a> Str<'a> {
    /// Returns the string's bytes.
    #[inline(always)]
    #[expect(clippy::disallowed_methods, reason = "the string is valid for 'a")]
    pub fn bytes(self) -> &'a [u8] {
        RedisString::string_as_slice(self.0)
    }

    /// Makes a value that shares the string.
    #[expect(clippy::disallowed_methods, reason = "the string is valid now")]
    pub fn retained(self) -> RedisString {
        RedisString::new(None, self.0)
    }
}

impl<'a> From<&'a RedisString> for Str<'a> {
    #[inline(always)]
    fn from(string: &'a RedisString) -> Self {
        Self(string.inner, PhantomData)
    }
}

/// A command while the server's filter looks at it.
pub type Filter<'a> = Lent<'a, raw::RedisModuleCommandFilterCtx>;

/// An object that the server makes for the module, which has to give it back.
pub trait GivenBack {
    /// Gives the object back.
    ///
    /// # Safety
    /// The server made the object for the module. It is not used after this call.
    unsafe fn give_back(object: NonNull<Self>);
}

/// An object that the server has made for the module, given back when the value is dropped.
pub struct Owned<T: GivenBack>(NonNull<T>);

impl<T: GivenBack> Owned<T> {
    /// Takes what the server has made. Returns `None` if it made nothing.
    ///
    /// # Safety
    /// The pointer is null, or the result of an API function that makes the object for the module.
    /// It is in no other value.
    #[inline(always)]
    pub unsafe fn new(made: *mut T) -> Option<Self> {
        NonNull::new(made).map(Self)
    }

    /// Returns the pointer, for a later [`Owned::new`].
    pub fn into_raw(self) -> *mut T {
        let pointer = self.0.as_ptr();
        std::mem::forget(self);
        pointer
    }
}

impl<T: GivenBack> Drop for Owned<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: by the contract of `Owned::new`. The value is no longer used.
        unsafe { T::give_back(self.0) };
    }
}

// SAFETY: the object exists until the value is dropped.
unsafe impl<T: GivenBack> Passed for Owned<T> {
    type Raw = *mut T;

    #[inline(always)]
    fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// An open key, closed when the value is dropped.
pub type OpenKey = Owned<raw::RedisModuleKey>;

impl GivenBack for raw::RedisModuleKey {
    #[inline(always)]
    unsafe fn give_back(key: NonNull<Self>) {
        // SAFETY: the caller guarantees an open key that is not used after.
        unsafe { function!(RedisModule_CloseKey)(key.as_ptr()) };
    }
}

/// A user whose rights can be asked for.
pub type User = Owned<raw::RedisModuleUser>;

impl GivenBack for raw::RedisModuleUser {
    unsafe fn give_back(user: NonNull<Self>) {
        // SAFETY: the caller guarantees a user of the module's that is not used after.
        unsafe { function!(RedisModule_FreeModuleUser)(user.as_ptr()) };
    }
}

impl GivenBack for raw::RedisModuleServerInfoData {
    unsafe fn give_back(info: NonNull<Self>) {
        // SAFETY: the caller guarantees information that is not used after. The context matters
        // only to modules whose memory the server manages, and may be null.
        unsafe { function!(RedisModule_FreeServerInfo)(ptr::null_mut(), info.as_ptr()) };
    }
}

/// Ends a step that needs a function which the server lacks.
#[cold]
#[inline(never)]
#[expect(clippy::panic, reason = "`missing` has refused such a server at load")]
pub fn lacks(function: &str) -> ! {
    panic!("the server has no {function}")
}

/// Returns a function of the API that every supported server has.
///
/// # Safety
/// The caller guarantees what the API's documentation requires for the call. Reading the pointer is
/// sound: the server set it before the module's init ran, and never changes it.
macro_rules! function {
    ($function:ident) => {
        match redis_module::raw::$function {
            Some(function) => function,
            None => $crate::server::calls::lacks(stringify!($function)),
        }
    };
}
pub(crate) use function;

/// Defines a Rust function for each function of the API, and `missing_of_table`.
macro_rules! calls {
    (
        required {$($name:ident $arguments:tt $(-> $result:ty)? = $function:ident;)*}
        optional {$($other_name:ident $other_arguments:tt -> $other:ty = $other_function:ident;)*}
    ) => {
        $(calls! { @required $name $arguments [$($result)?] $function })*
        $(calls! { @optional $other_name $other_arguments $other, $other_function })*

        fn missing_of_table() -> Option<&'static str> {
            missing!($($function),*)
        }
    };
    (@required $name:ident ($($argument:ident: $type:ty),*) [$($result:ty)?] $function:ident) => {
        #[inline(always)]
        pub fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the types of the arguments guarantee all that the function requires.
            unsafe { function!($function)($(Passed::raw(&$argument)),*) }
        }
    };
    (@optional $name:ident ($($argument:ident: $type:ty),*) $result:ty, $function:ident) => {
        #[inline(always)]
        pub fn $name($($argument: $type),*) -> Option<$result> {
            // SAFETY: as in `function!`.
            let function = unsafe { raw::$function }?;
            // SAFETY: as above.
            Some(unsafe { function($(Passed::raw(&$argument)),*) })
        }
    };
}

/// Returns the name of one of these functions that the server lacks.
macro_rules! missing {
    ($($function:ident),* $(,)?) => {{
        // SAFETY: as in `function!`. The pointers are only compared with null.
        let functions = unsafe { [$((stringify!($function), { raw::$function }.is_some())),*] };
        functions.into_iter().find(|(_, is_there)| !is_there).map(|(name, _)| name)
    }};
}

/// Returns the name of a function that the module can't do without and the server lacks. The lists
/// have all functions that the module or the crate calls, except those called only if they exist.
/// `RM_GetApi` finds the others, and [`api::has_memory`](crate::server::api::has_memory) checks
/// `RM_Free`.
pub fn missing() -> Option<&'static str> {
    // The functions that `function!` calls, and those that only the crate calls.
    missing_of_table().or_else(|| {
        missing![
            RedisModule_ACLCheckCommandPermissions,
            RedisModule_BlockClientOnKeys,
            RedisModule_Call,
            RedisModule_CallReplyType,
            RedisModule_CloseKey,
            RedisModule_CreateCommand,
            RedisModule_CreateDataType,
            RedisModule_CreateString,
            RedisModule_CreateTimer,
            RedisModule_DigestAddStringBuffer,
            RedisModule_EmitAOF,
            RedisModule_EventLoopAddOneShot,
            RedisModule_FreeCallReply,
            RedisModule_FreeModuleUser,
            RedisModule_FreeServerInfo,
            RedisModule_FreeString,
            RedisModule_GetClientInfoById,
            RedisModule_GetCurrentUserName,
            RedisModule_GetDetachedThreadSafeContext,
            RedisModule_InfoAddSection,
            RedisModule_LoadStringBuffer,
            RedisModule_ModuleTypeSetValue,
            RedisModule_OpenKey,
            RedisModule_RegisterCommandFilter,
            RedisModule_RegisterInfoFunc,
            RedisModule_RegisterNumericConfig,
            RedisModule_Replicate,
            RedisModule_ReplyWithStringBuffer,
            RedisModule_SaveStringBuffer,
            RedisModule_SetCommandInfo,
            RedisModule_SetDisconnectCallback,
            RedisModule_StopTimer,
            RedisModule_StringDMA,
            RedisModule_StringPtrLen,
            RedisModule_SubscribeToKeyspaceEvents,
            RedisModule_SubscribeToServerEvent,
            RedisModule_UnblockClient,
            RedisModule_WrongArity,
        ]
    })
}

calls! {
    required {
        // About the server.
        avoid_replica_traffic() -> c_int = RedisModule_AvoidReplicaTraffic;
        get_notify_keyspace_events() -> c_int = RedisModule_GetNotifyKeyspaceEvents;
        get_server_info(ctx: &Context, section: &CStr) -> *mut raw::RedisModuleServerInfoData
            = RedisModule_GetServerInfo;
        get_field(info: &Owned<raw::RedisModuleServerInfoData>, name: &CStr) -> *const c_char
            = RedisModule_ServerInfoGetFieldC;
        // About the context.
        get_context_flags(ctx: &Context) -> c_int = RedisModule_GetContextFlags;
        get_client_id(ctx: &Context) -> u64 = RedisModule_GetClientId;
        get_selected_db(ctx: &Context) -> c_int = RedisModule_GetSelectedDb;
        select_db(ctx: &Context, db: c_int) -> c_int = RedisModule_SelectDb;
        is_keys_position_request(ctx: &Context) -> c_int = RedisModule_IsKeysPositionRequest;
        key_at_pos(ctx: &Context, position: c_int) = RedisModule_KeyAtPos;
        get_blocked_client_private_data(ctx: &Context) -> *mut c_void
            = RedisModule_GetBlockedClientPrivateData;
        // At load.
        load_configs(ctx: &Context) -> c_int = RedisModule_LoadConfigs;
        set_module_options(ctx: &Context, options: c_int) = RedisModule_SetModuleOptions;
        get_command(ctx: &Context, name: &CStr) -> *mut raw::RedisModuleCommand
            = RedisModule_GetCommand;
        // About other clients. A name that isn't null is the module's to free.
        get_client_name_by_id(ctx: &Context, id: u64) -> *mut raw::RedisModuleString
            = RedisModule_GetClientNameById;
        get_client_user_name_by_id(ctx: &Context, id: u64) -> *mut raw::RedisModuleString
            = RedisModule_GetClientUserNameById;
        // Keys.
        delete_key(key: &OpenKey) -> c_int = RedisModule_DeleteKey;
        key_type(key: &OpenKey) -> c_int = RedisModule_KeyType;
        get_module_type(key: &OpenKey) -> *mut raw::RedisModuleType = RedisModule_ModuleTypeGetType;
        get_module_value(key: &OpenKey) -> *mut c_void = RedisModule_ModuleTypeGetValue;
        get_abs_expire(key: &OpenKey) -> c_longlong = RedisModule_GetAbsExpire;
        set_abs_expire(key: &OpenKey, ms: c_longlong) -> c_int = RedisModule_SetAbsExpire;
        set_string(key: &OpenKey, string: Str<'_>) -> c_int = RedisModule_StringSet;
        signal_modified_key(ctx: &Context, key: Str<'_>) -> c_int = RedisModule_SignalModifiedKey;
        // Messages, events and replies.
        replicate_verbatim(ctx: &Context) -> c_int = RedisModule_ReplicateVerbatim;
        notify_keyspace_event(ctx: &Context, class: c_int, event: &CStr, key: Str<'_>) -> c_int
            = RedisModule_NotifyKeyspaceEvent;
        publish_message(ctx: &Context, channel: Str<'_>, message: Str<'_>) -> c_int
            = RedisModule_PublishMessage;
        publish_message_shard(ctx: &Context, channel: Str<'_>, message: Str<'_>) -> c_int
            = RedisModule_PublishMessageShard;
        reply_with_null(ctx: &Context) -> c_int = RedisModule_ReplyWithNull;
        reply_with_null_array(ctx: &Context) -> c_int = RedisModule_ReplyWithNullArray;
        reply_with_long_long(ctx: &Context, number: c_longlong) -> c_int
            = RedisModule_ReplyWithLongLong;
        reply_with_simple_string(ctx: &Context, text: &CStr) -> c_int
            = RedisModule_ReplyWithSimpleString;
        reply_with_error(ctx: &Context, text: &CStr) -> c_int = RedisModule_ReplyWithError;
        reply_with_array(ctx: &Context, len: c_long) -> c_int = RedisModule_ReplyWithArray;
        reply_with_map(ctx: &Context, len: c_long) -> c_int = RedisModule_ReplyWithMap;
        // INFO.
        info_add_field_cstring(info: Lent<'_, raw::RedisModuleInfoCtx>, field: &CStr, value: &CStr)
            -> c_int = RedisModule_InfoAddFieldCString;
        info_add_field_number(info: Lent<'_, raw::RedisModuleInfoCtx>, field: &CStr, value: u64)
            -> c_int = RedisModule_InfoAddFieldULongLong;
        info_begin_dict_field(info: Lent<'_, raw::RedisModuleInfoCtx>, name: &CStr) -> c_int
            = RedisModule_InfoBeginDictField;
        info_end_dict_field(info: Lent<'_, raw::RedisModuleInfoCtx>) -> c_int
            = RedisModule_InfoEndDictField;
        // The command filter, and the type's callbacks.
        command_filter_args_count(filter: Filter<'_>) -> c_int = RedisModule_CommandFilterArgsCount;
        command_filter_arg_get(filter: Filter<'_>, position: c_int) -> *mut raw::RedisModuleString
            = RedisModule_CommandFilterArgGet;
        get_key_name_from_opt_ctx(key: Lent<'_, raw::RedisModuleKeyOptCtx>)
            -> *const raw::RedisModuleString = RedisModule_GetKeyNameFromOptCtx;
        get_db_id_from_opt_ctx(key: Lent<'_, raw::RedisModuleKeyOptCtx>) -> c_int
            = RedisModule_GetDbIdFromOptCtx;
        digest_end_sequence(digest: Lent<'_, raw::RedisModuleDigest>)
            = RedisModule_DigestEndSequence;
        // Rights.
        get_module_user(name: Str<'_>) -> *mut raw::RedisModuleUser
            = RedisModule_GetModuleUserFromUserName;
        acl_check_key(user: &User, key: Str<'_>, access: c_int) -> c_int
            = RedisModule_ACLCheckKeyPermissions;
        acl_check_channel(user: &User, channel: Str<'_>, access: c_int) -> c_int
            = RedisModule_ACLCheckChannelPermissions;
    }
    optional {
        command_filter_get_client_id(filter: Filter<'_>) -> u64
            = RedisModule_CommandFilterGetClientId;
        add_acl_category(ctx: &Context, name: &CStr) -> c_int = RedisModule_AddACLCategory;
        set_command_acl_categories(command: Lent<'_, raw::RedisModuleCommand>, names: &CStr) -> c_int
            = RedisModule_SetCommandACLCategories;
    }
}
