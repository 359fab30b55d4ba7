//! A driver's process, and the lines that go to it and come from it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{kill_process_group, waitid, Pid, Signal, WaitId, WaitIdOptions};
use serde_json::{json, Value};

/// How long any answer is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A line that the driver wrote, and when.
#[derive(Clone, Debug)]
struct Line {
    at: Instant,
    content: Value,
}

/// All that a driver has written so far.
#[derive(Default)]
struct Written {
    lines: Mutex<Vec<Line>>,
    more: Condvar,
}

impl Written {
    fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first line of a kind, waited for so long.
    fn first(&self, patience: Duration, is_it: impl Fn(&Value) -> bool) -> Option<Line> {
        let deadline = Instant::now() + patience;
        let mut lines = self.lines();
        loop {
            if let Some(line) = lines.iter().find(|line| is_it(&line.content)) {
                return Some(line.clone());
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
    /// When it was given.
    pub at: Instant,
}

/// What a driver answered to an order.
#[derive(Debug)]
pub struct Answer {
    order: Value,
    /// When the answer came.
    pub at: Instant,
    /// How long after the order.
    pub after: Duration,
    content: Value,
}

impl Answer {
    /// What it succeeded with.
    #[track_caller]
    pub fn ok(&self) -> bool {
        let ok = self.content["ok"].as_bool();
        ok.unwrap_or_else(|| panic!("{} was answered {}", self.order, self.content))
    }

    /// A number in it.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        let number = self.content[name].as_u64();
        number.unwrap_or_else(|| panic!("{} was answered {}", self.order, self.content))
    }

    /// The fence of a grant.
    #[track_caller]
    pub fn fence(&self) -> u64 {
        assert!(self.ok(), "{} was refused", self.order);
        self.number("fence")
    }

    /// Any value in it.
    pub fn get(&self, name: &str) -> &Value {
        &self.content[name]
    }

    /// The name of the error, where it is one.
    pub fn error(&self) -> Option<&str> {
        self.content["error"].as_str()
    }
}

/// A driver that runs. It is killed when this goes out of scope.
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
    /// Starts the driver of a client; what it complains of goes to a file.
    pub fn start(script: &Path, client: &str, complaints: &Path) -> Result<Driver> {
        let mut child = Command::new(script)
            .arg(client)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(complaints)?)
            // A group of its own, so that whatever it starts ends with it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{} can't be run", script.display()))?;
        let stdout = child.stdout.take().context("its output")?;
        let written = Arc::<Written>::default();
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

    /// Gives an order whose answer is asked for later.
    #[track_caller]
    pub fn begin(&self, mut order: Value) -> Asked {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.last_id += 1;
        order["id"] = json!(orders.last_id);
        let at = Instant::now();
        let pipe = orders.pipe.as_mut().expect("its input is open");
        let line = format!("{order}\n");
        let sent = pipe.write_all(line.as_bytes()).and_then(|()| pipe.flush());
        sent.unwrap_or_else(|error| panic!("{order} can't be sent: {error}"));
        Asked { order, at }
    }

    /// The answer to an order, where it comes within a time.
    pub fn answer_within(&self, asked: &Asked, patience: Duration) -> Option<Answer> {
        let id = &asked.order["id"];
        let line = self.written.first(patience, |line| &line["id"] == id)?;
        Some(Answer {
            order: asked.order.clone(),
            at: line.at,
            after: line.at - asked.at,
            content: line.content,
        })
    }

    /// The answer to an order.
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

    /// Makes a lock. What the options leave out is: a lease of 6 s that is renewed, a KEEP of 10 s.
    #[track_caller]
    pub fn try_lock(&self, name: &str, options: Value) -> Answer {
        let mut order = json!({
            "do": "lock", "lock": name, "lease_ms": 6000, "renew": true, "shared": false,
            "limit": null, "permits": null, "session": false, "keep_ms": 10_000, "token": null,
        });
        let options = options.as_object().expect("options are a map");
        for (option, value) in options {
            order[option] = value.clone();
        }
        self.call(order)
    }

    /// The same, where it has to succeed; the token.
    #[track_caller]
    pub fn lock(&self, name: &str, options: Value) -> String {
        let answer = self.try_lock(name, options);
        assert!(answer.ok());
        let token = answer.get("token").as_str();
        token.expect("a lock has a token").to_owned()
    }

    /// Asks for a lock without waiting.
    #[track_caller]
    pub fn try_acquire(&self, name: &str) -> Answer {
        self.call(json!({"do": "acquire", "lock": name, "wait_ms": 0}))
    }

    /// Begins to wait for a lock, for so many milliseconds, or for ever without.
    #[track_caller]
    pub fn begin_acquire(&self, name: &str, wait_ms: Option<u64>) -> Asked {
        self.begin(json!({"do": "acquire", "lock": name, "wait_ms": wait_ms}))
    }

    /// Waits for a lock, however long it takes; the fence.
    #[track_caller]
    pub fn acquire(&self, name: &str) -> u64 {
        let asked = self.begin_acquire(name, None);
        self.answer(&asked).fence()
    }

    /// Gives up a wait in the way of the client's language.
    #[track_caller]
    pub fn begin_cancel(&self, asked: &Asked) -> Asked {
        self.begin(json!({"do": "cancel", "of": asked.order["id"]}))
    }

    /// Releases a lock: whether it was held.
    #[track_caller]
    pub fn release(&self, name: &str) -> bool {
        self.call(json!({"do": "release", "lock": name})).ok()
    }

    /// Sets the lease anew: whether the lock is held.
    #[track_caller]
    pub fn extend(&self, name: &str, lease_ms: u64) -> bool {
        self.call(json!({"do": "extend", "lock": name, "lease_ms": lease_ms}))
            .ok()
    }

    /// What is left of the lease in milliseconds.
    #[track_caller]
    pub fn left(&self, name: &str) -> u64 {
        self.call(json!({"do": "left", "lock": name})).number("ms")
    }

    /// Whether the library counts the lock as lost.
    #[track_caller]
    pub fn is_lost(&self, name: &str) -> bool {
        let state = self.call(json!({"do": "state", "lock": name}));
        state.get("lost").as_bool().expect("lost or not")
    }

    /// When the loss of a lock was told, where it is told within a time.
    pub fn loss_within(&self, name: &str, patience: Duration) -> Option<Instant> {
        let is_it = |line: &Value| line["event"] == "lost" && line["lock"] == name;
        Some(self.written.first(patience, is_it)?.at)
    }

    /// How often the loss of a lock was told.
    pub fn losses(&self, name: &str) -> usize {
        let lines = self.written.lines();
        let is_it = |line: &&Line| line.content["event"] == "lost" && line.content["lock"] == name;
        lines.iter().filter(is_it).count()
    }

    /// Sends a signal to it.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process_group(id.expect("a process"), signal).expect("a signal can be sent");
    }

    /// Stops it, and comes back when none of its threads goes on.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stopped = waitid(
            WaitId::Pid(Pid::from_child(&self.child)),
            WaitIdOptions::STOPPED,
        );
        stopped.expect("it stops");
    }

    /// Ends it without a chance to do anything.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("it ends");
    }

    /// Closes its input: how it ends, if it does within a time.
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

fn read(stdout: ChildStdout, written: &Written) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let content = serde_json::from_str(&line);
        let content = content.unwrap_or_else(|_| json!({"event": "no JSON", "line": line}));
        written.lines().push(Line {
            at: Instant::now(),
            content,
        });
        written.more.notify_all();
    }
}
