//! What a member says of itself, in its first blocks.
//!
//! Two copies, of which the newer sound one counts: whichever is being written, the other one is
//! whole. A block of 4,096 bytes, little-endian. First come magic, version, crc32c of the block
//! with this field zero, generation, and the volume's id. Then the number of this member and of
//! all, layout, flags, stripe, bytes of the volume, bytes of this member, and the first byte of its
//! data. Last the length of the name, the name, and zeros.
//!
//! Version 2 has a checksum of each block of the data: a bitmap in the third and fourth
//! block, and a table between [`DATA_START`] and the data ([`Sums`](overside_volume::Sums)).
//! Its room is for more data than there is, so that the volume can grow. Members of version 1
//! are used as they are, without.

use overside_disk::BLOCK_BYTES;
use overside_volume::SumPlaces;

/// Where what lies behind the superblock's copies and the bitmap begins: the table of sums,
/// or without one the data.
pub const DATA_START: u64 = 1 << 20;
/// Bytes of a volume's name at most.
pub const NAME_BYTES_MAX: usize = 64;

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Grows with every change. A member with a lower one than another has missed something.
    pub generation: u64,
    /// The volume's, by chance.
    pub id: [u8; 16],
    /// Which member this is.
    pub member: u16,
    /// How many there are.
    pub members: u16,
    /// How they make the volume.
    pub layout: LayoutKind,
    /// Bytes of a stripe; 0 where there is none.
    pub stripe: u64,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Bytes of this member's data.
    pub member_bytes: u64,
    /// Bytes of room for the table of sums; 0: it has none, and is of version 1.
    pub sums_bytes: u64,
    /// The volume's name.
    pub name: String,
}

/// How members make a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutKind {
    /// One behind the other.
    Concat,
    /// RAID 0.
    Stripes,
    /// RAID 1.
    Mirror,
    /// RAID 5.
    Parity,
}

/// Bytes that are no superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoSuperblock(pub &'static str);

impl LayoutKind {
    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            LayoutKind::Concat => "concat",
            LayoutKind::Stripes => "raid0",
            LayoutKind::Mirror => "raid1",
            LayoutKind::Parity => "raid5",
        }
    }

    /// Whether a member may be lost.
    pub fn is_redundant(self) -> bool {
        matches!(self, LayoutKind::Mirror | LayoutKind::Parity)
    }

    /// Whether members take turns, a stripe each.
    pub fn is_striped(self) -> bool {
        matches!(self, LayoutKind::Stripes | LayoutKind::Parity)
    }

    /// By its name.
    pub fn parse(name: &str) -> Option<LayoutKind> {
        [LayoutKind::Concat, LayoutKind::Stripes, LayoutKind::Mirror, LayoutKind::Parity]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

impl Superblock {
    /// First byte of the data.
    pub fn data_start(&self) -> u64 {
        DATA_START.saturating_add(self.sums_bytes)
    }

    /// Where the sums of version 2 lie in the member.
    pub fn sums(&self) -> Option<SumPlaces> {
        let (bitmap, data) = (2 * BLOCK_BYTES as u64, self.data_start());
        (self.sums_bytes > 0).then_some(SumPlaces { bitmap, table: DATA_START, data, bytes: self.member_bytes })
    }

    /// Room for the sums of a member with so many bytes, and of one into which it grows.
    pub fn room_for_sums(member_bytes: u64) -> u64 {
        SumPlaces::table_bytes(member_bytes.saturating_mul(GROWTH)).next_multiple_of(DATA_START)
    }

    /// As it lies on the disk.
    pub fn bytes(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let mut put = |at: usize, field: &[u8]| block[at..at + field.len()].copy_from_slice(field);
        put(0, MAGIC);
        let version: u32 = if self.sums_bytes == 0 { 1 } else { 2 };
        put(8, &version.to_le_bytes());
        put(16, &self.generation.to_le_bytes());
        put(24, &self.id);
        put(40, &self.member.to_le_bytes());
        put(42, &self.members.to_le_bytes());
        let layout = match self.layout {
            LayoutKind::Concat => 0,
            LayoutKind::Stripes => 1,
            LayoutKind::Mirror => 2,
            LayoutKind::Parity => 3,
        };
        put(44, &[layout]);
        put(48, &self.stripe.to_le_bytes());
        put(56, &self.volume_bytes.to_le_bytes());
        put(64, &self.member_bytes.to_le_bytes());
        put(72, &self.data_start().to_le_bytes());
        let name = &self.name.as_bytes()[..self.name.len().min(NAME_BYTES_MAX)];
        put(80, &[name.len() as u8]);
        put(96, name);
        let sum = crc32c::crc32c(&block);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// From a member's block.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(block: &[u8]) -> Result<Superblock, NoSuperblock> {
        let block: &[u8; BLOCK_BYTES] = block.try_into().map_err(|_| NoSuperblock("it is cut"))?;
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| block[at + i]));
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| block[at + i]));
        let u16_at = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        if &block[..8] != MAGIC {
            return Err(NoSuperblock("it does not begin as one"));
        }
        if !matches!(u32_at(8), 1 | 2) {
            return Err(NoSuperblock("it is of another version than 1 and 2; use the program that made it"));
        }
        let mut unsummed = *block;
        unsummed[12..16].fill(0);
        if crc32c::crc32c(&unsummed) != u32_at(12) {
            return Err(NoSuperblock("its checksum is wrong"));
        }
        let layout = match block[44] {
            0 => LayoutKind::Concat,
            1 => LayoutKind::Stripes,
            2 => LayoutKind::Mirror,
            3 => LayoutKind::Parity,
            _ => return Err(NoSuperblock("its layout is unknown; use a newer program")),
        };
        let length = usize::from(block[80]);
        let name = block[96..].get(..length).filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len()));
        let name = name.and_then(|name| std::str::from_utf8(name).ok()).ok_or(NoSuperblock("its name is no name"))?;
        let found = Superblock {
            generation: u64_at(16),
            id: std::array::from_fn(|i| block[24 + i]),
            member: u16_at(40),
            members: u16_at(42),
            layout,
            stripe: u64_at(48),
            volume_bytes: u64_at(56),
            member_bytes: u64_at(64),
            sums_bytes: u64_at(72).checked_sub(DATA_START).ok_or(NoSuperblock("its data begin in it"))?,
            name: name.to_owned(),
        };
        let unit = BLOCK_BYTES as u64;
        let sound = found.member < found.members
            && found.sums_bytes.is_multiple_of(unit)
            && (found.sums_bytes == 0 || found.sums_bytes >= SumPlaces::table_bytes(found.member_bytes))
            && found.member_bytes >= unit
            && found.member_bytes.is_multiple_of(unit)
            && found.member_bytes.checked_add(found.data_start()).is_some();
        if !sound || found.bytes() != *block {
            return Err(NoSuperblock("it says what no volume has; use a newer program"));
        }
        Ok(found)
    }

    /// The newer one of a member's two copies.
    ///
    /// # Errors
    /// Why the first is none, where both are none.
    pub fn newer(copies: &[u8]) -> Result<Superblock, NoSuperblock> {
        let (first, second) = copies.split_at_checked(BLOCK_BYTES).ok_or(NoSuperblock("it is cut"))?;
        let second = Self::parse(second.get(..BLOCK_BYTES).unwrap_or_default());
        match (Self::parse(first), second) {
            (Ok(first), Ok(second)) if second.id == first.id && second.generation > first.generation => Ok(second),
            (Ok(first), _) => Ok(first),
            (Err(_), Ok(second)) => Ok(second),
            (Err(why), Err(_)) => Err(why),
        }
    }
}

const MAGIC: &[u8; 8] = b"OVSDVOL\n";
/// So many times as large a member may become.
const GROWTH: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Of version 1, as it was released.
    const SAMPLE: &[u8] = include_bytes!("../../samples/superblock-1");
    /// Of version 2.
    const SAMPLE_2: &[u8] = include_bytes!("../../samples/superblock-2");

    fn of_the_sample() -> Superblock {
        Superblock {
            generation: 7,
            id: *b"0123456789abcdef",
            member: 1,
            members: 3,
            layout: LayoutKind::Stripes,
            stripe: 64 << 10,
            volume_bytes: 6 << 30,
            member_bytes: 2 << 30,
            sums_bytes: 0,
            name: "pg".into(),
        }
    }

    #[test]
    fn the_sample_of_version_1_is_read() {
        assert_eq!(Superblock::parse(SAMPLE).unwrap(), of_the_sample());
        assert_eq!(of_the_sample().bytes()[..], *SAMPLE);
    }

    #[test]
    fn the_sample_of_version_2_is_read() {
        let with_sums = Superblock { sums_bytes: Superblock::room_for_sums(2 << 30), ..of_the_sample() };
        assert_eq!(Superblock::parse(SAMPLE_2).unwrap(), with_sums);
        assert_eq!(with_sums.bytes()[..], *SAMPLE_2);
        let sums = with_sums.sums().unwrap();
        assert_eq!((sums.bitmap, sums.table, sums.data, sums.bytes), (8192, 1 << 20, 33 << 20, 2 << 30));
        let short = Superblock { sums_bytes: 1 << 20, ..with_sums };
        assert!(Superblock::parse(&short.bytes()).is_err(), "the table is too short for the data");
    }

    #[test]
    fn no_byte_of_it_may_be_another() {
        for (at, change) in (0..BLOCK_BYTES).flat_map(|at| [(at, 1), (at, 0xff)]) {
            for sums_bytes in [0, 32 << 20] {
                let mut near = Superblock { sums_bytes, ..of_the_sample() }.bytes();
                near[at] ^= change;
                assert!(Superblock::parse(&near).is_err(), "byte {at}");
                // The checksum is no proof of sense.
                near[12..16].fill(0);
                let sum = crc32c::crc32c(&near);
                near[12..16].copy_from_slice(&sum.to_le_bytes());
                let _ = Superblock::parse(&near);
            }
        }
        for cut in [0, 1, 100, BLOCK_BYTES - 1] {
            assert!(Superblock::parse(&of_the_sample().bytes()[..cut]).is_err());
        }
    }

    #[test]
    fn the_newer_sound_copy_counts() {
        let (old, new) = (of_the_sample(), Superblock { generation: 8, ..of_the_sample() });
        let both = |a: &[u8], b: &[u8]| Superblock::newer(&[a, b].concat()).map(|found| found.generation);
        let torn = [0; BLOCK_BYTES];
        assert_eq!(both(&old.bytes(), &new.bytes()), Ok(8));
        assert_eq!(both(&new.bytes(), &old.bytes()), Ok(8));
        assert_eq!(both(&torn, &old.bytes()), Ok(7));
        assert_eq!(both(&old.bytes(), &torn), Ok(7));
        assert!(both(&torn, &torn).is_err());
        assert!(Superblock::newer(&old.bytes()[..10]).is_err());
    }
}
