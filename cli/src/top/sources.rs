//! The sources of events: the keyboard, the servers, and signals. Each source has a thread.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{self, KeyEvent, KeyEventKind};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use crate::arguments::Server;
use crate::hot::HotKeys;
use crate::lock::Lock;
use crate::nodes::{Locks, Nodes};

/// An event that changes the screen or ends `top`.
pub enum Event {
    /// The state of the servers, or the failure of the poll.
    Polled(Result<Polled, String>),
    Key(KeyEvent),
    /// A redraw, because the terminal's size or content has changed.
    Redraw,
    /// A signal that ends the program.
    Signal(i32),
    /// A signal that stops the program.
    Stop,
    /// The end of the keyboard input.
    Closed(io::Error),
}

/// The locks, and the keys that were waited for in the last minutes.
pub struct Polled {
    pub locks: Locks,
    pub hot: HotKeys,
}

pub fn signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let event = match signal {
                SIGTSTP => Event::Stop,
                SIGCONT => Event::Redraw,
                number => Event::Signal(number),
            };
            if events.send(event).is_err() {
                return;
            }
        }
    });
    Ok(())
}

pub fn keys(events: Sender<Event>) {
    thread::spawn(move || loop {
        let (event, is_over) = match event::read() {
            Ok(event::Event::Key(key)) if key.kind == KeyEventKind::Press => {
                (Event::Key(key), false)
            }
            Ok(_) => (Event::Redraw, false),
            Err(error) => (Event::Closed(error), true),
        };
        if events.send(event).is_err() || is_over {
            return;
        }
    });
}

pub fn locks(
    events: Sender<Event>,
    server: Server,
    nodes: Nodes,
    pattern: Vec<u8>,
    interval: Duration,
) {
    thread::spawn(move || {
        let mut nodes = Some(nodes);
        loop {
            let began = Instant::now();
            let polled = polled(&server, &mut nodes, &pattern);
            if events.send(Event::Polled(polled)).is_err() {
                return;
            }
            thread::sleep(interval.saturating_sub(began.elapsed()));
        }
    });
}

/// Reads all locks and the contention on the existing connections. After a failure, the next call
/// opens new connections.
fn polled(server: &Server, nodes: &mut Option<Nodes>, pattern: &[u8]) -> Result<Polled, String> {
    let connected = match nodes.take() {
        Some(nodes) => Ok(nodes),
        None => Nodes::connect(server),
    };
    let asked = connected.and_then(|mut connected| Ok((read(&mut connected, pattern)?, connected)));
    match asked {
        Ok((polled, connected)) => {
            *nodes = Some(connected);
            Ok(polled)
        }
        Err(error) => Err(format!("{error:#}")),
    }
}

/// Reads the locks, and the contention if a server tells it. A hot lock that is free right now is
/// among the locks, unless the pattern might leave its key out.
fn read(nodes: &mut Nodes, pattern: &[u8]) -> anyhow::Result<Polled> {
    let mut locks = nodes.locks(pattern)?;
    let hot = nodes.hottest()?.unwrap_or_default();
    if pattern == b"*" {
        for key in hot.keys() {
            locks.entry(key.clone()).or_insert_with(Lock::free);
        }
    }
    Ok(Polled { locks, hot })
}
