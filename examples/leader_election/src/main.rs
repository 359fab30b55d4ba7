//! Leader election with a lock, and a database that refuses who only believes that it leads.
//!
//! Every candidate waits for the same lock; who is granted it leads, and extends its lease. A leader that
//! stands still for longer than its lease (a stopped process, a long pause, a cut cable) doesn't know
//! that another one leads by then, and no check beforehand can tell: it may stand still right behind it. So
//! each of its writes carries the fence of its grant, and the database compares it, in the statement that
//! writes.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use postgres::NoTls;
use redis::Connection;

/// The lock that the candidates wait for.
const LOCK: &str = "leader";

/// What the leader alone is to write. It is made by whoever comes first.
const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS ledger (
        id    integer PRIMARY KEY,
        fence bigint  NOT NULL,
        turns bigint  NOT NULL
    );
    INSERT INTO ledger VALUES (1, 0, 0) ON CONFLICT DO NOTHING;
";

/// A write by a leader: no row is changed for one whose fence is smaller than the greatest so far.
const WRITE: &str = "
    UPDATE ledger SET fence = $1, turns = turns + 1
     WHERE id = 1 AND fence <= $1
";

/// A candidate that leads when it is its turn. It says what becomes of it, a line each: `leads`,
/// `wrote`, `extended`, `refused` and `lost`, with the fence.
#[derive(Parser)]
#[command(name = "leader_election")]
struct Candidate {
    /// A server that has the module loaded, such as redis://127.0.0.1/
    #[arg(long)]
    redis: String,
    /// What PostgreSQL is reached by, such as "host=127.0.0.1 user=postgres"
    #[arg(long)]
    postgres: String,
    /// The name of this candidate, unique among them
    #[arg(long)]
    name: String,
    /// How long the others wait for a leader that is gone
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
    /// Waits until it leads. The fence is that of its grant.
    fn wait(&self, locks: &mut Connection) -> Result<i64> {
        let (_token, fence): (String, i64) = redis::cmd("LOCK.WAIT")
            .arg(LOCK)
            .arg(&self.name)
            .arg("PX")
            .arg(self.lease_ms)
            .query(locks)?;
        Ok(fence)
    }

    /// Writes and extends its lease, until one of them says that another leads.
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
