//! The sockets of connections with sessions: the kernel closes such a connection within 30 s after
//! the last packet from its client.
//!
//! A machine that vanishes sends neither FIN nor RST. The server's own `tcp-keepalive` detects that
//! after twice its value, 600 s by default. So the module sets the socket's options when a
//! connection asks for its first session:
//!
//! 1. Nothing unacknowledged: the kernel probes an idle connection and closes it after [`OURS`].
//! 2. Unacknowledged data: the kernel sends no probes. TCP_USER_TIMEOUT closes the connection,
//!    counted from the first retransmission. Such data can be sent just before the last probe. So
//!    the two times together, with a retransmission timeout of up to 2 s, have to stay below 30 s.
//!
//! Linux ignores the number of probes if TCP_USER_TIMEOUT is set: it closes with the first probe
//! that is due after that time. So the timeout is just before the end of the probes.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use redis_module::Context;
use socket2::{SockRef, TcpKeepalive};

use crate::server::{api, config};
use crate::state::{self, State};

/// The time within which a vanished client is detected, as the documentation promises it.
const PROMISED: Duration = Duration::from_secs(30);

/// The probes of an idle connection with sessions. The connection is closed only if six probes in a
/// row are lost, so packet loss alone rarely closes it. On a local network, where retransmissions
/// begin after 0.2 s, TCP_USER_TIMEOUT passes by the sixth probe, 12.6 s after the first packet.
const OURS: Probes = Probes {
    idle: Duration::from_secs(8),
    interval: Duration::from_secs(1),
    count: 6,
};

/// The time by which TCP_USER_TIMEOUT is shorter than the probes.
#[cfg(target_os = "linux")]
const LEAD: Duration = Duration::from_millis(500);

/// The reason if no socket can be set because `rename-command` has removed CLIENT.
const NO_COMMAND: &str = "the server has no command CLIENT";

/// Sets the socket of a client so that the kernel detects a vanished machine. Does so once for each
/// connection.
pub fn watch(ctx: &Context, state: &State, client_id: u64) {
    let is_watched = state.watched.borrow().contains(&client_id);
    if !is_watched {
        watch_anew(ctx, state, client_id);
    }
}

#[inline(never)]
fn watch_anew(ctx: &Context, state: &State, client_id: u64) {
    let Some(line) = client_line(ctx, client_id) else {
        warn_once(ctx, state, NO_COMMAND);
        state.watched.borrow_mut().insert(client_id);
        return;
    };
    // A client without a connection is not listed, and the server sends no event at its end.
    let Some(descriptor) = descriptor(&line) else {
        return;
    };
    if let Err(error) = probe_soon(descriptor) {
        warn_once(ctx, state, &error.to_string());
    }
    state.watched.borrow_mut().insert(client_id);
}

/// Forgets a client whose connection is closed.
pub fn forget(client_id: u64) {
    state::with(|state| state.watched.borrow_mut().remove(&client_id));
}

/// Warns at load if the server doesn't report its clients' sockets, because of `rename-command`.
pub fn warn_if_unable(ctx: &Context) -> Result<(), String> {
    // Any id works: the reply is empty if there is no such client.
    if client_line(ctx, 1).is_none() {
        state::with(|state| warn_once(ctx, state, NO_COMMAND));
    }
    Ok(())
}

/// Warns once that sockets keep the `tcp-keepalive` of the server, unless that is short enough.
fn warn_once(ctx: &Context, state: &State, reason: &str) {
    if state.warned_of_keepalive.replace(true) {
        return;
    }
    let configured = config::of_server(ctx, "tcp-keepalive");
    let seconds = configured.as_deref().and_then(|text| text.parse().ok());
    if seconds.is_some_and(|seconds| seconds > 0 && Probes::by_server(seconds).span() < PROMISED) {
        return;
    }
    let seconds = seconds.map_or("unknown".to_owned(), |seconds| format!("{seconds} s"));
    let text = format!(
        "tcp-keepalive is {seconds}, and the module can't shorten it for connections with SESSION grants \
         ({reason}): if a client's machine vanishes, its grants are renewed for up to twice that time, or \
         for ever if it is 0; use tcp-keepalive 10 on a server that keeps such locks"
    );
    api::log(ctx, c"warning", &text);
}

/// Returns the line of CLIENT LIST for this client, empty if there is none. Returns `None` if the
/// server refuses the command.
fn client_line(ctx: &Context, client_id: u64) -> Option<Vec<u8>> {
    api::call_text(ctx, "CLIENT", &["LIST", "ID", &client_id.to_string()])
}

/// Returns the client's file descriptor. It comes before every field that a client can set.
fn descriptor(line: &[u8]) -> Option<RawFd> {
    let mut fields = line.split(|byte| byte.is_ascii_whitespace());
    let digits = fields.find_map(|field| field.strip_prefix(b"fd="))?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok();
    number.filter(|number| *number >= 0)
}

/// Sets the options of a client's socket. A Unix socket is left alone: its peer is on this machine.
fn probe_soon(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the server listed the descriptor for a connected client in this call of the module, so
    // it is open. The server closes a client's connection only with its lock held, which this call
    // has. Other threads of the server close other descriptors, like those of old files.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let socket = SockRef::from(&descriptor);
    let address = socket.local_addr()?;
    if !address.is_ipv4() && !address.is_ipv6() {
        return Ok(());
    }
    let current = Probes::of(&socket)?;
    let sooner = current.filter(|current| current.span() <= OURS.span());
    if sooner.is_none() {
        socket.set_tcp_keepalive(&OURS.keepalive())?;
    }
    bound_unacknowledged(&socket, sooner.unwrap_or(OURS))
}

/// Limits how long data may stay unacknowledged to the time that the probes take.
#[cfg(target_os = "linux")]
fn bound_unacknowledged(socket: &SockRef<'_>, probes: Probes) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(probes.span().saturating_sub(LEAD)))
}

/// Sets nothing, because other systems lack the option. They limit retransmissions by themselves.
#[cfg(not(target_os = "linux"))]
fn bound_unacknowledged(_: &SockRef<'_>, _: Probes) -> io::Result<()> {
    Ok(())
}

/// The kernel's probes of a connection.
#[derive(Clone, Copy)]
struct Probes {
    /// The silence before the first probe.
    idle: Duration,
    /// The time between two probes.
    interval: Duration,
    /// The number of probes without an answer that close the connection.
    count: u32,
}

impl Probes {
    /// Returns the probes of a socket, if it has any.
    fn of(socket: &SockRef<'_>) -> io::Result<Option<Self>> {
        if !socket.keepalive()? {
            return Ok(None);
        }
        Ok(Some(Self {
            idle: socket.tcp_keepalive_time()?,
            interval: socket.tcp_keepalive_interval()?,
            count: socket.tcp_keepalive_retries()?,
        }))
    }

    /// Returns the probes that the server sets for this `tcp-keepalive`, in seconds.
    fn by_server(seconds: u32) -> Self {
        Self {
            idle: Duration::from_secs(seconds.into()),
            interval: Duration::from_secs((seconds / 3).max(1).into()),
            count: 3,
        }
    }

    /// Returns the time from the last packet until the connection is closed.
    fn span(self) -> Duration {
        self.idle + self.interval * self.count
    }

    fn keepalive(self) -> TcpKeepalive {
        TcpKeepalive::new()
            .with_time(self.idle)
            .with_interval(self.interval)
            .with_retries(self.count)
    }
}
