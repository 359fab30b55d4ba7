//! The flash sale demo: with the lock it sells exactly its stock, without the lock it oversells.

use std::collections::HashMap;
use std::env;
use std::path::Path;
use std::process::Command;

/// One run of the sale, read from a line of the demo's `--plain` output.
struct Run(HashMap<String, String>);

impl Run {
    fn of(line: &str) -> Run {
        let pairs = line
            .split(' ')
            .map(|pair| pair.split_once('=').expect("name=value"));
        Run(pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }

    fn number(&self, name: &str) -> u64 {
        self.0[name].parse().expect("a number")
    }
}

/// Returns the demo's command. Cargo puts the examples beside the folder of the test programs.
fn demo() -> Command {
    let test = env::current_exe().expect("this test's own path");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("target/<profile>/deps");
    let demo = profile.join("examples").join("flash_sale");
    assert!(
        demo.exists(),
        "build the demo first: cargo build --example flash_sale"
    );
    let mut command = Command::new(demo);
    command.arg("--plain");
    command
}

#[test]
fn the_lock_keeps_two_shops_from_selling_more_than_the_stock() {
    let output = demo().output().expect("the demo runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{text}\n{complaint}",
        output.status
    );
    let runs: Vec<Run> = text.lines().map(Run::of).collect();
    let [unlocked, locked] = runs.as_slice() else {
        panic!("two runs: {text}")
    };

    // Without the lock all 800 orders are sold, 1599 units from a stock of 1000.
    assert_eq!(unlocked.0["run"], "unlocked");
    assert!(unlocked.number("units-sold") > 1000, "{text}");
    assert!(
        unlocked.number("units-sold") + unlocked.number("left") > 1000,
        "{text}"
    );

    assert_eq!(locked.0["run"], "locked");
    assert_eq!(locked.number("stock"), 1000);
    assert_eq!(locked.number("units-sold"), 1000, "{text}");
    assert_eq!(locked.number("left"), 0, "{text}");
    assert_eq!(
        locked.number("sold") + locked.number("turned-away"),
        800,
        "{text}"
    );
    assert_eq!(locked.number("gave-up"), 0, "{text}");
    assert_eq!(locked.number("lapsed"), 0, "{text}");
    assert!(locked.number("longest-wait-us") > 0, "{text}");
}

#[test]
fn a_server_without_the_module_is_no_place_for_the_sale() {
    let server = support::Server::builder().without_module().start();
    let output = demo()
        .args(["--url", &format!("redis://127.0.0.1:{}/", server.port())])
        .output()
        .expect("the demo runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "flash_sale: this server hasn't loaded the lock module\n"
    );
}
