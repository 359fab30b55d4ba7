//! The state machine of the client libraries (docs/internals/clients.md) as a model: two processes,
//! the real lock table, and a network between them.
//!
//! Each command has a connection of its own. So commands overtake each other, arrive late, twice or
//! never, and so do replies. Nothing arrives that is older than a lease. A process notices the end
//! of its lease late, but by no more than the margin.
//!
//! A test takes one rule of the state machine away, and the search finds the harm.

use std::collections::hash_map::DefaultHasher;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use redis_lock_core::store::KeyState;
use redis_lock_core::values::lock::Lock;

use crate::search::{search, Bounds, Scene};
use crate::world::{self, World};

const LEASE_MS: u64 = 3;
const MARGIN_MS: u64 = 1;
const BLOCK_MS: u64 = 1;
const KEEP_MS: u64 = 2;

/// The most commands and replies that are under way.
const MOST_UNDER_WAY: usize = 3;

/// The most acquires of a process.
const MOST_ACQUIRES: usize = 2;

/// The rules of the state machine. A rule that is false is taken away.
#[derive(Clone, Copy)]
struct Rules {
    /// Every acquire draws a token, and nothing uses it again.
    fresh_tokens: bool,
    /// LEAVE follows a command that got no reply.
    leave: bool,
    /// A renewal uses GT.
    gt: bool,
    /// A lease counts from the request.
    from_request: bool,
    /// A loss is reported a margin before the end of the lease.
    margin: bool,
}

const ALL_RULES: Rules = Rules {
    fresh_tokens: true,
    leave: true,
    gt: true,
    from_request: true,
    margin: true,
};

/// A step of a process, of the network or of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// A process begins an acquire, by LOCK.ACQUIRE or LOCK.WAIT.
    Try(usize),
    Wait(usize),
    /// A process sends the command of its acquire again.
    AskAgain(usize),
    /// The reply doesn't come in time, so a process closes the connection.
    TimeOut(usize),
    /// The driver of a process sends its command once more.
    Repeat(usize),
    /// A process ends its acquire without a grant.
    GiveUp(usize),
    /// A process renews its lease, or sets a longer one.
    Renew(usize),
    Lengthen(usize),
    /// A process releases its grant.
    Release(usize),
    /// A process notices that its deadline has passed.
    Notice(usize),
    /// A process sends its release again, or has sent it for a lease.
    LeaveAgain(usize),
    Forget(usize),
    /// A command arrives, by its number among those under way.
    Deliver(usize),
    /// A reply arrives.
    Receive(usize),
    /// The server sees that the connection of a blocked client is closed.
    HangUp,
    /// A millisecond passes.
    Tick,
}

/// All steps.
const ALL_ACTS: [Act; 32] = [
    Act::Try(0),
    Act::Try(1),
    Act::Wait(0),
    Act::Wait(1),
    Act::AskAgain(0),
    Act::AskAgain(1),
    Act::TimeOut(0),
    Act::TimeOut(1),
    Act::Repeat(0),
    Act::Repeat(1),
    Act::GiveUp(0),
    Act::GiveUp(1),
    Act::Renew(0),
    Act::Renew(1),
    Act::Lengthen(0),
    Act::Lengthen(1),
    Act::Release(0),
    Act::Release(1),
    Act::Notice(0),
    Act::Notice(1),
    Act::LeaveAgain(0),
    Act::LeaveAgain(1),
    Act::Forget(0),
    Act::Forget(1),
    Act::Deliver(0),
    Act::Deliver(1),
    Act::Deliver(2),
    Act::Receive(0),
    Act::Receive(1),
    Act::Receive(2),
    Act::HangUp,
    Act::Tick,
];

/// The state of a process, by the names of docs/internals/clients.md. A process that waits asks
/// again, and one that has lost its grant leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Asking,
    Held { deadline_ms: u64 },
    Leaving { since_ms: u64 },
}

/// The reply of an acquire that came last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Latest {
    None,
    NotNow,
    NotNowWithKeep,
}

#[derive(Clone, Debug)]
struct Process {
    state: State,
    /// The number of acquires so far. The last one is the current one.
    acquires: usize,
    /// True if the current acquire waits with LOCK.WAIT.
    waits: bool,
    /// The command whose reply the process waits for.
    pending: Option<u64>,
    /// True if a command of the current acquire got no reply.
    is_unanswered: bool,
    latest: Latest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ask,
    Extend { lease_ms: u64 },
    Leave,
}

/// A command under way, or one whose reply is under way or to come.
#[derive(Clone, Debug)]
struct Command {
    number: u64,
    kind: Kind,
    /// The process and the number of its acquire.
    acquire: (usize, usize),
    line: String,
    sent_ms: u64,
}

#[derive(Clone, Debug)]
struct Reply {
    command: Command,
    answer: String,
}

struct ClientModel {
    rules: Rules,
    acts: &'static [Act],
    world: World,
    processes: [Process; 2],
    commands: Vec<Command>,
    replies: Vec<Reply>,
    /// The commands that the server holds back: waits of blocked clients.
    blocked: Vec<Command>,
    /// The acquire to which the server gave the current grant.
    owner: Option<(usize, usize)>,
    /// The tokens of acquires that are over: the server has answered that they have left.
    left: BTreeSet<String>,
    last_number: u64,
    /// The most commands that both processes send.
    most_commands: u64,
}

impl ClientModel {
    fn new(rules: Rules, acts: &'static [Act]) -> Self {
        let mut world = World::new();
        world.is_judged = false;
        let process = Process {
            state: State::Idle,
            acquires: 0,
            waits: false,
            pending: None,
            is_unanswered: false,
            latest: Latest::None,
        };
        Self {
            rules,
            acts,
            world,
            processes: [process.clone(), process],
            commands: Vec::new(),
            replies: Vec::new(),
            blocked: Vec::new(),
            owner: None,
            left: BTreeSet::new(),
            last_number: 0,
            most_commands: u64::MAX,
        }
    }

    fn with_commands(self, most_commands: u64) -> Self {
        Self {
            most_commands,
            ..self
        }
    }

    /// Returns a model in which the first process holds the lock.
    fn held(rules: Rules, acts: &'static [Act]) -> Self {
        let mut model = Self::new(rules, acts);
        model.begin(0, false);
        model.deliver(0).expect("a free lock");
        let reply = model.replies.remove(0);
        model.receive(reply);
        model
    }

    // ---- Processes

    fn token(&self, (process, acquire): (usize, usize)) -> String {
        let letter = ["a", "b"][process];
        let acquire = if self.rules.fresh_tokens { acquire } else { 1 };
        format!("{letter}{acquire}")
    }

    fn current(&self, process: usize) -> (usize, usize) {
        (process, self.processes[process].acquires)
    }

    /// Sends a command of the current acquire. The words stand behind the key and the token.
    fn send(&mut self, process: usize, kind: Kind, verb: &str, words: &str) {
        self.last_number += 1;
        let number = self.last_number;
        let acquire = self.current(process);
        let data = if kind == Kind::Ask {
            format!(" DATA {number}")
        } else {
            String::new()
        };
        let line = format!("{verb} k {}{words}{data}", self.token(acquire));
        self.commands.push(Command {
            number,
            kind,
            acquire,
            line,
            sent_ms: self.world.now_ms,
        });
        self.processes[process].pending = Some(number);
    }

    fn begin(&mut self, process: usize, waits: bool) {
        let own = &mut self.processes[process];
        own.state = State::Asking;
        own.acquires += 1;
        own.waits = waits;
        own.is_unanswered = false;
        own.latest = Latest::None;
        self.ask(process);
    }

    fn ask(&mut self, process: usize) {
        if self.processes[process].waits {
            let words = format!(" PX {LEASE_MS} BLOCK {BLOCK_MS} KEEP {KEEP_MS}");
            self.send(process, Kind::Ask, "WAIT", &words);
        } else {
            self.send(process, Kind::Ask, "ACQUIRE", &format!(" PX {LEASE_MS}"));
        }
    }

    fn extend(&mut self, process: usize, lease_ms: u64) {
        let gt = if self.rules.gt { " GT" } else { "" };
        let words = format!(" PX {lease_ms}{gt}");
        self.send(process, Kind::Extend { lease_ms }, "EXTEND", &words);
    }

    fn leave(&mut self, process: usize) {
        let now_ms = self.world.now_ms;
        let own = &mut self.processes[process];
        let was_held = matches!(own.state, State::Held { .. });
        let has_nothing = !was_held && !own.is_unanswered && own.latest == Latest::NotNow;
        if has_nothing {
            own.state = State::Idle;
            return;
        }
        own.state = State::Leaving { since_ms: now_ms };
        self.send_leave(process);
    }

    fn send_leave(&mut self, process: usize) {
        let own = &self.processes[process];
        let words = match own.latest {
            _ if !self.rules.leave => String::new(),
            _ if own.is_unanswered => format!(" LEAVE {}", LEASE_MS.max(KEEP_MS)),
            Latest::NotNowWithKeep => " LEAVE 1".to_owned(),
            _ => String::new(),
        };
        self.send(process, Kind::Leave, "RELEASE", &words);
    }

    fn time_out(&mut self, process: usize) {
        let own = &mut self.processes[process];
        own.pending = None;
        own.is_unanswered = true;
    }

    /// Sends the pending command once more, like a driver that repeats by itself. The library takes
    /// the first copy for unanswered.
    fn repeat(&mut self, process: usize) {
        let own = &mut self.processes[process];
        let copy = self
            .commands
            .iter()
            .find(|it| Some(it.number) == own.pending);
        own.is_unanswered = true;
        let copy = copy.cloned();
        self.commands.extend(copy);
    }

    fn receive(&mut self, reply: Reply) {
        let Reply { command, answer } = reply;
        let now_ms = self.world.now_ms;
        let from_ms = if self.rules.from_request {
            command.sent_ms
        } else {
            now_ms
        };
        let margin_ms = if self.rules.margin { MARGIN_MS } else { 0 };
        let deadline_of = |lease_ms: u64| from_ms + lease_ms - margin_ms;
        let process = command.acquire.0;
        let own = &mut self.processes[process];
        own.pending = None;
        match (command.kind, answer.as_str(), own.state) {
            (Kind::Ask, "granted", State::Asking) => {
                // A grant that came late is asked for again.
                let is_in_time = now_ms - command.sent_ms <= LEASE_MS / 3;
                if is_in_time || !self.rules.from_request {
                    let deadline_ms = deadline_of(LEASE_MS);
                    own.state = State::Held { deadline_ms };
                }
            }
            (Kind::Ask, "nil", State::Asking) => {
                own.latest = if own.waits {
                    Latest::NotNowWithKeep
                } else {
                    Latest::NotNow
                };
            }
            (Kind::Ask, _, State::Asking) => self.leave(process),
            (Kind::Extend { lease_ms }, "1", State::Held { deadline_ms }) => {
                let deadline_ms = deadline_ms.max(deadline_of(lease_ms));
                own.state = State::Held { deadline_ms };
            }
            (Kind::Extend { .. }, _, State::Held { .. }) => self.leave(process),
            (Kind::Leave, _, State::Leaving { .. }) => {
                own.state = State::Idle;
                let token = self.token(command.acquire);
                self.left.insert(token);
            }
            _ => {}
        }
    }

    // ---- The network and the server

    fn deliver(&mut self, number: usize) -> Result<(), String> {
        let command = self.commands.remove(number);
        let lock = self.world.lock("k");
        let is_free = lock.is_free() && self.world.table.queues().is_empty();
        let answer = self.world.say(&command.line);
        if command.kind == Kind::Ask {
            if is_free && answer != "granted" && !self.has_left(&command) {
                return Err(format!("{} found the lock free: {answer}", command.line));
            }
        } else if answer != "0" && self.owner.is_some_and(|owner| owner != command.acquire) {
            return Err(format!("{} hit another grant", command.line));
        }
        if answer == "waits" {
            self.blocked.push(command);
        } else {
            self.reply(command, answer);
        }
        self.hear();
        self.note_owner();
        Ok(())
    }

    /// Returns true if a command's own acquire is over.
    fn has_left(&self, command: &Command) -> bool {
        let (process, acquire) = command.acquire;
        let own = &self.processes[process];
        acquire < own.acquires || !matches!(own.state, State::Asking)
    }

    /// Sends the replies of blocked clients whose wait is over.
    fn hear(&mut self) {
        for heard in self.world.heard() {
            let (line, answer) = heard.rsplit_once(": ").expect("a reply");
            let of = self.blocked.iter().position(|it| it.line == line);
            if let Some(number) = of {
                let command = self.blocked.remove(number);
                self.reply(command, answer.to_owned());
            }
        }
    }

    /// Sends a reply, if its process still reads the connection.
    fn reply(&mut self, command: Command, answer: String) {
        let pending = self.processes[command.acquire.0].pending;
        if answer == "granted" {
            self.owner = Some(command.acquire);
        }
        if pending == Some(command.number) {
            self.replies.push(Reply { command, answer });
        }
    }

    fn note_owner(&mut self) {
        if self.world.lock("k").is_free() {
            self.owner = None;
        }
        let processes = &self.processes;
        self.replies
            .retain(|it| processes[it.command.acquire.0].pending == Some(it.command.number));
    }

    fn tick(&mut self) {
        self.world.pass_ms(1);
        let now_ms = self.world.now_ms;
        self.commands
            .retain(|it| now_ms - it.sent_ms <= LEASE_MS.max(KEEP_MS));
        self.hear();
        self.note_owner();
    }

    // ---- Promises

    fn check(&self) -> Result<(), String> {
        let is_held = |it: &&Process| matches!(it.state, State::Held { .. });
        if self.processes.iter().filter(is_held).count() > 1 {
            return Err("both processes hold the lock by their own clocks".to_owned());
        }
        let lock = self.world.lock("k");
        for token in &self.left {
            let text = token;
            let token = world::token(token);
            let name = world::name("k");
            let waits = self.world.table.queues().waits_at(&token, &name);
            if lock.holder(&token).is_some() && !self.is_current(text) {
                return Err(format!("{text} has left and holds the lock"));
            }
            if !waits.is_empty() && !self.is_current(text) {
                return Err(format!("{text} has left and waits"));
            }
        }
        Ok(())
    }

    /// Returns true if the current acquire of a process uses a token again.
    fn is_current(&self, token: &str) -> bool {
        (0..2).any(|process| {
            let is_active = self.processes[process].state != State::Idle;
            is_active && self.token(self.current(process)) == token
        })
    }

    fn is_possible(&self, act: Act) -> bool {
        let now_ms = self.world.now_ms;
        let has_room = self.commands.len() < MOST_UNDER_WAY
            && self.replies.len() < MOST_UNDER_WAY
            && self.last_number < self.most_commands;
        let own = |process: usize| &self.processes[process];
        let is_held = |process| matches!(own(process).state, State::Held { .. });
        let asks = |process| own(process).state == State::Asking;
        let can_send = |process| own(process).pending.is_none() && has_room;
        match act {
            Act::Try(it) | Act::Wait(it) => {
                own(it).state == State::Idle && own(it).acquires < MOST_ACQUIRES && has_room
            }
            Act::AskAgain(it) => {
                let is_try = !own(it).waits && own(it).latest == Latest::NotNow;
                asks(it) && can_send(it) && !is_try
            }
            Act::GiveUp(it) => asks(it) && can_send(it),
            Act::TimeOut(it) => own(it).pending.is_some(),
            Act::Repeat(it) => {
                let mut copies = self.commands.iter();
                let copies = copies
                    .by_ref()
                    .filter(|copy| Some(copy.number) == own(it).pending);
                has_room && copies.count() == 1
            }
            Act::Renew(it) | Act::Lengthen(it) | Act::Release(it) => is_held(it) && can_send(it),
            Act::Notice(it) => match own(it).state {
                State::Held { deadline_ms } => now_ms >= deadline_ms && has_room,
                _ => false,
            },
            Act::LeaveAgain(it) => matches!(own(it).state, State::Leaving { .. }) && can_send(it),
            Act::Forget(it) => match own(it).state {
                State::Leaving { since_ms } => now_ms > since_ms + LEASE_MS.max(KEEP_MS),
                _ => false,
            },
            Act::Deliver(number) => number < self.commands.len(),
            Act::Receive(number) => number < self.replies.len(),
            Act::HangUp => self.abandoned().is_some(),
            Act::Tick => (0..2).all(|process| match own(process).state {
                State::Held { deadline_ms } => now_ms < deadline_ms + MARGIN_MS,
                _ => true,
            }),
        }
    }

    /// Returns a blocked command whose process has closed the connection.
    fn abandoned(&self) -> Option<&Command> {
        let mut blocked = self.blocked.iter();
        blocked.find(|it| self.processes[it.acquire.0].pending != Some(it.number))
    }

    // ---- The fingerprint

    /// Returns the state as a text in which times count from now, and in which process
    /// `processes[0]` is the first.
    fn view(&self, order: [usize; 2]) -> String {
        let mut view = String::with_capacity(512);
        let now_ms = self.world.now_ms.cast_signed();
        let left = |ms: u64| ms.cast_signed() - now_ms;
        let number_of = |process: usize| usize::from(order[0] != process);
        for process in order {
            let own = &self.processes[process];
            let state = match own.state {
                State::Idle => (0, 0),
                State::Asking => (1, 0),
                State::Held { deadline_ms } => (2, left(deadline_ms)),
                State::Leaving { since_ms } => (3, left(since_ms).max(-5)),
            };
            let pending = own.pending.is_some();
            let _ = write!(
                view,
                "{state:?} {} {} {pending} {} {:?};",
                own.acquires, own.waits, own.is_unanswered, own.latest
            );
        }
        let command = |it: &Command| {
            let (process, acquire) = it.acquire;
            let is_pending = self.processes[process].pending == Some(it.number);
            let words = it.line.split(' ').skip(3);
            let words: Vec<&str> = words.take_while(|word| *word != "DATA").collect();
            let verb = it.line.split(' ').next();
            let (process, sent) = (number_of(process), left(it.sent_ms));
            format!("{process}{acquire} {verb:?} {words:?} {sent} {is_pending}")
        };
        let mut commands: Vec<String> = self.commands.iter().map(command).collect();
        commands.sort_unstable();
        let mut blocked: Vec<String> = self.blocked.iter().map(command).collect();
        blocked.sort_unstable();
        let replies = self.replies.iter();
        let mut replies: Vec<_> = replies
            .map(|it| (command(&it.command), &it.answer))
            .collect();
        replies.sort_unstable();
        let _ = write!(view, "{commands:?} {blocked:?} {replies:?}");
        let token = |text: &[u8]| {
            let process = number_of(usize::from(text[0] == b'b'));
            format!("{process}{}", text[1])
        };
        if let Some(KeyState::Lock(stored)) = self.world.store.keys.get(&world::name("k")) {
            let lock: &Lock = &stored.lock;
            for own in lock.holders().iter() {
                let text = token(own.token.as_bytes());
                let end = left(self.world.steady_at(own.deadline_ms));
                let _ = write!(view, "{text} {end} {}", own.lease_ms);
            }
        }
        let name = world::name("k");
        for (_, waiter) in self.world.table.queues().queue(&name) {
            let text = token(waiter.request.token.as_bytes());
            let kind = waiter.kind.as_str();
            let _ = write!(view, "{text} {kind} {:?};", waiter.end_ms().map(left));
        }
        let marks = self.world.marks.iter();
        let lasting = marks.filter(|(_, ms)| **ms >= self.world.now_ms);
        let mut marks: Vec<_> = lasting
            .map(|((_, text), ms)| (token(text.as_bytes()), left(*ms)))
            .collect();
        marks.sort_unstable();
        let mut gone: Vec<String> = self.left.iter().map(|it| token(it.as_bytes())).collect();
        gone.sort_unstable();
        let owner = self
            .owner
            .map(|(process, acquire)| (number_of(process), acquire));
        let due = self.world.table.next_due_ms().map(left);
        let _ = write!(view, "{marks:?} {gone:?} {owner:?} {due:?}");
        view
    }
}

impl Scene for ClientModel {
    fn possible(&self) -> Vec<u8> {
        let numbered = self.acts.iter().zip(0..);
        let possible = numbered.filter(|(act, _)| self.is_possible(**act));
        possible.map(|(_, number)| number).collect()
    }

    fn act(&mut self, action: u8, _: bool) -> Result<(), String> {
        match self.acts[usize::from(action)] {
            Act::Try(process) => self.begin(process, false),
            Act::Wait(process) => self.begin(process, true),
            Act::AskAgain(process) => self.ask(process),
            Act::TimeOut(process) => {
                self.time_out(process);
                self.note_owner();
            }
            Act::Repeat(process) => self.repeat(process),
            Act::GiveUp(process) | Act::Release(process) => self.leave(process),
            Act::Notice(process) => {
                let has_pending = self.processes[process].pending.is_some();
                self.processes[process].is_unanswered |= has_pending;
                self.leave(process);
                self.note_owner();
            }
            Act::Renew(process) => self.extend(process, LEASE_MS),
            Act::Lengthen(process) => self.extend(process, 2 * LEASE_MS),
            Act::LeaveAgain(process) => self.send_leave(process),
            Act::Forget(process) => {
                let own = &mut self.processes[process];
                (own.state, own.pending) = (State::Idle, None);
                self.note_owner();
            }
            Act::Deliver(number) => self.deliver(number)?,
            Act::Receive(number) => {
                let reply = self.replies.remove(number);
                self.receive(reply);
            }
            Act::HangUp => {
                let line = self.abandoned().map(|it| it.line.clone());
                let line = line.expect("a blocked client");
                self.blocked.retain(|it| it.line != line);
                self.world.hang_up(&line);
                self.hear();
                self.note_owner();
            }
            Act::Tick => self.tick(),
        }
        self.check()
    }

    fn fingerprint(&self) -> u64 {
        let hash = |order| {
            let mut hasher = DefaultHasher::new();
            self.view(order).hash(&mut hasher);
            hasher.finish()
        };
        hash([0, 1]).min(hash([1, 0]))
    }

    fn end(self) -> Result<(), String> {
        Ok(())
    }

    fn text(&self, action: u8) -> String {
        format!("{:?}", self.acts[usize::from(action)])
    }
}

/// Asserts that the search finds this harm without a rule, and none with all rules in the same
/// steps.
#[track_caller]
fn assert_harm(with: fn() -> ClientModel, without: fn() -> ClientModel, depth: usize, text: &str) {
    let bounds = Bounds {
        depth,
        time: Duration::from_secs(3_600),
    };
    let harm = search(without, bounds).harm.expect("a harm");
    println!("{harm}");
    assert!(harm.broken.contains(text), "{harm}");
    let kept = search(with, bounds);
    assert!(kept.harm.is_none(), "with all rules: {kept:?}");
}

#[test]
fn the_state_machine_keeps_its_promises() {
    let found = search(
        || ClientModel::new(ALL_RULES, &ALL_ACTS),
        Bounds::normally(7),
    );
    if let Some(harm) = &found.harm {
        panic!("{harm}");
    }
}

/// Without fresh tokens, a RELEASE that the network held back ends the next grant of the process.
#[test]
fn a_token_that_is_used_again_loses_the_next_grant() {
    const ACTS: [Act; 6] = [
        Act::Try(0),
        Act::Release(0),
        Act::Repeat(0),
        Act::Deliver(0),
        Act::Deliver(1),
        Act::Receive(0),
    ];
    const WITHOUT: Rules = Rules {
        fresh_tokens: false,
        ..ALL_RULES
    };
    assert_harm(
        || ClientModel::held(ALL_RULES, &ACTS),
        || ClientModel::held(WITHOUT, &ACTS),
        9,
        "hit another grant",
    );
}

/// Without LEAVE, a command that arrives after its caller has given up takes the lock for nobody.
#[test]
fn a_late_command_without_a_leave_takes_the_lock() {
    const ACTS: [Act; 6] = [
        Act::Try(0),
        Act::TimeOut(0),
        Act::GiveUp(0),
        Act::Deliver(0),
        Act::Deliver(1),
        Act::Receive(0),
    ];
    const WITHOUT: Rules = Rules {
        leave: false,
        ..ALL_RULES
    };
    assert_harm(
        || ClientModel::new(ALL_RULES, &ACTS),
        || ClientModel::new(WITHOUT, &ACTS),
        8,
        "has left and holds the lock",
    );
}

/// Without GT, a renewal that the network held back shortens a lease that a later one made longer.
#[test]
fn a_late_renewal_without_gt_shortens_the_lease() {
    const ACTS: [Act; 8] = [
        Act::Renew(0),
        Act::TimeOut(0),
        Act::Lengthen(0),
        Act::Try(1),
        Act::Deliver(0),
        Act::Deliver(1),
        Act::Receive(0),
        Act::Tick,
    ];
    const WITHOUT: Rules = Rules {
        gt: false,
        ..ALL_RULES
    };
    assert_harm(
        || ClientModel::held(ALL_RULES, &ACTS).with_commands(4),
        || ClientModel::held(WITHOUT, &ACTS).with_commands(4),
        13,
        "both processes hold",
    );
}

/// A lease that counts from the reply looks longer than it is by the time that the reply took.
#[test]
fn a_lease_that_counts_from_the_reply_outlasts_itself() {
    const ACTS: [Act; 6] = [
        Act::Try(0),
        Act::Try(1),
        Act::Deliver(0),
        Act::Receive(0),
        Act::Receive(1),
        Act::Tick,
    ];
    const WITHOUT: Rules = Rules {
        from_request: false,
        ..ALL_RULES
    };
    assert_harm(
        || ClientModel::new(ALL_RULES, &ACTS),
        || ClientModel::new(WITHOUT, &ACTS),
        11,
        "both processes hold",
    );
}

/// Without a margin, a process that is paused for a moment at the end of its lease still believes
/// in it while the next one holds the lock.
#[test]
fn a_loss_without_a_margin_is_noticed_too_late() {
    const ACTS: [Act; 5] = [
        Act::Try(0),
        Act::Try(1),
        Act::Deliver(0),
        Act::Receive(0),
        Act::Tick,
    ];
    const WITHOUT: Rules = Rules {
        margin: false,
        ..ALL_RULES
    };
    assert_harm(
        || ClientModel::new(ALL_RULES, &ACTS),
        || ClientModel::new(WITHOUT, &ACTS),
        11,
        "both processes hold",
    );
}
