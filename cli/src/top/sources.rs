//! The sources of events: the keyboard, the servers, and signals. Each source has a thread.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crossterm::event::{self, KeyEvent, KeyEventKind};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::survey::{Snapshot, Survey};
use crate::arguments::{Server, Top};

/// An event that changes the screen or ends `top`.
pub enum Event {
    /// The locks now, or why they couldn't be read.
    Snapshot(Result<Snapshot, String>),
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

/// The keys on the screen.
pub type Shown = Arc<Mutex<BTreeSet<Vec<u8>>>>;

/// Sends a snapshot of the locks in each interval. After a failure, opens new connections.
pub fn snapshots(
    events: Sender<Event>,
    server: Server,
    survey: Survey,
    options: &Top,
    shown: Shown,
) {
    let (pattern, interval) = (options.pattern.as_bytes().to_vec(), options.interval);
    thread::spawn(move || {
        let mut survey = Some(survey);
        loop {
            let began = Instant::now();
            let keys = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let connected = match survey.take() {
                Some(survey) => Ok(survey),
                None => Survey::connect(&server, pattern.clone()),
            };
            let snapshot = connected.and_then(|mut connected| {
                let snapshot = connected.snapshot(&keys)?;
                survey = Some(connected);
                Ok(snapshot)
            });
            let snapshot = snapshot.map_err(|error| format!("{error:#}"));
            if events.send(Event::Snapshot(snapshot)).is_err() {
                return;
            }
            thread::sleep(interval.saturating_sub(began.elapsed()));
        }
    });
}
