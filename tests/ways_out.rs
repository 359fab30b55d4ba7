//! Every way in which those who wait are woken or end their wait, for each kind of them: one table.
//! What becomes of them as a slot migrates is in `tests/ha/ways_out.rs`.

mod support;

use support::{
    eventually, server_with_holder, unix_time_ms, until, Client, Expect, LockInfo, Reply, Server,
    LONG,
};

/// `a` holds `k`, `w` is the first in its queue, and `z` has a place behind it. `x` holds `other`, and
/// `k` in database 1 if a way says so. Of each way: what `w` is told, and who holds `k` then.
///
/// Steps of a way are divided by `;`, and commands that the server runs in one pass of its loop by `,`.
/// A step in parentheses is one of [`Scene::step`].
///
/// An error is told by its first word. `waits`: it is told nothing, and is in the queue as it was. Of a
/// place it is told what a LOCK.QUEUE is answered. `gone`: the queue doesn't have it, and it is answered
/// another place; `granted` it may be then where nobody holds `k`. `taken`: another wait of its token stands there instead. What is published is told to
/// a place with NOTIFY, which else is as any other. Where nobody stands, nothing is ever granted.
const TABLE: &str = "
way                                                  | blocked     | place       | published | absent
LOCK.RELEASE k a                                     | granted w   | granted w   | yes       | waits z
LOCK.EXTEND k a PX 30; (the lease ends)              | granted w   | granted w   | yes       | waits z
DEL k                                                | granted w   | granted w   | yes       | waits z
UNLINK k                                             | granted w   | granted w   | yes       | waits z
FLUSHDB                                              | granted w   | granted w   | yes       | waits z
FLUSHDB ASYNC                                        | granted w   | granted w   | yes       | waits z
FLUSHALL                                             | granted w   | granted w   | yes       | waits z
FLUSHALL ASYNC                                       | granted w   | granted w   | yes       | waits z
SWAPDB 0 1                                           | granted w   | granted w   | yes       | waits z
(another lock in database 1); SWAPDB 0 1             | waits x     | waits x     | no        | waits x
RENAME k away                                        | granted w   | granted w   | yes       | waits z
RENAME other k                                       | waits x     | waits x     | no        | waits x
RENAME other k; LOCK.RELEASE k x                     | granted w   | granted w   | yes       | waits z
MOVE k 1                                             | granted w   | granted w   | yes       | waits z
SET k text                                           | WRONGTYPE - | WRONGTYPE - | yes       | WRONGTYPE -
SET k text; DEL k                                    | WRONGTYPE - | granted -   | yes       | granted -
MULTI, SET k text, DEL k, EXEC                       | granted w   | granted w   | yes       | waits z
(evicted)                                            | granted w   | granted w   | yes       | waits z
EXPIRE k 1; (the lease ends)                         | granted w   | granted w   | yes       | waits z
PEXPIRE k 30; (the lease ends)                       | granted w   | granted w   | yes       | waits z
PEXPIREAT k 1                                        | granted w   | granted w   | yes       | waits z
EXPIRE k 10000                                       | waits a     | waits a     | no        | waits a
PERSIST k                                            | waits a     | waits a     | no        | waits a
(another lock restored)                              | waits x     | waits x     | no        | waits x
(another lock restored); LOCK.RELEASE k x            | granted w   | granted w   | yes       | waits z
(the lease ends in a pause)                          | waits -     | waits -     | no        | waits -
(the lease ends in a pause); CLIENT UNPAUSE          | granted w   | granted w   | yes       | waits z
DEL k, CLIENT PAUSE 300 ALL                          | granted w   | granted w   | yes       | waits z
REPLICAOF 127.0.0.1 1                                | UNBLOCKED a | READONLY a  | no        | READONLY a
REPLICAOF 127.0.0.1 1; REPLICAOF NO ONE              | UNBLOCKED a | gone a      | no        | gone a
DEBUG RELOAD                                         | waits a     | waits a     | no        | waits a
DEBUG RELOAD; LOCK.RELEASE k a                       | granted w   | granted w   | yes       | waits z
(stands still past the lease)                        | granted w   | granted w   | yes       | waits z
(its time ends)                                      | nil a       | gone a      | no        | gone a
(its time ends); LOCK.RELEASE k a                    | nil z       | gone z      | no        | gone z
LOCK.CANCEL k w                                      | UNBLOCKED a | gone a      | yes       | gone a
LOCK.CANCEL k w; LOCK.RELEASE k a                    | UNBLOCKED z | gone z      | yes       | gone z
ACL SETUSER guest resetkeys                          | waits a     | waits a     | no        | waits a
ACL SETUSER guest resetkeys; LOCK.RELEASE k a        | NOPERM z    | gone z      | no        | waits z
ACL SETUSER guest -@all; LOCK.RELEASE k a            | NOPERM z    | gone z      | no        | waits z
ACL DELUSER guest; LOCK.RELEASE k a                  | closed z    | gone z      | no        | waits z
(another connection waits)                           | UNBLOCKED a | taken a     | no        | taken a
(another connection waits); LOCK.RELEASE k a         | UNBLOCKED w | granted w   | no        | granted w
LOCK.QUEUE k w KEEP 600000                           | UNBLOCKED a | waits a     | no        | taken a
LOCK.QUEUE k w SHARED KEEP 600000; LOCK.RELEASE k a  | UNBLOCKED z | taken z     | no        | taken z
LOCK.ACQUIRE k w                                     | waits a     | waits a     | no        | waits a
CLIENT KILL ID {w}                                   | closed a    | waits a     | no        | waits a
CLIENT KILL ID {w}; LOCK.RELEASE k a                 | closed z    | granted w   | yes       | waits z
CLIENT UNBLOCK {w}                                   | nil a       | waits a     | no        | waits a
CLIENT UNBLOCK {w} ERROR                             | UNBLOCKED a | waits a     | no        | waits a
CLIENT UNBLOCK {w} ERROR; LOCK.RELEASE k a           | UNBLOCKED z | granted w   | yes       | waits z
";

/// How `w` waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In a LOCK.WAIT.
    Blocked,
    /// In a LOCK.WAIT with KEEP.
    BlockedWithKeep,
    /// At a place.
    Place,
    /// At a place, with NOTIFY.
    PlaceWithNotify,
    /// It was in a LOCK.WAIT with KEEP, and its connection is lost: nobody stands there.
    Absent,
}

impl Kind {
    /// What this kind is called in the table, and by LOCK.INFO.
    fn name(self) -> &'static str {
        match self {
            Kind::Blocked | Kind::BlockedWithKeep => "blocked",
            Kind::Place | Kind::PlaceWithNotify => "place",
            Kind::Absent => "absent",
        }
    }
}

/// One way, for one kind.
#[derive(Debug)]
struct Case {
    way: &'static str,
    kind: Kind,
    told: &'static str,
    holder: &'static str,
    published: bool,
}

fn cells(line: &'static str) -> Vec<&'static str> {
    line.split('|').map(str::trim).collect()
}

fn cases(kind: Kind) -> Vec<Case> {
    let mut lines = TABLE.trim().lines().map(cells);
    let head = lines.next().expect("a head");
    let column = |name| head.iter().position(|it| *it == name).expect("a column");
    let (told, published) = (column(kind.name()), column("published"));
    let cases = lines.map(|row| {
        let (told, holder) = row[told].split_once(' ').expect("two words");
        let is_published = match row[published] {
            "yes" => true,
            "no" => false,
            other => panic!("{other}"),
        };
        Case {
            way: row[0],
            kind,
            told,
            holder,
            published: is_published && kind == Kind::PlaceWithNotify,
        }
    });
    cases.collect()
}

struct Scene {
    server: Server,
    kind: Kind,
    waiter: Client,
    listener: Client,
    /// What a way has read of it already.
    answer: Option<Reply>,
    /// Who takes over the wait, where somebody does.
    heir: Option<Client>,
}

impl Scene {
    #[track_caller]
    fn set(case: &Case) -> Scene {
        let server = server_with_holder();
        let guest = "ACL SETUSER guest on nopass ~* &* +@all";
        server.call_all(&[guest, &format!("LOCK.ACQUIRE other x {LONG}")]);
        let mut listener = server.client();
        listener.call("SUBSCRIBE jobs").list();
        let mut waiter = server.client();
        waiter.call("AUTH guest any").okay();
        let brief = case.way.starts_with("(its time ends)");
        let time_ms = if brief { 60 } else { 600_000 };
        match case.kind {
            Kind::Blocked | Kind::BlockedWithKeep => {
                let keep = match case.kind {
                    Kind::BlockedWithKeep => "KEEP 600000",
                    _ => "",
                };
                waiter.send(format!("LOCK.WAIT k w {LONG} BLOCK {time_ms} {keep}"));
                if !brief {
                    server.until_blocked(&mut waiter);
                }
            }
            Kind::Absent => {
                waiter.send(format!("LOCK.WAIT k w {LONG} KEEP {time_ms}"));
                server.until_blocked(&mut waiter);
                waiter.hang_up();
                until("the connection is lost", || {
                    !server.is_connected(waiter.id())
                });
            }
            Kind::Place => {
                let queue = format!("LOCK.QUEUE k w {LONG} KEEP {time_ms}");
                assert_eq!(waiter.call(queue).int(), 1);
            }
            Kind::PlaceWithNotify => {
                let queue = format!("LOCK.QUEUE k w {LONG} KEEP {time_ms} NOTIFY jobs m");
                assert_eq!(waiter.call(queue).int(), 1);
            }
        }
        server.call("LOCK.QUEUE k z KEEP 600000").int();
        Scene {
            server,
            kind: case.kind,
            waiter,
            listener,
            answer: None,
            heir: None,
        }
    }

    #[track_caller]
    fn go(&mut self, way: &str) {
        for step in way.split(';') {
            self.step(step.trim());
        }
    }

    #[track_caller]
    fn step(&mut self, step: &str) {
        let server = &self.server;
        match step {
            "(another lock in database 1)" => {
                let mut client = server.client().into_db(1);
                client.call(format!("LOCK.ACQUIRE k x {LONG}")).grant();
            }
            "(another lock restored)" => {
                let payload = server.call("DUMP other").bytes();
                let restore = [b"RESTORE".as_slice(), b"k", b"0", &payload, b"REPLACE"];
                server.call(&restore).okay();
            }
            "(evicted)" => {
                // In one go, so that what is granted then isn't evicted in its turn.
                server.call_all(&[
                    "DEL other",
                    "CONFIG SET maxmemory-policy allkeys-lru",
                    "CONFIG SET maxmemory 1",
                    "PING",
                    "CONFIG SET maxmemory 0",
                ]);
                assert_eq!(server.info("stats", "evicted_keys"), "1");
            }
            "(the lease ends)" => until("the lease is over", || self.holder() != "a"),
            "(the lease ends in a pause)" => {
                server.call_all(&["LOCK.EXTEND k a PX 30", "CLIENT PAUSE 600000 WRITE"]);
                until("the lease is over", || self.holder() == "-");
            }
            "(stands still past the lease)" => {
                assert_eq!(server.call("LOCK.EXTEND k a PX 300").int(), 1);
                let over_ms = unix_time_ms() + 300;
                server.freeze();
                until("the lease is over", || unix_time_ms() > over_ms);
                server.thaw();
            }
            "(its time ends)" => match self.kind {
                Kind::Blocked | Kind::BlockedWithKeep => self.answer = Some(self.waiter.recv()),
                _ => until("it is out of the queue", || !self.is_queued()),
            },
            "(another connection waits)" => {
                self.heir = Some(server.waiter(format!("LOCK.WAIT k w {LONG}")));
            }
            commands => {
                let id = self.waiter.id().to_string();
                let commands = commands.replace("{w}", &id);
                let commands: Vec<&str> = commands.split(',').map(str::trim).collect();
                server.call_all(&commands);
            }
        }
        server.settle();
    }

    /// What LOCK.INFO tells of `k`; nothing where that is no lock.
    fn lock(&self) -> Option<LockInfo> {
        let told = self.server.call("LOCK.INFO k").ok()?;
        LockInfo::of(told)
    }

    fn holder(&self) -> String {
        let lock = self.lock();
        let holders = lock.map_or_else(Vec::new, |lock| lock.holder_tokens());
        if holders.is_empty() {
            return "-".to_owned();
        }
        holders.join(",")
    }

    /// How `w` stands in the queue, if it does.
    fn queued_as(&self) -> Option<String> {
        let queue = self.lock()?.queue;
        let waiter = queue.iter().find(|it| it.text("token") == "w");
        waiter.map(|it| it.text("kind") + " " + &it.text("mode"))
    }

    fn is_queued(&self) -> bool {
        self.queued_as() == Some(format!("{} exclusive", self.kind.name()))
    }

    /// What `w` hears, or is answered if it asks.
    #[track_caller]
    fn told(&mut self) -> String {
        match self.kind {
            Kind::Blocked | Kind::BlockedWithKeep => self.blocked_is_told(),
            Kind::Place | Kind::PlaceWithNotify | Kind::Absent => self.asks(),
        }
    }

    #[track_caller]
    fn blocked_is_told(&mut self) -> String {
        if self.is_queued() && self.heir.is_none() {
            self.waiter.expect_silence();
            return "waits".to_owned();
        }
        if let Some(answer) = self.answer.take() {
            return first_word(answer, "an integer");
        }
        let mut replies = if self.server.is_connected(self.waiter.id()) {
            vec![self.waiter.recv()]
        } else {
            self.waiter.replies_to_close()
        };
        match replies.pop() {
            None => {
                let left = self.queued_as();
                let kept = self.kind == Kind::BlockedWithKeep;
                assert_eq!(left.as_deref(), kept.then_some("absent exclusive"));
                "closed".to_owned()
            }
            Some(reply) => first_word(reply, "an integer"),
        }
    }

    fn asks(&mut self) -> String {
        if self.is_queued() {
            return "waits".to_owned();
        }
        if self.queued_as().is_some() {
            return "taken".to_owned();
        }
        first_word(self.server.call("LOCK.QUEUE k w KEEP 600000"), "gone")
    }
}

/// What a reply comes to; a place is called as told.
fn first_word(reply: Reply, place: &str) -> String {
    match reply {
        Ok(redis::Value::Nil) => "nil".to_owned(),
        Ok(redis::Value::Int(_)) => place.to_owned(),
        Ok(grant) => {
            assert_eq!(Ok(grant).grant().token, "w");
            "granted".to_owned()
        }
        Err(error) => error.split(' ').next().unwrap_or_default().to_owned(),
    }
}

#[track_caller]
fn assert_told(case: &Case) {
    eprintln!("{case:?}");
    let mut scene = Scene::set(case);
    scene.go(case.way);
    eventually(&format!("{} holds: {case:?}", case.holder), || {
        (scene.holder() == case.holder).then_some(())
    });
    if case.published {
        let message = scene.listener.recv().list();
        let words: Vec<String> = message.into_iter().map(|word| Ok(word).text()).collect();
        assert_eq!(words, ["message", "jobs", "m"], "{case:?}");
    }
    scene.server.settle();
    assert_eq!(scene.holder(), case.holder, "{case:?}");
    assert_eq!(scene.told(), case.told, "{case:?}");
    scene.server.settle();
    let more = scene.listener.try_recv(std::time::Duration::ZERO);
    assert_eq!(more, None, "{case:?}");
}

#[test]
fn those_who_are_blocked() {
    cases(Kind::Blocked).iter().for_each(assert_told);
}

#[test]
fn those_who_are_blocked_and_would_keep_their_place() {
    cases(Kind::BlockedWithKeep).iter().for_each(assert_told);
}

#[test]
fn those_who_lost_their_connection() {
    cases(Kind::Absent).iter().for_each(assert_told);
}

#[test]
fn those_who_have_a_place() {
    cases(Kind::Place).iter().for_each(assert_told);
}

#[test]
fn those_who_have_a_place_and_are_told_of_it() {
    cases(Kind::PlaceWithNotify).iter().for_each(assert_told);
}
