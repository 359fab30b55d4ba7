//! The driver of the conformance suite. Executes orders, each a line of JSON, with this library.

mod order;

/// The library for threads, with the shape of that for tasks.
mod threads {
    mod front;
    mod orders;

    pub use orders::obey_all;
}

/// The library for tasks.
mod tasks {
    mod front;
    #[expect(clippy::duplicate_mod, reason = "both fronts have the same calls")]
    #[path = "../threads/orders.rs"]
    mod orders;

    pub use orders::obey_all;
}

use std::env;
use std::io::{stdout, Write};

use serde_json::Value;

fn main() {
    let kind = env::args().nth(1).unwrap_or_default();
    match kind.as_str() {
        "rust-sync" => threads::obey_all(),
        "rust-tokio" => tasks::obey_all(),
        _ => eprintln!("driver: {kind:?} is neither rust-sync nor rust-tokio"),
    }
}

fn say(line: &Value) {
    let mut stdout = stdout().lock();
    // The reader may be gone, and then this driver ends soon as well.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
