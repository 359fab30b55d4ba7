//! Storms of commands that once stalled a server, on a real server, with a PING every millisecond.

mod circles;
mod crossing;
mod databases;
mod flood;
mod holders;
mod hot;
mod leaving;
mod many_keys;
mod permits;
mod places;
mod queue;
mod replicas;
mod report;
mod scripts;
mod sessions;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{ensure, Context, Result};
use clap::{Parser, ValueEnum};
use redis_lock_load::exit_code;

use crate::many_keys::Strike;
use crate::report::{Report, Score};
use crate::stage::Stage;

/// Number of files that a server needs in addition to its clients' connections.
const OTHER_FILES: u64 = 200;

/// Number of clients of the largest storm.
const MOST_CLIENTS: u64 = 10_000;

/// Number of times that a storm is played if the machine is busy with other work.
const TRIES: u32 = 3;

/// Plays storms of lock commands on servers, with a PING every millisecond, and reports whether
/// each server replied in time.
#[derive(Parser)]
struct Options {
    /// Programs of the servers
    #[arg(required = true)]
    servers: Vec<PathBuf>,
    /// The module's library
    #[arg(long, env = "REDIS_LOCK_MODULE")]
    module: PathBuf,
    /// Plays everything at a tenth of its size
    #[arg(long)]
    quick: bool,
    /// Seconds for which 20,000 sessions are renewed [default: 60, with --quick 6]
    #[arg(long)]
    seconds: Option<u64>,
    /// Plays this storm only
    #[arg(long)]
    only: Option<Storm>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Storm {
    /// An MWAIT of 10,000 keys that times out
    MwaitTimeout,
    /// An MWAIT of 10,000 keys that is granted
    MwaitGrant,
    /// An MACQUIRE of 10,000 keys
    Macquire,
    /// An MRELEASE of 10,000 keys
    Mrelease,
    /// An MRELEASE of 10,000 keys for which an MWAIT waits
    MreleaseHandOver,
    /// 1,000 clients wait for the same 100 keys, and all their BLOCKs end at once
    CrossingTimeouts,
    /// 1,000 clients wait for the same 100 keys, and each client gets the keys in turn
    CrossingGrants,
    /// 500 clients that wait for the same 1,000 keys are killed
    CrossingKilled,
    /// The same, with KEEP
    CrossingKept,
    /// 10,000 clients wait for one key while leases of 5 ms end
    Expirations,
    /// 10,000 shared waiters are admitted by one RELEASE
    Admitted,
    /// 5,000 shared waiters are admitted and killed in one EXEC
    Killed,
    /// A connection with 500,000 SESSION locks closes
    Closed,
    /// FLUSHALL with 10,000 waiters on 10,000 keys
    Flushed,
    /// 200 SWAPDB of empty databases beside 200,000 SESSION locks
    Swapped,
    /// SWAPDB of 100,000 keys with a place each
    SwappedPlaces,
    /// FLUSHDB ASYNC of 300,000 SESSION locks, with one more in another database
    FlushedSessions,
    /// RESET of a connection with 300,000 SESSION locks, which then takes one more
    Reset,
    /// 20,000 SESSION locks of 300 ms on one connection
    Renewals,
    /// A shared lock with 10,000 holders
    Holders,
    /// A deadlock of 10,000 sessions that one more session tries to close
    Circle,
    /// Waits that search for deadlocks beside 1,000 MWAITs of 1,000 keys, and with 100,000 sessions
    Searches,
    /// 10,000 waits of one token are cancelled by one LOCK.CANCEL
    Cancelled,
    /// 100,000 places on one key are joined, kept and cancelled
    Places,
    /// 100,000 places lapse at once
    PlacesLapsed,
    /// 100,000 places are granted the lock in turn
    PlacesGranted,
    /// 100,000 places are listed by one LOCK.INFO
    PlacesShown,
    /// 10,000 holders that each lack a permit get it by one RELEASE
    PermitsFreed,
    /// LOCK.HOT while 100,000 keys are waited for and a million others come and go
    Hot,
    /// 10,000 clients wait for a replica that hangs
    Replicas,
    /// The same, and FLUSHALL ends all their grants
    ReplicasFlushed,
    /// 100,000 tokens leave by RELEASE ... LEAVE, and all their marks end at once
    Marks,
    /// The BLOCKs of 10,000 clients that wait with KEEP end at once
    BlocksKept,
    /// 6,000 clients wait for a replica with the grant of one key, which is extended and flushed
    ReplicasOneKey,
    /// 500 clients wait for a replica with the same 500 keys, which are extended and flushed
    ReplicasCrossing,
    /// The same, and all clients have their replies at once, or are killed
    ReplicasCrossingEnded,
    /// A script takes 20 SESSION locks beside 5,000 clients
    ScriptSessions,
}

impl Storm {
    fn play(self, stage: &Stage, score: &mut Score) -> Result<()> {
        match self {
            Storm::MwaitTimeout => many_keys::play(Strike::TimesOut, stage, score),
            Storm::MwaitGrant => many_keys::play(Strike::Granted, stage, score),
            Storm::Macquire => many_keys::play(Strike::Acquired, stage, score),
            Storm::Mrelease => many_keys::play(Strike::Released, stage, score),
            Storm::MreleaseHandOver => many_keys::play(Strike::HandedOver, stage, score),
            Storm::CrossingTimeouts => crossing::time_outs(stage, score),
            Storm::CrossingGrants => crossing::grants(stage, score),
            Storm::CrossingKilled => crossing::killed("", stage, score),
            Storm::CrossingKept => crossing::killed(" KEEP 600000", stage, score),
            Storm::Expirations => queue::expirations(stage, score),
            Storm::Admitted => queue::admitted(stage, score),
            Storm::Killed => queue::killed(stage, score),
            Storm::Closed => flood::closed(stage, score),
            Storm::Flushed => flood::flushed(stage, score),
            Storm::Swapped => databases::swapped(stage, score),
            Storm::SwappedPlaces => databases::swapped_places(stage, score),
            Storm::FlushedSessions => databases::flushed(stage, score),
            Storm::Reset => databases::reset(stage, score),
            Storm::Renewals => sessions::renewals(stage, score),
            Storm::Holders => holders::play(stage, score),
            Storm::Circle => circles::closed(stage, score),
            Storm::Searches => circles::bounded(stage, score),
            Storm::Cancelled => circles::cancelled(stage, score),
            Storm::Places => places::kept(stage, score),
            Storm::PlacesLapsed => places::lapsed(stage, score),
            Storm::PlacesGranted => places::granted(stage, score),
            Storm::PlacesShown => places::shown(stage, score),
            Storm::PermitsFreed => permits::freed(stage, score),
            Storm::Hot => hot::asked(stage, score),
            Storm::Replicas => replicas::stand_still(stage, score),
            Storm::ReplicasFlushed => replicas::flushed(stage, score),
            Storm::Marks => leaving::marks(stage, score),
            Storm::BlocksKept => leaving::blocks(stage, score),
            Storm::ReplicasOneKey => replicas::one_key(stage, score),
            Storm::ReplicasCrossing => replicas::crossing(stage, score),
            Storm::ReplicasCrossingEnded => replicas::crossing_ended(stage, score),
            Storm::ScriptSessions => scripts::sessions(stage, score),
        }
    }

    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn main() -> ExitCode {
    exit_code(played(&Options::parse()))
}

fn played(options: &Options) -> Result<ExitCode> {
    raise_file_limit()?;
    let mut report = Report::default();
    let stages = options.servers.iter().map(|server| {
        let stage = Stage::new(server, &options.module, options.quick, options.seconds);
        Ok((stage.server_name()?, stage))
    });
    // Try all programs before the first storm, so that a mistyped program is reported at once.
    for (name, stage) in stages.collect::<Result<Vec<_>>>()? {
        report.server(&name);
        let all = Storm::value_variants().iter().copied();
        for storm in all.filter(|storm| options.only.is_none_or(|only| only == *storm)) {
            report.add(&judged(storm, &stage));
        }
    }
    Ok(report.close())
}

/// Returns the first score that the machine did not disturb, or the last score.
fn judged(storm: Storm, stage: &Stage) -> Score {
    let mut tries = 1;
    loop {
        let mut score = Score::default();
        if let Err(error) = storm.play(stage, &mut score) {
            score.broken_off(&storm.name(), &error);
        }
        if tries == TRIES || !score.is_disturbed() {
            return score;
        }
        println!(
            "once more, for the machine was busy with other things: {} ({:?})",
            storm.name(),
            score.late()
        );
        tries += 1;
    }
}

/// Raises the limit of open files, so that this process and its servers get the connections that
/// they need. Returns an error if the limit stays too low.
fn raise_file_limit() -> Result<()> {
    let needed = MOST_CLIENTS + OTHER_FILES;
    let limit = rlimit::increase_nofile_limit(u64::MAX).context("the limit of open files")?;
    ensure!(
        limit >= needed,
        "a process may have {limit} open files here, {needed} are needed: see `ulimit -Hn`"
    );
    Ok(())
}
