//! Drawings of a run. Each file is named after the server. The same results give the same drawing.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::sheet::{metric, shown, Cell, Extent, Run};
use crate::{contended, pair};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const SIZE: (u32, u32) = (900, 420);
const FONT: &str = "sans-serif";
/// The width of the area for the names of bars and lines.
const NAMES_WIDTH: u32 = 250;

/// Colours that most colour-blind readers can distinguish.
const COLOURS: [RGBColor; 5] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
    RGBColor(120, 120, 120),
];

/// A drawing of one metric.
struct Drawing {
    /// The drawing's part of the file name.
    name: &'static str,
    title: &'static str,
    metric: &'static str,
}

/// Line charts over the number of contenders.
const LINES: [Drawing; 3] = [
    Drawing {
        name: "contended",
        title: "One lock, so many contenders: grants/s",
        metric: metric::GRANTS_PER_SECOND,
    },
    Drawing {
        name: "contended-wait",
        title: "One lock, so many contenders: wait, p99, ms",
        metric: metric::WAIT_P99,
    },
    Drawing {
        name: "contended-cpu",
        title: "One lock, so many contenders: server CPU a grant, µs",
        metric: metric::CPU_GRANT,
    },
];

/// Bar charts of a pair, in pipelines of 64 commands without an append-only file.
const BARS: [Drawing; 2] = [
    Drawing {
        name: "pair",
        title: "Uncontended pairs/s, pipelines of 64",
        metric: metric::PAIRS_PER_SECOND,
    },
    Drawing {
        name: "pair-cpu",
        title: "Server CPU of an uncontended pair, µs, pipelines of 64",
        metric: metric::CPU_PAIR,
    },
];

/// Draws the results of a run into a folder.
pub fn draw(run: &Run, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for drawing in &LINES {
        let cells = cells(run, contended::NAME, drawing);
        if !cells.is_empty() {
            on_paper(run, folder, drawing, |area| lines(area, &cells))?;
        }
    }
    for drawing in &BARS {
        let mut cells = cells(run, pair::NAME, drawing);
        cells.retain(|cell| cell.place.setting == pair::AOF_OFF && cell.place.size == 64);
        if !cells.is_empty() {
            on_paper(run, folder, drawing, |area| bars(area, &cells))?;
        }
    }
    Ok(())
}

fn cells<'a>(run: &'a Run, benchmark: &'a str, drawing: &Drawing) -> Vec<&'a Cell> {
    let cells = run.sheet.of(benchmark);
    cells.filter(|cell| cell.metric == drawing.metric).collect()
}

fn on_paper(
    run: &Run,
    folder: &Path,
    drawing: &Drawing,
    draw: impl FnOnce(&Area<'_>) -> Result<()>,
) -> Result<()> {
    let path = folder.join(format!("{}-{}.svg", run.slug(), drawing.name));
    let paper = SVGBackend::new(&path, SIZE).into_drawing_area();
    paper.fill(&WHITE)?;
    let (head, rest) = paper.split_vertically(58);
    head.draw(&Text::new(drawing.title, (16, 10), (FONT, 20).into_font()))?;
    let small = (FONT, 13).into_font().color(&BLACK.mix(0.6));
    head.draw(&Text::new(under_title(run), (16, 36), small))?;
    draw(&rest)?;
    paper.present().with_context(|| path.display().to_string())
}

fn under_title(run: &Run) -> String {
    let extent = match run.extent {
        Extent::Quick => "; a quick run, too short to judge by",
        Extent::Full => "",
    };
    format!(
        "{}, medians and spread of rounds, {} cores{extent}",
        run.server, run.cores
    )
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

/// Draws one line per contestant. Both axes are logarithmic.
fn lines(area: &Area<'_>, cells: &[&Cell]) -> Result<()> {
    let (left, right) = area.split_horizontally(SIZE.0 - NAMES_WIDTH);
    let sizes = range(cells.iter().map(|cell| cell.place.size as f64));
    let values = range(cells.iter().flat_map(|cell| [cell.least(), cell.most()]));
    let mut chart = ChartBuilder::on(&left)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(72)
        .build_cartesian_2d(sizes.log_scale(), values.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("contenders")
        .x_label_formatter(&|size| shown(*size))
        .y_label_formatter(&|value| shown(*value))
        .draw()?;
    for (number, name) in contestants(cells).into_iter().enumerate() {
        let colour = colour(name, number);
        let its = || cells.iter().filter(|cell| cell.place.contestant == name);
        let points: Vec<(f64, f64)> = its()
            .map(|cell| (cell.place.size as f64, positive(cell.median())))
            .collect();
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        let dots = points
            .into_iter()
            .map(|at| Circle::new(at, 3, colour.filled()));
        chart.draw_series(dots)?;
        let spreads = its().map(|cell| {
            let size = cell.place.size as f64;
            let ends = [positive(cell.least()), positive(cell.most())];
            PathElement::new(ends.map(|value| (size, value)), colour.stroke_width(1))
        });
        chart.draw_series(spreads)?;
        let row = 20 + 24 * number as i32;
        right.draw(&Circle::new((8, row), 5, colour.filled()))?;
        right.draw(&Text::new(name, (20, row - 7), (FONT, 14).into_font()))?;
    }
    Ok(())
}

/// Draws one bar per contestant, with the first contestant on top.
fn bars(area: &Area<'_>, cells: &[&Cell]) -> Result<()> {
    let most = cells.iter().map(|cell| cell.most()).fold(0.0, f64::max);
    let rows = cells.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_left(NAMES_WIDTH)
        .margin_right(90)
        .x_label_area_size(30)
        .build_cartesian_2d(0.0..most * 1.05, 0.0..rows)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(6)
        .x_label_formatter(&|value| shown(*value))
        .draw()?;
    for (number, cell) in cells.iter().enumerate() {
        let middle = rows - number as f64 - 0.5;
        let colour = colour(&cell.place.contestant, number);
        let corners = [(0.0, middle - 0.3), (cell.median(), middle + 0.3)];
        chart.draw_series([Rectangle::new(corners, colour.mix(0.8).filled())])?;
        let ends = [(cell.least(), middle), (cell.most(), middle)];
        chart.draw_series([PathElement::new(ends, BLACK.stroke_width(1))])?;
        let at = |value: f64| chart.backend_coord(&(value, middle));
        let (origin, end) = (area.get_base_pixel(), at(cell.most()));
        let text = |right: HPos| {
            let font = (FONT, 14).into_font();
            TextStyle::from(font).pos(Pos::new(right, VPos::Center))
        };
        let place = (at(0.0).0 - origin.0 - 8, end.1 - origin.1);
        let name = cell.place.contestant.clone();
        area.draw(&Text::new(name, place, text(HPos::Right)))?;
        let place = (end.0 - origin.0 + 6, end.1 - origin.1);
        area.draw(&Text::new(shown(cell.median()), place, text(HPos::Left)))?;
    }
    Ok(())
}

/// Returns the colour of a contestant. This module has the same colour in every drawing.
fn colour(name: &str, number: usize) -> RGBColor {
    if name.starts_with("LOCK.") {
        return COLOURS[0];
    }
    COLOURS[1 + number % (COLOURS.len() - 1)]
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
