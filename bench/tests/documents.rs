//! Tests that the documentation's figures, drawings and statements match the stored results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use redis_lock_bench::sheet::{metric, shown, Place, Run};
use redis_lock_bench::table::HEADINGS;
use redis_lock_bench::{contended, document, pair, pairs};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn docs() -> PathBuf {
    root().join("docs")
}

fn text_of(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn results() -> Result<Vec<Run>> {
    Run::load_all(&root().join("bench/results"))
}

/// Returns the files directly in a folder.
fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let paths: Result<Vec<PathBuf>> = paths.collect();
    Ok(paths?.into_iter().filter(|path| path.is_file()).collect())
}

/// Returns the texts of the files with the figures, by their paths below the folder of the
/// documentation.
fn figures(docs: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut paths = files(&docs.join(document::PAGES))?;
    paths.remove(&docs.join(document::PAGES).join(document::METHOD));
    paths.extend(files(&docs.join(document::PLOTS))?);
    paths.insert(docs.join(document::PAGE));
    let texts = paths.iter().map(|path| {
        let name = path.strip_prefix(docs)?.to_owned();
        Ok((name, text_of(path)?))
    });
    texts.collect()
}

#[test]
fn the_documents_are_those_of_the_results() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let page = Path::new(document::PAGE);
    fs::copy(docs().join(page), folder.path().join(page))?;
    document::write(folder.path(), &results()?)?;
    let (kept, written) = (figures(&docs())?, figures(folder.path())?);
    assert!(
        kept.keys().eq(written.keys()),
        "{:?} aren't {:?}: make bench-docs",
        kept.keys(),
        written.keys()
    );
    for (name, text) in written {
        assert!(text == kept[&name], "{name:?} is old: make bench-docs");
    }
    Ok(())
}

#[test]
fn the_method_of_every_benchmark_is_described() -> Result<()> {
    let text = text_of(&docs().join(document::PAGES).join(document::METHOD))?;
    for heading in &HEADINGS {
        let line = format!("\n## {}\n", heading.title);
        assert_eq!(text.matches(&line).count(), 1, "{line}");
    }
    Ok(())
}

/// A picture in a page.
struct Picture {
    page: PathBuf,
    /// The text for readers who don't see it.
    text: String,
    target: String,
}

/// Returns the pictures of README and of all pages below docs, except badges from elsewhere.
fn pictures() -> Result<Vec<Picture>> {
    let mut folders = vec![docs()];
    let mut pages = vec![root().join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    let mut pictures = Vec::new();
    for page in pages {
        for part in text_of(&page)?.split("![").skip(1) {
            let (text, rest) = part
                .split_once("](")
                .context("a picture without a target")?;
            let (target, _) = rest.split_once(')').context("a target without an end")?;
            if !target.starts_with("https://") {
                let (page, target) = (page.clone(), target.to_owned());
                let text = text.to_owned();
                pictures.push(Picture { page, text, target });
            }
        }
    }
    Ok(pictures)
}

#[test]
fn pages_show_the_drawings_that_are_kept() -> Result<()> {
    let mut shown = BTreeSet::new();
    for Picture { page, text, target } in pictures()? {
        let path = page.parent().context("a folder")?.join(&target);
        let path = path.canonicalize();
        let path = path.with_context(|| format!("{} shows {target}", page.display()))?;
        assert!(!text.is_empty(), "{}: {target}", page.display());
        shown.insert(path);
    }
    let mut kept = files(&docs().join(document::PLOTS).canonicalize()?)?;
    kept.extend(files(&docs().join("pictures").canonicalize()?)?);
    assert_eq!(shown, kept);
    let readme = text_of(&root().join("README.md"))?;
    assert_eq!(readme.matches("(docs/plots/").count(), 1);
    Ok(())
}

/// Returns what stands between two texts.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    Some(rest.split_once(end)?.0)
}

/// The width to which GitHub scales a wider picture in a page, in pixels.
const SHOWN_WIDTH: f64 = 830.0;

#[test]
fn every_reader_can_read_the_drawings() -> Result<()> {
    for path in files(&docs().join(document::PLOTS))? {
        let svg = text_of(&path)?;
        let name = path.display();
        let role = "<svg role=\"img\" aria-labelledby=\"title desc\" ";
        assert!(svg.starts_with(role), "{name}");
        let title = between(&svg, "<title id=\"title\">", "</title>");
        let described = between(&svg, "<desc id=\"desc\">", "</desc>");
        assert!(title.is_some_and(|title| title.len() > 20), "{name}");
        assert!(described.is_some_and(|text| text.len() > 100), "{name}");
        assert!(svg.contains("lower is better"), "{name}");
        let width: f64 = between(&svg, " width=\"", "\"").context("width")?.parse()?;
        for part in svg.split(" font-size=\"").skip(1) {
            let (size, _) = part.split_once('"').context("a size")?;
            let size = size.parse::<f64>()? * (SHOWN_WIDTH / width).min(1.0);
            assert!(size >= 14.0, "{name}: text of {size} pixels");
        }
        let scales = svg.matches("(log scale)").count();
        let logarithmic = name.to_string().ends_with("-cpu.svg");
        assert_eq!(scales, if logarithmic { 2 } else { 0 }, "{name}");
    }
    Ok(())
}

// --- statements -----------------------------------------------------------------------------

/// Returns the runs that measured one contended lock.
fn full_runs() -> Result<Vec<Run>> {
    let mut runs = results()?;
    runs.retain(|run| run.has(contended::NAME));
    assert_eq!(runs.len(), 3);
    Ok(runs)
}

/// Returns a figure of one contended lock.
#[track_caller]
fn of(run: &Run, size: u64, way: &str, metric: &str) -> f64 {
    let place = Place::new(contended::NAME, "", size, way);
    let median = run.sheet.median(&place, metric);
    median.unwrap_or_else(|| panic!("{}: no {metric} of {place:?}", run.server))
}

/// Returns a page without its line breaks.
fn flat(path: &Path) -> Result<String> {
    Ok(text_of(path)?.replace('\n', " "))
}

/// Fails unless the page says this.
#[track_caller]
fn says(page: &str, statement: &str) {
    assert!(page.contains(statement), "it doesn't say: {statement}");
}

#[test]
fn clients_get_their_shares_as_the_page_says() -> Result<()> {
    let page = flat(&docs().join(document::PAGE))?;
    let (lock, list) = (contended::LOCK, contended::LIST);
    let (slowly, publish) = (contended::POLL_SLOWLY, contended::PUBLISH);
    says(
        &page,
        "With LOCK.WAIT and BLPOP every client gets the lock as often as the others.",
    );
    says(
        &page,
        "With pub/sub wake-up one client of 16 gets more than 70 % of all grants.",
    );
    says(
        &page,
        "one gets over 2,000 grants and another fewer than 10.",
    );
    for run in full_runs()? {
        let of = |way, metric| of(&run, 16, way, metric);
        for way in [lock, list] {
            let spread = of(way, metric::MOST_GRANTS) - of(way, metric::LEAST_GRANTS);
            assert!(spread <= 1.0, "{}: {way}", run.server);
        }
        let seconds = contended::window(run.extent).as_secs_f64();
        let all = of(publish, metric::GRANTS_PER_SECOND) * seconds;
        assert!(
            of(publish, metric::MOST_GRANTS) / all > 0.7,
            "{}",
            run.server
        );
        assert!(of(slowly, metric::MOST_GRANTS) > 2_000.0, "{}", run.server);
        assert!(of(slowly, metric::LEAST_GRANTS) < 10.0, "{}", run.server);
    }
    Ok(())
}

#[test]
fn polling_every_millisecond_does_what_the_page_says() -> Result<()> {
    let page = flat(&docs().join(document::PAGE))?;
    let (lock, poll) = (contended::LOCK, contended::POLL_QUICKLY);
    says(
        &page,
        "grants more locks a second than LOCK.WAIT with 2, 16 and 100 contenders.",
    );
    says(
        &page,
        "With 16, at least half of these grants go to the client that has just released the \
         lock. It takes the lock again within some 0.03 ms",
    );
    says(
        &page,
        "The longest wait of the others is about ten times that of LOCK.WAIT",
    );
    says(
        &page,
        "even the least favoured gets more grants than with LOCK.WAIT.",
    );
    says(&page, "uses about half the CPU for such a grant.");
    says(
        &page,
        "With 1,000 contenders polling every 1 ms collapses, and some clients get nothing.",
    );
    for run in full_runs()? {
        let server = &run.server;
        let ratio = |size, metric| of(&run, size, poll, metric) / of(&run, size, lock, metric);
        let more = [1, 2, 16, 100, 1_000, 5_000, 10_000].into_iter();
        let more = more.filter(|size| ratio(*size, metric::GRANTS_PER_SECOND) > 1.0);
        assert_eq!(more.collect::<Vec<_>>(), [2, 16, 100], "{server}");
        // A wait of one round trip is that of a client's first request, which follows its release.
        let half = of(&run, 16, poll, metric::WAIT_P50);
        assert_eq!(shown(half), "0.03", "{server}");
        let longest = ratio(16, metric::WAIT_MAX);
        assert!((9.0..12.0).contains(&longest), "{server}: {longest}");
        let least = of(&run, 16, poll, metric::LEAST_GRANTS);
        assert!(least > of(&run, 16, lock, metric::MOST_GRANTS), "{server}");
        let cpu = ratio(16, metric::CPU_GRANT);
        assert!((0.45..0.57).contains(&cpu), "{server}: {cpu}");
        assert!(ratio(1_000, metric::GRANTS_PER_SECOND) < 0.01, "{server}");
        assert_eq!(of(&run, 1_000, poll, metric::LEAST_GRANTS), 0.0, "{server}");
    }
    Ok(())
}

#[test]
fn waiting_costs_the_server_what_the_page_says() -> Result<()> {
    let page = flat(&docs().join(document::PAGE))?;
    says(
        &page,
        "LOCK.WAIT costs no more with 10,000 contenders than with 100.",
    );
    says(
        &page,
        "Polling every 1 ms and pub/sub wake-up then cost over 2,000 times as much",
    );
    says(
        &page,
        "Polling every 100 ms costs up to 40 % more with up to 1,000 contenders, and over 30 \
         times as much with 10,000.",
    );
    says(
        &page,
        "BLPOP is cheaper than LOCK.WAIT on Redis 7.0. On Redis 8.6 it is cheaper with up to \
         100 contenders only, and on Valkey 9.1 with none of these numbers.",
    );
    let sizes = [100, 1_000, 5_000, 10_000];
    let cheaper = BTreeMap::from([
        ("Redis 7.0.15", sizes.to_vec()),
        ("Redis 8.6.3", vec![100]),
        ("Valkey 9.1.2", vec![]),
    ]);
    for run in full_runs()? {
        let server = run.server.as_str();
        let cpu = |size, way| of(&run, size, way, metric::CPU_GRANT);
        let ratio = |size, way| cpu(size, way) / cpu(size, contended::LOCK);
        assert!(
            cpu(10_000, contended::LOCK) <= cpu(100, contended::LOCK),
            "{server}"
        );
        for way in [contended::POLL_QUICKLY, contended::PUBLISH] {
            assert!(ratio(10_000, way) > 2_000.0, "{server}: {way}");
        }
        for size in [100, 1_000] {
            let more = ratio(size, contended::POLL_SLOWLY);
            assert!((1.0..1.4).contains(&more), "{server}: {more}");
        }
        assert!(ratio(10_000, contended::POLL_SLOWLY) > 30.0, "{server}");
        let list = sizes
            .into_iter()
            .filter(|size| ratio(*size, contended::LIST) < 1.0);
        assert_eq!(list.collect::<Vec<_>>(), cheaper[server], "{server}");
    }
    Ok(())
}

#[test]
fn a_free_lock_costs_what_the_page_says() -> Result<()> {
    let page = flat(&docs().join(document::PAGE))?;
    says(
        &page,
        "A lock costs more than SET with compare-and-delete, and less than SET with the script",
    );
    says(
        &page,
        "In a pipeline of 64, where the commands alone count, the ways differ by less than 3 µs of server CPU.",
    );
    for run in full_runs()? {
        let cost = |way| {
            let place = Place::new(pair::NAME, pair::AOF_OFF, 64, way);
            run.sheet.median(&place, metric::CPU_PAIR)
        };
        let (ours, script) = (cost(pairs::LOCK), cost(pairs::SCRIPT));
        assert!(ours < script, "{}", run.server);
        assert!(cost(pairs::COMPARE).is_none_or(|compare| Some(compare) < ours));
        let floor = cost(pairs::DELETE).context("SET and DEL")?;
        assert!(script.context("EVALSHA")? - floor < 3.0, "{}", run.server);
    }
    Ok(())
}

#[test]
fn the_readme_has_the_figures_of_its_server() -> Result<()> {
    let readme = flat(&root().join("README.md"))?;
    let runs = full_runs()?;
    let run = runs.iter().find(|run| run.server == "Redis 8.6.3");
    let run = run.context("Redis 8.6.3")?;
    let figure = |size, way, metric| shown(of(run, size, way, metric));
    let (lock, poll) = (contended::LOCK, contended::POLL_QUICKLY);
    let (grants, wait) = (metric::GRANTS_PER_SECOND, metric::WAIT_MAX);
    let (more, fewer) = (figure(16, poll, grants), figure(16, lock, grants));
    says(
        &readme,
        &format!("{more} against {fewer} on {}", run.server),
    );
    let (longer, shorter) = (figure(16, poll, wait), figure(16, lock, wait));
    says(
        &readme,
        &format!("waits up to {longer} ms, against {shorter} ms"),
    );
    let (collapsed, held) = (figure(1_000, poll, grants), figure(1_000, lock, grants));
    let none = "and to some clients none; LOCK.WAIT grants";
    says(
        &readme,
        &format!("polling grants {collapsed} a second, {none} {held}."),
    );
    Ok(())
}
