//! The instructions that a whole server spends on a pair and on a hand-over, counted under
//! valgrind.
//!
//! The counts hardly differ from run to run, whatever the load of the machine, so a change of one
//! percent is visible. For pairs, the misses of a simulated instruction cache of 32 KB are counted
//! too, because a miss costs as much as many instructions.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use redis_lock_load::Server;

use crate::contended::{self, HandedOver};
use crate::pairs::{self, Pairs};
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::Stage;
use crate::wire::Wire;

/// The benchmark's name.
pub const NAME: &str = "instructions";

/// The name of the benchmark that counts a hand-over: a release, the grant to the next waiter, and
/// a new wait.
pub const HAND_OVER: &str = "hand-over";

/// The numbers of contenders, each with the number of hand-overs that are counted. With a thousand
/// clients, Valkey spends more than a million instructions per hand-over of the list.
pub const CONTENDERS: [(usize, u64); 2] = [(16, 800), (1_000, 80)];

/// The number of commands that are sent before their replies are read.
pub const PIPELINE: usize = 64;

/// The number of pairs that are counted.
const PAIRS: usize = 3_200;

/// The number of pairs that are played first, so that tables have their size and valgrind has
/// translated the code.
const WARM_UP: usize = 640;

/// The number of counts of each way. Counts differ because the server's timers run more often in
/// one than in another.
const ROUNDS: usize = 3;

/// The time that the server may take to start under valgrind.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server's process, under valgrind's tool callgrind.
struct Callgrind {
    process: String,
}

impl Callgrind {
    fn tell(&self, order: &[&str]) -> Result<()> {
        let output = Command::new("callgrind_control")
            .args(order)
            .arg(&self.process)
            .output()
            .context("callgrind_control can't be run: install the package valgrind")?;
        // The exit code doesn't show a failure.
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(said.contains("OK."), "callgrind_control {order:?}: {said}");
        Ok(())
    }
}

/// Counts the instructions of all ways that the server supports.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let profile = folder.path().join("profile");
    let server = stage.start_under(callgrind(&profile), &[], PATIENCE);
    let server = server.context("under valgrind")?;
    let process = server.connect()?.info("server", "process_id")?;
    let profiles = Profiles {
        folder: folder.path(),
        callgrind: Callgrind { process },
    };
    measure_pairs(&server, &profiles, sheet, progress)?;
    for (contenders, count) in CONTENDERS {
        measure_hand_overs(&server, &profiles, (contenders, count), sheet, progress)?;
    }
    Ok(())
}

fn measure_pairs(
    server: &Server,
    profiles: &Profiles<'_>,
    sheet: &mut Sheet,
    progress: &Progress,
) -> Result<()> {
    let mut asker = server.connect()?;
    let mut wire = Wire::open(server.port())?;
    let mut all = pairs::all(&mut asker, PAIRS)?;
    let name = |way: &Pairs| format!("{NAME}: {}", way.name);
    interleaved(ROUNDS, &mut all, progress, name, |round, way| {
        way.play(&mut wire, (0, WARM_UP), PIPELINE)?;
        profiles.begin()?;
        way.play(&mut wire, (0, PAIRS), PIPELINE)?;
        let profile = profiles.end(&format!("{}-{round}", way.name))?;
        let place = Place::new(NAME, "", PIPELINE as u64, way.name);
        for (metric, event) in [(metric::INSTRUCTIONS, "Ir"), (metric::FETCHES, "I1mr")] {
            let counted = total(&profile, event)?;
            sheet.note_some(&place, metric, counted / PAIRS as f64)?;
        }
        Ok(())
    })
}

fn measure_hand_overs(
    server: &Server,
    profiles: &Profiles<'_>,
    (contenders, count): (usize, u64),
    sheet: &mut Sheet,
    progress: &Progress,
) -> Result<()> {
    let mut all = contended::handed_over(contenders);
    let name = |way: &HandedOver| format!("{HAND_OVER}, {contenders}: {}", way.name());
    interleaved(ROUNDS, &mut all, progress, name, |round, way| {
        let mut profile = None;
        let end = || {
            let name = format!("{}-{contenders}-{round}", way.name());
            profile = Some(profiles.end(&name)?);
            Ok(())
        };
        let counted = way.play(server, count, || profiles.begin(), end)?;
        let place = Place::new(HAND_OVER, "", contenders as u64, way.name());
        let sum = total(&profile.context("no profile")?, "Ir")?;
        sheet.note_some(&place, metric::INSTRUCTIONS_GRANT, sum / counted as f64)
    })
}

/// Returns the words of a command line that runs a program under callgrind. Counting is off until
/// `Profiles::begin`. The program may be a script that starts the server.
fn callgrind(profile: &Path) -> Vec<OsString> {
    let mut file = OsString::from("--callgrind-out-file=");
    file.push(profile);
    let options = [
        "valgrind",
        "--tool=callgrind",
        "--trace-children=yes",
        "--instr-atstart=no",
        "--cache-sim=yes",
        // The first-level cache of most current processors. The levels behind it aren't counted
        // here.
        "--I1=32768,8,64",
        "--D1=32768,8,64",
        "--LL=1048576,8,64",
    ];
    let options = options.into_iter().map(OsString::from);
    options.chain([file]).collect()
}

/// The profiles that callgrind writes, one per measurement.
struct Profiles<'a> {
    folder: &'a Path,
    callgrind: Callgrind,
}

impl Profiles<'_> {
    /// Resets the counters, and starts counting.
    fn begin(&self) -> Result<()> {
        self.callgrind.tell(&["-z"])?;
        self.callgrind.tell(&["-i", "on"])
    }

    /// Stops counting, and returns the profile since `begin`. `name` identifies the profile's file.
    fn end(&self, name: &str) -> Result<String> {
        self.callgrind.tell(&["-i", "off"])?;
        // Without spaces, because a space ends the name of a dump.
        let dump = name.replace([' ', '/'], "");
        self.callgrind.tell(&[&format!("--dump={dump}")])?;
        profile_of(self.folder, &dump)
    }
}

/// Returns the profile of a dump from the files in a folder.
fn profile_of(folder: &Path, dump: &str) -> Result<String> {
    for entry in fs::read_dir(folder)? {
        let text = fs::read_to_string(entry?.path())?;
        let named = |line: &str| line.contains("Trigger: ") && line.ends_with(dump);
        if text.lines().any(named) {
            return Ok(text);
        }
    }
    bail!("no profile is of {dump}")
}

/// Returns the total of an event in a profile.
fn total(profile: &str, event: &str) -> Result<f64> {
    let line = |head| profile.lines().find_map(|line| line.strip_prefix(head));
    let events = line("events: ").context("a profile without events")?;
    let totals = line("totals: ").context("a profile without sums")?;
    let mut sums = events.split_whitespace().zip(totals.split_whitespace());
    let (_, sum) = sums
        .find(|(name, _)| *name == event)
        .with_context(|| format!("a profile without a sum of {event}"))?;
    Ok(sum.parse()?)
}
