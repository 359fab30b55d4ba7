//! The shop of examples/spring-shop, with a real PostgreSQL: `make test-spring`. It needs a JDK and
//! Maven. The tests share the folders that Maven builds in, so they run one after the other.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use support::{module_path, server_binary, signal, until};
use tempfile::TempDir;

const SIGINT: i32 = 2;

/// Returns the demo's command. It keeps its files in `folder`, and has a process group of its own.
fn demo(folder: &TempDir) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/spring-shop/demo");
    let mut command = Command::new("sh");
    command.arg(script).env("TMPDIR", folder.path());
    command.env("REDIS_SERVER", server_binary());
    command.env("REDIS_LOCK_MODULE", module_path());
    // A service that outlives the demo must not keep the pipes of the test open.
    command.stdin(Stdio::null()).process_group(0);
    command
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Checks that the demo's processes and files are gone.
#[track_caller]
fn assert_nothing_is_left(process: u32, folder: &TempDir) {
    let group = format!("-{process}");
    until("the demo's processes have ended", || !signal(&group, 0));
    let files = fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(files, 0, "files in {}", folder.path().display());
}

fn run(command: &mut Command, folder: &TempDir) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the demo runs");
    let process = child.id();
    let output = child.wait_with_output().expect("its output");
    assert_nothing_is_left(process, folder);
    output
}

/// A line of the demo's `--plain` output.
struct Line(HashMap<String, String>);

impl Line {
    fn of(line: &str) -> Line {
        let pairs = line.split(' ').filter_map(|pair| pair.split_once('='));
        Line(
            pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    #[track_caller]
    fn number(&self, name: &str) -> u64 {
        self.0[name].parse().expect("a number")
    }
}

#[test]
fn only_the_lock_that_both_instances_share_sells_exactly_the_stock() {
    let folder = folder();
    let output = run(demo(&folder).arg("--plain"), &folder);
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{text}\n{complaint}",
        output.status
    );
    let lines: Vec<Line> = text.lines().map(Line::of).collect();
    let [none, jvm, redis_lock, late] = lines.as_slice() else {
        panic!("three sales and a late write: {text}")
    };

    for (sale, lock) in [(none, "none"), (jvm, "jvm"), (redis_lock, "redis-lock")] {
        assert_eq!(sale.0["lock"], lock);
        let answers = sale.number("sold") + sale.number("refused");
        assert_eq!(answers, 1600, "{text}");
    }
    for oversold in [none, jvm] {
        assert!(oversold.number("sold") > 1000, "{text}");
        assert_eq!(
            oversold.number("oversold"),
            oversold.number("sold") - 1000,
            "{text}"
        );
    }
    assert_eq!(redis_lock.number("sold"), 1000, "{text}");
    assert_eq!(redis_lock.number("refused"), 600, "{text}");
    assert_eq!(redis_lock.number("left"), 0, "{text}");
    assert_eq!(redis_lock.number("oversold"), 0, "{text}");

    // Only one of two sales from ten units was written: the late one was refused.
    assert!(
        late.number("newer-fence") > late.number("stale-fence"),
        "{text}"
    );
    assert_eq!(late.number("left"), 9, "{text}");
}

/// A demo that serves, and the commands that it suggests.
struct Served {
    demo: Child,
    folder: TempDir,
    commands: Vec<String>,
}

impl Served {
    fn start() -> Served {
        let folder = folder();
        let mut command = demo(&folder);
        let mut demo = command
            .arg("--serve")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the demo runs");
        let lines = BufReader::new(demo.stdout.take().expect("its output")).lines();
        let indented = lines.map_while(Result::ok).filter_map(|line| {
            let command = line.strip_prefix("  ")?;
            Some(command.trim_end_matches(" &").to_owned())
        });
        let commands = indented.take(5).collect();
        Served {
            demo,
            folder,
            commands,
        }
    }

    fn command(&self, number: usize) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.commands[number]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    fn output(&self, number: usize) -> String {
        output_of(self.command(number).spawn().expect("the command runs"))
    }
}

fn output_of(command: Child) -> String {
    let output = command.wait_with_output().expect("its output");
    String::from_utf8(output.stdout).expect("text")
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.demo.kill());
        drop(self.demo.wait());
    }
}

#[test]
fn a_shop_that_serves_sells_nothing_without_the_lock_and_ends_by_an_interrupt() {
    let mut served = Served::start();
    assert_eq!(served.output(0), r#"{"order":1,"sold":true}"#);
    let stock = served.output(1);
    assert!(stock.starts_with(r#"{"units":999,"fence":"#), "{stock}");
    assert!(stock.ends_with(r#","sold":1}"#), "{stock}");

    let slow = served.command(2).spawn().expect("curl");
    until("the slow order has the lock", || {
        served.output(4).contains("exclusive")
    });
    let next = served.command(3).spawn().expect("curl");
    until("the next order waits for it", || {
        served.output(4).contains("waiters\n1\n")
    });
    served.commands[4] = served.commands[4].replace("LOCK.INFO stock:1", "SHUTDOWN NOSAVE");
    served.output(4);
    let sold = output_of(slow);
    assert_eq!(sold, r#"{"order":1000001,"sold":true}"#);
    let unserved = output_of(next);
    assert!(unserved.contains(r#""status":503"#), "{unserved}");
    assert!(served.output(1).ends_with(r#","sold":2}"#));

    let demo = served.demo.id();
    assert!(signal(&demo.to_string(), SIGINT));
    assert_eq!(served.demo.wait().expect("its end").code(), Some(130));
    assert_nothing_is_left(demo, &served.folder);
    assert_eq!(served.output(1), "");
}

#[test]
fn a_shop_that_cant_start_leaves_nothing_behind() {
    let folder = folder();
    let mut command = demo(&folder);
    let output = run(command.env("REDIS_SERVER", "false"), &folder);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.ends_with("demo: redis isn't ready\n"),
        "{complaint}"
    );
}
