//! A terminal that runs a program, as seen by its user.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portable_pty::{native_pty_system, Child, CommandBuilder, ExitStatus, MasterPty, PtySize};
use vt100::Parser;

use super::support::{eventually, until, PATIENCE};

/// A program in a terminal. It is killed when this value goes out of scope.
pub struct Terminal {
    master: Box<dyn MasterPty + Send>,
    keyboard: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    /// The thread that reads the output. It ends with the last program that could write to it.
    reader: JoinHandle<()>,
    seen: Arc<Mutex<Seen>>,
}

struct Seen {
    screen: Parser,
    raw: Vec<u8>,
}

impl Terminal {
    #[track_caller]
    pub fn start(command: CommandBuilder, columns: u16, rows: u16) -> Terminal {
        let pair = native_pty_system()
            .openpty(size(columns, rows))
            .expect("a terminal");
        let child = pair.slave.spawn_command(command).expect("it runs");
        let seen = Seen {
            screen: Parser::new(rows, columns, 0),
            raw: Vec::new(),
        };
        let seen = Arc::new(Mutex::new(seen));
        let mut output = pair.master.try_clone_reader().expect("its output");
        let watched = Arc::clone(&seen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let mut seen = watched.lock().expect("the screen");
                seen.screen.process(&bytes[..count]);
                seen.raw.extend(&bytes[..count]);
            }
        });
        Terminal {
            keyboard: pair.master.take_writer().expect("its keyboard"),
            master: pair.master,
            child,
            reader,
            seen,
        }
    }

    pub fn id(&self) -> rustix::process::Pid {
        let id = self
            .child
            .process_id()
            .and_then(|id| i32::try_from(id).ok());
        id.and_then(rustix::process::Pid::from_raw)
            .expect("a process")
    }

    #[track_caller]
    pub fn type_in(&mut self, text: &str) {
        self.keyboard
            .write_all(text.as_bytes())
            .expect("somebody reads");
    }

    pub fn text(&self) -> String {
        self.seen
            .lock()
            .expect("the screen")
            .screen
            .screen()
            .contents()
    }

    /// Returns all bytes that the program has written so far.
    pub fn raw(&self) -> Vec<u8> {
        self.seen.lock().expect("the screen").raw.clone()
    }

    /// Returns true if a program uses the alternate screen.
    pub fn is_taken(&self) -> bool {
        self.seen
            .lock()
            .expect("the screen")
            .screen
            .screen()
            .alternate_screen()
    }

    /// Returns true if input is echoed and read line by line, like in a shell.
    pub fn is_as_usual(&self) -> bool {
        use rustix::termios::{tcgetattr, LocalModes};
        let descriptor = self.master.as_raw_fd().expect("a descriptor");
        // SAFETY: the master stays open while `self` lives.
        let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
        let modes = tcgetattr(descriptor).expect("a terminal").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    #[track_caller]
    pub fn until_shown(&self, text: &str) {
        self.until_shows(&format!("{text:?} is shown"), |shown| shown.contains(text));
    }

    /// Returns the first text of the screen that `shows` accepts. Panics with the current one after `PATIENCE`.
    #[track_caller]
    pub fn until_shows(&self, what: &str, shows: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if shows(&text) {
                return text;
            }
            assert!(Instant::now() < end, "not {what}, but:\n{text}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the text that stays on the screen after the last program with this terminal has ended.
    #[track_caller]
    pub fn last_text(&self) -> String {
        until("all programs have ended", || self.reader.is_finished());
        self.text()
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let mut seen = self.seen.lock().expect("the screen");
        seen.screen.screen_mut().set_size(rows, columns);
        self.master.resize(size(columns, rows)).expect("a terminal");
    }

    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        eventually("it ends", || self.child.try_wait().expect("a child"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn size(cols: u16, rows: u16) -> PtySize {
    PtySize {
        rows,
        cols,
        pixel_width: 0,
        pixel_height: 0,
    }
}

/// Returns a command for a terminal, with the server's address in its environment.
pub fn words(port: u16, program: &str, words: &[&str]) -> CommandBuilder {
    let mut command = CommandBuilder::new(program);
    command.args(words);
    command.env("REDIS_LOCK_URL", format!("redis://127.0.0.1:{port}"));
    command.env("TERM", "xterm-256color");
    command
}
