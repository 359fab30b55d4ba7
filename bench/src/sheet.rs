//! The results of a run: for each place and metric, the numbers of all rounds.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{ensure, Context, Result};
use serde::{Deserialize, Serialize};

/// The names of the metrics, with their units.
pub mod metric {
    #![allow(missing_docs)] // Each value describes itself.
    pub const PAIRS_PER_SECOND: &str = "pairs/s";
    pub const CPU_PAIR: &str = "server CPU a pair, µs";
    pub const GRANTS_PER_SECOND: &str = "grants/s";
    pub const WAIT_P50: &str = "wait p50, ms";
    pub const WAIT_P99: &str = "wait p99, ms";
    pub const WAIT_MAX: &str = "wait max, ms";
    pub const GRANTS: &str = "grants";
    pub const LONGEST_WAIT: &str = "longest wait, ms";
    pub const LEAST_GRANTS: &str = "least grants of one";
    pub const MOST_GRANTS: &str = "most grants of one";
    pub const CONNECTIONS: &str = "connections";
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

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// Seconds per benchmark, for CI: enough to see that it works. The numbers are noise.
    Quick,
    /// Minutes per benchmark, enough for valid results.
    Full,
}

impl Extent {
    /// Returns the extent that the command line asks for.
    pub fn asked(quick: bool) -> Extent {
        if quick {
            Extent::Quick
        } else {
            Extent::Full
        }
    }

    /// Returns the size for this extent.
    pub fn of<T>(self, quick: T, full: T) -> T {
        match self {
            Extent::Quick => quick,
            Extent::Full => full,
        }
    }
}

/// The coordinates of a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The benchmark's name.
    pub benchmark: String,
    /// The setting of the measurement; may be empty.
    pub setting: String,
    /// The number that the benchmark varies.
    pub size: u64,
    /// The contestant's name.
    pub contestant: String,
}

impl Place {
    /// Returns the place with these coordinates.
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
    /// The place.
    #[serde(flatten)]
    pub place: Place,
    /// The metric, a name of `metric`.
    pub metric: String,
    /// The number of each round.
    pub rounds: Vec<f64>,
}

impl Cell {
    /// Returns the median of the rounds.
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

    /// Returns the minimum of the rounds.
    pub fn least(&self) -> f64 {
        self.rounds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the maximum of the rounds.
    pub fn most(&self) -> f64 {
        self.rounds.iter().copied().fold(0.0, f64::max)
    }
}

/// All numbers of a run, ordered by the first note of each place and metric.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sheet {
    /// One cell per place and metric.
    pub cells: Vec<Cell>,
}

impl Sheet {
    /// Adds the number of another round.
    pub fn note(&mut self, place: &Place, metric: &str, value: f64) -> Result<()> {
        ensure!(value.is_finite(), "{metric} of {place:?} is {value}");
        // Further digits carry no information.
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

    /// Like `note`, but fails if the value is not positive, because a benchmark that measured
    /// nothing is broken.
    pub fn note_some(&mut self, place: &Place, metric: &str, value: f64) -> Result<()> {
        ensure!(value > 0.0, "{metric} of {place:?} is {value}");
        self.note(place, metric, value)
    }

    /// Returns the median of a metric in a place, if the metric was measured there.
    pub fn median(&self, place: &Place, metric: &str) -> Option<f64> {
        self.cell(place, metric).map(Cell::median)
    }

    /// Returns the cell of a metric in a place, if the metric was measured there.
    pub fn cell(&self, place: &Place, metric: &str) -> Option<&Cell> {
        self.position(place, metric).map(|cell| &self.cells[cell])
    }

    /// Returns the cells of a benchmark.
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
    /// The server's name and version.
    pub server: String,
    /// The module's version, as the server reports it.
    pub module: String,
    /// The kernel of the machine.
    pub kernel: String,
    /// The number of cores available to this program.
    pub cores: usize,
    /// The time when the run began.
    pub date: String,
    /// The length of the run.
    pub extent: Extent,
    /// The results.
    pub sheet: Sheet,
}

impl Run {
    /// Returns a run without results, which begins now.
    pub fn begin(server: String, module: String, extent: Extent) -> Result<Run> {
        let uname = std::process::Command::new("uname").arg("-sr").output();
        let kernel = String::from_utf8(uname.context("uname")?.stdout)?;
        Ok(Run {
            server,
            module,
            // Drops the distributor's suffix.
            kernel: kernel.trim().split('-').next().unwrap_or("").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            extent,
            sheet: Sheet::default(),
        })
    }

    /// Returns the server's name and version in the form for a file name.
    pub fn slug(&self) -> String {
        self.server.to_lowercase().replace(' ', "-")
    }

    /// Returns true if the run has results of a benchmark.
    pub fn has(&self, benchmark: &str) -> bool {
        self.sheet.of(benchmark).next().is_some()
    }

    /// Returns a description of the run for a reader.
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

    /// Writes the run to a file in a folder, and creates the folder if it is missing. The file is
    /// named after `kind` and the server. A quick run never replaces a full run.
    pub fn save(&self, folder: &Path, kind: &str) -> Result<()> {
        let path = self.path(folder, kind);
        std::fs::create_dir_all(folder)?;
        std::fs::write(&path, self.text()?).with_context(|| path.display().to_string())
    }

    /// Adds the benchmarks, and their settings, that only an earlier run of the same kind has measured.
    pub fn complete(&mut self, folder: &Path, kind: &str) -> Result<()> {
        let path = self.path(folder, kind);
        if !path.exists() {
            return Ok(());
        }
        let mut earlier = Run::load(&path)?;
        let fresh = |cell: &Cell| {
            let mut cells = self.sheet.of(&cell.place.benchmark);
            cells.any(|own| own.place.setting == cell.place.setting)
        };
        earlier.sheet.cells.retain(|cell| !fresh(cell));
        self.sheet.cells.append(&mut earlier.sheet.cells);
        Ok(())
    }

    fn path(&self, folder: &Path, kind: &str) -> PathBuf {
        let quick = self.extent.of("quick-", "");
        folder.join(format!("{quick}{kind}{}.json", self.slug()))
    }

    /// Returns the run as JSON with one line per cell.
    fn text(&self) -> Result<String> {
        let cells = self.sheet.cells.iter().map(serde_json::to_string);
        let cells = cells.collect::<Result<Vec<_>, _>>()?.join(",\n");
        let mut head = serde_json::to_value(self)?;
        head["sheet"] = serde_json::Value::Array(Vec::new());
        let head = serde_json::to_string(&head)?;
        let (before, after) = head.split_once("\"sheet\":[]").context("no sheet")?;
        Ok(format!("{before}\"sheet\":[\n{cells}\n]{after}\n"))
    }

    /// Loads all runs in a folder, ordered by file name.
    pub fn load_all(folder: &Path) -> Result<Vec<Run>> {
        let name = || folder.display().to_string();
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).with_context(name)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                paths.push(path);
            }
        }
        paths.sort();
        ensure!(!paths.is_empty(), "no results in {}", name());
        paths.iter().map(|path| Run::load(path)).collect()
    }

    fn load(path: &Path) -> Result<Run> {
        let text = std::fs::read_to_string(path)?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }
}

/// Returns a number with its significant digits.
pub fn shown(value: f64) -> String {
    let digits = match value.abs() {
        size if size == size.trunc() || size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() {
        return grouped;
    }
    format!("{grouped}.{fraction}")
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
