//! The Debian package, the release tarball and `make install`, by the commands of docs/operate/install.md.
//!
//! - `content`: the files of the package and the tarball. Needs no root.
//! - `portable`: the C library that they need, unless PROFILED is empty.
//! - `machine`: the commands run in a disposable copy of this machine, with systemd and Debian's own
//!   unit of the server. Needs root, systemd and Debian's redis-server.
//! - `musl`: the module and the command that are built for musl. `make test-musl` runs it.
//!
//! `make test-packages` runs all but the last.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the directory that cargo builds in.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

mod content {
    use super::*;

    use std::collections::BTreeSet;

    use support::files::files_in;
    use support::links::assert_links_lead_somewhere;
    use tempfile::TempDir;

    const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

    /// Returns the newest file in a folder below the build directory whose name begins and ends so.
    #[track_caller]
    fn built(folder: &str, begin: &str, end: &str) -> PathBuf {
        let files = files_in(&target().join(folder)).into_iter();
        let files = files.filter(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(begin) && name.ends_with(end)
        });
        let newest = files.max_by_key(|file| fs::metadata(file).and_then(|it| it.modified()).ok());
        newest.unwrap_or_else(|| panic!("no {begin}*{end} in {folder}"))
    }

    pub fn package() -> PathBuf {
        built("debian", &format!("redis-lock_{VERSION}-"), ".deb")
    }

    /// Runs a program, and returns its output.
    #[track_caller]
    pub fn output(command: &mut Command) -> String {
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn unpacked_package() -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        output(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(package())
                .arg(folder.path()),
        );
        folder
    }

    pub fn unpacked_tarball(begin: &str) -> TempDir {
        let tarball = built(
            "dist",
            begin,
            &format!("{}-unknown-linux-gnu.tar.gz", env::consts::ARCH),
        );
        let folder = tempfile::tempdir().expect("a folder");
        let mut tar = Command::new("tar");
        tar.args(["--strip-components=1", "-xzf"]).arg(tarball);
        output(tar.arg("-C").arg(folder.path()));
        folder
    }

    #[track_caller]
    fn assert_has(folder: &TempDir, names: &[&str]) {
        for name in names {
            assert!(folder.path().join(name).exists(), "no {name}");
        }
    }

    /// Asserts that the pages in a folder are all that the clone has, with links that lead somewhere.
    #[track_caller]
    fn assert_has_documents(folder: &Path) {
        let names = |top: &Path| -> BTreeSet<PathBuf> {
            let files = files_in(&top.join("docs")).into_iter();
            files
                .map(|file| file.strip_prefix(top).expect("a file in it").to_owned())
                .collect()
        };
        assert_eq!(names(folder), names(root()));
        let address = format!("{REPOSITORY}/blob/v{VERSION}");
        assert_links_lead_somewhere(folder, root(), &address);
    }

    #[test]
    fn the_package_has_the_command_and_documents_without_dead_links() {
        let folder = unpacked_package();
        assert_has(
            &folder,
            &[
                "usr/lib/redis/modules/libredis_lock.so",
                "usr/bin/redis-lock",
                "usr/share/man/man1/redis-lock.1.gz",
                "usr/share/man/man1/redis-lock-run.1.gz",
                "usr/share/bash-completion/completions/redis-lock",
                "usr/share/zsh/vendor-completions/_redis-lock",
                "usr/share/fish/vendor_completions.d/redis-lock.fish",
                "usr/share/redis-lock/redis-lock.conf",
            ],
        );
        assert_has_documents(&folder.path().join("usr/share/doc/redis-lock"));
    }

    #[test]
    fn the_package_depends_on_the_c_library_and_on_a_server() {
        let depends = output(
            Command::new("dpkg-deb")
                .arg("-f")
                .arg(package())
                .arg("Depends"),
        );
        assert!(depends.contains("libc6 (>= "), "{depends}");
        assert!(
            depends.contains("redis-server (>= 5:7.0) | valkey-server (>= 8.0)"),
            "{depends}"
        );
    }

    #[test]
    fn the_tarball_has_the_command_and_documents_without_dead_links() {
        let folder = unpacked_tarball(&format!("redis-lock-{VERSION}-"));
        let names = [
            "libredis_lock.so",
            "redis-lock",
            "share/man/man1/redis-lock.1.gz",
            "share/zsh/site-functions/_redis-lock",
            "packaging/redis-lock.conf",
            "scripts/install.sh",
        ];
        assert_has(&folder, &names);
        assert_has_documents(folder.path());
    }

    #[test]
    fn the_command_s_own_tarball_has_its_manual_pages_and_completions() {
        let folder = unpacked_tarball(&format!("redis-lock-cli-{VERSION}-"));
        let names = [
            "redis-lock",
            "share/man/man1/redis-lock.1.gz",
            "share/bash-completion/completions/redis-lock",
            "LICENSE",
        ];
        assert_has(&folder, &names);
        let version = output(Command::new(folder.path().join("redis-lock")).arg("--version"));
        assert_eq!(version.trim(), format!("redis-lock {VERSION}"));
    }
}

mod portable {
    use super::content::{output, package, unpacked_package, unpacked_tarball};
    use super::*;

    /// The C library of RHEL 8.
    const OLDEST: [u32; 2] = [2, 28];

    /// Returns the newest version of glibc that a file asks for.
    #[track_caller]
    fn newest_glibc(file: &Path) -> [u32; 2] {
        let text = output(
            Command::new("readelf")
                .args(["--version-info", "--wide"])
                .arg(file),
        );
        let versions = text.split("GLIBC_").skip(1);
        let versions = versions.map(|rest| {
            let numbers = rest.split(|it: char| it != '.' && !it.is_ascii_digit());
            let mut numbers = numbers.flat_map(|it| it.split('.')).map(str::parse);
            [(); 2].map(|()| numbers.next().expect("a number").expect("a version"))
        });
        versions.max().expect("a version of glibc")
    }

    #[test]
    fn the_packages_run_with_the_c_library_of_rhel_8() {
        let (deb, tarball) = (
            unpacked_package(),
            unpacked_tarball(&format!("redis-lock-{VERSION}-")),
        );
        let files = [
            deb.path().join("usr/lib/redis/modules/libredis_lock.so"),
            deb.path().join("usr/bin/redis-lock"),
            tarball.path().join("libredis_lock.so"),
            tarball.path().join("redis-lock"),
        ];
        for file in files {
            let newest = newest_glibc(&file);
            assert!(newest <= OLDEST, "{newest:?}: {}", file.display());
            let needed = output(Command::new("readelf").arg("--dynamic").arg(&file));
            assert!(!needed.contains("libgcc_s"), "{needed}");
        }
    }

    #[test]
    fn the_package_names_the_c_library_of_rhel_8() {
        let depends = output(
            Command::new("dpkg-deb")
                .arg("-f")
                .arg(package())
                .arg("Depends"),
        );
        let [major, minor] = OLDEST;
        let names = format!("libc6 (>= {major}.{minor})");
        assert!(depends.contains(&names), "{depends}");
    }
}

mod musl {
    use super::*;

    /// A program that loads the module and looks for the function that a server calls first.
    const LOADS: &str = r#"#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *module = dlopen(words[count - 1], RTLD_NOW);
    if (!module || !dlsym(module, "RedisModule_OnLoad")) return puts(dlerror()), 1;
    return puts("loaded"), 0;
}
"#;

    /// Returns a file that was built for musl.
    fn built(name: &str) -> PathBuf {
        let folder = env::var_os("REDIS_LOCK_MUSL").expect("the folder of what was built for musl");
        PathBuf::from(folder).join(name)
    }

    fn module() -> PathBuf {
        built("libredis_lock.so")
    }

    #[test]
    fn the_module_for_musl_needs_the_c_library_alone() {
        let read = Command::new("readelf")
            .arg("--dynamic")
            .arg(module())
            .output();
        let output = read.expect("readelf runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
        let needed: Vec<&str> = needed
            .filter_map(|line| line.split(['[', ']']).nth(1))
            .collect();
        assert_eq!(needed, ["libc.so"], "{text}");
    }

    #[test]
    fn the_module_for_musl_is_loaded_by_a_program_with_musl() {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("loads.c");
        fs::write(&source, LOADS).expect("a source");
        let program = folder.path().join("loads");
        let mut compiler = Command::new("musl-gcc");
        let status = compiler.arg(&source).arg("-o").arg(&program).status();
        assert!(status.expect("musl-gcc runs").success());
        let output = Command::new(program)
            .arg(module())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, "loaded\n");
    }

    #[test]
    fn the_command_for_musl_runs_without_any_library() {
        let command = built("redis-lock");
        let output = Command::new(&command).arg("--version").output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, format!("redis-lock {VERSION}\n"), "{output:?}");
        let read = Command::new("readelf")
            .arg("--dynamic")
            .arg(command)
            .output();
        let text = read.expect("readelf runs").stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.contains("(NEEDED)"), "{text}");
    }
}

mod machine {
    use super::*;

    /// Returns the commands of a section of docs/operate/install.md, except lines that begin with `make`.
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
        let console =
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
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
         redis-lock ls\n\
         redis-cli LOCK.HELP\n";

    /// Commands that remove the package while the server still has the module, and a lock.
    const REMOVE: &str = "redis-cli SET value kept\n\
         apt-get remove --yes redis-lock\n\
         test ! -e /usr/lib/redis/modules/libredis_lock.so\n\
         test ! -e /usr/bin/redis-lock\n\
         redis-cli DEL k\n\
         redis-cli SAVE\n\
         systemctl restart redis-server || echo the server did not start\n\
         tail -n 20 /var/log/redis/redis-server.log\n";

    /// Commands that do what the removal of the package said.
    const LEFT: &str =
        "sed -i '/^loadmodule.*libredis_lock/d; /^lock\\./d' /etc/redis/redis.conf\n\
         systemctl reset-failed redis-server\n\
         systemctl restart redis-server\n\
         redis-cli GET value\n";

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
        let said = play_well(&format!("{commands}{USE}{REMOVE}{LEFT}"));
        assert_works_under_the_unit(&said);
        for line in [
            "redis-lock: /etc/redis/redis.conf still loads the module, so that server will not start again.",
            "the server did not start",
            "kept",
        ] {
            assert!(said.lines().any(|it| it == line), "no {line:?} in\n{said}");
        }
        assert!(said.contains("libredis_lock.so failed to load"), "{said}");
    }

    #[test]
    fn make_install_works_with_the_server_s_own_unit() {
        let commands = commands("From source");
        assert!(commands.contains("make install"));
        assert_works_under_the_unit(&play_well(&format!("{commands}{USE}")));
    }

    #[test]
    fn the_tarball_works_with_the_server_s_own_unit() {
        let commands = commands("Release tarball").replace(
            "redis-lock-0.1.0-x86_64-unknown-linux-gnu",
            &format!(
                "redis-lock-{VERSION}-{}-unknown-linux-gnu",
                env::consts::ARCH
            ),
        );
        let enter = format!("cd \"$(mktemp -d)\"\nln -s {} target\n", target().display());
        let append = "cat /usr/share/redis-lock/redis-lock.conf >>/etc/redis/redis.conf\n";
        assert_works_under_the_unit(&play_well(&format!("{enter}{commands}{append}{USE}")));
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

    /// A stand-in for the entry point of the image's base: it drops root to the server's user.
    const BASE: &str = r#"exec setpriv --reuid=redis --regid=redis --clear-groups -- "$@""#;

    #[test]
    fn the_image_s_server_is_not_root_and_reads_its_password() {
        let said = play_well(&format!(
            "make install PREFIX=/usr\n\
             printf '%s\\n' '#!/bin/sh' '{BASE}' >/usr/local/bin/docker-entrypoint.sh\n\
             chmod 755 /usr/local/bin/docker-entrypoint.sh\n\
             systemctl stop redis-server\n\
             cd \"$(mktemp -d)\" && chown redis .\n\
             PROGRAM=redis-server REDIS_PASSWORD=secret sh {}/packaging/entrypoint.sh --appendonly yes &\n\
             until redis-cli ping | grep NOAUTH; do sleep 0.1; done\n\
             REDISCLI_AUTH=secret redis-cli LOCK.ACQUIRE k somebody\n\
             process=$(REDISCLI_AUTH=secret redis-cli INFO server | sed -n 's/^process_id:\\([0-9]*\\).*/\\1/p')\n\
             echo the user is \"$(stat -c %U /proc/$process)\"\n",
            root().display()
        ));
        assert!(said.contains("the user is redis"), "{said}");
        assert!(said.lines().any(|line| line == "somebody"), "{said}");
    }
}
