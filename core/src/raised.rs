//! A flag for the time of a step.

use std::cell::Cell;

/// Keeps a flag true while the value exists. When it is dropped, by a return or by a panic, the flag
/// is what it was before.
#[must_use = "the flag falls when the value is dropped"]
pub struct Raised<'a> {
    flag: &'a Cell<bool>,
    before: bool,
}

impl<'a> Raised<'a> {
    /// Raises a flag.
    #[inline(always)]
    pub fn new(flag: &'a Cell<bool>) -> Self {
        let before = flag.replace(true);
        Self { flag, before }
    }
}

impl Drop for Raised<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.flag.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use super::*;

    #[test]
    fn a_flag_falls_when_its_step_panics() {
        let flag = Cell::new(false);
        let step = AssertUnwindSafe(|| {
            let _raised = Raised::new(&flag);
            assert!(flag.get());
            panic!("a step");
        });
        assert!(catch_unwind(step).is_err());
        assert!(!flag.get());
    }

    #[test]
    fn a_flag_stays_raised_until_the_outer_step_ends() {
        let flag = Cell::new(false);
        let outer = Raised::new(&flag);
        drop(Raised::new(&flag));
        assert!(flag.get());
        drop(outer);
        assert!(!flag.get());
    }
}
