//! The files of each crate can be read in an order: none of them uses itself by way of others, and
//! each stands on a floor, from which it uses its own floor and lower ones alone.
//!
//! A file uses another when it names a module that lies there, or something that is written there:
//! in `use`, in the midst of the code, or among what a macro is given. `mod x;` alone uses nothing.
//! What is re-exported is used where it is written. Code for tests doesn't count. What a file does
//! to a value without naming its type isn't seen.
//!
//! How it goes, file by file, the lowest first:
//!
//! 1. `test_code` tells what is compiled for tests only;
//! 2. `tokens` finds the paths in what a macro is given;
//! 3. `paths` finds all paths that the code of a module names;
//! 4. `modules` reads a crate as a tree of modules;
//! 5. `names` tells in which file the thing is written that a path names;
//! 6. `uses` puts both together: which file uses which, and in which lines;
//! 7. `circles` and `floors` judge that.
//!
//! `made_up` tries all of it on trees that are made up.

mod circles;
mod floors;
mod made_up;
mod modules;
mod names;
mod paths;
mod test_code;
mod tokens;
mod uses;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use floors::Floors;
use uses::Uses;

/// The module. A line is a floor, the lowest first. A word is a file, or a folder with all below it;
/// the longest word that fits a file has it. What `|` parts stands side by side on one floor: neither
/// side uses the other.
const MODULE: Crate = Crate {
    root: "src/lib.rs",
    floors: "
        src/state/
        src/server/
        src/engine/
        src/callbacks/ | src/commands/
        src/lib.rs
    ",
};

/// The rules of locks; read as the floors of the module are.
const CORE: Crate = Crate {
    root: "core/src/lib.rs",
    floors: "
        core/src/branch.rs
        core/src/values/
        core/src/operation.rs core/src/effect.rs core/src/state/
        core/src/decision.rs core/src/store.rs | core/src/grammar/
        core/src/transaction.rs
        core/src/table/
        core/src/lib.rs
    ",
};

/// The files of this check itself; read as the floors of the module are.
const CHECK: Crate = Crate {
    root: "tests/floors/main.rs",
    floors: "
        tests/floors/test_code.rs | tests/floors/tokens.rs
        tests/floors/paths.rs
        tests/floors/modules.rs
        tests/floors/names.rs
        tests/floors/uses.rs
        tests/floors/circles.rs | tests/floors/floors.rs
        tests/floors/made_up.rs
        tests/floors/main.rs
    ",
};

/// A crate and its floors.
struct Crate {
    /// The file that its modules begin with, from the top of the repository.
    root: &'static str,
    floors: &'static str,
}

/// What lies in a folder and below: the text of each file by its name from the top of the repository.
fn sources(folder: &str, found: &mut BTreeMap<String, String>) {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(&place).unwrap_or_else(|error| panic!("{folder}: {error}"));
    for entry in entries {
        let entry = entry.unwrap_or_else(|error| panic!("{folder}: {error}"));
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            sources(&name, found);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(entry.path());
            found.insert(name, text.unwrap_or_else(|error| panic!("{error}")));
        }
    }
}

fn uses_of(judged: &Crate) -> Uses {
    let folder = judged
        .root
        .rsplit_once('/')
        .map_or(".", |(folder, _)| folder);
    let mut files = BTreeMap::new();
    sources(folder, &mut files);
    uses::of(judged.root, &files).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn the_module_has_no_circles() {
    assert_none(&circles::complaints(&uses_of(&MODULE)));
}

#[test]
fn the_module_keeps_to_its_floors() {
    assert_none(&Floors::read(MODULE.floors).complaints(&uses_of(&MODULE)));
}

#[test]
fn the_core_has_no_circles() {
    assert_none(&circles::complaints(&uses_of(&CORE)));
}

#[test]
fn the_core_keeps_to_its_floors() {
    assert_none(&Floors::read(CORE.floors).complaints(&uses_of(&CORE)));
}

#[test]
fn this_check_has_no_circles() {
    assert_none(&circles::complaints(&uses_of(&CHECK)));
}

#[test]
fn this_check_keeps_to_its_floors() {
    assert_none(&Floors::read(CHECK.floors).complaints(&uses_of(&CHECK)));
}
