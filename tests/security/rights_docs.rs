//! The statements of docs/operate/security.md about ACLs, from the side of an attacker.
//! tests/security/security_docs.rs plays its recipes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use support::{server_with_holder, Client, Expect, Flavour, LockInfo, Server, LONG};

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operate/security.md");
    fs::read_to_string(path).expect("the document")
}

/// Returns the rows of the table with this head: first cell and commands.
#[track_caller]
fn table(head: &str) -> BTreeMap<String, BTreeSet<String>> {
    let text = document();
    let (_, rows) = text.split_once(&format!("\n| {head} |")).expect(head);
    let rows = rows
        .lines()
        .skip(2)
        .map_while(|line| line.strip_prefix("| "));
    rows.map(|row| {
        let mut words = row
            .split(['`', ' ', ',', '|'])
            .filter(|word| !word.is_empty());
        let about = words.next().expect("a first cell").to_owned();
        let commands = words.filter(|word| word.starts_with("LOCK."));
        (about, commands.map(str::to_owned).collect())
    })
    .collect()
}

/// Returns the module's commands for clients.
fn commands(server: &Server) -> BTreeSet<String> {
    let names = server.call("COMMAND LIST FILTERBY MODULE lock").list();
    let names = names.into_iter().map(|name| Ok(name).text().to_uppercase());
    names.filter(|name| name != "LOCK.APPLY").collect()
}

/// Returns the command with arguments that it accepts.
fn example(command: &str) -> String {
    match command {
        "LOCK.HELP" | "LOCK.HOT" => command.to_owned(),
        "LOCK.INFO" => format!("{command} k"),
        _ if command.starts_with("LOCK.M") => format!("{command} 1 k t"),
        _ => format!("{command} k t"),
    }
}

/// Returns the commands that a user with these rights may run on `k`.
#[track_caller]
fn allowed(server: &Server, rights: &str) -> BTreeSet<String> {
    server
        .call(format!("ACL SETUSER tried reset on {rights}"))
        .okay();
    let mut allowed = commands(server);
    allowed.retain(|command| {
        let said = server.call(format!("ACL DRYRUN tried {}", example(command)));
        said.text() == "OK"
    });
    allowed
}

/// Returns true if this server lets a module put its commands into `category`: since 7.2, or since
/// 7.4 for a category of its own.
fn lets_modules_use(server: &Server, category: &str) -> bool {
    let since = if category == "@lock" {
        (7, 4, 0)
    } else {
        (7, 2, 0)
    };
    server.flavour() == Flavour::Valkey || server.version() >= since
}

#[track_caller]
fn user(server: &Server, rights: &str) -> Client {
    server
        .call(format!("ACL SETUSER somebody reset on nopass {rights}"))
        .okay();
    let mut client = server.client();
    client.call("AUTH somebody any").okay();
    client
}

#[test]
fn key_patterns_allow_what_the_table_says() {
    let server = Server::start();
    let needed = table("key pattern");
    let all: BTreeSet<String> = needed.values().flatten().cloned().collect();
    assert_eq!(all, commands(&server));
    let free = &needed["none"];
    let reading: BTreeSet<String> = free.union(&needed["%R~"]).cloned().collect();
    assert_eq!(&allowed(&server, "+@all %W~k"), free);
    assert_eq!(allowed(&server, "+@all %R~k"), reading);
    assert_eq!(allowed(&server, "+@all %RW~k"), all);
    assert_eq!(allowed(&server, "+@all ~k"), all);
    assert_eq!(&allowed(&server, "+@all ~other"), free);
}

#[test]
fn categories_have_the_commands_that_the_table_says() {
    let server = Server::start();
    let documented = table("category");
    assert_eq!(documented.len(), 6, "{documented:?}");
    for (category, members) in &documented {
        if category == "@lock" && !lets_modules_use(&server, category) {
            let refused = server.call("ACL SETUSER tried +@lock").error();
            assert!(refused.contains("Unknown command or category"), "{refused}");
            continue;
        }
        let given = allowed(&server, &format!("+{category} ~k"));
        let taken = allowed(&server, &format!("+@all -{category} ~k"));
        let rest: BTreeSet<String> = commands(&server).difference(members).cloned().collect();
        if lets_modules_use(&server, category) {
            assert_eq!(&given, members, "{category}");
            assert_eq!(taken, rest, "-{category}");
        } else {
            assert!(given.is_empty(), "{category}: {given:?}");
            assert_eq!(taken, commands(&server), "-{category}");
        }
    }
}

#[test]
fn commands_can_be_named_with_or_without_categories() {
    let server = Server::start();
    let one = BTreeSet::from(["LOCK.ACQUIRE".to_owned()]);
    assert_eq!(allowed(&server, "+lock.acquire ~k"), one);
    let rest: BTreeSet<String> = commands(&server).difference(&one).cloned().collect();
    assert_eq!(allowed(&server, "+@all -lock.acquire ~k"), rest);
    let mut reader = user(&server, "+@all %R~*");
    let refused = reader.call("LOCK.ACQUIRE k t").error();
    assert!(refused.starts_with("NOPERM"), "{refused}");
}

/// Opens a connection with the rights of the document's example, on any key.
fn worker(server: &Server) -> Client {
    let text = document();
    let (_, rights) = text.split_once("%RW~orders:* ").expect("an example");
    let rights = rights.lines().next().expect("rights");
    user(server, &format!("~* {rights}"))
}

#[test]
fn a_worker_cannot_break_the_lock_of_a_token_that_it_does_not_know() {
    let server = server_with_holder();
    let mut worker = worker(&server);
    for attempt in [
        "DEL k",
        "UNLINK k",
        "SET k v",
        "RENAME k other",
        "EXPIRE k 0",
        "MOVE k 1",
        "FLUSHALL",
        "FLUSHDB",
        "SWAPDB 0 1",
        "LOCK.INFO k",
        "DUMP k",
        "LOCK.APPLY k DROP a",
    ] {
        let refused = worker.call(attempt).error();
        assert!(refused.starts_with("NOPERM"), "{attempt}: {refused}");
    }
    for attempt in ["LOCK.RELEASE k mine", "LOCK.EXTEND k mine PX 1"] {
        assert_eq!(worker.call(attempt).int(), 0, "{attempt}");
    }
    worker.call("LOCK.ACQUIRE k mine").nil();
    assert_eq!(server.known_lock("k").holders.len(), 1);
}

#[test]
fn a_script_has_the_rights_of_its_caller() {
    let server = server_with_holder();
    let mut client = user(&server, "~* +eval +lock.acquire");
    for attempt in ["'DEL','k'", "'LOCK.RELEASE','k','a'", "'LOCK.INFO','k'"] {
        let script = format!("return redis.call({attempt})");
        client.call(&["EVAL", &script, "1", "k"]).error();
    }
    assert_eq!(server.call("EXISTS k").int(), 1);
}

#[test]
fn whoever_learns_the_token_can_release() {
    let server = Server::start();
    server
        .call(format!("LOCK.ACQUIRE k unheard-of {LONG}"))
        .grant();
    let mut client = user(&server, "~* +lock.info +lock.release +dump");
    let dump = client.call("DUMP k").bytes();
    let token = b"unheard-of";
    assert!(dump.windows(token.len()).any(|part| part == token));
    let info = LockInfo::of(client.call("LOCK.INFO k").value());
    let token = info.expect("a lock").holder().text("token");
    assert_eq!(client.call(format!("LOCK.RELEASE k {token}")).int(), 1);
}

#[test]
fn key_patterns_do_not_count_for_commands_on_whole_databases() {
    for attempt in ["FLUSHDB", "FLUSHALL", "SWAPDB 0 1"] {
        let server = server_with_holder();
        let name = attempt.split(' ').next().expect("a name");
        user(&server, &format!("~nothing +{name}"))
            .call(attempt)
            .okay();
        assert_eq!(server.call("EXISTS k").int(), 0, "{attempt}");
    }
}
