//! What becomes of those who wait as their slot migrates, for each kind of them: what
//! `tests/ways_out.rs` tells of all other ways.

use std::time::Duration;

use redis::Value;

use crate::nodes::{Cluster, Move};
use crate::support::{eventually, until, Client, Expect, Flavour, LockInfo, Reply, Server, LONG};

/// `a` holds a lock, `w` is the first in its queue, and `z` has a place behind it. Of each way, in steps:
/// what `w` is told, and who holds the lock then, at whichever node that is. A place is told what a
/// LOCK.QUEUE is answered where it was taken; `place` and `absent` are as LOCK.INFO has it there.
/// `?`: the one or the other, by when the server looks for those whom it has to send on, see
/// `slots_that_turn_back.rs`. Not every server moves slots as a whole.
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

/// How `w` waits.
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

/// One lock, for whose `w` waits.
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

    /// Who holds the lock, at whichever node.
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

    /// How `w` stands in the queue, by the node where it waits, if that tells.
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

    /// Whether anything was published since the slot is served where `w` waits.
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

/// All kinds, in one slot.
struct Scene<'a> {
    /// The way of the slot from where they wait.
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

    /// The server looks for those whom it has to send on a few times a second.
    #[track_caller]
    fn until_sent_on(&self) {
        until("who was blocked is sent on", || {
            self.there.source.info("lock", "lock_waiters") == "0"
        });
    }

    /// A slot that goes away takes its channels with it.
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

/// As a client that was sent to a slot on its way.
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

/// One way.
struct Row {
    way: &'static str,
    /// By the kinds as [`Kind::ALL`] has them.
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

/// Whether this server can move slots with all their keys at one moment.
#[track_caller]
fn can_move_as_a_whole(server: &Server) -> bool {
    let (major, minor, _) = server.version();
    match server.flavour() {
        Flavour::Redis => (major, minor) >= (8, 4),
        Flavour::Valkey => major >= 9,
    }
}

/// Goes the ways that are asked for. Slots that came and went leave the nodes of a cluster at odds for a
/// while: each way has a cluster of its own.
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
