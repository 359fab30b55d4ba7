//! Redlock: one lock over several independent masters, held as long as a majority grants it.
//!
//! A lock on one master is gone when that master is. Here a client asks N masters that know
//! nothing of each other, no replicas, for the same key with the same token, and holds the lock
//! when a quorum of N/2 + 1 has granted it. Any two quorums share a master, and that one has a
//! single holder. The lock outlives the loss of N - N/2 - 1 masters, two of five.
//!
//! What holds here, and is tested in `tests/ha/redlock.rs`:
//!
//! - All masters are asked at once. One that is dead or stopped costs its timeout at most.
//! - The lease runs from before the first master was asked, less the drift between clocks. What
//!   is left of that after the round is the validity; a quorum that came too late counts nothing.
//! - A round that failed is taken back on all masters, also on those that didn't answer. They may
//!   have granted; the release goes after the request on the same connection, so that it can't
//!   come before it.
//! - Each round has a token of its own. A release that arrives late can only end what its own
//!   round was given.
//! - An answer that comes after its timeout is never read: that connection is given up.
//! - A lock is extended by a quorum that still holds it, before its validity ends. A master that
//!   lost the grant isn't asked for a new one, and a validity that has ended stays so: another
//!   client may have come and gone meanwhile, and who is told "extended" believes that none did.
//!
//! What it asks of the masters: that their clocks run at about the same speed and aren't set, and
//! that none forgets a grant whose lease runs. A master without persistence that crashed has to
//! stay down for longer than the longest lease; one with `appendonly yes` and `appendfsync
//! always` may come back at once.
//!
//! What no lock does: stop a holder that was asleep when its lease ended, be it for a stopped
//! process or a suspended machine, whose clock may have slept as well. A resource that looks at
//! [`Held::fences`] can.

use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rand::rngs::SysRng;
use rand::TryRng;
use redis::{
    Client, Cmd, Connection, ErrorKind, FromRedisValue, IntoConnectionInfo, RedisError, RedisResult,
};

// --- the algorithm --------------------------------------------------------------------------

/// How a lock is taken.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For how long a master grants it. All masters get the same, rounded up to whole ms.
    pub lease: Duration,
    /// How long one master may take to answer, connecting included. Far below the lease. A URL
    /// with a password and a database may cost it twice, and finding the address of a name is up
    /// to the system.
    pub timeout: Duration,
    /// How much sooner than the client's clock a master's may end the lease.
    pub drift: Duration,
    /// The longest pause before another round. Each pause is drawn between nothing and this, so
    /// that clients which split the votes between them don't meet again.
    pub retry_delay: Duration,
    /// How many rounds there are at most.
    pub tries: u32,
}

impl Settings {
    /// The usual drift for a lease, a hundredth of it, and 2 ms because masters count whole ones.
    /// The rest suits masters in one network.
    pub fn with_lease(lease: Duration) -> Settings {
        Settings {
            lease,
            timeout: Duration::from_millis(50),
            drift: lease / 100 + Duration::from_millis(2),
            retry_delay: Duration::from_millis(200),
            tries: 10,
        }
    }

    /// When a client that began to ask at `started_at` must stop to rely on what it got.
    fn valid_until(&self, started_at: Instant) -> Instant {
        started_at + self.lease.saturating_sub(self.drift)
    }

    fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// A lock that is held, until [`Held::until`] unless it is extended or released before.
#[derive(Debug)]
pub struct Held {
    key: String,
    token: String,
    until: Instant,
    fences: Vec<Option<u64>>,
    tries: u32,
}

impl Held {
    /// The owner's name on all masters: 128 random bits.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The end of the validity. Past it somebody else may hold the lock.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// What is left of the validity.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// How many rounds it took.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// The fences of the masters that granted the lock, in the order of the masters.
    ///
    /// Each master numbers its grants by itself, so no single number made of these, such as the
    /// greatest, is sure to rise from one holder to the next. Master by master they do: two
    /// holders have at least one master in common, and there the later one has the greater fence.
    ///
    /// So a resource that wants to be safe from a holder that is late keeps the greatest fence it
    /// has seen of each master, and refuses a request that is lower at any master. Once it has
    /// taken a request of the later holder it takes none of the earlier one's. That rests on no
    /// lease: should there be two holders at once, because a master forgot, then the resource
    /// still never goes back to the one that it had taken before the other.
    pub fn fences(&self) -> &[Option<u64>] {
        &self.fences
    }
}

/// Why a round came to nothing.
#[derive(Debug, PartialEq, Eq)]
pub enum Missed {
    /// Too few masters said yes.
    NoQuorum {
        /// How many did.
        yes: usize,
        /// How many it takes.
        quorum: usize,
        /// What became of those that gave no answer, or an error.
        failures: Vec<String>,
    },
    /// A quorum said yes, but when all had answered the validity was over.
    TooLate,
}

impl Display for Missed {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Missed::NoQuorum {
                yes,
                quorum,
                failures,
            } => {
                write!(out, "yes from {yes} masters, needed from {quorum}")?;
                failures
                    .iter()
                    .try_for_each(|failure| write!(out, "; {failure}"))
            }
            Missed::TooLate => write!(out, "a quorum said yes, but the validity was over by then"),
        }
    }
}

impl std::error::Error for Missed {}

/// A client of several masters. It asks for one thing at a time; each thread has its own.
pub struct Redlock {
    masters: Vec<Master>,
    settings: Settings,
}

impl Redlock {
    /// A client of the masters at these addresses, `host:port` or URLs. Connects to none yet.
    pub fn new(addresses: &[String], settings: Settings) -> RedisResult<Redlock> {
        let masters = addresses.iter().map(|address| Master::at(address));
        Ok(Redlock {
            masters: masters.collect::<RedisResult<_>>()?,
            settings,
        })
    }

    /// How many masters make a majority.
    pub fn quorum(&self) -> usize {
        self.masters.len() / 2 + 1
    }

    /// Takes the lock, in as many rounds as the settings allow.
    pub fn lock(&mut self, key: &str) -> Result<Held, Missed> {
        let mut tries = 1;
        loop {
            match self.lock_once(key) {
                Ok(held) => return Ok(Held { tries, ..held }),
                Err(missed) if tries >= self.settings.tries => return Err(missed),
                Err(_) => thread::sleep(random_up_to(self.settings.retry_delay)),
            }
            tries += 1;
        }
    }

    /// Starts the lease anew, if a quorum of masters still holds the lock for this token and says
    /// so before the validity ends. If not, the lock is held for no longer than it was before.
    pub fn extend(&mut self, held: &mut Held) -> Result<(), Missed> {
        let started_at = Instant::now();
        let answers = self.ask_all(|master, settings| master.extend(held, settings));
        self.judge(&answers, held.until)?;
        held.until = self.settings.valid_until(started_at);
        Ok(())
    }

    /// Gives the lock up on all masters; answers how many of them said that they had it. The
    /// others end it with its lease, if not before.
    pub fn release(&mut self, held: Held) -> usize {
        count_yes(&self.release_all(&held))
    }

    fn lock_once(&mut self, key: &str) -> Result<Held, Missed> {
        let token = draw_token();
        let started_at = Instant::now();
        let answers = self.ask_all(|master, settings| master.acquire(key, &token, settings));
        let held = Held {
            key: key.to_owned(),
            token,
            until: self.settings.valid_until(started_at),
            fences: answers
                .iter()
                .map(|answer| *answer.as_ref().ok()?)
                .collect(),
            tries: 1,
        };
        match self.judge(&answers, held.until) {
            Ok(()) => Ok(held),
            Err(missed) => {
                self.release_all(&held);
                Err(missed)
            }
        }
    }

    fn release_all(&mut self, held: &Held) -> Vec<Answer<()>> {
        self.ask_all(|master, settings| master.release(held, settings))
    }

    /// Asks all masters at once and waits until each has answered or used up its timeout.
    fn ask_all<T: Send>(
        &mut self,
        ask: impl Fn(&mut Master, &Settings) -> Answer<T> + Sync,
    ) -> Vec<Answer<T>> {
        let (settings, ask) = (&self.settings, &ask);
        thread::scope(|scope| {
            let asked: Vec<_> = self
                .masters
                .iter_mut()
                .map(|master| scope.spawn(move || ask(master, settings)))
                .collect();
            asked
                .into_iter()
                .map(|thread| thread.join().expect("a thread that doesn't panic"))
                .collect()
        })
    }

    /// Whether a quorum said yes while there was some validity left.
    fn judge<T>(&self, answers: &[Answer<T>], until: Instant) -> Result<(), Missed> {
        let yes = count_yes(answers);
        if yes < self.quorum() {
            let failed = self.masters.iter().zip(answers);
            return Err(Missed::NoQuorum {
                yes,
                quorum: self.quorum(),
                failures: failed
                    .filter_map(|(master, answer)| master.failure(answer))
                    .collect(),
            });
        }
        if Instant::now() >= until {
            return Err(Missed::TooLate);
        }
        Ok(())
    }
}

fn count_yes<T>(answers: &[Answer<T>]) -> usize {
    answers
        .iter()
        .filter(|answer| matches!(answer, Ok(Some(_))))
        .count()
}

fn draw_token() -> String {
    let mut bits = [0; 16];
    SysRng
        .try_fill_bytes(&mut bits)
        .expect("the system's generator of random numbers");
    format!("{:032x}", u128::from_be_bytes(bits))
}

fn random_up_to(longest: Duration) -> Duration {
    rand::random_range(Duration::ZERO..=longest)
}

// --- one master -----------------------------------------------------------------------------

/// Yes with what comes with it, no, or nothing that could be called an answer.
type Answer<T> = RedisResult<Option<T>>;

struct Master {
    address: String,
    client: Client,
    /// A connection on which all that was sent has been answered.
    line: Option<Connection>,
    late: Option<Late>,
}

/// A connection on which an answer is late. Nothing may be read from it any more: it would be the
/// answer to something else. But what is sent on it comes after what it carries already.
struct Late {
    /// Whose request it was.
    token: String,
    line: Connection,
}

impl Master {
    fn at(address: &str) -> RedisResult<Master> {
        let url = if address.contains("://") {
            address.to_owned()
        } else {
            format!("redis://{address}/")
        };
        let info = url.into_connection_info()?;
        // The crate would introduce itself, and wait a timeout for each answer to that.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        Ok(Master {
            address: address.to_owned(),
            client: Client::open(info.set_redis_settings(settings))?,
            line: None,
            late: None,
        })
    }

    /// Yes comes with the fence.
    fn acquire(&mut self, key: &str, token: &str, settings: &Settings) -> Answer<u64> {
        let mut command = redis::cmd("LOCK.ACQUIRE");
        command.arg(key).arg(token);
        command.arg("PX").arg(settings.lease_ms());
        let grant: Option<(String, u64)> = self.ask(token, &command, settings.timeout)?;
        Ok(grant.map(|(_token, fence)| fence))
    }

    /// A yes shows that the grant has arrived: of what is late, nothing is needed any more.
    fn extend(&mut self, held: &Held, settings: &Settings) -> Answer<()> {
        let mut command = redis::cmd("LOCK.EXTEND");
        command.arg(&held.key).arg(&held.token);
        command.arg("PX").arg(settings.lease_ms());
        let extended: bool = self.ask(&held.token, &command, settings.timeout)?;
        if extended {
            self.late.take_if(|late| late.token == held.token);
        }
        Ok(extended.then_some(()))
    }

    /// Where an answer to this owner is late, the release goes behind the request. The master
    /// carries out both when it can, and nobody waits for it.
    fn release(&mut self, held: &Held, settings: &Settings) -> Answer<()> {
        let mut command = redis::cmd("LOCK.RELEASE");
        command.arg(&held.key).arg(&held.token);
        if let Some(mut late) = self.late.take_if(|late| late.token == held.token) {
            let sent = late.line.send_packed_command(&command.get_packed_command());
            if sent.is_ok() && self.line.is_none() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
        }
        let released: bool = self.ask(&held.token, &command, settings.timeout)?;
        Ok(released.then_some(()))
    }

    /// Sends a command of an owner and reads its answer. A line that broke since it was last used
    /// is replaced once: what was sent on it can be sent again, because a token that holds a lock
    /// is granted it once more, and an extension or a release does no more the second time.
    fn ask<T: FromRedisValue>(
        &mut self,
        token: &str,
        command: &Cmd,
        timeout: Duration,
    ) -> RedisResult<T> {
        let deadline = Instant::now() + timeout;
        if let Some(line) = self.line.take() {
            let answer = self.exchange(line, token, command, deadline);
            if !answer.as_ref().is_err_and(is_broken_line) {
                return answer;
            }
        }
        let left = time_left(deadline);
        let line = self.client.get_connection_with_timeout(left)?;
        self.exchange(line, token, command, deadline)
    }

    /// Keeps the line if the answer came, and puts it aside if it didn't come in time. The first
    /// that is late for a token stays: it is the one on which the lock may have been granted.
    fn exchange<T: FromRedisValue>(
        &mut self,
        mut line: Connection,
        token: &str,
        command: &Cmd,
        deadline: Instant,
    ) -> RedisResult<T> {
        line.set_write_timeout(Some(time_left(deadline)))?;
        line.set_read_timeout(Some(time_left(deadline)))?;
        let answer = command.query(&mut line);
        match &answer {
            Err(error) if error.is_timeout() => {
                let token = token.to_owned();
                if self.late.as_ref().is_none_or(|late| late.token != token) {
                    self.late = Some(Late { token, line });
                }
            }
            Err(error) if is_broken_line(error) => {}
            _ => self.line = Some(line),
        }
        answer
    }

    fn failure<T>(&self, answer: &Answer<T>) -> Option<String> {
        let error = answer.as_ref().err()?;
        let host = self.address.rsplit('@').next().unwrap_or_default();
        Some(if error.is_timeout() {
            format!("{host}: no answer in time")
        } else {
            format!("{host}: {error}")
        })
    }
}

/// Whether there is nothing more to be had from a connection, for another reason than time.
fn is_broken_line(error: &RedisError) -> bool {
    !error.is_timeout() && !matches!(error.kind(), ErrorKind::Server(_))
}

/// Never nothing, which a socket takes for no timeout at all.
fn time_left(deadline: Instant) -> Duration {
    deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1))
}

// --- the program ----------------------------------------------------------------------------

const NOT_HELD: u8 = 75;
const LOST: u8 = 76;

const EXITS: &str = "\
Exits with what the command exits with, with 75 when the lock wasn't to be had and the command
not run, and with 76 when the lock couldn't be kept and the command was killed for it. The
command finds the fences in REDLOCK_FENCES, one for each master, - for those that gave none.
It runs on without the lock when this program is killed.";

/// How soon the end of the command is seen.
const GLANCE: Duration = Duration::from_millis(5);

/// Runs a command while holding a lock on a majority of independent masters, as flock(1) does
/// with a file. The lock is extended while the command runs.
#[derive(Parser)]
#[command(name = "redlock", after_help = EXITS)]
struct Cli {
    /// The masters, host:port or redis:// URLs; an odd number of them
    #[arg(required = true)]
    masters: Vec<String>,
    /// The key of the lock
    #[arg(long)]
    key: String,
    /// How long the lock outlives this program, should it die
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..1 << 53))]
    lease_ms: u64,
    /// How long a master may take to answer
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..1 << 53))]
    timeout_ms: u64,
    /// The longest pause between two tries
    #[arg(long, default_value_t = 200)]
    retry_delay_ms: u64,
    /// How often to try
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    tries: u32,
    /// What to run
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or_else(|error| {
        eprintln!("redlock: {error}");
        ExitCode::from(2)
    })
}

impl Cli {
    fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error>> {
        let mut redlock = Redlock::new(&self.masters, self.settings())?;
        let mut held = match redlock.lock(&self.key) {
            Ok(held) => held,
            Err(missed) => {
                eprintln!("redlock: not held: {missed}");
                return Ok(ExitCode::from(NOT_HELD));
            }
        };
        let ended = self.run_command(&mut redlock, &mut held);
        redlock.release(held);
        Ok(ended?.map_or(ExitCode::from(LOST), exit_code))
    }

    fn settings(&self) -> Settings {
        Settings {
            timeout: Duration::from_millis(self.timeout_ms),
            retry_delay: Duration::from_millis(self.retry_delay_ms),
            tries: self.tries,
            ..Settings::with_lease(Duration::from_millis(self.lease_ms))
        }
    }

    /// How the command ended; none when it had to be killed.
    fn run_command(
        &self,
        redlock: &mut Redlock,
        held: &mut Held,
    ) -> Result<Option<ExitStatus>, Box<dyn std::error::Error>> {
        let program = &self.command[0];
        let mut command = Command::new(program)
            .args(&self.command[1..])
            .env("REDLOCK_FENCES", words_of(held.fences()))
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let ended = keep_while_running(redlock, held, &mut command);
        if !matches!(ended, Ok(Some(_))) {
            // It may have ended just now: then there is nothing to kill.
            drop(command.kill());
            command.wait()?;
            eprintln!("redlock: the lock was lost, and the command killed");
        }
        Ok(ended?)
    }
}

/// Extends the lock each time a third of its validity is gone, until the command has ended, or
/// the validity: then none. No attempt is begun that could outlast the validity.
fn keep_while_running(
    redlock: &mut Redlock,
    held: &mut Held,
    command: &mut Child,
) -> io::Result<Option<ExitStatus>> {
    let mut extend_at = Instant::now() + held.left() / 3;
    loop {
        let ended = command.try_wait()?;
        let left = held.left();
        if left.is_zero() {
            return Ok(None);
        }
        if ended.is_some() {
            return Ok(ended);
        }
        if Instant::now() >= extend_at && left > redlock.settings.timeout {
            if let Err(missed) = redlock.extend(held) {
                eprintln!("redlock: not extended: {missed}");
            }
            extend_at = Instant::now() + held.left() / 3;
        }
        thread::sleep(GLANCE);
    }
}

fn words_of(fences: &[Option<u64>]) -> String {
    let words: Vec<String> = fences
        .iter()
        .map(|fence| fence.map_or("-".to_owned(), |fence| fence.to_string()))
        .collect();
    words.join(" ")
}

/// As a shell tells of a command that a signal ended.
fn exit_code(status: ExitStatus) -> ExitCode {
    let signal = status.signal().unwrap_or_default();
    let code = status.code().unwrap_or(128 + signal);
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
