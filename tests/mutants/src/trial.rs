//! Trials: tests, played with one mutant each.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::build::Built;
use crate::listed::Mutant;
use crate::pool;
use crate::rewrite::Number;

/// The exit code of a program whose mutant made a loop endless.
const ENDLESS: i32 = 97;
/// Calls of the switch that every trial may make, besides ten times those of its tests.
const FREE_CALLS: u64 = 1 << 20;
/// Tests that are tried first, because they caught mutants near by.
const FAVOURITES: usize = 4;

/// The bounds of trials.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Tests of one program at once.
    pub threads: usize,
    pub memory_kib: Option<u64>,
    /// Time of the tests that are played together first. Each next group takes twice as long.
    pub first_group: Duration,
    /// Times that a test which failed is played again, while no other trial runs. It must fail each
    /// time, because a busy machine may make tests of servers fail.
    pub repeats: usize,
}

/// One test as it was without a mutant.
pub struct Test {
    program: PathBuf,
    pub name: String,
    time: Duration,
    calls: u64,
    reached: BTreeSet<Number>,
}

/// The result of a mutant's trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Caught(Caught),
    /// Tests reach it, and all of them pass.
    Survived,
    /// No test reaches it.
    Unreached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    ByTests,
    Endless,
    Crashed,
}

/// The number of mutants of one file that each test caught.
type Favourites = HashMap<String, usize>;

pub struct Trials {
    runner: Runner,
    /// False if a test fails without a mutant, and is left out.
    pub are_complete: bool,
    /// The tests, quick ones first.
    tests: Vec<Test>,
    favourites: Mutex<HashMap<PathBuf, Favourites>>,
    /// Trials share it. A test that is played again has it alone.
    machine: RwLock<()>,
}

impl Trials {
    /// Runs each test alone without a mutant, and notes which mutants it reaches. Leaves out tests
    /// that fail, and those that take longer than `longest` ms.
    pub fn prepare(built: &Built, bounds: Bounds, jobs: usize, longest: u64) -> Result<Self> {
        let runner = Runner {
            directory: built.directory.clone(),
            module: built.module.clone(),
            bounds,
        };
        let mut named = Vec::new();
        for program in &built.programs {
            for name in runner.names(program)? {
                named.push((program.clone(), name));
            }
        }
        let records = tempfile::tempdir()?;
        let tests = pool::map(jobs * bounds.threads, named.len(), |index| {
            let (program, name) = &named[index];
            runner.record(&records.path().join(index.to_string()), program, name)
        });
        let tests: Vec<_> = tests.into_iter().collect::<Result<_>>()?;
        let mut tests: Vec<Test> = tests.into_iter().flatten().collect();
        let are_complete = tests.len() == named.len();
        tests.retain(|test| test.time.as_millis() <= u128::from(longest));
        tests.sort_by_key(|test| test.time);
        Ok(Self {
            runner,
            are_complete,
            tests,
            favourites: Mutex::default(),
            machine: RwLock::default(),
        })
    }

    /// Returns the number of tests.
    pub fn len(&self) -> usize {
        self.tests.len()
    }

    /// Plays the tests that reach a mutant until one fails, quick ones first.
    pub fn play(&self, number: Number, mutant: &Mutant) -> Result<Verdict> {
        let reaching = self
            .tests
            .iter()
            .filter(|test| test.reached.contains(&number));
        let reaching: Vec<&Test> = reaching.collect();
        if reaching.is_empty() {
            return Ok(Verdict::Unreached);
        }
        let first = self.runner.bounds.first_group;
        for group in groups(reaching, &self.favourites(mutant), first) {
            if let Some((caught, by)) = self.play_group(number, &group)? {
                self.like(mutant, by);
                return Ok(Verdict::Caught(caught));
            }
        }
        Ok(Verdict::Survived)
    }

    fn favourites(&self, mutant: &Mutant) -> Favourites {
        let all = self
            .favourites
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.get(&mutant.file).cloned().unwrap_or_default()
    }

    fn like(&self, mutant: &Mutant, test: Option<String>) {
        let mut all = self
            .favourites
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let of_file = all.entry(mutant.file.clone()).or_default();
        *of_file.entry(test.unwrap_or_default()).or_default() += 1;
    }

    fn play_group(
        &self,
        number: Number,
        group: &[&Test],
    ) -> Result<Option<(Caught, Option<String>)>> {
        for program in group
            .iter()
            .map(|test| &test.program)
            .collect::<BTreeSet<_>>()
        {
            let of_program = group.iter().filter(|test| test.program == *program);
            let mut left: Vec<&Test> = of_program.copied().collect();
            while let Some((caught, by)) = self.play_beside_others(number, program, &left)? {
                let is_by = |test: &&Test| by.as_ref().is_none_or(|by| *by == test.name);
                let (failed, others): (Vec<_>, Vec<_>) = left.into_iter().partition(is_by);
                if self.is_caught_again(number, program, &failed)? {
                    return Ok(Some((caught, by)));
                }
                left = others;
            }
        }
        Ok(None)
    }

    fn play_beside_others(
        &self,
        number: Number,
        program: &Path,
        tests: &[&Test],
    ) -> Result<Option<(Caught, Option<String>)>> {
        let _shared = self.machine.read().unwrap_or_else(PoisonError::into_inner);
        self.runner.play(number, program, tests)
    }

    fn is_caught_again(&self, number: Number, program: &Path, tests: &[&Test]) -> Result<bool> {
        let repeats = self.runner.bounds.repeats;
        if repeats == 0 {
            return Ok(true);
        }
        let _alone = self.machine.write().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..repeats {
            if self.runner.play(number, program, tests)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Sorts tests into groups: the favourites, then groups that take longer and longer.
fn groups<'t>(
    tests: Vec<&'t Test>,
    favourites: &Favourites,
    first: Duration,
) -> Vec<Vec<&'t Test>> {
    let mut liked: Vec<(&usize, &&Test)> = tests
        .iter()
        .filter_map(|test| Some((favourites.get(&test.name)?, test)))
        .filter(|(_, test)| test.time < first)
        .collect();
    liked.sort_by_key(|(count, _)| std::cmp::Reverse(**count));
    liked.truncate(FAVOURITES);
    let liked: Vec<&Test> = liked.into_iter().map(|(_, test)| *test).collect();
    let is_liked = |test: &&Test| liked.iter().any(|other| other.name == test.name);
    let mut groups = Vec::new();
    let (mut group, mut time, mut most) = (Vec::new(), Duration::ZERO, first);
    for test in tests.into_iter().filter(|test| !is_liked(test)) {
        group.push(test);
        time += test.time;
        if time >= most {
            groups.push(std::mem::take(&mut group));
            (time, most) = (Duration::ZERO, most * 2);
        }
    }
    groups.push(group);
    groups.insert(0, liked);
    groups.retain(|group| !group.is_empty());
    groups
}

/// The way in which test programs run.
struct Runner {
    directory: PathBuf,
    module: Option<PathBuf>,
    bounds: Bounds,
}

impl Runner {
    fn names(&self, program: &Path) -> Result<Vec<String>> {
        let mut command = self.bounded(program, 60);
        let output = command.args(["--list", "--format=terse"]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// Plays one test without a mutant. Returns `None` if it fails.
    fn record(&self, file: &Path, program: &Path, name: &str) -> Result<Option<Test>> {
        for _ in 0..=self.bounds.repeats {
            let test = self.record_once(file, program, name)?;
            if test.is_some() {
                return Ok(test);
            }
        }
        Ok(None)
    }

    fn record_once(&self, file: &Path, program: &Path, name: &str) -> Result<Option<Test>> {
        let began = Instant::now();
        let mut command = self.bounded(program, 600);
        command.args(["--exact", name]).env("MUTANTS_RECORD", file);
        let output = command.output()?;
        let time = began.elapsed();
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout);
            eprintln!("{name} fails without a mutant:\n{text}");
            return Ok(None);
        }
        let record = match file.exists() {
            true => fs::read_to_string(file)?,
            false => String::new(),
        };
        let (mut calls, mut reached) = (0, BTreeSet::new());
        for line in record.lines() {
            match line.split_once(' ').context("a line of the record")? {
                ("calls", most) => calls = most.parse::<u64>()?.max(calls),
                (first, count) => {
                    let first: Number = first.parse()?;
                    reached.extend(first..first + count.parse::<usize>()?);
                }
            }
        }
        Ok(Some(Test {
            program: program.to_owned(),
            name: name.to_owned(),
            time,
            calls,
            reached,
        }))
    }

    /// Plays tests of a program with a mutant, until one fails. Returns its name, if it has one.
    fn play(
        &self,
        number: Number,
        program: &Path,
        tests: &[&Test],
    ) -> Result<Option<(Caught, Option<String>)>> {
        let calls: u64 = tests.iter().map(|test| test.calls).sum();
        let time: Duration = tests.iter().map(|test| test.time).sum();
        let mut command = self.bounded(program, 4 + 4 * time.as_secs());
        command
            .args(["--fail-fast", "--exact"])
            .args(tests.iter().map(|test| &test.name))
            .env("MUTANTS_ACTIVE", number.to_string())
            .env("MUTANTS_FUEL", (FREE_CALLS + 20 * calls).to_string());
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(caught(output.status).map(|caught| (caught, failed_test(&text))))
    }

    /// Returns a command for a test program with bounds of memory, processor time and time.
    fn bounded(&self, program: &Path, cpu_seconds: u64) -> Command {
        let script = "ulimit -c 0 -v \"$1\" -t \"$2\"; shift 2; exec timeout 300 \"$@\"";
        let memory = self.bounds.memory_kib;
        let memory = memory.map_or("unlimited".to_owned(), |kib| kib.to_string());
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh"])
            .args([memory, cpu_seconds.to_string()])
            .arg(program)
            .arg("-Zunstable-options")
            .arg(format!("--test-threads={}", self.bounds.threads))
            .current_dir(&self.directory)
            .envs(self.module.iter().map(|path| ("REDIS_LOCK_MODULE", path)))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUST_BACKTRACE", "0")
            .env("PROPTEST_RNG_SEED", "41")
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env_remove("SMALL_WORLD_SECONDS")
            .stdin(Stdio::null());
        command
    }
}

fn caught(status: ExitStatus) -> Option<Caught> {
    match status.code() {
        Some(0) => None,
        Some(101) => Some(Caught::ByTests),
        // 124: the bound of `timeout`. 137 and 152: killed because of a bound.
        Some(ENDLESS | 124 | 137 | 152) => Some(Caught::Endless),
        _ => Some(Caught::Crashed),
    }
}

fn failed_test(output: &str) -> Option<String> {
    let mut lines = output.lines();
    let line = lines.find(|line| line.starts_with("test ") && line.ends_with("... FAILED"))?;
    let line = line.strip_prefix("test ")?.strip_suffix("... FAILED")?;
    Some(line.trim().to_owned())
}
