//! `make install`, and the names of files and targets in the files about packages.
//! tests/packages.rs installs the packages themselves.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use redis_lock_rig::{Plan, Process};
use support::{eventually, free_port, module_path, server_binary, Client, Expect, Server};
use tempfile::TempDir;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn text_of(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

// --- make install -------------------------------------------------------------------------------

/// A folder used as the root of the file system.
struct Installed {
    dir: TempDir,
}

impl Installed {
    fn new() -> Installed {
        let dir = tempfile::tempdir().expect("a folder");
        Installed { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the script behind `make install` and `make uninstall`, and returns its output.
    #[track_caller]
    fn run(&self, word: &str, variables: &[(&str, &str)]) -> String {
        let output = Command::new("sh")
            .arg(root().join("scripts/install.sh"))
            .arg(word)
            .env_remove("PREFIX")
            .env("REDIS_SERVER", "/elsewhere/bin/redis-server")
            .env("MODULE", module_path())
            .env("DESTDIR", self.dir.path())
            .envs(variables.iter().copied())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{said}");
        said
    }

    /// Returns all files in the folder, sorted.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![self.dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push(path);
                }
            }
        }
        files.sort();
        files
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

// --- the files about packages -----------------------------------------------------------------

/// Returns the targets of the `make` calls in a workflow or a Dockerfile.
fn targets(text: &str) -> Vec<&str> {
    let calls = text.lines().filter_map(|line| line.split_once("make "));
    let called = calls.filter(|(before, _)| before.ends_with("run: ") || before.ends_with("RUN "));
    let names = called.filter_map(|(_, rest)| rest.split(' ').next());
    names.collect()
}

#[test]
fn the_hosted_ci_and_the_dockerfile_call_targets_that_exist() {
    let makefile = text_of("Makefile");
    for (file, least) in [(".github/workflows/ci.yml", 8), ("Dockerfile", 1)] {
        let text = text_of(file);
        let called = targets(&text);
        assert!(called.len() >= least, "{file}: {called:?}");
        for target in called {
            let rule = format!("\n{target}:");
            assert!(makefile.contains(&rule), "{file} calls make {target}");
        }
    }
}

#[test]
fn the_dockerfile_puts_the_module_where_its_configuration_says() {
    let dockerfile = text_of("Dockerfile");
    let copies: Vec<Vec<&str>> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .map(|words| {
            words
                .split(' ')
                .filter(|word| !word.starts_with("--"))
                .collect()
        })
        .collect();
    let to = |from: &str| {
        let copy = copies.iter().find(|copy| copy[0].ends_with(from));
        copy.expect(from)[1].to_owned()
    };
    let loading = format!("\nloadmodule {}\n", to("libredis_lock.so"));
    let configuration = text_of("packaging/redis-lock.conf");
    assert!(configuration.contains(&loading), "{loading}");
    assert!(dockerfile.contains(&format!("exec $PROGRAM {} ", to("redis-lock.conf"))));
    for copy in copies.iter().filter(|copy| !copy[0].starts_with('/')) {
        assert!(root().join(copy[0]).exists(), "{copy:?}");
    }
}

/// Returns the Dockerfile's command, changed to this port and folder and to the installed lines.
fn command_of_the_image(installed: &Installed, port: u16, folder: &Path) -> String {
    let dockerfile = text_of("Dockerfile");
    let command = dockerfile
        .lines()
        .find_map(|line| line.strip_prefix("CMD "));
    let words: Vec<String> = serde_json::from_str(command.expect("a command")).expect("JSON");
    let [shell, option, script] = &words[..] else {
        panic!("{words:?}")
    };
    assert_eq!([shell.as_str(), option], ["sh", "-c"]);
    let lines = folder.join("lines.conf");
    fs::write(&lines, configuration(installed).join("\n") + "\n").expect("a file");
    let place = format!("{} --port {port}", lines.display());
    let script = script.replace("/etc/redis-lock.conf", &place);
    script.replace("/data", &folder.display().to_string())
}

/// A server that is killed on drop.
struct Image(Child);

impl Image {
    fn start(script: &str, password: Option<&str>) -> Image {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::null());
        command.env_remove("REDIS_PASSWORD");
        command.env("PROGRAM", server_binary());
        command.envs(password.map(|it| ("REDIS_PASSWORD", it)));
        Image(command.spawn().expect("a shell"))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_image_asks_for_its_password_or_is_protected() {
    let installed = Installed::new();
    for password in [None, Some("a secret's \"$HOME\" word")] {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let script = command_of_the_image(&installed, port, folder.path());
        let _image = Image::start(&script, password);
        let mut client = eventually("the server replies", || Client::unidentified(port).ok());
        if let Some(password) = password {
            let refused = client.call("LOCK.ACQUIRE k a").error();
            assert!(refused.starts_with("NOAUTH"), "{refused}");
            client.call(&["AUTH", password]).okay();
        }
        assert_eq!(setting(&mut client, "protected-mode"), "yes");
        client.call("LOCK.ACQUIRE k a").grant();
    }
}

#[test]
fn the_documented_container_is_reached_from_its_machine_with_a_password_alone() {
    let document = text_of("docs/operate/install.md");
    let runs: Vec<&str> = document
        .lines()
        .filter(|line| line.starts_with("docker run "))
        .collect();
    assert!(!runs.is_empty());
    for run in runs {
        let published = run.split(' ').skip_while(|word| *word != "-p").nth(1);
        let published = published.expect("a published port");
        assert!(published.starts_with("127.0.0.1:"), "{run}");
        assert!(run.contains(" -e REDIS_PASSWORD="), "{run}");
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
