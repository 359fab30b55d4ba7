//! Instructions that a whole server spends on a pair, counted under valgrind: they hardly differ from
//! run to run, whatever else the machine does, so that a change of one percent shows. And how often the next
//! instruction isn't in a simulated cache of 32 KB, which costs as much as many instructions.

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

/// The name of the one that counts a hand-over: a release, the grant to the next in the queue, and a wait again.
pub const HAND_OVER: &str = "hand-over";

/// How many clients want the lock, and how many hand-overs are counted. The list of a thousand clients takes a Valkey
/// more than a million instructions each time.
pub const CONTENDERS: [(usize, u64); 2] = [(16, 800), (1_000, 80)];

/// How many commands are sent before their answers are read.
pub const PIPELINE: usize = 64;

/// How many pairs are counted.
const PAIRS: usize = 3_200;

/// How many are played before, so that tables have their size and code was translated.
const WARM_UP: usize = 640;

/// How often all is counted: the server's own timers fall into one count more than into another.
const ROUNDS: usize = 3;

/// How long the server may take to start under valgrind.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server's process, as valgrind's tool knows it.
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
        // Its exit code doesn't tell.
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(said.contains("OK."), "callgrind_control {order:?}: {said}");
        Ok(())
    }
}

/// Counts the instructions of all ways that the server knows.
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

/// Runs a program so that its instructions are counted from when that is asked for. The program may be
/// a script that starts the server.
fn callgrind(profile: &Path) -> Vec<OsString> {
    let mut file = OsString::from("--callgrind-out-file=");
    file.push(profile);
    let options = [
        "valgrind",
        "--tool=callgrind",
        "--trace-children=yes",
        "--instr-atstart=no",
        "--cache-sim=yes",
        // The first level of most processors of these years; what lies behind it doesn't count here.
        "--I1=32768,8,64",
        "--D1=32768,8,64",
        "--LL=1048576,8,64",
    ];
    let options = options.into_iter().map(OsString::from);
    options.chain([file]).collect()
}

/// What valgrind counts, part by part.
struct Profiles<'a> {
    folder: &'a Path,
    callgrind: Callgrind,
}

impl Profiles<'_> {
    /// Counts from now on.
    fn begin(&self) -> Result<()> {
        self.callgrind.tell(&["-z"])?;
        self.callgrind.tell(&["-i", "on"])
    }

    /// Returns what was counted since the begin, under a name of its own.
    fn end(&self, name: &str) -> Result<String> {
        self.callgrind.tell(&["-i", "off"])?;
        // Without spaces, because they end a name there.
        let dump = name.replace([' ', '/'], "");
        self.callgrind.tell(&[&format!("--dump={dump}")])?;
        profile_of(self.folder, &dump)
    }
}

/// The profile of this dump, among all that lie in a folder.
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

/// How often an event happened, by the sums of a profile.
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
