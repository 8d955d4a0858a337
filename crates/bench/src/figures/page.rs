//! The figures as one page that needs nothing from elsewhere.

use super::{
    Comparison, Figure, Figures, Options, Point,
    figure::{Table, shown},
};
use crate::{
    measure::{Bar, Verdict},
    report,
    svg::escape,
};
use std::fmt::Write;

/// The page.
pub(super) fn html(figures: &Figures, options: &Options) -> String {
    let mut body = head(figures, options);
    let mut number = 0;
    for (at, figure) in figures.figures.iter().enumerate() {
        body.push_str(&section(at + 1, figure, &mut number));
    }
    let machine = report::machine_table(&figures.machine);
    let _ = write!(
        body,
        "<h2>The machine</h2><div class=\"scroll\">{machine}</div><p class=\"end\">overside bench {} · took {:.0} s</p>",
        escape(&options.figure),
        figures.took_s
    );
    report::page("Overside: the papers' figures on this machine", &body)
}

fn head(figures: &Figures, options: &Options) -> String {
    let quick = if options.quick {
        "This is a <b>quick</b> run: few places, few and short rounds. It shows shapes; take figures from a full one. "
    } else {
        ""
    };
    let over = figures.figures.first().map_or("", |figure| figure.provider.as_str());
    format!(
        "<h1>The Papers' Figures on This Machine</h1><p class=\"by\">overside bench · over {}</p>\
         <p class=\"abstract\"><b>How to read this.</b> {quick}Sender and receivers are processes of their own. Sides alternate \
         within one run; figures are medians, whiskers and ranges are quartiles, ratios are taken round by round and come with \
         95&nbsp;% intervals. CPU time is the scheduler's account in nanoseconds, of each process on its own; what was delivered \
         is checked outside of the timing. Dashed lines are the limit: one processor copying equally cold memory. Diamonds are \
         points that the papers' texts state, of the papers' machines: compare shapes and ratios with them, not heights. Over \
         shared memory there is no DMA engine: the receiver's processor does what a NIC would do, so what gathering saves the \
         sender it costs the receiver.</p>",
        escape(over)
    )
}

fn section(at: usize, figure: &Figure, number: &mut usize) -> String {
    let mut out =
        format!("<h2>{at}&ensp;{} <code>{}</code></h2><p>{}</p>", escape(&figure.title), figure.figure, figure.text);
    for (svg, caption) in &figure.charts {
        *number += 1;
        let _ = write!(out, "<figure>{svg}<figcaption><b>Fig. {number}.</b> {caption}</figcaption></figure>");
    }
    out.extend(figure.tables.iter().map(table));
    if !figure.bars.is_empty() {
        out.push_str(&bars(&figure.bars));
    }
    if !figure.claims.is_empty() {
        out.push_str(&claims(&figure.claims));
    }
    if figure.points.is_empty() {
        return out;
    }
    let _ = write!(
        out,
        "<details><summary>{} points</summary><div class=\"scroll\">{}</div></details>",
        figure.points.len(),
        points(&figure.points)
    );
    out
}

fn table(table: &Table) -> String {
    let cells = |row: &[String], tag: &str| -> String {
        row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let rows: String = table.rows.iter().map(|row| format!("<tr>{}</tr>", cells(row, "td"))).collect();
    format!(
        "<p class=\"panel\">{}</p><div class=\"scroll\"><table class=\"one\"><thead><tr>{}</tr></thead><tbody>{rows}</tbody></table></div>",
        escape(&table.caption),
        cells(&table.head, "th")
    )
}

fn bars(bars: &[Bar]) -> String {
    let row = |bar: &Bar| {
        let class = match bar.verdict {
            Verdict::Missed => "bad",
            Verdict::Met => "good",
            Verdict::WithinNoise | Verdict::CannotTell | Verdict::NotMeasured => "open",
        };
        format!(
            "<tr><td>{}</td><td>{}</td><td class=\"whole\">{}</td><td class=\"whole {class}\">{}</td></tr>",
            escape(&bar.name),
            bar.wanted(),
            shown(bar.ratio),
            bar.verdict.text()
        )
    };
    let rows: String = bars.iter().map(row).collect();
    format!(
        "<div class=\"scroll\"><table class=\"claims bars\"><thead><tr><th>bar</th><th>wanted</th><th>measured</th><th></th></tr></thead>\
         <tbody>{rows}</tbody></table></div>"
    )
}

fn claims(claims: &[Comparison]) -> String {
    let row = |claim: &Comparison| {
        let judgement = &claim.judgement;
        let parts: Vec<String> = judgement.parts.iter().map(|part| escape(&part.to_string())).collect();
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{}\">{}</td></tr>",
            judgement.claim,
            escape(claim.paper),
            parts.join("<br>"),
            claim.class(),
            judgement.verdict.text()
        )
    };
    let rows: String = claims.iter().map(row).collect();
    format!(
        "<div class=\"scroll\"><table class=\"claims\"><thead><tr><th>claim</th><th>the paper</th><th>here</th><th></th></tr></thead>\
         <tbody>{rows}</tbody></table></div>"
    )
}

fn points(points: &[Point]) -> String {
    let row = |point: &Point| {
        let spread = point.spread.bytes_per_s;
        format!(
            "<tr><td>{}</td><td>{}</td><td>{:.2} ({:.2}–{:.2})</td><td>{:.4}</td><td>{:.4}</td><td>{:.4}</td><td>{}</td></tr>",
            escape(&point.series),
            point.x,
            spread.median / 1e9,
            spread.quarter_low / 1e9,
            spread.quarter_high / 1e9,
            point.sender_cpu_ns_per_byte,
            point.sender_work_ns_per_byte,
            point.receiver_cpu_ns_per_byte,
            if point.limit_bytes_per_s > 0.0 { format!("{:.2}", point.limit_bytes_per_s / 1e9) } else { "–".into() }
        )
    };
    let rows: String = points.iter().map(row).collect();
    format!(
        "<table class=\"one\"><thead><tr><th>series</th><th>x</th><th>GB/s (quartiles)</th><th>sender ns/B</th><th>of it work</th>\
         <th>receivers ns/B</th><th>limit GB/s</th></tr></thead><tbody>{rows}</tbody></table>"
    )
}
