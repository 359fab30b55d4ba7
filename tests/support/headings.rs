//! The headings of a document, by the names that links use.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the names by which links lead to the headings of a document.
pub fn headings(document: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(document).expect("a document");
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let letters = |letter: &char| letter.is_alphanumeric() || *letter == '-';
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|name| name.replace(' ', "-").chars().filter(letters).collect())
        .collect()
}
