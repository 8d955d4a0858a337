//! Volumes of a folder: made, opened, deleted, altered, and what is left of them when that fails.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use super::making::make_member;
use super::*;
use overside_memory::{Bytes, Segment};
use overside_verbs::SystemClock;
use overside_volume::{LostRange, Work, complete as carry_out};

fn creation(folder: &Path, layout: LayoutKind, count: usize) -> Creation {
    let members = (0..count).map(|member| MemberSpec::File(folder.join(format!("m{member}.img")))).collect();
    Creation {
        name: "pg".into(),
        bytes: 3 << 20,
        members,
        layout,
        stripe: 64 << 10,
        id: *b"0123456789abcdef",
        files: None,
    }
}

fn clock() -> Arc<dyn Clock> {
    SystemClock::handle()
}

fn buffer() -> overside_memory::Buffer {
    Segment::private(8192).unwrap().carve(8192).pop().unwrap()
}

#[test]
fn a_member_that_is_named_twice_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let mut twice = creation(folder.path(), LayoutKind::Mirror, 2);
    twice.members[1] = twice.members[0].clone();
    let refused = home.create(&twice, &clock()).unwrap_err().to_string();
    assert!(refused.contains("m0.img: is named twice"), "{refused}");
    let memory = Creation { members: vec![MemberSpec::Memory(None); 2], layout: LayoutKind::Concat, ..twice };
    home.create(&memory, &clock()).unwrap();
}

#[test]
fn a_volume_of_files_is_one_whenever_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let (home, clock) = (Home::open(&folder.path().join("home")).unwrap(), SystemClock::handle());
    let creation = Creation { files: Some(Preset::Sqlite), ..creation(folder.path(), LayoutKind::Mirror, 2) };
    let small = Creation { bytes: files::BYTES_MIN - 1, ..creation.clone() };
    assert!(matches!(home.create(&small, &clock), Err(HomeError::Member { .. })));
    home.create(&creation, &clock).unwrap();
    for _ in 0..2 {
        let opened = home.open_volume("pg", &clock).unwrap();
        assert_eq!(opened.about.files, Some(Preset::Sqlite));
        crate::files::Files::open(opened.device, Preset::Sqlite, &*clock).unwrap();
    }
}

#[test]
fn what_was_written_is_there_when_it_is_opened_again() {
    for (layout, count) in
        [(LayoutKind::Concat, 1), (LayoutKind::Stripes, 3), (LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)]
    {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        assert!(matches!(home.device("pg", &clock()), Err(HomeError::Absent(_))));
        home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
        assert_eq!(home.list().unwrap(), ["pg"]);
        assert!(matches!(home.create(&creation(folder.path(), layout, count), &clock()), Err(HomeError::Exists(_))));
        let mut device = home.device("pg", &clock()).unwrap();
        let bytes = device.geometry().bytes;
        assert!(bytes >= 3 << 20, "{bytes}");
        let mut written = buffer();
        written.fill(7);
        let write = Work::Write { at: bytes - 8192, from: Bytes::from(written), fua: true };
        assert_eq!(carry_out(&mut *device, &SystemClock, write, DISK_PATIENCE).1, Ok(()));
        drop(device);
        let mut device = home.device("pg", &clock()).unwrap();
        let read = Work::Read { at: bytes - 8192, length: 8192, into: buffer() };
        let (work, result) = carry_out(&mut *device, &SystemClock, read, DISK_PATIENCE);
        assert_eq!(result, Ok(()));
        assert!(matches!(work, Some(Work::Read { into, .. }) if into.iter().all(|byte| *byte == 7)));
    }
}

#[test]
fn half_a_create_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let mut three = creation(folder.path(), LayoutKind::Concat, 3);
    fs::write(folder.path().join("m2.img"), "somebody's").unwrap();
    assert!(matches!(home.create(&three, &clock()), Err(HomeError::Member { .. })));
    assert!(!folder.path().join("m0.img").exists() && !folder.path().join("m1.img").exists());
    assert_eq!(fs::read(folder.path().join("m2.img")).unwrap(), b"somebody's");
    assert_eq!(home.list().unwrap(), [""; 0]);
    // A stripe that is none is found once the members are there.
    (three.layout, three.stripe) = (LayoutKind::Stripes, 1000);
    three.members.pop();
    assert!(matches!(home.create(&three, &clock()), Err(HomeError::Array(_))));
    assert!(!folder.path().join("m0.img").exists());
    for name in ["", "../x", ".x", "a b", &"x".repeat(65)] {
        let named = Creation { name: name.to_owned(), ..three.clone() };
        assert!(matches!(home.create(&named, &clock()), Err(HomeError::Name(_))), "{name}");
    }
}

#[test]
fn what_is_deleted_is_gone_and_what_is_not_the_volumes_stays() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let [first, second] = ["m0.img", "m1.img"].map(|name| folder.path().join(name));
    home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
    let open = home.open_volume("pg", &clock()).unwrap();
    assert_eq!((open.about.layout.as_str(), open.about.members.len()), ("raid1", 2));
    assert!(matches!(home.delete("pg", &clock()), Err(HomeError::InUse(_))));
    assert!(first.exists() && home.list().unwrap() == ["pg"]);
    drop(open);
    fs::write(&second, b"somebody's").unwrap();
    let deleted = home.delete("pg", &clock()).unwrap();
    assert_eq!((&deleted.gone, deleted.left.len()), (&vec![first.clone()], 1));
    assert!(!first.exists() && second.exists());
    assert!(matches!(home.delete("pg", &clock()), Err(HomeError::Absent(_))));
    // A member whose disk is gone does not keep the rest.
    fs::remove_file(&second).unwrap();
    home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
    fs::remove_file(&first).unwrap();
    assert_eq!(home.delete("pg", &clock()).unwrap().gone, [second]);
}

#[test]
fn who_wrote_a_volume_last_is_known_in_the_next_life() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    home.create(&creation(folder.path(), LayoutKind::Concat, 1), &clock()).unwrap();
    let writer = || home.open_volume("pg", &clock()).unwrap().writer;
    assert!(!writer().is_replaced(7), "of a new volume nothing is known");
    assert!(writer().note(LastWriter { session: 7, returns: true }));
    assert!(writer().goes_on(7) && !writer().is_replaced(7) && writer().is_replaced(8));
    assert!(writer().note(LastWriter { session: 7, returns: false }));
    assert!(!writer().goes_on(7) && writer().is_replaced(7));
    home.delete("pg", &clock()).unwrap();
    assert!(!home.folder().join("pg.writer").exists());
}

#[test]
fn members_from_before_there_were_checksums_are_used_without() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
    let path = folder.path().join("m1.img");
    let with = repair::superblock(&path).unwrap();
    let before = Superblock { sums_bytes: 0, ..with };
    fs::remove_file(&path).unwrap();
    make_member(&path, &before).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), DATA_START + before.member_bytes);
    assert_eq!(home.open_volume("pg", &clock()).unwrap().about.sums, [true, false]);
    write(&home, 9);
    fs::remove_file(folder.path().join("m0.img")).unwrap();
    assert_eq!(content(&home), 9);
    // The next member is as the one that it comes from.
    home.repair("pg", &clock(), |_, _| {}).unwrap();
    assert_eq!(home.open_volume("pg", &clock()).unwrap().about.sums, [false, false]);
}

/// The byte that all of the volume's first block has.
fn content(home: &Home) -> u8 {
    let mut device = home.device("pg", &clock()).unwrap();
    content_of(&mut *device)
}

fn content_of(device: &mut dyn Device) -> u8 {
    let mut found = std::collections::BTreeSet::new();
    // Each side in turn.
    for _ in 0..4 {
        let read = Work::Read { at: 0, length: 8192, into: buffer() };
        let (work, result) = carry_out(device, &SystemClock, read, DISK_PATIENCE);
        assert_eq!(result, Ok(()));
        let Some(Work::Read { into, .. }) = work else { panic!("another request came back") };
        found.extend(into.iter().copied());
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.pop_first().unwrap()
}

fn write(home: &Home, byte: u8) {
    let mut bytes = buffer();
    bytes.fill(byte);
    let write = Work::Write { at: 0, from: Bytes::from(bytes), fua: true };
    let mut device = home.device("pg", &clock()).unwrap();
    assert_eq!(carry_out(&mut *device, &SystemClock, write, DISK_PATIENCE).1, Ok(()));
    // As a node ends.
    let length = device.geometry().bytes;
    let all = Work::Hint { at: 0, length, hint: overside_volume::Hint::DontNeed };
    assert_eq!(carry_out(&mut *device, &SystemClock, all, DISK_PATIENCE).1, Ok(()));
}

#[test]
fn a_member_that_missed_writes_is_not_read_until_it_has_them() {
    for (layout, count) in [(LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
        let [first, second, away] = ["m0.img", "m1.img", "away"].map(|name| folder.path().join(name));
        write(&home, 1);
        fs::rename(&first, &away).unwrap();
        let opened = home.open_volume("pg", &clock()).unwrap();
        assert_eq!((opened.absent.len(), opened.about.health.state(0)), (1, overside_volume::MemberState::Stale));
        drop(opened);
        write(&home, 2);
        assert_eq!(content(&home), 2);
        fs::rename(&away, &first).unwrap();
        // It is back, and what it has is old.
        let description = home.description("pg").unwrap();
        assert_eq!(description.stale, [0].into());
        fs::rename(&second, &away).unwrap();
        assert!(home.device("pg", &clock()).is_err(), "it alone is no volume, either");
        let refused = home.repair("pg", &clock(), |_, _| {}).unwrap_err().to_string();
        assert!(refused.contains("m1.img"), "{refused}");
        fs::rename(&away, &second).unwrap();
        let open = home.device("pg", &clock()).unwrap();
        assert!(matches!(home.repair("pg", &clock(), |_, _| {}), Err(HomeError::InUse(_))));
        drop(open);
        let mended = home.repair("pg", &clock(), |_, _| {}).unwrap();
        assert_eq!(mended, std::slice::from_ref(&first));
        assert!(home.repair("pg", &clock(), |_, _| {}).unwrap().is_empty());
        // Now the other one may go, for good.
        fs::remove_file(&second).unwrap();
        assert_eq!(content(&home), 2);
        write(&home, 3);
        assert_eq!(home.repair("pg", &clock(), |_, _| {}).unwrap(), [second]);
        assert!(home.open_volume("pg", &clock()).unwrap().absent.is_empty());
        fs::remove_file(&first).unwrap();
        assert_eq!(content(&home), 3);
    }
}

/// It is served meanwhile.
#[test]
fn a_member_that_is_back_gets_what_it_has_missed_while_the_volume_is_used() {
    for (layout, count) in [(LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
        let [first, second, away] = ["m0.img", "m1.img", "away"].map(|name| folder.path().join(name));
        fs::rename(&first, &away).unwrap();
        write(&home, 5);
        fs::rename(&away, &first).unwrap();
        let Opened { mut device, about, .. } = home.open_volume("pg", &clock()).unwrap();
        let until = std::time::Instant::now() + DISK_PATIENCE;
        while about.health.state(0) == overside_volume::MemberState::Stale {
            assert!(std::time::Instant::now() < until, "it is not resynced");
            assert_eq!(content_of(&mut *device), 5);
        }
        drop(device);
        assert!(home.description("pg").unwrap().stale.is_empty());
        fs::remove_file(&second).unwrap();
        assert_eq!(content(&home), 5);
    }
}

#[test]
fn what_no_member_has_right_is_known_in_the_next_life() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
    let lost = BTreeSet::from([LostRange { member: 1, at: 16384, length: 4096, kept: false }]);
    let description = Description { lost, ..home.description("pg").unwrap() };
    description.publish(&home.path("pg")).unwrap();
    assert_eq!(home.description("pg").unwrap(), description);
    fs::remove_file(folder.path().join("m0.img")).unwrap();
    let mut device = home.device("pg", &clock()).unwrap();
    let mut read = |at| {
        let read = Work::Read { at, length: 8192, into: buffer() };
        carry_out(&mut *device, &SystemClock, read, DISK_PATIENCE).1
    };
    assert_eq!((read(0), read(16384)), (Ok(()), Err(DeviceError::Corrupt)));
}

/// A volume of RAID 5 is killed, and a member is not there when it is opened again.
#[test]
fn what_a_crash_left_of_a_member_that_is_gone_is_named_until_it_is_back_or_written() {
    for ends in ["it is back", "it is made anew", "another one is in its place"] {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), LayoutKind::Parity, 3), &clock()).unwrap();
        let [member, away, new] = ["m1.img", "away", "new.img"].map(|name| folder.path().join(name));
        let fill = |device: &mut dyn Device, byte: u8| {
            let mut bytes = buffer();
            bytes.fill(byte);
            let write = Work::Write { at: LOST, from: Bytes::from(bytes), fua: true };
            assert_eq!(carry_out(device, &SystemClock, write, DISK_PATIENCE).1, Ok(()));
        };
        let found = |device: &mut dyn Device| {
            let read = Work::Read { at: LOST, length: 8192, into: buffer() };
            let (work, result) = carry_out(device, &SystemClock, read, DISK_PATIENCE);
            result.map(|()| if let Some(Work::Read { into, .. }) = work { into[0] } else { panic!("another") })
        };
        let close = |device: &mut dyn Device| repair::close(device, &member, &SystemClock).unwrap();
        let until_current = |opened: &mut Opened| {
            let until = std::time::Instant::now() + DISK_PATIENCE;
            while opened.about.health.state(1) == overside_volume::MemberState::Stale {
                assert!(std::time::Instant::now() < until, "{ends}: it is not resynced");
                opened.device.poll(&mut Vec::new());
            }
        };
        fill(&mut *home.device("pg", &clock()).unwrap(), 6);
        fs::rename(&member, &away).unwrap();
        let mut opened = home.open_volume("pg", &clock()).unwrap();
        assert_eq!(found(&mut *opened.device), Err(DeviceError::Corrupt));
        assert!(opened.about.health.lost(1) > 0);
        drop(opened);
        let noted = home.description("pg").unwrap();
        assert!(noted.lost.iter().all(|range| range.member == 1 && range.kept) && !noted.lost.is_empty());
        match ends {
            "it is back" => fs::rename(&away, &member).unwrap(),
            "it is made anew" => {
                assert_eq!(home.repair("pg", &clock(), |_, _| {}).unwrap(), std::slice::from_ref(&member));
            }
            _ => drop(
                home.replace("pg", &member.display().to_string(), &MemberSpec::File(new.clone()), &clock()).unwrap(),
            ),
        }
        let mut opened = home.open_volume("pg", &clock()).unwrap();
        until_current(&mut opened);
        let is_back = ends == "it is back";
        assert_eq!(found(&mut *opened.device), if is_back { Ok(6) } else { Err(DeviceError::Corrupt) }, "{ends}");
        close(&mut *opened.device);
        drop(opened);
        let noted = home.description("pg").unwrap();
        assert!(noted.lost.is_empty() == is_back && noted.lost.iter().all(|range| !range.kept), "{ends}");
        let mut device = home.device("pg", &clock()).unwrap();
        fill(&mut *device, 7);
        close(&mut *device);
        drop(device);
        // Any one of the others is enough.
        fs::remove_file(folder.path().join("m0.img")).unwrap();
        assert_eq!(found(&mut *home.device("pg", &clock()).unwrap()), Ok(7), "{ends}");
    }
}

/// In the first row of three members, the second one has its second stripe.
const LOST: u64 = 64 << 10;

#[test]
fn a_mirror_of_files_and_memory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let mut mixed = creation(folder.path(), LayoutKind::Mirror, 2);
    mixed.members[0] = MemberSpec::Memory(None);
    assert!(home.create(&mixed, &clock()).unwrap_err().to_string().contains("memory has lost"));
    mixed.members[1] = MemberSpec::Memory(None);
    home.create(&mixed, &clock()).unwrap();
    assert_eq!(content(&home), 0);
}

#[test]
fn members_that_are_not_what_they_were_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    home.create(&creation(folder.path(), LayoutKind::Concat, 2), &clock()).unwrap();
    let (first, second) = (folder.path().join("m0.img"), folder.path().join("m1.img"));
    let refused = |why: &str| {
        let error = home.device("pg", &clock()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let sound = fs::read(&first).unwrap();
    fs::write(&first, fs::read(&second).unwrap()).unwrap();
    refused("another place");
    fs::write(&first, &sound[..sound.len() - 4096]).unwrap();
    refused("shorter");
    let mut torn = sound.clone();
    torn[100] ^= 1;
    fs::write(&first, &torn).unwrap();
    assert!(home.device("pg", &clock()).is_ok(), "the other copy is whole");
    torn[4096 + 100] ^= 1;
    fs::write(&first, &torn).unwrap();
    refused("checksum");
    fs::write(&first, "").unwrap();
    refused("no superblock");
    fs::write(&first, &sound).unwrap();
    let open = home.device("pg", &clock()).unwrap();
    drop(open);
    let description = folder.path().join("home/pg.volume");
    let text = fs::read_to_string(&description).unwrap();
    for cut in 0..text.len() {
        fs::write(&description, &text[..cut]).unwrap();
        let _ = home.device("pg", &clock()).map(drop);
    }
    for stale in ["stale 0\n", "stale 2\n", "stale x\n", "lost 0 0\n", "lost 0\n", "kept 0 0 4096 1\n", "grows x\n"] {
        fs::write(&description, format!("{text}{stale}")).unwrap();
        refused("is not what this program writes");
    }
    fs::write(&description, "overside-volume 2\n").unwrap();
    refused("line 1");
}

#[test]
fn a_volume_grows_with_what_is_in_it_and_half_of_that_is_finished() {
    for (layout, count) in
        [(LayoutKind::Concat, 2), (LayoutKind::Stripes, 3), (LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)]
    {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
        write(&home, 7);
        let refused = |bytes| home.resize("pg", bytes, &clock()).unwrap_err().to_string();
        assert!(refused(3 << 20).contains("does not become smaller"), "{}", refused(3 << 20));
        assert!(refused(8 << 30).contains("no room for so many checksums"), "{}", refused(8 << 30));
        let open = home.device("pg", &clock()).unwrap();
        assert!(matches!(home.resize("pg", 6 << 20, &clock()), Err(HomeError::InUse(_))));
        drop(open);
        home.resize("pg", 6 << 20, &clock()).unwrap();
        assert_eq!(content(&home), 7);
        assert!(home.device("pg", &clock()).unwrap().geometry().bytes >= 6 << 20);
        // A crash after the first member: whoever opens it goes on.
        let description = Description { grows: Some(9 << 20), ..home.description("pg").unwrap() };
        description.publish(&home.path("pg")).unwrap();
        let first = folder.path().join("m0.img");
        if layout != LayoutKind::Concat {
            let before = repair::superblock(&first).unwrap();
            let member_bytes = before.member_bytes * 3 / 2;
            let file = fs::OpenOptions::new().write(true).open(&first).unwrap();
            file.set_len(before.data_start() + member_bytes).unwrap();
            let half = Superblock { generation: before.generation + 1, member_bytes, ..before };
            file.write_all_at(&half.sums().unwrap().empty_bitmap(), half.sums().unwrap().bitmap).unwrap();
            file.write_all_at(&half.bytes(), 0).unwrap();
        }
        let mut device = home.device("pg", &clock()).unwrap();
        let bytes = device.geometry().bytes;
        assert!((9 << 20..10 << 20).contains(&bytes), "{bytes}");
        assert!(home.description("pg").unwrap().grows.is_none());
        assert_eq!(content_of(&mut *device), 7);
        // What is new is zeros, and matches its parity and its sums on every member.
        let check = Work::Check { at: 0, length: bytes, mend: false, wrong: 0 };
        let (work, result) = carry_out(&mut *device, &SystemClock, check, DISK_PATIENCE);
        assert!(matches!(work, Some(Work::Check { wrong: 0, .. })) && result == Ok(()), "{layout:?}: {work:?}");
        drop(device);
        if layout.is_redundant() {
            fs::remove_file(&first).unwrap();
            let mut device = home.device("pg", &clock()).unwrap();
            let read = Work::Read { at: bytes - 8192, length: 8192, into: buffer() };
            let (work, result) = carry_out(&mut *device, &SystemClock, read, DISK_PATIENCE);
            assert_eq!(result, Ok(()));
            assert!(matches!(work, Some(Work::Read { into, .. }) if into.iter().all(|byte| *byte == 0)));
            assert_eq!(content_of(&mut *device), 7);
            drop(device);
            assert!(refused(12 << 20).contains("m0.img"), "{}", refused(12 << 20));
        }
    }
}

#[test]
fn another_member_takes_the_place_of_one_that_is_gone_or_there() {
    for (layout, count) in [(LayoutKind::Mirror, 2), (LayoutKind::Parity, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        home.create(&creation(folder.path(), layout, count), &clock()).unwrap();
        write(&home, 4);
        let [first, second, third] = ["m0.img", "m1.img", "new.img"].map(|name| folder.path().join(name));
        let by = |old: &Path, new: &Path| {
            home.replace("pg", &old.display().to_string(), &MemberSpec::File(new.to_path_buf()), &clock())
        };
        let before = fs::read_to_string(home.path("pg")).unwrap();
        assert!(by(&third, &first).unwrap_err().to_string().contains("has no member"));
        assert!(by(&first, &second).unwrap_err().to_string().contains("is there already"));
        assert!(by(&first, &folder.path().join("no/folder")).is_err());
        let memory = home.replace("pg", &first.display().to_string(), &MemberSpec::Memory(None), &clock());
        assert!(memory.unwrap_err().to_string().contains("memory"));
        let open = home.device("pg", &clock()).unwrap();
        assert!(matches!(by(&first, &third), Err(HomeError::InUse(_))));
        drop(open);
        assert_eq!(fs::read_to_string(home.path("pg")).unwrap(), before, "half a step leaves nothing");
        assert!(!third.exists());
        fs::remove_file(&first).unwrap();
        assert_eq!(by(&first, &third).unwrap(), MemberSpec::File(first.clone()));
        assert_eq!(home.description("pg").unwrap().stale, [0].into());
        let refused = by(&second, &first).unwrap_err().to_string();
        assert!(refused.contains("wait until they are current"), "{refused}");
        let Opened { mut device, about, .. } = home.open_volume("pg", &clock()).unwrap();
        let until = std::time::Instant::now() + DISK_PATIENCE;
        while about.health.state(0) == overside_volume::MemberState::Stale {
            assert!(std::time::Instant::now() < until, "it is not resynced");
            assert_eq!(content_of(&mut *device), 4);
        }
        drop(device);
        // The new one alone is as good as the old one.
        fs::remove_file(&second).unwrap();
        assert_eq!(content(&home), 4);
    }
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    home.create(&creation(folder.path(), LayoutKind::Concat, 2), &clock()).unwrap();
    let first = folder.path().join("m0.img").display().to_string();
    let refused = home.replace("pg", &first, &MemberSpec::File(folder.path().join("x")), &clock()).unwrap_err();
    assert!(refused.to_string().contains("cannot do without"), "{refused}");
}

/// A creation is killed between its members and the file that says that there is a volume, or just
/// behind that.
#[test]
fn what_a_killed_creation_leaves_is_taken_away_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let (clock, three) = (clock(), creation(folder.path(), LayoutKind::Parity, 3));
    let note = home.folder().join(format!("pg{}", unfinished::NOTE_SUFFIX));
    let members: Vec<PathBuf> = three.members.iter().map(|spec| spec.path().unwrap().to_path_buf()).collect();
    let there = || members.iter().map(|member| member.exists()).collect::<Vec<_>>();
    let held = Unfinished::note(home.folder(), (&three.name, &three.id), three.members.iter().enumerate()).unwrap();
    let (_, made) = make_members(&three, &home.path("pg"), home.around(&clock)).unwrap();
    std::mem::forget(made);
    let other = Creation { name: "other".to_owned(), id: *b"another's id    ", ..three.clone() };
    let refused = home.create(&other, &clock).unwrap_err().to_string();
    assert!(refused.contains("is there already"), "{refused}");
    let refused = home.create(&three, &clock).unwrap_err().to_string();
    assert!(refused.contains("is being made, or gets a member, by another process"), "{refused}");
    assert_eq!(there(), [true; 3], "its maker lives");
    let text = fs::read(&note).unwrap();
    drop(held);
    assert!(!note.exists());

    fs::write(&note, &text).unwrap();
    fs::write(&members[1], "a stranger's").unwrap();
    assert!(home.create(&other, &clock).is_err());
    assert_eq!((there(), note.exists()), (vec![false, true, false], false));
    assert_eq!(fs::read(&members[1]).unwrap(), b"a stranger's");
    fs::remove_file(&members[1]).unwrap();

    home.create(&three, &clock).unwrap();
    assert!(!note.exists());
    fs::write(&note, &text).unwrap();
    // Where another volume's members are now, those are a stranger's, too.
    let gone = String::from_utf8(text.clone()).unwrap().replacen("30313233", "33323130", 1);
    assert_ne!(gone.as_bytes(), text);
    fs::write(home.folder().join(format!("gone{}", unfinished::NOTE_SUFFIX)), gone).unwrap();
    // Cut before its end it says nothing.
    fs::write(home.folder().join(format!("cut{}", unfinished::NOTE_SUFFIX)), &text[..text.len() - 1]).unwrap();
    let memory = Creation { members: vec![MemberSpec::Memory(None)], layout: LayoutKind::Concat, ..other };
    home.create(&memory, &clock).unwrap();
    assert_eq!((there(), note.exists()), (vec![true; 3], false));
    home.device("pg", &clock).unwrap();
    assert_eq!(home.list().unwrap(), ["other", "pg"]);
}

/// A replacement is killed between the new member and the file that says that there is one, or just
/// behind that.
#[test]
fn what_a_killed_replacement_leaves_is_taken_away_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let (clock, two) = (clock(), creation(folder.path(), LayoutKind::Mirror, 2));
    home.create(&two, &clock).unwrap();
    write(&home, 5);
    let [first, second, third] = ["m0.img", "m1.img", "m2.img"].map(|name| folder.path().join(name));
    let (note, new) = (home.folder().join("pg.making"), MemberSpec::File(third.clone()));
    let replaces = |old: &Path, new: &MemberSpec| home.replace("pg", old.to_str().unwrap(), new, &clock);
    let held = Unfinished::note(home.folder(), ("pg", &two.id), [(0, &new)]).unwrap();
    let refused = replaces(&first, &new).unwrap_err().to_string();
    assert!(refused.contains("is being made, or gets a member, by another process"), "{refused}");
    let text = fs::read(&note).unwrap();
    drop(held);
    fs::write(&note, &text).unwrap();
    // As the killed one left it: of this volume, and in no place of it.
    make_member(&third, &repair::superblock(&second).unwrap()).unwrap();
    replaces(&first, &new).unwrap();
    assert!(first.exists() && third.exists() && !note.exists(), "the old one stays its user's");
    assert_eq!(content(&home), 5);
    // Killed behind that, it left the note alone.
    fs::write(&note, &text).unwrap();
    home.repair("pg", &clock, |_, _| {}).unwrap();
    // An old member is in no place of its volume, either, and no replacement's to take away.
    let refused = replaces(&second, &MemberSpec::File(first.clone())).unwrap_err().to_string();
    assert!(refused.contains("is there already"), "{refused}");
    assert!(first.exists() && third.exists() && !note.exists());
    fs::remove_file(&second).unwrap();
    assert_eq!(content(&home), 5);
}

/// Runs something while a home looks for what is left on another node, and reaches nothing.
struct Meanwhile(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Reach for Meanwhile {
    fn attach(
        &self,
        _: &RemoteVolume,
        _: overside_volume::client::LinkOptions,
    ) -> Result<overside_volume::client::Volume, String> {
        self.0();
        Err("nobody is there".to_owned())
    }
    fn resize(&self, _: &RemoteVolume, _: u64) -> Result<(), String> {
        Err("nobody is there".to_owned())
    }
    fn threads(&self) -> Arc<dyn overside_service::Threads> {
        unreachable!("nothing is attached")
    }
}

/// One has read what is written down of the volume before the other changes it.
#[test]
fn of_two_replacements_at_once_the_second_is_refused_and_the_first_stays() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    home.create(&creation(folder.path(), LayoutKind::Mirror, 2), &clock()).unwrap();
    write(&home, 6);
    let [first, second, third, fourth] = ["m0.img", "m1.img", "m2.img", "m3.img"].map(|name| folder.path().join(name));
    // A leftover on another node is looked for just before the note is made.
    let far = RemoteVolume { address: "tcp:nowhere".into(), volume: "x".into(), key_file: None, access_key: None };
    let note = home.folder().join(format!("far{}", unfinished::NOTE_SUFFIX));
    let held = Unfinished::note(home.folder(), ("far", &[7; 16]), [(1, &MemberSpec::Remote(far))]).unwrap();
    let text = fs::read(&note).unwrap();
    drop(held);
    fs::write(&note, text).unwrap();
    let (other, old, new) = (home.clone(), first.display().to_string(), MemberSpec::File(third.clone()));
    let done = std::sync::atomic::AtomicUsize::new(0);
    let meanwhile = Meanwhile(Box::new(move || {
        if done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            other.replace("pg", &old, &new, &clock()).unwrap();
        }
    }));
    let slow = home.clone().reaching(Arc::new(meanwhile));
    let refused =
        slow.replace("pg", second.to_str().unwrap(), &MemberSpec::File(fourth.clone()), &clock()).unwrap_err();
    assert!(refused.to_string().contains("has been changed meanwhile"), "{refused}");
    let places = |home: &Home| {
        let description = home.description("pg").unwrap();
        description.members.into_iter().map(|(spec, _)| spec).collect::<Vec<_>>()
    };
    assert_eq!(places(&home), [MemberSpec::File(third.clone()), MemberSpec::File(second)]);
    assert!(note.exists() && !fourth.exists(), "what could not be looked at stays");
    // Nothing is made under its name before that.
    let same = Creation { name: "far".to_owned(), ..creation(folder.path(), LayoutKind::Concat, 1) };
    let members = vec![MemberSpec::File(folder.path().join("m9.img"))];
    let refused = slow.create(&Creation { members, ..same }, &clock()).unwrap_err().to_string();
    assert!(refused.contains("members that a killed process left"), "{refused}");
    assert!(note.exists() && third.exists());
    assert_eq!(content(&home), 6);
}

/// A note that a killed creation left behind its end names members of a volume, whatever that is
/// called by now.
#[test]
fn a_note_takes_no_member_of_a_volume_that_was_moved() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let (clock, two) = (clock(), creation(folder.path(), LayoutKind::Concat, 2));
    let note = home.folder().join(format!("pg{}", unfinished::NOTE_SUFFIX));
    let held = Unfinished::note(home.folder(), ("pg", &two.id), two.members.iter().enumerate()).unwrap();
    let text = fs::read(&note).unwrap();
    drop(held);
    home.create(&two, &clock).unwrap();
    fs::write(&note, &text).unwrap();
    fs::rename(home.path("pg"), home.path("moved")).unwrap();
    let memory = Creation { members: vec![MemberSpec::Memory(None)], ..creation(folder.path(), LayoutKind::Concat, 1) };
    home.create(&Creation { name: "other".to_owned(), ..memory }, &clock).unwrap();
    assert!(!note.exists() && two.members.iter().all(|spec| spec.path().unwrap().exists()));
    home.device("moved", &clock).unwrap();
}

/// Nor of one that is in another home by now, once something was written to it.
#[test]
fn a_note_takes_no_member_that_was_written_wherever_its_volume_is() {
    let folder = tempfile::tempdir().unwrap();
    let [home, other] = ["home", "other"].map(|name| Home::open(&folder.path().join(name)).unwrap());
    for layout in [LayoutKind::Concat, LayoutKind::Mirror] {
        let (clock, two) = (clock(), creation(folder.path(), layout, 2));
        let note = home.folder().join(format!("pg{}", unfinished::NOTE_SUFFIX));
        let held = Unfinished::note(home.folder(), ("pg", &two.id), two.members.iter().enumerate()).unwrap();
        let text = fs::read(&note).unwrap();
        drop(held);
        home.create(&two, &clock).unwrap();
        write(&home, 5);
        for suffix in [SUFFIX, INTENTS_SUFFIX] {
            let file = format!("pg{suffix}");
            let _ = fs::rename(home.folder().join(&file), other.folder().join(&file));
        }
        fs::write(&note, &text).unwrap();
        let members = vec![MemberSpec::Memory(None)];
        let memory = Creation { name: "new".to_owned(), members, ..creation(folder.path(), LayoutKind::Concat, 1) };
        home.create(&memory, &clock).unwrap();
        assert!(!note.exists() && two.members.iter().all(|spec| spec.path().unwrap().exists()), "{layout:?}");
        assert_eq!(content(&other), 5, "{layout:?}");
        other.delete("pg", &clock).unwrap();
        home.delete("new", &clock).unwrap();
    }
}

#[test]
fn places_that_are_no_line_of_text_are_refused_before_they_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let remote = |address: &str, key: &str| {
        let (address, volume, key_file) = (address.to_owned(), "m".to_owned(), Some(PathBuf::from(key)));
        MemberSpec::Remote(RemoteVolume { address, volume, key_file, access_key: None })
    };
    let two = creation(folder.path(), LayoutKind::Mirror, 2);
    home.create(&two, &clock()).unwrap();
    let odd = |name: &str| folder.path().join(name);
    for spec in [
        MemberSpec::File(odd("a\nb")),
        MemberSpec::Volatile { seed: 1, path: odd("a\u{7f}") },
        MemberSpec::File(odd("\u{85}")),
        remote("shm:a\nb", "/key"),
        remote("shm:a", "key"),
        remote("shm:a", "/k\ney"),
    ] {
        let made = Creation { name: "odd".to_owned(), members: vec![spec.clone()], ..two.clone() };
        let made = Creation { layout: LayoutKind::Concat, ..made };
        for refused in [
            home.create(&made, &clock()).unwrap_err().to_string(),
            home.replace("pg", two.members[0].to_string().as_str(), &spec, &clock()).unwrap_err().to_string(),
        ] {
            assert!(refused.contains("cannot be written down"), "{spec:?}: {refused}");
        }
        let left =
            fs::read_dir(home.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>();
        assert_eq!(left, ["pg.intents", "pg.volume"].map(Into::into).into(), "{spec:?}");
    }
}

/// What no flush covered goes with its member, and a stranger's file of that name does not.
#[test]
fn the_side_file_of_a_member_that_forgets_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::open(&folder.path().join("home")).unwrap();
    let [member, plain] = ["v.img", "m0.img"].map(|name| folder.path().join(name));
    let [side, strangers] = [&member, &plain].map(|member| side_of(member));
    let forgets = Creation {
        members: vec![MemberSpec::Volatile { seed: 1, path: member.clone() }],
        ..creation(folder.path(), LayoutKind::Concat, 1)
    };
    fs::write(&side, "a stranger's").unwrap();
    let refused = home.create(&forgets, &clock()).unwrap_err().to_string();
    assert!(refused.contains("is there already") && refused.contains("unflushed"), "{refused}");
    assert_eq!((fs::read(&side).unwrap(), member.exists()), (b"a stranger's".to_vec(), false));
    fs::remove_file(&side).unwrap();
    // With its member, and where that is gone already.
    for loses_member in [false, true] {
        home.create(&forgets, &clock()).unwrap();
        assert!(side.exists());
        if loses_member {
            fs::remove_file(&member).unwrap();
        }
        home.delete("pg", &clock()).unwrap();
        assert!(!side.exists() && !member.exists(), "{loses_member}");
    }
    // What a killed creation left.
    let clock = clock();
    let held = Unfinished::note(home.folder(), ("pg", &forgets.id), forgets.members.iter().enumerate()).unwrap();
    let text = fs::read(home.folder().join("pg.making")).unwrap();
    drop(held);
    let (_, made) = make_members(&forgets, &home.path("pg"), home.around(&clock)).unwrap();
    std::mem::forget(made);
    fs::write(home.folder().join("pg.making"), text).unwrap();
    assert!(side.exists() && member.exists());
    fs::write(&strangers, "a stranger's").unwrap();
    home.create(&creation(folder.path(), LayoutKind::Concat, 1), &clock).unwrap();
    assert!(!side.exists() && !member.exists());
    home.delete("pg", &clock).unwrap();
    assert!(!plain.exists() && strangers.exists());
}
