//! Wrong arguments: refused before anything is sent.

use serde_json::{json, Value};

use super::cells::{Column, Round};
use crate::driver::{Answer, Driver};
use crate::table::Ability;
use crate::world::World;

const KEY: &str = "{t}k";

/// The clients whose types can't express some of these values.
const TYPED: [&str; 5] = ["rust-sync", "rust-tokio", "go", "jedis", "lettuce"];

/// Values that are no length of time. A number that no clock can count comes last.
fn no_times() -> Vec<Value> {
    vec![json!("nan"), json!("-inf"), json!(-1), json!(1e300)]
}

fn no_positive_times() -> Vec<Value> {
    [no_times(), vec![json!(0), json!("inf")]].concat()
}

/// Returns the wrong values of each option.
fn wrong_values() -> Vec<(&'static str, Vec<Value>)> {
    let too_long = json!("x".repeat(1025));
    vec![
        ("lease_ms", no_positive_times()),
        ("keep_ms", no_positive_times()),
        ("max_hold_ms", [no_times(), vec![json!(0)]].concat()),
        ("at_least_ms", [no_times(), vec![json!("inf")]].concat()),
        ("wait_ms", no_times()),
        ("keys", vec![json!([]), json!([KEY, KEY]), json!([5])]),
        // The lease of these locks is 6 s.
        (
            "margin_ms",
            [no_times(), vec![json!("inf"), json!(6000)]].concat(),
        ),
        ("limit", vec![json!(0), json!(-1), json!(4_294_967_296_u64)]),
        ("permits", vec![json!(1)]),
        ("data", vec![too_long]),
        ("replicas", vec![json!(0), json!(-1), json!(1001)]),
    ]
}

/// Accepts the refusal of an argument, or a client's word that its types can't express the value.
fn check(world: &World, round: &mut Round, column: Column, what: &str, answer: &Answer) {
    let typed = TYPED.contains(&world.client.as_str());
    let is_right = match answer.error() {
        Some("argument") => !answer.text().is_empty(),
        Some("unrepresentable") => typed,
        _ => false,
    };
    round.check(column, &format!("{what} is refused: {answer}"), || is_right);
}

pub fn wrong_options(world: &mut World) {
    let driver = world.driver();
    let mut round = Round::default();
    for (option, values) in wrong_values() {
        for value in values {
            let mut options = json!({"keys": [KEY]});
            options[option] = value.clone();
            let mut answer = driver.try_lock("a", options);
            // An option of the acquire is looked at by the acquire.
            if answer.error().is_none() {
                answer = driver.call(json!({"do": "acquire", "lock": "a"}));
            }
            let what = format!("{option}: {}", shown(&value));
            // A library that doesn't renew has no longest hold.
            let has_no_hold = !world.has(Ability::Background);
            if option == "max_hold_ms" && has_no_hold {
                let is_right = answer.error() == Some("unrepresentable");
                round.check(Column::Try, &what, || is_right);
                continue;
            }
            check(world, &mut round, Column::Try, &what, &answer);
        }
    }
    for (limit, permits) in [(2, json!(0)), (2, json!(3))] {
        let options = json!({"keys": [KEY], "shared": true, "limit": limit, "permits": permits});
        let answer = driver.try_lock("a", options);
        let what = format!("{permits} permits of {limit}");
        check(world, &mut round, Column::Try, &what, &answer);
    }
    round.check(Column::Try, "nothing is sent", || {
        world.commands_of_locks().is_empty()
    });
    round.end("wrong_options");
}

fn shown(value: &Value) -> String {
    value.to_string().chars().take(20).collect()
}

pub fn wrong_limits(world: &mut World) {
    let driver = world.driver();
    let mut round = Round::default();
    driver.lock("a", json!({"keys": [KEY]}));
    for value in no_times() {
        let answer = driver.call(json!({"do": "acquire", "lock": "a", "wait_ms": value}));
        let what = format!("a limit of {value}");
        check(world, &mut round, Column::Limit, &what, &answer);
    }
    round.check(Column::Limit, "nothing is sent", || {
        world.commands_of_locks().is_empty()
    });
    round.end("wrong_limits");
}

/// A wrong extension leaves the lock as it is: it is held, and renewed.
pub fn wrong_extensions(world: &mut World) {
    let driver = world.driver();
    let mut round = Round::default();
    driver.lock("a", json!({"keys": [KEY], "lease_ms": 2000}));
    driver.try_acquire("a").fence();
    let token = world.holder(KEY);
    // The margin is 200 ms.
    for value in [no_positive_times(), vec![json!(200)]].concat() {
        let answer = driver.call(json!({"do": "extend", "lock": "a", "lease_ms": value}));
        let what = format!("a lease of {value}");
        check(world, &mut round, Column::Extend, &what, &answer);
    }
    round.check(Column::Extend, "the lock is held", || {
        world.left_of(KEY, &token) > 0
    });
    if world.has(Ability::Background) {
        let told = driver.loss_within("a", std::time::Duration::from_millis(2500));
        round.check(Column::Extend, "the lock is renewed", || told.is_none());
    }
    round.end("wrong_extensions");
}

pub fn wrong_command_timeouts(world: &mut World) {
    let mut round = Round::default();
    for value in no_positive_times() {
        let (driver, answer): (Driver, Answer) =
            world.try_driver(json!({"command_timeout_ms": value}));
        // A library may look at its options when it makes a lock.
        let answer = match answer.error() {
            None => driver.try_lock("a", json!({"keys": [KEY]})),
            Some(_) => answer,
        };
        let what = format!("a command timeout of {value}");
        check(world, &mut round, Column::Try, &what, &answer);
    }
    round.end("wrong_command_timeouts");
}
