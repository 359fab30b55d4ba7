//! Tests of each command on bad days: what it prints, its exit code, and when it ends.

mod stage;

use std::any::Any;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stage::places::{self, Hanging};
use stage::support::{free_port, until, Expect, Server, LONG};
use stage::terminal::{words, Terminal};
use stage::{outcome, redis_lock, Job, Outcome, PROGRAM};

/// The limit of each wait for the server.
const LIMIT: Duration = Duration::from_secs(1);

/// The longest time by which a command ends later than its limit. A slow machine needs some of it to start
/// the command.
const LATE: Duration = Duration::from_millis(900);

/// The most times that a call is played. A busy machine may delay it in some of them.
const ROUNDS: u32 = 5;

/// The commands that are played, each with its words. `-t` is a second for all of them.
const CALLS: [(&str, &str); 8] = [
    ("try", "run k --nb -- echo ran"),
    ("limit", "run k --wait 1s -- echo ran"),
    ("ever", "run k -- echo ran"),
    ("ls", "ls"),
    ("info", "info k"),
    ("why", "why k"),
    ("break", "break --yes k"),
    ("top", "top"),
];

/// The code of a call that goes on, and only tells of the outage.
const GOES_ON: i32 = -1;

/// A bad day: where the server is, and the options that name the user.
struct Day {
    port: u16,
    options: &'static [&'static str],
    /// The server, or what takes its place.
    _stands: Box<dyn Any>,
}

impl Day {
    fn at(port: u16) -> Day {
        Day::of(port, ())
    }

    fn of(port: u16, stands: impl Any) -> Day {
        Day {
            port,
            options: &[],
            _stands: Box::new(stands),
        }
    }

    fn on(server: Server) -> Day {
        Day::of(server.port(), server)
    }

    fn with(mut self, options: &'static [&'static str]) -> Day {
        self.options = options;
        self
    }

    /// Plays a call. The text on the terminal of `top` is both its output and its error.
    fn play(&self, line: &str) -> (Outcome, Duration) {
        let options = [&["-t", "1s"], self.options].concat();
        let own: Vec<&str> = line.split(' ').collect();
        let began = Instant::now();
        let outcome = match line {
            "top" => self.play_top(&[&options[..], &own].concat()),
            _ => outcome(&mut redis_lock(self.port, &[&options[..], &own].concat())),
        };
        (outcome, began.elapsed())
    }

    fn play_top(&self, options: &[&str]) -> Outcome {
        use std::os::unix::process::ExitStatusExt;
        let mut terminal = Terminal::start(words(self.port, PROGRAM, options), 150, 20);
        let mut shown = terminal.until_shows("something", |text| !text.trim().is_empty());
        if terminal.is_taken() {
            shown = terminal.until_shows("locks, or why not", |text| {
                text.contains(" old") || text.contains("NOT NOW")
            });
            terminal.type_in("q");
        }
        let code = terminal.ended().exit_code();
        let text = format!("{shown}{}", terminal.last_text());
        Outcome {
            status: ExitStatusExt::from_raw(i32::try_from(code).expect("a code") << 8),
            out: text.clone(),
            err: text,
        }
    }

    /// Asserts what calls print and end with, and that they end in time. Calls that aren't named
    /// count as named by `*`.
    #[track_caller]
    fn gives(&self, cells: &[(&str, i32, &str)]) {
        for (name, line) in CALLS {
            let cell = cells
                .iter()
                .find(|cell| cell.0.split(' ').any(|it| it == name));
            let cell = cell.or_else(|| cells.iter().find(|cell| cell.0 == "*"));
            let (_, code, text) = cell.expect("a cell for each call");
            if *code == GOES_ON {
                self.goes_on(line, text);
                continue;
            }
            let late = (0..ROUNDS).all(|_| self.is_late(line, *code, text));
            assert!(!late, "{line} is late in each round");
        }
    }

    /// Plays a call, and asserts what it prints and ends with. Returns true if it ends late. A reply
    /// that comes later than the limit may change what it prints.
    #[track_caller]
    fn is_late(&self, line: &str, code: i32, text: &str) -> bool {
        let (outcome, took) = self.play(line);
        let told = format!("{}{}", outcome.out, outcome.err);
        for never in ["os error", "ran\n"] {
            assert!(!told.contains(never) || code == 0, "{line}: {told:?}");
        }
        let is_right = outcome.code() == code && told.contains(text);
        assert!(
            is_right || took > LIMIT,
            "{line} ended with {} after {took:?}, without {text:?}: {told:?}",
            outcome.code()
        );
        !is_right || took >= LIMIT + LATE
    }
}

impl Day {
    #[track_caller]
    fn goes_on(&self, line: &str, text: &str) {
        let own: Vec<&str> = line.split(' ').collect();
        let words = [&["-t", "1s"], self.options, &own].concat();
        let tells = |within: Duration| {
            let mut job = Job::start(&mut redis_lock(self.port, &words));
            std::thread::sleep(within);
            assert!(!job.is_over(), "{line}: {:?}", job.outcome());
            job.send(Signal::TERM);
            job.outcome().err.contains(text)
        };
        let told = (1..=ROUNDS).any(|round| tells(round * (LIMIT + LATE)));
        assert!(told, "{line} doesn't tell {text:?}");
    }
}

/// Returns a server at which `k` is free.
fn server() -> Server {
    Server::start()
}

#[test]
fn the_server_stands_still() {
    let server = server();
    server.freeze();
    let day = Day::at(server.port());
    day.gives(&[("*", 69, "no answer from the server 127.0.0.1:")]);
    server.thaw();
}

#[test]
fn the_machine_has_vanished() {
    Day::at(places::swallowing()).gives(&[("*", 69, "no answer from the server 127.0.0.1:")]);
}

#[test]
fn connections_hang() {
    let hanging = Hanging::new();
    Day::of(hanging.port(), hanging).gives(&[("*", 69, "no answer from the server 127.0.0.1:")]);
}

#[test]
fn no_server_is_there() {
    let day = Day::at(free_port());
    day.gives(&[("*", 69, ": connection refused")]);
}

#[test]
fn connections_are_reset() {
    let day = Day::at(places::resetting());
    day.gives(&[("*", 69, "the connection was closed")]);
}

#[test]
fn replies_are_cut() {
    let day = Day::at(places::cutting());
    day.gives(&[("*", 69, "the connection was closed")]);
}

#[test]
fn the_wait_counts_for_the_first_connection() {
    let hanging = Hanging::new();
    for port in [places::swallowing(), hanging.port()] {
        let options = ["-t", "30s", "run", "k", "--wait", "1s", "--", "echo", "ran"];
        let began = Instant::now();
        let outcome = outcome(&mut redis_lock(port, &options));
        assert!(began.elapsed() < 10 * LIMIT, "{:?}", began.elapsed());
        assert_eq!(outcome.code(), 69, "{outcome:?}");
        assert!(outcome.err.contains("within 1.0s"), "{outcome:?}");
    }
}

#[test]
fn the_server_has_no_hello() {
    let server = Server::builder()
        .config("rename-command HELLO \"\"")
        .start();
    let run = ["run", "k", "--", "echo", "ran"];
    let ran = outcome(&mut redis_lock(server.port(), &run));
    assert_eq!((ran.code(), ran.out.as_str()), (0, "ran\n"), "{ran:?}");
    let url = format!("redis://127.0.0.1:{}/?protocol=resp3", server.port());
    let refused = outcome(&mut redis_lock(
        server.port(),
        &[&["-u", &url][..], &run].concat(),
    ));
    assert_eq!(refused.code(), 69, "{refused:?}");
    assert!(!refused.err.contains("hasn't loaded"), "{refused:?}");
}

#[test]
fn the_server_loads_its_data() {
    let server = Server::builder()
        .config("rdbcompression no")
        .config("loading-process-events-interval-bytes 1024")
        .start();
    let keys = "for n = 1, 600 do redis.call('SET', n, string.rep('x', 1100)) end";
    server.call(&["EVAL", keys, "0"]).nil();
    server.call("CONFIG SET key-load-delay 50000").okay();
    let mut loader = server.client();
    loader.send("DEBUG RELOAD");
    until("it loads", || server.call("GET 1").is_err());
    let cells = [
        ("ever", GOES_ON, "tries again: 127.0.0.1:"),
        ("top", 0, "the server is loading its data"),
        ("*", 69, "the server is loading its data"),
    ];
    Day::at(server.port()).gives(&cells);
    server.call("CONFIG SET key-load-delay 0").okay();
    loader.recv().okay();
}

#[test]
fn the_server_is_a_replica() {
    let server = server();
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server
        .call("CONFIG SET replica-serve-stale-data yes")
        .okay();
    server
        .call(format!("REPLICAOF 127.0.0.1 {}", free_port()))
        .okay();
    let cells = [
        (
            "try limit break",
            69,
            "the server is a replica, which grants no locks",
        ),
        (
            "ever",
            GOES_ON,
            "the server is a replica, which grants no locks",
        ),
        ("*", 0, "k"),
    ];
    Day::on(server).gives(&cells);
}

#[test]
fn the_server_has_no_memory_left() {
    let server = server();
    server.call(format!("LOCK.ACQUIRE held a {LONG}")).grant();
    server.call("CONFIG SET maxmemory 1").okay();
    let cells = [
        ("try limit", 69, "OOM"),
        ("ever", GOES_ON, "OOM"),
        ("info why", 1, "k is free"),
        ("break", 1, "nobody holds k"),
        ("*", 0, "held"),
    ];
    Day::on(server).gives(&cells);
}

#[test]
fn the_module_is_missing() {
    let server = Server::builder().without_module().start();
    Day::on(server).gives(&[("*", 69, "it hasn't loaded the redis-lock module")]);
}

#[test]
fn the_password_is_wrong() {
    let server = server();
    server.call("CONFIG SET requirepass secret").okay();
    let day = Day::on(server).with(&["-a", "wrong"]);
    day.gives(&[("*", 69, "wrong user or password")]);
    day.with(&["--user", "nobody", "-a", "secret"])
        .gives(&[("*", 69, "wrong user or password")]);
}

#[test]
fn the_password_is_missing() {
    let server = server();
    server.call("CONFIG SET requirepass secret").okay();
    Day::on(server).gives(&[("*", 69, "NOAUTH")]);
}

#[test]
fn the_user_may_not() {
    let server = server();
    let rules = "ACL SETUSER reader on >secret ~* +@all -lock.info -lock.acquire -lock.wait -scan";
    server.call(rules).okay();
    let day = Day::on(server).with(&["--user", "reader", "-a", "secret"]);
    day.gives(&[("top", 0, "NOPERM"), ("*", 69, "NOPERM")]);
}

/// Arguments are refused before anything is sent, so no server is needed.
#[test]
fn arguments_are_wrong() {
    for (line, words) in [
        ("run k --lease 0 -- true", "--lease"),
        ("run k --lease -5s -- true", "--lease"),
        ("run k --lease nan -- true", "--lease"),
        ("run k --lease 1e300 -- true", "--lease"),
        ("run k --lease inf -- true", "--lease"),
        ("run k --wait -1 -- true", "--wait"),
        ("run k --wait nan -- true", "--wait"),
        ("run k --wait inf -- true", "--wait"),
        ("run k --at-least 0 -- true", "--at-least"),
        ("run k --at-least 31d -- true", "--at-least"),
        ("run k --grace -1 -- true", "--grace"),
        ("run k --grace 1e18 -- true", "--grace"),
        ("run k --permits 0/3 -- true", "--permits"),
        ("run k --permits 4/3 -- true", "--permits"),
        ("run k --permits -1/3 -- true", "--permits"),
        ("run k --permits 1/4294967296 -- true", "--permits"),
        ("run k --replicas 0 -- true", "--replicas"),
        ("run k --replicas 1001 -- true", "--replicas"),
        ("run k --replicas -1 -- true", "--replicas"),
        ("run k -E 256 -- true", "--conflict-exit-code"),
        ("run  -- true", "KEY"),
        ("run k --keys  -- true", "--keys"),
        ("run k --keys k -- true", "--keys"),
        ("run --keys b c a -- echo two", "--keys"),
        ("run -- echo two", "the key is missing"),
        ("info ", "KEY"),
        ("why ", "KEY"),
        ("break ", "KEY"),
        ("info k --waiters -1", "--waiters"),
        ("why k --waiters 9007199254740992", "--waiters"),
        ("top -d 0", "--interval"),
        ("top -d nan", "--interval"),
        ("ls -t 0", "--connect-timeout"),
        ("ls -t -1", "--connect-timeout"),
        ("ls -p 0", "--port"),
        ("ls -p 65536", "--port"),
        ("ls -n -1", "--db"),
    ] {
        let line: Vec<&str> = line.split(' ').collect();
        let refused = outcome(&mut redis_lock(1, &line));
        assert_eq!(refused.code(), 2, "{line:?}: {refused:?}");
        assert!(refused.err.contains(words), "{line:?}: {refused:?}");
    }
    let data = "x".repeat(1025);
    let refused = outcome(&mut redis_lock(
        1,
        &["run", "k", "--data", &data, "--", "true"],
    ));
    assert_eq!(refused.code(), 2);
    assert!(refused.err.contains("1024 bytes or less"), "{refused:?}");
}

/// The page says what is printed on each bad day, and the tests above play what it says.
#[test]
fn the_page_says_what_is_printed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(folder.join(path)).expect("a file");
    let (page, tests) = (read("../docs/cli.md"), read("tests/bad_days.rs"));
    let (_, table) = page.split_once("| what is wrong |").expect("a table");
    let (table, _) = table.split_once("\n\n").expect("its end");
    let printed: Vec<&str> = table
        .lines()
        .skip(2)
        .map(|row| row.split(" | ").nth(1).expect("what is printed"))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert!(printed.len() >= 10, "{printed:?}");
    for text in printed {
        // The port and the limit are others in the tests.
        let own = text.split("6379").next().expect("words");
        let own = own
            .strip_prefix("no connection to")
            .map_or(own, |_| ": connection refused");
        assert!(tests.contains(&format!("\"{own}")), "{text}");
    }
}
