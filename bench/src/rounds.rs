//! The order of measurements, and the progress display.
//!
//! Rounds alternate: A B C, C B A. So a change on the machine affects all contestants alike. No
//! contestant always follows the same predecessor, because each leaves traces in the server.

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

/// The progress bar of a run. Hidden if the standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Returns a bar without steps.
    pub fn new() -> Result<Progress> {
        let bar = ProgressBar::new(0);
        let template = "{elapsed_precise} {wide_bar} {pos}/{len} {msg:40}";
        bar.set_style(ProgressStyle::with_template(template)?);
        Ok(Progress { bar })
    }

    /// Shows the name of the next measurement.
    pub fn tell(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Prints a line that stays on the screen.
    pub fn interrupt(&self, what: &str) {
        self.bar.suspend(|| eprintln!("{what}"));
    }

    /// Removes the bar from the screen.
    pub fn close(&self) {
        self.bar.finish_and_clear();
    }
}

/// Plays every contestant once per round, in reverse order in every other round.
pub fn interleaved<T>(
    rounds: usize,
    contestants: &mut [T],
    progress: &Progress,
    name: impl Fn(&T) -> String,
    mut play: impl FnMut(usize, &mut T) -> Result<()>,
) -> Result<()> {
    progress.bar.inc_length((rounds * contestants.len()) as u64);
    let forth: Vec<usize> = (0..contestants.len()).collect();
    let back: Vec<usize> = forth.iter().rev().copied().collect();
    for (round, order) in [&forth, &back].into_iter().cycle().take(rounds).enumerate() {
        for &index in order {
            let contestant = &mut contestants[index];
            let name = name(contestant);
            progress.tell(&name);
            play(round, contestant).with_context(|| name)?;
            progress.bar.inc(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_interleaved() -> Result<()> {
        let mut order = String::new();
        let name = |name: &char| name.to_string();
        interleaved(3, &mut ['A', 'B'], &Progress::new()?, name, |_, who| {
            order.push(*who);
            Ok(())
        })?;
        assert_eq!(order, "ABBAAB");
        Ok(())
    }
}
