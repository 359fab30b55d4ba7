//! The Debian package, the release tarball and `make install`, by the commands of
//! docs/operate/install.md.
//! The commands run in a disposable copy of this machine, with systemd and Debian's own unit of the
//! server. The tests need root, systemd and Debian's redis-server. `make test-packages` runs them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the commands of a section of docs/operate/install.md, except lines that begin with
/// `make`.
#[track_caller]
fn commands(section: &str) -> String {
    let text = fs::read_to_string(root().join("docs/operate/install.md")).expect("a document");
    let (_, rest) = text
        .split_once(&format!("\n## {section}\n"))
        .expect(section);
    let section = rest.split("\n## ").next().expect("a section");
    let blocks = section.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|rest| rest.split("```").next().unwrap_or_default().lines());
    let lines = lines.filter(|line| !line.starts_with("make "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Runs commands as root in a copy of this machine. Returns true if they succeeded, and their
/// output.
#[track_caller]
fn play(commands: &str) -> (bool, String) {
    let out = tempfile::tempdir().expect("a folder");
    let script = out.path().join("script");
    let head = "set -eux\nsudo() { \"$@\"; }\n";
    fs::write(&script, format!("{head}{commands}")).expect("a script");
    let output = Command::new("timeout")
        .args(["--signal=KILL", "300"])
        .args([
            "unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup",
        ])
        .args(["--fork", "--kill-child", "sh"])
        .arg(root().join("tests/packages/copy_of_machine.sh"))
        .args([&script, out.path()])
        .env_remove("REDIS_SERVER")
        .output()
        .expect("unshare runs");
    let console = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let read = |name| fs::read_to_string(out.path().join(name));
    let said = read("said").unwrap_or_else(|_| panic!("nothing was run: {console}"));
    let code = read("code").unwrap_or_else(|_| panic!("it didn't end: {said}\n{console}"));
    (code.trim() == "0", said)
}

#[track_caller]
fn play_well(commands: &str) -> String {
    let (succeeded, said) = play(commands);
    assert!(succeeded, "{said}");
    said
}

/// Commands that restart the server by its unit and acquire a lock.
const USE: &str = "systemctl restart redis-server\n\
     systemctl show -p NoExecPaths -p MemoryDenyWriteExecute -p User redis-server\n\
     redis-cli LOCK.ACQUIRE k somebody\n\
     redis-cli LOCK.HELP\n";

/// Asserts that the output shows the unit's restrictions and the module's replies.
#[track_caller]
fn assert_works_under_the_unit(said: &str) {
    for line in [
        "User=redis",
        "NoExecPaths=/",
        "MemoryDenyWriteExecute=yes",
        "somebody",
        &format!("redis-lock {VERSION}"),
    ] {
        assert!(said.lines().any(|it| it == line), "no {line:?} in\n{said}");
    }
}

#[test]
fn the_debian_package_works_with_the_server_s_own_unit_and_goes_without_a_trace() {
    let commands = commands("Debian package");
    assert!(commands.contains("apt-get install") && commands.contains("LOCK.HELP"));
    let gone = "apt-get remove --yes redis-lock\n! ls /usr/lib/redis/modules/libredis_lock.so\n";
    let said = play_well(&format!("{commands}{USE}{gone}"));
    assert_works_under_the_unit(&said);
}

#[test]
fn make_install_works_with_the_server_s_own_unit() {
    let commands = commands("From source");
    assert!(commands.contains("make install"));
    assert_works_under_the_unit(&play_well(&format!("{commands}{USE}")));
}

#[test]
fn the_tarball_works_with_the_server_s_own_unit() {
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let dist = target.join("dist");
    let commands = commands("Release tarball").replace(
        "redis-lock-0.1.0-x86_64-unknown-linux-gnu",
        &format!(
            "redis-lock-{VERSION}-{}-unknown-linux-gnu",
            env::consts::ARCH
        ),
    );
    let check = format!("cd \"$(mktemp -d)\"\ncp {}/*.tar.gz .\n", dist.display());
    let append = "cat /usr/share/redis-lock/redis-lock.conf >>/etc/redis/redis.conf\n";
    assert_works_under_the_unit(&play_well(&format!("{check}{commands}{append}{USE}")));
}

#[test]
fn the_unit_lets_no_module_be_loaded_from_elsewhere() {
    let (succeeded, said) = play(
        "make install PREFIX=/usr/local\n\
         cat /usr/local/share/redis-lock/redis-lock.conf >>/etc/redis/redis.conf\n\
         systemctl restart redis-server || { cat /var/log/redis/redis-server.log; exit 1; }\n",
    );
    assert!(!succeeded, "{said}");
    assert!(
        said.contains("failed to map segment from shared object"),
        "{said}"
    );
}
