//! A lock table driven by bytes: they choose the steps of the random walks in
//! `core/tests/lock_table/walk.rs`. All promises, and a naive model of contention, judge each step.
#![no_main]
#![allow(dead_code)]

#[path = "../../../core/tests/lock_table/judge.rs"]
mod judge;
#[path = "../../../core/tests/lock_table/naive_contention.rs"]
mod naive_contention;
#[path = "../../../core/tests/lock_table/stream.rs"]
mod stream;
#[path = "../../../core/tests/lock_table/walk.rs"]
mod walk;
#[path = "../../../core/tests/lock_table/world.rs"]
mod world;

use libfuzzer_sys::fuzz_target;

use walk::{Step, Timer, KEYS, MODES, RAISED_TO, SHARED_MODES};

/// The most steps of a walk.
const MOST_STEPS: usize = 80;

const TOKENS: [&str; 5] = ["a", "b", "c", "d", "e"];
const REENTRIES: [&str; 6] = ["", "", "REENTRANT", "HOLDS 2", "SESSION", "SESSION KEEP 20"];
const DATA: [&str; 4] = ["", "", "DATA who", "DATA \"\""];
const REPLICAS: [&str; 5] = ["", "", "REPLICAS 1", "REPLICAS 2 WITHIN 40", "REPLICAS 3"];

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let walked = match bytes.below(2) {
        0 => walk::walk(bytes.steps()),
        _ => walk::walk_with_naive_model(bytes.steps().into_iter().map(settled).collect()),
    };
    if let Err(broken) = walked {
        panic!("{broken}");
    }
});

/// Replaces a step that leaves something to the timer.
fn settled(step: Step) -> Step {
    match step {
        Step::CloseUnseen | Step::Restore(..) => Step::CloseAll,
        Step::PassUnseen(ms) => Step::Pass(ms),
        Step::HangUpUnseen(n) => Step::HangUp(n),
        Step::Overwrite(key, _) => Step::Delete(key),
        Step::Rename(from, to, _) => Step::Rename(from, to, Timer::Fires),
        step => step,
    }
}

/// The bytes that are left. Each choice takes one; behind the last, the first choice is made.
struct Bytes<'b>(&'b [u8]);

impl Bytes<'_> {
    fn below(&mut self, most: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        usize::from(*first) % most
    }

    fn ms(&mut self, most: usize) -> u64 {
        self.below(most) as u64
    }

    fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        while !self.0.is_empty() && steps.len() < MOST_STEPS {
            steps.push(self.step());
        }
        steps
    }

    fn step(&mut self) -> Step {
        match self.below(32) {
            0 => Step::Delete(self.one(&KEYS)),
            1 => Step::Overwrite(self.one(&KEYS), self.line()),
            2 | 3 => Step::HangUp(self.below(9)),
            4 => Step::HangUpUnseen(self.below(9)),
            5 => Step::Flush,
            6 => Step::Unblock(self.below(9)),
            7 | 8 => Step::Acknowledge(self.below(3)),
            9 => Step::CutShort(self.below(9)),
            10 => Step::TakeBack,
            11 => Step::CloseAll,
            12 => Step::CloseUnseen,
            13 => Step::PassUnseen(self.ms(30)),
            14 => Step::Expire(self.one(&KEYS), Some(1 + self.ms(40))),
            15 => Step::Expire(self.one(&KEYS), None),
            16 | 17 => Step::Rename(self.one(&KEYS), self.one(&KEYS), self.timer()),
            18 => Step::Dump(self.one(&KEYS)),
            19 => Step::SendAway(self.one(&KEYS)),
            20 => Step::BringBack(self.one(&KEYS)),
            21 => Step::Restore(self.one(&KEYS), self.timer()),
            22..=24 => Step::Pass(self.ms(30)),
            _ => Step::Say(self.line()),
        }
    }

    fn timer(&mut self) -> Timer {
        self.one(&[Timer::Fires, Timer::IsLate])
    }

    fn mode(&mut self) -> &'static str {
        match self.below(2) {
            0 => self.one(&MODES),
            _ => self.one(&SHARED_MODES),
        }
    }

    /// Returns a command.
    fn line(&mut self) -> String {
        let set = 1 + self.below(7);
        let keys: Vec<&str> = (0..3)
            .filter(|bit| set >> bit & 1 == 1)
            .map(|bit| KEYS[bit])
            .collect();
        let subject = format!("{} {} {}", keys.len(), keys.join(" "), self.one(&TOKENS));
        let ms = 1 + self.ms(60);
        match self.below(10) {
            0 | 1 => format!("MACQUIRE {subject} PX {ms} {}", self.request()),
            2..=4 => {
                let request = self.request();
                let keeps = self.below(2) == 1 && !request.contains("KEEP");
                let keep = if keeps { "KEEP 25" } else { "" };
                format!(
                    "MWAIT {subject} PX {ms} BLOCK {} {keep} {request}",
                    self.ms(60)
                )
            }
            5 => {
                let (mode, data) = (self.mode(), self.one(&DATA));
                let holds = self.one(&["", "HOLDS 2"]);
                format!(
                    "MQUEUE {subject} PX {ms} KEEP {} {mode} {holds} {data}",
                    1 + self.ms(60)
                )
            }
            6 => format!("CANCEL {} {}", keys[0], self.one(&TOKENS)),
            7 => format!(
                "MEXTEND {subject} {} {}",
                self.extension(ms),
                self.one(&DATA)
            ),
            8 => format!("MRELEASE {subject} {}", self.one(&["", "ALL", "HOLDS 1"])),
            _ => format!("MRELEASE {subject} LEAVE {ms}"),
        }
    }

    fn request(&mut self) -> String {
        let (mode, reentry) = (self.mode(), self.one(&REENTRIES));
        format!(
            "{mode} {reentry} {} {}",
            self.one(&DATA),
            self.one(&REPLICAS)
        )
    }

    fn extension(&mut self, ms: u64) -> String {
        match self.below(6) {
            0 => format!("PX {ms}"),
            1 => format!("PX {ms} GT"),
            2 => format!("PX {ms} {}", self.one(&REPLICAS)),
            3 => format!("FENCE {}", self.one(&RAISED_TO)),
            4 => "NOSESSION".to_owned(),
            _ => "SESSION KEEP 30".to_owned(),
        }
    }
}
