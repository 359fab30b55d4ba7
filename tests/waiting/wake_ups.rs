//! Every way in which waiters are woken or end their wait, for each kind of waiter, in one table.
//! `tests/ha/ways_out.rs` has the ways of a slot that migrates.

use support::{
    eventually, server_with_holder, unix_time_ms, until, Client, Expect, LockInfo, Reply, Server,
    LONG,
};

/// The table of ways. `a` holds `k`, `w` is the first in its queue, and `z` has a place behind it.
/// `x` holds `other`, and `k` in database 1 if a way says so. Each way has `w`'s outcome and then
/// the holder of `k`, for each kind of waiter.
///
/// Steps of a way are divided by `;`, and commands that the server runs in one pass of its loop by
/// `,`. A step in parentheses is one of [`Scene::step`].
///
/// The outcome of a blocked client is its reply. The outcome of a place or an absent waiter is the
/// reply to a LOCK.QUEUE. An error is shown by its first word. `waits`: `w` gets no reply, and is
/// in the queue like before. `gone`: the queue doesn't have `w`, and LOCK.QUEUE returns another
/// place. It returns `granted` instead if `k` has no holder. `taken`: another wait of the token is
/// in the queue instead. A place with NOTIFY is like any other place, and `published` says if a
/// message is published to it. An absent waiter is never granted.
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
(hangs past the lease)                               | granted w   | granted w   | yes       | waits z
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

/// The way in which `w` waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A LOCK.WAIT.
    Blocked,
    /// A LOCK.WAIT with KEEP.
    BlockedWithKeep,
    /// A place.
    Place,
    /// A place with NOTIFY.
    PlaceWithNotify,
    /// A LOCK.WAIT with KEEP whose connection is lost.
    Absent,
}

impl Kind {
    /// Returns the name of this kind in the table and in LOCK.INFO.
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
    /// The waiter's reply, if a step has read it already.
    answer: Option<Reply>,
    /// The client that takes over the wait, if there is one.
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
                // One batch, so that the lock of the next grant isn't evicted too.
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
            "(hangs past the lease)" => {
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

    /// Returns LOCK.INFO of `k`, or `None` if `k` is not a lock.
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

    /// Returns the kind and the mode of `w` in the queue, if it is queued.
    fn queued_as(&self) -> Option<String> {
        let queue = self.lock()?.queue;
        let waiter = queue.iter().find(|it| it.text("token") == "w");
        waiter.map(|it| it.text("kind") + " " + &it.text("mode"))
    }

    fn is_queued(&self) -> bool {
        self.queued_as() == Some(format!("{} exclusive", self.kind.name()))
    }

    /// Returns the word of the outcome: `w`'s reply, or the reply to its LOCK.QUEUE.
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

/// Returns the word for a reply. A place in the queue is called `place`.
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
