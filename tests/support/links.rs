//! Relative links of Markdown pages, in a folder that is packed without the rest of the clone.

use std::fs;
use std::path::{Path, PathBuf};

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

/// Lists all files in a folder and below it, sorted.
#[track_caller]
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    files
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
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')'));
    let link = |(target, _): (&str, &str)| Link {
        page: page.clone(),
        target: target.to_owned(),
    };
    targets.map(link).collect()
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
