//! The oversold flash sale, without a lock and with one.
//!
//! Two shops sell from one stock, each with several worker processes. A worker takes an order like
//! common shop code: it reads the stock with GET, thinks for a moment, and writes the rest back
//! with SET. Only a lock keeps two workers from reading the same stock and selling the same units.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use redis::{Client, Connection};
use tempfile::TempDir;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const STOCK_KEY: &str = "product:10100101:stock";
const LOCK_KEY: &str = "product:10100101:shopping";
const SHOPS: [&str; 2] = ["north", "south"];

/// The longest time for which a dead worker keeps the other workers waiting.
const LEASE_MS: u64 = 5_000;
/// The longest wait of an order for the lock. After that, the customer has gone away.
const BLOCK_MS: u64 = 10_000;

/// Two shops sell one product's stock at once: without a lock it is oversold, with LOCK.WAIT it
/// isn't. Exits with 1 if the stock is wrong after the run with the lock.
#[derive(Parser)]
#[command(name = "flash_sale")]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    sale: Sale,
}

#[derive(Args)]
struct Sale {
    /// Orders that come in at once
    #[arg(long, default_value_t = 800)]
    orders: u64,
    /// Units in stock before the sale
    #[arg(long, default_value_t = 1000)]
    stock: u64,
    /// The largest order; orders run from one unit to this
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    max_units: u64,
    /// Worker processes of each shop
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    workers: u64,
    /// The pause of a worker between reading and writing the stock
    #[arg(long, default_value_t = 2)]
    think_ms: u64,
    /// A server that has the module loaded, such as redis://127.0.0.1/; the sale's two keys are
    /// overwritten there. Without it the demo starts a server of its own
    #[arg(long)]
    url: Option<String>,
    /// Prints one line of name=value pairs for each run, for programs
    #[arg(long)]
    plain: bool,
}

#[derive(Subcommand)]
enum Role {
    #[command(hide = true)]
    Worker(Worker),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.role {
        Some(Role::Worker(worker)) => worker.run().map(|()| true),
        None => hold(&cli.sale),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flash_sale: {error}");
            ExitCode::from(2)
        }
    }
}

// --- a worker process -----------------------------------------------------------------------

#[derive(Args)]
struct Worker {
    #[arg(long)]
    url: String,
    /// Number of this worker's first order, after which it takes every `step`-th order
    #[arg(long)]
    first: usize,
    #[arg(long)]
    step: usize,
    #[arg(long)]
    orders: u64,
    #[arg(long)]
    max_units: u64,
    #[arg(long)]
    think_ms: u64,
    #[arg(long)]
    locked: bool,
}

/// The outcome of an order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Sold,
    /// The stock was too small.
    TurnedAway,
    /// The lock didn't come within the order's patience.
    GaveUp,
    /// The lease ended before the worker was done, so another worker may have sold the same units.
    Lapsed,
}

const FATES: [(Fate, &str); 4] = [
    (Fate::Sold, "sold"),
    (Fate::TurnedAway, "turned-away"),
    (Fate::GaveUp, "gave-up"),
    (Fate::Lapsed, "lapsed"),
];

/// A worker's report of one order, a line of its output.
struct Receipt {
    fate: Fate,
    units: u64,
    waited: Duration,
}

impl Receipt {
    fn to_line(&self) -> String {
        let fate = FATES
            .iter()
            .find(|(fate, _)| *fate == self.fate)
            .map_or("", |(_, name)| name);
        format!("{fate} {} {}", self.units, self.waited.as_micros())
    }

    fn from_line(line: &str) -> Option<Receipt> {
        let mut words = line.split(' ');
        let name = words.next()?;
        let (fate, _) = FATES.iter().find(|(_, known)| *known == name)?;
        let units = words.next()?.parse().ok()?;
        let waited = Duration::from_micros(words.next()?.parse().ok()?);
        Some(Receipt {
            fate: *fate,
            units,
            waited,
        })
    }
}

impl Worker {
    /// Prints "ready", waits for a line of input, then prints a receipt for each order.
    fn run(&self) -> Result<()> {
        let mut shop = Client::open(self.url.as_str())?.get_connection()?;
        let mut out = io::stdout().lock();
        writeln!(out, "ready")?;
        io::stdin().read_line(&mut String::new())?;
        for number in (0..self.orders).skip(self.first).step_by(self.step) {
            let units = 1 + number % self.max_units;
            let receipt = if self.locked {
                self.sell_locked(&mut shop, units)
            } else {
                self.sell(&mut shop, units)
            }?;
            writeln!(out, "{}", receipt.to_line())?;
        }
        Ok(())
    }

    /// Reads the stock, thinks, and writes the rest back. Correct only if no other worker does so
    /// at the same time.
    fn sell(&self, shop: &mut Connection, units: u64) -> Result<Receipt> {
        let stock: u64 = redis::cmd("GET").arg(STOCK_KEY).query(shop)?;
        thread::sleep(Duration::from_millis(self.think_ms));
        let fate = match stock.checked_sub(units) {
            Some(left) => {
                redis::cmd("SET").arg(STOCK_KEY).arg(left).exec(shop)?;
                Fate::Sold
            }
            None => Fate::TurnedAway,
        };
        Ok(Receipt {
            fate,
            units,
            waited: Duration::ZERO,
        })
    }

    /// Sells like `sell`, but under the lock.
    fn sell_locked(&self, shop: &mut Connection, units: u64) -> Result<Receipt> {
        let asked_at = Instant::now();
        let grant: Option<(String, u64)> = redis::cmd("LOCK.WAIT")
            .arg(LOCK_KEY)
            .arg("*")
            .arg("PX")
            .arg(LEASE_MS)
            .arg("BLOCK")
            .arg(BLOCK_MS)
            .query(shop)?;
        let waited = asked_at.elapsed();
        let Some((token, _fence)) = grant else {
            return Ok(Receipt {
                fate: Fate::GaveUp,
                units,
                waited,
            });
        };
        let mut receipt = self.sell(shop, units)?;
        let released: bool = redis::cmd("LOCK.RELEASE")
            .arg(LOCK_KEY)
            .arg(token)
            .query(shop)?;
        receipt.waited = waited;
        if !released {
            receipt.fate = Fate::Lapsed;
        }
        Ok(receipt)
    }
}

// --- the sale -------------------------------------------------------------------------------

/// Runs the sale without and with the lock, and reports both. Returns true if the locked run is
/// right.
fn hold(sale: &Sale) -> Result<bool> {
    let own = if sale.url.is_none() {
        Some(Server::start()?)
    } else {
        None
    };
    let url = match (&own, &sale.url) {
        (Some(server), _) => server.url(),
        (None, Some(url)) => url.clone(),
        (None, None) => return Err("no server".into()),
    };
    let mut shop = Client::open(url.as_str())?.get_connection()?;
    require_module(&mut shop)?;
    if !sale.plain {
        println!("{}", sale.headline());
    }
    let unlocked = sale.run(&url, &mut shop, false)?;
    unlocked.print(sale.plain);
    let locked = sale.run(&url, &mut shop, true)?;
    locked.print(sale.plain);
    redis::cmd("DEL")
        .arg(STOCK_KEY)
        .arg(LOCK_KEY)
        .exec(&mut shop)?;
    Ok(locked.is_right())
}

fn require_module(shop: &mut Connection) -> Result<()> {
    let known: Vec<redis::Value> = redis::cmd("COMMAND")
        .arg("INFO")
        .arg("LOCK.WAIT")
        .query(shop)?;
    match known.as_slice() {
        [redis::Value::Nil] | [] => Err("this server hasn't loaded the lock module".into()),
        _ => Ok(()),
    }
}

impl Sale {
    fn headline(&self) -> String {
        let demand: u64 = (0..self.orders)
            .map(|number| 1 + number % self.max_units)
            .sum();
        format!(
            "{} units in stock; {} orders for {demand} units at once; {} shops with {} worker \
             processes each\n",
            self.stock,
            self.orders,
            SHOPS.len(),
            self.workers
        )
    }

    fn run(&self, url: &str, shop: &mut Connection, locked: bool) -> Result<Outcome> {
        redis::cmd("SET")
            .arg(STOCK_KEY)
            .arg(self.stock)
            .exec(shop)?;
        redis::cmd("DEL").arg(LOCK_KEY).exec(shop)?;
        let mut crew = Crew::hire(self, url, locked)?;
        let started_at = Instant::now();
        crew.open_doors()?;
        let by_worker = crew.tally(progress_bar(self.orders, locked))?;
        let took = started_at.elapsed();
        let left = redis::cmd("GET").arg(STOCK_KEY).query(shop)?;
        Ok(Outcome {
            locked,
            orders: self.orders,
            stock: self.stock,
            left,
            by_worker,
            took,
        })
    }
}

fn progress_bar(orders: u64, locked: bool) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:15} {bar:40} {pos}/{len} orders")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(orders)
        .with_style(style)
        .with_message(run_name(locked))
}

fn run_name(locked: bool) -> &'static str {
    if locked {
        "with LOCK.WAIT"
    } else {
        "without a lock"
    }
}

/// The worker processes of one run. They are killed if the run ends early.
struct Crew {
    workers: Vec<Child>,
}

impl Crew {
    fn hire(sale: &Sale, url: &str, locked: bool) -> Result<Crew> {
        let program = std::env::current_exe()?;
        let count = SHOPS.len() * usize::try_from(sale.workers)?;
        let mut crew = Crew {
            workers: Vec::new(),
        };
        for first in 0..count {
            let mut command = Command::new(&program);
            command.arg("worker").args(["--url", url]);
            for (name, value) in [
                ("--first", first as u64),
                ("--step", count as u64),
                ("--orders", sale.orders),
                ("--max-units", sale.max_units),
                ("--think-ms", sale.think_ms),
            ] {
                command.arg(name).arg(value.to_string());
            }
            if locked {
                command.arg("--locked");
            }
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            crew.workers.push(command.spawn()?);
        }
        Ok(crew)
    }

    /// Waits until all workers are ready, and starts them at once.
    fn open_doors(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            let out = worker.stdout.as_mut().ok_or("a worker without an output")?;
            let mut ready = [0; b"ready\n".len()];
            io::Read::read_exact(out, &mut ready)?;
        }
        for worker in &mut self.workers {
            let input = worker.stdin.as_mut().ok_or("a worker without an input")?;
            input.write_all(b"go\n")?;
        }
        Ok(())
    }

    /// Collects the receipts of all workers until they have ended.
    fn tally(mut self, progress: ProgressBar) -> Result<Vec<Tally>> {
        let (sender, receipts) = mpsc::channel();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            let out = worker.stdout.take().ok_or("a worker without an output")?;
            let sender = sender.clone();
            thread::spawn(move || forward(BufReader::new(out), number, &sender));
        }
        drop(sender);
        let mut by_worker = vec![Tally::default(); self.workers.len()];
        for (number, receipt) in receipts {
            by_worker[number].add(&receipt);
            progress.inc(1);
        }
        progress.finish_and_clear();
        for worker in &mut self.workers {
            let status = worker.wait()?;
            if !status.success() {
                return Err(format!("a worker ended with {status}").into());
            }
        }
        Ok(by_worker)
    }
}

fn forward(lines: impl BufRead, number: usize, sender: &Sender<(usize, Receipt)>) {
    for receipt in lines
        .lines()
        .map_while(io::Result::ok)
        .filter_map(|it| Receipt::from_line(&it))
    {
        if sender.send((number, receipt)).is_err() {
            return;
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // Usually the worker has ended, and there is nothing to kill.
            drop(worker.kill());
            drop(worker.wait());
        }
    }
}

/// The counts of one worker.
#[derive(Clone, Default)]
struct Tally {
    units_sold: u64,
    sold: u64,
    turned_away: u64,
    gave_up: u64,
    lapsed: u64,
    longest_wait: Duration,
}

impl Tally {
    fn add(&mut self, receipt: &Receipt) {
        match receipt.fate {
            Fate::Sold => {
                self.sold += 1;
                self.units_sold += receipt.units;
            }
            Fate::TurnedAway => self.turned_away += 1,
            Fate::GaveUp => self.gave_up += 1,
            Fate::Lapsed => self.lapsed += 1,
        }
        self.longest_wait = self.longest_wait.max(receipt.waited);
    }
}

// --- the report -----------------------------------------------------------------------------

struct Outcome {
    locked: bool,
    orders: u64,
    stock: u64,
    left: u64,
    by_worker: Vec<Tally>,
    took: Duration,
}

impl Outcome {
    fn sum(&self, field: impl Fn(&Tally) -> u64) -> u64 {
        self.by_worker.iter().map(field).sum()
    }

    fn units_sold(&self) -> u64 {
        self.sum(|tally| tally.units_sold)
    }

    fn longest_wait(&self) -> Duration {
        self.by_worker
            .iter()
            .map(|tally| tally.longest_wait)
            .max()
            .unwrap_or_default()
    }

    /// Returns true if every order was answered, and the units sold and left add up to the stock.
    fn is_right(&self) -> bool {
        self.sum(|tally| tally.sold + tally.turned_away) == self.orders
            && self.units_sold() + self.left == self.stock
    }

    fn print(&self, plain: bool) {
        if plain {
            println!("{}", self.to_plain());
        } else {
            println!("{}", self.to_text());
        }
    }

    fn to_plain(&self) -> String {
        format!(
            "run={} orders={} stock={} units-sold={} left={} sold={} turned-away={} gave-up={} \
             lapsed={} longest-wait-us={}",
            if self.locked { "locked" } else { "unlocked" },
            self.orders,
            self.stock,
            self.units_sold(),
            self.left,
            self.sum(|tally| tally.sold),
            self.sum(|tally| tally.turned_away),
            self.sum(|tally| tally.gave_up),
            self.sum(|tally| tally.lapsed),
            self.longest_wait().as_micros()
        )
    }

    fn to_text(&self) -> String {
        let mut lines = vec![format!("{}: {}", run_name(self.locked), self.verdict())];
        for (shop, workers) in SHOPS
            .iter()
            .zip(self.by_worker.chunks(self.by_worker.len() / SHOPS.len()))
        {
            let units: Vec<String> = workers
                .iter()
                .map(|tally| tally.units_sold.to_string())
                .collect();
            let total: u64 = workers.iter().map(|tally| tally.units_sold).sum();
            lines.push(format!(
                "  shop {shop} sold {total} units; its workers: {}",
                units.join(", ")
            ));
        }
        lines.push(format!(
            "  {} orders sold, {} turned away for want of stock, in {:.1} s",
            self.sum(|tally| tally.sold),
            self.sum(|tally| tally.turned_away),
            self.took.as_secs_f64()
        ));
        if self.locked {
            let longest_ms = self.longest_wait().as_secs_f64() * 1e3;
            lines.push(format!(
                "  longest wait for the lock {longest_ms:.1} ms; {} gave up, {} lost their lease",
                self.sum(|tally| tally.gave_up),
                self.sum(|tally| tally.lapsed)
            ));
        }
        lines.push(String::new());
        lines.join("\n")
    }

    fn verdict(&self) -> String {
        let (sold, left, stock) = (self.units_sold(), self.left, self.stock);
        if self.is_right() {
            format!("right, {sold} units sold and {left} left of {stock}")
        } else if sold > stock {
            format!(
                "OVERSOLD by {}: {sold} units sold of {stock}, and {left} still on the books",
                sold - stock
            )
        } else {
            format!("WRONG: {sold} units sold of {stock}, and {left} still on the books")
        }
    }
}

// --- a server for the demo ------------------------------------------------------------------

/// A server that only this demo can reach, because it listens on a socket file and on no port.
struct Server {
    process: Child,
    folder: TempDir,
}

impl Server {
    fn start() -> Result<Server> {
        let folder = tempfile::tempdir()?;
        let process = spawn_server(folder.path())?;
        let mut server = Server { process, folder };
        server.until_ready()?;
        Ok(server)
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", socket_path(self.folder.path()).display())
    }

    fn until_ready(&mut self) -> Result<()> {
        let client = Client::open(self.url())?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if client.get_connection().is_ok() {
                return Ok(());
            }
            if self.process.try_wait()?.is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let log = fs::read_to_string(log_path(self.folder.path())).unwrap_or_default();
        Err(format!("the server didn't start:\n{log}").into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn socket_path(folder: &Path) -> PathBuf {
    folder.join("socket")
}

fn log_path(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// Starts REDIS_SERVER if it is set, or otherwise the first of the usual programs that is in PATH.
fn spawn_server(folder: &Path) -> Result<Child> {
    let names = match std::env::var("REDIS_SERVER") {
        Ok(name) => vec![name],
        Err(_) => vec!["redis-server".to_owned(), "valkey-server".to_owned()],
    };
    for name in &names {
        match server_command(name, folder).spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            started => return Ok(started?),
        }
    }
    Err(format!("no server: {} not found", names.join(", ")).into())
}

fn server_command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder);
    command.arg("--unixsocket").arg(socket_path(folder));
    command.arg("--logfile").arg(log_path(folder));
    command.arg("--loadmodule").arg(module_path());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn module_path() -> PathBuf {
    let built = || {
        let file = format!("libredis_lock{}", std::env::consts::DLL_SUFFIX);
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("target/release")
            .join(file)
    };
    std::env::var_os("REDIS_LOCK_MODULE").map_or_else(built, PathBuf::from)
}
