//! The figures of a document. The text between its marks is generated from the results, so the
//! document can't contradict the results.

use anyhow::{Context, Result};

use crate::sheet::Run;
use crate::table::{self, Look, HEADINGS};

/// The name of the bounds in a mark.
pub const BOUNDS: &str = "bounds";

/// The start of an opening mark, before the name of a benchmark.
pub const BEGIN: &str = "<!-- figures: ";
/// The end of an opening mark.
pub const CLOSE: &str = " -->";
/// The line after the figures.
const END: &str = "<!-- end of figures -->";

/// Returns the text with the figures of these runs between its marks.
pub fn filled(text: &str, runs: &[Run]) -> Result<String> {
    let mut filled = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        filled.push_str(line);
        filled.push('\n');
        let name = line.strip_prefix(BEGIN);
        let Some(name) = name.and_then(|name| name.strip_suffix(CLOSE)) else {
            continue;
        };
        filled.push_str(&format!("\n{}", figures(name, runs)?));
        let end = lines.find(|line| *line == END);
        end.with_context(|| format!("the figures of {name} have no end"))?;
        filled.push_str(&format!("{END}\n"));
    }
    Ok(filled)
}

/// Returns all tables under their headings, and the bounds last.
pub fn all(runs: &[Run]) -> Result<String> {
    let mut text = String::new();
    for heading in &HEADINGS {
        text.push_str(&format!("### {}\n\n", heading.title));
        text.push_str(&figures(heading.benchmark, runs)?);
    }
    text.push_str("### Bounds\n\n");
    text.push_str(&figures(BOUNDS, runs)?);
    Ok(text)
}

/// Returns the tables of a benchmark, each under the description of its run, or the bounds.
fn figures(name: &str, runs: &[Run]) -> Result<String> {
    if name == BOUNDS {
        return Ok(format!("{}\n\n", table::kept(runs, Look::Markdown)));
    }
    let mut headings = HEADINGS.iter();
    let heading = headings.find(|heading| heading.benchmark == name);
    let heading = heading.with_context(|| format!("no benchmark is called {name}"))?;
    let tables = runs.iter().filter_map(|run| {
        let table = table::of(&run.sheet, heading, Look::Markdown)?;
        Some(format!("{}:\n\n{table}\n\n", run.told()))
    });
    let tables: String = tables.collect();
    if tables.is_empty() {
        return Ok("Not measured yet.\n\n".to_owned());
    }
    Ok(tables)
}
