//! The commands' pages and commands.json, checked against the commands' replies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use redis::Value;
use serde_json::{json, Value as Json};
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
const REPLIES: [(&str, &str, &str); 28] = [
    ("LOCK.ACQUIRE", "granted", "free t"),
    ("LOCK.ACQUIRE", "not granted", "held t"),
    ("LOCK.WAIT", "granted", "free t BLOCK 5000"),
    ("LOCK.WAIT", "the time is over", "held t BLOCK 1"),
    ("LOCK.QUEUE", "the token holds the lock", "own t"),
    ("LOCK.QUEUE", "it waits", "held t"),
    ("LOCK.CANCEL", "a wait or a place is cancelled", "queued t"),
    ("LOCK.CANCEL", "the token has none there", "own t"),
    ("LOCK.EXTEND", "set", "own t"),
    ("LOCK.EXTEND", "the token doesn't hold the lock", "held t"),
    ("LOCK.RELEASE", "a hold is taken off", "own t"),
    ("LOCK.RELEASE", "the token doesn't hold the lock", "held t"),
    ("LOCK.CHECK", "the token holds the lock", "own t"),
    ("LOCK.CHECK", "it doesn't", "held t"),
    (
        "LOCK.INFO",
        "a token holds the lock or waits for it",
        "queued",
    ),
    ("LOCK.INFO", "no token does", "free"),
    ("LOCK.HOT", "always", ""),
    ("LOCK.MACQUIRE", "granted", "2 own own2 t"),
    ("LOCK.MACQUIRE", "not granted", "2 own held t"),
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
    ("LOCK.MRELEASE", "holds are taken off", "3 own own2 held t"),
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

/// Returns the two forms of a reply in a cell: in RESP2 and in RESP3.
fn forms(cell: &str) -> (&str, &str) {
    cell.split_once(" in RESP2, ").unwrap_or((cell, cell))
}

/// Returns true if a reply's first line is one of the form that a page names, like `Array reply`.
fn is_of_form(line: &str, form: &str) -> bool {
    let (_, link) = form.split_once("/protocol-spec/#").expect("a named type");
    let (name, text) = link.split_once(')').expect("the end of a link");
    let number = match text.strip_prefix(" of ") {
        Some(count) => count.split([' ', ':']).next(),
        None => text.split('`').nth(1),
    };
    let mark = match name {
        "arrays" => '*',
        "maps" => '%',
        "integers" => ':',
        "nulls" => return line == "_",
        "null-arrays" => return line == "*-1",
        other => panic!("no reply is of the form {other}"),
    };
    let shown = line.strip_prefix(mark);
    let shown: Option<u64> = shown.and_then(|shown| shown.parse().ok());
    // The page omits a number that differs between runs.
    match number {
        Some(number) => shown == number.parse().ok(),
        None => shown.is_some_and(|shown| shown > 0),
    }
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
        let (in_resp2, in_resp3) = forms(&cells[1]);
        let clients: [(&str, &mut Client); 2] = [(in_resp2, &mut resp2), (in_resp3, &mut resp3)];
        for (form, client) in clients {
            prepare(&server);
            let raw = client.call_raw(format!("{command} {words}"));
            let first = raw.lines().next().expect("a line");
            assert!(
                is_of_form(first, form),
                "{command}, {row}: {first:?}, not {form}"
            );
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

/// Returns true if a value is of a JSON schema that uses the keywords of commands.json.
fn is_valid(schema: &Json, value: &Json) -> bool {
    let keywords = schema.as_object().expect("a schema");
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    keywords
        .iter()
        .all(|(keyword, rule)| match keyword.as_str() {
            "description" => true,
            "type" => is_of_type(value, rule.as_str().expect("a type")),
            "const" => value == rule,
            "enum" => rule.as_array().expect("values").contains(value),
            "minimum" => value.as_i64() >= rule.as_i64(),
            "minItems" => items.len() as u64 >= rule.as_u64().expect("a length"),
            "maxItems" => items.len() as u64 <= rule.as_u64().expect("a length"),
            "items" => match rule.as_array() {
                Some(schemas) => schemas
                    .iter()
                    .zip(items)
                    .all(|(one, item)| is_valid(one, item)),
                None => items.iter().all(|item| is_valid(rule, item)),
            },
            "required" => {
                let names = rule.as_array().expect("names").iter();
                let mut names = names.map(|name| name.as_str().expect("a name"));
                names.all(|name| value.get(name).is_some())
            }
            "properties" => {
                // Like `additionalProperties: false`, which all schemas of objects have.
                assert_eq!(schema["additionalProperties"], json!(false));
                value.as_object().is_some_and(|fields| {
                    let mut fields = fields.iter();
                    fields
                        .all(|(name, field)| rule.get(name).is_some_and(|one| is_valid(one, field)))
                })
            }
            "additionalProperties" => true,
            "oneOf" => matching(rule, value).len() == 1,
            other => panic!("the keyword {other}"),
        })
}

fn is_of_type(value: &Json, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "integer" => value.is_i64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the type {other}"),
    }
}

/// Returns which of these schemas a value is of.
fn matching(schemas: &Json, value: &Json) -> Vec<usize> {
    let schemas = schemas.as_array().expect("schemas").iter().enumerate();
    let valid = schemas.filter(|(_, schema)| is_valid(schema, value));
    valid.map(|(place, _)| place).collect()
}

fn as_json(reply: Value) -> Json {
    match reply {
        Value::Nil => Json::Null,
        Value::Int(number) => json!(number),
        Value::Array(items) => items.into_iter().map(as_json).collect(),
        Value::Map(pairs) => {
            let pairs = pairs.into_iter();
            let pairs = pairs.map(|(name, value)| (Ok(name).text(), as_json(value)));
            Json::Object(pairs.collect())
        }
        text => json!(Ok(text).text()),
    }
}

#[test]
fn replies_match_the_schemas_of_commands_json() {
    let server = Server::start();
    server
        .call("ACL SETUSER reader on nopass %R~* +@all")
        .okay();
    let mut writer = server.client().into_resp3();
    let mut reader = server.client().into_resp3();
    reader.call("AUTH reader any").okay();
    let text = fs::read_to_string(docs().join("commands.json")).expect("commands.json");
    let described: Json = serde_json::from_str(&text).expect("JSON");
    for command in commands() {
        let schema = &described[&command]["reply_schema"];
        let schemas = schema.get("oneOf").cloned();
        let schemas = schemas.unwrap_or_else(|| json!([schema]));
        let mut seen = BTreeSet::new();
        for (_, row, words) in REPLIES.iter().filter(|(name, ..)| *name == command) {
            prepare(&server);
            // A reader sees no tokens.
            let shows_less = (command == "LOCK.INFO").then_some(&mut reader);
            for client in [&mut writer].into_iter().chain(shows_less) {
                let reply = as_json(client.call(format!("{command} {words}")).value());
                let matching = matching(&schemas, &reply);
                assert_eq!(matching.len(), 1, "{command}, {row}: {reply}");
                seen.extend(matching);
            }
        }
        let all = schemas.as_array().map(Vec::len);
        assert_eq!(
            Some(seen.len()),
            all,
            "{command} has replies that nothing shows"
        );
    }
}

// --- arguments ------------------------------------------------------------------------------

/// A row of a page's table of arguments.
struct Argument {
    word: String,
    /// True if the argument begins with a word of its own.
    is_option: bool,
    default: String,
    range: String,
    /// The option without which the command refuses this one.
    only_with: Option<String>,
}

fn arguments(command: &str) -> Vec<Argument> {
    let rows = table(&section(&page(command), "## Arguments"));
    let rows = rows.into_iter().map(|cells| {
        let [written, _, default, range, meaning] = cells.as_slice() else {
            panic!("{command}: {cells:?}");
        };
        let word = code(written).split(' ').next().expect("a word");
        let condition = meaning.split_once("Only with `");
        Argument {
            word: word.to_owned(),
            is_option: word == word.to_uppercase(),
            default: default.clone(),
            range: range.clone(),
            only_with: condition.map(|(_, rest)| rest.split('`').next().unwrap().to_owned()),
        }
    });
    rows.collect()
}

/// The limit of the commands that try the range of PERMITS.
const LIMIT: u64 = 3;

/// Returns the options before an argument, without which the command refuses it.
fn prefix(arguments: &[Argument], argument: &Argument) -> String {
    let Some(word) = &argument.only_with else {
        return String::new();
    };
    let other = arguments.iter().find(|other| other.word == *word);
    let other = other.expect("an argument of the same page");
    let value = if other.range.is_empty() {
        String::new()
    } else {
        format!(" {LIMIT}")
    };
    format!("{}{word}{value} ", prefix(arguments, other))
}

/// Returns the values at the ends of a range, and those beyond it.
fn ends(range: &str) -> (Vec<String>, Vec<String>) {
    let (first, last) = range.split_once(" to ").expect("a range");
    let first: u64 = first.parse().expect("a number");
    let last = last.split(' ').next().expect("a word");
    let (last, beyond) = match range.contains("ahead of the clock") {
        true => {
            let now_us = u64::try_from(support::unix_time_us()).expect("a clock after 1970");
            let last = now_us + 60_000_000;
            // The clock goes on until the value is tried.
            (last, last + 60_000_000)
        }
        false => {
            let last = last.parse().unwrap_or(LIMIT);
            (last, last + 1)
        }
    };
    let beyond = [first.checked_sub(1), Some(beyond)];
    let beyond = beyond.into_iter().flatten();
    let texts = |numbers: Vec<u64>| -> Vec<String> {
        let in_bytes = |number: u64| "x".repeat(usize::try_from(number).expect("a length"));
        let is_in_bytes = range.contains("bytes");
        let texts = numbers.into_iter();
        texts
            .map(|number| match is_in_bytes {
                true => in_bytes(number),
                false => number.to_string(),
            })
            .collect()
    };
    (texts(vec![first, last]), texts(beyond.collect()))
}

/// Returns the error of a command with this value of an argument. The keys have no holder. Each command
/// has a token of its own, because LEAVE turns away the later commands of its token.
fn tried(server: &Server, command: &str, option: &str, values: &[&str]) -> Option<String> {
    server.call("FLUSHALL").okay();
    let keys: &[&str] = match command {
        "LOCK.HOT" => &[],
        _ if command.starts_with("LOCK.M") => &["1", "k"],
        _ => &["k"],
    };
    let token: &[&str] = match (command, option) {
        (_, "") | ("LOCK.INFO" | "LOCK.HOT", _) => &[],
        _ => &[command],
    };
    let options: Vec<&str> = option.split_whitespace().collect();
    let words = [&[command], keys, token, &options, values].concat();
    server.client().call(&words).err()
}

#[test]
fn values_are_taken_up_to_the_ends_of_their_ranges() {
    let server = Server::start();
    let mut tried_ranges = 0;
    for command in commands().iter().filter(|command| *command != "LOCK.HELP") {
        let arguments = arguments(command);
        for argument in &arguments {
            let word = &argument.word;
            if ["", "any key", "1 to the number of keys that follow"]
                .contains(&argument.range.as_str())
            {
                continue;
            }
            let option = match argument.is_option {
                true => format!("{}{word}", prefix(&arguments, argument)),
                false => String::new(),
            };
            let try_value = |value: &str| match word.as_str() {
                "NOTIFY" => {
                    let message = tried(&server, command, &option, &["channel", value]);
                    message.or_else(|| tried(&server, command, &option, &[value, "message"]))
                }
                _ => tried(&server, command, &option, &[value]),
            };
            let (inside, beyond) = ends(&argument.range);
            for value in inside {
                // This server has no replicas.
                let error = try_value(&value).filter(|error| !error.starts_with("NOREPLICAS"));
                assert_eq!(error, None, "{command} {option} {value:.20}");
            }
            for value in beyond {
                let error = try_value(&value).unwrap_or_default();
                let refused = error.contains("must be ");
                assert!(refused, "{command} {option} {value:.20}: {error:?}");
            }
            tried_ranges += 1;
        }
    }
    assert!(tried_ranges > 50, "{tried_ranges} ranges");
}

#[test]
fn an_info_shows_as_many_waiters_as_its_page_says() {
    let server = Server::start();
    let arguments = arguments("LOCK.INFO");
    let waiters = arguments.iter().find(|it| it.word == "WAITERS");
    let default: i64 = waiters.expect("WAITERS").default.parse().expect("a number");
    server.call(format!("LOCK.ACQUIRE held a {LONG}")).grant();
    for place in 0..=default {
        server.call(format!("LOCK.QUEUE held t{place}")).int();
    }
    let shown = support::Fields::of(server.call("LOCK.INFO held").value());
    assert_eq!(shown.int("waiters"), default + 1);
    assert_eq!(shown.maps("queue").len() as i64, default);
}

// --- errors ---------------------------------------------------------------------------------

/// Returns the errors of a table, without their quotes and without a trailing ` ...`.
fn texts(rows: Vec<Vec<String>>) -> BTreeSet<String> {
    let texts = rows.into_iter().map(|cells| code(&cells[0]).to_owned());
    texts
        .map(|text| text.trim_end_matches(" ...").to_owned())
        .collect()
}

/// Returns the rows of the list of all errors.
fn list_of_errors() -> Vec<Vec<String>> {
    let list = fs::read_to_string(docs().join("reference/errors.md")).expect("the list");
    table(&section(&list, "## Errors of lock commands"))
}

/// Returns the errors in the list that a command shares with others: `all except HOT: ...`.
fn shared_errors(command: &str) -> BTreeSet<String> {
    let (_, word) = command.split_once('.').expect("a command");
    let mut rows = list_of_errors();
    rows.retain(|cells| {
        let others = cells[1].strip_prefix("all except ");
        let others = others.and_then(|rest| rest.split_once(':'));
        others.is_some_and(|(others, _)| !others.split([' ', ',']).any(|it| it == word))
    });
    texts(rows)
}

/// Returns the errors in the list for values of the command's arguments that are out of range.
fn errors_of_ranges(command: &str) -> BTreeSet<String> {
    let arguments = arguments(command);
    let mut rows = list_of_errors();
    rows.retain(|cells| {
        let words: Vec<&str> = cells[1].split([' ', ';']).collect();
        let has_word = arguments.iter().any(|it| words.contains(&&*it.word));
        code(&cells[0]).starts_with("ERR invalid ") && has_word
    });
    let mut errors = texts(rows);
    if errors.remove(HOLDS) {
        errors.insert(
            if command.ends_with("RELEASE") {
                HOLDS_LEFT
            } else {
                HOLDS
            }
            .to_owned(),
        );
    }
    errors
}

/// The errors of HOLDS. The list shows the second one beside the first.
const HOLDS: &str = "ERR invalid holds, must be 1 to 4294967295";
const HOLDS_LEFT: &str = "ERR invalid holds, must be 0 to 4294967295";

/// Returns the errors that a command's page names: its own in a table, and those that it shares.
fn errors_of(command: &str) -> BTreeSet<String> {
    let section = section(&page(command), "## Errors");
    assert!(
        section.contains("[errors that commands share]"),
        "{command}"
    );
    let mut errors = texts(table(&section));
    let has_arguments = page(command).contains("\n## Arguments\n");
    let ranges = has_arguments.then(|| errors_of_ranges(command));
    for shared in [shared_errors(command), ranges.unwrap_or_default()] {
        for error in shared {
            assert!(!errors.contains(&error), "{command}: {error}");
            errors.insert(error);
        }
    }
    errors
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
        "REPLICAS 0",
        "REPLICAS 1 WITHIN 0",
        "FENCE 0",
        "LEAVE 0",
        "SHARED LIMIT 3 PERMITS 2",
        "NOSUCH",
    ];
    let options = options.iter().map(|option| format!("K T {option}"));
    let others = [
        String::new(),
        format!("K T DATA {long}"),
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
        "COUNT 0".to_owned(),
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
const OF_A_STATE: [&str; 13] = [
    "ERR channel must be in the slot of the key",
    "NOPERM No permissions to access a channel",
    "DEADLOCK another holder waits to upgrade this lock",
    "DEADLOCK connections would wait for each other's SESSION grants",
    "ERR REPLICAS can't be waited for here",
    "NOREPLICAS fewer replicas are online than REPLICAS asks for",
    "NOREPLICAS the grant ended before enough replicas had acknowledged it",
    "NOREPLICAS too few replicas acknowledged the command in time",
    "LEFT this token has left the lock by LOCK.RELEASE ... LEAVE",
    "MAXWAITERS as many clients wait as lock.max-waiters allows",
    "MAXWAITERS as many clients wait as nine tenths of maxclients",
    "MAXTICKETS as many wait without a connection as lock.max-tickets allows",
    "ERR wrong number of arguments for",
];

#[test]
fn each_page_has_the_errors_that_its_command_answers() {
    let server = Server::start();
    for command in commands() {
        let mut told = errors_of(&command);
        // Its words are optional, and it takes any number of them until it reads them.
        let has_arity = command != "LOCK.HOT";
        assert_eq!(
            told.contains("ERR wrong number of arguments for"),
            has_arity,
            "{command}"
        );
        told.retain(|text| !OF_A_STATE.contains(&text.as_str()));
        let mut provoked = provoked(&server, &command);
        let arity = provoked.len();
        provoked.retain(|text| !text.starts_with("ERR wrong number of arguments for"));
        assert_eq!(provoked.len() < arity, has_arity, "{command}");
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
    errors_of(command).contains(text)
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
fn pages_have_the_errors_of_a_server_full_of_waiters() {
    let server = Server::start();
    server.call("CONFIG SET maxclients 20").okay();
    server.call(format!("LOCK.ACQUIRE held a {LONG}")).grant();
    let waiter = |number| server.waiter(format!("LOCK.WAIT held b{number}"));
    let _waiters: Vec<_> = (0..18).map(waiter).collect();
    for (command, words) in &WAITS[..2] {
        let error = server.call(format!("{command} {words}")).error();
        assert!(error.contains(" maxclients"), "{error}");
        assert!(has_error(command, &error), "{command}: {error}");
    }
}

#[test]
fn pages_have_the_error_of_a_token_that_left() {
    let server = Server::start();
    server
        .call("LOCK.MRELEASE 2 held other t LEAVE 600000")
        .int();
    for command in commands() {
        let words = match command.starts_with("LOCK.M") {
            true => "2 held other t",
            false => "held t",
        };
        let error = server.call(format!("{command} {words}")).err();
        let left = |text: &String| text.starts_with("LEFT ");
        let named: BTreeSet<String> = errors_of(&command).into_iter().filter(left).collect();
        assert_eq!(named, error.into_iter().filter(left).collect(), "{command}");
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
    let mut all = texts(list_of_errors());
    all.insert(HOLDS_LEFT.to_owned());
    let mut named = BTreeSet::new();
    for command in commands() {
        named.extend(errors_of(&command));
    }
    assert_eq!(named, all);
}

// --- form -----------------------------------------------------------------------------------

#[test]
fn pages_have_their_sections_in_one_order() {
    let order = [
        "Arguments",
        "Examples",
        "Reply",
        "Errors",
        "Behaviour",
        "History",
        "See also",
    ];
    let can_lack = ["Arguments", "Behaviour"];
    for command in commands() {
        let page = page(&command);
        let sections: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .collect();
        let expected = order.iter().copied();
        let expected = expected.filter(|it| !can_lack.contains(it) || sections.contains(it));
        assert!(
            sections.iter().copied().eq(expected),
            "{command}: {sections:?}"
        );
    }
}

#[test]
fn pages_say_when_to_use_the_command_and_when_another() {
    for command in commands() {
        let page = page(&command);
        let (_, rest) = page.split_once(END_OF_PART).expect("the facts");
        let (description, _) = rest.split_once("<!--").expect("the synopsis");
        let text = description.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in ["Use it when ", " instead when "] {
            assert!(text.contains(words), "{command}: {text}");
        }
        let sentences = text.matches(". ").count() + 1;
        assert!((2..=5).contains(&sentences), "{command}: {text}");
    }
}

/// The line after a generated part.
const END_OF_PART: &str = "<!-- end of what the module tells -->";

#[test]
fn pages_explain_the_prompts_of_their_examples() {
    let mut explained = 0;
    for command in commands() {
        let examples = section(&page(&command), "## Examples");
        let prompts = examples.lines().filter_map(|line| line.split_once("> "));
        let arrivals = examples.lines().filter_map(|line| line.strip_suffix(':'));
        let clients = prompts.map(|(client, _)| client).chain(arrivals);
        let clients: BTreeSet<&str> = clients.filter(|it| it.len() == 1 && *it != ">").collect();
        let names: Vec<&str> = clients.iter().copied().collect();
        let legend = "[How to read the examples](../commands.md#how-to-read-the-examples)";
        match names.split_last() {
            None => assert!(!examples.contains(legend), "{command}"),
            Some((last, others)) => {
                let legend = format!("{legend}: {} and {last} are clients.", others.join(", "));
                assert!(examples.contains(&legend), "{command} lacks: {legend}");
            }
        }
        explained += names.len();
    }
    assert!(explained > 15, "only {explained} clients");
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
