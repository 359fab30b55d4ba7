//! `make` and its scripts on machines that lack programs: a copy of the clone's build files, where
//! only the programs of the test can be found. `make test-bare` runs them on a machine that has none.

use std::env;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::root;

/// The programs that the scripts call, besides the programs that they look for.
const SYSTEM_PROGRAMS: [&str; 22] = [
    "awk", "cat", "chmod", "cp", "cut", "dirname", "env", "find", "grep", "head", "install",
    "make", "mkdir", "mktemp", "mv", "printf", "readlink", "rm", "sed", "sh", "tail", "touch",
];

const COPY: &str = r#"mkdir "$1/packaging" "$1/scripts" && cp Makefile Cargo.toml redis.conf.example "$1" &&
cp packaging/redis-lock.conf "$1/packaging" && cp scripts/*.sh "$1/scripts""#;

/// A cargo that builds an empty module, and installs empty programs.
const CARGO: &str = r#"case $1 in
  --version) echo 'cargo 1.999.0 (0000000 2099-01-01)' ;;
  install) for name; do :; done; : >"$PROGRAMS/$name"; chmod +x "$PROGRAMS/$name" ;;
  *) mkdir -p "$CARGO_TARGET_DIR/release"; : >"$CARGO_TARGET_DIR/release/libredis_lock.so" ;;
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
        for folder in ["bin", "clone", "libclang"] {
            fs::create_dir(machine.path(folder)).expect("a folder");
        }
        let mut copy = Command::new("sh");
        copy.args(["-c", COPY, "sh"]).arg(machine.path("clone"));
        let copied = copy.current_dir(root()).status().expect("sh");
        assert!(copied.success());
        fs::write(machine.path("libclang/libclang.so"), "").expect("a library");
        let path = env::var_os("PATH").unwrap_or_default();
        for name in SYSTEM_PROGRAMS {
            let mut folders = env::split_paths(&path).map(|folder| folder.join(name));
            let found = folders.find(|it| it.is_file()).expect(name);
            symlink(found, machine.path("bin").join(name)).expect(name);
        }
        let programs = [("uname", "echo Linux"), ("id", "echo 1000"), ("cc", ":")];
        let programs = programs
            .into_iter()
            .chain([("cargo", CARGO), ("cargo-nextest", ":")]);
        programs.fold(machine, |machine, (name, body)| machine.program(name, body))
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

    /// Runs a command line. Returns true if it succeeded, and all its output.
    fn run(&self, line: &str) -> (bool, String) {
        let mut command = Command::new(self.path("bin/sh"));
        command
            .args(["-c", &format!("exec 2>&1\n{line}")])
            .current_dir(self.path("clone"))
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("PROGRAMS", self.path("bin"))
            .env("HOME", self.path("home"))
            .env("CALLS", self.path("calls"))
            .env("LIBCLANG_PATH", self.path("libclang"))
            .stdin(Stdio::null());
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), said)
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let (succeeded, said) = self.run(line);
        assert!(succeeded, "{said}");
        said
    }

    /// Asserts that the command fails, and returns its output.
    #[track_caller]
    fn refusal(&self, line: &str) -> String {
        let (succeeded, said) = self.run(line);
        assert!(!succeeded, "{said}");
        said
    }

    /// Returns the calls so far that begin like this.
    fn calls(&self, begin: &str) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let calls = calls.lines().filter(|call| call.starts_with(begin));
        calls.map(str::to_owned).collect()
    }
}

#[track_caller]
fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} isn't said in:\n{said}");
    }
}

// --- dependencies ---------------------------------------------------------------------------

#[test]
fn a_cargo_that_is_too_old_or_does_not_run_is_named_with_what_it_says() {
    let complaint = "error: rustup could not choose a version of cargo to run";
    for (cargo, reasons) in [
        ("exit 1", ["bin/cargo doesn't work", "says 'nothing'"]),
        (
            &format!("echo '{complaint}' >&2; exit 1"),
            [complaint, "rustup default"],
        ),
        ("echo 'cargo 1.2.0'", ["here is 1.2", "rustup update"]),
    ] {
        let said = Machine::new()
            .program("cargo", cargo)
            .refusal("sh scripts/deps.sh");
        assert_says(&said, &reasons);
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn all_that_root_has_to_run_is_one_line_before_anything_is_built() {
    for (manager, goal, packages) in [
        (
            "apt-get",
            "make test",
            "gcc libc6-dev redis-server python3-pip",
        ),
        ("apt-get", "make run", "gcc libc6-dev redis-server &&"),
        ("apt-get", "make", "gcc libc6-dev"),
        (
            "apt-get",
            "make deps",
            "gcc libc6-dev redis-server valgrind python3-pip",
        ),
        (
            "apt-get",
            "make deb",
            "gcc libc6-dev redis-server dpkg-dev xz-utils",
        ),
        ("dnf", "make test", "install -y gcc valkey"),
        ("apk", "make test", "gcc musl-dev valkey valkey-cli"),
        ("pacman", "make test", "gcc valkey"),
    ] {
        let machine = || {
            Machine::new()
                .without("cc")
                .without("cargo-nextest")
                .program(manager, ":")
        };
        for machine in [machine(), machine().program("sudo", "exit 1")] {
            let said = machine.refusal(goal);
            let mut lines = said.lines().filter(|line| line.starts_with(manager));
            let line = lines.next().expect(&said);
            assert_eq!(lines.next(), None, "{said}");
            assert!(
                line.contains(packages) && machine.calls(manager).is_empty(),
                "{said}"
            );
            assert!(machine.calls("cargo build").is_empty(), "{said}");
            machine.ok(line);
            assert_says(
                &machine.calls(manager).concat(),
                &[packages.trim_end_matches(" &&")],
            );
        }
    }
}

#[test]
fn packages_are_installed_by_root_by_sudo_or_by_homebrew() {
    let installs =
        "printf '#!/bin/sh\\necho Redis server v=8.0.2 sha=0' >\"$PROGRAMS/redis-server\"
        chmod +x \"$PROGRAMS/redis-server\"; cp \"$PROGRAMS/redis-server\" \"$PROGRAMS/redis-cli\"";
    for (manager, (name, body)) in [
        ("apt-get", ("id", "echo 0")),
        ("apt-get", ("sudo", "\"$@\"")),
        ("brew", ("id", "echo 1000")),
    ] {
        let machine = Machine::new()
            .program(manager, installs)
            .program(name, body);
        machine.ok("sh scripts/deps.sh run && sh scripts/deps.sh run");
        assert_eq!(machine.calls(&format!("{manager} install")).len(), 1);
    }
}

#[test]
fn a_server_that_is_too_old_gives_way_to_another_one_or_is_refused() {
    for version in ["6.0.16", "6.2.14"] {
        let old = format!("echo 'Redis server v={version} sha=0'");
        let machine = Machine::new()
            .program("redis-server", &old)
            .program("redis-cli", ":");
        assert_says(
            &machine.refusal("sh scripts/deps.sh run"),
            &["Redis >= 7.0", "REDIS_SERVER"],
        );
        let machine = machine.program("apt-get", ":").program("id", "echo 0");
        assert_says(
            &machine.refusal("sh scripts/deps.sh run"),
            &["Redis >= 7.0", "REDIS_SERVER"],
        );
        let machine = machine.server();
        machine.ok("sh scripts/deps.sh run");
        assert_says(&machine.ok("sh scripts/deps.sh env"), &["/valkey-server'"]);
        let named = machine.refusal("REDIS_SERVER=redis-server sh scripts/deps.sh run");
        assert_says(&named, &["set REDIS_SERVER, which is redis-server"]);
    }
}

#[test]
fn nothing_fails_without_valgrind() {
    for (name, body) in [("id", "echo 1000"), ("id", "echo 0"), ("apt-get", "exit 1")] {
        let machine = Machine::new()
            .server()
            .program("apt-get", ":")
            .program(name, body);
        assert_says(&machine.ok("make deps"), &["without valgrind"]);
        let calls = machine.calls("apt-get").len();
        machine.ok("sh scripts/deps.sh test");
        assert_eq!(
            machine.calls("apt-get").len(),
            calls,
            "only make deps asks for it"
        );
    }
}

#[test]
fn the_runner_of_the_tests_is_got_by_pip_or_built_once() {
    let pip = r#"for word; do [ "$before" = --target ] && target=$word; before=$word; done
[ -z "$target" ] || { mkdir -p "$target/bin" && cp "$PROGRAMS/cc" "$target/bin/cargo-nextest"; }"#;
    let bare = || Machine::new().server().without("cargo-nextest");
    for (machine, call) in [
        (bare(), "cargo install"),
        (bare().program("python3", "exit 1"), "cargo install"),
        (bare().program("python3", pip), "python3 -m pip install"),
    ] {
        machine.ok("make run && make test && make test");
        let installs = [
            machine.calls("cargo install"),
            machine.calls("python3 -m pip install"),
        ];
        let installs = installs.concat();
        assert_eq!(installs.len(), 1, "{installs:?}");
        assert!(installs[0].starts_with(call), "{installs:?}");
        assert_eq!(
            call.contains("pip"),
            installs[0].contains(" --require-hashes ")
        );
        assert_eq!(machine.calls("cargo nextest").len(), 2);
    }
    let broken = bare().program(
        "cargo",
        &CARGO.replace("install)", "install) exit 1 ;; never)"),
    );
    assert_says(
        &broken.refusal("make test"),
        &["install cargo-nextest", "https://nexte.st"],
    );
    assert!(broken.calls("cargo nextest").is_empty());
}

// --- make run, make install, make deb, make release -----------------------------------------

#[test]
fn a_port_is_a_number_and_told_so_before_anything_is_built() {
    let machine = Machine::new().server();
    for port in [
        "",
        "abc",
        "63 79",
        "-1",
        "0",
        "65536",
        "6379000000000000000000",
        "'\"",
    ] {
        let quoted = port.replace('\'', r"'\''");
        let said = machine.refusal(&format!("make run PORT='{quoted}'"));
        assert_says(&said, &[&format!("PORT='{port}'"), "must be a number"]);
        assert!(!said.contains("taken"), "{said}");
    }
    assert!(machine.calls("cargo").is_empty());
    let machine = machine.program("valkey-cli", ":");
    assert_says(
        &machine.refusal("make run PORT=7000"),
        &["port 7000 is taken"],
    );
}

#[test]
fn running_takes_the_module_that_was_built_and_the_settings_of_the_example() {
    for built in ["target", "built here", "../built beside"] {
        let machine = Machine::new().server();
        let said = machine.ok(&format!("CARGO_TARGET_DIR='{built}' make run PORT=7000"));
        let settings = ["\nmaxmemory-policy noeviction\n", " --port 7000 --dir "];
        assert_says(&said, &settings);
        let lines = said.lines();
        let mut modules = lines.filter_map(|line| line.strip_prefix("loadmodule "));
        let module = modules.next().expect(&said).trim_matches('"');
        let file = machine
            .path("clone")
            .join(built)
            .join("release/libredis_lock.so");
        assert_eq!(
            Path::new(module).canonicalize().ok(),
            file.canonicalize().ok()
        );
        assert!(file.exists() && modules.next().is_none(), "{said}");
        assert_eq!(machine.path("clone/target").exists(), built == "target");
    }
    let said = Machine::new().server().ok("make -n demo");
    assert!(
        said.contains("cargo run") && !said.contains("--quiet"),
        "{said}"
    );
}

#[test]
fn installing_builds_nothing_and_needs_no_cargo() {
    let machine = Machine::new();
    machine.ok("make build");
    let machine = machine.without("cargo").without("cc");
    let module = machine.path("root/usr/lib/redis/modules/libredis_lock.so");
    let place = format!("PREFIX=/usr DESTDIR='{}'", machine.path("root").display());
    let said = machine.ok(&format!("make install {place}"));
    assert_says(&said, &["libredis_lock.so", "make cli"]);
    assert!(module.exists(), "{said}");
    machine.ok(&format!("make uninstall {place}"));
    assert!(!module.exists());
}

#[test]
fn the_packages_have_the_built_module_where_no_profile_can_be_made() {
    let machine = Machine::new().server().program("rustc", "exit 1");
    let said = machine.ok("make packaged");
    assert_says(&said, &["the packages have the module of make build"]);
    assert!(machine
        .path("clone/target/release/packaged/libredis_lock.so")
        .exists());
}

#[test]
fn a_package_that_does_not_depend_on_the_c_library_is_refused() {
    let servers = "redis-server (>= 5:7.0) | valkey-server (>= 8.0)";
    for (depends, is_kept) in [
        (servers.to_owned(), false),
        (format!("libc6-dev (>= 2.34), {servers}"), false),
        (format!("libc6 (>= 2.34), {servers}"), true),
        (format!("{servers}, libc6 (>= 2.34)"), true),
    ] {
        let machine = Machine::new().program("cargo", "echo some.deb");
        let machine = machine.program("dpkg-deb", &format!("echo '{depends}'"));
        machine.ok(": >some.deb; echo : >scripts/package-docs.sh");
        let (succeeded, said) = machine.run("sh scripts/deb.sh");
        assert_eq!(succeeded, is_kept, "{depends}: {said}");
        assert_eq!(
            machine.path("clone/some.deb").exists(),
            is_kept,
            "{depends}"
        );
        assert_says(
            &said,
            &[if is_kept {
                "some.deb"
            } else {
                "would not depend on libc6"
            }],
        );
    }
}

#[test]
fn a_release_needs_the_tag_of_its_version() {
    let machine = Machine::new();
    for tag in ["", "0.1.0", "v9.9.9"] {
        let said = machine.refusal(&format!("sh scripts/release.sh files '{tag}'"));
        let right = concat!("the tag of this version is v", env!("CARGO_PKG_VERSION"));
        assert_says(&said, &[right, tag]);
    }
}

#[test]
fn the_matrix_tells_for_each_server_how_many_tests_passed_or_fails() {
    let passed = "[ 0.1s] 2 tests run: 2 passed";
    let failed = "[ 0.1s] 2 tests run: 1 passed, 1 failed";
    for (summary, code, servers, words) in [
        (
            passed,
            0,
            "valkey-server valkey-server",
            &[" ok\n", "2 passed"][..],
        ),
        (failed, 100, "valkey-server", &[" FAILED\n", failed]),
        (
            failed,
            100,
            "valkey-server /nowhere",
            &[" FAILED\n", failed, "/nowhere"],
        ),
        (passed, 1, "/nowhere", &["/nowhere", "no server to be run"]),
        (passed, 1, "", &["no server named"]),
    ] {
        let tests =
            format!("[ $1 = nextest ] && {{ echo '     Summary {summary}'; exit {code}; }}\n");
        let machine = Machine::new().server().program("cargo", &(tests + CARGO));
        let (succeeded, said) = machine.run(&format!("make test-matrix SERVERS='{servers}'"));
        assert_eq!(succeeded, code == 0, "{said}");
        assert_says(&said, words);
        let counts = [" ok\n", passed].map(|word| said.matches(word).count());
        assert_eq!(counts, if code == 0 { [2, 4] } else { [0, 0] }, "{said}");
    }
}
