//! One lock that n clients request without pause. Each client requests the lock, releases it when
//! the grant has arrived, and requests it again. One thread serves all clients.
//!
//! The benchmark counts the grants in a time window. An unfinished wait counts with its age at the
//! end of the window, so a way that starves clients gains nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use redis_lock_load::{packed, until, Connection, Server, PATIENCE};

use crate::clients::Clients;
use crate::lateness::{Times, MILLISECOND};
use crate::reply::{Reply, GRANT};
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Extent, Place, Sheet};
use crate::stage::{load_script, token, Stage, COMPARE_AND_DELETE, COMPARE_DELETE_AND_PUBLISH};

/// The benchmark's name.
pub const NAME: &str = "contended";
/// The name of the figures of each single client. The size of a place is the rank of a client in
/// one figure: 1 has the least.
pub const CLIENTS: &str = "contended-clients";
/// The number of contenders for which the figures of each client are noted.
pub const EACH: usize = 16;

/// The commands of the server module under test.
pub const LOCK: &str = "LOCK.WAIT";
/// A list of one element, with the server's own queue of blocked clients. It has no lease and no
/// owner.
pub const LIST: &str = "LPUSH/BLPOP";
/// Polling at a long interval.
pub const POLL_SLOWLY: &str = "SET NX, polling every 100 ms";
/// Polling at a short interval.
pub const POLL_QUICKLY: &str = "SET NX, polling every 1 ms";
/// A new request after each message about a release.
pub const PUBLISH: &str = "SET NX, pub/sub wake-up";

const CHANNEL: &str = "released";

/// The time that a server may take to close its clients' connections. Redis 7.0 once took more than
/// 20 seconds for ten thousand clients that were all woken at each release.
const LEAVING: Duration = Duration::from_secs(120);

/// The reaction of a client that was refused.
#[derive(Clone, Copy)]
enum Refused {
    /// No client is refused, because the reply comes with the lock.
    Never,
    /// The client requests the lock again after this time.
    After(Duration),
    /// The client requests the lock again when a message arrives.
    UponMessage,
}

/// A way to share a lock.
struct Way {
    name: &'static str,
    /// The command of each client that requests the lock.
    ask: Vec<Vec<u8>>,
    /// The reply to a grant. A nil reply is a refusal, and any other reply is a defect.
    granted: Reply,
    /// The command of each client that releases the lock.
    give: Vec<Vec<u8>>,
    refused: Refused,
    /// The command that prepares the server before the first request.
    before: Option<&'static str>,
}

impl Way {
    /// Returns a way whose lock is a string with the owner's token.
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
    /// The client has requested the lock, or is about to send its first request.
    Asking,
    /// The client was refused, and will request the lock again.
    Refused,
    /// The client was granted the lock, and has sent the release.
    Giving,
}

#[derive(Clone)]
struct Contender {
    state: State,
    /// The time of the first request for the current grant.
    since: Instant,
    /// True if a message has arrived since the last request.
    told: bool,
    grants: u64,
    /// The longest wait, also of those without a grant yet.
    longest: Duration,
}

impl Contender {
    fn waited(&mut self, wait: Duration) {
        self.longest = self.longest.max(wait);
    }
}

/// A round of one way.
struct Contest<'a> {
    way: &'a Way,
    clients: &'a mut Clients,
    contenders: Vec<Contender>,
    /// The clients that will request the lock again, each with its time.
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
            longest: Duration::ZERO,
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

    /// Sends the first request of every client.
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

    /// Plays until `count` grants were counted.
    fn until_granted(&mut self, count: u64) -> Result<()> {
        while self.grants < count {
            self.step(Instant::now() + PATIENCE)?;
        }
        Ok(())
    }

    /// Resets the counters.
    fn clear(&mut self) {
        self.waits.clear();
        self.grants = 0;
        for contender in &mut self.contenders {
            contender.grants = 0;
            contender.longest = Duration::ZERO;
        }
    }

    /// Records the unfinished waits with their age.
    fn count_unfinished(&mut self) -> Result<()> {
        let now = Instant::now();
        for contender in &mut self.contenders {
            if matches!(contender.state, State::Asking | State::Refused) {
                contender.waited(now - contender.since);
                self.waits.record(now - contender.since)?;
            }
        }
        Ok(())
    }

    /// Handles the replies that arrive before `end`, and sends the requests that are due.
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
        ensure!(self.last_grant.elapsed() < PATIENCE, "no grant in time");
        Ok(())
    }

    /// Returns the time to sleep. It ends 1 ms early, because the system's sleep is too coarse.
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
        contender.waited(now - contender.since);
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
            // A message that arrived during the request may announce the release of the refused
            // lock.
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

/// Returns the ways in which each client requests the lock once per grant, for `n` contenders.
pub fn handed_over(n: usize) -> Vec<HandedOver> {
    let ways = [Way::by_lock(n), Way::by_list(n)];
    ways.into_iter().map(HandedOver).collect()
}

/// A way in which each release hands the lock over to the next client.
pub struct HandedOver(Way);

impl HandedOver {
    /// Returns the name of the way.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Has the contenders hand the lock over, first `count / 4` times, then at least `count` times
    /// between the calls of `begin` and `end`. Returns the number of hand-overs between these
    /// calls.
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
    rounds: usize,
}

/// Returns the time for which grants are counted.
pub fn window(extent: Extent) -> Duration {
    extent.of(Duration::from_millis(150), Duration::from_secs(2))
}

/// Measures all ways with each number of contenders.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let window = window(stage.extent());
    let size = stage.extent().of(
        Size {
            contenders: &[1, 16, 1_000],
            rounds: 2,
        },
        Size {
            contenders: &[1, 2, 16, 100, 1_000, 5_000, 10_000],
            rounds: 9,
        },
    );
    let server = stage.start(&[])?;
    for n in size.contenders {
        let mut ways = Way::all(&mut server.connect()?, *n)?;
        let name = |way: &Way| format!("{NAME}, {n}: {}", way.name);
        interleaved(size.rounds, &mut ways, progress, name, |_, way| {
            let place = Place::new(NAME, "", *n as u64, way.name);
            round_of(way, &server, window, sheet, &place)
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

/// Connects the clients of a way. The connections are new in each round: a server that is slow to
/// serve a long queue would be slow to empty it, but it drops closed connections at once.
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

/// Waits until the server has closed the connections of the last round.
fn until_alone(asker: &mut Connection) -> Result<()> {
    until("the last clients are gone", LEAVING, || {
        let clients: usize = asker.info("clients", "connected_clients")?.parse()?;
        Ok(clients == 1)
    })
}

/// Plays the time window, and notes its figures.
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
    if contest.contenders.len() == EACH {
        note_each(&contest.contenders, sheet, &place.contestant)?;
    }
    let a_grant = |time: Duration| time.as_secs_f64() * 1e6 / grants;
    sheet.note_some(place, metric::CPU_GRANT, a_grant(server_cpu))?;
    sheet.note_some(place, metric::CLIENT_CPU_GRANT, a_grant(client_cpu))
}

/// Notes the grants and the longest wait of each client, both in ascending order.
fn note_each(contenders: &[Contender], sheet: &mut Sheet, way: &str) -> Result<()> {
    let mut grants: Vec<u64> = contenders.iter().map(|one| one.grants).collect();
    let mut waits: Vec<Duration> = contenders.iter().map(|one| one.longest).collect();
    grants.sort_unstable();
    waits.sort_unstable();
    for (rank, (grants, wait)) in (1..).zip(grants.into_iter().zip(waits)) {
        let place = Place::new(CLIENTS, "", rank, way);
        sheet.note(&place, metric::GRANTS, grants as f64)?;
        sheet.note(
            &place,
            metric::LONGEST_WAIT,
            wait.as_nanos() as f64 / MILLISECOND,
        )?;
    }
    Ok(())
}

/// Returns the processor time that this process has used.
fn own_cpu() -> Duration {
    // SAFETY: all fields are numbers, so zeros are a valid value; the call fills the struct.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_is_noted_by_its_rank() -> Result<()> {
        let contender = |grants, waits: [u64; 2]| {
            let mut contender = Contender {
                state: State::Asking,
                since: Instant::now(),
                told: false,
                grants,
                longest: Duration::ZERO,
            };
            for wait in waits {
                contender.waited(Duration::from_millis(wait));
            }
            contender
        };
        let mut sheet = Sheet::default();
        let contenders = [
            contender(5, [8, 2]),
            contender(0, [3, 9]),
            contender(2, [1, 1]),
        ];
        note_each(&contenders, &mut sheet, LOCK)?;
        let noted = |rank, metric| sheet.median(&Place::new(CLIENTS, "", rank, LOCK), metric);
        let grants = [1, 2, 3].map(|rank| noted(rank, metric::GRANTS));
        let waits = [1, 2, 3].map(|rank| noted(rank, metric::LONGEST_WAIT));
        assert_eq!(grants, [Some(0.0), Some(2.0), Some(5.0)]);
        assert_eq!(waits, [Some(1.0), Some(8.0), Some(9.0)]);
        Ok(())
    }
}
