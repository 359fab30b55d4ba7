//! The parts of a document between its marks.

use std::collections::BTreeMap;

use anyhow::{bail, Context, Result};
use redis_lock_rig::Marks;

const MARKS: Marks = Marks {
    begin: "<!-- told by the module: ",
    end: "<!-- end of what the module tells -->",
};

/// The texts between the marks, by the names of the parts.
pub type Parts = BTreeMap<&'static str, String>;

/// Returns the text with all parts between its marks. Returns an error unless each part is there
/// exactly once.
pub fn filled(text: &str, parts: &Parts) -> Result<String> {
    let mut left = parts.clone();
    let filled = MARKS.filled(text, |name| {
        let part = left.remove(name);
        part.with_context(|| format!("{name} is no part of this page, or is twice"))
    })?;
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
        let Marks { begin, end } = MARKS;
        format!("# A\n\n{begin}arguments -->\n{inside}{end}\n\nrest\n")
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
        let endless = page("").replace(MARKS.end, "");
        for wrong in ["# A\n", &twice, &other, &endless] {
            assert!(filled(wrong, &parts()).is_err(), "{wrong}");
        }
    }
}
