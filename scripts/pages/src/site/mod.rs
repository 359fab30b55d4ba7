//! The project's Markdown as the source folder of a book, for mdBook. The folders stay as they are
//! in the clone, so most relative links hold in both.

mod contents;
mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The Markdown files that become pages, as patterns below the clone's top.
const PAGES: [&str; 3] = ["*.md", "docs/**/*.md", "clients/*/README.md"];

/// The file name of a folder's own page on GitHub.
const README: &str = "README.md";
/// The file name of a folder's own page in a book.
const INDEX: &str = "index.md";

/// The texts of the pages, by their paths from the clone's top.
type Pages = BTreeMap<String, String>;

/// Writes the pages of a clone, their images and the table of contents into a folder, which it
/// empties first.
pub fn assemble(clone: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let pages = read(clone)?;
    let mut images = BTreeSet::new();
    for (page, text) in &pages {
        let (text, shown) = links::for_the_book(clone, &pages, page, text)?;
        write(&folder.join(in_the_book(page)), text.as_bytes())?;
        images.extend(shown);
    }
    for image in images {
        write(&folder.join(&image), &fs::read(clone.join(&image))?)?;
    }
    write(&folder.join("SUMMARY.md"), contents::of(&pages)?.as_bytes())
}

fn read(clone: &Path) -> Result<Pages> {
    let top = clone.to_str().context("a clone in a path in UTF-8")?;
    let top = glob::Pattern::escape(top);
    let mut pages = Pages::new();
    for pattern in PAGES {
        for path in glob::glob(&format!("{top}/{pattern}"))? {
            let path = path?;
            let name = path.strip_prefix(clone)?.to_str();
            let name = name.context("a page with a name in UTF-8")?.to_owned();
            pages.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(pages)
}

/// Returns the path of a page in the book.
fn in_the_book(page: &str) -> PathBuf {
    let path = Path::new(page);
    if path.ends_with(README) {
        path.with_file_name(INDEX)
    } else {
        path.to_owned()
    }
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file in a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(path, content).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_links_of_this_clone_lead_somewhere() {
        let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = tempfile::tempdir().unwrap();
        assemble(&clone, folder.path()).unwrap();
        assert!(folder.path().join("docs/commands/wait.md").is_file());
    }

    #[test]
    fn what_was_in_the_folder_goes() {
        let clone = tempfile::tempdir().unwrap();
        let name = clone.path().join("a [b]");
        let folder = clone.path().join("book");
        for page in ["README.md", "docs/gone.md"] {
            write(&name.join(page), b"# A page").unwrap();
        }
        assemble(&name, &folder).unwrap();
        assert!(folder.join("docs/gone.md").is_file());
        fs::remove_file(name.join("docs/gone.md")).unwrap();
        assemble(&name, &folder).unwrap();
        assert!(!folder.join("docs/gone.md").exists());
        assert!(folder.join("index.md").is_file());
    }
}
