//! Removing the module like docs/operate/upgrade-remove.md says: a server without the module
//! refuses data with locks, and the recipe makes the data readable.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use support::{Expect, Server};

/// Returns the words of the recipe in docs/operate/upgrade-remove.md, an EVAL command on one line.
fn recipe() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/upgrade-remove.md");
    let document = fs::read_to_string(path).expect("the document");
    let line = document
        .lines()
        .find_map(|line| line.trim().strip_prefix("redis-cli EVAL "));
    let parts = line.expect("the recipe").split('"').map(str::trim);
    let words = parts.filter(|part| !part.is_empty()).map(str::to_owned);
    std::iter::once("EVAL".to_owned()).chain(words).collect()
}

/// Starts a server without the module on the data of another server.
fn without_module(data: &Server, appendonly: &str) -> Server {
    Server::builder()
        .without_module()
        .config(&format!("dir \"{}\"", data.dir().display()))
        .config(appendonly)
        .start()
}

/// Returns the log of a server without the module that refuses to start on `data`.
#[track_caller]
fn refusal(data: &Server, appendonly: &str) -> String {
    let attempt = panic::catch_unwind(AssertUnwindSafe(|| without_module(data, appendonly)));
    match attempt {
        Ok(_) => panic!("a server without the module started"),
        Err(message) => *message.downcast::<String>().expect("a panic with a text"),
    }
}

fn server_with_locks(appendonly: &str) -> Server {
    // With this setting every replied command is in the file, even if the server is killed a moment
    // later. The default postpones a write while an earlier write is on its way to the disk.
    let server = Server::builder()
        .config(appendonly)
        .config("appendfsync no")
        .start();
    server.call("SET kept yes").okay();
    server.call("LOCK.ACQUIRE released me").grant();
    assert_eq!(server.call("LOCK.RELEASE released me").int(), 1);
    for number in 0..50 {
        server
            .call(format!("LOCK.ACQUIRE orders:{number} me PX 600000"))
            .grant();
    }
    server
}

#[track_caller]
fn apply_recipe(server: &Server) {
    server.call(&recipe()).nil();
    assert_eq!(server.call("DBSIZE").int(), 1);
}

#[test]
fn an_rdb_with_locks_needs_the_module_until_they_are_deleted() {
    let appendonly = "appendonly no";
    let mut server = server_with_locks(appendonly);
    server.call("SAVE").okay();
    let log = refusal(&server, appendonly);
    let reason =
        "The RDB file contains module data I can't load: no matching module type 'redislock'";
    assert!(log.contains(reason), "{log}");

    apply_recipe(&server);
    server.call("SAVE").okay();
    server.kill9();
    assert_eq!(
        without_module(&server, appendonly).call("GET kept").text(),
        "yes"
    );
}

#[test]
fn an_append_only_file_with_locks_needs_the_module_until_it_is_rewritten_without_them() {
    let appendonly = "appendonly yes";
    let mut server = server_with_locks(appendonly);
    apply_recipe(&server);
    server.kill9();
    let log = refusal(&server, appendonly);
    assert!(log.contains("nknown command 'LOCK.APPLY'"), "{log}");

    server.restart();
    server.call("BGREWRITEAOF").value();
    server.until_rewritten();
    server.kill9();
    assert_eq!(
        without_module(&server, appendonly).call("GET kept").text(),
        "yes"
    );
}
