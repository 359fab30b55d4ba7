//! The default, the range and the meaning of each argument. The server's description of a command
//! has no room for them.

use anyhow::{bail, Result};

use crate::command::Command;

/// An argument's default, range and meaning, for some commands.
#[derive(Debug)]
pub struct Meaning {
    argument: &'static str,
    /// The actions whose commands take the argument so: `ACQUIRE` for LOCK.ACQUIRE and
    /// LOCK.MACQUIRE.
    verbs: &'static [&'static str],
    /// The default of an optional argument; empty for a required one.
    pub default: &'static str,
    /// The values that the argument takes; empty for a word without a value.
    pub range: &'static str,
    /// The meaning, in sentences.
    pub text: &'static str,
}

const GRANTING: &[&str] = &["ACQUIRE", "WAIT", "QUEUE"];
const LEASE: &str = "1 to 9007199254740991";
const SECONDS: &str = "1 to 9007199254740";
const COUNT: &str = "1 to 4294967295";
const BYTES: &str = "1 to 256 bytes";

const MEANINGS: &[Meaning] = &[
    Meaning {
        argument: "numkeys",
        verbs: &["ACQUIRE", "WAIT", "QUEUE", "EXTEND", "RELEASE"],
        default: "",
        range: "1 to the number of keys that follow",
        text: "The number of keys that follow. The server runs no other command until it is done \
               with all keys: [what many keys \
               cost](../operate/sizing.md#how-long-can-one-command-hold-up-the-server).",
    },
    Meaning {
        argument: "token",
        verbs: &["ACQUIRE", "WAIT"],
        default: "",
        range: BYTES,
        text: "Names the owner. With `*` the server makes a new random one.",
    },
    Meaning {
        argument: "token",
        verbs: &["QUEUE"],
        default: "",
        range: BYTES,
        text: "Names the owner. `*` is an error, because the next call must bring the same token.",
    },
    Meaning {
        argument: "token",
        verbs: &["CANCEL", "EXTEND", "RELEASE", "CHECK"],
        default: "",
        range: BYTES,
        text: "Names the owner. It must exist already, so `*` is an error.",
    },
    Meaning {
        argument: "PX",
        verbs: &["ACQUIRE", "WAIT"],
        default: "`lock.default-lease`",
        range: LEASE,
        text: "Sets the lease, counted from the grant.",
    },
    Meaning {
        argument: "PX",
        verbs: &["QUEUE"],
        default: "`lock.default-lease`",
        range: LEASE,
        text: "Sets the lease, counted from the command that returns the grant.",
    },
    Meaning {
        argument: "PX",
        verbs: &["EXTEND"],
        default: "the length that was set last",
        range: LEASE,
        text: "Sets the lease, counted from now. The length that was set last is part of the \
               lock: the server stores, replicates and dumps it with the lock.",
    },
    Meaning {
        argument: "EX",
        verbs: &["ACQUIRE", "WAIT", "QUEUE", "EXTEND"],
        default: "as for `PX`",
        range: SECONDS,
        text: "Sets the lease like `PX`, in seconds.",
    },
    Meaning {
        argument: "GT",
        verbs: &["EXTEND"],
        default: "the lease is set, longer or shorter",
        range: "",
        text:
            "Sets the lease only if it then ends later. Otherwise the lease and its length stay. \
               The reply is the same.",
    },
    Meaning {
        argument: "BLOCK",
        verbs: &["WAIT"],
        default: "0",
        range: "0 to 9007199254740991",
        text: "Waits at most that long. With 0 the wait has no timeout.",
    },
    Meaning {
        argument: "SHARED",
        verbs: GRANTING,
        default: "exclusive",
        range: "",
        text: "Asks for a shared grant. Shared holders admit each other; an exclusive holder \
               admits no other.",
    },
    Meaning {
        argument: "LIMIT",
        verbs: GRANTING,
        default: "no limit",
        range: COUNT,
        text: "Asks for a shared grant among at most that many holders. If the limits of the \
               holders and yours differ, the smallest one applies.",
    },
    Meaning {
        argument: "PERMITS",
        verbs: GRANTING,
        default: "1",
        range: "1 to the limit",
        text: "Makes the grant count as that many holders. You get all of the permits or none.",
    },
    Meaning {
        argument: "REENTRANT",
        verbs: &["ACQUIRE", "WAIT"],
        default: "a repeat adds no hold",
        range: "",
        text: "Adds one hold if the token holds the lock already.",
    },
    Meaning {
        argument: "HOLDS",
        verbs: GRANTING,
        default: "a repeat adds no hold",
        range: COUNT,
        text: "Sets how many holds the token has after the grant. Your client counts the holds, \
               so you can send the command again without harm.",
    },
    Meaning {
        argument: "HOLDS",
        verbs: &["RELEASE"],
        default: "one hold less",
        range: "0 to 4294967295",
        text: "Leaves that many holds. It never adds holds, and 0 frees the lock.",
    },
    Meaning {
        argument: "DATA",
        verbs: &["ACQUIRE", "WAIT", "QUEUE"],
        default: "a new holder has none, a token that holds keeps its data",
        range: "0 to 1024 bytes",
        text: "Sets the data of the holder, which `LOCK.INFO` shows to everyone who may read the \
               key. Put no secrets in it.",
    },
    Meaning {
        argument: "DATA",
        verbs: &["EXTEND"],
        default: "the holder keeps its data",
        range: "0 to 1024 bytes",
        text: "Replaces the data of the holder. `DATA \"\"` clears it.",
    },
    Meaning {
        argument: "REPLICAS",
        verbs: &["ACQUIRE", "WAIT", "EXTEND"],
        default: "the reply comes at once",
        range: "1 to 1000",
        text: "Holds back the reply until that many replicas have what the command changed.",
    },
    Meaning {
        argument: "WITHIN",
        verbs: &["ACQUIRE", "WAIT", "EXTEND"],
        default: "`lock.replicas-timeout`",
        range: "1 to 9007199254740991",
        text: "Waits at most that long for the replicas. After that the reply is `NOREPLICAS`, \
               and what the command changed stays.",
    },
    Meaning {
        argument: "FENCE",
        verbs: &["EXTEND"],
        default: "the grant keeps its fence",
        range: "1 to 60 s ahead of the clock, in microseconds since 1970",
        text: "Raises the fence of the grant to that number if it is lower, and the server's \
               counter to at least that number. A number that isn't above the counter is always \
               in range.",
    },
    Meaning {
        argument: "ALL",
        verbs: &["RELEASE"],
        default: "one hold less",
        range: "",
        text: "Takes off all holds at once.",
    },
    Meaning {
        argument: "LEAVE",
        verbs: &["RELEASE"],
        default: "one hold less",
        range: "1 to 86400000",
        text: "Ends all holds, waits and places of the token at the key. For that long afterwards \
               the token's ACQUIRE, WAIT and QUEUE get `LEFT`: [leave a \
               lock](release.md#leave-a-lock).",
    },
    Meaning {
        argument: "SESSION",
        verbs: &["ACQUIRE", "WAIT"],
        default: "the lease runs on its own",
        range: "",
        text: "Ties the grant to this connection. The server renews the lease while the \
               connection is open, and ends the grant when the connection closes.",
    },
    Meaning {
        argument: "SESSION",
        verbs: &["EXTEND"],
        default: "the grant stays tied or untied",
        range: "",
        text: "Ties the grant to the connection that sends the command, even if the grant was \
               tied to another one.",
    },
    Meaning {
        argument: "NOSESSION",
        verbs: &["EXTEND"],
        default: "the grant stays tied or untied",
        range: "",
        text: "Unties the grant: the server no longer renews it.",
    },
    Meaning {
        argument: "KEEP",
        verbs: &["ACQUIRE", "EXTEND"],
        default: "the grant ends with the connection",
        range: LEASE,
        text: "Keeps the grant for that long after the close. The server then sets the lease to \
               KEEP, shorter or longer than it was. The lease expires like any other, unless you \
               tie the grant again before. Each SESSION sets KEEP anew; a SESSION without KEEP \
               removes it.",
    },
    Meaning {
        argument: "KEEP",
        verbs: &["WAIT"],
        default: "no place stays",
        range: LEASE,
        text: "Keeps your place in the queue for that long while no command of the token waits: \
               after BLOCK has ended, and after the connection was lost, whichever end closed \
               it. With SESSION, KEEP also applies to the grant, like that of \
               [LOCK.ACQUIRE](acquire.md#arguments).",
    },
    Meaning {
        argument: "KEEP",
        verbs: &["QUEUE"],
        default: "`lock.default-keep`",
        range: LEASE,
        text: "The server keeps the place for that long after your last call. If you don't call \
               again in that time, the place is gone, and you aren't notified.",
    },
    Meaning {
        argument: "NOTIFY",
        verbs: &["QUEUE"],
        default: "no message",
        range: "0 to 1024 bytes each",
        text: "Has the server publish your message on your channel when it grants the token the \
               lock, so that you needn't poll: [messages](queue.md#messages).",
    },
    Meaning {
        argument: "WAITERS",
        verbs: &["INFO"],
        default: "10",
        range: "0 to 9007199254740991",
        text: "Shows at most that many waiters, in any case at most 3,000, and only as many as \
               need no more than 30,000 keys together. If you ask for any, it always shows \
               the first one.",
    },
    Meaning {
        argument: "COUNT",
        verbs: &["HOT"],
        default: "16",
        range: "1 to 128",
        text: "Shows at most that many keys.",
    },
];

const KEY: Meaning = Meaning {
    argument: "key",
    verbs: &[],
    default: "",
    range: "any key",
    text: "The key of the lock.",
};

const KEYS: Meaning = Meaning {
    argument: "key",
    verbs: &[],
    default: "",
    range: "any key",
    text: "The key of each lock. Naming a key twice is an error. In a cluster all keys must be in \
           one slot, as for every command with several keys.",
};

/// Returns the meaning of a command's argument.
pub fn of(command: &Command, argument: &str) -> Result<&'static Meaning> {
    let found: Vec<&Meaning> = match argument {
        "key" if command.has_several_keys() => vec![&KEYS],
        "key" => vec![&KEY],
        _ => {
            let of_it =
                |it: &&Meaning| it.argument == argument && it.verbs.contains(&command.verb());
            MEANINGS.iter().filter(of_it).collect()
        }
    };
    match found.as_slice() {
        [only] => Ok(only),
        _ => bail!(
            "{} has {} meanings of {argument}",
            command.name(),
            found.len()
        ),
    }
}

/// Returns an error if a meaning belongs to no argument of a command.
pub fn check(commands: &[Command]) -> Result<()> {
    for meaning in MEANINGS {
        for verb in meaning.verbs {
            let mut of_verb = commands.iter().filter(|command| command.verb() == *verb);
            let takes_it = |command: &Command| {
                let rows = command.arguments.iter().flat_map(|it| it.rows());
                rows.into_iter().any(|row| row.word == meaning.argument)
            };
            if !of_verb.any(takes_it) {
                bail!("no command LOCK.{verb} takes {}", meaning.argument);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_a_range_and_a_word_has_none() {
        let words = ["SHARED", "REENTRANT", "ALL", "GT", "SESSION", "NOSESSION"];
        for meaning in MEANINGS {
            let is_word = words.contains(&meaning.argument);
            assert_eq!(meaning.range.is_empty(), is_word, "{meaning:?}");
        }
    }
}
