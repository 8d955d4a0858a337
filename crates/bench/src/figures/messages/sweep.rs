//! Bytes in the request or fetched from memory, by size (rdma-sockets'
//! `rdmaInlineComparison`, RS-M19).

use super::{
    Placement, provided, slice_ns,
    verbs::{FRAME, MessageForm, SIZES},
};
use crate::{
    figures::{
        Setting,
        charts::{Curve, Curves, curves},
        figure::{Figure, Table, shown},
    },
    measure::{Ratio, Spread, alternate},
    svg::Scale,
};
use anyhow::Result;
use serde_json::json;

/// One size: both ways, round trips a second.
struct Size {
    size: usize,
    plain: Spread,
    inline: Spread,
    gain: Option<Ratio>,
}

pub(super) fn measure(
    setting: &Setting<'_>,
    placement: &Placement,
    transports: &[&str],
    figure: &mut Figure,
) -> Result<()> {
    for transport in transports {
        let seats = placement.take()?;
        let (plain, inline_max) = provided(setting, &seats, transport, MessageForm::Framed)?;
        let mut sides = [plain, provided(setting, &seats, transport, MessageForm::FramedInline)?.0];
        let mut sizes: Vec<usize> = SIZES.into_iter().filter(|size| size + FRAME <= inline_max).collect();
        sizes.sort_unstable();
        let mut swept = Vec::new();
        for (at, size) in sizes.iter().enumerate() {
            setting.progress.part(&format!("messages, inline over {transport}"), at, sizes.len());
            let rounds = alternate(2, setting.rounds(), |side, _| sides[side].play(slice_ns(setting) / 2, *size))?;
            let rates: Vec<Vec<f64>> =
                rounds.iter().map(|rounds| rounds.iter().map(|stretch| stretch.per_s()).collect()).collect();
            let (plain, inline) = (Spread::of(&rates[0]), Spread::of(&rates[1]));
            swept.push(Size { size: *size, plain, inline, gain: Ratio::paired(&rates[1], &rates[0]) });
            for (way, rates) in ["fetched", "inline"].into_iter().zip(rates) {
                figure.record(format!("{transport}, {way}"), *size as u64, rates);
            }
        }
        show(figure, transport, placement, &swept);
    }
    Ok(())
}

fn show(figure: &mut Figure, transport: &str, placement: &Placement, swept: &[Size]) {
    let row = |size: &Size| {
        let gain = shown(size.gain);
        let rate = |spread: &Spread| format!("{:.1}", spread.median / 1e3);
        vec![size.size.to_string(), rate(&size.plain), rate(&size.inline), gain]
    };
    figure.tables.push(Table {
        caption: format!("Header and footer over {transport}, {}, thousand round trips a second", placement.name),
        head: ["bytes", "fetched from memory", "inline", "inline over fetched"].map(str::to_owned).to_vec(),
        rows: swept.iter().map(row).collect(),
    });
    let mut chart = Curves::new("round trips a second (thousands)", "bytes of the message", Scale::Linear);
    for (series, name, of) in
        [(0, "fetched from memory", (|p: &Size| p.plain) as fn(&Size) -> Spread), (1, "inline", |p| p.inline)]
    {
        let points = swept.iter().map(|size| (size.size as u64, of(size).median / 1e3)).collect();
        chart.add(Curve::values(name, series, points));
    }
    let caption =
        format!("Round trips over <b>{transport}:</b> by size, inline and not (the paper's knees: 192 and 432 B).");
    figure.charts.push((curves(&chart), caption));
    let data: Vec<_> = swept
        .iter()
        .map(|p| json!({"bytes": p.size, "fetched": p.plain.median, "inline": p.inline.median, "ratio": p.gain}))
        .collect();
    figure.more.insert(format!("inline_{transport}"), data.into());
}
