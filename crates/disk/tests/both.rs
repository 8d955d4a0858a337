//! The same checks over each way that the system's disks have.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use overside_disk::{AlignedBuffer, BLOCK_BYTES, Completion, Disk, Open, Plain, Request, Uring, complete};

const DEADLINE: Duration = Duration::from_secs(30);

fn each(check: fn(&mut dyn Disk, &Path)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain");
    check(&mut Plain::open(&path).unwrap(), &path);
    let path = folder.path().join("uring");
    match Uring::open(&path) {
        Ok(mut disk) => check(&mut disk, &path),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => eprintln!("no io_uring here: {error}"),
        Err(error) => panic!("{error}"),
    }
}

fn filled(bytes: usize, with: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(bytes).unwrap();
    buffer.fill(with);
    buffer
}

fn all(disk: &mut dyn Disk, wanted: usize) -> Vec<Completion> {
    disk.submit().unwrap();
    let mut done = Vec::new();
    for _ in 0..1000 {
        disk.poll(&mut done).unwrap();
        if done.len() >= wanted {
            break;
        }
        disk.wait(Duration::from_millis(30)).unwrap();
    }
    assert_eq!(done.len(), wanted);
    done.sort_by_key(|completion| completion.token);
    done
}

fn read(disk: &mut dyn Disk, file: overside_disk::FileId, at: u64, bytes: usize) -> Vec<u8> {
    let buffer = AlignedBuffer::zeroed(bytes).unwrap();
    let (request, moved) = complete(disk, Request::Read { file, at, buffer }, DEADLINE).unwrap();
    let Request::Read { buffer, .. } = request else { panic!("another request came back") };
    buffer[..moved as usize].to_vec()
}

#[test]
fn what_is_written_is_read_back_whatever_the_order_of_completions() {
    each(|disk, _| {
        for direct in [true, false] {
            let name = format!("file-{direct}");
            let file = disk.open(&name, Open::Create { direct }).unwrap();
            complete(disk, Request::Allocate { file, length: 100 * BLOCK_BYTES as u64 }, DEADLINE).unwrap();
            assert_eq!(disk.length(file).unwrap(), 100 * BLOCK_BYTES as u64);
            // More than the ring has places for.
            for block in 0..100u64 {
                let buffer = filled(2 * BLOCK_BYTES, block as u8);
                let at = block * BLOCK_BYTES as u64;
                disk.push(block, Request::Write { file, at, buffer, length: BLOCK_BYTES, sync: block % 2 == 0 });
            }
            for (block, done) in all(disk, 100).into_iter().enumerate() {
                assert_eq!((done.token, done.result.unwrap()), (block as u64, BLOCK_BYTES as u64));
                let Request::Write { buffer, .. } = done.request else { panic!("another request came back") };
                assert_eq!(buffer.len(), 2 * BLOCK_BYTES, "the buffer comes back whole");
            }
            complete(disk, Request::Sync { file }, DEADLINE).unwrap();
            disk.close(file);
            let file = disk.open(&name, Open::Read { direct }).unwrap();
            let bytes = read(disk, file, 0, 200 * BLOCK_BYTES);
            assert_eq!(bytes.len(), 100 * BLOCK_BYTES, "a read ends where the file does");
            assert!(bytes.chunks(BLOCK_BYTES).enumerate().all(|(at, block)| block.iter().all(|b| *b == at as u8)));
            assert_eq!(read(disk, file, 200 * BLOCK_BYTES as u64, BLOCK_BYTES), []);
            disk.close(file);
        }
        let root = disk.open("", Open::Folder).unwrap();
        complete(disk, Request::Sync { file: root }, DEADLINE).unwrap();
    });
}

#[test]
fn a_write_into_the_page_cache_is_there_once_it_was_submitted() {
    each(|disk, path| {
        let file = disk.open("cached", Open::Create { direct: false }).unwrap();
        for at in 0..200u8 {
            let (length, offset) = (BLOCK_BYTES, u64::from(at) * BLOCK_BYTES as u64);
            disk.push(0, Request::Write { file, at: offset, buffer: filled(length, at + 1), length, sync: false });
            disk.submit().unwrap();
            assert!(fs::read(path.join("cached")).unwrap()[offset as usize..].iter().all(|byte| *byte == at + 1));
            assert_eq!(fs::metadata(path.join("cached")).unwrap().len(), offset + length as u64);
            all(disk, 1);
        }
    });
}

#[test]
fn a_file_that_is_no_multiple_of_a_block_long_is_read_to_its_end() {
    each(|disk, path| {
        fs::write(path.join("odd"), vec![7; 5000]).unwrap();
        for direct in [true, false] {
            let file = disk.open("odd", Open::Read { direct }).unwrap();
            assert_eq!(read(disk, file, 0, 3 * BLOCK_BYTES), vec![7; 5000]);
            disk.close(file);
        }
    });
}

#[test]
fn what_cannot_be_done_is_an_error_that_gives_the_request_back() {
    each(|disk, path| {
        fs::write(path.join("there"), [0; BLOCK_BYTES]).unwrap();
        let file = disk.open("there", Open::Read { direct: false }).unwrap();
        let write = |file| Request::Write { file, at: 0, buffer: filled(1, 1), length: BLOCK_BYTES, sync: true };
        disk.push(1, write(file));
        let gone = disk.open("there", Open::Write { direct: false }).unwrap();
        disk.close(gone);
        disk.push(2, write(gone));
        for done in all(disk, 2) {
            assert!(done.result.is_err(), "{}", done.token);
            assert!(matches!(done.request, Request::Write { .. }));
        }
        assert_eq!(fs::read(path.join("there")).unwrap(), [0; BLOCK_BYTES]);
    });
}

#[test]
fn names_lead_through_no_link_and_out_of_no_folder() {
    each(|disk, path| {
        disk.create_folder("log").unwrap();
        assert!(disk.create_folder("log").is_err());
        let file = disk.open("log/1", Open::Create { direct: true }).unwrap();
        assert!(disk.open("log/1", Open::Create { direct: true }).is_err(), "the name is taken");
        assert_eq!(fs::metadata(path.join("log/1")).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        disk.close(file);
        symlink(path.join("log"), path.join("link")).unwrap();
        symlink(path.join("log/1"), path.join("log/2")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        for name in ["link/1", "log/2", "../x", "log/../x", "", "log/", "/etc/passwd", "nothing/1", "log", "pipe"] {
            assert!(disk.open(name, Open::Read { direct: false }).is_err(), "{name}");
        }
        let names = |entries: Vec<overside_disk::Entry>| {
            entries.into_iter().map(|e| format!("{} {} {}", e.name, e.is_file, e.is_folder)).collect::<Vec<_>>()
        };
        assert_eq!(names(disk.list("log").unwrap()), ["1 true false", "2 false false"]);
        assert_eq!(names(disk.list("").unwrap()), ["link false false", "log false true", "pipe false false"]);
        disk.rename("log/1", "log/3").unwrap();
        disk.unlink("log/2").unwrap();
        assert_eq!(names(disk.list("log").unwrap()), ["3 true false"]);
        assert!(disk.list("link").is_err());
        assert!(disk.space().unwrap() > 0);
    });
}

#[test]
fn one_opening_has_the_lock_until_it_is_closed() {
    each(|disk, _| {
        let first = disk.open("LOCK", Open::Create { direct: false }).unwrap();
        assert!(disk.lock(first, Duration::ZERO).unwrap());
        let mut other = disk.another().unwrap();
        let second = other.open("LOCK", Open::Write { direct: false }).unwrap();
        assert!(!other.lock(second, Duration::from_millis(30)).unwrap());
        disk.close(first);
        assert!(other.lock(second, Duration::ZERO).unwrap());
    });
}

/// Whose a file is, and who may write it, is told; a link has no rights of its own.
#[test]
fn what_others_could_write_is_told() {
    each(|disk, path| {
        let file = disk.open("file", Open::Create { direct: false }).unwrap();
        disk.close(file);
        disk.create_folder("log").unwrap();
        symlink("file", path.join("link")).unwrap();
        let mut private = || disk.list("").unwrap().into_iter().map(|entry| entry.is_private).collect::<Vec<_>>();
        assert_eq!(private(), [true, true, true]);
        for (name, mode, is) in [("file", 0o606, false), ("file", 0o644, true), ("log", 0o720, false)] {
            fs::set_permissions(path.join(name), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(private(), [name != "file" || is, true, name != "log" || is], "{name} {mode:o}");
        }
    });
}

#[test]
fn a_folder_that_others_could_change_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path| overside_disk::open(path).unwrap_err().to_string();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(refused(&open).contains("chmod go-w"));
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(refused(&file).contains("is no folder"));
    assert!(refused(&folder.path().join("no/such")).contains("parent exists"));
    symlink("nowhere", folder.path().join("link")).unwrap();
    assert!(refused(&folder.path().join("link")).contains("link to nothing"));
    let disk = overside_disk::open(&folder.path().join("new")).unwrap();
    let way = disk.way().to_string();
    assert!(way.starts_with(if disk.way().uring { "io_uring, " } else { "pwritev2, " }), "{way}");
}

/// A file system of 1 MiB, in a mount namespace of this thread's own.
#[test]
fn a_full_disk_is_an_error_and_room_again_is_room() {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    // SAFETY: [test] only this thread's view of mounts is parted; no descriptors are.
    let mounted = unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
        .and_then(|()| mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC))
        .and_then(|()| mount("small", &small, "tmpfs", MountFlags::empty(), Some(c"size=1m,mode=700")));
    if let Err(error) = mounted {
        eprintln!("skipped: no mount namespace here ({error})");
        return;
    }
    let disks =
        [Uring::open(&small).ok().map(|d| Box::new(d) as Box<dyn Disk>), Some(Box::new(Plain::open(&small).unwrap()))];
    for mut disk in disks.into_iter().flatten() {
        let file = disk.open("big", Open::Create { direct: true }).unwrap();
        let error = complete(&mut *disk, Request::Allocate { file, length: 2 << 20 }, DEADLINE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let write = Request::Write { file, at: 0, buffer: filled(2 << 20, 1), length: 2 << 20, sync: true };
        let error = complete(&mut *disk, write, DEADLINE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "a short write is continued until the error shows");
        disk.close(file);
        disk.unlink("big").unwrap();
        let file = disk.open("small", Open::Create { direct: true }).unwrap();
        complete(&mut *disk, Request::Allocate { file, length: 1 << 19 }, DEADLINE).unwrap();
        disk.close(file);
        disk.unlink("small").unwrap();
    }
    rustix::mount::unmount(&small, rustix::mount::UnmountFlags::empty()).unwrap();
}
