//! The driver of the conformance suite. Executes orders, each a line of JSON, with this library.

mod tasks;
mod threads;

use std::env;
use std::io::{stdin, stdout, BufRead, Write};
use std::process::exit;
use std::time::Duration;

use redis_lock_client::{Error, Options};
use serde_json::{json, Value};

fn main() {
    let kind = env::args().nth(1).unwrap_or_default();
    let obey: &dyn Fn(Order) = match kind.as_str() {
        "rust-sync" => &threads::start(),
        "rust-tokio" => &tasks::start(),
        _ => {
            eprintln!("driver: {kind:?} is neither rust-sync nor rust-tokio");
            exit(2);
        }
    };
    for line in stdin().lock().lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(order) => obey(Order(order)),
            Err(error) => eprintln!("driver: {line}: {error}"),
        }
    }
    // The held locks are not released.
    exit(0);
}

/// One line of input.
#[derive(Clone)]
struct Order(Value);

impl Order {
    fn text(&self, name: &str) -> String {
        self.0[name].as_str().unwrap_or_default().to_owned()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0[name].as_u64()
    }

    fn ms(&self, name: &str) -> Option<Duration> {
        self.number(name).map(Duration::from_millis)
    }

    fn list(&self, name: &str) -> Vec<String> {
        let list = self.0[name].as_array().into_iter().flatten();
        list.filter_map(|it| it.as_str().map(str::to_owned))
            .collect()
    }

    fn urls(&self) -> Vec<String> {
        let servers = self.list("servers");
        servers.iter().map(|it| format!("redis://{it}/")).collect()
    }

    fn is(&self, name: &str) -> bool {
        self.0[name] == json!(true)
    }

    /// Returns the options of a lock.
    fn options(&self) -> Options {
        let mut options = Options::new();
        if let Some(lease) = self.ms("lease_ms") {
            options = options.lease(lease);
        }
        if let Some(keep) = self.ms("keep_ms") {
            options = options.keep(keep);
        }
        if let Some(token) = self.0["token"].as_str() {
            options = options.token(token);
        }
        if !self.is("renew") {
            options = options.without_renewal();
        }
        if self.is("session") {
            options = options.session();
        }
        let u32_of = |name| self.number(name).and_then(|it| u32::try_from(it).ok());
        match u32_of("limit") {
            Some(limit) => options = options.semaphore(limit, u32_of("permits").unwrap_or(1)),
            None if self.is("shared") => options = options.shared(),
            None => {}
        }
        let name = self.text("lock");
        options.on_lost(move || say(&json!({"event": "lost", "lock": name})))
    }

    /// Writes the answer to this order.
    fn answer(&self, answer: Result<Value, Error>) {
        let mut answer = answer.unwrap_or_else(|error| {
            let name = match &error {
                Error::Cancelled => "cancelled",
                Error::Deadlock(_) => "deadlock",
                Error::Unsupported => "unsupported",
                _ => "other",
            };
            json!({"error": name, "text": error.to_string()})
        });
        answer["id"] = self.0["id"].clone();
        say(&answer);
    }
}

fn say(line: &Value) {
    let mut stdout = stdout().lock();
    // The reader may be gone, and then this driver ends soon as well.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

fn ok(ok: bool) -> Value {
    json!({ "ok": ok })
}

fn text_of(token: &[u8]) -> String {
    String::from_utf8_lossy(token).into_owned()
}

fn ms_of(left: Duration) -> u64 {
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}
