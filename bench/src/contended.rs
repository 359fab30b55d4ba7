//! One lock that n clients want all the time: each asks, holds it for as long as the grant takes to
//! arrive, gives it back, and asks again. One thread speaks for all of them.
//!
//! Counts the grants of a window of time. A wait that goes on when the window ends counts with its
//! age, so that a way which lets clients starve isn't the better for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis_lock_load::{packed, until, Connection, Server, PATIENCE};

use crate::clients::Clients;
use crate::lateness::{Times, MILLISECOND};
use crate::reply::{Reply, GRANT};
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::{load_script, token, Stage, COMPARE_AND_DELETE, COMPARE_DELETE_AND_PUBLISH};

/// The benchmark's name.
pub const NAME: &str = "contended";

/// This module.
pub const LOCK: &str = "LOCK.WAIT";
/// A list of one element; the server's own queue of waiting clients. It has no lease and no owner.
pub const LIST: &str = "LPUSH/BLPOP";
/// Asking again and again.
pub const POLL_SLOWLY: &str = "SET NX, polling every 100 ms";
/// The same, more often.
pub const POLL_QUICKLY: &str = "SET NX, polling every 1 ms";
/// Asking again when told that the lock was given back.
pub const PUBLISH: &str = "SET NX, pub/sub wake-up";

const CHANNEL: &str = "released";

/// How long a server may take to see its clients leave. Ten thousand who were all woken at each release took
/// Redis 7.0 more than 20 seconds once.
const LEAVING: Duration = Duration::from_secs(120);

/// What a client does that was refused.
#[derive(Clone, Copy)]
enum Refused {
    /// Nobody is: the answer comes with the lock.
    Never,
    /// Asks again after this time.
    After(Duration),
    /// Asks again when a message comes.
    UponMessage,
}

/// A way to share a lock.
struct Way {
    name: &'static str,
    /// What each client sends to get the lock.
    ask: Vec<Vec<u8>>,
    /// How it is granted. Anything but this is a refusal, if it is nil, or a defect.
    granted: Reply,
    /// What each client sends to give it back.
    give: Vec<Vec<u8>>,
    refused: Refused,
    /// What has to be there before the first asks.
    before: Option<&'static str>,
}

impl Way {
    /// One whose lock is a string with the owner's token.
    fn by_set(
        name: &'static str,
        n: usize,
        refused: Refused,
        give: impl Fn(&str) -> String,
    ) -> Way {
        let tokens = || (0..n).map(token);
        let ask = |token: String| packed(&format!("SET lock {token} NX PX 30000"));
        Way {
            name,
            ask: tokens().map(ask).collect(),
            granted: Reply::Okay,
            give: tokens().map(|token| packed(&give(&token))).collect(),
            refused,
            before: None,
        }
    }

    fn by_lock(n: usize) -> Way {
        let ask = |token: String| packed(&format!("LOCK.WAIT lock {token} PX 30000 BLOCK 0"));
        let give = |token: String| packed(&format!("LOCK.RELEASE lock {token}"));
        Way {
            name: LOCK,
            ask: (0..n).map(token).map(ask).collect(),
            granted: GRANT,
            give: (0..n).map(token).map(give).collect(),
            refused: Refused::Never,
            before: None,
        }
    }

    fn by_list(n: usize) -> Way {
        Way {
            name: LIST,
            ask: vec![packed("BLPOP list 0"); n],
            granted: GRANT,
            give: (0..n)
                .map(|n| packed(&format!("LPUSH list {}", token(n))))
                .collect(),
            refused: Refused::Never,
            before: Some("LPUSH list first"),
        }
    }

    fn all(asker: &mut Connection, n: usize) -> Result<Vec<Way>> {
        let compare = load_script(asker, COMPARE_AND_DELETE)?;
        let publish = load_script(asker, COMPARE_DELETE_AND_PUBLISH)?;
        let compare = |token: &str| format!("EVALSHA {compare} 1 lock {token}");
        let publish = |token: &str| format!("EVALSHA {publish} 1 lock {token} {CHANNEL}");
        let slowly = Refused::After(Duration::from_millis(100));
        let quickly = Refused::After(Duration::from_millis(1));
        Ok(vec![
            Way::by_lock(n),
            Way::by_list(n),
            Way::by_set(POLL_SLOWLY, n, slowly, compare),
            Way::by_set(POLL_QUICKLY, n, quickly, compare),
            Way::by_set(PUBLISH, n, Refused::UponMessage, publish),
        ])
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Has asked, or is about to for the first time.
    Asking,
    /// Was refused, and will ask again.
    Refused,
    /// Was granted the lock, and gives it back.
    Giving,
}

#[derive(Clone)]
struct Contender {
    state: State,
    /// When it first asked for the grant that it wants.
    since: Instant,
    /// Whether a message came since it asked.
    told: bool,
    grants: u64,
}

/// A round of one way.
struct Contest<'a> {
    way: &'a Way,
    clients: &'a mut Clients,
    contenders: Vec<Contender>,
    /// Who asks again, and when.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    waits: Times,
    grants: u64,
    replies: Vec<(usize, Reply)>,
    last_grant: Instant,
}

impl<'a> Contest<'a> {
    fn new(way: &'a Way, clients: &'a mut Clients) -> Result<Contest<'a>> {
        let contender = Contender {
            state: State::Asking,
            since: Instant::now(),
            told: false,
            grants: 0,
        };
        Ok(Contest {
            way,
            contenders: vec![contender; clients.len()],
            clients,
            due: BinaryHeap::new(),
            waits: Times::new()?,
            grants: 0,
            replies: Vec::new(),
            last_grant: Instant::now(),
        })
    }

    /// All ask.
    fn begin(&mut self) -> Result<()> {
        for index in 0..self.contenders.len() {
            self.contenders[index].since = Instant::now();
            self.ask(index)?;
        }
        Ok(())
    }

    fn ask(&mut self, index: usize) -> Result<()> {
        self.contenders[index].state = State::Asking;
        self.contenders[index].told = false;
        self.clients.send(index, &self.way.ask[index])
    }

    /// Plays until `end`.
    fn until(&mut self, end: Instant) -> Result<()> {
        while Instant::now() < end {
            self.step(end)?;
        }
        Ok(())
    }

    /// Plays until so many grants were counted.
    fn until_granted(&mut self, count: u64) -> Result<()> {
        while self.grants < count {
            self.step(Instant::now() + PATIENCE)?;
        }
        Ok(())
    }

    /// Forgets what was counted.
    fn clear(&mut self) {
        self.waits.clear();
        self.grants = 0;
        for contender in &mut self.contenders {
            contender.grants = 0;
        }
    }

    /// Counts the waits that still go on.
    fn count_unfinished(&mut self) -> Result<()> {
        let now = Instant::now();
        for contender in &self.contenders {
            if matches!(contender.state, State::Asking | State::Refused) {
                self.waits.record(now - contender.since)?;
            }
        }
        Ok(())
    }

    /// Takes in what comes by `end`, and lets those ask again whose time has come.
    fn step(&mut self, end: Instant) -> Result<()> {
        let mut replies = std::mem::take(&mut self.replies);
        self.clients.receive(self.patience(end), &mut replies)?;
        let now = Instant::now();
        for (index, reply) in replies.drain(..) {
            self.take(index, reply, now)?;
        }
        self.replies = replies;
        while let Some(Reverse((at, index))) = self.due.peek().copied() {
            if at > now {
                break;
            }
            self.due.pop();
            if self.contenders[index].state == State::Refused {
                self.ask(index)?;
            }
        }
        ensure!(self.last_grant.elapsed() < PATIENCE, "nobody is granted");
        Ok(())
    }

    /// How long to sleep. The system's sleep is too coarse for the next millisecond.
    fn patience(&self, end: Instant) -> Duration {
        let next = self.due.peek().map_or(end, |due| due.0 .0.min(end));
        let left = next.saturating_duration_since(Instant::now());
        left.saturating_sub(Duration::from_millis(1))
    }

    fn take(&mut self, index: usize, reply: Reply, now: Instant) -> Result<()> {
        let state = self.contenders[index].state;
        match (state, reply) {
            (_, Reply::Push) => self.take_message(index),
            (State::Asking, reply) if reply == self.way.granted => self.take_grant(index, now),
            (State::Asking, Reply::Nil) => self.take_refusal(index, now),
            (State::Giving, Reply::Int(1)) => self.take_given(index, now),
            (_, reply) => anyhow::bail!("client {index} was answered {reply:?}"),
        }
    }

    fn take_grant(&mut self, index: usize, now: Instant) -> Result<()> {
        let contender = &mut self.contenders[index];
        contender.state = State::Giving;
        contender.grants += 1;
        self.grants += 1;
        self.last_grant = now;
        self.waits.record(now - contender.since)?;
        self.clients.send(index, &self.way.give[index])
    }

    fn take_given(&mut self, index: usize, now: Instant) -> Result<()> {
        self.contenders[index].since = now;
        self.ask(index)
    }

    fn take_refusal(&mut self, index: usize, now: Instant) -> Result<()> {
        self.contenders[index].state = State::Refused;
        match self.way.refused {
            Refused::Never => anyhow::bail!("client {index} wasn't to be refused"),
            Refused::After(pause) => self.due.push(Reverse((now + pause, index))),
            // A message that came while it asked may be of the lock that it was refused.
            Refused::UponMessage if self.contenders[index].told => return self.ask(index),
            Refused::UponMessage => {}
        }
        Ok(())
    }

    fn take_message(&mut self, index: usize) -> Result<()> {
        self.contenders[index].told = true;
        if self.contenders[index].state == State::Refused {
            return self.ask(index);
        }
        Ok(())
    }
}

/// The ways whose hand-overs make no client ask twice, for `n` contenders.
pub fn handed_over(n: usize) -> Vec<HandedOver> {
    let ways = [Way::by_lock(n), Way::by_list(n)];
    ways.into_iter().map(HandedOver).collect()
}

/// A way to share a lock that hands it over from one client to the next.
pub struct HandedOver(Way);

impl HandedOver {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Has its contenders hand the lock over: a quarter of `count` times first, then as often as that or a few times
    /// more between the calls of `begin` and `end`. Returns how often.
    pub fn play(
        &self,
        server: &Server,
        count: u64,
        begin: impl FnOnce() -> Result<()>,
        end: impl FnOnce() -> Result<()>,
    ) -> Result<u64> {
        let mut clients = join(&self.0, server)?;
        let mut contest = Contest::new(&self.0, &mut clients)?;
        contest.begin()?;
        contest.until_granted(count / 4)?;
        contest.clear();
        begin()?;
        contest.until_granted(count)?;
        end()?;
        Ok(contest.grants)
    }
}

struct Size {
    contenders: &'static [usize],
    window: Duration,
    rounds: usize,
}

/// Measures all ways with each number of contenders.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let size = stage.extent().of(
        Size {
            contenders: &[1, 16, 1_000],
            window: Duration::from_millis(150),
            rounds: 2,
        },
        Size {
            contenders: &[1, 2, 16, 100, 1_000, 5_000, 10_000],
            window: Duration::from_secs(2),
            rounds: 9,
        },
    );
    let server = stage.start(&[])?;
    for n in size.contenders {
        let mut ways = Way::all(&mut server.connect()?, *n)?;
        let name = |way: &Way| format!("{NAME}, {n}: {}", way.name);
        interleaved(size.rounds, &mut ways, progress, name, |_, way| {
            let place = Place::new(NAME, "", *n as u64, way.name);
            round_of(way, &server, size.window, sheet, &place)
        })?;
    }
    Ok(())
}

fn round_of(
    way: &Way,
    server: &Server,
    window: Duration,
    sheet: &mut Sheet,
    place: &Place,
) -> Result<()> {
    let mut clients = join(way, server)?;
    let mut asker = server.connect()?;
    if matches!(way.refused, Refused::UponMessage) {
        clients.all(&packed("HELLO 3"), Reply::Map)?;
        clients.all(&packed(&format!("SUBSCRIBE {CHANNEL}")), Reply::Push)?;
    }
    let mut contest = Contest::new(way, &mut clients)?;
    contest.begin()?;
    contest.until(Instant::now() + window / 4)?;
    counted(&mut contest, window, &mut asker, sheet, place)
}

/// The clients of a way, on new connections: a server that is slow to serve a long queue would be slow to empty it
/// too, but lets go of those who leave at once.
fn join(way: &Way, server: &Server) -> Result<Clients> {
    let mut asker = server.connect()?;
    until_alone(&mut asker)?;
    asker.call("FLUSHALL")?;
    if let Some(before) = way.before {
        asker.call(before)?;
    }
    drop(asker);
    Clients::connect(server.port(), way.ask.len())
}

/// Waits until the server has seen the clients of the last round leave.
fn until_alone(asker: &mut Connection) -> Result<()> {
    until("the last clients are gone", LEAVING, || {
        let clients: usize = asker.info("clients", "connected_clients")?.parse()?;
        Ok(clients == 1)
    })
}

/// The window.
fn counted(
    contest: &mut Contest<'_>,
    window: Duration,
    asker: &mut Connection,
    sheet: &mut Sheet,
    place: &Place,
) -> Result<()> {
    let (server_cpu, client_cpu) = (asker.server_cpu()?, own_cpu());
    contest.clear();
    let begin = Instant::now();
    contest.until(begin + window)?;
    let took = begin.elapsed().as_secs_f64();
    contest.count_unfinished()?;
    let client_cpu = own_cpu().saturating_sub(client_cpu);
    let server_cpu = asker.server_cpu()?.saturating_sub(server_cpu);
    let grants = contest.grants as f64;
    sheet.note_some(place, metric::GRANTS_PER_SECOND, grants / took)?;
    let waits = [metric::WAIT_P50, metric::WAIT_P99, metric::WAIT_MAX];
    contest.waits.note(sheet, place, waits, MILLISECOND)?;
    let each = || contest.contenders.iter().map(|contender| contender.grants);
    let (least, most) = (each().min(), each().max());
    sheet.note(place, metric::LEAST_GRANTS, least.unwrap_or(0) as f64)?;
    sheet.note(place, metric::MOST_GRANTS, most.unwrap_or(0) as f64)?;
    let a_grant = |time: Duration| time.as_secs_f64() * 1e6 / grants;
    sheet.note_some(place, metric::CPU_GRANT, a_grant(server_cpu))?;
    sheet.note_some(place, metric::CLIENT_CPU_GRANT, a_grant(client_cpu))
}

/// The processor time that this process has used.
fn own_cpu() -> Duration {
    // SAFETY: a struct of numbers, of which zero is one, and a call that fills it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
