//! Random commands against real servers: `make fuzz`.
//!
//! Sixteen connections send commands drawn from the table in `commands.rs`. They send for some
//! seconds to a primary with a replica, and then to a cluster whose slots move away and return.
//! Afterwards the servers must be alive, and nothing may be left of the connections' commands.
//!
//! One seed draws one stream of commands for each connection. The server decides the order among
//! the connections.

mod commands;
mod connection;
mod crowd;
mod grammar;
mod known;
mod left_out;
mod payload;
mod server;
mod stage;
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use crowd::Crowd;
use grammar::Grammar;
use left_out::LeftOut;
use server::{Setup, Version};
use stage::{Scene, Stage};
use verdict::{Loaded, Memory};

/// Sends random commands to servers with the module, and reports their faults.
#[derive(Parser)]
struct Args {
    /// The server programs, one run each.
    #[arg(required = true)]
    servers: Vec<PathBuf>,

    /// Time to send to each server, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u32,

    /// Seed of an earlier run, whose commands are drawn once more.
    #[arg(long)]
    seed: Option<u64>,

    /// The module.
    #[arg(long, env = "REDIS_LOCK_MODULE", required_unless_present = "plain")]
    module: Option<PathBuf>,

    /// Loads no module, so every fault is the server's own.
    #[arg(long)]
    plain: bool,

    /// Parts of a run to play.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "plain,cluster"
    )]
    scenes: Vec<Scene>,

    /// Kinds of commands to draw from, instead of all.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Kinds of commands not to draw.
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,

    /// Also draws commands of which the server is known to die without the module.
    #[arg(long)]
    nothing_left_out: bool,
}

/// The plan that all runs share.
struct Plan {
    seed: u64,
    seconds: u32,
    module: Option<PathBuf>,
    scenes: Vec<Scene>,
    only: Vec<String>,
    without: Vec<String>,
    nothing_left_out: bool,
}

/// The outcome of the runs against one server.
#[derive(Default)]
struct Outcome {
    commands: u64,
    time: Duration,
    faults: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let plan = Plan {
        seed: args.seed.unwrap_or_else(|| rand::random_range(0..1 << 32)),
        seconds: args.seconds,
        module: args.module.filter(|_| !args.plain),
        scenes: args.scenes,
        only: args.only,
        without: args.without,
        nothing_left_out: args.nothing_left_out,
    };
    let mut failures = Vec::new();
    for program in &args.servers {
        match Version::of(program) {
            Ok(version) => {
                let outcome = fuzz(program, &version, &plan);
                tell(&version, &plan, &outcome);
                failures.extend(outcome.failure(&version));
            }
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    let failed = failures.len();
    println!("{} passed, {failed} failed", args.servers.len() - failed);
    // Repeat the failures without the logs, so that the end of the output has them all.
    for failure in failures {
        println!("{failure}");
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints the line of a server, and its faults.
fn tell(version: &Version, plan: &Plan, outcome: &Outcome) {
    let verdict = if outcome.faults.is_empty() {
        "ok"
    } else {
        "FAILED"
    };
    println!(
        "{:<14} seed {:<10} {:>9} commands {:>7.0}/s  {verdict}",
        version.name(),
        plan.seed,
        outcome.commands,
        outcome.commands as f64 / outcome.time.as_secs_f64().max(0.001),
    );
    for fault in &outcome.faults {
        println!("  {fault}");
    }
}

impl Outcome {
    /// Returns the first line of each fault, if there are any.
    fn failure(&self, version: &Version) -> Option<String> {
        let heads = self.faults.iter().filter_map(|fault| fault.lines().next());
        let heads: Vec<&str> = heads.collect();
        (!heads.is_empty()).then(|| format!("{}: {}", version.name(), heads.join("; ")))
    }
}

fn fuzz(program: &Path, version: &Version, plan: &Plan) -> Outcome {
    let mut outcome = Outcome::default();
    let shares: u32 = plan.scenes.iter().map(|scene| scene.share()).sum();
    for scene in plan.scenes.iter().copied() {
        let time = Duration::from_secs(plan.seconds.into()) * scene.share() / shares;
        if let Err(error) = play(program, version, plan, scene, time, &mut outcome) {
            outcome.faults.push(format!("{}: {error:#}", scene.name()));
        }
        if !outcome.faults.is_empty() {
            break;
        }
    }
    outcome
}

fn play(
    program: &Path,
    version: &Version,
    plan: &Plan,
    scene: Scene,
    time: Duration,
    outcome: &mut Outcome,
) -> Result<()> {
    let dir = tempfile::Builder::new()
        .prefix("redis-lock-fuzz-")
        .tempdir()?;
    let setup = Setup {
        program: program.to_owned(),
        module: plan.module.clone(),
        dir: dir.path().to_owned(),
    };
    let grammar = grammar(version, plan, scene)?;
    let stage = Stage::set(scene, &setup)?;
    let known = stage.known()?;
    let before = Memory::of(stage.primary())?;
    let mut crowd = Crowd::new(scene.targets(), plan.seed);

    let bar = bar(version, scene, time);
    let began = Instant::now();
    let ran = crowd.run(&grammar, &known, &stage.servers, began + time, || {
        bar.set_position(began.elapsed().as_millis() as u64);
    });
    bar.finish_and_clear();
    outcome.time += began.elapsed();
    outcome.commands += crowd.answers();
    let record = crowd.record();
    drop(crowd);

    let faults = judge(&stage, scene, plan, &before, ran);
    if !faults.is_empty() {
        outcome.faults.extend(faults);
        outcome.faults.push(keep(dir, &record, &stage)?);
    }
    Ok(())
}

fn grammar(version: &Version, plan: &Plan, scene: Scene) -> Result<Grammar> {
    let left_out = if plan.nothing_left_out {
        LeftOut::default()
    } else {
        LeftOut::of(version, scene)
    };
    let mut kinds = scene.kinds();
    kinds.retain(|kind| {
        let named = |names: &[String]| names.iter().any(|name| name == kind.name);
        !named(&plan.without) && (plan.only.is_empty() || named(&plan.only))
    });
    Grammar::new(&kinds, &left_out)
}

fn judge(
    stage: &Stage,
    scene: Scene,
    plan: &Plan,
    before: &Memory,
    ran: Result<()>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let loaded = match plan.module {
        Some(_) => Loaded::Module,
        None => Loaded::Nothing,
    };
    match ran {
        Ok(()) => faults.extend(verdict::faults(stage, scene, loaded, before)),
        Err(error) => faults.push(format!("{error:#}")),
    }
    for crash in verdict::crashes(stage) {
        if !faults.contains(&crash) {
            faults.push(crash);
        }
    }
    for fault in &mut faults {
        fault.insert_str(0, &format!("{}: ", scene.name()));
    }
    faults
}

/// Keeps the servers' directories, with the commands that were sent last. Returns a text that names
/// the path, and has the end of the log of each server that crashed.
fn keep(dir: TempDir, record: &str, stage: &Stage) -> Result<String> {
    let dir = dir.keep();
    fs::write(dir.join("commands.txt"), record)?;
    let mut text = format!("what was sent last, and the logs: {}", dir.display());
    for server in &stage.servers {
        if server.death().is_some() || server.crash_mark().is_some() {
            text += &format!("\n--- the {}'s log\n{}", server.role(), server.log_tail());
        }
    }
    Ok(text)
}

fn bar(version: &Version, scene: Scene, time: Duration) -> ProgressBar {
    let bar = ProgressBar::new(time.as_millis() as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(format!("{} ({})", version.name(), scene.name()));
    bar
}
