//! The segmented stock sells to the last unit, and no unit twice, over any number of segments.

use std::collections::HashMap;
use std::env;
use std::path::Path;
use std::process::Command;

/// Returns the example's command. Cargo puts the examples next to the folder of the test programs.
fn example() -> Command {
    let test = env::current_exe().expect("this test's own path");
    let profile = test.parent().and_then(Path::parent);
    let profile = profile.expect("target/<profile>/deps");
    Command::new(profile.join("examples").join("segmented_stock"))
}

/// Runs sales with these arguments, and returns the fields of each run's line.
#[track_caller]
fn runs(words: &str) -> Vec<HashMap<String, String>> {
    let output = example().args(words.split(' ')).output();
    let output = output.expect("built by cargo build --example segmented_stock");
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}\n{text}\n{complaint}");
    let runs = text.lines().map(|line| {
        let pairs = line.split(' ').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        pairs.collect()
    });
    runs.collect()
}

#[track_caller]
fn number(run: &HashMap<String, String>, name: &str) -> u64 {
    run[name].parse().expect("a whole number")
}

#[test]
fn every_unit_is_sold_once_over_1_4_and_16_segments() {
    let runs = runs("--stock 300 --workers 16 --segments 1,4,16");
    let segments: Vec<u64> = runs.iter().map(|run| number(run, "segments")).collect();
    assert_eq!(segments, [1, 4, 16]);
    for run in &runs {
        assert_eq!(number(run, "units-sold"), 300, "{run:?}");
        assert_eq!(number(run, "left"), 0, "{run:?}");
        assert!(number(run, "orders") >= 300 / 3, "{run:?}");
    }
}

/// A worker spends its time while it holds a lock, so several locks are faster.
#[test]
fn several_segments_sell_faster_than_one() {
    let runs = runs("--stock 200 --workers 16 --think-ms 10 --segments 1,4,16");
    let speed = |run: &HashMap<String, String>| number(run, "orders-per-second");
    for run in &runs[1..] {
        assert!(speed(run) > speed(&runs[0]) * 3 / 2, "{runs:?}");
    }
}

/// Three workers begin at three of seven segments. These segments run dry first, and their workers
/// then sell the other segments.
#[test]
fn segments_that_run_dry_unevenly_are_sold_out_all_the_same() {
    let runs = runs("--stock 301 --workers 3 --max-units 5 --think-ms 0 --segments 7");
    assert_eq!(number(&runs[0], "units-sold"), 301, "{runs:?}");
    assert_eq!(number(&runs[0], "left"), 0, "{runs:?}");
    assert!(number(&runs[0], "from-several-segments") > 0, "{runs:?}");
}
