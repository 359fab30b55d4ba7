//! Ports for servers.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::process;
use std::sync::{Mutex, PoisonError};

/// The ports for servers. They are below the ports that a system gives to outgoing connections, so
/// no client of another test can take one.
const PORTS: Range<u16> = 11_000..31_000;

/// The number of ports that a process of tests takes for its own at a time.
const BLOCK: u16 = 100;

/// Returns a free port that no other test gets while this process runs. A Sentinel continues to
/// look for the server that it knew at a port, and would take over any other server there. A
/// process other than a test can still take the port before the server does, so the server's start
/// may be repeated.
pub fn free_port() -> u16 {
    static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks {
        held: Vec::new(),
        unused: 0..0,
    });
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match blocks.unused.next() {
            Some(port) if bound(port).is_some() => return port,
            Some(_) => {}
            None => blocks.take_one_more(),
        }
    }
}

/// The ports of this process. The process listens on the first port of each block, which marks the
/// block as taken.
struct Blocks {
    held: Vec<TcpListener>,
    unused: Range<u16>,
}

impl Blocks {
    fn take_one_more(&mut self) {
        // Each process starts at a block by its id, so two processes seldom try the same block at
        // once.
        let count = PORTS.len() / usize::from(BLOCK);
        let first = process::id() as usize % count;
        let mut starts = PORTS.step_by(BLOCK.into()).cycle().skip(first).take(count);
        let taken = starts.find_map(|start| Some((bound(start)?, start)));
        let (listener, start) = taken.expect("a free block of ports");
        self.held.push(listener);
        self.unused = start + 1..start + BLOCK;
    }
}

fn bound(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}
