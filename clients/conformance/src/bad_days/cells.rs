//! The columns of the table, and a round in which its cells are played.

use std::fmt;
use std::time::{Duration, Instant};

use crate::driver::{Answer, Asked, Driver};
use crate::servers::within;
use crate::world::World;

/// The command timeout of drivers whose calls give up in an outage.
pub const COMMAND_TIMEOUT: Duration = Duration::from_millis(600);

/// The longest delay of an answer in the best of some rounds. The best counts, because the machine
/// may be busy in a round.
pub const LATE: Duration = Duration::from_millis(250);

const ROUNDS: usize = 3;

/// The time for an answer that is late. An answer that takes longer fails the row at once.
const MUCH_TOO_LATE: Duration = Duration::from_secs(10);

/// The time within which a library has cleaned up after an outage: the pauses between its attempts
/// grow to 1 s, and an attempt takes 1 s. The rest is for a busy machine.
pub const CLEAN: Duration = Duration::from_secs(12);

/// The command timeout of drivers whose server replies, in ms: longer than a busy machine keeps a
/// reply.
pub const PATIENT_MS: u64 = 8000;

/// A text of the system that names no cause: a read took too long.
const NO_CAUSE: &str = "Resource temporarily unavailable";

/// A call, as docs/reference/bad-days.md heads its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Try,
    Limit,
    Ever,
    Cancel,
    Release,
    Extend,
    Block,
    FailingBlock,
}

impl Column {
    /// Returns the name of the column's lock.
    pub fn lock(self) -> &'static str {
        match self {
            Column::Try => "try",
            Column::Limit => "limit",
            Column::Ever => "ever",
            Column::Cancel => "cancel",
            Column::Release => "release",
            Column::Extend => "extend",
            Column::Block => "block",
            Column::FailingBlock => "failing",
        }
    }

    /// Returns the key of the column's lock.
    pub fn key(self) -> String {
        format!("{{t}}{}", self.lock())
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Column::Try => "try",
            Column::Limit => "wait with a limit",
            Column::Ever => "wait for ever",
            Column::Cancel => "cancel",
            Column::Release => "release",
            Column::Extend => "extend",
            Column::Block => "end of the block",
            Column::FailingBlock => "end of a failing block",
        })
    }
}

/// The times between which an answer comes.
#[derive(Clone, Copy)]
pub struct Due {
    from: Instant,
    earliest: Duration,
    latest: Duration,
}

impl Due {
    /// At once.
    pub fn at_once(from: Instant) -> Due {
        Due::by(from, Duration::ZERO)
    }

    /// Not after this time.
    pub fn by(from: Instant, latest: Duration) -> Due {
        Due {
            from,
            earliest: Duration::ZERO,
            latest,
        }
    }

    /// At the end of this time.
    pub fn after(from: Instant, time: Duration) -> Due {
        Due {
            from,
            earliest: time,
            latest: time,
        }
    }
}

impl fmt::Display for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (earliest, latest) = (self.earliest.as_millis(), self.latest.as_millis());
        write!(f, "{earliest} to {latest} ms")
    }
}

/// The cells of a row, as one round has played them.
#[derive(Default)]
pub struct Round {
    wrong: Vec<String>,
    late: Vec<(Column, String)>,
}

impl Round {
    /// Waits for the answer of a cell. Its outcome must be an expected one: the name of an error,
    /// "true" or "false".
    pub fn cell(
        &mut self,
        driver: &Driver,
        column: Column,
        asked: &Asked,
        due: Due,
        expected: &[&str],
    ) -> Option<Answer> {
        let patience = (due.from + due.latest + MUCH_TOO_LATE).duration_since(Instant::now());
        let Some(answer) = driver.answer_within(asked, patience) else {
            self.wrong
                .push(format!("{column}: no answer; due within {due}"));
            return None;
        };
        let outcome = outcome(&answer);
        if !expected.contains(&outcome.as_str()) {
            self.wrong
                .push(format!("{column}: expected {expected:?}, got {answer}"));
        }
        if outcome == "unavailable" {
            self.check(column, &format!("a cause in words: {answer}"), || {
                let text = answer.text();
                text.len() > 10 && !text.contains(NO_CAUSE)
            });
        }
        self.time(column, answer.at, due, &answer.to_string());
        Some(answer)
    }

    /// Checks the time of an answer or an event.
    pub fn time(&mut self, column: Column, at: Instant, due: Due, what: &str) {
        let after = at.saturating_duration_since(due.from);
        let told = format!(
            "{column}: {what} came at {} ms, due within {due}",
            after.as_millis()
        );
        if after < due.earliest {
            self.wrong.push(told);
        } else if after > due.latest + LATE {
            self.late.push((column, told));
        }
    }

    /// Checks a state.
    pub fn check(&mut self, column: Column, what: &str, is_so: impl FnOnce() -> bool) {
        if !is_so() {
            self.wrong.push(format!("{column}: not so: {what}"));
        }
    }

    /// Releases the column's lock, which must be held.
    pub fn release(&mut self, driver: &Driver, column: Column) {
        let asked = driver.begin_release(column.lock());
        let released = driver.answer_within(&asked, MUCH_TOO_LATE);
        let outcome = released.as_ref().map(outcome);
        self.check(
            column,
            &format!("the lock is released: {outcome:?}"),
            || outcome.as_deref() == Some("true"),
        );
    }

    /// Waits until a condition is true.
    pub fn until(&mut self, column: Column, what: &str, is_so: impl Fn() -> bool) {
        self.check(column, &format!("within {CLEAN:?}, {what}"), || {
            within(CLEAN, || is_so().then_some(())).is_some()
        });
    }

    /// Fails the row if a cell was wrong.
    #[track_caller]
    pub fn end(&self, row: &str) {
        let wrong: Vec<_> = self
            .wrong
            .iter()
            .map(|it| format!("{row} | {it}"))
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Waits until the column's lock has neither holders nor waiters.
    pub fn until_free(&mut self, world: &World, column: Column) {
        self.until(column, "nobody has or waits for the lock", || {
            world.servers.info(&column.key()).is_none()
        });
    }
}

/// Returns the name of an answer's error, or its result.
fn outcome(answer: &Answer) -> String {
    match answer.error() {
        Some(error) => error.to_owned(),
        None => answer.get("ok").to_string(),
    }
}

/// Plays rounds until each cell was in time in one of them. A wrong cell fails the row at once. A
/// row with a cell that was late in each round fails, and the world is told.
#[track_caller]
pub fn rounds(world: &mut World, row: &str, play: impl Fn(&mut World, &mut Round)) {
    let mut late: Option<Vec<(Column, String)>> = None;
    for _ in 0..ROUNDS {
        let mut round = Round::default();
        play(world, &mut round);
        round.end(row);
        let before = late.take();
        let was_late = |column: Column| {
            let before = before.as_ref();
            before.is_none_or(|before| before.iter().any(|(it, _)| *it == column))
        };
        round.late.retain(|(column, _)| was_late(*column));
        if round.late.is_empty() {
            return;
        }
        late = Some(round.late);
    }
    world.set_late();
    let late = late.into_iter().flatten();
    let late: Vec<_> = late.map(|(_, told)| format!("{row} | {told}")).collect();
    panic!("{}", late.join("\n"));
}
