//! Measures the CPU time of locks on clusters of 1, 3 and 6 primaries: does a lock cost more if there
//! are more shards? CPU time counts, because all primaries share this machine.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use redis_lock_bench::reply::{Reply, GRANT};
use redis_lock_bench::wire::Wire;
use redis_lock_load::exit_code;
use redis_lock_rig::{form_cluster, node_lines, packed, Plan, Process};

/// Measures what locks cost on clusters of 1, 3 and 6 primaries.
#[derive(Parser)]
struct Options {
    /// Programs of the servers
    #[arg(required = true)]
    servers: Vec<PathBuf>,
    /// The module's library
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: PathBuf,
}

const COUNTS: [usize; 3] = [1, 3, 6];

/// Pairs of all primaries together, those in one pipeline, and the rounds of which the best counts.
const PAIRS: usize = 240_000;
const AT_ONCE: usize = 100;
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    exit_code(measured(&Options::parse()))
}

fn measured(options: &Options) -> Result<ExitCode> {
    println!("| server | primaries | CPU of an acquire and a release, us | pairs of one core, a second |");
    println!("|---|---|---|---|");
    for program in &options.servers {
        let name = redis_lock_rig::name_of(program)?;
        for count in COUNTS {
            let us = Shards::start(program, &options.module, count)?.us_a_pair()?;
            println!("| {name} | {count} | {us:.2} | {:.0} |", 1e6 / us);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A cluster of primaries.
struct Shards {
    nodes: Vec<Process>,
    _folder: tempfile::TempDir,
}

impl Shards {
    fn start(program: &Path, module: &Path, count: usize) -> Result<Shards> {
        let folder = tempfile::tempdir()?;
        let node = |number: usize| {
            let dir = folder.path().join(number.to_string());
            std::fs::create_dir(&dir)?;
            let plan = Plan {
                module: Some(module.to_owned()),
                lines: node_lines(),
                ..Plan::new(program)
            };
            Process::start(plan, &dir)
        };
        let nodes = (0..count).map(node).collect::<Result<Vec<_>>>()?;
        form_cluster(&nodes)?;
        Ok(Shards {
            nodes,
            _folder: folder,
        })
    }

    /// Returns the least CPU time of all primaries together for a pair, of some rounds.
    fn us_a_pair(&self) -> Result<f64> {
        let keys: Vec<Vec<String>> = self.nodes.iter().map(keys_of).collect::<Result<_>>()?;
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let before = self.cpu_us()?;
            thread::scope(|scope| {
                let mut all = Vec::new();
                for (node, keys) in self.nodes.iter().zip(&keys) {
                    all.push(scope.spawn(move || self.pairs(node, keys)));
                }
                all.into_iter()
                    .try_for_each(|it| it.join().expect("no panic"))
            })?;
            best = best.min((self.cpu_us()? - before) / PAIRS as f64);
        }
        Ok(best)
    }

    /// Sends one primary its part of the pairs.
    fn pairs(&self, node: &Process, keys: &[String]) -> Result<()> {
        let mut wire = Wire::open(node.port())?;
        let mut batch = Vec::new();
        for key in keys {
            batch.extend(packed(&["LOCK.ACQUIRE", key, "holder", "PX", "30000"]));
            batch.extend(packed(&["LOCK.RELEASE", key, "holder"]));
        }
        for _ in 0..PAIRS / self.nodes.len() / AT_ONCE {
            wire.send(&batch)?;
            for _ in keys {
                wire.expect(GRANT)?;
                wire.expect(Reply::Int(1))?;
            }
        }
        Ok(())
    }

    /// Returns the CPU time that all primaries have used so far.
    fn cpu_us(&self) -> Result<f64> {
        let used = |node: &Process| -> Result<f64> {
            let info: String = node.ask("INFO cpu")?;
            let field = |name: &str| -> Result<f64> {
                let line = info.lines().find_map(|line| line.strip_prefix(name));
                Ok(line.context("a field of INFO cpu")?.trim().parse()?)
            };
            Ok(field("used_cpu_user:")? + field("used_cpu_sys:")?)
        };
        Ok(self.nodes.iter().map(used).sum::<Result<f64>>()? * 1e6)
    }
}

/// Returns keys that a node serves.
fn keys_of(node: &Process) -> Result<Vec<String>> {
    let own = slots_of(node)?;
    let mut keys = Vec::new();
    for number in 0.. {
        let key = format!("lock:{number}");
        let slot: u64 = node.ask(&format!("CLUSTER KEYSLOT {key}"))?;
        if own.contains(&slot) {
            keys.push(key);
        }
        if keys.len() == AT_ONCE {
            break;
        }
    }
    Ok(keys)
}

fn slots_of(node: &Process) -> Result<RangeInclusive<u64>> {
    let nodes: String = node.ask("CLUSTER NODES")?;
    let own = nodes.lines().find(|line| line.contains("myself"));
    let range = own
        .and_then(|line| line.split(' ').next_back())
        .context("its slots")?;
    let (from, to) = range.split_once('-').context("a range of slots")?;
    let range = from.parse()?..=to.parse()?;
    ensure!(!range.is_empty(), "{range:?}");
    Ok(range)
}
