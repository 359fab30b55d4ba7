//! Drawings of a run, in SVG. The same results give the same drawing.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::sheet::{metric, shown, Cell, Extent, Place, Run};
use crate::{contended, pair, pairs, peers};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The width of a drawing, in pixels. GitHub's pages are about that wide, so GitHub shows a drawing
/// in its own size.
const WIDTH: u32 = 830;
const FONT: &str = "sans-serif";
/// The size of text. plotters divides it by 1.24, which gives 14.5 pixels.
const TEXT: u32 = 18;
/// The size of a drawing's title.
const TITLE: u32 = 24;
/// The height of the part with the titles and the headings.
const HEAD: u32 = 110;
/// The height of a row of bars, which has a label above the bar.
const ROW: u32 = 48;
/// The height of the part below an axis.
const AXIS: u32 = 32;
/// The width of the part with the names.
const NAMES: u32 = 270;
/// The width of the part with the samples and the names of lines.
const LEGEND: u32 = 290;
/// The fewest contenders that the drawing of the server's cost shows.
const CROWD: u64 = 100;

/// The look of a contestant's line or bar.
#[derive(Clone, Copy)]
struct Look {
    colour: RGBColor,
    /// The lengths of a dash and of the gap behind it, or `None` for a solid line.
    dash: Option<(i32, i32)>,
}

const fn look(colour: RGBColor, dash: Option<(i32, i32)>) -> Look {
    Look { colour, dash }
}

/// The look of this module in every drawing.
const OURS: Look = look(RGBColor(213, 94, 0), None);

/// The looks of the other contestants. Most colour-blind readers can distinguish the colours, and
/// the dashes differ too.
const OTHERS: [Look; 4] = [
    look(RGBColor(0, 114, 178), Some((12, 5))),
    look(RGBColor(0, 158, 115), Some((2, 4))),
    look(RGBColor(204, 121, 167), Some((6, 3))),
    look(RGBColor(90, 90, 90), Some((18, 8))),
];

/// A drawing.
pub struct Drawing {
    /// The drawing's part of the file name.
    name: &'static str,
    /// The title.
    pub title: String,
    svg: String,
}

impl Drawing {
    /// Returns the name of the drawing's file.
    pub fn file(&self, run: &Run) -> String {
        format!("{}-{}.svg", run.slug(), self.name)
    }
}

/// The words of a drawing.
struct Words {
    name: &'static str,
    title: String,
    /// The line below the title, after the server's name.
    measured: String,
    /// The figures, for readers who don't see the drawing.
    figures: Vec<String>,
}

/// Draws the results of a run into a folder.
pub fn draw(run: &Run, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for drawing in drawings(run)? {
        let path = folder.join(drawing.file(run));
        fs::write(&path, &drawing.svg).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Returns the drawings of what the run has measured.
pub fn drawings(run: &Run) -> Result<Vec<Drawing>> {
    let drawings = [
        each_client(run)?,
        crowd(run)?,
        free_lock(run)?,
        libraries(run)?,
    ];
    Ok(drawings.into_iter().flatten().collect())
}

/// Draws what each of 16 contenders got: the grants and the longest wait.
fn each_client(run: &Run) -> Result<Option<Drawing>> {
    let size = contended::EACH as u64;
    let cells = cells(run, contended::NAME, metric::WAIT_MAX, |place| {
        place.size == size
    });
    let (mut grants, mut waits, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for (look, cell) in looks(&cells).into_iter().zip(&cells) {
        let name = &cell.place.contestant;
        let median = |metric| {
            let median = run.sheet.median(&cell.place, metric);
            median.with_context(|| format!("{name} has no {metric}"))
        };
        let ends = [median(metric::LEAST_GRANTS)?, median(metric::MOST_GRANTS)?];
        let longest = median(metric::WAIT_MAX)?;
        let label = format!("{} to {}", shown(ends[0]), shown(ends[1]));
        figures.push(format!(
            "{name}: {label} grants a client, longest wait {} ms",
            shown(longest)
        ));
        let recorded = of_each(run, name, metric::GRANTS);
        grants.push(Bar {
            name: name.clone(),
            span: ends[0]..ends[1],
            ticks: if recorded.is_empty() {
                ends.to_vec()
            } else {
                recorded
            },
            label,
            look,
        });
        waits.push(Bar {
            name: String::new(),
            span: 0.0..longest,
            ticks: of_each(run, name, metric::LONGEST_WAIT),
            label: format!("{} ms", shown(longest)),
            look,
        });
    }
    let window = shown(contended::window(run.extent).as_secs_f64());
    let words = Words {
        name: "clients",
        title: format!("{size} clients want one lock: what does each client get?"),
        measured: format!("counted for {window} s, {}", medians(&cells)),
        figures,
    };
    let panels = [
        Panel {
            heading: [
                "grants of one client, least to most",
                "higher is better, a short bar is fair",
            ],
            bars: grants,
        },
        Panel {
            heading: ["longest wait of any client, ms", "lower is better"],
            bars: waits,
        },
    ];
    bars(run, words, &panels)
}

/// Returns a figure of each client, in ascending order. Results of early versions have none.
fn of_each(run: &Run, way: &str, metric: &str) -> Vec<f64> {
    let cells = cells(run, contended::CLIENTS, metric, |place| {
        place.contestant == way
    });
    cells.into_iter().map(Cell::median).collect()
}

/// Draws the server's cost of a grant with 100 contenders and more.
fn crowd(run: &Run) -> Result<Option<Drawing>> {
    let cells = cells(run, contended::NAME, metric::CPU_GRANT, |place| {
        place.size >= CROWD
    });
    let figures = contestants(&cells).into_iter().map(|name| {
        let its = cells.iter().filter(|cell| cell.place.contestant == name);
        let points = its.map(|cell| {
            let size = shown(cell.place.size as f64);
            format!("{} with {size} contenders", shown(cell.median()))
        });
        format!("{name}: {}", points.collect::<Vec<_>>().join(", "))
    });
    let words = Words {
        name: "cpu",
        title: "What does a grant cost the server, the more clients wait?".to_owned(),
        measured: format!("{}; upright lines: their spread", medians(&cells)),
        figures: figures.collect(),
    };
    if cells.is_empty() {
        return Ok(None);
    }
    on_paper(run, words, 460, |paper| lines(paper, &cells)).map(Some)
}

/// Draws the server's cost of taking and releasing a lock that no other client wants.
fn free_lock(run: &Run) -> Result<Option<Drawing>> {
    let cells = cells(run, pair::NAME, metric::CPU_PAIR, |place| {
        place.setting == pair::AOF_OFF && place.size == 64 && place.contestant != pairs::PING
    });
    let bar = |(look, cell): (Look, &&Cell)| Bar {
        name: cell.place.contestant.clone(),
        span: 0.0..cell.median(),
        ticks: vec![cell.least(), cell.most()],
        label: format!("{} µs", shown(cell.median())),
        look,
    };
    let free: Vec<Bar> = looks(&cells).into_iter().zip(&cells).map(bar).collect();
    let figures = free
        .iter()
        .map(|bar| format!("{}: {}", bar.name, bar.label));
    let words = Words {
        name: "pair",
        title: "What does it cost the server to take and release a free lock?".to_owned(),
        measured: format!("pipelines of 64, {}; ticks: their spread", medians(&cells)),
        figures: figures.collect(),
    };
    let panel = Panel {
        heading: ["server CPU of both commands, µs", "lower is better"],
        bars: free,
    };
    bars(run, words, &[panel])
}

/// Draws what the lock libraries make of one lock that several processes contend for, with some work
/// between two requests.
fn libraries(run: &Run) -> Result<Option<Drawing>> {
    let size = peers::DRAWN as u64;
    // Results of early versions have no waits.
    let cells = cells(run, peers::NAME, metric::WAIT_P99, |place| {
        place.size == size && place.setting.ends_with(peers::WORKING)
    });
    let (mut grants, mut waits, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for wait in &cells {
        let contestant = wait.place.contestant.as_str();
        let look = if is_ours(contestant) { OURS } else { OTHERS[0] };
        let name = format!("{}: {contestant}", language(wait));
        let granted = run.sheet.cell(&wait.place, metric::GRANTS_PER_SECOND);
        let granted = granted.with_context(|| format!("{name} has no grants"))?;
        let label = shown(granted.median());
        let longest = format!("{} ms", shown(wait.median()));
        figures.push(format!(
            "{name}: {label} grants/s, p99 of the wait {longest}"
        ));
        let ends = |cell: &Cell| vec![cell.least(), cell.most()];
        grants.push(Bar {
            name,
            span: 0.0..granted.median(),
            ticks: ends(granted),
            label,
            look,
        });
        waits.push(Bar {
            name: String::new(),
            span: 0.0..wait.median(),
            ticks: ends(wait),
            label: longest,
            look,
        });
    }
    let words = Words {
        name: "peers",
        title: format!(
            "{size} contenders in several processes: what does each library make of it?"
        ),
        measured: format!(
            "1 ms with the lock and 10 ms without, {}; ticks: their spread",
            medians(&cells)
        ),
        figures,
    };
    let panels = [
        Panel {
            heading: ["grants a second", "higher is better"],
            bars: grants,
        },
        Panel {
            heading: ["wait of a contender, p99, ms", "lower is better"],
            bars: waits,
        },
    ];
    bars(run, words, &panels)
}

/// Returns the language of a library, the first word of its setting.
fn language(cell: &Cell) -> &str {
    let setting = cell.place.setting.as_str();
    setting.split(',').next().unwrap_or(setting)
}

fn cells<'a>(
    run: &'a Run,
    benchmark: &'a str,
    metric: &str,
    wanted: impl Fn(&Place) -> bool,
) -> Vec<&'a Cell> {
    let cells = run.sheet.of(benchmark);
    cells
        .filter(|cell| cell.metric == metric && wanted(&cell.place))
        .collect()
}

/// Returns what a figure is made of.
fn medians(cells: &[&Cell]) -> String {
    let rounds = cells.iter().map(|cell| cell.rounds.len()).max();
    format!("medians of {} rounds", rounds.unwrap_or(0))
}

/// Returns true if a contestant uses this module.
fn is_ours(name: &str) -> bool {
    name.starts_with("LOCK.") || name.starts_with(peers::OURS)
}

/// Returns the contestants in the order of their first cells.
fn contestants<'a>(cells: &[&'a Cell]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for cell in cells {
        if !names.contains(&cell.place.contestant.as_str()) {
            names.push(&cell.place.contestant);
        }
    }
    names
}

/// Returns the look of each contestant, in their order.
fn looks(cells: &[&Cell]) -> Vec<Look> {
    let mut others = OTHERS.into_iter().cycle();
    let names = contestants(cells).into_iter();
    let looks = names.map(|name| match is_ours(name) {
        true => OURS,
        false => others.next().unwrap_or(OURS),
    });
    looks.collect()
}

/// Draws on white paper below the titles. Adds the title and the figures as text, because a screen
/// reader can't read the lines.
fn on_paper(
    run: &Run,
    words: Words,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<()>,
) -> Result<Drawing> {
    let mut svg = String::new();
    {
        let paper = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        paper.fill(&WHITE)?;
        write(&paper, &words.title, (16, 14), TITLE)?;
        let quick = match run.extent {
            Extent::Quick => "; a quick run, too short to judge by",
            Extent::Full => "",
        };
        let Run { server, cores, .. } = run;
        let measured = format!("{server}, {cores} cores, {}{quick}", words.measured);
        write(&paper, &measured, (16, 42), TEXT)?;
        draw(&paper)?;
        paper.present()?;
    }
    let described = format!("{}. {}.", run.server, words.figures.join(". "));
    let head = format!(
        "<svg role=\"img\" aria-labelledby=\"title desc\" {}",
        svg.strip_prefix("<svg ").context("no <svg>")?
    );
    let (head, body) = head.split_once(">\n").context("no end of <svg>")?;
    let (title, described) = (escaped(&words.title), escaped(&described));
    Ok(Drawing {
        name: words.name,
        svg: format!(
            "{head}>\n<title id=\"title\">{title}</title>\n<desc id=\"desc\">{described}</desc>\n{body}"
        ),
        title: words.title,
    })
}

/// Returns the text as the content of an element of XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Writes a text with its upper left corner at a place.
fn write(area: &Area<'_>, text: &str, place: (i32, i32), size: u32) -> Result<()> {
    let font = (FONT, size).into_font();
    Ok(area.draw(&Text::new(text.to_owned(), place, font))?)
}

/// A bar with its name and label.
struct Bar {
    name: String,
    span: Range<f64>,
    /// Single values, drawn as ticks across the bar.
    ticks: Vec<f64>,
    label: String,
    look: Look,
}

/// Bars with a common axis.
struct Panel {
    heading: [&'static str; 2],
    bars: Vec<Bar>,
}

/// Draws panels side by side, with the names of the first one's bars to the left of all.
fn bars(run: &Run, words: Words, panels: &[Panel]) -> Result<Option<Drawing>> {
    let rows = panels[0].bars.len() as u32;
    if rows == 0 {
        return Ok(None);
    }
    let height = HEAD + rows * ROW + AXIS;
    let width = (WIDTH - NAMES) / panels.len() as u32;
    let draw = |paper: &Area<'_>| {
        for (row, bar) in (0..).zip(&panels[0].bars) {
            let middle = (HEAD + row * ROW + ROW / 2) as i32;
            let right = Pos::new(HPos::Right, VPos::Center);
            let style = TextStyle::from((FONT, TEXT).into_font()).pos(right);
            let place = (NAMES as i32 - 12, middle);
            paper.draw(&Text::new(bar.name.clone(), place, style))?;
        }
        for (number, panel) in (0..).zip(panels) {
            let left = NAMES + number * width;
            panel.draw(paper, left, width)?;
        }
        Ok(())
    };
    on_paper(run, words, height, draw).map(Some)
}

impl Panel {
    fn draw(&self, paper: &Area<'_>, left: u32, width: u32) -> Result<()> {
        for (line, text) in (0..).zip(self.heading) {
            write(paper, text, (left as i32, 68 + 19 * line), TEXT)?;
        }
        let rows = self.bars.len() as u32;
        // Leaves room for the last number of the axis.
        let size = (width - 24, rows * ROW + AXIS);
        let most = self.bars.iter().flat_map(|bar| &bar.ticks).copied();
        let most = most.chain(self.bars.iter().map(|bar| bar.span.end));
        let most = most.fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(&paper.clone().shrink((left, HEAD), size))
            .x_label_area_size(AXIS)
            .build_cartesian_2d(0.0..most * 1.02, 0.0..f64::from(rows))?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(5)
            .x_label_style((FONT, TEXT))
            .x_label_formatter(&|value| shown(*value))
            .draw()?;
        for (row, bar) in (0..).zip(&self.bars) {
            let foot = f64::from(rows - row - 1);
            let corners = [(bar.span.start, foot + 0.1), (bar.span.end, foot + 0.45)];
            let colour = bar.look.colour;
            chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            chart.draw_series(bar.ticks.iter().map(|tick| {
                let ends = [(*tick, foot + 0.05), (*tick, foot + 0.5)];
                PathElement::new(ends, BLACK.stroke_width(2))
            }))?;
            let place = (left as i32 + 4, (HEAD + row * ROW + 6) as i32);
            write(paper, &bar.label, place, TEXT)?;
        }
        Ok(())
    }
}

/// Draws one line per contestant. Both axes are logarithmic.
fn lines(paper: &Area<'_>, cells: &[&Cell]) -> Result<()> {
    write(
        paper,
        "server CPU of a grant, µs (log scale): lower is better",
        (16, 72),
        TEXT,
    )?;
    let (width, height) = paper.dim_in_pixel();
    let area = paper.clone().shrink((0, 96), (width - LEGEND, height - 96));
    let sizes = range(cells.iter().map(|cell| cell.place.size as f64));
    let values = range(cells.iter().flat_map(|cell| [cell.least(), cell.most()]));
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(54)
        .y_label_area_size(76)
        .build_cartesian_2d(sizes.log_scale(), values.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style((FONT, TEXT))
        .axis_desc_style((FONT, TEXT))
        .x_desc("contenders (log scale)")
        .x_label_formatter(&|size| shown(*size))
        .y_label_formatter(&|value| shown(*value))
        .draw()?;
    let contestants = contestants(cells);
    for (number, (name, look)) in (0..).zip(contestants.into_iter().zip(looks(cells))) {
        let its = cells.iter().filter(|cell| cell.place.contestant == name);
        let at =
            |cell: &Cell, value| chart.backend_coord(&(cell.place.size as f64, positive(value)));
        let mut points = Vec::new();
        for cell in its {
            let spread = [at(cell, cell.least()), at(cell, cell.most())];
            paper.draw(&PathElement::new(spread, look.colour.stroke_width(1)))?;
            paper.draw(&Circle::new(
                at(cell, cell.median()),
                4,
                look.colour.filled(),
            ))?;
            points.push(at(cell, cell.median()));
        }
        line(paper, points, look)?;
        let (left, row) = ((width - LEGEND) as i32, 120 + 28 * number);
        line(paper, vec![(left, row), (left + 42, row)], look)?;
        write(paper, name, (left + 50, row - 8), TEXT)?;
    }
    Ok(())
}

/// Draws a line through places of the paper.
fn line(paper: &Area<'_>, points: Vec<(i32, i32)>, look: Look) -> Result<()> {
    let stroke = look.colour.stroke_width(3);
    match look.dash {
        None => paper.draw(&PathElement::new(points, stroke))?,
        Some((dash, gap)) => paper.draw(&DashedPathElement::new(points, dash, gap, stroke))?,
    }
    Ok(())
}

/// Returns the range of the values with some margin, for a logarithmic axis.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let mut range = f64::INFINITY..0.0;
    for value in values.map(positive) {
        range.start = range.start.min(value);
        range.end = range.end.max(value);
    }
    range.start * 0.8..range.end * 1.25
}

/// Returns the value, at least 0.001, because a logarithmic axis can't show zero.
fn positive(value: f64) -> f64 {
    value.max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_the_same_name_have_a_bar_each() -> Result<()> {
        let mut run = Run::begin("Redis 8.6.3".to_owned(), "0.1.0".to_owned(), Extent::Full)?;
        assert!(libraries(&run)?.is_none());
        for (setting, name) in [
            ("Go, goroutines", "redsync"),
            ("Go, goroutines", peers::OURS),
            ("Node, ioredis", peers::OURS),
        ] {
            let setting = format!("{setting}{}", peers::WORKING);
            let place = Place::new(peers::NAME, &setting, peers::DRAWN as u64, name);
            for metric in [metric::WAIT_P99, metric::GRANTS_PER_SECOND] {
                run.sheet.note(&place, metric, 4.0)?;
            }
        }
        let drawing = libraries(&run)?.context("a drawing")?;
        for name in ["Go: redsync", "Go: redis-lock", "Node: redis-lock"] {
            assert!(
                drawing.svg.contains(&format!("{name}: 4 grants/s")),
                "{name}"
            );
            assert!(drawing.svg.contains(&format!(">\n{name}\n<")), "{name}");
        }
        Ok(())
    }

    #[test]
    fn lines_differ_by_colour_and_by_dash() {
        let looks: Vec<Look> = OTHERS.into_iter().chain([OURS]).collect();
        for (index, one) in looks.iter().enumerate() {
            for other in &looks[index + 1..] {
                assert!(one.colour != other.colour && one.dash != other.dash);
            }
        }
    }

    #[test]
    fn clients_that_were_noted_have_a_tick_each() -> Result<()> {
        let mut run = Run::begin("Redis 8.6.3".to_owned(), "0.1.0".to_owned(), Extent::Full)?;
        let place = Place::new(contended::NAME, "", contended::EACH as u64, contended::LOCK);
        for metric in [metric::LEAST_GRANTS, metric::MOST_GRANTS, metric::WAIT_MAX] {
            run.sheet.note(&place, metric, 4.0)?;
        }
        let ticks = |run: &Run| -> Result<usize> {
            let drawing = each_client(run)?.context("a drawing")?;
            let ticks = drawing.svg.matches("stroke=\"#000000\" stroke-width=\"2\"");
            Ok(ticks.count())
        };
        assert_eq!(ticks(&run)?, 2);
        for rank in 1..=5 {
            let place = Place::new(contended::CLIENTS, "", rank, contended::LOCK);
            run.sheet.note(&place, metric::GRANTS, rank as f64)?;
        }
        assert_eq!(ticks(&run)?, 5);
        Ok(())
    }
}
