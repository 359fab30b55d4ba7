//! The command line.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

const AFTER_HELP: &str = "\
Ends with 69 where no server can be reached or it refuses, and with 2 where the command line is wrong. What \
`run` ends with is in its own help.";

const AFTER_RUN_HELP: &str = "\
Examples:
  redis-lock run nightly --wait 0 -- ./backup.sh      does nothing where it runs already
  redis-lock run deploy --wait 10m -- make deploy     waits ten minutes at most
  redis-lock run nightly --nb -E 0 --at-least 10m -- ./backup.sh
                                                      once in a fleet: no machine runs it again for ten minutes
  redis-lock run --permits 1/3 encoders -- ffmpeg ... three at once in the whole fleet

Environment of the command:
  REDIS_LOCK_KEY    the key, without those of --keys
  REDIS_LOCK_TOKEN  the token that holds the lock, for LOCK.CHECK
  REDIS_LOCK_FENCE  the fence: hand it to whatever the command writes to

Exit code:
  that of the command, or 128 and the number of the signal that ended it
  75   the lock was not got (-E says another)
  79   the lock was lost while the command ran (--lost-exit-code says another)
  69   no server, or it refuses
  126  the command can't be run; 127: it isn't there

Signals:
  TERM, INT, HUP, QUIT, USR1, USR2, TSTP and CONT are passed on to the command. It stands in the same process \
group, so what is typed on the terminal reaches it directly, and once. While redis-lock still waits, a signal \
gives the wait up and ends it.";

/// The longest time that `--at-least` can keep a lock.
const LONGEST_WINDOW: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The longest time, and the greatest number, that the server takes.
const GREATEST: u64 = (1 << 53) - 1;

/// The message about a text that is no span of time.
const NO_SPAN: &str = "must be a time like 30s, 1m 30s, 500ms or 0.5";

/// The most bytes of a holder's data.
const LONGEST_DATA: usize = 1024;

/// Runs commands under locks of the redis-lock module, and shows, watches and breaks locks.
#[derive(Parser)]
#[command(name = "redis-lock", version, disable_help_flag = true, after_help = AFTER_HELP)]
pub struct Arguments {
    #[command(flatten)]
    pub server: Server,
    /// Show this help
    #[arg(long, global = true, action = ArgAction::Help, help_heading = "Other")]
    help: Option<bool>,
    #[command(subcommand)]
    pub task: Task,
}

/// The server's address and credentials, with the option names of redis-cli.
#[derive(Args, Clone)]
#[command(next_help_heading = "Server")]
pub struct Server {
    /// Its host
    #[arg(short = 'h', long = "host", value_name = "HOST", global = true)]
    pub host: Option<String>,
    /// Its port [default: 6379]
    #[arg(short, long, value_name = "PORT", global = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Its socket, instead of host and port
    #[arg(short, long, value_name = "PATH", global = true, conflicts_with_all = ["host", "port"])]
    pub socket: Option<PathBuf>,
    /// All of it: redis://user:password@host:port/db, or rediss:// for TLS [env: REDIS_LOCK_URL]
    #[arg(short = 'u', long = "url", alias = "uri", value_name = "URL", global = true, conflicts_with_all = ["host", "port", "socket"])]
    pub url: Option<String>,
    /// The password; in a variable other users of the machine don't see it [env: REDISCLI_AUTH]
    #[arg(short = 'a', long = "pass", value_name = "PASSWORD", global = true)]
    pub password: Option<String>,
    /// The ACL user
    #[arg(long, value_name = "NAME", global = true)]
    pub user: Option<String>,
    /// The number of the database
    #[arg(short = 'n', long = "db", value_name = "NUMBER", global = true, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
    pub database: Option<i64>,
    /// How long to wait for the connection, and for each answer
    #[arg(short = 't', long = "connect-timeout", value_name = "TIME", global = true, default_value = "5s", allow_hyphen_values = true, value_parser = positive_span)]
    pub timeout: Duration,
    #[command(flatten)]
    pub tls: Tls,
    /// The end of the wait for the lock, if it has one.
    #[arg(skip)]
    pub end: Option<Instant>,
}

impl Server {
    /// Returns how long the server may take from now on.
    pub fn limit(&self) -> Duration {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        self.end
            .map_or(self.timeout, |end| left(end).min(self.timeout))
    }
}

/// The certificates of the server and the client.
#[derive(Args, Clone)]
#[command(next_help_heading = "TLS")]
pub struct Tls {
    /// Speak TLS
    #[arg(long, global = true)]
    pub tls: bool,
    /// Take any certificate
    #[arg(long, global = true)]
    pub insecure: bool,
    /// The server's name in its certificate, if that isn't its host
    #[arg(long, value_name = "NAME", global = true)]
    pub sni: Option<String>,
    /// The certificates to trust, instead of the system's: those that they sign, and themselves
    #[arg(long, value_name = "FILE", global = true)]
    pub cacert: Option<PathBuf>,
    /// The certificate to show
    #[arg(long, value_name = "FILE", global = true, requires = "private_key")]
    pub cert: Option<PathBuf>,
    /// Its key
    #[arg(
        long = "key",
        id = "private_key",
        value_name = "FILE",
        global = true,
        requires = "cert"
    )]
    pub key: Option<PathBuf>,
}

/// The command to run.
#[derive(Subcommand)]
pub enum Task {
    Run(Run),
    Ls(Ls),
    Info(Info),
    Why(Why),
    Top(Top),
    Break(Break),
    /// Print the completions for a shell
    Completions {
        shell: Shell,
    },
    /// Write the manual pages into a folder
    Man {
        folder: PathBuf,
    },
}

/// Run a command while holding a lock
///
/// Takes the lock, runs the command, keeps the lock while it runs, and gives it back. No shell is
/// involved. What the command leaves running in the background isn't waited for.
#[derive(Args, Clone)]
#[command(after_help = AFTER_RUN_HELP)]
pub struct Run {
    /// The lock
    #[arg(value_parser = key())]
    pub key: OsString,
    /// One more lock to be taken with it, all or none; in a cluster all in one slot. Can be given
    /// again. The command then begins right behind --
    #[arg(long, value_name = "KEY", value_parser = key())]
    pub keys: Vec<OsString>,
    /// How long to wait for the lock, 0 for not at all; without it, for ever
    #[arg(short, long, value_name = "TIME", visible_alias = "timeout", allow_hyphen_values = true, value_parser = span)]
    pub wait: Option<Duration>,
    /// Don't wait: the same as --wait 0
    #[arg(long, visible_alias = "nb", conflicts_with = "wait")]
    pub nonblock: bool,
    /// How long the lock stays should this process or its machine die; renewed at a third of it
    #[arg(long, value_name = "TIME", default_value = "30s", allow_hyphen_values = true, value_parser = positive_span)]
    pub lease: Duration,
    /// Keep the lock at least this long after the grant, even if the command succeeds, fails or is
    /// killed sooner: the lease is set to the rest, and redis-lock doesn't wait for its end. No
    /// lease is shorter than this
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = window)]
    pub at_least: Option<Duration>,
    /// Tie the lock to the connection: it ends at once with this process, and stays held while it
    /// is stopped
    #[arg(long)]
    pub session: bool,
    /// Share the lock with others who share it
    #[arg(long)]
    pub shared: bool,
    /// N of M permits: share the lock with others, so that all together have M at most
    #[arg(long, value_name = "N/M", allow_hyphen_values = true, value_parser = permits)]
    pub permits: Option<Permits>,
    /// What LOCK.INFO shows of this holder, to everyone who may read the key: no secrets, 1 KB at
    /// most
    #[arg(long, value_name = "TEXT", value_parser = data())]
    pub data: Option<OsString>,
    /// Begin only when N replicas have acknowledged the lock
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub replicas: Option<u32>,
    /// What happens to the command, and all that it started, when the lock is lost
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub on_lost: OnLost,
    /// How long after TERM it is killed
    #[arg(long, value_name = "TIME", default_value = "10s", allow_hyphen_values = true, value_parser = span)]
    pub grace: Duration,
    /// What happens to the command when redis-lock itself is killed and can do nothing (Linux)
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub if_killed: IfKilled,
    /// What to end with when the lock is not got
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    pub conflict_exit_code: u8,
    /// What to end with when the lock was lost while the command ran, unless that is to be ignored
    #[arg(long, value_name = "CODE", default_value_t = 79)]
    pub lost_exit_code: u8,
    /// Tell who is waited for, and how long it took
    #[arg(short, long)]
    pub verbose: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// The action on the command when the lock is lost.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// KILL at once
    Kill,
    /// TERM, and KILL after the grace
    Term,
    /// It runs on, without the lock
    Ignore,
}

/// The action on the command when redis-lock is killed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IfKilled {
    /// It is sent KILL
    Kill,
    /// It is sent TERM
    Term,
    /// It runs on, without the lock
    Ignore,
}

/// The permits to take, and the limit of all permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permits {
    pub count: u32,
    pub limit: u32,
}

/// List locks
///
/// Asks the server by SCAN for all locks, or those that a pattern fits, in a cluster all of its
/// primaries.
#[derive(Args)]
pub struct Ls {
    /// Which keys: * any, ? one character, `[abc]` one of them
    #[arg(default_value = "*")]
    pub pattern: OsString,
    /// As one array of JSON
    #[arg(long)]
    pub json: bool,
}

/// The lock to look up, and the part of its queue to show.
#[derive(Args)]
pub struct Lookup {
    /// The lock
    #[arg(value_parser = key())]
    pub key: OsString,
    /// How many of those who wait to show
    #[arg(long, value_name = "NUMBER", default_value_t = 10, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(..=GREATEST))]
    pub waiters: u64,
}

/// Show who holds a lock, and who waits
///
/// Ends with 1 where the lock is free and nobody waits.
#[derive(Args)]
pub struct Info {
    #[command(flatten)]
    pub lock: Lookup,
    /// As JSON; null for a lock that is free
    #[arg(long)]
    pub json: bool,
}

/// Show why clients wait for a lock
///
/// Shows who holds it and who waits, and how much was waited for it in the last two minutes. Ends
/// with 1 where the lock is free, and there was no contention.
#[derive(Args)]
pub struct Why {
    #[command(flatten)]
    pub lock: Lookup,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Watch locks live
///
/// The locks that clients waited for longest in the last two minutes come first. Keys: t, w, h, a,
/// l and k sort by time waited, waiters, holders, age, lease and key, r turns the order round, the
/// arrows and page keys move, q ends it.
#[derive(Args)]
pub struct Top {
    /// Which keys, as of ls
    #[arg(default_value = "*")]
    pub pattern: OsString,
    /// How often the server is asked
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1s", allow_hyphen_values = true, value_parser = positive_span)]
    pub interval: Duration,
    /// What to sort by at first
    #[arg(long, value_name = "COLUMN", default_value = "waited")]
    pub sort: SortBy,
}

/// The sort column of `top`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SortBy {
    Waited,
    Waiters,
    Holders,
    Age,
    Lease,
    Key,
}

/// Take a lock away from those who hold it
///
/// Shows who holds it and asks. Only the grants that were shown are ended: who gets the lock in the
/// meantime keeps it. The next who waits is granted. Ends with 1 where nobody holds the lock, or
/// the answer was no.
#[derive(Args)]
pub struct Break {
    /// The lock
    #[arg(value_parser = key())]
    pub key: OsString,
    /// Don't ask
    #[arg(short, long)]
    pub yes: bool,
}

/// Reads the command line of this process. Ends the process if it is wrong, or asks for help.
pub fn read() -> Arguments {
    let words: Vec<OsString> = env::args_os().collect();
    parsed(&words).unwrap_or_else(|error| error.exit())
}

fn parsed(words: &[OsString]) -> Result<Arguments, clap::Error> {
    let arguments = Arguments::try_parse_from(words)?;
    if let Task::Run(run) = &arguments.task {
        run.check(words).map_err(|message| {
            let mut command = Arguments::command();
            command.build();
            let run = command.find_subcommand_mut("run");
            run.map(|run| run.error(ErrorKind::ArgumentConflict, message))
                .expect("run is a command")
        })?;
    }
    Ok(arguments)
}

impl Run {
    /// Refuses command lines that are valid, but hardly mean what they say: a word of the command
    /// would be taken for the key, or a key for the command.
    fn check(&self, words: &[OsString]) -> Result<(), String> {
        let behind_dashes = words.splitn(2, |word| word == "--").nth(1);
        let begins_behind_dashes = behind_dashes == Some(&self.command);
        let key = self.key.display();
        if self.is_key_behind(behind_dashes) && !self.key.as_bytes().starts_with(b"-") {
            return Err(format!(
                "the key is missing: -- begins the command, so {key} can't be the key"
            ));
        }
        if !self.keys.is_empty() && !begins_behind_dashes {
            let command = self.command[0].display();
            return Err(format!(
                "with --keys the command begins right behind --, so {command} can't be the \
                 command (--keys takes one key: --keys b --keys c)"
            ));
        }
        let mut keys: Vec<&OsString> = self.keys.iter().chain([&self.key]).collect();
        keys.sort();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("--keys has {} twice", pair[0].display())),
            None => Ok(()),
        }
    }

    fn is_key_behind(&self, behind_dashes: Option<&[OsString]>) -> bool {
        behind_dashes
            .and_then(|words| words.split_first())
            .is_some_and(|(first, rest)| *first == self.key && rest == self.command)
    }
}

/// Parses a key. A key of no bytes is refused, because it comes from a variable that isn't set.
fn key() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|key| match key.is_empty() {
        true => Err("must not be empty"),
        false => Ok(key),
    })
}

fn data() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|data| match data.len() > LONGEST_DATA {
        true => Err(format!("must have {LONGEST_DATA} bytes or less")),
        false => Ok(data),
    })
}

/// Parses a span of time like 30s, 1m 30s or 500ms. A number alone is in seconds, like in flock.
fn span(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_millis(GREATEST);
    let span = match text.parse::<f64>() {
        Ok(seconds) if seconds < 0.0 => return Err("must not be negative".to_owned()),
        Ok(seconds) if seconds > longest.as_secs_f64() => longest.saturating_mul(2),
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| NO_SPAN)?,
        Err(_) => humantime::parse_duration(text).map_err(|_| NO_SPAN)?,
    };
    match span > longest {
        true => Err(format!("must be {GREATEST}ms or less")),
        false => Ok(span),
    }
}

/// Parses a span that isn't zero. One below a millisecond is a millisecond.
fn positive_span(text: &str) -> Result<Duration, String> {
    match span(text)? {
        Duration::ZERO => Err("must be more than 0".to_owned()),
        span => Ok(span.max(Duration::from_millis(1))),
    }
}

/// Parses the span of `--at-least`, for which a lock stays after its process. A very long span,
/// like `10M` (ten months), is refused as a mistake, because only an operator can end it sooner.
fn window(text: &str) -> Result<Duration, String> {
    let span = positive_span(text)?;
    if span > LONGEST_WINDOW {
        let longest = humantime::format_duration(LONGEST_WINDOW);
        return Err(format!("must be {longest} or less"));
    }
    Ok(span)
}

fn permits(text: &str) -> Result<Permits, String> {
    let numbers = text.split_once('/');
    let numbers =
        numbers.and_then(|(count, limit)| Some((count.parse().ok()?, limit.parse().ok()?)));
    match numbers {
        Some((count, limit)) if 1 <= count && count <= limit => Ok(Permits { count, limit }),
        _ => Err("must be two numbers like 1/3, the first not above the second".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn spans_have_units_and_seconds_need_none() {
        for (text, ms) in [
            ("30s", 30_000),
            ("1m 30s", 90_000),
            ("0.25", 250),
            ("0", 0),
            ("500ms", 500),
        ] {
            assert_eq!(span(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        let refused = |text: &str| span(text).expect_err(text);
        for text in ["", "s", "-1s", "1 parsec", "nan", "-nan"] {
            assert_eq!(refused(text), NO_SPAN, "{text}");
        }
        for text in ["1e300", "inf", "9007199254741", "1000000y"] {
            assert!(refused(text).contains("or less"), "{text}");
        }
        assert_eq!(refused("-1"), "must not be negative");
        assert!(span("9007199254740.991").is_ok());
        assert!(positive_span("0").is_err());
        let ms = Duration::from_millis(1);
        assert_eq!(positive_span("0.1ms").or(positive_span("1us")), Ok(ms));
    }

    #[test]
    fn permits_are_some_of_some() {
        assert_eq!(permits("2/3"), Ok(Permits { count: 2, limit: 3 }));
        for text in ["", "2", "3/2", "0/2", "-1/2", "1/2/3", "a/b"] {
            assert!(permits(text).is_err(), "{text}");
        }
    }

    /// Returns the keys and the command of a command line, or the message that refuses it.
    fn run(line: &str) -> Result<(String, String), String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let parsed = parsed(&words).map_err(|error| error.to_string())?;
        let Task::Run(run) = parsed.task else {
            panic!("it is run");
        };
        let joined = |words: &[OsString]| {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        let keys: Vec<OsString> = [run.key].into_iter().chain(run.keys).collect();
        Ok((joined(&keys), joined(&run.command)))
    }

    #[test]
    fn keys_and_command_are_distinguished() {
        for (line, keys, command) in [
            ("k make", "k", "make"),
            ("k -p 7000 make -p -w -- x", "k", "make -p -w -- x"),
            ("k --wait 1 -- make -- x", "k", "make -- x"),
            ("--keys b k -- make", "k b", "make"),
            ("k --keys b --keys c -- make -- x", "k b c", "make -- x"),
            ("k --keys=-b --keys b,c -- make", "k -b b,c", "make"),
            ("-- -k make -x", "-k", "make -x"),
            ("k -- k make", "k", "k make"),
        ] {
            let line = format!("redis-lock run {line}");
            assert_eq!(
                run(&line),
                Ok((keys.to_owned(), command.to_owned())),
                "{line}"
            );
        }
    }

    #[test]
    fn what_would_be_taken_for_another_is_refused() {
        for (line, words) in [
            ("--keys b c a -- echo two", "so a can't be the command"),
            ("a --keys b c -- echo two", "so c can't be the command"),
            ("--keys b -- echo two", "so echo can't be the key"),
            ("--wait 1 -- echo two", "so echo can't be the key"),
            ("--keys b a echo two", "so echo can't be the command"),
            ("--keys b -- -k echo", "so echo can't be the command"),
            ("a --keys a -- echo", "--keys has a twice"),
            ("a --keys b --keys b -- echo", "--keys has b twice"),
            ("a -- ", "COMMAND"),
        ] {
            let refused = run(format!("redis-lock run {line}").trim_end()).expect_err(line);
            assert!(refused.contains(words), "{line}: {refused}");
        }
    }
}
