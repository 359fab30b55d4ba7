//! A hot item's stock, split over segments that each have a lock of their own.
//!
//! All orders for one item queue at one lock, and each order takes as long as a worker holds it.
//! With the stock split over N keys, N workers sell at once. A worker starts at a segment of its
//! own, and goes on to the next segment when that one has run dry. So an order is turned away only
//! when all segments are empty, although they run dry at different times. A segment is never filled
//! again, so a worker needn't look again at a segment that it has seen empty.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use redis::{Client, Connection};
use redis_lock_rig::{Plan, Process};
use tempfile::TempDir;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The longest time for which a dead worker blocks its segment.
const LEASE_MS: u64 = 5_000;
/// The longest wait for a segment. A worker that waits longer ends the sale with an error.
const BLOCK_MS: u64 = 10_000;

/// Sells one item's stock, split over more and more segments, and prints how long it takes. Exits
/// with 1 if the units sold differ from the stock.
#[derive(Parser)]
#[command(name = "segmented_stock")]
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
    /// The numbers of segments, with one run for each number
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16], value_parser = clap::value_parser!(u64).range(1..=1000))]
    segments: Vec<u64>,
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
            eprintln!("segmented_stock: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs one sale for each number of segments. Returns true if all runs sold exactly the stock.
fn sell_in_turn(cli: &Cli) -> Result<bool> {
    let server = match &cli.url {
        Some(_) => None,
        None => Some(Started::new()?),
    };
    let url = server.as_ref().map(Started::url).or(cli.url.clone());
    let client = Client::open(url.unwrap_or_default())?;
    let mut all_right = true;
    for segments in &cli.segments {
        let sale = Sale {
            cli,
            segments: *segments,
            tally: Tally::default(),
        };
        sale.fill(&mut client.get_connection()?)?;
        let began = Instant::now();
        sale.run(&client)?;
        let left = sale.left(&mut client.get_connection()?)?;
        println!("{}", sale.told(began.elapsed(), left));
        all_right &= left == 0 && sale.tally.units.load(Ordering::Relaxed) == cli.stock;
    }
    Ok(all_right)
}

// --- the sale -------------------------------------------------------------------------------

struct Sale<'a> {
    cli: &'a Cli,
    segments: u64,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    orders: AtomicU64,
    units: AtomicU64,
    /// Orders that were filled from several segments.
    gathered: AtomicU64,
}

impl Sale<'_> {
    fn stock_key(segment: u64) -> String {
        format!("item:stock:{segment}")
    }

    fn lock_key(segment: u64) -> String {
        format!("item:lock:{segment}")
    }

    /// Splits the stock as evenly as possible.
    fn fill(&self, shop: &mut Connection) -> Result<()> {
        for segment in 0..self.segments {
            let more = u64::from(segment < self.cli.stock % self.segments);
            let units = self.cli.stock / self.segments + more;
            let key = Self::stock_key(segment);
            redis::cmd("SET").arg(key).arg(units).exec(shop)?;
        }
        Ok(())
    }

    fn left(&self, shop: &mut Connection) -> Result<i64> {
        let mut left = 0;
        for segment in 0..self.segments {
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
        let mut open: Vec<u64> = (0..self.segments)
            .map(|place| (number + place) % self.segments)
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
            self.tally.orders.fetch_add(1, Ordering::Relaxed);
            self.tally.units.fetch_add(got, Ordering::Relaxed);
            self.tally
                .gathered
                .fetch_add(u64::from(from > 1), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes `wanted` units from a segment, or all that it has. Only the lock keeps two workers
    /// from reading the same number and selling the same units.
    fn take(&self, segment: u64, wanted: u64, shop: &mut Connection) -> Result<u64> {
        let lock = Self::lock_key(segment);
        let stock = Self::stock_key(segment);
        let grant: Option<(String, u64)> = redis::cmd("LOCK.WAIT")
            .arg(&lock)
            .arg("*")
            .arg("PX")
            .arg(LEASE_MS)
            .arg("BLOCK")
            .arg(BLOCK_MS)
            .query(shop)?;
        let (token, _fence) = grant.ok_or("no grant in time")?;
        let left: u64 = redis::cmd("GET").arg(&stock).query(shop)?;
        let units = wanted.min(left);
        if units > 0 {
            thread::sleep(Duration::from_millis(self.cli.think_ms));
            redis::cmd("SET").arg(&stock).arg(left - units).exec(shop)?;
        }
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

    fn told(&self, took: Duration, left: i64) -> String {
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let orders = count(&self.tally.orders);
        format!(
            "segments={} stock={} units-sold={} left={left} orders={orders} from-several-segments={} seconds={:.3} orders-per-second={:.0}",
            self.segments,
            self.cli.stock,
            count(&self.tally.units),
            count(&self.tally.gathered),
            took.as_secs_f64(),
            orders as f64 / took.as_secs_f64(),
        )
    }
}

// --- a server for it ------------------------------------------------------------------------

struct Started {
    process: Process,
    _folder: TempDir,
}

impl Started {
    fn new() -> Result<Started> {
        let program = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let built = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/target/release/libredis_lock.so"
        );
        let module = std::env::var_os("REDIS_LOCK_MODULE").unwrap_or_else(|| built.into());
        let plan = Plan {
            module: Some(PathBuf::from(module)),
            ..Plan::new(&PathBuf::from(program))
        };
        let folder = tempfile::tempdir()?;
        Ok(Started {
            process: Process::start(plan, folder.path())?,
            _folder: folder,
        })
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.process.port())
    }
}
