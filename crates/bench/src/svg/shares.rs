//! Stacked shares of a whole.

use super::canvas::{Anchor, Canvas, width};

/// A chart of horizontal bars, each a whole divided into shares.
pub struct Shares {
    /// The series' names, in the order of the shares.
    pub series: Vec<String>,
    /// The bars, from the top.
    pub bars: Vec<ShareBar>,
    /// Width.
    pub width: f64,
}

/// A whole and its parts.
pub struct ShareBar {
    /// Its name.
    pub name: String,
    /// How much of each series; only their proportions matter.
    pub parts: Vec<f64>,
    /// A remark at its right.
    pub remark: String,
}

impl Shares {
    /// The chart as SVG.
    pub fn draw(&self) -> String {
        let height = TOP + STEP * self.bars.len() as f64;
        let longest = self.bars.iter().map(|bar| width(&bar.name)).fold(0.0, f64::max);
        let remarks = self.bars.iter().any(|bar| !bar.remark.is_empty());
        let left = (longest + 14.0).max(70.0);
        let right = self.width - if remarks { REMARK } else { 4.0 };
        let mut canvas = Canvas::new(self.width, height);
        let entries = self.series.iter().enumerate();
        let entries: Vec<_> = entries.map(|(at, name)| (format!("s{at}"), name.clone())).collect();
        canvas.legend((left, 12.0), &entries);
        for (at, bar) in self.bars.iter().enumerate() {
            let y = TOP + STEP * at as f64;
            let text = y + THICK / 2.0 + 4.0;
            canvas.text("", (left - 8.0, text), Anchor::End, &bar.name);
            let whole: f64 = bar.parts.iter().filter(|part| **part > 0.0).sum();
            let mut x = left;
            for (series, part) in bar.parts.iter().enumerate() {
                if whole <= 0.0 || *part <= 0.0 {
                    continue;
                }
                let width = (right - left) * part / whole;
                let name = self.series.get(series).map_or("", String::as_str);
                let percent = format!("{:.0} %", part / whole * 100.0);
                let hint = format!("{}: {name} {percent}", bar.name);
                canvas.rect(&format!("s{series}"), (x, y), (width, THICK), &hint);
                if width > 44.0 {
                    canvas.text("on", (x + width / 2.0, text), Anchor::Middle, &percent);
                }
                x += width;
            }
            canvas.text("faint", (right + 8.0, text), Anchor::Start, &bar.remark);
        }
        canvas.finish("shares")
    }
}

const TOP: f64 = 24.0;
const STEP: f64 = 26.0;
const THICK: f64 = 18.0;
const REMARK: f64 = 150.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_the_whole() {
        let chart = Shares {
            series: ["copy", "gather"].map(String::from).to_vec(),
            bars: vec![
                ShareBar { name: "full".into(), parts: vec![1.0, 3.0], remark: "4 pages".into() },
                ShareBar { name: "none".into(), parts: vec![0.0, 0.0], remark: String::new() },
            ],
            width: 620.0,
        };
        let svg = chart.draw();
        // 400 wide: 100 and 300.
        assert!(svg.contains(r#"width="100.0" height="18"#) && svg.contains(r#"width="300.0" height="18"#));
        assert!(svg.contains(">25 %<") && svg.contains(">75 %<") && svg.contains(">4 pages<"));
        assert_eq!(svg.matches("height=\"18.0\"").count(), 2);
    }
}
