//! `costs`: what stands behind the papers' arguments. What registering memory takes, how long a
//! page is held while it is sent, and what an atomic takes that a WRITE does not. What of a round
//! trip is the kernel's, and what copying asks of memory. How the fragments of TPC-H's own
//! shuffles and projections lie.

mod fragments;
mod kernel;
mod pages;
pub(super) mod traffic;
mod word;

use super::{
    Setting,
    figure::{Figure, Table, shown},
    records::Records,
    sender::Sender,
};
use crate::measure::{Ratio, Split, alternate, elapsed_ns, now_ns};
use anyhow::Result;
use overside::{
    memory::{Buffer, Segment, View},
    shape::Shape,
    verbs::{Access, Memory, WorkRequest},
};
use std::{hint::black_box, sync::Arc};

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("costs", setting.over.name(), "Costs behind the Arguments");
    let mut sender = Sender::start(setting.over, 1)?;
    setting.progress.say("costs: registering, and holding a page");
    let region = Records::region(&mut sender, setting.region_bytes())?;
    registering(setting, &sender, &region, &mut figure)?;
    holding(setting, &mut sender, &region, &mut figure)?;
    pages::measure(setting, &mut sender, &region, &mut figure)?;
    word::measure(setting, &mut sender, &region, &mut figure)?;
    kernel::measure(setting, &mut figure)?;
    traffic::measure(setting, &mut figure)?;
    let fragments = fragments::count(&mut figure)?;
    figure.text = "Registering is register and deregister of memory that is there, beside copying as many bytes. A page is held from the post \
         of its gather list to the completion, one page at a time; what that saves is the copy into a transmit buffer. A word of the peer's memory is \
         written or added to, one request at a time. The kernel's share is \
         sampled in ticks of 10 ms over both ends of a round trip, which are threads of this process. Memory traffic is counted by the cache \
         simulation of valgrind, where that is installed: lines that the sender's processor gets from memory and writes back, for records that \
         no cache holds; what a device reads is not in it. Fragments are counted by gap analysis: of a \
         column of lineitem whose rows go where a hash of a join's key says, and of rows of which a query's columns are projected."
        .into();
    figure.tables.push(times(&figure));
    figure.tables.push(pages::table(&figure));
    figure.tables.extend(word::table(&figure));
    figure.tables.push(kernel::table(&figure));
    figure.tables.push(traffic::table(&figure));
    figure.tables.push(fragments);
    Ok(figure)
}

/// Register and deregister, beside copying.
fn registering(setting: &Setting<'_>, sender: &Sender, region: &Arc<Buffer>, figure: &mut Figure) -> Result<()> {
    let (provider, domain) = sender.device();
    let (provider, domain) = (provider.clone(), domain.clone());
    let memories = SIZES.map(|bytes| Segment::shared(bytes).map(|segment| Memory::Segment(Arc::new(segment))));
    let memories = memories.into_iter().collect::<Result<Vec<_>, _>>()?;
    // Copied as a user would who has a registered buffer already: from memory that no cache holds.
    let mut target = vec![0; SIZES[SIZES.len() - 1]];
    let mut shares = Vec::new();
    let samples = alternate(2 * SIZES.len(), setting.rounds(), |side, _| -> Result<f64> {
        let at = side / 2;
        let (before, start, mut times) = (Split::of(std::process::id())?, now_ns(), 0u64);
        let mut records = Records::new(region, SIZES[at]);
        while elapsed_ns(start) < SLICE_NS {
            if side % 2 == 0 {
                let registered = provider.register(&domain, &memories[at], Access::LOCAL)?;
                provider.deregister(registered)?;
            } else {
                black_box(records.pack(1, &mut target[..SIZES[at]]));
            }
            times += 1;
        }
        if side == 0 {
            shares.push(Split::of(std::process::id())?.since(before).kernel_share());
        }
        Ok(elapsed_ns(start) as f64 / times as f64)
    })?;
    for (side, values) in samples.into_iter().enumerate() {
        figure.record(if side % 2 == 0 { REGISTERING } else { COPYING }, SIZES[side / 2] as u64, values);
    }
    figure.record(REGISTERING_KERNEL, 0, shares);
    Ok(())
}

/// A page that is sent from where it lies, one at a time, beside the copy that this saves.
fn holding(setting: &Setting<'_>, sender: &mut Sender, region: &Arc<Buffer>, figure: &mut Figure) -> Result<()> {
    let mut pages = Records::new(region, PAGE_BYTES);
    sender.connect(1, PAGE_BYTES, 8)?;
    let mut buffer = vec![0; PAGE_BYTES];
    let samples = alternate(2, setting.rounds(), |side, _| -> Result<f64> {
        if side == 0 {
            let mut next = || -> Result<WorkRequest> {
                let page = View::of(region, &Shape::list(&[pages.take()])?)?;
                Ok(WorkRequest::send(0, page))
            };
            return sender.one_by_one(&mut next, &mut drop, setting.slice_ns());
        }
        let (start, mut times) = (now_ns(), 0u64);
        while elapsed_ns(start) < setting.slice_ns() {
            black_box(pages.pack(1, &mut buffer));
            times += 1;
        }
        Ok(elapsed_ns(start) as f64 / times as f64)
    })?;
    for (series, values) in [HELD, COPIED].into_iter().zip(samples) {
        figure.record(series, PAGE_BYTES as u64, values);
    }
    Ok(())
}

fn times(figure: &Figure) -> Table {
    let at = |series: &str, x: u64| -> Vec<f64> {
        figure.recorded(series).find(|(place, _)| *place == x).map_or(Vec::new(), |(_, values)| values.to_vec())
    };
    let micro = |values: &[f64]| format!("{:.2}", crate::measure::Spread::of(values).median / 1e3);
    let mut rows = Vec::new();
    let pairs = SIZES.map(|bytes| ("registering", REGISTERING, COPYING, bytes as u64));
    for (what, own, copy, bytes) in pairs.into_iter().chain([("a page held", HELD, COPIED, PAGE_BYTES as u64)]) {
        let (own, copy) = (at(own, bytes), at(copy, bytes));
        rows.push(vec![
            what.into(),
            (bytes >> 10).to_string(),
            micro(&own),
            micro(&copy),
            shown(Ratio::paired(&own, &copy)),
        ]);
    }
    let head = ["", "KiB", "µs", "copying µs", "over copying"].map(str::to_owned).to_vec();
    Table { caption: "Registering memory and holding a page, beside copying as many bytes".into(), head, rows }
}

const REGISTERING: &str = "registering, ns";
const COPYING: &str = "copying, ns";
const REGISTERING_KERNEL: &str = "kernel's share of registering 8 KiB";
const HELD: &str = "page held, ns";
const COPIED: &str = "page copied, ns";
/// The first is what the kernel's share is taken of.
const SIZES: [usize; 3] = [8 << 10, 64 << 10, 1 << 20];
const PAGE_BYTES: usize = 16 << 10;
/// Several ticks of the kernel's account.
const SLICE_NS: u64 = 60_000_000;
