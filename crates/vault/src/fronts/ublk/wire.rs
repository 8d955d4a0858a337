//! The driver's structures. Pure.
//!
//! Numbers are in the machine's own order. Source: `linux/ublk_cmd.h`.

use overside_volume::{Geometry, SECTOR_BYTES};

/// What the kernel asks of a device. Places and lengths are in bytes, and whole sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UblkRequest {
    Read {
        at: u64,
        length: usize,
    },
    /// Durable: ended only when it is on stable storage.
    Write {
        at: u64,
        length: usize,
        durable: bool,
    },
    Flush,
    /// What it covers reads as zeros, and need not keep its room.
    Discard {
        at: u64,
        length: u64,
    },
    /// Zeros that keep their room.
    Zero {
        at: u64,
        length: u64,
    },
    /// What such a device has not.
    Other,
}

/// What the driver says of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Information {
    pub(super) device: u32,
    pub(super) depth: u16,
    /// Its block device is there.
    pub(super) lives: bool,
    /// The process that serves it; none once its block device has gone.
    pub(super) server: Option<u32>,
    /// The driver leaves the copying of bytes to the server.
    pub(super) copies: bool,
    /// It was added by this project.
    pub(super) ours: bool,
}

/// Nothing that the driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl UblkRequest {
    /// Of a `ublksrv_io_desc`.
    pub(super) fn parse(descriptor: &[u8]) -> Result<UblkRequest, Malformed> {
        let (word, sectors) = (u32_at(descriptor, 0)?, u64::from(u32_at(descriptor, 4)?));
        let start = u64_at(descriptor, 8)?;
        if word & 0xff == FLUSH {
            // Of no place: the kernel has -1 there.
            return Ok(UblkRequest::Flush);
        }
        let at = start.checked_mul(SECTOR_BYTES).ok_or(Malformed)?;
        let length = sectors * SECTOR_BYTES;
        let moved = usize::try_from(length).ok().filter(|length| (1..=PAYLOAD_BYTES_MAX).contains(length));
        Ok(match word & 0xff {
            0 => UblkRequest::Read { at, length: moved.ok_or(Malformed)? },
            1 => UblkRequest::Write { at, length: moved.ok_or(Malformed)?, durable: word & FUA != 0 },
            3 => UblkRequest::Discard { at, length },
            5 if word & KEEPS_ROOM != 0 => UblkRequest::Zero { at, length },
            5 => UblkRequest::Discard { at, length },
            _ => UblkRequest::Other,
        })
    }
}

impl Information {
    /// Of a `ublksrv_ctrl_dev_info`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Information, Malformed> {
        let word = u32_at(bytes, 0)?;
        let state = u32_at(bytes, 4)? as u16;
        let server = u32_at(bytes, 16)?;
        Ok(Information {
            device: u32_at(bytes, 12)?,
            depth: (word >> 16) as u16,
            lives: state != DEAD,
            server: (1..=i32::MAX as u32).contains(&server).then_some(server),
            copies: u64_at(bytes, 24)? & USER_COPY != 0,
            ours: u64_at(bytes, 32)? == OURS,
        })
    }

    /// Of a device that is to be added, with one queue.
    pub(super) fn wanted(depth: u16, server: u32) -> Vec<u8> {
        let mut all = Vec::with_capacity(INFORMATION_BYTES);
        all.extend(1u16.to_ne_bytes());
        all.extend(depth.to_ne_bytes());
        all.extend([0; 4]);
        all.extend((PAYLOAD_BYTES_MAX as u32).to_ne_bytes());
        all.extend(ANY_DEVICE.to_ne_bytes());
        all.extend(server.to_ne_bytes());
        all.extend([0; 4]);
        all.extend((USER_COPY | IOCTL_ENCODE).to_ne_bytes());
        all.extend(OURS.to_ne_bytes());
        all.resize(INFORMATION_BYTES, 0);
        all
    }
}

/// The `ublk_params` of a device; none where its units are larger than the kernel's pages.
pub(super) fn parameters(geometry: Geometry) -> Option<Vec<u8>> {
    let unit = geometry.unit_bytes.trailing_zeros() as u8;
    if unit > PAGE_SHIFT {
        return None;
    }
    // Parts of this are written by reading the rest, for the checksums of members.
    let physical = unit.max(PHYSICAL_SHIFT);
    let attributes = VOLATILE_CACHE | HAS_FUA | if geometry.read_only { READ_ONLY } else { 0 };
    let sectors = |bytes: u64| u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX);
    let mut all = Vec::new();
    all.extend((PARAMETERS_BYTES as u32).to_ne_bytes());
    all.extend((BASIC | DISCARD).to_ne_bytes());
    all.extend(attributes.to_ne_bytes());
    // Logical and physical blocks, the best and the smallest that it likes.
    all.extend([unit, physical, physical, physical]);
    all.extend(sectors(PAYLOAD_BYTES_MAX as u64).to_ne_bytes());
    all.extend([0; 4]);
    all.extend((geometry.bytes / SECTOR_BYTES).to_ne_bytes());
    all.extend([0; 8]);
    all.extend([0; 4]);
    all.extend((1u32 << physical).to_ne_bytes());
    all.extend(sectors(ZEROED_BYTES_MAX).to_ne_bytes());
    all.extend(sectors(ZEROED_BYTES_MAX).to_ne_bytes());
    // One range a request.
    all.extend(1u16.to_ne_bytes());
    all.extend([0; 2]);
    Some(all)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u32::from_ne_bytes(*word)).ok_or(Malformed)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Malformed> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u64::from_ne_bytes(*word)).ok_or(Malformed)
}

/// What a READ or WRITE carries at most.
pub(super) const PAYLOAD_BYTES_MAX: usize = 512 << 10;
/// What a DISCARD or WRITE_ZEROES covers at most: it carries nothing, and a node must not
/// be busy with one for long.
const ZEROED_BYTES_MAX: u64 = 1 << 30;
pub(super) const INFORMATION_BYTES: usize = 64;
const PARAMETERS_BYTES: usize = 60;
/// The driver chooses its number.
pub(super) const ANY_DEVICE: u32 = u32::MAX;
/// Known again when its server was killed.
const OURS: u64 = u64::from_le_bytes(*b"overside");
const DEAD: u16 = 0;
const FLUSH: u32 = 2;
const FUA: u32 = 1 << 13;
const KEEPS_ROOM: u32 = 1 << 15;
const IOCTL_ENCODE: u64 = 1 << 6;
const USER_COPY: u64 = 1 << 7;
const BASIC: u32 = 1;
const DISCARD: u32 = 2;
const READ_ONLY: u32 = 1;
const VOLATILE_CACHE: u32 = 4;
const HAS_FUA: u32 = 8;
const PAGE_SHIFT: u8 = 12;
const PHYSICAL_SHIFT: u8 = 12;

/// Takes what the driver may say: of a device if it is long enough, else a
/// request. Whether it is one.
#[doc(hidden)]
pub fn fuzz_ublk(bytes: &[u8]) -> bool {
    if bytes.len() >= INFORMATION_BYTES {
        let Ok(information) = Information::parse(bytes) else { return false };
        assert!(information.server.is_none_or(|server| (1..1 << 31).contains(&server)), "no process has this number");
        return true;
    }
    let Ok(request) = UblkRequest::parse(bytes) else { return false };
    let (at, length) = match request {
        UblkRequest::Read { at, length } | UblkRequest::Write { at, length, .. } => {
            assert!((1..=PAYLOAD_BYTES_MAX).contains(&length), "bytes that no buffer has");
            (at, length as u64)
        }
        UblkRequest::Discard { at, length } | UblkRequest::Zero { at, length } => (at, length),
        UblkRequest::Flush | UblkRequest::Other => return true,
    };
    assert!(at.is_multiple_of(SECTOR_BYTES) && length.is_multiple_of(SECTOR_BYTES), "no whole sectors");
    true
}

/// What the driver says, for fuzzing to begin with.
#[doc(hidden)]
pub fn seeds_ublk() -> Vec<Vec<u8>> {
    let request = |word: u32, sectors: u32, start: u64| {
        [&word.to_ne_bytes()[..], &sectors.to_ne_bytes(), &start.to_ne_bytes(), &[0; 8]].concat()
    };
    vec![
        request(0, 8, 1),
        request(1, 1024, 2),
        request(1 | FUA, 1, 3),
        request(FLUSH, 0, u64::MAX),
        request(3, 1 << 21, 4),
        request(5, 2048, 5),
        request(5 | KEEPS_ROOM, 2048, 6),
        request(15, 1, 0),
        Information::wanted(128, 4711),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_read_as_it_was_meant() {
        let request: Vec<UblkRequest> =
            seeds_ublk()[..8].iter().map(|seed| UblkRequest::parse(seed).unwrap()).collect();
        let expected = [
            UblkRequest::Read { at: 512, length: 4096 },
            UblkRequest::Write { at: 1024, length: 512 << 10, durable: false },
            UblkRequest::Write { at: 1536, length: 512, durable: true },
            UblkRequest::Flush,
            UblkRequest::Discard { at: 2048, length: 1 << 30 },
            UblkRequest::Discard { at: 2560, length: 1 << 20 },
            UblkRequest::Zero { at: 3072, length: 1 << 20 },
            UblkRequest::Other,
        ];
        assert_eq!(request, expected);
        for (word, sectors, start) in [(0u32, 0u32, 0u64), (1, 1025, 0), (0, u32::MAX, 0), (0, 1, u64::MAX / 512 + 1)] {
            let bytes = [&word.to_ne_bytes()[..], &sectors.to_ne_bytes(), &start.to_ne_bytes(), &[0; 8]].concat();
            assert_eq!(UblkRequest::parse(&bytes), Err(Malformed), "{word} {sectors} {start}");
        }
        assert_eq!(UblkRequest::parse(&seeds_ublk()[0][..15]), Err(Malformed), "cut off");
    }

    #[test]
    fn structures_are_as_the_driver_has_them() {
        let wanted = Information::wanted(128, 4711);
        let mut expected =
            Information { device: ANY_DEVICE, depth: 128, lives: false, server: Some(4711), copies: true, ours: true };
        assert_eq!((Information::parse(&wanted), wanted.len()), (Ok(expected), INFORMATION_BYTES));
        // Its server was killed, and nobody serves it any more.
        let gone = [&wanted[..16], &(-1i32).to_ne_bytes(), &wanted[20..]].concat();
        expected.server = None;
        assert_eq!(Information::parse(&gone), Ok(expected));
        let geometry = Geometry { bytes: 1 << 30, unit_bytes: 512, read_only: true };
        let bytes = parameters(geometry).unwrap();
        assert_eq!((bytes.len(), u32_at(&bytes, 0)), (PARAMETERS_BYTES, Ok(PARAMETERS_BYTES as u32)));
        assert_eq!((u32_at(&bytes, 8), &bytes[12..16]), (Ok(13), &[9, 12, 12, 12][..]));
        assert_eq!((u32_at(&bytes, 16), u64_at(&bytes, 24)), (Ok(1024), Ok(1 << 21)));
        assert_eq!(
            (u32_at(&bytes, 44), u32_at(&bytes, 48)),
            (Ok(4096), Ok(1 << 21)),
            "what a discard is whole units of"
        );
        assert_eq!(parameters(Geometry { unit_bytes: 8192, ..geometry }), None);
    }
}
