//! What the size of pages under sent memory changes: records packed from it, and pages of it
//! sent from where they lie.

use super::super::{
    Setting,
    figure::{Figure, Table, shown},
    records::Records,
    sender::Sender,
};
use super::PAGE_BYTES;
use crate::measure::{Ratio, Spread, alternate, elapsed_ns, now_ns};
use anyhow::{Context, Result};
use overside::{
    memory::{Buffer, View},
    shape::Shape,
    verbs::WorkRequest,
};
use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};
use std::{hint::black_box, sync::Arc};

/// The same, over memory on small pages and on as many huge ones as the system gives.
pub(super) fn measure(
    setting: &Setting<'_>,
    sender: &mut Sender,
    huge: &Arc<Buffer>,
    figure: &mut Figure,
) -> Result<()> {
    setting.progress.say("costs: the size of pages");
    let small = on_small_pages(|| Records::region(sender, huge.len()))?;
    let regions = [&small, huge];
    let mut target = vec![0; PAGE_BYTES];
    let kinds = RECORD_BYTES.len() + 1;
    let samples = alternate(regions.len() * kinds, setting.rounds(), |side, round| -> Result<f64> {
        let (region, kind) = (regions[side % 2], side / 2);
        let Some(record_bytes) = RECORD_BYTES.get(kind) else {
            let mut pages = Records::new(region, PAGE_BYTES).part(round, setting.rounds());
            let mut next = || Ok(WorkRequest::send(0, View::of(region, &Shape::list(&[pages.take()])?)?));
            return sender.one_by_one(&mut next, &mut drop, setting.slice_ns());
        };
        let mut records = Records::new(region, *record_bytes).part(round, setting.rounds());
        let (start, mut bytes) = (now_ns(), 0);
        while elapsed_ns(start) < setting.slice_ns() {
            bytes += black_box(records.pack(target.len() / record_bytes, &mut target));
        }
        Ok(bytes as f64 * 1e9 / elapsed_ns(start) as f64)
    })?;
    for (side, values) in samples.into_iter().enumerate() {
        let size = SIZES[side % 2];
        match RECORD_BYTES.get(side / 2) {
            Some(record_bytes) => figure.record(packing(size), *record_bytes as u64, values),
            None => figure.record(held(size), PAGE_BYTES as u64, values),
        }
    }
    Ok(())
}

/// What `make` maps lies on pages of 4 KiB.
fn on_small_pages<T>(make: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = transparent_huge_pages_are_disabled().context("the kernel does not tell the size of pages")?;
    disable_transparent_huge_pages(true).context("the kernel does not choose the size of pages")?;
    let made = make();
    disable_transparent_huge_pages(before).context("the kernel does not choose the size of pages")?;
    made
}

pub(super) fn table(figure: &Figure) -> Table {
    let of = |series: &str, x: u64| -> Vec<f64> {
        figure.recorded(series).find(|(place, _)| *place == x).map_or(Vec::new(), |(_, values)| values.to_vec())
    };
    let row = |what: String, small: Vec<f64>, huge: Vec<f64>, factor: f64| {
        let shown_of = |values: &[f64]| format!("{:.2}", Spread::of(values).median * factor);
        vec![what, shown_of(&small), shown_of(&huge), shown(Ratio::paired(&huge, &small))]
    };
    let mut rows: Vec<_> = RECORD_BYTES
        .into_iter()
        .map(|bytes| {
            let at = |size| of(&packing(size), bytes as u64);
            row(format!("packing records of {bytes} B, GB/s"), at(SIZES[0]), at(SIZES[1]), 1e-9)
        })
        .collect();
    let at = |size| of(&held(size), PAGE_BYTES as u64);
    rows.push(row("a page of 16 KiB held, µs".into(), at(SIZES[0]), at(SIZES[1]), 1e-3));
    let head = ["", "4 KiB", "2 MiB", "2 MiB over 4 KiB"].map(str::to_owned).to_vec();
    Table { caption: "Sent memory on pages of 4 KiB, and on as many of 2 MiB as the system gave".into(), head, rows }
}

fn packing(size: &str) -> String {
    format!("packing, bytes/s: pages of {size}")
}

fn held(size: &str) -> String {
    format!("page held, ns: pages of {size}")
}

const SIZES: [&str; 2] = ["4 KiB", "2 MiB"];
/// As the paper's figures 3 to 5 draw them.
const RECORD_BYTES: [usize; 2] = [128, 1024];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_on_small_pages_only_where_it_was_asked_for() {
        let before = transparent_huge_pages_are_disabled().unwrap();
        let within = on_small_pages(|| Ok(transparent_huge_pages_are_disabled()?)).unwrap();
        assert_eq!((within, transparent_huge_pages_are_disabled().unwrap()), (true, before));
    }
}
