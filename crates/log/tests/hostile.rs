//! A directory in which something is amiss: it is refused, or what is read is what was written.

mod life;
mod memory;

use std::sync::{Arc, Mutex};

use life::{Life, State, Written, options, read, recover};
use memory::Files;
use overside_disk::Disk;
use overside_log::{Durability, Mode, Options, Refusal};

const SYNC: Durability = Durability::Sync;

/// A directory that a server left cleanly: a checkpoint, and segments before and after it.
fn left() -> (Arc<Mutex<Files>>, State) {
    let files = Files::new(3);
    let mut life = recover(&files, options(SYNC)).unwrap().life;
    let mut written = Written::default();
    puts(&mut life, &mut written, 30);
    assert!(life.checkpoint(&mut written, &[(1, 5000), (5, 6000)]));
    puts(&mut life, &mut written, 30);
    close(&mut life);
    (files, life.state.clone())
}

fn puts(life: &mut Life, written: &mut Written, count: usize) {
    for at in 0..count {
        let bytes = [10, 3000, 700, 5000, 0][at % 5];
        assert!(life.put(written, (at % 8) as u8, (at % 7 > 0).then_some(bytes)));
        (0..4).for_each(|_| _ = life.step(life.next));
    }
}

fn close(life: &mut Life) {
    life.log.close();
    for _ in 0..200 {
        life.step(life.next);
        if life.log.is_closed() {
            return;
        }
    }
    panic!("not closed");
}

fn last_segment(files: &Arc<Mutex<Files>>) -> String {
    let names = files.lock().unwrap().contents().into_iter().map(|(name, _)| name);
    names.filter(|name| name.starts_with("log/") && !name.ends_with(".spare")).max().unwrap()
}

fn found(files: &Arc<Mutex<Files>>) -> Result<State, Refusal> {
    read(files, options(SYNC), Mode::Inspect).map(|(_, state, _)| state)
}

/// Refused in one line that names a file, or all of it is there.
fn is_whole_or_refused(files: &Arc<Mutex<Files>>, whole: &State, what: &str) -> bool {
    match found(files) {
        Ok(state) => {
            assert_eq!(state, *whole, "{what}");
            true
        }
        Err(refusal) => {
            let text = refusal.to_string();
            assert!(text.contains("memory") && text.contains("; ") && !text.contains('\n'), "{what}: {text}");
            false
        }
    }
}

/// Each header byte by byte, of all else every so often. A group's last statement says that all before it was on the disk, so nothing
/// is lost unnoticed but that statement itself, which has no records.
#[test]
fn a_changed_byte_is_refused_or_changes_nothing() {
    let (files, whole) = left();
    assert_eq!(found(&files.lock().unwrap().fork()).unwrap(), whole);
    let contents = files.lock().unwrap().contents();
    let (mut sound, mut refused) = (0, 0);
    for (name, bytes) in contents.iter().filter(|(name, _)| !name.ends_with(".spare")) {
        for at in (0..bytes.len()).filter(|at| at % 4096 < 96 && at % 4096 % 3 == 0 || at % 509 == 0) {
            let changed = files.lock().unwrap().fork();
            changed.lock().unwrap().alter(name, |bytes| bytes[at] ^= 1 << (at % 8));
            match is_whole_or_refused(&changed, &whole, &format!("{name} at {at}")) {
                true => sound += 1,
                false => refused += 1,
            }
        }
    }
    assert!(sound > 100 && refused > 1000, "{sound} were sound, {refused} refused");
}

#[test]
fn files_that_are_missing_cut_off_or_swapped_are_refused_or_change_nothing() {
    let (files, whole) = left();
    let contents = files.lock().unwrap().contents();
    let mut refused = Vec::new();
    for (name, bytes) in &contents {
        let removed = files.lock().unwrap().fork();
        removed.lock().unwrap().remove(name);
        if !is_whole_or_refused(&removed, &whole, &format!("{name} is missing")) {
            refused.push(name.clone());
        }
        for end in (0..bytes.len()).step_by(4096).chain((0..bytes.len()).step_by(3333)) {
            let cut = files.lock().unwrap().fork();
            cut.lock().unwrap().alter(name, |bytes| bytes.truncate(end));
            is_whole_or_refused(&cut, &whole, &format!("{name} ends at {end}"));
        }
        for (other, _) in contents.iter().filter(|(other, _)| other < name) {
            let swapped = files.lock().unwrap().fork();
            swapped.lock().unwrap().swap(name, other);
            is_whole_or_refused(&swapped, &whole, &format!("{name} and {other} are swapped"));
        }
    }
    // All but the lock, spares and segments that the checkpoint replaced. The last segment is named by a mark in the one before.
    assert!(refused.len() >= 6 && refused.iter().any(|name| name.ends_with(".manifest")), "{refused:?}");
    assert!(refused.contains(&last_segment(&files)), "{refused:?}");
}

#[test]
fn files_of_another_directory_and_of_another_version_are_refused() {
    let (files, _) = left();
    let contents = files.lock().unwrap().contents();
    for (name, bytes) in contents.iter().filter(|(name, _)| name.starts_with("log/") || name.ends_with(".manifest")) {
        if name.ends_with(".spare") {
            continue;
        }
        let id_at = 16;
        let mut foreign = bytes.clone();
        foreign[id_at] ^= 1;
        // Sound but for the id.
        let block = if name.ends_with(".manifest") { foreign.len() } else { 4096 };
        let sum = crc32c::crc32c(&foreign[..block - 4]).to_le_bytes();
        foreign[block - 4..block].copy_from_slice(&sum);
        let changed = files.lock().unwrap().fork();
        changed.lock().unwrap().alter(name, |bytes| *bytes = foreign);
        assert!(matches!(found(&changed), Err(Refusal::Foreign { .. })), "{name}");
        let mut newer = bytes.clone();
        newer[8] = 2;
        let sum = crc32c::crc32c(&newer[..block - 4]).to_le_bytes();
        newer[block - 4..block].copy_from_slice(&sum);
        let changed = files.lock().unwrap().fork();
        changed.lock().unwrap().alter(name, |bytes| *bytes = newer);
        assert!(matches!(found(&changed), Err(Refusal::Version { found: 2, .. })), "{name}");
    }
}

#[test]
fn strange_folders_are_refused_and_left_alone() {
    let refused = |files: &Arc<Mutex<Files>>, mode| {
        let before = files.lock().unwrap().contents();
        let refusal = read(files, options(SYNC), mode).map(|_| ()).unwrap_err();
        assert_eq!(files.lock().unwrap().contents(), before);
        refusal.to_string()
    };
    let files = Files::new(1);
    assert!(refused(&files, Mode::Inspect).contains("no IDENTITY"));
    let (files, _) = left();
    files.lock().unwrap().remove("IDENTITY");
    assert!(refused(&files, Mode::Serve).contains("name an empty folder"));
    let (files, _) = left();
    let life = recover(&files, options(SYNC)).unwrap();
    assert!(refused(&files, Mode::Serve).contains("in use by another server"));
    drop(life);
    let wrong = Options { segment_bytes: 5000, ..options(SYNC) };
    assert!(read(&files, wrong, Mode::Serve).is_err());
}

/// The write of a killed server has not landed.
#[test]
fn a_file_that_is_still_written_is_waited_for() {
    use overside_disk::{Disk, Open};
    let (files, _) = left();
    let names = files.lock().unwrap().contents().into_iter().map(|(name, _)| name);
    let pages = names.filter(|name| name.ends_with(".pages")).max().unwrap();
    for name in [last_segment(&files), pages] {
        let mut killed = memory::MemoryDisk::new(&files);
        let file = killed.open(&name, Open::Write { direct: true }).unwrap();
        assert!(killed.lock(file, std::time::Duration::ZERO).unwrap());
        let refused = found(&files).map(|_| ()).unwrap_err();
        assert!(matches!(&refused, Refusal::StillWritten { file } if file.ends_with(&name)), "{name}: {refused}");
        killed.close(file);
        assert!(found(&files).is_ok(), "{name}");
    }
}

/// From whatever is sound a server starts, and what it writes then is there at the next start, which needs no salvage.
#[test]
fn salvage_starts_from_what_is_sound_and_deletes_nothing() {
    let (files, whole) = left();
    let contents = files.lock().unwrap().contents();
    let (mut salvaged, mut again) = (0, 0);
    for (name, bytes) in contents.iter().filter(|(name, _)| name.starts_with("log/") || name.ends_with(".manifest")) {
        for at in (0..bytes.len()).step_by(4096).map(|at| at + 30) {
            let changed = files.lock().unwrap().fork();
            changed.lock().unwrap().alter(name, |bytes| bytes[at] ^= 4);
            if found(&changed).is_ok() {
                continue;
            }
            let before = changed.lock().unwrap().contents();
            let (directory, mut state, _) = read(&changed, options(SYNC), Mode::Salvage).unwrap();
            assert!(!directory.losses().is_empty(), "{name} at {at}");
            assert!(state.iter().all(|(key, row)| whole.get(key).is_some_and(|whole| whole.0 >= row.0)));
            let (mut log, appender) = directory.start().unwrap();
            let checkpoints = log.checkpoints().unwrap();
            let next = 200;
            let mut life = Life::new(log, appender, checkpoints, state.clone(), next);
            let mut written = Written::default();
            puts(&mut life, &mut written, 12);
            close(&mut life);
            state = life.state.clone();
            drop(life);
            assert_eq!(found(&changed).unwrap(), state, "{name} at {at}");
            let after = changed.lock().unwrap().contents();
            let kept = |bytes: &[u8]| after.iter().any(|(_, after)| after == bytes);
            // But for the mark that says where the log goes on, and recycled spares.
            for (name, bytes) in before.iter().filter(|(name, _)| !name.ends_with(".spare")) {
                let same_name = after.iter().any(|(after, _)| after == name);
                assert!(kept(bytes) || same_name, "{name} is gone");
            }
            // As a server leaves it that is killed before it has put all aside.
            let aside = after.iter().filter_map(|(name, _)| name.strip_prefix("salvaged/"));
            for name in aside.filter(|name| name.ends_with(".pages")) {
                let mut disk = memory::MemoryDisk::new(&changed);
                disk.rename(&format!("salvaged/{name}"), &format!("checkpoint/{name}")).unwrap();
                again += 1;
            }
            let (directory, _, _) = read(&changed, options(SYNC), Mode::Serve).unwrap();
            let (mut log, _) = directory.start().unwrap();
            drop(log.checkpoints().unwrap());
            let later = changed.lock().unwrap().contents();
            for (name, _) in after.iter().filter(|(name, _)| name.starts_with("salvaged/")) {
                assert!(later.iter().any(|(later, _)| later == name), "{name} is gone at the next start");
            }
            salvaged += 1;
        }
    }
    assert!(salvaged > 20 && again > 0, "{salvaged}, {again}");
}

#[test]
fn a_check_lists_what_is_not_sound_and_changes_nothing() {
    let (files, _) = left();
    let check = |files: &Arc<Mutex<Files>>| {
        let before = files.lock().unwrap().contents();
        let checked = overside_log::check(memory::MemoryDisk::new(files), options(SYNC)).unwrap();
        assert_eq!(files.lock().unwrap().contents(), before);
        checked
    };
    let sound = check(&files);
    assert_eq!((sound.faults.len(), sound.tables, sound.rows, sound.cut_bytes), (0, 1, 8, 0));
    assert!(sound.records >= 30);
    let pages = files.lock().unwrap().contents().into_iter().map(|(name, _)| name);
    let pages: Vec<_> = pages.filter(|name| name.ends_with(".pages")).collect();
    files.lock().unwrap().alter(&pages[0], |bytes| bytes[60] ^= 1);
    // Each page is sound, and they are not in their order.
    let (swapped, _) = left();
    swapped.lock().unwrap().alter(&pages[0], |bytes| {
        let first = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        let second = u32::from_le_bytes(bytes[first + 12..first + 16].try_into().unwrap()) as usize;
        bytes[..first + second].rotate_left(first);
    });
    let faults = check(&swapped).faults;
    assert!(faults.len() == 1 && faults[0].contains("not those that were written"), "{faults:?}");
    let last = last_segment(&files);
    files.lock().unwrap().alter(&last, |bytes| bytes[4096] ^= 1);
    let faults = check(&files).faults;
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults[0].contains(".pages is damaged at byte ") && faults[0].contains("rows of a table are lost"),
        "{}",
        faults[0]
    );
    assert!(faults[1].contains("bytes of changes are lost"), "{}", faults[1]);
}
