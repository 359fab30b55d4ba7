//! Measures the common lock libraries, compared with LOCK.WAIT.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use redis_lock_bench::peers::Client;
use redis_lock_bench::rounds::Progress;
use redis_lock_bench::sheet::{Extent, Run};
use redis_lock_bench::stage::{raise_file_limit, Stage};
use redis_lock_bench::{peers, table};
use redis_lock_load::exit_code;

/// Measures clients that contend for one lock, through common lock libraries and through LOCK.WAIT.
#[derive(Parser)]
struct Options {
    /// Programs of the servers
    #[arg(required = true)]
    servers: Vec<PathBuf>,
    /// The module's library
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: PathBuf,
    /// The folder that bench/peers/install.sh installed the libraries in
    #[arg(long)]
    installed: PathBuf,
    /// Run only long enough to see that everything works
    #[arg(long)]
    quick: bool,
    /// Measure the libraries on these clients only, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<Client>,
    /// The folder of the results
    #[arg(long, default_value = "target/bench")]
    results: PathBuf,
}

fn main() -> ExitCode {
    exit_code(measured(&Options::parse()))
}

fn measured(options: &Options) -> Result<ExitCode> {
    raise_file_limit()?;
    let extent = Extent::asked(options.quick);
    let clients = match options.only.as_slice() {
        [] => Client::value_variants(),
        only => only,
    };
    let mut failed = 0;
    for program in &options.servers {
        let stage = Stage::new(program, &options.module, extent);
        let mut run = Run::begin(stage.server_name()?, stage.module_version()?, extent)?;
        let progress = Progress::new()?;
        let (installed, sheet) = (&options.installed, &mut run.sheet);
        failed += peers::measure(&stage, installed, clients, sheet, &progress)?;
        progress.close();
        table::print(&run, &[]);
        if !options.only.is_empty() {
            run.complete(&options.results, "peers-")?;
        }
        run.save(&options.results, "peers-")?;
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}
