//! The simulation: servers, replicas, clients and a network in one process and made-up time.
//!
//! One seed is one run. Each decision of each lock table is judged by the promises, and at the end
//! of a run so are the holds that the clients saw by their own clocks. `make sim SEEDS=n` plays n
//! seeds, `make sim SEED=n SEEDS=1` shows the last steps of one.
//!
//! - [`servers`]: primaries, replicas that lag, files, and replies that come later than their grant
//! - [`clients`]: programs with a library, and strangers
//! - [`faults`]: what goes wrong, and which holds it costs

mod clients;
mod faults;
mod random;
mod servers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::env;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use clients::{Client, Out, State, Style, Wish, SLOTS};
use faults::Fault;
use random::Random;
use redis_lock_core::values::slot::Sharding;
use redis_lock_promises::history::{self, Granted, Hold};
use servers::{kept, Command, Reply, Server};

use crate::world;

/// The events of one run, until its clients end.
const EVENTS: u64 = 4_000;

/// The events that are shown of a run that fails.
const SHOWN: usize = 40;

/// The broken seeds after which no more are played.
const MOST_BROKEN: usize = 5;

/// Each seed catches one bug of `tests/planted`, in the order of docs/internals/tests.md.
const SEEDS_OF_BUGS: [u64; 4] = [55, 275, 322, 1286];

const SERVERS: usize = 2;
const REPLICAS: usize = 2;

/// What happens at one moment.
enum Event {
    /// A client does what is due; its wake-up of this number counts.
    Wake(usize, u32),
    Stranger,
    Arrive(Box<Command>),
    Receive(Box<Reply>),
    /// A server notices that a connection has closed. The number is that of its start.
    Close(usize, u32, u64),
    Timer(usize, u64),
    Sleep(usize, u32),
    /// A replica reads the stream.
    Replicate(usize, u32, usize),
    /// A server writes its files.
    Save(usize),
    Fault,
    /// A fault goes on.
    Later(Fault),
}

struct Scheduled {
    at: Reverse<(u64, u64)>,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// The number of things by kind.
#[derive(Default)]
struct Tally {
    steps: u64,
    commands: BTreeMap<String, u64>,
    faults: BTreeMap<&'static str, u64>,
    holds: u64,
}

/// One run.
struct Run {
    random: Random,
    now_ms: u64,
    agenda: BinaryHeap<Scheduled>,
    scheduled: u64,
    connections: u64,
    servers: Vec<Server>,
    /// The server of each slot, and where it is on its way to.
    owners: [usize; SLOTS.len()],
    is_moving: [bool; SLOTS.len()],
    /// The number of exceptions so far by which fences of a slot may fall.
    eras: [u32; SLOTS.len()],
    /// The last fence of the server that each slot came from.
    last_fences: [u64; SLOTS.len()],
    clients: Vec<Client>,
    /// The longest time between two commands of strangers; 0: there are none.
    strange_ms: u64,
    faults: Vec<Fault>,
    /// The number of faults so far.
    fault_number: u64,
    is_ending: bool,
    start: Instant,
    holds: Vec<Hold>,
    grants: Vec<Granted>,
    tally: Tally,
    /// The last events.
    trace: VecDeque<String>,
    is_traced: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sharding = random.pick(&[Sharding::None, Sharding::BySlot]);
        let styles: &[Style] = random.pick(&[
            &[Style::Try, Style::Block, Style::Block, Style::Queue][..],
            &[Style::Block],
            &[Style::Queue, Style::Queue, Style::Block],
        ]);
        let count = random.pick(&[3, 6, 10]);
        let clients = (0..count).map(|number| Client::new(number, styles, &mut random));
        let clients = clients.collect();
        let servers = (0..SERVERS).map(|_| Server::new(REPLICAS, sharding));
        let mut run = Self {
            now_ms: world::START_MS,
            agenda: BinaryHeap::new(),
            scheduled: 0,
            connections: 0,
            servers: servers.collect(),
            owners: SLOTS.map(|_| 0),
            is_moving: SLOTS.map(|_| false),
            eras: SLOTS.map(|_| 0),
            last_fences: SLOTS.map(|_| 0),
            clients,
            strange_ms: random.pick(&[0, 2, 12]),
            faults: Fault::some(&mut random),
            fault_number: 0,
            is_ending: false,
            start: Instant::now(),
            holds: Vec::new(),
            grants: Vec::new(),
            tally: Tally::default(),
            trace: VecDeque::new(),
            is_traced: false,
            random,
        };
        run.begin();
        run
    }

    fn begin(&mut self) {
        for (slot, keys) in SLOTS.iter().enumerate() {
            self.owners[slot] = slot % SERVERS;
            for (number, server) in self.servers.iter_mut().enumerate() {
                if number != slot % SERVERS {
                    server.world.store.away.extend(keys.map(world::name));
                }
            }
        }
        (0..self.clients.len()).for_each(|client| self.wake_later(client));
        if self.strange_ms > 0 {
            self.push(1, Event::Stranger);
        }
        if !self.faults.is_empty() {
            self.push(20, Event::Fault);
        }
        (0..SERVERS).for_each(|server| self.push(10, Event::Save(server)));
    }

    /// Plays the run to its end.
    fn play(&mut self) {
        while self.tally.steps < EVENTS {
            self.step();
        }
        self.end();
        self.judge();
    }

    fn step(&mut self) {
        let Scheduled { at, event } = self.agenda.pop().expect("an event");
        self.now_ms = at.0 .0;
        self.happen(event);
    }

    /// Lets all clients end, and checks that nothing is left.
    fn end(&mut self) {
        self.is_ending = true;
        for client in 0..self.clients.len() {
            self.clients[client].is_ending = true;
        }
        let until_ms = self.now_ms + 2_000;
        while self
            .agenda
            .peek()
            .is_some_and(|next| next.at.0 .0 < until_ms)
        {
            self.step();
        }
        for client in &self.clients {
            assert_eq!(client.state, State::Idle, "client {} ends", client.number);
        }
        for server in &mut self.servers {
            for (connection, _) in server.waiting() {
                server.close(connection);
            }
            server.close_all(self.connections);
            server.world.now_ms = until_ms + 200_000;
            server.fire();
            server.world.now_ms += 200_000;
            server.fire();
            kept(server.world.check_settled());
            kept(server.world.check_nothing_left());
        }
    }

    /// Judges what the clients saw.
    fn judge(&mut self) {
        self.tally.holds = self.holds.len() as u64;
        kept(history::no_writer_overlaps(&self.holds));
        kept(history::fences_rise(&self.grants));
    }

    // ---- The agenda

    fn push(&mut self, in_ms: u64, event: Event) {
        self.scheduled += 1;
        let at = Reverse((self.now_ms + in_ms, self.scheduled));
        self.agenda.push(Scheduled { at, event });
    }

    fn happen(&mut self, event: Event) {
        let Some(event) = self.unless_paused(event) else {
            return;
        };
        if self.is_over(&event) {
            return;
        }
        self.tally.steps += 1;
        if self.is_traced {
            self.trace(&event);
        }
        match event {
            Event::Wake(client, _) => {
                self.drive(client, |client, now_ms, random, out| {
                    client.act(now_ms, random, out)
                });
            }
            Event::Stranger => self.estrange(),
            Event::Arrive(command) => self.arrive(*command),
            Event::Receive(reply) => self.receive(&reply),
            Event::Close(server, _, connection) => {
                self.server(server).close(connection);
                self.go_on(server);
            }
            Event::Timer(server, _) => {
                self.servers[server].armed_ms = None;
                self.server(server).fire();
                self.go_on(server);
            }
            Event::Sleep(server, _) => {
                self.servers[server].is_awake = false;
                let replies = self.server(server).sleep();
                replies.into_iter().for_each(|reply| self.reply(reply));
                self.go_on(server);
            }
            Event::Replicate(server, _, replica) => {
                let most = 1 + self.random.index(8);
                self.servers[server].replicas[replica].is_reading = false;
                self.server(server).replicate(replica, most);
                self.go_on(server);
            }
            Event::Save(server) => {
                let has_snapshot = self.random.one_in(8);
                self.server(server).save(has_snapshot);
                let in_ms = 5 + self.random.below(20);
                self.push(in_ms, Event::Save(server));
            }
            Event::Fault if self.is_ending => {}
            Event::Fault => {
                let index = self.random.index(self.faults.len());
                let fault = self.faults[index].clone();
                self.strike(fault);
                let in_ms = 1 + self.random.below(60);
                self.push(in_ms, Event::Fault);
            }
            Event::Later(fault) => self.strike(fault),
        }
    }

    /// Returns an event that can happen now. A paused process defers it.
    fn unless_paused(&mut self, event: Event) -> Option<Event> {
        let until_ms = match &event {
            Event::Wake(client, _) => self.clients[*client].paused_until_ms,
            Event::Receive(reply) => {
                let (client, _) = reply.command.sender.expect("a client");
                self.clients[client].paused_until_ms
            }
            Event::Arrive(command) => self.servers[command.server].stalled_until_ms,
            Event::Timer(server, _) | Event::Sleep(server, _) | Event::Close(server, ..) => {
                self.servers[*server].stalled_until_ms
            }
            _ => 0,
        };
        if until_ms <= self.now_ms {
            return Some(event);
        }
        self.push(until_ms - self.now_ms, event);
        None
    }

    /// Returns true if an event came too late to happen.
    fn is_over(&self, event: &Event) -> bool {
        match event {
            Event::Wake(client, wake) => self.clients[*client].wake != *wake,
            Event::Arrive(command) => self.servers[command.server].start != command.start,
            Event::Timer(server, timer) => self.servers[*server].timer != *timer,
            Event::Sleep(server, start)
            | Event::Close(server, start, _)
            | Event::Replicate(server, start, _) => self.servers[*server].start != *start,
            _ => false,
        }
    }

    fn trace(&mut self, event: &Event) {
        let text = match event {
            Event::Wake(client, _) => {
                let client = &self.clients[*client];
                format!("client {} wakes {:?}", client.number, client.state)
            }
            Event::Stranger => return,
            Event::Arrive(it) => {
                format!("at server {} by {}: {}", it.server, it.connection, it.line)
            }
            Event::Receive(it) => format!("{}: {} {}", it.command.line, it.answer, it.fence),
            Event::Close(server, _, connection) => format!("server {server} loses {connection}"),
            Event::Timer(server, _) => format!("server {server} fires"),
            Event::Sleep(server, _) => format!("server {server} sleeps"),
            Event::Replicate(server, _, replica) => format!("server {server} replica {replica}"),
            Event::Save(_) | Event::Fault => return,
            Event::Later(fault) => format!("{fault:?}"),
        };
        self.note(text);
    }

    fn note(&mut self, text: String) {
        if self.trace.len() == number_of("SIM_SHOWN").map_or(SHOWN, |it| it as usize) {
            self.trace.pop_front();
        }
        self.trace
            .push_back(format!("{} {text}", self.now_ms - world::START_MS));
    }

    // ---- The network

    fn send(&mut self, mut command: Command) -> u64 {
        self.connections += 1;
        let connection = self.connections;
        let server = self.owners[command.slot];
        let takes_data = !["RELEASE", "CANCEL"]
            .iter()
            .any(|verb| command.line.contains(verb));
        if takes_data {
            // Each line is unique, because a server finds a blocked command by its line.
            command.line += &format!(" DATA {connection}");
        }
        command.connection = connection;
        command.server = server;
        command.start = self.servers[server].start;
        let in_ms = self.delay();
        if self.random.one_in(200) {
            // A driver repeats the command.
            let again = Box::new(command.clone());
            let again_ms = self.delay();
            self.push(again_ms, Event::Arrive(again));
        }
        if !self.random.one_in(100) {
            self.push(in_ms, Event::Arrive(Box::new(command)));
        }
        connection
    }

    fn reply(&mut self, mut reply: Reply) {
        reply.era = self.eras[reply.command.slot];
        if reply.command.sender.is_some() && !self.random.one_in(100) {
            let in_ms = self.delay();
            self.push(in_ms, Event::Receive(Box::new(reply)));
        }
    }

    fn close(&mut self, connection: u64) {
        let half_open = self.random.one_in(20);
        for server in 0..SERVERS {
            let in_ms = if half_open { 150 } else { self.delay() };
            let start = self.servers[server].start;
            self.push(in_ms, Event::Close(server, start, connection));
        }
    }

    fn delay(&mut self) -> u64 {
        match self.random.below(50) {
            0 => self.random.below(40),
            1..=20 => 0,
            _ => self.random.below(3),
        }
    }

    // ---- Servers

    fn server(&mut self, server: usize) -> &mut Server {
        self.servers[server].world.now_ms = self.now_ms;
        &mut self.servers[server]
    }

    fn arrive(&mut self, mut command: Command) {
        command.faults = self.fault_number;
        let verb = command.line.split(' ').next().expect("a verb");
        match self.tally.commands.get_mut(verb) {
            Some(count) => *count += 1,
            None => drop(self.tally.commands.insert(verb.to_owned(), 1)),
        }
        let (number, slot) = (command.server, command.slot);
        let is_moved = self.owners[slot] != number;
        let is_moving = self.is_moving[slot];
        let server = self.server(number);
        let is_gone = |key: &&str| server.world.lock(key).is_free();
        let answer = match () {
            () if is_moved => "MOVED",
            () if is_moving && command.keys.iter().any(is_gone) => "TRYAGAIN",
            () => {
                let reply = server.execute(command);
                reply.into_iter().for_each(|reply| self.reply(reply));
                return self.go_on(number);
            }
        };
        self.reply(Reply {
            command,
            answer: answer.to_owned(),
            fence: 0,
            era: 0,
        });
    }

    /// Schedules what a server has left to do.
    fn go_on(&mut self, number: usize) {
        let late_ms = self.random.pick(&[0, 0, 0, 0, 1, 3]);
        let now_ms = self.now_ms;
        let server = &mut self.servers[number];
        let (start, messages) = (server.start, std::mem::take(&mut server.messages));
        let wakes = server.has_unsent() && !server.is_awake;
        server.is_awake |= wakes;
        let fires_ms = server.due_ms().map(|ms| ms.max(now_ms) + late_ms);
        let fires_ms = fires_ms.filter(|ms| server.armed_ms.is_none_or(|armed| *ms < armed));
        if let Some(ms) = fires_ms {
            server.armed_ms = Some(ms);
            server.timer += 1;
            let timer = server.timer;
            self.push(ms - now_ms, Event::Timer(number, timer));
        }
        for replica in 0..REPLICAS {
            if let Some(lag_ms) = self.servers[number].begins_to_read(replica) {
                self.push(lag_ms, Event::Replicate(number, start, replica));
            }
        }
        if wakes {
            let in_ms = self.random.below(2);
            self.push(in_ms, Event::Sleep(number, start));
        }
        for channel in messages {
            let client: usize = channel.parse().expect("the number of a client");
            if !self.random.one_in(10) {
                self.clients[client].hear(now_ms + 1);
                self.wake_later(client);
            }
        }
    }

    // ---- Clients

    fn wake_later(&mut self, client: usize) {
        let client = &mut self.clients[client];
        client.wake += 1;
        let wake_ms = client.wake_ms();
        if wake_ms < u64::MAX {
            let event = Event::Wake(client.number, client.wake);
            self.push(wake_ms.saturating_sub(self.now_ms), event);
        }
    }

    /// Has a client do something, carries it out, and notes what the client holds.
    fn drive(
        &mut self,
        number: usize,
        what: impl FnOnce(&mut Client, u64, &mut Random, &mut Vec<Out>),
    ) {
        let mut out = Vec::new();
        let client = &mut self.clients[number];
        let (before, until_ms) = (client.state, client.held_until_ms());
        what(client, self.now_ms, &mut self.random, &mut out);
        for it in out {
            match it {
                Out::Close(connection) => self.close(connection),
                Out::Send(command) => {
                    let connection = self.send(*command);
                    let client = &mut self.clients[number];
                    client.pending = client.pending.map(|(_, until_ms)| (connection, until_ms));
                }
            }
        }
        self.note_hold(number, before, until_ms);
        self.wake_later(number);
    }

    fn note_hold(&mut self, number: usize, before: State, until_ms: u64) {
        let client = &mut self.clients[number];
        match (before, client.state) {
            (State::Held, State::Held) => {}
            (State::Held, _) => self.end_hold(number, until_ms),
            (_, State::Held) => client.held_since_ms = Some(self.now_ms),
            _ => {}
        }
    }

    /// Records a hold that ends now, or has ended at `until_ms`.
    fn end_hold(&mut self, number: usize, until_ms: u64) {
        let client = &mut self.clients[number];
        let since_ms = client.held_since_ms.take();
        let to_ms = self.now_ms.min(until_ms);
        let Some(from_ms) = since_ms.filter(|from_ms| *from_ms < to_ms) else {
            return;
        };
        let Wish { keys, mode, .. } = client.wish;
        let era = client.era;
        let (token, fence) = (client.token.clone(), client.fence.cast_signed());
        let (from, to) = (self.at(from_ms), self.at(to_ms));
        for key in keys {
            self.holds.push(Hold {
                key: in_era(key, era),
                token: token.clone(),
                mode,
                fence,
                from,
                to,
            });
        }
    }

    fn receive(&mut self, reply: &Reply) {
        let (number, acquire) = reply.command.sender.expect("a client");
        let client = &self.clients[number];
        let is_awaited = client.pending.map(|it| it.0) == Some(reply.command.connection);
        if !is_awaited || client.acquire != acquire {
            return;
        }
        let is_repeat = (client.fence, client.era) == (reply.fence, reply.era);
        if reply.answer == "granted" && !is_repeat {
            self.note_grant(reply);
        }
        let until_ms = self.clients[number].held_until_ms();
        self.drive(number, |client, now_ms, _, out| {
            client.receive(reply, now_ms, out)
        });
        let client = &mut self.clients[number];
        if reply.answer == "granted" {
            client.faults = reply.command.faults;
        }
        if client.faults != self.fault_number && !self.is_backed(number) {
            self.end_hold(number, until_ms);
        }
    }

    fn note_grant(&mut self, reply: &Reply) {
        let Command { keys, token, .. } = &reply.command;
        let asked_ms = self.clients[reply.command.sender.expect("a client").0].asked_ms;
        for key in *keys {
            self.grants.push(Granted {
                key: in_era(key, reply.era),
                token: token.clone(),
                fence: reply.fence.cast_signed(),
                asked: self.at(asked_ms),
                // A request of the same ms may have come before.
                answered: self.at(self.now_ms) + Duration::from_micros(1),
            });
        }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms - world::START_MS)
    }

    /// Returns true if the server has all that a client believes to hold, for as long as it does.
    fn is_backed(&self, client: usize) -> bool {
        let client = &self.clients[client];
        let until_ms = client.held_until_ms();
        if until_ms == 0 {
            return true;
        }
        let world = &self.servers[self.owners[client.wish.slot]].world;
        client.wish.keys.iter().all(|key| {
            let lock = world.lock(key);
            let own = lock.holder(&world::token(&client.token));
            own.is_some_and(|own| {
                own.fence == client.fence && world.steady_at(own.deadline_ms) >= until_ms
            })
        })
    }

    fn estrange(&mut self) {
        if self.is_ending {
            return;
        }
        let command = clients::strange(&mut self.random, self.now_ms);
        let connection = self.send(command);
        if self.random.one_in(2) {
            let in_ms = self.random.below(60);
            self.push(in_ms, Event::Later(Fault::Break(connection)));
        }
        let in_ms = 1 + self.random.below(self.strange_ms);
        self.push(in_ms, Event::Stranger);
    }
}

/// Returns a key's name in the history. After an exception fences begin anew.
fn in_era(key: &str, era: u32) -> String {
    format!("{key}{era}")
}

// ---- Seeds

/// Plays a seed. Returns the last events and the reason if a promise is broken.
fn play(seed: u64, is_traced: bool) -> (Run, Result<(), String>) {
    let mut run = Run::new(seed);
    run.is_traced = is_traced;
    let played = catch_unwind(AssertUnwindSafe(|| run.play()));
    let broken = played.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.unwrap_or_else(|| {
            panic
                .downcast_ref::<&str>()
                .unwrap_or(&"a panic")
                .to_string()
        })
    });
    (run, broken)
}

/// Plays seeds. Panics after the first ones that break a promise, with the last events of the
/// first.
fn assert_kept(seeds: impl IntoIterator<Item = u64>) -> Tally {
    let mut all = Tally::default();
    let mut broken = Vec::new();
    for seed in seeds {
        let (run, played) = play(seed, false);
        all.add(run.tally);
        if let Err(why) = played {
            println!("seed {seed}: {why}");
            broken.push(seed);
        }
        if broken.len() == MOST_BROKEN {
            break;
        }
    }
    if let Some(first) = broken.first() {
        let (run, _) = play(*first, true);
        let trace = run.trace.into_iter().collect::<Vec<_>>().join("\n");
        panic!("{trace}\nRepeat: make sim SEED={first} SEEDS=1");
    }
    all
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.holds += other.holds;
        for (kind, count) in other.commands {
            *self.commands.entry(kind).or_default() += count;
        }
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }
}

/// Returns the number of an environment variable.
fn number_of(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}

#[test]
fn every_seed_keeps_the_promises() {
    let began = Instant::now();
    let first = number_of("SIM_SEED").unwrap_or(1);
    let seeds = first..first + number_of("SIM_SEEDS").unwrap_or(8);
    let all = assert_kept(seeds.clone());
    let seconds = began.elapsed().as_secs_f64();
    let rate = all.steps as f64 / seconds;
    println!("commands: {:?}\nfaults: {:?}", all.commands, all.faults);
    println!(
        "seeds {seeds:?}: {} steps in {seconds:.1} s, {rate:.0} a second",
        all.steps
    );
    println!("{} holds by the clients' own clocks", all.holds);
}

/// The seeds that catch the bugs of `tests/planted` (docs/internals/tests.md).
#[test]
fn the_seeds_of_planted_bugs_keep_the_promises() {
    assert_kept(SEEDS_OF_BUGS);
}

#[test]
fn one_seed_is_one_run() {
    let [one, other] = [play(1, true).0, play(1, true).0];
    assert_eq!(one.trace, other.trace);
    assert_eq!(one.tally.commands, other.tally.commands);
}
