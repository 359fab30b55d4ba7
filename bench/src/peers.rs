//! The common lock libraries, compared with LOCK.WAIT and with this project's clients. Clients in one
//! or several processes contend for one lock.
//!
//! The cost for the client processes and the cost for the server are reported separately. Most of the
//! cost of a grant is the client's. So compare grants per second only between libraries of one
//! language.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::ValueEnum;
use redis_lock_load::Connection;
use serde::Deserialize;

use crate::lateness::{Times, MILLISECOND};
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::Stage;

/// The benchmark's name.
pub const NAME: &str = "peers";

/// The beginning of the names of this project's clients.
pub const OURS: &str = "redis-lock";

/// The client libraries below the measured ones, by their runtime.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// Lettuce, Jedis and Redisson's own client, with threads
    Java,
    /// go-redis, with goroutines
    Go,
    /// ioredis, with asynchronous tasks
    Node,
    /// redis-py, with threads
    Python,
}

impl Client {
    /// Returns the name of the setting.
    fn setting(self) -> &'static str {
        match self {
            Client::Java => "Java, threads",
            Client::Go => "Go, goroutines",
            Client::Node => "Node, ioredis",
            Client::Python => "Python, threads",
        }
    }
}

/// The runtime of a driver, with the folder or the class that the driver is in.
#[derive(Clone, Copy)]
enum Runtime {
    Python,
    Node,
    Go,
    /// A JVM with the libraries of a folder, and the driver's class.
    Java(&'static str, &'static str),
}

impl Runtime {
    /// Returns the command that runs a driver with the libraries installed in a folder.
    fn command(self, installed: &Path, driver: &str) -> Command {
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let drivers = project.join("peers");
        match self {
            Runtime::Python => {
                let mut command = Command::new(installed.join("python/bin/python"));
                command.env("PYTHONPATH", project.join("../clients/python/src"));
                command.arg("-B").arg(drivers.join(format!("{driver}.py")));
                command
            }
            Runtime::Node => {
                let mut command = Command::new("node");
                command.env("NODE_PATH", installed.join("node/node_modules"));
                command.arg(drivers.join(format!("{driver}.js")));
                command
            }
            Runtime::Go => {
                let mut command = Command::new(installed.join("go/peers"));
                command.arg(driver);
                command
            }
            Runtime::Java(libraries, class) => {
                let folder = installed.join("java").join(libraries);
                let folder = folder.display();
                let classes = format!("{folder}/classes:{folder}/client:{folder}/*");
                let mut command = Command::new("java");
                command.args(["-cp", &classes, class, driver]);
                command
            }
        }
    }
}

/// A library, the client library below it, and the driver that runs it.
struct Library {
    name: &'static str,
    client: Client,
    runtime: Runtime,
    driver: &'static str,
}

const fn library(
    name: &'static str,
    client: Client,
    runtime: Runtime,
    driver: &'static str,
) -> Library {
    Library {
        name,
        client,
        runtime,
        driver,
    }
}

const REDISSON: Runtime = Runtime::Java("redisson", "RedissonLocks");
const SPRING: Runtime = Runtime::Java("spring", "SpringLocks");
const OUR_JAVA: Runtime = Runtime::Java("redis-lock", "OurLocks");

const LIBRARIES: [Library; 17] = [
    library("Redisson RLock", Client::Java, REDISSON, "RLock"),
    library("Redisson RFairLock", Client::Java, REDISSON, "RFairLock"),
    library("Spring, SPIN_LOCK", Client::Java, SPRING, "SPIN_LOCK"),
    library("Spring, PUB_SUB_LOCK", Client::Java, SPRING, "PUB_SUB_LOCK"),
    library("redis-lock, Lettuce", Client::Java, OUR_JAVA, "Lettuce"),
    library("redis-lock, Jedis", Client::Java, OUR_JAVA, "Jedis"),
    library("redsync", Client::Go, Runtime::Go, "redsync"),
    library("bsm/redislock", Client::Go, Runtime::Go, "redislock"),
    library("redis-lock", Client::Go, Runtime::Go, "redis-lock"),
    library("redlock", Client::Node, Runtime::Node, "redlock"),
    library(
        "redis-semaphore",
        Client::Node,
        Runtime::Node,
        "redis_semaphore",
    ),
    library("redis-lock", Client::Node, Runtime::Node, "redis_lock_node"),
    library("LOCK.WAIT", Client::Node, Runtime::Node, "ioredis_wait"),
    library(
        "redis-py Lock",
        Client::Python,
        Runtime::Python,
        "redis_py_lock",
    ),
    library(
        "python-redis-lock",
        Client::Python,
        Runtime::Python,
        "python_redis_lock",
    ),
    library(
        "redis-lock",
        Client::Python,
        Runtime::Python,
        "redis_lock_python",
    ),
    library(
        "LOCK.WAIT",
        Client::Python,
        Runtime::Python,
        "redis_py_wait",
    ),
];

/// The figures that a driver prints.
#[derive(Deserialize)]
struct Told {
    /// The grants of each contender.
    grants: Vec<u64>,
    /// The waits of all contenders, in microseconds. One that isn't over has its age.
    waits: Vec<u64>,
    seconds: f64,
    /// The driver's own processor time, in seconds.
    cpu: f64,
}

/// A running driver. It is killed when this value goes out of scope.
struct Driver {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Driver {
    fn start(command: &mut Command) -> Result<Driver> {
        let shown = format!("{command:?}");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("{shown} can't be run"))?;
        let input = child.stdin.take().context("a driver has no input")?;
        let output = child.stdout.take().context("a driver has no output")?;
        let output = BufReader::new(output);
        Ok(Driver {
            child,
            input,
            output,
        })
    }

    /// Writes a line to the driver's input.
    fn tell(&mut self, word: &str) -> Result<()> {
        Ok(writeln!(self.input, "{word}")?)
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

/// The time for which a contender has the lock, and the pause before it asks again.
#[derive(Clone, Copy)]
struct Work {
    held_ms: u64,
    other_ms: u64,
    /// The addition to the setting's name.
    name: &'static str,
}

/// The end of the settings in which contenders work with the lock and without it.
pub const WORKING: &str = "; 1 ms with the lock, 10 ms without";

const NONE: Work = Work {
    held_ms: 0,
    other_ms: 0,
    name: "",
};
const SOME: Work = Work {
    held_ms: 1,
    other_ms: 10,
    name: WORKING,
};

/// Contenders, divided evenly between processes.
#[derive(Clone, Copy)]
struct Crowd {
    contenders: usize,
    processes: usize,
    work: Work,
}

const fn crowd(contenders: usize, processes: usize, work: Work) -> Crowd {
    Crowd {
        contenders,
        processes,
        work,
    }
}

impl Crowd {
    /// Returns the arguments of each driver.
    fn arguments(self, port: u16, warm: Duration) -> [String; 5] {
        let each = self.contenders / self.processes;
        let Work {
            held_ms, other_ms, ..
        } = self.work;
        let numbers = [
            u64::from(port),
            each as u64,
            warm.as_secs(),
            held_ms,
            other_ms,
        ];
        numbers.map(|number| number.to_string())
    }
}

/// The number of contenders that the drawing shows.
pub const DRAWN: usize = 16;

const QUICK: [Crowd; 2] = [crowd(16, 4, SOME), crowd(1_000, 1, NONE)];
const FULL: [Crowd; 6] = [
    crowd(16, 4, NONE),
    crowd(16, 4, SOME),
    crowd(100, 4, NONE),
    crowd(100, 4, SOME),
    crowd(1_000, 1, NONE),
    crowd(1_000, 1, SOME),
];

struct Size {
    crowds: &'static [Crowd],
    warm: Duration,
    window: Duration,
    rounds: usize,
}

/// Measures the libraries on these clients. `installed` is the folder that contains them. A round that
/// stops with an error is told, and the others go on. Returns the number of such rounds.
pub fn measure(
    stage: &Stage,
    installed: &Path,
    clients: &[Client],
    sheet: &mut Sheet,
    progress: &Progress,
) -> Result<usize> {
    let size = stage.extent().of(
        Size {
            crowds: &QUICK,
            warm: Duration::from_secs(2),
            window: Duration::from_secs(1),
            rounds: 1,
        },
        Size {
            crowds: &FULL,
            warm: Duration::from_secs(5),
            window: Duration::from_secs(3),
            rounds: 3,
        },
    );
    let installed = PathBuf::from(installed).canonicalize();
    let installed = installed.context("the libraries aren't installed: make bench-peers")?;
    let mut failed = 0;
    for crowd in size.crowds {
        let n = crowd.contenders as u64;
        let libraries = LIBRARIES.iter();
        let measured = |library: &&Library| clients.contains(&library.client);
        let mut libraries: Vec<&Library> = libraries.filter(measured).collect();
        let name = |library: &&Library| {
            let Library { name, client, .. } = library;
            format!(
                "{NAME}, {}{}, {n}: {name}",
                client.setting(),
                crowd.work.name
            )
        };
        interleaved(size.rounds, &mut libraries, progress, name, |_, library| {
            let setting = format!("{}{}", library.client.setting(), crowd.work.name);
            let place = Place::new(NAME, &setting, n, library.name);
            let command = |port| {
                let mut command = library.runtime.command(&installed, library.driver);
                command.args(crowd.arguments(port, size.warm));
                command
            };
            let counted = round_of(crowd.processes, command, stage, size.window);
            if let Err(error) = counted.and_then(|counted| counted.note(sheet, &place)) {
                failed += 1;
                progress.interrupt(&format!("{}: {error:#}", name(library)));
            }
            Ok(())
        })?;
    }
    Ok(failed)
}

/// Plays a round on a new server, because a client that was killed may still have a place in the queue of
/// the old one.
fn round_of(
    processes: usize,
    command: impl Fn(u16) -> Command,
    stage: &Stage,
    window: Duration,
) -> Result<Counted> {
    let server = stage.start(&[])?;
    let start = |_| Driver::start(&mut command(server.port()));
    let drivers = (0..processes).map(start).collect::<Result<Vec<_>>>()?;
    counted(warmed(drivers)?, window, &mut server.connect()?)
}

/// Returns the number of connections except the asker's own.
fn connections(asker: &mut Connection) -> Result<u64> {
    let clients: u64 = asker.info("clients", "connected_clients")?.parse()?;
    Ok(clients.saturating_sub(1))
}

/// Waits until the contenders of all drivers have warmed up.
fn warmed(mut drivers: Vec<Driver>) -> Result<Vec<Driver>> {
    for driver in &mut drivers {
        let ready = driver.line()?;
        ensure!(ready == "ready", "the driver said {ready:?}");
    }
    Ok(drivers)
}

/// The counts of a time window.
struct Counted {
    told: Vec<Told>,
    server_cpu: Duration,
    connections: u64,
}

/// Has the drivers count for the time window.
fn counted(mut drivers: Vec<Driver>, window: Duration, asker: &mut Connection) -> Result<Counted> {
    let server_cpu = asker.server_cpu()?;
    for driver in &mut drivers {
        driver.tell("begin")?;
    }
    std::thread::sleep(window);
    let connections = connections(asker)?;
    for driver in &mut drivers {
        driver.tell("end")?;
    }
    let server_cpu = asker.server_cpu()?.saturating_sub(server_cpu);
    let told = drivers.iter_mut().map(|driver| {
        let line = driver.line()?;
        serde_json::from_str(&line).with_context(|| line.clone())
    });
    Ok(Counted {
        told: told.collect::<Result<Vec<Told>>>()?,
        server_cpu,
        connections,
    })
}

impl Counted {
    fn note(&self, sheet: &mut Sheet, place: &Place) -> Result<()> {
        let all = || self.told.iter().flat_map(|told| &told.grants);
        let grants = all().sum::<u64>() as f64;
        let least = all().min().context("nobody contended")?;
        let most = all().max().context("nobody contended")?;
        let seconds = self.told.iter().map(|told| told.seconds).sum::<f64>();
        let seconds = seconds / self.told.len() as f64;
        sheet.note(place, metric::GRANTS_PER_SECOND, grants / seconds)?;
        let mut waits = Times::new()?;
        for micros in self.told.iter().flat_map(|told| &told.waits) {
            waits.record(Duration::from_micros(*micros))?;
        }
        let metrics = [metric::WAIT_P50, metric::WAIT_P99, metric::WAIT_MAX];
        waits.note(sheet, place, metrics, MILLISECOND)?;
        sheet.note(place, metric::LEAST_GRANTS, *least as f64)?;
        sheet.note(place, metric::MOST_GRANTS, *most as f64)?;
        sheet.note(place, metric::CONNECTIONS, self.connections as f64)?;
        // All contenders of a library may be waiting for a message that was lost.
        if grants == 0.0 {
            return Ok(());
        }
        let server_cpu = self.server_cpu.as_secs_f64();
        sheet.note(place, metric::CPU_GRANT, server_cpu * 1e6 / grants)?;
        let client_cpu = self.told.iter().map(|told| told.cpu).sum::<f64>();
        sheet.note(place, metric::CLIENT_CPU_GRANT, client_cpu * 1e6 / grants)
    }
}
