//! Tables of a sheet, for a terminal and for a document in Markdown.

use comfy_table::{presets, CellAlignment, Table};

use crate::bounds::{self, Bound, Limit};
use crate::sheet::{metric, shown, Cell, Place, Run, Sheet};
use crate::{
    block_end, contended, handoff, instructions, lease_end, mass_end, memory, pair, peers, replicas,
};

/// The destination of a table.
#[derive(Clone, Copy)]
pub enum Look {
    /// A terminal.
    Terminal,
    /// A document in Markdown.
    Markdown,
}

/// The title and the first columns of a benchmark's table.
pub struct Heading {
    /// The benchmark's name.
    pub benchmark: &'static str,
    /// The title of the table.
    pub title: &'static str,
    /// The heading of the settings; empty if the benchmark has none.
    setting: &'static str,
    /// The heading of the sizes; empty if the benchmark has none.
    size: &'static str,
}

impl Heading {
    /// Returns the anchor of a section with this title.
    pub fn anchor(&self) -> String {
        self.title.to_lowercase().replace(' ', "-")
    }
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

/// The headings of all benchmarks, in the order of their tables.
pub const HEADINGS: [Heading; 12] = [
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
    heading(contended::CLIENTS, "Each of 16 contenders", "", "rank"),
    heading(handoff::NAME, "Hand-off", "server", ""),
    heading(replicas::NAME, "A grant that a replica has", "", ""),
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

/// Returns the table of a benchmark, or `None` if the sheet has no results of it.
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

/// Returns the table of bounds with the values of a run, or `None` if the run has no values.
pub fn judged(run: &Run, bounds: &[Bound]) -> Option<String> {
    let look = Look::Terminal;
    let mut table = empty(look);
    table.set_header(["bound", "limit", "measured"]);
    for bound in bounds {
        let Some(value) = bound.value(run) else {
            continue;
        };
        let limit = bound.limit.shown();
        table.add_row([&bound.what, &limit, &judgement(bound.limit, value)]);
    }
    (table.row_count() > 0).then(|| finished(&table, look))
}

/// Returns the table of bounds with the values of each server. A server may have several runs.
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
                rows[row].2[column] = judgement(bound.limit, value);
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

/// Returns the value and whether it is within the limit. The value has as many digits as it takes
/// to see that.
fn judgement(limit: Limit, value: f64) -> String {
    let holds = limit.holds(value);
    let told = |digits: &usize| {
        let text = format!("{value:.digits$}");
        text.parse()
            .is_ok_and(|rounded| limit.holds(rounded) == holds)
    };
    let digits = (2..6).find(told).unwrap_or(6);
    let verdict = if holds { "holds" } else { "NOT MET" };
    format!("{value:.digits$} {verdict}")
}

/// Returns the table that compares LOCK.WAIT with polling every millisecond, for up to 1,000
/// contenders, or `None` if the run has no results of a contended lock.
pub fn polling(run: &Run) -> Option<String> {
    let ways = [contended::LOCK, contended::POLL_QUICKLY];
    let mut table = empty(Look::Markdown);
    let columns = ways.iter().flat_map(|way| {
        let grants = format!("{way}: grants/s");
        [
            grants,
            "grants of a client".to_owned(),
            "longest wait, ms".to_owned(),
        ]
    });
    table.set_header(["contenders".to_owned()].into_iter().chain(columns));
    let asked = |cell: &&Cell| {
        let at = (cell.place.contestant.as_str(), cell.metric.as_str());
        at == (contended::LOCK, metric::GRANTS_PER_SECOND) && cell.place.size <= 1_000
    };
    for cell in run.sheet.of(contended::NAME).filter(asked) {
        let mut row = vec![shown(cell.place.size as f64)];
        for way in ways {
            let place = Place::new(contended::NAME, "", cell.place.size, way);
            let median = |metric| run.sheet.median(&place, metric).map(shown);
            let ends = [median(metric::LEAST_GRANTS)?, median(metric::MOST_GRANTS)?];
            row.extend([
                median(metric::GRANTS_PER_SECOND)?,
                ends.join(" … "),
                median(metric::WAIT_MAX)?,
            ]);
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    (table.row_count() > 0).then(|| finished(&table, Look::Markdown))
}

/// Prints all results of a run.
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

/// Returns the table as text. Lines of a document have no padding, because padding would change
/// with every number.
fn finished(table: &Table, look: Look) -> String {
    match look {
        Look::Terminal => table.to_string(),
        Look::Markdown => table.trim_fmt(),
    }
}

/// Returns the median, and the minimum and maximum if the rounds differ.
fn with_spread(cell: &Cell) -> String {
    let median = shown(cell.median());
    let constant = cell.least() == cell.most();
    // The least and most grants are extremes already, so their spread is left out.
    if constant || cell.metric == metric::LEAST_GRANTS || cell.metric == metric::MOST_GRANTS {
        return median;
    }
    format!(
        "{median} ({} … {})",
        shown(cell.least()),
        shown(cell.most())
    )
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

    #[test]
    fn a_value_that_reads_like_its_limit_has_more_digits() {
        let cases = [
            (Limit::AtLeast(0.95), 0.9472, "0.947 NOT MET"),
            (Limit::AtLeast(0.95), 0.9, "0.90 NOT MET"),
            (Limit::AtMost(1.3), 1.2961, "1.30 holds"),
            (Limit::AtMost(1.3), 1.300_04, "1.30004 NOT MET"),
        ];
        for (limit, value, text) in cases {
            assert_eq!(judgement(limit, value), text);
        }
    }
}
