//! Charts of figures: from points to curves.

use super::figure::Point;
use crate::{
    measure::Spread,
    svg::{self, Bar, Mark, Scale, ShareBar, Shares},
};

/// A chart being put together.
pub(super) struct Curves(svg::Curves);

/// A curve of it.
pub(super) struct Curve(svg::Curve);

impl Curves {
    /// An empty chart of `value` over `place`.
    pub(super) fn new(value: &str, place: &str, place_scale: Scale) -> Curves {
        Curves(svg::Curves {
            value: value.to_owned(),
            scale: Scale::Linear,
            place: place.to_owned(),
            place_scale,
            curves: Vec::new(),
            marks: Vec::new(),
            size: (WIDTH, 290.0),
        })
    }

    /// With a logarithmic value axis.
    pub(super) fn logarithmic(mut self) -> Curves {
        self.0.scale = Scale::Log;
        self
    }

    /// Takes a curve, if it has points.
    pub(super) fn add(&mut self, curve: Curve) {
        if !curve.0.points.is_empty() {
            self.0.curves.push(curve.0);
        }
    }

    /// Takes the papers' points.
    pub(super) fn marks(&mut self, marks: Vec<Mark>) {
        self.0.marks.extend(marks);
    }
}

impl Curve {
    /// A spread of each point, scaled.
    pub(super) fn of(
        name: &str,
        series: usize,
        points: Vec<&Point>,
        of: impl Fn(&Point) -> Spread,
        factor: f64,
    ) -> Curve {
        let bar = |point: &&Point| {
            let spread = of(point);
            let bar = Bar {
                value: spread.median * factor,
                low: spread.quarter_low * factor,
                high: spread.quarter_high * factor,
            };
            (point.x as f64, bar)
        };
        Curve(svg::Curve { name: name.to_owned(), series, dashed: false, points: points.iter().map(bar).collect() })
    }

    /// A spread at each place, scaled.
    pub(super) fn spreads(
        name: &str,
        series: usize,
        places: impl Iterator<Item = (u64, Spread)>,
        factor: f64,
    ) -> Curve {
        let bar = |(x, spread): (u64, Spread)| {
            let Spread { median, quarter_low, quarter_high, .. } = spread;
            (x as f64, Bar { value: median * factor, low: quarter_low * factor, high: quarter_high * factor })
        };
        Curve(svg::Curve { name: name.to_owned(), series, dashed: false, points: places.map(bar).collect() })
    }

    /// One number of each point.
    pub(super) fn values(name: &str, series: usize, points: Vec<(u64, f64)>) -> Curve {
        let bar = |(x, value): (u64, f64)| (x as f64, Bar { value, low: value, high: value });
        Curve(svg::Curve {
            name: name.to_owned(),
            series,
            dashed: false,
            points: points.into_iter().map(bar).collect(),
        })
    }

    /// The limit for copies beside these points, in GB/s.
    pub(super) fn limit(name: &str, series: usize, points: &[&Point]) -> Curve {
        let points = points.iter().map(|point| (point.x, point.limit_bytes_per_s / 1e9)).collect();
        let mut curve = Curve::values(name, series, points);
        curve.0.dashed = true;
        curve
    }
}

/// The chart as SVG.
pub(super) fn curves(chart: &Curves) -> String {
    chart.0.draw()
}

/// Shares of a whole, one bar a row.
pub(super) fn breakdown(of: &str, parts: &[&str], rows: &[(String, Vec<f64>)]) -> String {
    let bar = |(name, parts): &(String, Vec<f64>)| ShareBar {
        name: name.clone(),
        parts: parts.clone(),
        remark: String::new(),
    };
    let shares = Shares {
        series: parts.iter().map(|part| (*part).to_owned()).collect(),
        bars: rows.iter().map(bar).collect(),
        width: WIDTH,
    };
    format!("<p class=\"panel\">{of}</p>{}", shares.draw())
}

/// Bars side by side, from values of rounds.
pub(super) mod bars {
    use super::WIDTH;
    use crate::{
        measure::Spread,
        svg::{Bar, Bars, Group, Scale},
    };

    /// Median and quartiles, scaled; none where nothing was measured.
    pub(in crate::figures) fn of(spread: Spread, scale: f64) -> Option<Bar> {
        let Spread { median, quarter_low, quarter_high, samples, .. } = spread;
        (samples > 0).then_some(Bar { value: median * scale, low: quarter_low * scale, high: quarter_high * scale })
    }

    /// The chart as SVG.
    pub(in crate::figures) fn draw(value: &str, series: &[&str], groups: Vec<Group>) -> String {
        draw_by(Scale::Linear, value, series, groups)
    }

    /// As [`draw`], with a logarithmic value axis.
    pub(in crate::figures) fn logarithmic(value: &str, series: &[&str], groups: Vec<Group>) -> String {
        draw_by(Scale::Log, value, series, groups)
    }

    fn draw_by(scale: Scale, value: &str, series: &[&str], groups: Vec<Group>) -> String {
        let series: Vec<String> = series.iter().map(|name| (*name).to_owned()).collect();
        let (value, size, references) = (value.to_owned(), (WIDTH, 260.0), Vec::new());
        Bars { value, scale, series, groups, references, size }.draw()
    }
}

const WIDTH: f64 = 660.0;
