//! Branch hints for the uncontended path.
//!
//! A hint moves a function's unlikely code behind its likely code. It changes the placement of code
//! and nothing else.

// perf: a lock and its release execute more code than a first-level instruction cache holds, so
// each cache line that is touched is fetched again for each command. The figures are in
// docs/internals/fast-path.md.

/// Marks a path as cold, so the compiler moves branches that reach it out of line.
#[cold]
#[inline]
pub const fn cold_path() {}

/// Returns the condition, which the compiler assumes to be mostly true.
#[inline(always)]
pub const fn likely(condition: bool) -> bool {
    if !condition {
        cold_path();
    }
    condition
}

/// Returns the condition, which the compiler assumes to be mostly false.
#[inline(always)]
pub const fn unlikely(condition: bool) -> bool {
    if condition {
        cold_path();
    }
    condition
}
