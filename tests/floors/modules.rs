//! A crate as a tree of modules: which file each lies in, what is written there and what it names.

use std::collections::{BTreeMap, BTreeSet};

use syn::ext::IdentExt;
use syn::{ForeignItem, Ident, Item, ItemMacro, ItemMod};

use crate::paths::{self, Named};
use crate::test_code;

/// Where a module lies in its crate.
pub type Id = usize;

/// The first module of each crate.
pub const ROOT: Id = 0;

/// A module.
pub struct Module {
    pub file: String,
    pub parent: Option<Id>,
    pub children: BTreeMap<String, Id>,
    /// What is written in it, other than modules.
    pub items: BTreeSet<String>,
    /// The macros among that.
    macros: BTreeSet<String>,
    pub named: Named,
    /// It is compiled for tests only.
    pub for_tests: bool,
}

impl Module {
    /// Whether a macro of this name is written in it.
    pub fn has_macro(&self, name: &str) -> bool {
        !self.for_tests && self.macros.contains(name)
    }
}

/// The modules of a crate whose first file is `root`. It is refused where a file is missing, can't be
/// read as Rust, or belongs to no module: nobody would look at that one.
pub fn read(root: &str, files: &BTreeMap<String, String>) -> Result<Vec<Module>, String> {
    let mut reader = Reader {
        files,
        modules: Vec::new(),
    };
    let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
    reader.read_file(root, &Place::root(folder))?;
    reader.refuse_left_out()?;
    Ok(reader.modules)
}

/// Where a module hangs in the tree.
struct Place {
    parent: Option<Id>,
    /// Where the files of its children lie.
    folder: String,
    for_tests: bool,
}

impl Place {
    fn root(folder: &str) -> Self {
        Self {
            parent: None,
            folder: folder.to_owned(),
            for_tests: false,
        }
    }
}

struct Reader<'a> {
    files: &'a BTreeMap<String, String>,
    modules: Vec<Module>,
}

impl Reader<'_> {
    fn read_file(&mut self, file: &str, place: &Place) -> Result<Id, String> {
        let text = self.files.get(file).ok_or(format!("{file} is missing"))?;
        let code = syn::parse_file(text).map_err(|error| {
            let line = error.span().start().line;
            format!("{file}:{line} can't be read: {error}")
        })?;
        let place = Place {
            for_tests: place.for_tests || test_code::bears(&code.attrs),
            folder: place.folder.clone(),
            ..*place
        };
        self.read_items(file, &code.items, &place)
    }

    fn read_items(&mut self, file: &str, items: &[Item], place: &Place) -> Result<Id, String> {
        let id = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            parent: place.parent,
            children: BTreeMap::new(),
            items: items.iter().flat_map(names_of).collect(),
            macros: items.iter().filter_map(macro_of).collect(),
            named: paths::named_in(items),
            for_tests: place.for_tests,
        });
        for item in items {
            if let Item::Mod(child) = item {
                let child_id = self.read_child(file, child, id, place)?;
                let name = child.ident.unraw().to_string();
                self.modules[id].children.insert(name, child_id);
            }
        }
        Ok(id)
    }

    fn read_child(
        &mut self,
        file: &str,
        child: &ItemMod,
        parent: Id,
        around: &Place,
    ) -> Result<Id, String> {
        let name = child.ident.unraw();
        let place = Place {
            parent: Some(parent),
            folder: format!("{}/{name}", around.folder),
            for_tests: around.for_tests || test_code::bears(&child.attrs),
        };
        if let Some((_, items)) = &child.content {
            return self.read_items(file, items, &place);
        }
        let candidates = [
            format!("{}.rs", place.folder),
            format!("{}/mod.rs", place.folder),
        ];
        let there = candidates
            .iter()
            .find(|file| self.files.contains_key(*file));
        let line = name.span().start().line;
        let missing = || {
            format!(
                "{file}:{line} mod {name}: neither {}",
                candidates.join(" nor ")
            )
        };
        self.read_file(there.ok_or_else(missing)?, &place)
    }

    fn refuse_left_out(&self) -> Result<(), String> {
        let read: BTreeSet<&str> = self.modules.iter().map(|module| &*module.file).collect();
        let left_out = self.files.keys().find(|file| !read.contains(file.as_str()));
        left_out.map_or(Ok(()), |file| Err(format!("{file} belongs to no module")))
    }
}

/// What this item is known by in its module, unless that is a matter of `mod` or `use`.
fn names_of(item: &Item) -> Vec<String> {
    if test_code::is(item) {
        return Vec::new();
    }
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::ForeignMod(block) => return block.items.iter().filter_map(foreign_name).collect(),
        Item::Macro(ItemMacro { ident, .. }) => return ident.iter().map(text).collect(),
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return Vec::new(),
    };
    vec![text(name)]
}

fn foreign_name(item: &ForeignItem) -> Option<String> {
    match item {
        ForeignItem::Fn(item) => Some(text(&item.sig.ident)),
        ForeignItem::Static(item) => Some(text(&item.ident)),
        ForeignItem::Type(item) => Some(text(&item.ident)),
        _ => None,
    }
}

fn macro_of(item: &Item) -> Option<String> {
    match item {
        Item::Macro(ItemMacro { ident, .. }) if !test_code::is(item) => ident.as_ref().map(text),
        _ => None,
    }
}

fn text(name: &Ident) -> String {
    name.unraw().to_string()
}
