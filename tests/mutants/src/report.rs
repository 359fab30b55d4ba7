//! The results of all mutants, and the report of them.

use std::time::Duration;

use crate::explained::Reason;
use crate::listed::Mutant;
use crate::trial::{Caught, Verdict};

/// What became of one mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Played(Verdict),
    /// It is in the list of mutants that are explained.
    Explained(Reason),
    /// It doesn't compile.
    LeftOut,
}

impl Fate {
    /// Returns true if the tests pass with the mutant, and no reason is known.
    pub fn is_uncaught(&self) -> bool {
        matches!(self, Self::Played(Verdict::Survived | Verdict::Unreached))
    }
}

pub struct Report<'m> {
    pub fates: Vec<(&'m Mutant, Fate)>,
    pub test_count: usize,
    pub built_in: Duration,
    pub took: Duration,
}

impl Report<'_> {
    fn count(&self, is_counted: impl Fn(&Fate) -> bool) -> usize {
        let counted = self.fates.iter().filter(|(_, fate)| is_counted(fate));
        counted.count()
    }

    fn print_each(&self, title: &str, is_printed: impl Fn(&Fate) -> bool) {
        for (mutant, _) in self.fates.iter().filter(|(_, fate)| is_printed(fate)) {
            println!("{title}: {}", mutant.name);
        }
    }

    /// Prints the mutants that survived, and the figures.
    pub fn print(&self) {
        self.print_each("doesn't compile", |fate| *fate == Fate::LeftOut);
        self.print_each("unreached", |fate| {
            *fate == Fate::Played(Verdict::Unreached)
        });
        self.print_each("survived", |fate| *fate == Fate::Played(Verdict::Survived));
        let caught_by =
            |how: Caught| self.count(|fate| *fate == Fate::Played(Verdict::Caught(how)));
        let by_tests = caught_by(Caught::ByTests);
        let endless = caught_by(Caught::Endless);
        let crashed = caught_by(Caught::Crashed);
        let caught = by_tests + endless + crashed;
        let left_out = self.count(|fate| *fate == Fate::LeftOut);
        let played = self.fates.len() - left_out;
        println!(
            "{} mutants, {left_out} of them don't compile; {} tests; built in {} s, {} s in all",
            self.fates.len(),
            self.test_count,
            self.built_in.as_secs(),
            self.took.as_secs(),
        );
        println!(
            "caught {caught} of {played}, {:.1} %: {by_tests} by failed tests, {endless} endless, \
             {crashed} crashed",
            100.0 * caught as f64 / played.max(1) as f64,
        );
        println!(
            "not caught {}: {} explained, {} still to be examined, {} new",
            played - caught,
            self.count(|fate| *fate == Fate::Explained(Reason::Known)),
            self.count(|fate| *fate == Fate::Explained(Reason::Open)),
            self.survivors(),
        );
    }

    /// Returns the number of mutants that survived and aren't explained.
    pub fn survivors(&self) -> usize {
        self.count(Fate::is_uncaught)
    }

    /// Returns the names of these mutants, one a line.
    pub fn uncaught(&self) -> String {
        let uncaught = self.fates.iter().filter(|(_, fate)| fate.is_uncaught());
        uncaught
            .map(|(mutant, _)| format!("{}\n", mutant.key))
            .collect()
    }
}
