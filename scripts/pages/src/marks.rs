//! The parts of a document between its marks.

use std::collections::BTreeMap;

use anyhow::{bail, Context, Result};

/// The beginning of a mark, before the name of a part.
const BEGIN: &str = "<!-- told by the module: ";
/// The end of a mark, after the name of a part.
const CLOSE: &str = " -->";
/// The line after a part.
const END: &str = "<!-- end of what the module tells -->";

/// The texts between the marks, by the names of the parts.
pub type Parts = BTreeMap<&'static str, String>;

/// Returns the text with all parts between its marks. Returns an error unless each part is there
/// exactly once.
pub fn filled(text: &str, parts: &Parts) -> Result<String> {
    let mut filled = String::new();
    let mut left = parts.clone();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        filled.push_str(line);
        filled.push('\n');
        let name = line.strip_prefix(BEGIN);
        let Some(name) = name.and_then(|name| name.strip_suffix(CLOSE)) else {
            continue;
        };
        let part = left.remove(name);
        let part = part.with_context(|| format!("{name} is no part of this page, or is twice"))?;
        filled.push_str(&format!("\n{part}\n"));
        let end = lines.find(|line| *line == END);
        end.with_context(|| format!("{name} has no end"))?;
        filled.push_str(&format!("{END}\n"));
    }
    if !left.is_empty() {
        bail!("no marks for {:?}", left.keys());
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Parts {
        Parts::from([("arguments", "new\n".to_owned())])
    }

    fn page(inside: &str) -> String {
        format!("# A\n\n{BEGIN}arguments{CLOSE}\n{inside}{END}\n\nrest\n")
    }

    #[test]
    fn what_is_between_the_marks_is_written_anew_and_nothing_else() {
        let filled = filled(&page("old\nand old\n"), &parts()).unwrap();
        assert_eq!(filled, page("\nnew\n\n"));
        assert_eq!(super::filled(&filled, &parts()).unwrap(), filled);
    }

    #[test]
    fn a_page_has_each_part_once() {
        let twice = page("") + &page("");
        let other = page("").replace("arguments", "answers");
        let endless = page("").replace(END, "");
        for wrong in ["# A\n", &twice, &other, &endless] {
            assert!(filled(wrong, &parts()).is_err(), "{wrong}");
        }
    }
}
