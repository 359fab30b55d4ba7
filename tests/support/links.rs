//! Links of Markdown pages, also in a folder that is packed without the rest of the clone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files::files_in;

/// A link of a page in a folder.
pub struct Link {
    /// The path of the page.
    pub page: PathBuf,
    /// The text between the parentheses.
    pub target: String,
}

impl Link {
    /// Returns the file that a relative link leads to, or nothing for an address and for a link
    /// within the page.
    pub fn file(&self) -> Option<PathBuf> {
        let (path, _) = self.target.split_once('#').unwrap_or((&self.target, ""));
        let is_relative = !path.is_empty() && !path.contains("://");
        is_relative.then(|| self.page.with_file_name("").join(path))
    }
}

/// Lists the links of all Markdown pages in a folder and below it.
#[track_caller]
pub fn links_in(folder: &Path) -> Vec<Link> {
    let is_page = |file: &PathBuf| file.extension().is_some_and(|it| it == "md");
    let pages = files_in(folder).into_iter().filter(is_page);
    pages.flat_map(links_of).collect()
}

fn links_of(page: PathBuf) -> Vec<Link> {
    let text = fs::read_to_string(&page).expect("a page");
    let link = |target: &str| Link {
        page: page.clone(),
        target: target.to_owned(),
    };
    targets(&text).map(link).collect()
}

/// Returns what the links of a Markdown text lead to.
pub fn targets(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1);
    links.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Asserts that each relative link of the pages in a folder leads to a file or folder in it, and
/// that each link to `repository` leads to one in the clone.
#[track_caller]
pub fn assert_links_lead_somewhere(folder: &Path, clone: &Path, repository: &str) {
    let top = folder.canonicalize().expect("a folder");
    let links = links_in(&top);
    assert!(links.len() > 100, "only {} links", links.len());
    for link in links {
        let place = match link.target.strip_prefix(repository) {
            Some(path) => {
                let (path, _) = path.split_once('#').unwrap_or((path, ""));
                clone.join(path.trim_start_matches('/')).canonicalize()
            }
            None => match link.file() {
                Some(file) => file.canonicalize().inspect(|file| {
                    assert!(file.starts_with(&top), "{}", link.target);
                }),
                None => continue,
            },
        };
        assert!(place.is_ok(), "{:?} links to {}", link.page, link.target);
    }
}
