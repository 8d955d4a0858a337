//! Operations on a peer's memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use overside_memory::Window;
use overside_verbs::probe::{Act, Area, Data, Piece};
use overside_verbs::{Access, AtomicScope, RemoteToken, Status};

use super::needs;
use crate::ends::{End, Pair, QP, WAIT, connect, owes, part, pattern};
use crate::{Harness, Stop};

/// Another thread that looks at a window while it is written: `flag` is the place of the word that
/// says that everything has arrived, `covered` the range that must be there then.
struct Watch<'a> {
    window: &'a Window,
    flag: u64,
    covered: (u64, usize),
}

impl Watch<'_> {
    /// Waits for the word of `round`, then looks at the rest.
    fn look(&self, round: u8) -> Result<(), Stop> {
        let word = self.window.word(self.flag)?;
        let end = Instant::now() + WAIT;
        while word.load(Ordering::Acquire) != u64::from_ne_bytes([round; 8]) {
            owes!(Instant::now() < end, "a WRITE did not become visible within {WAIT:?}");
            std::hint::spin_loop();
        }
        let mut there = vec![0; self.covered.1];
        self.window.read(self.covered.0, &mut there)?;
        let stale = there.iter().position(|b| *b != round);
        owes!(stale.is_none(), "byte {stale:?} of {} was still the old one", there.len());
        Ok(())
    }

    /// Posts the WRITEs of one round while the other thread looks.
    fn during(&self, round: u8, pair: &mut Pair, writes: [Act; 2]) -> Result<(), Stop> {
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| self.look(round));
            let written = write_both(pair, writes);
            let looked = looker.join().unwrap_or_else(|_| Err(Stop::Broken("looking at the window panicked".into())));
            looked.and(written)
        })
    }
}

fn write_both(pair: &mut Pair, writes: [Act; 2]) -> Result<(), Stop> {
    let batch = writes.map(|write| pair.a.request(write, true, false));
    pair.a.post_all(QP, &batch)?;
    let [first, second] = batch.map(|request| request.slot);
    pair.finish(&[first, second], &[])?;
    pair.a.success(first)?;
    pair.a.success(second)?;
    Ok(())
}

pub(super) fn last_word(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    needs(pair.a.capabilities.one_sided, "one_sided")?;
    needs(pair.b.capabilities.last_byte_last, "last_byte_last")?;
    let from = pair.a.area(1 << 16)?;
    let (window, token) = pair.b.window(1 << 17, Access::REMOTE_WRITE)?;
    let mut round = 0u8;
    for (at, len) in [(0u64, 8usize), (8, 16), (4, 20), (64, 64), (3, 1000), (4096, 4096), (5, 60_001)] {
        let end = at + len as u64;
        let watch = Watch { window: &window, flag: (end & !7) - 8, covered: (at, len) };
        for _ in 0..12 {
            round = round % 250 + 1;
            from.write(0, &vec![round; len])?;
            // Two fragments: the order holds across them.
            let data = Data::Gather(vec![from.piece(0, len / 3)?, from.piece(len / 3, len - len / 3)?]);
            // Another one before it, elsewhere, so that the looker has begun to look.
            let before = Act::Write(Data::Gather(vec![from.piece(0, 1 << 15)?]), part(token, 90_000, 1 << 15), None);
            watch.during(round, &mut pair, [before, Act::Write(data, part(token, at, len as u64), None)])?;
        }
    }
    Ok(())
}

pub(super) fn write_order(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    needs(pair.a.capabilities.one_sided, "one_sided")?;
    let from = pair.a.area(1 << 16)?;
    let (window, token) = pair.b.window(1 << 17, Access::REMOTE_WRITE)?;
    for round in 1..60u8 {
        // The flag below the data and above it, the data small and large.
        let (flag, data) = if round % 2 == 0 { (0, 4096) } else { (1 << 16, 0) };
        let len = if round % 3 == 0 { 200 } else { 50_000 };
        from.write(0, &vec![round; 50_000])?;
        let watch = Watch { window: &window, flag, covered: (data, len) };
        let write = |at, len| {
            let pieces = vec![from.piece(0, len)?];
            Ok::<_, Stop>(Act::Write(Data::Gather(pieces), part(token, at, len as u64), None))
        };
        watch.during(round, &mut pair, [write(data, len)?, write(flag, 8)?])?;
    }
    Ok(())
}

pub(super) fn fence(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    needs(pair.a.capabilities.one_sided, "one_sided")?;
    let len = (pair.a.capabilities.message_max as usize).min(1 << 18);
    let (source, token) = pair.b.readable(len, Access::LOCAL | Access::REMOTE_READ)?;
    let (from, sink, to) = (pair.a.area(4096)?, pair.a.area(len)?, pair.b.area(4096)?);
    source.write(0, &vec![0; len])?;
    for round in 1..=20u8 {
        let got = pair.b.receive(Some(QP), to.piece(0, 64)?)?;
        let read = pair.a.post(QP, Act::Read(sink.piece(0, len)?, part(token, 0, len as u64)), true, false)?;
        let go = pair.a.post(QP, Act::Send(Data::Gather(vec![from.piece(0, 8)?]), None), true, true)?;
        // The target takes the message for leave to overwrite what was being read.
        pair.until("a fenced SEND arrives", |pair| pair.b.has(got))?;
        source.write(0, &vec![round; len])?;
        pair.finish(&[read, go], &[got])?;
        pair.a.success(read)?;
        let late = sink.read(0, len)?.iter().any(|b| *b != round - 1);
        owes!(!late, "a READ took effect after a fenced SEND behind it");
    }
    if pair.a.capabilities.atomics == AtomicScope::None { Ok(()) } else { fence_behind_atomics(harness) }
}

fn fence_behind_atomics(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (window, token) = pair.b.window(4096, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let from = pair.a.area(4096)?;
    let word = part(token, 64, 8);
    for round in 1..100u64 {
        window.word(64)?.store(round, Ordering::Release);
        from.write(0, &(round << 32).to_ne_bytes())?;
        let add = pair.a.post(QP, Act::FetchAdd(word, 1), true, false)?;
        let write = pair.a.post(QP, Act::Write(Data::Gather(vec![from.piece(0, 8)?]), word, None), true, true)?;
        pair.finish(&[add, write], &[])?;
        let found = pair.a.success(add)?.value;
        owes!(found == round, "FETCH_ADD found {found:#x}: the fenced WRITE behind it came first");
        let left = window.word(64)?.load(Ordering::Acquire);
        owes!(left == round << 32, "after FETCH_ADD and a fenced WRITE the word is {left:#x}");
    }
    Ok(())
}

pub(super) fn atomic(harness: &dyn Harness) -> Result<(), Stop> {
    let mut hub = End::open(harness.provider())?;
    let scope = hub.capabilities.atomics;
    needs(scope != AtomicScope::None, "atomics")?;
    let (window, token) = hub.window(4096, Access::REMOTE_ATOMIC)?;
    let mut ends = [End::open(harness.provider())?, End::open(harness.provider())?];
    for end in &mut ends {
        connect(harness, end, &mut hub)?;
    }
    semantics(&mut hub, &mut ends[0], &window, token)?;
    window.word(8)?.store(0, Ordering::Release);
    let counter = part(token, 8, 8);
    let counts = AtomicBool::new(scope == AtomicScope::Cpu);
    let mut found = std::thread::scope(|threads| {
        let (window, counts) = (&window, &counts);
        let adders: Vec<_> = ends.iter_mut().map(|end| threads.spawn(|| add(end, counter))).collect();
        // Where the target's processor counts as well, it adds all the while.
        let processor = threads.spawn(move || add_here(window, counts));
        while adders.iter().any(|adder| !adder.is_finished()) {
            hub.turn();
            std::thread::yield_now();
        }
        counts.store(false, Ordering::Release);
        let panicked = |_| Stop::Broken("adding panicked".into());
        let mut found = processor.join().map_err(panicked)??;
        for adder in adders {
            found.extend(adder.join().map_err(panicked)??);
        }
        Ok::<_, Stop>(found)
    })?;
    found.sort_unstable();
    let total = found.len() as u64;
    let left = window.word(8)?.load(Ordering::Acquire);
    owes!(left == total, "{total} additions of one left {left}");
    let lost = found.iter().zip(0..).find(|(found, expected)| *found != expected);
    owes!(lost.is_none(), "two additions found the same value: {lost:?}");
    Ok(())
}

fn add_here(window: &Window, counts: &AtomicBool) -> Result<Vec<u64>, Stop> {
    let mut found = Vec::new();
    while counts.load(Ordering::Acquire) {
        found.push(window.word(8)?.fetch_add(1, Ordering::AcqRel));
        std::thread::yield_now();
    }
    Ok(found)
}

fn add(end: &mut End, counter: RemoteToken) -> Result<Vec<u64>, Stop> {
    let mut found = Vec::new();
    while found.len() < ADDS {
        let posted = [(); 8].map(|()| end.post(QP, Act::FetchAdd(counter, 1), true, false));
        for slot in posted {
            let slot = slot?;
            end.until("a FETCH_ADD completes", |end| end.has(slot))?;
            found.push(end.success(slot)?.value);
        }
    }
    Ok(found)
}

fn semantics(hub: &mut End, end: &mut End, window: &Window, token: RemoteToken) -> Result<(), Stop> {
    let word = part(token, 16, 8);
    window.word(16)?.store(5, Ordering::Release);
    let cases = [
        (Act::FetchAdd(word, 3), 5, 8),
        (Act::FetchAdd(word, u64::MAX), 8, 7),
        (Act::CompareSwap(word, 7, 100), 7, 100),
        (Act::CompareSwap(word, 7, 200), 100, 100),
        (Act::CompareSwap(word, 100, 0), 100, 0),
        (Act::FetchAdd(word, 0), 0, 0),
    ];
    for (act, old, new) in cases {
        let what = format!("{act:?}");
        let slot = end.post(QP, act, true, false)?;
        end.until("an atomic completes", |end| {
            hub.turn();
            end.has(slot)
        })?;
        let found = end.success(slot)?.value;
        let left = window.word(16)?.load(Ordering::Acquire);
        owes!((found, left) == (old, new), "{what} found {found}, left {left}; it must find {old} and leave {new}");
    }
    Ok(())
}

/// Tries one thing that no grant allows.
fn refused(harness: &dyn Harness, what: &str, act: impl Fn(&Memories) -> Result<Act, Stop>) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let memories = Memories::new(&mut pair)?;
    pair.quiet();
    let before = memories.bytes()?;
    let slot = pair.a.post(QP, act(&memories)?, true, false)?;
    pair.finish(&[slot], &[])?;
    let status = pair.a.completion(slot).map(|done| done.status);
    owes!(status == Some(Status::RemoteAccess), "{what} ended with {status:?}");
    pair.quiet();
    owes!(memories.bytes()? == before, "{what} changed memory");
    Ok(())
}

/// Memory with every kind of grant, at the target, and an initiator's own.
struct Memories {
    from: Area,
    sink: Area,
    local: (Area, RemoteToken),
    readable: (Area, RemoteToken),
    writable: (std::sync::Arc<Window>, RemoteToken),
    gone: (std::sync::Arc<Window>, RemoteToken),
}

impl Memories {
    fn new(pair: &mut Pair) -> Result<Self, Stop> {
        let from = pair.a.area(4096)?;
        from.write(0, &pattern(80, 4096))?;
        let sink = pair.a.area(4096)?;
        let local = pair.b.readable(4096, Access::LOCAL)?;
        let readable = pair.b.readable(4096, Access::LOCAL | Access::REMOTE_READ)?;
        readable.0.write(0, &pattern(81, 4096))?;
        local.0.write(0, &pattern(82, 4096))?;
        let writable = pair.b.window(4096, Access::REMOTE_WRITE)?;
        let gone = pair.b.window(4096, Access::REMOTE_WRITE)?;
        pair.b.deregister_last()?;
        Ok(Self { from, sink, local, readable, writable, gone })
    }

    fn data(&self) -> Result<Data, Stop> {
        Ok(Data::Gather(vec![self.from.piece(0, 64)?]))
    }

    fn sink(&self) -> Result<Piece, Stop> {
        Ok(self.sink.piece(0, 64)?)
    }

    fn bytes(&self) -> Result<Vec<u8>, Stop> {
        let mut windows = vec![0; 8192];
        self.writable.0.read(0, &mut windows[..4096])?;
        self.gone.0.read(0, &mut windows[4096..])?;
        let areas = [&self.sink, &self.local.0, &self.readable.0];
        for area in areas {
            windows.extend(area.read(0, 4096)?);
        }
        Ok(windows)
    }
}

pub(super) fn keys(harness: &dyn Harness) -> Result<(), Stop> {
    let capabilities = harness.provider().capabilities();
    needs(capabilities.one_sided, "one_sided")?;
    let write = |m: &Memories, remote| Ok(Act::Write(m.data()?, remote, None));
    let read = |m: &Memories, remote| Ok(Act::Read(m.sink()?, remote));
    let forged = |token: RemoteToken, bit: u32| RemoteToken { rkey: token.rkey ^ 1 << bit, ..part(token, 0, 64) };
    refused(harness, "a WRITE with a forged key", |m| write(m, forged(m.writable.1, 0)))?;
    refused(harness, "a WRITE with a key forged high up", |m| write(m, forged(m.writable.1, 127)))?;
    refused(harness, "a READ with a forged key", |m| read(m, forged(m.readable.1, 1)))?;
    refused(harness, "a WRITE past the end", |m| write(m, part(m.writable.1, 4096 - 63, 64)))?;
    refused(harness, "a WRITE far outside", |m| write(m, part(m.writable.1, 1 << 40, 64)))?;
    refused(harness, "a WRITE that wraps around", |m| write(m, part(m.writable.1, u64::MAX - 31, 64)))?;
    refused(harness, "a READ past the end", |m| read(m, part(m.readable.1, 4096 - 63, 64)))?;
    refused(harness, "a READ that wraps around", |m| read(m, part(m.readable.1, u64::MAX - 31, 64)))?;
    refused(harness, "a WRITE to memory granted for READ", |m| write(m, part(m.readable.1, 0, 64)))?;
    refused(harness, "a WRITE to memory granted for nothing", |m| write(m, part(m.local.1, 0, 64)))?;
    refused(harness, "a READ of memory granted for nothing", |m| read(m, part(m.local.1, 0, 64)))?;
    refused(harness, "a READ of memory granted for WRITE", |m| read(m, part(m.writable.1, 0, 64)))?;
    refused(harness, "a WRITE to memory deregistered", |m| write(m, part(m.gone.1, 0, 64)))?;
    if capabilities.atomics != AtomicScope::None {
        refused(harness, "FETCH_ADD on memory granted for WRITE", |m| Ok(Act::FetchAdd(part(m.writable.1, 0, 8), 1)))?;
        refused(harness, "CMP_SWAP past the end", |m| Ok(Act::CompareSwap(part(m.writable.1, 4096, 8), 0, 1)))?;
        refused(harness, "FETCH_ADD on memory granted for READ", |m| Ok(Act::FetchAdd(part(m.readable.1, 0, 8), 1)))?;
    }
    Ok(())
}

pub(super) fn progress(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let capabilities = pair.a.capabilities.clone();
    needs(capabilities.one_sided, "one_sided")?;
    needs(capabilities.progress_by_itself, "progress_by_itself")?;
    let (source, readable) = pair.b.readable(4096, Access::LOCAL | Access::REMOTE_READ)?;
    let (window, writable) = pair.b.window(4096, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let (from, sink) = (pair.a.area(4096)?, pair.a.area(4096)?);
    source.write(0, &pattern(90, 4096))?;
    from.write(0, &pattern(91, 4096))?;
    // The connection is made; from here on the target never calls in.
    pair.quiet();
    let mut posted = vec![
        pair.a.post(
            QP,
            Act::Write(Data::Gather(vec![from.piece(0, 64)?]), part(writable, 0, 64), None),
            true,
            false,
        )?,
        pair.a.post(QP, Act::Read(sink.piece(0, 4096)?, part(readable, 0, 4096)), true, false)?,
    ];
    if capabilities.atomics != AtomicScope::None {
        posted.push(pair.a.post(QP, Act::FetchAdd(part(writable, 64, 8), 9), true, false)?);
    }
    for slot in &posted {
        pair.a.until("a one-sided operation completes without its target", |a| a.has(*slot))?;
        pair.a.success(*slot)?;
    }
    let mut there = vec![0; 64];
    window.read(0, &mut there)?;
    owes!(there == pattern(91, 4096)[..64], "a WRITE completed without its target did not arrive");
    owes!(sink.read(0, 4096)? == pattern(90, 4096), "a READ completed without its target brought something else");
    // And the other way round: who posts and never calls in again.
    let to = pair.b.area(4096)?;
    let arriving = (0..4).map(|i| pair.b.receive(Some(QP), to.piece(i * 64, 64)?)).collect::<Result<Vec<_>, _>>()?;
    pair.quiet();
    for _ in &arriving {
        pair.a.send(QP, Data::Gather(vec![from.piece(0, 64)?]), None)?;
    }
    let all = |b: &mut End| arriving.iter().all(|slot| b.has(*slot));
    pair.b.until("messages arrive whose sender never calls in again", all)?;
    arriving.iter().try_for_each(|slot| pair.b.success(*slot).map(drop))
}

/// FETCH_ADDs of each adder.
const ADDS: usize = 400;
