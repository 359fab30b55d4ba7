//! Ports for servers.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::process;
use std::sync::{Mutex, PoisonError};

/// Ports below those that a system gives to outgoing connections, so that no client of
/// another test can sit on one.
const PORTS: Range<u16> = 11_000..31_000;

/// How many of them a process of tests takes for its own at a time.
const BLOCK: u16 = 100;

/// A port that nobody listens on, and that no test of this or another process is given later: a
/// Sentinel goes on looking for the server that it knew there, and makes any other one its own. A
/// process that is no test can still take it before the server does: the start is tried again then.
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

/// The ports of this process. It listens on the first one of each block to tell others that the block
/// is taken.
struct Blocks {
    held: Vec<TcpListener>,
    unused: Range<u16>,
}

impl Blocks {
    fn take_one_more(&mut self) {
        // Two processes that begin at once seldom meet.
        let count = PORTS.len() / usize::from(BLOCK);
        let first = process::id() as usize % count;
        let mut starts = PORTS.step_by(BLOCK.into()).cycle().skip(first).take(count);
        let taken = starts.find_map(|start| Some((bound(start)?, start)));
        let (listener, start) = taken.expect("a block of ports that nobody has taken");
        self.held.push(listener);
        self.unused = start + 1..start + BLOCK;
    }
}

fn bound(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}
