//! The samples as curves over the hours.

use anyhow::Result;
use plotters::prelude::*;

use crate::sample::{Sample, CURVES};

/// Width of the drawing and height of a curve's chart, in pixels.
const WIDTH: u32 = 800;
const HEIGHT: u32 = 160;

/// Draws one chart for each curve, one below the other, as SVG.
pub fn of(samples: &[Sample]) -> Result<String> {
    let mut svg = String::new();
    {
        let size = (WIDTH, HEIGHT * CURVES.len() as u32);
        let paper = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        paper.fill(&WHITE)?;
        let hours = samples.last().map_or(1.0, |last| last.hours);
        for (at, area) in paper.split_evenly((CURVES.len(), 1)).iter().enumerate() {
            let points = || {
                samples
                    .iter()
                    .map(|sample| (sample.hours, sample.values[at]))
            };
            let top = points().map(|(_, value)| value).fold(0.001, f64::max) * 1.2;
            let curve = &CURVES[at];
            let mut chart = ChartBuilder::on(area)
                .caption(format!("{} {}", curve.name, curve.unit), ("sans-serif", 15))
                .margin(8)
                .set_label_area_size(LabelAreaPosition::Left, 60)
                .set_label_area_size(LabelAreaPosition::Bottom, 24)
                .build_cartesian_2d(0.0..hours, 0.0..top)?;
            chart.configure_mesh().disable_x_mesh().y_labels(4).draw()?;
            chart.draw_series(LineSeries::new(points(), &BLUE))?;
        }
        paper.present()?;
    }
    Ok(svg)
}
