//! The list of mutants that no test can catch, with their reasons.
//!
//! A line of `#` begins a reason; the mutants that it explains follow it. A mutant is named like
//! cargo-mutants names it, without the line and the column.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};

use crate::listed::Mutant;

/// Why the tests pass with a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No test can tell it from the program.
    Known,
    /// It is still to be examined: it wants a test or a reason.
    Open,
}

/// The beginning of the reason of mutants that are still to be examined.
const OPEN: &str = "Open:";

#[derive(Default)]
pub struct Explained {
    /// The reason for each mutant.
    reasons: BTreeMap<String, Reason>,
}

impl Explained {
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let mut explained = Self::default();
        let (mut reason, mut was_reason) = (None, false);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let text = line.strip_prefix('#').map(str::trim);
            if let Some(text) = text.filter(|_| !was_reason) {
                let is_open = text.starts_with(OPEN);
                reason = Some(if is_open { Reason::Open } else { Reason::Known });
            }
            was_reason = text.is_some();
            if !was_reason {
                let reason = reason.with_context(|| format!("no reason for {line}"))?;
                let old = explained.reasons.insert(line.to_owned(), reason);
                ensure!(old.is_none(), "explained twice: {line}");
            }
        }
        Ok(explained)
    }

    pub fn reason(&self, mutant: &Mutant) -> Option<Reason> {
        self.reasons.get(&mutant.key).copied()
    }

    /// Returns the explained mutants that cargo-mutants doesn't list any more.
    pub fn gone(&self, mutants: &[Mutant]) -> Vec<&String> {
        let keys: BTreeSet<&String> = mutants.iter().map(|mutant| &mutant.key).collect();
        let explained = self.reasons.keys();
        explained.filter(|key| !keys.contains(key)).collect()
    }
}
