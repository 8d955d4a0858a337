//! The checks behind the fuzz targets. `tests/corpus.rs` of the crate replays the corpus
//! through the same functions.
//!
//! A checksum keeps chance out and nobody else. So each input is taken as it is, and once more with
//! the checksums that it should have.

#![forbid(unsafe_code)]

use overside_log::format::{
    Footer, GROUP_HEADER_BYTES, Group, GroupHeader, GroupKind, SegmentHeader, parse_part, records, write_page,
};
use overside_log::{Change, Manifest, Page, Record, Records, Table};

/// Takes an input: panics where a parser broke a promise, answers whether the
/// parser accepted it as it is.
pub type Check = fn(&[u8]) -> bool;

/// Every target, by the name of its binary and of its folder in `corpus/`.
pub const TARGETS: [(&str, Check); 2] = [("checkpoint", checkpoint), ("group", group)];

const BLOCK: usize = 4096;

/// A segment's header, or a group and its records.
pub fn group(data: &[u8]) -> bool {
    let sealed = sealed_group(data);
    let header = sealed_end(data, BLOCK);
    one_group(&sealed);
    one_header(&header);
    one_group(data) || one_header(data)
}

fn one_group(data: &[u8]) -> bool {
    let Some(group) = Group::parse(data) else { return false };
    inside(data, group.body);
    assert!(group.bytes <= data.len() && group.bytes % BLOCK == 0);
    let mut again = data[..group.bytes].to_vec();
    assert_eq!(group.header.write(&mut again), group.checksum);
    assert_eq!(again, data[..group.bytes], "a group is written as it was read");
    let mut back = Records::new();
    let mut broken = false;
    for record in records(group.body) {
        match record {
            Ok(record) => back.push(record),
            Err(at) => {
                assert!(at < group.body.len() && !broken, "an error is the last");
                broken = true;
            }
        }
    }
    assert!(group.body.starts_with(back.bytes()), "records are written as they were read");
    assert!(broken || back.bytes().len() == group.body.len());
    true
}

fn one_header(data: &[u8]) -> bool {
    let Ok(header) = SegmentHeader::parse(data) else { return false };
    let mut again = vec![1; BLOCK];
    header.write(&mut again);
    assert_eq!(SegmentHeader::parse(&again), Ok(header));
    true
}

/// A manifest, a footer, or the pages of a part, as the first byte says.
pub fn checkpoint(data: &[u8]) -> bool {
    let Some((kind, data)) = data.split_first() else { return false };
    match kind {
        0 => {
            one_manifest(&sealed_end(data, data.len()));
            one_manifest(data)
        }
        1 => {
            let Some(footer) = Footer::parse(data, crc32c::crc32c(data)) else { return false };
            assert!(footer.parts.len() * 40 <= data.len());
            std::hint::black_box((footer.pages(), footer.rows()));
            let (again, checksum) = footer.write();
            assert_eq!(Footer::parse(&again, checksum), Some(footer));
            true
        }
        _ => {
            one_part(&sealed_page(data));
            one_part(data)
        }
    }
}

fn one_manifest(data: &[u8]) -> bool {
    let Ok(manifest) = Manifest::parse(data) else { return false };
    let options: usize = manifest.tables.iter().map(|table| table.options.len()).sum();
    assert!(options + manifest.tables.len() * 56 <= data.len());
    assert_eq!(Manifest::parse(&manifest.write()), Ok(manifest));
    true
}

fn one_part(data: &[u8]) -> bool {
    let mut sound = true;
    let mut again = Vec::new();
    for page in parse_part(data) {
        assert!(sound, "an error is the last");
        let Ok((page, checksum)) = page else {
            sound = false;
            continue;
        };
        [page.low, page.base, page.high.unwrap_or(&[])].iter().for_each(|part| inside(data, part));
        page.deltas.iter().chain(&page.extents).for_each(|part| inside(data, part));
        let written = Page {
            low: page.low,
            high: page.high,
            base: page.base,
            rows: (page.rows.start, page.rows.end),
            deltas: &page.deltas,
            extents: &page.extents,
            newest: page.newest,
            count: page.count,
        };
        assert_eq!(write_page(&written, &mut again), checksum);
    }
    assert!(data.starts_with(&again), "pages are written as they were read");
    sound && !data.is_empty()
}

fn inside(data: &[u8], part: &[u8]) {
    let (all, part) = (data.as_ptr_range(), part.as_ptr_range());
    assert!(part.is_empty() || (all.start <= part.start && part.end <= all.end));
}

/// With the checksum of its first `block` bytes in their last four.
fn sealed_end(data: &[u8], block: usize) -> Vec<u8> {
    let mut data = data.to_vec();
    if block >= 4 && data.len() >= block {
        let checksum = crc32c::crc32c(&data[..block - 4]);
        data[block - 4..block].copy_from_slice(&checksum.to_le_bytes());
    }
    data
}

fn sealed_group(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    if data.len() >= GROUP_HEADER_BYTES {
        let length = u32::from_le_bytes(data[56..60].try_into().expect("4 bytes")) as usize;
        let whole = length.div_ceil(BLOCK) * BLOCK;
        if (GROUP_HEADER_BYTES..=data.len()).contains(&whole) {
            let checksum = crc32c::crc32c(&data[GROUP_HEADER_BYTES..whole]);
            data[72..76].copy_from_slice(&checksum.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&data[..76]);
        data[76..80].copy_from_slice(&checksum.to_le_bytes());
    }
    data
}

/// Of the first page.
fn sealed_page(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    if data.len() >= 16 {
        let length = u32::from_le_bytes(data[12..16].try_into().expect("4 bytes")) as usize;
        if (16..=data.len()).contains(&length) {
            let checksum = crc32c::crc32c(&data[4..length]);
            data[..4].copy_from_slice(&checksum.to_le_bytes());
        }
    }
    data
}

/// The seeds of each target.
pub fn seeds() -> [(&'static str, Vec<Vec<u8>>); 2] {
    let mut group = vec![0; BLOCK];
    let mut some = Records::new();
    let changes = [
        Change::Put { key: b"key", value: b"value" },
        Change::Delete { key: b"key" },
        Change::Create { options: b"options" },
        Change::Drop,
        Change::CreateIndex { options: b"of" },
        Change::DropIndex { options: b"of" },
    ];
    for (stamp, change) in (5..).zip(changes) {
        some.push(Record { stamp, table: 2, change });
    }
    let end = GROUP_HEADER_BYTES + some.bytes().len();
    group[GROUP_HEADER_BYTES..end].copy_from_slice(some.bytes());
    let header = GroupHeader {
        directory: [1; 16],
        position: 8192,
        floor: 6,
        synced: 4096,
        incarnation: 3,
        length: end as u32,
        records: 4,
        previous: 77,
        kind: GroupKind::Records,
    };
    header.write(&mut group);
    let mut mark = vec![0; BLOCK];
    let length = GROUP_HEADER_BYTES as u32;
    GroupHeader { length, records: 0, kind: GroupKind::Continued, ..header }.write(&mut mark);
    let mut segment = vec![0; BLOCK];
    let header = SegmentHeader {
        directory: [1; 16],
        number: 4,
        after: 3,
        first: 8192,
        incarnation: 3,
        bytes: 64 << 20,
        synced: 4096,
        previous: 77,
    };
    header.write(&mut segment);

    let table = Table { number: 2, options: b"options".to_vec(), file: 9, pages: 3, rows: 30, ..Table::default() };
    let manifest = Manifest { directory: [1; 16], number: 8, floor: 6, tables: vec![table], ..Manifest::default() };
    let part = overside_log::PageGroup { at: 4096, bytes: 100, pages: 3, rows: 30, checksum: 5 };
    let (footer, _) = Footer { parts: vec![part; 3] }.write();
    let full = Page {
        low: b"a",
        high: Some(b"m"),
        base: b"a base page",
        rows: (0, 2),
        deltas: &[b"delta", b"another"],
        extents: &[b"an extent"],
        newest: 9,
        count: 4,
    };
    let mut pages = Vec::new();
    for page in [full, Page { high: None, ..Page::default() }] {
        write_page(&page, &mut pages);
    }
    let kinds = [(0, manifest.write()), (1, footer), (2, pages)];
    let checkpoint = kinds.map(|(kind, bytes)| [vec![kind], bytes].concat()).to_vec();
    [("group", vec![group, mark, segment]), ("checkpoint", checkpoint)]
}
