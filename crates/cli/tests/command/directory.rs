//! Data directories that cannot be used, by servers and by those who only look: one line, what to do, status 1, nothing changed.

use super::durable::{Durable, connect, put, schema};
use super::server::{Server, overside, told};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All that lies in a folder: for each name its kind and rights, and its bytes up to the zeros that it ends with.
pub fn content(folder: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            let mut bytes = Vec::new();
            if about.is_symlink() {
                bytes = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
            } else if about.is_dir() {
                folders.push(path.clone());
            } else {
                bytes = fs::read(&path).unwrap();
                let used = bytes.chunks(4096).rposition(|block| block != &[0; 4096][..block.len()]);
                bytes.truncate(used.map_or(0, |block| (block + 1) * 4096));
            }
            let length = if about.is_dir() { 0 } else { about.len() };
            found.insert(path, (about.mode(), length, bytes));
        }
    }
    found
}

/// A directory that a server left after a clean end: a table in a checkpoint, and a change behind it.
fn left() -> Durable {
    let durable = Durable::new(&[]);
    let mut server = durable.start();
    let mut client = connect(&server);
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..500, 1).unwrap();
    server.ok(&["checkpoint", "@"]);
    put(&mut client, &table, 0..10, 2).unwrap();
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    durable
}

/// The ways to come to a directory.
const WAYS: [&[&str]; 3] = [&["serve", "--listen", "shm:never", "--data", "@"], &["check", "@"], &["dump", "@"]];

/// What a command says that does not use the directory: one line, and status 1.
fn refusal(mut command: Command, way: &str) -> String {
    let output = command.output().unwrap();
    let told = told(&output);
    assert_eq!(output.status.code(), Some(1), "{way}: {told}");
    let line = told.lines().last().unwrap_or_default();
    assert!(line.starts_with("overside: ") && output.stdout.is_empty(), "{way}: {told}");
    // A server measures what transfers cost before it looks, and says so.
    assert!(told.lines().filter(|line| !line.starts_with("measuring ")).count() == 1, "{way}: {told}");
    line.to_owned()
}

fn command(way: &[&str], dir: &Path) -> Command {
    let dir = dir.to_str().unwrap();
    overside(&way.iter().map(|&word| if word == "@" { dir } else { word }).collect::<Vec<_>>())
}

/// Each way refuses the directory with these words, and changes nothing in `around`.
fn refuse(dir: &Path, around: &Path, words: &[&str]) {
    let before = content(around);
    for way in WAYS {
        let line = refusal(command(way, dir), way[0]);
        assert!(words.iter().all(|word| line.contains(word)), "{}: {words:?} are not in {line}", way[0]);
        assert!(content(around) == before, "{} has changed what was there", way[0]);
    }
}

#[test]
fn what_is_no_folder_or_not_of_this_user_alone_is_refused() {
    let durable = left();
    let around = durable.folder.path();
    let dir = PathBuf::from(durable.dir());
    fs::write(around.join("file"), "text").unwrap();
    refuse(&around.join("file"), around, &["file", "is no folder; name one"]);
    for mode in [0o722, 0o770] {
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        refuse(&dir, around, &["data", "can be written by other users", "chmod go-w"]);
    }
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    // Nor may they anything in it.
    let inside = content(&dir);
    assert!(inside.len() >= 7, "{:?}", inside.keys());
    let refuses = |path: &Path| {
        // A server would serve.
        for way in WAYS.iter().rev() {
            let line = refusal(command(way, &dir), way[0]);
            assert!(
                line.contains(&format!("{} belongs to another user, or others may write it", path.display())),
                "{line}"
            );
        }
    };
    for (path, (mode, ..)) in &inside {
        for wrong in [mode | 0o002, mode | 0o020] {
            fs::set_permissions(path, Permissions::from_mode(wrong)).unwrap();
            refuses(path);
        }
        fs::set_permissions(path, Permissions::from_mode(*mode)).unwrap();
        if is_root() {
            std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap();
            refuses(path);
            std::os::unix::fs::chown(path, Some(0), None).unwrap();
        }
    }
    assert!(content(&dir) == inside);
    // As a copy may have them: others may read.
    for path in inside.keys() {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    assert!(command(&["check", "@"], &dir).status().unwrap().success());
    // Whoever runs this: a folder of somebody else's.
    let others = if is_root() { dir.clone() } else { PathBuf::from("/usr") };
    if is_root() {
        std::os::unix::fs::chown(&dir, Some(NOBODY), None).unwrap();
    }
    let before = content(around);
    for way in WAYS {
        let line = refusal(command(way, &others), way[0]);
        assert!(line.contains("belongs to another user; name a folder of your own"), "{line}");
    }
    assert!(content(around) == before);
}

#[test]
fn links_in_a_directory_are_refused() {
    let durable = left();
    let around = durable.folder.path();
    let dir = PathBuf::from(durable.dir());
    let segment = content(&dir).into_keys().find(|path| path.parent().unwrap().ends_with("log")).unwrap();
    let segment = segment.strip_prefix(&dir).unwrap().to_str().unwrap().to_owned();
    for name in ["LOCK", "IDENTITY", "log", "checkpoint", &segment] {
        let (there, elsewhere) = (dir.join(name), around.join("elsewhere"));
        fs::rename(&there, &elsewhere).unwrap();
        symlink(&elsewhere, &there).unwrap();
        refuse(&dir, around, &[name.rsplit('/').next().unwrap(), "is a link or no f", "put back the f"]);
        fs::remove_file(&there).unwrap();
        fs::rename(&elsewhere, &there).unwrap();
    }
    // The directory itself may be named by one.
    symlink(&dir, around.join("named")).unwrap();
    assert!(command(&["check", "@"], &around.join("named")).status().unwrap().success());
}

#[test]
fn a_newer_version_is_refused() {
    let durable = left();
    let dir = PathBuf::from(durable.dir());
    let mut identity = fs::read(dir.join("IDENTITY")).unwrap();
    let version = u32::from_le_bytes(identity[8..12].try_into().unwrap()) + 1;
    identity[8..12].copy_from_slice(&version.to_le_bytes());
    let end = identity.len() - 4;
    let checksum = crc32c(&identity[..end]);
    identity[end..].copy_from_slice(&checksum.to_le_bytes());
    fs::write(dir.join("IDENTITY"), &identity).unwrap();
    refuse(&dir, durable.folder.path(), &[&format!("is of version {version}"), "use the program that wrote it"]);
    // One that is garbled is no other version.
    identity[end] ^= 1;
    fs::write(dir.join("IDENTITY"), &identity).unwrap();
    refuse(&dir, durable.folder.path(), &["IDENTITY is damaged", "put it back from a copy"]);
    // Nor does --salvage help, which is not what is told.
    let mut salvaging = command(WAYS[0], &dir);
    salvaging.arg("--salvage");
    let line = refusal(salvaging, "serve --salvage");
    assert!(line.contains("put it back from a copy") && !line.contains("start with"), "{line}");
}

#[test]
fn a_missing_folder_is_named_and_what_to_do_helps() {
    let durable = left();
    let around = durable.folder.path();
    let dir = PathBuf::from(durable.dir());
    for name in ["log", "checkpoint"] {
        let (there, elsewhere) = (dir.join(name), around.join("elsewhere"));
        fs::rename(&there, &elsewhere).unwrap();
        let words = [&format!("no folder {}", there.display()), "put it back from a copy", "mkdir -m 700", "--salvage"];
        refuse(&dir, around, &words);
        let salvage = || {
            let mut command = command(WAYS[0], &dir);
            command.arg("--salvage");
            command
        };
        let line = refusal(salvage(), "serve --salvage");
        assert!(line.contains(&format!("no folder {}", there.display())), "{line}");
        fs::rename(&elsewhere, &there).unwrap();
    }
    // A row in ten is the log's, and all are the checkpoint's.
    fs::rename(dir.join("log"), around.join("elsewhere")).unwrap();
    fs::create_dir(dir.join("log")).unwrap();
    fs::set_permissions(dir.join("log"), Permissions::from_mode(0o700)).unwrap();
    let server = Server::with(&["--data", dir.to_str().unwrap(), "--salvage"]);
    assert!(server.log().contains("lost: "), "{}", server.log());
    assert_eq!(connect(&server).tables().unwrap()[0].rows, 500);
}

/// Somebody else's files are no business of a server's.
#[test]
fn files_of_strangers_stay() {
    let durable = left();
    let dir = PathBuf::from(durable.dir());
    let strangers = ["checkpoint/notes.txt", "checkpoint/x.pages", "log/notes.txt"].map(|name| dir.join(name));
    strangers.iter().for_each(|path| fs::write(path, "text").unwrap());
    let mut server = durable.start();
    let mut client = connect(&server);
    let table = client.table("t").unwrap();
    put(&mut client, &table, 0..10, 3).unwrap();
    client.checkpoint().unwrap();
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    strangers.iter().for_each(|path| assert_eq!(fs::read(path).unwrap(), b"text", "{}", path.display()));
    let ours = content(&dir.join("checkpoint")).len() - 2;
    assert_eq!(ours, 2, "a manifest and a table's pages");
}

#[test]
fn a_directory_in_use_is_refused() {
    let durable = Durable::new(&[]);
    let server = durable.start();
    let mut client = connect(&server);
    client.create_table("t", &schema()).unwrap();
    for way in WAYS {
        let line = refusal(command(way, Path::new(&durable.dir())), way[0]);
        assert!(line.contains("is in use by another server; stop it, or name another folder"), "{line}");
    }
    assert_eq!(client.tables().unwrap().len(), 1, "who has it goes on");
}

/// Whoever only reads needs no more than to read; a server says what it lacks.
#[test]
fn a_directory_that_cannot_be_written_is_read_but_not_served() {
    let durable = left();
    let around = durable.folder.path();
    let dir = PathBuf::from(durable.dir());
    let user = is_root().then_some(NOBODY);
    let set = |mode: u32| {
        for path in content(&dir).into_keys().chain([dir.clone()]) {
            if fs::metadata(&path).unwrap().is_dir() {
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            std::os::unix::fs::chown(&path, user, None).unwrap();
        }
    };
    // Another user must come to it, and to the program, wherever that lies.
    fs::set_permissions(around, Permissions::from_mode(0o755)).unwrap();
    let program = around.join("overside");
    fs::copy(env!("CARGO_BIN_EXE_overside"), &program).unwrap();
    set(0o500);
    let before = content(&dir);
    for way in WAYS {
        let mut command = Command::new(&program);
        command.args(way.iter().map(|&word| if word == "@" { dir.to_str().unwrap() } else { word }));
        if let Some(user) = user {
            command.uid(user).env("XDG_DATA_HOME", around).env("HOME", around);
        }
        if way[0] == "serve" {
            let line = refusal(command, way[0]);
            assert!(line.contains(dir.to_str().unwrap()) && line.contains("Permission denied"), "{line}");
            assert!(line.contains("this user must be able to read and to write it"), "{line}");
        } else {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}: {}", way[0], told(&output));
        }
        assert!(content(&dir) == before, "{}", way[0]);
    }
    set(0o700);
}

/// No room for the first segment of the log, in a new directory and in one with tables.
#[test]
fn a_full_disk_is_said_before_anything_is_served() {
    let durable = left();
    let around = durable.folder.path();
    let dir = PathBuf::from(durable.dir());
    let before = content(&dir);
    // Files of 30 MiB at most, or of 60 by another shell: a segment of the log has 64. A server that ended cleanly has left spare ones;
    // without them it needs room.
    let limited = |dir: &Path| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 60000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_overside")]);
        shell.args(["serve", "--listen", "shm:never", "--data"]).arg(dir);
        shell
    };
    let spares: Vec<PathBuf> =
        before.keys().filter(|path| path.extension().is_some_and(|end| end == "spare")).cloned().collect();
    spares.iter().for_each(|spare| fs::remove_file(spare).unwrap());
    let before = content(&dir);
    for place in [dir.clone(), around.join("new")] {
        let line = refusal(limited(&place), "serve");
        assert!(line.contains("too large") && line.contains(place.to_str().unwrap()), "{line}");
        assert!(line.contains("ulimit -f"), "{line}");
    }
    assert!(content(&dir) == before, "what was there still is");
    let mounted = mounted_full(around);
    if let Some(line) = mounted {
        assert!(line.contains("No space left") && line.contains("make room"), "{line}");
    }
}

/// The same on a file system that is smaller than a segment, where this user may mount one.
fn mounted_full(around: &Path) -> Option<String> {
    let place = around.join("small");
    fs::create_dir(&place).unwrap();
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=8m,mode=700 none \"$1\" || exit 77; exec \"$2\" serve --listen shm:never --data \"$1/data\"";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&place).arg(env!("CARGO_BIN_EXE_overside"));
    let output = command.output().ok()?;
    if output.status.code() != Some(1) || told(&output).starts_with("unshare: ") {
        eprintln!("not tried on a full file system: {}", told(&output));
        return None;
    }
    told(&output).lines().last().map(str::to_owned)
}

#[test]
fn tables_that_no_longer_fit_the_memory_are_refused_and_kept() {
    let durable = left();
    let mut server = durable.start();
    let mut client = connect(&server);
    let table = client.create_table("big", &schema()).unwrap();
    for id in 0..60 {
        // Each of them is longer than a page.
        put(&mut client, &table, 3 + 97 * id..4 + 97 * id, 1).unwrap();
    }
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    let dir = PathBuf::from(durable.dir());
    let before = content(&dir);
    for way in [WAYS[0], WAYS[2]] {
        let mut command = command(way, &dir);
        command.args(["--memory", "1500K"]);
        let line = refusal(command, way[0]);
        assert!(line.contains("table \"") && line.contains("raise the limit (--memory)"), "{line}");
        assert!(content(&dir) == before, "{}", way[0]);
    }
    let server = durable.start();
    let rows: Vec<u64> = connect(&server).tables().unwrap().into_iter().map(|table| table.rows).collect();
    assert_eq!(rows, [60, 500]);
}

/// What is about a directory means nothing without one, and a loss of power costs no hour.
#[test]
fn options_of_a_directory_need_one_and_are_bounded() {
    let serve = ["serve", "--listen", "shm:never"];
    let refused: [&[&str]; 8] = [
        &["--durability", "group"],
        &["--group-ms", "20"],
        &["--salvage"],
        &["--data", "never-made", "--durability", "some"],
        &["--data", "never-made", "--durability", "group", "--group-ms", "0"],
        &["--data", "never-made", "--durability", "group", "--group-ms", "3600000"],
        &["--data", "never-made", "--durability", "group", "--group-ms", "99999999999999999999"],
        &["--data", "never-made", "--group-ms", "20"],
    ];
    for options in refused {
        let output = overside(&[&serve[..], options].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", told(&output));
        let (told, last) = (told(&output), options.iter().rfind(|word| word.starts_with("--")).unwrap());
        assert!(told.contains(last) || told.contains("--data"), "{options:?}: {told}");
    }
    assert!(!Path::new("never-made").exists());
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// A user that owns nothing.
const NOBODY: u32 = 65534;
