//! The descriptions of commands for the server, used by COMMAND DOCS, COMMAND GETKEYS, ACL key
//! patterns and the hints of redis-cli.

use std::ffi::{c_int, CStr, CString};
use std::ptr;

use redis_lock_core::grammar::syntax::{Keys, Syntax};
use redis_module::{raw, Context};

use super::arguments::{lower_case, Arguments};
use crate::server::calls::{self, function, Lent, Passed};

/// The description of a command.
pub struct Spec {
    /// Its syntax.
    pub syntax: Syntax,
    /// Its description besides the syntax.
    pub about: CommandDoc,
}

/// The description of a command besides its syntax.
pub struct CommandDoc {
    /// The server's command flags.
    pub flags: &'static CStr,
    /// The summary, one sentence.
    pub summary: &'static CStr,
    /// The complexity in words that explain its letters.
    pub complexity: &'static CStr,
    /// The version that added the command, and then those that changed it.
    pub history: &'static [Change],
}

/// A change to a command.
pub struct Change {
    /// The module's version that made the change.
    version: &'static CStr,
    /// The change, one sentence.
    change: &'static CStr,
}

/// The history of a command that hasn't changed since version 0.1.0.
pub const SINCE_0_1_0: &[Change] = &[Change {
    version: c"0.1.0",
    change: c"Added.",
}];

impl Spec {
    /// Returns the command's name in lower case, which the server uses.
    fn name(&self) -> CString {
        lower_case(self.syntax.name().as_bytes())
    }

    fn has_flag(&self, flag: &str) -> bool {
        let mut flags = self.about.flags.to_bytes().split(|byte| *byte == b' ');
        flags.any(|it| it == flag.as_bytes())
    }
}

type Entry = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// Registers a command with its description.
pub fn register(ctx: &Context, spec: &Spec, entry: Entry) -> Result<(), String> {
    let name = spec.name();
    let (first, last, step) = match spec.syntax.keys {
        None | Some(Keys::Many) => (0, 0, 0),
        Some(Keys::One) => (1, 1, 1),
    };
    let (name_pointer, flags) = (name.as_ptr(), spec.about.flags.as_ptr());
    // SAFETY: the context is valid by its type, and the server copies the C strings. The entry
    // requires what the server passes to each call of a command.
    let created = unsafe {
        function!(RedisModule_CreateCommand)(
            ctx.ctx,
            name_pointer,
            Some(entry),
            flags,
            first,
            last,
            step,
        )
    };
    if created != 0 || !describe(ctx, &name, spec) || !categorise(ctx, &name, spec) {
        return Err(format!(
            "the server refused the command {}",
            name.to_string_lossy()
        ));
    }
    Ok(())
}

/// The ACL category of all the module's commands.
const OWN_CATEGORY: &CStr = c"lock";

/// Adds the category of the module's commands, if the server lets modules add one (Redis 7.4, and
/// Valkey). Called before the first command is registered.
pub fn add_own_category(ctx: &Context) {
    // An earlier load that failed may have added it. What matters is if the server then accepts
    // commands in it.
    calls::add_acl_category(ctx, OWN_CATEGORY);
}

/// Adds the command to the ACL categories of its flags, if the server lets modules do so (Redis
/// 7.2). Also adds it to the module's own category, if there is room: a server has 64 categories.
fn categorise(ctx: &Context, name: &CStr, spec: &Spec) -> bool {
    let Some(command) = find(ctx, name) else {
        return false;
    };
    let standard = standard_categories(spec);
    let with_own = format!("{standard} {}", OWN_CATEGORY.to_string_lossy());
    [with_own, standard].into_iter().any(|categories| {
        let categories = CString::new(categories).unwrap_or_default();
        let set = calls::set_command_acl_categories(command, &categories);
        set.is_none_or(|status| status == 0)
    })
}

/// Returns a command of the module.
fn find<'a>(ctx: &'a Context, name: &CStr) -> Option<Lent<'a, raw::RedisModuleCommand>> {
    let command = calls::get_command(ctx, name);
    // SAFETY: the server keeps the module's commands as long as the module is loaded, which is
    // longer than the context.
    (!command.is_null()).then(|| unsafe { Lent::new(command) })
}

/// Returns the server's ACL categories for a command's flags.
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

/// Passes the description to the server, which copies it.
fn describe(ctx: &Context, name: &CStr, spec: &Spec) -> bool {
    let Some(command) = find(ctx, name) else {
        return false;
    };
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut history = history(spec);
    let mut key_specs = key_specs(spec);
    let mut arguments = Arguments::default();
    let args = arguments.of(&spec.syntax);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.about.summary.as_ptr(),
        complexity: spec.about.complexity.as_ptr(),
        since: history.first().map_or(ptr::null(), |added| added.since),
        history: history.as_mut_ptr(),
        tips: ptr::null(),
        arity: spec.syntax.arity(),
        key_specs: key_specs.as_mut_ptr(),
        args,
    };
    // SAFETY: the command is valid by its type. The server copies the description: its lists exist
    // until this returns, and each ends with an entry of zeros.
    unsafe { function!(RedisModule_SetCommandInfo)(command.raw(), &raw const info) == 0 }
}

/// Returns the history of a command, ended by an entry of zeros.
fn history(spec: &Spec) -> Vec<raw::RedisModuleCommandHistoryEntry> {
    let changes = spec.about.history.iter();
    let entries = changes.map(|change| raw::RedisModuleCommandHistoryEntry {
        since: change.version.as_ptr(),
        changes: change.change.as_ptr(),
    });
    let end = raw::RedisModuleCommandHistoryEntry {
        since: ptr::null(),
        changes: ptr::null(),
    };
    entries.chain([end]).collect()
}

/// Returns the key specs of a command, ended by one of zeros.
fn key_specs(spec: &Spec) -> Vec<raw::RedisModuleCommandKeySpec> {
    // SAFETY: a key spec has only numbers, pointers that may be null and unions of both, for which
    // all zeros is a valid value. It ends a list in the API.
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
