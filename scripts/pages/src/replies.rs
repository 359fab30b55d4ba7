//! The replies of each command, as JSON schemas of its RESP3 replies. The server's description of a
//! command has no room for them.

use serde_json::{json, Value};

use crate::command::Command;

/// Returns the schema of a command's replies.
pub fn schema(command: &Command) -> Value {
    let several = command.has_several_keys();
    match command.verb() {
        "ACQUIRE" => one_of([
            grant(),
            null("The lock, or one of the locks, can't be granted now."),
        ]),
        "WAIT" => one_of([
            grant(),
            null("BLOCK milliseconds have passed, or the command can't wait, like in a script."),
        ]),
        "QUEUE" => one_of([
            grant(),
            at_least_1("The token's place in the queue, or the greatest of its places."),
        ]),
        "CANCEL" => one_of([
            constant(1, "A wait or a place ended."),
            constant(0, "The token has none that needs the key."),
        ]),
        "EXTEND" if several => one_of([
            at_least_1("The number of keys; the token holds all of them."),
            constant(0, "The token doesn't hold all of them."),
        ]),
        "RELEASE" if several => one_of([
            at_least_1("The number of keys that the token held."),
            constant(0, "The token holds none of them."),
        ]),
        "EXTEND" | "RELEASE" => one_of([
            constant(1, "The token held the lock."),
            constant(0, "The token doesn't hold the lock."),
        ]),
        "CHECK" => one_of([
            at_least_1("The milliseconds that are left of the lease."),
            constant(0, "The token doesn't hold the lock."),
        ]),
        "INFO" => one_of([lock(), null("No token holds the lock or waits for it.")]),
        "HOT" => json!({
            "description": "The keys that were waited for most, the first one most.",
            "type": "array",
            "maxItems": 128,
            "items": hot_key(),
        }),
        _ => json!({"type": "array", "items": {"type": "string"}}),
    }
}

/// Returns the names of the types of a command's replies, like `Array reply`.
pub fn types(command: &Command) -> Vec<&'static str> {
    let schema = schema(command);
    let replies = match schema["oneOf"].as_array() {
        Some(replies) => replies.iter().collect(),
        None => vec![&schema],
    };
    let mut names: Vec<&str> = replies.into_iter().flat_map(names_of).copied().collect();
    names.dedup();
    names
}

/// Returns the names of a reply's type; two if it differs between RESP2 and RESP3.
fn names_of(reply: &Value) -> &'static [&'static str] {
    match reply["type"].as_str() {
        Some("object") => &["Array reply", "Map reply"],
        Some("array") => &["Array reply"],
        Some("null") => &["Null reply"],
        _ => &["Integer reply"],
    }
}

fn one_of(replies: [Value; 2]) -> Value {
    json!({"oneOf": replies})
}

fn null(description: &str) -> Value {
    json!({"description": description, "type": "null"})
}

fn constant(number: u8, description: &str) -> Value {
    json!({"description": description, "const": number})
}

fn at_least_1(description: &str) -> Value {
    json!({"description": description, "type": "integer", "minimum": 1})
}

fn grant() -> Value {
    json!({
        "description": "The grant: its token and its fence.",
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": [
            {"description": "The token.", "type": "string"},
            {"description": "The fence.", "type": "integer", "minimum": 1},
        ],
    })
}

fn lock() -> Value {
    let mode = json!({"enum": ["exclusive", "shared"]});
    json!({
        "description": "The holders of the lock, and the first waiters.",
        "type": "object",
        "additionalProperties": false,
        "required": ["mode", "holders", "waiters", "queue"],
        "properties": {
            "mode": {"enum": ["exclusive", "shared", "free"]},
            "holders": {"type": "array", "items": shown(&[
                ("fence", integer()),
                ("holds", integer()),
                ("limit", integer()),
                ("permits", integer()),
                ("lease-ms", integer()),
                ("held-ms", integer()),
                ("session", json!({"enum": [0, 1]})),
                ("data", json!({"type": "string"})),
            ])},
            "waiters": integer(),
            "queue": {"type": "array", "items": shown(&[
                ("kind", json!({"enum": ["blocked", "place", "absent"]})),
                ("mode", mode),
                ("limit", integer()),
                ("permits", integer()),
                ("waiting-ms", integer()),
                ("timeout-ms", integer()),
                ("keep-ms", integer()),
                ("keys", json!({"type": "array", "items": {"type": "string"}})),
                ("data", json!({"type": "string"})),
            ])},
        },
    })
}

fn hot_key() -> Value {
    let counts = [
        "db",
        "waited-ms",
        "longest-wait-ms",
        "waiters",
        "waits",
        "refused",
        "grants",
        "held-ms",
    ];
    let mut properties = json!({"key": {"type": "string"}});
    for count in counts {
        properties[count] = integer();
    }
    let required: Vec<&str> = ["key"].into_iter().chain(counts).collect();
    json!({
        "description": "A key and its numbers of this minute and the one before.",
        "type": "object",
        "additionalProperties": false,
        "required": required,
        "properties": properties,
    })
}

fn integer() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// Returns the schema of a holder or a waiter. It has a token, which is null for a caller without
/// the right to it, and the fields of its connection while that is open.
fn shown(fields: &[(&str, Value)]) -> Value {
    let required = ["token"]
        .into_iter()
        .chain(fields.iter().map(|(name, _)| *name));
    let required: Vec<&str> = required.collect();
    let mut properties = json!({
        "token": {"oneOf": [{"type": "string"}, {"type": "null"}]},
        "client-id": integer(),
        "client-addr": {"type": "string"},
        "client-name": {"type": "string"},
    });
    for (name, schema) in fields {
        properties[*name] = schema.clone();
    }
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": required,
        "properties": properties,
    })
}
