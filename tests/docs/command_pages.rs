//! The replies and errors on the commands' pages, checked against the commands' replies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use support::{Client, Expect, Server, LONG};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

fn page(command: &str) -> String {
    let file = command.trim_start_matches("LOCK.").to_lowercase();
    let path = docs().join("commands").join(format!("{file}.md"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text under a heading, up to the next heading.
#[track_caller]
fn section(text: &str, heading: &str) -> String {
    let (_, rest) = text
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("no {heading}"));
    rest.split("\n#").next().expect("its text").to_owned()
}

/// Returns the cells of the first table in a text, without the table's head.
fn table(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|'));
    let cells = |row: &str| -> Vec<String> {
        let row = row.trim_start_matches("| ").trim_end_matches('|');
        row.split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    // Skips the head and the line below it.
    rows.skip(2).map(cells).collect()
}

/// Returns the first code span in a cell.
fn code(cell: &str) -> &str {
    let mut parts = cell.split('`');
    parts.nth(1).unwrap_or_else(|| panic!("no code in {cell}"))
}

fn commands() -> BTreeSet<String> {
    let entries = fs::read_dir(docs().join("commands")).expect("the folder");
    let names = entries.map(|entry| entry.expect("a page").file_name());
    let names = names.map(|name| name.to_string_lossy().to_uppercase());
    names
        .map(|name| format!("LOCK.{}", name.trim_end_matches(".MD")))
        .collect()
}

// --- replies --------------------------------------------------------------------------------

/// The rows of the reply tables: the command, the row's first cell, and arguments that cause the
/// reply. Token `t` holds `own` and `own2` and has a place at `queued`. Token `other` holds `held`,
/// `held2` and `queued`. All other keys are free.
const REPLIES: [(&str, &str, &str); 27] = [
    ("LOCK.ACQUIRE", "granted", "free t"),
    ("LOCK.ACQUIRE", "not to be had now", "held t"),
    ("LOCK.WAIT", "granted", "free t BLOCK 5000"),
    ("LOCK.WAIT", "the time is over", "held t BLOCK 1"),
    ("LOCK.QUEUE", "the token holds the lock", "own t"),
    ("LOCK.QUEUE", "it waits", "held t"),
    ("LOCK.CANCEL", "a wait or a place is given up", "queued t"),
    ("LOCK.CANCEL", "the token has none there", "own t"),
    ("LOCK.EXTEND", "set", "own t"),
    ("LOCK.EXTEND", "the token doesn't hold the lock", "held t"),
    ("LOCK.RELEASE", "a hold is given up", "own t"),
    ("LOCK.RELEASE", "the token doesn't hold the lock", "held t"),
    ("LOCK.CHECK", "the token holds the lock", "own t"),
    ("LOCK.CHECK", "it doesn't", "held t"),
    ("LOCK.INFO", "somebody holds it or waits", "held"),
    ("LOCK.INFO", "nobody does", "free"),
    ("LOCK.MACQUIRE", "granted", "2 own own2 t"),
    (
        "LOCK.MACQUIRE",
        "not all of them are to be had now",
        "2 own held t",
    ),
    ("LOCK.MWAIT", "granted", "2 own own2 t"),
    ("LOCK.MWAIT", "the time is over", "2 own held t BLOCK 1"),
    ("LOCK.MQUEUE", "the token holds all of them", "2 own own2 t"),
    ("LOCK.MQUEUE", "it waits", "2 own held t"),
    (
        "LOCK.MEXTEND",
        "the token holds all of them",
        "2 own own2 t",
    ),
    ("LOCK.MEXTEND", "it doesn't", "2 own held t"),
    ("LOCK.MRELEASE", "holds are given up", "3 own own2 held t"),
    (
        "LOCK.MRELEASE",
        "the token holds none of them",
        "2 held held2 t",
    ),
    ("LOCK.HELP", "always", ""),
];

fn prepare(server: &Server) {
    // FLUSHALL would grant a flushed key to a waiter with a place.
    for key in ["held", "queued"] {
        server.call(format!("LOCK.CANCEL {key} t")).int();
    }
    server.call("FLUSHALL").okay();
    for key in ["held", "held2", "queued"] {
        server
            .call(format!("LOCK.ACQUIRE {key} other {LONG}"))
            .grant();
    }
    for key in ["own", "own2"] {
        server.call(format!("LOCK.ACQUIRE {key} t {LONG}")).grant();
    }
    server.call("LOCK.QUEUE queued t").int();
}

#[test]
fn replies_begin_as_the_pages_say() {
    let server = Server::start();
    let mut resp2 = server.client();
    let mut resp3 = server.client().into_resp3();
    let mut shown = BTreeSet::new();
    for (command, row, words) in REPLIES {
        let rows = table(&section(&page(command), "## Reply"));
        let cells = rows.into_iter().find(|cells| cells[0] == row);
        let cells = cells.unwrap_or_else(|| panic!("{command}: no row {row}"));
        let clients: [(&str, &mut Client); 2] = [(&cells[1], &mut resp2), (&cells[2], &mut resp3)];
        for (cell, client) in clients {
            prepare(&server);
            let raw = client.call_raw(format!("{command} {words}"));
            let first = raw.lines().next().expect("a line");
            // The page omits a number that differs between runs.
            let begins = match code(cell) {
                kind @ (":" | "*") => {
                    first.starts_with(kind)
                        && first[1..].parse::<u64>().is_ok_and(|number| number > 0)
                }
                whole => first == whole,
            };
            assert!(begins, "{command}, {row}: {first:?}, not {cell}");
        }
        shown.insert((command.to_owned(), row.to_owned()));
    }
    for command in commands() {
        for cells in table(&section(&page(&command), "## Reply")) {
            let row = (command.clone(), cells[0].clone());
            assert!(shown.contains(&row), "nothing shows {row:?}");
        }
    }
}

// --- errors ---------------------------------------------------------------------------------

/// Returns the errors of a table, without their quotes and without a trailing ` ...`.
fn texts(rows: Vec<Vec<String>>) -> BTreeSet<String> {
    let texts = rows.into_iter().map(|cells| code(&cells[0]).to_owned());
    texts
        .map(|text| text.trim_end_matches(" ...").to_owned())
        .collect()
}

/// Returns argument lines of which some make a command fail. `K` stands for the command's keys, `T`
/// for its token. None of the lines makes a command wait.
fn provocations() -> Vec<String> {
    let long = "m".repeat(1025);
    let options = [
        "PX 0",
        "EX 0",
        "BLOCK x",
        "KEEP 0",
        "SESSION KEEP 0",
        "SHARED LIMIT 0",
        "SHARED LIMIT 1 PERMITS 2",
        "HOLDS x",
        "WAITERS x",
        "SHARED LIMIT 3 PERMITS 2",
        "NOSUCH",
    ];
    let options = options.iter().map(|option| format!("K T {option}"));
    let others = [
        String::new(),
        format!("K T NOTIFY c {long}"),
        format!("K T NOTIFY {long} m"),
        "free *".to_owned(),
        "1 free *".to_owned(),
        "string".to_owned(),
        "string T".to_owned(),
        "1 string T".to_owned(),
        "0 k T".to_owned(),
        "2 k k T".to_owned(),
        "K WAITERS x".to_owned(),
        "too many words to be right".to_owned(),
    ];
    options.chain(others).collect()
}

fn answer(server: &Server, words: &[String]) -> Option<String> {
    let mut client = server.client();
    client.call(words).err()
}

fn words(command: &str, provocation: &str, token: &str) -> Vec<String> {
    let several = command.starts_with("LOCK.M");
    let keys: &[&str] = if several {
        &["1", "shared"]
    } else {
        &["shared"]
    };
    let line = provocation.split_whitespace();
    let words = line.flat_map(|word| match word {
        "K" => keys.to_vec(),
        "T" => vec![token],
        other => vec![other],
    });
    let words = std::iter::once(command).chain(words);
    words.map(str::to_owned).collect()
}

/// Returns the errors that arguments and the values of keys make a command reply.
fn provoked(server: &Server, command: &str) -> BTreeSet<String> {
    let mut provoked = BTreeSet::new();
    for provocation in provocations() {
        for token in ["t", ""] {
            server.call("FLUSHALL").okay();
            server.call("SET string 1").okay();
            server
                .call(format!("LOCK.ACQUIRE shared t SHARED LIMIT 3 {LONG}"))
                .grant();
            provoked.extend(answer(server, &words(command, &provocation, token)));
        }
    }
    provoked
}

/// The errors that need a certain server state, and the arity error, which has a check of its own.
const OF_A_STATE: [&str; 7] = [
    "ERR channel must be in the slot of the key",
    "NOPERM No permissions to access a channel",
    "DEADLOCK another holder waits to upgrade this lock",
    "DEADLOCK connections would wait for each other's SESSION grants",
    "MAXWAITERS as many clients wait as lock.max-waiters allows",
    "MAXTICKETS as many wait without a connection as lock.max-tickets allows",
    "ERR wrong number of arguments for",
];

#[test]
fn each_page_has_the_errors_that_its_command_answers() {
    let server = Server::start();
    for command in commands() {
        let told = texts(table(&section(&page(&command), "## Errors")));
        let mut told: BTreeSet<String> = told;
        told.retain(|text| !OF_A_STATE.contains(&text.as_str()));
        let mut provoked = provoked(&server, &command);
        let arity = provoked.len();
        provoked.retain(|text| !text.starts_with("ERR wrong number of arguments for"));
        assert!(
            provoked.len() < arity,
            "{command} takes any number of words"
        );
        assert_eq!(told, provoked, "{command}");
    }
}

/// The commands that wait for `held` or take a place there, with their arguments.
const WAITS: [(&str, &str); 4] = [
    ("LOCK.WAIT", "held t"),
    ("LOCK.MWAIT", "2 held other t"),
    ("LOCK.QUEUE", "held t"),
    ("LOCK.MQUEUE", "2 held other t"),
];

fn has_error(command: &str, text: &str) -> bool {
    texts(table(&section(&page(command), "## Errors"))).contains(text)
}

#[test]
fn pages_have_the_errors_of_full_queues() {
    let server = Server::start();
    server.call("CONFIG SET lock.max-waiters 1").okay();
    server.call("CONFIG SET lock.max-tickets 1").okay();
    server.call(format!("LOCK.ACQUIRE held a {LONG}")).grant();
    let _waiter = server.waiter("LOCK.WAIT held b");
    server.call("LOCK.QUEUE held c KEEP 600000").int();
    for (command, words) in WAITS {
        let error = server.call(format!("{command} {words}")).error();
        assert!(has_error(command, &error), "{command}: {error}");
    }
}

#[test]
fn pages_have_the_errors_of_deadlocks() {
    let server = Server::start();
    for token in ["a", "t"] {
        server
            .call(format!("LOCK.ACQUIRE held {token} SHARED {LONG}"))
            .grant();
    }
    let _upgrade = server.waiter("LOCK.WAIT held a");
    for (command, words) in WAITS {
        let error = server.call(format!("{command} {words}")).error();
        assert!(has_error(command, &error), "{command}: {error}");
    }
    server.call("FLUSHALL").okay();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE held a SESSION").grant();
    for (command, words) in &WAITS[..2] {
        let error = client.call(format!("{command} {words}")).error();
        assert!(has_error(command, &error), "{command}: {error}");
    }
}

#[test]
fn pages_have_the_errors_of_channels() {
    let server = support::cluster_node();
    server
        .call("ACL SETUSER mute on nopass ~* +@all resetchannels")
        .okay();
    server
        .call(format!("LOCK.ACQUIRE {{held}} a {LONG}"))
        .grant();
    let mut mute = server.client();
    mute.call("AUTH mute any").okay();
    for (command, words) in [("LOCK.QUEUE", "{held} t"), ("LOCK.MQUEUE", "1 {held} t")] {
        let elsewhere = server.call(format!("{command} {words} NOTIFY elsewhere m"));
        let forbidden = mute.call(format!("{command} {words} NOTIFY {{held}} m"));
        for error in [elsewhere.error(), forbidden.error()] {
            assert!(has_error(command, &error), "{command}: {error}");
        }
    }
}

/// Checks that the pages have exactly the errors of the list in docs/reference/errors.md, which gives
/// their order.
#[test]
fn the_errors_of_the_pages_are_in_the_list_of_all() {
    let index = fs::read_to_string(docs().join("reference/errors.md")).expect("the list");
    let mut all = texts(table(&section(&index, "## Errors of lock commands")));
    all.insert("ERR invalid holds, must be 0 to 4294967295".to_owned());
    let mut named = BTreeSet::new();
    for command in commands() {
        named.extend(texts(table(&section(&page(&command), "## Errors"))));
    }
    assert_eq!(named, all);
}

// --- examples -------------------------------------------------------------------------------

/// The output of the examples is tested in `docs.rs`, with the examples of all documents.
#[test]
fn each_page_has_an_example_of_its_command() {
    let without: BTreeMap<String, usize> = commands()
        .into_iter()
        .map(|command| {
            let examples = section(&page(&command), "## Examples");
            let typed = examples.matches(&format!("> {command}")).count();
            (command, typed)
        })
        .filter(|(_, typed)| *typed == 0)
        .collect();
    assert!(without.is_empty(), "{without:?}");
}
