//! The mutants of the core and of the module around it: `make mutants`, `make mutants-shell`.
//!
//! cargo-mutants lists them. It would build their package once for each. This program builds it once
//! with all of them, and chooses one for each run of the tests ([`rewrite`]).
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
mod subject;
mod trial;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
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
use subject::Subject;
use trial::Trials;

/// Plays tests with each mutant that cargo-mutants lists.
#[derive(Parser)]
struct Args {
    /// The output of `cargo mutants --list --json`.
    list: PathBuf,

    /// The package whose mutants these are.
    #[arg(long, value_enum, default_value = "core")]
    of: Subject,

    /// The directory for the copy of the package and its build.
    #[arg(long)]
    folder: PathBuf,

    /// The mutants that survive and why.
    #[arg(long)]
    explained: PathBuf,

    /// Every nth of the mutants, or of those drawn, from the kth on, from 0: `k/n`.
    #[arg(long, default_value = "0/1")]
    shard: Shard,

    /// Mutants whose names contain this.
    #[arg(long)]
    only: Option<String>,

    /// The number of mutants to draw at random; all by default.
    #[arg(long)]
    sample: Option<usize>,

    /// The seed by which they are drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,

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

impl Shard {
    fn of<T>(self, all: Vec<T>) -> Vec<T> {
        let own = all.into_iter().skip(self.number);
        own.step_by(self.count).collect()
    }
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

    fn is_wanted(&self, mutant: &Mutant) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|part| mutant.name.contains(part.as_str()))
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let began = Instant::now();
    let mutants = listed::read(&args.list)?;
    let explained = Explained::read(&args.explained)?;
    let copied = Copied::new(&args.folder, args.of)?;
    let built = copied.build(&mutants)?;
    let built_in = began.elapsed();
    let trials = Trials::prepare(&built, args.of.bounds(), args.jobs, args.longest)?;
    let mut wanted = wanted(&args, &mutants)?;
    if let Some(sample) = args.sample {
        wanted.retain(|(number, _)| !built.left_out.contains(number));
        draw(&mut wanted, sample, args.seed);
    }
    let wanted = args.shard.of(wanted);
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
    let is_good = report.survivors() == 0 && gone.is_empty() && trials.are_complete;
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
    let wanted = numbered.filter(|(_, mutant)| args.is_wanted(mutant) && is_again(mutant));
    Ok(wanted.collect())
}

/// Draws a sample: the mutants whose names have the least hashes.
fn draw(mutants: &mut Vec<(Number, &Mutant)>, sample: usize, seed: u64) {
    mutants.sort_by_cached_key(|(_, mutant)| {
        let mut hasher = DefaultHasher::new();
        (seed, &mutant.key).hash(&mut hasher);
        hasher.finish()
    });
    mutants.truncate(sample);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_mutants_from_any_order() {
        let text = r#"{"name": "a.rs:1:1: N", "file": "a.rs", "span":
            {"start": {"line": 1, "column": 1}, "end": {"line": 1, "column": 2}},
            "replacement": "", "genre": "FnValue", "function": null}"#;
        let named = |number: usize| {
            let mut mutant: Mutant = serde_json::from_str(text).unwrap();
            mutant.key = number.to_string();
            mutant
        };
        let mutants: Vec<Mutant> = (0..20).map(named).collect();
        let drawn = |mut all: Vec<(Number, &Mutant)>, seed| {
            draw(&mut all, 5, seed);
            all.into_iter()
                .map(|(number, _)| number)
                .collect::<Vec<_>>()
        };
        let all: Vec<_> = (1..).zip(&mutants).collect();
        let backwards = all.iter().rev().copied().collect();
        assert_eq!(drawn(all.clone(), 1), drawn(backwards, 1));
        assert_eq!(drawn(all.clone(), 1).len(), 5);
        assert_ne!(drawn(all.clone(), 1), drawn(all, 2));
    }
}
