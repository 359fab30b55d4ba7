//! The report of all measurements, one line each.

use std::process::ExitCode;
use std::time::Duration;

use redis_lock_load::Latency;

/// Oversleep of the pinger above which the machine, not the server, may have delayed PING.
const DISTURBANCE: Duration = Duration::from_millis(5);

/// Multiple of its bound up to which a latency, less the pinger's oversleep, may be due to the
/// machine.
const DOUBTFUL: f64 = 10.0;

/// The measurements of one storm.
#[derive(Default)]
pub struct Score {
    lines: Vec<String>,
    held: usize,
    broken: usize,
    /// True if a failure occurred that a busy machine does not explain.
    beyond_doubt: bool,
    /// The longest time by which the pinger overslept.
    late: Duration,
}

impl Score {
    /// Reports latencies without a bound.
    pub fn latency(&mut self, what: &str, latency: &Latency) {
        self.latency_line(what, latency, "");
    }

    /// Reports latencies of which the longest is bounded.
    pub fn bounded_latency(&mut self, what: &str, latency: &Latency, bound_ms: f64) {
        let verdict = self.verdict(latency.max_ms() <= bound_ms);
        let explained_ms = latency.late().as_secs_f64() * 1e3;
        self.beyond_doubt |= latency.max_ms() - explained_ms > DOUBTFUL * bound_ms;
        self.latency_line(what, latency, &format!("{bound_ms:>7.1} {verdict}"));
    }

    /// Reports a number that must not be greater than its bound.
    pub fn at_most(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        let verdict = self.verdict(measured <= bound);
        self.number_line(what, measured, &format!("{bound:>7.1} {verdict}"), unit);
    }

    /// Reports a number that must not be less than its bound.
    pub fn at_least(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        let verdict = self.verdict(measured >= bound);
        self.number_line(what, measured, &format!("{bound:>7.1} {verdict}"), unit);
    }

    /// Reports a number without a bound.
    pub fn number(&mut self, what: &str, measured: f64, unit: &str) {
        self.number_line(what, measured, "", unit);
    }

    /// Reports that the storm could not be measured to its end.
    pub fn broken_off(&mut self, what: &str, error: &anyhow::Error) {
        let verdict = self.verdict(false);
        self.beyond_doubt = true;
        self.lines.push(format!("{what:<58} {verdict}: {error:#}"));
    }

    /// Returns true if a bound is broken, and perhaps only because the machine was busy otherwise.
    pub fn is_disturbed(&self) -> bool {
        self.broken > 0 && self.late > DISTURBANCE && !self.beyond_doubt
    }

    /// Returns the longest time by which the pinger overslept.
    pub fn late(&self) -> Duration {
        self.late
    }

    fn latency_line(&mut self, what: &str, latency: &Latency, bound: &str) {
        self.late = self.late.max(latency.late());
        self.lines.push(format!(
            "{what:<58} {:>9.2} {:>9.2} {:>9.2}  {bound:<17} {:.1}",
            latency.percentile_ms(50.0),
            latency.percentile_ms(99.0),
            latency.max_ms(),
            latency.late().as_secs_f64() * 1e3,
        ));
    }

    fn number_line(&mut self, what: &str, measured: f64, bound: &str, unit: &str) {
        let line = format!("{what:<58} {measured:>29.2}  {bound:<17} {unit}");
        self.lines.push(line.trim_end().to_owned());
    }

    fn verdict(&mut self, holds: bool) -> &'static str {
        let (count, word) = if holds {
            (&mut self.held, "holds")
        } else {
            (&mut self.broken, "BROKEN")
        };
        *count += 1;
        word
    }
}

/// All scores.
#[derive(Default)]
pub struct Report {
    passed: usize,
    failed: usize,
}

impl Report {
    /// Prints the heading of a server.
    pub fn server(&self, name: &str) {
        println!("\n{name}");
        println!(
            "{:<58} {:>9} {:>9} {:>9}  {:<17} the pinger's own",
            "PING beside it, ms", "p50", "p99", "max", "bound"
        );
    }

    /// Prints and counts a storm's score.
    pub fn add(&mut self, score: &Score) {
        for line in &score.lines {
            println!("{line}");
        }
        self.passed += score.held;
        self.failed += score.broken;
    }

    /// Prints the number of bounds that held. Returns a failure if a bound did not hold.
    pub fn close(self) -> ExitCode {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        ExitCode::from(u8::from(self.failed > 0))
    }
}
