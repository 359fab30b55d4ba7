//! The container image, without a container engine: its entry point runs with stand-ins for the
//! programs of the base image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::{eventually, free_port, module_path, server_binary, Client, Expect};
use tempfile::TempDir;

use crate::text_of;

/// A stand-in for the entry point of the base image. It notes its arguments, one on a line.
const NOTES: &str = r#"printf '%s\n' "$@" >"$TMPDIR/noted"; env >"$TMPDIR/noted.env""#;

/// A stand-in for the server of the base image, where protected mode is off unless the
/// configuration file, the first argument, says otherwise.
const OPEN: &str = r#"settings=$1.all; { echo 'protected-mode no'; cat "$1"; } >"$settings"; shift
exec "$SERVER" "$settings" "$@""#;

/// The image's files and programs in a folder.
struct Image {
    dir: TempDir,
}

impl Image {
    /// Creates an image with this entry point of its base.
    fn new(base: &str) -> Image {
        let dir = tempfile::tempdir().expect("a folder");
        let image = Image { dir };
        fs::create_dir(image.path("bin")).expect("a folder");
        let library = "/usr/lib/redis/modules/libredis_lock.so";
        let built = module_path().display().to_string();
        let lines = text_of("packaging/redis-lock.conf").replace(library, &built);
        fs::write(image.path("lines.conf"), lines).expect("the lines");
        let script = text_of("packaging/entrypoint.sh");
        let installed = "/usr/share/redis-lock/redis-lock.conf";
        assert!(script.contains(installed));
        let script = script.replace(installed, &image.path("lines.conf"));
        fs::write(image.path("entrypoint"), script).expect("the entry point");
        image
            .program("docker-entrypoint.sh", base)
            .program("valkey-server", OPEN)
            .program("id", "echo 1000")
    }

    fn program(self, name: &str, body: &str) -> Image {
        let path = self.path(&format!("bin/{name}"));
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect(name);
        self
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Returns the path of the configuration that the entry point writes.
    fn configuration(&self) -> String {
        self.path("redis-lock.conf")
    }

    fn command(&self, words: &[&str], password: Option<&str>) -> Command {
        let path = std::env::var("PATH").expect("a PATH");
        let mut command = Command::new("sh");
        command
            .arg(self.path("entrypoint"))
            .args(words)
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", self.path("bin")))
            .env("PROGRAM", "valkey-server")
            .env("TMPDIR", self.dir.path())
            .env("SERVER", server_binary())
            .env_remove("REDIS_PASSWORD")
            .envs(password.map(|it| ("REDIS_PASSWORD", it)))
            .stdin(Stdio::null());
        command
    }

    /// Runs the entry point, and returns what the base's entry point noted.
    #[track_caller]
    fn noted(&self, words: &[&str], password: Option<&str>) -> Vec<String> {
        let output = self.command(words, password).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let noted = text_of(&self.path("noted"));
        noted.lines().map(str::to_owned).collect()
    }
}

#[test]
fn options_come_after_the_image_s_settings_with_and_without_the_program() {
    let image = Image::new(NOTES);
    let configuration = image.configuration();
    let settings = ["valkey-server", &configuration];
    for (words, options) in [
        (&[][..], &[][..]),
        (&["valkey-server"], &[]),
        (&["--appendonly", "yes"], &["--appendonly", "yes"]),
        (&["valkey-server", "--save", ""], &["--save", ""]),
    ] {
        assert_eq!(image.noted(words, None), [&settings, options].concat());
    }
}

#[test]
fn the_configuration_is_written_anew_at_each_start() {
    let image = Image::new(NOTES);
    image.noted(&[], None);
    let text = text_of(&image.configuration());
    fs::write(image.configuration(), "lock.max-waiters 7\n").expect("a file");
    image.noted(&[], None);
    assert_eq!(text_of(&image.configuration()), text);
}

#[test]
fn another_command_is_left_to_the_base_image() {
    let image = Image::new(NOTES);
    let words = ["redis-lock", "ls", "-h", "a host"];
    assert_eq!(image.noted(&words, None), words);
    assert!(!Path::new(&image.configuration()).exists());
}

#[test]
fn the_password_is_in_a_file_of_the_server_s_user_and_nowhere_else() {
    for (user, handed) in [("0", Some("valkey")), ("1000", None)] {
        let image = Image::new(NOTES)
            .program("id", &format!("echo {user}"))
            .program("chown", "echo \"$*\" >\"$TMPDIR/noted.chown\"");
        image.noted(&[], Some("a secret"));
        let file = image.configuration();
        let handed = handed.map(|name| format!("{name} {file}\n"));
        assert_eq!(fs::read_to_string(image.path("noted.chown")).ok(), handed);
        let mode = fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = text_of(&file);
        assert!(text.contains("\nrequirepass \"a secret\"\n"), "{text}");
        for name in ["noted", "noted.env"] {
            let text = text_of(&image.path(name));
            assert!(!text.contains("secret"), "{name}: {text}");
        }
    }
}

#[test]
fn a_file_of_the_user_s_own_keeps_protected_mode_and_takes_no_password() {
    let image = Image::new(NOTES);
    let file = image.path("my.conf");
    let protected = ["--protected-mode", "yes"];
    for (text, added) in [
        ("port 6379\n", &protected[..]),
        ("# protected-mode no\n", &protected),
        ("Protected-Mode no\n", &[]),
    ] {
        fs::write(&file, text).expect("a file");
        let noted = image.noted(&[&file, "--port", "1"], None);
        let expected = [&["valkey-server", file.as_str()], added, &["--port", "1"]].concat();
        assert_eq!(noted, expected, "{text}");
    }
    let refused = image.command(&[&file], Some("x")).output();
    let refused = refused.expect("it runs");
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    let advice = format!("put requirepass into {file}");
    assert!(said.contains(&advice), "{said}");
}

// --- with a server --------------------------------------------------------------------------------

/// A server that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_image_asks_for_its_password_or_is_protected_and_takes_options() {
    for password in [None, Some("a secret's \"$HOME\" \\word")] {
        let image = Image::new("exec \"$@\"");
        let port = free_port();
        let words = ["--port", &port.to_string(), "--appendonly", "yes"];
        let mut command = image.command(&words, password);
        let _running = Running(command.stdout(Stdio::null()).spawn().expect("a shell"));
        let mut client = eventually("the server replies", || Client::unidentified(port).ok());
        if let Some(password) = password {
            let refused = client.call("LOCK.ACQUIRE k a").error();
            assert!(refused.starts_with("NOAUTH"), "{refused}");
            client.call(&["AUTH", password]).okay();
        }
        for (name, value) in [
            ("protected-mode", "yes"),
            ("appendonly", "yes"),
            ("maxmemory-policy", "noeviction"),
        ] {
            let pair = client.call(&["CONFIG", "GET", name]).list();
            assert_eq!(Ok(pair[1].clone()).text(), value, "{name}");
        }
        client.call("LOCK.ACQUIRE k a").grant();
    }
}

// --- the Dockerfile and the document --------------------------------------------------------------

#[test]
fn the_dockerfile_takes_everything_from_make_install_and_runs_the_entry_point() {
    let dockerfile = text_of("Dockerfile");
    for line in [
        "RUN make cli",
        "RUN make install DESTDIR=/image PREFIX=/usr",
        "COPY --from=build /image/ /",
        "COPY --chmod=755 packaging/entrypoint.sh /usr/local/bin/redis-lock-entrypoint",
        "ENTRYPOINT [\"redis-lock-entrypoint\"]",
    ] {
        assert!(dockerfile.lines().any(|it| it == line), "no {line}");
    }
}

#[test]
fn the_documented_containers_are_reached_from_their_machine_alone() {
    let document = text_of("docs/operate/install.md");
    let runs = document
        .lines()
        .filter(|line| line.starts_with("docker run "));
    let (with_password, without): (Vec<&str>, Vec<&str>) =
        runs.partition(|run| run.contains(" -e REDIS_PASSWORD="));
    let ([closed], [open]) = (&with_password[..], &without[..]) else {
        panic!("{with_password:?}, {without:?}");
    };
    assert!(open.ends_with(" --protected-mode no"));
    for run in [closed, open] {
        let (_, published) = run.split_once(" -p ").expect("a published port");
        assert!(published.starts_with("127.0.0.1:"), "{run}");
    }
}
