//! A slot that moves to another node and returns before the server has redirected its waiters.
//! A node must not grant a key that may be on the other node, whatever flags the client has set.

use crate::nodes::{moved_to, Cluster, Move};
use support::{until, Client, Expect, LockInfo, Reply, Server, LONG};

/// Returns a connection whose next command is served in a slot that the node is importing.
#[track_caller]
fn asking(server: &Server) -> Client {
    let mut client = server.client();
    client.call("ASKING").okay();
    client
}

#[track_caller]
fn ask(server: &Server, command: &str) -> Reply {
    asking(server).call(command)
}

/// Returns the tokens that hold a key at a node, in a slot that may be migrating.
#[track_caller]
fn holders(server: &Server, key: &str) -> Vec<String> {
    let told = ask(server, &format!("LOCK.INFO {key}")).value();
    LockInfo::of(told).map_or(Vec::new(), |info| info.holder_tokens())
}

/// `H` holds `{t}x` and `H2` holds `{t}y`. `W` waits for both at the slot's first node. The slot
/// left that node with both keys and is migrating back.
struct TurnedBack<'a> {
    /// The move back. Its target is the node at which `W` waits.
    back: Move<'a>,
    waiter: Client,
}

impl TurnedBack<'_> {
    #[track_caller]
    fn of(cluster: &Cluster) -> TurnedBack<'_> {
        let there = cluster.next_move("{t}");
        let first = there.source;
        first.call(format!("LOCK.ACQUIRE {{t}}x H {LONG}")).grant();
        first.call(format!("LOCK.ACQUIRE {{t}}y H2 {LONG}")).grant();
        let waiter = first.waiter(format!("LOCK.MWAIT 2 {{t}}x {{t}}y W {LONG}"));
        there.begin();
        there.all_keys();
        TurnedBack {
            back: there.turn_back(),
            waiter,
        }
    }

    /// Asserts that `H2` alone holds `{t}y`, and that the node at which `W` waits has no key.
    #[track_caller]
    fn assert_one_holder(&mut self) {
        let (waits, elsewhere) = (self.back.target, self.back.source);
        waits.settle();
        self.waiter.expect_silence();
        assert_eq!(holders(elsewhere, "{t}y"), ["H2"]);
        until("no key is left at the waiter's node", || {
            waits.call("DBSIZE").int() == 0
        });
    }

    /// Completes the move back and releases `{t}y`. Asserts that the wait ends with a grant or with
    /// a redirect to its own node.
    #[track_caller]
    fn come_back(mut self) {
        let (first, port) = (self.back.target, self.back.target.port());
        self.back.all_keys();
        self.back.end();
        self.back.until_known();
        assert_eq!(first.call("LOCK.RELEASE {t}y H2").int(), 1);
        match self.waiter.recv() {
            Err(error) => assert_eq!(moved_to(&error), Some(port), "{error}"),
            granted => assert_eq!(granted.grant().token, "W"),
        }
        until("no waiter", || first.info("lock", "lock_waiters") == "0");
    }
}

/// The commands by which `H` leaves `{t}x`. Each is sent after ASKING.
const LEAVES: [&str; 5] = [
    "LOCK.RELEASE {t}x H",
    "LOCK.MRELEASE 1 {t}x H",
    "DEL {t}x",
    "LOCK.EXTEND {t}x H PX 20",
    "PEXPIRE {t}x 20",
];

#[test]
fn a_key_that_stayed_elsewhere_is_granted_to_nobody() {
    for leaves in LEAVES {
        let cluster = Cluster::of_primaries();
        let mut scene = TurnedBack::of(&cluster);
        let (first, second) = (scene.back.target, scene.back.source);
        scene.back.key("{t}x");
        assert_eq!(holders(first, "{t}x"), ["H"]);
        assert_eq!(ask(first, leaves).int(), 1, "{leaves}");
        until("the holder has left", || holders(first, "{t}x") != ["H"]);
        // A command after ASKING makes the server examine the queues too.
        drop(ask(first, "LOCK.ACQUIRE {t}x S PX 1"));
        assert_eq!(holders(second, "{t}y"), ["H2"], "{leaves}");
        scene.assert_one_holder();
        scene.come_back();
    }
}

#[test]
fn a_transaction_that_asks_grants_nobody_what_is_elsewhere() {
    let cluster = Cluster::of_primaries();
    let mut scene = TurnedBack::of(&cluster);
    let first = scene.back.target;
    scene.back.key("{t}x");
    let mut client = first.client();
    for command in ["ASKING", "MULTI", "ASKING", "LOCK.RELEASE {t}x H"] {
        client.call(command).value();
    }
    client.call("ASKING").value();
    client.call("EXEC").list();
    scene.assert_one_holder();
    scene.come_back();
}

#[test]
fn a_wait_for_one_key_that_came_back_is_granted_there() {
    let cluster = Cluster::of_primaries();
    let there = cluster.next_move("{t}");
    let first = there.source;
    let held = first.call(format!("LOCK.ACQUIRE {{t}}x H {LONG}")).grant();
    let mut waiter = first.waiter(format!("LOCK.WAIT {{t}}x W {LONG}"));
    there.begin();
    there.all_keys();
    let back = there.turn_back();
    back.all_keys();
    assert_eq!(ask(first, "LOCK.RELEASE {t}x H").int(), 1);
    let granted = waiter.recv().grant();
    assert!(granted.fence > held.fence, "{granted:?} after {held:?}");
    assert_eq!(holders(first, "{t}x"), ["W"]);
    assert_eq!(back.source.call("DBSIZE").int(), 0);
    back.end();
}
