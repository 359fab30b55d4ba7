//! `make` and scripts/deps.sh on machines that lack programs. Each test runs them in a copy of the
//! clone's build files, where only the programs of the test can be found.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use redis_lock_rig::sources::newer_than;
use support::{eventually, free_port, module_path, server_binary, Client, Expect, Fields};
use tempfile::TempDir;

/// The programs that the scripts call, besides the programs that they look for.
const SYSTEM_PROGRAMS: [&str; 22] = [
    "awk", "cat", "chmod", "cp", "cut", "dirname", "env", "find", "grep", "head", "install",
    "make", "mkdir", "mktemp", "mv", "printf", "readlink", "rm", "sed", "sh", "tail", "touch",
];

/// A cargo that builds nothing and prints as much as the real cargo. It copies the built module to
/// the target directory.
const CARGO: &str = r#"
case $1 in
  --version) echo 'cargo 1.999.0 (0000000 2099-01-01)' ;;
  install)
    for program; do :; done
    echo : >"$PROGRAMS/$program"
    chmod +x "$PROGRAMS/$program" ;;
  *)
    case " $* " in *' --quiet '* | *' -q '*) ;; *) echo '   Compiling redis-lock' >&2 ;; esac
    mkdir -p "$CARGO_TARGET_DIR/release"
    cp "$BUILT_MODULE" "$CARGO_TARGET_DIR/release/libredis_lock.so" ;;
esac"#;

/// An apt-get that "installs" these servers: a package, its name by the server itself, a version.
fn installs(servers: &[(&str, &str, &str)]) -> String {
    let cases = servers.iter().map(|(package, name, version)| {
        let client = package.replace("-server", "-cli");
        format!(
            r#"
case " $* " in *' install '*' {package} '*)
  echo 'echo "{name} server v={version} sha=0"' >"$PROGRAMS/{package}"
  echo : >"$PROGRAMS/{client}"
  chmod +x "$PROGRAMS/{package}" "$PROGRAMS/{client}" ;;
esac"#
        )
    });
    cases.collect()
}

/// A machine with a clone on it.
struct Machine {
    dir: TempDir,
}

/// The outcome of a command on a machine.
struct Outcome {
    succeeded: bool,
    /// The standard output and the error output.
    said: String,
}

impl Machine {
    /// Creates a machine with a compiler, libclang and cargo, for a user without any rights.
    fn new() -> Machine {
        let dir = tempfile::tempdir().expect("a folder");
        let machine = Machine { dir };
        for folder in ["bin", "clone/packaging", "clone/scripts", "libclang"] {
            fs::create_dir_all(machine.dir.path().join(folder)).expect("a folder");
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        for file in [
            "Makefile",
            "Cargo.toml",
            "redis.conf.example",
            "packaging/redis-lock.conf",
            "scripts/deb.sh",
            "scripts/deps.sh",
            "scripts/install.sh",
            "scripts/matrix.sh",
            "scripts/prebuilt.sh",
            "scripts/profiled.sh",
        ] {
            fs::copy(source.join(file), machine.clone_dir().join(file)).expect(file);
        }
        fs::write(machine.dir.path().join("libclang/libclang.so"), "").expect("a library");
        for name in SYSTEM_PROGRAMS {
            symlink(found(name), machine.programs().join(name)).expect(name);
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
        let note = format!("echo \"{name} $*\" >>\"$CALLS\"");
        let path = self.programs().join(name);
        fs::write(&path, format!("#!/bin/sh\n{note}\n{body}\n")).expect(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect(name);
        self
    }

    fn without(self, name: &str) -> Machine {
        fs::remove_file(self.programs().join(name)).expect(name);
        self
    }

    /// Adds Debian's package manager.
    fn apt_get(self, installs: &str) -> Machine {
        self.program("apt-get", installs)
    }

    fn root(self) -> Machine {
        self.program("id", "echo 0")
    }

    fn server(self) -> Machine {
        let server = server_binary();
        let cli = server.with_file_name("redis-cli");
        for (name, path) in [("redis-server", &server), ("redis-cli", &cli)] {
            symlink(path, self.programs().join(name)).expect(name);
        }
        self
    }

    fn programs(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    fn clone_dir(&self) -> PathBuf {
        self.dir.path().join("clone")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.programs().join(words[0]));
        command
            .args(&words[1..])
            .current_dir(self.clone_dir())
            .env_clear()
            .env("PATH", self.programs())
            .env("PROGRAMS", self.programs())
            .env("CALLS", self.dir.path().join("calls"))
            .env("LIBCLANG_PATH", self.dir.path().join("libclang"))
            .env("BUILT_MODULE", module_path())
            .stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> Outcome {
        let output = self.command(words).output().expect("it runs");
        let both = [output.stdout, output.stderr].concat();
        Outcome {
            succeeded: output.status.success(),
            said: String::from_utf8_lossy(&both).into_owned(),
        }
    }

    /// Returns the calls so far of the test's program with this name.
    fn calls_of(&self, name: &str) -> Vec<String> {
        let mut calls = self.calls();
        calls.retain(|call| call.split(' ').next() == Some(name));
        calls
    }

    /// Returns the calls so far that have this word in them.
    fn calls_with(&self, word: &str) -> Vec<String> {
        let mut calls = self.calls();
        calls.retain(|call| call.split(' ').any(|it| it == word));
        calls
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// Returns the names at the top of the clone.
    fn top(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.clone_dir()).expect("the clone");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }
}

impl Outcome {
    #[track_caller]
    fn ok(self) -> String {
        assert!(self.succeeded, "{}", self.said);
        self.said
    }

    /// Asserts that the command failed, and returns its output.
    #[track_caller]
    fn refusal(self) -> String {
        assert!(!self.succeeded, "{}", self.said);
        self.said
    }
}

fn found(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path);
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|it| it.is_file()));
    found.unwrap_or_else(|| panic!("{name} isn't in PATH"))
}

#[track_caller]
fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} isn't said in:\n{said}");
    }
}

// --- needed programs ------------------------------------------------------------------------

#[test]
fn a_cargo_that_does_not_run_is_named_with_what_it_says() {
    let mute = Machine::new().program("cargo", "exit 1");
    let complaint = "error: rustup could not choose a version of cargo to run";
    let shim = Machine::new().program("cargo", &format!("echo '{complaint}' >&2; exit 1"));
    for (machine, reason) in [(mute, "says 'nothing'"), (shim, complaint)] {
        let said = machine.run(&["sh", "scripts/deps.sh"]).refusal();
        assert_says(&said, &["bin/cargo doesn't work", reason, "rustup default"]);
        assert!(!said.contains("Illegal number"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn an_old_cargo_is_told_from_one_that_does_not_run() {
    let machine = Machine::new().program("cargo", "echo 'cargo 1.2.0'");
    let said = machine.run(&["sh", "scripts/deps.sh"]).refusal();
    assert_says(&said, &["here is 1.2", "rustup update"]);
}

#[test]
fn all_that_root_has_to_run_is_one_line_for_a_shell() {
    let machine = Machine::new().without("cc").apt_get(":");
    let said = machine.run(&["sh", "scripts/deps.sh"]).refusal();
    assert!(machine.calls_of("apt-get").is_empty(), "{said}");
    let line = said.lines().find(|line| line.contains("apt-get update"));
    let line = line.expect("a line for root");
    machine.run(&["sh", "-c", line]).ok();
    let [update, install] = &machine.calls_of("apt-get")[..] else {
        panic!("{line}")
    };
    assert_says(update, &["update"]);
    let packages = ["gcc", "libc6-dev", "redis-server"];
    assert_says(install, &["install", "--yes"]);
    assert_says(install, &packages);
}

#[test]
fn the_line_for_root_is_said_too_where_sudo_refuses() {
    let machine = Machine::new()
        .without("cc")
        .program("sudo", "exit 1")
        .apt_get(":");
    let said = machine.run(&["sh", "scripts/deps.sh", "build"]).refusal();
    assert_says(&said, &["apt-get update", "apt-get install", "gcc"]);
    assert_eq!(machine.calls_of("sudo").len(), 1, "{said}");
}

#[test]
fn packages_are_installed_with_sudo_where_it_is_there() {
    let machine = Machine::new()
        .program("sudo", "\"$@\"")
        .apt_get(&installs(&[("redis-server", "Redis", "7.0.15")]));
    machine.run(&["sh", "scripts/deps.sh", "run"]).ok();
    let [sudo] = &machine.calls_of("sudo")[..] else {
        panic!("{:?}", machine.calls());
    };
    assert_says(sudo, &["apt-get update", "apt-get install", "redis-server"]);
}

// --- the server -----------------------------------------------------------------------------

#[test]
fn a_server_that_is_too_old_is_refused() {
    for version in ["6.0.16", "6.2.14"] {
        let old = installs(&[("redis-server", "Redis", version)]);
        let machine = Machine::new().root().apt_get(&old);
        let said = machine.run(&["sh", "scripts/deps.sh"]).refusal();
        assert_says(&said, &["Redis >= 7.0", "REDIS_SERVER"]);
    }
}

#[test]
fn a_server_that_is_too_old_gives_way_to_another_one() {
    let both = installs(&[
        ("redis-server", "Redis", "6.0.16"),
        ("valkey-server", "Valkey", "8.1.1"),
    ]);
    let machine = Machine::new().root().apt_get(&both);
    machine.run(&["sh", "scripts/deps.sh"]).ok();
    let installs = machine.calls_with("valkey-server");
    assert_eq!(installs.len(), 1, "{installs:?}");
}

#[test]
fn building_needs_no_server() {
    let machine = Machine::new().root().apt_get(":");
    machine.run(&["make", "build"]).ok();
    assert!(machine.calls_of("apt-get").is_empty());
    let built = machine.clone_dir().join("target/release/libredis_lock.so");
    assert!(built.exists(), "not at the path that the README names");
}

#[test]
fn testing_needs_a_server_before_anything_is_built() {
    let machine = Machine::new();
    let said = machine.run(&["make", "test"]).refusal();
    assert_says(&said, &["install Redis >= 7.0 or Valkey >= 8.0"]);
    assert!(machine.calls_with("build").is_empty(), "{said}");
}

// --- valgrind -------------------------------------------------------------------------------

fn machine_without_valgrind(installs: &str) -> Machine {
    Machine::new().root().server().apt_get(installs)
}

#[test]
fn valgrind_is_installed_where_it_is_offered() {
    let machine = machine_without_valgrind(":");
    machine.run(&["make", "deps"]).ok();
    let installs = machine.calls_with("install");
    assert_eq!(installs.len(), 1, "{installs:?}");
    assert!(installs[0].ends_with(" valgrind"), "{installs:?}");
}

#[test]
fn nothing_fails_without_valgrind() {
    let unknown = machine_without_valgrind(":");
    let refused = machine_without_valgrind("exit 1");
    let rootless = machine_without_valgrind(":").program("id", "echo 1");
    for machine in [unknown, refused, rootless] {
        let said = machine.run(&["make", "deps"]).ok();
        assert_says(&said, &["valgrind"]);
    }
}

#[test]
fn valgrind_is_not_asked_for_by_building_and_testing() {
    let machine = machine_without_valgrind(":");
    for part in ["build", "run", "test"] {
        machine.run(&["sh", "scripts/deps.sh", part]).ok();
    }
    assert!(machine.calls_of("apt-get").is_empty());
}

// --- cargo-nextest --------------------------------------------------------------------------

#[test]
fn the_runner_of_the_tests_is_built_where_it_is_missing_and_no_second_time() {
    let machine = Machine::new().server().without("cargo-nextest");
    for _ in 0..2 {
        machine.run(&["make", "test"]).ok();
    }
    let installs = machine.calls_with("install");
    assert_eq!(installs.len(), 1, "{installs:?}");
    assert!(installs[0].ends_with(" cargo-nextest"), "{installs:?}");
    assert_eq!(machine.calls_with("nextest").len(), 2);
}

#[test]
fn the_runner_is_not_built_where_pip_has_it() {
    let pip = r#"for word; do [ "$before" = --target ] && target=$word; before=$word; done
[ -z "$target" ] || {
  mkdir -p "$target/bin" && cp "$PROGRAMS/runner" "$target/bin/cargo-nextest"
}"#;
    let machine = Machine::new().server().without("cargo-nextest");
    let home = machine.dir.path().join("home");
    let machine = machine.program("runner", ":").program("python3", pip);
    for _ in 0..2 {
        let mut command = machine.command(&["make", "test"]);
        let output = command.env("CARGO_HOME", &home).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
    assert!(home.join("bin/cargo-nextest").exists());
    let pip_calls = machine.calls_with("install");
    assert_eq!(pip_calls.len(), 1, "{pip_calls:?}");
    assert!(pip_calls[0].starts_with("python3 "), "{pip_calls:?}");
    assert!(pip_calls[0].contains(" --require-hashes "), "{pip_calls:?}");
}

#[test]
fn nothing_is_tested_where_the_runner_can_not_be_built() {
    let broken = CARGO.replace("install)", "install) exit 1");
    let machine = Machine::new()
        .server()
        .without("cargo-nextest")
        .program("cargo", &broken);
    let said = machine.run(&["make", "test"]).refusal();
    assert_says(&said, &["install cargo-nextest", "https://nexte.st"]);
    assert!(machine.calls_with("nextest").is_empty(), "{said}");
}

#[test]
fn only_the_tests_need_their_runner() {
    let machine = Machine::new().server().without("cargo-nextest");
    machine.run(&["make", "demo"]).ok();
    assert!(machine.calls_with("install").is_empty());
}

// --- make install and make deb --------------------------------------------------------------

#[test]
fn installing_builds_nothing_and_needs_no_cargo() {
    let machine = Machine::new();
    machine.run(&["make", "build"]).ok();
    let machine = machine.root().without("cargo").without("cc");
    let before = machine.calls().len();
    let place = format!("DESTDIR={}", machine.dir.path().join("root").display());
    let said = machine
        .run(&["make", "install", "PREFIX=/usr", &place])
        .ok();
    assert_says(&said, &["libredis_lock.so", "make cli"]);
    let module = machine
        .dir
        .path()
        .join("root/usr/lib/redis/modules/libredis_lock.so");
    assert!(module.exists(), "{said}");
    let calls = machine.calls().split_off(before);
    assert!(
        calls.iter().all(|call| !call.starts_with("cargo")),
        "{calls:?}"
    );
    machine
        .run(&["make", "uninstall", "PREFIX=/usr", &place])
        .ok();
    assert!(!module.exists());
}

#[test]
fn installing_what_is_not_built_says_how_to_build_it() {
    let machine = Machine::new().root().without("cargo");
    let place = format!("DESTDIR={}", machine.dir.path().join("root").display());
    let said = machine.run(&["make", "install", &place]).refusal();
    assert_says(&said, &["as yourself, without sudo: make build"]);
    assert!(!machine.dir.path().join("root").exists());
}

#[test]
fn a_package_needs_the_tools_of_dpkg_and_xz_which_are_installed_or_named() {
    let machine = Machine::new().apt_get(":");
    let said = machine.run(&["make", "deb"]).refusal();
    assert_says(
        &said,
        &["run this as root", "apt-get install", " dpkg-dev xz-utils"],
    );
    assert!(machine.calls_with("build").is_empty(), "{said}");
    let installs = r#"
case " $* " in *' dpkg-dev xz-utils '*)
  for name in dpkg-shlibdeps xz; do echo : >"$PROGRAMS/$name"; chmod +x "$PROGRAMS/$name"; done ;;
esac"#;
    let machine = Machine::new().root().apt_get(installs);
    for _ in 0..2 {
        machine.run(&["sh", "scripts/deps.sh", "deb"]).ok();
    }
    assert_eq!(machine.calls_with("dpkg-dev").len(), 1);
}

#[test]
fn the_packages_have_the_built_module_where_no_profile_can_be_made() {
    let machine = Machine::new().server().program("rustc", "exit 1");
    let said = machine.run(&["make", "packaged"]).ok();
    assert_says(&said, &["the packages have the module of make build"]);
    let built = machine.clone_dir().join("target/release");
    let packaged = fs::read(built.join("packaged/libredis_lock.so")).expect("a module");
    let plain = fs::read(built.join("libredis_lock.so")).expect("a module");
    assert!(packaged == plain);
}

/// Creates a machine with a package that has these dependencies, and returns its path.
fn machine_with_package(depends: &str) -> (Machine, PathBuf) {
    let machine = Machine::new();
    let package = machine.clone_dir().join("some.deb");
    fs::write(&package, "").expect("a package");
    let documents = machine.clone_dir().join("scripts/package-docs.sh");
    fs::write(documents, ":").expect("a script");
    let machine = machine
        .program("cargo", &format!("echo '{}'", package.display()))
        .program("dpkg-deb", &format!("echo '{depends}'"));
    (machine, package)
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
        let (machine, package) = machine_with_package(&depends);
        let outcome = machine.run(&["sh", "scripts/deb.sh"]);
        assert_eq!(outcome.succeeded, is_kept, "{depends}: {}", outcome.said);
        assert_eq!(package.exists(), is_kept, "{depends}");
        let word = if is_kept {
            "some.deb"
        } else {
            "would not depend on libc6"
        };
        assert_says(&outcome.said, &[word]);
    }
}

#[test]
fn a_release_needs_the_tag_of_its_version() {
    let release = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/release.sh");
    let machine = Machine::new();
    let script = machine.clone_dir().join("scripts/release.sh");
    fs::copy(release, script).expect("a script");
    for tag in ["", "0.1.0", "v9.9.9"] {
        let said = machine
            .run(&["sh", "scripts/release.sh", "files", tag])
            .refusal();
        let right = concat!("the tag of this version is v", env!("CARGO_PKG_VERSION"));
        assert_says(&said, &[right, tag]);
    }
}

// --- the servers, one after the other -------------------------------------------------------

/// Creates a machine where the tests end with this summary and this exit code.
fn machine_that_tests(summary: &str, code: u8) -> Machine {
    let tests = format!("case $1 in nextest) echo '     Summary {summary}'; exit {code} ;; esac\n");
    Machine::new().server().program("cargo", &(tests + CARGO))
}

#[track_caller]
fn matrix(machine: &Machine, servers: &[&str]) -> Outcome {
    machine.run(&[
        "make",
        "test-matrix",
        &format!("SERVERS={}", servers.join(" ")),
    ])
}

#[test]
fn the_matrix_tells_for_each_server_how_many_tests_passed() {
    let machine = machine_that_tests("[ 0.1s] 2 tests run: 2 passed", 0);
    let server = server_binary();
    let server = server.to_str().expect("a path in UTF-8");
    let said = matrix(&machine, &[server, server]).ok();
    assert_eq!(said.matches(" ok\n").count(), 2, "{said}");
    assert_eq!(said.matches("2 tests run: 2 passed").count(), 4, "{said}");
}

#[test]
fn the_matrix_fails_where_a_run_fails_and_shows_it() {
    let machine = machine_that_tests("[ 0.1s] 2 tests run: 1 passed, 1 failed", 100);
    let server = server_binary();
    let server = server.to_str().expect("a path in UTF-8");
    for servers in [[server].as_slice(), &[server, "/nowhere"]] {
        let said = matrix(&machine, servers).refusal();
        assert_says(&said, &[" FAILED\n", "1 passed, 1 failed"]);
        assert!(!said.contains(" ok\n"), "{said}");
    }
}

#[test]
fn the_matrix_fails_for_a_server_that_can_not_be_run_and_for_none() {
    let machine = machine_that_tests("[ 0.1s] 2 tests run: 2 passed", 0);
    let said = matrix(&machine, &["/nowhere"]).refusal();
    assert_says(&said, &["/nowhere", "no server to be run"]);
    let said = matrix(&machine, &[]).refusal();
    assert_says(&said, &["no server named"]);
}

// --- make -----------------------------------------------------------------------------------

/// A command that is or starts a server, with all processes that it started. They end when this is
/// dropped.
struct Run {
    command: Child,
}

impl Run {
    #[track_caller]
    fn start(machine: &Machine, mut command: Command, port: u16) -> (Run, Client) {
        let output = machine.dir.path().join("said");
        let said = fs::File::create(&output).expect("a file");
        command
            .stdout(said.try_clone().expect("a file"))
            .stderr(said)
            .process_group(0);
        let mut run = Run {
            command: command.spawn().expect("it runs"),
        };
        let client = eventually("a server answers", || {
            if let Some(status) = run.command.try_wait().expect("a child") {
                let said = fs::read_to_string(&output).unwrap_or_default();
                panic!("it ended with {status}: {said}");
            }
            Client::try_connect(port).ok()
        });
        (run, client)
    }

    #[track_caller]
    fn make(machine: &Machine, target_dir: &str) -> (Run, Client) {
        let port = free_port();
        let mut command = machine.command(&["make", "run", &format!("PORT={port}")]);
        command.env("CARGO_TARGET_DIR", target_dir);
        Run::start(machine, command, port)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let group = libc::pid_t::try_from(self.command.id()).expect("a process number");
        // SAFETY: killpg takes numbers only. The group was made for a child that hasn't been waited
        // for, so no other group has its number.
        unsafe { libc::killpg(group, libc::SIGKILL) };
        drop(self.command.wait());
    }
}

#[track_caller]
fn setting(client: &mut Client, name: &str) -> String {
    let pair = client.call(&["CONFIG", "GET", name]).list();
    Ok(pair[1].clone()).text()
}

/// Returns the path of the module that the server loaded. Valkey 9.1 brings another module too.
#[track_caller]
fn module_of(client: &mut Client) -> String {
    let modules = client.call("MODULE LIST").list().into_iter();
    let mut modules = modules.map(Fields::of);
    let lock = modules.find(|module| module.text("name") == "lock");
    lock.expect("the module is loaded").text("path")
}

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
        let said = machine
            .run(&["make", "run", &format!("PORT={port}")])
            .refusal();
        assert_says(&said, &[&format!("PORT='{port}'"), "must be a number"]);
        assert!(!said.contains("taken"), "{said}");
    }
    assert!(machine.calls_of("cargo").is_empty());
}

#[test]
fn a_port_where_a_server_answers_is_taken() {
    let server = support::Server::start();
    let machine = Machine::new().server();
    let port = server.port();
    let said = machine
        .run(&["make", "run", &format!("PORT={port}")])
        .refusal();
    assert_says(&said, &[&format!("port {port} is taken")]);
}

#[test]
fn running_leaves_nothing_in_the_clone() {
    let machine = Machine::new().server();
    let mut before = machine.top();
    let (_run, mut client) = Run::make(&machine, "");
    client.call("LOCK.ACQUIRE k me PX 600000").grant();
    client.call("SAVE").okay();
    client.call("CONFIG SET appendonly yes").okay();
    let folder = PathBuf::from(setting(&mut client, "dir"));
    assert!(folder.join("dump.rdb").exists(), "{folder:?}");
    before.insert("target".to_owned());
    assert_eq!(machine.top(), before);
}

#[test]
fn running_takes_its_settings_from_the_example() {
    let machine = Machine::new().server();
    let (_run, mut client) = Run::make(&machine, "");
    assert_eq!(setting(&mut client, "maxmemory-policy"), "noeviction");
    assert_eq!(setting(&mut client, "lock.default-lease"), "30000");
}

#[test]
fn what_is_built_elsewhere_is_run_from_there() {
    for elsewhere in ["built here", "../built beside"] {
        let machine = Machine::new().server();
        let (_run, mut client) = Run::make(&machine, elsewhere);
        let built = machine
            .clone_dir()
            .join(elsewhere)
            .join("release/libredis_lock.so");
        let built = built.canonicalize().expect("a module");
        let loaded = module_of(&mut client);
        assert_eq!(
            Path::new(&loaded).canonicalize().ok(),
            Some(built),
            "{loaded}"
        );
        assert!(!machine.top().contains("target"));
    }
}

#[test]
fn the_example_works_as_it_is_at_the_top_of_the_clone() {
    let machine = Machine::new().server();
    machine.run(&["make"]).ok();
    let port = free_port();
    let words = ["redis-server", "redis.conf.example", "--port"];
    let mut command = machine.command(&words);
    command.arg(port.to_string());
    let (_run, mut client) = Run::start(&machine, command, port);
    client.call("LOCK.ACQUIRE k me").grant();
}

#[test]
fn the_demo_shows_the_progress_of_its_build() {
    let machine = Machine::new().server();
    machine.run(&["make", "build"]).ok();
    let said = machine.run(&["make", "demo"]).ok();
    let compiling = said.matches("Compiling").count();
    assert_eq!(compiling, 2, "the module's and the demo's: {said}");
}

/// Sets a file's modification time to `seconds` after a fixed moment.
#[track_caller]
fn change_at(path: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(path).expect("a file");
    let moment = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds);
    file.set_modified(moment).expect("its time");
}

#[test]
fn a_module_that_is_older_than_what_it_is_built_from_is_found_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let clone = dir.path().join("a clone");
    let path = |name: &str| clone.join(name);
    let sources = [
        "src/lib.rs",
        "src/filter.rs",
        "core/src/lib.rs",
        "Cargo.toml",
        "Cargo.lock",
        "core/Cargo.toml",
    ];
    for folder in ["src", "core/src", "target/release"] {
        fs::create_dir_all(path(folder)).expect("a folder");
    }
    let module = path("target/release/libredis_lock.so");
    let listed: String = sources[..3]
        .iter()
        .map(|name| path(name).display().to_string().replace(' ', "\\ ") + " ")
        .collect();
    let list = module.with_extension("d");
    fs::write(&list, format!("libredis_lock.so: {listed}\n")).expect("a list");
    for source in sources.iter().map(|name| path(name)) {
        fs::write(&source, "").expect("a source");
        change_at(&source, 0);
    }
    fs::write(&module, "").expect("a module");
    change_at(&module, 10);
    let newer = || newer_than(&module).expect("a module");
    assert_eq!(newer(), None);
    for source in sources.iter().map(|name| path(name)) {
        change_at(&source, 20);
        assert_eq!(newer(), Some(source.clone()));
        change_at(&source, 10);
        assert_eq!(newer(), None, "{}", source.display());
    }
    fs::remove_file(path("src/filter.rs")).expect("a source");
    assert_eq!(newer(), Some(path("src/filter.rs")));
    // A module that was brought from elsewhere, with its list of sources or without.
    fs::remove_dir_all(path("src")).expect("the sources");
    fs::remove_dir_all(path("core")).expect("the sources");
    assert_eq!(newer(), None);
    fs::write(&list, "").expect("a list");
    assert_eq!(newer(), None);
    fs::remove_file(&list).expect("a list");
    assert_eq!(newer(), None);
}
