//! Redlock: one lock over several independent masters, held while a majority grants it.
//!
//! A lock on one master is lost with that master. Here a client asks N independent masters, without
//! replicas, for the same key with the same token. It holds the lock if a quorum of N/2 + 1 masters
//! has granted it. Any two quorums share a master, and that master has a single holder. The lock
//! outlives the loss of N - N/2 - 1 masters, which is two of five.
//!
//! The guarantees, which `tests/ha/redlock.rs` tests:
//!
//! - All masters are asked at once. A dead or stopped master costs its timeout at most.
//! - The lease counts from before the first request, less the drift between clocks. The rest of it
//!   after the round is the validity. A quorum that comes after the validity doesn't count.
//! - A failed round is released on all masters, also on masters that didn't reply, because they may
//!   have granted the lock. The release follows the request on the same connection, so that it
//!   can't arrive before the request.
//! - Each round has a token of its own. So a late release can only end the grant of its own round.
//! - A reply that comes after its timeout is never read: that connection is given up.
//! - A lock is extended by a quorum that still holds it, before its validity ends. A master that
//!   lost the grant isn't asked for a new one, and an ended validity stays ended. Otherwise another
//!   client could have held the lock meanwhile, and the caller would believe that no client had.
//!
//! The requirements on the masters: their clocks run at about the same speed and aren't set, and no
//! master forgets a grant before its lease ends. After a crash, a master without persistence must
//! stay down for longer than the longest lease. A master with `appendonly yes` and `appendfsync
//! always` may restart at once.
//!
//! No lock can stop a holder that was asleep when its lease ended. Its process may have been
//! stopped, or its machine suspended, whose clock may have stopped too. A resource that checks
//! [`Held::fences`] can stop the holder's writes.

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

/// The settings of a lock.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The lease on every master, rounded up to whole ms.
    pub lease: Duration,
    /// The time limit of one master's reply, with the connection attempt. It should be far below
    /// the lease. A URL with a password and a database may take it twice. The system alone limits
    /// the lookup of a host name.
    pub timeout: Duration,
    /// The most time by which a master may end the lease before the client's clock does.
    pub drift: Duration,
    /// The longest pause before another round. Each pause is a random time up to this, so that
    /// clients that split the votes don't meet again.
    pub retry_delay: Duration,
    /// The most rounds.
    pub tries: u32,
}

impl Settings {
    /// Returns settings with the usual drift for a lease: a hundredth of it, and 2 ms because
    /// masters count whole milliseconds. The other settings suit masters in one network.
    pub fn with_lease(lease: Duration) -> Settings {
        Settings {
            lease,
            timeout: Duration::from_millis(50),
            drift: lease / 100 + Duration::from_millis(2),
            retry_delay: Duration::from_millis(200),
            tries: 10,
        }
    }

    /// Returns the end of the validity of a round that started at `started_at`.
    fn valid_until(&self, started_at: Instant) -> Instant {
        started_at + self.lease.saturating_sub(self.drift)
    }

    fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// A held lock. It is valid until [`Held::until`] unless it is extended or released before.
#[derive(Debug)]
pub struct Held {
    key: String,
    token: String,
    until: Instant,
    fences: Vec<Option<u64>>,
    tries: u32,
}

impl Held {
    /// Returns the token, which names the owner on all masters: 128 random bits.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns the end of the validity. After it, another client may hold the lock.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Returns the remaining validity.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns the number of rounds of the acquisition.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Returns the fences of the masters that granted the lock, in the order of the masters.
    ///
    /// Each master numbers its grants by itself. So a single number made of these fences, like the
    /// greatest, need not rise from one holder to the next. Per master the fences do rise: two
    /// holders share at least one master, which gave the later holder the greater fence.
    ///
    /// A resource can protect itself from a late holder. It keeps the greatest fence that it has
    /// seen from each master, and refuses a request with a lower fence from any master. After a
    /// request of the later holder, it accepts no request of the earlier holder. This depends on no
    /// lease: even if a forgetful master causes two holders at once, the resource never returns to
    /// the holder that it accepted first.
    pub fn fences(&self) -> &[Option<u64>] {
        &self.fences
    }
}

/// The reason of a failed round.
#[derive(Debug, PartialEq, Eq)]
pub enum Missed {
    /// Too few masters said yes.
    NoQuorum {
        /// The number of masters that said yes.
        yes: usize,
        /// The number of masters needed.
        quorum: usize,
        /// The failures of the masters that gave no reply, or an error.
        failures: Vec<String>,
    },
    /// A quorum said yes, but the validity had ended when the round was over.
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

/// A client of several masters. It runs one call at a time, so each thread needs its own client.
pub struct Redlock {
    masters: Vec<Master>,
    settings: Settings,
}

impl Redlock {
    /// Returns a client of the masters at these addresses, `host:port` or URLs. It connects later.
    pub fn new(addresses: &[String], settings: Settings) -> RedisResult<Redlock> {
        let masters = addresses.iter().map(|address| Master::at(address));
        Ok(Redlock {
            masters: masters.collect::<RedisResult<_>>()?,
            settings,
        })
    }

    /// Returns the number of masters in a majority.
    pub fn quorum(&self) -> usize {
        self.masters.len() / 2 + 1
    }

    /// Acquires the lock, in as many rounds as the settings allow.
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

    /// Starts the lease anew if a quorum of masters confirms this token's grant before the validity
    /// ends. If it fails, the validity stays the same.
    pub fn extend(&mut self, held: &mut Held) -> Result<(), Missed> {
        let started_at = Instant::now();
        let answers = self.ask_all(|master, settings| master.extend(held, settings));
        self.judge(&answers, held.until)?;
        held.until = self.settings.valid_until(started_at);
        Ok(())
    }

    /// Releases the lock on all masters. Returns the number of masters that confirmed its release.
    /// On the other masters the lock ends with its lease, or earlier.
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

    /// Asks all masters at once, and waits until each has replied or exceeded its timeout.
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

    /// Fails unless a quorum said yes before the validity ended.
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

/// A master's answer: yes with a value, no, or an error.
type Answer<T> = RedisResult<Option<T>>;

struct Master {
    address: String,
    client: Client,
    /// A connection on which every command has its reply.
    line: Option<Connection>,
    late: Option<Late>,
}

/// A connection with a late reply. No reply may be read from it any more, because it would belong
/// to another command. But a command sent on it arrives after the earlier commands.
struct Late {
    /// The token of the request.
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
        // Otherwise the crate would send its name, and wait a timeout for each reply.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        Ok(Master {
            address: address.to_owned(),
            client: Client::open(info.set_redis_settings(settings))?,
            line: None,
            late: None,
        })
    }

    /// Requests the lock. A yes has the fence.
    fn acquire(&mut self, key: &str, token: &str, settings: &Settings) -> Answer<u64> {
        let mut command = redis::cmd("LOCK.ACQUIRE");
        command.arg(key).arg(token);
        command.arg("PX").arg(settings.lease_ms());
        let grant: Option<(String, u64)> = self.ask(token, &command, settings.timeout)?;
        Ok(grant.map(|(_token, fence)| fence))
    }

    /// Extends the lease. A yes shows that the grant has arrived, so the late connection isn't
    /// needed any more.
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

    /// Releases the lock. If a reply to this owner is late, the release follows the request on the
    /// same connection. The master executes both when it can, and the client doesn't wait.
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

    /// Sends a command of an owner, and reads its reply. A connection that broke since its last use
    /// is replaced once. The command can be sent again: a token that holds a lock is granted it
    /// once more, and a second extension or release has no further effect.
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

    /// Keeps the connection if the reply came, and puts it aside as late if the reply timed out.
    /// The first late connection of a token stays, because the lock may have been granted on it.
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

/// Returns true if an error other than a timeout has broken the connection.
fn is_broken_line(error: &RedisError) -> bool {
    !error.is_timeout() && !matches!(error.kind(), ErrorKind::Server(_))
}

/// Returns the time left, at least 1 ms, because a socket takes zero for no timeout.
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

/// The interval of looking for the end of the command.
const GLANCE: Duration = Duration::from_millis(5);

/// Runs a command while holding a lock on a majority of independent masters, as flock(1) does
/// with a file. The lock is extended while the command runs.
#[derive(Parser)]
#[command(name = "redlock", after_help = EXITS)]
struct Cli {
    /// The masters, host:port or redis:// URLs, an odd number
    #[arg(required = true)]
    masters: Vec<String>,
    /// The key of the lock
    #[arg(long)]
    key: String,
    /// The lease, for which the lock outlives this program if it dies
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..1 << 53))]
    lease_ms: u64,
    /// The time limit of a master's reply
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..1 << 53))]
    timeout_ms: u64,
    /// The longest pause between two tries
    #[arg(long, default_value_t = 200)]
    retry_delay_ms: u64,
    /// The most tries
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    tries: u32,
    /// The command to run
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

    /// Returns the exit status of the command, or `None` if the lock was lost and it was killed.
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
            // The command may have ended just now, and then there is nothing to kill.
            drop(command.kill());
            command.wait()?;
            eprintln!("redlock: the lock was lost, and the command killed");
        }
        Ok(ended?)
    }
}

/// Extends the lock at each third of its validity until the command has ended. Returns `None` if
/// the validity ends first. Starts no attempt that could outlast the validity.
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

/// Returns the command's exit code or, like a shell, 128 plus the signal that ended the command.
fn exit_code(status: ExitStatus) -> ExitCode {
    let signal = status.signal().unwrap_or_default();
    let code = status.code().unwrap_or(128 + signal);
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
