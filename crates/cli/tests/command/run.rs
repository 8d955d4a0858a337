//! `overside run`: what it tells, and what it leaves.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A copy of the command beside a library that does nothing: the dynamic linker passes over what it cannot load.
fn command(folder: &tempfile::TempDir) -> (Command, PathBuf) {
    let copy = folder.path().join("overside");
    std::fs::copy(env!("CARGO_BIN_EXE_overside"), &copy).unwrap();
    std::fs::write(folder.path().join("liboverside_preload.so"), "").unwrap();
    let scratch = folder.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let mut command = Command::new(copy);
    command.args(["run", "--verbose", "--"]).env("TMPDIR", &scratch).stdin(Stdio::piped()).stdout(Stdio::piped());
    (command, scratch)
}

#[test]
fn lines_of_its_processes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let (mut command, scratch) = command(&folder);
    let line = r"7\taccepted\tunix\tunix\tring\t\t30\t1\t20\t2\n";
    let script = format!(
        "(printf '{line}' >>\"$OVERSIDE_SOCKETS_REPORT\"); printf '{line}' >>\"$OVERSIDE_SOCKETS_REPORT\"; exit 3"
    );
    let output = command.args(["sh", "-c", &script]).stderr(Stdio::piped()).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let sum = "2 connection ends over shared memory, 0 through the kernel; 100 bytes in 6 calls past it\n";
    assert!(told.ends_with(sum), "{told}");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(std::fs::read_dir(scratch).unwrap().count(), 0);
}

#[test]
fn killed_it_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (mut command, scratch) = command(&folder);
    let mut running = command.arg("cat").stderr(Stdio::null()).spawn().unwrap();
    let (mut to, from) = (running.stdin.take().unwrap(), running.stdout.take().unwrap());
    // The program runs, so whatever is made for it is there.
    to.write_all(b"there\n").unwrap();
    let mut line = String::new();
    BufReader::new(from).read_line(&mut line).unwrap();
    assert_eq!(line, "there\n");
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(std::fs::read_dir(scratch).unwrap().count(), 0);
    drop(to);
}
