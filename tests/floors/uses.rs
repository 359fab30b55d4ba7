//! Which file of a crate uses which, and in which lines.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{self, Id, Module};
use crate::names;

/// The lines of a file.
pub type Lines = BTreeSet<usize>;

/// What the files of a crate use of each other.
pub struct Uses {
    /// All files that aren't for tests only.
    pub files: BTreeSet<String>,
    /// The lines in which the first file uses the second.
    pub lines: BTreeMap<(String, String), Lines>,
}

/// What the files use of each other that belong to the crate whose first file is `root`.
pub fn of(root: &str, files: &BTreeMap<String, String>) -> Result<Uses, String> {
    let modules = modules::read(root, files)?;
    let mut uses = Uses {
        files: BTreeSet::new(),
        lines: BTreeMap::new(),
    };
    for (id, module) in modules.iter().enumerate() {
        if !module.for_tests {
            uses.files.insert(module.file.clone());
            uses.add(&modules, id);
        }
    }
    Ok(uses)
}

impl Uses {
    fn add(&mut self, modules: &[Module], id: Id) {
        let file = &modules[id].file;
        for mention in &modules[id].named.mentions {
            for written_in in names::written_in(modules, id, mention) {
                let used = &modules[written_in].file;
                if used != file {
                    let both = (file.clone(), used.clone());
                    self.lines.entry(both).or_default().insert(mention.line);
                }
            }
        }
    }

    /// That one file uses the other, and where.
    pub fn told(&self, file: &str, used: &str) -> String {
        let both = (file.to_owned(), used.to_owned());
        let lines = self.lines.get(&both).into_iter().flatten();
        let lines: Vec<String> = lines.map(ToString::to_string).collect();
        format!("{file}:{} uses {used}", lines.join(","))
    }
}
