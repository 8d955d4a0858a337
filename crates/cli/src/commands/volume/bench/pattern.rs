//! What `--verify` writes, and what it then expects: every sector says which one it is, by which
//! run and in which generation it was written, and carries a checksum of all that.

use std::collections::HashSet;

/// What the sectors of a volume hold, as far as this run knows.
pub(super) struct Pattern {
    /// Of this run alone.
    run: u64,
    /// By sector, the generation of the last WRITE that was submitted; 0 where there was none.
    generations: Vec<u32>,
    next: u32,
    /// Generations of WRITEs that failed: their sectors are old or new.
    failed: HashSet<u32>,
}

/// What a sector should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label {
    run: u64,
    sector: u64,
    generation: u32,
}

impl Pattern {
    /// Of a volume whose first `bytes` are used.
    pub(super) fn new(run: u64, bytes: u64) -> Pattern {
        let sectors = (bytes / SECTOR) as usize;
        Pattern { run, generations: vec![0; sectors], next: 1, failed: HashSet::new() }
    }

    /// Fills a WRITE's bytes; its generation.
    pub(super) fn fill(&mut self, at: u64, bytes: &mut [u8]) -> u32 {
        let generation = self.next;
        self.next = self.next.checked_add(1).unwrap_or(1);
        for (sector, bytes) in (at / SECTOR..).zip(bytes.chunks_exact_mut(SECTOR as usize)) {
            Label { run: self.run, sector, generation }.write(bytes);
            if let Some(known) = self.generations.get_mut(sector as usize) {
                *known = generation;
            }
        }
        generation
    }

    /// A WRITE has failed: each of its sectors is old or new from now on.
    pub(super) fn failed(&mut self, generation: u32) {
        self.failed.insert(generation);
    }

    /// What a READ that is submitted now must find. WRITEs before it come before it.
    pub(super) fn expected(&self, at: u64, length: u64) -> Vec<u32> {
        let sectors = (at / SECTOR) as usize..((at + length) / SECTOR) as usize;
        self.generations[sectors].to_vec()
    }

    /// Whether anything is known of these sectors.
    pub(super) fn knows(&self, at: u64, length: u64) -> bool {
        let sectors = (at / SECTOR) as usize..((at + length) / SECTOR) as usize;
        self.generations[sectors].iter().any(|generation| *generation != 0)
    }

    /// Holds what was read against what was expected. How many sectors differ; the first of them
    /// goes to `first`.
    pub(super) fn check(&self, at: u64, bytes: &[u8], expected: &[u32], first: &mut Option<String>) -> u64 {
        let mut wrong = 0;
        for ((sector, bytes), expected) in (at / SECTOR..).zip(bytes.chunks_exact(SECTOR as usize)).zip(expected) {
            if let Err(why) = self.check_sector(sector, bytes, *expected) {
                wrong += 1;
                first.get_or_insert_with(|| format!("sector {sector} {why}"));
            }
        }
        wrong
    }

    fn check_sector(&self, sector: u64, bytes: &[u8], expected: u32) -> Result<(), String> {
        let found = Label::read(bytes)?;
        // Nothing is known of what was there before this run, or may be there after a WRITE that failed: what says what
        // it is must still be that.
        if expected == 0 || self.failed.contains(&expected) {
            return match found {
                Some(found) if found.sector != sector => Err(format!("holds sector {}", found.sector)),
                _ => Ok(()),
            };
        }
        let Some(found) = found else { return Err(format!("holds nothing of generation {expected}")) };
        let wanted = Label { run: self.run, sector, generation: expected };
        if found == wanted {
            return Ok(());
        }
        let of = if found.run == self.run { "" } else { " of an earlier run" };
        Err(format!("holds sector {} in generation {}{of} instead of {expected}", found.sector, found.generation))
    }
}

impl Label {
    fn write(self, bytes: &mut [u8]) {
        let filler = (self.run ^ self.sector.rotate_left(32) ^ u64::from(self.generation)).wrapping_mul(GOLDEN);
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&filler.to_le_bytes()));
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.run.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sector.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.generation.to_le_bytes());
        let checksum = checksum(bytes);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
    }

    /// What a sector says of itself; none where it was never written so.
    fn read(bytes: &[u8]) -> Result<Option<Label>, String> {
        if bytes[..8] != MAGIC {
            return Ok(None);
        }
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if u32_at(28) != checksum(bytes) {
            return Err("has another checksum than its bytes".to_owned());
        }
        Ok(Some(Label { run: u64_at(8), sector: u64_at(16), generation: u32_at(24) }))
    }
}

/// Of a sector but for the checksum itself.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..28]), &bytes[32..])
}

pub(super) const SECTOR: u64 = 512;
const MAGIC: [u8; 8] = *b"OVSBENCH";
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_be_wrong_is_found() {
        let mut pattern = Pattern::new(7, 8 * SECTOR);
        let (mut older, mut newer) = (vec![0; 1024], vec![0; 1024]);
        pattern.fill(1024, &mut older);
        assert!(pattern.knows(0, 1536) && !pattern.knows(0, 1024));
        let generation = pattern.fill(1024, &mut newer);
        let expected = pattern.expected(1024, 1024);
        assert_eq!(expected, [generation; 2]);
        let told = |pattern: &Pattern, bytes: &[u8]| {
            let mut first = None;
            let wrong = pattern.check(1024, bytes, &expected, &mut first);
            (wrong, first.unwrap_or_default())
        };
        assert_eq!(told(&pattern, &newer), (0, String::new()));
        assert_eq!(told(&pattern, &older), (2, "sector 2 holds sector 2 in generation 1 instead of 2".to_owned()));
        let half = [&newer[..512], &older[512..]].concat();
        assert_eq!(told(&pattern, &half), (1, "sector 3 holds sector 3 in generation 1 instead of 2".to_owned()));
        let swapped = [&newer[512..], &newer[..512]].concat();
        assert_eq!(told(&pattern, &swapped).0, 2);
        assert_eq!(told(&pattern, &[0; 1024]), (2, "sector 2 holds nothing of generation 2".to_owned()));
        let mut flipped = newer.clone();
        flipped[511] ^= 1;
        assert_eq!(told(&pattern, &flipped), (1, "sector 2 has another checksum than its bytes".to_owned()));
        let mut other = vec![0; 1024];
        Pattern::new(8, 8 * SECTOR).fill(1024, &mut other);
        assert!(told(&pattern, &other).1.contains("of an earlier run"));
        // A WRITE that failed leaves either, and nothing else.
        pattern.failed(generation);
        assert_eq!((told(&pattern, &older).0, told(&pattern, &newer).0, told(&pattern, &[0; 1024]).0), (0, 0, 0));
        assert_eq!((told(&pattern, &swapped).0, told(&pattern, &flipped).0), (2, 1));
    }

    #[test]
    fn of_what_was_there_before_only_sense_is_expected() {
        let (pattern, mut first) = (Pattern::new(7, 8 * SECTOR), None);
        let mut before = vec![0; 512];
        Pattern::new(6, 8 * SECTOR).fill(512, &mut before);
        assert_eq!(pattern.check(512, &before, &[0], &mut first), 0);
        assert_eq!(pattern.check(512, &[9; 512], &[0], &mut first), 0);
        assert_eq!(pattern.check(0, &before, &[0], &mut first), 1);
        assert_eq!(first.unwrap(), "sector 0 holds sector 1");
    }
}
