//! A crowd of clients that contend for locks while servers come and go, and its history.
//!
//! Each client acts like a sound client library. It gets its key's server from a [`Find`], waits
//! with a token of its own, works, checks now and then that it still holds the lock, and releases
//! it. After an error or a closed connection the client finds the server anew and goes on with the
//! same token. It takes its lease for over a little before the lease ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use support::history::{Granted, Hold, Mode, Wait};
use support::load::{Dice, Over};
use support::{unix_time_us, Client, Command, Reply, Server};

/// Time that a grant may take to reach the replicas that its client relies on, in ms.
const ACKNOWLEDGE_MS: u64 = 1_000;

/// Time after which a client gives up on a silent server. It is longer than any wait in turn, so
/// silence is a fault. Clients wait without a BLOCK, because repeating the command would hide that
/// the server forgot a waiter.
const SILENCE: Duration = Duration::from_secs(40);

/// Pause after a failed attempt.
const BREATH: Duration = Duration::from_millis(10);

/// Time between two checks that the lock is still held.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// The server of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The server's port.
    pub port: u16,
    /// True if ASKING must precede the command. Such a route is good for one command.
    pub asking: bool,
}

/// Finds the server that currently accepts writes for a key, if any. Its arguments are the key and
/// the last error: a server's, like `MOVED 3999 127.0.0.1:6381`, or the reason for no reply.
pub type Find<'a> = &'a (dyn Fn(&str, Option<&str>) -> Option<Route> + Sync);

/// The plan of a crowd.
pub struct Plan {
    /// The keys. Each key has its own clients.
    pub keys: Vec<String>,
    /// Number of clients that contend for each key.
    pub contenders: usize,
    /// The lease that the clients request, in ms.
    pub lease_ms: u64,
    /// Time for which a client holds the lock if the lease lasts, in ms.
    pub hold_ms: Range<u64>,
    /// Number of holds in ten that are left to expire instead of released.
    pub lapses_of_ten: u64,
    /// Number of replicas that must acknowledge a grant before its client relies on it.
    pub replicas: usize,
}

/// The history of a crowd, according to its clients.
#[derive(Debug, Default)]
pub struct History {
    /// Holds on which their clients relied.
    pub holds: Vec<Hold>,
    /// The `holds` that were lost before their lease was over.
    pub lost: Vec<Hold>,
    /// All grants, relied on or not.
    pub grants: Vec<Granted>,
    /// All waits.
    pub waits: Vec<Wait>,
    /// Number of errors by their first word.
    pub errors: BTreeMap<String, usize>,
}

impl History {
    fn append(&mut self, mut other: History) {
        self.holds.append(&mut other.holds);
        self.lost.append(&mut other.lost);
        self.grants.append(&mut other.grants);
        self.waits.append(&mut other.waits);
        for (error, count) in other.errors {
            *self.errors.entry(error).or_default() += count;
        }
    }
}

/// Lets crowds contend while `meanwhile` runs. Returns one history for each plan, and the result of
/// `meanwhile`.
pub fn contend<T, const N: usize>(
    plans: [Plan; N],
    find: Find<'_>,
    meanwhile: impl FnOnce() -> T,
) -> ([History; N], T) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let crowds = plans.each_ref().map(|plan| {
            let clients = plan
                .keys
                .iter()
                .flat_map(|key| (0..plan.contenders).map(move |number| (key, number)));
            let threads = clients.map(|(key, number)| {
                let contender = Contender::new(plan, key, number, find, &over);
                scope.spawn(move || contender.contend())
            });
            threads.collect::<Vec<_>>()
        });
        let told = {
            let _over = Over(&over);
            meanwhile()
        };
        let histories = crowds.map(|threads| {
            let mut history = History::default();
            for thread in threads {
                history.append(thread.join().expect("a client that doesn't fail"));
            }
            history
        });
        (histories, told)
    })
}

/// Returns the time at which the client must take the lease for over, by the clock of this machine.
/// It counts from the fence, which is the time of the grant, because the client may read the reply
/// long after the grant.
fn lease_over(granted: &Granted, lease_ms: u64) -> Instant {
    let age_us = u64::try_from(unix_time_us() - granted.fence).unwrap_or(0);
    let lease = Duration::from_millis(lease_ms * 9 / 10);
    Instant::now() - Duration::from_micros(age_us) + lease
}

/// Returns the number of grants that a server has made.
#[track_caller]
pub fn grants(server: &Server) -> i64 {
    server.info("lock", "lock_grants").parse().expect("a count")
}

/// A connection and its route.
struct Line {
    client: Client,
    route: Route,
}

struct Contender<'a> {
    plan: &'a Plan,
    key: &'a str,
    name: String,
    find: Find<'a>,
    over: &'a AtomicBool,
    line: Option<Line>,
    trouble: Option<String>,
    dice: Dice,
    seen: History,
}

impl<'a> Contender<'a> {
    fn new(
        plan: &'a Plan,
        key: &'a str,
        number: usize,
        find: Find<'a>,
        over: &'a AtomicBool,
    ) -> Contender<'a> {
        let name = format!("{key}-{number}");
        let letters = name.bytes().map(u64::from);
        let seed = letters.fold(0, |seed, letter| (seed * 31 + letter) % 1_000_003);
        Contender {
            plan,
            key,
            name,
            find,
            over,
            line: None,
            trouble: None,
            dice: Dice::new(seed),
            seen: History::default(),
        }
    }

    fn contend(mut self) -> History {
        let mut turn = 0;
        while !self.is_over() {
            turn += 1;
            let token = format!("{}-{turn}", self.name);
            self.take_turn(&token);
        }
        self.seen
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn take_turn(&mut self, token: &str) {
        let asked = Instant::now();
        let granted = self.wait_in_line(token);
        self.seen.waits.push(Wait {
            key: self.key.to_owned(),
            token: token.to_owned(),
            asked,
            answered: Instant::now(),
        });
        if let Some(granted) = granted {
            self.hold(&granted);
            self.seen.grants.push(granted);
        }
    }

    /// Repeats LOCK.WAIT until the lock is granted, or returns `None` if the run is over first.
    fn wait_in_line(&mut self, token: &str) -> Option<Granted> {
        let lease_ms = self.plan.lease_ms;
        let command = format!("LOCK.WAIT {} {token} PX {lease_ms}", self.key);
        while !self.is_over() {
            let asked = Instant::now();
            match self.ask(&command) {
                Ok(Value::Array(grant)) => match grant.as_slice() {
                    [_, Value::Int(fence)] => {
                        return Some(Granted {
                            key: self.key.to_owned(),
                            token: token.to_owned(),
                            fence: *fence,
                            asked,
                            answered: Instant::now(),
                        })
                    }
                    other => panic!("not a grant: {other:?}"),
                },
                Ok(Value::Nil) => {}
                Ok(other) => panic!("not an answer to LOCK.WAIT: {other:?}"),
                Err(_) => thread::sleep(BREATH),
            }
        }
        None
    }

    fn hold(&mut self, granted: &Granted) {
        let relied_on = self.is_acknowledged();
        let from = Instant::now();
        let lease_over = lease_over(granted, self.plan.lease_ms);
        let Range { start, end } = self.plan.hold_ms;
        let hold_ms = start + self.dice.below(end - start);
        let until = lease_over.min(from + Duration::from_millis(hold_ms));
        let kept = self.work(&granted.token, until);
        let hold = Hold {
            key: granted.key.clone(),
            token: granted.token.clone(),
            mode: Mode::Exclusive,
            fence: granted.fence,
            from,
            to: Instant::now().min(lease_over).max(from),
        };
        let in_time = hold.to < lease_over;
        let left_to_lapse = self.dice.below(10) < self.plan.lapses_of_ten;
        let released = left_to_lapse || self.release(&granted.token, lease_over);
        // If the acknowledgement takes as long as the lease, it comes too late.
        if !relied_on || from >= lease_over {
            return;
        }
        if in_time && !(kept && released) {
            self.seen.lost.push(hold.clone());
        }
        self.seen.holds.push(hold);
    }

    /// Returns true if as many replicas have the grant as the plan requires.
    fn is_acknowledged(&mut self) -> bool {
        let replicas = self.plan.replicas;
        if replicas == 0 {
            return true;
        }
        let command = format!("WAIT {replicas} {ACKNOWLEDGE_MS}");
        let Some(line) = &mut self.line else {
            return false;
        };
        // WAIT covers only its own connection, so use the connection of the grant.
        match line.client.try_call_within(SILENCE, &command) {
            Ok(Value::Int(count)) => usize::try_from(count).is_ok_and(|count| count >= replicas),
            Ok(other) => panic!("not an answer to WAIT: {other:?}"),
            Err(error) => {
                self.leave(error);
                false
            }
        }
    }

    /// Holds the lock until `until`, or until the run is over. Returns true if no check in time
    /// said that the lock was not held.
    fn work(&mut self, token: &str, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            thread::sleep(left.min(CHECK_EVERY));
            if left <= CHECK_EVERY || self.is_over() {
                return true;
            }
            let check = format!("LOCK.CHECK {} {token}", self.key);
            if self.ask(&check) == Ok(Value::Int(0)) && Instant::now() < until {
                return false;
            }
        }
    }

    /// Releases the lock at its current server. Returns false if the first reply says, before the
    /// end of the lease, that the lock was not held. A later reply may only mean that the lease is
    /// over.
    fn release(&mut self, token: &str, lease_over: Instant) -> bool {
        let command = format!("LOCK.RELEASE {} {token}", self.key);
        let first = self.ask(&command);
        let mut answered = first.is_ok();
        while !answered && Instant::now() < lease_over {
            thread::sleep(BREATH);
            answered = self.ask(&command).is_ok();
        }
        first != Ok(Value::Int(0)) || Instant::now() >= lease_over
    }

    /// Sends a command to the server of the key, and returns the reply. After an error the client
    /// finds the server anew.
    fn ask(&mut self, command: impl Command) -> Reply {
        let reply = match self.line() {
            Ok(line) => line.ask(command),
            Err(reason) => Err(reason),
        };
        match &reply {
            Err(error) => self.leave(error.clone()),
            Ok(_) => self.line = self.line.take().filter(|line| !line.route.asking),
        }
        reply
    }

    fn leave(&mut self, error: String) {
        let kind = error.split(' ').next().unwrap_or_default().to_owned();
        *self.seen.errors.entry(kind).or_default() += 1;
        self.line = None;
        self.trouble = Some(error);
    }

    fn line(&mut self) -> Result<&mut Line, String> {
        let line = match self.line.take() {
            Some(line) => line,
            None => {
                let trouble = self.trouble.take();
                let route = (self.find)(self.key, trouble.as_deref());
                let route = route.ok_or("nobody takes writes")?;
                let client = Client::try_connect(route.port)?;
                Line { client, route }
            }
        };
        Ok(self.line.insert(line))
    }
}

impl Line {
    fn ask(&mut self, command: impl Command) -> Reply {
        if self.route.asking {
            self.client.try_call_within(SILENCE, "ASKING")?;
        }
        self.client.try_call_within(SILENCE, command)
    }
}
