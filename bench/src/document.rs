//! The documents with the figures. They are written from the results, so they can't contradict
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use redis_lock_load::Marks;

use crate::plot;
use crate::sheet::Run;
use crate::table::{self, Heading, Look, HEADINGS};

/// The page that explains the figures. It has marks for some tables.
pub const PAGE: &str = "performance.md";
/// The folder of the pages with all figures, one a server.
pub const PAGES: &str = "performance";
/// The page in this folder that says how each benchmark measures.
pub const METHOD: &str = "method.md";
/// The folder of the drawings.
pub const PLOTS: &str = "plots";

/// The lines around each table of the page.
const MARKS: Marks = Marks {
    begin: "<!-- figures: ",
    end: "<!-- end of figures -->",
};

/// Writes the results into the folder of the documentation: the tables of the page, the pages of
/// the servers, and the drawings.
pub fn write(docs: &Path, runs: &[Run]) -> Result<()> {
    let page = docs.join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let table = |name: &str| Ok(format!("{}\n", marked(name, runs)?));
    fs::write(&page, MARKS.filled(&text, table)?)?;
    let folder = docs.join(PAGES);
    fs::create_dir_all(&folder)?;
    for (slug, runs) in servers(runs) {
        fs::write(folder.join(format!("{slug}.md")), figures(&runs)?)?;
    }
    for run in runs {
        plot::draw(run, &docs.join(PLOTS))?;
    }
    Ok(())
}

/// Returns the runs of each server, by the server's name in the form for a file name.
fn servers(runs: &[Run]) -> BTreeMap<String, Vec<&Run>> {
    let mut servers: BTreeMap<String, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        servers.entry(run.slug()).or_default().push(run);
    }
    servers
}

/// Returns what a mark names: the table `bounds`, the table `polling` of a server, or the list
/// `servers`.
fn marked(name: &str, runs: &[Run]) -> Result<String> {
    match name.split_once(' ') {
        None if name == "bounds" => Ok(table::kept(runs, Look::Markdown)),
        None if name == "servers" => Ok(pages(runs)),
        Some(("polling", slug)) => {
            let mut runs = runs.iter().filter(|run| run.slug() == slug);
            let table = runs.find_map(table::polling);
            table.with_context(|| format!("{slug} has no results of one contended lock"))
        }
        _ => anyhow::bail!("no table is called {name}"),
    }
}

/// Returns the list of the servers' pages, with their sections.
fn pages(runs: &[Run]) -> String {
    let servers = servers(runs).into_iter().map(|(slug, runs)| {
        let page = format!("{PAGES}/{slug}.md");
        let sections = HEADINGS.iter().filter_map(|heading| {
            let run = runs.iter().find(|run| run.has(heading.benchmark))?;
            let quick = run.extent.of(" (a quick run)", "");
            let link = format!("[{}]({page}#{})", heading.title, heading.anchor());
            Some(format!("{link}{quick}"))
        });
        let sections: Vec<String> = sections.collect();
        format!("- [{}]({page}): {}", runs[0].server, sections.join(" · "))
    });
    servers.collect::<Vec<_>>().join("\n")
}

/// Returns the page of a server with these runs.
fn figures(runs: &[&Run]) -> Result<String> {
    let server = &runs.first().context("no run")?.server;
    let mut text = format!(
        "# What locks cost on {server}\n\n\
         `make bench-docs` writes this page from the [results](../../bench/results), so don't edit it.\n\
         [Performance](../{PAGE}) says what the figures mean, and the [method]({METHOD}) how they are measured.\n\n\
         A figure is the median of the rounds. If rounds differ, the least and the greatest of them are in brackets.\n\n"
    );
    for run in runs {
        for drawing in plot::drawings(run)? {
            let file = drawing.file(run);
            text.push_str(&format!("![{}](../{PLOTS}/{file})\n\n", drawing.title));
        }
    }
    for heading in &HEADINGS {
        for run in runs {
            let Some(table) = table::of(&run.sheet, heading, Look::Markdown) else {
                continue;
            };
            let Heading { title, .. } = heading;
            text.push_str(&format!(
                "## {title}\n\n[How it is measured]({METHOD}#{}). {}:\n\n{table}\n\n",
                heading.anchor(),
                run.told()
            ));
        }
    }
    Ok(format!("{}\n", text.trim_end()))
}
