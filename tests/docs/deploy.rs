//! docs/operate/deploy.md: its health checks, and the files and images that it names. And the
//! figures of docs/operate/sizing.md, compared with what was measured.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

use support::files::files_below;
use support::{Expect, Server};

use crate::cron_once::client_program;

#[track_caller]
fn text_of(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn page() -> String {
    text_of("docs/operate/deploy.md")
}

/// Returns the rest of the page's only line that contains `before`.
#[track_caller]
fn after<'a>(page: &'a str, before: &str) -> &'a str {
    let mut rests = page.lines().filter_map(|line| line.split_once(before));
    let (_, rest) = rests.next().unwrap_or_else(|| panic!("no {before}"));
    assert!(rests.next().is_none(), "{before} twice");
    rest
}

/// Runs a health check in a shell against a server, with the server's password in the environment.
/// Returns true if it succeeds.
fn succeeds(check: &str, server: &Server, password: &str) -> bool {
    let client = format!("{} -p {}", client_program().display(), server.port());
    let check = check.replace("valkey-cli", &client);
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &check]).env("REDIS_PASSWORD", password);
    shell.output().expect("a shell").status.success()
}

#[test]
fn the_health_check_of_compose_needs_the_module_and_the_password() {
    let page = page();
    let check = after(&page, "test: [\"CMD-SHELL\", \"");
    let check = check.trim_end_matches("\"]").replace("$$", "$");
    let server = Server::start();
    let bare = Server::builder().without_module().start();
    for server in [&server, &bare] {
        server.call("CONFIG SET requirepass secret").okay();
    }
    assert!(succeeds(&check, &server, "secret"), "{check}");
    assert!(!succeeds(&check, &server, "other"), "{check}");
    assert!(!succeeds(&check, &bare, "secret"), "{check}");
}

#[test]
fn the_probe_of_kubernetes_may_send_help_alone() {
    let page = page();
    let (_, probe) = page.split_once("readinessProbe:").expect("a probe");
    let check = after(probe, "command: [")
        .trim_end_matches(']')
        .replace(',', "");
    let rules = after(&page, "user probe ");
    let server = Server::start();
    server.call(format!("ACL SETUSER probe {rules}")).okay();
    assert!(succeeds(&check, &server, ""), "{check}");
    let more = check.replace("LOCK.HELP", "LOCK.INFO k");
    assert!(!succeeds(&more, &server, ""), "{more}");
    let bare = Server::builder().without_module().start();
    assert!(!succeeds(&check, &bare, ""), "{check}");
}

#[test]
fn the_page_names_the_image_and_the_module_of_the_dockerfile() {
    let (page, dockerfile) = (page(), text_of("Dockerfile"));
    let image = after(&dockerfile, "ARG SERVER=");
    assert_eq!(after(&page, "image: valkey/"), &image["valkey/".len()..]);
    let prefix = after(&dockerfile, "RUN make install DESTDIR=/image PREFIX=");
    assert_eq!(
        after(&page, "command: [cp, "),
        format!("{prefix}/lib/redis/modules/libredis_lock.so, /modules/]")
    );
    assert!(page.contains("ports: [\"127.0.0.1:6379:6379\"]"));
}

/// Returns the least and the most bytes that were measured for a command, on any server.
fn measured(command: &str) -> RangeInclusive<u64> {
    let pages = files_below("docs").into_iter();
    let pages = pages.filter(|page| page.starts_with("docs/performance"));
    let text: String = pages.map(|page| text_of(&page)).collect();
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(2);
        (cells.next()? == command).then_some(())?;
        cells.next()?.split(' ').next()?.parse().ok()
    });
    let bytes: Vec<u64> = rows.collect();
    *bytes.iter().min().expect("a row")..=*bytes.iter().max().expect("a row")
}

#[test]
fn sizing_has_the_bytes_that_were_measured() {
    let page = text_of("docs/operate/sizing.md");
    for (what, command) in [
        ("a lock", "LOCK.ACQUIRE key token PX"),
        ("a lock with SESSION", "LOCK.ACQUIRE key token PX SESSION"),
    ] {
        let bytes = measured(command);
        let row = format!("| {what} | {} to {} bytes |", bytes.start(), bytes.end());
        assert!(page.contains(&row), "no {row}");
    }
}

#[test]
fn a_renewed_lock_costs_three_commands_in_a_lease() {
    let page = text_of("docs/operate/sizing.md");
    let (_, table) = page
        .split_once("| LOCK.EXTEND a second |\n")
        .expect("a table");
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let mut seen = 0;
    for row in rows {
        let cells = row
            .split('|')
            .map(|cell| cell.trim().trim_end_matches(" s"));
        let numbers: Vec<u64> = cells.filter_map(|cell| cell.parse().ok()).collect();
        let [locks, lease, renewals] = numbers[..] else {
            panic!("{row}")
        };
        assert_eq!(3 * locks, renewals * lease, "{row}");
        seen += 1;
    }
    assert!(seen >= 3, "only {seen} rows");
}

#[test]
fn a_mark_takes_the_bytes_that_are_documented() {
    const MARKS: [u64; 2] = [14_000, 15_000];
    let page = text_of("docs/operate/sizing.md");
    let (least, most) = after(&page, "| a mark of LEAVE | ")
        .split_once(" to ")
        .expect("a range");
    let most = most.split(' ').next().expect("a number");
    let bytes = |text: &str| text.parse::<u64>().expect("a number of bytes");
    let documented = bytes(least)..=bytes(most);
    let server = Server::start();
    let in_use = || bytes(&server.info("lock", "lock_bytes"));
    let before = in_use();
    let long_key = "k".repeat(1_000);
    let long_token = "t".repeat(256);
    let mut marks = 0;
    for count in MARKS {
        while marks < count {
            let keys: Vec<String> = (marks..marks + 500)
                .map(|number| format!("{long_key}{number}"))
                .collect();
            let keys = keys.join(" ");
            server
                .call(format!(
                    "LOCK.MRELEASE 500 {keys} {long_token} LEAVE 600000"
                ))
                .int();
            marks += 500;
        }
        let each = (in_use() - before) / marks;
        assert!(documented.contains(&each), "{each} bytes");
    }
}

#[test]
fn a_place_takes_the_bytes_that_are_documented() {
    const PLACES: u64 = 20_000;
    let page = text_of("docs/operate/sizing.md");
    let row = after(
        &page,
        "| a place of LOCK.QUEUE, or one that KEEP keeps | about ",
    );
    let documented: u64 = row
        .split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .expect("a number");
    let server = Server::start();
    server.call("LOCK.ACQUIRE k holder EX 600").list();
    let in_use = || {
        let text = server.info("memory", "used_memory");
        text.parse::<u64>().expect("a number of bytes")
    };
    let before = in_use();
    for place in 0..PLACES {
        server
            .call(format!("LOCK.QUEUE k {place:032} EX 600 KEEP 600000"))
            .int();
    }
    let each = (in_use() - before) / PLACES;
    let range = documented - documented / 10..=documented + documented / 10;
    assert!(range.contains(&each), "{each} bytes");
}
