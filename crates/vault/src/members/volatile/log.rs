//! The side file: writes that no flush has covered, in the order in which they were acknowledged.
//!
//! A record is a block of 4,096 bytes, little-endian, and its payload filled up to whole blocks.
//! The block has magic, epoch, number, kind, and crc32c of the block with this field zero and of
//! the payload. Behind them come the first byte, the length, and the number up to which earlier
//! writes count no more. The file is read up to the first block that is no record of its epoch.

/// Bytes of a block: places of records are multiples of it.
pub(super) const BLOCK: usize = 4096;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Grows whenever the file is written from its beginning again.
    pub(super) epoch: u64,
    /// Of a write, its number.
    pub(super) number: u64,
    pub(super) kind: RecordKind,
    /// First byte on the device.
    pub(super) at: u64,
    pub(super) length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// A write that is only here.
    Unflushed,
    /// Writes of the range up to the number are on stable storage, or were replaced there. Of
    /// no length: of all ranges.
    Settled,
}

impl Record {
    /// Bytes of the record with its payload.
    pub(super) fn room(&self) -> u64 {
        let payload = if self.kind == RecordKind::Unflushed { self.length } else { 0 };
        BLOCK as u64 + payload.next_multiple_of(BLOCK as u64)
    }

    /// Writes it into `into`, which is as long as its room. The payload
    /// lies behind the first block.
    pub(super) fn write(&self, into: &mut [u8]) {
        into[..BLOCK].fill(0);
        let kind = match self.kind {
            RecordKind::Unflushed => 1u32,
            RecordKind::Settled => 2,
        };
        into[..8].copy_from_slice(MAGIC);
        into[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        into[16..24].copy_from_slice(&self.number.to_le_bytes());
        into[24..28].copy_from_slice(&kind.to_le_bytes());
        into[32..40].copy_from_slice(&self.at.to_le_bytes());
        into[40..48].copy_from_slice(&self.length.to_le_bytes());
        let sum = crc32c::crc32c(into);
        into[28..32].copy_from_slice(&sum.to_le_bytes());
    }

    /// From a block, without its payload. None where it begins no record of a
    /// device of so many bytes.
    pub(super) fn parse(block: &[u8], device_bytes: u64) -> Option<Record> {
        let block: &[u8; BLOCK] = block.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| block[at + i]));
        let kind = match block[24..28] {
            [1, 0, 0, 0] => RecordKind::Unflushed,
            [2, 0, 0, 0] => RecordKind::Settled,
            _ => return None,
        };
        let record = Record { epoch: word(8), number: word(16), kind, at: word(32), length: word(40) };
        let within = record.at.checked_add(record.length).is_some_and(|end| end <= device_bytes);
        let whole =
            (record.at | record.length).is_multiple_of(512) && (kind == RecordKind::Settled || record.length > 0);
        // What counts up must have room for that.
        let counts = record.epoch.max(record.number) < 1 << 63;
        (&block[..8] == MAGIC && within && whole && counts).then_some(record)
    }

    /// Whether block and payload are as they were written.
    pub(super) fn is_sound(bytes: &mut [u8]) -> bool {
        let Some(sum) = bytes.get_mut(28..32) else { return false };
        let said = [sum[0], sum[1], sum[2], sum[3]];
        sum.fill(0);
        crc32c::crc32c(bytes).to_le_bytes() == said
    }
}

const MAGIC: &[u8; 8] = b"OVSDLOST";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let record = Record { epoch: 3, number: 9, kind: RecordKind::Unflushed, at: 1024, length: 512 };
        let mut bytes = vec![0; record.room() as usize];
        bytes[BLOCK..BLOCK + 512].fill(7);
        record.write(&mut bytes);
        assert_eq!(Record::parse(&bytes[..BLOCK], 4096), Some(record));
        assert!(Record::is_sound(&mut bytes.clone()));
        for at in 0..bytes.len() {
            let mut near = bytes.clone();
            near[at] ^= 1;
            let parsed = Record::parse(&near[..BLOCK], 4096);
            assert!(parsed.is_none() || !Record::is_sound(&mut near), "byte {at}");
        }
        assert_eq!(Record::parse(&bytes[..BLOCK], 1024), None, "past the device's end");
        assert_eq!(Record::parse(&bytes[..100], 4096), None);
    }
}
