//! Counts the instructions of pairs and hand-overs under valgrind, and fails if a count is above
//! CI's limit.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::Result;
use clap::Parser;
use redis_lock_bench::bounds::Tally;
use redis_lock_bench::rounds::Progress;
use redis_lock_bench::sheet::{Extent, Run};
use redis_lock_bench::stage::Stage;
use redis_lock_bench::{bounds, instructions, table};
use redis_lock_load::exit_code;

/// Counts the instructions that a whole server spends on the acquire and release of a lock.
#[derive(Parser)]
struct Options {
    /// Programs of the servers
    #[arg(required = true)]
    servers: Vec<PathBuf>,
    /// The module's library
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: PathBuf,
    /// The folder of the results
    #[arg(long, default_value = "target/bench")]
    results: PathBuf,
}

fn main() -> ExitCode {
    exit_code(counted(&Options::parse()))
}

fn counted(options: &Options) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let at_once = thread::available_parallelism()?.get();
    for programs in options.servers.chunks(at_once) {
        for run in count_at_once(programs, options)? {
            table::print(&run, &bounds::all(&run));
            run.save(&options.results, "instructions-")?;
            let held = bounds::held();
            if let Some(table) = table::judged(&run, &held) {
                println!("\nHeld by CI until then\n{table}");
            }
            tally.judge(&run, &held);
        }
    }
    Ok(tally.told())
}

/// Counts on several servers at once: valgrind runs each of them on one core, and counts the same on a
/// busy machine.
fn count_at_once(programs: &[PathBuf], options: &Options) -> Result<Vec<Run>> {
    let progress = Progress::new()?;
    let runs = thread::scope(|scope| {
        let count = |program| count(program, options, &progress);
        let counting = programs
            .iter()
            .map(|program| scope.spawn(move || count(program)));
        let counting: Vec<_> = counting.collect();
        let ended = counting
            .into_iter()
            .map(|it| it.join().expect("a count that ended"));
        ended.collect()
    });
    progress.close();
    runs
}

fn count(program: &Path, options: &Options, progress: &Progress) -> Result<Run> {
    let stage = Stage::new(program, &options.module, Extent::Full);
    let mut run = Run::begin(stage.server_name()?, stage.module_version()?, Extent::Full)?;
    instructions::measure(&stage, &mut run.sheet, progress)?;
    Ok(run)
}
