//! ACLs from the attacker's side: users can't get around their rights with any words, and a waiter
//! may lose its rights while it waits.

use redis::Value;
use support::compiled::shared_object;
use support::{
    eventually, server_with_holder, until, Client, Expect, LockInfo, Reply, Server, LONG,
};

/// The rights that docs/operate/security.md gives to a client that uses locks.
const LOCKER: &str =
    "-@all +lock.acquire +lock.wait +lock.queue +lock.cancel +lock.extend +lock.release +lock.check \
                      +lock.macquire +lock.mwait +lock.mqueue +lock.mextend +lock.mrelease";

/// Opens a connection of a new user with these rules and no others.
#[track_caller]
fn user(server: &Server, name: &str, rules: &str) -> Client {
    // The harness needs CLIENT ID, because it identifies connections by it.
    server
        .call(format!(
            "ACL SETUSER {name} reset on >secret {rules} +client|id"
        ))
        .okay();
    let mut client = server.client();
    client.call(format!("AUTH {name} secret")).okay();
    client
}

#[track_caller]
fn assert_forbidden(reply: Reply, what: &str) {
    let error = reply.error();
    assert!(error.starts_with("NOPERM"), "{what}: {error}");
}

/// Returns true if a script's error is a lack of rights. Servers word it differently, with or
/// without the error's prefix.
fn is_forbidden_in_a_script(error: &str) -> bool {
    ["NOPERM", "permissions", "executing the script can't"]
        .iter()
        .any(|part| error.contains(part))
}

/// Returns every command that names keys, for one key.
fn on(key: &str) -> [String; 13] {
    [
        format!("LOCK.ACQUIRE {key} t"),
        format!("LOCK.WAIT {key} t BLOCK 1"),
        format!("LOCK.QUEUE {key} t"),
        format!("LOCK.CANCEL {key} t"),
        format!("LOCK.EXTEND {key} t"),
        format!("LOCK.RELEASE {key} t"),
        format!("LOCK.CHECK {key} t"),
        format!("LOCK.INFO {key}"),
        format!("LOCK.MACQUIRE 1 {key} t"),
        format!("LOCK.MWAIT 1 {key} t BLOCK 1"),
        format!("LOCK.MQUEUE 1 {key} t"),
        format!("LOCK.MEXTEND 1 {key} t"),
        format!("LOCK.MRELEASE 1 {key} t"),
    ]
}

/// The commands that only read a key.
const LOOKING: [&str; 2] = ["LOCK.CHECK", "LOCK.INFO"];

fn looks(command: &str) -> bool {
    LOOKING.iter().any(|name| command.starts_with(name))
}

/// Returns DEBUG's digest of the lock that `server_with_holder` made.
#[track_caller]
fn digest(server: &Server) -> String {
    let list = server.call("DEBUG DIGEST-VALUE k").list();
    Ok(list[0].clone()).text()
}

// ---- key patterns apply to every command

#[test]
fn key_patterns_apply_to_every_command() {
    let server = server_with_holder();
    let before = digest(&server);
    let mut client = user(&server, "guest", "~own:* +@all");
    for command in on("k") {
        assert_forbidden(client.call(&command), &command);
    }
    for command in on("own:1") {
        client.call(&command).value();
    }
    assert_eq!(digest(&server), before);
}

#[test]
fn one_forbidden_key_among_several_forbids_them_all() {
    let server = server_with_holder();
    let before = digest(&server);
    let mut client = user(&server, "guest", "~own:* +@all");
    for name in ["MACQUIRE", "MWAIT", "MEXTEND", "MRELEASE"] {
        for keys in ["3 own:1 own:2 k", "3 k own:1 own:2", "3 own:1 k own:2"] {
            let command = format!("LOCK.{name} {keys} t");
            assert_forbidden(client.call(&command), &command);
        }
    }
    assert_eq!(server.lock_info("own:1"), None);
    assert_eq!(digest(&server), before);
}

#[test]
fn no_number_of_keys_hides_one() {
    let server = server_with_holder();
    let before = digest(&server);
    let mut client = user(&server, "guest", "~own:* +@all");
    let numbers = [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "-1",
        "-2",
        "00",
        "01",
        "02",
        "+1",
        "+2",
        "1.0",
        "2.0",
        "0x2",
        "2e0",
        "",
        " ",
        " 2",
        "2 ",
        "two",
        "2147483649",
        "4294967297",
        "4294967298",
        "9223372036854775807",
        "18446744073709551617",
        "18446744073709551618",
    ];
    for name in ["MACQUIRE", "MWAIT", "MEXTEND", "MRELEASE"] {
        for number in numbers {
            for words in [["own:1", "k", "a"], ["k", "own:1", "a"], ["k", "a", "ALL"]] {
                let mut command = vec![format!("LOCK.{name}"), number.to_owned()];
                command.extend(words.map(str::to_owned));
                // The other client's lock stays the same, however the server reads the number.
                drop(client.call(&command));
                assert_eq!(digest(&server), before, "{command:?}");
                assert_eq!(server.waiters("k"), 0, "{command:?}");
                server.call("DEL own:1").int();
            }
        }
    }
}

#[test]
fn a_right_to_read_alone_is_enough_to_look_and_for_nothing_else() {
    let server = server_with_holder();
    let before = digest(&server);
    let mut reader = user(&server, "reader", "%R~* +@all");
    for command in on("k") {
        match looks(&command) {
            true => drop(reader.call(&command).value()),
            false => assert_forbidden(reader.call(&command), &command),
        }
    }
    assert_eq!(digest(&server), before);
}

#[test]
fn a_right_to_write_alone_is_enough_for_nothing() {
    let server = server_with_holder();
    let before = digest(&server);
    let mut writer = user(&server, "writer", "%W~* +@all");
    for command in on("k") {
        assert_forbidden(writer.call(&command), &command);
    }
    assert_eq!(digest(&server), before);
    let mut both = user(&server, "both", "%W~* %R~* +@all");
    for command in on("k") {
        both.call(&command).value();
    }
}

#[test]
fn selectors_count_each_by_itself() {
    let server = server_with_holder();
    let rules = "-@all (~k +lock.info) (~own:* +lock.acquire +lock.release)";
    let mut client = user(&server, "guest", rules);
    client.call("LOCK.INFO k").value();
    client.call("LOCK.ACQUIRE own:1 t").grant();
    assert_forbidden(client.call("LOCK.INFO own:1"), "the other's key");
    assert_forbidden(client.call("LOCK.RELEASE k a"), "the other's command");
}

// ---- the rights that a client needs

#[test]
fn what_a_client_needs_is_what_it_needs() {
    let server = Server::start();
    let mut client = user(&server, "locker", &format!("{LOCKER} ~own:*"));
    for command in on("own:1") {
        match command.starts_with("LOCK.INFO") {
            true => assert_forbidden(client.call(&command), &command),
            false => drop(client.call(&command).value()),
        }
    }
    let mut looker = user(&server, "looker", &format!("{LOCKER} +lock.info ~own:*"));
    looker.call("LOCK.INFO own:1").value();
    assert_forbidden(client.call("LOCK.HELP"), "a command that isn't given");
    // A wait is granted, and its session ends, with no more rights than these.
    server.call(format!("LOCK.ACQUIRE own:2 a {LONG}")).grant();
    client.send("LOCK.WAIT own:2 b PX 3000 SESSION");
    server.until_waiters("own:2", 1);
    assert_eq!(server.call("LOCK.RELEASE own:2 a").int(), 1);
    assert_eq!(client.recv().grant().token, "b");
    let renewed = server.call("LOCK.CHECK own:2 b").int();
    assert!(renewed > 0);
    let mut next = server.waiter(format!("LOCK.WAIT own:2 c {LONG}"));
    client.close();
    assert_eq!(next.recv().grant().token, "c");
}

#[test]
fn each_command_that_isnt_given_is_forbidden() {
    let server = server_with_holder();
    let before = digest(&server);
    for command in on("k") {
        let name = command.split(' ').next().expect("a name").to_lowercase();
        let mut client = user(&server, "guest", &format!("~* +@all -{name}"));
        assert_forbidden(client.call(&command), &command);
        client.call("MULTI").okay();
        assert_forbidden(client.call(&command), &command);
        assert!(client.call("EXEC").error().starts_with("EXECABORT"));
        let words: Vec<String> = command.split(' ').map(|word| format!("'{word}'")).collect();
        let script = format!("return redis.call({})", words.join(","));
        let error = client.call(&["EVAL", &script, "1", "k"]).error();
        assert!(is_forbidden_in_a_script(&error), "{command}: {error}");
    }
    assert_eq!(digest(&server), before);
}

#[test]
fn a_script_has_the_rights_of_who_calls_it() {
    let server = server_with_holder();
    let before = digest(&server);
    let library = "#!lua name=locks
        redis.register_function('run', function(keys, args) return redis.call(unpack(args)) end)";
    server.call(&["FUNCTION", "LOAD", library]).text();
    let mut client = user(&server, "guest", "~own:* +@all");
    for command in on("k") {
        let args: Vec<&str> = command.split(' ').collect();
        let script = "return redis.call(unpack(ARGV))";
        let heads = [["EVAL", script, "0"], ["FCALL", "run", "0"]];
        for head in heads {
            let words: Vec<&str> = head.iter().chain(&args).copied().collect();
            let error = client.call(&words).error();
            assert!(is_forbidden_in_a_script(&error), "{words:?}: {error}");
        }
    }
    assert_eq!(digest(&server), before);
}

// ---- a client without the token can't break a lock

#[test]
fn without_its_token_a_locker_breaks_nobodys_lock() {
    let server = server_with_holder();
    let before = digest(&server);
    let mut waiter = server.waiter(format!("LOCK.WAIT k b {LONG}"));
    let mut client = user(&server, "locker", &format!("{LOCKER} +lock.info ~*"));
    for token in ["A", "aa", "b2", "\0a", "a\0"] {
        for command in [
            ["LOCK.EXTEND", "k", token, "PX", "1"].as_slice(),
            &["LOCK.RELEASE", "k", token, "ALL"],
            &["LOCK.CHECK", "k", token],
            &["LOCK.MEXTEND", "1", "k", token, "PX", "1"],
            &["LOCK.MRELEASE", "1", "k", token],
        ] {
            assert_eq!(client.call(command).int(), 0, "{command:?}");
        }
        for command in [
            ["LOCK.ACQUIRE", "k", token].as_slice(),
            &["LOCK.ACQUIRE", "k", token, "SHARED"],
            &["LOCK.ACQUIRE", "k", token, "SESSION", "REENTRANT"],
            &["LOCK.WAIT", "k", token, "BLOCK", "1"],
            &["LOCK.MACQUIRE", "1", "k", token, "PX", "1"],
        ] {
            client.call(command).nil();
        }
    }
    assert_eq!(digest(&server), before);
    waiter.expect_silence();
    for command in [
        "DEL k",
        "UNLINK k",
        "SET k v",
        "EXPIRE k 0",
        "PEXPIRE k 1",
        "RENAME k l",
        "MOVE k 1",
        "RESTORE k 0 x REPLACE",
        "SORT l STORE k",
        "FLUSHALL",
        "FLUSHDB",
        "SWAPDB 0 1",
        "MIGRATE 127.0.0.1 1 k 0 1",
        "DEBUG RELOAD",
        "CLIENT KILL TYPE normal",
        "CLIENT UNBLOCK 1",
        "CONFIG SET lock.max-waiters 1",
    ] {
        assert_forbidden(client.call(command), command);
    }
    assert_eq!(digest(&server), before);
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(waiter.recv().grant().token, "b");
}

// ---- LOCK.APPLY is internal

#[test]
fn nobody_applies_effects_by_hand() {
    let server = server_with_holder();
    let before = digest(&server);
    let most = "exclusive 0 9007199254740991 1 9007199254740991 1 1 1";
    let effects: [&[&str]; 4] = [
        &["GRANT", "evil", "exclusive 0 99 1 99999999999999 1 1 1"],
        &["GRANT", "evil", most],
        &["DROP", "a"],
        &["ASK"],
    ];
    let library = "#!lua name=locks
        redis.register_function('run', function(keys, args) return redis.call(unpack(args)) end)";
    server.call(&["FUNCTION", "LOAD", library]).text();
    let mut client = user(&server, "guest", "~* +@all");
    let next = server.info("lock", "lock_last_fence");
    for effect in effects {
        let command = [&["LOCK.APPLY", "k"], effect].concat();
        let error = client.call(&command).error();
        assert_eq!(error, "ERR LOCK.APPLY is internal", "{command:?}");
        client.call("MULTI").okay();
        client.call(&command).value();
        let replies = client.call("EXEC");
        let text = format!("{replies:?}");
        assert!(text.contains("LOCK.APPLY is internal"), "{text}");
        for head in [
            ["EVAL", "return redis.call(unpack(ARGV))", "0"],
            ["FCALL", "run", "0"],
        ] {
            let words: Vec<&str> = head.iter().chain(&command).copied().collect();
            let error = client.call(&words).error();
            assert!(
                error.contains("LOCK.APPLY is internal"),
                "{words:?}: {error}"
            );
        }
    }
    let mut limited = user(&server, "locker", &format!("{LOCKER} ~*"));
    assert_forbidden(
        limited.call("LOCK.APPLY k DROP a"),
        "a command that isn't given",
    );
    assert_eq!(digest(&server), before);
    assert_eq!(server.info("lock", "lock_last_fence"), next);
}

// ---- rights that are lost while their user waits

/// A user `guest` that waits with every right on every key, and another waiter behind it.
struct Queue {
    server: Server,
    guest: Client,
    next: Client,
}

impl Queue {
    #[track_caller]
    fn behind_holder(wait: &str) -> Queue {
        let server = server_with_holder();
        let mut guest = user(&server, "guest", "~* +@all");
        server.block(&mut guest, wait);
        let next = server.waiter(format!("LOCK.WAIT k next {LONG}"));
        Queue {
            server,
            guest,
            next,
        }
    }

    /// Asserts that the lock goes to the next waiter, because the guest has lost its rights.
    #[track_caller]
    fn assert_passed_over(mut self, what: &str) {
        assert_forbidden(self.guest.recv(), what);
        assert_eq!(self.next.recv().grant().token, "next", "{what}");
        assert_eq!(self.server.known_lock("k").holder_tokens(), ["next"]);
        // The guest lost its rights and nothing else.
        assert_eq!(self.guest.call("CLIENT ID").int(), self.guest.id());
        assert_eq!(self.server.call("LOCK.RELEASE k next").int(), 1);
        until("nobody waits", || {
            self.server.info("lock", "lock_waiters") == "0"
        });
        assert_eq!(self.server.lock_info("k"), None);
    }

    /// Asserts that the lock goes to the guest, and then to the next waiter.
    #[track_caller]
    fn assert_granted(mut self, what: &str) {
        assert_eq!(self.guest.recv().grant().token, "g", "{what}");
        self.next.expect_silence();
        assert_eq!(self.server.known_lock("k").holder_tokens(), ["g"]);
        assert_eq!(self.server.call("LOCK.RELEASE k g").int(), 1);
        assert_eq!(self.next.recv().grant().token, "next", "{what}");
    }
}

const WAIT: &str = "LOCK.WAIT k g PX 600000";

/// ACL rules by which a user loses a right that a grant of `k` needs.
const LOSSES: [&str; 6] = [
    "resetkeys",
    "resetkeys ~other:*",
    "resetkeys %R~*",
    "resetkeys %W~*",
    "-lock.wait",
    "-@all +client|id",
];

#[test]
fn who_loses_its_rights_while_it_waits_is_told_so_when_its_turn_comes() {
    for loss in LOSSES {
        let mut queue = Queue::behind_holder(WAIT);
        queue
            .server
            .call(format!("ACL SETUSER guest {loss}"))
            .okay();
        queue.server.settle();
        queue.guest.expect_silence();
        assert_eq!(queue.server.call("LOCK.RELEASE k a").int(), 1);
        queue.assert_passed_over(loss);
    }
}

/// Commands by which the holder loses the lock, each list in one pass of the server's loop.
const ENDS: [&[&str]; 8] = [
    &["LOCK.RELEASE k a"],
    &["LOCK.MRELEASE 1 k a"],
    &["DEL k"],
    &["UNLINK k"],
    &["FLUSHALL"],
    &["LOCK.EXTEND k a PX 10"],
    &["PEXPIRE k 10"],
    &["MULTI", "LOCK.RELEASE k a", "EXEC"],
];

#[test]
fn rights_are_looked_at_however_the_lock_is_handed_on() {
    for end in ENDS {
        let queue = Queue::behind_holder(WAIT);
        queue.server.call("ACL SETUSER guest resetkeys").okay();
        queue.server.call_all(end);
        queue.assert_passed_over(&format!("{end:?}"));
    }
}

#[test]
fn a_right_that_goes_in_the_transaction_of_the_release_is_gone() {
    let queue = Queue::behind_holder(WAIT);
    queue.server.call_all(&[
        "MULTI",
        "ACL SETUSER guest resetkeys",
        "LOCK.RELEASE k a",
        "EXEC",
    ]);
    queue.assert_passed_over("in one transaction");
}

/// Plays a command's wait with each loss of rights, and checks whether it is passed over.
#[track_caller]
fn play_losses(command: &str, losses: &[(&str, bool)]) {
    for (loss, passed_over) in losses {
        let queue = Queue::behind_holder(command);
        queue
            .server
            .call(format!("ACL SETUSER guest {loss}"))
            .okay();
        assert_eq!(queue.server.call("LOCK.RELEASE k a").int(), 1);
        match passed_over {
            true => queue.assert_passed_over(loss),
            false => queue.assert_granted(loss),
        }
    }
}

/// The server looks at the rights of a wait for one key as at those of LOCK.WAIT.
#[test]
fn a_wait_for_one_key_by_the_m_command_needs_the_right_to_the_other_too() {
    play_losses(
        "LOCK.MWAIT 1 k g PX 600000",
        &[("-lock.wait", true), ("-lock.mwait", false)],
    );
}

#[test]
fn a_wait_for_several_keys_needs_the_right_to_each() {
    play_losses(
        "LOCK.MWAIT 2 k k2 g PX 600000",
        &[
            ("resetkeys ~k", true),
            ("resetkeys ~k2", true),
            ("-lock.mwait", true),
            ("resetkeys ~k ~k2", false),
            ("-lock.wait", false),
        ],
    );
}

#[test]
fn several_waiters_without_rights_are_all_passed_over() {
    let server = server_with_holder();
    let mut guests: Vec<Client> = (0..20)
        .map(|number| {
            let name = format!("guest{number}");
            let mut guest = user(&server, &name, "~* +@all");
            server.block(&mut guest, format!("LOCK.WAIT k g{number} {LONG} SHARED"));
            guest
        })
        .collect();
    let mut next = server.waiter(format!("LOCK.WAIT k next {LONG}"));
    for number in (0..20).filter(|number| number % 2 == 0) {
        server
            .call(format!("ACL SETUSER guest{number} resetkeys"))
            .okay();
    }
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    for (number, guest) in guests.iter_mut().enumerate() {
        match number % 2 {
            0 => assert_forbidden(guest.recv(), "an even guest"),
            _ => assert_eq!(guest.recv().grant().token, format!("g{number}")),
        }
    }
    for number in (0..20).filter(|number| number % 2 == 1) {
        next.expect_silence();
        assert_eq!(server.call(format!("LOCK.RELEASE k g{number}")).int(), 1);
    }
    assert_eq!(next.recv().grant().token, "next");
}

#[test]
fn rights_that_were_given_back_in_time_are_as_good_as_before() {
    for loss in LOSSES {
        let queue = Queue::behind_holder(WAIT);
        queue
            .server
            .call(format!("ACL SETUSER guest {loss}"))
            .okay();
        queue.server.settle();
        queue.server.call("ACL SETUSER guest ~* +@all").okay();
        assert_eq!(queue.server.call("LOCK.RELEASE k a").int(), 1);
        queue.assert_granted(loss);
    }
}

#[test]
fn other_rights_of_other_users_change_nothing() {
    for change in [
        "ACL SETUSER other on >secret ~* +@all",
        "ACL SETUSER guest >another",
        "ACL SETUSER guest resetkeys ~k",
        "ACL SETUSER guest -@all +lock.wait",
        "ACL SETUSER guest -@all (~k +lock.wait)",
        "ACL SETUSER guest resetchannels",
    ] {
        let queue = Queue::behind_holder(WAIT);
        queue.server.call("ACL SETUSER other on ~* +@all").okay();
        queue.server.call("ACL SETUSER other reset").okay();
        queue.server.call(change).okay();
        assert_eq!(queue.server.call("LOCK.RELEASE k a").int(), 1);
        queue.assert_granted(change);
    }
}

#[test]
fn the_end_of_a_user_is_the_end_of_its_wait() {
    let mut queue = Queue::behind_holder(WAIT);
    assert_eq!(queue.server.call("ACL DELUSER guest").int(), 1);
    queue.guest.expect_close();
    queue.server.until_waiters("k", 1);
    assert_eq!(queue.server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(queue.next.recv().grant().token, "next");
}

#[test]
fn a_wait_without_rights_still_ends_in_its_time() {
    let mut queue = Queue::behind_holder("LOCK.WAIT k g BLOCK 2000");
    queue.server.call("ACL SETUSER guest resetkeys").okay();
    queue.guest.recv().nil();
    assert_eq!(queue.server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(queue.next.recv().grant().token, "next");
}

#[test]
fn a_refused_wait_has_changed_nothing() {
    let queue = Queue::behind_holder(WAIT);
    let fence = queue
        .server
        .call(format!("LOCK.ACQUIRE k a {LONG}"))
        .grant()
        .fence;
    let grants: i64 = queue
        .server
        .info("lock", "lock_grants")
        .parse()
        .expect("a number");
    queue.server.call("ACL SETUSER guest resetkeys").okay();
    let Queue {
        server,
        mut guest,
        mut next,
    } = queue;
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_forbidden(guest.recv(), "its turn");
    let granted = next.recv().grant();
    assert!(granted.fence > fence);
    let now: i64 = server
        .info("lock", "lock_grants")
        .parse()
        .expect("a number");
    assert_eq!(now, grants + 1, "no other waiter was granted it");
    assert_eq!(server.info("lock", "lock_take_backs"), "0");
}

/// Commands by which a guest waits: in a blocked client, and known by its user's name alone. The
/// module has to notice a change of rights for both.
const WAYS_TO_WAIT: [&str; 2] = ["LOCK.WAIT k g PX 600000", "LOCK.QUEUE k g KEEP 600000"];

/// A held lock, a guest that may wait for it, and a user that may change rights.
struct Changed {
    server: Server,
    guest: Client,
    admin: Client,
}

impl Changed {
    fn of(server: Server) -> Changed {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        Changed {
            guest: user(&server, "guest", "~* +@all"),
            admin: user(&server, "admin", "~* +@all"),
            server,
        }
    }

    /// Starts a scene where the guest's `wait` and then the admin's `change` arrive in a pause. The
    /// admin has sent `before` earlier. If the pause was over too soon, the scene starts again,
    /// because the admin's command may then run first.
    #[track_caller]
    fn in_a_pause(before: &[&str], wait: &str, change: &str) -> Changed {
        eventually("both commands arrive in the pause", || {
            let mut changed = Changed::of(Server::start());
            changed.admin.call_all(before);
            let mut sent: [(&mut Client, &[&str]); 2] = [
                (&mut changed.guest, &[wait]),
                (&mut changed.admin, &[change]),
            ];
            let in_time = changed.server.sends_in_a_pause(&mut sent);
            in_time.then_some(changed)
        })
    }

    /// Makes the guest wait, outside a pause.
    #[track_caller]
    fn wait(&mut self, wait: &str) {
        match wait.starts_with("LOCK.WAIT") {
            true => self.server.block(&mut self.guest, wait),
            false => assert_eq!(self.guest.call(wait).int(), 1),
        }
    }

    /// Asserts that the lock goes to the next waiter instead of the guest.
    #[track_caller]
    fn assert_passed_over(self, what: &str) {
        let mut next = self.server.waiter(format!("LOCK.WAIT k next {LONG}"));
        assert_eq!(self.server.call("LOCK.RELEASE k a").int(), 1, "{what}");
        assert_eq!(next.recv().grant().token, "next", "{what}");
        assert_eq!(self.server.call("LOCK.CHECK k g").int(), 0, "{what}");
    }
}

#[test]
fn a_right_that_goes_behind_a_wait_in_a_pause_is_gone() {
    for wait in WAYS_TO_WAIT {
        let mut changed = Changed::in_a_pause(&[], wait, "ACL SETUSER guest resetkeys");
        changed.admin.recv().okay();
        changed.server.until_waiters("k", 1);
        changed.assert_passed_over(wait);
    }
}

#[test]
fn a_right_that_goes_by_an_exec_behind_a_wait_in_a_pause_is_gone() {
    for wait in WAYS_TO_WAIT {
        let queued = ["MULTI", "ACL SETUSER guest resetkeys", "PING"];
        let mut changed = Changed::in_a_pause(&queued, wait, "EXEC");
        changed.admin.recv().value();
        changed.server.until_waiters("k", 1);
        changed.assert_passed_over(wait);
    }
}

#[test]
fn a_right_that_goes_in_a_transaction_which_began_before_the_wait_is_gone() {
    for wait in WAYS_TO_WAIT {
        let mut changed = Changed::of(Server::start());
        let queued = ["MULTI", "ACL SETUSER guest resetkeys", "PING"];
        changed.admin.call_all(&queued);
        changed.wait(wait);
        changed.admin.call("EXEC").value();
        changed.assert_passed_over(wait);
    }
}

#[test]
fn a_right_that_goes_behind_a_place_in_one_transaction_is_gone() {
    let mut changed = Changed::of(Server::start());
    let transaction = [
        "MULTI",
        "LOCK.QUEUE k g KEEP 600000",
        "ACL SETUSER guest resetkeys",
        "EXEC",
    ];
    changed.guest.call_all(&transaction);
    assert_eq!(changed.server.waiters("k"), 1);
    changed.assert_passed_over("in one transaction");
}

#[test]
fn a_right_that_goes_by_a_command_in_any_case_is_gone() {
    let changes: [&[&str]; 4] = [
        &["acl setuser guest resetkeys"],
        &["aCl sEtUsEr guest resetkeys"],
        &["multi", "acl setuser guest resetkeys", "exec"],
        &["MULTI", "Acl Setuser guest resetkeys", "Exec"],
    ];
    for change in changes {
        for wait in WAYS_TO_WAIT {
            let mut changed = Changed::of(Server::start());
            // Another command follows those that have made the users.
            changed.server.settle();
            changed.wait(wait);
            changed.admin.call_all(change);
            changed.assert_passed_over(&format!("{change:?}: {wait}"));
        }
    }
}

#[test]
fn a_right_that_goes_by_a_command_with_another_name_is_gone() {
    for renamed in ["ACL other-acl", "EXEC other-exec"] {
        for wait in WAYS_TO_WAIT {
            let mut server = Server::builder();
            server = server.config(&format!("rename-command {renamed}"));
            // If ACL is renamed, the harness can't call it either.
            server = server.config("user guest on nopass ~* +@all");
            let server = server.start();
            server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
            let mut guest = server.client();
            guest.call("AUTH guest any").okay();
            let mut changed = Changed {
                admin: server.client(),
                guest,
                server,
            };
            let change = match renamed.starts_with("ACL") {
                true => ["MULTI", "other-acl SETUSER guest resetkeys", "EXEC"],
                false => ["MULTI", "ACL SETUSER guest resetkeys", "other-exec"],
            };
            changed.admin.call_all(&change[..2]);
            changed.wait(wait);
            changed.admin.call(change[2]).value();
            changed.assert_passed_over(&format!("{renamed}: {wait}"));
        }
    }
}

#[test]
fn a_right_that_another_module_takes_is_gone() {
    for take in [
        "calling.take_keys guest",
        "calling.call ACL SETUSER guest resetkeys",
    ] {
        for wait in WAYS_TO_WAIT {
            let server = Server::start();
            load_calling(&server);
            let mut changed = Changed::of(server);
            changed.wait(wait);
            changed.admin.call(take).okay();
            changed.assert_passed_over(&format!("{take}: {wait}"));
        }
    }
}

/// Rights are checked again until the client that may change them has run another command, or is
/// gone.
#[test]
fn one_who_changes_nothing_keeps_nobody_from_being_granted() {
    for ends in ["PING", "QUIT"] {
        let mut changed = Changed::of(Server::start());
        changed.admin.call("ACL SETUSER other ~x").okay();
        changed.wait(WAYS_TO_WAIT[0]);
        changed.admin.call(ends).value();
        assert_eq!(changed.server.call("LOCK.RELEASE k a").int(), 1);
        assert_eq!(changed.guest.recv().grant().token, "g", "{ends}");
    }
}

// ---- tokens are for users that may write to the key

/// Starts a server with a holder of `k`, tied to its connection, and a waiter for `k` and two more
/// keys.
fn crowded() -> (Server, [Client; 2]) {
    let server = Server::start();
    let mut holder = server.client();
    holder
        .call(format!("LOCK.ACQUIRE k secret {LONG} SESSION DATA why"))
        .grant();
    let waiter = server.waiter("LOCK.MWAIT 3 k own:1 hidden waiting DATA also");
    (server, [holder, waiter])
}

/// Returns LOCK.INFO of `key`, by every way in which this client can request it.
#[track_caller]
fn told(client: &mut Client, key: &str) -> Vec<LockInfo> {
    let info = format!("LOCK.INFO {key}");
    let mut told = vec![client.call(&info).value()];
    client.call_all(&["MULTI", &info]);
    told.extend(client.call("EXEC").list());
    // The key is an argument. A key of the script needs the right to write, which the client lacks.
    let script = "return redis.call('LOCK.INFO', ARGV[1])";
    for eval in ["EVAL", "EVAL_RO"] {
        told.push(client.call(&[eval, script, "0", key]).value());
    }
    told.push(client.call(&["FCALL_RO", "look", "0", key]).value());
    told.into_iter()
        .map(|info| LockInfo::of(info).expect("a lock"))
        .collect()
}

fn load_look(server: &Server) {
    let library = "#!lua name=looking
        redis.register_function{function_name = 'look', flags = {'no-writes'}, callback =
            function(_, args) return redis.call('LOCK.INFO', args[1]) end}";
    server.call(&["FUNCTION", "LOAD", library]).text();
}

#[track_caller]
fn keys_of(info: &LockInfo) -> Vec<String> {
    let keys = Ok(info.queue[0].get("keys")).list();
    let mut keys: Vec<String> = keys.into_iter().map(|key| Ok(key).text()).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn who_may_not_write_to_a_key_sees_no_token_and_no_client() {
    let (server, _clients) = crowded();
    load_look(&server);
    for rules in [
        "%R~* +@all",
        "%R~k %W~other +@all",
        "%R~k +@all (~own:* +@all)",
    ] {
        for mut reader in [
            user(&server, "reader", rules),
            user(&server, "reader", rules).into_resp3(),
        ] {
            for info in told(&mut reader, "k") {
                assert_eq!((info.mode.as_str(), info.waiters), ("exclusive", 1));
                for shown in [info.holder(), &info.queue[0]] {
                    assert_eq!(shown.get("token"), Value::Nil, "{rules}");
                    for field in ["client-id", "client-addr", "client-name"] {
                        assert!(!shown.has(field), "{rules}: {field}");
                    }
                }
                assert_eq!(info.holder().int("session"), 1);
                assert_eq!(info.holder().text("data"), "why");
                assert_eq!(info.queue[0].text("data"), "also");
            }
        }
    }
}

#[test]
fn who_may_write_to_a_key_sees_tokens_and_clients() {
    let (server, [holder, waiter]) = crowded();
    load_look(&server);
    for rules in ["~k +@all", "%RW~k +@all", "%R~* +@all (%W~k)"] {
        let mut writer = user(&server, "writer", rules);
        for info in told(&mut writer, "k") {
            assert_eq!(info.holder_tokens(), ["secret"], "{rules}");
            assert_eq!(info.queue_tokens(), ["waiting"], "{rules}");
            assert_eq!(info.holder().int("client-id"), holder.id());
            assert_eq!(info.queue[0].int("client-id"), waiter.id());
        }
    }
    let everything = server.known_lock("k");
    assert_eq!(keys_of(&everything), ["hidden", "k", "own:1"]);
}

#[test]
fn the_keys_of_a_waiter_are_those_that_the_caller_may_read() {
    let (server, _clients) = crowded();
    load_look(&server);
    for (rules, expected) in [
        ("~k +@all", &["k"][..]),
        ("%R~k %R~own:* %W~hidden +@all", &["k", "own:1"]),
        ("~k +@all (%R~hidden)", &["hidden", "k"]),
        ("%R~* +@all", &["hidden", "k", "own:1"]),
    ] {
        let mut client = user(&server, "guest", rules);
        for info in told(&mut client, "k") {
            assert_eq!(keys_of(&info), expected, "{rules}");
        }
    }
}

#[test]
fn a_right_that_comes_or_goes_counts_at_once() {
    let (server, _clients) = crowded();
    let mut guest = user(&server, "guest", "%R~* +@all");
    let mut token = || {
        let info = LockInfo::of(guest.call("LOCK.INFO k").value()).expect("a lock");
        info.holder().get("token")
    };
    assert_eq!(token(), Value::Nil);
    server.call("ACL SETUSER guest ~k").okay();
    assert_eq!(token(), Value::BulkString(b"secret".to_vec()));
    server.call("ACL SETUSER guest resetkeys %R~*").okay();
    assert_eq!(token(), Value::Nil);
}

/// Loads the module whose commands call commands.
#[track_caller]
fn load_calling(server: &Server) {
    let calling = shared_object("security/calling.c", server.dir());
    server
        .call(&["MODULE", "LOAD", calling.to_str().expect("a path")])
        .okay();
}

/// Commands that another module calls have no user, unless that module sets one.
#[test]
fn another_module_sees_all_and_its_users_what_they_may() {
    let (server, _clients) = crowded();
    load_calling(&server);
    let mut reader = user(&server, "reader", "%R~* +@all");
    for (call, expected) in [
        (
            "calling.call LOCK.INFO k",
            Value::BulkString(b"secret".to_vec()),
        ),
        ("calling.call_as_user LOCK.INFO k", Value::Nil),
        // This user may do anything, but the server doesn't know it by name.
        ("calling.call_as_own LOCK.INFO k", Value::Nil),
        ("LOCK.INFO k", Value::Nil),
    ] {
        let info = LockInfo::of(reader.call(call).value()).expect("a lock");
        assert_eq!(info.holder().get("token"), expected, "{call}");
    }
}

/// The module looks up the user by a command that doesn't exist. Another module may still reply to
/// it.
#[test]
fn whose_user_cannot_be_told_sees_no_token() {
    let (server, _clients) = crowded();
    load_calling(&server);
    server.call("calling.answer_pong LOCK.NONE").okay();
    for rules in ["%R~* +@all", "~* +@all"] {
        let mut reader = user(&server, "reader", rules);
        let info = LockInfo::of(reader.call("LOCK.INFO k").value()).expect("a lock");
        assert_eq!(info.holder().get("token"), Value::Nil, "{rules}");
    }
}

/// Takes a place by this call, takes the guest's rights away, and returns the tokens that were
/// granted the lock.
#[track_caller]
fn granted_after_a_change_of_rights(server: &Server, call: &str) -> Vec<&'static str> {
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    let mut guest = user(server, "guest", "~* +@all");
    let place = guest.call(format!("{call} k b KEEP 600000")).int();
    assert_eq!(place, 1, "{call}");
    let _next = server.waiter(format!("LOCK.WAIT k c {LONG}"));
    server.call("ACL SETUSER guest resetkeys").okay();
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    // LOCK.INFO may hide tokens.
    let mut holders = vec!["b", "c"];
    holders.retain(|token| server.call(format!("LOCK.CHECK k {token}")).int() > 0);
    server.call("LOCK.CANCEL k c").int();
    server.call("DEL k").int();
    holders
}

#[test]
fn a_place_of_another_module_is_granted_and_that_of_a_user_it_made_is_not() {
    let server = Server::start();
    load_calling(&server);
    for (call, expected) in [
        ("calling.call LOCK.QUEUE", "b"),
        ("calling.call_as_user LOCK.QUEUE", "c"),
        ("calling.call_as_own LOCK.QUEUE", "c"),
    ] {
        let holders = granted_after_a_change_of_rights(&server, call);
        assert_eq!(holders, [expected], "{call}");
    }
}

#[test]
fn a_place_whose_user_cannot_be_told_is_not_granted() {
    let server = Server::start();
    load_calling(&server);
    server.call("calling.answer_pong LOCK.NONE").okay();
    let holders = granted_after_a_change_of_rights(&server, "LOCK.QUEUE");
    assert_eq!(holders, ["c"]);
}

// ---- rights in one database alone, which Valkey has since 9.1

/// Returns a server, and a user with all rights in database 0 alone. Returns nothing if the server has
/// no such rights, which it then has to say.
#[track_caller]
fn limited_to_database_0() -> Option<(Server, Client)> {
    let server = Server::start();
    let limits = server.call("ACL SETUSER limited resetdbs db=0");
    if limits.is_err() {
        let error = limits.error();
        assert!(error.contains("yntax error"), "{error}");
        return None;
    }
    let client = user(&server, "limited", "resetdbs db=0 ~* &* +@all");
    Some((server, client))
}

#[test]
fn a_wait_in_the_user_s_database_is_granted_after_a_change_of_rights() {
    let Some((server, mut limited)) = limited_to_database_0() else {
        return;
    };
    for wait in ["LOCK.WAIT k b", "LOCK.MWAIT 2 k other b"] {
        server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
        server.block(&mut limited, format!("{wait} {LONG}"));
        server.call("ACL SETUSER another on").okay();
        assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
        assert_eq!(limited.recv().grant().token, "b", "{wait}");
        server.call("FLUSHALL").okay();
    }
}

#[test]
fn a_place_in_the_user_s_database_is_granted_after_a_change_of_rights() {
    let Some((server, mut limited)) = limited_to_database_0() else {
        return;
    };
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    assert_eq!(limited.call(format!("LOCK.QUEUE k b {LONG}")).int(), 1);
    server.call("ACL SETUSER another on").okay();
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    assert_eq!(server.known_lock("k").holder_tokens(), ["b"]);
}

#[test]
fn a_wait_ends_if_its_user_loses_the_database() {
    let Some((server, mut limited)) = limited_to_database_0() else {
        return;
    };
    server.call(format!("LOCK.ACQUIRE k a {LONG}")).grant();
    server.block(&mut limited, format!("LOCK.WAIT k b {LONG}"));
    server.call("ACL SETUSER limited resetdbs db=1").okay();
    server.call("LOCK.RELEASE k a").int();
    assert_forbidden(limited.recv(), "LOCK.WAIT");
    assert_eq!(server.lock_info("k"), None);
}

#[test]
fn lock_hot_shows_no_key_of_another_database_than_the_user_s() {
    let Some((server, mut limited)) = limited_to_database_0() else {
        return;
    };
    for db in [0, 1] {
        let mut client = server.client();
        client.call(format!("SELECT {db}")).okay();
        client.call(format!("LOCK.ACQUIRE in{db} a {LONG}")).grant();
        client.call(format!("LOCK.WAIT in{db} b BLOCK 1")).nil();
    }
    assert_eq!(server.call("LOCK.HOT").list().len(), 2);
    let shown = limited.call("LOCK.HOT").list();
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert!(format!("{shown:?}").contains("in0"), "{shown:?}");
}

// ---- calls of other modules, whose clients have no connection

#[test]
fn a_lock_of_another_module_s_call_is_shown_in_every_context() {
    let server = Server::start();
    load_calling(&server);
    server
        .call(format!("calling.call LOCK.ACQUIRE k a {LONG}"))
        .grant();
    for call in ["calling.call LOCK.INFO k", "LOCK.INFO k"] {
        let info = LockInfo::of(server.call(call).value()).expect("a lock");
        assert_eq!(info.holder_tokens(), ["a"], "{call}");
    }
    for _ in 0..2 {
        server
            .call(&["EVAL", "return redis.call('LOCK.INFO', 'k')", "0"])
            .value();
        server.call("calling.call LOCK.ACQUIRE free b").grant();
        server.call("calling.call LOCK.WAIT k b").nil();
    }
    assert_eq!(server.call("calling.call LOCK.RELEASE k a").int(), 1);
}

#[test]
fn a_session_of_another_module_s_call_is_refused() {
    let server = Server::start();
    load_calling(&server);
    for command in ["ACQUIRE", "WAIT"] {
        let call = format!("calling.call LOCK.{command} k a {LONG} SESSION");
        let error = server.call(call).error();
        assert!(error.contains("SESSION needs a connection"), "{error}");
    }
    assert_eq!(server.lock_info("k"), None);
}
