//! Grouped bars with whiskers.

use super::axis::{Axis, Scale, label};
use super::canvas::{Anchor, Canvas, width};

/// A chart of grouped bars.
pub struct Bars {
    /// What the value axis shows, with its unit.
    pub value: String,
    /// How the value axis is spread.
    pub scale: Scale,
    /// The series' names; bar i of each group is of series i and has its colour.
    pub series: Vec<String>,
    /// The groups.
    pub groups: Vec<Group>,
    /// Lines across the chart.
    pub references: Vec<Reference>,
    /// Width and height.
    pub size: (f64, f64),
}

/// Bars that stand together.
pub struct Group {
    /// The name below it.
    pub name: String,
    /// One per series; `None` leaves a gap.
    pub bars: Vec<Option<Bar>>,
}

/// A bar with its whisker.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Its height.
    pub value: f64,
    /// The whisker's lower end.
    pub low: f64,
    /// The whisker's upper end.
    pub high: f64,
}

/// A dashed line at a value.
pub struct Reference {
    /// What it is.
    pub name: String,
    /// Where it is.
    pub value: f64,
}

impl Bars {
    /// The chart as SVG. Its colours are those of series 0, 1, 2 …
    pub fn draw(&self) -> String {
        let bars = self.groups.iter().flat_map(|group| group.bars.iter().flatten());
        let values = bars.flat_map(|bar| [bar.value, bar.low, bar.high]);
        let references = self.references.iter().map(|reference| reference.value);
        let axis = Axis::over(self.scale, values.chain(references));
        let frame = Frame::new(self.size);
        let mut canvas = Canvas::new(self.size.0, self.size.1);
        frame.draw(&mut canvas, &axis, &self.value);
        let entries = self.series.iter().enumerate();
        let entries: Vec<_> = entries.map(|(at, name)| (format!("s{at}"), name.clone())).collect();
        canvas.legend((frame.left, 12.0), &entries);
        let step = (frame.right - frame.left) / self.groups.len().max(1) as f64;
        for (at, group) in self.groups.iter().enumerate() {
            self.group(&mut canvas, &frame, &axis, frame.left + step * at as f64, step, group);
        }
        let mut right = frame.right;
        for reference in &self.references {
            // Named beside the legend: a name on the line would run into the bars.
            canvas.text("", (right, 12.0), Anchor::End, &reference.name);
            right -= width(&reference.name) + 6.0;
            canvas.line("reference", (right - 24.0, 8.5), (right, 8.5));
            right -= 40.0;
            let y = frame.y(axis.place(reference.value));
            canvas.line("reference", (frame.left, y), (frame.right, y));
        }
        canvas.line("axis", (frame.left, frame.bottom), (frame.right, frame.bottom));
        canvas.finish(&self.value)
    }

    fn group(&self, canvas: &mut Canvas, frame: &Frame, axis: &Axis, x: f64, step: f64, group: &Group) {
        let width = step * FILLED / self.series.len().max(1) as f64;
        let start = x + step * (1.0 - FILLED) / 2.0;
        for (at, bar) in group.bars.iter().enumerate() {
            let Some(bar) = bar else { continue };
            let x = start + width * at as f64;
            let top = frame.y(axis.place(bar.value));
            let name = self.series.get(at).map_or("", String::as_str);
            let hint =
                format!("{}, {name}: {} ({} to {})", group.name, label(bar.value), label(bar.low), label(bar.high));
            let size = (width * 0.86, frame.bottom - top);
            canvas.rect(&format!("s{at}"), (x + width * 0.07, top), size, &hint);
            let (low, high) = (frame.y(axis.place(bar.low)), frame.y(axis.place(bar.high)));
            let middle = x + width / 2.0;
            canvas.line("whisker", (middle, low), (middle, high));
            for y in [low, high] {
                canvas.line("whisker", (middle - 3.0, y), (middle + 3.0, y));
            }
        }
        let below = (x + step / 2.0, frame.bottom + 15.0);
        canvas.text("", below, Anchor::Middle, &group.name);
    }
}

/// The space of the axes within a chart.
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Frame {
    pub(super) fn new(size: (f64, f64)) -> Frame {
        Frame { left: 52.0, right: size.0 - 4.0, top: 24.0, bottom: size.1 - 22.0 }
    }

    /// From a place on the value axis, 0 to 1, to a height on the canvas.
    pub(super) fn y(&self, place: f64) -> f64 {
        self.bottom - place * (self.bottom - self.top)
    }

    /// The value axis with its grid.
    pub(super) fn draw(&self, canvas: &mut Canvas, axis: &Axis, name: &str) {
        for tick in axis.ticks() {
            let y = self.y(axis.place(*tick));
            canvas.line("grid", (self.left, y), (self.right, y));
            canvas.text("", (self.left - 6.0, y + 3.5), Anchor::End, &label(*tick));
        }
        canvas.line("axis", (self.left, self.top), (self.left, self.bottom));
        canvas.text_up("", (13.0, (self.top + self.bottom) / 2.0), name);
    }
}

const FILLED: f64 = 0.82;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_is_drawn_to_scale_with_its_whisker() {
        let bar = |value: f64| Some(Bar { value, low: value * 0.9, high: value * 1.1 });
        let chart = Bars {
            value: "GB/s".into(),
            scale: Scale::Linear,
            series: vec!["copy".into(), "auto".into()],
            groups: vec![Group { name: "full".into(), bars: vec![bar(4.0), bar(8.0)] }],
            references: vec![Reference { name: "memcpy".into(), value: 10.0 }],
            size: (400.0, 246.0),
        };
        let svg = chart.draw();
        // 200 units high, from 0 to 10: 4 is 80 high and 8 is 160.
        assert!(svg.contains(r#"height="80.0""#) && svg.contains(r#"height="160.0""#), "{svg}");
        assert_eq!(svg.matches("whisker").count(), 6);
        assert!(svg.contains("reference") && svg.contains(">memcpy<"));
        let without = Bars {
            groups: vec![Group { name: "full".into(), bars: vec![None, bar(8.0)] }],
            references: vec![],
            ..chart
        };
        assert_eq!(without.draw().matches("whisker").count(), 3);
    }
}
