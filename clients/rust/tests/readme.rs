//! The README's first lock, followed word for word from an empty folder.

mod support;

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use redis::Value;
use support::Server;

/// Returns the code blocks of a language, in their order.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let mark = format!("```{language}\n");
    let starts = document.split(&mark).skip(1);
    starts
        .map(|rest| rest.split_once("```").expect("an end").0)
        .collect()
}

struct Newcomer {
    folder: tempfile::TempDir,
    target: PathBuf,
}

impl Newcomer {
    /// Returns a newcomer with a clone and the crates that cargo has fetched for it.
    fn new() -> Newcomer {
        let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let clone = clone.canonicalize().expect("the clone");
        let target = env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| clone.join("target"), PathBuf::from);
        let folder = tempfile::tempdir().expect("a folder");
        symlink(&clone, folder.path().join("redis-lock")).expect("a link");
        Newcomer {
            folder,
            target: target.join("clients/rust/readme"),
        }
    }

    fn shell(&self, dir: &Path, script: &str) {
        let status = Command::new("sh")
            .args(["-euc", script])
            .current_dir(dir)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_NET_OFFLINE", "true")
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("a shell").success(), "{script}");
    }

    fn project(&self) -> PathBuf {
        self.folder.path().join("first-lock")
    }

    /// Builds the program of this source, for this server.
    fn build(&self, source: &str, server: &Server) {
        assert!(source.contains("redis://127.0.0.1/"));
        let source = source.replace("redis://127.0.0.1/", &server.url());
        fs::write(self.project().join("src/main.rs"), source).expect("the source");
        self.shell(&self.project(), "cargo build --quiet");
    }

    fn start(&self) -> Child {
        let program = self.target.join("debug/first-lock");
        let child = Command::new(program).stdout(Stdio::piped()).spawn();
        child.expect("the program")
    }
}

fn said(child: Child) -> Vec<String> {
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

fn fence(said: &[String]) -> i64 {
    let fence = said[0].strip_prefix("got it, fence ");
    fence.and_then(|it| it.parse().ok()).expect("a fence")
}

#[test]
#[ignore = "compiles two programs from the ground up; `make test-clients` runs it"]
fn a_first_lock_is_waited_for() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let readme = readme.expect("the README");
    let [begin, add_tokio] = blocks(&readme, "sh")[..] else {
        panic!("two blocks of commands");
    };
    let [threads, tasks, ..] = blocks(&readme, "rust,no_run")[..] else {
        panic!("two programs");
    };
    let server = Server::start();
    let newcomer = Newcomer::new();
    newcomer.shell(newcomer.folder.path(), begin);
    // The versions that cargo has already fetched.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    fs::copy(lock, newcomer.project().join("Cargo.lock")).expect("the versions");
    for (number, source) in [threads, tasks].into_iter().enumerate() {
        if number == 1 {
            newcomer.shell(&newcomer.project(), add_tokio);
        }
        newcomer.build(source, &server);
        // Held until both programs wait, however long the second program takes to start.
        server.call::<Value>("LOCK.ACQUIRE orders:42 other PX 600000");
        let first = newcomer.start();
        server.until_waiters("orders:42", 1);
        let second = newcomer.start();
        server.until_waiters("orders:42", 2);
        server.call::<Value>("LOCK.RELEASE orders:42 other");
        let (first, second) = (said(first), said(second));
        assert!(fence(&second) > fence(&first), "{first:?} {second:?}");
        for said in [&first, &second] {
            assert_eq!(
                said.last().map(String::as_str),
                Some("released: true"),
                "{said:?}"
            );
        }
    }
}
