//! Tests that the documentation's performance figures match the stored results.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use redis_lock_bench::document::{self, BEGIN, BOUNDS, CLOSE};
use redis_lock_bench::plot;
use redis_lock_bench::sheet::Run;
use redis_lock_bench::table::HEADINGS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text_of(name: &str) -> Result<String> {
    fs::read_to_string(root().join(name)).context(name.to_owned())
}

fn results() -> Result<Vec<Run>> {
    Run::load_all(&root().join("bench/results"))
}

fn drawings(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

#[test]
fn tables_are_those_of_the_results() -> Result<()> {
    let text = text_of("docs/performance.md")?;
    let filled = document::filled(&text, &results()?)?;
    assert!(
        filled == text,
        "docs/performance.md is old: make bench-docs"
    );
    Ok(())
}

#[test]
fn every_benchmark_has_its_place() -> Result<()> {
    let text = text_of("docs/performance.md")?;
    let benchmarks = HEADINGS.iter().map(|heading| heading.benchmark);
    for name in benchmarks.chain([BOUNDS]) {
        let mark = format!("{BEGIN}{name}{CLOSE}");
        assert_eq!(text.matches(&mark).count(), 1, "{mark}");
    }
    Ok(())
}

#[test]
fn drawings_are_those_of_the_results() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for run in results()? {
        plot::draw(&run, folder.path())?;
    }
    let kept = root().join("docs/plots");
    let names = drawings(folder.path())?;
    assert_eq!(
        names,
        drawings(&kept)?,
        "docs/plots is old: make bench-docs"
    );
    for name in names {
        let drawn = fs::read(folder.path().join(&name))?;
        assert!(
            drawn == fs::read(kept.join(&name))?,
            "{name} is old: make bench-docs"
        );
    }
    Ok(())
}

#[test]
fn the_readme_shows_drawings_that_are_there() -> Result<()> {
    let readme = text_of("README.md")?;
    let shown = readme.split("](").filter_map(|part| part.split_once(')'));
    let shown: Vec<&str> = shown
        .map(|(target, _)| target)
        .filter(|target| target.ends_with(".svg"))
        .collect();
    assert!(!shown.is_empty(), "the README shows no drawing");
    for target in shown {
        assert!(root().join(target).exists(), "{target}");
    }
    Ok(())
}

#[test]
fn every_target_that_is_named_is_there() -> Result<()> {
    let makefile = text_of("Makefile")?;
    let text = text_of("docs/performance.md")?;
    for part in text.split("`make ").skip(1) {
        let end = part.find(|next: char| next != '-' && !next.is_ascii_lowercase());
        let target = &part[..end.unwrap_or(part.len())];
        assert!(makefile.contains(&format!("\n{target}: ")), "make {target}");
    }
    Ok(())
}
