//! What was measured: numbers by place, each with those of all rounds; and of which run they are.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};

/// Names of what is measured, with their units.
pub mod metric {
    #![allow(missing_docs)] // Each says itself what it is.
    pub const PAIRS_PER_SECOND: &str = "pairs/s";
    pub const CPU_PAIR: &str = "server CPU a pair, µs";
    pub const GRANTS_PER_SECOND: &str = "grants/s";
    pub const WAIT_P50: &str = "wait p50, ms";
    pub const WAIT_P99: &str = "wait p99, ms";
    pub const WAIT_MAX: &str = "wait max, ms";
    pub const LEAST_GRANTS: &str = "least grants of one";
    pub const MOST_GRANTS: &str = "most grants of one";
    pub const CPU_GRANT: &str = "server CPU a grant, µs";
    pub const CLIENT_CPU_GRANT: &str = "client CPU a grant, µs";
    pub const TIME_P50: &str = "p50, µs";
    pub const TIME_P99: &str = "p99, µs";
    pub const TIME_MAX: &str = "max, µs";
    pub const OTHERS: &str = "other requests/s";
    pub const LATE_P50: &str = "late p50, ms";
    pub const LATE_P99: &str = "late p99, ms";
    pub const LATE_MAX: &str = "late max, ms";
    pub const EARLY_MAX: &str = "early max, ms";
    pub const BYTES: &str = "bytes of used_memory";
    pub const MEMORY_USAGE: &str = "MEMORY USAGE";
    pub const PING_MAX: &str = "PING max, ms";
    pub const PING_P99: &str = "PING p99, ms";
    pub const RECLAIMED: &str = "reclaimed after, ms";
    pub const INSTRUCTIONS: &str = "instructions a pair";
    pub const FETCHES: &str = "misses of the instruction cache a pair";
    pub const INSTRUCTIONS_GRANT: &str = "instructions a hand-over";
}

/// Whether a run is as long as results need, or just long enough to see that it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// Seconds of each, for CI. Its numbers are noise.
    Quick,
    /// Minutes.
    Full,
}

impl Extent {
    /// By what stands on the command line.
    pub fn asked(quick: bool) -> Extent {
        if quick {
            Extent::Quick
        } else {
            Extent::Full
        }
    }

    /// Which of two sizes is meant.
    pub fn of<T>(self, quick: T, full: T) -> T {
        match self {
            Extent::Quick => quick,
            Extent::Full => full,
        }
    }
}

/// Where a number belongs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Which benchmark.
    pub benchmark: String,
    /// Under what circumstances; may be empty.
    pub setting: String,
    /// How many of that which the benchmark varies.
    pub size: u64,
    /// Who of those that are compared.
    pub contestant: String,
}

impl Place {
    /// The place of these.
    pub fn new(benchmark: &str, setting: &str, size: u64, contestant: &str) -> Place {
        Place {
            benchmark: benchmark.to_owned(),
            setting: setting.to_owned(),
            size,
            contestant: contestant.to_owned(),
        }
    }
}

/// One metric in one place.
#[derive(Clone, Serialize, Deserialize)]
pub struct Cell {
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// What, a name of `metric`.
    pub metric: String,
    /// The number of each round.
    pub rounds: Vec<f64>,
}

impl Cell {
    /// The middle of the rounds.
    pub fn median(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        match sorted.len() % 2 {
            _ if sorted.is_empty() => f64::NAN,
            0 => f64::midpoint(sorted[half - 1], sorted[half]),
            _ => sorted[half],
        }
    }

    /// The least of the rounds.
    pub fn least(&self) -> f64 {
        self.rounds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The greatest of the rounds.
    pub fn most(&self) -> f64 {
        self.rounds.iter().copied().fold(0.0, f64::max)
    }
}

/// All numbers of a run, in the order in which they came first.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sheet {
    /// One for each place and metric.
    pub cells: Vec<Cell>,
}

impl Sheet {
    /// Adds the number of one more round.
    pub fn note(&mut self, place: &Place, metric: &str, value: f64) -> Result<()> {
        ensure!(value.is_finite(), "{metric} of {place:?} is {value}");
        // More digits would mean nothing.
        let value: f64 = format!("{value:.4e}").parse()?;
        if let Some(cell) = self.position(place, metric) {
            self.cells[cell].rounds.push(value);
        } else {
            self.cells.push(Cell {
                place: place.clone(),
                metric: metric.to_owned(),
                rounds: vec![value],
            });
        }
        Ok(())
    }

    /// As `note`, for what can't be nothing: a benchmark that measured nothing is broken.
    pub fn note_some(&mut self, place: &Place, metric: &str, value: f64) -> Result<()> {
        ensure!(value > 0.0, "{metric} of {place:?} is {value}");
        self.note(place, metric, value)
    }

    /// The median of a metric in a place, where it was measured.
    pub fn median(&self, place: &Place, metric: &str) -> Option<f64> {
        self.cell(place, metric).map(Cell::median)
    }

    /// A metric in a place, where it was measured.
    pub fn cell(&self, place: &Place, metric: &str) -> Option<&Cell> {
        self.position(place, metric).map(|cell| &self.cells[cell])
    }

    /// The cells of a benchmark.
    pub fn of<'a>(&'a self, benchmark: &'a str) -> impl Iterator<Item = &'a Cell> {
        let cells = self.cells.iter();
        cells.filter(move |cell| cell.place.benchmark == benchmark)
    }

    fn position(&self, place: &Place, metric: &str) -> Option<usize> {
        let mut cells = self.cells.iter();
        cells.position(|cell| cell.metric == metric && cell.place == *place)
    }
}

/// A run on one server.
#[derive(Serialize, Deserialize)]
pub struct Run {
    /// Name and version.
    pub server: String,
    /// The module's version, as the server tells it.
    pub module: String,
    /// Of the machine.
    pub kernel: String,
    /// How many this program could use.
    pub cores: usize,
    /// When it began.
    pub date: String,
    /// How long it was.
    pub extent: Extent,
    /// What was measured.
    pub sheet: Sheet,
}

impl Run {
    /// One that has measured nothing yet.
    pub fn begin(server: String, module: String, extent: Extent) -> Result<Run> {
        let uname = std::process::Command::new("uname").arg("-sr").output();
        let kernel = String::from_utf8(uname.context("uname")?.stdout)?;
        Ok(Run {
            server,
            module,
            // Without what a distributor adds.
            kernel: kernel.trim().split('-').next().unwrap_or("").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            extent,
            sheet: Sheet::default(),
        })
    }

    /// The server in the name of a file.
    pub fn slug(&self) -> String {
        self.server.to_lowercase().replace(' ', "-")
    }

    /// What a reader has to know of it.
    pub fn told(&self) -> String {
        let extent = match self.extent {
            Extent::Quick => "quick run, too short to judge by",
            Extent::Full => "full run",
        };
        let Run {
            server,
            module,
            kernel,
            cores,
            date,
            ..
        } = self;
        format!(
            "{server}, module version {module}, {kernel}, {cores} cores, {} ({extent})",
            &date[..date.len().min(10)]
        )
    }

    /// Writes it into a file of a folder that need not be there yet: `kind` and the server's name. A
    /// quick run never takes the place of a full one.
    pub fn save(&self, folder: &Path, kind: &str) -> Result<()> {
        let path = self.path(folder, kind);
        std::fs::create_dir_all(folder)?;
        std::fs::write(&path, self.text()?).with_context(|| path.display().to_string())
    }

    /// Takes over what an earlier run of the same kind measured and this one didn't.
    pub fn complete(&mut self, folder: &Path, kind: &str) -> Result<()> {
        let path = self.path(folder, kind);
        if !path.exists() {
            return Ok(());
        }
        let mut earlier = Run::load(&path)?;
        let fresh = |cell: &Cell| self.sheet.of(&cell.place.benchmark).next().is_some();
        earlier.sheet.cells.retain(|cell| !fresh(cell));
        self.sheet.cells.append(&mut earlier.sheet.cells);
        Ok(())
    }

    fn path(&self, folder: &Path, kind: &str) -> PathBuf {
        let quick = self.extent.of("quick-", "");
        folder.join(format!("{quick}{kind}{}.json", self.slug()))
    }

    /// As JSON, a line for each cell.
    fn text(&self) -> Result<String> {
        let cells = self.sheet.cells.iter().map(serde_json::to_string);
        let cells = cells.collect::<Result<Vec<_>, _>>()?.join(",\n");
        let mut head = serde_json::to_value(self)?;
        head["sheet"] = serde_json::Value::Array(Vec::new());
        let head = serde_json::to_string(&head)?;
        let (before, after) = head.split_once("\"sheet\":[]").context("no sheet")?;
        Ok(format!("{before}\"sheet\":[\n{cells}\n]{after}\n"))
    }

    /// All that a folder has, by name.
    pub fn load_all(folder: &Path) -> Result<Vec<Run>> {
        let shown = || folder.display().to_string();
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).with_context(shown)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                paths.push(path);
            }
        }
        paths.sort();
        ensure!(!paths.is_empty(), "no results in {}", shown());
        paths.iter().map(|path| Run::load(path)).collect()
    }

    fn load(path: &Path) -> Result<Run> {
        let text = std::fs::read_to_string(path)?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_as_it_was_written() -> Result<()> {
        let mut run = Run::begin("Redis 8.6.3".to_owned(), "0.1.0".to_owned(), Extent::Full)?;
        for contestant in ["us", "them"] {
            let place = Place::new("pair", "AOF off", 64, contestant);
            run.sheet.note(&place, metric::BYTES, 123_456.7)?;
        }
        let folder = tempfile::tempdir()?;
        run.save(folder.path(), "")?;
        assert!(folder.path().join("redis-8.6.3.json").exists());
        let read = Run::load_all(folder.path())?;
        assert_eq!(read[0].text()?, run.text()?);
        assert_eq!(read[0].sheet.cells[1].rounds, [123_460.0]);
        Ok(())
    }

    #[test]
    fn a_cell_tells_the_middle_and_the_ends_of_its_rounds() -> Result<()> {
        let place = Place::new("pair", "AOF off", 64, "us");
        let mut sheet = Sheet::default();
        for value in [3.0, 9.0, 1.0, 4.0] {
            sheet.note(&place, metric::PAIRS_PER_SECOND, value)?;
        }
        let cell = sheet.cell(&place, metric::PAIRS_PER_SECOND);
        let cell = cell.context("it was noted")?;
        assert_eq!((cell.median(), cell.least(), cell.most()), (3.5, 1.0, 9.0));
        assert!(sheet.note(&place, metric::BYTES, f64::NAN).is_err());
        assert!(sheet.note_some(&place, metric::BYTES, 0.0).is_err());
        Ok(())
    }
}
