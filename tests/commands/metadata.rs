//! The server's description of the commands compared with their behaviour: COMMAND INFO, COMMAND
//! DOCS, COMMAND GETKEYS and ACL key patterns.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use redis::Value;
use serde_json::{json, Value as Json};
use support::{Expect, Fields, Server};

/// The facts of a command that client libraries and proxies rely on.
struct Facts {
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    /// First key, last key and step.
    range: [i64; 3],
    /// Example arguments; `keys` are the keys in them.
    example: &'static str,
    keys: &'static [&'static str],
    /// Key spec flags: the access that the command needs to its keys.
    access: &'static [&'static str],
}

const READS: &[&str] = &["RO", "access"];
const CHANGES: &[&str] = &["RW", "access", "update"];

const fn one_key(name: &'static str, arity: i64, flags: &'static [&'static str]) -> Facts {
    Facts {
        name,
        arity,
        flags,
        range: [1, 1, 1],
        example: "key token",
        keys: &["key"],
        access: CHANGES,
    }
}

const fn several_keys(name: &'static str, flags: &'static [&'static str]) -> Facts {
    Facts {
        range: [0, 0, 0],
        example: "2 key other token",
        keys: &["key", "other"],
        ..one_key(name, -4, flags)
    }
}

const COMMANDS: [Facts; 16] = [
    one_key("lock.acquire", -3, &["write", "denyoom", "fast"]),
    one_key("lock.wait", -3, &["write", "denyoom", "blocking"]),
    one_key("lock.queue", -3, &["write", "denyoom", "fast"]),
    one_key("lock.cancel", 3, &["write", "fast"]),
    one_key("lock.extend", -3, &["write", "fast"]),
    one_key("lock.release", -3, &["write", "fast"]),
    Facts {
        access: READS,
        ..one_key("lock.check", 3, &["readonly", "fast"])
    },
    Facts {
        example: "key",
        access: READS,
        ..one_key("lock.info", -2, &["readonly"])
    },
    Facts {
        range: [0, 0, 0],
        example: "COUNT 5",
        keys: &[],
        ..one_key("lock.hot", -1, &["readonly"])
    },
    Facts {
        range: [0, 0, 0],
        example: "",
        keys: &[],
        ..one_key("lock.help", 1, &["loading", "stale", "fast"])
    },
    Facts {
        example: "key DROP token",
        ..one_key("lock.apply", -3, &["write", "fast"])
    },
    several_keys("lock.macquire", &["write", "denyoom"]),
    several_keys("lock.mwait", &["write", "denyoom", "blocking"]),
    several_keys("lock.mqueue", &["write", "denyoom"]),
    several_keys("lock.mextend", &["write"]),
    several_keys("lock.mrelease", &["write"]),
];

/// Returns the names of the module's commands that the server lists.
fn names(server: &Server) -> BTreeSet<String> {
    let list = server.call("COMMAND LIST FILTERBY MODULE lock").list();
    list.into_iter().map(|name| Ok(name).text()).collect()
}

fn texts(list: Value) -> BTreeSet<String> {
    let items = match list {
        Value::Set(items) | Value::Array(items) => items,
        other => panic!("not a list: {other:?}"),
    };
    items.into_iter().map(|item| Ok(item).text()).collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn these_are_all_commands() {
    let server = Server::start();
    let known: BTreeSet<String> = COMMANDS.iter().map(|it| it.name.to_owned()).collect();
    assert_eq!(names(&server), known);
}

#[test]
fn command_info_tells_arity_flags_and_keys() {
    let server = Server::start();
    for facts in &COMMANDS {
        let info = server.call(&["COMMAND", "INFO", facts.name]).list();
        let info = Ok(info[0].clone()).list();
        let [name, arity, flags, first, last, step, _, _, key_specs, ..] = info.as_slice() else {
            panic!("{}: {info:?}", facts.name);
        };
        assert_eq!(Ok(name.clone()).text(), facts.name);
        assert_eq!(Ok(arity.clone()).int(), facts.arity, "{}", facts.name);
        let mut flags = texts(flags.clone());
        // The server adds these flags itself.
        for own in ["module", "movablekeys"] {
            flags.remove(own);
        }
        assert_eq!(flags, set(facts.flags), "{}", facts.name);
        let range = [first, last, step].map(|place| Ok(place.clone()).int());
        assert_eq!(range, facts.range, "{}", facts.name);
        let key_specs = Ok(key_specs.clone()).list();
        assert_eq!(key_specs.len(), usize::from(!facts.keys.is_empty()));
        for spec in key_specs {
            let flags = texts(Fields::of(spec).get("flags"));
            assert_eq!(flags, set(facts.access), "{}", facts.name);
        }
    }
}

#[test]
fn command_getkeys_finds_the_keys() {
    let server = Server::start();
    for facts in COMMANDS.iter().filter(|it| !it.keys.is_empty()) {
        let command = format!("{} {}", facts.name, facts.example);
        let found = server.call(format!("COMMAND GETKEYS {command}")).list();
        let found: Vec<_> = found.into_iter().map(|key| Ok(key).text()).collect();
        assert_eq!(found, facts.keys, "{command}");
        let found = server
            .call(format!("COMMAND GETKEYSANDFLAGS {command}"))
            .list();
        assert_eq!(found.len(), facts.keys.len());
        for (pair, key) in found.into_iter().zip(facts.keys) {
            let pair = Ok(pair).list();
            assert_eq!(Ok(pair[0].clone()).text(), *key, "{command}");
            assert_eq!(texts(pair[1].clone()), set(facts.access), "{command}");
        }
    }
    server.call("COMMAND GETKEYS LOCK.HELP").error();
    server.call("COMMAND GETKEYS LOCK.HOT COUNT 5").error();
}

#[test]
fn acl_key_patterns_hold_for_every_command() {
    let server = Server::start();
    for (user, pattern) in [
        ("reader", "%R~k*"),
        ("writer", "%W~k*"),
        ("both", "%RW~k*"),
        ("elsewhere", "%RW~l*"),
    ] {
        server
            .call(&["ACL", "SETUSER", user, "on", "+@all", pattern])
            .okay();
    }
    server
        .call("ACL SETUSER one on +@all %RW~key %R~other")
        .okay();
    for facts in COMMANDS.iter().filter(|it| !it.keys.is_empty()) {
        let allowed = |user: &str, example: &str| -> bool {
            let command = format!("ACL DRYRUN {user} {} {example}", facts.name);
            match server.call(&command).text().as_str() {
                "OK" => true,
                refused => {
                    assert!(refused.contains("no permissions"), "{command}: {refused}");
                    false
                }
            }
        };
        let example = facts.example.replace("other", "k2");
        let only_reads = facts.access == READS;
        assert_eq!(allowed("reader", &example), only_reads, "{}", facts.name);
        // Every change depends on the key's value, so the right to write isn't enough.
        assert!(!allowed("writer", &example), "{}", facts.name);
        assert!(allowed("both", &example), "{}", facts.name);
        assert!(!allowed("elsewhere", &example), "{}", facts.name);
        // The user needs the right to each of several keys.
        let one = facts.keys.len() == 1;
        assert_eq!(allowed("one", facts.example), one, "{}", facts.name);
    }
    assert_eq!(server.call("ACL DRYRUN elsewhere LOCK.HELP").text(), "OK");
    assert_eq!(server.call("ACL DRYRUN elsewhere LOCK.HOT").text(), "OK");
}

// ---- the documentation tree

/// An argument of COMMAND DOCS.
#[derive(Debug, Clone)]
struct Arg {
    name: String,
    kind: String,
    token: Option<String>,
    optional: bool,
    multiple: bool,
    parts: Vec<Arg>,
}

impl Arg {
    #[track_caller]
    fn of(fields: &Fields) -> Arg {
        let flags = if fields.has("flags") {
            texts(fields.get("flags"))
        } else {
            BTreeSet::new()
        };
        let parts = if fields.has("arguments") {
            fields.maps("arguments")
        } else {
            Vec::new()
        };
        let kind = fields.text("type");
        if kind == "key" {
            assert_eq!(fields.int("key_spec_index"), 0);
        }
        Arg {
            name: fields.text("name"),
            kind,
            token: fields.has("token").then(|| fields.text("token")),
            optional: flags.contains("optional"),
            multiple: flags.contains("multiple"),
            parts: parts.iter().map(Arg::of).collect(),
        }
    }

    /// Returns every form that the argument may take on a command line, the shortest first.
    fn forms(&self) -> Vec<String> {
        let mut forms = self.given_forms();
        if self.optional {
            forms.insert(0, String::new());
        }
        forms
    }

    /// Returns every form of the argument when it is present.
    fn given_forms(&self) -> Vec<String> {
        let mut forms = self.value_forms();
        if self.multiple {
            let twice = forms.iter().map(|form| format!("{form} {form}"));
            forms.extend(twice.collect::<Vec<_>>());
        }
        match &self.token {
            Some(token) => forms.iter().map(|form| format!("{token} {form}")).collect(),
            None => forms,
        }
    }

    fn value_forms(&self) -> Vec<String> {
        match self.kind.as_str() {
            "key" => vec!["<key>".to_owned()],
            "string" => vec!["t".to_owned()],
            "integer" if self.name == "numkeys" => vec!["<numkeys>".to_owned()],
            "integer" => vec!["5".to_owned()],
            "pure-token" => vec![String::new()],
            "oneof" => self.parts.iter().flat_map(Arg::given_forms).collect(),
            "block" => lines(&self.parts),
            other => panic!("{}: an argument of type {other}", self.name),
        }
    }

    /// Returns forms that lack a mandatory part.
    fn broken_forms(&self) -> Vec<String> {
        let mut broken: Vec<String> = self.parts.iter().flat_map(Arg::broken_forms).collect();
        if let (Some(token), false) = (&self.token, self.kind == "pure-token") {
            broken.push(token.clone());
        }
        if self.kind == "block" {
            let all_given = |part: &Arg| part.given_forms().swap_remove(0);
            for missing in (0..self.parts.len()).filter(|place| !self.parts[*place].optional) {
                let rest = self.parts.iter().enumerate();
                let rest = rest.filter(|(place, _)| *place != missing);
                let rest: Vec<_> = rest.map(|(_, part)| all_given(part)).collect();
                broken.push(rest.join(" "));
            }
        }
        broken.retain(|form| !form.is_empty());
        broken
    }

    /// Returns the literal words of the argument and its parts.
    fn tokens(&self) -> BTreeSet<String> {
        let parts = self.parts.iter().flat_map(Arg::tokens);
        self.token.iter().cloned().chain(parts).collect()
    }
}

/// Returns every line that the arguments allow, in their order.
fn lines(args: &[Arg]) -> Vec<String> {
    args.iter().fold(vec![String::new()], |lines, arg| {
        let forms = arg.forms();
        let continued = lines
            .iter()
            .flat_map(|line| forms.iter().map(move |form| format!("{line} {form}")));
        continued.collect()
    })
}

/// Returns COMMAND DOCS of every command of the module.
fn docs(server: &Server) -> BTreeMap<String, Fields> {
    let mut command = vec!["COMMAND".to_owned(), "DOCS".to_owned()];
    command.extend(names(server));
    let reply = Fields::of(server.call(&command).value());
    reply
        .names()
        .into_iter()
        .map(|name| (name.to_owned(), Fields::of(reply.get(name))))
        .collect()
}

/// Returns the versions that changed a command, with their changes.
fn history(docs: &Fields) -> Vec<(String, String)> {
    let entries = match docs.get("history").clone() {
        Value::Set(entries) | Value::Array(entries) => entries,
        other => panic!("not a history: {other:?}"),
    };
    let entries = entries.into_iter().map(|entry| Ok(entry).list());
    let pairs = entries.map(|entry| match entry.as_slice() {
        [version, change] => (Ok(version.clone()).text(), Ok(change.clone()).text()),
        other => panic!("not a version and its change: {other:?}"),
    });
    pairs.collect()
}

fn arguments(docs: &Fields) -> Vec<Arg> {
    if docs.has("arguments") {
        docs.maps("arguments").iter().map(Arg::of).collect()
    } else {
        Vec::new()
    }
}

// ---- commands.json

/// Returns the commands of docs/commands.json, by their names.
fn described() -> BTreeMap<String, Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/commands.json");
    let text = fs::read_to_string(path).expect("commands.json");
    serde_json::from_str(&text).expect("JSON")
}

/// Returns names in the upper case of Redis's own descriptions, in their order.
fn upper_case(names: BTreeSet<String>) -> BTreeSet<String> {
    let names = names.into_iter();
    names
        .map(|name| name.trim_start_matches('@').to_uppercase())
        .collect()
}

fn names_in(list: &Json) -> BTreeSet<String> {
    let names = list.as_array().expect("a list").iter();
    let names = names.map(|name| name.as_str().expect("a name").to_owned());
    names.collect()
}

/// Returns an argument of COMMAND DOCS in the form of commands.json.
fn argument_in_json(arg: &Arg) -> Json {
    let mut described = json!({"name": arg.name, "type": arg.kind});
    if arg.kind == "key" {
        described["key_spec_index"] = json!(0);
    }
    if let Some(token) = &arg.token {
        described["token"] = json!(token);
    }
    if arg.optional {
        described["optional"] = json!(true);
    }
    if arg.multiple {
        described["multiple"] = json!(true);
    }
    if !arg.parts.is_empty() {
        described["arguments"] = arg.parts.iter().map(argument_in_json).collect();
    }
    described
}

/// Returns a key spec of COMMAND INFO in the form of commands.json, without its flags.
fn key_spec_in_json(spec: &Fields) -> Json {
    let begin = Fields::of(spec.get("begin_search"));
    assert_eq!(begin.text("type"), "index");
    let pos = Fields::of(begin.get("spec")).int("index");
    let find = Fields::of(spec.get("find_keys"));
    let numbers = Fields::of(find.get("spec"));
    let number = |name: &str| numbers.int(name);
    let found = match find.text("type").as_str() {
        "range" => json!({"range": {
            "lastkey": number("lastkey"),
            "step": number("keystep"),
            "limit": number("limit"),
        }}),
        "keynum" => json!({"keynum": {
            "keynumidx": number("keynumidx"),
            "firstkey": number("firstkey"),
            "step": number("keystep"),
        }}),
        other => panic!("keys found by {other}"),
    };
    json!({"begin_search": {"index": {"pos": pos}}, "find_keys": found})
}

#[test]
fn commands_json_has_the_commands_of_clients() {
    let mut told = names(&Server::start());
    assert!(told.remove("lock.apply"));
    let named: BTreeSet<String> = described().into_keys().collect();
    assert_eq!(named, upper_case(told));
}

#[test]
fn commands_json_says_what_command_docs_says() {
    let docs = docs(&Server::start());
    for (name, described) in described() {
        let docs = &docs[&name.to_lowercase()];
        for field in ["summary", "complexity", "since", "group"] {
            assert_eq!(described[field], json!(docs.text(field)), "{name}: {field}");
        }
        assert_eq!(described["history"], json!(history(docs)), "{name}");
        let arguments: Vec<Json> = arguments(docs).iter().map(argument_in_json).collect();
        let listed = described.get("arguments").cloned();
        assert_eq!(listed.unwrap_or(json!([])), json!(arguments), "{name}");
    }
}

/// Redis before 7.2 puts a module's commands into no category, and Redis before 7.4 has no `@lock`.
#[test]
fn commands_json_says_what_command_info_says() {
    let server = Server::start();
    for (name, described) in described() {
        let info = server.call(&["COMMAND", "INFO", &name]).list();
        let info = Ok(info[0].clone()).list();
        let [_, arity, flags, _, _, _, categories, _, key_specs, ..] = info.as_slice() else {
            panic!("{name}: {info:?}");
        };
        assert_eq!(described["arity"], json!(Ok(arity.clone()).int()), "{name}");
        let mut flags = texts(flags.clone());
        // The server adds these flags itself.
        flags.retain(|flag| !["module", "movablekeys"].contains(&flag.as_str()));
        assert_eq!(
            names_in(&described["command_flags"]),
            upper_case(flags),
            "{name}"
        );
        let categories = upper_case(texts(categories.clone()));
        let mut listed = names_in(&described["acl_categories"]);
        assert!(listed.contains("LOCK"), "{name}");
        if !categories.contains("LOCK") {
            listed.remove("LOCK");
        }
        if !categories.is_empty() {
            assert_eq!(listed, categories, "{name}");
        }
        let mut listed = described.get("key_specs").cloned().unwrap_or(json!([]));
        let listed = listed.as_array_mut().expect("a list");
        let key_specs = Ok(key_specs.clone()).list();
        assert_eq!(listed.len(), key_specs.len(), "{name}");
        for (listed, spec) in listed.iter_mut().zip(key_specs) {
            let spec = Fields::of(spec);
            let flags = listed["flags"].take();
            listed.as_object_mut().expect("a key spec").remove("flags");
            assert_eq!(
                names_in(&flags),
                upper_case(texts(spec.get("flags"))),
                "{name}"
            );
            assert_eq!(*listed, key_spec_in_json(&spec), "{name}");
        }
    }
}

// ---- the documentation against the parser

/// Replaces every `<key>` with a key without a holder, and `<numkeys>` with their number.
fn with_fresh_keys(line: &str, next_key: &mut u32) -> String {
    let count = line.matches("<key>").count();
    let mut filled = line.replace("<numkeys>", &count.to_string());
    for _ in 0..count {
        *next_key += 1;
        filled = filled.replacen("<key>", &format!("key{next_key}"), 1);
    }
    filled
}

/// Returns true if the error rejects the command's words themselves.
fn is_of_words(error: &str) -> bool {
    error.starts_with("ERR wrong number of arguments")
        || error.starts_with("ERR syntax error")
        || error.starts_with("ERR numkeys")
}

const INTERNAL: &str = "ERR LOCK.APPLY is internal";

#[test]
fn every_command_is_described() {
    let server = Server::start();
    let docs = docs(&server);
    assert_eq!(docs.len(), COMMANDS.len());
    for (name, docs) in docs {
        let summary = docs.text("summary");
        assert!(summary.ends_with('.'), "{name}: {summary}");
        assert!(summary.len() < 120, "{name}: {summary}");
        assert!(docs.text("complexity").starts_with("O("), "{name}");
        let versions = history(&docs);
        assert_eq!(versions[0], (docs.text("since"), "Added.".to_owned()));
        for (version, change) in versions {
            let numbers = version
                .split('.')
                .filter(|part| part.parse::<u32>().is_ok());
            assert_eq!(numbers.count(), 3, "{name}: {version}");
            assert!(change.ends_with('.'), "{name}: {change}");
        }
        assert_eq!(docs.text("group"), "module", "{name}");
        assert_eq!(docs.text("module"), "lock", "{name}");
    }
}

#[test]
fn every_line_that_the_documentation_allows_is_taken() {
    let server = Server::start();
    let mut next_key = 0;
    let mut taken = 0;
    for (name, docs) in docs(&server) {
        for line in lines(&arguments(&docs)) {
            let command = format!("{name} {}", with_fresh_keys(&line, &mut next_key));
            match server.call(&command) {
                Ok(_) => {}
                // This server has no replicas.
                Err(error) if error.starts_with("NOREPLICAS") && line.contains("REPLICAS") => {}
                Err(error) => assert!(
                    name == "lock.apply" && error == INTERNAL,
                    "{command}: {error}"
                ),
            }
            taken += 1;
        }
    }
    // ACQUIRE alone has 3 lease forms, each with nothing, REENTRANT or HOLDS.
    assert!(taken > 50, "{taken} lines");
}

#[test]
fn a_line_without_something_that_the_documentation_demands_is_refused() {
    let server = Server::start();
    let mut next_key = 0;
    for (name, docs) in docs(&server) {
        let args = arguments(&docs);
        let shortest = |args: &[Arg]| lines(args).swap_remove(0);
        let mut broken = Vec::new();
        for (place, arg) in args.iter().enumerate() {
            if !arg.optional {
                let without = [&args[..place], &args[place + 1..]].concat();
                broken.push(shortest(&without));
            }
            let forms = arg.broken_forms().into_iter();
            broken.extend(forms.map(|form| format!("{} {form}", shortest(&args))));
        }
        assert_eq!(broken.is_empty(), args.is_empty(), "{name}");
        for line in broken {
            let command = format!("{name} {}", with_fresh_keys(&line, &mut next_key));
            let error = server.call(&command).error();
            assert!(is_of_words(&error), "{command}: {error}");
        }
    }
    assert_eq!(server.call("DBSIZE").int(), 0);
}

#[test]
fn the_documentation_has_every_option_that_is_taken_and_no_other() {
    let server = Server::start();
    let options = [
        ("PX", "PX 5"),
        ("EX", "EX 5"),
        ("BLOCK", "BLOCK 5"),
        ("SHARED", "SHARED"),
        ("LIMIT", "SHARED LIMIT 5"),
        ("PERMITS", "SHARED LIMIT 5 PERMITS 2"),
        ("REENTRANT", "REENTRANT"),
        ("HOLDS", "HOLDS 5"),
        ("SESSION", "SESSION"),
        ("KEEP", "SESSION KEEP 5"),
        ("NOTIFY", "NOTIFY channel message"),
        ("NOSESSION", "NOSESSION"),
        ("ALL", "ALL"),
        ("WAITERS", "WAITERS 5"),
        ("DATA", "DATA bytes"),
        ("REPLICAS", "REPLICAS 1"),
        ("WITHIN", "REPLICAS 1 WITHIN 5"),
        ("FENCE", "FENCE 5"),
        ("GT", "GT"),
        ("LEAVE", "LEAVE 5"),
        ("COUNT", "COUNT 5"),
    ];
    let all: BTreeSet<String> = options.iter().map(|(word, _)| (*word).to_owned()).collect();
    let mut next_key = 0;
    for (name, docs) in docs(&server) {
        let args = arguments(&docs);
        let documented: BTreeSet<String> = args.iter().flat_map(Arg::tokens).collect();
        assert!(documented.is_subset(&all), "{name}: {documented:?}");
        if name == "lock.apply" {
            continue; // A client gets INTERNAL whatever options it sends.
        }
        let shortest = lines(&args).swap_remove(0);
        for (word, option) in options {
            let line = with_fresh_keys(&shortest, &mut next_key);
            // KEEP applies to the grant of a session, or to a place.
            let option = match (word, documented.contains("SESSION")) {
                ("KEEP", false) => "KEEP 5",
                _ => option,
            };
            let taken = server.call(format!("{name} {line} {option}"));
            let refused = taken.as_ref().is_err_and(|error| is_of_words(error));
            // This server has no replicas.
            let lacks_replicas = taken
                .as_ref()
                .is_err_and(|error| error.to_string().contains("NOREPLICAS"));
            let is_read = taken.is_ok() || lacks_replicas;
            assert!(is_read || refused, "{name} {option}: {taken:?}");
            assert_eq!(documented.contains(word), is_read, "{name} {option}");
        }
    }
}
