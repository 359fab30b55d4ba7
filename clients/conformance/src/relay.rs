//! A relay between a client and a server, which can lose or keep what passes through it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use redis_lock_rig::free_port;
use rustix::net::{listen, sockopt};

/// The length of the queue of connections that the relay hasn't accepted yet.
const BACKLOG: i32 = 128;

/// More connections than a queue of length 0 takes.
const FILLERS: usize = 3;

/// The pause between two looks for a new connection.
const PAUSE: Duration = Duration::from_millis(2);

/// The longest time until a connection to the relay is joined to the server.
const JOIN_TIME: Duration = Duration::from_secs(20);

/// The way in which a relay treats connections and bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Passes everything on.
    Passes,
    /// Takes connections and bytes, and passes nothing on, like a machine that vanished.
    Swallows,
    /// Passes on what goes to the server, and nothing that comes from it.
    LosesReplies,
    /// Passes on what comes from the server, and nothing that goes to it.
    LosesCommands,
    /// Keeps what goes to the server, and the connections.
    HoldsBack,
    /// Leaves new connections unanswered before their handshake is over.
    Hangs,
    /// Resets each connection.
    Resets,
    /// Resets each connection, and takes no more.
    Ends,
}

impl Mood {
    fn loses_commands(self) -> bool {
        self.loses_all() || self == Mood::LosesCommands
    }

    fn loses_replies(self) -> bool {
        self.loses_all() || self == Mood::LosesReplies
    }

    fn loses_all(self) -> bool {
        matches!(self, Mood::Swallows | Mood::Resets | Mood::Ends)
    }
}

/// A connection: its two ends, the client's and the server's.
struct Pair {
    ends: [TcpStream; 2],
    treated: Mutex<Treated>,
}

/// The treatment of a connection's bytes.
struct Treated {
    mood: Mood,
    /// The bytes that are held back from the server, and an empty chunk for their end.
    held_back: Vec<Vec<u8>>,
}

struct State {
    /// The mood of new connections.
    mood: Mood,
    pairs: Vec<Arc<Pair>>,
    /// The server that new connections lead to.
    server_port: u16,
    /// The time by which each chunk from the server is late.
    delay: Duration,
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
            server_port,
            delay: Duration::ZERO,
            fillers: Vec::new(),
        }));
        let relay = Relay {
            port: listener.local_addr()?.port(),
            listener: listener.try_clone()?,
            state: Arc::clone(&state),
        };
        thread::spawn(move || accept(&listener, &state));
        Ok(relay)
    }

    /// Returns the port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Loses every byte of every connection, old and new, without closing any.
    pub fn swallow(&self) {
        self.state().mood = Mood::Swallows;
        self.treat_open(Mood::Swallows);
    }

    /// Loses every byte that comes from the server, without closing a connection.
    pub fn lose_replies(&self) {
        self.state().mood = Mood::LosesReplies;
        self.treat_open(Mood::LosesReplies);
    }

    /// Loses every byte that goes to the server, without closing a connection.
    pub fn lose_commands(&self) {
        self.state().mood = Mood::LosesCommands;
        self.treat_open(Mood::LosesCommands);
    }

    /// Leads new connections to the server on another port.
    pub fn lead_to(&self, server_port: u16) {
        self.state().server_port = server_port;
    }

    /// Loses every byte of the connections that are open, without closing any.
    pub fn swallow_open(&self) {
        self.await_joined();
        self.treat_open(Mood::Swallows);
    }

    /// Keeps every byte that goes to the server, of every connection, old and new.
    pub fn hold_back(&self) {
        self.state().mood = Mood::HoldsBack;
        self.treat_open(Mood::HoldsBack);
    }

    /// Keeps every byte that goes to the server on the connections that are open.
    pub fn hold_back_open(&self) {
        self.await_joined();
        self.treat_open(Mood::HoldsBack);
    }

    /// Waits until every connection that a client has opened is joined to the server. They are joined in
    /// turn, so one that is opened now is the last.
    fn await_joined(&self) {
        let last = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("a connection");
        let own = last.local_addr().expect("an address");
        let is_own = |pair: &Arc<Pair>| pair.ends[0].peer_addr().is_ok_and(|it| it == own);
        let deadline = Instant::now() + JOIN_TIME;
        while !self.state().pairs.iter().any(is_own) {
            assert!(
                Instant::now() < deadline,
                "not within {JOIN_TIME:?}: joined connections"
            );
            thread::sleep(PAUSE);
        }
    }

    fn treat_open(&self, mood: Mood) {
        for pair in &self.state().pairs {
            locked(&pair.treated).mood = mood;
        }
    }

    /// Delays each chunk from the server.
    pub fn delay_replies(&self, delay: Duration) {
        self.state().delay = delay;
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

    /// Passes on what was held back, and what comes from now on. Connections that lost bytes are
    /// reset, because their rest makes no sense. The newest connection comes first, so that commands
    /// of a later connection overtake earlier ones.
    pub fn pass(&self) {
        let mut state = self.state();
        state.pairs.retain(|pair| {
            let mood = locked(&pair.treated).mood;
            let has_lost = mood.loses_commands() || mood.loses_replies();
            if has_lost {
                reset(pair);
            }
            !has_lost
        });
        state.pairs.iter().rev().for_each(|pair| deliver(pair));
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

fn accept(listener: &TcpListener, state: &Arc<Mutex<State>>) {
    loop {
        let mood = locked(state).mood;
        if mood == Mood::Ends {
            return;
        }
        match (mood != Mood::Hangs).then(|| listener.accept()) {
            Some(Ok((client, _))) => join(client, state),
            _ => thread::sleep(PAUSE),
        }
    }
}

/// Joins a client to the server. A client that finds no server is reset.
fn join(client: TcpStream, state: &Arc<Mutex<State>>) {
    let server_port = locked(state).server_port;
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
    let mood = locked_state.mood;
    let pair = Arc::new(Pair {
        ends,
        treated: Mutex::new(Treated {
            mood,
            held_back: Vec::new(),
        }),
    });
    // The threads of a connection that has ended have dropped it. What it sent may still be held back.
    locked_state
        .pairs
        .retain(|it| Arc::strong_count(it) > 1 || !locked(&it.treated).held_back.is_empty());
    locked_state.pairs.push(Arc::clone(&pair));
    drop(locked_state);
    let (late, due) = channel();
    let (to_server, to_client, from_server) = (Arc::clone(&pair), Arc::clone(&pair), pair);
    let state = Arc::clone(state);
    thread::spawn(move || pass_to_server(&to_server));
    thread::spawn(move || pass_to_client(&to_client, &due));
    thread::spawn(move || {
        read_all(&from_server.ends[1], |chunk| {
            let is_lost = locked(&from_server.treated).mood.loses_replies();
            let delay = locked(&state).delay;
            is_lost || late.send((Instant::now() + delay, chunk)).is_ok()
        });
    });
}

/// Reads one end until it closes or `take` refuses a chunk. The last chunk is empty.
fn read_all(mut from: &TcpStream, take: impl Fn(Vec<u8>) -> bool) {
    let mut bytes = [0; 16_384];
    loop {
        let count = from.read(&mut bytes).unwrap_or(0);
        if !take(bytes[..count].to_vec()) || count == 0 {
            return;
        }
    }
}

/// Passes bytes and the close on to the server, unless the relay loses them or holds them back.
fn pass_to_server(pair: &Pair) {
    let [client, server] = &pair.ends;
    read_all(client, |chunk| {
        let mut treated = locked(&pair.treated);
        match treated.mood {
            Mood::HoldsBack => {
                treated.held_back.push(chunk);
                true
            }
            mood if mood.loses_commands() => true,
            _ => pass_on(&chunk, client, server),
        }
    });
}

/// Passes bytes and the close on to the client when they are due.
fn pass_to_client(pair: &Pair, due: &Receiver<(Instant, Vec<u8>)>) {
    let [client, server] = &pair.ends;
    for (at, chunk) in due {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        if !pass_on(&chunk, server, client) {
            return;
        }
    }
}

/// Passes on a chunk. An empty one closes the connection. Returns false if the peer is gone.
fn pass_on(chunk: &[u8], from: &TcpStream, mut to: &TcpStream) -> bool {
    if chunk.is_empty() {
        // The peer may have gone before.
        drop(to.shutdown(Shutdown::Write));
        return true;
    }
    let is_passed = to.write_all(chunk).is_ok();
    if !is_passed {
        drop(from.shutdown(Shutdown::Both));
    }
    is_passed
}

/// Passes on what was held back.
fn deliver(pair: &Pair) {
    let [client, server] = &pair.ends;
    let mut treated = locked(&pair.treated);
    treated.mood = Mood::Passes;
    for chunk in treated.held_back.drain(..) {
        pass_on(&chunk, client, server);
    }
}

/// Ends the reads of both ends. The last of their users then closes them with a reset.
fn reset(pair: &Pair) {
    locked(&pair.treated).mood = Mood::Resets;
    for end in &pair.ends {
        // A peer may have closed its end before.
        let _gone = sockopt::set_socket_linger(end, Some(Duration::ZERO));
        drop(end.shutdown(Shutdown::Read));
    }
}
