//! Tests of `redis-lock ls`, `info` and `break`.

mod stage;

use stage::support::{server_with_holder, until, Client, Expect, Server, LONG};
use stage::terminal::{words, Terminal};
use stage::{done, outcome, redis_lock, shell, PROGRAM};

/// A key with control sequences, which clear a terminal and change its title.
const EVIL: &[u8] = b"evil\x1b[2J\x1b]0;pwned\x07\xff\0\n";

/// The display of `EVIL` on a terminal.
const EVIL_SHOWN: &str = r#""evil\x1b[2J\x1b]0;pwned\x07\xff\x00\n""#;

/// Starts a cluster of nodes that serve equal shares of the slots.
#[track_caller]
fn cluster(count: u16) -> Vec<Server> {
    let nodes: Vec<Server> = (0..count)
        .map(|_| {
            Server::builder()
                .config("cluster-enabled yes")
                .config("cluster-node-timeout 15000")
                .start()
        })
        .collect();
    let share = 16_384_u32 / u32::from(count);
    for (number, node) in (0..).zip(&nodes) {
        let last = if number + 1 == u32::from(count) {
            16_383
        } else {
            (number + 1) * share - 1
        };
        node.call(format!("CLUSTER ADDSLOTSRANGE {} {last}", number * share))
            .okay();
        node.call(format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))
            .okay();
    }
    // A node that has met another refuses an epoch, so all have theirs before the first meeting.
    for node in &nodes {
        // Each meets all: one that is met may forget it again before others hear of it.
        for other in nodes.iter().filter(|other| other.port() != node.port()) {
            let (port, bus) = (other.port(), other.bus_port());
            node.call(format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))
                .okay();
        }
    }
    for node in &nodes {
        until("each node knows all", || {
            let info = node.call("CLUSTER INFO").text();
            info.contains("cluster_state:ok") && info.contains(&format!("cluster_size:{count}"))
        });
    }
    nodes
}

/// Acquires the locks `prefix0` to `prefix<count - 1>`.
#[track_caller]
fn take_many(client: &mut Client, prefix: &str, count: usize) {
    let commands: Vec<String> = (0..count)
        .map(|n| format!("LOCK.ACQUIRE {prefix}{n} t {LONG}"))
        .collect();
    for commands in commands.chunks(1_000) {
        client.call_all(commands);
    }
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns true if the text contains no control characters except newlines.
fn is_harmless(text: &str) -> bool {
    text.chars()
        .all(|character| character == '\n' || !character.is_control())
}

// --- ls -------------------------------------------------------------------------------------

#[test]
fn ls_shows_the_locks_that_fit() {
    let server = server_with_holder();
    server
        .call("LOCK.ACQUIRE job:1 b PX 600000 SHARED LIMIT 3 PERMITS 2")
        .grant();
    server.call("SET job:2 no-lock").okay();
    let _waiter = server.waiter("LOCK.WAIT k c");
    let all = done(&server, &["ls"]).ok();
    let lines: Vec<Vec<&str>> = all
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0],
        ["KEY", "MODE", "HOLDERS", "WAITERS", "HELD", "LEASE", "BY"]
    );
    assert_eq!(lines[1][..4], ["job:1", "shared", "2/3", "0"]);
    assert_eq!(lines[2][..4], ["k", "exclusive", "1", "1"]);
    assert!(lines[2][5].starts_with("9m5"), "{all}");
    assert_eq!(lines.len(), 3);
    // A short lease and a long lease on one lock.
    server
        .call("LOCK.ACQUIRE job:1 c PX 60000 SHARED LIMIT 3")
        .grant();
    let some = done(&server, &["ls", "job:*"]).ok();
    assert!(some.contains(" 9m5"), "{some}");
    assert_eq!(some.lines().count(), 2, "{some}");
    assert_eq!(done(&server, &["ls", "none*"]).ok().lines().count(), 1);
}

#[test]
fn ls_as_json_has_all_that_the_server_tells() {
    let server = server_with_holder();
    server.call(&["CLIENT", "SETNAME", "unused"]).okay();
    let _waiter = server.waiter("LOCK.WAIT k b BLOCK 60000 SHARED");
    let locks = json(&done(&server, &["ls", "--json"]).ok());
    let lock = &locks[0];
    assert_eq!(lock["key"], "k");
    assert_eq!(lock["mode"], "exclusive");
    let holder = &lock["holders"][0];
    assert_eq!(holder["token"], "a");
    assert_eq!(
        holder["fence"],
        server.known_lock("k").holder().int("fence")
    );
    assert_eq!(holder["session"], false);
    assert_eq!(holder["client"]["name"], "unused");
    let waiter = &lock["queue"][0];
    assert_eq!(
        (&waiter["token"], &waiter["mode"], &waiter["kind"]),
        (&"b".into(), &"shared".into(), &"blocked".into())
    );
    assert!(
        waiter["timeout_ms"].as_u64().is_some_and(|ms| ms > 50_000),
        "{waiter}"
    );
    let empty = done(&server, &["ls", "--json", "none*"]).ok();
    assert_eq!(json(&empty), serde_json::json!([]));
}

#[test]
fn ls_shows_ten_thousand_locks() {
    let server = Server::start();
    take_many(&mut server.client(), "key:", 10_000);
    let shown = done(&server, &["ls"]).ok();
    assert_eq!(shown.lines().count(), 10_001);
    let locks = json(&done(&server, &["ls", "--json"]).ok());
    assert_eq!(locks.as_array().map(Vec::len), Some(10_000));
    // `head` closes the pipe before the end.
    let cut = outcome(&mut shell(
        server.port(),
        "{ redis-lock ls; echo code $? >&2; } | head -n 1",
    ));
    assert_eq!(
        (cut.out.lines().count(), cut.err.as_str()),
        (1, "code 0\n"),
        "{cut:?}"
    );
}

#[test]
fn ls_asks_all_nodes_of_a_cluster() {
    let nodes = cluster(3);
    let mut here = 0;
    for number in 0..30 {
        let command = format!("LOCK.ACQUIRE key:{number} t {LONG}");
        here += nodes
            .iter()
            .filter(|node| node.call(&command).is_ok())
            .count();
    }
    assert_eq!(here, 30);
    for node in &nodes {
        assert_eq!(done(node, &["ls"]).ok().lines().count(), 31);
        // `info` also finds a key on another node.
        for key in ["key:0", "key:1", "key:2", "key:3"] {
            assert!(done(node, &["info", key]).ok().contains("held by t"));
        }
    }
    for key in ["key:0", "key:1", "key:2", "key:3"] {
        assert_eq!(done(&nodes[0], &["break", "--yes", key]).code(), 0);
        assert_eq!(done(&nodes[1], &["info", key]).code(), 1);
        assert_eq!(done(&nodes[2], &["run", key, "--", "true"]).code(), 0);
    }
}

#[test]
fn info_and_break_follow_a_key_of_a_slot_that_migrates() {
    let nodes = cluster(3);
    let slot = nodes[0].call("CLUSTER KEYSLOT key").int();
    let from = nodes
        .iter()
        .position(|node| node.call("EXISTS key").is_ok());
    let from = from.expect("a node that serves the key");
    let (source, target) = (&nodes[from], &nodes[(from + 1) % 3]);
    let (source_id, target_id) = [source, target]
        .map(|it| it.call("CLUSTER MYID").text())
        .into();
    target
        .call(format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"))
        .okay();
    source
        .call(format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"))
        .okay();
    // The source has no such key, so it sends clients to the target, for this command only.
    let held = target.call_batch(&["ASKING", &format!("LOCK.ACQUIRE key t {LONG}")]);
    assert!(held[1].is_ok(), "{held:?}");
    for node in &nodes {
        assert!(done(node, &["info", "key"]).ok().contains("held by t"));
    }
    assert_eq!(done(source, &["break", "--yes", "key"]).code(), 0);
    assert_eq!(done(source, &["info", "key"]).code(), 1);
}

// --- untrusted output -----------------------------------------------------------------------

#[test]
fn nothing_of_somebody_elses_reaches_the_terminal_as_it_is() {
    let server = Server::start();
    server.call(&[&b"LOCK.ACQUIRE"[..], EVIL, EVIL]).grant();
    let shown = done(&server, &["ls"]).ok();
    assert!(shown.contains(EVIL_SHOWN) && is_harmless(&shown), "{shown}");
    let text = done(&server, &["ls", "--json"]).ok();
    assert!(is_harmless(&text), "{text}");
    let hex: String = EVIL.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(json(&text)[0]["key"]["hex"], hex.as_str());
    // A command line can't name a key with a zero byte, so `info` and `break` use another key.
    server
        .call(&[&b"LOCK.ACQUIRE"[..], b"\x1b[2J", EVIL])
        .grant();
    for words in [&["info", "\u{1b}[2J"][..], &["break", "--yes", "\u{1b}[2J"]] {
        let shown = done(&server, words).ok();
        assert!(
            shown.contains(r#""\x1b[2J""#) && shown.contains(EVIL_SHOWN) && is_harmless(&shown),
            "{shown}"
        );
    }
    // The server's replies are not trusted either.
    let refused = done(
        &server,
        &["info", "k", "--user", "x\u{1b}[2J", "-a", "wrong"],
    );
    assert!(
        refused.code() == 69 && is_harmless(&refused.err),
        "{refused:?}"
    );
}

#[test]
fn info_shows_holder_and_queue() {
    let server = server_with_holder();
    let _first = server.waiter("LOCK.WAIT k b BLOCK 600000 SHARED");
    let _second = server.waiter("LOCK.MWAIT 2 k other c KEEP 1000");
    server.call("LOCK.QUEUE k d KEEP 600000").int();
    let shown = done(&server, &["info", "k"]).ok();
    let fence = server.known_lock("k").holder().int("fence");
    for words in [
        "k  exclusive\n",
        "held by a at 127.0.0.1:",
        &format!(", fence {fence}, lease 9m5"),
        "1. b at 127.0.0.1:",
        " waits shared for ",
        ", 9m5",
        "for all of k other",
        "3. d waits exclusive for ",
        ", place, kept for 9m5",
    ] {
        assert!(shown.contains(words), "{words:?} isn't in:\n{shown}");
    }
    let short = done(&server, &["info", "k", "--waiters", "1"]).ok();
    assert!(short.contains("and 2 more"), "{short}");
    let lock = json(&done(&server, &["info", "k", "--json"]).ok());
    assert_eq!(
        (&lock["waiters"], &lock["holders"][0]["token"]),
        (&3.into(), &"a".into())
    );
}

#[test]
fn info_of_a_free_lock_is_1_and_of_no_lock_an_error() {
    let server = Server::start();
    let free = done(&server, &["info", "k"]);
    assert_eq!((free.code(), free.out.as_str()), (1, "k is free\n"));
    let free = done(&server, &["info", "k", "--json"]);
    assert_eq!((free.code(), free.out.as_str()), (1, "null\n"));
    server.call("SET k text").okay();
    let other = done(&server, &["info", "k"]);
    assert_eq!(other.code(), 69);
    assert!(other.err.contains("WRONGTYPE"), "{other:?}");
}

// --- break ----------------------------------------------------------------------------------

#[test]
fn break_hands_the_lock_to_the_next() {
    let server = server_with_holder();
    let mut waiter = server.waiter("LOCK.WAIT k b");
    let broken = done(&server, &["break", "--yes", "k"]);
    assert_eq!(broken.code(), 0);
    assert!(
        broken.out.contains("held by a") && broken.out.ends_with("1 broken\n"),
        "{broken:?}"
    );
    waiter.recv().grant();
    server.call("LOCK.ACQUIRE s a SHARED").grant();
    server.call("LOCK.ACQUIRE s b SHARED").grant();
    assert!(done(&server, &["break", "-y", "s"])
        .ok()
        .ends_with("2 broken\n"));
    for _ in 0..2 {
        server.call("LOCK.ACQUIRE r a REENTRANT").grant();
    }
    done(&server, &["break", "-y", "r"]).ok();
    assert_eq!(server.lock_info("r"), None, "with all holds");
    let free = done(&server, &["break", "--yes", "s"]);
    assert_eq!((free.code(), free.out.as_str()), (1, "nobody holds s\n"));
}

#[test]
fn break_asks_on_a_terminal() {
    let server = server_with_holder();
    for (answer, code, is_held) in [("n\n", 1, true), ("\n", 1, true), ("y\n", 0, false)] {
        let mut terminal = Terminal::start(words(server.port(), PROGRAM, &["break", "k"]), 80, 24);
        terminal.until_shown("held by a");
        terminal.until_shown("[y/N]");
        assert_eq!(server.known_lock("k").holder_tokens(), ["a"]);
        terminal.type_in(answer);
        assert_eq!(terminal.ended().exit_code(), code, "{answer:?}");
        assert_eq!(server.lock_info("k").is_some(), is_held, "{answer:?}");
    }
}

#[test]
fn break_does_not_hit_who_got_the_lock_since_it_was_shown() {
    let server = server_with_holder();
    let mut terminal = Terminal::start(words(server.port(), PROGRAM, &["break", "k"]), 80, 24);
    terminal.until_shown("[y/N]");
    server.call("LOCK.RELEASE k a").int();
    server.call("LOCK.ACQUIRE k b PX 600000").grant();
    terminal.type_in("y\n");
    assert_eq!(terminal.ended().exit_code(), 1);
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
}

#[test]
fn break_does_nothing_unasked_and_nothing_without_the_right() {
    let server = server_with_holder();
    let unasked = done(&server, &["break", "k"]);
    assert_eq!(unasked.code(), 69);
    assert!(unasked.err.contains("--yes"), "{unasked:?}");
    server
        .call("ACL SETUSER reader on >secret ~none %R~* +@all")
        .okay();
    let mut command = redis_lock(server.port(), &["break", "--yes", "k", "--user", "reader"]);
    let refused = outcome(command.env("REDISCLI_AUTH", "secret"));
    assert_eq!(refused.code(), 69);
    assert!(refused.err.contains("may not write"), "{refused:?}");
    assert_eq!(server.known_lock("k").holder_tokens(), ["a"]);
}

// --- why ------------------------------------------------------------------------------------

#[test]
fn why_shows_holder_queue_and_what_was_waited_for() {
    let server = server_with_holder();
    server.call("LOCK.ACQUIRE k b").nil();
    server.call("LOCK.WAIT k b BLOCK 30").nil();
    let _waiter = server.waiter("LOCK.WAIT k c");
    server.call("LOCK.QUEUE k d KEEP 600000").int();
    let shown = done(&server, &["why", "k", "--waiters", "1"]).ok();
    for words in [
        "k  exclusive\n",
        "held by a at 127.0.0.1:",
        "1. c at 127.0.0.1:",
        "and 1 more\n",
        "in the last two minutes: 3 waits began, 1 refused\n",
        "  waited ",
        ", the longest ",
    ] {
        assert!(shown.contains(words), "{words:?} isn't in:\n{shown}");
    }
    assert!(!shown.contains("holders while"), "{shown}");
    server.call("LOCK.RELEASE k a").int();
    let shown = done(&server, &["why", "k"]).ok();
    assert!(
        shown.contains("  1 holders while others waited, for "),
        "{shown}"
    );
    let told = json(&done(&server, &["why", "k", "--json"]).ok());
    assert_eq!(told["key"], "k");
    assert_eq!(told["lock"]["holders"][0]["token"], "c");
    let hot = &told["contention"];
    for (field, number) in [("waiters", 1), ("waits", 3), ("refused", 1), ("grants", 1)] {
        assert_eq!(hot[field], number, "{field}: {hot}");
    }
    let [waited, longest, held] =
        ["waited_ms", "longest_wait_ms", "held_ms"].map(|field| hot[field].as_u64());
    assert!(
        waited >= longest && longest >= Some(30) && held >= Some(30),
        "{hot}"
    );
}

#[test]
fn why_of_a_free_lock_tells_of_the_last_minutes() {
    let server = server_with_holder();
    let free = done(&server, &["why", "free"]);
    let text = "free is free\nin the last two minutes: no contention\n";
    assert_eq!((free.code(), free.out.as_str()), (1, text));
    let free = json(&done(&server, &["why", "free", "--json"]).out);
    assert!(
        free["lock"].is_null() && free["contention"].is_null(),
        "{free}"
    );
    server.call("LOCK.ACQUIRE k b").nil();
    server.call("DEL k").int();
    let text = "k is free\nin the last two minutes: 0 waits began, 1 refused\n";
    assert_eq!(done(&server, &["why", "k"]).ok(), text);
    // A key of the same name in another database is another lock.
    assert_eq!(done(&server, &["why", "k", "-n", "1"]).code(), 1);
}

#[test]
fn why_does_without_the_right_to_lock_hot() {
    let server = server_with_holder();
    server.call("LOCK.ACQUIRE k b").nil();
    server
        .call("ACL SETUSER reader on >secret ~* +@all -lock.hot")
        .okay();
    let words = ["why", "k", "--user", "reader", "-a", "secret"];
    let shown = done(&server, &words).ok();
    assert!(shown.contains("held by a"), "{shown}");
    assert!(
        shown.contains("unknown, because the server has no LOCK.HOT for this user"),
        "{shown}"
    );
}

#[test]
fn why_asks_all_nodes_of_a_cluster() {
    let nodes = cluster(3);
    let takes = |key: &&str| {
        let command = format!("LOCK.ACQUIRE {key} t {LONG}");
        let owner = nodes.iter().find(|node| node.call(&command).is_ok());
        owner
            .expect("a node")
            .call(format!("LOCK.ACQUIRE {key} other"))
            .nil();
    };
    ["a", "b", "c"].iter().for_each(takes);
    for (node, key) in nodes.iter().zip(["a", "b", "c"]) {
        let shown = done(node, &["why", key]).ok();
        assert!(shown.contains("0 waits began, 1 refused"), "{shown}");
    }
}

// --- the server -----------------------------------------------------------------------------

#[test]
fn the_server_is_named_as_redis_cli_is_told() {
    let server = Server::builder().config("unixsocket lock.sock").start();
    server.call("CONFIG SET requirepass secret").okay();
    let port = server.port().to_string();
    let socket = server.dir().join("lock.sock").display().to_string();
    let url = format!("redis://:secret@127.0.0.1:{port}/3");
    for words in [
        &["-h", "127.0.0.1", "-p", &port, "-a", "secret", "ls"][..],
        &["ls", "-p", &port, "--pass", "secret", "--user", "default"],
        &["ls", "-s", &socket, "-a", "secret"],
        &["ls", "-u", &url],
    ] {
        let listed = outcome(redis_lock(1, words).env_remove("REDIS_LOCK_URL"));
        assert_eq!(listed.code(), 0, "{words:?}: {listed:?}");
    }
    // The command line overrides the environment.
    for words in [
        &["ls", "-u", &url][..],
        &["ls", "-p", &port, "-a", "secret"],
    ] {
        let listed = outcome(redis_lock(1, words).env("REDISCLI_AUTH", "another"));
        assert_eq!(listed.code(), 0, "{words:?}: {listed:?}");
    }
    let by_environment = outcome(redis_lock(server.port(), &["ls"]).env("REDISCLI_AUTH", "secret"));
    assert_eq!(by_environment.code(), 0, "{by_environment:?}");
    let without = outcome(&mut redis_lock(server.port(), &["ls"]));
    assert!(
        without.code() == 69 && without.err.contains("NOAUTH"),
        "{without:?}"
    );
    // The database comes from the URL or from `-n`.
    let in_three = ["run", "k", "-u", &url, "--", "redis-lock", "ls"];
    let listed = outcome(redis_lock(1, &in_three).env("REDIS_LOCK_URL", &url)).ok();
    assert_eq!(listed.lines().count(), 2, "{listed}");
    let elsewhere = ["run", "k", "-u", &url, "--", "redis-lock", "ls", "-n", "4"];
    let listed = outcome(redis_lock(1, &elsewhere).env("REDIS_LOCK_URL", &url)).ok();
    assert_eq!(listed.lines().count(), 1, "{listed}");
}

#[test]
fn completions_pages_and_help_are_for_every_command() {
    for name in ["bash", "zsh", "fish"] {
        let text = outcome(&mut redis_lock(1, &["completions", name])).ok();
        for word in ["run", "ls", "info", "why", "top", "break", "on-lost"] {
            assert!(text.contains(word), "{name} has no {word}");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path in UTF-8");
    outcome(&mut redis_lock(1, &["man", path])).ok();
    for word in ["run", "ls", "info", "why", "top", "break"] {
        let page = folder.path().join(format!("redis-lock-{word}.1"));
        let page = std::fs::read_to_string(page).expect(word);
        assert!(page.contains(".SH OPTIONS"), "{page}");
        let help = outcome(&mut redis_lock(1, &[word, "--help"])).ok();
        assert!(help.contains("--cacert"), "{help}");
    }
    for words in [&["run"][..], &["-t", "0", "ls"]] {
        assert_eq!(outcome(&mut redis_lock(1, words)).code(), 2, "{words:?}");
    }
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let unread = outcome(redis_lock(1, &["completions", "bash"]).stdout(writer));
    assert_eq!((unread.code(), unread.err.as_str()), (0, ""));
}
