//! The terminal that `top` draws on.

use std::io;

use anyhow::Result;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as Drawn, Table, TableState};
use ratatui::{DefaultTerminal, Frame};

use super::board::{Board, Row};
use crate::arguments::SortBy;
use crate::listing::{by, holders, span};
use crate::output;
use crate::signals;

const KEYS: &str = "q quit  sort: t waited w waiters h holders a age l lease k key  r reverse";

/// The fewest lines of a terminal with room for the line of keys.
const LINES_WITH_KEYS: u16 = 6;

/// The minimum width of the column with the lock's key.
const KEY_WIDTH: u16 = 12;

/// A column next to the key.
struct Column {
    title: &'static str,
    width: u16,
    sort: Option<SortBy>,
    value: fn(&Row) -> String,
}

/// The columns in their order on the screen, the most important first. A narrow terminal shows only
/// the first columns.
const COLUMNS: [Column; 8] = [
    Column {
        title: "WAITERS",
        width: 8,
        sort: Some(SortBy::Waiters),
        value: |row| row.lock.waiters.to_string(),
    },
    Column {
        title: "WAITED",
        width: 7,
        sort: Some(SortBy::Waited),
        value: |row| span(row.hot.as_ref().map(|hot| hot.waited_ms)),
    },
    Column {
        title: "HOLDERS",
        width: 8,
        sort: Some(SortBy::Holders),
        value: |row| holders(&row.lock),
    },
    Column {
        title: "HELD",
        width: 7,
        sort: Some(SortBy::Age),
        value: |row| span(row.lock.held_ms()),
    },
    Column {
        title: "LEASE",
        width: 7,
        sort: Some(SortBy::Lease),
        value: |row| span(row.lock.lease_ms()),
    },
    Column {
        title: "WAIT",
        width: 7,
        sort: None,
        value: |row| span(row.lock.waiting_ms()),
    },
    Column {
        title: "MODE",
        width: 9,
        sort: None,
        value: |row| row.lock.mode.clone(),
    },
    Column {
        title: "BY",
        width: 24,
        sort: None,
        value: |row| by(&row.lock),
    },
];

/// The terminal while `top` owns it, until `restore` or a panic.
pub struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub fn take() -> io::Result<Screen> {
        Ok(Screen {
            terminal: ratatui::try_init()?,
        })
    }

    /// Restores the terminal, stops the program, and takes the terminal again after a continue.
    pub fn stopped(self) -> Result<Screen> {
        restore();
        signals::stop()?;
        Ok(Screen::take()?)
    }

    pub fn draw(&mut self, board: &Board) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame, board)).map(drop)
    }
}

/// Restores the terminal to its previous state.
pub fn restore() {
    // A terminal that is gone needs no restore.
    let _ = ratatui::try_restore();
}

fn draw(frame: &mut Frame<'_>, board: &Board) {
    let key_lines = u16::from(frame.area().height >= LINES_WITH_KEYS);
    let parts = [
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(key_lines),
    ];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Line::from(summary(board)), head);
    let columns = columns(body.width);
    let mut state = TableState::new().with_selected(board.marked());
    frame.render_stateful_widget(table(board, columns), body, &mut state);
    frame.render_widget(Line::from(KEYS).style(Modifier::DIM), foot);
}

fn summary(board: &Board) -> String {
    let age = board.since.map(|since| since.elapsed().as_secs() + 1);
    let age = age.map_or_else(String::new, |age_s| format!(", at most {age_s}s old"));
    if let Some(failure) = &board.failure {
        return output::line(&format!("NOT NOW: {failure}{age}"));
    }
    let waiters: u64 = board.rows.iter().map(|row| row.lock.waiters).sum();
    let holders: usize = board.rows.iter().map(|row| row.lock.holders.len()).sum();
    let is_lock = |row: &&Row| row.lock.mode != "free" || row.lock.waiters > 0;
    let locks = board.rows.iter().filter(is_lock).count();
    let so_far = if board.is_complete { "" } else { " so far" };
    format!(
        "{locks} locks{so_far}, {holders} holders, {waiters} waiters at {}{age}",
        board.server
    )
}

/// Returns the columns that fit next to the key.
fn columns(width: u16) -> &'static [Column] {
    let mut free = width.saturating_sub(KEY_WIDTH);
    let fits = |column: &&Column| {
        let left = free.checked_sub(column.width + 1);
        free = left.unwrap_or(0);
        left.is_some()
    };
    &COLUMNS[..COLUMNS.iter().take_while(fits).count()]
}

fn table<'a>(board: &'a Board, columns: &'a [Column]) -> Table<'a> {
    let widths = columns
        .iter()
        .map(|column| Constraint::Length(column.width));
    let widths = [Constraint::Fill(1)].into_iter().chain(widths);
    let titles = columns
        .iter()
        .map(|column| title(board, column.title, column.sort));
    let titles = [title(board, "KEY", Some(SortBy::Key))]
        .into_iter()
        .chain(titles);
    let rows = board.rows.iter().map(|row| drawn(row, columns));
    Table::new(rows, widths)
        .header(Drawn::new(titles).style(Modifier::BOLD))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

/// Returns a column's title, underlined if the board is sorted by this column.
fn title<'a>(board: &Board, title: &'a str, sort: Option<SortBy>) -> Cell<'a> {
    match sort == Some(board.sort) {
        true => Cell::new(title).style(Modifier::UNDERLINED),
        false => Cell::new(title),
    }
}

fn drawn<'a>(row: &Row, columns: &[Column]) -> Drawn<'a> {
    let values = columns.iter().map(|column| (column.value)(row));
    Drawn::new([output::word(&row.key)].into_iter().chain(values))
}
