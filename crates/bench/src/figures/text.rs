//! Figures as tables for the terminal.

use super::{
    Figure, Figures, Point,
    figure::{Table, shown},
};
use std::fmt::Write;

/// Every figure's points and claims.
pub(super) fn text(figures: &Figures) -> String {
    let mut out = String::new();
    for figure in &figures.figures {
        // Writing to a string does not fail.
        let _ = write(figure, &mut out);
    }
    out
}

fn write(figure: &Figure, out: &mut String) -> std::fmt::Result {
    writeln!(out, "{}: {} (over {})\n", figure.figure, figure.title, figure.provider)?;
    figure.tables.iter().try_for_each(|table| grid(table, out))?;
    if !figure.points.is_empty() {
        points(figure, out)?;
    }
    for bar in &figure.bars {
        writeln!(out, "bar: {} {}: {} {}", bar.name, bar.wanted(), shown(bar.ratio), bar.verdict.text())?;
    }
    for claim in &figure.claims {
        let judgement = &claim.judgement;
        let (id, verdict) = (judgement.claim, judgement.verdict.text());
        writeln!(out, "{id} {verdict}: the paper: {}; here: {}", claim.paper, judgement.here())?;
    }
    for (name, value) in figure.more.iter().filter(|(_, value)| value.is_number() || value.is_string()) {
        writeln!(out, "{name}: {value}")?;
    }
    writeln!(out)
}

fn grid(table: &Table, out: &mut String) -> std::fmt::Result {
    let rows = || std::iter::once(&table.head).chain(&table.rows);
    let width = |column: usize| rows().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..table.head.len()).map(width).collect();
    writeln!(out, "{}", table.caption)?;
    for row in rows() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column == 0 { write!(out, "{cell:<width$}")? } else { write!(out, "  {cell:>width$}")? }
        }
        writeln!(out)?;
    }
    writeln!(out)
}

fn points(figure: &Figure, out: &mut String) -> std::fmt::Result {
    let widest = figure.points.iter().map(|point| point.series.chars().count()).max().unwrap_or(0).max(6);
    writeln!(
        out,
        "{:<widest$} {:>8} {:>20} {:>10} {:>10} {:>10} {:>11}",
        "series", "x", "GB/s (quartiles)", "sender", "of it work", "receivers", "limit GB/s"
    )?;
    writeln!(out, "{:<widest$} {:>8} {:>20} {:>10} {:>10} {:>10}", "", "", "", "ns/B", "ns/B", "ns/B")?;
    for point in &figure.points {
        line(point, widest, out)?;
    }
    Ok(())
}

fn line(point: &Point, widest: usize, out: &mut String) -> std::fmt::Result {
    let spread = point.spread.bytes_per_s;
    let rate = format!("{:.2} ({:.2}–{:.2})", spread.median / 1e9, spread.quarter_low / 1e9, spread.quarter_high / 1e9);
    let limit =
        if point.limit_bytes_per_s > 0.0 { format!("{:.2}", point.limit_bytes_per_s / 1e9) } else { "–".into() };
    writeln!(
        out,
        "{:<widest$} {:>8} {:>20} {:>10.4} {:>10.4} {:>10.4} {:>11}",
        point.series,
        point.x,
        rate,
        point.sender_cpu_ns_per_byte,
        point.sender_work_ns_per_byte,
        point.receiver_cpu_ns_per_byte,
        limit
    )
}
