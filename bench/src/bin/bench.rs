//! Measures the cost of locks on a server, and shows the results.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{ensure, Context, Result};
use clap::{Parser, ValueEnum};
use redis_lock_bench::bounds::Tally;
use redis_lock_bench::rounds::Progress;
use redis_lock_bench::sheet::{Extent, Run, Sheet};
use redis_lock_bench::stage::{raise_file_limit, Stage};
use redis_lock_bench::{
    block_end, bounds, contended, document, handoff, lease_end, mass_end, memory, pair, plot,
    replicas, table,
};
use redis_lock_load::exit_code;

/// Measures servers with the module, compared with the alternatives without it, and writes a file
/// of results for each server; or writes existing results into the documentation.
#[derive(Parser)]
struct Options {
    /// Programs of the servers
    servers: Vec<PathBuf>,
    /// The module's library
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: Option<PathBuf>,
    /// Run only long enough to see that everything works
    #[arg(long)]
    quick: bool,
    /// Run these benchmarks only, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<Benchmark>,
    /// The folder of the results
    #[arg(long, default_value = "target/bench")]
    results: PathBuf,
    /// Write the results into this folder of the documentation
    #[arg(long)]
    docs: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Benchmark {
    /// Acquire and release of an uncontended lock
    Pair,
    /// One lock with many contenders
    Contended,
    /// The time from a release until the next waiter has its reply
    Handoff,
    /// The time until a client knows that a replica has its grant
    Replicas,
    /// The delay between the end of a lease and the waiter's grant
    LeaseEnd,
    /// The delay of the end of a BLOCK
    BlockEnd,
    /// Bytes of a lock and of a waiter
    Memory,
    /// Many locks that end in one second
    MassEnd,
}

impl Benchmark {
    fn measure(self, stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
        match self {
            Benchmark::Pair => pair::measure(stage, sheet, progress),
            Benchmark::Contended => contended::measure(stage, sheet, progress),
            Benchmark::Handoff => handoff::measure(stage, sheet, progress),
            Benchmark::Replicas => replicas::measure(stage, sheet, progress),
            Benchmark::LeaseEnd => lease_end::measure(stage, sheet, progress),
            Benchmark::BlockEnd => block_end::measure(stage, sheet, progress),
            Benchmark::Memory => memory::measure(stage, sheet, progress),
            Benchmark::MassEnd => mass_end::measure(stage, sheet, progress),
        }
    }
}

fn main() -> ExitCode {
    exit_code(done(&Options::parse()))
}

fn done(options: &Options) -> Result<ExitCode> {
    ensure!(
        options.docs.is_some() || !options.servers.is_empty(),
        "no server is named"
    );
    raise_file_limit()?;
    let mut tally = Tally::default();
    for (stage, name) in stages(options)? {
        tally.add(&measured(&stage, name, options)?);
    }
    if let Some(docs) = &options.docs {
        document::write(docs, &Run::load_all(&options.results)?)?;
    }
    Ok(tally.told())
}

/// Returns a stage for each server. All programs are run once before the first measurement, so a
/// mistyped name fails at once.
fn stages(options: &Options) -> Result<Vec<(Stage, String)>> {
    let extent = Extent::asked(options.quick);
    let stages = options.servers.iter().map(|program| {
        let module = options.module.as_deref();
        let module = module.context("no module: --module or REDIS_LOCK_MODULE")?;
        let stage = Stage::new(program, module, extent);
        let name = stage.server_name()?;
        Ok((stage, name))
    });
    stages.collect()
}

/// Measures a server. A benchmark that stops with an error counts as failed, and the others go on.
fn measured(stage: &Stage, server: String, options: &Options) -> Result<Tally> {
    let mut run = Run::begin(server, stage.module_version()?, stage.extent())?;
    let progress = Progress::new()?;
    let mut tally = Tally::default();
    let all = Benchmark::value_variants().iter();
    for benchmark in all.filter(|one| options.only.is_empty() || options.only.contains(one)) {
        let mut sheet = Sheet::default();
        match benchmark.measure(stage, &mut sheet, &progress) {
            Ok(()) => {
                tally.passed += 1;
                run.sheet.cells.append(&mut sheet.cells);
            }
            Err(error) => {
                tally.failed += 1;
                progress.interrupt(&format!("{}: {error:#}", run.server));
            }
        }
    }
    progress.close();
    let bounds = bounds::all(&run);
    table::print(&run, &bounds);
    tally.judge(&run, &bounds);
    if !options.only.is_empty() {
        run.complete(&options.results, "")?;
    }
    run.save(&options.results, "")?;
    plot::draw(&run, &options.results)?;
    Ok(tally)
}
