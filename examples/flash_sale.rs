//! A flash sale: oversold without a lock, sold exactly with one, and sold faster over several.
//!
//! Workers sell one item's stock, each on a connection of its own. A worker takes an order like
//! common shop code: it reads the stock with GET, thinks for a moment, and writes the rest back
//! with SET. Only a lock keeps two workers from reading the same stock and selling the same units.
//!
//! All orders for one item queue at one lock, and each order takes as long as a worker holds it.
//! With the stock split over N keys, each with a lock of its own, N workers sell at once. A worker
//! starts at a segment of its own, and goes on to the next segment when that one has run dry. So an
//! order is turned away only when all segments are empty, although they run dry at different times.
//! A segment is never filled again, so a worker needn't look again at a segment that it has seen
//! empty.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use redis::{Client, Connection};
use support::Server;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The longest time for which a dead worker keeps the other workers waiting.
const LEASE_MS: u64 = 10_000;
/// The longest wait for a lock. A worker that waits longer ends the sale with an error.
const BLOCK_MS: u64 = 60_000;

/// Sells one item's stock without a lock, with one, and over several, and prints a line for each
/// sale. Exits with 1 if the units sold under a lock differ from the stock.
#[derive(Parser)]
#[command(name = "flash_sale")]
struct Cli {
    /// Units in stock
    #[arg(long, default_value_t = 2000)]
    stock: u64,
    /// Workers, each with a connection of its own; they sell until nothing is left
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1000))]
    workers: u64,
    /// The largest order; orders run from one unit to this
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    max_units: u64,
    /// The pause of a worker between reading and writing the stock
    #[arg(long, default_value_t = 5)]
    think_ms: u64,
    /// The numbers of locks, with one sale for each number; 0 sells without a lock
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 4, 16], value_parser = clap::value_parser!(u64).range(..=1000))]
    locks: Vec<u64>,
    /// A server that has the module loaded, such as redis://127.0.0.1/; the keys of the sale are
    /// overwritten there. Without it a server is started, REDIS_SERVER with REDIS_LOCK_MODULE
    #[arg(long)]
    url: Option<String>,
}

fn main() -> ExitCode {
    match sell_in_turn(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flash_sale: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs one sale for each number of locks. Returns true if all sales under a lock sold exactly the
/// stock.
fn sell_in_turn(cli: &Cli) -> Result<bool> {
    let own = cli.url.is_none().then(Server::start);
    let own_url = own.map(|server| (format!("redis://127.0.0.1:{}/", server.port()), server));
    let url = own_url
        .as_ref()
        .map(|(url, _server)| url)
        .or(cli.url.as_ref());
    let client = Client::open(url.map_or("", String::as_str))?;
    let mut shop = client.get_connection()?;
    if redis::cmd("LOCK.HELP").exec(&mut shop).is_err() {
        return Err("this server hasn't loaded the lock module".into());
    }
    let mut all_right = true;
    for locks in &cli.locks {
        let sale = Sale {
            cli,
            locks: *locks,
            tally: Tally::default(),
        };
        sale.fill(&mut shop)?;
        let began = Instant::now();
        sale.run(&client)?;
        let took = began.elapsed();
        let left = sale.left(&mut shop)?;
        println!("{}", sale.line(took, left));
        all_right &= *locks == 0 || left == 0 && sale.tally.units.load(Relaxed) == cli.stock;
    }
    Ok(all_right)
}

struct Sale<'a> {
    cli: &'a Cli,
    locks: u64,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    orders: AtomicU64,
    units: AtomicU64,
    /// Orders that were filled from several segments.
    gathered: AtomicU64,
    /// Workers between reading and writing a stock.
    selling: AtomicU64,
    /// The most such workers at once.
    most_selling: AtomicU64,
}

impl Sale<'_> {
    fn stock_key(segment: u64) -> String {
        format!("item:stock:{segment}")
    }

    fn lock_key(segment: u64) -> String {
        format!("item:lock:{segment}")
    }

    fn segments(&self) -> u64 {
        self.locks.max(1)
    }

    /// Splits the stock as evenly as possible.
    fn fill(&self, shop: &mut Connection) -> Result<()> {
        for segment in 0..self.segments() {
            let more = u64::from(segment < self.cli.stock % self.segments());
            let units = self.cli.stock / self.segments() + more;
            let key = Self::stock_key(segment);
            redis::cmd("SET").arg(key).arg(units).exec(shop)?;
        }
        Ok(())
    }

    fn left(&self, shop: &mut Connection) -> Result<i64> {
        let mut left = 0;
        for segment in 0..self.segments() {
            let key = Self::stock_key(segment);
            left += redis::cmd("GET").arg(key).query::<i64>(shop)?;
        }
        Ok(left)
    }

    fn run(&self, client: &Client) -> Result<()> {
        thread::scope(|scope| {
            let workers = (0..self.cli.workers).map(|number| {
                let shop = client.get_connection();
                scope.spawn(move || self.work(number, &mut shop?))
            });
            let workers: Vec<_> = workers.collect();
            let mut ended = workers.into_iter().map(|worker| worker.join());
            ended.try_for_each(|end| end.unwrap_or_else(|_| Err("a worker panicked".into())))
        })
    }

    /// Fills one order after the other, until all segments are empty.
    fn work(&self, number: u64, shop: &mut Connection) -> Result<()> {
        // The segments that may have units left, the next segment first.
        let mut open: Vec<u64> = (0..self.segments())
            .map(|place| (number + place) % self.segments())
            .collect();
        for order in number.. {
            let wanted = 1 + order % self.cli.max_units;
            let mut got = 0;
            let mut from = 0;
            while let (Some(segment), true) = (open.first(), got < wanted) {
                let units = self.take(*segment, wanted - got, shop)?;
                if units < wanted - got {
                    open.remove(0);
                }
                got += units;
                from += u64::from(units > 0);
            }
            if got == 0 {
                return Ok(());
            }
            self.tally.orders.fetch_add(1, Relaxed);
            self.tally.units.fetch_add(got, Relaxed);
            self.tally.gathered.fetch_add(u64::from(from > 1), Relaxed);
        }
        Ok(())
    }

    /// Takes `wanted` units from a segment under its lock, or all that it has.
    fn take(&self, segment: u64, wanted: u64, shop: &mut Connection) -> Result<u64> {
        if self.locks == 0 {
            return self.sell(segment, wanted, shop);
        }
        let lock = Self::lock_key(segment);
        let grant: Option<(String, u64)> = redis::cmd("LOCK.WAIT")
            .arg(&lock)
            .arg("*")
            .arg("PX")
            .arg(LEASE_MS)
            .arg("BLOCK")
            .arg(BLOCK_MS)
            .query(shop)?;
        let (token, _fence) = grant.ok_or("no grant in time")?;
        let units = self.sell(segment, wanted, shop)?;
        let held: bool = redis::cmd("LOCK.RELEASE")
            .arg(&lock)
            .arg(token)
            .query(shop)?;
        if held {
            Ok(units)
        } else {
            Err("the lease ended before the worker was done".into())
        }
    }

    /// Reads the stock, thinks, and writes the rest back. Correct only if no other worker does so
    /// at the same time.
    fn sell(&self, segment: u64, wanted: u64, shop: &mut Connection) -> Result<u64> {
        let selling = self.tally.selling.fetch_add(1, Relaxed) + 1;
        self.tally.most_selling.fetch_max(selling, Relaxed);
        let stock = Self::stock_key(segment);
        let left: u64 = redis::cmd("GET").arg(&stock).query(shop)?;
        let units = wanted.min(left);
        if units > 0 {
            thread::sleep(Duration::from_millis(self.cli.think_ms));
            redis::cmd("SET").arg(&stock).arg(left - units).exec(shop)?;
        }
        self.tally.selling.fetch_sub(1, Relaxed);
        Ok(units)
    }

    fn line(&self, took: Duration, left: i64) -> String {
        let (stock, units) = (self.cli.stock, self.tally.units.load(Relaxed));
        let orders = self.tally.orders.load(Relaxed);
        format!(
            "locks={} stock={stock} units-sold={units} oversold={} left={left} orders={orders} from-several-segments={} most-at-once={} seconds={:.3} orders-per-second={:.0}",
            self.locks,
            units.saturating_sub(stock),
            self.tally.gathered.load(Relaxed),
            self.tally.most_selling.load(Relaxed),
            took.as_secs_f64(),
            orders as f64 / took.as_secs_f64(),
        )
    }
}
