//! The common lock libraries, compared with LOCK.WAIT through the same client library. Clients in
//! one process contend for one lock.
//!
//! The cost for the client process and the cost for the server are reported separately. Most of the
//! cost of a grant is the client's. So compare grants per second only between libraries of one
//! language.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use redis_lock_load::Server;
use serde::Deserialize;

use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::Stage;

/// The benchmark's name.
pub const NAME: &str = "peers";

/// The runtime of a driver.
#[derive(Clone, Copy)]
enum Runtime {
    Python,
    Node,
}

impl Runtime {
    /// Returns the command that runs a driver with the libraries installed in a folder.
    fn command(self, installed: &Path, driver: &str) -> Command {
        let drivers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        match self {
            Runtime::Python => {
                let mut command = Command::new(installed.join("python/bin/python"));
                command.arg("-B").arg(drivers.join(format!("{driver}.py")));
                command
            }
            Runtime::Node => {
                let mut command = Command::new("node");
                command.env("NODE_PATH", installed.join("node/node_modules"));
                command.arg(drivers.join(format!("{driver}.js")));
                command
            }
        }
    }
}

/// A library, the client library below it, and the driver that runs it.
struct Library {
    name: &'static str,
    client: &'static str,
    runtime: Runtime,
    driver: &'static str,
}

const LIBRARIES: [Library; 6] = [
    Library {
        name: "redis-py Lock",
        client: "redis-py, threads",
        runtime: Runtime::Python,
        driver: "redis_py_lock",
    },
    Library {
        name: "python-redis-lock",
        client: "redis-py, threads",
        runtime: Runtime::Python,
        driver: "python_redis_lock",
    },
    Library {
        name: "LOCK.WAIT",
        client: "redis-py, threads",
        runtime: Runtime::Python,
        driver: "redis_py_wait",
    },
    Library {
        name: "redlock",
        client: "ioredis",
        runtime: Runtime::Node,
        driver: "redlock",
    },
    Library {
        name: "redis-semaphore Mutex",
        client: "ioredis",
        runtime: Runtime::Node,
        driver: "redis_semaphore",
    },
    Library {
        name: "LOCK.WAIT",
        client: "ioredis",
        runtime: Runtime::Node,
        driver: "ioredis_wait",
    },
];

/// The figures that a driver prints.
#[derive(Deserialize)]
struct Told {
    /// The grants of each contender.
    grants: Vec<u64>,
    seconds: f64,
    /// The driver's own processor time, in seconds.
    cpu: f64,
}

/// A running driver. It is killed when this value goes out of scope.
struct Driver {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Driver {
    fn start(command: &mut Command) -> Result<Driver> {
        let shown = format!("{command:?}");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("{shown} can't be run"))?;
        let output = child.stdout.take().context("a driver has no output")?;
        let output = BufReader::new(output);
        Ok(Driver { child, output })
    }

    /// Reads the next line of the driver's output.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let count = self.output.read_line(&mut line)?;
        ensure!(count > 0, "the driver ended");
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The driver may have ended by itself. Then only `wait` has an effect.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

struct Size {
    contenders: &'static [usize],
    window: Duration,
    rounds: usize,
}

/// Measures all libraries. `installed` is the folder that contains them.
pub fn measure(
    stage: &Stage,
    installed: &Path,
    sheet: &mut Sheet,
    progress: &Progress,
) -> Result<()> {
    let size = stage.extent().of(
        Size {
            contenders: &[1, 16],
            window: Duration::from_millis(500),
            rounds: 1,
        },
        Size {
            contenders: &[1, 16, 100],
            window: Duration::from_secs(3),
            rounds: 5,
        },
    );
    let server = stage.start(&[])?;
    let installed = PathBuf::from(installed).canonicalize();
    let installed = installed.context("the libraries aren't installed: make bench-peers")?;
    for n in size.contenders {
        let mut libraries = LIBRARIES.each_ref();
        let name = |library: &&Library| {
            let Library { name, client, .. } = library;
            format!("{NAME}, {client}, {n}: {name}")
        };
        interleaved(size.rounds, &mut libraries, progress, name, |_, library| {
            let place = Place::new(NAME, library.client, *n as u64, library.name);
            round_of(library, &installed, &server, size.window, sheet, &place)
        })?;
    }
    Ok(())
}

fn round_of(
    library: &Library,
    installed: &Path,
    server: &Server,
    window: Duration,
    sheet: &mut Sheet,
    place: &Place,
) -> Result<()> {
    let mut asker = server.connect()?;
    asker.until_blocked(0)?;
    asker.call("FLUSHALL")?;
    let mut command = library.runtime.command(installed, library.driver);
    command.args([server.port().to_string(), place.size.to_string()]);
    let mut driver = Driver::start(command.arg(window.as_secs_f64().to_string()))?;
    let ready = driver.line()?;
    ensure!(ready == "ready", "the driver said {ready:?}");
    let server_cpu = asker.server_cpu()?;
    let line = driver.line()?;
    let server_cpu = asker.server_cpu()?.saturating_sub(server_cpu);
    let told: Told = serde_json::from_str(&line).with_context(|| line.clone())?;
    note(&told, server_cpu, sheet, place)
}

fn note(told: &Told, server_cpu: Duration, sheet: &mut Sheet, place: &Place) -> Result<()> {
    let grants = told.grants.iter().sum::<u64>() as f64;
    let least = told.grants.iter().min().context("nobody contended")?;
    let most = told.grants.iter().max().context("nobody contended")?;
    sheet.note_some(place, metric::GRANTS_PER_SECOND, grants / told.seconds)?;
    sheet.note(place, metric::LEAST_GRANTS, *least as f64)?;
    sheet.note(place, metric::MOST_GRANTS, *most as f64)?;
    let server_cpu = server_cpu.as_secs_f64();
    sheet.note_some(place, metric::CPU_GRANT, server_cpu * 1e6 / grants)?;
    sheet.note_some(place, metric::CLIENT_CPU_GRANT, told.cpu * 1e6 / grants)
}
