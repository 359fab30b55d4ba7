//! `make install`, and what packages are made of.
//! tests/packages.rs installs the packages themselves.

use std::fs;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use redis_lock_rig::{Plan, Process};
use support::files::{files_below, files_in};
use support::links::assert_links_lead_somewhere;
use support::{module_path, server_binary, Client, Expect, Server};
use tempfile::TempDir;

use crate::{root, text_of};

// --- make install -------------------------------------------------------------------------------

/// A stub of the command, which writes two manual pages and names itself in each completion.
const COMMAND: &str = r#"#!/bin/sh
case $1 in
  man) echo page >"$2/redis-lock.1"; echo page >"$2/redis-lock-run.1" ;;
  completions) echo "for $2" ;;
esac
"#;

/// A folder used as the root of the file system, and one with what was built.
struct Installed {
    dir: TempDir,
    built: TempDir,
}

impl Installed {
    /// Creates both folders. Only the module is built.
    fn new() -> Installed {
        let built = tempfile::tempdir().expect("a folder");
        symlink(module_path(), built.path().join("libredis_lock.so")).expect("a module");
        let dir = tempfile::tempdir().expect("a folder");
        Installed { dir, built }
    }

    /// Builds the stub of the command, and what `make cli` makes of it.
    fn with_command(self) -> Installed {
        let command = self.built.path().join("redis-lock");
        fs::write(&command, COMMAND).expect("a command");
        fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).expect("a command");
        let mut files = Command::new("sh");
        files.arg(root().join("scripts/command-files.sh"));
        let status = files.arg(self.built.path()).status().expect("it runs");
        assert!(status.success());
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the script behind `make install` and `make uninstall`. Returns true if it succeeded, and
    /// its output.
    #[track_caller]
    fn attempt(&self, word: &str, variables: &[(&str, &str)]) -> (bool, String) {
        let output = Command::new("sh")
            .arg(root().join("scripts/install.sh"))
            .arg(word)
            .env_remove("PREFIX")
            .env("REDIS_SERVER", "/elsewhere/bin/redis-server")
            .env("BUILT", self.built.path())
            .env("DESTDIR", self.dir.path())
            .envs(variables.iter().copied())
            .output()
            .expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.success(), said)
    }

    #[track_caller]
    fn run(&self, word: &str, variables: &[(&str, &str)]) -> String {
        let (succeeded, said) = self.attempt(word, variables);
        assert!(succeeded, "{said}");
        said
    }

    /// Returns all files in the folder, sorted.
    fn files(&self) -> Vec<PathBuf> {
        files_in(self.dir.path())
    }
}

#[test]
fn the_module_goes_where_the_server_lies_or_where_prefix_says() {
    for (variables, prefix) in [
        ([].as_slice(), "elsewhere"),
        (&[("PREFIX", "/usr")], "usr"),
        (&[("REDIS_SERVER", "/usr/bin/valkey-server")], "usr"),
        (&[("REDIS_SERVER", "./redis-server")], "usr/local"),
    ] {
        let installed = Installed::new();
        let said = installed.run("install", variables);
        let module = format!("{prefix}/lib/redis/modules/libredis_lock.so");
        let lines = format!("{prefix}/share/redis-lock/redis-lock.conf");
        assert!(said.contains(&module) && said.contains(&lines), "{said}");
        let found = [installed.path(&module), installed.path(&lines)];
        assert_eq!(installed.files(), found);
        let modes =
            found.map(|file| fs::metadata(file).expect("a file").permissions().mode() & 0o777);
        // A server refuses a module file that it may not execute.
        assert_eq!(modes, [0o755, 0o644]);
        installed.run("uninstall", variables);
        assert_eq!(installed.files(), [] as [PathBuf; 0]);
    }
}

#[test]
fn the_command_goes_beside_the_module_with_its_manual_pages_and_completions() {
    let installed = Installed::new().with_command();
    installed.run("install", &[("PREFIX", "/usr")]);
    let names = [
        "usr/bin/redis-lock",
        "usr/lib/redis/modules/libredis_lock.so",
        "usr/share/bash-completion/completions/redis-lock",
        "usr/share/fish/vendor_completions.d/redis-lock.fish",
        "usr/share/man/man1/redis-lock-run.1.gz",
        "usr/share/man/man1/redis-lock.1.gz",
        "usr/share/redis-lock/redis-lock.conf",
        "usr/share/zsh/site-functions/_redis-lock",
    ];
    assert_eq!(installed.files(), names.map(|name| installed.path(name)));
    let command = fs::metadata(installed.path(names[0])).expect("a command");
    assert_eq!(command.permissions().mode() & 0o777, 0o755);
    let completions = fs::read_to_string(installed.path(names[7])).expect("completions");
    assert_eq!(completions, "for zsh\n");
    installed.run("uninstall", &[("PREFIX", "/usr")]);
    assert_eq!(installed.files(), [] as [PathBuf; 0]);
}

#[test]
fn what_is_not_built_is_named_with_the_command_that_builds_it() {
    let installed = Installed::new();
    let said = installed.run("install", &[]);
    assert!(said.contains("without sudo: make cli"), "{said}");
    fs::remove_file(installed.built.path().join("libredis_lock.so")).expect("a module");
    let installed = Installed {
        dir: tempfile::tempdir().expect("a folder"),
        ..installed
    };
    let (succeeded, said) = installed.attempt("install", &[]);
    assert!(
        !succeeded && said.contains("without sudo: make build"),
        "{said}"
    );
    assert_eq!(installed.files(), [] as [PathBuf; 0]);
}

#[test]
fn a_module_that_a_server_runs_is_replaced_and_not_written_over() {
    let installed = Installed::new();
    installed.run("install", &[]);
    let module = installed.path("elsewhere/lib/redis/modules/libredis_lock.so");
    let inode = || fs::metadata(&module).expect("a module").ino();
    let before = inode();
    let server = Server::builder().module(&module).start();
    installed.run("install", &[]);
    assert_ne!(inode(), before);
    server.call("LOCK.ACQUIRE k a").grant();
}

/// Installs the module and returns the lines to append to a server's configuration. They load the
/// module from the folder.
fn configuration(installed: &Installed) -> Vec<String> {
    installed.run("install", &[]);
    let lines = installed.path("elsewhere/share/redis-lock/redis-lock.conf");
    let text = fs::read_to_string(lines).expect("lines");
    let loading = "loadmodule /elsewhere/lib/redis/modules/libredis_lock.so";
    assert!(text.lines().any(|line| line == loading), "{text}");
    let place = format!("loadmodule {}/elsewhere", installed.dir.path().display());
    let text = text.replace("loadmodule /elsewhere", &place);
    let is_setting = |line: &&str| !line.is_empty() && !line.starts_with('#');
    text.lines().filter(is_setting).map(str::to_owned).collect()
}

#[track_caller]
fn setting(client: &mut Client, name: &str) -> String {
    let pair = client.call(&["CONFIG", "GET", name]).list();
    Ok(pair[1].clone()).text()
}

fn plan(lines: Vec<String>) -> Plan {
    Plan {
        lines,
        ..Plan::new(&server_binary())
    }
}

#[test]
fn the_installed_lines_start_a_server_also_after_config_rewrite() {
    let installed = Installed::new();
    let lines = configuration(&installed);
    let folder = tempfile::tempdir().expect("a folder");
    let mut process = Process::start(plan(lines.clone()), folder.path()).expect("a server");
    for line in lines.iter().filter(|line| !line.starts_with("loadmodule")) {
        let (name, value) = line.split_once(' ').expect("a setting");
        let mut client = Client::connect(process.port());
        assert_eq!(setting(&mut client, name), value, "{line}");
    }
    let mut client = Client::connect(process.port());
    client.call("CONFIG REWRITE").okay();
    let rewritten = fs::read_to_string(folder.path().join("server.conf")).expect("a file");
    assert_eq!(rewritten.matches("loadmodule").count(), 1, "{rewritten}");
    process.restart().expect("it starts again");
    Client::connect(process.port())
        .call("LOCK.ACQUIRE k a")
        .grant();
}

#[test]
fn lines_that_are_included_keep_the_server_from_starting_after_config_rewrite() {
    let installed = Installed::new();
    let lines = configuration(&installed).join("\n") + "\n";
    let folder = tempfile::tempdir().expect("a folder");
    let included = folder.path().join("redis-lock.conf");
    fs::write(&included, lines).expect("a file");
    let include = format!("include \"{}\"", included.display());
    let process = Process::start(plan(vec![include.clone()]), folder.path()).expect("a server");
    Client::connect(process.port())
        .call("CONFIG REWRITE")
        .okay();
    let rewritten = fs::read_to_string(folder.path().join("server.conf")).expect("a file");
    let loading = rewritten
        .lines()
        .filter(|line| line.starts_with("loadmodule"));
    let twice = loading.map(str::to_owned).chain([include]).collect();
    let again = tempfile::tempdir().expect("a folder");
    let refused = Process::start(plan(twice), again.path())
        .err()
        .expect("twice");
    let refused = format!("{refused:#}");
    assert!(
        refused.contains("a module named lock is loaded already"),
        "{refused}"
    );
}

// --- a file that doesn't load -------------------------------------------------------------------

/// Returns the bytes of the module, built for another machine.
fn for_another_processor() -> Vec<u8> {
    let mut module = fs::read(module_path()).expect("a module");
    // The field e_machine of the ELF header: 183 is ARM64, 62 is x86-64.
    module[18] = if cfg!(target_arch = "aarch64") {
        62
    } else {
        183
    };
    module
}

#[test]
fn the_log_says_why_a_file_is_not_loaded_as_troubleshooting_lists_it() {
    let page = text_of("docs/operate/troubleshooting.md");
    let mac = [0xcf, 0xfa, 0xed, 0xfe].repeat(1024);
    for (bytes, mode, line) in [
        (mac, 0o755, "invalid ELF header"),
        (Vec::new(), 0o755, "file too short"),
        (
            for_another_processor(),
            0o755,
            "cannot open shared object file: No such file or directory",
        ),
        (
            fs::read(module_path()).expect("a module"),
            0o644,
            "It does not have execute permissions.",
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libredis_lock.so");
        fs::write(&file, bytes).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
        let load = format!("loadmodule {}", file.display());
        let refused = Process::start(plan(vec![load]), folder.path());
        let log = format!("{:#}", refused.err().expect("a file that isn't loaded"));
        assert!(
            log.contains("failed to load: ") && log.contains(line),
            "{log}"
        );
        assert!(page.contains(&format!("| `{line}`")), "{line}");
    }
}

// --- the files about packages -----------------------------------------------------------------

#[test]
fn the_documents_name_the_oldest_glibc_that_packages_run_with() {
    let script = text_of("scripts/portable.sh");
    let glibc = script.lines().find_map(|line| line.strip_prefix("glibc="));
    let glibc = format!("glibc {}", glibc.expect("a version"));
    for document in ["README.md", "docs/operate/install.md"] {
        assert!(text_of(document).contains(&glibc), "{document}: {glibc}");
    }
}

#[test]
fn the_assets_of_the_package_are_there() {
    let manifest = text_of("Cargo.toml");
    let (_, assets) = manifest.split_once("assets = [").expect("assets");
    let assets = assets
        .lines()
        .filter_map(|line| line.trim().strip_prefix("[\""));
    let sources: Vec<&str> = assets.filter_map(|line| line.split('"').next()).collect();
    assert!(sources.len() > 4, "{sources:?}");
    for source in sources.into_iter().filter(|it| !it.starts_with("target/")) {
        let (folder, _) = source.split_once('*').unwrap_or((source, ""));
        assert!(root().join(folder).exists(), "{source}");
    }
}

/// Returns the value of a key in Cargo.toml.
fn manifest_value(key: &str) -> String {
    let manifest = text_of("Cargo.toml");
    let lines = manifest.lines();
    let value = lines.filter_map(|line| line.strip_prefix(&format!("{key} = \"")));
    value
        .map(|rest| rest.trim_end_matches('"').to_owned())
        .next()
        .expect(key)
}

#[test]
fn the_documents_of_packages_are_all_there_and_their_links_lead_somewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut copying = Command::new("sh");
    copying.arg(root().join("scripts/package-docs.sh"));
    let status = copying.arg(folder.path()).status().expect("it runs");
    assert!(status.success());
    for file in files_below("docs") {
        assert!(folder.path().join(&file).exists(), "no {file}");
    }
    let repository = manifest_value("repository");
    let version = manifest_value("version");
    let address = format!("{repository}/blob/v{version}");
    assert_links_lead_somewhere(folder.path(), root(), &address);
}

/// These packages have the texts by symbolic links, which `cargo package` follows. Node's own tests
/// look at what `npm pack` makes, Python's at the wheel.
#[test]
fn the_packages_of_libraries_have_the_licences_of_the_project() {
    let texts = ["LICENSE", "LICENSE-APACHE", "LICENSE-MIT"];
    for library in ["php", "php/laravel", "php/symfony", "python", "rust"] {
        for text in texts {
            let name = format!("clients/{library}/{text}");
            assert_eq!(text_of(&name), text_of(text), "{name}");
        }
    }
    let mut listing = Command::new("cargo");
    listing.args(["package", "--list", "--allow-dirty", "--offline"]);
    let output = listing
        .args(["--package", "redis-lock-client"])
        .current_dir(root())
        .output()
        .expect("it runs");
    let files = String::from_utf8_lossy(&output.stdout);
    for text in texts {
        assert!(files.lines().any(|file| file == text), "{output:?}");
    }
}

// --- the scripts of the Debian package ----------------------------------------------------------

/// Runs the script that Debian runs after the package is gone, on this root. Returns its output.
fn after_removal(root_of_machine: &TempDir, word: &str) -> String {
    let mut script = Command::new("sh");
    script.arg(root().join("packaging/debian/postrm")).arg(word);
    script.env("DPKG_ROOT", root_of_machine.path());
    let output = script.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn removing_the_package_says_which_server_will_not_start() {
    let machine = tempfile::tempdir().expect("a folder");
    assert_eq!(after_removal(&machine, "remove"), "");
    for (file, text) in [
        ("etc/redis/redis.conf", text_of("packaging/redis-lock.conf")),
        (
            "etc/redis/other.conf",
            "# loadmodule /usr/lib/redis/modules/libredis_lock.so\n".into(),
        ),
        ("etc/valkey/valkey.conf", "port 6379\n".into()),
    ] {
        let file = machine.path().join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, text).expect("a file");
    }
    let said = after_removal(&machine, "remove");
    assert!(
        said.contains("/etc/redis/redis.conf still loads the module"),
        "{said}"
    );
    assert!(
        !said.contains("other.conf") && !said.contains("valkey.conf"),
        "{said}"
    );
    assert_eq!(after_removal(&machine, "upgrade"), "");
}
