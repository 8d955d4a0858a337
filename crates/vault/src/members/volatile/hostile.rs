//! What a side file may say, whoever wrote it: for fuzzing.

use std::collections::BTreeSet;

use overside_verbs::SystemClock;
use overside_volume::{Device, MemoryDevice, SECTOR_BYTES, Work, complete};

use super::log::{BLOCK, Record, RecordKind};
use super::{PATIENCE, Volatile, buffer};

/// Side files.
#[doc(hidden)]
pub fn seeds_unflushed() -> Vec<Vec<u8>> {
    let record = |number, kind, at, length: u64, with: u8| {
        let record = Record { epoch: 3, number, kind, at, length };
        let mut bytes = vec![0; record.room() as usize];
        bytes[BLOCK..].iter_mut().take(length as usize).for_each(|byte| *byte = with);
        record.write(&mut bytes);
        bytes
    };
    let begins = record(4, RecordKind::Settled, 0, 0, 0);
    let first = record(5, RecordKind::Unflushed, 1024, 1536, 7);
    let again = record(6, RecordKind::Unflushed, 1536, 512, 8);
    let settled = record(7, RecordKind::Settled, 1024, 512, 0);
    vec![[&begins[..], &first, &again].concat(), [begins, first, settled].concat(), again]
}

/// Opens a device with this side file. It must not find bytes that the file does not have. Whether
/// the file begins with a record.
#[doc(hidden)]
pub fn fuzz_unflushed(input: &[u8]) -> bool {
    let mut file = input[..input.len().min(FILE_BYTES)].to_vec();
    file.resize(FILE_BYTES, 0);
    make_sound(&mut file);
    let device = |bytes: u64| Box::new(MemoryDevice::new(bytes).expect("there is memory"));
    let (base, mut side) = (device(BYTES), device(FILE_BYTES as u64));
    let mut from = buffer(FILE_BYTES).expect("there is memory");
    from[..FILE_BYTES].copy_from_slice(&file);
    let from = overside_memory::Bytes::prefix(from, FILE_BYTES);
    complete(&mut *side, &SystemClock, Work::Write { at: 0, from, fua: false }, PATIENCE).1.expect("it is memory");
    let seed = input.len() as u64;
    let Ok((mut opened, lost)) = Volatile::open(base, side, seed, &SystemClock) else {
        panic!("whatever its side file says, a device opens")
    };
    assert!(lost.lost <= lost.cached && lost.cached <= (BYTES / SECTOR_BYTES) as usize);
    let into = buffer(BYTES as usize).expect("there is memory");
    let (work, result) =
        complete(&mut opened, &SystemClock, Work::Read { at: 0, length: BYTES as usize, into }, PATIENCE);
    let Some(Work::Read { into, .. }) = work.filter(|_| result.is_ok()) else { panic!("it can be read") };
    let written: BTreeSet<&[u8]> = file.chunks(SECTOR_BYTES as usize).collect();
    for sector in into[..BYTES as usize].chunks(SECTOR_BYTES as usize) {
        assert!(sector.iter().all(|byte| *byte == 0) || written.contains(sector), "bytes of nobody");
    }
    Record::parse(&file[..BLOCK], opened.geometry().bytes).is_some()
}

/// Gives records the sums that they should have: else none would be looked at but those
/// that this program wrote.
fn make_sound(file: &mut [u8]) {
    let mut at = 0;
    while let Some(record) = file.get(at..at + BLOCK).and_then(|block| Record::parse(block, BYTES)) {
        let Some(whole) = file.get_mut(at..at + record.room() as usize) else { return };
        record.write(whole);
        at += whole.len();
    }
}

const BYTES: u64 = 4 << 10;
const FILE_BYTES: usize = 24 << 10;
