//! The table of contents, which is the sidebar: a section for each folder.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::{in_the_book, Pages, README};

/// The sections in their order. Folders that are not named here follow in the order of their names.
const SECTIONS: [&str; 12] = [
    "start",
    "concepts",
    "guides",
    "migrate",
    "clients",
    "commands",
    "operate",
    "reference",
    "performance",
    MORE,
    "internals",
    PROJECT,
];
/// The section of pages in docs/ itself.
const MORE: &str = "more";
/// The section of pages at the clone's top.
const PROJECT: &str = "project";

/// The pages before all sections.
const FIRST: [&str; 2] = [README, "docs/README.md"];

/// Returns the text of SUMMARY.md.
pub fn of(pages: &Pages) -> Result<String> {
    let mut summary = "# Summary\n\n".to_owned();
    for page in FIRST {
        if let Some(text) = pages.get(page) {
            writeln!(summary, "{}", link(page, text)?)?;
        }
    }
    let mut sorted: Vec<&String> = pages.keys().collect();
    sorted.retain(|page| !FIRST.contains(&page.as_str()));
    sorted.sort_by_key(|page| place_of(page));
    let mut current = "";
    for page in sorted {
        let section = section_of(page);
        if section != current {
            writeln!(summary, "\n# {}\n", capitalized(section))?;
            current = section;
        }
        writeln!(summary, "- {}", link(page, &pages[page])?)?;
    }
    Ok(summary)
}

/// Returns the link to a page, with the page's heading as its text.
fn link(page: &str, text: &str) -> Result<String> {
    let heading = text.lines().find_map(|line| line.strip_prefix("# "));
    let heading = heading.with_context(|| format!("{page} has no heading"))?;
    Ok(format!("[{heading}]({})", in_the_book(page).display()))
}

/// Returns the section of a page. docs/commands.md and docs/commands/wait.md are in "commands".
fn section_of(page: &str) -> &str {
    let (folder, rest) = page.split_once('/').unwrap_or((PROJECT, page));
    if folder != "docs" {
        return folder;
    }
    match rest.split_once('/') {
        Some((section, _)) => section,
        None => rest
            .strip_suffix(".md")
            .filter(|name| SECTIONS.contains(name))
            .unwrap_or(MORE),
    }
}

/// Returns a key that sorts pages: by section, and in a section the overview before the others.
fn place_of(page: &str) -> (usize, &str, bool, &str) {
    let section = section_of(page);
    let known = SECTIONS.iter().position(|it| *it == section);
    let overviews = [
        format!("docs/{section}.md"),
        format!("docs/{section}/{README}"),
    ];
    let is_other = !overviews.iter().any(|it| it == page);
    (known.unwrap_or(SECTIONS.len()), section, is_other, page)
}

fn capitalized(section: &str) -> String {
    let (first, rest) = section.split_at(1);
    first.to_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_pages(pages: &[&str]) -> Result<String> {
        let page = |path: &&str| ((*path).to_owned(), format!("# About {path}\n# Not this\n"));
        of(&pages.iter().map(page).collect())
    }

    #[test]
    fn the_sections_have_their_order_and_begin_with_an_overview() {
        let contents = of_pages(&[
            "CHANGELOG.md",
            "README.md",
            "clients/go/README.md",
            "docs/README.md",
            "docs/cli.md",
            "docs/clients/README.md",
            "docs/clients/API.md",
            "docs/commands.md",
            "docs/commands/check.md",
            "docs/internals/tests.md",
            "docs/other/a.md",
            "docs/start/b.md",
        ]);
        let expected = "# Summary\n
[About README.md](index.md)
[About docs/README.md](docs/index.md)

# Start\n
- [About docs/start/b.md](docs/start/b.md)

# Clients\n
- [About docs/clients/README.md](docs/clients/index.md)
- [About clients/go/README.md](clients/go/index.md)
- [About docs/clients/API.md](docs/clients/API.md)

# Commands\n
- [About docs/commands.md](docs/commands.md)
- [About docs/commands/check.md](docs/commands/check.md)

# More\n
- [About docs/cli.md](docs/cli.md)

# Internals\n
- [About docs/internals/tests.md](docs/internals/tests.md)

# Project\n
- [About CHANGELOG.md](CHANGELOG.md)

# Other\n
- [About docs/other/a.md](docs/other/a.md)
";
        assert_eq!(contents.unwrap(), expected);
    }

    #[test]
    fn a_page_has_a_heading() {
        assert!(of(&[("README.md".to_owned(), "text".to_owned())].into()).is_err());
    }
}
