//! The README, DESIGN, the documents and the example configuration, checked against the project.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

use redis::{PushKind, Value};
use support::files::files_below;
use support::headings::headings;
use support::links::targets;
use support::{until, Client, Expect, Reply, Server};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn text_of(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns CONTRIBUTING, README, SECURITY and all documents in docs/, by their paths from the top
/// of the clone.
fn documents() -> BTreeSet<String> {
    let top = ["CONTRIBUTING.md", "DESIGN.md", "README.md", "SECURITY.md"];
    let top = top.map(str::to_owned);
    let below = files_below("docs").into_iter();
    below
        .filter(|file| file.ends_with(".md"))
        .chain(top)
        .collect()
}

/// Returns the pages of the commands.
fn pages() -> Vec<String> {
    let mut pages = documents();
    pages.retain(|document| document.starts_with("docs/commands/"));
    pages.into_iter().collect()
}

/// Returns the contents of the fenced blocks in a language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(opened) = lines.find_map(|line| line.trim_start().strip_prefix("```")) {
        let block: Vec<&str> = lines
            .by_ref()
            .take_while(|line| line.trim_start() != "```")
            .collect();
        if opened == language {
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

// --- the examples ---------------------------------------------------------------------------

/// A typed line of an example, or a reply that arrives later, with the lines shown.
struct Step<'a> {
    client: &'a str,
    typed: Option<&'a str>,
    shown: Vec<&'a str>,
}

fn steps(block: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in block.lines() {
        let of_a_client = |(client, _): &(&str, &str)| client.len() < 2 && *client != "-";
        let typed = line.split_once("> ").filter(of_a_client);
        let arrives = line.strip_suffix(':').filter(|client| client.len() == 1);
        if let Some((client, command)) = typed {
            steps.push(Step {
                client,
                typed: Some(command),
                shown: Vec::new(),
            });
        } else if let Some(client) = arrives {
            steps.push(Step {
                client,
                typed: None,
                shown: Vec::new(),
            });
        } else {
            steps
                .last_mut()
                .expect("an example starts with a command")
                .shown
                .push(line);
        }
    }
    steps
}

/// Returns the lines that redis-cli shows for a reply.
fn shown(reply: &Reply) -> Vec<String> {
    match reply {
        Err(text) => vec![format!("(error) {text}")],
        Ok(Value::Nil) => vec!["(nil)".to_owned()],
        Ok(Value::Int(number)) => vec![format!("(integer) {number}")],
        Ok(Value::Okay) => vec!["OK".to_owned()],
        Ok(Value::SimpleString(text)) => vec![text.clone()],
        Ok(Value::BulkString(bytes)) => vec![format!("{:?}", String::from_utf8_lossy(bytes))],
        Ok(Value::Array(items)) if items.is_empty() => vec!["(empty array)".to_owned()],
        Ok(Value::Array(items)) => shown_items(items),
        Ok(Value::Map(pairs)) => shown_pairs(pairs),
        Ok(Value::Push { kind, data }) => shown_push(kind, data),
        Ok(other) => panic!("an example can't show {other:?}"),
    }
}

/// Returns the lines that redis-cli shows for a push message of RESP3.
fn shown_push(kind: &PushKind, data: &[Value]) -> Vec<String> {
    match (kind, data) {
        (PushKind::Invalidate, [Value::Array(keys)]) => {
            let keys = keys.iter().map(|key| Ok(key.clone()).text());
            let keys: Vec<String> = keys.map(|key| format!("'{key}'")).collect();
            vec![format!("-> invalidate: {}", keys.join(", "))]
        }
        _ => {
            let kind = Value::BulkString(kind.to_string().into_bytes());
            let items: Vec<Value> = iter::once(kind).chain(data.iter().cloned()).collect();
            shown_items(&items)
        }
    }
}

fn shown_items(items: &[Value]) -> Vec<String> {
    let width = items.len().to_string().len();
    let mut lines = Vec::new();
    for (number, item) in items.iter().enumerate() {
        for (line_number, line) in shown(&Ok(item.clone())).iter().enumerate() {
            lines.push(match line_number {
                0 => format!("{:>width$}) {line}", number + 1),
                _ => format!("{:>width$}  {line}", ""),
            });
        }
    }
    lines
}

/// Returns the lines that redis-cli shows for a map of RESP3, without spaces at their ends.
fn shown_pairs(pairs: &[(Value, Value)]) -> Vec<String> {
    let width = pairs.len().to_string().len();
    let mut lines = Vec::new();
    for (number, (name, value)) in pairs.iter().enumerate() {
        let name = shown(&Ok(name.clone())).join(" ");
        let begin = format!("{:>width$}# {name} =>", number + 1);
        match shown(&Ok(value.clone())).as_slice() {
            [only] => lines.push(format!("{begin} {only}")),
            several => {
                lines.push(begin);
                let indented = several.iter().map(|line| format!("{:>width$}  {line}", ""));
                lines.extend(indented);
            }
        }
    }
    lines
}

/// Returns the lines with placeholders for values that differ between runs: random tokens, fences,
/// times, and the ids and addresses of connections.
fn steady<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut name = String::new();
    let mut steady = Vec::new();
    for line in lines {
        let (field, shown) = field_of(line).unwrap_or((&name, line));
        let leaf = shown.rsplit(") ").next().unwrap_or(shown);
        let value = if line.contains("(integer) ") {
            format!("(integer) {leaf}")
        } else {
            leaf.to_owned()
        };
        let stands_for = match leaf.trim().parse::<u64>() {
            Ok(number) if number >= 1000 => Some("(integer) many"),
            Ok(_) if field.ends_with("-ms\"") => Some("(integer) many"),
            Ok(_) if field == "\"client-id\"" => Some("(integer) an-id"),
            Err(_) if field == "\"client-addr\"" => Some("\"an-address\""),
            Err(_) if is_random_token(leaf) => Some("\"a-token\""),
            _ => None,
        };
        steady.push(stands_for.map_or_else(|| line.to_owned(), |it| line.replace(&value, it)));
        name = leaf.to_owned();
    }
    steady
}

/// Returns the field and the value in a line of a map.
fn field_of(line: &str) -> Option<(&str, &str)> {
    let (before, value) = line.split_once(" => ")?;
    let (_, field) = before.rsplit_once("# ")?;
    Some((field, value))
}

fn is_random_token(leaf: &str) -> bool {
    let inner = leaf.trim_matches('"');
    inner.len() == 32
        && inner
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[test]
fn examples_show_what_a_server_answers() {
    let server = Server::start();
    let mut played = 0;
    for document in documents() {
        for block in blocks(&text_of(&document), "redis") {
            // LOCK.HOT would show the keys of the other examples, and LEAVE turn their tokens away.
            let needs_own = block.contains("LOCK.HOT") || block.contains(" LEAVE ");
            let own = needs_own.then(Server::start);
            let server = own.as_ref().unwrap_or(&server);
            play(server, &document, &block);
            server.call("FLUSHALL").okay();
            played += 1;
        }
    }
    assert!(played >= 8, "only {played} examples were found");
}

/// Splits a command into words like redis-cli does: text in double quotes is one word.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in command.split('"').enumerate() {
        match number % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

#[track_caller]
fn play(server: &Server, document: &str, block: &str) {
    let mut clients: BTreeMap<&str, Client> = BTreeMap::new();
    for Step {
        client,
        typed,
        shown: expected,
    } in steps(block)
    {
        if typed == Some("(closes)") {
            close(
                server,
                clients.remove(client).expect("a client that is there"),
            );
            continue;
        }
        if typed == Some("(speaks RESP3)") {
            clients.insert(client, server.client().into_resp3());
            continue;
        }
        let client = clients.entry(client).or_insert_with(|| server.client());
        let reply = match typed {
            Some(command) if expected.is_empty() => {
                server.block(client, command);
                continue;
            }
            Some(command) => client.call(&words(command)),
            None => client.recv(),
        };
        let lines = shown(&reply);
        let lines = steady(lines.iter().map(String::as_str));
        assert_eq!(
            lines,
            steady(expected),
            "{document}: {typed:?}, in\n{block}"
        );
    }
}

/// Closes a connection and waits until the server has seen the close.
fn close(server: &Server, client: Client) {
    let id = client.id();
    client.close();
    until("the server sees the close", || !server.is_connected(id));
}

// --- names ----------------------------------------------------------------------------------

/// Returns the names in `text` that start with `prefix` and continue in capitals.
fn names_with<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let starts = text.match_indices(prefix).map(|(start, _)| &text[start..]);
    starts
        .map(|rest| {
            let tail = &rest[prefix.len()..];
            let end = tail
                .find(|letter: char| !letter.is_ascii_uppercase())
                .unwrap_or(tail.len());
            &rest[..prefix.len() + end]
        })
        .filter(|name| name.len() > prefix.len())
        .collect()
}

fn commands_of(server: &Server) -> BTreeSet<String> {
    let names = server.call("COMMAND LIST FILTERBY MODULE lock").list();
    names
        .into_iter()
        .map(|name| Ok(name).text().to_uppercase())
        .collect()
}

#[test]
fn the_documents_name_the_commands_that_exist() {
    let server = Server::start();
    let known = commands_of(&server);
    for document in documents() {
        let text = text_of(&document);
        let unknown: Vec<&str> = names_with(&text, "LOCK.")
            .into_iter()
            .filter(|name| !known.contains(*name))
            .collect();
        assert!(unknown.is_empty(), "{document} names {unknown:?}");
    }
    let pages = pages();
    let heads = pages.iter().map(|page| {
        let text = text_of(page);
        let head = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let name = head.expect("a heading").to_owned();
        let file = name.trim_start_matches("LOCK.").to_lowercase();
        assert_eq!(*page, format!("docs/commands/{file}.md"));
        name
    });
    let internal = iter::once("LOCK.APPLY".to_owned());
    let described: BTreeSet<String> = heads.chain(internal).collect();
    assert_eq!(described, known);
}

/// Returns the synopses in LOCK.HELP. The module makes them from its parser's syntax.
fn synopses_of_help(server: &Server) -> BTreeSet<String> {
    let lines = server.call("LOCK.HELP").list();
    let lines = lines.into_iter().map(|line| Ok(line).text());
    lines.filter(|line| line.starts_with("LOCK.")).collect()
}

#[test]
fn help_and_the_pages_have_the_same_synopses() {
    let server = Server::start();
    let told = synopses_of_help(&server);
    let documented: BTreeSet<String> = pages()
        .iter()
        .map(|page| blocks(&text_of(page), "").swap_remove(0))
        .collect();
    assert_eq!(documented, told);
    let named: BTreeSet<&str> = told
        .iter()
        .filter_map(|synopsis| synopsis.split(' ').next())
        .collect();
    let mut known = commands_of(&server);
    known.remove("LOCK.APPLY");
    assert!(known.iter().eq(named), "LOCK.HELP leaves commands out");
}

/// Returns the code in the first cell of each table row that starts with a command.
fn command_cells(document: &str) -> Vec<Vec<String>> {
    let rows = document.lines().filter(|line| line.starts_with("| `LOCK."));
    rows.map(|row| {
        let row = row.replace("\\|", "\0");
        let cell = row.split('|').nth(1).expect("a cell").replace('\0', "|");
        let code = cell.split('`').skip(1).step_by(2);
        code.map(str::to_owned).collect()
    })
    .collect()
}

#[test]
fn the_readme_has_the_synopses_of_help() {
    let told = synopses_of_help(&Server::start());
    let mut named = 0;
    for cell in command_cells(&text_of("README.md")) {
        match cell.as_slice() {
            [synopsis] => {
                assert!(told.contains(synopsis), "{synopsis} isn't in {told:#?}");
                named += 1;
            }
            // Several commands, followed by the arguments that their synopses start with.
            [names @ .., shared] => {
                for name in names {
                    let start = format!("{name} {}", shared.trim_end_matches("..."));
                    let begins = |synopsis: &String| synopsis.starts_with(&start);
                    assert!(told.iter().any(begins), "no {start}in {told:#?}");
                    named += 1;
                }
            }
            [] => unreachable!("the row starts with code"),
        }
    }
    assert_eq!(named, told.len(), "the README leaves commands out");
}

#[test]
fn the_documents_name_the_fields_of_info() {
    let server = Server::start();
    let info = server.call("INFO lock").text();
    let known: BTreeSet<&str> = info
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name)
        .collect();
    let text = text_of("docs/reference/info.md");
    let described: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.starts_with("| `lock_"))
        .filter_map(|line| line.split('|').nth(1))
        .flat_map(|cell| cell.split(", "))
        .filter_map(|name| name.trim().trim_matches('`').strip_prefix("lock_"))
        .collect();
    let known: BTreeSet<&str> = known
        .iter()
        .filter_map(|name| name.strip_prefix("lock_"))
        .collect();
    assert_eq!(described, known);
}

// --- promises -------------------------------------------------------------------------------

/// Returns a page as a reader sees it: links as their text, without marks, on one line.
fn plain(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = words.join(" ").replace(['`', '*'], "");
    while let Some((before, link)) = rest.split_once("](") {
        let (_, after) = link.split_once(')').expect("the end of a link");
        let (before, label) = before.rsplit_once('[').expect("the text of a link");
        rest = format!("{before}{label}{after}");
    }
    rest
}

#[test]
fn each_promise_is_on_its_page_and_has_a_test() {
    let list = text_of("docs/internals/tests.md");
    let (_, list) = list.split_once("\n## Promises\n").expect("the promises");
    let (list, _) = list.split_once("\n## ").expect("the next section");
    let rows = list.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<&str> = rows.filter(|row| !row.starts_with("| page |")).collect();
    assert!(rows.len() > 30, "only {}", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [page, promise, tests] = cells[..] else {
            panic!("{row}")
        };
        let page_text = plain(&text_of(page));
        assert!(page_text.contains(promise), "{page} lacks: {promise}");
        assert!(!tests_named(tests).is_empty(), "no test: {promise}");
    }
}

// --- settings -------------------------------------------------------------------------------

fn setting(server: &Server, name: &str) -> String {
    match server.call(&["CONFIG", "GET", name]).list().as_slice() {
        [_, value] => Ok(value.clone()).text(),
        other => panic!("CONFIG GET {name} answered {other:?}"),
    }
}

/// Returns the setting and the default of each table row that starts with a setting.
fn documented_defaults(document: &str) -> Vec<(String, String)> {
    let text = text_of(document);
    let rows = text.lines().filter(|line| line.starts_with("| `lock."));
    rows.map(|row| {
        let mut cells = row
            .split('|')
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .skip(1);
        (
            cells.next().expect("a name"),
            cells.next().expect("a default"),
        )
    })
    .collect()
}

#[test]
fn defaults_are_as_documented() {
    let server = Server::start();
    let known = server.call("CONFIG GET lock.*").list().len() / 2;
    for document in ["README.md", "docs/reference/settings.md"] {
        let documented = documented_defaults(document);
        assert_eq!(documented.len(), known, "settings in {document}");
        for (name, default) in documented {
            assert_eq!(setting(&server, &name), default, "{name} in {document}");
        }
    }
}

#[test]
fn the_example_configuration_starts_a_server() {
    let text = text_of("redis.conf.example");
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let directives: BTreeMap<&str, &str> = lines
        .map(|line| line.split_once(' ').expect("a name and a value"))
        .collect();
    assert_eq!(
        directives.get("loadmodule"),
        Some(&"./target/release/libredis_lock.so")
    );
    assert_eq!(directives.get("maxmemory-policy"), Some(&"noeviction"));
    // The harness sets its own port and its own path to the module.
    let rest = directives
        .iter()
        .filter(|(name, _)| !matches!(**name, "port" | "loadmodule"));
    let builder = rest
        .clone()
        .fold(Server::builder(), |builder, (name, value)| {
            builder.config(&format!("{name} {value}"))
        });
    let server = builder.start();
    for (name, value) in rest {
        assert_eq!(setting(&server, name), *value, "{name}");
    }
}

// --- the files of the project ---------------------------------------------------------------

#[test]
fn the_readme_s_test_command_is_the_one_of_ci() {
    let readme = text_of("README.md");
    let (_, section) = readme
        .split_once("\n## Tests")
        .expect("a section about tests");
    let block = blocks(section, "sh")
        .into_iter()
        .next()
        .expect("a command in it");
    assert_eq!(block, "make test");
    let ci = text_of(".ci/run");
    let calls_it = |line: &str| line.starts_with("step ") && line.ends_with(" make test");
    assert!(ci.lines().any(calls_it), "not in .ci/run");
}

#[test]
fn the_make_targets_that_are_named_exist() {
    let makefile = text_of("Makefile");
    for document in documents() {
        let text = text_of(&document);
        let named = text
            .match_indices("make ")
            .map(|(start, it)| &text[start + it.len()..]);
        let in_code = named.filter(|rest| {
            let before = text[..text.len() - rest.len() - "make ".len()]
                .chars()
                .next_back();
            matches!(before, Some('`' | '\n'))
        });
        for rest in in_code {
            let of_a_name = |letter: &char| letter.is_ascii_lowercase() || *letter == '-';
            let target: String = rest.chars().take_while(of_a_name).collect();
            let rule = format!("\n{target}:");
            assert!(makefile.contains(&rule), "{document} names make {target}");
        }
    }
}

/// Returns all pages of the site, by their paths from the top of the clone.
fn pages_of_the_site() -> BTreeSet<String> {
    let mut pages = documents();
    pages.extend(["CHANGELOG.md", "DESIGN.md"].map(str::to_owned));
    for folder in ["clients", "examples"] {
        pages.extend(readmes(folder));
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            pages.extend(readmes(&format!(
                "{folder}/{}",
                name.to_str().expect("a plain name")
            )));
        }
    }
    pages
}

/// Returns the READMEs in the folders of a folder.
fn readmes(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root().join(folder)) else {
        return Vec::new();
    };
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let paths = names.map(|name| {
        format!(
            "{folder}/{}/README.md",
            name.to_str().expect("a plain name")
        )
    });
    paths.filter(|path| root().join(path).exists()).collect()
}

#[test]
fn the_contents_of_the_site_name_each_page_once() {
    let contents = text_of("scripts/pages/site/SUMMARY.md");
    let mut named: Vec<&str> = targets(&contents).collect();
    // The site alone has a start page.
    named.retain(|page| *page != "start.md");
    named.sort_unstable();
    assert_eq!(named, Vec::from_iter(&pages_of_the_site()));
}

/// Returns the words of the commands in a text's first example.
fn words_typed(text: &str) -> BTreeSet<&str> {
    let example = text.split("```redis\n").nth(1).expect("an example");
    let example = example.split("```").next().expect("its end");
    let commands = example.lines().filter_map(|line| line.split_once("> "));
    commands
        .flat_map(|(_, command)| command.split(' '))
        .collect()
}

#[test]
fn the_recording_shows_the_readmes_example() {
    let recording = text_of("docs/pictures/hand-over.svg");
    let readme = text_of("README.md");
    let typed = words_typed(&readme);
    assert!(typed.len() >= 9, "{typed:?}");
    for word in typed {
        assert!(recording.contains(&format!(">{word}<")), "{word}");
    }
    // The picture shows a screen until the next one begins, so the last one needs an end.
    let (screens, _) = recording.split_once("to{transform").expect("screens");
    let last = screens.rsplit('}').nth(1).expect("the last screen");
    let (begins, _) = last.split_once('%').expect("a time");
    let begins: f64 = begins.parse().expect("a number");
    assert!(begins < 90.0, "{begins} %");
}

#[test]
fn links_between_the_pages_lead_somewhere() {
    for document in pages_of_the_site() {
        let text = text_of(&document);
        let folder = root()
            .join(&document)
            .parent()
            .map(PathBuf::from)
            .expect("a folder");
        for target in targets(&text).filter(|target| !target.starts_with("https://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => root().join(&document),
                file => folder.join(file),
            };
            assert!(file.exists(), "{document} links to {target}");
            assert!(
                heading.is_empty() || headings(&file).contains(heading),
                "{document} links to {target}"
            );
        }
    }
}

/// The sentence that READMEs of packages repeat, because each stands alone in its registry.
const OF_EACH_PACKAGE: &str =
    "The server grants the lock to waiters in order, they don't poll, and \
                               every grant has a fencing token (fence)";

#[test]
fn each_sentence_has_one_home() {
    let mut homes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for page in pages_of_the_site()
        .into_iter()
        .filter(|page| has_own_text(page))
    {
        for sentence in sentences(&page) {
            homes.entry(sentence).or_default().push(page.clone());
        }
    }
    homes.retain(|_, pages| pages.len() > 1);
    assert!(homes.remove(OF_EACH_PACKAGE).is_some());
    assert!(homes.is_empty(), "sentences on several pages: {homes:#?}");
}

/// Returns true if the page has no quotes of other pages and no tables that programs wrote.
fn has_own_text(page: &str) -> bool {
    let quotes = [
        "CHANGELOG.md",
        "docs/internals/style.md",
        "docs/internals/tests.md",
    ];
    !quotes.contains(&page) && !page.starts_with("docs/performance/")
}

/// Returns the sentences of a page with eight words or more, not counting code.
fn sentences(page: &str) -> BTreeSet<String> {
    let sentences = texts_of(page).into_iter().flat_map(|text| {
        let text = ["? ", "! ", ": "]
            .iter()
            .fold(text, |text, end| text.replace(end, ". "));
        let sentences = text.split(". ").map(|it| it.trim_end_matches(['.', ':']));
        sentences.map(str::to_owned).collect::<Vec<_>>()
    });
    let is_long = |sentence: &String| {
        let words = sentence.split(' ');
        words.filter(|it| it.contains(char::is_alphabetic)).count() >= 8
    };
    sentences.filter(is_long).collect()
}

/// Returns the paragraphs, items and cells of a page in plain words, with `_` in place of code.
/// Leaves out headings, and tables of commands' pages, because each of these is complete.
fn texts_of(page: &str) -> Vec<String> {
    let has_cells = !page.starts_with("docs/commands/");
    let mut texts = vec![String::new()];
    for line in lines_outside_blocks(&text_of(page)) {
        if let Some(row) = line.strip_prefix('|') {
            let row = row.replace("\\|", "");
            texts.extend(row.split('|').filter(|_| has_cells).map(str::to_owned));
        }
        let item = line.strip_prefix("- ");
        if item.is_some() || line.is_empty() || line.starts_with(['|', '#']) {
            texts.push(String::new());
        }
        if !line.starts_with(['|', '#']) {
            let text = texts.last_mut().expect("a text");
            text.push_str(item.unwrap_or(line));
            text.push(' ');
        }
    }
    texts
        .iter()
        .map(|text| plain(&without_code(text)))
        .collect()
}

/// Returns the trimmed lines that are in no fenced block and not told by the module.
fn lines_outside_blocks(text: &str) -> Vec<&str> {
    let mut end = None;
    let mut outside = text.lines().map(str::trim).collect::<Vec<_>>();
    outside.retain(|line| match end {
        Some(awaited) => {
            end = end.filter(|_| *line != awaited);
            false
        }
        None => {
            end = end_of_block(line);
            end.is_none()
        }
    });
    outside
}

/// Returns the line that ends the block which a line begins.
fn end_of_block(line: &str) -> Option<&'static str> {
    if line.starts_with("```") {
        Some("```")
    } else if line.starts_with("<!-- told by the module") {
        Some("<!-- end of what the module tells -->")
    } else {
        None
    }
}

/// Replaces each code span by `_`.
fn without_code(text: &str) -> String {
    let parts = text.split('`').step_by(2);
    parts.collect::<Vec<_>>().join("_")
}

/// Returns the documents for users in docs/.
fn documents_for_users() -> BTreeSet<String> {
    let mut documents = documents();
    documents.retain(|document| document.starts_with("docs/"));
    documents.retain(|document| !document.starts_with("docs/internals/"));
    documents
}

#[test]
fn the_index_leads_to_each_page() {
    let index = "docs/README.md";
    let text = text_of(index);
    let targets = targets(&text).filter_map(|target| target.split('#').next());
    let targets: BTreeSet<String> = targets.map(|target| format!("docs/{target}")).collect();
    let mut left_out = documents_for_users();
    left_out.retain(|document| document != index && !targets.contains(document));
    // docs/commands.md and docs/performance.md lead to these.
    left_out.retain(|document| !document.starts_with("docs/commands/"));
    left_out.retain(|document| !document.starts_with("docs/performance/"));
    assert!(left_out.is_empty(), "{left_out:?}");
}

/// Returns the tests that a document names in code, like `file::test`.
fn tests_named(document: &str) -> Vec<(&str, &str)> {
    let code = document.split('`').skip(1).step_by(2);
    code.filter_map(|code| code.split_once("::")).collect()
}

#[test]
fn the_tests_that_are_named_exist() {
    let text = text_of("docs/internals/tests.md");
    let named = tests_named(&text);
    assert!(named.len() >= 33, "it names {named:?}");
    for (file, test) in named {
        let folder = match file {
            _ if file.starts_with("core/") || file.starts_with("examples/") => "",
            _ => "tests/",
        };
        let source = text_of(&format!("{folder}{file}.rs"));
        let begins = format!("#[test]\nfn {test}()");
        assert!(source.contains(&begins), "no {file}::{test}");
    }
}

#[test]
fn each_planted_bug_has_a_row() {
    let text = text_of("docs/internals/tests.md");
    let patches = files_below("tests/planted");
    assert!(patches.len() >= 12, "{patches:?}");
    for patch in patches {
        let name = patch.rsplit('/').next().unwrap_or_default();
        let shown = format!("`{}`", name.trim_end_matches(".patch"));
        let mut rows = text.lines().filter(|line| line.starts_with("| `"));
        assert!(rows.any(|row| row.contains(&shown)), "no row of {patch}");
    }
}

// --- DESIGN -----------------------------------------------------------------------------------

/// Returns the words of a text that could be paths.
fn paths_in(text: &str) -> BTreeSet<&str> {
    let of_a_path = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let words = text.split(|letter| !of_a_path(letter));
    // A pattern like `*.rs` leaves only `.rs`, which isn't a path.
    let words = words
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| !word.starts_with('.'));
    let folders = ["core/", "docs/", "examples/", "scripts/", "src/", "tests/"];
    words
        .filter(|word| {
            folders.iter().any(|folder| word.starts_with(folder))
                || [".rs", ".md", ".sh"].iter().any(|end| word.ends_with(end))
        })
        .collect()
}

#[test]
fn the_files_that_pages_for_contributors_name_exist() {
    let sources = &files_below("src") | &files_below("core/src");
    let is_source = |name: &str| {
        let end = format!("/{name}");
        !name.contains('/') && sources.iter().any(|source| source.ends_with(&end))
    };
    let mut pages = documents();
    pages.retain(|page| page == "DESIGN.md" || page.starts_with("docs/internals/"));
    // These name the files of other crates, and tests. Other tests check their links and tests.
    pages.remove("docs/internals/client-tests.md");
    pages.remove("docs/internals/tests.md");
    assert!(pages.len() >= 9, "{pages:?}");
    for page in pages {
        let text = text_of(&page);
        let missing: Vec<&str> = paths_in(&text)
            .into_iter()
            .filter(|path| !root().join(path).exists() && !is_source(path))
            .filter(|path| !root().join("docs/internals").join(path).exists())
            .collect();
        assert!(missing.is_empty(), "{page} names {missing:?}");
    }
}
