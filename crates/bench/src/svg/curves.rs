//! Curves over a numeric axis, with limits as dashed lines and others' points as diamonds.

use super::axis::{Axis, Scale, label};
use super::bars::{Bar, Frame};
use super::canvas::{Anchor, Canvas, KEY, width};

/// A chart of curves.
pub struct Curves {
    /// What the value axis shows, with its unit.
    pub value: String,
    /// How the value axis is spread.
    pub scale: Scale,
    /// What the other axis shows.
    pub place: String,
    /// How it is spread.
    pub place_scale: Scale,
    /// The curves.
    pub curves: Vec<Curve>,
    /// Others' points.
    pub marks: Vec<Mark>,
    /// Width and height.
    pub size: (f64, f64),
}

/// A curve, its points in ascending order.
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Which series' colour it has.
    pub series: usize,
    /// A limit: dashed and without dots.
    pub dashed: bool,
    /// Place and value.
    pub points: Vec<(f64, Bar)>,
}

/// A point that somebody else measured elsewhere.
pub struct Mark {
    /// Whose it is and what it says; shown when pointed at.
    pub hint: String,
    /// A few letters beside it.
    pub name: String,
    /// Place and value.
    pub at: (f64, f64),
}

impl Curves {
    /// The chart as SVG.
    pub fn draw(&self) -> String {
        let bars = self.curves.iter().flat_map(|curve| curve.points.iter().map(|(_, bar)| bar));
        let values = bars.flat_map(|bar| [bar.value, bar.low, bar.high]);
        let axis = Axis::over(self.scale, values.chain(self.marks.iter().map(|mark| mark.at.1)));
        let entries = self.legend();
        let mut frame = Frame::new(self.size);
        let rows = entries.last().map_or(0.0, |(at, _, _)| at.1);
        frame.top = rows + 14.0;
        frame.bottom -= 14.0;
        let mut canvas = Canvas::new(self.size.0, self.size.1);
        frame.draw(&mut canvas, &axis, &self.value);
        for (at, class, name) in &entries {
            canvas.key(class, *at, name);
        }
        let range = self.range();
        let x = |place: f64| {
            let (left, right) = (frame.left + EDGE, frame.right - EDGE);
            left + (right - left) * along(self.place_scale, place, range)
        };
        self.places(&mut canvas, &frame, &x);
        for curve in &self.curves {
            let path: Vec<_> = curve.points.iter().map(|(at, bar)| (x(*at), frame.y(axis.place(bar.value)))).collect();
            let dashed = if curve.dashed { " dashed" } else { "" };
            canvas.path(&format!("line l{}{dashed}", curve.series), &path);
            if curve.dashed {
                continue;
            }
            for ((at, bar), place) in curve.points.iter().zip(&path) {
                canvas.line(
                    "whisker",
                    (place.0, frame.y(axis.place(bar.low))),
                    (place.0, frame.y(axis.place(bar.high))),
                );
                let hint =
                    format!("{} at {at}: {} ({} to {})", curve.name, label(bar.value), label(bar.low), label(bar.high));
                canvas.dot(&format!("s{}", curve.series), *place, 2.6, &hint);
            }
        }
        for mark in &self.marks {
            let at = (x(mark.at.0), frame.y(axis.place(mark.at.1)));
            canvas.diamond("mark", at, 4.6, &mark.hint);
            let (anchor, aside) = if at.0 > self.size.0 * 0.8 { (Anchor::End, -8.0) } else { (Anchor::Start, 8.0) };
            canvas.text("marked", (at.0 + aside, at.1 + 12.0), anchor, &mark.name);
        }
        canvas.finish(&self.value)
    }

    /// Where each name of the legend stands, with its colour.
    fn legend(&self) -> Vec<((f64, f64), String, String)> {
        let entries = self.curves.iter().map(|curve| (curve.class(), curve.name.clone()));
        let marks = (!self.marks.is_empty()).then(|| ("mark".to_owned(), "the paper's".to_owned()));
        let (mut x, mut y) = (LEFT, 12.0);
        let mut placed = Vec::new();
        for (class, name) in entries.chain(marks) {
            let width = KEY + width(&name);
            if x + width > self.size.0 && x > LEFT {
                (x, y) = (LEFT, y + 15.0);
            }
            placed.push(((x, y), class, name));
            x += width;
        }
        placed
    }

    /// Ticks of the lower axis: places that have points, as many as can be read, or round
    /// numbers where there are many.
    fn places(&self, canvas: &mut Canvas, frame: &Frame, x: &dyn Fn(f64) -> f64) {
        let mut places: Vec<f64> = self.curves.iter().flat_map(|c| c.points.iter().map(|(at, _)| *at)).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        if self.place_scale == Scale::Linear && places.len() > PLACES_NAMED_MAX {
            let (low, high) = self.range();
            places = Axis::over(Scale::Linear, [high]).ticks().to_vec();
            places.retain(|place| (low..=high).contains(place));
        }
        let mut free = f64::NEG_INFINITY;
        for place in places {
            let (at, name) = (x(place), short(place));
            let half = name.chars().count() as f64 * 3.2 + 3.0;
            if at - half > free {
                canvas.line("axis", (at, frame.bottom), (at, frame.bottom + 3.0));
                canvas.text("", (at, frame.bottom + 15.0), Anchor::Middle, &name);
                free = at + half;
            }
        }
        let below = ((frame.left + frame.right) / 2.0, frame.bottom + 31.0);
        canvas.text("", below, Anchor::Middle, &self.place);
        canvas.line("axis", (frame.left, frame.bottom), (frame.right, frame.bottom));
    }

    fn range(&self) -> (f64, f64) {
        let places = self.curves.iter().flat_map(|c| c.points.iter().map(|(at, _)| *at));
        places
            .chain(self.marks.iter().map(|mark| mark.at.0))
            .fold((f64::INFINITY, 0.0), |(low, high), at| (at.min(low), at.max(high)))
    }
}

impl Curve {
    /// Its colour, as a fill or as a stroke.
    fn class(&self) -> String {
        format!("{}{}", if self.dashed { "l" } else { "s" }, self.series)
    }
}

/// 0 at the start of the range, 1 at its end; the middle when there is only one place.
fn along(scale: Scale, place: f64, (low, high): (f64, f64)) -> f64 {
    let part = match scale {
        Scale::Linear => (place - low) / (high - low),
        Scale::Log => (place / low).ln() / (high / low).ln(),
    };
    if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.5 }
}

/// A count as an axis has room for: 1024 is 1K.
fn short(value: f64) -> String {
    let whole = value as u64;
    match whole {
        _ if value.fract() != 0.0 => label(value),
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

/// With more places than these what matters is where about they lie, not each of them.
const PLACES_NAMED_MAX: usize = 40;
/// Where the plot begins.
const LEFT: f64 = 52.0;
/// Room between the axis and the first and last point.
const EDGE: f64 = 12.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stand_where_they_belong_and_limits_are_dashed() {
        let bar = |value: f64| Bar { value, low: value, high: value };
        let curve = |name: &str, dashed, points: &[(f64, f64)]| Curve {
            name: name.into(),
            series: 0,
            dashed,
            points: points.iter().map(|(at, value)| (*at, bar(*value))).collect(),
        };
        let chart = Curves {
            value: "GB/s".into(),
            scale: Scale::Linear,
            place: "bytes".into(),
            place_scale: Scale::Log,
            curves: vec![
                curve("copy", false, &[(64.0, 0.0), (1024.0, 5.0), (16384.0, 10.0)]),
                curve("memcpy", true, &[(64.0, 10.0), (16384.0, 10.0)]),
            ],
            marks: vec![Mark { hint: "TC-C17".into(), name: "3.5".into(), at: (1024.0, 5.0) }],
            size: (480.0, 262.0),
        };
        let svg = chart.draw();
        assert_eq!((svg.matches("<circle").count(), svg.matches("dashed").count()), (3, 2), "a curve and its name");
        // The axis runs from 64 to 464: the middle of the logarithms is 264; 5 of 10 is half way up from 226 to 26.
        assert!(svg.contains(r#"cx="264.0" cy="126.0""#), "{svg}");
        assert!(svg.contains("M264.0 121.4") && svg.contains("TC-C17"), "{svg}");
        assert!(svg.contains(">64<") && svg.contains(">1K<") && svg.contains(">16K<"));
        let one = Curves { curves: vec![curve("a", false, &[(2.0, 1.0)])], marks: vec![], ..chart };
        assert!(one.draw().contains(r#"cx="264.0""#));
    }

    #[test]
    fn long_legends_take_more_rows() {
        let curve = |at: usize| Curve {
            name: format!("a curve of a long name {at}"),
            series: at,
            dashed: false,
            points: vec![],
        };
        let mut chart = Curves {
            value: String::new(),
            scale: Scale::Log,
            place: String::new(),
            place_scale: Scale::Log,
            curves: (0..6).map(curve).collect(),
            marks: vec![],
            size: (480.0, 262.0),
        };
        let rows = |chart: &Curves| chart.legend().last().map_or(0.0, |(at, _, _)| at.1);
        assert_eq!(rows(&chart), 42.0);
        chart.curves.truncate(1);
        assert_eq!(rows(&chart), 12.0);
    }
}
