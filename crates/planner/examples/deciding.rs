//! What deciding costs: `cargo run --release -p overside-planner --example deciding`.
//!
//! Nanoseconds a plan, median of rounds, for a shape planned afresh and for one whose plan is cached, beside the price of
//! the send that the plan is about (both ends, by the profile in use here). With `fresh`, `known` or `together` each is decided
//! once, for `cargo xtask instructions`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use overside_planner::{
    AtomicScope, Bends, Capabilities, Curve, ForeignMemory, Goal, PlanCache, Planner, Profile, Terms,
};
use overside_shape::{Bitmap, Column, Order, Run, Shape};

fn main() {
    let planner = Planner::new(capabilities(), profile());
    let terms = Terms { goal: Goal::TotalCpu, ..Terms::default() };
    match std::env::args().nth(1).as_deref() {
        Some("fresh") => return fresh(&planner, &shapes().map(|(_, shape)| shape), &terms),
        Some("known") => {
            let (shapes, mut cache) = (shapes().map(|(_, shape)| Arc::new(shape)), PlanCache::default());
            known(&planner, &shapes, &terms, &mut cache);
            return looked_up(&planner, &shapes, &terms, &mut cache);
        }
        Some("together") => return together(&planner, &dealt(), &terms),
        _ => {}
    }
    println!("{:32} {:>10} {:>10} {:>10} {:>8} {:>8}", "16 KiB of", "fresh", "cached", "send", "fresh", "cached");
    for (what, shape) in shapes() {
        let shape = Arc::new(shape);
        let mut cache = PlanCache::default();
        let fresh = nanoseconds(|| {
            let _ = black_box(planner.plan(black_box(&shape), &terms));
        });
        let cached = nanoseconds(|| {
            let _ = black_box(cache.plan(&planner, black_box(&shape), &terms));
        });
        let plan = planner.plan(&shape, &terms).expect("the shapes here can be sent");
        let send = plan.chosen().sender_ns + plan.chosen().receiver_ns;
        let share = |ns: f64| format!("{:.1} %", 100.0 * ns / send);
        println!("{what:32} {fresh:>7.0} ns {cached:>7.1} ns {send:>7.0} ns {:>8} {:>8}", share(fresh), share(cached));
    }
}

/// Each shape as one that nothing is known about.
#[inline(never)]
fn fresh(planner: &Planner, shapes: &[Shape], terms: &Terms) {
    for shape in shapes {
        let _ = black_box(planner.plan(black_box(shape), terms));
    }
}

/// Each shape's plan is kept.
fn known(planner: &Planner, shapes: &[Arc<Shape>], terms: &Terms, cache: &mut PlanCache) {
    for shape in shapes {
        let _ = black_box(cache.plan(planner, shape, terms));
    }
}

/// Each shape again.
#[inline(never)]
fn looked_up(planner: &Planner, shapes: &[Arc<Shape>], terms: &Terms, cache: &mut PlanCache) {
    for _ in 0..LOOKED_UP {
        known(planner, black_box(shapes), terms, cache);
    }
}

/// A table for eight destinations, as a shared send plans it.
#[inline(never)]
fn together(planner: &Planner, shapes: &[Shape], terms: &Terms) {
    let _ = black_box(planner.plan_together(&black_box(shapes).iter().collect::<Vec<_>>(), terms));
}

/// Rows of five columns, each to one of eight.
fn dealt() -> Vec<Shape> {
    let columns: Vec<Column> = (0..5).map(|column| Column::dense(column << 20, 4)).collect();
    let rows = |to: u64| Bitmap::of(1 << 16, |row| row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61 == to);
    (0..8).map(|to| Shape::bitmapped(&columns, &rows(to), Order::Rows).expect("columns within a table")).collect()
}

fn shapes() -> [(&'static str, Shape); 5] {
    let scattered = |lens: &[u64]| {
        let mut at = 0;
        let mut place = |len: u64| {
            at += len + 200;
            Run::new(at - len, len)
        };
        Shape::list(&lens.iter().map(|len| place(*len)).collect::<Vec<_>>()).expect("a list")
    };
    let mixed: Vec<u64> = (0..128).map(|i| if i % 16 == 0 { 1500 } else { 28 + i % 40 }).collect();
    let strided = Shape::strided(0, 200, 128, &[Run::new(0, 128)]).expect("a stride");
    [
        ("one fragment", Shape::contiguous(0, 16 << 10).expect("a range")),
        ("128 fragments by a stride", strided.one_message()),
        ("128 alike, listed", scattered(&[128; 128])),
        ("128 of many lengths, listed", scattered(&mixed)),
        ("16 of 1 KiB, listed", scattered(&[1024; 16])),
    ]
}

/// Median of rounds of many calls.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            start.elapsed().as_nanos() as f64 / CALLS as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// As of shared memory.
fn capabilities() -> Capabilities {
    Capabilities {
        sge_max: 256,
        inline_max: 256,
        message_max: 1 << 30,
        depth_max: 4096,
        progress_by_itself: true,
        one_sided: true,
        atomics: AtomicScope::Cpu,
        last_byte_last: true,
        region_bytes_max: 0,
        foreign: ForeignMemory::Pushed,
        lends: false,
    }
}

/// Of a fast machine, so that the shares are not flattered.
fn profile() -> Profile {
    let curve = |fixed: f64, byte: f64| {
        Curve::new((2..17).map(|k| (1u64 << k, fixed + byte * f64::from(1u32 << k)))).expect("powers of two")
    };
    Profile {
        send_request_ns: 60.0,
        send_fragment_ns: 5.0,
        send_byte_ns: 0.0,
        pack_byte_ns: 0.06,
        pack_piece_ns: 4.0,
        pack_request_ns: 0.0,
        row_ns: 4.0,
        receive_request_ns: 80.0,
        receive_fragment_ns: 8.0,
        receive_byte_ns: 0.06,
        wire_byte_ns: 0.0,
        bends: Bends { pack: curve(4.0, 0.06), receive: curve(8.0, 0.06), ..Bends::default() },
        source: "made up".into(),
        elsewhere: None,
    }
}

const ROUNDS: usize = 21;
const CALLS: usize = 20_000;
const LOOKED_UP: usize = 16;
