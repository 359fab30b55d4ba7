//! The flash sale oversells without a lock. Under any number of locks it sells to the last unit, and
//! no unit twice.

use std::collections::HashMap;
use std::env;
use std::path::Path;
use std::process::Command;

use support::Server;

/// Returns the example's command. Cargo puts the examples beside the folder of the test programs.
fn example() -> Command {
    let test = env::current_exe().expect("this test's own path");
    let profile = test.parent().and_then(Path::parent);
    let profile = profile.expect("target/<profile>/deps");
    let example = profile.join("examples").join("flash_sale");
    assert!(
        example.exists(),
        "build the example first: cargo build --example flash_sale"
    );
    Command::new(example)
}

/// Runs sales with these arguments, and returns the numbers in each sale's line.
#[track_caller]
fn sales(words: &str) -> Vec<HashMap<String, f64>> {
    let output = example().args(words.split(' ')).output();
    let output = output.expect("the example runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}\n{text}\n{complaint}");
    let sales = text.lines().map(|line| {
        let pairs = line.split(' ').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.parse().expect("a number")));
        pairs.collect()
    });
    sales.collect()
}

/// A worker spends its time while it holds a lock, so with N locks several workers sell at once.
#[test]
fn only_a_lock_keeps_workers_from_selling_more_than_the_stock() {
    let sales = sales("--stock 300 --workers 16 --locks 0,1,4,16");
    let locks: Vec<f64> = sales.iter().map(|sale| sale["locks"]).collect();
    assert_eq!(locks, [0.0, 1.0, 4.0, 16.0]);
    assert!(sales[0]["units-sold"] > 300.0, "{sales:?}");
    assert_eq!(sales[0]["oversold"], sales[0]["units-sold"] - 300.0);
    for sale in &sales[1..] {
        assert_eq!(sale["units-sold"], 300.0, "{sale:?}");
        assert_eq!(sale["oversold"], 0.0, "{sale:?}");
        assert_eq!(sale["left"], 0.0, "{sale:?}");
        assert!(sale["orders"] >= 300.0 / 3.0, "{sale:?}");
        assert!(sale["most-at-once"] <= sale["locks"], "{sale:?}");
    }
    for sale in &sales[2..] {
        assert!(sale["most-at-once"] > 1.0, "{sale:?}");
    }
}

/// Three workers begin at three of seven segments. These segments run dry first, and their workers
/// then sell the other segments.
#[test]
fn segments_that_run_dry_unevenly_are_sold_out_all_the_same() {
    let sales = sales("--stock 301 --workers 3 --max-units 5 --think-ms 0 --locks 7");
    assert_eq!(sales[0]["units-sold"], 301.0, "{sales:?}");
    assert_eq!(sales[0]["left"], 0.0, "{sales:?}");
    assert!(sales[0]["from-several-segments"] > 0.0, "{sales:?}");
}

#[test]
fn a_server_without_the_module_is_no_place_for_the_sale() {
    let server = Server::builder().without_module().start();
    let output = example()
        .args(["--url", &format!("redis://127.0.0.1:{}/", server.port())])
        .output()
        .expect("the example runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "flash_sale: this server hasn't loaded the lock module\n"
    );
}
