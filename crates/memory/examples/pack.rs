//! What packing costs beside the copy limit and beside a typed loop, alternating in one run.
//!
//! `cargo run --release -p overside-memory --example pack [all|bitmapped|mapped|shuffle|deal|misaligned|widths|streaming] [MIB] [ROUNDS]`: the
//! column has MIB MiB (1024 without it; at least four times the last-level cache says something).
//! Rates count the bytes of the column or table that were read, except where they say packed.

use std::hint::black_box;
use std::time::Instant;

use overside_memory::kernels::{Kernel, copy};
use overside_memory::pack::{Dealer, Layout, PackKernel, Packer, RowBuffer, pack_with};
use overside_shape::{Bitmap, Column, Frequency, Mask, Order, Run, Shape, shared_tiles};

/// A named side of a comparison.
struct Side<'a> {
    name: String,
    run: Box<dyn FnMut() + 'a>,
    seconds: Vec<f64>,
}

fn side<'a>(name: impl Into<String>, run: impl FnMut() + 'a) -> Side<'a> {
    Side { name: name.into(), run: Box::new(run), seconds: Vec::new() }
}

/// Runs the sides in turn and prints each one's median rate with its spread, and its ratio to the first, round by
/// round.
fn compare(title: &str, bytes: u64, rounds: usize, mut sides: Vec<Side<'_>>) {
    sides.iter_mut().for_each(|side| (side.run)());
    for round in 0..rounds {
        let count = sides.len();
        for i in 0..count {
            let side = &mut sides[(i + round) % count];
            let start = Instant::now();
            (side.run)();
            side.seconds.push(start.elapsed().as_secs_f64());
        }
    }
    println!("\n{title}");
    let first = sides[0].seconds.clone();
    for side in &sides {
        let rates: Vec<f64> = side.seconds.iter().map(|s| bytes as f64 / s / 1e9).collect();
        let ratios: Vec<f64> = side.seconds.iter().zip(&first).map(|(s, f)| f / s).collect();
        let ((low, mid, high), (least, ratio, most)) = (spread(rates), spread(ratios));
        println!("  {:34} {mid:6.2} GB/s ({low:.2} to {high:.2})   {ratio:5.2} x ({least:.2} to {most:.2})", side.name);
    }
}

fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 10], values[values.len() / 2], values[values.len() - 1 - values.len() / 10])
}

fn random(row: u64, salt: u64) -> u64 {
    let mixed = (row ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32
}

fn kernels() -> impl Iterator<Item = PackKernel> {
    PackKernel::ALL.into_iter().filter(|kernel| kernel.is_available())
}

/// Chunks of the column are copied into a ring that stays in the cache, as a transmit buffer does.
const CHUNK: usize = 64 << 10;
const RING: usize = 1 << 20;

fn copy_limit<'a>(kernel: Kernel, memory: &'a [u8], ring: &'a mut [u8]) -> impl FnMut() + 'a {
    move || {
        for (i, chunk) in memory.chunks(CHUNK).enumerate() {
            let at = i * CHUNK % RING;
            copy(kernel, &mut ring[at..at + CHUNK], chunk);
        }
        black_box(&ring);
    }
}

fn bitmapped(memory: &[u8], rounds: usize) {
    let rows = (memory.len() / 4) as u64;
    for percent in [1, 10, 50, 90] {
        let bits = Bitmap::of(rows, |row| random(row, 7) % 100 < percent);
        let shape = Shape::bitmapped(&[Column::dense(0, 4)], &bits, Order::Rows).unwrap();
        let messages = shape.messages();
        let mut rings: Vec<Vec<u8>> = (0..5).map(|_| vec![1; RING]).collect();
        let mut ring = rings.iter_mut();
        let mut sides = Vec::new();
        for kernel in [Kernel::Libc, Kernel::Avx2] {
            sides.push(side(format!("copy limit: {kernel:?}"), copy_limit(kernel, memory, ring.next().unwrap())));
        }
        for kernel in kernels() {
            let ring = ring.next().unwrap();
            sides.push(side(format!("pack: {kernel:?}"), move || {
                for (i, tile) in messages.tiles(CHUNK as u64 / 4).enumerate() {
                    let at = i * CHUNK % RING;
                    pack_with(kernel, Layout::Messages, memory, &tile, &mut ring[at..at + CHUNK]).unwrap();
                }
                black_box(&ring);
            }));
        }
        compare(
            &format!("one 4-byte column under a bitmap, {percent} % set, {} MiB", memory.len() >> 20),
            memory.len() as u64,
            rounds,
            sides,
        );
    }
}

const COLUMNS: usize = 5;
const TILE_ROWS: u64 = 2048;

/// What one would write by hand: typed columns, two outputs, no call to memcpy.
#[inline(never)]
#[allow(clippy::needless_range_loop)] // As one writes it by hand.
fn typed_alternate(
    columns: &[&[u32]; COLUMNS],
    first: usize,
    rows: usize,
    a: &mut [[u32; COLUMNS]],
    b: &mut [[u32; COLUMNS]],
) {
    let columns = columns.map(|c| &c[first..first + rows]);
    let (mut to_a, mut to_b) = (0, 0);
    for i in 0..rows {
        let row = [columns[0][i], columns[1][i], columns[2][i], columns[3][i], columns[4][i]];
        if i % 2 == 0 {
            a[to_a] = row;
            to_a += 1;
        } else {
            b[to_b] = row;
            to_b += 1;
        }
    }
}

#[inline(never)]
#[allow(clippy::needless_range_loop)] // As one writes it by hand.
fn typed_bits(
    columns: &[&[u32]; COLUMNS],
    bits: &[u64],
    first: usize,
    rows: usize,
    a: &mut [[u32; COLUMNS]],
    b: &mut [[u32; COLUMNS]],
) {
    let columns = columns.map(|c| &c[first..first + rows]);
    let (mut to_a, mut to_b) = (0, 0);
    for i in 0..rows {
        let row = [columns[0][i], columns[1][i], columns[2][i], columns[3][i], columns[4][i]];
        let at = first + i;
        if bits[at / 64] >> (at % 64) & 1 == 1 {
            a[to_a] = row;
            to_a += 1;
        } else {
            b[to_b] = row;
            to_b += 1;
        }
    }
}

fn shuffle(rows: u64, rounds: usize, strided: bool) {
    let table: Vec<u32> = (0..rows * COLUMNS as u64).map(|i| random(i, 1) as u32).collect();
    // SAFETY: [pack] the same bytes as the numbers.
    let memory = unsafe { std::slice::from_raw_parts(table.as_ptr().cast::<u8>(), table.len() * 4) };
    let columns: [&[u32]; COLUMNS] = std::array::from_fn(|i| &table[i * rows as usize..][..rows as usize]);
    let bits = Bitmap::of(rows, |row| if strided { row % 2 == 0 } else { random(row, 3).is_multiple_of(2) });
    let words: Vec<u64> = (0..bits.word_count()).map(|i| bits.word(i)).collect();
    let other = Bitmap::of(rows, |row| !bits.contains(row));
    let at: Vec<Column> = (0..COLUMNS as u64).map(|i| Column::dense(i * rows * 4, 4)).collect();
    let shapes = [&bits, &other].map(|bits| Shape::bitmapped(&at, bits, Order::Rows).unwrap());
    if strided {
        let every = |i: u64| Frequency { base: i * rows * 4, width: 4, take: 1, of: 2, start: 0, count: rows / 2 };
        let set =
            Shape::set((0..COLUMNS as u64).map(|i| Shape::every(every(i)).unwrap()).collect(), Mask::Rows).unwrap();
        assert_eq!(shapes[0], set, "a bitmap of every other row is the stride");
    }
    let destinations = [shapes[0].messages(), shapes[1].messages()];
    let room = TILE_ROWS as usize;
    let mut typed = [vec![[0u32; COLUMNS]; room], vec![[0u32; COLUMNS]; room]];
    let mut sides = vec![side("typed loop, rows of five", {
        let columns = &columns;
        let words = &words;
        move || {
            let [a, b] = &mut typed;
            for first in (0..rows as usize).step_by(room) {
                let rows = room.min(rows as usize - first);
                if strided {
                    typed_alternate(columns, first, rows, a, b);
                } else {
                    typed_bits(columns, words, first, rows, a, b);
                }
                black_box((&a, &b));
            }
        }
    })];
    for kernel in kernels() {
        let mut out = [vec![0u8; room * 20], vec![0u8; room * 20]];
        let destinations = &destinations;
        sides.push(side(format!("pack in tiles: {kernel:?}"), move || {
            let mut tiles = shared_tiles(destinations, TILE_ROWS * 4).unwrap();
            while let Some(ranges) = tiles.next_tile() {
                for (i, range) in ranges.iter().enumerate() {
                    let tile = destinations[i].slice(range.clone());
                    pack_with(kernel, Layout::Messages, memory, &tile, &mut out[i]).unwrap();
                }
                black_box(&out);
            }
        }));
    }
    let kind = if strided { "every other row" } else { "a random half" };
    let repeat = (64 << 20) / (rows * 20) + 1;
    let sides = sides.into_iter().map(|mut s| side(s.name, move || (0..repeat).for_each(|_| (s.run)()))).collect();
    compare(
        &format!("5 x 4 bytes row by row to 2 destinations, {kind}, {rows} rows (bytes packed)"),
        repeat * rows * 20,
        rounds,
        sides,
    );
}

/// What one would write by hand for any number of destinations: typed columns, an output each, no call to memcpy.
#[inline(never)]
fn typed_deal(columns: &[&[u32]; COLUMNS], to: &[u8], outs: &mut [Vec<[u32; COLUMNS]>], used: &mut [usize]) {
    let columns = columns.map(|column| &column[..to.len()]);
    for (row, to) in to.iter().enumerate() {
        let to = usize::from(*to);
        outs[to][used[to]] = columns.map(|column| column[row]);
        used[to] += 1;
    }
}

/// Rows to eight destinations by a random number, in buffers of 32 KiB which are used again and again.
fn deal(rows: u64, rounds: usize) {
    const OF: usize = 8;
    const ROOM: usize = 1638;
    const RING: usize = 6;
    let table: Vec<u32> = (0..rows * COLUMNS as u64).map(|i| random(i, 1) as u32).collect();
    // SAFETY: [pack] the same bytes as the numbers.
    let memory = unsafe { std::slice::from_raw_parts(table.as_ptr().cast::<u8>(), table.len() * 4) };
    let columns: [&[u32]; COLUMNS] = std::array::from_fn(|i| &table[i * rows as usize..][..rows as usize]);
    let to: Vec<u8> = (0..rows).map(|row| (random(row, 5) % OF as u64) as u8).collect();
    let at: Vec<Column> = (0..COLUMNS as u64).map(|i| Column::dense(i * rows * 4, 4)).collect();
    let shape = |of: usize| Bitmap::of(rows, |row| usize::from(to[row as usize]) == of);
    let shapes: Vec<Shape> = (0..OF).map(|of| Shape::bitmapped(&at, &shape(of), Order::Rows).unwrap()).collect();
    let repeat = (64 << 20) / (rows * 20) + 1;
    let mut typed: Vec<Vec<[u32; COLUMNS]>> = vec![vec![[0; COLUMNS]; ROOM]; OF];
    let mut in_turn = vec![vec![0u8; ROOM * 20]; OF * RING];
    let messages: Vec<_> = shapes.iter().map(|shape| shape.messages()).collect();
    let refs: Vec<&Shape> = shapes.iter().collect();
    let mut sides = vec![side("typed loop, rows of five", || {
        for _ in 0..repeat {
            let mut used = vec![0; OF];
            for from in (0..rows as usize).step_by(ROOM) {
                let end = (from + ROOM).min(rows as usize);
                used.iter_mut().for_each(|used| *used = 0);
                typed_deal(&columns.map(|column| &column[from..end]), &to[from..end], &mut typed, &mut used);
            }
            black_box((&typed, &used));
        }
    })];
    let sum =
        |bytes: &[u8]| bytes.chunks_exact(8).fold(0u64, |sum, word| sum ^ u64::from_le_bytes(word.try_into().unwrap()));
    sides.push(side("reading the table", move || {
        (0..repeat).for_each(|_| {
            black_box(sum(black_box(memory)));
        });
    }));
    sides.push(side("packed in turn, a stretch each", || {
        for _ in 0..repeat {
            let mut packers: Vec<Packer<'_>> =
                messages.iter().map(|messages| Packer::new(memory, *messages).unwrap().unwrap()).collect();
            let mut places = [(0, 0); OF];
            while packers.iter().any(|packer| packer.left() > 0) {
                for (i, packer) in packers.iter_mut().enumerate().filter(|(_, packer)| packer.left() > 0) {
                    let (buffer, used) = &mut places[i];
                    let taken = packer.stretch(&mut in_turn[i * RING + *buffer][*used..]).unwrap() as usize;
                    *used += taken * 20;
                    if *used == ROOM * 20 {
                        (*buffer, *used) = ((*buffer + 1) % RING, 0);
                    }
                }
            }
            black_box(&in_turn);
        }
    }));
    let dealing = |kernel: PackKernel| {
        let mut rings = vec![vec![0u8; ROOM * 20]; OF * RING];
        let refs = &refs;
        move || {
            for _ in 0..repeat {
                let mut dealer = Dealer::with(kernel, memory, refs).unwrap().unwrap();
                let (mut buffer, mut used) = ([0; OF], [0; OF]);
                while !dealer.is_done() {
                    let mut places: Vec<RowBuffer<'_>> = rings
                        .chunks_exact_mut(RING)
                        .enumerate()
                        .map(|(i, ring)| RowBuffer { room: &mut ring[buffer[i]], rows: used[i] })
                        .collect();
                    dealer.deal(&mut places);
                    for (i, place) in places.iter().enumerate() {
                        used[i] = place.rows;
                        if used[i] == ROOM {
                            (buffer[i], used[i]) = ((buffer[i] + 1) % RING, 0);
                        }
                    }
                }
                black_box(&rings);
            }
        }
    };
    for kernel in kernels().filter(|kernel| *kernel >= PackKernel::Avx2) {
        sides.push(side(format!("dealt: {kernel:?}"), dealing(kernel)));
    }
    compare(
        &format!("5 x 4 bytes row by row to {OF} destinations, {rows} rows (bytes packed)"),
        repeat * rows * 20,
        rounds,
        sides,
    );
}

fn mapped(memory: &[u8], rounds: usize) {
    let count = 1u64 << 20;
    let places = memory.len() as u64 / 256;
    let rows: Vec<u64> = (0..count).map(|i| random(i, 9) % places * 256).collect();
    let shape = Shape::mapped(rows.clone(), &[Run::new(0, 8), Run::new(24, 4), Run::new(60, 16)]).unwrap();
    let messages = shape.messages();
    let mut out = vec![0; CHUNK];
    let mut plain = vec![0; CHUNK];
    let step = CHUNK as u64 / 28;
    let mut sides = vec![side("typed loop without prefetch", || {
        for tile in rows.chunks(step as usize) {
            for (i, row) in tile.iter().enumerate() {
                let (at, to) = (*row as usize, i * 28);
                plain[to..to + 8].copy_from_slice(&memory[at..at + 8]);
                plain[to + 8..to + 12].copy_from_slice(&memory[at + 24..at + 28]);
                plain[to + 12..to + 28].copy_from_slice(&memory[at + 60..at + 76]);
            }
            black_box(&plain);
        }
    })];
    sides.push(side("pack", || {
        for tile in messages.tiles(step) {
            pack_with(PackKernel::best(), Layout::Messages, memory, &tile, &mut out).unwrap();
            black_box(&out);
        }
    }));
    compare("2^20 rows at random places, three runs of each (bytes packed)", count * 28, rounds, sides);
    for len in [181, 363, 725, 1451, 2901] {
        scattered(memory, len, rounds);
    }
}

/// Rows of `len` bytes at random places, by the bytes packed.
fn scattered(memory: &[u8], len: usize, rounds: usize) {
    let (count, places) = ((64 << 20) / len as u64, memory.len() as u64 / 2048);
    let rows: Vec<u64> = (0..count).map(|i| random(i, 11) % places * 2048).collect();
    let mapped = Shape::mapped(rows.clone(), &[Run::new(0, len as u64)]).unwrap();
    let step = CHUNK / len;
    let list =
        |rows: &[u64]| Shape::list(&rows.iter().map(|row| Run::new(*row, len as u64)).collect::<Vec<_>>()).unwrap();
    let listed: Vec<Shape> = rows.chunks(step).map(list).collect();
    let (mut plain, mut out, mut listed_out) = (vec![0; CHUNK], vec![0; CHUNK], vec![0; CHUNK]);
    let mut sides = vec![side("memcpy of each", || {
        for tile in rows.chunks(step) {
            for (row, to) in tile.iter().zip(plain.chunks_exact_mut(len)) {
                to.copy_from_slice(&memory[*row as usize..*row as usize + len]);
            }
            black_box(&plain);
        }
    })];
    sides.push(side("mapped", || {
        for tile in mapped.messages().tiles(step as u64) {
            pack_with(PackKernel::best(), Layout::Messages, memory, &tile, &mut out).unwrap();
            black_box(&out);
        }
    }));
    sides.push(side("listed", || {
        for list in &listed {
            pack_with(PackKernel::best(), Layout::Messages, memory, &list.messages(), &mut listed_out).unwrap();
            black_box(&listed_out);
        }
    }));
    compare(&format!("rows of {len} B at random places (bytes packed)"), count * len as u64, rounds, sides);
}

/// Copies of a chunk within the cache, aligned and not: the C library's and ours.
fn misaligned(rounds: usize) {
    let source = vec![3u8; 1 << 18];
    for len in [256usize, 2048, 16 << 10] {
        for (from, to) in [(0usize, 0usize), (16, 0), (0, 16), (1, 0), (3, 5)] {
            let mut targets = [vec![0u8; (1 << 18) + 64], vec![0u8; (1 << 18) + 64]];
            let base = |v: &[u8]| v.as_ptr().align_offset(4096);
            let repeat = (1 << 18) / 2 / (len + 64);
            let [libc, ours] = &mut targets;
            let (skip_libc, skip_ours, skip_source) = (base(libc), base(ours), base(&source));
            let sides = vec![
                side("C library", || {
                    for turn in 0..64 {
                        for i in 0..repeat {
                            let (s, t) = (skip_source + from + i * len, skip_libc + to + (i + turn) % repeat * len);
                            copy(Kernel::Libc, &mut libc[t..t + len], &source[s..s + len]);
                        }
                    }
                    black_box(&libc);
                }),
                side("pack", || {
                    for turn in 0..64 {
                        for i in 0..repeat {
                            let shape = Shape::contiguous((skip_source + from + i * len) as u64, len as u64).unwrap();
                            let t = skip_ours + to + (i + turn) % repeat * len;
                            pack_with(
                                PackKernel::best(),
                                Layout::Messages,
                                &source,
                                &shape.messages(),
                                &mut ours[t..t + len],
                            )
                            .unwrap();
                        }
                    }
                    black_box(&ours);
                }),
            ];
            compare(&format!("{len} bytes from {from} to {to} off a page"), (64 * repeat * len) as u64, rounds, sides);
        }
    }
}

/// Values of every other place, by their width and by how far they and the packed bytes lie off a cache line: a line a width, GB packed
/// a second in the cache, and the slowest of the misaligned ones beside the aligned one.
fn widths(rounds: usize) {
    let memory = vec![3u8; IN_CACHE + 128];
    let mut out = vec![0u8; IN_CACHE + 128];
    let start = |v: &[u8]| v.as_ptr().align_offset(64);
    let (from, to) = (start(&memory), start(&out));
    println!("\nevery other value, in the cache, GB packed a second, by (source, target) off a cache line");
    print!("{:>8}", "width");
    OFF.iter().for_each(|off| print!("{:>10}", format!("{off:?}")));
    println!("{:>10}", "worst");
    for width in [1u64, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 100, 128, 256, 1000, 4096, 16384] {
        let count = (IN_CACHE as u64 / 2 / width).max(1);
        let rates = OFF.map(|(source, target)| {
            let at = from as u64 + source;
            let shape = Shape::strided(at, 2 * width, count, &[Run::new(0, width)]).unwrap();
            let messages = shape.messages();
            let mut rates: Vec<f64> = (0..=rounds)
                .map(|_| {
                    let begun = Instant::now();
                    for _ in 0..16 {
                        let place = &mut out[to + target as usize..][..(count * width) as usize];
                        pack_with(PackKernel::best(), Layout::Messages, &memory, &messages, place).unwrap();
                        black_box(&place);
                    }
                    (16 * count * width) as f64 / begun.elapsed().as_nanos() as f64
                })
                .collect();
            rates.remove(0);
            spread(rates).1
        });
        print!("{width:>8}");
        rates.iter().for_each(|rate| print!("{rate:>10.2}"));
        let worst = rates.iter().copied().fold(f64::MAX, f64::min) / rates[0];
        println!("{worst:>10.2}");
    }
}

/// Large packs into rings of several lengths, with stores that go through the cache and with those that do not; what is packed is read
/// afterwards, as whoever receives it does, or is not.
fn streaming(memory: &[u8], rounds: usize) {
    for ring_bytes in [1usize << 20, 16 << 20, 512 << 20] {
        for read in [false, true] {
            let mut rings = [vec![1u8; ring_bytes], vec![1u8; ring_bytes]];
            let [cached, streamed] = &mut rings;
            let each = |ring: &mut [u8], copy: &dyn Fn(&mut [u8], &[u8])| {
                for (i, chunk) in memory.chunks_exact(CHUNK).enumerate() {
                    let place = &mut ring[i * CHUNK % ring_bytes..][..CHUNK];
                    copy(place, chunk);
                    if read {
                        let words = place.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
                        black_box(words.fold(0, u64::wrapping_add));
                    }
                }
                black_box(&ring);
            };
            let pack = |place: &mut [u8], chunk: &[u8]| {
                let shape = Shape::contiguous(0, CHUNK as u64).unwrap();
                pack_with(PackKernel::best(), Layout::Messages, chunk, &shape.messages(), place).unwrap();
            };
            let sides = vec![
                side("pack", || each(cached, &pack)),
                side("streaming stores", || {
                    each(streamed, &|place: &mut [u8], chunk: &[u8]| copy(Kernel::Streaming, place, chunk));
                }),
            ];
            let how = if read { "and read" } else { "not read" };
            compare(
                &format!("{} MiB packed in pieces of 64 KiB into {} MiB, {how}", memory.len() >> 20, ring_bytes >> 20),
                memory.len() as u64,
                rounds,
                sides,
            );
        }
    }
}

/// Rows of five columns packed for eight destinations in turn, a stretch each, as a shared send packs them: for `cargo xtask instructions`.
#[inline(never)]
fn together(memory: &[u8], shapes: &[Shape], out: &mut [u8]) {
    let packer = |shape| Packer::new(memory, Shape::messages(shape)).unwrap().unwrap();
    let mut packers: Vec<Packer<'_>> = shapes.iter().map(packer).collect();
    while packers.iter().any(|packer| packer.left() > 0) {
        for packer in packers.iter_mut().filter(|packer| packer.left() > 0) {
            black_box(packer.stretch(out).unwrap());
        }
    }
}

fn count() {
    let rows = 1u64 << 14;
    let columns: Vec<Column> = (0..COLUMNS as u64).map(|i| Column::dense(i * rows * 4, 4)).collect();
    let to = |to: u64| Bitmap::of(rows, |row| random(row, 5) % 8 == to);
    let shapes: Vec<Shape> = (0..8).map(|i| Shape::bitmapped(&columns, &to(i), Order::Rows).unwrap()).collect();
    together(&vec![3; COLUMNS * rows as usize * 4], &shapes, &mut vec![0; 64 << 10]);
}

/// Off a cache line: what is packed, and where it is packed to.
const OFF: [(u64, u64); 6] = [(0, 0), (1, 0), (4, 0), (0, 1), (0, 4), (3, 5)];
const IN_CACHE: usize = 128 << 10;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_else(|| "all".into());
    let mib: usize = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(1024);
    let rounds: usize = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(9);
    if what == "count" {
        return count();
    }
    let all = what == "all";
    if all || what == "bitmapped" || what == "mapped" || what == "streaming" {
        let mut memory = vec![0u8; mib << 20];
        memory.iter_mut().step_by(64).enumerate().for_each(|(i, b)| *b = i as u8);
        if all || what == "bitmapped" {
            bitmapped(&memory, rounds);
        }
        if all || what == "mapped" {
            mapped(&memory, rounds);
        }
        if all || what == "streaming" {
            streaming(&memory, rounds);
        }
    }
    if all || what == "shuffle" {
        for rows in [64 << 10, 16 << 20] {
            shuffle(rows, rounds, true);
            shuffle(rows, rounds, false);
        }
    }
    if all || what == "deal" {
        for rows in [64 << 10, 1 << 20, 16 << 20] {
            deal(rows, rounds);
        }
    }
    if all || what == "misaligned" {
        misaligned(rounds);
    }
    if all || what == "widths" {
        widths(rounds);
    }
}
