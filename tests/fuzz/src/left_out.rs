//! What plain servers die of, and a run therefore leaves out. Each line was seen without the module;
//! the comment beside it says how to see it again with redis-cli.

use crate::server::Version;

/// The names of kinds that a run doesn't draw.
#[derive(Default)]
pub struct LeftOut {
    /// At all.
    pub everywhere: Vec<&'static str>,
    /// Where a MULTI may be open.
    pub in_multi: Vec<&'static str>,
}

/// Where a server can't take a kind.
enum Where {
    Everywhere,
    InMulti,
}

struct Fault {
    kind: &'static str,
    place: Where,
    servers: &'static [&'static str],
}

const FAULTS: &[Fault] = &[
    // A: BLPOP k 0 is not needed; any client will do.
    // A: CLIENT PAUSE 1000 WRITE   B: SET k v   A: CLIENT UNBLOCK <id of B>
    // An assertion: the server answers a client that is put off as if it were blocked on keys.
    Fault {
        kind: "pause-write",
        place: Where::Everywhere,
        servers: &["Redis 7.0", "Redis 8.0", "Valkey 8.0", "Valkey 8.1"],
    },
    // SET k v PX 1   MULTI   CLIENT PAUSE 1000 WRITE   GETSET k w   EXEC
    // An assertion: the removal of the expired key is to be propagated while writes are paused.
    Fault {
        kind: "pause-write",
        place: Where::InMulti,
        servers: &["Redis 8.6"],
    },
    // A: CLIENT NO-TOUCH ON   B: BLPOP k 0   A: RPUSH k v
    // SIGSEGV: serving B looks at the current client, which is none by then.
    Fault {
        kind: "no-touch",
        place: Where::Everywhere,
        servers: &["Redis 8.0", "Valkey 8.1"],
    },
];

impl LeftOut {
    /// What this server can't take.
    pub fn of(version: &Version) -> LeftOut {
        let mut left_out = LeftOut::default();
        for fault in FAULTS {
            if fault.servers.iter().any(|name| version.is(name)) {
                match fault.place {
                    Where::Everywhere => left_out.everywhere.push(fault.kind),
                    Where::InMulti => left_out.in_multi.push(fault.kind),
                }
            }
        }
        left_out
    }
}
