//! The parts of a document between its marks.

use anyhow::{Context, Result};

/// The lines around each part of a document.
pub struct Marks {
    /// The beginning of the line before a part. The name of the part follows.
    pub begin: &'static str,
    /// The line after a part.
    pub end: &'static str,
}

/// The end of the line before a part, after the name of the part.
const CLOSE: &str = " -->";

impl Marks {
    /// Returns the text with `part(name)` between the marks of each part.
    ///
    /// # Errors
    /// An error of `part`, or a part without its end.
    pub fn filled(
        &self,
        text: &str,
        mut part: impl FnMut(&str) -> Result<String>,
    ) -> Result<String> {
        let mut filled = String::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            filled.push_str(line);
            filled.push('\n');
            let name = line.strip_prefix(self.begin);
            let Some(name) = name.and_then(|name| name.strip_suffix(CLOSE)) else {
                continue;
            };
            filled.push_str(&format!("\n{}\n", part(name)?));
            let end = lines.find(|line| *line == self.end);
            end.with_context(|| format!("{name} has no end"))?;
            filled.push_str(&format!("{}\n", self.end));
        }
        Ok(filled)
    }
}
