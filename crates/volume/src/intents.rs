//! Which regions may differ among members after a crash, written down before they may.
//!
//! The store's first two blocks of 4,096 bytes are copies, of which the newer sound one counts. Its
//! fields are little-endian: magic, version, crc32c of the block with this field zero, generation,
//! bytes of a region, bytes of the volume, epoch of the journal. From byte 64 on there is a bit for
//! each region that is written, from 2,080 on one for each that is torn. Behind them an array has
//! its journal. [`Sums`](crate::Sums) notes its regions in the same way, and epoch and torn regions
//! mean nothing there.

use std::collections::BTreeSet;
use std::time::Duration;

use overside_memory::{Buffer, Bytes, Segment};
use overside_verbs::Clock;

use crate::device::{Device, DeviceError, Request, Work};
use crate::wait::complete;

/// The write-intent bitmap, and the device that holds it: of its own, or nothing where its owner
/// writes the images.
#[derive(Debug)]
pub(crate) struct Intents<S = Box<dyn Device>> {
    pub(crate) store: S,
    image: Image,
    /// Requests that write a region now.
    users: Vec<u32>,
    /// On the store, and no image without them is on its way there.
    durable: BTreeSet<usize>,
    /// What must be written is newer than what is being written.
    changed: bool,
    /// Regions and epoch of the image that is being written.
    writing: Option<(BTreeSet<usize>, u64)>,
    /// On the store.
    epoch: u64,
}

/// What the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    generation: u64,
    region_bytes: u64,
    volume_bytes: u64,
    /// Of the journal: rows of older ones are of no use.
    pub(crate) epoch: u64,
    /// Regions that are written, or were and may not be on stable storage.
    written: BTreeSet<usize>,
    /// Regions whose parity could not be trusted while a member was missing. Nothing is added to
    /// them any more: what is lost there is named.
    pub(crate) torn: BTreeSet<usize>,
}

impl Image {
    /// Of a new volume whose regions are multiples of `row_bytes`.
    pub(crate) fn new(volume_bytes: u64, row_bytes: u64) -> Image {
        let mut region_bytes = row_bytes.max(1);
        while region_bytes < REGION_BYTES_MIN || volume_bytes.div_ceil(region_bytes) > REGIONS_MAX as u64 {
            region_bytes *= 2;
        }
        let none = BTreeSet::new;
        Image { generation: 1, region_bytes, volume_bytes, epoch: 1, written: none(), torn: none() }
    }

    /// As it lies in the store.
    pub(crate) fn bytes(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let words = [self.generation, self.region_bytes, self.volume_bytes, self.epoch];
        for (place, word) in block[16..48].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (from, regions) in [(WRITTEN, &self.written), (TORN, &self.torn)] {
            regions.iter().for_each(|region| block[from + region / 8] |= 1 << (region % 8));
        }
        let sum = crc32c::crc32c(&block);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// From a block of the store, for a volume of so many bytes whose regions are multiples of
    /// `row_bytes`.
    pub(crate) fn parse(block: &[u8], volume_bytes: u64, row_bytes: u64) -> Option<Image> {
        let block: &[u8; BLOCK] = block.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| block[at + i]));
        let regions = |from: usize| {
            let bits = (0..REGIONS_MAX).filter(|region| block[from + region / 8] & 1 << (region % 8) != 0);
            bits.collect::<BTreeSet<usize>>()
        };
        let (written, torn) = (regions(WRITTEN), regions(TORN));
        let found = Image {
            generation: word(16),
            region_bytes: word(24),
            volume_bytes: word(32),
            epoch: word(40),
            written,
            torn,
        };
        let of_this = found.volume_bytes == volume_bytes
            && found.region_bytes != 0
            && found.region_bytes.is_multiple_of(row_bytes.max(1))
            && volume_bytes.div_ceil(found.region_bytes) <= REGIONS_MAX as u64;
        (of_this && found.bytes() == *block).then_some(found)
    }

    pub(crate) fn regions(&self) -> usize {
        self.volume_bytes.div_ceil(self.region_bytes) as usize
    }

    /// First byte and length of a region.
    pub(crate) fn range(&self, region: usize) -> (u64, u64) {
        let at = region as u64 * self.region_bytes;
        (at, self.region_bytes.min(self.volume_bytes - at))
    }

    /// Of these regions, for fuzzing.
    pub(crate) fn with(volume_bytes: u64, row_bytes: u64, written: &[usize], torn: &[usize]) -> Image {
        let [written, torn] = [written, torn].map(|regions| regions.iter().copied().collect());
        Image { written, torn, ..Image::new(volume_bytes, row_bytes) }
    }
}

impl Intents {
    /// Makes an empty one.
    ///
    /// # Errors
    /// Why the store cannot be written.
    pub(crate) fn format(
        store: &mut dyn Device,
        clock: &dyn Clock,
        volume_bytes: u64,
        row_bytes: u64,
    ) -> Result<(), DeviceError> {
        let image = Image::new(volume_bytes, row_bytes);
        for copy in 0..2 {
            put(store, clock, copy * BLOCK as u64, &image.bytes())?;
        }
        Ok(())
    }

    /// What the store says; the regions that were written when it was last used. Where it says
    /// nothing of this volume, all of them.
    ///
    /// # Errors
    /// Why the store cannot be read.
    pub(crate) fn open(
        mut store: Box<dyn Device>,
        clock: &dyn Clock,
        volume_bytes: u64,
        row_bytes: u64,
    ) -> Result<(Intents, BTreeSet<usize>), DeviceError> {
        let read = get(&mut *store, clock, 0, 2 * BLOCK)?;
        Ok(Intents::of(store, &read[..2 * BLOCK], volume_bytes, row_bytes))
    }

    /// Writes down what holds now, and that rows of the journal count no more, before anything is
    /// served.
    ///
    /// # Errors
    /// Why the store cannot be written.
    pub(crate) fn begin(&mut self, clock: &dyn Clock) -> Result<(), DeviceError> {
        let (place, image) = self.first_image();
        put(&mut *self.store, clock, place, &image)?;
        self.begun();
        Ok(())
    }

    /// Writes what has changed. When that has ended: how.
    pub(crate) fn turn(&mut self) -> Option<Result<(), DeviceError>> {
        match self.next_image() {
            Some(Ok(work)) => self.store.submit(&mut [Request { tag: IMAGE, work }].into()),
            Some(Err(error)) => return Some(Err(error)),
            None => {}
        }
        None
    }
}

impl<S> Intents<S> {
    /// What two copies say; the regions that were written when they were. Where they say nothing of
    /// this volume, all of them.
    pub(crate) fn of(store: S, copies: &[u8], volume_bytes: u64, row_bytes: u64) -> (Intents<S>, BTreeSet<usize>) {
        let copies = copies.chunks(BLOCK).filter_map(|copy| Image::parse(copy, volume_bytes, row_bytes));
        let found = copies.max_by_key(|image| image.generation);
        let mut image = found.unwrap_or_else(|| {
            let mut image = Image::new(volume_bytes, row_bytes);
            image.written = (0..image.regions()).collect();
            image
        });
        let written = std::mem::take(&mut image.written);
        let written: BTreeSet<usize> = written.into_iter().filter(|region| *region < image.regions()).collect();
        let users = vec![0; image.regions()];
        // What was written stays so until it is settled.
        image.written.clone_from(&written);
        let durable = BTreeSet::new();
        let epoch = image.epoch;
        (Intents { store, image, users, durable, changed: false, writing: None, epoch }, written)
    }

    /// What is written down before anything is served, and where. Then it has [begun](Self::begun).
    pub(crate) fn first_image(&mut self) -> (u64, [u8; BLOCK]) {
        (self.image.generation, self.image.epoch) = (self.image.generation + 1, self.image.epoch + 1);
        (self.place(), self.image.bytes())
    }

    /// The first image is on the store.
    pub(crate) fn begun(&mut self) {
        self.durable.clone_from(&self.image.written);
        self.epoch = self.image.epoch;
    }

    /// Which copy is older.
    fn place(&self) -> u64 {
        self.image.generation % 2 * BLOCK as u64
    }

    /// Of the journal's entries. Not the next one before it is on the store: an entry that had it
    /// would count on, when its row is written without the journal again.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Rows of the journal count no more once [`is_renewed`](Self::is_renewed) says so.
    pub(crate) fn next_epoch(&mut self) {
        self.image.epoch += 1;
        self.changed = true;
    }

    /// The newest epoch is on the store.
    pub(crate) fn is_renewed(&self) -> bool {
        self.epoch == self.image.epoch
    }

    /// First byte and length of a region.
    pub(crate) fn range(&self, region: usize) -> (u64, u64) {
        self.image.range(region)
    }

    pub(crate) fn regions_of(&self, at: u64, length: u64) -> std::ops::Range<usize> {
        let region = self.image.region_bytes;
        (at / region) as usize..(at + length).div_ceil(region) as usize
    }

    /// Regions that an earlier version of this program left as torn. Its owner notes what is lost
    /// there.
    pub(crate) fn take_torn(&mut self) -> BTreeSet<usize> {
        let torn = std::mem::take(&mut self.image.torn);
        torn.into_iter().filter(|region| *region < self.image.regions()).collect()
    }

    /// A request will write there. It must not before [`is_ready`](Self::is_ready) says so.
    pub(crate) fn enter(&mut self, at: u64, length: u64) {
        for region in self.regions_of(at, length) {
            self.users[region] += 1;
            if self.image.written.insert(region) || !self.durable.contains(&region) {
                self.changed = true;
            }
        }
    }

    pub(crate) fn is_ready(&self, at: u64, length: u64) -> bool {
        self.regions_of(at, length).all(|region| self.durable.contains(&region))
    }

    /// A request has written there.
    pub(crate) fn leave(&mut self, at: u64, length: u64) {
        self.regions_of(at, length).for_each(|region| self.users[region] -= 1);
    }

    /// Regions that nobody writes, although they are written down; `but` those.
    pub(crate) fn idle(&self, but: &BTreeSet<usize>) -> BTreeSet<usize> {
        let idle = |region: &&usize| self.users[**region] == 0 && !but.contains(region);
        self.image.written.iter().filter(idle).copied().collect()
    }

    /// These regions are the same on all members, on stable storage.
    pub(crate) fn clear(&mut self, regions: &BTreeSet<usize>) {
        for region in regions.iter().filter(|region| self.users[**region] == 0) {
            self.changed |= self.image.written.remove(region);
        }
    }

    /// Nothing is left to be written down.
    pub(crate) fn is_still(&self) -> bool {
        !self.changed && self.writing.is_none()
    }

    /// The WRITE of what has changed, where none is under way.
    pub(crate) fn next_image(&mut self) -> Option<Result<Work, DeviceError>> {
        if !self.changed || self.writing.is_some() {
            return None;
        }
        let Some(mut buffer) = buffer(BLOCK) else { return Some(Err(DeviceError::NoMemory)) };
        self.image.generation += 1;
        buffer[..BLOCK].copy_from_slice(&self.image.bytes());
        self.changed = false;
        // From here on the store may say less.
        self.durable.retain(|region| self.image.written.contains(region));
        self.writing = Some((self.image.written.clone(), self.image.epoch));
        Some(Ok(Work::Write { at: self.place(), from: Bytes::prefix(buffer, BLOCK), fua: true }))
    }

    /// The store has ended an image.
    pub(crate) fn written(&mut self, result: Result<(), DeviceError>) {
        let Some((written, epoch)) = self.writing.take() else { return };
        match result {
            Ok(()) => {
                self.durable = &written & &self.image.written;
                self.epoch = epoch;
            }
            // Which of the two images is there is not known.
            Err(_) => self.durable.clear(),
        }
    }
}

pub(crate) fn get(store: &mut dyn Device, clock: &dyn Clock, at: u64, length: usize) -> Result<Buffer, DeviceError> {
    let into = buffer(length).ok_or(DeviceError::NoMemory)?;
    let (work, result) = complete(store, clock, Work::Read { at, length, into }, PATIENCE);
    result?;
    work.and_then(|work| if let Work::Read { into, .. } = work { Some(into) } else { None }).ok_or(DeviceError::Failed)
}

pub(crate) fn put(store: &mut dyn Device, clock: &dyn Clock, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
    let mut from = buffer(bytes.len()).ok_or(DeviceError::NoMemory)?;
    from[..bytes.len()].copy_from_slice(bytes);
    complete(store, clock, Work::Write { at, from: Bytes::prefix(from, bytes.len()), fua: true }, PATIENCE).1
}

pub(crate) fn buffer(bytes: usize) -> Option<Buffer> {
    let segment = Segment::private(bytes).ok()?;
    let whole = segment.len();
    segment.carve(whole).pop()
}

/// The tag of an image on its way to the store.
pub(crate) const IMAGE: u64 = u64::MAX;
pub(crate) const BLOCK: usize = 4096;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const MAGIC: &[u8; 8] = b"OVSDINT\n";
const VERSION: u32 = 1;
const WRITTEN: usize = 64;
const TORN: usize = 2080;
/// As many bits as fit.
const REGIONS_MAX: usize = 2016 * 8;
const REGION_BYTES_MIN: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use overside_verbs::SystemClock;

    #[test]
    fn an_image_is_read_as_it_was_written_and_nothing_else_is() {
        let mut image = Image::new(10 << 30, 3 * 65536);
        assert!(image.region_bytes.is_multiple_of(3 * 65536) && image.regions() <= REGIONS_MAX);
        image.written = [0, 9, image.regions() - 1].into();
        image.torn = [3].into();
        let bytes = image.bytes();
        assert_eq!(Image::parse(&bytes, 10 << 30, 3 * 65536), Some(image));
        assert_eq!(Image::parse(&bytes, 11 << 30, 3 * 65536), None, "of another volume");
        assert_eq!(Image::parse(&bytes, 10 << 30, 7 * 65536), None, "of other rows");
        for at in 0..BLOCK {
            let mut near = bytes;
            near[at] ^= 1;
            assert_eq!(Image::parse(&near, 10 << 30, 3 * 65536), None, "byte {at}");
        }
        assert_eq!(Image::parse(&bytes[..100], 10 << 30, 3 * 65536), None);
    }

    fn turn(intents: &mut Intents) {
        assert_eq!(intents.turn(), None);
        let mut done = Vec::new();
        intents.store.poll(&mut done);
        done.into_iter().for_each(|done| intents.written(done.result));
    }

    #[test]
    fn a_region_is_ready_only_while_the_store_says_that_it_is_written() {
        let store = Box::new(MemoryDevice::new(64 << 10).unwrap());
        let (mut intents, all) = Intents::open(store, &SystemClock, 1 << 20, 512).unwrap();
        assert_eq!(all.len(), 4, "nothing is known of an empty store");
        intents.begin(&SystemClock).unwrap();
        assert!(intents.is_ready(0, 1 << 20));
        intents.clear(&all);
        turn(&mut intents);
        intents.enter(0, 512);
        assert!(!intents.is_ready(0, 512));
        turn(&mut intents);
        assert!(intents.is_ready(0, 512) && !intents.is_ready(0, 512 << 10));
        assert!(intents.idle(&BTreeSet::new()).is_empty());
        intents.leave(0, 512);
        intents.clear(&[0].into());
        assert_eq!(intents.turn(), None);
        // The image without it is on its way.
        intents.enter(0, 512);
        assert!(!intents.is_ready(0, 512));
        let mut done = Vec::new();
        intents.store.poll(&mut done);
        intents.written(Ok(()));
        assert!(!intents.is_ready(0, 512));
        turn(&mut intents);
        assert!(intents.is_ready(0, 512));
        let Intents { store, .. } = intents;
        let (_, left) = Intents::open(store, &SystemClock, 1 << 20, 512).unwrap();
        assert_eq!(left, [0].into());
    }

    /// An entry of the journal that is written while an epoch ends must not count in the next one.
    #[test]
    fn an_epoch_counts_once_it_is_on_the_store() {
        let store = Box::new(MemoryDevice::new(64 << 10).unwrap());
        let (mut intents, _) = Intents::open(store, &SystemClock, 1 << 20, 512).unwrap();
        intents.begin(&SystemClock).unwrap();
        let before = intents.epoch();
        intents.next_epoch();
        assert!(!intents.is_renewed() && intents.epoch() == before);
        assert_eq!(intents.turn(), None);
        assert!(!intents.is_renewed() && intents.epoch() == before, "it is on its way");
        intents.written(Err(DeviceError::Failed));
        assert!(!intents.is_renewed() && intents.epoch() == before, "whether it is there is not known");
        intents.enter(0, 512);
        turn(&mut intents);
        assert!(intents.is_renewed() && intents.epoch() > before);
    }
}
