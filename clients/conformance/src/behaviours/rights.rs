//! The rights of the user that a client connects as.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bad_days::{as_user, change_user, PASSWORD};
use crate::world::World;

const KEY: &str = "orders:42";

/// The clients whose tasks share a connection. The others give each wait a connection of its own.
const SHARING: &[&str] = &["python-asyncio", "ioredis", "node-redis"];

/// A message brings the grant within this time. Without it a place is asked about after 2 s.
const NOTIFIED: Duration = Duration::from_millis(1500);

/// Plays contention with the rights of the recipes in docs/operate/security.md.
pub fn the_recommended_rights_are_enough(world: &mut World) {
    let shares = SHARING.contains(&world.client.as_str());
    let rules = recipe(if shares { "service" } else { "worker" });
    change_user(world, &format!("reset on >{PASSWORD} {rules}"));
    let driver = world.driver_with(as_user(PASSWORD));
    for name in ["a", "b", "c"] {
        driver.lock(name, json!({"keys": [KEY]}));
    }
    driver.try_acquire("a").fence();
    assert!(driver.extend("a", 60_000));
    assert!(driver.left("a") > 30_000);
    assert!(driver.release("a"));
    world.other_holds(KEY);
    for wait_ms in [0, 1000, 1000] {
        let answer = driver.answer(&driver.begin_acquire("a", Some(wait_ms)));
        assert!(!answer.ok(), "after {wait_ms} ms");
        assert_eq!(answer.error(), None);
    }
    // The last wait leaves in the background.
    world.until_nobody_waits(KEY);
    let mut waits = Vec::new();
    for (number, name) in ["a", "b", "c"].iter().enumerate() {
        waits.push(driver.begin_acquire(name, None));
        world.until_waiting(KEY, number + 1);
    }
    let cancelled = driver.begin_cancel(&waits[2]);
    assert_eq!(driver.answer(&waits[2]).error(), Some("cancelled"));
    assert!(driver.answer(&cancelled).ok());
    world.until_waiting(KEY, 2);
    world.other_hands_over(KEY);
    for (name, asked) in ["a", "b"].iter().zip(&waits) {
        let released = Instant::now();
        let answer = driver.answer(asked);
        answer.fence();
        world.assert_in_time(Some(answer.at - released), NOTIFIED);
        assert!(driver.release(name));
    }
    world.assert_free(KEY);
    driver.lock("d", json!({"keys": ["bills:42"]}));
    assert_eq!(driver.try_acquire("d").error(), Some("denied"));
}

/// Returns the rules that the page gives to a user, after the password.
fn recipe(user: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/security.md");
    let text = std::fs::read_to_string(page).expect("a page");
    let command = format!("> ACL SETUSER {user} on >secret ");
    let rules = text.lines().find_map(|line| line.strip_prefix(&command));
    rules.expect("a recipe").to_owned()
}
