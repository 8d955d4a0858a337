//! Members on a disk that is full: a small file system in memory, which the node alone sees.

use super::volumes::{Node, until};
use overside::memory::Segment;
use overside::verbs::SystemClock;
use overside::volume::client::{LinkOptions, Volume};
use overside::volume::{DeviceError, Work, complete};
use serde_json::Value as Json;
use std::process::Command;
use std::time::Duration;

/// Bytes of a request.
const CHUNK: usize = 64 << 10;
/// In the volume.
const CHUNKS: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a user may mount one. Its mounts are seen by nobody else.
fn unshare() -> Option<Command> {
    let command = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command.args((!rustix::process::geteuid().is_root()).then_some(["--user", "--map-root-user"]).iter().flatten());
        command
    };
    let tried = command().args(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]).output();
    let may = tried.as_ref().is_ok_and(|tried| tried.status.success());
    if !may {
        println!("skipped: no file system can be mounted here: {tried:?}");
    }
    may.then(command)
}

/// Two MiB are free behind the members, which hold nothing yet.
const SERVES: &str = r#"at=$1 overside=$2 on=$3 layout=$4 home=$5 address=$6
mount -t tmpfs -o size=16m,mode=700 none "$at" || exit 1
"$overside" volume create pg --size 4M --on "$on" --layout "$layout" --home "$home" >/dev/null || exit 1
head -c 2M /dev/zero >"$at/room"
cat /dev/zero >"$at/ballast" 2>/dev/null
rm "$at/room"
exec "$overside" volume serve --listen "$address" --home "$home""#;

fn write(volume: &mut Volume, chunk: u64, byte: u8) -> Result<(), DeviceError> {
    let mut from = Segment::private(CHUNK).unwrap().carve(CHUNK).pop().unwrap();
    from.fill(byte);
    let write = Work::Write { at: chunk * CHUNK as u64, from: from.into(), fua: false };
    complete(volume, &SystemClock, write, PATIENCE).1
}

/// The bytes that there are in a chunk.
fn found(volume: &mut Volume, chunk: u64) -> Vec<u8> {
    let into = Segment::private(CHUNK).unwrap().carve(CHUNK).pop().unwrap();
    let read = Work::Read { at: chunk * CHUNK as u64, length: CHUNK, into };
    let (work, result) = complete(volume, &SystemClock, read, PATIENCE);
    assert_eq!(result, Ok(()), "chunk {chunk} is read");
    let Some(Work::Read { into, .. }) = work else { panic!("another request came back") };
    let mut bytes = into[..CHUNK].to_vec();
    bytes.sort_unstable();
    bytes.dedup();
    bytes
}

#[test]
fn a_full_disk_fails_the_writes_that_it_has_no_room_for_and_nothing_else() {
    for (layout, members) in [("concat", 1), ("raid1", 2), ("raid5", 3)] {
        let Some(mut command) = unshare() else { return };
        let mut node = Node::new("shm");
        let at = node.path("small");
        std::fs::create_dir(&at).unwrap();
        let on: Vec<String> = (0..members).map(|member| format!("{at}/{member}")).collect();
        command.args(["sh", "-c", SERVES, "sh", &at, env!("CARGO_BIN_EXE_overside"), &on.join(","), layout]);
        command.args([&node.home(), &node.address]);
        let process = node.start_by(command);
        let mut volume = overside::at(&node.address).volume("pg", LinkOptions::default()).unwrap();
        let full = (0..CHUNKS).find(|chunk| write(&mut volume, *chunk, 1 + *chunk as u8) == Err(DeviceError::NoSpace));
        let full = full.unwrap_or_else(|| panic!("{layout}: there is room for all"));
        // What is there stays, and is written over.
        assert!(full >= 8, "{layout}: {full}");
        (0..full).for_each(|chunk| assert_eq!(found(&mut volume, chunk), [1 + chunk as u8], "{layout}, {chunk}"));
        (0..4).for_each(|chunk| assert_eq!(write(&mut volume, chunk, 101 + chunk as u8), Ok(()), "{layout}, {chunk}"));
        for _ in 0..3 {
            assert_eq!(write(&mut volume, full, 1 + full as u8), Err(DeviceError::NoSpace), "{layout}");
        }
        assert_eq!(write(&mut volume, CHUNKS - 1, 200), Err(DeviceError::NoSpace), "{layout}");
        for (chunk, new) in [(full, 1 + full as u8), (CHUNKS - 1, 200)] {
            let left = found(&mut volume, chunk);
            assert!(left.iter().all(|byte| [0, new].contains(byte)), "{layout}, {chunk}: old or new: {left:?}");
        }
        let status = node.status();
        assert_eq!((&status["failed"], &status["writes_done"]), (&5.into(), &(full + 4).into()), "{status}");
        assert_eq!(status["written_bytes"], Json::from((full + 4) * CHUNK as u64), "{status}");
        // Where members share the disk, one of a redundant volume may get the last of the room.
        match status["state"].as_str() {
            Some("degraded") if layout != "concat" => {
                let reason = status["reason"].as_str().unwrap();
                assert!(reason.contains("they get them as soon as they can be written"), "{reason}");
            }
            state => assert_eq!(state, Some("ok"), "{status}"),
        }
        println!("{layout}: {full} of {CHUNKS} fit, then it is {}", status["state"]);
        // As the node sees it.
        std::fs::remove_file(format!("/proc/{process}/root{at}/ballast")).unwrap();
        (full..CHUNKS).for_each(|chunk| assert_eq!(write(&mut volume, chunk, 1 + chunk as u8), Ok(()), "{layout}"));
        until("the volume is ok again by itself", || node.status()["state"] == "ok");
        for chunk in 0..CHUNKS {
            let byte = if chunk < 4 { 101 } else { 1 } + chunk as u8;
            assert_eq!(found(&mut volume, chunk), [byte], "{layout}, {chunk}");
        }
        let checked = node.json(&["check", &node.volume()]);
        assert_eq!((&checked["faults"], &checked["left"]), (&Json::Array(Vec::new()), &0.into()), "{checked}");
        assert_eq!(node.status()["failed"], 5, "{layout}");
    }
}
