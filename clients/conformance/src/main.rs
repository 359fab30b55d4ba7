//! Runs one table of behaviours through the drivers of the client libraries, against real servers.
//!
//! A driver is a small program in a client's language. It reads orders as JSON, one a line, and
//! executes them with the library: see docs/internals/client-tests.md. The suite checks the driver's answers,
//! their times, and the server's state of the lock.

mod bad_days;
mod behaviours;
mod chaos;
mod clients;
mod driver;
mod relay;
mod servers;
mod table;
mod world;

use std::any::Any;
use std::cell::RefCell;
use std::env;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{self, Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure, Context, Result};
use clap::{Parser, ValueEnum};
use libtest_mimic::{Arguments, Failed, Trial};
use redis_lock_rig::name_of;
use rustix::process::{kill_process_group, Pid, Signal};

use clients::{chosen, clients_folder, of_masters, Client};
use servers::{within, Kind, Machines, Setting};
use table::{Behaviour, Where};
use world::World;

/// The time limit of a client's own tests. The longest take two minutes on a quiet machine, with
/// everything built.
const OWN_TESTS_TIME: Duration = Duration::from_secs(900);

/// The most rows of clients on a JVM at once. Most rows wait for time to pass, but the start of a JVM
/// takes a second of CPU time.
const JVM_THREADS: usize = 4;

/// The most libraries whose own tests run at once.
const OWN_TESTS_THREADS: usize = 3;

/// Runs the conformance suite.
#[derive(Parser)]
struct Options {
    /// A client to test; all clients with a driver by default
    #[arg(long = "client")]
    clients: Vec<String>,
    /// A folder of a library, all of whose clients are tested
    #[arg(long = "library")]
    libraries: Vec<String>,
    /// The folder of all libraries; that of this program's sources by default
    #[arg(long, value_parser = from_anywhere)]
    folder: Option<PathBuf>,
    /// A kind of servers to play rows on; all kinds by default
    #[arg(long = "kind", value_enum)]
    kinds: Vec<Kind>,
    /// A part to run; all parts by default
    #[arg(long = "part", value_enum)]
    parts: Vec<Part>,
    /// A server program to test them on
    #[arg(long = "server", env = "REDIS_SERVER", required = true, value_parser = from_anywhere)]
    servers: Vec<PathBuf>,
    /// The module's shared library
    #[arg(long, env = "REDIS_LOCK_MODULE", value_parser = from_anywhere)]
    module: PathBuf,
    /// Skips the installs and builds of the clients
    #[arg(long)]
    no_setup: bool,
    /// Plays chaos for so many minutes on each kind of servers, and no part
    #[arg(long, value_name = "MINUTES")]
    chaos: Option<f64>,
    /// The seed of chaos; the time by default
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    run: Arguments,
}

/// A part of the suite.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The table of behaviours
    Rows,
    /// The own tests of the libraries
    Tests,
    /// The libraries' own tests of speed
    Speed,
}

/// Returns true if a value is among those chosen, or if none is chosen.
fn is_chosen<T: PartialEq>(chosen: &[T], value: &T) -> bool {
    chosen.is_empty() || chosen.contains(value)
}

/// Returns the absolute path, because a library's own tests run in another folder. A name without a
/// slash stays, and is looked up in PATH.
fn from_anywhere(path: &str) -> io::Result<PathBuf> {
    match path.contains('/') {
        true => path::absolute(path),
        false => Ok(path.into()),
    }
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(code) => code,
        Err(reason) => {
            eprintln!("conformance: {reason:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<ExitCode> {
    let folder = options.folder.clone().unwrap_or_else(clients_folder);
    let clients = chosen(&folder, &options.clients, &options.libraries)?;
    let folders = folders_of(&clients);
    let module = options.module.as_path();
    if !options.no_setup && !options.run.list {
        folders.iter().try_for_each(|folder| set_up(folder))?;
    }
    if let Some(minutes) = options.chaos {
        return play_chaos(&options, &clients, Duration::from_secs_f64(minutes * 60.0));
    }
    clients.iter().for_each(tell_what_is_left_out);
    let (mut rows, mut jvm_rows) = (Vec::new(), Vec::new());
    let (mut tests, mut speed_tests) = (Vec::new(), Vec::new());
    for server in &options.servers {
        for setting in settings(server, module, &options.kinds)? {
            for client in &clients {
                match client.starts_a_jvm() {
                    true => jvm_rows.extend(trials_of(client, &setting)),
                    false => rows.extend(trials_of(client, &setting)),
                }
            }
        }
        for folder in longest_first(&folders) {
            let trial = |program, name| own_tests(&folder.join(program), name, server, module);
            tests.extend(trial("test", "its own tests"));
            speed_tests.extend(trial("speed", "its own tests of speed"));
        }
    }
    panic::set_hook(Box::new(|info| {
        LAST_PANIC.set(info.to_string());
    }));
    let threads = match options.run.test_threads {
        Some(threads) => threads,
        None => thread::available_parallelism()?.get(),
    };
    let stages = [
        (Part::Rows, rows, threads),
        (Part::Rows, jvm_rows, threads.min(JVM_THREADS)),
        (Part::Tests, tests, threads.min(OWN_TESTS_THREADS)),
        (Part::Speed, speed_tests, 1),
    ];
    let (mut failed, mut ran) = (None, 0);
    for (part, trials, threads) in stages {
        if !is_chosen(&options.parts, &part) {
            continue;
        }
        let mut run = options.run.clone();
        run.test_threads = Some(threads);
        let ended = libtest_mimic::run(&run, trials);
        failed = failed.or(ended.has_failed().then(|| ended.exit_code()));
        ran += ended.num_passed + ended.num_failed;
    }
    ensure!(ran > 0 || options.run.list, "no test ran");
    Ok(failed.unwrap_or(ExitCode::SUCCESS))
}

/// Plays chaos on each kind of servers.
fn play_chaos(options: &Options, clients: &[Client], time: Duration) -> Result<ExitCode> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let seed = options.seed.unwrap_or(now.as_secs());
    let mut is_kept = true;
    for server in &options.servers {
        for mut setting in settings(server, &options.module, &options.kinds)? {
            setting.machines = Machines::Own;
            is_kept &= match setting.kind {
                Kind::Masters => chaos::play(&of_masters(), &setting, time, seed)?,
                _ => chaos::play(clients, &setting, time, seed)?,
            };
        }
    }
    ensure!(is_kept, "a promise was broken");
    Ok(ExitCode::SUCCESS)
}

/// Returns all rows.
fn table() -> impl Iterator<Item = &'static Behaviour> {
    behaviours::rows().chain(bad_days::rows())
}

/// Names the rows that a client leaves out. Writes to stderr, so that a list of the tests contains
/// nothing else.
fn tell_what_is_left_out(client: &Client) {
    let left_out = table().filter(|behaviour| !client.can_do(behaviour));
    let names: Vec<&str> = left_out.map(|behaviour| behaviour.name).collect();
    if !names.is_empty() {
        let (count, names) = (names.len(), names.join(", "));
        eprintln!(
            "{} lacks {:?}; {count} rows are left out: {names}",
            client.name, client.lacks
        );
    }
}

fn folders_of(clients: &[Client]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = clients.iter().map(|it| it.folder.clone()).collect();
    folders.dedup();
    folders
}

/// Returns the folders in the order in which their own tests begin. Java's take longest, so none of the
/// others begins after them.
fn longest_first(folders: &[PathBuf]) -> Vec<&PathBuf> {
    let mut folders: Vec<&PathBuf> = folders.iter().collect();
    folders.sort_by_key(|folder| !folder.ends_with("java"));
    folders
}

/// Runs the programs that install and build what a client's driver needs.
fn set_up(folder: &Path) -> Result<()> {
    let programs = ["setup", "runtimes/setup"].map(|name| folder.join(name));
    let mut there = programs.iter().filter(|program| program.exists());
    there.try_for_each(|program| run_to_its_end(program))
}

fn run_to_its_end(program: &Path) -> Result<()> {
    let status = Command::new(program).status();
    let status = status.with_context(|| format!("{} can't be run", program.display()))?;
    ensure!(
        status.success(),
        "{} ended with {status}",
        program.display()
    );
    Ok(())
}

fn settings(server: &Path, module: &Path, kinds: &[Kind]) -> Result<Vec<Setting>> {
    let name = name_of(server)?;
    let of = |kind: &Kind| Setting {
        program: server.to_owned(),
        module: module.to_owned(),
        server_name: name.clone(),
        kind: *kind,
        machines: Machines::Shared,
    };
    let kinds = Kind::value_variants()
        .iter()
        .filter(|it| is_chosen(kinds, it));
    Ok(kinds.map(of).collect())
}

fn trials_of(client: &Client, setting: &Setting) -> Vec<Trial> {
    let applies = |behaviour: &&'static Behaviour| match behaviour.place {
        Where::Anywhere => matches!(setting.kind, Kind::Standalone | Kind::Cluster),
        Where::Standalone => setting.kind == Kind::Standalone,
        Where::Cluster => setting.kind == Kind::Cluster,
        Where::Sentinel => setting.kind == Kind::Sentinel,
    };
    let trial = |behaviour: &'static Behaviour| {
        let name = format!("{} | {setting} | {}", client.name, behaviour.name);
        let (client, setting) = (client.clone(), setting.clone());
        Trial::test(name, move || tried(&client, &setting, behaviour))
    };
    let rows = table().filter(applies);
    rows.filter(|behaviour| client.can_do(behaviour))
        .map(trial)
        .collect()
}

thread_local! {
    /// The message and place of the last panic of a test.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The right to the machine: rows share it, except for one that plays alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// The most times that a late row plays alone.
const ALONE: usize = 3;

/// Plays a row beside others. A row that fails only by being late, or after an outage though it makes
/// none, plays again alone, because other rows may have kept the machine busy. Other programs may
/// still do, so it plays up to three times.
fn tried(client: &Client, setting: &Setting, behaviour: &Behaviour) -> Result<(), Failed> {
    let beside_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mut played = play(client, setting, behaviour);
    drop(beside_others);
    for _ in 0..ALONE {
        if !matches!(played, Err(Failure::Late(_))) {
            break;
        }
        let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        played = play(client, setting, behaviour);
    }
    played.map_err(Failed::from)
}

/// The reason why a row failed.
enum Failure {
    /// All was right, but a cell was late in each round, or a server that nobody stopped.
    Late(String),
    Wrong(String),
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        match failure {
            Failure::Late(text) | Failure::Wrong(text) => text.into(),
        }
    }
}

fn play(client: &Client, setting: &Setting, behaviour: &Behaviour) -> Result<(), Failure> {
    let script = client.folder.join("driver");
    let world = World::new(&script, client.name, setting);
    let mut world = world.map_err(|reason| Failure::Wrong(format!("{reason:#}")))?;
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (behaviour.run)(&mut world)));
    let fault = world.servers.crash().or_else(|| world.tokens_shown());
    let makes_outages = bad_days::rows().any(|row| row.name == behaviour.name);
    let is_late = world.is_late() || !makes_outages && world.sightings.has_outage();
    let failure = match (&fault, is_late) {
        (None, true) => Failure::Late,
        _ => Failure::Wrong,
    };
    match (outcome, fault) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(fault)) => Err(failure(fault)),
        (Err(payload), fault) => {
            let said = world.said_by_drivers();
            Err(failure(format!(
                "{}\n{}\n{said}",
                what_panicked(&*payload),
                fault.unwrap_or_default()
            )))
        }
    }
}

fn what_panicked(payload: &(dyn Any + Send)) -> String {
    let here = LAST_PANIC.take();
    let text = payload.downcast_ref::<String>().cloned();
    // Another thread of the test panicked, and this thread passed the panic on.
    if here.is_empty() {
        text.unwrap_or_else(|| "a thread panicked".to_owned())
    } else {
        here
    }
}

fn failed(reason: anyhow::Error) -> Failed {
    format!("{reason:#}").into()
}

/// Returns a trial that runs a program of a client's folder, if it is there. The program finds the
/// server and the module in REDIS_SERVER and REDIS_LOCK_MODULE. REDIS_LOCK_RIG names the program that
/// starts servers, if it was built together with this one.
fn own_tests(program: &Path, name: &str, server: &Path, module: &Path) -> Option<Trial> {
    if !program.exists() {
        return None;
    }
    let folder = program.parent()?.file_name()?.to_string_lossy();
    let name = format!("{folder} | {} | {name}", name_of(server).ok()?);
    let mut command = Command::new(program);
    command
        .env("REDIS_SERVER", server)
        .env("REDIS_LOCK_MODULE", module);
    let rig = env::current_exe().ok()?.with_file_name("rig");
    if rig.exists() {
        command.env("REDIS_LOCK_RIG", rig);
    }
    Some(Trial::test(name, move || {
        run_within(OWN_TESTS_TIME, command).map_err(failed)
    }))
}

/// Runs a program in a process group of its own, which is killed when the time is over.
/// The error contains what the program printed.
fn run_within(time: Duration, mut command: Command) -> Result<()> {
    let mut printed = tempfile::tempfile()?;
    command
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed.try_clone()?)
        .process_group(0);
    let mut child = command.spawn()?;
    let status = within(time, || child.try_wait().transpose()).transpose()?;
    if status.is_none() {
        kill_process_group(Pid::from_child(&child), Signal::KILL)?;
        child.wait()?;
    }
    if status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    let mut said = Vec::new();
    printed.rewind()?;
    printed.read_to_end(&mut said)?;
    let ending = status.map_or(format!("not over within {time:?}"), |it| it.to_string());
    bail!("{}\n{ending}", String::from_utf8_lossy(&said))
}
