//! Tables of a sheet, for a terminal and for a document in Markdown.

use comfy_table::{presets, CellAlignment, Table};

use crate::bounds::{self, Bound, Limit};
use crate::sheet::{metric, Cell, Place, Run, Sheet};
use crate::{
    block_end, contended, handoff, instructions, lease_end, mass_end, memory, pair, peers,
};

/// Where a table is shown.
#[derive(Clone, Copy)]
pub enum Look {
    /// On a terminal.
    Terminal,
    /// In a document.
    Markdown,
}

/// What a benchmark's table is called, and its first columns.
pub struct Heading {
    /// The benchmark's name.
    pub benchmark: &'static str,
    /// In words.
    pub title: &'static str,
    /// What its settings are.
    setting: &'static str,
    /// What its sizes are.
    size: &'static str,
}

const fn heading(
    benchmark: &'static str,
    title: &'static str,
    setting: &'static str,
    size: &'static str,
) -> Heading {
    Heading {
        benchmark,
        title,
        setting,
        size,
    }
}

/// All benchmarks, in the order in which they are told.
pub const HEADINGS: [Heading; 10] = [
    heading(pair::NAME, "An uncontended pair", "AOF", "pipeline"),
    heading(
        instructions::HAND_OVER,
        "Instructions of a hand-over",
        "",
        "contenders",
    ),
    heading(
        instructions::NAME,
        "Instructions of an uncontended pair",
        "",
        "pipeline",
    ),
    heading(contended::NAME, "One contended lock", "", "contenders"),
    heading(handoff::NAME, "Hand-off", "server", ""),
    heading(
        lease_end::NAME,
        "Wake-up at the end of a lease",
        "",
        "volatile keys",
    ),
    heading(block_end::NAME, "End of BLOCK", "", "waiters"),
    heading(memory::NAME, "Memory", "", "how many"),
    heading(mass_end::NAME, "Locks that end in one second", "", "locks"),
    heading(peers::NAME, "Client libraries", "client", "contenders"),
];

/// The table of a benchmark; nothing where a run has nothing of it.
pub fn of(sheet: &Sheet, heading: &Heading, look: Look) -> Option<String> {
    let cells: Vec<&Cell> = sheet.of(heading.benchmark).collect();
    let mut places: Vec<&Place> = Vec::new();
    let mut metrics: Vec<&str> = Vec::new();
    for cell in &cells {
        if !places.contains(&&cell.place) {
            places.push(&cell.place);
        }
        if !metrics.contains(&cell.metric.as_str()) {
            metrics.push(&cell.metric);
        }
    }
    if places.is_empty() {
        return None;
    }
    let fixed = [heading.setting, heading.size].into_iter();
    let names = fixed.filter(|name| !name.is_empty()).chain(["who"]);
    let mut table = empty(look);
    table.set_header(names.chain(metrics.iter().copied()));
    for place in places {
        let mut row = Vec::new();
        if !heading.setting.is_empty() {
            row.push(place.setting.clone());
        }
        if !heading.size.is_empty() {
            row.push(shown(place.size as f64));
        }
        row.push(place.contestant.clone());
        row.extend(metrics.iter().map(|metric| {
            let cell = sheet.cell(place, metric);
            cell.map_or_else(String::new, with_spread)
        }));
        table.add_row(row);
    }
    let words = table.column_count() - metrics.len();
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    Some(finished(&table, look))
}

/// What became of bounds in a run; nothing where it says nothing about any.
pub fn judged(run: &Run, bounds: &[Bound]) -> Option<String> {
    let look = Look::Terminal;
    let mut table = empty(look);
    table.set_header(["bound", "limit", "measured", ""]);
    for bound in bounds {
        let Some(value) = bound.value(run) else {
            continue;
        };
        let verdict = verdict(bound.limit.holds(value));
        let limit = bound.limit.shown();
        table.add_row([&bound.what, &limit, &format!("{value:.2}"), verdict]);
    }
    (table.row_count() > 0).then(|| finished(&table, look))
}

/// What became of the bounds on each server, whose results may lie in several runs.
pub fn kept(runs: &[Run], look: Look) -> String {
    let mut servers: Vec<&str> = runs.iter().map(|run| run.server.as_str()).collect();
    servers.sort_unstable();
    servers.dedup();
    let mut rows: Vec<(String, Limit, Vec<String>)> = Vec::new();
    for run in runs {
        let column = servers.iter().position(|server| *server == run.server);
        for bound in bounds::all(run) {
            let row = rows
                .iter()
                .position(|(what, limit, _)| *what == bound.what && *limit == bound.limit);
            let row = row.unwrap_or_else(|| {
                let cells = vec![String::new(); servers.len()];
                rows.push((bound.what.clone(), bound.limit, cells));
                rows.len() - 1
            });
            if let (Some(column), Some(value)) = (column, bound.value(run)) {
                rows[row].2[column] = format!("{value:.2} {}", verdict(bound.limit.holds(value)));
            }
        }
    }
    let mut table = empty(look);
    table.set_header(["bound", "limit"].into_iter().chain(servers));
    for (what, limit, cells) in rows {
        table.add_row([what, limit.shown()].into_iter().chain(cells));
    }
    finished(&table, look)
}

fn verdict(holds: bool) -> &'static str {
    if holds {
        "holds"
    } else {
        "NOT MET"
    }
}

/// Prints all that a run has.
pub fn print(run: &Run, bounds: &[Bound]) {
    println!("\n{}", run.told());
    println!("medians of the rounds (least … most)");
    for heading in &HEADINGS {
        if let Some(table) = of(&run.sheet, heading, Look::Terminal) {
            println!("\n{}\n{table}", heading.title);
        }
    }
    if let Some(table) = judged(run, bounds) {
        println!("\nBounds\n{table}");
    }
}

fn empty(look: Look) -> Table {
    let mut table = Table::new();
    table.load_preset(match look {
        Look::Terminal => presets::UTF8_FULL_CONDENSED,
        Look::Markdown => presets::ASCII_MARKDOWN,
    });
    table
}

/// A document's lines are as short as they can be: padding would change with every number.
fn finished(table: &Table, look: Look) -> String {
    match look {
        Look::Terminal => table.to_string(),
        Look::Markdown => table.trim_fmt(),
    }
}

/// The median, and the ends of the rounds where there are some.
fn with_spread(cell: &Cell) -> String {
    let median = shown(cell.median());
    let constant = cell.least() == cell.most();
    // The worst of one kind says enough without the worst of the worst.
    if constant || cell.metric == metric::LEAST_GRANTS || cell.metric == metric::MOST_GRANTS {
        return median;
    }
    format!(
        "{median} ({} … {})",
        shown(cell.least()),
        shown(cell.most())
    )
}

/// A number with as many digits as mean something.
pub fn shown(value: f64) -> String {
    let digits = match value.abs() {
        size if size == size.trunc() || size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() {
        return grouped;
    }
    format!("{grouped}.{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_mean_something() {
        let cases = [
            (0.0, "0"),
            (0.123, "0.12"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.5, "1,234"),
            (1_000_000.0, "1,000,000"),
        ];
        for (value, text) in cases {
            assert_eq!(shown(value), text);
        }
    }
}
