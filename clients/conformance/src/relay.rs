//! A relay between a client and a server, which can lose what passes through it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use redis_lock_rig::free_port;
use rustix::net::{listen, sockopt};

/// The length of the queue of connections that the relay hasn't accepted yet.
const BACKLOG: i32 = 128;

/// More connections than a queue of length 0 takes.
const FILLERS: usize = 3;

/// The pause between two looks for a new connection.
const PAUSE: Duration = Duration::from_millis(2);

/// The way in which a relay treats connections and bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Passes everything on.
    Passes,
    /// Takes connections and bytes, and passes nothing on, like a machine that vanished.
    Swallows,
    /// Leaves new connections unanswered before their handshake is over.
    Hangs,
    /// Resets each connection.
    Resets,
    /// Resets each connection, and takes no more.
    Ends,
}

struct State {
    mood: Mood,
    /// The two ends of each connection.
    pairs: Vec<Arc<[TcpStream; 2]>>,
    /// The connections that fill the queue while the relay hangs.
    fillers: Vec<TcpStream>,
}

/// A relay in front of one server.
pub struct Relay {
    port: u16,
    listener: TcpListener,
    state: Arc<Mutex<State>>,
}

impl Relay {
    /// Starts a relay in front of the server on this port.
    pub fn start(server_port: u16) -> Result<Relay> {
        let listener = listener()?;
        listener.set_nonblocking(true)?;
        let state = Arc::new(Mutex::new(State {
            mood: Mood::Passes,
            pairs: Vec::new(),
            fillers: Vec::new(),
        }));
        let relay = Relay {
            port: listener.local_addr()?.port(),
            listener: listener.try_clone()?,
            state: Arc::clone(&state),
        };
        thread::spawn(move || accept(&listener, server_port, &state));
        Ok(relay)
    }

    /// Returns the port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Loses every byte of every connection, old and new, without closing any.
    pub fn swallow(&self) {
        self.state().mood = Mood::Swallows;
    }

    /// Leaves new connections unanswered.
    pub fn hang(&self) {
        let mut state = self.state();
        state.mood = Mood::Hangs;
        listen(&self.listener, 0).expect("a listener");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let fill = |_| TcpStream::connect_timeout(&address, Duration::from_millis(20)).ok();
        state.fillers = (0..FILLERS).filter_map(fill).collect();
    }

    /// Resets every connection, old and new.
    pub fn reset(&self) {
        let mut state = self.state();
        state.mood = Mood::Resets;
        state.pairs.drain(..).for_each(|pair| reset(&pair));
    }

    /// Passes on what comes from now on. Connections that lost bytes are reset, because their rest
    /// makes no sense.
    pub fn pass(&self) {
        let mut state = self.state();
        if state.mood == Mood::Swallows {
            state.pairs.drain(..).for_each(|pair| reset(&pair));
        }
        state.mood = Mood::Passes;
        state.fillers.clear();
        listen(&self.listener, BACKLOG).expect("a listener");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = self.state();
        state.mood = Mood::Ends;
        state.pairs.drain(..).for_each(|pair| reset(&pair));
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listener() -> Result<TcpListener> {
    for _ in 0..20 {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            bound => return Ok(bound?),
        }
    }
    anyhow::bail!("no free port for the relay")
}

fn accept(listener: &TcpListener, server_port: u16, state: &Arc<Mutex<State>>) {
    loop {
        let mood = locked(state).mood;
        if mood == Mood::Ends {
            return;
        }
        match (mood != Mood::Hangs).then(|| listener.accept()) {
            Some(Ok((client, _))) => join(client, server_port, state),
            _ => thread::sleep(PAUSE),
        }
    }
}

/// Joins a client to the server. A client that finds no server is reset.
fn join(client: TcpStream, server_port: u16, state: &Arc<Mutex<State>>) {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server_port));
    let mut locked_state = locked(state);
    let refuses = matches!(locked_state.mood, Mood::Resets | Mood::Ends);
    let (Ok(server), false) = (server, refuses) else {
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("a socket");
        return;
    };
    let ends = [client, server];
    for end in &ends {
        end.set_nonblocking(false).expect("a socket");
        end.set_nodelay(true).expect("a socket");
    }
    let pair = Arc::new(ends);
    locked_state.pairs.push(Arc::clone(&pair));
    drop(locked_state);
    for (from, to) in [(0, 1), (1, 0)] {
        let (pair, state) = (Arc::clone(&pair), Arc::clone(state));
        thread::spawn(move || pump(&pair[from], &pair[to], &state));
    }
}

/// Passes bytes on until one end closes. While the relay swallows, it passes on neither bytes nor
/// the close.
fn pump(mut from: &TcpStream, mut to: &TcpStream, state: &Mutex<State>) {
    let mut bytes = [0; 16_384];
    loop {
        let count = from.read(&mut bytes).unwrap_or(0);
        let passes = matches!(locked(state).mood, Mood::Passes | Mood::Hangs);
        if count == 0 {
            if passes {
                // The peer may have gone before.
                drop(to.shutdown(Shutdown::Write));
            }
            return;
        }
        if passes && to.write_all(&bytes[..count]).is_err() {
            return drop(from.shutdown(Shutdown::Both));
        }
    }
}

/// Ends the reads of both ends. The last of their users then closes them with a reset.
fn reset(pair: &[TcpStream; 2]) {
    for end in pair {
        // A peer may have closed its end before.
        let _gone = sockopt::set_socket_linger(end, Some(Duration::ZERO));
        drop(end.shutdown(Shutdown::Read));
    }
}
