//! A store that updates in place, beside the tree: its writers wait until the device has read the
//! page (to-copy §4.1, TC-M14).
//!
//! What a device reads must not change. A tree never changes a page that was published. A store
//! that updates in place has to treat the device as a reader who holds a lock on the whole page
//! until the send has completed. Here the lock is the page's reference count: a transmission has a
//! share of the page, and a writer needs it alone.

use super::{Digest, PAGE_BYTES, RECORD_BYTES, Table, VALUE_BYTES, as_it_lies, whole};
use crate::{
    figures::{
        Setting,
        figure::{Figure, Table as Lines, shown},
        sender::{Next, Sample, Sender, Side, Until},
        tables::clients::quantile,
    },
    measure::{Ratio, Spread, alternate, now_ns},
};
use anyhow::{Result, bail, ensure};
use overside::{
    memory::{Buffer, Pool, View},
    shape::{Run, Shape},
    verbs::WorkRequest,
};
use overside_evidence::SplitMix64;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Pages of records that are changed where they lie.
struct InPlace {
    pages: Vec<Mutex<Arc<Buffer>>>,
}

impl InPlace {
    fn new(pool: &Pool) -> InPlace {
        let pages = std::iter::from_fn(|| pool.take());
        InPlace { pages: pages.map(|page| Mutex::new(Arc::new(page))).collect() }
    }

    fn rows(&self) -> u64 {
        (self.pages.len() * ROWS_A_PAGE) as u64
    }

    /// Changes a row, once no transmission has its page; not if the stretch is over first:
    /// nobody releases pages then.
    fn put(&self, row: u64, value: &[u8; VALUE_BYTES], is_over: &AtomicBool) {
        let (page, at) = (row as usize / ROWS_A_PAGE, row as usize % ROWS_A_PAGE * RECORD_BYTES as usize);
        while !is_over.load(Ordering::Acquire) {
            if let Some(bytes) = Arc::get_mut(&mut *self.lock(page)) {
                bytes[at..at + VALUE_BYTES].copy_from_slice(value);
                return;
            }
            // The sender, which releases pages, may need this processor.
            thread::yield_now();
        }
    }

    fn lock(&self, page: usize) -> MutexGuard<'_, Arc<Buffer>> {
        self.pages[page].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A share of a page, for a transmission of it.
    fn share(&self, page: usize) -> Arc<Buffer> {
        self.lock(page).clone()
    }
}

/// What is scanned while it is changed.
enum Store<'a> {
    Tree(&'a Table),
    InPlace(&'a InPlace),
}

impl Store<'_> {
    fn name(&self) -> &'static str {
        match self {
            Store::Tree(_) => TREE,
            Store::InPlace(_) => IN_PLACE,
        }
    }

    /// Puts random rows until `is_over`; nanoseconds of each.
    fn puts(&self, is_over: &AtomicBool) -> Result<Vec<u64>> {
        let (mut random, mut value, mut times) = (SplitMix64(11), [7; VALUE_BYTES], Vec::new());
        while !is_over.load(Ordering::Acquire) {
            let start = now_ns();
            value[..8].copy_from_slice(&start.to_le_bytes());
            match self {
                Store::Tree(table) => _ = table.tree.upsert(&random.below(table.rows).to_be_bytes(), &value)?,
                Store::InPlace(store) => store.put(random.below(store.rows()), &value, is_over),
            }
            times.push(now_ns() - start);
        }
        Ok(times)
    }
}

/// All pages, one after another, again and again.
struct Scan<'a> {
    store: &'a Store<'a>,
    next: usize,
    sent: u64,
    /// What was sent, where that is compared with what arrives.
    digest: Option<Digest>,
}

impl Side for Scan<'_> {
    fn next(&mut self, _to: usize) -> Result<Next> {
        let view = match self.store {
            Store::Tree(table) => {
                let page = table.page_at(self.next % table.fences.len())?;
                if let Some(digest) = &mut self.digest {
                    digest.message(&as_it_lies(&page));
                }
                whole(&page)?
            }
            Store::InPlace(store) => {
                let page = store.share(self.next % store.pages.len());
                if let Some(digest) = &mut self.digest {
                    digest.message(&page);
                }
                View::of(&page, &Shape::list(&[Run::new(0, PAGE_BYTES as u64)])?)?
            }
        };
        self.next += 1;
        self.sent = view.bytes();
        // A page is let go as soon as it has been read, not with a later one.
        Ok(Next::Request(WorkRequest::send(0, view).prompt()))
    }

    fn bytes(&self) -> u64 {
        self.sent
    }
}

/// Puts of one thread beside scans that another sends.
pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure, sender: &mut Sender, table: &Table) -> Result<()> {
    setting.progress.say("consolidate: updates in place");
    let pool = sender.pool(PAGE_BYTES, PAGES)?;
    let in_place = InPlace::new(&pool);
    let stores = [Store::Tree(table), Store::InPlace(&in_place)];
    for store in &stores {
        let digest = Some(Digest::default());
        let mut scan = Scan { store, next: 0, sent: 0, digest };
        let (_, answers, puts) = beside(sender, &mut scan, Until::Requests(CHECKED), true)?;
        let sent = scan.digest.map(|digest| (digest.messages(), digest.value()));
        ensure!(sent == Some((answers.0, answers.1)), "{} delivered other bytes than it sent", store.name());
        ensure!(!puts.is_empty(), "{} took no put beside a scan", store.name());
    }
    let samples = alternate(stores.len(), setting.rounds(), |side, _| -> Result<(Sample, Vec<u64>)> {
        let mut scan = Scan { store: &stores[side], next: 0, sent: 0, digest: None };
        let (sample, _, puts) = beside(sender, &mut scan, Until::Elapsed(slice_ns(setting)), false)?;
        Ok((sample, puts))
    })?;
    for (store, rounds) in stores.iter().zip(&samples) {
        for (name, share) in QUANTILES {
            let values = rounds.iter().map(|(_, puts)| quantile(puts, share)).collect();
            figure.record(latency(name, store.name()), 0, values);
        }
        let rates = rounds.iter().map(|(sample, _)| sample.bytes_per_s()).collect();
        figure.record(rate(store.name()), 0, rates);
    }
    Ok(())
}

/// A stretch of a scan and the puts beside it; messages and digest of what arrived.
fn beside(
    sender: &mut Sender,
    scan: &mut Scan<'_>,
    until: Until,
    check: bool,
) -> Result<(Sample, (u64, u64), Vec<u64>)> {
    let (is_over, store) = (AtomicBool::new(false), scan.store);
    thread::scope(|scope| {
        let puts = scope.spawn(|| store.puts(&is_over));
        let ran = sender.run(scan, until, check);
        is_over.store(true, Ordering::Release);
        let Ok(puts) = puts.join() else { bail!("the writer panicked") };
        let (sample, answers) = ran?;
        Ok((sample, (answers[0].messages, answers[0].digest), puts?))
    })
}

pub(super) fn lines(figure: &Figure) -> Lines {
    let of =
        |series: &str| -> Vec<f64> { figure.recorded(series).next().map_or(Vec::new(), |(_, values)| values.to_vec()) };
    let row = |what: &str, series: &dyn Fn(&str) -> String, factor: f64| {
        let (tree, in_place) = (of(&series(TREE)), of(&series(IN_PLACE)));
        let cell = |values: &[f64]| format!("{:.2}", Spread::of(values).median * factor);
        vec![what.to_owned(), cell(&tree), cell(&in_place), shown(Ratio::paired(&in_place, &tree))]
    };
    let mut rows: Vec<_> = QUANTILES
        .into_iter()
        .map(|(name, _)| row(&format!("a put, {name}, µs"), &|store| latency(name, store), 1e-3))
        .collect();
    rows.push(row("scans, GB/s", &rate, 1e-9));
    let head = ["", TREE, IN_PLACE, "in place over tree"].map(str::to_owned).to_vec();
    let caption =
        "Puts of one thread beside scans: a tree, and a store whose writers wait until a page was sent (§4.1)";
    Lines { caption: caption.into(), head, rows }
}

fn latency(quantile: &str, store: &str) -> String {
    format!("put beside scans, {quantile} ns: {store}")
}

fn rate(store: &str) -> String {
    format!("scans beside puts, bytes/s: {store}")
}

fn slice_ns(setting: &Setting<'_>) -> u64 {
    if setting.quick { 60_000_000 } else { 300_000_000 }
}

const TREE: &str = "tree";
const IN_PLACE: &str = "in place";
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
const ROWS_A_PAGE: usize = PAGE_BYTES / RECORD_BYTES as usize;
/// As many as the tree has at the least.
const PAGES: usize = 1000;
const CHECKED: u64 = 400;

#[cfg(test)]
mod tests {
    use super::*;
    use overside::memory::Segment;

    fn store(pages: usize) -> InPlace {
        let segment = Segment::private(pages * PAGE_BYTES).unwrap();
        InPlace::new(&Pool::new(segment, PAGE_BYTES).unwrap())
    }

    /// As long as a transmission has a page, its bytes stay, and the writer waits; other
    /// pages are written meanwhile.
    #[test]
    fn a_put_waits_until_its_page_was_sent() {
        let store = store(2);
        let page = store.share(0);
        let view = View::of(&page, &Shape::list(&[Run::new(0, PAGE_BYTES as u64)]).unwrap()).unwrap();
        let before = page.to_vec();
        let (done, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                store.put(3, &[9; VALUE_BYTES], &is_over);
                done.store(true, Ordering::SeqCst);
            });
            store.put(ROWS_A_PAGE as u64, &[8; VALUE_BYTES], &is_over);
            for _ in 0..200 {
                assert!(!done.load(Ordering::SeqCst));
                thread::yield_now();
            }
            assert_eq!(page[..], before[..]);
            drop((view, page));
        });
        let at = 3 * RECORD_BYTES as usize;
        assert_eq!(store.share(0)[at..at + VALUE_BYTES], [9; VALUE_BYTES]);
        assert_eq!(store.share(1)[..VALUE_BYTES], [8; VALUE_BYTES]);
    }
}
