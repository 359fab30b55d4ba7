//! A search through every interleaving of a scene's actions, breadth first, by `stateright`.
//!
//! The lock table can't be copied. So a state is the actions that lead to it, and each step plays
//! them again. States with the same fingerprint count as one.

use std::env;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stateright::{Checker, Model, Property};

/// The most actions of one path.
const MOST_STEPS: usize = 24;

/// A small world with a list of actions. An action is a number in that list.
pub trait Scene {
    /// Returns the actions that are possible now.
    fn possible(&self) -> Vec<u8>;

    /// Carries out an action. Its promises are judged if `is_judged`. Panics, or returns the reason,
    /// if a promise is broken.
    fn act(&mut self, action: u8, is_judged: bool) -> Result<(), String>;

    /// Returns a hash of all that the future depends on.
    fn fingerprint(&self) -> u64;

    /// Lets all clients go, and checks what is left then.
    fn end(self) -> Result<(), String>;

    /// Returns the text of an action.
    fn text(&self, action: u8) -> String;
}

/// The outcome of a search.
#[derive(Debug)]
pub struct Found {
    /// The most actions of the paths that were all searched.
    pub depth: usize,
    /// The shortest way to break a promise.
    pub harm: Option<Harm>,
}

/// The actions that broke a promise, and its text.
#[derive(Debug)]
pub struct Harm {
    pub actions: Vec<String>,
    pub broken: String,
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.actions.join("\n"), self.broken)
    }
}

/// The bounds of a search.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// The most actions of a path.
    pub depth: usize,
    /// The longest time.
    pub time: Duration,
}

impl Bounds {
    /// Returns the bounds of a normal test. With SMALL_WORLD_SECONDS a search goes as deep as it can
    /// in that time.
    pub fn normally(depth: usize) -> Self {
        let seconds = env::var("SMALL_WORLD_SECONDS").ok();
        let seconds = seconds.map(|it| it.parse().expect("a number of seconds"));
        Self {
            depth: if seconds.is_some() { MOST_STEPS } else { depth },
            time: Duration::from_secs(seconds.unwrap_or(3_600)),
        }
    }
}

/// Searches all paths of a scene.
pub fn search<S: Scene + 'static>(start: fn() -> S, bounds: Bounds) -> Found {
    let paths = Paths {
        start,
        until: Instant::now() + bounds.time,
        depth: bounds.depth,
        given_up: AtomicUsize::new(bounds.depth),
    };
    let checker = paths.checker().spawn_bfs().join();
    let harm = checker.discovery(KEPT).map(|path| {
        let last = path.last_state();
        Harm {
            actions: last.path().iter().map(|it| start().text(*it)).collect(),
            broken: last.broken.as_deref().unwrap_or_default().to_owned(),
        }
    });
    let depth = checker.model().given_up.load(Ordering::Relaxed);
    let (steps, states) = (checker.state_count(), checker.unique_state_count());
    println!("{steps} steps, {states} states, all paths of {depth} actions");
    Found { depth, harm }
}

/// The name of the only property.
const KEPT: &str = "all promises are kept";

/// All paths of a scene, as `stateright` reads them.
struct Paths<S> {
    start: fn() -> S,
    /// The end of the search. The checker's own timeout doesn't end a search of one thread.
    until: Instant,
    /// The most actions of a path. The checker's own bound leaves the last states unchecked.
    depth: usize,
    /// The actions of the shortest path that the search didn't continue.
    given_up: AtomicUsize,
}

/// The state at the end of a path.
#[derive(Clone, Debug)]
struct State {
    actions: [u8; MOST_STEPS],
    len: usize,
    /// The possible actions, one bit each.
    possible: u64,
    fingerprint: u64,
    broken: Option<Box<str>>,
}

impl State {
    fn path(&self) -> &[u8] {
        &self.actions[..self.len]
    }

    /// Returns the state after a path. Only its last step is judged.
    fn after<S: Scene>(start: fn() -> S, actions: [u8; MOST_STEPS], len: usize) -> Self {
        let played = catch_unwind(AssertUnwindSafe(|| {
            let mut scene = start();
            for (number, action) in actions[..len].iter().enumerate() {
                scene.act(*action, number + 1 == len)?;
            }
            let possible = scene.possible().iter().fold(0, |bits, it| bits | 1 << it);
            let fingerprint = scene.fingerprint();
            scene.end()?;
            Ok((possible, fingerprint))
        }));
        let played = played.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.unwrap_or_else(|| "a panic".to_owned()))
        });
        let (possible, fingerprint, broken) = match played {
            Ok((possible, fingerprint)) => (possible, fingerprint, None),
            Err(broken) => (0, 0, Some(broken.into())),
        };
        Self {
            actions,
            len,
            possible,
            fingerprint,
            broken,
        }
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.broken.is_some() == other.broken.is_some()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.fingerprint, self.broken.is_some()).hash(hasher);
    }
}

impl<S: Scene + 'static> Model for Paths<S> {
    type State = State;
    type Action = u8;

    fn init_states(&self) -> Vec<State> {
        vec![State::after(self.start, [0; MOST_STEPS], 0)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<u8>) {
        if Instant::now() > self.until {
            self.given_up.fetch_min(state.len, Ordering::Relaxed);
            return;
        }
        if state.len == self.depth {
            return;
        }
        actions.extend((0..64).filter(|action| state.possible & (1 << action) != 0));
    }

    fn next_state(&self, state: &State, action: u8) -> Option<State> {
        let mut actions = state.actions;
        *actions.get_mut(state.len)? = action;
        Some(State::after(self.start, actions, state.len + 1))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(KEPT, |_, state: &State| {
            state.broken.is_none()
        })]
    }
}
