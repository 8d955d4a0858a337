//! `blocks`: requests to a storage node's volumes (figures 3, 5 and 6 of vi-attached-storage).
//! Requests that its cache answers stand beside other servers, a bare copy and a local file. Those
//! that its disks answer stand beside the same disks in one process.

mod cached;
pub(super) mod clients;
mod disk;
mod disks;
mod hits;
mod load;
mod looped;
mod nbd;
mod node;
mod peers;
mod reader;
pub(super) mod targets;

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    figure::{Figure, Table, shown},
};
use crate::{
    measure::{Ratio, Spread},
    svg::Scale,
};
use anyhow::Result;

pub(super) use node::{ROLE, serve};

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("blocks", "shm and tcp", "Blocks of a Storage Node");
    cached::measure(setting, &mut figure)?;
    hits::measure(setting, &mut figure)?;
    disk::measure(setting, &mut figure)?;
    let absent: Vec<&str> =
        figure.more["not_measured"].as_array().into_iter().flatten().filter_map(|why| why.as_str()).collect();
    let absent = if absent.is_empty() { String::new() } else { format!(" Not measured: {}.", absent.join("; ")) };
    figure.text = format!(
        "A node is a process of its own; its client is this one. Over shm it polls for {} µs before it sleeps, or, <i>asleep</i>, sleeps at once; \
         over tcp it polls where that has paid of late. <i>Cached</i> reads go to {} MiB that \
         the node's cache holds. <i>NBD</i> is the node's own front; it, nbdkit (memory) and qemu-nbd (a file in the page cache) are asked by \
         the same plain client, with one system call a request and one or two a reply, and all hold the same bytes. <i>FUSE</i> is the volume attached as a file, through <code>/dev/fuse</code> or by io_uring, and <i>wDSA</i> a \
         file on a volume under <code>overside run --volume</code>; one program reads both by <code>pread</code>. <i>ext4 on a loop</i>: a \
         file in a file system on a loop device over such a file, or over nbdfuse's (nbdkit), past the page cache; the kernel's own threads \
         are not counted. Processor time is that of \
         both ends and of what stands between, with what they poll. Disks are devices over memory that end a request no earlier than a disk of 15,000 turns a minute \
         would; <i>local</i> ones are in this process. Every page of theirs was written before time is taken. Places are random, from a fixed seed: both sides go to the same ones in the \
         same order, once the arm is where the same place left it. Hits are chosen by place: what is to hit was read often; what is to miss \
         does not come again for as long as the cache remembers it. RAID 5 is written \
         from a row's start on, and requests to its disks are counted. Of <i>one and two processors</i> each is a node of its own, alike but \
         for those that it is pinned to: not the client's, where the host has others. {} <i>idle sessions</i> are of one more node, of which one asks \
         for 16 reads at a time while there is load.{absent}",
        cached::POLLS_NS / 1000,
        cached::BYTES >> 20,
        cached::SESSIONS
    );
    figure.tables.extend([
        by_depth(&figure),
        by_size(&figure),
        by_hits(&figure),
        uncached(&figure),
        parity(&figure),
        resting(&figure),
    ]);
    draw(&mut figure);
    Ok(figure)
}

/// What every round of a series came to at a place.
fn values(figure: &Figure, series: &str, x: u64) -> Vec<f64> {
    figure.recorded(series).find(|(place, _)| *place == x).map_or(Vec::new(), |(_, values)| values.to_vec())
}

fn places(figure: &Figure, series: &str) -> Vec<u64> {
    let mut places: Vec<u64> = figure.recorded(series).map(|(x, _)| x).collect();
    places.sort_unstable();
    places
}

/// A median, scaled; a dash where there is none.
fn cell(values: &[f64], factor: f64, digits: usize) -> String {
    if values.is_empty() { "–".into() } else { format!("{:.digits$}", Spread::of(values).median * factor) }
}

fn table(caption: &str, head: &[&str], rows: Vec<Vec<String>>) -> Table {
    Table { caption: caption.into(), head: head.iter().map(|text| (*text).to_owned()).collect(), rows }
}

fn by_depth(figure: &Figure) -> Table {
    const FIRST: &str = "cached, p50 ns: ";
    let sides = figure.measured.iter().filter(|one| one.x == 1).filter_map(|one| one.series.strip_prefix(FIRST));
    let mut rows = Vec::new();
    for side in sides {
        for depth in places(figure, &format!("{FIRST}{side}")) {
            let of = |what: &str| values(figure, &format!("cached, {what}: {side}"), depth);
            rows.push(vec![
                side.to_owned(),
                depth.to_string(),
                cell(&of("p50 ns"), 1e-3, 1),
                cell(&of("mean ns"), 1e-3, 1),
                cell(&of("CPU ns"), 1e-3, 1),
                cell(&of("requests/s"), 1e-3, 1),
            ]);
        }
    }
    let head = ["", "outstanding", "p50 µs", "mean µs", "CPU µs each", "thousand requests/s"];
    table("Reads of 8 KiB that are in memory, and the processor time of both ends", &head, rows)
}

fn by_size(figure: &Figure) -> Table {
    let row = |bytes: u64| {
        let rates = cached::SERIES.map(|series| cell(&values(figure, series, bytes), 1e-9, 3));
        let processors = ["one processor", "two processors"]
            .map(|name| cell(&values(figure, &format!("{name}, p50 ns"), bytes), 1e-3, 1));
        std::iter::once(bytes.to_string()).chain(rates).chain(processors).collect()
    };
    let rows = places(figure, cached::SERIES[0]).into_iter().map(row).collect();
    let head =
        ["bytes", "1 outstanding", "4 outstanding", "copied", "local file", "p50 µs, one processor", "two processors"];
    table(
        "Cached reads by size, over shm: GB/s; and the time of one with one and two processors of the node",
        &head,
        rows,
    )
}

fn by_hits(figure: &Figure) -> Table {
    let local = values(figure, "hits, ns: local disk", 0);
    let row = |hits: u64| {
        let own = values(figure, "hits, ns: node", hits);
        let rate = |bytes: usize| cell(&values(figure, &hits::five(Some(hits)), bytes as u64), 1e-6, 1);
        vec![
            format!("{hits} %"),
            cell(&own, 1e-3, 0),
            shown(Ratio::paired(&own, &local)),
            rate(BLOCK_BYTES),
            rate(64 * KIB),
        ]
    };
    let mut rows: Vec<Vec<String>> = hits::HITS.into_iter().map(row).collect();
    let rate = |bytes: usize| cell(&values(figure, &hits::five(None), bytes as u64), 1e-6, 1);
    rows.push(vec!["local".into(), cell(&local, 1e-3, 0), "–".into(), rate(BLOCK_BYTES), rate(64 * KIB)]);
    let head = ["hits", "8 KiB, one disk, mean µs", "over local", "8 KiB, five disks, MB/s", "64 KiB, MB/s"];
    table("Reads of which so many are in the node's cache", &head, rows)
}

fn uncached(figure: &Figure) -> Table {
    let [node, local] = disk::BOTH;
    let mut rows = Vec::new();
    for (what, unit, factor) in
        [("a read, ns", "ms", 1e-6), ("a write, ns", "ms", 1e-6), ("reads/s", "/s", 1.0), ("writes/s", "/s", 1.0)]
    {
        for x in places(figure, &format!("cache off, {what}: {node}")) {
            let of = |side: &str| values(figure, &format!("cache off, {what}: {side}"), x);
            let (own, other) = (of(node), of(local));
            let name = what.trim_end_matches(", ns").to_owned();
            let place = if unit == "ms" { format!("{x} B") } else { format!("{x} outstanding") };
            let shown_of = |values: &[f64]| format!("{} {unit}", cell(values, factor, 2));
            rows.push(vec![name, place, shown_of(&own), shown_of(&other), shown(Ratio::paired(&own, &other))]);
        }
    }
    let head = ["", "", "node", "local disk", "node over local"];
    table("One disk, without a cache; rates are of 8 KiB", &head, rows)
}

fn parity(figure: &Figure) -> Table {
    let counted = |series: &str, x: u64| {
        let one = figure.measured.iter().find(|one| one.series == series && one.x == x);
        one.and_then(|one| one.exact).map_or("–".to_owned(), |count| format!("{count:.1}"))
    };
    let mut rows = Vec::new();
    for side in 0..4 {
        let name = disk::raid(side);
        for x in places(figure, &format!("RAID 5, a write, ns: {name}")) {
            let time = values(figure, &format!("RAID 5, a write, ns: {name}"), x);
            let of = |what: &str| counted(&format!("RAID 5, {what} of a write: {name}"), x);
            rows.push(vec![name.to_owned(), (x >> 10).to_string(), cell(&time, 1e-6, 1), of("I/Os"), of("reads")]);
        }
    }
    let head = ["a request of the node is", "KiB written", "ms", "I/Os of disks", "of them reads"];
    table("Writes of RAID 5 over ten disks in stripes of 64 KiB", &head, rows)
}

fn resting(figure: &Figure) -> Table {
    let of = |when: &str| values(figure, &format!("idle sessions, share of a processor: {when}"), cached::SESSIONS);
    let rows = cached::RESTS.map(|when| vec![when.to_owned(), cell(&of(when), 100.0, 3)]);
    table("A node with idle sessions", &["", "of a processor, %"], rows.into())
}

fn draw(figure: &mut Figure) {
    let spreads = |series: &str| {
        let all: Vec<_> = figure.recorded(series).map(|(x, values)| (x, Spread::of(values))).collect();
        all.into_iter()
    };
    let mut depth = Curves::new("µs", "requests outstanding", Scale::Log).logarithmic();
    for (colour, side) in ["shm", "tcp", "NBD", "nbdkit", "nbdkit over TCP", "qemu-nbd"].into_iter().enumerate() {
        depth.add(Curve::spreads(side, colour, spreads(&format!("cached, mean ns: {side}")), 1e-3));
    }
    let mut size = Curves::new("GB/s", "bytes of a read", Scale::Log).logarithmic();
    for (colour, series) in cached::SERIES.into_iter().enumerate() {
        size.add(Curve::spreads(series.trim_start_matches("cached, bytes/s: "), colour, spreads(series), 1e-9));
    }
    let mut hit = Curves::new("ms", "hits in a hundred", Scale::Linear);
    hit.add(Curve::spreads("node", 0, spreads("hits, ns: node"), 1e-6));
    hit.add(Curve::spreads("local disk", 1, spreads("hits, ns: local disk"), 1e-6));
    let mut rows = Curves::new("ms", "bytes written", Scale::Log).logarithmic();
    for side in 0..4 {
        let name = disk::raid(side);
        rows.add(Curve::spreads(name, side, spreads(&format!("RAID 5, a write, ns: {name}")), 1e-6));
    }
    figure.charts = vec![
        (curves(&depth), "Cached reads of 8 KiB, by requests outstanding.".into()),
        (curves(&size), "Cached reads over shm, beside a copy and a file in the page cache.".into()),
        (curves(&hit), "Reads of 8 KiB by hits of the node's cache; the disk of this process has none.".into()),
        (curves(&rows), "Writes of RAID 5 by their length, and by the longest request of the node.".into()),
    ];
}

/// What a process of this role is to do.
const READ: &str = "read";
const BLOCK_BYTES: usize = 8 * KIB;
const KIB: usize = 1024;
