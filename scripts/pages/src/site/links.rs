//! The links of a page.

use std::ops::Range;
use std::path::{Component, Path};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag};

use super::{Pages, INDEX, README};

const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
const BRANCH: &str = "main";

/// Returns a page's text with links that hold in the book, and the images that the page shows.
///
/// A link to a page or to its folder leads to that page. A link to another file or folder of the
/// clone leads to the repository. Returns an error if a link leads to nothing.
pub fn for_the_book(
    clone: &Path,
    pages: &Pages,
    page: &str,
    text: &str,
) -> Result<(String, Vec<String>)> {
    let (mut edits, mut images) = (Vec::new(), Vec::new());
    let parser = Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_GFM);
    for (event, range) in parser.into_offset_iter() {
        let (link, is_image) = match &event {
            Event::Start(Tag::Link { dest_url, .. }) => (dest_url, false),
            Event::Start(Tag::Image { dest_url, .. }) => (dest_url, true),
            _ => continue,
        };
        if link.starts_with('#') || link.contains(':') {
            continue;
        }
        let place = place_of(link, range, text)
            .with_context(|| format!("{page}: the link to {link} needs the form [text](link)"))?;
        let (file, heading) = match link.split_once('#') {
            Some((file, heading)) => (file, format!("#{heading}")),
            None => (&**link, String::new()),
        };
        let target = target_of(page, file)
            .filter(|target| clone.join(target).exists())
            .with_context(|| format!("{page} links to {link}, which doesn't exist"))?;
        if is_image {
            images.push(target);
        } else {
            let link = link_to(clone, pages, file, &target);
            edits.push((place, link + &heading));
        }
    }
    Ok((edited(text, edits), images))
}

/// Returns the place of a link's target in the text. It is the last thing in the link's range.
fn place_of(link: &str, range: Range<usize>, text: &str) -> Option<Range<usize>> {
    let start = range.start + text[range].rfind(&format!("({link}"))? + 1;
    Some(start..start + link.len())
}

/// Returns the path from the clone's top to the target of a relative link, or `None` if it is
/// outside of the clone.
fn target_of(page: &str, file: &str) -> Option<String> {
    let mut target: Vec<&str> = page.split('/').collect();
    target.pop();
    for component in Path::new(file).components() {
        match component {
            Component::Normal(name) => target.push(name.to_str()?),
            Component::ParentDir => drop(target.pop()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(target.join("/"))
}

fn link_to(clone: &Path, pages: &Pages, file: &str, target: &str) -> String {
    let is_folder = clone.join(target).is_dir();
    if pages.contains_key(target) {
        match file.strip_suffix(README) {
            Some(folder) => format!("{folder}{INDEX}"),
            None => file.to_owned(),
        }
    } else if is_folder && pages.contains_key(&format!("{target}/{README}")) {
        format!("{}/{INDEX}", file.trim_end_matches('/'))
    } else {
        let kind = if is_folder { "tree" } else { "blob" };
        format!("{REPOSITORY}/{kind}/{BRANCH}/{target}")
    }
}

/// Returns the text with new content at some places, which are in order and apart.
fn edited(text: &str, edits: Vec<(Range<usize>, String)>) -> String {
    let mut edited = text.to_owned();
    for (place, link) in edits.into_iter().rev() {
        edited.replace_range(place, &link);
    }
    edited
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns a page's text in the book, in a clone with a few files.
    fn in_a_clone(page: &str, text: &str) -> Result<(String, Vec<String>)> {
        let clone = tempfile::tempdir()?;
        for file in [
            "README.md",
            "docs/a.md",
            "docs/plot.svg",
            "lib/README.md",
            "src/b.rs",
        ] {
            let path = clone.path().join(file);
            fs::create_dir_all(path.parent().context("a folder")?)?;
            fs::write(path, "")?;
        }
        let pages = ["README.md", "docs/a.md", "lib/README.md"];
        let pages = pages.map(|name| (name.to_owned(), String::new())).into();
        for_the_book(clone.path(), &pages, page, text)
    }

    #[track_caller]
    fn becomes(page: &str, text: &str, expected: &str) {
        assert_eq!(in_a_clone(page, text).unwrap().0, expected);
    }

    #[test]
    fn a_link_to_a_page_stays_relative() {
        becomes("README.md", "[a](docs/a.md#b)", "[a](docs/a.md#b)");
        becomes("docs/a.md", "[r](../README.md#b)", "[r](../index.md#b)");
        becomes("docs/a.md", "[l](../lib/)", "[l](../lib/index.md)");
        becomes("docs/a.md", "[l](../lib)", "[l](../lib/index.md)");
        becomes("README.md", "[l](lib/README.md)", "[l](lib/index.md)");
    }

    #[test]
    fn a_link_to_another_file_leads_to_the_repository() {
        let file = format!("[b]({REPOSITORY}/blob/main/src/b.rs#L3)");
        becomes("docs/a.md", "[b](../src/b.rs#L3)", &file);
        let folder = format!("[src]({REPOSITORY}/tree/main/src)");
        becomes("README.md", "[src](src/)", &folder);
    }

    #[test]
    fn all_links_of_a_table_are_changed_and_no_code() {
        let text = "| `[l](lib)` |\n|---|\n| [l](lib), [l](lib) (lib) |\n";
        let expected = "| `[l](lib)` |\n|---|\n| [l](lib/index.md), [l](lib/index.md) (lib) |\n";
        becomes("README.md", text, expected);
    }

    #[test]
    fn an_image_comes_along() {
        let text = "[![plot](plot.svg)](../lib)";
        let (text, images) = in_a_clone("docs/a.md", text).unwrap();
        assert_eq!(text, "[![plot](plot.svg)](../lib/index.md)");
        assert_eq!(images, ["docs/plot.svg"]);
    }

    #[test]
    fn other_links_stay() {
        let text = "[a](https://example.org/x.md) [b](#heading) <mailto:a@example.org>";
        becomes("README.md", text, text);
    }

    #[test]
    fn the_site_names_the_repository_as_links_do() {
        let settings = include_str!("../../site/book.toml");
        assert!(settings.contains(&format!("git-repository-url = \"{REPOSITORY}\"")));
    }

    #[test]
    fn a_link_to_nothing_is_an_error() {
        for link in [
            "[a](docs/b.md)",
            "![a](a.svg)",
            "[a](../other/README.md)",
            "[a]\n\n[a]: lib",
        ] {
            assert!(in_a_clone("README.md", link).is_err(), "{link}");
        }
    }
}
