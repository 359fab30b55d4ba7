//! Errors that no patience mends: each call gets them at once.

use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::cells::{rounds, Column, Due, Round, CLEAN, PATIENT_MS};
use super::faults::{as_user, change_user, make_user, PASSWORD};
use crate::driver::Driver;
use crate::world::World;

const DENIED: &[&str] = &["denied"];

fn driver(world: &World, connect: &Value) -> Driver {
    let mut fields = connect.clone();
    fields["command_timeout_ms"] = json!(PATIENT_MS);
    world.driver_with(fields)
}

/// Plays the calls that acquire a lock. Each gets the error at once, also a wait for ever.
fn refused(world: &mut World, row: &str, connect: &Value, expected: &[&str]) {
    rounds(world, row, |world, round| {
        let driver = driver(world, connect);
        play_refused(round, &driver, expected);
    });
}

fn play_refused(round: &mut Round, driver: &Driver, expected: &[&str]) {
    use Column::{Block, Ever, Limit, Try};
    let wait = Duration::from_secs(3);
    for column in [Try, Limit, Ever, Block] {
        driver.lock(column.lock(), json!({"keys": [column.key()]}));
        let asked = match column {
            Try => driver.begin_acquire(column.lock(), Some(0)),
            Limit => driver.begin_acquire(column.lock(), Some(3000)),
            Ever => driver.begin_acquire(column.lock(), None),
            _ => driver.begin_block(column.lock(), wait, wait, None),
        };
        round.cell(driver, column, &asked, Due::at_once(asked.at), expected);
    }
}

pub fn module_missing(world: &mut World) {
    let port = world.servers.start_without_module(&world.setting.clone());
    let connect = json!({"servers": [format!("127.0.0.1:{port}")]});
    refused(world, "module_missing", &connect, &["module_missing"]);
}

pub fn wrong_password(world: &mut World) {
    make_user(world);
    refused(world, "wrong_password", &as_user("wrong"), DENIED);
}

pub fn no_password(world: &mut World) {
    world.servers.call("ACL SETUSER default resetpass >another");
    // A server that knows no user yet refuses a long command as an error of the protocol.
    refused(world, "no_password", &json!({}), &["denied", "other"]);
}

pub fn no_right_to_acquire(world: &mut World) {
    make_user(world);
    let commands = ["acquire", "wait", "queue", "macquire", "mwait", "mqueue"];
    let rules = commands.map(|command| format!("-lock.{command}"));
    change_user(world, &rules.join(" "));
    refused(world, "no_right_to_acquire", &as_user(PASSWORD), DENIED);
}

/// The release is refused. The lock isn't held locally any more, and ends with its lease. A block
/// keeps its result.
pub fn no_right_to_release(world: &mut World) {
    use Column::{Block, FailingBlock, Release};
    make_user(world);
    rounds(world, "no_right_to_release", |world, round| {
        change_user(world, "+@all");
        let driver = driver(world, &as_user(PASSWORD));
        for column in [Release, Block, FailingBlock] {
            driver.lock(
                column.lock(),
                json!({"keys": [column.key()], "lease_ms": 2000}),
            );
        }
        driver.try_acquire(Release.lock()).fence();
        let work = Duration::from_millis(500);
        let wait = Duration::from_secs(5);
        let block = driver.begin_block(Block.lock(), wait, work, None);
        let failing = driver.begin_block(FailingBlock.lock(), wait, work, Some("boom"));
        for column in [Block, FailingBlock] {
            let event = driver.event_of_lock("in", column.lock(), wait);
            event.expect("the block begins");
        }
        change_user(world, "-lock.release -lock.mrelease");
        let began = Instant::now();
        let released = driver.begin_release(Release.lock());
        round.cell(&driver, Release, &released, Due::at_once(began), DENIED);
        let again = driver.begin_release(Release.lock());
        round.cell(&driver, Release, &again, Due::by(began, CLEAN), &["misuse"]);
        for (column, asked, expected) in [(Block, block, "true"), (FailingBlock, failing, "failed")]
        {
            round.cell(&driver, column, &asked, Due::by(began, work), &[expected]);
        }
        // Renewed, they would never end.
        for column in [Release, Block, FailingBlock] {
            round.until_free(world, column);
        }
    });
}

/// The release of a session is refused. The server would renew it as long as its connection is open.
pub fn no_right_to_release_a_session(world: &mut World) {
    use Column::Release;
    make_user(world);
    rounds(world, "no_right_to_release_a_session", |world, round| {
        change_user(world, "+@all");
        let driver = driver(world, &as_user(PASSWORD));
        let options = json!({"keys": [Release.key()], "lease_ms": 2000, "session": true});
        driver.lock(Release.lock(), options);
        driver.try_acquire(Release.lock()).fence();
        change_user(world, "-lock.release -lock.mrelease");
        let began = Instant::now();
        let released = driver.begin_release(Release.lock());
        round.cell(&driver, Release, &released, Due::at_once(began), DENIED);
        round.until_free(world, Release);
    });
}

/// The extension is refused. The lock stays as it is, and is renewed as soon as it may be.
pub fn no_right_to_extend(world: &mut World) {
    use Column::Extend;
    make_user(world);
    rounds(world, "no_right_to_extend", |world, round| {
        change_user(world, "+@all");
        let driver = driver(world, &as_user(PASSWORD));
        let options = json!({"keys": [Extend.key()], "lease_ms": 3000});
        driver.lock(Extend.lock(), options);
        driver.try_acquire(Extend.lock()).fence();
        let token = world.holder(&Extend.key());
        change_user(world, "-lock.extend -lock.mextend");
        let extended = driver.begin_extend(Extend.lock(), 60_000);
        round.cell(
            &driver,
            Extend,
            &extended,
            Due::at_once(extended.at),
            DENIED,
        );
        change_user(world, "+@all");
        let told = driver.loss_within(Extend.lock(), Duration::from_millis(3500));
        round.check(Extend, "the lock isn't lost", || told.is_none());
        round.check(Extend, "the lock is renewed", || {
            world.left_of(&Extend.key(), &token) > 0
        });
        round.release(&driver, Extend);
    });
}

pub fn no_right_to_the_key(world: &mut World) {
    make_user(world);
    change_user(world, "resetkeys ~another*");
    refused(world, "no_right_to_the_key", &as_user(PASSWORD), DENIED);
}

/// A client that waits by NOTIFY needs the channel, and gets the error at once. Another client
/// waits to the end of its limit.
pub fn no_right_to_the_channel(world: &mut World) {
    use Column::{Limit, Try};
    make_user(world);
    change_user(world, "resetchannels");
    rounds(world, "no_right_to_the_channel", |world, round| {
        let driver = driver(world, &as_user(PASSWORD));
        for column in [Try, Limit] {
            driver.lock(column.lock(), json!({"keys": [column.key()]}));
        }
        let tried = driver.begin_acquire(Try.lock(), Some(0));
        round.cell(&driver, Try, &tried, Due::at_once(tried.at), &["true"]);
        round.release(&driver, Try);
        world.other_holds(&Limit.key());
        let limited = driver.begin_acquire(Limit.lock(), Some(800));
        let wait = Duration::from_millis(800);
        if let Some(answer) = driver.answer_within(&limited, wait + CLEAN) {
            let due = match answer.error() {
                None => Due::after(limited.at, wait),
                Some(_) => Due::at_once(limited.at),
            };
            round.cell(&driver, Limit, &limited, due, &["false", "denied"]);
        }
        world.other_releases(&Limit.key());
    });
}

/// The text of the error has no token either: the suite looks at every line.
pub fn another_type(world: &mut World) {
    use Column::{Block, Ever, Limit, Try};
    for column in [Try, Limit, Ever, Block] {
        world.servers.call(&format!("SET {} text", column.key()));
    }
    refused(world, "another_type", &json!({}), &["other"]);
}
