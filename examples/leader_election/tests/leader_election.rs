//! PostgreSQL refuses a leader that stopped for longer than its lease: `make test-postgres`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use postgres::NoTls;
use redis_lock_rig::{free_port, Plan, Process};
use tempfile::TempDir;

/// The time limit of every step of the test.
const PATIENCE: Duration = Duration::from_secs(60);

// --- PostgreSQL -----------------------------------------------------------------------------

/// Returns Debian's folder of the newest PostgreSQL's programs.
fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").context("make test-postgres installs it")?;
    let folders = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let folders = folders.filter(|folder| folder.join("postgres").is_file());
    folders.max().context("no PostgreSQL server")
}

/// Returns the number of a user or group.
fn number_of(words: &[&str]) -> Result<u32> {
    let output = Command::new("id").args(words).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// A separate PostgreSQL server with a new database.
struct Postgres {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Postgres {
    fn start() -> Result<Postgres> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        let port = free_port();
        // PostgreSQL doesn't run as root.
        let owner = match number_of(&["-u"])? {
            0 => Some((
                number_of(&["-u", "postgres"])?,
                number_of(&["-g", "postgres"])?,
            )),
            _ => None,
        };
        let program = |name: &str| -> Result<Command> {
            let mut command = Command::new(programs()?.join(name));
            command.current_dir(folder.path());
            if let Some((user, group)) = owner {
                command.uid(user).gid(group);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null());
            Ok(command)
        };
        if let Some((user, group)) = owner {
            chown(folder.path(), Some(user), Some(group))?;
        }
        let made = program("initdb")?
            .args([
                "--no-sync",
                "--auth=trust",
                "--username=postgres",
                "--pgdata",
            ])
            .arg(&data)
            .status()?;
        if !made.success() {
            bail!("initdb: {made}");
        }
        let child = program("postgres")?
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"])
            .arg("-c")
            .arg(format!(
                "unix_socket_directories={}",
                folder.path().display()
            ))
            .args(["-c", "fsync=off"])
            .stderr(fs::File::create(folder.path().join("log"))?)
            .spawn()?;
        let postgres = Postgres {
            child,
            port,
            _folder: folder,
        };
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = postgres.client() {
            if Instant::now() > deadline {
                return Err(error.context("PostgreSQL doesn't answer"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(postgres)
    }

    fn address(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres", self.port)
    }

    fn client(&self) -> Result<postgres::Client> {
        Ok(postgres::Client::connect(&self.address(), NoTls)?)
    }

    /// Returns the fence and the number of writes in the ledger.
    fn ledger(&self) -> Result<(i64, i64)> {
        let row = self
            .client()?
            .query_one("SELECT fence, turns FROM ledger WHERE id = 1", &[])?;
        Ok((row.get(0), row.get(1)))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGQUIT ends the server at once, with its child processes.
        signal(&self.child, libc::SIGQUIT);
        drop(self.child.wait());
    }
}

// --- candidates -----------------------------------------------------------------------------

fn signal(child: &Child, signal: libc::c_int) {
    let id = libc::pid_t::try_from(child.id()).expect("a process number");
    // SAFETY: kill reads no memory of this process, and the child isn't reaped yet.
    unsafe { libc::kill(id, signal) };
}

/// A candidate's event and its fence.
type Said = (String, i64);

struct Candidate {
    child: Child,
    said: Receiver<Said>,
    writes: i64,
}

impl Candidate {
    fn start(name: &str, locks: &Process, ledger: &Postgres) -> Result<Candidate> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leader_election"))
            .args(["--redis", &format!("redis://127.0.0.1:{}/", locks.port())])
            .args(["--postgres", &ledger.address()])
            .args(["--name", name, "--lease-ms", "900"])
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let (sender, said) = mpsc::channel();
        thread::spawn(move || {
            let said = lines.map_while(std::result::Result::ok);
            for line in said {
                let Some((what, fence)) = line.split_once(' ') else {
                    continue;
                };
                let fence = fence.parse().unwrap_or_default();
                if sender.send((what.to_owned(), fence)).is_err() {
                    return;
                }
            }
        });
        Ok(Candidate {
            child,
            said,
            writes: 0,
        })
    }

    fn next(&mut self) -> Result<Said> {
        let said = self.said.recv_timeout(PATIENCE);
        let said = said.context("the candidate says nothing")?;
        self.writes += i64::from(said.0 == "wrote");
        Ok(said)
    }

    /// Waits for the candidate's next event `what`, and returns its fence.
    fn until(&mut self, what: &str) -> Result<i64> {
        loop {
            let (said, fence) = self.next()?;
            if said == what {
                return Ok(fence);
            }
        }
    }

    /// Reads the candidate's events until it is silent, and counts the writes.
    fn rest(&mut self) {
        while let Ok((what, _)) = self.said.recv_timeout(Duration::from_millis(100)) {
            self.writes += i64::from(what == "wrote");
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn locks(folder: &Path) -> Result<Process> {
    let program = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let built = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/release/libredis_lock.so"
    );
    let module = std::env::var_os("REDIS_LOCK_MODULE").unwrap_or_else(|| built.into());
    let plan = Plan {
        module: Some(module.into()),
        ..Plan::new(&PathBuf::from(program))
    };
    Process::start(plan, folder)
}

#[test]
fn a_leader_that_stood_still_beyond_its_lease_is_refused_by_its_fence() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let locks = locks(folder.path())?;
    let ledger = Postgres::start()?;
    let mut old = Candidate::start("old", &locks, &ledger)?;
    old.until("wrote")?;
    let mut new = Candidate::start("new", &locks, &ledger)?;

    // A leader that is stopped right after an extension believes later that it still leads, and its
    // next step is a write. Stopped elsewhere, it may detect the loss at the lock first.
    let deadline = Instant::now() + PATIENCE;
    let refused = loop {
        let stale = old.until("extended")?;
        signal(&old.child, libc::SIGSTOP);
        let newer = new.until("leads")?;
        assert!(newer > stale, "{newer} after {stale}");
        assert_eq!(new.until("wrote")?, newer);
        signal(&old.child, libc::SIGCONT);
        let (what, fence) = loop {
            let (what, fence) = old.next()?;
            if what == "refused" || what == "lost" {
                break (what, fence);
            }
        };
        assert_eq!(fence, stale);
        if what == "refused" {
            break newer;
        }
        if Instant::now() > deadline {
            bail!("the leader was never stopped before a write");
        }
        // Makes the old candidate the leader again, for the next attempt.
        signal(&new.child, libc::SIGSTOP);
        old.until("wrote")?;
        signal(&new.child, libc::SIGCONT);
    };

    // The ledger has every write except the refused one.
    assert_eq!(new.until("wrote")?, refused);
    signal(&new.child, libc::SIGSTOP);
    old.rest();
    new.rest();
    signal(&old.child, libc::SIGSTOP);
    old.rest();
    let (fence, turns) = ledger.ledger()?;
    assert!(fence >= refused);
    let told = old.writes + new.writes;
    // A candidate that is stopped between a write and its event has one more write than it
    // reported.
    assert!(
        (told..=told + 2).contains(&turns),
        "{turns} writes, {told} reported"
    );
    Ok(())
}
