//! The time until a client knows that a replica has its grant: by LOCK.ACQUIRE with REPLICAS 1, and
//! by LOCK.ACQUIRE and WAIT 1 sent together.
//!
//! The replica is on the same machine. Both ways have one round trip to the server and one from the
//! server to the replica.

use std::time::Instant;

use anyhow::Result;
use redis_lock_load::packed;

use crate::lateness::{Times, MICROSECOND};
use crate::reply::{Reply, GRANT};
use crate::rounds::{interleaved, Progress};
use crate::sheet::{metric, Place, Sheet};
use crate::stage::{token, Stage};
use crate::wire::Wire;

/// The benchmark's name.
pub const NAME: &str = "replicas";

/// One command.
pub const REPLICAS: &str = "LOCK.ACQUIRE with REPLICAS 1";
/// Two commands in one write.
pub const WAIT: &str = "LOCK.ACQUIRE and WAIT 1";
/// The same without a replica: the lower bound of both.
pub const ALONE: &str = "LOCK.ACQUIRE";

/// The bound of both percentiles, as a multiple of WAIT's.
pub const BOUND: f64 = 1.5;

struct Size {
    samples: usize,
    rounds: usize,
}

/// A way to acquire a lock.
struct Way {
    name: &'static str,
    acquire: Vec<u8>,
    /// The replies to `acquire`.
    replies: &'static [Reply],
}

fn ways() -> [Way; 3] {
    let token = token(0);
    let acquire = format!("LOCK.ACQUIRE lock {token} PX 60000");
    let wait = [packed(&acquire), packed("WAIT 1 0")].concat();
    [
        Way {
            name: REPLICAS,
            acquire: packed(&format!("{acquire} REPLICAS 1")),
            replies: &[GRANT],
        },
        Way {
            name: WAIT,
            acquire: wait,
            replies: &[GRANT, Reply::Int(1)],
        },
        Way {
            name: ALONE,
            acquire: packed(&acquire),
            replies: &[GRANT],
        },
    ]
}

/// Measures all ways on a server with one replica.
pub fn measure(stage: &Stage, sheet: &mut Sheet, progress: &Progress) -> Result<()> {
    let size = stage.extent().of(
        Size {
            samples: 300,
            rounds: 2,
        },
        Size {
            samples: 5_000,
            rounds: 7,
        },
    );
    let server = stage.start(&["repl-diskless-sync-delay 0"])?;
    let replica = stage.start(&[])?;
    let mut asker = server.connect()?;
    let of_server = format!("REPLICAOF 127.0.0.1 {}", server.port());
    replica.connect()?.call(&of_server)?;
    asker.until_acknowledged_by(1)?;
    let mut wire = Wire::open(server.port())?;
    let name = |way: &Way| format!("{NAME}: {}", way.name);
    interleaved(size.rounds, &mut ways(), progress, name, |_, way| {
        let times = round_of(way, &mut wire, size.samples)?;
        let metrics = [metric::TIME_P50, metric::TIME_P99, metric::TIME_MAX];
        let place = Place::new(NAME, "", 0, way.name);
        times.note(sheet, &place, metrics, MICROSECOND)
    })
}

fn round_of(way: &Way, wire: &mut Wire, samples: usize) -> Result<Times> {
    let release = packed(&format!("LOCK.RELEASE lock {}", token(0)));
    let mut times = Times::new()?;
    for _ in 0..samples {
        let begin = Instant::now();
        wire.send(&way.acquire)?;
        for reply in way.replies {
            wire.expect(*reply)?;
        }
        times.record(begin.elapsed())?;
        wire.call(&release, Reply::Int(1))?;
    }
    Ok(times)
}
