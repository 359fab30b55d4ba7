//! `make` and its scripts on machines that lack programs: a copy of the clone's build files, where
//! only the programs of the test can be found. `make test-bare` runs them on a machine that has none.

use std::env;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::root;

/// The programs that the scripts call, besides the programs that they look for.
const SYSTEM_PROGRAMS: [&str; 23] = [
    "awk", "cat", "chmod", "cp", "cut", "dirname", "env", "find", "grep", "gzip", "head",
    "install", "make", "mkdir", "mktemp", "mv", "printf", "readlink", "rm", "sed", "sh", "tail",
    "touch",
];

const COPY: &str = r#"mkdir "$1/packaging" "$1/scripts" && cp Makefile Cargo.toml redis.conf.example "$1" &&
cp packaging/redis-lock.conf "$1/packaging" && cp scripts/*.sh "$1/scripts""#;

/// A cargo that builds an empty module and a command that writes empty manual pages, and installs
/// empty programs.
const CARGO: &str = r#"built=$CARGO_TARGET_DIR/release
case $* in
  --version) echo 'cargo 1.999.0 (0000000 2099-01-01)' ;;
  install*) for name; do :; done; : >"$PROGRAMS/$name"; chmod +x "$PROGRAMS/$name" ;;
  *redis-lock-cli)
    mkdir -p "$built"
    printf '#!/bin/sh\n[ "$1" != man ] || : >"$2/redis-lock.1"\n' >"$built/redis-lock"
    chmod +x "$built/redis-lock" ;;
  *) mkdir -p "$built"; : >"$built/libredis_lock.so" ;;
esac"#;

/// A server that prints its configuration and its arguments instead of serving.
const SERVER: &str =
    r#"case $1 in --version) echo 'Valkey server v=8.1.1 sha=0' ;; *) cat "$1"; echo "$@" ;; esac"#;

/// A machine with a clone on it.
struct Machine(TempDir);

impl Machine {
    /// Creates a machine with a compiler, libclang, cargo and its test runner, for a user without any
    /// rights.
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().expect("a folder"));
        for folder in ["bin", "clone", "libclang_path"] {
            fs::create_dir(machine.path(folder)).expect("a folder");
        }
        let mut copy = Command::new("sh");
        copy.args(["-c", COPY, "sh"]).arg(machine.path("clone"));
        let copied = copy.current_dir(root()).status().expect("sh");
        assert!(copied.success());
        fs::write(machine.path("libclang_path/libclang.so"), "").expect("a library");
        let path = env::var_os("PATH").unwrap_or_default();
        for name in SYSTEM_PROGRAMS {
            let mut folders = env::split_paths(&path).map(|folder| folder.join(name));
            let found = folders.find(|it| it.is_file()).expect(name);
            symlink(found, machine.path("bin").join(name)).expect(name);
        }
        machine
            .program("uname", "echo Linux")
            .program("id", "echo 1000")
            .program("cc", ":")
            .program("cargo", CARGO)
            .program("cargo-nextest", ":")
    }

    /// Adds a program that notes each of its calls.
    fn program(self, name: &str, body: &str) -> Machine {
        let path = self.path("bin").join(name);
        let text = format!("#!/bin/sh\necho \"{name} $*\" >>\"$CALLS\"\n{body}\n");
        fs::write(&path, text).expect(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect(name);
        self
    }

    fn without(self, name: &str) -> Machine {
        fs::remove_file(self.path("bin").join(name)).expect(name);
        self
    }

    fn server(self) -> Machine {
        self.program("valkey-server", SERVER)
            .program("valkey-cli", "exit 1")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command line that succeeds or fails. Asserts that its output has these words, and returns
    /// the output.
    #[track_caller]
    fn says(&self, line: &str, succeeds: bool, words: &[&str]) -> String {
        let mut command = Command::new(self.path("bin/sh"));
        command
            .args(["-c", &format!("exec 2>&1\n{line}")])
            .current_dir(self.path("clone"))
            .env_clear()
            .envs([("PATH", self.path("bin")), ("PROGRAMS", self.path("bin"))])
            .envs(["home", "calls", "libclang_path"].map(|it| (it.to_uppercase(), self.path(it))))
            .stdin(Stdio::null());
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.success(), succeeds, "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} isn't said in:\n{said}");
        }
        said
    }

    /// Returns the calls so far that begin like this.
    fn calls(&self, begin: &str) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let calls = calls.lines().filter(|call| call.starts_with(begin));
        calls.map(str::to_owned).collect()
    }
}

// --- dependencies ---------------------------------------------------------------------------

#[test]
fn a_cargo_that_is_too_old_or_does_not_run_is_named_with_what_it_says() {
    for (cargo, reasons) in [
        ("exit 1", ["cargo doesn't work", "says 'nothing'"]),
        (
            "echo error: rustup; exit 1",
            ["'error: rustup'", "rustup default"],
        ),
        ("echo 'cargo 1.2.0'", ["here is 1.2", "rustup update"]),
    ] {
        let machine = Machine::new().program("cargo", cargo);
        let said = machine.says("sh scripts/deps.sh", false, &reasons);
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// The packages of a machine without a compiler, a server and a test runner. libclang is there.
const LINES: &str = "
apt-get | make      | gcc libc6-dev
apt-get | make run  | gcc libc6-dev redis-server && { service redis-server stop
apt-get | make test | gcc libc6-dev redis-server python3-pip
apt-get | make deps | gcc libc6-dev redis-server valgrind python3-pip
apt-get | make deb  | gcc libc6-dev redis-server dpkg-dev xz-utils python3-pip
dnf     | make test | install -y gcc valkey
apk     | make test | gcc musl-dev valkey valkey-cli
pacman  | make test | gcc valkey";

#[test]
fn all_that_root_has_to_run_is_one_line_before_anything_is_built() {
    for row in LINES.lines().skip(1) {
        let [manager, goal, packages] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let manager = manager.trim();
        for sudo in ["sudo", "no-sudo"] {
            let machine = Machine::new().without("cc").without("cargo-nextest");
            let machine = machine.program(manager, ":").program(sudo, "exit 1");
            let said = machine.says(goal, false, &[packages]);
            let lines = said.lines().filter(|line| line.starts_with(manager));
            let [line] = lines.collect::<Vec<_>>()[..] else {
                panic!("{said}");
            };
            let early = [machine.calls(manager), machine.calls("cargo build")].concat();
            assert!(early.is_empty(), "{early:?}");
            machine.says(line, true, &[]);
            let packages = packages.split(" && ").next().unwrap_or_default();
            let installed = machine.calls(manager).pop();
            assert!(installed.is_some_and(|it| it.ends_with(packages)), "{line}");
        }
    }
}

#[test]
fn a_server_that_is_too_old_gives_way_to_another_one_or_is_refused() {
    for version in ["6.0.16", "6.2.14"] {
        let old = format!("echo 'Redis server v={version} sha=0'");
        let machine = Machine::new()
            .program("redis-server", &old)
            .program("redis-cli", ":");
        let refused = ["Redis >= 7.0", "REDIS_SERVER"];
        machine.says("sh scripts/deps.sh run", false, &refused);
        let machine = machine.program("apt-get", ":").program("id", "echo 0");
        machine.says("sh scripts/deps.sh run", false, &refused);
        let machine = machine.server();
        let both = "sh scripts/deps.sh run && sh scripts/deps.sh env";
        machine.says(both, true, &["/valkey-server'"]);
        let named = "REDIS_SERVER=redis-server sh scripts/deps.sh run";
        machine.says(named, false, &["which is redis-server"]);
    }
}

#[test]
fn the_runner_of_the_tests_is_built_once_where_pip_has_none() {
    let machine = Machine::new().server().without("cargo-nextest");
    machine.says("make run && make test && make test", true, &[]);
    let calls = ["cargo install", "cargo nextest"].map(|call| machine.calls(call).len());
    assert_eq!(calls, [1, 2]);
    let broken = CARGO.replace("install*)", "install*) exit 1 ;; never)");
    let machine = machine.without("cargo-nextest").program("cargo", &broken);
    machine.says(
        "make test",
        false,
        &["install cargo-nextest", "https://nexte.st"],
    );
}

// --- make run, make install, make deb, make release -----------------------------------------

#[test]
fn a_port_is_a_number_and_told_so_before_anything_is_built() {
    let machine = Machine::new().server();
    for port in ",abc,63 79,-1,0,65536,6379000000000000000000,'\"".split(',') {
        let named = format!("PORT='{port}'");
        let line = format!("make run PORT='{}'", port.replace('\'', r"'\''"));
        let said = machine.says(&line, false, &[&named, "must be a number"]);
        assert!(!said.contains("taken"), "{said}");
    }
    assert!(machine.calls("cargo").is_empty());
    let machine = machine.program("valkey-cli", ":");
    machine.says("make run PORT=7000", false, &["port 7000 is taken"]);
}

#[test]
fn running_takes_the_module_that_was_built_and_the_settings_of_the_example() {
    for built in ["target", "built here", "../built beside"] {
        let machine = Machine::new().server();
        let clone = machine.path("clone").canonicalize().expect("a clone");
        let module = clone.join(built).join("release/libredis_lock.so");
        let line = format!("\nloadmodule \"{}\"\n", module.display());
        let words = [&line, "\nmaxmemory-policy noeviction\n", "--port 7000"];
        machine.says(
            &format!("CARGO_TARGET_DIR='{built}' make run PORT=7000"),
            true,
            &words,
        );
        assert!(module.exists());
        assert_eq!(clone.join("target").exists(), built == "target");
    }
    let said = Machine::new().says("make -n demo", true, &["cargo run"]);
    assert!(!said.contains("--quiet"), "{said}");
}

#[test]
fn installing_builds_nothing_and_needs_no_cargo() {
    let machine = Machine::new();
    machine.says("make build", true, &[]);
    let machine = machine.without("cargo").without("cc");
    let module = machine.path("root/usr/lib/redis/modules/libredis_lock.so");
    let place = "PREFIX=/usr DESTDIR=\"$PWD/../root\"";
    machine.says(
        &format!("make install {place}"),
        true,
        &["libredis_lock.so", "make cli"],
    );
    assert!(module.exists());
    machine.says(&format!("make uninstall {place}"), true, &[]);
    assert!(!module.exists());
}

#[test]
fn the_packages_have_the_plain_builds_on_a_system_without_glibc() {
    let machine = Machine::new().server().program("rustc", "exit 1");
    let line = "make packaged && find target/release/packaged";
    let files = ["/libredis_lock.so\n", "/redis-lock\n", "/redis-lock.1.gz\n"];
    machine.says(line, true, &files);
    let why = "the packages have what make build cli builds";
    machine.says(line, true, &[why]);
}

#[test]
fn a_package_that_does_not_depend_on_the_c_library_is_refused() {
    let servers = "redis-server (>= 5:7.0) | valkey-server (>= 8.0)";
    for (depends, said) in [
        (servers.to_owned(), "would not depend on libc6"),
        (
            format!("libc6-dev (>= 2.34), {servers}"),
            "would not depend on libc6",
        ),
        (format!("libc6 (>= 2.34), {servers}"), "some.deb"),
        (format!("{servers}, libc6 (>= 2.34)"), "some.deb"),
    ] {
        let machine = Machine::new().program("cargo", "echo some.deb");
        let machine = machine.program("dpkg-deb", &format!("echo '{depends}'"));
        let line = ": >some.deb; echo : >scripts/package-docs.sh; sh scripts/deb.sh";
        machine.says(line, said == "some.deb", &[said]);
        assert_eq!(machine.path("clone/some.deb").exists(), said == "some.deb");
    }
}

/// The clone is of version 0.1.0 here. Nothing is looked for before the tag is right.
#[test]
fn a_release_needs_the_tag_of_its_version_or_of_the_next_one() {
    let machine = Machine::new().program("rustc", "echo host: x");
    let version = "sed -i 's/^version = .*/version = \"0.1.0\"/' Cargo.toml";
    machine.says(version, true, &[]);
    let [no_tag, no_successor] = ["is no tag of a version", "the version here is 0.1.0"];
    for (tag, reason) in [
        ("", no_tag),
        ("0.1.0", no_tag),
        ("v1.0", no_tag),
        ("v0.01.0", no_tag),
        ("v1.0.0-rc10", no_tag),
        ("v1.0.0-beta1", no_tag),
        ("v9.9.9", no_successor),
        ("v0.0.9", no_successor),
        ("v0.1.2", no_successor),
        ("v2.0.0-rc1", no_successor),
    ] {
        machine.says(&format!("make release TAG='{tag}'"), false, &[reason, tag]);
    }
    let mut machine = machine.server();
    for name in ["dpkg-shlibdeps", "python3", "xz"] {
        machine = machine.program(name, ":");
    }
    for (git, reason) in [
        ("status*) echo ' M a' ;; *) echo 1 ;;", "isn't clean"),
        (
            "status*) ;; *refs/tags*) echo 2 ;; *) echo 1 ;;",
            "names another commit",
        ),
    ] {
        machine = machine.program("git", &format!("case \"$*\" in {git} esac"));
        for tag in ["v0.1.0", "v0.1.0-rc1", "v0.1.1", "v0.2.0", "v1.0.0-rc9"] {
            let line = format!("make release TAG={tag} LIBRARIES=");
            machine.says(&line, false, &[reason]);
        }
    }
}

#[test]
fn the_matrix_tells_for_each_server_how_many_tests_passed_or_fails() {
    let passed = "[ 0.1s] 2 tests run: 2 passed";
    let failed = "[ 0.1s] 2 tests run: 1 passed, 1 failed";
    for (summary, code, servers, words) in [
        (passed, 0, "valkey-server valkey-server", [" ok\n", passed]),
        (failed, 100, "valkey-server", [" FAILED\n", failed]),
        (
            failed,
            100,
            "valkey-server /nowhere",
            [failed, "no server to be run"],
        ),
        (passed, 1, "/nowhere", ["/nowhere", "no server to be run"]),
        (passed, 1, "", ["no server named"; 2]),
    ] {
        let tests = format!("[ $1 = nextest ] && {{ echo ' Summary {summary}'; exit {code}; }}\n");
        let machine = Machine::new().server().program("cargo", &(tests + CARGO));
        let said = machine.says(
            &format!("make test-matrix SERVERS='{servers}'"),
            code == 0,
            &words,
        );
        let counts = [" ok\n", passed].map(|word| said.matches(word).count());
        assert_eq!(counts, if code == 0 { [2, 4] } else { [0, 0] }, "{said}");
    }
}
