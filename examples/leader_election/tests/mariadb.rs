//! The rows that MariaDB counts in an update under a fence, which docs/concepts/fencing.md explains:
//! `make test-mariadb`.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use tempfile::TempDir;

/// The time limit for the start of the server.
const PATIENCE: Duration = Duration::from_secs(60);

/// A MariaDB server with an empty database, which listens on a socket in its folder.
struct MariaDb {
    child: Child,
    folder: TempDir,
}

impl MariaDb {
    fn start() -> Result<MariaDb> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        let program = |name: &str| {
            let mut command = Command::new(name);
            command.arg("--no-defaults").arg("--user=root");
            command.arg(format!("--datadir={}", data.display()));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let made = program("mariadb-install-db")
            .arg("--auth-root-authentication-method=normal")
            .status()
            .context("make test-mariadb installs it")?;
        ensure!(made.success(), "mariadb-install-db: {made}");
        let child = program("mariadbd")
            .arg("--skip-networking")
            .arg(format!("--socket={}", socket(&folder).display()))
            .spawn()?;
        let server = MariaDb { child, folder };
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = server.execute("CREATE DATABASE shop") {
            ensure!(Instant::now() < deadline, "no MariaDB: {error}");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Executes statements on one connection. Returns the lines of their results.
    fn execute(&self, statements: &str) -> Result<Vec<String>> {
        let output = Command::new("mariadb")
            .args([
                "--no-defaults",
                "--user=root",
                "--batch",
                "--skip-column-names",
            ])
            .arg(format!("--socket={}", socket(&self.folder).display()))
            .args(["--execute", statements])
            .output()?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{complaint}");
        let lines = String::from_utf8(output.stdout)?;
        Ok(lines.lines().map(str::to_owned).collect())
    }

    /// Writes twice under one fence, then under a greater one, then late. Returns the counted rows.
    fn counts(&self, update: &str) -> Result<Vec<String>> {
        let write = |units: u64, fence: u64| {
            format!(
                "{}; SELECT ROW_COUNT(); ",
                update
                    .replace("{units}", &units.to_string())
                    .replace("{fence}", &fence.to_string())
            )
        };
        let writes = [write(41, 7), write(41, 7), write(40, 8), write(99, 7)].concat();
        self.execute(&format!(
            "USE shop;
             CREATE OR REPLACE TABLE product (
               id INT PRIMARY KEY, units INT, writes INT NOT NULL DEFAULT 0,
               fence BIGINT NOT NULL DEFAULT 0);
             INSERT INTO product (id, units) VALUES (42, 100);
             {writes}"
        ))
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("socket")
}

#[test]
fn a_write_that_changes_nothing_looks_late_on_mariadb() -> Result<()> {
    let server = MariaDb::start()?;
    let plain = "UPDATE product SET units = {units}, fence = {fence}
                  WHERE id = 42 AND fence <= {fence}";
    // The second count is the trap: the holder isn't late.
    assert_eq!(server.counts(plain)?, ["1", "0", "1", "0"]);
    let counted = plain.replace(" WHERE", ", writes = writes + 1 WHERE");
    assert_eq!(server.counts(&counted)?, ["1", "1", "1", "0"]);
    Ok(())
}
