//! What the client does besides asking, step by step (figures 7 and 8 of vi-attached-storage, of
//! requests instead of transactions). WRITEs by how long memory stays registered, and READs by
//! whether the client polls before it sleeps.

use super::{
    super::{
        BLOCK_BYTES, cached, cell,
        disks::Disks,
        load::{LoadSpec, Stretch},
        node::{Launch, Node},
        table, values,
    },
    within,
};
use crate::{
    figures::{
        Setting,
        figure::{Figure, Table, shown},
    },
    measure::{Ratio, Switches, alternate},
};
use anyhow::Result;
use overside::volume::{
    client::{LinkOptions, Registration},
    wire::Role,
};
use std::{thread, time::Duration};

pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<()> {
    // A volume has one writer.
    let volume = |name: &str| name.replace([' ', ','], "-");
    let names = REGISTERED.iter().map(|(name, _)| *name).chain([READ]);
    let volumes: Vec<_> = names.map(|name| (volume(name), Disks::Memory(VOLUME_BYTES))).collect();
    let cache_bytes = 2 * volumes.len() as u64 * VOLUME_BYTES;
    let node = Node::start(Launch { volumes, cache_bytes, ..cached::cached_order() })?;
    node.fill(READ, VOLUME_BYTES)?;
    let longest = BLOCK_BYTES as u32;
    let mut sides = Vec::new();
    for (name, writes) in REGISTERED {
        let registration = writes.map(|writes| Registration { writes, by_price: false, ..Registration::default() });
        let options = LinkOptions { registration, ..LinkOptions::default() };
        let mut client = node.client_as("shm", &volume(name), longest, options)?.volatile().polling(cached::POLLS_NS);
        client.fill(VOLUME_BYTES)?;
        sides.push((format!("a write, {name}"), true, client));
    }
    for (name, polls_ns) in [("polled, then slept", cached::POLLS_NS), ("asleep", 0)] {
        let client = node.client("shm", READ, Role::Reader, longest)?.polling(polls_ns);
        sides.push((format!("a read, {name}"), false, client));
    }
    let (kinds, rounds) = (sides.len(), setting.rounds());
    let slice = if setting.quick { 20_000_000 } else { 200_000_000 };
    let mut done = 0;
    let samples = alternate(kinds * DEPTHS.len(), rounds, |at, round| -> Result<(Stretch, u64)> {
        done += 1;
        setting.progress.part("clients: steps", done, rounds * kinds * DEPTHS.len());
        let (_, writes, client) = &mut sides[at % kinds];
        let load = LoadSpec { writes: *writes, bytes: BLOCK_BYTES, depth: DEPTHS[at / kinds] };
        thread::sleep(SETTLING);
        let (used, slept) = (node.cpu()?, Switches::own()?);
        let mut stretch = client.run(load, &mut within(VOLUME_BYTES, slice, BLOCK_BYTES, round as u64))?;
        let wake_ups = Switches::own()?.since(slept);
        thread::sleep(SETTLING);
        stretch.server_ns = node.cpu()? - used;
        Ok((stretch, wake_ups))
    })?;
    for (at, stretches) in samples.iter().enumerate() {
        let (name, depth) = (&sides[at % kinds].0, DEPTHS[at / kinds] as u64);
        let mut record = |what: &str, of: &dyn Fn(&(Stretch, u64)) -> f64| {
            figure.record(format!("steps, {what}: {name}"), depth, stretches.iter().map(of).collect());
        };
        record("requests/s", &|(stretch, _)| stretch.per_s());
        record("CPU ns", &|(stretch, _)| stretch.cpu_each());
        record("wake-ups", &|(stretch, wake_ups)| *wake_ups as f64 / stretch.times.len().max(1) as f64);
    }
    figure.tables.push(by_step(figure));
    Ok(())
}

fn by_step(figure: &Figure) -> Table {
    let mut rows = Vec::new();
    let writes = REGISTERED.map(|(name, _)| (format!("a write, {name}"), "a write, registered each time"));
    let reads = ["asleep", "polled, then slept"].map(|name| (format!("a read, {name}"), "a read, asleep"));
    for (name, first) in writes.into_iter().chain(reads) {
        for depth in DEPTHS {
            let of = |what: &str, name: &str| values(figure, &format!("steps, {what}: {name}"), depth as u64);
            let rate = of("requests/s", &name);
            rows.push(vec![
                name.clone(),
                depth.to_string(),
                cell(&rate, 1e-3, 1),
                shown(Ratio::paired(&rate, &of("requests/s", first))),
                cell(&of("CPU ns", &name), 1e-3, 1),
                cell(&of("wake-ups", &name), 1.0, 2),
            ]);
        }
    }
    let head = ["", "outstanding", "thousand/s", "over the first way", "CPU µs each", "client's wake-ups"];
    table("Requests of 8 KiB by what the client does besides; processor time of both ends", &head, rows)
}

/// How many WRITEs share one deregistration; none are registered, and all are copied.
const REGISTERED: [(&str, Option<u32>); 4] = [
    ("registered each time", Some(1)),
    ("registered by 1,000", Some(1000)),
    ("registered once", Some(u32::MAX)),
    ("copied", None),
];
const DEPTHS: [usize; 2] = [1, 16];
const READ: &str = "read";
const VOLUME_BYTES: u64 = 16 << 20;
const SETTLING: Duration = Duration::from_millis(2);
