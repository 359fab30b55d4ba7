//! A driver's process, and the lines written to it and read from it.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{kill_process_group, waitid, Pid, Signal, WaitId, WaitIdOptions};
use serde_json::{json, Value};

/// The time limit of every answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The length of a token that a library draws, in hexadecimal digits.
const DRAWN_TOKEN_DIGITS: usize = 32;

/// A line that the driver wrote, and the time when it was read.
#[derive(Clone, Debug)]
struct Line {
    at: Instant,
    content: Value,
}

/// All lines that a driver has written so far: its answers by the ids of the orders, and its events.
#[derive(Default)]
struct Lines {
    answers: HashMap<u64, Line>,
    events: Vec<Line>,
}

/// The lines of a driver, and the news of further ones.
#[derive(Default)]
struct Written {
    lines: Mutex<Lines>,
    more: Condvar,
    ended: AtomicBool,
    sightings: Arc<Sightings>,
}

/// The lines that showed a token unasked, and whether a client met an outage.
#[derive(Default)]
pub struct Sightings {
    shown: Mutex<Vec<String>>,
    has_outage: AtomicBool,
}

impl Sightings {
    fn look_at(&self, content: &Value) {
        let said = |field| content.get(field).and_then(Value::as_str);
        if said("error") == Some("unavailable") || said("event") == Some("unavailable") {
            self.has_outage.store(true, Ordering::Relaxed);
        }
        // The driver was asked for the token.
        if content.get("token").is_none() && shows_token(&content.to_string()) {
            locked(&self.shown).push(content.to_string());
        }
    }

    /// Returns true if an answer or an event of a driver told of an outage.
    pub fn has_outage(&self) -> bool {
        self.has_outage.load(Ordering::Relaxed)
    }

    /// Returns the lines with a token.
    pub fn shown(&self) -> Vec<String> {
        locked(&self.shown).clone()
    }
}

/// Returns true if a text has the shape of a drawn token in it. A node's id is longer.
pub fn shows_token(text: &str) -> bool {
    let mut words = text.split(|it: char| !it.is_ascii_hexdigit());
    words.any(|word| word.len() == DRAWN_TOKEN_DIGITS)
}

impl Written {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        locked(&self.lines)
    }

    /// Returns the answer to an order, or `None` if it doesn't come within `patience`, or before the
    /// driver ends.
    fn answer(&self, patience: Duration, id: u64) -> Option<Line> {
        self.found(patience, |lines| lines.answers.get(&id).cloned())
    }

    /// Returns the first event of a kind, or `None` if it doesn't come within `patience`, or before
    /// the driver ends.
    fn event(&self, patience: Duration, is_it: impl Fn(&Value) -> bool) -> Option<Line> {
        // perf: each event is looked at once. In hours of chaos a driver writes many thousands.
        let mut seen = 0;
        self.found(patience, |lines| {
            let mut new = lines.events.iter().skip(seen);
            seen = lines.events.len();
            new.find(|line| is_it(&line.content)).cloned()
        })
    }

    fn found(
        &self,
        patience: Duration,
        mut look: impl FnMut(&Lines) -> Option<Line>,
    ) -> Option<Line> {
        let deadline = Instant::now() + patience;
        let mut lines = self.lines();
        loop {
            if let Some(line) = look(&lines) {
                return Some(line);
            }
            if self.ended.load(Ordering::Relaxed) {
                return None;
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let woken = self.more.wait_timeout(lines, left);
            lines = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An order that was given.
pub struct Asked {
    order: Value,
    /// The time when the order was given.
    pub at: Instant,
}

/// A driver's answer to an order.
#[derive(Debug)]
pub struct Answer {
    order: Value,
    /// The time when the answer was read.
    pub at: Instant,
    /// The time from the order to the answer.
    pub after: Duration,
    content: Value,
}

impl Answer {
    /// Returns the result of an order that didn't fail.
    #[track_caller]
    pub fn ok(&self) -> bool {
        let ok = self.content["ok"].as_bool();
        ok.unwrap_or_else(|| panic!("{} was answered {}", self.order, self.content))
    }

    /// Returns a number of the answer.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        let number = self.content[name].as_u64();
        number.unwrap_or_else(|| panic!("{} was answered {}", self.order, self.content))
    }

    /// Returns the fence of a grant.
    #[track_caller]
    pub fn fence(&self) -> u64 {
        assert!(self.ok(), "{} was refused", self.order);
        self.number("fence")
    }

    /// Returns a value of the answer.
    pub fn get(&self, name: &str) -> &Value {
        &self.content[name]
    }

    /// Returns the name of the error if the order failed.
    pub fn error(&self) -> Option<&str> {
        self.content["error"].as_str()
    }

    /// Returns the text of an answer.
    pub fn text(&self) -> &str {
        self.content["text"].as_str().unwrap_or_default()
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {} ms", self.content, self.after.as_millis())
    }
}

/// A line that nobody asked for.
#[derive(Debug)]
pub struct Event {
    pub at: Instant,
    pub content: Value,
}

/// A running driver, which is killed when this goes out of scope.
pub struct Driver {
    child: Child,
    orders: Mutex<Orders>,
    written: Arc<Written>,
}

struct Orders {
    pipe: Option<ChildStdin>,
    last_id: u64,
}

impl Driver {
    /// Starts the driver of a client. Its stderr goes to the file `complaints`.
    pub fn start(
        script: &Path,
        client: &str,
        complaints: &Path,
        sightings: &Arc<Sightings>,
    ) -> Result<Driver> {
        let mut child = Command::new(script)
            .arg(client)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(complaints)?)
            // A process group of its own, so that the driver's children end with it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} can't be run", script.display()))?;
        let stdout = child.stdout.take().context("its output")?;
        let written = Arc::new(Written {
            sightings: Arc::clone(sightings),
            ..Written::default()
        });
        let writes = Arc::clone(&written);
        thread::spawn(move || read(stdout, &writes));
        Ok(Driver {
            orders: Mutex::new(Orders {
                pipe: child.stdin.take(),
                last_id: 0,
            }),
            child,
            written,
        })
    }

    /// Gives an order without waiting for the answer.
    #[track_caller]
    pub fn begin(&self, order: Value) -> Asked {
        let asked = self.try_begin(order);
        asked.expect("the driver takes an order")
    }

    /// Gives an order like `begin`. Returns `None` if the driver has ended.
    pub fn try_begin(&self, mut order: Value) -> Option<Asked> {
        let mut orders = locked(&self.orders);
        orders.last_id += 1;
        order["id"] = json!(orders.last_id);
        let at = Instant::now();
        let pipe = orders.pipe.as_mut()?;
        let line = format!("{order}\n");
        let sent = pipe.write_all(line.as_bytes()).and_then(|()| pipe.flush());
        sent.ok().map(|()| Asked { order, at })
    }

    /// Gives an order and waits for the answer. Returns `None` if the driver has ended, or doesn't
    /// answer within `patience`.
    pub fn try_call(&self, order: Value, patience: Duration) -> Option<Answer> {
        let asked = self.try_begin(order)?;
        self.answer_within(&asked, patience)
    }

    /// Returns true if the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.written.ended.load(Ordering::Relaxed)
    }

    /// Returns the answer to an order, or `None` if it doesn't come within `patience`.
    pub fn answer_within(&self, asked: &Asked, patience: Duration) -> Option<Answer> {
        let id = asked.order["id"].as_u64()?;
        let line = self.written.answer(patience, id)?;
        Some(Answer {
            order: asked.order.clone(),
            at: line.at,
            after: line.at - asked.at,
            content: line.content,
        })
    }

    /// Waits for the answer to an order.
    #[track_caller]
    pub fn answer(&self, asked: &Asked) -> Answer {
        let answer = self.answer_within(asked, PATIENCE);
        answer.unwrap_or_else(|| panic!("no answer to {} in {PATIENCE:?}", asked.order))
    }

    /// Gives an order and waits for the answer.
    #[track_caller]
    pub fn call(&self, order: Value) -> Answer {
        let asked = self.begin(order);
        self.answer(&asked)
    }

    /// Makes a lock. By default it has a lease of 6 s, which is renewed, and a KEEP of 10 s.
    #[track_caller]
    pub fn try_lock(&self, name: &str, options: Value) -> Answer {
        self.call(lock_order(name, options))
    }

    /// Makes a lock like `try_lock`, which must succeed.
    #[track_caller]
    pub fn lock(&self, name: &str, options: Value) {
        assert!(self.try_lock(name, options).ok());
    }

    /// Tries to acquire a lock without waiting.
    #[track_caller]
    pub fn try_acquire(&self, name: &str) -> Answer {
        self.call(json!({"do": "acquire", "lock": name, "wait_ms": 0}))
    }

    /// Begins a wait for a lock. `None` sets no time limit.
    #[track_caller]
    pub fn begin_acquire(&self, name: &str, wait_ms: Option<u64>) -> Asked {
        self.begin(json!({"do": "acquire", "lock": name, "wait_ms": wait_ms}))
    }

    /// Waits for a lock without a time limit, and returns the fence.
    #[track_caller]
    pub fn acquire(&self, name: &str) -> u64 {
        let asked = self.begin_acquire(name, None);
        self.answer(&asked).fence()
    }

    /// Begins a guarded block that works for a time, and then fails with an error of its own if
    /// `fail` has the error's text.
    #[track_caller]
    pub fn begin_block(
        &self,
        name: &str,
        wait: Duration,
        work: Duration,
        fail: Option<&str>,
    ) -> Asked {
        self.begin(json!({
            "do": "block", "lock": name, "wait_ms": millis(wait), "work_ms": millis(work), "fail": fail,
        }))
    }

    /// Begins to release a lock.
    #[track_caller]
    pub fn begin_release(&self, name: &str) -> Asked {
        self.begin(json!({"do": "release", "lock": name}))
    }

    /// Begins to set the lease.
    #[track_caller]
    pub fn begin_extend(&self, name: &str, lease_ms: u64) -> Asked {
        self.begin(json!({"do": "extend", "lock": name, "lease_ms": lease_ms}))
    }

    /// Begins to cancel a wait in the way of the client's language.
    #[track_caller]
    pub fn begin_cancel(&self, asked: &Asked) -> Asked {
        self.begin(json!({"do": "cancel", "of": asked.order["id"]}))
    }

    /// Releases a lock. Returns true if it was held.
    #[track_caller]
    pub fn release(&self, name: &str) -> bool {
        self.call(json!({"do": "release", "lock": name})).ok()
    }

    /// Sets the lease. Returns true if the lock is held.
    #[track_caller]
    pub fn extend(&self, name: &str, lease_ms: u64) -> bool {
        self.call(json!({"do": "extend", "lock": name, "lease_ms": lease_ms}))
            .ok()
    }

    /// Returns the remaining lease in milliseconds.
    #[track_caller]
    pub fn left(&self, name: &str) -> u64 {
        self.call(json!({"do": "left", "lock": name})).number("ms")
    }

    /// Returns true if the library considers the lock lost.
    #[track_caller]
    pub fn is_lost(&self, name: &str) -> bool {
        let state = self.call(json!({"do": "state", "lock": name}));
        state.get("lost").as_bool().expect("lost or not")
    }

    /// Returns the time when the loss of a lock was reported, or `None` if it isn't within
    /// `patience`.
    pub fn loss_within(&self, name: &str, patience: Duration) -> Option<Instant> {
        Some(self.event_of_lock("lost", name, patience)?.at)
    }

    /// Returns the first event of a kind, or `None` if it doesn't come within `patience`.
    pub fn event_within(&self, kind: &str, patience: Duration) -> Option<Event> {
        let line = self.written.event(patience, |line| line["event"] == kind)?;
        Some(Event {
            at: line.at,
            content: line.content,
        })
    }

    /// Returns the first event of a kind about this lock, or `None` if it doesn't come within
    /// `patience`.
    pub fn event_of_lock(&self, kind: &str, lock: &str, patience: Duration) -> Option<Event> {
        let is_it = |line: &Value| line["event"] == kind && line["lock"] == lock;
        let line = self.written.event(patience, is_it)?;
        Some(Event {
            at: line.at,
            content: line.content,
        })
    }

    /// Returns how many events of a kind there were.
    pub fn events(&self, kind: &str) -> usize {
        let lines = self.written.lines();
        let is_it = |line: &&Line| line.content["event"] == kind;
        lines.events.iter().filter(is_it).count()
    }

    /// Returns how many events of a kind there were about this lock.
    pub fn events_of_lock(&self, kind: &str, lock: &str) -> usize {
        let lines = self.written.lines();
        let is_it = |line: &&Line| line.content["event"] == kind && line.content["lock"] == lock;
        lines.events.iter().filter(is_it).count()
    }

    /// Returns how often the loss of a lock was reported.
    pub fn losses(&self, name: &str) -> usize {
        self.events_of_lock("lost", name)
    }

    /// Returns the number of the driver's threads.
    pub fn threads(&self) -> usize {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        threads.expect("a process").count()
    }

    /// Sends a signal to the driver's process group.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process_group(id.expect("a process"), signal).expect("a signal can be sent");
    }

    /// Stops the driver, and returns when all its threads are stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stopped = waitid(
            WaitId::Pid(Pid::from_child(&self.child)),
            WaitIdOptions::STOPPED,
        );
        stopped.expect("it stops");
    }

    /// Kills the driver, which can't clean up.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it ends");
    }

    /// Closes the driver's input. Returns the exit status, or `None` if it runs longer than
    /// `patience`.
    pub fn close(&mut self, patience: Duration) -> Option<ExitStatus> {
        self.orders
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .pipe = None;
        let ended = || self.child.try_wait().expect("a child");
        crate::servers::within(patience, ended)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.kill();
        }
    }
}

/// Returns the order to make a lock.
pub fn lock_order(name: &str, options: Value) -> Value {
    let mut order = json!({
        "do": "lock", "lock": name, "lease_ms": 6000, "renew": true, "shared": false,
        "limit": null, "permits": null, "session": false, "keep_ms": 10_000,
    });
    let Value::Object(options) = options else {
        panic!("options are a map: {options}");
    };
    for (option, value) in options {
        order[option] = value;
    }
    order
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a time of a test")
}

fn read(stdout: ChildStdout, written: &Written) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let content = serde_json::from_str(&line);
        let content = content.unwrap_or_else(|_| json!({"event": "no JSON", "line": line}));
        written.sightings.look_at(&content);
        let id = content["id"].as_u64();
        let line = Line {
            at: Instant::now(),
            content,
        };
        let mut lines = written.lines();
        match id {
            // The first answer counts.
            Some(id) => _ = lines.answers.entry(id).or_insert(line),
            None => lines.events.push(line),
        }
        drop(lines);
        written.more.notify_all();
    }
    let _lines = written.lines();
    written.ended.store(true, Ordering::Relaxed);
    written.more.notify_all();
}
