//! A node with a cache: what it answers from memory is never old.

use std::sync::atomic::AtomicBool;

use overside_memory::{Buffer, Bytes, Segment};
use overside_vault::server::Writes;
use overside_volume::client::{Link, LinkOptions};
use overside_volume::wire::{HEADER, Reply, Report, Role};
use overside_volume::{Hint, MemoryDevice, Work, complete};

use super::granted::Raw;
use super::*;

const BLOCK: usize = 8192;

fn attach(transport: &str, name: &str, role: Role) -> impl Device {
    Link::attach(provider(transport), name, "v", LinkOptions { role, ..LinkOptions::default() }).unwrap()
}

fn buffer(bytes: usize) -> Buffer {
    Segment::private(bytes).unwrap().carve(bytes).pop().unwrap()
}

fn read(device: &mut dyn Device, at: u64, length: usize) -> Vec<u8> {
    let work = Work::Read { at, length, into: buffer(length.next_multiple_of(4096)) };
    let (work, result) = complete(device, &SystemClock, work, PATIENCE);
    assert_eq!(result, Ok(()));
    let Some(Work::Read { into, .. }) = work else { panic!("another request came back") };
    into[..length].to_vec()
}

fn write(device: &mut dyn Device, at: u64, length: usize, with: impl Fn(usize) -> u8) {
    let mut from = buffer(length.next_multiple_of(4096));
    from[..length].iter_mut().enumerate().for_each(|(i, byte)| *byte = with(i));
    let work = Work::Write { at, from: Bytes::prefix(from, length), fua: false };
    assert_eq!(complete(device, &SystemClock, work, PATIENCE).1, Ok(()));
}

fn report(transport: &str, name: &str) -> Report {
    overside_vault::server::status(provider(transport), name, "v", PATIENCE).unwrap()
}

#[test]
fn what_is_read_again_is_answered_from_memory_and_counted() {
    for transport in TRANSPORTS {
        let folder = tempfile::tempdir().unwrap();
        let name = fresh_name(transport);
        let options = NodeOptions { cache: small_cache(), ..NodeOptions::default() };
        let _served = serve(transport, &name, file(folder.path(), 1 << 20), options);
        let mut device = attach(transport, &name, Role::Writer);
        assert_eq!(read(&mut device, 0, BLOCK), [0; BLOCK]);
        for part in [0, 512, 4096] {
            assert_eq!(read(&mut device, part, 4096), [0; 4096]);
        }
        // Over the edge of two blocks, of which one is there.
        assert_eq!(read(&mut device, 4096, BLOCK), [0; BLOCK]);
        let counts = report(transport, &name).volumes[0].counts;
        assert_eq!((counts.cache_bytes, counts.hits, counts.misses), (small_cache().bytes, 4, 2), "{transport}");
        assert_eq!((counts.reads, counts.read_bytes), (5, 3 * 4096 + 2 * BLOCK as u64));
        // Longer than the cache: blocks come and go, and all that comes is right.
        write(&mut device, 0, 1 << 20, |i| (i / 512) as u8);
        for _ in 0..2 {
            assert!(read(&mut device, 0, 1 << 20).iter().enumerate().all(|(i, byte)| *byte == (i / 512) as u8));
        }
    }
}

#[test]
fn volumes_share_a_cache_and_later_ones_get_their_part() {
    let name = fresh_name("shm");
    let options = NodeOptions { cache: small_cache(), ..NodeOptions::default() };
    let node = Node::new(SystemClock::handle(), options).unwrap();
    node.add("v", Box::new(MemoryDevice::new(1 << 20).unwrap())).unwrap();
    let listening = Listening::open(provider("shm"), &[&name]).unwrap();
    let _served = node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap();
    let mut device = attach("shm", &name, Role::Writer);
    write(&mut device, 0, BLOCK, |_| 5);
    assert_eq!(report("shm", &name).volumes[0].counts.cache_bytes, small_cache().bytes);
    node.add("w", Box::new(MemoryDevice::new(1 << 20).unwrap())).unwrap();
    assert_eq!(read(&mut device, 0, BLOCK), [5; BLOCK]);
    assert_eq!(report("shm", &name).volumes[0].counts.cache_bytes, small_cache().bytes / 2);
    let too_small = CacheOptions { block_bytes: 256, ..small_cache() };
    let node = Node::new(SystemClock::handle(), NodeOptions { cache: too_small, ..NodeOptions::default() }).unwrap();
    assert!(node.add("v", Box::new(MemoryDevice::new(1 << 20).unwrap())).is_err(), "blocks smaller than sectors");
}

/// Requests of one block stay in the cache as they came: two in the node's buffers, others in memory that no provider knows.
#[test]
fn what_writers_brought_along_is_answered_from_memory_whatever_it_lies_in() {
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        let (blocks, request_bytes_max) = (2, BLOCK as u32);
        let options = NodeOptions { cache: small_cache(), blocks, request_bytes_max, ..NodeOptions::default() };
        let _served = serve(transport, &name, Box::new(MemoryDevice::new(1 << 20).unwrap()), options);
        let mut device = attach(transport, &name, Role::Writer);
        let places = || (0..8).map(|place| place * BLOCK as u64);
        places().for_each(|at| write(&mut device, at, BLOCK, |i| (at / BLOCK as u64) as u8 ^ (i / 512) as u8));
        for at in places() {
            let bytes = read(&mut device, at, BLOCK);
            assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == (at / BLOCK as u64) as u8 ^ (i / 512) as u8));
        }
        assert_eq!(report(transport, &name).volumes[0].counts.hits, 8, "{transport}");
    }
}

/// A client reads blocks where they lie in the cache, and takes its time.
#[test]
fn a_block_that_is_read_where_it_lies_stays_as_it_was_whatever_takes_its_place() {
    let name = fresh_name("shm");
    let options = NodeOptions { cache: small_cache(), ..NodeOptions::default() };
    let _served = serve("shm", &name, Box::new(MemoryDevice::new(1 << 20).unwrap()), options);
    let mut device = attach("shm", &name, Role::Writer);
    let mut slow = Raw::greeted(&name, Role::Reader);
    for round in 1..=40u8 {
        write(&mut device, 0, 3 * BLOCK, |_| round);
        // The first block from its half on, and the second.
        let loan = slow.read(8, 3 * BLOCK as u32 / 2);
        assert_eq!(loan.parts().len(), 3, "a header and two blocks");
        // Other bytes there, and then others in all of the cache.
        write(&mut device, 0, 3 * BLOCK, |_| !round);
        write(&mut device, 0, 1 << 20, |_| !round);
        let mut bytes = [0; HEADER + 3 * BLOCK / 2];
        loan.read(0, &mut bytes).unwrap();
        assert!(loan.is_valid() && bytes[HEADER..].iter().all(|byte| *byte == round), "round {round}");
        assert_eq!(Reply::parse(&bytes).unwrap().0.length as usize, 3 * BLOCK / 2);
    }
}

/// One writes and says how far it is; others read all the time, so that what is written is in memory.
fn is_never_old(transport: &str, writes: Writes) {
    let folder = tempfile::tempdir().unwrap();
    let name = fresh_name(transport);
    let options = NodeOptions { cache: small_cache(), writes, ..NodeOptions::default() };
    let _served = serve(transport, &name, file(folder.path(), 4 * BLOCK as u64), options);
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|reader| {
            let (name, written, over) = (&name, &written, &over);
            scope.spawn(move || {
                let mut device = attach(transport, name, Role::Reader);
                let (mut reads, mut seen) = (0, 0);
                // Half a block, or several.
                let (at, length) = [(BLOCK / 2, BLOCK / 2), (BLOCK / 2, 2 * BLOCK)][reader];
                while !over.load(Ordering::Acquire) || reads < 50 {
                    let before = written.load(Ordering::Acquire);
                    let bytes = read(&mut device, at as u64, length);
                    let sector = number(&bytes);
                    assert!(
                        sector >= before && sector >= seen,
                        "{sector} is old: {before} was acknowledged, {seen} was read"
                    );
                    assert!(
                        bytes.chunks(512).all(|chunk| number(chunk).abs_diff(sector) <= 1),
                        "half of a WRITE stayed"
                    );
                    (reads, seen) = (reads + 1, sector);
                }
            })
        });
        let mut device = attach(transport, &name, Role::Writer);
        for round in 1..=300u64 {
            write(&mut device, 0, 3 * BLOCK, |i| round.to_le_bytes().get(i % 512).copied().unwrap_or(round as u8));
            written.store(round, Ordering::Release);
        }
        over.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(report(transport, &name).volumes[0].counts.hits > 0, "nothing was answered from memory");
}

/// A native client's hints steer the node's cache (vi-attached-storage §3.2, VI-M34).
#[test]
fn hints_of_a_client_bring_blocks_and_let_them_go() {
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        let options = NodeOptions { cache: small_cache(), ..NodeOptions::default() };
        let _served = serve(transport, &name, Box::new(MemoryDevice::new(1 << 20).unwrap()), options);
        let mut device = attach(transport, &name, Role::Writer);
        let mut found = |hints: &[Hint]| {
            for hint in hints {
                let work = Work::Hint { at: 0, length: BLOCK as u64, hint: *hint };
                assert_eq!(complete(&mut device, &SystemClock, work, PATIENCE).1, Ok(()));
            }
            let before = report(transport, &name).volumes[0].counts.hits;
            read(&mut device, 0, BLOCK);
            report(transport, &name).volumes[0].counts.hits - before
        };
        assert_eq!((found(&[]), found(&[])), (0, 1), "{transport}");
        assert_eq!(found(&[Hint::DontNeed]), 0, "{transport}");
        // A block that is still on its way is not found.
        let limit = Instant::now() + PATIENCE;
        while found(&[Hint::DontNeed, Hint::WillNeed]) == 0 {
            assert!(Instant::now() < limit, "{transport}: the hint brings nothing");
        }
    }
}

#[test]
fn a_cached_read_is_not_older_than_another_clients_write() {
    is_never_old("shm", Writes::Through);
    is_never_old("tcp", Writes::Back);
}
