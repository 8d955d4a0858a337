//! A process that starts other people's programs, stops them, and clears away what they leave.
//!
//! It outlives the measuring process. When that ends, of Ctrl-C or of anything else, the line
//! between the two hangs up. The keeper then stops its servers cleanly and removes their folder. It
//! has a session of its own, so a terminal's signals do not reach it or them.

use super::ROLE;
use crate::{
    measure::Split,
    process::{Process, child_socket, memory_file},
};
use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, set_child_subreaper,
        set_parent_process_death_signal, setsid, wait,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, DirBuilder, File},
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::{DirBuilderExt, FileExt},
        net::UnixStream,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What to start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What is added to its environment.
    pub environment: Vec<(String, PathBuf)>,
    /// User and group, where not the keeper's own.
    pub user: Option<(u32, u32)>,
    /// A server: where its output goes, and the signal that stops it. Otherwise
    /// the program is waited for.
    pub stays: Option<(PathBuf, i32)>,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Started(u32),
    Ended(Ended),
    Failed(String),
}

/// A program that has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ended {
    /// With status 0.
    pub succeeded: bool,
    /// How long it took.
    pub wall_ns: u64,
    /// Standard output and error.
    pub said: String,
}

/// The keeper, as who measures sees it; its servers stop when this is dropped.
pub struct Keeper {
    line: Option<BufReader<UnixStream>>,
    process: Option<Process>,
    folder: PathBuf,
}

impl Keeper {
    /// Starts it, with a new folder.
    pub(in crate::figures) fn start() -> Result<Keeper> {
        Keeper::start_in(&std::env::temp_dir())
    }

    /// The same, with its folder in another one.
    pub(in crate::figures) fn start_in(parent: &Path) -> Result<Keeper> {
        let folder = parent.join(format!("overside-bench-{}", std::process::id()));
        let name = folder.to_str().context("the name of the folder for scratch files is no text; choose another")?;
        let (process, line) = Process::start("keeper of servers", ROLE, &["keep", name], None)?;
        line.set_read_timeout(Some(PATIENCE + Duration::from_secs(10)))?;
        let mut keeper = Keeper { line: Some(BufReader::new(line)), process: Some(process), folder };
        match keeper.answer()? {
            Answer::Failed(why) => bail!(why),
            _ => Ok(keeper),
        }
    }

    /// The keeper's own number: all that it starts are its children.
    pub fn process(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// Where its servers may have their files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a server; its process id.
    ///
    /// # Errors
    /// The keeper has ended, or cannot start it.
    pub fn serve(&mut self, order: &Launch) -> Result<u32> {
        match self.ask(order)? {
            Answer::Started(process) => Ok(process),
            other => bail!("the keeper does not answer as it should: {other:?}"),
        }
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// The keeper has ended, or cannot run it.
    pub fn run(&mut self, order: &Launch) -> Result<Ended> {
        match self.ask(order)? {
            Answer::Ended(ended) => Ok(ended),
            other => bail!("the keeper does not answer as it should: {other:?}"),
        }
    }

    /// As [`Keeper::run`]; a program that fails is an error that says what it said.
    ///
    /// # Errors
    /// It failed, or as [`Keeper::run`].
    pub fn must(&mut self, order: &Launch) -> Result<Ended> {
        let ended = self.run(order)?;
        if !ended.succeeded {
            let last: Vec<&str> = ended.said.lines().rev().take(3).collect();
            bail!("{} failed: {}", order.program.display(), last.join(" / "));
        }
        Ok(ended)
    }

    /// Runs it again and again until it succeeds: a server takes a moment to be there.
    ///
    /// # Errors
    /// It fails for a minute, or as [`Keeper::run`].
    pub fn until_it_succeeds(&mut self, order: &Launch) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.run(order)?.succeeded {
            if Instant::now() >= deadline {
                bail!("{} found no server within {PATIENCE:?}", order.program.display());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn ask(&mut self, order: &Launch) -> Result<Answer> {
        let line = self.line.as_mut().context("the keeper has been dismissed")?.get_mut();
        let mut text = serde_json::to_vec(order)?;
        text.push(b'\n');
        line.write_all(&text)?;
        match self.answer().with_context(|| order.program.display().to_string())? {
            Answer::Failed(why) => bail!("{} could not be run: {why}", order.program.display()),
            answer => Ok(answer),
        }
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut text = String::new();
        let line = self.line.as_mut().context("the keeper has been dismissed")?;
        line.read_line(&mut text).context("the keeper of servers does not answer")?;
        serde_json::from_str(&text).context("the keeper of servers ended")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.line = None;
        if let Some(process) = self.process.take() {
            process.end(PATIENCE);
        }
    }
}

/// The keeper itself, with a folder that is not there yet.
pub(in crate::figures) fn keep(folder: &str) -> Result<()> {
    // Who clears away must be left when the other has gone.
    set_parent_process_death_signal(None).context("the kernel does not let this process outlive its parent")?;
    setsid().context("no session of its own")?;
    // A program that is killed leaves what it has started to this process: initdb's servers would go on writing into the folder.
    set_child_subreaper(Some(getpid())).context("the kernel does not let this process take over what others leave")?;
    let mut line = BufReader::new(child_socket()?);
    let made = DirBuilder::new().mode(0o755).create(folder);
    let answer = match &made {
        Ok(()) => Answer::Started(std::process::id()),
        Err(error) => Answer::Failed(format!(
            "{folder} cannot be made ({error}); TMPDIR, or --dir, names a folder that can be written"
        )),
    };
    say(&mut line, &answer)?;
    made?;
    let mut kept = Kept { folder: folder.into(), servers: Vec::new() };
    let mut text = String::new();
    while line.read_line(&mut text).is_ok_and(|bytes| bytes > 0) {
        let answer = serde_json::from_str(&text)
            .context("an order that is none")
            .and_then(|order| kept.obey(&order, line.get_ref()));
        let answer = answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}")));
        if say(&mut line, &answer).is_err() {
            break;
        }
        text.clear();
    }
    kept.stop();
    sweep();
    Ok(())
}

fn say(line: &mut BufReader<UnixStream>, answer: &Answer) -> Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    Ok(line.get_mut().write_all(&text)?)
}

/// What is to be cleared away at the end.
struct Kept {
    folder: PathBuf,
    servers: Vec<(Child, i32)>,
}

impl Kept {
    fn obey(&mut self, order: &Launch, line: &UnixStream) -> Result<Answer> {
        let mut command = Command::new(&order.program);
        command.args(&order.arguments).stdin(Stdio::null()).current_dir(&self.folder);
        command.envs(order.environment.iter().map(|(name, value)| (name, value)));
        if let Some((user, group)) = order.user {
            command.uid(user).gid(group);
        }
        let Some((output, signal)) = &order.stays else { return run(&mut command, line).map(Answer::Ended) };
        let output = File::create(output)?;
        let server = command.stdout(output.try_clone()?).stderr(output).spawn()?;
        let process = server.id();
        self.servers.push((server, *signal));
        Ok(Answer::Started(process))
    }

    /// Stops the servers, as they want to be stopped while they do so in time.
    fn stop(&mut self) {
        for (server, signal) in &self.servers {
            let signal = Signal::from_named_raw(*signal).unwrap_or(Signal::TERM);
            // It may have ended by itself.
            let _ = Pid::from_raw(server.id() as i32).map(|process| kill_process(process, signal));
        }
        let deadline = Instant::now() + STOPPING;
        for (server, _) in &mut self.servers {
            while matches!(server.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(10));
            }
            let _ = server.kill();
            let _ = server.wait();
        }
        self.servers.clear();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop();
        // A server that is being killed may still make files.
        let deadline = Instant::now() + STOPPING;
        while fs::remove_dir_all(&self.folder).is_err() && self.folder.exists() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Kills all that this process has started or taken over, and waits for its end.
fn sweep() {
    let deadline = Instant::now() + STOPPING;
    while Instant::now() < deadline {
        for orphan in everybody().iter().filter(|times| times.parent == std::process::id()) {
            let _ = Pid::from_raw(orphan.process as i32).map(|process| kill_process(process, Signal::KILL));
        }
        match wait(WaitOptions::NOHANG) {
            // One has ended; what it had started is this process's now.
            Ok(Some(_)) => {}
            Ok(None) => thread::sleep(Duration::from_millis(5)),
            Err(_) => break,
        }
    }
}

/// Waits for the program's end, or for that of who wants to know.
fn run(command: &mut Command, line: &UnixStream) -> Result<Ended> {
    let said = memory_file(b"")?;
    command.stdout(said.try_clone()?).stderr(said.try_clone()?);
    let start = Instant::now();
    let mut child = command.spawn()?;
    let process = Pid::from_raw(child.id() as i32).context("a process without a number")?;
    let end = pidfd_open(process, PidfdFlags::empty());
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let woken = end.map(|end| {
        let mut either = [PollFd::new(&end, PollFlags::IN), PollFd::new(line, PollFlags::IN)];
        poll(&mut either, Some(&limit)).map(|_| !either[0].revents().is_empty())
    });
    let ended = matches!(woken, Ok(Ok(true)));
    let wall_ns = start.elapsed().as_nanos() as u64;
    if !ended {
        let _ = child.kill();
    }
    let status = child.wait()?;
    if !ended {
        bail!("it took longer than {PATIENCE:?}");
    }
    let mut text = vec![0; said.metadata()?.len() as usize];
    said.read_exact_at(&mut text, 0)?;
    let mut said = String::from_utf8_lossy(&text).into_owned();
    if let Some(signal) = status.signal() {
        said += &format!("\nended by signal {signal}");
    }
    Ok(Ended { succeeded: status.success(), wall_ns, said })
}

/// Processor time of a process and of all that it has started, ended or not, in nanoseconds.
pub fn tree_ns(root: u32) -> u64 {
    let all = everybody();
    let mut tree = vec![root];
    let mut at = 0;
    while let Some(parent) = tree.get(at).copied() {
        tree.extend(all.iter().filter(|times| times.parent == parent).map(|times| times.process));
        at += 1;
    }
    let own = all.iter().filter(|times| tree.contains(&times.process));
    own.map(|times| (times.own.total() + times.reaped.total()) * TICK_NS).sum()
}

/// Every process there is.
fn everybody() -> Vec<Times> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Times::of(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// From `/proc/PID/stat`, in ticks.
struct Times {
    process: u32,
    parent: u32,
    own: Split,
    reaped: Split,
}

impl Times {
    fn of(process: u32) -> Option<Times> {
        Times::parse(process, &fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// Fields count from the last parenthesis: the command before it may hold anything.
    fn parse(process: u32, stat: &str) -> Option<Times> {
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let split = |at: usize| Some(Split { user: field(at)?, system: field(at + 1)? });
        Some(Times { process, parent: field(1)? as u32, own: split(11)?, reaped: split(13)? })
    }
}

/// USER_HZ, which the kernel promises to programs.
pub(in crate::figures) const TICK_NS: u64 = 10_000_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// A server that has not stopped by then is killed.
const STOPPING: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_past_any_name() {
        let stat = "77 (a) 1 2 (b) S 5 77 77 0 -1 4194304 99 0 0 0 120 30 7 8 20 0 1 0 79272";
        let times = Times::parse(77, stat).unwrap();
        assert_eq!((times.parent, times.own.total(), times.reaped.total()), (5, 150, 15));
        assert_eq!((times.own.user, times.reaped.system), (120, 8));
        assert!(Times::parse(77, "77 (a) S").is_none());
    }

    #[test]
    fn a_program_that_fails_is_told_with_its_words() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let ended = run(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]), &ours).unwrap();
        assert!(!ended.succeeded && ended.said.contains("out\nerr"), "{ended:?}");
        let ended = run(Command::new("sh").args(["-c", "kill -9 $$"]), &ours).unwrap();
        assert!(ended.said.contains("signal 9"), "{ended:?}");
    }

    #[test]
    fn a_program_ends_with_whoever_wants_to_know() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let start = Instant::now();
        run(Command::new("sleep").arg("600"), &ours).unwrap_err();
        assert!(start.elapsed() < PATIENCE);
    }

    #[test]
    fn a_kept_server_and_its_folder_go() {
        let folder = std::env::temp_dir().join(format!("overside-keeper-test-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut kept = Kept { folder: folder.clone(), servers: Vec::new() };
        let stays = Some((folder.join("log"), Signal::TERM.as_raw()));
        let order = Launch { program: "sleep".into(), arguments: vec!["600".into()], stays, ..Launch::default() };
        let Answer::Started(process) = kept.obey(&order, &ours).unwrap() else { panic!("it was to stay") };
        assert!(Path::new(&format!("/proc/{process}")).exists());
        drop(kept);
        assert!(!Path::new(&format!("/proc/{process}")).exists() && !folder.exists());
    }
}
