//! Leader election with a lock, and a database that refuses the writes of an outdated leader.
//!
//! Every candidate waits for the same lock. The candidate that is granted the lock leads, and
//! extends its lease. A leader that stops for longer than its lease (a stopped process, a long
//! pause, a cut cable) doesn't know that another candidate leads by then. No check before a write
//! can help, because the leader may stop right after the check. So each write carries the fence of
//! the grant, and the database compares the fence in the statement that writes.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use postgres::NoTls;
use redis::Connection;

/// The lock that the candidates wait for.
const LOCK: &str = "leader";

/// The table that only the leader may write. The first candidate creates it.
const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS ledger (
        id    integer PRIMARY KEY,
        fence bigint  NOT NULL,
        turns bigint  NOT NULL
    );
    INSERT INTO ledger VALUES (1, 0, 0) ON CONFLICT DO NOTHING;
";

/// A leader's write. It changes no row if the fence is smaller than the greatest fence so far.
const WRITE: &str = "
    UPDATE ledger SET fence = $1, turns = turns + 1
     WHERE id = 1 AND fence <= $1
";

/// A candidate that leads when its turn comes. It prints its events, a line each with the fence:
/// `leads`, `wrote`, `extended`, `refused` and `lost`.
#[derive(Parser)]
#[command(name = "leader_election")]
struct Candidate {
    /// A server that has the module loaded, such as redis://127.0.0.1/
    #[arg(long)]
    redis: String,
    /// The connection string of PostgreSQL, such as "host=127.0.0.1 user=postgres"
    #[arg(long)]
    postgres: String,
    /// The unique name of this candidate
    #[arg(long)]
    name: String,
    /// The lease, for which the other candidates wait if the leader dies
    #[arg(long, default_value_t = 3000)]
    lease_ms: u64,
}

fn main() -> Result<()> {
    let candidate = Candidate::parse();
    let mut locks = redis::Client::open(candidate.redis.as_str())?.get_connection()?;
    let mut ledger = postgres::Client::connect(&candidate.postgres, NoTls)?;
    ledger.batch_execute(TABLE)?;
    loop {
        let fence = candidate.wait(&mut locks)?;
        println!("leads {fence}");
        candidate.lead(fence, &mut locks, &mut ledger)?;
    }
}

impl Candidate {
    /// Waits until this candidate leads. Returns the fence of the grant.
    fn wait(&self, locks: &mut Connection) -> Result<i64> {
        let (_token, fence): (String, i64) = redis::cmd("LOCK.WAIT")
            .arg(LOCK)
            .arg(&self.name)
            .arg("PX")
            .arg(self.lease_ms)
            .query(locks)?;
        Ok(fence)
    }

    /// Writes and extends the lease, until the database or the lock shows that another candidate
    /// leads.
    fn lead(
        &self,
        fence: i64,
        locks: &mut Connection,
        ledger: &mut postgres::Client,
    ) -> Result<()> {
        loop {
            thread::sleep(Duration::from_millis(self.lease_ms / 3));
            if ledger.execute(WRITE, &[&fence])? == 0 {
                println!("refused {fence}");
                return Ok(());
            }
            println!("wrote {fence}");
            let extended: bool = redis::cmd("LOCK.EXTEND")
                .arg(LOCK)
                .arg(&self.name)
                .query(locks)?;
            if !extended {
                println!("lost {fence}");
                return Ok(());
            }
            println!("extended {fence}");
        }
    }
}
