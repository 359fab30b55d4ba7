//! docs/migrate/: old clients together with new clients, at each stage of a roll-out and of its
//! rollback. Old clients use SET NX PX and scripts, and new clients use LOCK commands.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use support::{until, Client, Expect, Grant, Server, LONG, WRONGTYPE};

/// The script that old clients release with: deletes the key if it has this token.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// The script that old clients extend with.
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                      return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// The key of the old clients, in both plans.
const KEY: &str = "orders:42";
/// The key of the LOCK commands in the plan with two keys.
const OTHER_KEY: &str = "lock:orders:42";

// --- the two kinds of lock ------------------------------------------------------------------

#[track_caller]
fn old_acquire(client: &mut Client, token: &str, lease: &str) -> bool {
    match client.call(format!("SET {KEY} {token} NX {lease}")) {
        Ok(redis::Value::Okay) => true,
        Ok(redis::Value::Nil) => false,
        other => panic!("SET NX answered {other:?}"),
    }
}

fn old_release(client: &mut Client, token: &str) -> support::Reply {
    client.call(&["EVAL", RELEASE, "1", KEY, token])
}

/// Waits for the lock like a new client while old clients may exist. Returns None if the caller
/// has to try again.
#[track_caller]
fn new_acquire(client: &mut Client, key: &str, token: &str) -> Option<Grant> {
    match client.call(format!("LOCK.WAIT {key} {token} {LONG} BLOCK 100")) {
        Ok(redis::Value::Nil) => None,
        Err(text) if text == WRONGTYPE => None,
        granted => Some(granted.grant()),
    }
}

// --- the workers of a fleet -----------------------------------------------------------------

/// The program that a worker of the fleet runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// SET NX PX on the key.
    Old,
    /// LOCK.WAIT on the same key.
    NewOnTheSameKey,
    /// Both locks, the old one first.
    Both,
    /// LOCK.WAIT on a key of its own.
    NewOnItsOwnKey,
}

const PROGRAMS: [Program; 4] = [
    Program::Old,
    Program::NewOnTheSameKey,
    Program::Both,
    Program::NewOnItsOwnKey,
];

/// The resource behind the lock: a number that a worker reads and then writes. Only the lock keeps
/// two workers from doing so at once.
#[derive(Default)]
struct Guarded {
    inside: AtomicUsize,
    most_inside: AtomicUsize,
}

impl Guarded {
    fn enter(&self, client: &mut Client) {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        self.most_inside.fetch_max(inside, SeqCst);
        let total: u64 = client.call("GET total").text().parse().expect("a number");
        client.call(format!("SET total {}", total + 1)).okay();
        self.inside.fetch_sub(1, SeqCst);
    }
}

struct Worker {
    program: AtomicU8,
    passes: AtomicU64,
}

impl Worker {
    fn new() -> Worker {
        Worker {
            program: AtomicU8::new(0),
            passes: AtomicU64::new(0),
        }
    }

    fn program(&self) -> Program {
        PROGRAMS[usize::from(self.program.load(SeqCst))]
    }

    fn deploy(&self, program: Program) {
        let place = PROGRAMS.iter().position(|it| *it == program);
        let place = place.and_then(|place| u8::try_from(place).ok());
        self.program.store(place.expect("a program"), SeqCst);
    }

    /// Tries to get the lock once. Returns true if the worker passed.
    fn pass(&self, client: &mut Client, token: &str, guarded: &Guarded) -> bool {
        match self.program() {
            Program::Old => {
                if !old_acquire(client, token, LONG) {
                    return false;
                }
                guarded.enter(client);
                assert_eq!(old_release(client, token).int(), 1);
            }
            Program::NewOnTheSameKey => return new_pass(client, KEY, token, guarded),
            Program::Both => {
                if !old_acquire(client, token, LONG) {
                    return false;
                }
                let passed = new_pass(client, OTHER_KEY, token, guarded);
                assert_eq!(old_release(client, token).int(), 1);
                return passed;
            }
            Program::NewOnItsOwnKey => return new_pass(client, OTHER_KEY, token, guarded),
        }
        true
    }
}

fn new_pass(client: &mut Client, key: &str, token: &str, guarded: &Guarded) -> bool {
    if new_acquire(client, key, token).is_none() {
        return false;
    }
    guarded.enter(client);
    assert_eq!(client.call(format!("LOCK.RELEASE {key} {token}")).int(), 1);
    true
}

struct Fleet {
    workers: Vec<Worker>,
    guarded: Guarded,
    over: AtomicBool,
}

impl Fleet {
    fn work(&self, place: usize, mut client: Client) {
        let worker = &self.workers[place];
        let token = format!("worker-{place}");
        while !self.over.load(SeqCst) {
            if worker.pass(&mut client, &token, &self.guarded) {
                worker.passes.fetch_add(1, SeqCst);
            }
            // The pause of a polling client, and of a client that also has other work.
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn passes(&self) -> Vec<u64> {
        let passes = self.workers.iter();
        passes.map(|worker| worker.passes.load(SeqCst)).collect()
    }

    /// Deploys the program to one worker after the other. After each step, waits until every worker
    /// has passed several more times.
    fn roll_out(&self, program: Program) {
        for worker in &self.workers {
            worker.deploy(program);
            let before = self.passes();
            until("every worker has been inside some more times", || {
                let now = self.passes();
                // A pass may have been under way when the program changed.
                now.iter()
                    .zip(&before)
                    .all(|(now, before)| *now >= before + 6)
            });
            assert_eq!(self.guarded.most_inside.load(SeqCst), 1, "{program:?}");
        }
    }
}

/// Runs a fleet with the old program, then rolls out the given stages one after the other.
fn play(stages: &[Program]) {
    let server = Server::start();
    server.call("SET total 0").okay();
    let fleet = Fleet {
        workers: (0..4).map(|_| Worker::new()).collect(),
        guarded: Guarded::default(),
        over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for place in 0..fleet.workers.len() {
            let (fleet, client) = (&fleet, server.client());
            scope.spawn(move || fleet.work(place, client));
        }
        // Ends the threads even if a stage panics.
        let _over = Over(&fleet.over);
        for stage in stages {
            fleet.roll_out(*stage);
        }
    });
    let total: u64 = server.call("GET total").text().parse().expect("a number");
    assert_eq!(total, fleet.passes().iter().sum::<u64>());
    assert_eq!(server.call("EXISTS orders:42 lock:orders:42").int(), 0);
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_roll_out_on_the_same_key_and_back_lets_one_in_at_a_time() {
    use Program::{NewOnTheSameKey, Old};
    play(&[Old, NewOnTheSameKey, Old]);
}

#[test]
fn a_roll_out_over_both_locks_and_back_lets_one_in_at_a_time() {
    use Program::{Both, NewOnItsOwnKey, Old};
    play(&[Old, Both, NewOnItsOwnKey, Both, Old]);
}

// --- the same key, step by step -------------------------------------------------------------

#[test]
fn each_kind_keeps_the_other_out_on_the_same_key() {
    let server = Server::start();
    let (mut old, mut new) = (server.client(), server.client());
    assert!(old_acquire(&mut old, "o", LONG));
    for command in [
        "LOCK.ACQUIRE orders:42 n",
        "LOCK.WAIT orders:42 n BLOCK 5000",
        "LOCK.QUEUE orders:42 n",
        "LOCK.MACQUIRE 2 orders:42 orders:43 n",
    ] {
        assert_eq!(new.call(command).error(), WRONGTYPE, "{command}");
    }
    assert_eq!(server.call("EXISTS orders:43").int(), 0);
    assert_eq!(old_release(&mut old, "o").int(), 1);

    new.call(format!("LOCK.ACQUIRE orders:42 n {LONG}")).grant();
    assert!(!old_acquire(&mut old, "o", LONG));
    new.call("LOCK.RELEASE orders:42 n").int();
    assert!(old_acquire(&mut old, "o", LONG));
}

#[test]
fn leases_of_each_kind_end_for_the_other() {
    let server = Server::start();
    let (mut old, mut new) = (server.client(), server.client());
    assert!(old_acquire(&mut old, "o", "PX 50"));
    until("the old lease has ended", || {
        new_acquire(&mut new, KEY, "n").is_some()
    });
    new.call("LOCK.EXTEND orders:42 n PX 50").int();
    until("the new lease has ended", || {
        old_acquire(&mut old, "o", LONG)
    });
    for late in ["LOCK.EXTEND orders:42 n", "LOCK.RELEASE orders:42 n"] {
        assert_eq!(new.call(late).error(), WRONGTYPE, "{late}");
    }
    assert_eq!(server.call("GET orders:42").text(), "o");
}

#[test]
fn an_old_client_that_is_late_frees_and_extends_nothing() {
    let server = Server::start();
    let mut old = server.client();
    server
        .call(format!("LOCK.ACQUIRE orders:42 n {LONG}"))
        .grant();
    let released = old_release(&mut old, "o").error();
    assert!(released.contains("WRONGTYPE"), "{released}");
    let extended = old.call(&["EVAL", EXTEND, "1", KEY, "o", "1"]).error();
    assert!(extended.contains("WRONGTYPE"), "{extended}");
    assert_eq!(old.call("GET orders:42").error(), WRONGTYPE);
    assert!(server.call("LOCK.CHECK orders:42 n").int() > 60_000);
}

/// Redisson's lock is a hash with a field for each owner.
#[test]
fn a_script_that_looks_for_a_hash_fails_on_a_lock() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE orders:42 n {LONG}"))
        .grant();
    let script = "if redis.call('EXISTS', KEYS[1]) == 0 or \
                  redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end return 0";
    let answer = server.call(&["EVAL", script, "1", KEY, "owner"]).error();
    assert!(answer.contains("WRONGTYPE"), "{answer}");
}

#[test]
fn those_who_wait_are_told_when_an_old_client_gets_in_before_them() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE orders:42 a {LONG}"))
        .grant();
    let mut waiter = server.waiter("LOCK.WAIT orders:42 n");
    // The old client sets the key while it is gone between two grants.
    server.call_all(&[
        "MULTI",
        "DEL orders:42",
        "SET orders:42 o NX PX 60000",
        "EXEC",
    ]);
    assert_eq!(waiter.recv().error(), WRONGTYPE);
    assert_eq!(server.call("GET orders:42").text(), "o");
}

#[test]
fn an_old_client_that_polls_gets_nothing_while_new_ones_queue() {
    let server = Server::start();
    let mut old = server.client();
    server
        .call(format!("LOCK.ACQUIRE orders:42 a {LONG}"))
        .grant();
    let mut waiter = server.waiter(format!("LOCK.WAIT orders:42 n {LONG}"));
    server.call("LOCK.RELEASE orders:42 a").int();
    assert!(!old_acquire(&mut old, "o", LONG));
    waiter.recv().grant();
}

#[test]
fn old_clients_alone_and_new_ones_alone_exclude_nobody_on_two_keys() {
    let server = Server::start();
    let mut client = server.client();
    assert!(old_acquire(&mut client, "o", LONG));
    assert!(new_acquire(&mut client, OTHER_KEY, "n").is_some());
}

// --- the tables -----------------------------------------------------------------------------

/// Returns the pages of docs/migrate/.
fn pages() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/migrate");
    let pages = fs::read_dir(folder).expect("the pages");
    let text = |path| fs::read_to_string(path).expect("a page");
    pages
        .map(|page| text(page.expect("a page").path()))
        .collect()
}

/// Returns the cells of a table's row.
fn cells(row: &str) -> Vec<String> {
    let row = row.replace("\\|", "");
    row.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// Returns the code in a cell.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Returns the cells below each head of a table, with their heads.
fn columns(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut heads: Vec<String> = Vec::new();
    for line in page.lines() {
        if !line.starts_with("| ") {
            if !line.starts_with("|-") {
                heads.clear();
            }
        } else if heads.is_empty() {
            heads = cells(line);
        } else {
            found.extend(heads.iter().cloned().zip(cells(line)));
        }
    }
    found
}

#[test]
fn the_new_commands_of_the_tables_are_taken_as_they_are() {
    let pages = pages();
    let tables = pages
        .iter()
        .map(|page| page.matches("| new command |\n").count());
    assert_eq!(tables.sum::<usize>(), 8, "a table each");
    let columns: Vec<_> = pages.iter().flat_map(|page| columns(page)).collect();
    let new = columns.iter().filter(|(head, _)| head == "new command");
    let commands = new.flat_map(|(_, cell)| code(cell));
    let commands: Vec<&str> = commands.filter(|code| code.starts_with("LOCK.")).collect();
    assert!(commands.len() > 40, "only {}", commands.len());
    let server = Server::start();
    server.call("CONFIG SET lock.max-tickets 1").okay();
    for command in commands {
        // The only mark, so a LEAVE of the tables turns no later command away.
        server.call("LOCK.RELEASE unused t LEAVE 1").int();
        // Nothing blocks in a transaction.
        server.call("MULTI").okay();
        assert_eq!(server.call(command).text(), "QUEUED", "{command}");
        let answers = server.call("EXEC").list();
        assert!(
            !matches!(answers[0], redis::Value::ServerError(_)),
            "{command}: {answers:?}"
        );
        server.call("FLUSHALL").okay();
    }
}

/// Checks that each client's README, which that client's tests follow, has the calls in its column.
#[test]
fn the_calls_of_the_tables_are_those_of_the_libraries() {
    let mut named = 0;
    for (head, cell) in pages().iter().flat_map(|page| columns(page)) {
        if !["Python", "Node", "Rust", "Go", "PHP"].contains(&head.as_str()) {
            continue;
        }
        let readme = format!("clients/{}/README.md", head.to_lowercase());
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join(readme);
        let readme = fs::read_to_string(readme).expect("a README");
        for call in code(&cell) {
            let (name, _) = call.split_once('(').unwrap_or((call, ""));
            let name = name.rsplit(' ').next().unwrap_or(name);
            assert!(readme.contains(name), "{head} has no {call}");
            named += 1;
        }
    }
    assert!(named > 40, "only {named}");
}
