//! `consolidate`: what chains of deltas save and cost (to-copy §5.4), what a client that stalls
//! holds back (§5.5), and what it saves to update nothing in place (§4.1).

mod in_place;

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    digest::Digest,
    figure::{Figure, Point},
    papers,
    receiver::Answer,
    records::{Records, Ring},
    sender::{Next, Sample, Sender, Side, Until},
};
use crate::{
    measure::{Cpu, Spread, alternate, elapsed_ns, now_ns},
    svg::Scale,
};
use anyhow::{Context, Result, ensure};
use overside::{
    bwtree::{Direction, Exhausted, Options, PinnedPage, Run, SegmentArena, SegmentObserver, Tree},
    memory::{Pool, Segment, SegmentId, View},
    table,
    verbs::{Access, Memory, MemoryRegion, ProtectionDomain, Provider, WorkRequest},
};
use serde_json::json;
use std::{
    collections::{HashMap, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, PoisonError},
};

/// Registers the segments of a tree as they come.
#[derive(Debug)]
struct Registrar {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    regions: Mutex<HashMap<SegmentId, MemoryRegion>>,
}

impl SegmentObserver for Registrar {
    fn committed(&self, segment: &Arc<Segment>) -> Result<(), Exhausted> {
        let memory = Memory::Segment(segment.clone());
        let region = self.provider.register(&self.domain, &memory, Access::LOCAL).map_err(|_| Exhausted)?;
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).insert(segment.id(), region);
        Ok(())
    }

    fn decommitted(&self, segment: SegmentId) {
        let region = self.regions.lock().unwrap_or_else(PoisonError::into_inner).remove(&segment);
        if let Some(region) = region {
            // The domain goes with this process anyway.
            let _ = self.provider.deregister(region);
        }
    }
}

/// A tree of records, changed at random.
struct Table {
    tree: Tree,
    rows: u64,
    /// Where each page begins: a cursor that starts within a page clips it, and
    /// updates of one size split none.
    fences: Vec<Vec<u8>>,
    random: u64,
    value: [u8; VALUE_BYTES],
}

impl Table {
    fn new(sender: &Sender, rows: u64, chain_max: usize) -> Result<Table> {
        let (provider, domain) = sender.device();
        let observer = Registrar { provider: provider.clone(), domain: domain.clone(), regions: Mutex::default() };
        Table::over(Arc::new(observer), rows, chain_max)
    }

    fn over(observer: Arc<dyn SegmentObserver>, rows: u64, chain_max: usize) -> Result<Table> {
        let arena = SegmentArena::new(SEGMENT_BYTES, ARENA_BYTES, observer)?;
        let options = Options { prefix_len: VALUE_BYTES, chain_max, ..Options::default() };
        let tree = Tree::new(Arc::new(arena), options)?;
        let value = [7; VALUE_BYTES];
        for row in 0..rows {
            tree.insert(&row.to_be_bytes(), &value)?;
        }
        tree.reclaim();
        let fences = tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward);
        let fences = fences.map(|page| page.low_fence().to_vec()).collect();
        Ok(Table { tree, rows, fences, random: 1, value })
    }

    fn key(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.random) * u128::from(below)) >> 64) as u64
    }

    /// Updates a random row of the first `below`.
    fn update(&mut self, below: u64) -> Result<()> {
        let key = self.key(below);
        self.value[..8].copy_from_slice(&self.random.to_le_bytes());
        self.tree.upsert(&key.to_be_bytes(), &self.value)?;
        Ok(())
    }

    /// A page at random, whole.
    fn page(&mut self) -> Result<PinnedPage> {
        let index = self.key(self.fences.len() as u64) as usize;
        self.page_at(index)
    }

    fn page_at(&self, index: usize) -> Result<PinnedPage> {
        let from = Bound::Included(&self.fences[index][..]);
        self.tree.pages(from, Bound::Unbounded, Direction::Forward).next().context("the tree has lost a page")
    }

    /// Updates of rows below until chains are as long as they stay: the first ones find every page
    /// without a chain, and consolidate less than those that follow.
    fn warm_up(&mut self, below: u64, chain: usize) -> Result<()> {
        let pages = (below * self.fences.len() as u64).div_ceil(self.rows);
        (0..WARM_CHAINS * pages * (chain as u64 + 1)).try_for_each(|_| self.update(below))
    }

    /// Updates a second over `ns`, of rows below; and what they took: processor time
    /// each, consolidations each.
    fn updates(&mut self, below: u64, ns: u64) -> Result<Updates> {
        let (start, cpu, before) = (now_ns(), Cpu::own(), self.tree.stats().consolidations);
        let mut done = 0u64;
        while elapsed_ns(start) < ns {
            for _ in 0..64 {
                self.update(below)?;
            }
            done += 64;
        }
        let (wall, cpu) = (elapsed_ns(start), Cpu::own() - cpu);
        let consolidated = self.tree.stats().consolidations - before;
        Ok(Updates { count: done, wall, cpu, consolidated })
    }
}

/// What a stretch of updates came to.
struct Updates {
    count: u64,
    wall: u64,
    cpu: u64,
    consolidated: u64,
}

impl Updates {
    fn per_s(&self) -> f64 {
        self.count as f64 * 1e9 / self.wall as f64
    }

    /// As a sample: an update carries one record.
    fn sample(&self) -> Sample {
        let bytes = self.count * RECORD_BYTES;
        Sample { bytes, requests: self.count, wall_ns: self.wall, sender_ns: self.cpu, ..Sample::default() }
    }
}

/// How a page travels after the updates before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageForm {
    /// Page and deltas as they lie.
    Delta,
    /// The merged rows packed.
    CopyOut,
}

impl PageForm {
    const ALL: [PageForm; 2] = [PageForm::Delta, PageForm::CopyOut];

    fn name(self) -> &'static str {
        match self {
            PageForm::Delta => "page and deltas",
            PageForm::CopyOut => "copy-out",
        }
    }
}

/// Updates and pages that are sent, in a proportion.
#[derive(Clone, Copy, Debug)]
struct Mix {
    /// As series are named.
    name: &'static str,
    updates: usize,
    /// Pages that are sent after them.
    pages: usize,
    /// Whether all updates and pages are of one page (TC-C41).
    one_page: bool,
}

const MIXES: [Mix; 4] = [
    Mix { name: "1 update a page", updates: 1, pages: 1, one_page: false },
    Mix { name: "4 updates a page", updates: 4, pages: 1, one_page: false },
    Mix { name: "1 update in 4 pages", updates: 1, pages: 4, one_page: false },
    Mix { name: "4 updates of that page", updates: 4, pages: 1, one_page: true },
];

/// Some updates, then pages, again and again: consolidation and transmission together.
struct Mixed<'a> {
    table: &'a mut Table,
    way: PageForm,
    mix: Mix,
    pool: Pool,
    given: usize,
    sent: u64,
    /// What was sent, where that is compared with what arrives.
    digest: Option<Digest>,
}

impl Side for Mixed<'_> {
    fn next(&mut self, _to: usize) -> Result<Next> {
        let buffer = match self.way {
            PageForm::CopyOut => match self.pool.take() {
                Some(buffer) => Some(buffer),
                None => return Ok(Next::Wait),
            },
            PageForm::Delta => None,
        };
        let rows = if self.mix.one_page { ONE_PAGE } else { self.table.rows };
        let due = self.given.is_multiple_of(self.mix.pages);
        for _ in 0..if due { self.mix.updates } else { 0 } {
            self.table.update(rows)?;
        }
        self.given += 1;
        let page = if self.mix.one_page { self.table.page_at(0)? } else { self.table.page()? };
        let view = match buffer {
            None => {
                if let Some(digest) = &mut self.digest {
                    digest.message(&as_it_lies(&page));
                }
                whole(&page)?
            }
            Some(mut buffer) => {
                let at = pack(&page, &mut buffer);
                if let Some(digest) = &mut self.digest {
                    digest.message(&buffer[..at]);
                }
                self.pool.view(buffer, at)
            }
        };
        self.sent = view.bytes();
        Ok(Next::Request(WorkRequest::send(0, view).unsignalled()))
    }

    fn bytes(&self) -> u64 {
        self.sent
    }
}

/// The merged rows, values first, then keys: what lies together is copied together, as the table
/// server's copy-out does. Returns the bytes.
fn pack(page: &PinnedPage, out: &mut [u8]) -> usize {
    let (leaf, mut at) = (page.leaf(), 0);
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    for run in page.runs() {
        match run {
            Run::Base(rows) => put(&leaf.prefixes()[rows.start * VALUE_BYTES..rows.end * VALUE_BYTES]),
            Run::Delta(delta) => put(delta.prefix()),
        }
    }
    put(leaf.common());
    for run in page.runs() {
        match run {
            Run::Base(rows) => put(leaf.heads()[rows].as_flattened()),
            Run::Delta(delta) => put(delta.key()),
        }
    }
    at
}

/// The bytes of [`whole`].
fn as_it_lies(page: &PinnedPage) -> Vec<u8> {
    page.deltas().fold(page.base().to_vec(), |all, delta| [&all, delta.record()].concat())
}

/// A page as it lies, its deltas behind it.
fn whole(page: &PinnedPage) -> Result<View> {
    let base = (page.offset_of(page.base()), page.base().len() as u64);
    let deltas = page.deltas().map(|delta| (page.offset_of(delta.record()), delta.record().len() as u64));
    let parts: Vec<_> = std::iter::once(base).chain(deltas).collect();
    page.view(parts).context("a page's own bytes are not its own")
}

/// Measures the figure.
pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure =
        Figure::new("consolidate", setting.over.name(), "Chains of deltas: updates, sending, and what is held back");
    let mut sender = Sender::start(setting.over, CLIENTS[CLIENTS.len() - 1])?;
    let rows = if setting.quick { 100_000 } else { 1_000_000 };
    let region = Records::region(&mut sender, ((rows * RECORD_BYTES) as usize).next_power_of_two())?;
    let pool = sender.pool(BUFFER_BYTES, POOL_BUFFERS)?;
    sender.connect(1, BUFFER_BYTES, POOL_BUFFERS)?;
    let mut pages = Records::new(&region, PAGE_BYTES);
    let mut ring = Ring::new(PAGE_BYTES, &mut pages, 1)?;
    let chains: &[usize] = if setting.quick { &[1, 2, 4, 8, 16] } else { &[1, 2, 3, 4, 6, 8, 12, 16, 32] };
    for (at, chain) in chains.iter().enumerate() {
        setting.progress.part("consolidate", at, chains.len());
        let mut table = Table::new(&sender, rows, *chain)?;
        updates(setting, &mut figure, &mut table, *chain)?;
        let mut limit = |ns| ring.limit(&mut pages, 1, ns);
        mixed(setting, &mut figure, &mut sender, &mut table, *chain, &pool, &mut limit)?;
    }
    let beside = Table::new(&sender, rows.min(BESIDE_ROWS), 8)?;
    sender.connect(1, BUFFER_BYTES, POOL_BUFFERS)?;
    in_place::measure(setting, &mut figure, &mut sender, &beside)?;
    drop(beside);
    let held = stalled(&mut sender, rows)?;
    figure.more.insert("stalled".into(), json!(held));
    for held in &held {
        figure.count("held back", held.clients as u64, None, held.held_bytes as f64);
        figure.count("transmit buffers", held.clients as u64, None, held.buffer_bytes as f64);
    }
    tell(&mut figure, rows, &held);
    Ok(figure)
}

/// Updates alone: of all rows, and of one page's.
fn updates(setting: &Setting<'_>, figure: &mut Figure, table: &mut Table, chain: usize) -> Result<()> {
    let rows = table.rows;
    let of = [("updates", rows), ("updates of one page", ONE_PAGE)];
    for (_, below) in of {
        table.warm_up(below, chain)?;
        table.updates(below, setting.slice_ns() / 2)?;
    }
    let samples = alternate(of.len(), setting.rounds(), |side, _| table.updates(of[side].1, setting.slice_ns()))?;
    for ((name, _), rounds) in of.into_iter().zip(samples) {
        let per_s = Spread::of(&rounds.iter().map(Updates::per_s).collect::<Vec<_>>());
        if name == "updates" {
            let each = rounds.iter().map(|round| round.consolidated as f64 / round.count.max(1) as f64).collect();
            figure.record("consolidations an update", chain as u64, each);
        }
        let (count, consolidated) = rounds.iter().fold((0, 0), |(n, c), r| (n + r.count, c + r.consolidated));
        let point = Point::of(name, chain as u64, rounds.iter().map(Updates::sample).collect(), &[]);
        figure.points.push(
            point
                .with("updates_per_s", per_s.median)
                .with("updates_per_s_spread", serde_json::to_value(per_s)?)
                .with("consolidations_per_update", consolidated as f64 / count.max(1) as f64),
        );
    }
    Ok(())
}

/// Updates and transmissions together, in both ways.
fn mixed(
    setting: &Setting<'_>,
    figure: &mut Figure,
    sender: &mut Sender,
    table: &mut Table,
    chain: usize,
    pool: &Pool,
    limit: &mut dyn FnMut(u64) -> f64,
) -> Result<()> {
    for mix in MIXES {
        for way in PageForm::ALL {
            check(sender, table, way, mix, pool)?;
        }
        let mut limits = Vec::new();
        let samples = alternate(PageForm::ALL.len() + 1, setting.rounds() + 1, |side, _| -> Result<Sample> {
            let Some(way) = PageForm::ALL.get(side) else {
                limits.push(limit(setting.slice_ns() / 2));
                return Ok(Sample::default());
            };
            let mut side = Mixed { table, way: *way, mix, pool: pool.clone(), given: 0, sent: 0, digest: None };
            Ok(sender.run(&mut side, Until::Elapsed(setting.slice_ns()), false)?.0)
        })?;
        for (way, mut rounds) in PageForm::ALL.into_iter().zip(samples) {
            // The first fills chains and caches.
            rounds.remove(0);
            let pages: u64 = rounds.iter().map(|sample| sample.requests).sum();
            let work: u64 = rounds.iter().map(|sample| sample.sender_ns - sample.sender_poll_ns).sum();
            let point = Point::of(series(way, mix), chain as u64, rounds, &limits);
            let per_page = work as f64 / pages.max(1) as f64;
            let updates = mix.updates as f64 / mix.pages as f64;
            figure.points.push(point.with("updates_per_page_sent", updates).with("sender_work_ns_per_page", per_page));
        }
    }
    Ok(())
}

/// What arrives is what was sent: bytes and borders, in their order.
fn check(sender: &mut Sender, table: &mut Table, way: PageForm, mix: Mix, pool: &Pool) -> Result<()> {
    let digest = Some(Digest::default());
    let mut side = Mixed { table, way, mix, pool: pool.clone(), given: 0, sent: 0, digest };
    let answers = sender.run(&mut side, Until::Requests(CHECKED), true)?.1;
    let sent = side.digest.map(|digest| (digest.messages(), digest.value()));
    ensure!(sent == Some((answers[0].messages, answers[0].digest)), "{} delivered other bytes", series(way, mix));
    Ok(())
}

fn series(way: PageForm, mix: Mix) -> String {
    format!("{}, {}", way.name(), mix.name)
}

/// What clients that take nothing hold back while every page is replaced under them.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Held {
    /// Stalled clients, each with the same pages on their way to it.
    clients: usize,
    /// Pages on their way to each.
    pages: usize,
    /// Bytes the tree has replaced and cannot let go.
    held_bytes: u64,
    /// Bytes of the transmit buffers that copy-out would have them in.
    buffer_bytes: u64,
}

fn stalled(sender: &mut Sender, rows: u64) -> Result<Vec<Held>> {
    let mut table = Table::new(sender, rows.min(200_000), 4)?;
    let mut held = Vec::new();
    for clients in CLIENTS {
        sender.connect_stalled(clients, SERVER_BUFFER_BYTES)?;
        let mut wanted = Digest::default();
        for at in 0..PAGES_EACH {
            wanted.message(&as_it_lies(&table.page_at(at)?));
        }
        let request = |at: usize| Ok(WorkRequest::send(at as u64, whole(&table.page_at(at)?)?));
        let each = || (0..PAGES_EACH).map(request).collect::<Result<VecDeque<_>>>();
        let requests = (0..clients).map(|_| each()).collect::<Result<Vec<_>>>()?;
        let (held_bytes, answers) = sender.stalled(requests, || {
            // Everything is replaced, several times over.
            for _ in 0..table.rows {
                table.update(table.rows)?;
            }
            table.tree.reclaim();
            Ok(table.tree.stats().held_by_pins_bytes)
        })?;
        ensure!(held_bytes > 0, "{clients} stalled clients held nothing back");
        // What was replaced meanwhile is what they get, as it was when it was sent.
        let same = |answer: &Answer| (answer.messages, answer.digest) == (wanted.messages(), wanted.value());
        ensure!(answers.iter().all(same), "a stalled client got other pages than were sent to it");
        table.tree.reclaim();
        ensure!(table.tree.stats().held_by_pins_bytes == 0, "what was sent is still held");
        // Two pages a buffer, as the server packs them.
        let buffers = clients * PAGES_EACH.div_ceil(SERVER_BUFFER_BYTES / PAGE_BYTES);
        let buffer_bytes = (buffers * SERVER_BUFFER_BYTES) as u64;
        held.push(Held { clients, pages: PAGES_EACH, held_bytes, buffer_bytes });
    }
    Ok(held)
}

fn tell(figure: &mut Figure, rows: u64, held: &[Held]) {
    figure.text = format!(
        "A Bw-tree of {rows} records of {RECORD_BYTES} bytes in pages of 16 KiB, with chains of 1 to 16 or more deltas before a page is \
         consolidated. One thread updates random records and sends random pages; its processor time is that of consolidation and          \
         transmission together. Page and deltas are sent as they lie; copy-out packs the merged rows. What arrives is compared \
         with what was sent, outside of the timing."
    );
    figure.tables.push(in_place::lines(figure));
    let mut updates = Curves::new("million updates a second", "deltas before a page is consolidated", Scale::Log);
    for (colour, name) in ["updates", "updates of one page"].into_iter().enumerate() {
        let points = figure.curve(name);
        updates.add(Curve::values(
            name,
            colour,
            points.iter().map(|p| (p.x, p.label("updates_per_s") / 1e6)).collect(),
        ));
    }
    updates.marks(papers::marks("consolidate", "updates"));
    let mut work =
        Curves::new("CPU of the sender (µs a page sent)", "deltas before a page is consolidated", Scale::Log);
    let list = MIXES.into_iter().flat_map(|mix| PageForm::ALL.into_iter().map(move |way| (way, mix)));
    for (colour, (way, mix)) in list.enumerate() {
        let name = series(way, mix);
        let points = figure.curve(&name);
        let points = points.iter().map(|p| (p.x, p.label("sender_work_ns_per_page") / 1e3)).collect();
        work.add(Curve::values(&name, colour, points));
    }
    let mut stall = Curves::new("MiB", "clients that take nothing, with pages on their way", Scale::Log).logarithmic();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let of = |figure: &dyn Fn(&Held) -> u64| held.iter().map(|h| (h.clients as u64, mib(figure(h)))).collect();
    stall.add(Curve::values("held back by stalled clients", 0, of(&|h| h.held_bytes)));
    stall.add(Curve::values("transmit buffers that copy-out would need", 1, of(&|h| h.buffer_bytes)));
    figure.charts.push((
        curves(&updates),
        "Updates a second against the length of chains (§5.4). The diamond is the paper's.".into(),
    ));
    figure.charts.push((
        curves(&work),
        "Work of the sender's processor, updates, consolidation and sending together (§5.4).".into(),
    ));
    figure.charts.push((
        curves(&stall),
        "What clients that post no receive, to whom the same pages are under way, hold back while every page is replaced (§5.5)."
            .into(),
    ));
}

/// With its key a record of 128 bytes, as the papers' small ones.
const VALUE_BYTES: usize = 120;
const RECORD_BYTES: u64 = 128;
const PAGE_BYTES: usize = 16 << 10;
/// A page, merged or with its deltas, has room in it.
const BUFFER_BYTES: usize = 24 << 10;
const POOL_BUFFERS: usize = 32;
/// Rows that surely lie in one page.
const ONE_PAGE: u64 = 32;
const CLIENTS: [usize; 3] = [1, 4, 16];
/// No more than a receiver has receives for: it takes them when it goes on.
const PAGES_EACH: usize = 4;
/// As long as the table server's, which packs two pages into one.
const SERVER_BUFFER_BYTES: usize = table::wire::BLOCK_BYTES;
const CHECKED: u64 = 40;
/// Of the tree that is changed by one thread and scanned by another.
const BESIDE_ROWS: u64 = 100_000;
/// Chains that a page gets in the warm-up, on average: with one, pages would still
/// be consolidated in step.
const WARM_CHAINS: u64 = 3;
const SEGMENT_BYTES: usize = 16 << 20;
const ARENA_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_first_consolidates_as_often_as_what_follows() {
        let chain = 16;
        let mut table = Table::over(Arc::new(()), 20_000, chain).unwrap();
        table.warm_up(20_000, chain).unwrap();
        let each = (0..3).map(|_| {
            let before = table.tree.stats().consolidations;
            (0..2 * table.fences.len() * chain).for_each(|_| table.update(20_000).unwrap());
            (table.tree.stats().consolidations - before) as f64
        });
        let each: Vec<f64> = each.collect();
        assert!(each.iter().all(|n| (n / each[2] - 1.0).abs() < 0.1), "{each:?}");
    }
}
