//! Bars as lines for people.

use overside_bench::measure::Bar;

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
