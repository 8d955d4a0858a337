//! Lines over a few named places.

use super::axis::{Axis, Scale, label};
use super::bars::{Bar, Frame};
use super::canvas::{Anchor, Canvas};

/// A chart of lines.
pub struct Lines {
    /// What the value axis shows, with its unit.
    pub value: String,
    /// How the value axis is spread.
    pub scale: Scale,
    /// What the places are.
    pub place: String,
    /// The places' names, from left to right.
    pub places: Vec<String>,
    /// The lines.
    pub lines: Vec<Line>,
    /// Width and height.
    pub size: (f64, f64),
}

/// A line: a value at each place that has one.
pub struct Line {
    /// Its name.
    pub name: String,
    /// Which series' colour it has.
    pub series: usize,
    /// One per place.
    pub points: Vec<Option<Bar>>,
}

impl Lines {
    /// The chart as SVG.
    pub fn draw(&self) -> String {
        let points = self.lines.iter().flat_map(|line| line.points.iter().flatten());
        let axis = Axis::over(self.scale, points.flat_map(|p| [p.value, p.low, p.high]));
        let mut frame = Frame::new(self.size);
        frame.bottom -= 14.0;
        let mut canvas = Canvas::new(self.size.0, self.size.1);
        frame.draw(&mut canvas, &axis, &self.value);
        let entry = |line: &Line| (format!("s{}", line.series), line.name.clone());
        canvas.legend((frame.left, 12.0), &self.lines.iter().map(entry).collect::<Vec<_>>());
        let step = (frame.right - frame.left) / self.places.len().max(1) as f64;
        let x = |at: usize| frame.left + step * (at as f64 + 0.5);
        for (at, name) in self.places.iter().enumerate() {
            canvas.text("", (x(at), frame.bottom + 15.0), Anchor::Middle, name);
        }
        let below = ((frame.left + frame.right) / 2.0, frame.bottom + 31.0);
        canvas.text("", below, Anchor::Middle, &self.place);
        canvas.line("axis", (frame.left, frame.bottom), (frame.right, frame.bottom));
        for (order, line) in self.lines.iter().enumerate() {
            let aside = (order as f64 - (self.lines.len() as f64 - 1.0) / 2.0) * 4.0;
            let mut path = Vec::new();
            for (at, point) in line.points.iter().enumerate() {
                let Some(point) = point else { continue };
                let (x, y) = (x(at) + aside, frame.y(axis.place(point.value)));
                let (low, high) = (axis.place(point.low), axis.place(point.high));
                canvas.line("whisker", (x, frame.y(low)), (x, frame.y(high)));
                path.push((x, y, label(point.value)));
            }
            let places: Vec<_> = path.iter().map(|(x, y, _)| (*x, *y)).collect();
            canvas.path(&format!("line l{}", line.series), &places);
            for (x, y, value) in path {
                let hint = format!("{}: {value}", line.name);
                canvas.dot(&format!("s{}", line.series), (x, y), 3.2, &hint);
            }
        }
        canvas.finish(&self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_skip_what_is_missing() {
        let point = |value: f64| Some(Bar { value, low: value, high: value });
        let chart = Lines {
            value: "GB/s".into(),
            scale: Scale::Linear,
            place: "updates".into(),
            places: ["0", "1", "4"].map(String::from).to_vec(),
            lines: vec![Line { name: "delta".into(), series: 2, points: vec![point(10.0), None, point(5.0)] }],
            size: (352.0, 160.0),
        };
        let svg = chart.draw();
        assert_eq!(svg.matches("<circle").count(), 2);
        let path = svg.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(path.matches('L').count(), 1, "{path}");
        assert!(path.starts_with("M101.3 24.0") && path.ends_with("74.0"), "{path}");
    }
}
