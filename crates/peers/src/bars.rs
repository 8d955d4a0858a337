//! What a comparison says: as JSON, as lines for people, and as a file of results.

use anyhow::Result;
use overside_bench::{figures::Figure, measure::Bar, report::Machine};
use serde::Serialize;

use crate::Measure;

/// A comparison that has been measured.
pub trait Compared: Serialize {
    /// As files of results call it.
    const FIGURE: &str;

    /// What is held against the competitors.
    fn bars(&self) -> &[Bar];

    /// For people.
    fn print(&self);
}

/// Tells it in the way that was asked for.
pub fn tell<C: Compared>(measure: &Measure, compared: &C) -> Result<()> {
    if measure.json {
        println!("{}", serde_json::to_string(compared)?);
    } else {
        compared.print();
    }
    let Some(mut keep) = measure.results.clone() else { return Ok(()) };
    let mut figure = Figure::new(C::FIGURE, "", "");
    figure.bars = compared.bars().to_vec();
    figure.more.insert("report".to_owned(), serde_json::to_value(compared)?);
    let kept = keep.keep(&figure, &Machine::here())?;
    eprintln!("The results are in {}: commit them, then `cargo xtask papers` joins them.", kept.display());
    Ok(())
}

/// One line for each bar.
pub fn print(bars: &[Bar]) {
    println!("\n{:66} {:>7} {:>8} {:>17}", "bar (ratio of paired rounds)", "wanted", "ratio", "95 % interval");
    for bar in bars {
        let (ratio, interval) = match &bar.ratio {
            Some(r) => (format!("{:.2}", r.median), format!("{:.2} .. {:.2}", r.low, r.high)),
            None => ("-".into(), "-".into()),
        };
        println!("{:66} {:>6.2}x {:>7}x {:>17}  {}", bar.name, bar.wanted, ratio, interval, bar.verdict.text());
    }
}
