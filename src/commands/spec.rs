//! What the server is told of a command: COMMAND DOCS, COMMAND GETKEYS, ACL key patterns and the
//! hints of redis-cli come from here.

use std::ffi::{c_int, CStr, CString};
use std::ptr;

use redis_lock_core::grammar::syntax::{Keys, Syntax};
use redis_module::{raw, Context};

use super::arguments::{lower_case, Arguments};
use crate::server::api::server;

/// One command's metadata.
pub struct Spec {
    /// How it is written.
    pub syntax: Syntax,
    /// What the words don't tell.
    pub about: About,
}

/// What the server is told of a command besides its syntax.
pub struct About {
    /// The server's command flags.
    pub flags: &'static CStr,
    /// One sentence.
    pub summary: &'static CStr,
    /// In words, the letters explained.
    pub complexity: &'static CStr,
}

impl Spec {
    /// In lower case, as the server keeps it.
    fn name(&self) -> CString {
        lower_case(self.syntax.name().as_bytes())
    }

    fn has_flag(&self, flag: &str) -> bool {
        let mut flags = self.about.flags.to_bytes().split(|byte| *byte == b' ');
        flags.any(|it| it == flag.as_bytes())
    }
}

type Entry =
    extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Registers a command with its metadata.
pub fn register(ctx: &Context, spec: &Spec, entry: Entry) -> Result<(), String> {
    let name = spec.name();
    let (first, last, step) = match spec.syntax.keys {
        None | Some(Keys::Many) => (0, 0, 0),
        Some(Keys::One) => (1, 1, 1),
    };
    let created = server!(RedisModule_CreateCommand(
        ctx.ctx,
        name.as_ptr(),
        Some(entry),
        spec.about.flags.as_ptr(),
        first,
        last,
        step,
    ));
    if created != Some(0) || !describe(ctx, &name, spec) || !categorise(ctx, &name, spec) {
        return Err(format!(
            "the server refused the command {}",
            name.to_string_lossy()
        ));
    }
    Ok(())
}

/// The ACL category of all the module's commands.
const OWN_CATEGORY: &CStr = c"lock";

/// Makes the category that all commands are in, where the server lets modules make one (from Redis 7.4
/// on, and Valkey). It comes before the first command.
pub fn add_own_category(ctx: &Context) {
    // It may be there from a load that failed. What counts is whether the server puts commands into it.
    server!(RedisModule_AddACLCategory(ctx.ctx, OWN_CATEGORY.as_ptr()));
}

/// Puts the command into the ACL categories of its flags, where the server lets modules do so (from
/// Redis 7.2 on), and into the module's own, where there is room for one: a server has 64.
fn categorise(ctx: &Context, name: &CStr, spec: &Spec) -> bool {
    let Some(command) = server!(RedisModule_GetCommand(ctx.ctx, name.as_ptr())) else {
        return false;
    };
    let standard = standard_categories(spec);
    let with_own = format!("{standard} {}", OWN_CATEGORY.to_string_lossy());
    [with_own, standard].into_iter().any(|categories| {
        let categories = CString::new(categories).unwrap_or_default();
        let set = server!(RedisModule_SetCommandACLCategories(
            command,
            categories.as_ptr()
        ));
        set.is_none_or(|status| status == 0)
    })
}

/// The server's categories that a command's flags stand for, as the server reads them.
fn standard_categories(spec: &Spec) -> String {
    let speed = if spec.has_flag("fast") {
        "fast"
    } else {
        "slow"
    };
    let named = [
        ("write", "write"),
        ("readonly", "read"),
        ("blocking", "blocking"),
    ];
    let named = named.iter().filter(|(flag, _)| spec.has_flag(flag));
    let mut categories = vec![speed];
    categories.extend(named.map(|(_, category)| *category));
    categories.join(" ")
}

/// Tells the server the metadata; it keeps copies.
fn describe(ctx: &Context, name: &CStr, spec: &Spec) -> bool {
    let Some(command) = server!(RedisModule_GetCommand(ctx.ctx, name.as_ptr())) else {
        return false;
    };
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut key_specs = key_specs(spec);
    let mut arguments = Arguments::default();
    let args = arguments.of(&spec.syntax);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.about.summary.as_ptr(),
        complexity: spec.about.complexity.as_ptr(),
        since: c"0.1.0".as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: spec.syntax.arity(),
        key_specs: key_specs.as_mut_ptr(),
        args,
    };
    server!(RedisModule_SetCommandInfo(command, &raw const info)) == Some(0)
}

/// The key specs of a command, ended by one that is all zeros.
fn key_specs(spec: &Spec) -> Vec<raw::RedisModuleCommandKeySpec> {
    // SAFETY: a key spec is plain data; all zeros is how the API ends the list of them.
    let end = unsafe { std::mem::zeroed::<raw::RedisModuleCommandKeySpec>() };
    let Some(keys) = spec.syntax.keys else {
        return vec![end];
    };
    let access = if spec.has_flag("readonly") {
        raw::REDISMODULE_CMD_KEY_RO
    } else {
        raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE
    };
    let mut found = end;
    found.flags = u64::from(access | raw::REDISMODULE_CMD_KEY_ACCESS);
    found.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    found.bs.index = raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 };
    match keys {
        Keys::One => {
            found.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            found.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
                lastkey: 0,
                keystep: 1,
                limit: 0,
            };
        }
        Keys::Many => {
            found.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            found.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                keynumidx: 0,
                firstkey: 1,
                keystep: 1,
            };
        }
    }
    vec![found, end]
}
