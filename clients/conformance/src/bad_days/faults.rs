//! Outages: how each begins and ends.

use std::fs;

use serde_json::json;

use crate::servers::until;
use crate::world::World;

/// An outage, which begins and ends on command.
pub struct Outage {
    /// The preparation before the first driver starts.
    pub prepare: fn(&mut World),
    pub begin: fn(&mut World),
    pub end: fn(&mut World),
    /// The server's treatment of a wait that it knows.
    pub waits: Waits,
}

/// A server's treatment, in an outage, of a wait that began before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// It can't reply.
    AreCutOff,
    /// It may reply as ever, if the client doesn't send anything that it refuses.
    MayGoOn,
}

/// The server is not running.
pub const KILLED: Outage = Outage {
    prepare: |_| {},
    begin: |world| world.servers.kill(),
    end: |world| {
        world.servers.restart();
        world.until_served();
    },
    waits: Waits::AreCutOff,
};

/// The server hangs, and keeps its connections.
pub const STOPPED: Outage = Outage {
    prepare: |_| {},
    begin: |world| world.servers.stop(),
    end: |world| {
        world.servers.go_on();
        world.until_served();
    },
    waits: Waits::AreCutOff,
};

/// Bytes and connections to the server are lost without a word.
pub const VANISHED: Outage = Outage {
    prepare: start_relay,
    begin: |world| world.servers.relay().swallow(),
    end: |world| world.servers.relay().pass(),
    waits: Waits::AreCutOff,
};

/// New connections get no answer.
pub const HANGING: Outage = Outage {
    prepare: start_relay,
    begin: |world| world.servers.relay().hang(),
    end: |world| world.servers.relay().pass(),
    waits: Waits::MayGoOn,
};

/// Each connection is reset.
pub const RESET: Outage = Outage {
    prepare: start_relay,
    begin: |world| world.servers.relay().reset(),
    end: |world| world.servers.relay().pass(),
    waits: Waits::AreCutOff,
};

fn start_relay(world: &mut World) {
    world.servers.relay();
}

/// The number of keys that a slow load has, and the time that it takes for each.
const SLOW_KEYS: usize = 600;
const SLOW_KEY_US: usize = 20_000;

/// The server loads its data, slowly. It replies between two keys, each longer than the interval
/// after which it looks at its connections.
pub const LOADING: Outage = Outage {
    prepare: make_slow_keys,
    begin: |world| {
        let servers = &mut world.servers;
        servers.call(&format!("CONFIG SET key-load-delay {SLOW_KEY_US}"));
        servers.begin_call(&["DEBUG", "RELOAD"]);
        world.until_refused("LOADING");
    },
    end: |world| {
        world.servers.call("CONFIG SET key-load-delay 0");
        world.until_served();
    },
    waits: Waits::AreCutOff,
};

fn make_slow_keys(world: &mut World) {
    let servers = &mut world.servers;
    servers.call("CONFIG SET rdbcompression no");
    servers.call("CONFIG SET loading-process-events-interval-bytes 1024");
    let value = "v".repeat(1100);
    for number in 0..SLOW_KEYS {
        servers.call_on_kept(&format!("SET {{t}}slow{number} {value}"));
    }
}

/// The server is a replica of an absent primary.
pub const READ_ONLY: Outage = Outage {
    prepare: |_| {},
    begin: |world| {
        world.servers.call("REPLICAOF 127.0.0.1 1");
    },
    end: promote,
    waits: Waits::AreCutOff,
};

/// The server is a replica that serves nothing without its primary.
pub const WITHOUT_PRIMARY: Outage = Outage {
    prepare: |_| {},
    begin: |world| {
        world.servers.call("CONFIG SET replica-serve-stale-data no");
        world.servers.call("CONFIG SET replica-read-only no");
        world.servers.call("REPLICAOF 127.0.0.1 1");
        world.until_refused("MASTERDOWN");
    },
    end: promote,
    waits: Waits::AreCutOff,
};

fn promote(world: &mut World) {
    world.servers.call("REPLICAOF NO ONE");
}

/// The keys' slot is served by no node.
pub const CLUSTER_DOWN: Outage = Outage {
    prepare: |_| {},
    begin: |world| {
        world.servers.set_slot("DELSLOTS");
        world.until_refused("CLUSTERDOWN");
    },
    end: |world| {
        world.servers.set_slot("ADDSLOTS");
        world.until_served();
    },
    waits: Waits::MayGoOn,
};

/// The server has no memory left.
pub const OUT_OF_MEMORY: Outage = Outage {
    prepare: |_| {},
    begin: |world| {
        world.servers.call("CONFIG SET maxmemory 1");
    },
    end: |world| {
        world.servers.call("CONFIG SET maxmemory 0");
    },
    waits: Waits::MayGoOn,
};

/// The server can't save its data, so it refuses writes.
pub const CANT_SAVE: Outage = Outage {
    prepare: |_| {},
    begin: |world| {
        let dump = world.servers.dir().join("dump.rdb");
        drop(fs::remove_file(&dump));
        // The server can't replace a folder by a file.
        fs::create_dir_all(dump.join("in the way")).expect("a folder");
        let servers = &world.servers;
        servers.call_words(&["CONFIG", "SET", "save", "3600 1"]);
        servers.call("CONFIG SET stop-writes-on-bgsave-error yes");
        until("a save begins", || world.servers.try_call("BGSAVE").is_ok());
        world.until_refused("MISCONF");
    },
    end: |world| {
        world
            .servers
            .call("CONFIG SET stop-writes-on-bgsave-error no");
        // Otherwise the server could never load the data of a primary.
        fs::remove_dir_all(world.servers.dir().join("dump.rdb")).expect("a folder");
    },
    waits: Waits::MayGoOn,
};

/// The server's disk is full. A server that appends each write before its reply ends at the first one.
pub const DISK_FULL: Outage = Outage {
    prepare: |_| {},
    begin: |world| world.servers.fill_disk(),
    end: |world| world.servers.free_disk(),
    waits: Waits::AreCutOff,
};

/// The disk is full of a server that appends writes after its replies. It refuses writes.
pub const DISK_FULL_EVERYSEC: Outage = Outage {
    prepare: |_| {},
    begin: |world| {
        world.servers.call("CONFIG SET appendfsync everysec");
        world.servers.fill_disk();
    },
    end: |world| {
        world.servers.free_disk();
        world.servers.call("CONFIG SET appendfsync always");
        // Otherwise no server reads its file again: see docs/operate/known-defects.md.
        world.servers.rewrite_file();
    },
    waits: Waits::MayGoOn,
};

/// The server has too few replicas for `min-replicas-to-write`.
pub const TOO_FEW_REPLICAS: Outage = Outage {
    prepare: |_| {},
    begin: |world| {
        world.servers.call("CONFIG SET min-replicas-to-write 1");
        world.until_refused("NOREPLICAS");
    },
    end: |world| {
        world.servers.call("CONFIG SET min-replicas-to-write 0");
    },
    waits: Waits::MayGoOn,
};

/// The server runs a script without end.
pub const BUSY: Outage = Outage {
    prepare: |_| {},
    begin: |world| {
        world.servers.call("CONFIG SET busy-reply-threshold 20");
        // A primary whose replicas are late refuses a script that may write.
        let endless = ["EVAL", "#!lua flags=no-writes\nwhile true do end", "0"];
        world.servers.begin_call(&endless);
        world.until_busy();
    },
    end: |world| {
        world.servers.call("SCRIPT KILL");
        world.until_served();
    },
    waits: Waits::AreCutOff,
};

/// The server takes no further connection.
pub const FULL: Outage = Outage {
    prepare: |_| {},
    begin: |world| world.servers.call_on_kept("CONFIG SET maxclients 1"),
    end: |world| world.servers.call_on_kept("CONFIG SET maxclients 10000"),
    waits: Waits::MayGoOn,
};

/// The user of the drivers in rows about passwords and rights, and the user's password.
pub const USER: &str = "app";
pub const PASSWORD: &str = "right";

/// Makes the drivers' user, who may do everything.
pub fn make_user(world: &World) {
    change_user(world, "reset on ~* &* +@all");
    change_user(world, &format!(">{PASSWORD}"));
}

/// Changes the rights of the drivers' user at each server.
pub fn change_user(world: &World, rules: &str) {
    world
        .servers
        .call_each(&format!("ACL SETUSER {USER} {rules}"));
}

/// Returns the fields by which a driver connects as this user.
pub fn as_user(password: &str) -> serde_json::Value {
    json!({"username": USER, "password": password})
}
