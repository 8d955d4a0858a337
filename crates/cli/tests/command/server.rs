//! A server process for a test, and other processes' commands against it.

use serde_json::Value as Json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// `overside serve` on an address of its own; ended and waited for when dropped.
pub struct Server {
    pub address: String,
    pub child: Child,
    pub output: BufReader<ChildStdout>,
    pub folder: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Server {
        Server::with(&[])
    }

    pub fn with(options: &[&str]) -> Server {
        let (server, line) = Server::saying(options);
        assert_eq!(line, format!("listening on {}\n", server.address));
        server
    }

    /// With the first line that it prints.
    pub fn saying(options: &[&str]) -> (Server, String) {
        Server::by(options, |_| {})
    }

    /// By a command that was changed before.
    pub fn by(options: &[&str], changed: impl FnOnce(&mut Command)) -> (Server, String) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let address = format!("shm:cli-test-{}-{number}", std::process::id());
        let folder = tempfile::tempdir().unwrap();
        let mut command = overside(&["serve", "--listen", &address]);
        changed(&mut command);
        let mut child = command
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.path().join(LOG)).unwrap())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        (Server { address, child, output, folder }, line)
    }

    /// A command, its address put in the place of `@`.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let arguments: Vec<&str> = arguments.iter().map(|&a| if a == "@" { &self.address } else { a }).collect();
        overside(&arguments)
    }

    /// The standard output of a command that succeeds.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", told(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one JSON object that a command prints.
    pub fn json(&self, arguments: &[&str]) -> Json {
        let text = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// What a command that fails says: one line, with exit status 1 and nothing on standard output.
    pub fn fails(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", told(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
        let told = told(&output);
        assert!(told.starts_with("overside: ") && told.lines().count() == 1, "{arguments:?}: {told}");
        told
    }

    /// A file in the test's folder with this content.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_string()
    }

    /// Where a file of this name would be in the test's folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_string()
    }

    /// Whether a file in the test's folder lies there half written under any name.
    pub fn part(&self) -> bool {
        let mut names = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_string_lossy().ends_with(".part"))
    }

    /// Whether a process has a file open in the test's folder that has no name yet, or one that says so.
    pub fn exports(&self, process: &Child) -> bool {
        let files = std::fs::read_dir(format!("/proc/{}/fd", process.id())).into_iter().flatten().flatten();
        let mut files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        files.any(|file| {
            let text = file.to_string_lossy();
            file.starts_with(self.folder.path()) && (text.ends_with(" (deleted)") || text.ends_with(".part"))
        })
    }

    /// What the server has said on standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join(LOG)).unwrap()
    }

    /// Waits until the server says a line with all of this on standard error.
    pub fn says(&self, words: &[&str]) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.log().lines().any(|line| words.iter().all(|word| line.contains(word))) {
            assert!(Instant::now() < end, "it does not say {words:?} but {:?}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        send(&self.child, signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprint!("{}", self.log());
        }
    }
}

const LOG: &str = "serve.log";

/// The command that was built, with these arguments.
pub fn overside(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overside"));
    command.args(arguments);
    command
}

pub fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn fixture(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../files/tests/fixtures").join(name);
    path.to_str().unwrap().to_string()
}

pub fn send(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A CSV file of `rows` rows: `id` from 0 on, `name`, `price`.
pub fn numbered(rows: usize) -> String {
    let mut text = String::from("id,name,price\n");
    for row in 0..rows {
        text += &format!("{row},name {},{}.5\n", row % 97, row % 1000);
    }
    text
}
