//! Faults of plain servers, whose commands a run therefore leaves out. Each fault was seen without
//! the module. The comment above it shows how to reproduce the fault with redis-cli.

use crate::server::Version;
use crate::stage::Scene;

/// Names of the kinds that a run doesn't draw.
#[derive(Default)]
pub struct LeftOut {
    /// Kinds never drawn.
    pub everywhere: Vec<&'static str>,
    /// Kinds not drawn while a MULTI may be open.
    pub in_multi: Vec<&'static str>,
}

/// The situation in which a server can't take a kind.
enum Place {
    Everywhere,
    InMulti,
    InCluster,
    InMultiOfCluster,
}

struct Fault {
    kinds: &'static [&'static str],
    place: Place,
    servers: &'static [&'static str],
}

const FAULTS: &[Fault] = &[
    // A: CLIENT PAUSE 1000 WRITE   B: SET k v   A: CLIENT UNBLOCK <id of B>
    // A panic: the server takes a postponed client for a blocked client.
    Fault {
        kinds: &["pause-write"],
        place: Place::Everywhere,
        servers: &["Redis 7.0", "Redis 8.0", "Valkey 8.0", "Valkey 8.1"],
    },
    // DEBUG SET-ACTIVE-EXPIRE 0   SET k v PX 1   MULTI   CLIENT PAUSE 500 ALL   GETSET k w   EXEC
    // An assertion: the expired key stays while writes are paused, but counts as missing and is
    // added again.
    Fault {
        kinds: &["pause", "pause-write"],
        place: Place::InMulti,
        servers: &["Redis", "Valkey 8.0"],
    },
    // Two nodes. At A, which has slot 5 and keys in it: CLIENT PAUSE 5000. At B: CLUSTER SETSLOT 5
    // IMPORTING <A>, CLUSTER SETSLOT 5 NODE <B>.
    // An assertion: A removes its keys of the slot, and has to propagate that while it is paused.
    Fault {
        kinds: &["pause", "pause-write"],
        place: Place::InCluster,
        servers: &["Redis 8.0", "Redis 8.6", "Valkey 8.0"],
    },
    // Two nodes. At A, which has slot 5 and keys in it: CONFIG SET busy-reply-threshold 1, then
    // EVAL "for i = 1, 1e9 do end" 0. At B meanwhile: CLUSTER SETSLOT 5 IMPORTING <A>, CLUSTER
    // SETSLOT 5 NODE <B>.
    // An assertion: A loses the slot in the middle of the script, and removes the slot's keys.
    Fault {
        kinds: &["busy-soon"],
        place: Place::InCluster,
        servers: &["Valkey 8.1"],
    },
    // Two nodes, and a replica of A. At A, which has slot 3300: SET {b} v. At B: CLUSTER SETSLOT
    // 3300 IMPORTING <A>, CLUSTER SETSLOT 3300 NODE <B>.
    // A removes {b} without replicating that, so its replica keeps {b}.
    Fault {
        kinds: &["setslot"],
        place: Place::InCluster,
        servers: &["Redis 7.0"],
    },
    // A node with a replica: MULTI   CLUSTER SETSLOT 5 STABLE   EXEC
    // An assertion: the command blocks its client until the replica has it, in EXEC too.
    Fault {
        kinds: &[
            "migrating",
            "importing",
            "stable",
            "setslot",
            "there-and-back",
        ],
        place: Place::InMulti,
        servers: &["Valkey 8.0", "Valkey 8.1", "Valkey 9.1"],
    },
    // A node with all slots: SET {c} v   MULTI   SET {b} v   DEBUG RELOAD   EXEC   SET {c} v
    // DEBUG RELOAD
    // All keys are loaded into the slot of the EXEC, so GET {c} doesn't find its key. The second
    // RELOAD, or the next start, ends with "RDB has duplicated key".
    Fault {
        kinds: &["debug-reload"],
        place: Place::InMultiOfCluster,
        servers: &["Redis 8.0", "Redis 8.6", "Valkey"],
    },
    // A: CLIENT NO-TOUCH ON   B: BLPOP k 0   A: RPUSH k v
    // SIGSEGV: to serve B, the server reads the current client, and there is none by then.
    Fault {
        kinds: &["no-touch"],
        place: Place::Everywhere,
        servers: &["Redis 8.0", "Valkey 8.1"],
    },
    // DEBUG POPULATE 300000   A: FLUSHALL SYNC   B: CLIENT UNBLOCK <id of A>
    // An assertion: A waits for another thread, and CLIENT UNBLOCK must not end that wait.
    Fault {
        kinds: &["flush-sync"],
        place: Place::Everywhere,
        servers: &["Redis 8.0"],
    },
    // appendonly yes, rdb-key-save-delay 2000: DEBUG POPULATE 100   BGSAVE   CONFIG SET
    // rdb-key-save-delay 0   DEBUG RELOAD   and once the BGSAVE has ended: CLIENT PAUSE 1000 WRITE
    // DEBUG RELOAD
    // An assertion: the end of the BGSAVE makes the number of unsaved changes negative. The second
    // RELOAD sets it to 0 and is replicated for having changed it, while that is paused. All
    // servers have this fault; on the others `pause-write` is left out already.
    Fault {
        kinds: &["save"],
        place: Place::Everywhere,
        servers: &["Redis 8.6", "Valkey 9.1"],
    },
    // appendonly yes   DEBUG POPULATE 400000   BGREWRITEAOF, and then at once
    // A: DEBUG LOADAOF   B: DEBUG LOADAOF
    // SIGABRT or SIGSEGV: the second command is accepted while the first loads. If appendonly is
    // no, Redis 7.0 dies of a single command, too.
    Fault {
        kinds: &["debug-loadaof"],
        place: Place::Everywhere,
        servers: &["Redis", "Valkey"],
    },
];

impl LeftOut {
    /// Returns the kinds that this server can't take in this scene.
    pub fn of(version: &Version, scene: Scene) -> LeftOut {
        let mut left_out = LeftOut::default();
        for fault in FAULTS {
            if fault.servers.iter().any(|name| version.is(name)) {
                match (&fault.place, scene) {
                    (Place::Everywhere, _) | (Place::InCluster, Scene::Cluster) => {
                        left_out.everywhere.extend(fault.kinds);
                    }
                    (Place::InMulti, _) | (Place::InMultiOfCluster, Scene::Cluster) => {
                        left_out.in_multi.extend(fault.kinds);
                    }
                    (Place::InCluster | Place::InMultiOfCluster, Scene::Plain) => {}
                }
            }
        }
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{CLUSTER_KINDS, KINDS};

    #[test]
    fn what_is_left_out_is_in_the_table() {
        for name in FAULTS.iter().flat_map(|fault| fault.kinds) {
            let mut kinds = KINDS.iter().chain(CLUSTER_KINDS);
            assert!(kinds.any(|kind| kind.name == *name), "{name}");
        }
    }
}
