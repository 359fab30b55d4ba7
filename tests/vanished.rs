//! A client's machine vanishes: from one moment on, no packet of it arrives, neither FIN nor RST,
//! and no packet reaches it. Its grants with SESSION are free within 30 s.
//!
//! Each test has two network namespaces of its own, joined by a pair of virtual interfaces: the
//! server's machine, where the test runs, and the client's machine. The tests need root, or
//! `unshare --user --map-root-user`. `make test-vanished` runs them. They need the programs `ip`
//! (iproute2) and, for TLS, `openssl` and the server's client.
#![cfg(target_os = "linux")]

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::{until, Builder, Client, Expect, Server};

/// The addresses of the server's and the client's machine, from the range for documentation.
const NEAR: &str = "192.0.2.1";
const FAR: &str = "192.0.2.2";

/// The hardware address of the client's machine. The server's machine keeps it permanently, so it
/// still sends packets to a vanished machine, like behind a router.
const FAR_HARDWARE: &str = "02:00:00:00:00:02";

/// The time from the last packet within which a lock is free.
const PROMISED: Duration = Duration::from_secs(30);

/// The time for which a machine may be cut off without losing a grant.
const BORNE: Duration = Duration::from_secs(10);

/// A lease that is renewed many times while the server waits for the machine.
const SESSION: &str = "PX 2000 SESSION";

/// The client's machine.
struct Machine {
    namespace: File,
}

impl Machine {
    /// Puts this thread on the server's machine, and joins another machine to it.
    fn joined() -> Machine {
        enter_new_namespace();
        ip("link set lo up");
        let namespace = thread::scope(|scope| {
            let far = scope.spawn(|| {
                enter_new_namespace();
                File::open("/proc/thread-self/ns/net").expect("a namespace")
            });
            far.join().expect("another machine")
        });
        let path = format!("/proc/{}/fd/{}", process::id(), namespace.as_raw_fd());
        ip(&format!(
            "link add near type veth peer name far address {FAR_HARDWARE} netns {path}"
        ));
        ip(&format!("address add {NEAR}/24 dev near"));
        ip("link set near up");
        ip(&format!(
            "neighbour add {FAR} lladdr {FAR_HARDWARE} nud permanent dev near"
        ));
        let machine = Machine { namespace };
        machine.run(|| {
            ip(&format!("address add {FAR}/24 dev far"));
            ip("link set far up");
        });
        machine
    }

    /// Runs `work` on this machine. Connections and processes that it makes stay there.
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                // SAFETY: setns takes an open descriptor, and concerns this thread alone.
                let status = unsafe { libc::setns(self.namespace.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(status, 0, "setns: {}", io::Error::last_os_error());
                work()
            });
            there.join().expect("the work on the other machine")
        })
    }

    fn client(&self, server: &Server) -> Client {
        let address = (NEAR, server.port());
        self.run(|| Client::connect_to(address))
    }

    /// Takes the machine's address away, so its connections get and send no packets. Returns the
    /// time before that. The last packet came at most a moment after that time.
    fn vanish(&self) -> Instant {
        let before = Instant::now();
        self.run(|| ip("address flush dev far"));
        before
    }

    /// Gives the machine its address back.
    fn appear(&self) {
        self.run(|| ip(&format!("address add {FAR}/24 dev far")));
    }
}

fn enter_new_namespace() {
    // SAFETY: unshare takes a number, and concerns this thread alone.
    let status = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    let error = io::Error::last_os_error();
    assert_eq!(
        status, 0,
        "this test makes network namespaces, as root or under `unshare --user --map-root-user`: {error}"
    );
}

#[track_caller]
fn ip(words: &str) {
    run(Command::new("ip").args(words.split(' ')));
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// Builds a server that other machines can reach, with its own default for `tcp-keepalive`.
fn reachable() -> Builder {
    Server::builder()
        .config(&format!("bind 127.0.0.1 {NEAR}"))
        .config("protected-mode no")
        .config("tcp-keepalive 300")
}

/// A grant that was tied to a vanished machine, and the longest time that it may last after that.
struct Tied {
    key: &'static str,
    most: Duration,
}

fn tied(key: &'static str) -> Tied {
    Tied {
        key,
        most: PROMISED,
    }
}

/// Waits until the keys are free. Asserts that each key is free within its time, and not before the
/// end of a short outage.
#[track_caller]
fn until_free(server: &Server, since: Instant, mut held: Vec<Tied>) {
    while !held.is_empty() {
        held.retain(|tied| {
            let is_held = server.lock_info(tied.key).is_some();
            let passed = since.elapsed();
            assert!(
                !is_held || passed < tied.most,
                "{} is held after {passed:?}",
                tied.key
            );
            assert!(
                is_held || passed > BORNE,
                "{} is free after {passed:?}",
                tied.key
            );
            if !is_held {
                println!("{} is free after {passed:?}", tied.key);
            }
            is_held
        });
        thread::sleep(Duration::from_millis(20));
    }
}

/// Commands that leave a client with a grant tied to its connection, each list on a key of its own.
const WAYS: [(&str, &[&str]); 6] = [
    ("acquired", &["LOCK.ACQUIRE acquired t PX 2000 SESSION"]),
    (
        "extended",
        &[
            "LOCK.ACQUIRE extended t PX 60000",
            "LOCK.EXTEND extended t PX 2000 SESSION",
        ],
    ),
    (
        "transaction",
        &[
            "MULTI",
            "LOCK.ACQUIRE transaction t PX 2000 SESSION",
            "EXEC",
        ],
    ),
    (
        "script",
        &["EVAL return{redis.call('LOCK.ACQUIRE',KEYS[1],'t','PX','2000','SESSION')} 1 script"],
    ),
    (
        "again",
        &[
            "LOCK.ACQUIRE again t PX 2000 SESSION",
            "LOCK.RELEASE again t",
            "RESET",
            "LOCK.ACQUIRE again t PX 2000 SESSION",
        ],
    ),
    ("at_once", &["LOCK.WAIT at_once t PX 2000 SESSION"]),
];

#[test]
fn the_grants_of_a_machine_that_vanished_are_free_within_30_s_and_with_keep_so_long_after() {
    let machine = Machine::joined();
    let server = reachable().start();
    let mut here = server.client();
    here.call(format!("LOCK.ACQUIRE here t {SESSION}")).grant();
    let mut there: Vec<Client> = Vec::new();
    let mut held: Vec<Tied> = Vec::new();
    for (key, commands) in WAYS {
        let mut client = machine.client(&server);
        client.call_all(commands);
        there.push(client);
        held.push(tied(key));
    }
    let keep = Duration::from_secs(6);
    let mut keeper = machine.client(&server);
    let keep_ms = keep.as_millis();
    keeper
        .call(format!("LOCK.ACQUIRE kept t {SESSION} KEEP {keep_ms}"))
        .grant();
    held.push(Tied {
        key: "kept",
        most: PROMISED + keep,
    });
    there.push(keeper);
    server.call("LOCK.ACQUIRE waited a PX 60000").grant();
    let mut waiter = machine.client(&server);
    server.block(&mut waiter, format!("LOCK.WAIT waited t {SESSION}"));
    server.call("LOCK.RELEASE waited a").int();
    waiter.recv().grant();
    held.push(tied("waited"));
    until_free(&server, machine.vanish(), held);
    assert!(
        server.lock_info("here").is_some(),
        "the grant of a machine that is still connected"
    );
}

#[test]
fn a_grant_that_is_handed_to_a_machine_that_vanished_is_free_within_30_s_too() {
    let machine = Machine::joined();
    let server = reachable().start();
    let waiters = ["at_once", "at_last"].map(|key| {
        server
            .call(format!("LOCK.ACQUIRE {key} a PX 60000"))
            .grant();
        let mut waiter = machine.client(&server);
        server.block(&mut waiter, format!("LOCK.WAIT {key} t {SESSION}"));
        waiter
    });
    let since = machine.vanish();
    server.call("LOCK.RELEASE at_once a").int();
    // The later a packet is sent in vain, the later the server notices the outage. This is just
    // before the server would notice it anyway.
    until("it is late", || since.elapsed() > Duration::from_secs(12));
    server.call("LOCK.RELEASE at_last a").int();
    assert_eq!(server.known_lock("at_last").holder_tokens(), ["t"]);
    until_free(&server, since, vec![tied("at_once"), tied("at_last")]);
    drop(waiters);
}

#[test]
fn a_machine_that_is_cut_off_for_a_short_time_keeps_its_grants() {
    let machine = Machine::joined();
    let server = reachable().start();
    let mut idle = machine.client(&server);
    idle.call(format!("LOCK.ACQUIRE idle t {SESSION}")).grant();
    server.call("LOCK.ACQUIRE waited a PX 60000").grant();
    let mut waiter = machine.client(&server);
    server.block(&mut waiter, format!("LOCK.WAIT waited t {SESSION}"));
    let since = machine.vanish();
    server.call("LOCK.RELEASE waited a").int();
    until("the outage is over", || since.elapsed() > BORNE);
    machine.appear();
    waiter.recv().grant();
    // This is longer than the server waits for a machine.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(20) {
        for key in ["idle", "waited"] {
            assert!(
                server.lock_info(key).is_some(),
                "{key} after {:?}",
                since.elapsed()
            );
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_grants_of_a_machine_that_vanished_are_free_within_30_s_over_tls() {
    let machine = Machine::joined();
    let folder = tempfile::tempdir().expect("a folder");
    let (key, certificate) = (folder.path().join("key"), folder.path().join("certificate"));
    run(Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=near",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate));
    let server = reachable()
        .config("tls-port 16380")
        .config("tls-auth-clients no")
        .config(&format!("tls-key-file \"{}\"", key.display()))
        .config(&format!("tls-cert-file \"{}\"", certificate.display()))
        .config(&format!("tls-ca-cert-file \"{}\"", certificate.display()))
        .start();
    let cli = env::var_os("REDIS_CLI").unwrap_or_else(|| "redis-cli".into());
    let mut client = Ended(machine.run(|| {
        let mut command = Command::new(cli);
        command.args(["-h", NEAR, "-p", "16380", "--tls", "--insecure"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command
            .spawn()
            .expect("the server's client, or its path in REDIS_CLI")
    }));
    let mut words = client.0.stdin.take().expect("its input");
    writeln!(words, "LOCK.ACQUIRE k t {SESSION}").expect("it reads");
    until("the client holds the lock", || {
        server.lock_info("k").is_some()
    });
    until_free(&server, machine.vanish(), vec![tied("k")]);
}

/// A process that is killed when this goes out of scope.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
