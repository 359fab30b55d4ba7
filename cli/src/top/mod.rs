//! `redis-lock top`.

mod board;
mod screen;
mod sources;

use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};

use anyhow::{ensure, Result};

use crate::arguments::{Server, Top};
use crate::nodes::Nodes;
use crate::signals;
use board::{Board, Wish};
use screen::Screen;
use sources::Event;

pub fn watch(server: &Server, options: &Top) -> Result<ExitCode> {
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    ensure!(is_terminal, "top needs a terminal; ls needs none");
    // A failed connection is reported before the screen is taken.
    let nodes = Nodes::connect(server)?;
    let mut board = Board::new(nodes.name(), options.sort);
    let (sender, events) = mpsc::channel();
    sources::signals(sender.clone())?;
    sources::keys(sender.clone());
    sources::locks(
        sender,
        server.clone(),
        nodes,
        options.pattern.as_bytes().to_vec(),
        options.interval,
    );
    let end = shown_until_the_end(&mut board, &events);
    screen::restore();
    match end? {
        End::Wished => Ok(ExitCode::SUCCESS),
        End::Signal(number) => Ok(signals::die_of(number)),
    }
}

/// The reason for the end of `top`.
enum End {
    Wished,
    Signal(i32),
}

fn shown_until_the_end(board: &mut Board, events: &Receiver<Event>) -> Result<End> {
    let mut screen = Screen::take()?;
    loop {
        screen.draw(board)?;
        // Events that arrived together are drawn together.
        for event in [events.recv()?].into_iter().chain(events.try_iter()) {
            match event {
                Event::Polled(polled) => board.show(polled),
                Event::Redraw => {}
                Event::Signal(number) => return Ok(End::Signal(number)),
                Event::Stop => screen = screen.stopped()?,
                Event::Closed(error) => return Err(error.into()),
                Event::Key(key) => match board.press(key) {
                    Wish::Nothing => {}
                    Wish::Stop => screen = screen.stopped()?,
                    Wish::End => return Ok(End::Wished),
                },
            }
        }
    }
}
