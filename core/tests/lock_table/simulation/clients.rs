//! The clients of a simulation: programs with a library that follows docs/internals/clients.md, in
//! time, and strangers that send any command.

use redis_lock_promises::state::Mode;

use super::random::Random;
use super::servers::{Command, Kind, Reply};

/// The keys of each slot.
pub const SLOTS: [[&str; 2]; 3] = [["{a}x", "{a}y"], ["{b}x", "{b}y"], ["{c}x", "{c}y"]];

/// The longest time of one command that doesn't wait.
const ATTEMPT_MS: u64 = 15;
/// The longest BLOCK, and the longest time between two LOCK.QUEUE.
const SIGN_OF_LIFE_MS: u64 = 10;
const KEEP_MS: u64 = 30;
const WITHIN_MS: u64 = 20;

/// Returns one or both keys of a slot.
fn some_keys(slot: usize, random: &mut Random) -> &'static [&'static str] {
    match random.below(4) {
        0 | 1 => &SLOTS[slot][..1],
        2 => &SLOTS[slot][1..],
        _ => &SLOTS[slot],
    }
}

/// The modes of requests, with their words.
const MODES: [(&str, Mode); 5] = [
    ("", Mode::Exclusive),
    ("", Mode::Exclusive),
    ("SHARED", Mode::Shared),
    ("SHARED LIMIT 2", Mode::Shared),
    ("SHARED LIMIT 3 PERMITS 2", Mode::Shared),
];

/// The way in which an acquire waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// It doesn't: its limit is 0.
    Try,
    Block,
    Queue,
}

/// A request of a program to its library.
#[derive(Clone, Debug)]
pub struct Wish {
    pub slot: usize,
    pub keys: &'static [&'static str],
    words: &'static str,
    pub mode: Mode,
    style: Style,
    pub lease_ms: u64,
    limit_ms: u64,
    hold_ms: u64,
    /// The REPLICAS of the acquire; 0: none.
    pub replicas: u64,
    is_session: bool,
}

impl Wish {
    fn draw(random: &mut Random, styles: &[Style]) -> Self {
        let slot = random.index(SLOTS.len());
        let (words, mode) = random.pick(&MODES);
        let style = random.pick(styles);
        let lease_ms = random.pick(&[30, 60, 120]);
        let replicas = if style == Style::Queue {
            0
        } else {
            random.pick(&[0, 0, 0, 1, 2])
        };
        Self {
            slot,
            keys: some_keys(slot, random),
            words,
            mode,
            style,
            lease_ms,
            limit_ms: if style == Style::Try {
                0
            } else {
                5 + random.below(150)
            },
            hold_ms: random.pick(&[0, 10, lease_ms / 2, 2 * lease_ms]),
            replicas,
            is_session: random.one_in(4),
        }
    }
}

/// The state of an acquire and its grant, by the names of docs/internals/clients.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Asking,
    Held,
    Leaving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Latest {
    None,
    NotNow,
    NotNowWithKeep,
    Outage,
}

/// An action of a client on the network.
pub enum Out {
    Send(Box<Command>),
    Close(u64),
}

pub struct Client {
    pub number: usize,
    pub state: State,
    pub acquire: u32,
    pub wish: Wish,
    styles: &'static [Style],
    pub token: String,
    /// The connection of the command whose reply it waits for, and until when.
    pub pending: Option<(u64, u64)>,
    is_unanswered: bool,
    /// True while the pending command is to tie the grant. After a tie without a reply the token is
    /// left: the command could come late, and move a later tie to a connection that is gone.
    is_tying: bool,
    latest: Latest,
    /// The beginning of the acquire. An earlier command than the last one may have got its grant.
    pub asked_ms: u64,
    /// The end of the limit, the deadline, and the end of the body.
    give_up_ms: u64,
    deadline_ms: u64,
    release_ms: u64,
    leaving_since_ms: u64,
    /// The time of the next command.
    next_ms: u64,
    /// The connection that a session is tied to.
    pub tied: Option<u64>,
    /// The fence of the last grant, and its era.
    pub fence: u64,
    pub era: u32,
    /// The number of faults before that grant.
    pub faults: u64,
    /// The beginning of a hold that is judged.
    pub held_since_ms: Option<u64>,
    pub paused_until_ms: u64,
    /// True once the program ends.
    pub is_ending: bool,
    /// The number of the last wake-up.
    pub wake: u32,
}

impl Client {
    pub fn new(number: usize, styles: &'static [Style], random: &mut Random) -> Self {
        Self {
            number,
            state: State::Idle,
            acquire: 0,
            wish: Wish::draw(random, styles),
            styles,
            token: String::new(),
            pending: None,
            is_unanswered: false,
            is_tying: false,
            latest: Latest::None,
            asked_ms: 0,
            give_up_ms: 0,
            deadline_ms: 0,
            release_ms: 0,
            leaving_since_ms: 0,
            next_ms: 0,
            tied: None,
            fence: 0,
            era: 0,
            faults: 0,
            held_since_ms: None,
            paused_until_ms: 0,
            is_ending: false,
            wake: 0,
        }
    }

    /// Returns the time from the client's deadline to the end of the lease.
    pub const fn margin_ms(&self) -> u64 {
        self.wish.lease_ms / 10
    }

    /// Returns the end of the lease, if the client holds.
    pub const fn held_until_ms(&self) -> u64 {
        match self.state {
            State::Held => self.deadline_ms + self.margin_ms(),
            _ => 0,
        }
    }

    /// Returns the next time at which the client does something by itself.
    pub fn wake_ms(&self) -> u64 {
        let next_ms = self.pending.map_or(self.next_ms, |(_, until_ms)| until_ms);
        match self.state {
            State::Held => next_ms.min(self.deadline_ms).min(self.release_ms),
            _ => next_ms,
        }
    }

    /// Does what is due now.
    pub fn act(&mut self, now_ms: u64, random: &mut Random, out: &mut Vec<Out>) {
        if self.pending.is_some_and(|(_, until_ms)| until_ms <= now_ms) {
            self.time_out(now_ms, out);
        }
        let waits = self.pending.is_some();
        let lease_ms = self.wish.lease_ms;
        match self.state {
            State::Idle if self.is_ending => self.next_ms = u64::MAX,
            State::Idle => self.begin(now_ms, random, out),
            State::Held if now_ms >= self.deadline_ms.min(self.release_ms) => {
                self.leave(now_ms, out);
            }
            State::Leaving if now_ms > self.leaving_since_ms + lease_ms.max(KEEP_MS) => {
                self.rest(now_ms, out);
            }
            _ if waits => {}
            State::Asking if now_ms >= self.give_up_ms && self.latest != Latest::None => {
                self.leave(now_ms, out);
            }
            State::Asking => self.ask(now_ms, out),
            State::Held => {
                let words = format!(" PX {lease_ms} GT");
                self.send(Kind::Extend, "EXTEND", &words, ATTEMPT_MS, now_ms, out);
            }
            State::Leaving => self.send_leave(now_ms, out),
        }
    }

    fn begin(&mut self, now_ms: u64, random: &mut Random, out: &mut Vec<Out>) {
        self.wish = Wish::draw(random, self.styles);
        self.state = State::Asking;
        self.acquire += 1;
        self.token = format!("c{}a{}", self.number, self.acquire);
        self.is_unanswered = false;
        self.latest = Latest::None;
        self.asked_ms = now_ms;
        self.give_up_ms = now_ms + self.wish.limit_ms;
        self.ask(now_ms, out);
    }

    fn ask(&mut self, now_ms: u64, out: &mut Vec<Out>) {
        let Wish {
            words,
            style,
            lease_ms,
            replicas,
            ..
        } = self.wish;
        let mut asked = format!(" PX {lease_ms} {words}");
        let mut patience_ms = ATTEMPT_MS;
        if replicas > 0 {
            asked += &format!(" REPLICAS {replicas} WITHIN {WITHIN_MS}");
            patience_ms += WITHIN_MS;
        }
        let verb = match style {
            Style::Queue => {
                asked += &format!(" KEEP {KEEP_MS} NOTIFY {} m", self.number);
                "QUEUE"
            }
            Style::Block if matches!(self.latest, Latest::NotNow | Latest::NotNowWithKeep) => {
                let rest_ms = self.give_up_ms.saturating_sub(now_ms).max(1);
                let block_ms = rest_ms.min(SIGN_OF_LIFE_MS);
                asked += &format!(" BLOCK {block_ms}");
                if rest_ms > block_ms {
                    asked += &format!(" KEEP {KEEP_MS}");
                }
                patience_ms += block_ms;
                "WAIT"
            }
            Style::Try | Style::Block => "ACQUIRE",
        };
        self.send(Kind::Ask, verb, &asked, patience_ms, now_ms, out);
    }

    /// Sends a command of the current acquire on a new connection.
    fn send(
        &mut self,
        kind: Kind,
        verb: &str,
        words: &str,
        patience_ms: u64,
        now_ms: u64,
        out: &mut Vec<Out>,
    ) {
        let Wish { keys, slot, .. } = self.wish;
        let token = &self.token;
        let line = match keys {
            [key] => format!("{verb} {key} {token}{words}"),
            [one, other] => format!("M{verb} 2 {one} {other} {token}{words}"),
            _ => unreachable!("at most two keys"),
        };
        self.is_tying = kind == Kind::Tie;
        // The network gives the connection its number.
        self.pending = Some((0, now_ms + patience_ms));
        out.push(Out::Send(Box::new(Command {
            connection: 0,
            sender: Some((self.number, self.acquire)),
            kind,
            line,
            token: token.clone(),
            keys,
            slot,
            sent_ms: now_ms,
            server: 0,
            start: 0,
            faults: 0,
        })));
    }

    /// Closes the connection of a command that got no reply.
    fn time_out(&mut self, now_ms: u64, out: &mut Vec<Out>) {
        let was_tying = self.is_tying;
        self.stop_waiting(out);
        self.latest = Latest::Outage;
        self.next_ms = now_ms + 2;
        if was_tying {
            self.leave(now_ms, out);
        }
    }

    fn stop_waiting(&mut self, out: &mut Vec<Out>) {
        if let Some((connection, _)) = self.pending.take() {
            out.push(Out::Close(connection));
            self.is_unanswered = true;
        }
    }

    /// Ends the acquire or the grant.
    fn leave(&mut self, now_ms: u64, out: &mut Vec<Out>) {
        let was_held = self.state == State::Held;
        self.stop_waiting(out);
        if !was_held && !self.is_unanswered && self.latest == Latest::NotNow {
            self.rest(now_ms, out);
            return;
        }
        self.state = State::Leaving;
        self.leaving_since_ms = now_ms;
        self.send_leave(now_ms, out);
    }

    fn send_leave(&mut self, now_ms: u64, out: &mut Vec<Out>) {
        let words = match self.latest {
            _ if self.is_unanswered => format!(" LEAVE {}", self.wish.lease_ms.max(KEEP_MS)),
            Latest::NotNowWithKeep => " LEAVE 1".to_owned(),
            _ => String::new(),
        };
        self.send(Kind::Leave, "RELEASE", &words, ATTEMPT_MS, now_ms, out);
    }

    /// Is done with an acquire.
    fn rest(&mut self, now_ms: u64, out: &mut Vec<Out>) {
        self.stop_waiting(out);
        out.extend(self.tied.take().map(Out::Close));
        self.state = State::Idle;
        self.next_ms = now_ms + 1 + u64::from(self.acquire % 7);
    }

    /// Reads a reply.
    pub fn receive(&mut self, reply: &Reply, now_ms: u64, out: &mut Vec<Out>) {
        let Reply {
            command, answer, ..
        } = reply;
        if self.pending.map(|(connection, _)| connection) != Some(command.connection) {
            return;
        }
        self.pending = None;
        self.next_ms = now_ms;
        let deadline_ms = command.sent_ms + self.wish.lease_ms - self.margin_ms();
        // An extension changes all keys or none.
        let is_count = answer.starts_with(|first: char| first.is_ascii_digit());
        let is_extended = is_count && answer != "0";
        match (command.kind, answer.as_str(), self.state) {
            (_, "MOVED", _) => self.next_ms = now_ms + 2,
            (_, "TRYAGAIN", _) => {
                self.latest = Latest::Outage;
                self.next_ms = now_ms + 2;
            }
            (Kind::Ask, "granted", State::Asking) => {
                (self.fence, self.era) = (reply.fence, reply.era);
                let is_in_time = now_ms - command.sent_ms <= self.wish.lease_ms / 3;
                if is_in_time && self.wish.is_session {
                    self.send(Kind::Tie, "EXTEND", " SESSION", ATTEMPT_MS, now_ms, out);
                } else if is_in_time {
                    self.hold(deadline_ms, now_ms);
                }
            }
            (Kind::Ask, "nil", State::Asking) => {
                let has_kept = command.line.contains(" KEEP ");
                self.latest = [Latest::NotNow, Latest::NotNowWithKeep][usize::from(has_kept)];
            }
            (Kind::Ask, place, State::Asking) if place.starts_with("place ") => {
                self.latest = Latest::NotNowWithKeep;
                self.next_ms = now_ms + SIGN_OF_LIFE_MS;
            }
            (Kind::Tie, _, State::Asking) if is_extended => {
                self.tied = Some(command.connection);
                self.hold(deadline_ms, now_ms);
            }
            (Kind::Extend, _, State::Held) if is_extended => {
                self.deadline_ms = self.deadline_ms.max(deadline_ms);
                self.next_ms = now_ms + self.wish.lease_ms / 3;
            }
            (Kind::Leave, _, State::Leaving) => self.rest(now_ms, out),
            (_, _, State::Asking | State::Held) => self.leave(now_ms, out),
            _ => {}
        }
    }

    fn hold(&mut self, deadline_ms: u64, now_ms: u64) {
        self.state = State::Held;
        self.deadline_ms = deadline_ms;
        self.next_ms = now_ms + self.wish.lease_ms / 3;
        let hold_ms = if self.is_ending { 0 } else { self.wish.hold_ms };
        self.release_ms = now_ms + hold_ms;
    }

    /// Hears that its place has come to its turn.
    pub fn hear(&mut self, now_ms: u64) {
        if self.state == State::Asking {
            self.next_ms = self.next_ms.min(now_ms);
        }
    }

    /// Dies. A new process takes its place.
    pub fn die(&mut self, now_ms: u64, out: &mut Vec<Out>) {
        self.rest(now_ms, out);
        self.next_ms = now_ms + 20;
    }
}

const STRANGERS: [&str; 3] = ["s1", "s2", "s3"];

/// Returns a command of a stranger: one token in many modes, and all options.
pub fn strange(random: &mut Random, now_ms: u64) -> Command {
    let slot = random.index(SLOTS.len());
    let keys = some_keys(slot, random);
    let token = random.pick(&STRANGERS);
    let (mode, _) = random.pick(&MODES);
    let ms = 1 + random.below(60);
    let (block_ms, other_ms) = (1 + random.below(40), 1 + random.below(40));
    let session = random.pick(&["", "", "SESSION", "SESSION KEEP 20", "REENTRANT", "HOLDS 2"]);
    let replicas = random.pick(&["", "", "", "REPLICAS 1", "REPLICAS 2 WITHIN 15"]);
    let keep = if session.contains("KEEP") {
        ""
    } else {
        random.pick(&["", "KEEP 25"])
    };
    let (verb, words) = match random.below(12) {
        0 | 1 => ("ACQUIRE", format!("PX {ms} {mode} {session} {replicas}")),
        2..=5 => {
            let words = format!("PX {ms} BLOCK {block_ms} {mode} {session} {keep} {replicas}");
            ("WAIT", words)
        }
        6 | 7 => ("QUEUE", format!("PX {ms} KEEP {other_ms} {mode}")),
        8 => (
            "EXTEND",
            format!("PX {ms} {} {replicas}", random.pick(&["", "GT"])),
        ),
        9 => (
            "EXTEND",
            random
                .pick(&["SESSION", "SESSION KEEP 30", "NOSESSION"])
                .to_owned(),
        ),
        10 => ("RELEASE", random.pick(&["", "ALL", "HOLDS 1"]).to_owned()),
        _ => ("RELEASE", format!("LEAVE {other_ms}")),
    };
    let line = match (keys, random.one_in(12)) {
        ([key, ..], true) => format!("CANCEL {key} {token}"),
        ([key], _) => format!("{verb} {key} {token} {words}"),
        (keys, _) => format!("M{verb} 2 {} {token} {words}", keys.join(" ")),
    };
    Command {
        connection: 0,
        sender: None,
        kind: if verb == "EXTEND" {
            Kind::Extend
        } else {
            Kind::Ask
        },
        line,
        token: token.to_owned(),
        keys,
        slot,
        sent_ms: now_ms,
        server: 0,
        start: 0,
        faults: 0,
    }
}
