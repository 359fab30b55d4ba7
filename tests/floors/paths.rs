//! All paths that the code of a module names, other than for tests, with their lines.

use proc_macro2::{Ident, TokenStream};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Arm, Field, FieldValue, ForeignItem, ImplItem, Item, Stmt, TraitItem, Variant};
use syn::{ItemMod, ItemUse, Macro, Path, UseTree, VisRestricted};

use crate::{test_code, tokens};

/// A path that is named, and where.
pub struct Mention {
    pub path: Vec<String>,
    pub line: usize,
    pub sort: Sort,
}

/// What the whole of a path can stand for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// In `use`, or in what a macro is given: whatever has that name.
    Anything,
    /// In code: a type, a function or a value, but no module.
    Item,
    /// A macro that is called.
    Macro,
}

/// What a `use` makes known in its module.
pub struct Import {
    pub path: Vec<String>,
    pub brings: Brings,
}

/// Which names a `use` makes known.
pub enum Brings {
    Name(String),
    All,
}

/// What is named in the code of a module.
#[derive(Default)]
pub struct Named {
    pub mentions: Vec<Mention>,
    pub imports: Vec<Import>,
}

/// What is named in these items, but not in the modules among them.
pub fn named_in(items: &[Item]) -> Named {
    let mut named = Named::default();
    items.iter().for_each(|item| named.visit_item(item));
    named
}

impl Named {
    fn mention(&mut self, path: Vec<String>, line: usize, sort: Sort) {
        self.mentions.push(Mention { path, line, sort });
    }

    fn mention_path(&mut self, path: &Path, sort: Sort) {
        let names = path.segments.iter();
        let names: Vec<String> = names.map(|segment| text(&segment.ident)).collect();
        let line = path.segments.last().map_or(0, |last| line(&last.ident));
        if path.leading_colon.is_none() {
            self.mention(names, line, sort);
        }
    }

    fn import(&mut self, beginning: &[String], tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.import(&joined(beginning, &path.ident), &path.tree),
            UseTree::Group(group) => {
                let trees = group.items.iter();
                trees.for_each(|tree| self.import(beginning, tree));
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.bring(beginning.to_vec(), line, Brings::All);
            }
            UseTree::Name(name) => {
                let path = joined(beginning, &name.ident);
                let known_as = path.last().cloned().unwrap_or_default();
                self.bring(path, line(&name.ident), Brings::Name(known_as));
            }
            UseTree::Rename(name) => {
                let path = joined(beginning, &name.ident);
                self.bring(path, line(&name.ident), Brings::Name(text(&name.rename)));
            }
        }
    }

    fn bring(&mut self, path: Vec<String>, line: usize, brings: Brings) {
        self.mention(path.clone(), line, Sort::Anything);
        self.imports.push(Import { path, brings });
    }
}

/// Visits what isn't for tests.
macro_rules! unless_for_tests {
    ($($visit:ident: $Code:ty),* $(,)?) => {
        $(fn $visit(&mut self, code: &'ast $Code) {
            if !test_code::is(code) {
                visit::$visit(self, code);
            }
        })*
    };
}

impl<'ast> Visit<'ast> for Named {
    unless_for_tests! {
        visit_item: Item,
        visit_impl_item: ImplItem,
        visit_trait_item: TraitItem,
        visit_foreign_item: ForeignItem,
        visit_stmt: Stmt,
        visit_arm: Arm,
        visit_field: Field,
        visit_field_value: FieldValue,
        visit_variant: Variant,
    }

    fn visit_path(&mut self, path: &'ast Path) {
        self.mention_path(path, Sort::Item);
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&[], &item.tree);
        }
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.mention_path(&called.path, Sort::Macro);
        self.visit_token_stream(&called.tokens);
    }

    fn visit_token_stream(&mut self, given: &'ast TokenStream) {
        for found in tokens::sightings(given.clone()) {
            self.mention(found.path, found.line, Sort::Anything);
        }
    }

    /// A module is looked at by itself.
    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    /// Who may use something isn't what it uses.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}

fn joined(beginning: &[String], name: &Ident) -> Vec<String> {
    let mut path = beginning.to_vec();
    tokens::push(&mut path, name);
    path
}

fn text(name: &Ident) -> String {
    name.unraw().to_string()
}

fn line(name: &Ident) -> usize {
    name.span().start().line
}
