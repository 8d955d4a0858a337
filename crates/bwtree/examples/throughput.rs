//! What the tree does alone: millions of operations a second, in the columns that the peers' comparison has.
//!
//! `cargo run --release -p overside-bwtree --example throughput -- [KEYS] [THREADS] [COLUMN…]`
//! Columns: insert read c b a e scan delete; all of them by default. `scanned` deletes beside a thread that scans all the time;
//! `baseline` measures a `RwLock<BTreeMap<u64, u64>>` too.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use overside_bwtree::{Direction, HeapArena, Options, Run, Tree};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Gray's generator of Zipf-distributed ranks, as YCSB uses it.
struct Zipf {
    n: u64,
    theta: f64,
    alpha: f64,
    zetan: f64,
    eta: f64,
}

impl Zipf {
    fn new(n: u64, theta: f64) -> Zipf {
        let zeta = |n: u64| (1..=n).map(|i| 1.0 / (i as f64).powf(theta)).sum::<f64>();
        let zetan = zeta(n);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / zetan);
        Zipf { n, theta, alpha: 1.0 / (1.0 - theta), zetan, eta }
    }

    fn rank(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zetan;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        (self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64 % self.n
    }
}

fn key(n: u64) -> [u8; 8] {
    mix(n + 1).to_be_bytes()
}

/// Runs `work(thread, from..to)` on parts of `0..total` and says how many millions a second that makes.
fn timed(threads: u64, total: u64, work: impl Fn(u64, std::ops::Range<u64>) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|s| {
        for t in 0..threads {
            let work = &work;
            s.spawn(move || work(t, total * t / threads..total * (t + 1) / threads));
        }
    });
    total as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// The same columns for a locked ordered map of the standard library.
fn baseline(n: u64, threads: u64) {
    let map = std::sync::RwLock::new(std::collections::BTreeMap::new());
    let report = |column: &str, rate: f64| println!("{column:>7} {rate:8.3} M/s  locked BTreeMap");
    let number = |i: u64| mix(i + 1);
    let rate = timed(threads, n, |_, part| {
        for i in part {
            map.write().expect("no panic").insert(number(i), i);
        }
    });
    report("insert", rate);
    let rate = timed(threads, n / 2, |t, part| {
        let mut rng = Rng(t + 1);
        for _ in part {
            assert!(map.read().expect("no panic").contains_key(&number(rng.next() % n)));
        }
    });
    report("read", rate);
    let zipf = Zipf::new(n, 0.99);
    for (column, writes) in [("c", 0), ("b", 5), ("a", 50)] {
        let rate = timed(threads, n / 2, |t, part| {
            let mut rng = Rng(t + 77);
            for i in part {
                let k = number(mix(zipf.rank(&mut rng)) % n);
                if rng.next() % 100 < writes {
                    map.write().expect("no panic").insert(k, i);
                } else {
                    assert!(map.read().expect("no panic").get(&k).is_some());
                }
            }
        });
        report(column, rate);
    }
    let fresh = AtomicU64::new(n);
    let rate = timed(threads, n / 4, |t, part| {
        let mut rng = Rng(t + 99);
        let mut sum = 0u64;
        for _ in part {
            if rng.next() % 100 < 5 {
                let i = fresh.fetch_add(1, Ordering::Relaxed);
                map.write().expect("no panic").insert(number(i), i);
                continue;
            }
            let k = number(mix(zipf.rank(&mut rng)) % n);
            let rows = (rng.next() % 100 + 1) as usize;
            sum = map.read().expect("no panic").range(k..).take(rows).fold(sum, |sum, (_, v)| sum.wrapping_add(*v));
        }
        std::hint::black_box(sum);
    });
    report("e", rate);
    for _ in 0..3 {
        let start = Instant::now();
        let (mut sum, mut count) = (0u64, 0u64);
        for (_, v) in map.read().expect("no panic").iter() {
            sum = sum.wrapping_add(*v);
            count += 1;
        }
        std::hint::black_box(sum);
        report("scan", count as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = args.iter().filter_map(|a| a.parse().ok()).collect();
    let columns: Vec<&str> = args.iter().map(String::as_str).filter(|a| a.parse::<u64>().is_err()).collect();
    let n = numbers.first().copied().unwrap_or(10_000_000);
    let threads = numbers.get(1).copied().unwrap_or(1);
    let wanted = |column: &str| columns.iter().all(|c| *c == "baseline") || columns.contains(&column);
    if columns.contains(&"baseline") {
        baseline(n, threads);
    }
    let arena = Arc::new(HeapArena::new(8 << 30).expect("address space"));
    let chain_max = std::env::var("CHAIN").ok().and_then(|c| c.parse().ok()).unwrap_or(Options::default().chain_max);
    let tree = Tree::new(arena, Options { prefix_len: 8, chain_max, ..Options::default() }).expect("a tree");

    let report = |column: &str, rate: f64| println!("{column:>7} {rate:8.3} M/s");
    let rate = timed(threads, n, |_, part| {
        for i in part {
            tree.insert(&key(i), &i.to_le_bytes()).expect("room");
        }
    });
    report("insert", rate);
    let stats = tree.stats();
    println!(
        "        {:.1} B/record used, {:.1} committed; {stats:?}",
        stats.used_bytes as f64 / n as f64,
        stats.committed_bytes as f64 / n as f64
    );
    let ops = n / 2;
    if wanted("read") {
        let rate = timed(threads, ops, |t, part| {
            let (mut rng, mut out) = (Rng(t + 1), Vec::new());
            for _ in part {
                assert!(tree.get(&key(rng.next() % n), &mut out).expect("no error"));
            }
        });
        report("read", rate);
    }
    let zipf = Zipf::new(n, 0.99);
    for (column, writes) in [("c", 0), ("b", 5), ("a", 50)] {
        if !wanted(column) {
            continue;
        }
        let rate = timed(threads, ops, |t, part| {
            let (mut rng, mut out) = (Rng(t + 77), Vec::new());
            for i in part {
                let k = key(mix(zipf.rank(&mut rng)) % n);
                if rng.next() % 100 < writes {
                    tree.upsert(&k, &i.to_le_bytes()).expect("room");
                } else {
                    assert!(tree.get(&k, &mut out).expect("no error"));
                }
            }
        });
        report(column, rate);
    }
    if wanted("e") {
        let fresh = AtomicU64::new(n);
        let sum = AtomicU64::new(0);
        let rate = timed(threads, ops / 2, |t, part| {
            let (mut rng, mut reader) = (Rng(t + 99), tree.reader());
            let mut local = 0u64;
            for _ in part {
                if rng.next() % 100 < 5 {
                    let i = fresh.fetch_add(1, Ordering::Relaxed);
                    tree.insert(&key(i), &i.to_le_bytes()).expect("room");
                    continue;
                }
                let k = key(mix(zipf.rank(&mut rng)) % n);
                let rows = (rng.next() % 100 + 1) as usize;
                reader.seek(Bound::Included(&k), Bound::Unbounded, rows);
                while let Some(copied) = reader.next_rows() {
                    let values = copied.prefixes().as_chunks::<8>().0;
                    for (key, value) in copied.heads().iter().zip(values) {
                        local = local.wrapping_add(u64::from_be_bytes(*key) ^ u64::from_le_bytes(*value));
                    }
                }
            }
            sum.fetch_add(local, Ordering::Relaxed);
        });
        report("e", rate);
    }
    if wanted("scan") {
        for _ in 0..3 {
            let rows = AtomicU64::new(0);
            let start = Instant::now();
            let mut sum = 0u64;
            for page in tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward) {
                let mut count = 0;
                for row in page.merged() {
                    sum = sum.wrapping_add(u64::from_le_bytes(row.prefix.try_into().expect("8 bytes")));
                    count += 1;
                }
                rows.fetch_add(count, Ordering::Relaxed);
            }
            let rate = rows.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64() / 1e6;
            std::hint::black_box(sum);
            report("scan", rate);
        }
        for _ in 0..3 {
            let (mut rows, mut sum) = (0, 0u64);
            let start = Instant::now();
            for page in tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward) {
                let leaf = page.leaf();
                for run in page.runs() {
                    match run {
                        Run::Base(at) => {
                            let values = leaf.prefixes()[8 * at.start..8 * at.end].as_chunks::<8>().0;
                            for (key, value) in leaf.heads()[at].iter().zip(values) {
                                sum = sum.wrapping_add(u64::from_be_bytes(*key) ^ u64::from_le_bytes(*value));
                                rows += 1;
                            }
                        }
                        Run::Delta(delta) => {
                            sum = sum.wrapping_add(u64::from(delta.prefix()[0]));
                            rows += 1;
                        }
                    }
                }
            }
            std::hint::black_box(sum);
            report("slices", f64::from(rows) / start.elapsed().as_secs_f64() / 1e6);
        }
    }
    if wanted("delete") || columns.contains(&"scanned") {
        let peak = tree.stats().committed_bytes;
        let (done, scanned) = (AtomicBool::new(false), columns.contains(&"scanned"));
        let scan = || tree.range(Bound::Unbounded, Bound::Unbounded, Direction::Forward).count();
        let reader = || {
            while !done.load(Ordering::Relaxed) {
                std::hint::black_box(scan());
            }
        };
        std::thread::scope(|s| {
            let _ = scanned.then(|| s.spawn(reader));
            let rate = timed(threads, n, |_, part| {
                for i in part {
                    if i % 100 != 0 {
                        tree.delete(&key(i)).expect("room");
                    }
                }
            });
            report("delete", rate);
            tree.reclaim();
            let stats = tree.stats();
            println!(
                "        committed {:.2} % of the peak; {stats:?}",
                stats.committed_bytes as f64 * 100.0 / peak as f64
            );
            done.store(true, Ordering::Relaxed);
        });
    }
}
