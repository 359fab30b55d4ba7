//! What becomes of those who wait as their slot migrates, for each kind of them: what
//! `tests/ways_out.rs` tells of all other ways.

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Blocked,
    Place,
    Absent,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Blocked => "blocked",
            Kind::Place => "place",
            Kind::Absent => "absent",
        }
    }
}

struct Scene<'a> {
    kind: Kind,
    key: String,
    /// The way of the slot from where `w` waits.
    there: Move<'a>,
    waiter: Client,
    listener: Client,
}

/// As a client that was sent to a slot on its way.
fn ask(server: &Server, command: &str) -> Reply {
    let mut client = server.client();
    client.call("ASKING").okay();
    client.call(command)
}

impl<'a> Scene<'a> {
    #[track_caller]
    fn set(cluster: &'a Cluster, kind: Kind, key: &str) -> Scene<'a> {
        let there = cluster.next_move(key);
        let server = there.source;
        server.call(format!("LOCK.ACQUIRE {key} a {LONG}")).grant();
        let mut waiter = server.client();
        let wait = format!("LOCK.WAIT {key} w {LONG} KEEP 600000");
        match kind {
            Kind::Blocked => server.block(&mut waiter, format!("LOCK.WAIT {key} w {LONG}")),
            Kind::Place => assert_eq!(waiter.call(queue(key)).int(), 1),
            Kind::Absent => {
                server.block(&mut waiter, wait);
                waiter.hang_up();
                until("the connection is lost", || {
                    !server.is_connected(waiter.id())
                });
            }
        }
        server.call(format!("LOCK.QUEUE {key} z KEEP 600000")).int();
        Scene {
            kind,
            key: key.to_owned(),
            there,
            waiter,
            listener: listener(server, key),
        }
    }

    #[track_caller]
    fn step(&mut self, step: &str) {
        match step {
            "begins" => self.there.begin(),
            "keys go" => self.there.all_keys(),
            "given up" => self.there.give_up(),
            "ends" => {
                self.end(self.there);
                self.until_sent_on();
            }
            "moves as a whole" => {
                self.there.begin_as_a_whole().expect("a server that can");
                self.there.until_known();
                self.until_sent_on();
            }
            "turns back" => {
                let back = self.there.turn_back();
                back.all_keys();
                back.end();
                back.until_known();
                self.listener = listener(self.there.source, &self.key);
            }
            "comes back" => {
                let back = self.there.back();
                back.begin();
                back.all_keys();
                self.end(back);
                self.listener = listener(self.there.source, &self.key);
            }
            "release" => {
                let release = format!("LOCK.RELEASE {} a", self.key);
                let released = self.nodes().map(|node| ask(node, &release));
                assert!(released.contains(&Ok(Value::Int(1))), "{released:?}");
            }
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

    fn nodes(&self) -> [&'a Server; 2] {
        [self.there.source, self.there.target]
    }

    /// Who holds the lock, at either node.
    fn holders(&self) -> String {
        let holders = self.nodes().map(|node| {
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
    fn queued_as(&self) -> Option<String> {
        let told = self.there.source.call(format!("LOCK.INFO {}", self.key));
        let queue = LockInfo::of(told.ok()?)?.queue;
        let waiter = queue.iter().find(|it| it.text("token") == "w");
        waiter.map(|it| it.text("kind"))
    }

    #[track_caller]
    fn told(&mut self) -> String {
        if self.kind == Kind::Blocked {
            return match self.waiter.try_recv(std::time::Duration::ZERO) {
                None => "waits".to_owned(),
                Some(reply) => first_word(reply),
            };
        }
        match self.queued_as() {
            Some(kind) => {
                assert_eq!(kind, self.kind.name());
                kind
            }
            None => first_word(self.there.source.call(queue(&self.key))),
        }
    }

    /// What was published since the slot was served here last.
    fn published(&mut self) -> bool {
        let mut smessages = 0;
        while let Some(message) = self.listener.try_recv(std::time::Duration::ZERO) {
            let kind = Ok(message.list()[0].clone()).text();
            smessages += usize::from(kind == "smessage");
        }
        assert!(smessages < 2);
        smessages == 1
    }
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

#[track_caller]
fn assert_told(kind: Kind) {
    let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let mut lines = TABLE.trim().lines().map(cells);
    let head = lines.next().expect("a head");
    let column = |name| head.iter().position(|it| *it == name).expect("a column");
    let (cell, published) = (column(kind.name()), column("published"));
    for row in lines {
        let (way, cell) = (row[0], row[cell]);
        if cell == "?" {
            continue;
        }
        // Slots that came and went leave the nodes of a cluster at odds for a while.
        let cluster = Cluster::of_primaries();
        if way.starts_with("moves as a whole") && !can_move_as_a_whole(cluster.node(0)) {
            continue;
        }
        let what = format!("{way}: {kind:?} {cell}");
        eprintln!("{what}");
        let (told, holder) = cell.split_once(' ').expect("two words");
        let mut scene = Scene::set(&cluster, kind, "{t}");
        for step in way.split(';') {
            scene.step(step.trim());
        }
        eventually(&format!("{what} holds"), || {
            (scene.holders() == holder).then_some(())
        });
        assert_eq!(scene.told(), told, "{what}");
        let published = row[published] == "yes" && kind == Kind::Place;
        assert_eq!(scene.published(), published, "{what}");
        assert_eq!(scene.holders(), holder, "{what}");
    }
}

#[test]
fn those_who_are_blocked_as_their_slot_migrates() {
    assert_told(Kind::Blocked);
}

#[test]
fn those_who_have_a_place_as_its_slot_migrates() {
    assert_told(Kind::Place);
}

#[test]
fn those_who_lost_their_connection_before_the_slot_migrates() {
    assert_told(Kind::Absent);
}
