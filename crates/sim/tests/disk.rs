//! The simulated disk: what it keeps over a power loss, over a kill, and after failures.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Disk, FileId, Open, Request, complete};
use overside_sim::{Drive, DriveOptions, World};

const DEADLINE: Duration = Duration::from_secs(60);
const DIRECT: Open = Open::Create { direct: true };

/// Runs `main` with a disk in the worlds of many seeds.
fn seeds<T: Send + 'static>(options: DriveOptions, main: fn(&World, &Drive) -> T) -> Vec<T> {
    let run = |seed| {
        let ended = World::run(seed, move |world| main(world, &Drive::new(world, options)));
        ended.unwrap_or_else(|failed| panic!("seed {seed}: {failed}")).value
    };
    (0..60).map(run).collect()
}

fn write(disk: &mut dyn Disk, file: FileId, at: u64, byte: u8, sync: bool) -> io::Result<u64> {
    let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES).unwrap();
    buffer.fill(byte);
    complete(disk, Request::Write { file, at, buffer, length: BLOCK_BYTES, sync }, DEADLINE).map(|(_, bytes)| bytes)
}

fn sync(disk: &mut dyn Disk, file: FileId) -> io::Result<u64> {
    complete(disk, Request::Sync { file }, DEADLINE).map(|(_, bytes)| bytes)
}

fn sync_root(disk: &mut dyn Disk) {
    let root = disk.open("", Open::Folder).unwrap();
    sync(disk, root).unwrap();
}

/// The distinct bytes of each sector.
fn sectors(drive: &Drive, name: &str) -> Vec<u8> {
    let bytes = drive.read(name);
    assert!(bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])), "torn within a sector");
    bytes.chunks(512).map(|sector| sector[0]).collect()
}

#[test]
fn what_was_synced_stays_and_what_was_not_is_any_of_it() {
    let left = seeds(DriveOptions::default(), |world, drive| {
        let process = world.process("writer");
        let mut disk = drive.open(&process);
        let file = disk.open("a", DIRECT).unwrap();
        write(&mut *disk, file, 0, 1, false).unwrap();
        sync(&mut *disk, file).unwrap();
        sync_root(&mut *disk);
        write(&mut *disk, file, 0, 2, false).unwrap();
        write(&mut *disk, file, 0, 3, false).unwrap();
        write(&mut *disk, file, 4096, 4, true).unwrap();
        assert_eq!(sectors(drive, "a")[..9], [3, 3, 3, 3, 3, 3, 3, 3, 4]);
        process.kill();
        drive.lose_power();
        sectors(drive, "a")
    });
    assert!(left.iter().all(|left| left.len() == 16 && left[8..] == [4; 8]), "written through stays");
    let first: BTreeSet<u8> = left.iter().map(|left| left[0]).collect();
    assert_eq!(first, BTreeSet::from([1, 2, 3]));
    assert!(left.iter().any(|left| left[..8].iter().collect::<BTreeSet<_>>().len() == 3), "torn and reordered");
}

#[test]
fn a_name_needs_its_folders_sync() {
    let left = seeds(DriveOptions::default(), |world, drive| {
        let process = world.process("writer");
        let mut disk = drive.open(&process);
        let file = disk.open("old", DIRECT).unwrap();
        write(&mut *disk, file, 0, 1, true).unwrap();
        sync_root(&mut *disk);
        disk.rename("old", "new").unwrap();
        let file = disk.open("other", DIRECT).unwrap();
        write(&mut *disk, file, 0, 2, true).unwrap();
        process.kill();
        drive.lose_power();
        drive.files().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    });
    let ways: BTreeSet<Vec<String>> = left.into_iter().collect();
    let expected = [&["new"][..], &["new", "other"], &["old"], &["old", "other"]];
    assert_eq!(ways.into_iter().collect::<Vec<_>>(), expected);
}

/// The kernel goes on with what a killed process has submitted, and its lock lasts until that has landed.
#[test]
fn a_kill_leaves_what_the_kernel_had() {
    let options = DriveOptions { latency_max: Duration::from_millis(50), ..DriveOptions::default() };
    let left = seeds(options, |world, drive| {
        let process = world.process("writer");
        let mut disk = drive.open(&process);
        let file = disk.open("a", DIRECT).unwrap();
        assert!(disk.lock(file, Duration::ZERO).unwrap());
        let (killed, written) = (process.clone(), drive.clone());
        let writer = process.spawn("writer", move || {
            let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES).unwrap();
            buffer.fill(7);
            disk.push(1, Request::Write { file, at: 0, buffer, length: BLOCK_BYTES, sync: false });
            disk.submit().unwrap();
            drop(written);
            killed.kill();
            drop(disk);
        });
        assert!(writer.join().is_err());
        let mut disk = drive.open(&world.process("next"));
        let file = disk.open("a", Open::Read { direct: false }).unwrap();
        let free_at_once = disk.lock(file, Duration::ZERO).unwrap();
        assert!(free_at_once || disk.lock(file, Duration::from_secs(1)).unwrap());
        (free_at_once, drive.read("a"))
    });
    assert!(left.iter().all(|(_, bytes)| *bytes == [7; BLOCK_BYTES]));
    assert!(left.iter().any(|(free_at_once, _)| !free_at_once));
}

/// After a sync that failed the next one succeeds, and what the first one should have saved is gone.
#[test]
fn a_second_sync_after_a_failed_one_says_nothing() {
    let left = seeds(DriveOptions::default(), |world, drive| {
        let process = world.process("writer");
        let mut disk = drive.open(&process);
        let file = disk.open("a", DIRECT).unwrap();
        sync(&mut *disk, file).unwrap();
        sync_root(&mut *disk);
        write(&mut *disk, file, 0, 1, false).unwrap();
        drive.set(DriveOptions { fail_one_in: 1, ..DriveOptions::default() });
        sync(&mut *disk, file).unwrap_err();
        drive.set(DriveOptions::default());
        sync(&mut *disk, file).unwrap();
        assert_eq!(sectors(drive, "a"), [1; 8], "the kernel shows it");
        process.kill();
        drive.lose_power();
        sectors(drive, "a")
    });
    assert!(left.iter().any(|left| left.contains(&0)) && left.iter().any(|left| left.contains(&1)));
}

#[test]
fn a_failed_write_leaves_anything() {
    let options = DriveOptions { fail_one_in: 1, ..DriveOptions::default() };
    let left = seeds(options, |world, drive| {
        let mut disk = drive.open(&world.process("writer"));
        let file = disk.open("a", DIRECT).unwrap();
        write(&mut *disk, file, 0, 1, true).unwrap_err();
        drive.read("a")
    });
    let distinct: BTreeSet<Vec<u8>> = left.into_iter().collect();
    assert!(distinct.len() > 20);
}

#[test]
fn a_full_disk_refuses_and_takes_again() {
    let options = DriveOptions { capacity: 8192, ..DriveOptions::default() };
    seeds(options, |world, drive| {
        let mut disk = drive.open(&world.process("writer"));
        let file = disk.open("a", DIRECT).unwrap();
        complete(&mut *disk, Request::Allocate { file, length: 8192 }, DEADLINE).unwrap();
        let error = write(&mut *disk, file, 8192, 1, false).unwrap_err();
        assert_eq!((error.kind(), disk.space().unwrap()), (io::ErrorKind::StorageFull, 0));
        write(&mut *disk, file, 4096, 1, true).expect("what was allocated can be written");
        disk.unlink("a").unwrap();
        disk.close(file);
        sync_root(&mut *disk);
        let file = disk.open("b", DIRECT).unwrap();
        write(&mut *disk, file, 0, 1, false).unwrap();
    });
}

/// What was planned for an operation happens there, on whatever thread that is.
#[test]
fn a_process_is_killed_at_the_operation_that_was_planned() {
    let reached = |number: u64| {
        let ended = World::run(number, move |world| {
            let drive = Drive::new(world, DriveOptions::default());
            let process = world.process("writer");
            let mut disk = drive.open(&process);
            let killed = process.clone();
            drive.at_operation(number, move || killed.kill());
            let writer = process.spawn("writer", move || {
                let file = disk.open("a", DIRECT).unwrap();
                for block in 0..4 {
                    write(&mut *disk, file, block * 4096, 1, false).unwrap();
                }
            });
            (writer.join().is_err(), drive.files().first().map_or(0, |(_, len)| *len))
        });
        ended.unwrap().value
    };
    // One operation opens; each write is submitted and completes.
    assert_eq!((1..=10).map(|at| reached(at).0).collect::<Vec<_>>(), [[true; 9].as_slice(), &[false]].concat());
    let lengths: Vec<u64> = (1..=9).map(|at| reached(at).1).collect();
    assert!(lengths.is_sorted() && lengths[0] == 0 && lengths[8] == 4 * 4096, "{lengths:?}");
}
