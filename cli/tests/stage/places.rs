//! Addresses at which no server answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

/// The time after which a connection that isn't accepted counts as hanging.
const HANGS: Duration = Duration::from_millis(200);

/// Accepts connections, and swallows what they send, like a machine that has vanished.
pub fn swallowing() -> u16 {
    served(|mut stream| {
        let mut bytes = [0; 4096];
        while let Ok(1..) = stream.read(&mut bytes) {}
    })
}

/// Resets each connection at its first bytes.
pub fn resetting() -> u16 {
    served(|mut stream| {
        // Some bytes stay unread, so the system closes with a reset.
        let _ = stream.read(&mut [0; 1]);
    })
}

/// Closes each connection in the middle of its first reply to a LOCK command.
pub fn cutting() -> u16 {
    served(|mut stream| {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            if text.contains("LOCK.") {
                let _ = stream.write_all(b"*2\r\n$32\r\n5f0a");
                return;
            }
            // One reply to each of the words that begin a command.
            let commands = text.matches("CLIENT").count();
            let _ = stream.write_all("+OK\r\n".repeat(commands).as_bytes());
        }
    })
}

fn served(serve: fn(TcpStream)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = address(&listener).port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    port
}

/// A port at which connections are neither accepted nor refused.
pub struct Hanging {
    listener: TcpListener,
    /// Connections that fill the queue of the listener.
    _queued: Vec<TcpStream>,
}

impl Hanging {
    pub fn new() -> Hanging {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // SAFETY: a system call that takes numbers only. The listener owns the descriptor.
        unsafe { libc::listen(listener.as_raw_fd(), 0) };
        let address = address(&listener);
        let queued = std::iter::from_fn(|| TcpStream::connect_timeout(&address, HANGS).ok());
        Hanging {
            _queued: queued.collect(),
            listener,
        }
    }

    pub fn port(&self) -> u16 {
        address(&self.listener).port()
    }
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("an address")
}
