//! `redis-lock top`.

mod board;
mod screen;
mod sources;
mod survey;

use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{ensure, Result};

use crate::arguments::{Server, Top};
use crate::nodes::Nodes;
use crate::signals;
use board::{Action, Board};
use screen::Screen;
use sources::{Event, Shown};
use survey::Survey;

/// The longest time between two drawings, because the screen shows the age of the snapshot.
const DRAWN_EVERY: Duration = Duration::from_secs(1);

pub fn watch(server: &Server, options: &Top) -> Result<ExitCode> {
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    ensure!(is_terminal, "top needs a terminal; ls needs none");
    // A failed connection is reported before the screen is taken.
    let nodes = Nodes::connect(server)?;
    let mut board = Board::new(nodes.name(), options.sort);
    let survey = Survey::new(nodes, options.pattern.as_bytes().to_vec());
    let shown = Shown::default();
    let (sender, events) = mpsc::channel();
    sources::signals(sender.clone())?;
    sources::keys(sender.clone());
    sources::snapshots(sender, server.clone(), survey, options, Arc::clone(&shown));
    let end = event_loop(&mut board, &shown, &events);
    screen::restore();
    match end? {
        End::Quit => Ok(ExitCode::SUCCESS),
        End::Signal(number) => Ok(signals::die_of(number)),
    }
}

/// The reason for the end of `top`.
enum End {
    Quit,
    Signal(i32),
}

fn event_loop(board: &mut Board, shown: &Shown, events: &Receiver<Event>) -> Result<End> {
    let mut screen = Screen::take()?;
    loop {
        screen.draw(board)?;
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = board.near_mark();
        let first = match events.recv_timeout(DRAWN_EVERY) {
            Err(RecvTimeoutError::Timeout) => Event::Redraw,
            event => event?,
        };
        // Events that arrived together are drawn together.
        for event in [first].into_iter().chain(events.try_iter()) {
            match event {
                Event::Snapshot(snapshot) => board.show(snapshot),
                Event::Redraw => {}
                Event::Signal(number) => return Ok(End::Signal(number)),
                Event::Stop => screen = screen.stopped()?,
                Event::Closed(error) => return Err(error.into()),
                Event::Key(key) => match board.press(key) {
                    Action::Nothing => {}
                    Action::Stop => screen = screen.stopped()?,
                    Action::Quit => return Ok(End::Quit),
                },
            }
        }
    }
}
