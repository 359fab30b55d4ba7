//! What was measured, a line each, as soon as it is known.

use std::process::ExitCode;

use redis_lock_load::Latency;

/// Counts what held and what didn't.
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

    /// Tells latencies for which there is no bound.
    pub fn latency(&self, what: &str, latency: &Latency) {
        println!(
            "{} {:<17} {:.1}",
            columns(what, latency),
            "",
            latency.late_ms()
        );
    }

    /// Tells latencies of which the longest is bounded.
    pub fn bounded_latency(&mut self, what: &str, latency: &Latency, bound_ms: f64) {
        let verdict = self.verdict(latency.max_ms() <= bound_ms);
        let bound = format!("{bound_ms:>7.1} {verdict}");
        println!(
            "{} {bound:<17} {:.1}",
            columns(what, latency),
            latency.late_ms()
        );
    }

    /// Tells a number that must not be greater than its bound.
    pub fn at_most(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        let verdict = self.verdict(measured <= bound);
        println!("{what:<58} {measured:>29.2}  {bound:>7.1} {verdict}  {unit}");
    }

    /// Tells a number that must not be less than its bound.
    pub fn at_least(&mut self, what: &str, measured: f64, bound: f64, unit: &str) {
        let verdict = self.verdict(measured >= bound);
        println!("{what:<58} {measured:>29.2}  {bound:>7.1} {verdict}  {unit}");
    }

    /// Tells a number for which there is no bound.
    pub fn number(&self, what: &str, measured: f64, unit: &str) {
        println!("{what:<58} {measured:>29.2}  {:<17}{unit}", "");
    }

    /// Tells a storm that could not be measured to its end.
    pub fn broken_off(&mut self, what: &str, error: &anyhow::Error) {
        let verdict = self.verdict(false);
        println!("{what:<58} {verdict}: {error:#}");
    }

    fn verdict(&mut self, holds: bool) -> &'static str {
        let (count, word) = if holds {
            (&mut self.passed, "holds")
        } else {
            (&mut self.failed, "BROKEN")
        };
        *count += 1;
        word
    }

    /// Says how many bounds held. Fails where one didn't.
    pub fn close(self) -> ExitCode {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        ExitCode::from(u8::from(self.failed > 0))
    }
}

fn columns(what: &str, latency: &Latency) -> String {
    format!(
        "{what:<58} {:>9.2} {:>9.2} {:>9.2} ",
        latency.percentile_ms(50.0),
        latency.percentile_ms(99.0),
        latency.max_ms()
    )
}
