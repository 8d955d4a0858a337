//! `overside run`: what it tells, and what it leaves.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A copy of the command beside a library that does nothing: the dynamic linker passes over what it cannot load.
fn copy(folder: &Path) -> Command {
    let copy = folder.join("overside");
    // By a program of its own: a descriptor that writes it, inherited by what another test starts just now, would keep it
    // from being executed.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_overside")).arg(&copy).status().unwrap();
    assert!(copied.success());
    std::fs::write(folder.join("liboverside_preload.so"), "").unwrap();
    Command::new(copy)
}

fn command(folder: &tempfile::TempDir) -> (Command, PathBuf) {
    let mut command = copy(folder.path());
    let scratch = folder.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
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

/// LD_PRELOAD ends a path at a space or a colon, and replaces what begins with a dollar.
#[test]
fn a_path_that_would_be_cut_is_linked_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["with a space", "with:colon", "with$ORIGIN", "with\ttab"] {
        let odd = folder.path().join(name);
        std::fs::create_dir(&odd).unwrap();
        let run = |arguments: &[&str], runtime: Option<&Path>| {
            let mut command = copy(&odd);
            command.arg("run").args(arguments).env_remove("XDG_RUNTIME_DIR").env_remove("LD_PRELOAD");
            runtime.map(|runtime| command.env("XDG_RUNTIME_DIR", runtime));
            let output = command.output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (output.status.success(), text(output.stdout), text(output.stderr))
        };
        let shown = ["--", "sh", "-c", "printf %s \"$LD_PRELOAD\""];
        // Twice: the link of the first run serves the second.
        for _ in 0..2 {
            let (done, preloaded, error) = run(&shown, Some(&runtime));
            assert!(done, "{name}: {error}");
            assert!(!preloaded.contains([' ', ':', '$', '\t']), "{preloaded}");
            let library = odd.join("liboverside_preload.so").canonicalize().unwrap();
            assert_eq!(std::fs::canonicalize(&preloaded).unwrap(), library);
        }
        let (done, _, error) = run(&shown, None);
        assert!(!done && error.contains("XDG_RUNTIME_DIR") && error.contains("move the folder"), "{error}");
        let (done, printed, error) = run(&["--print-library"], Some(&runtime));
        assert!(!done && printed.is_empty() && error.contains("move the folder"), "{printed}{error}");
    }
    assert_eq!(std::fs::read_dir(&runtime).unwrap().count(), 4, "one link for each");
    // Where others may write, they may put another library in its place.
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o777)).unwrap();
    let odd = folder.path().join("with a space");
    let output = copy(&odd).args(["run", "--", "true"]).env("XDG_RUNTIME_DIR", &runtime).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("others may write"), "{error}");
}
