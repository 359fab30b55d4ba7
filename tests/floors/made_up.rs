//! The check itself, on trees that are made up.

use std::collections::BTreeMap;

use crate::circles;
use crate::floors::Floors;
use crate::uses::{self, Uses};

type Tree<'a> = &'a [(&'a str, &'a str)];

fn read(tree: Tree<'_>) -> Result<Uses, String> {
    let files = tree.iter();
    let files: BTreeMap<String, String> = files
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    uses::of("src/lib.rs", &files)
}

#[track_caller]
fn uses_of(tree: Tree<'_>) -> Uses {
    read(tree).unwrap_or_else(|error| panic!("{error}"))
}

/// All uses, each as `file used line`, without `src/` and `.rs`.
#[track_caller]
fn told(tree: Tree<'_>) -> Vec<String> {
    let uses = uses_of(tree);
    let short = |file: &str| file.replace("src/", "").replace(".rs", "");
    let mut told = Vec::new();
    for ((file, used), lines) in &uses.lines {
        let each = lines.iter();
        told.extend(each.map(|line| format!("{} {} {line}", short(file), short(used))));
    }
    told
}

/// What `a.rs` uses, where `b.rs` and `c/` with its child `c/d.rs` are there to be used.
#[track_caller]
fn used_by_a(code: &str) -> Vec<String> {
    let told = told(&[
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", code),
        (
            "src/b.rs",
            "pub struct B; pub fn f() {} pub const MAX: u8 = 1;",
        ),
        (
            "src/c/mod.rs",
            "pub mod d; pub struct C; pub use d::D; pub use std::fmt::Debug;",
        ),
        (
            "src/c/d.rs",
            "pub struct D; pub mod inner { pub fn g() {} }",
        ),
    ]);
    let of_a = told.iter().filter_map(|told| told.strip_prefix("a "));
    of_a.map(str::to_owned).collect()
}

#[track_caller]
fn circles_in(tree: Tree<'_>) -> Vec<String> {
    circles::complaints(&uses_of(tree))
}

// --- what counts as a use -------------------------------------------------------------------

#[test]
fn a_use_of_a_module_or_of_something_in_it() {
    assert_eq!(used_by_a("use crate::b;"), ["b 1"]);
    assert_eq!(used_by_a("use crate::b::B;"), ["b 1"]);
    assert_eq!(used_by_a("use super::b::B as Other;"), ["b 1"]);
    assert_eq!(used_by_a("use crate::b::{self, B};"), ["b 1"]);
    assert_eq!(used_by_a("use crate::b::*;"), ["b 1"]);
    assert_eq!(used_by_a("pub use crate::b::B;"), ["b 1"]);
    assert_eq!(
        used_by_a("use crate::{\n  b,\n  c::{C, d},\n};"),
        ["b 2", "c/d 3", "c/mod 3"]
    );
}

#[test]
fn a_path_in_the_midst_of_the_code() {
    assert_eq!(used_by_a("fn f() {\n  crate::b::f()\n}"), ["b 2"]);
    assert_eq!(used_by_a("fn f() -> super::b::B { loop {} }"), ["b 1"]);
    assert_eq!(used_by_a("struct A(Vec<crate::b::B>);"), ["b 1"]);
    assert_eq!(used_by_a("impl From<A> for crate::b::B {}"), ["b 1"]);
    assert_eq!(
        used_by_a("fn f(x: u8) { match x { crate::b::MAX => {} _ => {} } }"),
        ["b 1"]
    );
    assert_eq!(
        used_by_a("fn f() { <crate::b::B as Default>::default(); }"),
        ["b 1"]
    );
    assert_eq!(
        used_by_a("fn f() {\n  use crate::c;\n  c::d::inner::g()\n}"),
        ["c/d 3", "c/mod 2"]
    );
}

#[test]
fn a_path_among_what_a_macro_is_given() {
    assert_eq!(
        used_by_a("fn f() { println!(\"{:?}\", [crate::b::MAX]); }"),
        ["b 1"]
    );
    assert_eq!(
        used_by_a("thread_local! {\n  static A: super::b::B = x;\n}"),
        ["b 2"]
    );
    assert_eq!(
        used_by_a("macro_rules! m { ($x:expr) => { $crate::b::f($x::y) } }"),
        ["b 1"]
    );
    assert_eq!(
        used_by_a("m! { use crate::{b::{self as x}, c::{C, d::*}}; }"),
        ["b 1", "c/d 1", "c/mod 1"]
    );
    assert_eq!(used_by_a("#[derive(crate::b::B)] struct A;"), ["b 1"]);
}

#[test]
fn a_macro_that_is_called_is_used_where_it_is_written() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "#[macro_use] mod a; mod b; mod c; mod d;"),
        (
            "src/a.rs",
            "#[macro_export] macro_rules! ask { () => {} } pub(crate) use ask;",
        ),
        ("src/b.rs", "fn f() { ask!() }"),
        ("src/c.rs", "use crate::a::ask; fn f() { ask!() }"),
        ("src/d.rs", "fn f() { crate::ask!(); vec![1]; }"),
    ];
    assert_eq!(told(tree), ["b a 1", "c a 1", "d a 1"]);
}

#[test]
fn a_macro_and_a_module_of_one_name() {
    let user = "use crate::ask;\nuse crate::ask::api::ask;\n\
                fn f() {\nask!();\nask::f();\nask::api::f()\n}";
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod ask; mod b;"),
        ("src/ask/mod.rs", "pub mod api; pub fn f() {}"),
        (
            "src/ask/api.rs",
            "macro_rules! ask { () => {} } pub(crate) use ask; pub fn f() {}",
        ),
        ("src/b.rs", user),
    ];
    let expected = [
        "b ask/api 2",
        "b ask/api 4",
        "b ask/api 6",
        "b ask/mod 1",
        "b ask/mod 5",
    ];
    assert_eq!(told(tree), expected);
}

#[test]
fn what_is_re_exported_is_used_where_it_is_written() {
    assert_eq!(used_by_a("use crate::c::D;"), ["c/d 1"]);
    assert_eq!(used_by_a("fn f() { crate::c::D::new() }"), ["c/d 1"]);
    assert_eq!(
        used_by_a("use crate::c::*; struct A(D);"),
        ["c/d 1", "c/mod 1"]
    );
    // From outside of the crate, or made by a macro: by way of the file that has it.
    assert_eq!(used_by_a("use crate::c::Debug;"), ["c/mod 1"]);
    assert_eq!(used_by_a("use crate::c::Made;"), ["c/mod 1"]);
}

#[test]
fn what_goes_round_in_use_alone_ends() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod a; mod b; pub use a::X;"),
        (
            "src/a.rs",
            "pub use crate::b::*; pub use crate::b::X; pub use super::X as Y;",
        ),
        (
            "src/b.rs",
            "pub use crate::a::*; pub use crate::a::X; fn f() { X() }",
        ),
    ];
    assert!(told(tree).contains(&"a b 1".to_owned()));
}

#[test]
fn a_parent_that_uses_its_child_stands_above_it() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod a;"),
        ("src/a/mod.rs", "mod x;\nfn f() { x::f() }"),
        ("src/a/x.rs", "pub fn f() {}"),
    ];
    assert_eq!(told(tree), ["a/mod a/x 2"]);
}

#[test]
fn no_use() {
    assert_eq!(
        used_by_a("mod inner { use super::f; } pub(crate) fn f() {}"),
        [""; 0]
    );
    assert_eq!(
        used_by_a("pub(in crate::b) fn f() {} pub(super) fn g() {}"),
        [""; 0]
    );
    assert_eq!(
        used_by_a("use std::b::B; fn f(b: u8) { ::b::f(); b::f(); b }"),
        [""; 0]
    );
    assert_eq!(
        used_by_a("fn f() { m!(::b::f(), b::f(), \"crate::b\", $b::f) }"),
        [""; 0]
    );
    assert_eq!(
        used_by_a("//! [`crate::b`]\n/// [`crate::b::B`]\nfn f() {}"),
        [""; 0]
    );
}

#[test]
fn a_local_name_is_not_the_module_of_that_name() {
    let code = "#[cfg(x)] use crate::b;\nfn f() {\n  let b = 1;\n  b + b\n}";
    assert_eq!(used_by_a(code), ["b 1"]);
}

#[test]
fn code_for_tests_does_not_count() {
    for code in [
        "#[cfg(test)] use crate::b;",
        "#[cfg(test)] mod tests { use crate::b; }",
        "#[cfg(all(test, unix))] fn f() { crate::b::f() }",
        "#[test] fn f() { crate::b::f() }",
        "struct A; impl A { #[cfg(test)] fn f() { crate::b::f() } }",
        "fn f() { #[cfg(test)] crate::b::f(); }",
        "fn f() { #[cfg(test)] println!(\"{}\", crate::b::MAX); }",
        "struct A { #[cfg(test)] b: crate::b::B }",
        "#![cfg(test)] use crate::b;",
    ] {
        assert_eq!(used_by_a(code), [""; 0], "{code}");
    }
    for code in [
        "#[cfg(not(test))] use crate::b;",
        "#[cfg(any(test, unix))] use crate::b;",
        "#[cfg(unix)] use crate::b;",
    ] {
        assert_eq!(used_by_a(code), ["b 1"], "{code}");
    }
}

#[test]
fn a_file_for_tests_does_not_count() {
    let uses = uses_of(&[
        ("src/lib.rs", "mod a;"),
        ("src/a.rs", "#[cfg(test)] mod tests;"),
        ("src/a/tests.rs", "mod deeper; use super::*;"),
        ("src/a/tests/deeper.rs", "use crate::a;"),
    ]);
    assert!(uses.lines.is_empty());
    assert_eq!(uses.files.len(), 2);
}

#[test]
fn what_cannot_be_read_is_refused() {
    let refused = |tree| read(tree).err().unwrap_or_default();
    let missing = refused(&[("src/lib.rs", "\nmod a;")]);
    assert_eq!(
        missing,
        "src/lib.rs:2 mod a: neither src/a.rs nor src/a/mod.rs"
    );
    let left_out = refused(&[("src/lib.rs", ""), ("src/a.rs", "")]);
    assert_eq!(left_out, "src/a.rs belongs to no module");
    let broken = refused(&[("src/lib.rs", "\nfn {")]);
    assert!(broken.starts_with("src/lib.rs:2 can't be read"), "{broken}");
    assert_eq!(refused(&[]), "src/lib.rs is missing");
}

// --- circles --------------------------------------------------------------------------------

#[test]
fn a_tree_without_a_circle() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod a; mod b; fn f() { a::f(); b::f() }"),
        ("src/a.rs", "use crate::b; pub fn f() {}"),
        ("src/b.rs", "pub fn f() {}"),
    ];
    assert_eq!(circles_in(tree), [""; 0]);
}

#[test]
fn a_circle_of_two() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "use crate::b;\nfn f() {\n  b::f()\n}"),
        ("src/b.rs", "fn f() {\n  crate::a::f()\n}"),
    ];
    assert_eq!(
        circles_in(tree),
        [
            "2 files use each other in circles: src/a.rs, src/b.rs; the shortest circle:\n    \
          src/a.rs:1,3 uses src/b.rs\n    \
          src/b.rs:2 uses src/a.rs"
        ]
    );
}

#[test]
fn the_shortest_circle_is_told() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
        ("src/a.rs", "use super::b;"),
        ("src/b.rs", "use super::c;"),
        ("src/c.rs", "use super::d;"),
        ("src/d.rs", "use super::{a, b};"),
    ];
    assert_eq!(
        circles_in(tree),
        [
            "4 files use each other in circles: src/a.rs, src/b.rs, src/c.rs, src/d.rs; \
          the shortest circle:\n    \
          src/b.rs:1 uses src/c.rs\n    \
          src/c.rs:1 uses src/d.rs\n    \
          src/d.rs:1 uses src/b.rs"
        ]
    );
}

#[test]
fn each_set_of_files_has_its_circle() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
        ("src/a.rs", "use super::b;"),
        ("src/b.rs", "use super::{a, c};"),
        ("src/c.rs", "use super::d;"),
        ("src/d.rs", "use super::c;"),
    ];
    assert_eq!(circles_in(tree).len(), 2);
}

#[test]
fn a_circle_through_a_parent() {
    let of_parent = |parent, child| {
        let tree: Tree<'_> = &[
            ("src/lib.rs", "mod a;"),
            ("src/a/mod.rs", parent),
            ("src/a/x.rs", child),
            ("src/a/y.rs", "pub struct Y;"),
        ];
        circles_in(tree).len()
    };
    assert_eq!(
        of_parent(
            "mod x; mod y; pub struct A; fn f() { x::f() }",
            "use super::A;"
        ),
        1
    );
    assert_eq!(
        of_parent(
            "mod x; mod y; pub struct A; pub use x::X;",
            "fn f() -> super::A {}"
        ),
        1
    );
    assert_eq!(of_parent("mod x; mod y; pub struct A;", "use super::A;"), 0);
    // What the parent only hands on is its sibling's.
    assert_eq!(
        of_parent("mod x; mod y; pub use x::X; pub use y::Y;", "use super::Y;"),
        0
    );
}

#[test]
fn a_circle_through_what_a_macro_is_given() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "fn f() { println!(\"{}\", crate::b::MAX) }"),
        ("src/b.rs", "use crate::a;"),
    ];
    assert_eq!(circles_in(tree).len(), 1);
}

#[test]
fn no_circle_through_code_for_tests() {
    let tree: Tree<'_> = &[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "#[cfg(test)] mod tests { use crate::b; }"),
        ("src/b.rs", "use crate::a;"),
    ];
    assert_eq!(circles_in(tree), [""; 0]);
}

// --- floors ---------------------------------------------------------------------------------

const HOUSE: Tree<'_> = &[
    (
        "src/lib.rs",
        "mod low; mod left; mod right; fn f() { left::f() }",
    ),
    ("src/low/mod.rs", "mod a; mod b;"),
    ("src/low/a.rs", "use super::b;"),
    ("src/low/b.rs", "use crate::left;"),
    ("src/left.rs", "use crate::low;"),
    ("src/right.rs", "use crate::{low, left};"),
];

#[track_caller]
fn complaints(table: &str) -> Vec<String> {
    Floors::read(table).complaints(&uses_of(HOUSE))
}

#[test]
fn a_use_of_a_higher_floor() {
    assert_eq!(
        complaints("src/low/ \n src/left.rs src/right.rs \n src/lib.rs"),
        ["src/low/b.rs:1 uses src/left.rs, which stands on a higher floor"]
    );
}

#[test]
fn a_use_of_what_stands_beside() {
    assert_eq!(
        complaints("src/low/ src/left.rs | src/right.rs \n src/lib.rs"),
        [
            "src/right.rs:1 uses src/left.rs, which stands beside it",
            "src/right.rs:1 uses src/low/mod.rs, which stands beside it",
        ]
    );
}

#[test]
fn the_longest_word_that_fits_has_the_file() {
    assert_eq!(
        complaints(
            "src/low/a.rs src/low/mod.rs \n src/left.rs \n src/low/ \n src/right.rs src/lib.rs"
        ),
        ["src/low/a.rs:1 uses src/low/b.rs, which stands on a higher floor"]
    );
}

#[test]
fn a_file_without_a_floor() {
    assert_eq!(
        complaints("src/low/ src/left.rs \n src/right.rs"),
        ["src/lib.rs stands on no floor"]
    );
    // A word is a whole file or a whole folder.
    assert!(complaints("src/lo \n src/left").len() > 5);
}

#[test]
fn a_word_that_no_file_needs() {
    assert_eq!(
        complaints("src/gone/ \n src/low/ src/left.rs src/left.rs \n src/right.rs src/lib.rs"),
        [
            "no file stands at src/gone/ of the table",
            "no file stands at src/left.rs of the table",
        ]
    );
}
