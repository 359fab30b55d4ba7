//! A program of many tasks that share one connection and one lock, and its observations.
//!
//! Each task is one loop. It sends its LOCK.QUEUE. After a number it waits for its message, or for
//! a third of KEEP, and sends the same command again. After the grant it works and releases the
//! lock. After an error it continues at the server that is a primary by then. The program does
//! nothing else about lost connections, lost messages and servers that changed their roles.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisResult, Value};
use tokio::runtime;
use tokio::sync::{Mutex, Notify};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{sleep, timeout};

use crate::history::{self, Granted, Hold, Mode, Outage, Turn, Wait};
use crate::{until, Expect, Server, PATIENCE};

/// The key that all tasks queue for.
pub const KEY: &str = "k";

/// The channel on which the tasks are notified of their turn.
const CHANNEL: &str = "turns";

/// The number of tasks.
pub const TASKS: usize = 1_000;

/// The time for which a place is kept.
const KEEP: Duration = Duration::from_secs(3);

/// The time after which a task without a message asks again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The lease, in ms. It is longer than a busy machine keeps a task from its release.
const LEASE_MS: u64 = 60_000;

/// The time that the program waits for a reply.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The time that a task works.
const WORK: Duration = Duration::from_millis(1);

/// The tasks that no message reaches.
const DEAF: [usize; 2] = [250, 750];

/// The pause after a failed attempt.
const BREATH: Duration = Duration::from_millis(10);

/// The time that all tasks may take together.
const ALL_WITHIN: Duration = PATIENCE.saturating_mul(4);

/// The time from the release of one task within which the next task holds the lock. It has room for
/// a lost message, and the rest is for a busy machine.
const TURN_WITHIN: Duration = Duration::from_secs(3);

/// The connection on which the messages come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Messages {
    /// The connection of the replies: RESP3 allows messages between them.
    OnTheSameConnection,
    /// A connection that only listens: RESP2 needs one.
    OnASecondConnection,
}

/// The wait of a task, and its hold.
#[derive(Debug, Clone)]
pub struct Life {
    queued: Queued,
    granted: Granted,
    hold: Hold,
    /// True if a message made the task send the command that returned the grant.
    told: bool,
    /// The time of the reply to its release.
    released: Instant,
    /// True if the task held the lock until then.
    kept: bool,
}

/// The two commands of the program between which a task took the place that was granted. Commands
/// are numbered in the order in which they were sent. Servers took them in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queued {
    /// The task had no such place before this command.
    from: u64,
    /// The task had the place when this command got its reply.
    to: u64,
    /// The number of times that the task is known to have lost its place.
    anew: u32,
}

/// The observations of all tasks.
pub struct Seen {
    lives: Vec<Life>,
    most_at_once: usize,
    errors: BTreeMap<String, usize>,
    connections: u64,
}

/// Lets all tasks have the lock, at the one of these servers that is the primary. Runs `meanwhile`
/// at the same time, with the number of tasks that are done.
pub fn run<T>(
    messages: Messages,
    ports: &[u16],
    meanwhile: impl FnOnce(&AtomicUsize) -> T,
) -> (Seen, T) {
    let done = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        let program = scope.spawn(|| all_tasks(messages, ports, &done));
        let told = meanwhile(&done);
        (program.join().expect("a program that ends"), told)
    })
}

/// Waits until `count` tasks had the lock.
#[track_caller]
pub fn until_done(done: &AtomicUsize, count: usize) {
    until(&format!("{count} tasks had the lock"), || {
        done.load(Ordering::Relaxed) >= count
    });
}

/// Kills all connections except the caller's.
#[track_caller]
pub fn kill_connections(server: &Server) {
    server.call_all(&["CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub"]);
}

/// Cancels the places of these tasks without their knowledge.
#[track_caller]
pub fn cancel(server: &Server, tasks: impl Iterator<Item = usize>) {
    let cancel = |number| format!("LOCK.CANCEL {KEY} {}", token(number));
    let commands: Vec<String> = tasks.map(cancel).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    for (command, reply) in commands.iter().zip(server.call_batch(&commands)) {
        assert_eq!(reply.int(), 1, "{command}");
    }
}

/// Asserts the properties that every such program has.
#[track_caller]
pub fn assert_all_had_their_turns(seen: &Seen, outages: &[Outage]) {
    let Seen { lives, .. } = seen;
    eprintln!("{}", seen.summary());
    assert_eq!(lives.len(), TASKS);
    assert_eq!(seen.most_at_once, 1, "tasks that worked at once");
    let holds: Vec<Hold> = lives.iter().map(|life| life.hold.clone()).collect();
    history::no_writer_overlaps(&holds).unwrap();
    let grants: Vec<Granted> = lives.iter().map(|life| life.granted.clone()).collect();
    history::fences_rise(&grants).unwrap();
    for life in lives {
        assert!(life.kept, "lost before its release: {life:?}");
    }
    let turns_taken: Vec<Turn> = lives.iter().map(Life::turn).collect();
    history::first_come_first_served(&turns_taken).unwrap();
    history::nobody_stuck(&turns(lives), outages, TURN_WITHIN).unwrap();
}

impl Life {
    fn turn(&self) -> Turn {
        Turn {
            token: self.granted.token.clone(),
            fence: self.granted.fence,
            queued_from: self.queued.from,
            queued_to: self.queued.to,
        }
    }
}

impl Seen {
    fn summary(&self) -> String {
        let count =
            |holds: &dyn Fn(&Life) -> bool| self.lives.iter().filter(|it| holds(it)).count();
        format!(
            "{} tasks: {} told by a message, {} queued anew, {} of whose place is known by which command they \
             took it; {} connections; errors: {:?}",
            self.lives.len(),
            self.told(),
            self.anew(),
            count(&|life| life.queued.from == life.queued.to),
            self.connections,
            self.errors
        )
    }

    /// Returns the number of tasks that had their turn because of a message.
    pub fn told(&self) -> usize {
        self.lives.iter().filter(|life| life.told).count()
    }

    /// Returns the number of tasks that are known to have lost a place.
    pub fn anew(&self) -> usize {
        let lost = |life: &&Life| life.queued.anew > 0;
        self.lives.iter().filter(lost).count()
    }

    /// Returns the number of tasks whose place is known to come from a certain command. The order
    /// is judged by these tasks.
    pub fn certain(&self) -> usize {
        let certain = |life: &&Life| life.queued.from == life.queued.to;
        self.lives.iter().filter(certain).count()
    }

    /// Returns true if this task is known to have lost a place.
    pub fn queued_anew(&self, number: usize) -> bool {
        let token = token(number);
        let mut lives = self.lives.iter();
        lives.any(|life| life.granted.token == token && life.queued.anew > 0)
    }
}

/// Returns the time that the lock took from each task to the next task.
fn turns(lives: &[Life]) -> Vec<Wait> {
    let mut lives: Vec<&Life> = lives.iter().collect();
    lives.sort_by_key(|life| life.granted.fence);
    let pairs = lives.windows(2).map(|pair| Wait {
        key: KEY.to_owned(),
        token: pair[1].granted.token.clone(),
        asked: pair[0].released.min(pair[1].granted.answered),
        answered: pair[1].granted.answered,
    });
    pairs.collect()
}

fn token(number: usize) -> String {
    format!("task-{number}")
}

fn all_tasks(messages: Messages, ports: &[u16], done: &Arc<AtomicUsize>) -> Seen {
    let program = Rc::new(Program {
        messages,
        ports: ports.to_owned(),
        done: Arc::clone(done),
        bells: Bells::new(),
        line: Mutex::new(None),
        lines: Cell::new(0),
        sent: Cell::new(0),
        at_work: Cell::new(0),
        most_at_once: Cell::new(0),
        errors: RefCell::default(),
    });
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let lives = LocalSet::new().block_on(&runtime.expect("a runtime"), async {
        let start = |number| tokio::task::spawn_local(Rc::clone(&program).task(number));
        let tasks: Vec<_> = (0..TASKS).map(start).collect();
        let all = async {
            let mut lives = Vec::new();
            for task in tasks {
                lives.push(task.await.expect("a task that ends"));
            }
            lives
        };
        let lives = timeout(ALL_WITHIN, all).await;
        lives.unwrap_or_else(|_| panic!("not within {ALL_WITHIN:?}: {}", program.trouble()))
    });
    Seen {
        lives,
        most_at_once: program.most_at_once.get(),
        errors: program.errors.take(),
        connections: program.lines.get(),
    }
}

/// The notifications that wake the tasks for their turn.
#[derive(Clone)]
struct Bells(Arc<Vec<Notify>>);

impl Bells {
    fn new() -> Bells {
        Bells(Arc::new((0..TASKS).map(|_| Notify::new()).collect()))
    }

    /// Wakes the task that a message names, unless the task is deaf.
    fn ring(&self, message: &[u8]) {
        let number = std::str::from_utf8(message).ok();
        let number: Option<usize> = number.and_then(|text| text.parse().ok());
        let number = number.expect("a message of ours");
        if !DEAF.contains(&number) {
            self.0[number].notify_one();
        }
    }

    fn hear(&self, push: &PushInfo) {
        if let (PushKind::Message, [_, Value::BulkString(message)]) =
            (&push.kind, push.data.as_slice())
        {
            self.ring(message);
        }
    }
}

/// The connection that all tasks share, and the listening connection if it is another.
#[derive(Clone)]
struct Line {
    number: u64,
    port: u16,
    commands: MultiplexedConnection,
    _listener: Option<Rc<Listener>>,
}

/// A listener that stops when this goes out of scope.
struct Listener(AbortHandle);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Program {
    messages: Messages,
    ports: Vec<u16>,
    done: Arc<AtomicUsize>,
    bells: Bells,
    line: Mutex<Option<Line>>,
    lines: Cell<u64>,
    sent: Cell<u64>,
    at_work: Cell<usize>,
    most_at_once: Cell<usize>,
    errors: RefCell<BTreeMap<String, usize>>,
}

/// The reply to a command.
struct Answer {
    /// The command's number.
    sent: u64,
    /// The port that the command went to.
    port: u16,
    asked: Instant,
    answered: Instant,
    value: RedisResult<Value>,
}

impl Program {
    async fn task(self: Rc<Self>, number: usize) -> Life {
        let token = token(number);
        let mut place = PlaceSeen::default();
        let mut told = false;
        let queue = queue_command(number);
        let (fence, grant) = loop {
            let answer = self.ask(&queue).await;
            match &answer.value {
                Ok(Value::Int(before)) => {
                    place.note(&answer, Some(*before));
                    told = self.turn(number).await;
                }
                Ok(value) => {
                    place.note(&answer, None);
                    break (fence_of(value), answer);
                }
                Err(_) => {
                    place.note_unanswered(&answer);
                    sleep(BREATH).await;
                }
            }
        };
        let from = Instant::now();
        let holds = self.work(&token).await;
        let to = Instant::now();
        let kept = self.release(&token).await && holds;
        self.done.fetch_add(1, Ordering::Relaxed);
        Life {
            queued: place.queued(),
            told,
            released: Instant::now(),
            kept,
            hold: Hold {
                key: KEY.to_owned(),
                token: token.clone(),
                mode: Mode::Exclusive,
                fence,
                from,
                to,
            },
            granted: Granted {
                key: KEY.to_owned(),
                token,
                fence,
                asked: grant.asked,
                answered: grant.answered,
            },
        }
    }

    /// Waits until the task has to ask again. Returns true if a message woke it.
    async fn turn(&self, number: usize) -> bool {
        let rung = self.bells.0[number].notified();
        timeout(ASK_AGAIN, rung).await.is_ok()
    }

    /// Uses the resource of the lock. Returns false if the server replies that the lock isn't held.
    /// The check goes over the connection on which all other tasks wait.
    async fn work(&self, token: &str) -> bool {
        let at_once = self.at_work.get() + 1;
        self.at_work.set(at_once);
        self.most_at_once.set(self.most_at_once.get().max(at_once));
        let check = self.ask(redis::cmd("LOCK.CHECK").arg(KEY).arg(token)).await;
        sleep(WORK).await;
        self.at_work.set(self.at_work.get() - 1);
        check.value.is_err() || matches!(check.value, Ok(Value::Int(1..)))
    }

    /// Releases the lock. Returns true if it was held until then. After a lost reply the next reply
    /// doesn't say that, because the lost command may have released the lock. Then this returns
    /// true.
    async fn release(&self, token: &str) -> bool {
        let mut release = redis::cmd("LOCK.RELEASE");
        release.arg(KEY).arg(token);
        let mut lost_an_answer = false;
        loop {
            match self.ask(&release).await.value {
                Ok(value) => return value == Value::Int(1) || lost_an_answer,
                Err(_) => lost_an_answer = true,
            }
            sleep(BREATH).await;
        }
    }

    /// Sends a command on the connection that all tasks share. After an error, the next command
    /// connects again.
    async fn ask(&self, command: &Cmd) -> Answer {
        let mut line = self.line().await;
        let sent = self.sent.get();
        self.sent.set(sent + 1);
        let asked = Instant::now();
        let value = command.query_async(&mut line.commands).await;
        if let Err(error) = &value {
            let kind = error.to_string();
            *self.errors.borrow_mut().entry(kind).or_default() += 1;
            self.leave(line.number).await;
        }
        Answer {
            sent,
            port: line.port,
            asked,
            answered: Instant::now(),
            value,
        }
    }

    async fn line(&self) -> Line {
        let mut line = self.line.lock().await;
        if let Some(line) = &*line {
            return line.clone();
        }
        line.insert(self.connect().await).clone()
    }

    async fn leave(&self, number: u64) {
        let mut line = self.line.lock().await;
        *line = line.take().filter(|line| line.number != number);
    }

    /// Connects to the server that is the primary, and waits until there is a primary.
    async fn connect(&self) -> Line {
        loop {
            for port in &self.ports {
                if let Ok(Some(line)) = self.try_connect(*port).await {
                    return line;
                }
            }
            sleep(BREATH).await;
        }
    }

    async fn try_connect(&self, port: u16) -> RedisResult<Option<Line>> {
        // The buffer holds the commands of all tasks, because tasks that wait to send don't always
        // send in their order.
        let mut config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(ANSWER_WITHIN))
            .set_pipeline_buffer_size(2 * TASKS);
        let protocol = match self.messages {
            Messages::OnTheSameConnection => {
                let bells = self.bells.clone();
                config = config.set_push_sender(move |push: PushInfo| {
                    bells.hear(&push);
                    Ok::<(), ()>(())
                });
                "resp3"
            }
            Messages::OnASecondConnection => "resp2",
        };
        let address = format!("redis://127.0.0.1:{port}/?protocol={protocol}");
        let client = redis::Client::open(address)?;
        let commands = client.get_multiplexed_async_connection_with_config(&config);
        let mut commands = commands.await?;
        let role: String = redis::cmd("INFO")
            .arg("replication")
            .query_async(&mut commands)
            .await?;
        if !role.contains("role:master") {
            return Ok(None);
        }
        let listener = match self.messages {
            Messages::OnTheSameConnection => {
                commands.subscribe(CHANNEL).await?;
                None
            }
            Messages::OnASecondConnection => Some(Rc::new(self.listen(client).await?)),
        };
        self.lines.set(self.lines.get() + 1);
        Ok(Some(Line {
            number: self.lines.get(),
            port,
            commands,
            _listener: listener,
        }))
    }

    /// Listens on a connection of its own, and connects again whenever the connection is lost.
    async fn listen(&self, client: redis::Client) -> RedisResult<Listener> {
        let mut messages = subscribed(&client).await?;
        let bells = self.bells.clone();
        let listens = tokio::task::spawn_local(async move {
            loop {
                while let Some(message) = messages.next().await {
                    bells.ring(message.get_payload_bytes());
                }
                messages = loop {
                    match subscribed(&client).await {
                        Ok(messages) => break messages,
                        Err(_) => sleep(BREATH).await,
                    }
                };
            }
        });
        Ok(Listener(listens.abort_handle()))
    }

    fn trouble(&self) -> String {
        let done = self.done.load(Ordering::Relaxed);
        format!("{done} of {TASKS} had the lock; errors: {:?}", self.errors)
    }
}

async fn subscribed(client: &redis::Client) -> RedisResult<PubSubStream> {
    let mut connection = client.get_async_pubsub().await?;
    connection.subscribe(CHANNEL).await?;
    Ok(connection.into_on_message())
}

fn queue_command(number: usize) -> Cmd {
    let keep_ms = u64::try_from(KEEP.as_millis()).expect("a short time");
    let mut command = redis::cmd("LOCK.QUEUE");
    command.arg(KEY).arg(token(number)).arg("PX").arg(LEASE_MS);
    command.arg("KEEP").arg(keep_ms);
    command.arg("NOTIFY").arg(CHANNEL).arg(number);
    command
}

fn fence_of(grant: &Value) -> i64 {
    match grant {
        Value::Array(grant) => match grant.as_slice() {
            [_, Value::Int(fence)] => *fence,
            _ => panic!("not a grant: {grant:?}"),
        },
        other => panic!("not an answer to LOCK.QUEUE: {other:?}"),
    }
}

/// The knowledge of a task about its place, from the replies to its commands.
#[derive(Default)]
struct PlaceSeen {
    /// The port of its last command, and the first of the successive commands to that port.
    server: Option<(u16, u64)>,
    queued: Option<Queued>,
    last: Option<Last>,
}

/// The last command that got a reply.
struct Last {
    sent: u64,
    port: u16,
    asked: Instant,
    /// The number of the place, if the reply was a place.
    number: Option<i64>,
}

impl PlaceSeen {
    fn note_unanswered(&mut self, answer: &Answer) -> u64 {
        match self.server {
            Some((port, first)) if port == answer.port => first,
            _ => {
                self.server = Some((answer.port, answer.sent));
                answer.sent
            }
        }
    }

    /// Takes in the reply to a command: a place, or the grant.
    fn note(&mut self, answer: &Answer, number: Option<i64>) {
        let first = self.note_unanswered(answer);
        let to = answer.sent;
        self.queued = Some(match (self.queued, &self.last) {
            (Some(queued), Some(last)) => {
                let moved = last.port != answer.port;
                let grew = number > last.number;
                let anew = queued.anew + u32::from(moved || grew);
                if moved && number.is_some() {
                    // No server knows the places of another server.
                    Queued {
                        from: first,
                        to,
                        anew,
                    }
                } else if grew {
                    let from = last.sent + 1;
                    Queued { from, to, anew }
                } else if moved || answer.answered - last.asked >= KEEP {
                    // The reply may be a grant from before, or a place that the task took just now.
                    Queued { to, ..queued }
                } else {
                    queued
                }
            }
            _ => Queued {
                from: first,
                to,
                anew: 0,
            },
        });
        self.last = Some(Last {
            sent: answer.sent,
            port: answer.port,
            asked: answer.asked,
            number,
        });
    }

    fn queued(&self) -> Queued {
        self.queued.expect("a task that was answered")
    }
}

#[cfg(test)]
mod of_the_checker_itself {
    use super::*;

    fn answer(sent: u64, port: u16, after: Duration) -> Answer {
        let start = Instant::now();
        Answer {
            sent,
            port,
            asked: start + after,
            answered: start + after,
            value: Ok(Value::Nil),
        }
    }

    fn seen(answers: &[(u64, u16, Duration, Option<i64>)]) -> Queued {
        let mut place = PlaceSeen::default();
        for (sent, port, after, number) in answers {
            place.note(&answer(*sent, *port, *after), *number);
        }
        place.queued()
    }

    #[test]
    fn it_sees_by_which_commands_a_place_was_taken() {
        let queued = |from, to, anew| Queued { from, to, anew };
        let at_once = Duration::ZERO;
        let first = (10, 1, at_once, Some(5));
        assert_eq!(seen(&[(10, 1, at_once, None)]), queued(10, 10, 0));
        let kept = (20, 1, at_once, Some(4));
        let granted = (30, 1, at_once, None);
        assert_eq!(seen(&[first, kept, granted]), queued(10, 10, 0));
        // The number grows if the place is another place.
        let grown = (20, 1, at_once, Some(6));
        assert_eq!(seen(&[first, grown, granted]), queued(11, 20, 1));
        // The place may have lapsed.
        let late = (20, 1, KEEP * 2, Some(3));
        assert_eq!(seen(&[first, late]), queued(10, 20, 0));
        // Another server has another queue, but a grant may have come with it.
        let elsewhere = (20, 2, at_once, Some(2));
        assert_eq!(seen(&[first, elsewhere]), queued(20, 20, 1));
        let granted_elsewhere = (20, 2, at_once, None);
        assert_eq!(seen(&[first, granted_elsewhere]), queued(10, 20, 0));
        let mut place = PlaceSeen::default();
        place.note_unanswered(&answer(7, 1, at_once));
        place.note_unanswered(&answer(8, 1, at_once));
        place.note(&answer(9, 1, at_once), Some(1));
        assert_eq!(place.queued(), queued(7, 9, 0));
    }
}
