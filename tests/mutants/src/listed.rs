//! The mutants that `cargo mutants --list --json` lists.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

/// A line and a column, both from 1 on. Columns count characters.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
pub struct Span {
    pub start: Place,
    pub end: Place,
}

impl Span {
    /// Returns true if the other span is inside this one.
    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// The function that a mutant is in.
#[derive(Clone, Debug, Deserialize)]
pub struct Function {
    /// The type that it returns, behind an arrow.
    pub return_type: String,
}

/// One mutant.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    pub name: String,
    pub file: PathBuf,
    pub span: Span,
    pub replacement: String,
    pub genre: Genre,
    /// `None` in a constant.
    pub function: Option<Function>,
    /// The name without the line and the column, with a number if that name isn't unique.
    #[serde(skip)]
    pub key: String,
}

impl Mutant {
    /// Returns true if its function returns an unnamed type, so all returned values have one type.
    pub fn is_of_unnamed_type(&self) -> bool {
        let function = self.function.as_ref();
        function.is_some_and(|function| function.return_type.starts_with("-> impl "))
    }
}

/// Reads the list of cargo-mutants.
pub fn read(path: &Path) -> Result<Vec<Mutant>> {
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    let mut mutants: Vec<Mutant> = serde_json::from_slice(&text)?;
    let mut seen: HashMap<String, usize> = HashMap::new();
    for mutant in &mut mutants {
        let key = without_place(&mutant.name);
        let number = seen.entry(key.clone()).or_default();
        *number += 1;
        mutant.key = match *number {
            1 => key,
            number => format!("{key} #{number}"),
        };
    }
    Ok(mutants)
}

/// Removes the line and the column from a name like `core/src/a.rs:1:2: replace ...`.
fn without_place(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.nth(2)) {
        (Some(file), Some(what)) => format!("{file}:{what}"),
        _ => name.to_owned(),
    }
}
