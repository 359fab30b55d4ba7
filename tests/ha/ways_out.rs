//! The outcome of each kind of wait while its slot migrates: one table. `tests/waiting/wake_ups.rs`
//! has all other ways in which a wait ends.

use std::time::Duration;

use redis::Value;

use crate::nodes::{Cluster, Move};
use support::{eventually, until, Client, Expect, Flavour, LockInfo, Reply, Server, LONG};

/// The outcomes of each way, whose steps are divided by `;`. `a` holds a lock, `w` is first in its
/// queue, and `z` has a place behind `w`.
///
/// A cell has the reply to `w`, and the token that then holds the lock at either node. `waits`
/// means no reply. A `w` without a blocked connection gets the reply of LOCK.QUEUE at its first
/// node. If that node still queues `w`, the cell has the kind in LOCK.INFO instead: `place` or
/// `absent`.
///
/// `?` is either outcome: it depends on when the server looks for waiters to redirect, see
/// `slots_that_turn_back.rs`. Not every server moves slots atomically.
const TABLE: &str = "
way                                       | blocked     | place       | published | absent
moves as a whole                          | MOVED a     | MOVED a     | no        | MOVED a
moves as a whole; release                 | MOVED -     | MOVED -     | no        | MOVED -
begins                                    | waits a     | place a     | no        | absent a
begins; release                           | granted w   | granted w   | yes       | absent z
begins; keys go                           | waits a     | ASK a       | no        | ASK a
begins; keys go; release                  | waits -     | ASK -       | no        | ASK -
begins; given up                          | waits a     | place a     | no        | absent a
begins; given up; release                 | granted w   | granted w   | yes       | absent z
begins; keys go; ends                     | MOVED a     | MOVED a     | no        | MOVED a
begins; keys go; ends; release            | MOVED -     | MOVED -     | no        | MOVED -
begins; keys go; turns back; release      | ?           | granted w   | yes       | absent z
begins; keys go; ends; comes back         | MOVED a     | place a     | no        | absent a
begins; keys go; ends; comes back; release| MOVED z     | granted w   | yes       | absent z
";

/// The kind of `w`'s wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Blocked,
    Place,
    Absent,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Blocked, Kind::Place, Kind::Absent];

    fn name(self) -> &'static str {
        match self {
            Kind::Blocked => "blocked",
            Kind::Place => "place",
            Kind::Absent => "absent",
        }
    }
}

/// One lock, the client that waits for it with the token `w`, and a subscriber to its channel.
struct Wait {
    kind: Kind,
    key: String,
    waiter: Client,
    listener: Client,
}

impl Wait {
    #[track_caller]
    fn set(server: &Server, kind: Kind) -> Wait {
        let key = format!("{{t}}{}", kind.name());
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        let mut waiter = server.client();
        match kind {
            Kind::Blocked => server.block(&mut waiter, format!("LOCK.WAIT {key} w {LONG}")),
            Kind::Place => assert_eq!(waiter.call(queue(&key)).int(), 1),
            Kind::Absent => {
                let wait = format!("LOCK.WAIT {key} w {LONG} KEEP 600000");
                server.block(&mut waiter, wait);
                waiter.hang_up();
                until("the connection is lost", || {
                    !server.is_connected(waiter.id())
                });
            }
        }
        server.call(format!("LOCK.QUEUE {key} z KEEP 600000")).int();
        Wait {
            kind,
            listener: listener(server, &key),
            key,
            waiter,
        }
    }

    /// Returns the tokens that hold the lock at either node, or `-`.
    fn holders(&self, nodes: [&Server; 2]) -> String {
        let holders = nodes.map(|node| {
            let told = ask(node, &format!("LOCK.INFO {}", self.key)).ok();
            let lock = told.and_then(LockInfo::of);
            lock.map_or_else(Vec::new, |lock| lock.holder_tokens())
        });
        match holders.concat().as_slice() {
            [] => "-".to_owned(),
            holders => holders.join(","),
        }
    }

    /// Returns the kind of `w` in LOCK.INFO of this server, if it lists `w`.
    fn queued_as(&self, server: &Server) -> Option<String> {
        let told = server.call(format!("LOCK.INFO {}", self.key));
        let queue = LockInfo::of(told.ok()?)?.queue;
        let waiter = queue.iter().find(|it| it.text("token") == "w");
        waiter.map(|it| it.text("kind"))
    }

    #[track_caller]
    fn told(&mut self, server: &Server) -> String {
        if self.kind == Kind::Blocked {
            return match self.waiter.try_recv(Duration::ZERO) {
                None => "waits".to_owned(),
                Some(reply) => first_word(reply),
            };
        }
        match self.queued_as(server) {
            Some(kind) => {
                assert_eq!(kind, self.kind.name());
                kind
            }
            None => first_word(server.call(queue(&self.key))),
        }
    }

    /// Returns true if a notification was published since the listener subscribed.
    fn published(&mut self) -> bool {
        let mut messages = 0;
        while let Some(message) = self.listener.try_recv(Duration::ZERO) {
            let kind = Ok(message.list()[0].clone()).text();
            messages += usize::from(kind == "smessage");
        }
        assert!(messages < 2);
        messages == 1
    }

    #[track_caller]
    fn assert_told(&mut self, row: &Row, there: Move<'_>) {
        let (kind, nodes) = (self.kind, [there.source, there.target]);
        let Some((told, holder)) = row.cell(kind).split_once(' ') else {
            return;
        };
        let what = format!("{}: {kind:?} {told} {holder}", row.way);
        eventually(&format!("{what} holds"), || {
            (self.holders(nodes) == holder).then_some(())
        });
        assert_eq!(self.told(there.source), told, "{what}");
        let published = row.published && kind == Kind::Place;
        assert_eq!(self.published(), published, "{what}");
        assert_eq!(self.holders(nodes), holder, "{what}");
    }
}

/// A wait of each kind, all in one slot.
struct Scene<'a> {
    /// The move of the slot away from the node at which the clients wait.
    there: Move<'a>,
    waits: [Wait; 3],
}

impl<'a> Scene<'a> {
    #[track_caller]
    fn set(cluster: &'a Cluster) -> Scene<'a> {
        let there = cluster.next_move("{t}");
        Scene {
            there,
            waits: Kind::ALL.map(|kind| Wait::set(there.source, kind)),
        }
    }

    #[track_caller]
    fn step(&mut self, step: &str) {
        let there = self.there;
        match step {
            "begins" => there.begin(),
            "keys go" => there.all_keys(),
            "given up" => there.give_up(),
            "ends" => {
                self.end(there);
                self.until_sent_on();
            }
            "moves as a whole" => {
                there.begin_as_a_whole().expect("a server that can");
                there.until_known();
                self.until_sent_on();
            }
            "turns back" => {
                let back = there.turn_back();
                back.all_keys();
                self.end(back);
                self.listen();
            }
            "comes back" => {
                let back = there.back();
                back.begin();
                back.all_keys();
                self.end(back);
                self.listen();
            }
            "release" => self.release(),
            other => panic!("no step: {other}"),
        }
        self.nodes().into_iter().for_each(Server::settle);
    }

    #[track_caller]
    fn end(&self, slot: Move<'_>) {
        slot.end();
        slot.until_known();
    }

    /// Waits until the blocked client is redirected. The server looks for waiters to redirect a few
    /// times a second.
    #[track_caller]
    fn until_sent_on(&self) {
        until("the blocked client is redirected", || {
            self.there.source.info("lock", "lock_waiters") == "0"
        });
    }

    /// Subscribes anew, because a slot that moves away takes its channels with it.
    #[track_caller]
    fn listen(&mut self) {
        for wait in &mut self.waits {
            wait.listener = listener(self.there.source, &wait.key);
        }
    }

    #[track_caller]
    fn release(&self) {
        for Wait { key, .. } in &self.waits {
            let release = format!("LOCK.RELEASE {key} a");
            let released = self.nodes().map(|node| ask(node, &release));
            assert!(released.contains(&Ok(Value::Int(1))), "{released:?}");
        }
    }

    fn nodes(&self) -> [&'a Server; 2] {
        [self.there.source, self.there.target]
    }
}

/// Calls a command after ASKING, like a client that was redirected to an importing node.
fn ask(server: &Server, command: &str) -> Reply {
    let mut client = server.client();
    client.call("ASKING").okay();
    client.call(command)
}

fn queue(key: &str) -> String {
    format!("LOCK.QUEUE {key} w {LONG} KEEP 600000 NOTIFY {key}jobs m")
}

#[track_caller]
fn listener(server: &Server, key: &str) -> Client {
    let mut listener = server.client();
    listener.call(format!("SSUBSCRIBE {key}jobs")).list();
    listener
}

fn first_word(reply: Reply) -> String {
    match reply {
        Err(error) => error.split(' ').next().unwrap_or_default().to_owned(),
        granted => {
            assert_eq!(granted.grant().token, "w");
            "granted".to_owned()
        }
    }
}

/// One way, a row of [`TABLE`].
struct Row {
    way: &'static str,
    /// One cell for each kind, in the order of [`Kind::ALL`].
    cells: [&'static str; 3],
    published: bool,
}

impl Row {
    fn cell(&self, kind: Kind) -> &'static str {
        let place = Kind::ALL.iter().position(|it| *it == kind);
        self.cells[place.expect("one of all")]
    }
}

fn table() -> Vec<Row> {
    let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let mut lines = TABLE.trim().lines().map(cells);
    let head = lines.next().expect("a head");
    let column = |name| head.iter().position(|it| *it == name).expect("a column");
    let rows = lines.map(|row| Row {
        way: row[0],
        cells: Kind::ALL.map(|kind| row[column(kind.name())]),
        published: row[column("published")] == "yes",
    });
    rows.collect()
}

/// Returns true if this server can move slots atomically.
#[track_caller]
fn can_move_as_a_whole(server: &Server) -> bool {
    let (major, minor, _) = server.version();
    match server.flavour() {
        Flavour::Redis => (major, minor) >= (8, 4),
        Flavour::Valkey => major >= 9,
    }
}

/// Asserts the outcomes of the ways that `is_asked_for` selects. Each way has a cluster of its own,
/// because slots that moved back and forth leave the nodes at odds for a while.
#[track_caller]
fn assert_told(is_asked_for: impl Fn(&str) -> bool) {
    let rows = table().into_iter().filter(|row| is_asked_for(row.way));
    for row in rows {
        eprintln!("{}", row.way);
        let cluster = Cluster::of_primaries();
        if row.way.starts_with(AS_A_WHOLE) && !can_move_as_a_whole(cluster.node(0)) {
            continue;
        }
        let mut scene = Scene::set(&cluster);
        for step in row.way.split(';') {
            scene.step(step.trim());
        }
        for wait in &mut scene.waits {
            wait.assert_told(&row, scene.there);
        }
    }
}

const AS_A_WHOLE: &str = "moves as a whole";

fn arrives(way: &str) -> bool {
    way.starts_with(AS_A_WHOLE) || way.contains("ends") || way.contains("turns back")
}

#[test]
fn those_who_wait_as_their_slot_is_on_its_way() {
    assert_told(|way| !arrives(way));
}

#[test]
fn those_who_wait_as_their_slot_has_moved() {
    assert_told(arrives);
}
