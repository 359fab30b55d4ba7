//! The README's first lock, followed word for word from an empty folder.

mod support;

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use redis::Value;
use support::Server;

const README: &str = include_str!("../README.md");

/// Returns the code blocks of a language, in their order.
fn blocks(language: &str) -> Vec<&'static str> {
    let mark = format!("```{language}\n");
    let starts = README.split(&mark).skip(1);
    starts
        .map(|rest| rest.split_once("```").expect("an end").0)
        .collect()
}

fn shell(dir: &Path, target: &Path, script: &str) {
    let status = Command::new("sh")
        .args(["-euc", script])
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_NET_OFFLINE", "true")
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("a shell").success(), "{script}");
}

/// Returns the fence of a program that has released its lock.
fn fence(child: Child) -> i64 {
    let output = child.wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&output.stdout);
    let (first, rest) = text.split_once('\n').expect("two lines");
    assert_eq!(rest, "released: true\n", "{text}");
    let fence = first.strip_prefix("got it, fence ");
    fence.and_then(|it| it.parse().ok()).expect("a fence")
}

#[test]
#[ignore = "compiles two programs from the ground up; `make test-clients` runs it"]
fn a_first_lock_is_waited_for() {
    let [begin, add_tokio] = blocks("sh")[..] else {
        panic!("two blocks of commands");
    };
    let [threads, tasks, ..] = blocks("rust,no_run")[..] else {
        panic!("two programs");
    };
    let clone = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let clone = clone.canonicalize().expect("the clone");
    let target = env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| clone.join("target"), PathBuf::from);
    let target = target.join("clients/rust/readme");
    let folder = tempfile::tempdir().expect("a folder");
    symlink(&clone, folder.path().join("redis-lock")).expect("a link");
    shell(folder.path(), &target, begin);
    let project = folder.path().join("first-lock");
    // The versions that cargo has already fetched.
    fs::copy(clone.join("Cargo.lock"), project.join("Cargo.lock")).expect("the versions");
    let server = Server::start();
    for (source, before) in [(threads, ""), (tasks, add_tokio)] {
        shell(&project, &target, before);
        assert!(source.contains("redis://127.0.0.1/"));
        let source = source.replace("redis://127.0.0.1/", &server.url());
        fs::write(project.join("src/main.rs"), source).expect("the source");
        shell(&project, &target, "cargo build --quiet");
        // Held until both programs wait, however long the second program takes to start.
        server.call::<Value>("LOCK.ACQUIRE orders:42 other PX 600000");
        let [first, second] = [1, 2].map(|waiters| {
            let mut program = Command::new(target.join("debug/first-lock"));
            let child = program.stdout(Stdio::piped()).spawn();
            server.until_waiters("orders:42", waiters);
            child.expect("the program")
        });
        server.call::<Value>("LOCK.RELEASE orders:42 other");
        assert!(fence(first) < fence(second));
    }
}
