//! Writes a small corpus: pages from the builder, and pages and records of trees
//! as they lie in the arena.

use std::fs;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex};

use overside_bwtree::{
    Direction, Exhausted, HeapArena, LeafBuilder, Options, OverflowRef, PinnedPage, Rest, SegmentArena,
    SegmentObserver, SystemWaits, Tree,
};
use overside_bwtree_fuzz::ADOPTED;
use overside_memory::{Foreign, Segment, SegmentId};

fn main() -> std::io::Result<()> {
    let mut pages = vec![
        LeafBuilder::new(4).finish(),
        built((0..5).map(|i| format!("key {i}").into_bytes()), 8, 0),
        built((0..12).map(|i| format!("customer/{:04}", 3 * i).into_bytes()), 8, 3),
        built((0..10).map(|i| vec![b'k'; 3 * i + 1]), 5, 9),
        built((0..70u64).map(|i| i.to_be_bytes().to_vec()), 2, 0),
    ];
    let mut records = Vec::new();
    for page in trees() {
        pages.push(page.base().to_vec());
        records.extend(page.deltas().map(|delta| delta.record().to_vec()));
    }
    for (number, page) in pages.iter().enumerate() {
        write("leaf", number, page)?;
    }
    for (number, record) in records.iter().enumerate() {
        write("delta", number, record)?;
    }
    for (number, leaves) in written().iter().enumerate() {
        write("adopt", number, leaves)?;
    }
    for (number, memory) in walked().iter().enumerate() {
        write("walk", number, memory)?;
    }
    Ok(())
}

/// Maps what a tree commits.
#[derive(Debug, Default)]
struct Mapped(Mutex<Vec<Foreign>>);

impl SegmentObserver for Mapped {
    fn committed(&self, segment: &Arc<Segment>) -> Result<(), Exhausted> {
        let fd = segment.fd().expect("a shared segment").try_clone_to_owned().expect("a descriptor");
        let mapped = Foreign::map(fd, segment.len() as u64).expect("a mapping");
        self.0.lock().expect("nobody panics").push(mapped);
        Ok(())
    }

    fn decommitted(&self, _: SegmentId) {}
}

/// The memory of open trees: small, with chains, of long values, and of one
/// that has split and merged.
fn walked() -> [Vec<u8>; 3] {
    let open = |fill: &dyn Fn(&Tree)| {
        let mapped = Arc::new(Mapped::default());
        let arena = SegmentArena::new(1 << 20, 8 << 20, mapped.clone()).expect("address space");
        let tree = Tree::open(Arc::new(arena), ADOPTED, &SystemWaits).expect("options within the limits");
        fill(&tree);
        let mut memory = Vec::new();
        for (segment, (at, len, _)) in mapped.0.lock().expect("nobody panics").iter().zip(tree.segments()) {
            memory.resize((at + len) as usize, 0);
            segment.read(0, &mut memory[at as usize..]).expect("it lies inside");
        }
        memory_of(&tree, &memory)
    };
    let put =
        |tree: &Tree, key: &[u8], len: usize| _ = tree.upsert(key, &vec![len as u8; len]).expect("room for a row");
    [
        open(&|tree| {
            (0..20u32).for_each(|n| put(tree, &(n * 37 % 20).to_be_bytes(), 9));
            tree.delete(&7u32.to_be_bytes()).expect("room for a record");
        }),
        open(&|tree| (0..6usize).for_each(|n| put(tree, format!("key number {n}").as_bytes(), 9 + 150 * (n % 3)))),
        open(&|tree| {
            (0..60u32).for_each(|n| put(tree, &n.to_be_bytes(), 8));
            (5..50u32).for_each(|n| _ = tree.delete(&n.to_be_bytes()).expect("room for a record"));
        }),
    ]
}

/// An input of the target `walk`: three blocks of the mapping table, then whatever is not zero.
fn memory_of(tree: &Tree, memory: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let number = |out: &mut Vec<u8>, number: usize| out.extend_from_slice(&(number as u16).to_le_bytes());
    let blocks = tree.opening().expect("an open tree").blocks;
    for block in 0..3 {
        number(&mut out, blocks.get(block).copied().flatten().unwrap_or(1 << 20) as usize / 64);
    }
    let lines: Vec<&[u8]> = memory.chunks(64).collect();
    let mut at = 0;
    while at < lines.len() {
        let count = lines[at..].iter().take_while(|line| line.iter().any(|byte| *byte != 0)).count();
        if count > 0 {
            number(&mut out, at);
            number(&mut out, 64 * count);
            lines[at..at + count].iter().for_each(|line| out.extend_from_slice(line));
        }
        at += count.max(1);
    }
    out
}

/// A page with fences and rests of several lengths, every fifth of which lies elsewhere.
fn built(keys: impl Iterator<Item = Vec<u8>>, prefix_len: usize, rest: usize) -> Vec<u8> {
    let mut builder = LeafBuilder::new(prefix_len).fences(b"", Some(b"zz"));
    for (i, key) in keys.enumerate() {
        let bytes = vec![i as u8; rest * (i % 4)];
        let overflow = OverflowRef { offset: 64 * i as u64, len: 70_000, extent: 7 };
        let rest = if rest > 0 && i % 5 == 4 { Rest::Overflow(overflow) } else { Rest::Inline(&bytes) };
        builder.push(&key, &vec![i as u8; prefix_len], rest).expect("ascending keys");
    }
    builder.finish()
}

/// The first page of a tree with rests, one of them too large for a page, and of one that has
/// split, each with a chain.
fn trees() -> [PinnedPage; 2] {
    let tree = |page_bytes| {
        let arena = Arc::new(HeapArena::new(16 << 20).expect("address space"));
        let options = Options { page_bytes, prefix_len: 8, chain_max: 8, ..Options::default() };
        Tree::new(arena, options).expect("options within the limits")
    };
    let (rests, split) = (tree(4096), tree(1024));
    for n in 0..14usize {
        let bytes = if n == 9 { 3000 } else { 8 + 5 * n };
        rests.upsert(format!("key number {n}").as_bytes(), &vec![n as u8; bytes]).expect("room for a row");
    }
    rests.delete(b"key number 3").expect("room for a record");
    for n in 0..60u32 {
        split.upsert(&(n * 37 % 60).to_be_bytes(), &[n as u8; 8]).expect("room for a row");
    }
    split.delete(&1u32.to_be_bytes()).expect("room for a record");
    split.upsert(&2u32.to_be_bytes(), &[0xee; 8]).expect("room for a row");
    [first(&rests), first(&split)]
}

/// Trees as a checkpoint has them: with keys of one length, of several, and rests in extents.
fn written() -> [Vec<u8>; 3] {
    let tree = |fill: &dyn Fn(&Tree)| {
        let arena = Arc::new(HeapArena::new(16 << 20).expect("address space"));
        let tree = Tree::new(arena, ADOPTED).expect("options within the limits");
        fill(&tree);
        tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).flat_map(|page| leaf(&page)).collect()
    };
    let put =
        |tree: &Tree, key: &[u8], len: usize| _ = tree.upsert(key, &vec![len as u8; len]).expect("room for a row");
    [
        tree(&|tree| {
            (0..40u32).for_each(|n| put(tree, &(n * 37 % 40).to_be_bytes(), 8));
            tree.delete(&7u32.to_be_bytes()).expect("room for a record");
        }),
        tree(&|tree| (0..20usize).for_each(|n| put(tree, &vec![b'k'; n * 7 % 20 + 1], 8 + 3 * n))),
        tree(&|tree| {
            (0..9usize).for_each(|n| put(tree, format!("key number {n}").as_bytes(), if n % 4 == 1 { 300 } else { 9 }))
        }),
    ]
}

/// A leaf in an input of the target `adopt`.
fn leaf(page: &PinnedPage) -> Vec<u8> {
    let mut out = Vec::new();
    let number = |out: &mut Vec<u8>, number: usize| out.extend_from_slice(&(number as u16).to_le_bytes());
    let piece = |out: &mut Vec<u8>, bytes: &[u8]| {
        number(out, bytes.len());
        out.extend_from_slice(bytes);
    };
    piece(&mut out, page.base());
    number(&mut out, page.rows().start);
    number(&mut out, page.rows().end);
    number(&mut out, page.delta_count());
    page.deltas().for_each(|delta| piece(&mut out, delta.record()));
    number(&mut out, page.extents().count());
    page.extents().for_each(|extent| piece(&mut out, extent));
    out
}

fn first(tree: &Tree) -> PinnedPage {
    tree.pages(Bound::Unbounded, Bound::Unbounded, Direction::Forward).next().expect("a tree has a page")
}

fn write(target: &str, number: usize, bytes: &[u8]) -> std::io::Result<()> {
    let folder = Path::new("corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("seed-{number}")), bytes)
}
