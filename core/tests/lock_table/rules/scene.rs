//! The scenes of this folder: a macro that makes a test of each, and the function that plays it.

use crate::world::World;

/// Plays a scene in the notation of `mod.rs`. Returns the world after the last line.
pub(super) fn play(scene: &str) -> World {
    let mut world = World::new();
    for line in scene.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let line = line.split("//").next().unwrap_or_default().trim();
        if let Some(ms) = line.strip_prefix('+') {
            world.pass_ms(ms.parse().expect("milliseconds"));
        } else if let Some(told) = line.strip_prefix("< ") {
            let heard = world.heard();
            let expected: Vec<&str> = if told == "nothing" {
                vec![]
            } else {
                told.split(" | ").collect()
            };
            assert_eq!(heard, expected, "in the scene at {line:?}:\n{scene}");
        } else if let Some(holders) = line.strip_prefix("= ") {
            let mut words = holders.split_whitespace();
            let key = words.next().expect("a key");
            let expected: Vec<&str> = words.collect();
            assert_eq!(
                world.holders(key),
                expected,
                "in the scene at {line:?}:\n{scene}"
            );
        } else if let Some(waiters) = line.strip_prefix("? ") {
            let mut words = waiters.split_whitespace();
            let key = words.next().expect("a key");
            let expected: Vec<&str> = words.collect();
            assert_eq!(
                world.data_of_queue(key),
                expected,
                "in the scene at {line:?}:\n{scene}"
            );
        } else if let Some(shown) = line.strip_prefix("HOT ") {
            let (key, numbers) = shown.split_once(' ').expect("numbers");
            assert_hot(&world, key, numbers);
        } else if let Some(ms) = line.strip_prefix("LATE ") {
            world.now_ms += ms.parse::<u64>().expect("milliseconds");
        } else if let Some(count) = line.strip_prefix("REPLICAS ") {
            world.store.replicas = count.parse().expect("a number");
        } else if let Some(count) = line.strip_prefix("ACK ") {
            world.acknowledge(count.parse().expect("a number"));
        } else if let Some(said) = line.strip_prefix("CUT ") {
            assert!(world.cut_short(said), "in the scene at {line:?}:\n{scene}");
        } else if let Some(key) = line.strip_prefix("DEL ") {
            world.delete(key);
        } else if let Some(key) = line.strip_prefix("SET ") {
            world.overwrite(key);
        } else if let Some(said) = line.strip_prefix("CLOSE ") {
            world.close(said);
        } else if let Some(keys) = line.strip_prefix("RENAME ") {
            let (from, to) = keys.split_once(' ').expect("two keys");
            world.rename(from, to);
        } else if let Some(said) = line.strip_prefix("UNBLOCK ") {
            world.unblock(said);
        } else if let Some(said) = line.strip_prefix("BYE ") {
            world.hang_up(said);
        } else {
            let (said, answer) = line
                .split_once(" -> ")
                .unwrap_or_else(|| panic!("no answer in {line:?}"));
            let answered = match said.split_once("> ") {
                Some((connection, said)) => world.say_as(client_id_of(connection), said),
                None => world.say(said),
            };
            assert_eq!(answered, answer, "in the scene at {line:?}:\n{scene}");
        }
        world.table.queues().check().expect("sound queues");
    }
    world
}

/// Asserts that LOCK.HOT shows these numbers for a key.
#[track_caller]
pub(super) fn assert_hot(world: &World, key: &str, numbers: &str) {
    let hottest = world.table.hottest(usize::MAX, world.now_ms, |_| true);
    let shown = hottest
        .iter()
        .find(|it| it.name.key() == key.as_bytes())
        .map(|it| {
            let words: Vec<&str> = numbers.split(' ').collect();
            let shown = words.chunks(2).map(|pair| {
                let field = pair[0];
                let number = match field {
                    "waited-ms" => it.counts.waited_ms,
                    "longest-wait-ms" => it.counts.longest_wait_ms,
                    "waiters" => it.waiters as u64,
                    "waits" => it.counts.waits,
                    "refused" => it.counts.refused,
                    "grants" => it.counts.grants,
                    "held-ms" => it.counts.held_ms,
                    other => panic!("no field {other:?}"),
                };
                format!("{field} {number}")
            });
            shown.collect::<Vec<_>>().join(" ")
        });
    assert_eq!(shown.as_deref().unwrap_or("nothing"), numbers, "{key}");
}

/// Returns the client id of a connection that is named by a letter.
fn client_id_of(connection: &str) -> u64 {
    1_000_000 + u64::from(connection.as_bytes()[0])
}

/// Defines a test for each named scene.
macro_rules! scenes {
    ($($(#[$doc:meta])* $name:ident: $scene:literal;)*) => {
        $($(#[$doc])* #[test] fn $name() { $crate::rules::scene::play($scene); })*
    };
}

pub(super) use scenes;
