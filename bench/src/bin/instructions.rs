//! Counts the instructions of pairs and hand-overs under valgrind, and fails if a count is above
//! CI's limit.

use std::path::PathBuf;
use std::process::ExitCode;

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
    for program in &options.servers {
        let stage = Stage::new(program, &options.module, Extent::Full);
        let mut run = Run::begin(stage.server_name()?, stage.module_version()?, Extent::Full)?;
        let progress = Progress::new()?;
        instructions::measure(&stage, &mut run.sheet, &progress)?;
        progress.close();
        table::print(&run, &bounds::all(&run));
        run.save(&options.results, "instructions-")?;
        let held = bounds::held();
        if let Some(table) = table::judged(&run, &held) {
            println!("\nHeld by CI until then\n{table}");
        }
        tally.judge(&run, &held);
    }
    Ok(tally.told())
}
