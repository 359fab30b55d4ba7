//! What was measured, a line each.

use std::process::ExitCode;
use std::time::Duration;

use redis_lock_load::Latency;

/// From which on the machine, not the server, may have kept PING waiting.
const DISTURBANCE: Duration = Duration::from_millis(5);

/// How many times its bound a latency may be, apart from what the pinger overslept, and still be the
/// machine's doing.
const DOUBTFUL: f64 = 10.0;

/// What one storm was measured at.
#[derive(Default)]
pub struct Score {
    lines: Vec<String>,
    held: usize,
    broken: usize,
    /// Whether something went wrong that no busy machine explains.
    beyond_doubt: bool,
    /// By how much the pinger overslept at worst.
    late: Duration,
}

impl Score {
    /// Tells latencies for which there is no bound.
    pub fn latency(&mut self, what: &str, latency: &Latency) {
        self.latency_line(what, latency, "");
    }

    /// Tells latencies of which the longest is bounded.
    pub fn bounded_latency(&mut self, what: &str, latency: &Latency, bound_ms: f64) {
        let verdict = self.verdict(latency.max_ms() <= bound_ms);
        let explained_ms = latency.late().as_secs_f64() * 1e3;
        self.beyond_doubt |= latency.max_ms() - explained_ms > DOUBTFUL * bound_ms;
        self.latency_line(what, latency, &format!("{bound_ms:>7.1} {verdict}"));
    }

    /// Tells a number that must not be greater than its bound.
    pub fn at_most(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        let verdict = self.verdict(measured <= bound);
        self.number_line(what, measured, &format!("{bound:>7.1} {verdict}"), unit);
    }

    /// Tells a number that must not be less than its bound.
    pub fn at_least(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        let verdict = self.verdict(measured >= bound);
        self.number_line(what, measured, &format!("{bound:>7.1} {verdict}"), unit);
    }

    /// Tells a number for which there is no bound.
    pub fn number(&mut self, what: &str, measured: f64, unit: &str) {
        self.number_line(what, measured, "", unit);
    }

    /// Tells that the storm could not be measured to its end.
    pub fn broken_off(&mut self, what: &str, error: &anyhow::Error) {
        let verdict = self.verdict(false);
        self.beyond_doubt = true;
        self.lines.push(format!("{what:<58} {verdict}: {error:#}"));
    }

    /// Whether a bound is broken, and the machine may have broken it: it was busy with other things.
    pub fn is_disturbed(&self) -> bool {
        self.broken > 0 && self.late > DISTURBANCE && !self.beyond_doubt
    }

    /// By how much the pinger overslept at worst.
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
    /// Begins with a server.
    pub fn server(&self, name: &str) {
        println!("\n{name}");
        println!(
            "{:<58} {:>9} {:>9} {:>9}  {:<17} the pinger's own",
            "PING beside it, ms", "p50", "p99", "max", "bound"
        );
    }

    /// Tells a storm's score.
    pub fn add(&mut self, score: &Score) {
        for line in &score.lines {
            println!("{line}");
        }
        self.passed += score.held;
        self.failed += score.broken;
    }

    /// Says how many bounds held. Fails where one didn't.
    pub fn close(self) -> ExitCode {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        ExitCode::from(u8::from(self.failed > 0))
    }
}
