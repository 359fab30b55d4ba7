//! Shared, counted, multi-key and tied locks in snapshots, in the append-only file and on replicas.
//! The replicated commands are checked word for word, and no lock is lost or added on the way.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use support::load::{Dice, Over};
use support::{
    cluster_node, unix_time_ms, unix_time_us, until, Client, Expect, Grant, LockInfo,
    ReplicationStream, Server, LONG,
};

// ---- replicated commands

/// Starts a primary and attaches to its replication stream. The server's active expiry is off, so
/// the cause of a lease's end is known.
fn primary() -> (Server, ReplicationStream) {
    let server = Server::start();
    server.call("DEBUG SET-ACTIVE-EXPIRE 0").okay();
    let stream = ReplicationStream::attach(&server);
    (server, stream)
}

/// A replicated command: a grant in the form
/// `LOCK.APPLY key GRANT token "mode limit fence holds deadline-ms since-ms lease-ms permits"`,
/// or another command.
#[derive(Debug, Clone, PartialEq)]
struct Sent {
    /// The words without LOCK.APPLY and, in a grant, without its times and permits.
    words: String,
    deadline_ms: i64,
    since_ms: i64,
    lease_ms: i64,
    permits: i64,
}

impl Sent {
    #[track_caller]
    fn of(line: &str) -> Sent {
        let effect = line.strip_prefix("LOCK.APPLY ");
        let is_grant = effect.is_some_and(|effect| effect.split(' ').nth(1) == Some("GRANT"));
        let Some(effect) = effect.filter(|_| is_grant) else {
            return Sent {
                words: effect.unwrap_or(line).to_owned(),
                deadline_ms: 0,
                since_ms: 0,
                lease_ms: 0,
                permits: 0,
            };
        };
        let words: Vec<&str> = effect.split(' ').collect();
        let number = |word: &str| -> i64 { word.parse().expect("a number") };
        let [of @ .., deadline_ms, since_ms, lease_ms, permits] = words.as_slice() else {
            panic!("not a grant: {line}");
        };
        assert_eq!(of.len(), 7, "not a grant: {line}");
        Sent {
            words: of.join(" "),
            deadline_ms: number(deadline_ms),
            since_ms: number(since_ms),
            lease_ms: number(lease_ms),
            permits: number(permits),
        }
    }
}

#[track_caller]
fn sent(stream: &mut ReplicationStream, server: &Server) -> Vec<Sent> {
    let lines = stream.lines_up_to_now(server);
    lines.iter().map(|line| Sent::of(line)).collect()
}

/// Asserts the commands sent since the last check, without the times and permits of grants.
#[track_caller]
fn assert_sent(stream: &mut ReplicationStream, server: &Server, expected: &[&str]) {
    let sent = sent(stream, server);
    let words: Vec<&str> = sent.iter().map(|sent| sent.words.as_str()).collect();
    assert_eq!(words, expected);
}

/// Waits for commands that the server sends by itself, and asserts that they are `expected`.
#[track_caller]
fn assert_sent_soon(stream: &mut ReplicationStream, server: &Server, expected: &[&str]) {
    let mut words = Vec::new();
    until(&format!("{expected:?} is sent"), || {
        words.extend(sent(stream, server).into_iter().map(|sent| sent.words));
        words.len() >= expected.len()
    });
    assert_eq!(words, expected);
}

#[track_caller]
fn take(server: &Server, key: &str, token: &str, options: &str) -> i64 {
    let acquire = format!("LOCK.ACQUIRE {key} {token} {LONG} {options}");
    server.call(acquire).grant().fence
}

fn waiter(server: &Server, wait: &str) -> Client {
    server.waiter(format!("{wait} {LONG}"))
}

#[test]
fn shared_grants_stand_beside_each_other() {
    let (server, mut stream) = primary();
    let a = take(&server, "k", "a", "SHARED");
    let b = take(&server, "k", "b", "SHARED LIMIT 5");
    let c = take(&server, "k", "c", "SHARED LIMIT 4294967295 REENTRANT");
    take(&server, "k", "c", "SHARED REENTRANT LIMIT 3");
    assert_sent(
        &mut stream,
        &server,
        &[
            &format!("k GRANT a shared 0 {a} 1"),
            &format!("k GRANT b shared 5 {b} 1"),
            &format!("k GRANT c shared 4294967295 {c} 1"),
            &format!("k GRANT c shared 3 {c} 2"),
        ],
    );
    server.call("LOCK.ACQUIRE k x").nil();
    server.call("LOCK.ACQUIRE k x SHARED LIMIT 3").nil();
    assert_sent(&mut stream, &server, &[]);
}

#[test]
fn a_holder_that_leaves_others_is_dropped_and_the_last_is_a_deletion() {
    let (server, mut stream) = primary();
    for token in ["a", "b", "c"] {
        take(&server, "k", token, "SHARED");
    }
    sent(&mut stream, &server);
    for token in ["b", "a", "c"] {
        assert_eq!(server.call(format!("LOCK.RELEASE k {token}")).int(), 1);
    }
    assert_sent(&mut stream, &server, &["k DROP b", "k DROP a", "DEL k"]);
}

#[test]
fn an_extension_of_one_holder_is_its_grant_alone() {
    let (server, mut stream) = primary();
    let fence = take(&server, "k", "a", "SHARED LIMIT 2");
    take(&server, "k", "b", "SHARED LIMIT 2");
    let [first, _] = sent(&mut stream, &server).try_into().expect("two grants");
    assert_eq!(first.deadline_ms, first.since_ms + 600_000);
    let before_ms = unix_time_ms();
    assert_eq!(server.call("LOCK.EXTEND k a PX 900000").int(), 1);
    let [again] = sent(&mut stream, &server).try_into().expect("one grant");
    assert_eq!(again.words, format!("k GRANT a shared 2 {fence} 1"));
    assert_eq!(again.since_ms, first.since_ms);
    assert!((before_ms..=unix_time_ms()).contains(&(again.deadline_ms - 900_000)));
}

#[test]
fn data_is_one_more_word_and_a_raised_fence_is_a_grant() {
    let (server, mut stream) = primary();
    let fence = take(&server, "k", "a", "DATA why");
    let line = |stream: &mut ReplicationStream| -> String {
        let [line] = stream
            .lines_up_to_now(&server)
            .try_into()
            .expect("one command");
        line
    };
    let with_data = line(&mut stream);
    assert!(with_data.ends_with(" 600000 1 why"), "{with_data}");
    take(&server, "k", "a", "");
    assert!(
        line(&mut stream).ends_with(" 1 why"),
        "data that stays is sent again"
    );
    let extend = |options: &[&str]| {
        let words = [&["LOCK.EXTEND", "k", "a"], options].concat();
        assert_eq!(server.call(&words).int(), 1);
    };
    extend(&["DATA", "because"]);
    assert!(line(&mut stream).ends_with(" 1 because"));
    extend(&["DATA", ""]);
    assert!(
        line(&mut stream).ends_with(" 600000 1"),
        "no word without data"
    );
    let raised = (fence + 1_000_000).to_string();
    extend(&["FENCE", &raised]);
    let expected = format!("k GRANT a exclusive 0 {raised} 1");
    assert_eq!(Sent::of(&line(&mut stream)).words, expected);
}

#[test]
fn an_expired_holder_among_others_is_dropped_with_nobody_touching_the_key() {
    let (server, mut stream) = primary();
    take(&server, "k", "a", "SHARED");
    take(&server, "k", "b", "SHARED");
    sent(&mut stream, &server);
    assert_eq!(server.call("LOCK.EXTEND k a PX 30").int(), 1);
    let mut all = Vec::new();
    until("a is dropped", || {
        all.extend(sent(&mut stream, &server));
        all.len() == 2
    });
    assert_eq!(all[1].words, "k DROP a");
}

#[test]
fn a_permit_that_passes_on_is_a_grant_and_a_drop_in_one_transaction() {
    let (server, mut stream) = primary();
    take(&server, "k", "a", "SHARED LIMIT 2");
    let extended = take(&server, "k", "b", "SHARED LIMIT 2");
    let mut by_release = waiter(&server, "LOCK.WAIT k c SHARED LIMIT 2");
    let mut by_time = waiter(&server, "LOCK.WAIT k d SHARED LIMIT 2");
    sent(&mut stream, &server);
    let expected = |fence: i64, to: &str, from: &str| {
        [
            "MULTI".to_owned(),
            format!("k GRANT {to} shared 2 {fence} 1"),
            format!("k DROP {from}"),
            "EXEC".to_owned(),
        ]
    };
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    let fence = by_release.recv().grant().fence;
    let words = expected(fence, "c", "a");
    assert_sent(&mut stream, &server, &words.each_ref().map(String::as_str));
    assert_eq!(server.call("LOCK.EXTEND k b PX 40").int(), 1);
    let fence = by_time.recv().grant().fence;
    let mut words = vec![format!("k GRANT b shared 2 {extended} 1")];
    words.extend(expected(fence, "d", "b"));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_sent(&mut stream, &server, &words);
}

#[test]
fn a_batch_of_readers_is_granted_in_one_transaction() {
    let (server, mut stream) = primary();
    take(&server, "k", "x", "");
    let mut readers =
        ["a", "b"].map(|token| waiter(&server, &format!("LOCK.WAIT k {token} SHARED")));
    sent(&mut stream, &server);
    assert_eq!(server.call("LOCK.RELEASE k x").int(), 1);
    let [a, b] = readers.each_mut().map(|reader| reader.recv().grant().fence);
    assert_sent(
        &mut stream,
        &server,
        &[
            "MULTI",
            // The first reader replaces the writer, and the second is added to the first.
            &format!("k GRANT a shared 0 {a} 1"),
            &format!("k GRANT b shared 0 {b} 1"),
            "EXEC",
        ],
    );
}

#[test]
fn conversions_are_one_grant_each() {
    let (server, mut stream) = primary();
    let first = take(&server, "k", "a", "");
    take(&server, "k", "a", "SHARED LIMIT 3");
    let second = take(&server, "k", "a", "");
    take(&server, "k", "a", "SHARED REENTRANT");
    let third = take(&server, "k", "a", "REENTRANT");
    let sent = sent(&mut stream, &server);
    let words: Vec<&str> = sent.iter().map(|sent| sent.words.as_str()).collect();
    assert_eq!(
        words,
        [
            &format!("k GRANT a exclusive 0 {first} 1"),
            &format!("k GRANT a shared 3 {first} 1"),
            &format!("k GRANT a exclusive 0 {second} 1"),
            &format!("k GRANT a shared 0 {second} 2"),
            &format!("k GRANT a exclusive 0 {third} 3"),
        ]
    );
    // `since-ms` is the time of the grant that assigned the fence.
    assert_eq!(sent[0].since_ms, sent[1].since_ms);
    assert_eq!(sent[2].since_ms, sent[3].since_ms);
}

#[test]
fn an_upgrade_by_the_leave_of_the_last_other_is_one_grant() {
    let (server, mut stream) = primary();
    take(&server, "k", "a", "SHARED");
    take(&server, "k", "b", "SHARED");
    let mut upgrade = waiter(&server, "LOCK.WAIT k a");
    sent(&mut stream, &server);
    assert_eq!(server.call("LOCK.RELEASE k b").int(), 1);
    let fence = upgrade.recv().grant().fence;
    assert_sent(
        &mut stream,
        &server,
        &[&format!("k GRANT a exclusive 0 {fence} 1")],
    );
}

#[test]
fn a_downgrade_and_those_it_admits_are_one_transaction() {
    let (server, mut stream) = primary();
    let own = take(&server, "k", "a", "");
    let mut reader = waiter(&server, "LOCK.WAIT k b SHARED");
    sent(&mut stream, &server);
    take(&server, "k", "a", "SHARED");
    let fence = reader.recv().grant().fence;
    assert_sent(
        &mut stream,
        &server,
        &[
            "MULTI",
            &format!("k GRANT a shared 0 {own} 1"),
            &format!("k GRANT b shared 0 {fence} 1"),
            "EXEC",
        ],
    );
}

#[test]
fn several_keys_are_one_grant_a_key_in_one_transaction() {
    let (server, mut stream) = primary();
    let fence = server
        .call(format!("LOCK.MACQUIRE 3 k2 k3 k1 a {LONG}"))
        .grant()
        .fence;
    let grants = |words: &str| {
        let keys = ["k1", "k2", "k3"].map(|key| format!("{key} GRANT a {words}"));
        [&["MULTI".to_owned()][..], &keys, &["EXEC".to_owned()]].concat()
    };
    let all = sent(&mut stream, &server);
    let words: Vec<&str> = all.iter().map(|sent| sent.words.as_str()).collect();
    assert_eq!(words, grants(&format!("exclusive 0 {fence} 1")));
    assert!(all[1..4].iter().all(|sent| *sent
        == Sent {
            words: sent.words.clone(),
            ..all[1].clone()
        }));

    assert_eq!(server.call("LOCK.MEXTEND 3 k1 k2 k3 a PX 900000").int(), 3);
    let words: Vec<String> = sent(&mut stream, &server)
        .into_iter()
        .map(|sent| sent.words)
        .collect();
    assert_eq!(words, grants(&format!("exclusive 0 {fence} 1")));

    server
        .call("LOCK.MACQUIRE 3 k1 k2 k3 a REENTRANT SHARED LIMIT 2")
        .grant();
    let words: Vec<String> = sent(&mut stream, &server)
        .into_iter()
        .map(|sent| sent.words)
        .collect();
    assert_eq!(words, grants(&format!("shared 2 {fence} 2")));

    assert_eq!(server.call("LOCK.MRELEASE 3 k1 k2 k3 a").int(), 3);
    sent(&mut stream, &server);
    assert_eq!(server.call("LOCK.MRELEASE 3 k3 k2 k9 a").int(), 2);
    assert_sent(&mut stream, &server, &["MULTI", "DEL k2", "DEL k3", "EXEC"]);
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 a").int(), 1);
    assert_sent(&mut stream, &server, &["DEL k1"]);
}

#[test]
fn what_is_refused_for_several_keys_sends_nothing() {
    let (server, mut stream) = primary();
    take(&server, "k1", "a", "");
    take(&server, "k2", "b", "");
    server.call("SET text value").okay();
    sent(&mut stream, &server);
    server.call("LOCK.MACQUIRE 2 k1 k3 c").nil();
    server.call("LOCK.MWAIT 2 k1 k3 c BLOCK 5").nil();
    server.call("LOCK.MACQUIRE 2 k3 text c").error();
    server.call("LOCK.MACQUIRE 2 k3 k3 c").error();
    assert_eq!(server.call("LOCK.MEXTEND 2 k1 k2 a").int(), 0);
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 c").int(), 0);
    assert_sent(&mut stream, &server, &[]);
}

#[test]
fn a_wait_for_several_keys_is_granted_in_one_transaction() {
    let (server, mut stream) = primary();
    take(&server, "k1", "a", "");
    let mut both = waiter(&server, "LOCK.MWAIT 2 k2 k1 t");
    let mut behind = waiter(&server, "LOCK.WAIT k2 b");
    sent(&mut stream, &server);
    assert_eq!(server.call("LOCK.RELEASE k1 a").int(), 1);
    let fence = both.recv().grant().fence;
    assert_sent(
        &mut stream,
        &server,
        &[
            "MULTI",
            &format!("k1 GRANT t exclusive 0 {fence} 1"),
            &format!("k2 GRANT t exclusive 0 {fence} 1"),
            "EXEC",
        ],
    );
    // One key is handed over, the other is free.
    assert_eq!(server.call("LOCK.MRELEASE 2 k1 k2 t").int(), 2);
    let fence = behind.recv().grant().fence;
    assert_sent(
        &mut stream,
        &server,
        &[
            "MULTI",
            "DEL k1",
            &format!("k2 GRANT b exclusive 0 {fence} 1"),
            "EXEC",
        ],
    );
}

#[test]
fn effects_within_a_transaction_or_script_are_one_transaction() {
    let (server, mut stream) = primary();
    let grant_in_transaction = || {
        let commands = [
            "MULTI",
            "LOCK.MACQUIRE 2 k1 k2 a",
            "LOCK.MRELEASE 2 k2 k1 a",
            "EXEC",
        ];
        let mut replies = server.call_batch(&commands);
        let replies = replies.remove(3).list();
        Ok(replies[0].clone()).grant()
    };
    let script = "local grant = redis.call('LOCK.MACQUIRE', 2, KEYS[1], KEYS[2], 'a')
                  redis.call('LOCK.MRELEASE', 2, KEYS[1], KEYS[2], 'a')
                  return grant";
    let grant_in_script = || server.call(&["EVAL", script, "2", "k1", "k2"]).grant();
    let ways: [&dyn Fn() -> Grant; 2] = [&grant_in_transaction, &grant_in_script];
    for way in ways {
        let fence = way().fence;
        assert_sent(
            &mut stream,
            &server,
            &[
                "MULTI",
                &format!("k1 GRANT a exclusive 0 {fence} 1"),
                &format!("k2 GRANT a exclusive 0 {fence} 1"),
                "DEL k1",
                "DEL k2",
                "EXEC",
            ],
        );
    }
}

#[test]
fn a_session_is_sent_as_a_plain_grant_and_renewed_by_grants() {
    let (server, mut stream) = primary();
    let mut holder = server.client();
    let fence = holder
        .call("LOCK.ACQUIRE k a PX 1500 SHARED LIMIT 4 SESSION")
        .grant()
        .fence;
    let mut all = Vec::new();
    until("three renewals are sent", || {
        all.extend(sent(&mut stream, &server));
        all.len() >= 4
    });
    for pair in all.windows(2) {
        let [before, after] = pair else {
            unreachable!()
        };
        assert_eq!(before.words, format!("k GRANT a shared 4 {fence} 1"));
        assert_eq!(
            (&after.words, after.since_ms),
            (&before.words, before.since_ms)
        );
        // A renewal comes after a third of the lease, and before its end.
        let later_ms = after.deadline_ms - before.deadline_ms;
        assert!((500..1500).contains(&later_ms), "{later_ms} ms later");
    }
    assert_eq!(all[0].deadline_ms, all[0].since_ms + 1500);
}

#[test]
fn sessions_of_one_database_that_are_renewed_together_are_one_command() {
    let (server, mut stream) = primary();
    let mut holder = server.client();
    holder.call_all(&[
        "MULTI",
        "LOCK.MACQUIRE 2 k l t PX 1500 SESSION",
        "SELECT 3",
        "LOCK.MACQUIRE 2 k l t PX 1500 SESSION",
        "EXEC",
    ]);
    stream.lines_up_to_now(&server);
    let mut renewals = Vec::new();
    until("each database has two renewals", || {
        let lines = stream.lines_up_to_now(&server).into_iter();
        renewals.extend(lines.filter(|line| line.starts_with("LOCK.APPLY")));
        renewals.len() >= 4
    });
    for line in &renewals {
        let words: Vec<&str> = line.split(' ').collect();
        let ["LOCK.APPLY", "k", "RENEW", _, "l"] = words.as_slice() else {
            panic!("not a renewal of two keys: {renewals:#?}");
        };
    }
}

#[test]
fn sessions_with_other_leases_that_are_renewed_together_keep_their_own_deadlines() {
    let (primary, replica) = (Server::start(), Server::start());
    replica.replica_of(&primary);
    let mut holder = primary.client();
    let leases_ms = [("j", 3_000), ("k", 3_000), ("l", 3_600), ("m", 3_300)];
    for (key, lease_ms) in leases_ms {
        holder
            .call(format!("LOCK.ACQUIRE {key} t PX {lease_ms} SESSION"))
            .grant();
    }
    let expiries =
        |server: &Server| leases_ms.map(|(key, _)| server.call(format!("PEXPIRETIME {key}")).int());
    let granted = expiries(&primary);
    // All fall due while the server can't renew them.
    primary.call("DEBUG SLEEP 1.3").okay();
    until("all are renewed", || {
        let now = expiries(&primary);
        now.iter().zip(&granted).all(|(now, before)| now > before)
    });
    primary.call("CLIENT PAUSE 60000 WRITE").okay();
    replica.until_in_step(&primary);
    let renewed = expiries(&primary);
    assert!(renewed[2] > renewed[0], "{renewed:?}");
    assert_eq!(expiries(&replica), renewed);
}

/// In a cluster an effect must be found by the slot of its key.
#[test]
fn sessions_of_a_clusters_node_that_are_renewed_together_are_one_grant_each() {
    let server = cluster_node();
    let mut stream = ReplicationStream::attach(&server);
    let mut holder = server.client();
    for key in ["k", "l", "m"] {
        let acquire = format!("LOCK.ACQUIRE {key} t PX 3000 SESSION");
        holder.call(acquire).grant();
    }
    stream.lines_up_to_now(&server);
    // All fall due while the server can't renew them.
    server.call("DEBUG SLEEP 1.3").okay();
    let mut renewals = Vec::new();
    until("all are renewed", || {
        let lines = stream.lines_up_to_now(&server).into_iter();
        renewals.extend(lines.filter(|line| line.starts_with("LOCK.APPLY")));
        renewals.len() >= 3 || renewals.iter().any(|line| line.contains(" RENEW "))
    });
    let renewed: BTreeSet<&str> = renewals
        .iter()
        .filter_map(|line| line.split_once(" GRANT ").map(|(head, _)| head))
        .collect();
    let each = ["LOCK.APPLY k", "LOCK.APPLY l", "LOCK.APPLY m"];
    assert_eq!(renewed, BTreeSet::from(each), "{renewals:#?}");
}

#[test]
fn a_session_that_moves_is_a_grant_with_its_new_deadline() {
    let (server, mut stream) = primary();
    let mut first = server.client();
    let fence = first
        .call(format!("LOCK.ACQUIRE k a {LONG} SESSION"))
        .grant()
        .fence;
    sent(&mut stream, &server);
    assert_eq!(server.call("LOCK.EXTEND k a PX 900000 SESSION").int(), 1);
    let [grant] = sent(&mut stream, &server).try_into().expect("one grant");
    assert_eq!(grant.words, format!("k GRANT a exclusive 0 {fence} 1"));
    // The end of the old connection changes nothing.
    let id = first.id();
    first.close();
    until("the connection is gone", || !server.is_connected(id));
    server.settle();
    assert_sent(&mut stream, &server, &[]);
}

#[test]
fn the_end_of_a_session_is_a_deletion_a_drop_or_a_hand_over() {
    let (server, mut stream) = primary();
    let tied = |commands: &[&str]| {
        let mut client = server.client();
        for command in commands {
            client.call(format!("{command} {LONG} SESSION")).grant();
        }
        client
    };
    // The only holder.
    let holder = tied(&["LOCK.ACQUIRE k a"]);
    sent(&mut stream, &server);
    holder.close();
    assert_sent_soon(&mut stream, &server, &["DEL k"]);
    // One holder of two.
    take(&server, "k", "b", "SHARED");
    let holder = tied(&["LOCK.ACQUIRE k a SHARED"]);
    sent(&mut stream, &server);
    holder.reset();
    assert_sent_soon(&mut stream, &server, &["k DROP a"]);
    assert_eq!(server.call("LOCK.RELEASE k b").int(), 1);
    // A holder with a waiter.
    let holder = tied(&["LOCK.ACQUIRE k a"]);
    let mut next = waiter(&server, "LOCK.WAIT k c");
    sent(&mut stream, &server);
    holder.close();
    let fence = next.recv().grant().fence;
    assert_sent(
        &mut stream,
        &server,
        &[&format!("k GRANT c exclusive 0 {fence} 1")],
    );
    // Several holds at once: a deletion, a hand-over and a drop.
    let holder = tied(&["LOCK.MACQUIRE 2 k1 k2 a", "LOCK.ACQUIRE k3 a SHARED"]);
    take(&server, "k3", "b", "SHARED");
    let mut next = waiter(&server, "LOCK.WAIT k2 c");
    sent(&mut stream, &server);
    holder.close();
    let fence = next.recv().grant().fence;
    assert_sent(
        &mut stream,
        &server,
        &[
            "MULTI",
            "DEL k1",
            &format!("k2 GRANT c exclusive 0 {fence} 1"),
            "k3 DROP a",
            "EXEC",
        ],
    );
}

// ---- saved locks

/// The parts of a lock that don't change with time or with clients' connections.
#[derive(Debug, PartialEq)]
struct Kept {
    key: String,
    mode: String,
    holders: Vec<(String, i64, i64, i64, String)>,
    expiry_ms: i64,
}

/// Returns the digest of the whole data set, deadlines included, and all locks of database 0.
#[track_caller]
fn kept(server: &Server) -> (String, Vec<Kept>) {
    let keys = server.call("KEYS *").list().into_iter();
    let mut keys: Vec<String> = keys.map(|key| Ok(key).text()).collect();
    keys.sort_unstable();
    let of = |key: String| {
        let info = server.lock_info(&key).expect("a lock");
        let holders = info.holders.iter().map(|holder| {
            (
                holder.text("token"),
                holder.int("fence"),
                holder.int("holds"),
                holder.int("limit"),
                holder.text("data"),
            )
        });
        Kept {
            holders: holders.collect(),
            mode: info.mode.clone(),
            expiry_ms: server.call(&["PEXPIRETIME", &key]).int(),
            key,
        }
    };
    let locks = keys.into_iter().map(of).collect();
    (server.call("DEBUG DIGEST").text(), locks)
}

/// Creates locks of every kind in every way.
fn fill(server: &Server) {
    for (token, lease) in [("z", "PX 900000"), ("a", "PX 700000"), ("m", "PX 800000")] {
        server
            .call(format!("LOCK.ACQUIRE readers {token} {lease} SHARED"))
            .grant();
    }
    take(server, "readers", "a", "SHARED REENTRANT");
    for number in 0..4 {
        take(server, "permits", &format!("p{number}"), "SHARED LIMIT 5");
    }
    assert_eq!(server.call("LOCK.RELEASE permits p1").int(), 1);
    take(server, "limits", "a", "SHARED LIMIT 4294967295");
    take(server, "several", "a", "SHARED LIMIT 9 PERMITS 9");
    take(server, "several", "a", "SHARED LIMIT 9 PERMITS 4");
    take(server, "several", "b", "SHARED LIMIT 9 PERMITS 3");
    assert_eq!(server.call("LOCK.EXTEND several b PX 800000").int(), 1);
    assert_eq!(server.call("LOCK.EXTEND several b PX 700000").int(), 1);
    take(server, "limits", "b", "SHARED");
    take(server, "limits", "c", "SHARED LIMIT 3");
    server
        .call(format!("LOCK.MACQUIRE 3 m1 m2 m3 t {LONG}"))
        .grant();
    server
        .call(format!("LOCK.MACQUIRE 2 m2 m3 t {LONG} REENTRANT"))
        .grant();
    take(server, "down", "a", "REENTRANT");
    take(server, "down", "a", "SHARED LIMIT 2 REENTRANT");
    take(server, "up", "a", "SHARED LIMIT 2");
    take(server, "up", "a", "");
    take(server, "handed", "x", "");
    let mut readers = ["r1", "r2"]
        .map(|token| waiter(server, &format!("LOCK.WAIT handed {token} SHARED LIMIT 2")));
    let mut both = waiter(server, "LOCK.MWAIT 2 down free t");
    assert_eq!(server.call("LOCK.RELEASE handed x").int(), 1);
    for reader in &mut readers {
        reader.recv().grant();
    }
    assert_eq!(server.call("LOCK.RELEASE down a ALL").int(), 1);
    both.recv().grant();
    let wide = "w".repeat(256);
    take(server, "wide", &wide, "SHARED LIMIT 1");
    take(server, "data", "a", "SHARED DATA who");
    take(server, "data", "b", "SHARED");
    take(
        server,
        "data",
        "c",
        &format!("SHARED DATA {}", "x".repeat(1024)),
    );
    take(server, "raised", "b", "SHARED");
    let fence = take(server, "raised", "c", "SHARED");
    take(server, "raised", "a", "SHARED");
    for token in ["a", "b"] {
        let raise = format!("LOCK.EXTEND raised {token} FENCE {}", fence + 1_000_000);
        assert_eq!(server.call(raise).int(), 1);
    }
}

/// Starts a server with an append-only file, which it rewrites as RDB (`yes`) or as commands
/// (`no`). Its writes survive the end of the process without an fsync.
fn appending_server(preamble: &str) -> Server {
    Server::builder()
        .config("appendonly yes")
        .config("appendfsync no")
        .config(&format!("aof-use-rdb-preamble {preamble}"))
        .start()
}

#[track_caller]
fn rewrite(server: &Server) {
    until("the rewrite can start", || {
        server.call("BGREWRITEAOF").is_ok()
    });
    until("the rewrite is over", || {
        let field = |name| server.info("persistence", name);
        field("aof_rewrite_in_progress") == "0" && field("aof_rewrite_scheduled") == "0"
    });
    assert_eq!(
        server.info("persistence", "aof_last_bgrewrite_status"),
        "ok"
    );
}

/// Asserts that `save_and_load` changes no lock, and that each lock still behaves like its kind.
#[track_caller]
fn assert_survives(mut server: Server, what: &str, save_and_load: impl FnOnce(&mut Server)) {
    fill(&server);
    let before = kept(&server);
    save_and_load(&mut server);
    assert_eq!(kept(&server), before, "{what}");
    // Permits and lease lengths are unchanged.
    take(&server, "several", "c", "SHARED LIMIT 9 PERMITS 2");
    server.call("LOCK.ACQUIRE several d SHARED").nil();
    assert_eq!(server.call("LOCK.EXTEND several b").int(), 1);
    assert!((690_000..=700_000).contains(&server.call("LOCK.CHECK several b").int()));
    // The limits still apply, and holders of permits come and go.
    server.call("LOCK.ACQUIRE limits d SHARED").nil();
    server.call("LOCK.ACQUIRE wide d SHARED").nil();
    server.call("LOCK.ACQUIRE readers x").nil();
    for token in ["p1", "p4"] {
        take(&server, "permits", token, "SHARED LIMIT 5");
    }
    server.call("LOCK.ACQUIRE permits p5 SHARED LIMIT 5").nil();
    let mut next = waiter(&server, "LOCK.WAIT permits p6 SHARED LIMIT 5");
    assert_eq!(server.call("LOCK.RELEASE permits p0").int(), 1);
    let highest = |locks: &[Kept]| -> i64 {
        let holders = locks.iter().flat_map(|lock| &lock.holders);
        holders
            .map(|(_, fence, ..)| *fence)
            .max()
            .expect("a holder")
    };
    assert!(next.recv().grant().fence > highest(&before.1), "{what}");
    assert_eq!(server.call("LOCK.MRELEASE 4 m1 m2 m3 m4 t").int(), 3);
    assert_eq!(server.lock_info("m1"), None);
    assert_eq!(server.lock_info("m2").unwrap().holder().int("holds"), 1);
    assert_eq!(server.call("LOCK.RELEASE readers a ALL").int(), 1);
    assert_eq!(
        server.lock_info("readers").unwrap().holder_tokens(),
        ["z", "m"]
    );
}

#[test]
fn every_kind_survives_debug_reload() {
    assert_survives(Server::start(), "DEBUG RELOAD", |server| {
        server.call("DEBUG RELOAD").okay();
    });
}

#[test]
fn every_kind_survives_a_snapshot_and_a_restart() {
    assert_survives(Server::start(), "SAVE", |server| {
        server.call("SAVE").okay();
        server.restart();
    });
}

#[test]
fn every_kind_survives_a_restart_from_what_was_appended() {
    assert_survives(appending_server("no"), "appended", Server::restart);
}

#[test]
fn every_kind_survives_debug_loadaof() {
    assert_survives(appending_server("no"), "DEBUG LOADAOF", |server| {
        server.call("DEBUG LOADAOF").okay();
    });
}

#[test]
fn every_kind_survives_a_rewrite_of_the_append_only_file() {
    for preamble in ["yes", "no"] {
        assert_survives(appending_server(preamble), preamble, |server| {
            rewrite(server);
            server.restart();
        });
    }
}

#[test]
fn a_rewrite_without_preamble_writes_one_grant_a_holder() {
    let server = appending_server("no");
    fill(&server);
    rewrite(&server);
    let holders: usize = kept(&server).1.iter().map(|lock| lock.holders.len()).sum();
    let dir = server.dir().join("appendonlydir");
    let files = fs::read_dir(&dir).expect("the directory of the append-only file");
    let base = files
        .map(|file| file.expect("a file").path())
        .find(|path| path.to_string_lossy().contains(".base."))
        .expect("a base file");
    let text = String::from_utf8_lossy(&fs::read(base).expect("the base file")).into_owned();
    assert!(text.starts_with('*'), "commands, not an RDB");
    assert_eq!(text.matches("\r\nLOCK.APPLY\r\n").count(), holders);
    assert_eq!(text.matches("\r\nGRANT\r\n").count(), holders);
}

#[test]
fn a_permit_whose_lease_ended_while_the_server_was_down_is_there_for_another() {
    for appendonly in ["yes", "no"] {
        let mut server = Server::builder()
            .config(&format!("appendonly {appendonly}"))
            .config("appendfsync no")
            .start();
        take(&server, "k", "kept", "SHARED LIMIT 2");
        server
            .call("LOCK.ACQUIRE k expired PX 400 SHARED LIMIT 2")
            .grant();
        let end_ms = unix_time_ms() + 400;
        if appendonly == "no" {
            server.call("SAVE").okay();
        }
        server.kill9();
        until("the lease has ended", || unix_time_ms() > end_ms);
        server.restart();
        assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["kept"]);
        assert_eq!(server.call("LOCK.EXTEND k expired").int(), 0);
        take(&server, "k", "new", "SHARED LIMIT 2");
        server.call("LOCK.ACQUIRE k more SHARED LIMIT 2").nil();
    }
}

#[test]
fn a_restored_lock_has_the_holders_whose_leases_last() {
    let server = Server::start();
    take(&server, "k", "a", "SHARED LIMIT 2");
    let fence = take(&server, "k", "b", "SHARED LIMIT 2");
    let mut replies = server.call_batch(&["LOCK.EXTEND k a PX 30", "DUMP k"]);
    let payload = replies.remove(1).bytes();
    until("a's lease has ended", || {
        server.call("LOCK.CHECK k a").int() == 0
    });
    // The module ignores the TTL of RESTORE.
    server
        .call(&[b"RESTORE".as_slice(), b"copy", b"5000", &payload])
        .okay();
    let copy = server.lock_info("copy").expect("a lock");
    assert_eq!(copy.holder_tokens(), ["b"]);
    let own = copy.holder();
    assert_eq!((own.int("limit"), own.int("fence")), (2, fence));
    until("it expires with its last lease", || {
        server.call("PEXPIRETIME copy").int() == server.call("PEXPIRETIME k").int()
    });
    take(&server, "copy", "c", "SHARED LIMIT 2");
    server.call("LOCK.ACQUIRE copy d SHARED LIMIT 2").nil();
}

#[test]
fn a_drop_is_appended_and_survives_a_restart() {
    let mut server = appending_server("yes");
    for token in ["a", "b", "c"] {
        take(&server, "k", token, "SHARED LIMIT 3");
    }
    assert_eq!(server.call("LOCK.RELEASE k b").int(), 1);
    server.restart();
    assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["a", "c"]);
    take(&server, "k", "d", "SHARED LIMIT 3");
    assert_eq!(server.call("LOCK.RELEASE k a").int(), 1);
    server.restart();
    assert_eq!(server.lock_info("k").unwrap().holder_tokens(), ["c", "d"]);
}

#[test]
fn waits_for_several_keys_go_on_through_a_reload() {
    let server = Server::start();
    take(&server, "k1", "a", "");
    take(&server, "k2", "b", "SHARED");
    let mut both = waiter(&server, "LOCK.MWAIT 2 k1 k2 t");
    server.call("DEBUG RELOAD").okay();
    server.settle();
    both.expect_silence();
    assert_eq!(server.call("LOCK.RELEASE k2 b").int(), 1);
    server.settle();
    both.expect_silence();
    assert_eq!(server.call("LOCK.RELEASE k1 a").int(), 1);
    both.recv().grant();
    assert_eq!(server.lock_info("k2").unwrap().holder_tokens(), ["t"]);
}

// ---- on replicas

#[test]
fn a_replica_knows_every_kind() {
    let primary = Server::start();
    let replica = Server::start();
    replica.replica_of(&primary);
    fill(&primary);
    replica.until_in_step(&primary);
    assert_eq!(kept(&replica), kept(&primary));
    // A replica that attaches later gets every kind in a full synchronization.
    let late = Server::start();
    late.replica_of(&primary);
    assert_eq!(kept(&late), kept(&primary));
}

#[test]
fn a_replica_keeps_a_session_for_as_long_as_it_is_renewed() {
    let primary = Server::start();
    let replica = Server::start();
    replica.replica_of(&primary);
    let mut holder = primary.client();
    holder.call("LOCK.ACQUIRE k a PX 1500 SESSION").grant();
    replica.until_in_step(&primary);
    let start_ms = unix_time_ms();
    while unix_time_ms() < start_ms + 4_500 {
        assert!(
            replica.call("LOCK.CHECK k a").int() > 0,
            "renewed there too"
        );
    }
    holder.close();
    until("it ends there too", || {
        replica.lock_info("k").is_none() && replica.call("DBSIZE").int() == 0
    });
}

const KEYS: [&str; 5] = ["k0", "k1", "k2", "k3", "k4"];

/// Returns a random command with random options on random keys. Most commands are valid.
fn random_command(dice: &mut Dice) -> String {
    let token = format!("t{}", dice.below(5));
    let first = *dice.pick(&KEYS);
    let second = *dice.pick(&KEYS);
    let keys = if first == second {
        format!("1 {first}")
    } else {
        format!("2 {first} {second}")
    };
    let lease = *dice.pick(&["", "PX 20", "PX 300000", "EX 500", "PX 600 SESSION"]);
    let data = *dice.pick(&["", "", "DATA who", "DATA why"]);
    // Whole seconds, so that several grants are raised to one fence.
    let next_s = unix_time_us() / 1_000_000 + 1;
    let fence = [String::new(), format!("FENCE {next_s}000000")][dice.below(2) as usize].clone();
    let mode = *dice.pick(&[
        "",
        "",
        "SHARED",
        "SHARED LIMIT 2",
        "SHARED LIMIT 3",
        "SHARED LIMIT 3 PERMITS 2",
    ]);
    let repeat = *dice.pick(&["", "", "REENTRANT", "HOLDS 2"]);
    let block = dice.below(15) + 1;
    match dice.below(16) {
        0..=2 => format!("LOCK.ACQUIRE {first} {token} {lease} {mode} {repeat} {data}"),
        3..=4 => {
            format!("LOCK.WAIT {first} {token} {lease} {mode} {repeat} BLOCK {block} {data}")
        }
        5..=6 => format!("LOCK.MACQUIRE {keys} {token} {lease} {mode} {repeat}"),
        7..=8 => format!("LOCK.MWAIT {keys} {token} {lease} {mode} {repeat} BLOCK {block}"),
        9 => format!("LOCK.EXTEND {first} {token} {lease} {data} {fence}"),
        10 => format!("LOCK.MEXTEND {keys} {token} {lease} {data} {fence}"),
        11 => format!("LOCK.RELEASE {first} {token}"),
        12 => format!("LOCK.RELEASE {first} {token} ALL"),
        13 => format!("LOCK.MRELEASE {keys} {token}"),
        14 => format!("LOCK.MRELEASE {keys} {token} ALL"),
        _ => (*dice.pick(&[
            format!("DEL {first}"),
            format!("RENAME {first} {second}"),
            format!("PEXPIRE {first} 30"),
            format!("PERSIST {first}"),
            "SWAPDB 0 1".to_owned(),
        ]))
        .clone(),
    }
}

/// Sends `rounds` random commands, on one connection after another. Some commands fail.
fn play(server: &Server, seed: u64, rounds: usize) {
    let mut dice = Dice::new(seed);
    let mut client = server.client();
    for _ in 0..rounds {
        if dice.below(20) == 0 {
            client.reset();
            client = server.client();
        }
        // An error is a valid reply here, like that of a taken-over wait or of a missing key.
        drop(client.call(random_command(&mut dice)));
    }
}

/// Expires the ended leases of a key. Returns true if every other lease has more than 10 s left.
#[track_caller]
fn only_long_leases(client: &mut Client, key: &str) -> bool {
    client.call(format!("LOCK.RELEASE {key} nobody")).int();
    let info = LockInfo::of(client.call(&["LOCK.INFO", key]).value());
    let holders = info.map_or(Vec::new(), |info| info.holders);
    holders.iter().all(|holder| holder.int("lease-ms") > 10_000)
}

#[test]
fn replica_and_append_only_file_have_the_same_locks_after_a_random_mix() {
    let mut primary = appending_server("yes");
    let replica = Server::start();
    replica.replica_of(&primary);
    // From here on the replica gets a stream of commands.
    fill(&primary);
    replica.until_in_step(&primary);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = Over(&over);
        // The reads see the replica's locks in intermediate states.
        let reader = scope.spawn(|| {
            let mut client = replica.client();
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                let info = client.call("LOCK.INFO k0").value();
                seen += LockInfo::of(info).map_or(0, |info| info.holders.len());
            }
            seen
        });
        let players: Vec<_> = (0..6)
            .map(|seed| {
                let primary = &primary;
                scope.spawn(move || play(primary, seed, 400))
            })
            .collect();
        for player in players {
            player.join().expect("a player without a complaint");
        }
        drop(end);
        assert!(
            reader.join().expect("a reader") > 0,
            "the replica had locks"
        );
    });
    // The players and their sessions are gone. The other short leases end now.
    for db in [0, 1] {
        let mut client = primary.client().into_db(db);
        until("only long leases are left", || {
            KEYS.iter().all(|key| only_long_leases(&mut client, key))
        });
        for key in KEYS {
            let acquire = format!("LOCK.ACQUIRE {key} last {LONG} SHARED");
            client.call(acquire).value();
        }
    }
    assert_eq!(primary.info("lock", "lock_waiters"), "0");
    replica.until_in_step(&primary);
    let digest = |server: &Server| server.call("DEBUG DIGEST").text();
    let before = digest(&primary);
    assert_ne!(before, "0".repeat(40), "some locks are left");
    assert_eq!(digest(&replica), before, "the replica");
    replica.call("DEBUG RELOAD").okay();
    assert_eq!(digest(&replica), before, "the replica's snapshot");
    primary.restart();
    assert_eq!(digest(&primary), before, "the append-only file");
}
