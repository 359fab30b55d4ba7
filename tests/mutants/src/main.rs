//! The mutants of the core: `make mutants`.
//!
//! cargo-mutants lists them. It would build the core once for each. This program builds it once with
//! all of them, and chooses one for each run of the core's tests ([`rewrite`]).
//!
//! 1. Each test runs alone without a mutant, and records which mutants it reaches.
//! 2. For each mutant, the tests that reach it run, quick ones first, until one fails.
//! 3. A mutant that survives must be explained in the list of survivors, with the reason.

mod build;
mod explained;
mod listed;
mod pool;
mod report;
mod rewrite;
mod trial;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;

use build::Copied;
use explained::Explained;
use listed::Mutant;
use report::{Fate, Report};
use rewrite::Number;
use trial::Trials;

/// Plays the core's tests with each mutant that cargo-mutants lists.
#[derive(Parser)]
struct Args {
    /// The output of `cargo mutants --list --json`.
    list: PathBuf,

    /// The directory for the copy of the core and its build.
    #[arg(long)]
    folder: PathBuf,

    /// The mutants that survive and why.
    #[arg(long)]
    explained: PathBuf,

    /// Every nth mutant, from the kth on, from 0: `k/n`.
    #[arg(long, default_value = "0/1")]
    shard: Shard,

    /// Mutants whose names contain this.
    #[arg(long)]
    only: Option<String>,

    /// Plays only the mutants that no test caught in the last run.
    #[arg(long)]
    again: bool,

    /// Also plays the explained mutants, to see whether a test catches them now.
    #[arg(long)]
    all: bool,

    /// Time of a test, in ms, from which on it isn't played. A quick first look.
    #[arg(long, default_value_t = u64::MAX)]
    longest: u64,

    /// Trials at once.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

#[derive(Clone, Copy, Debug)]
struct Shard {
    number: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (number, count) = text.split_once('/').context("k/n, like 0/8")?;
        let (number, count): (usize, usize) = (number.parse()?, count.parse()?);
        anyhow::ensure!(number < count, "k must be below n");
        Ok(Self { number, count })
    }
}

impl Args {
    /// Returns the file with the mutants that no test caught in the last run.
    fn uncaught(&self) -> PathBuf {
        self.folder.join("uncaught")
    }

    fn is_wanted(&self, number: Number, mutant: &Mutant) -> bool {
        let only = self.only.as_ref();
        number % self.shard.count == self.shard.number
            && only.is_none_or(|part| mutant.name.contains(part.as_str()))
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let began = Instant::now();
    let mutants = listed::read(&args.list)?;
    let explained = Explained::read(&args.explained)?;
    let copied = Copied::new(&args.folder)?;
    let built = copied.build(&mutants)?;
    let built_in = began.elapsed();
    let trials = Trials::prepare(&copied.core(), &built.programs, args.jobs, args.longest)?;
    let wanted = wanted(&args, &mutants)?;
    let fates = pool::map(args.jobs, wanted.len(), |at| {
        let (number, mutant) = wanted[at];
        let fate = match explained.reason(mutant).filter(|_| !args.all) {
            _ if built.left_out.contains(&number) => Fate::LeftOut,
            Some(reason) => Fate::Explained(reason),
            None => Fate::Played(trials.play(number, mutant)?),
        };
        if fate.is_uncaught() {
            eprintln!("{}", mutant.name);
        }
        Ok((mutant, fate))
    });
    let report = Report {
        fates: fates.into_iter().collect::<Result<_>>()?,
        test_count: trials.len(),
        built_in,
        took: began.elapsed(),
    };
    report.print();
    fs::write(args.uncaught(), report.uncaught())?;
    let gone = explained.gone(&mutants);
    for name in &gone {
        println!("explained, and not listed any more: {name}");
    }
    let is_good = report.survivors() == 0 && gone.is_empty();
    Ok(ExitCode::from(u8::from(!is_good)))
}

/// Returns the mutants to play, with their numbers.
fn wanted<'m>(args: &Args, mutants: &'m [Mutant]) -> Result<Vec<(Number, &'m Mutant)>> {
    let last = args.again.then(|| fs::read_to_string(args.uncaught()));
    let last = last.transpose()?;
    let is_again = |mutant: &Mutant| {
        let last = last.as_ref();
        last.is_none_or(|last| last.lines().any(|name| name == mutant.key))
    };
    let numbered = (1..).zip(mutants);
    let wanted =
        numbered.filter(|(number, mutant)| args.is_wanted(*number, mutant) && is_again(mutant));
    Ok(wanted.collect())
}
