//! The order of the source files: no file uses itself through others, and each floor of DESIGN's map
//! uses only itself and the floors below.
//!
//! A file uses another when it names a path into that file's module, in a `use` or in its code. Two
//! kinds of use stay unseen: calls of methods on a value whose type the file doesn't name, and names
//! that a macro puts together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use support::files::files_below;

/// The code of each file, by its path from the top of the repository.
type Files = BTreeMap<String, String>;

/// The files that each file uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The folders on DESIGN's map.
const ON_THE_MAP: [&str; 2] = ["src", "core/src"];

/// Test modules, which end a file, don't count.
#[test]
fn no_file_uses_itself_through_others() {
    let others = ["bench/src", "cli/src", "scripts/pages/src"];
    for crate_folder in ON_THE_MAP.into_iter().chain(others) {
        let uses = uses_of(&sources(crate_folder, without_tests), crate_folder);
        assert_eq!(in_cycles(&uses), Vec::<String>::new(), "{crate_folder}");
    }
}

/// Returns the floors of DESIGN's map, top floor first: files, or folders with a final slash.
fn floors() -> Vec<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let design = fs::read_to_string(top.join("DESIGN.md")).expect("a text file");
    let map = design.split("```").find_map(|it| it.strip_prefix("text\n"));
    let map = map.expect("a map");
    let too_wide = map.lines().find(|line| line.chars().count() > 100);
    assert_eq!(too_wide, None, "more than 100 columns");
    let names = map.lines().filter_map(|line| line.split(' ').next());
    let floors = names.filter(|name| name.starts_with("src/") || name.starts_with("core/src/"));
    floors.map(str::to_owned).collect()
}

/// Checks that each floor uses only itself and lower floors, also in its test modules.
#[test]
fn each_floor_of_the_map_uses_only_those_below() {
    let floors = floors();
    let floor_of = |file: &String| floors.iter().position(|floor| file.starts_with(floor));
    for crate_folder in ON_THE_MAP {
        let uses = uses_of(&sources(crate_folder, without_comments), crate_folder);
        let count: usize = uses.values().map(BTreeSet::len).sum();
        assert!(count > 50, "only {count} uses were found in {crate_folder}");
        for (file, used) in uses {
            let own = floor_of(&file);
            let head = file.ends_with("src/lib.rs");
            assert!(head || own.is_some(), "{file} is on no floor");
            let above = |it: &&String| floor_of(it).is_some_and(|floor| Some(floor) < own);
            let above: Vec<&String> = used.iter().filter(above).collect();
            assert!(above.is_empty(), "{file} uses {above:?}, which is above it");
        }
    }
}

#[test]
fn each_form_of_a_use_is_seen() {
    let user = "use crate::low::{self, deep::{Thing, other as o}, nothing};\nuse super::beside;\n\
                fn f() { crate::high::g(); low::side::h(); } // crate::comment::c\n\
                #[cfg(test)]\nmod tests { use crate::tested::t; }";
    let names = [
        "lib", "low/mod", "low/deep", "low/side", "beside", "high", "tested", "comment",
    ];
    let mut files: Files = names
        .map(|name| (format!("s/{name}.rs"), String::new()))
        .into();
    files.insert("s/user.rs".to_owned(), without_tests(user));
    let uses = uses_of(&files, "s");
    let used: Vec<&str> = uses["s/user.rs"].iter().map(String::as_str).collect();
    let expected = ["beside", "high", "low/deep", "low/mod", "low/side"];
    assert_eq!(used, expected.map(|name| format!("s/{name}.rs")));
}

#[test]
fn a_cycle_is_found() {
    let uses_of = |pairs: &[(&str, &str)]| -> Uses {
        let names = ["a", "b", "c"].map(|it| (it.to_owned(), BTreeSet::new()));
        let mut uses: Uses = names.into();
        for (user, used) in pairs {
            let all = uses.get_mut(*user).expect("a file");
            all.insert((*used).to_owned());
        }
        uses
    };
    assert!(in_cycles(&uses_of(&[("a", "b"), ("a", "c"), ("b", "c")])).is_empty());
    let uses = uses_of(&[("a", "b"), ("b", "a"), ("a", "c")]);
    assert_eq!(in_cycles(&uses), ["a", "b"]);
}

/// Reads the code of every Rust file below a folder.
fn sources(folder: &str, code: fn(&str) -> String) -> Files {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = files_below(folder).into_iter();
    let names = names.filter(|name| name.ends_with(".rs"));
    names
        .map(|name| {
            let text = fs::read_to_string(top.join(&name)).expect("a text file");
            (name, code(&text))
        })
        .collect()
}

/// Cuts off the test module, which ends a file, and removes all comments and `pub(in ...)`.
fn without_tests(text: &str) -> String {
    without_comments(text.split("#[cfg(test)]\nmod ").next().unwrap_or_default())
}

/// Removes all comments and `pub(in ...)`.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.split("//").next().unwrap_or_default();
        match line.split_once("pub(in ") {
            Some((_, path_and_item)) => path_and_item.split_once(')').unwrap_or_default().1,
            None => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn uses_of(files: &Files, root: &str) -> Uses {
    let used_by = |(file, text): (&String, &String)| {
        let paths = paths_in(text).into_iter();
        let mut used: BTreeSet<String> = paths
            .filter_map(|path| file_of(&path, file, root, files))
            .collect();
        used.remove(file);
        (file.clone(), used)
    };
    files.iter().map(used_by).collect()
}

/// Lists the paths that a file names. A path in its code that begins with an imported module is
/// listed with that module's full path.
fn paths_in(text: &str) -> Vec<Vec<String>> {
    let (mut paths, mut code) = (Vec::new(), String::new());
    let mut statements = text.split_inclusive('\n');
    while let Some(line) = statements.next() {
        let visible = line.trim_start().trim_start_matches("pub(super) ");
        let import = visible.trim_start_matches("pub ").strip_prefix("use ");
        let Some(import) = import else {
            code.push_str(line);
            continue;
        };
        let mut import = import.to_owned();
        while !import.contains(';') {
            import.push_str(statements.next().unwrap_or(";"));
        }
        flatten(import.trim_end().trim_end_matches(';'), &[], &mut paths);
    }
    let imported = paths.clone();
    let is_of_a_path = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
    for word in code.split(is_of_a_path).filter(|word| word.contains("::")) {
        let path: Vec<String> = word.split("::").map(str::to_owned).collect();
        let import = imported.iter().find(|it| it.last() == path.first());
        paths.push(import.map_or(path.clone(), |it| [it, &path[1..]].concat()));
    }
    paths
}

/// Takes `a::{b, c::{d, e as f}}` apart: a::b, a::c::d and a::c::e. `a::self` is a.
fn flatten(tree: &str, before: &[String], paths: &mut Vec<Vec<String>>) {
    let (mut depth, mut begin) = (0, 0);
    let ends = tree.char_indices().chain([(tree.len(), ',')]);
    for (at, c) in ends {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let branch = tree[begin..at].trim();
                begin = (at + 1).min(tree.len());
                let (path, inner) = branch.split_once('{').unwrap_or((branch, ""));
                let path = path.split(" as ").next().unwrap_or_default();
                let segments = path.split("::").map(|it| it.trim().to_owned());
                let segments = segments.filter(|it| !it.is_empty() && it != "self");
                let all: Vec<String> = before.iter().cloned().chain(segments).collect();
                match inner.trim_end().strip_suffix('}') {
                    Some(inner) => flatten(inner, &all, paths),
                    None if !all.is_empty() => paths.push(all),
                    None => {}
                }
            }
            _ => {}
        }
    }
}

/// Returns the file that a path leads into, or `None` if it is outside the crate.
fn file_of(path: &[String], user: &str, root: &str, files: &Files) -> Option<String> {
    let own = user.strip_suffix(".rs")?;
    let own = own.strip_suffix("/mod").unwrap_or(own);
    let own = own.strip_suffix("/lib").unwrap_or(own);
    let file = |module: &str| {
        let names = ["", "/mod", "/lib"].map(|end| format!("{module}{end}.rs"));
        names.into_iter().find(|name| files.contains_key(name))
    };
    let (mut module, mut found) = (own.to_owned(), None);
    for segment in path {
        module = match segment.as_str() {
            "crate" => root.to_owned(),
            "super" => module.rsplit_once('/')?.0.to_owned(),
            child => format!("{module}/{child}"),
        };
        found = file(&module).or(found);
    }
    found
}

/// Removes files that use no remaining file, until no such file remains, and returns the others.
/// Each of them is in a cycle or uses a file that is.
fn in_cycles(uses: &Uses) -> Vec<String> {
    let mut left = uses.clone();
    loop {
        let files: BTreeSet<String> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, used| used.iter().any(|it| files.contains(it)));
        if left.len() == before {
            return left.into_keys().collect();
        }
    }
}
