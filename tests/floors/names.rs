//! In which module the thing is written that a path names.

use crate::modules::{Id, Module, ROOT};
use crate::paths::{Brings, Import, Mention, Sort};

/// The modules in which the thing may be written that a module mentions. There are none if it lies
/// outside of the crate, and several if a name stands for several things.
pub fn written_in(modules: &[Module], from: Id, mention: &Mention) -> Vec<Id> {
    let mut search = Search {
        modules,
        asked: Vec::new(),
    };
    let found = search.within(from, &mention.path);
    let found: Vec<Id> = found
        .into_iter()
        .filter_map(|thing| thing.written_in(mention.sort))
        .collect();
    macro_without_use(modules, mention, &found).unwrap_or(found)
}

/// Where the macro is written that is mentioned, if nothing else of that name was found: `#[macro_use]`
/// makes it known by its name alone, `#[macro_export]` at the root of the crate.
fn macro_without_use(modules: &[Module], mention: &Mention, found: &[Id]) -> Option<Vec<Id>> {
    let name = match mention.path.as_slice() {
        [name] if mention.sort == Sort::Macro && found.is_empty() => name,
        [root, name] if root == "crate" && found == [ROOT] => name,
        _ => return None,
    };
    let written = (ROOT..modules.len()).filter(|id| modules[*id].has_macro(name));
    Some(written.collect()).filter(|written: &Vec<Id>| !written.is_empty())
}

/// What a path can end at.
#[derive(Clone, Copy)]
enum Thing {
    Module(Id),
    /// Something that is written in this module.
    ItemIn(Id),
}

impl Thing {
    fn written_in(self, sort: Sort) -> Option<Id> {
        match self {
            Self::Module(id) => (sort == Sort::Anything).then_some(id),
            Self::ItemIn(id) => Some(id),
        }
    }

    const fn is_module(&self) -> bool {
        matches!(self, Self::Module(_))
    }
}

struct Search<'a> {
    modules: &'a [Module],
    /// Which names were asked for in which modules on the way here: `use` can go round in circles.
    asked: Vec<(Id, String)>,
}

impl Search<'_> {
    /// What a path names that is written in this module.
    fn within(&mut self, module: Id, path: &[String]) -> Vec<Thing> {
        let Some((first, rest)) = path.split_first() else {
            return vec![Thing::Module(module)];
        };
        match first.as_str() {
            "crate" => self.through(ROOT, rest),
            "self" | "super" => self.through(module, path),
            _ => {
                let firsts = self.known_as(module, first);
                self.follow(firsts, rest)
            }
        }
    }

    /// What the rest of a path names whose beginning led to this module.
    fn through(&mut self, module: Id, rest: &[String]) -> Vec<Thing> {
        let Some((first, beyond)) = rest.split_first() else {
            return vec![Thing::Module(module)];
        };
        match (first.as_str(), self.modules[module].parent) {
            ("self", _) => self.through(module, beyond),
            ("super", Some(parent)) => self.through(parent, beyond),
            _ => {
                let nexts = self.known_as(module, first);
                if nexts.is_empty() {
                    // It is made by a macro there, or comes from another crate by way of there.
                    return vec![Thing::ItemIn(module)];
                }
                self.follow(nexts, beyond)
            }
        }
    }

    fn follow(&mut self, things: Vec<Thing>, rest: &[String]) -> Vec<Thing> {
        if rest.is_empty() {
            return things;
        }
        // What is between two `::` is a module if there is one of that name.
        let modules = things.iter().any(Thing::is_module);
        let mut found = Vec::new();
        for thing in things {
            match thing {
                Thing::Module(id) => found.extend(self.through(id, rest)),
                Thing::ItemIn(_) if modules => {}
                Thing::ItemIn(_) => found.push(thing),
            }
        }
        found
    }

    /// What has this name in this module.
    fn known_as(&mut self, module: Id, name: &str) -> Vec<Thing> {
        let question = (module, name.to_owned());
        if self.asked.contains(&question) {
            return Vec::new();
        }
        self.asked.push(question);
        let found = self.look_up(module, name);
        self.asked.pop();
        found
    }

    fn look_up(&mut self, id: Id, name: &str) -> Vec<Thing> {
        let modules = self.modules;
        let module = &modules[id];
        let mut found: Vec<Thing> = Vec::new();
        found.extend(module.children.get(name).copied().map(Thing::Module));
        found.extend(module.items.contains(name).then_some(Thing::ItemIn(id)));
        for import in imports_of(
            module,
            |brings| matches!(brings, Brings::Name(it) if it == name),
        ) {
            found.extend(self.within(id, &import.path));
        }
        if found.is_empty() {
            found = self.look_through_globs(id, name);
        }
        found
    }

    fn look_through_globs(&mut self, id: Id, name: &str) -> Vec<Thing> {
        let modules = self.modules;
        let mut found = Vec::new();
        for import in imports_of(&modules[id], |brings| matches!(brings, Brings::All)) {
            for thing in self.within(id, &import.path) {
                if let Thing::Module(from) = thing {
                    found.extend(self.known_as(from, name));
                }
            }
        }
        found
    }
}

fn imports_of(module: &Module, wanted: impl Fn(&Brings) -> bool) -> impl Iterator<Item = &Import> {
    let imports = module.named.imports.iter();
    imports.filter(move |import| wanted(&import.brings))
}
