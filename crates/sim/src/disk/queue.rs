//! A process's queue onto a drive: the trait that shipped code knows.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overside_disk::{Completion, Disk, Entry, FileId, IoPath, Open, Request};

use super::file::File;
use super::names::Folder;
use super::{Drive, InFlight, Lock, Node, QueueState, State, drain, eventfd, path, signal};
use crate::process::Process;

/// A queue of requests, and the files that it has open.
pub(crate) struct Queue {
    drive: Drive,
    process: Process,
    number: u64,
    path: PathBuf,
    wake: Arc<OwnedFd>,
    /// By number.
    files: Vec<Option<Opened>>,
    pushed: Vec<Pushed>,
}

/// An open file: its node, and whether transfers go past the kernel's memory.
type Opened = (u64, bool);

/// A request that was not submitted yet.
struct Pushed {
    token: u64,
    request: Request,
    /// Its file as it was then, for it may be closed meanwhile.
    opened: io::Result<Opened>,
}

impl Queue {
    pub(crate) fn new(drive: &Drive, process: Process) -> io::Result<Queue> {
        let wake = Arc::new(eventfd()?);
        let number = {
            let mut state = drive.state();
            state.next += 1;
            let number = state.next;
            state
                .queues
                .insert(number, QueueState { done: Vec::new(), wake: wake.clone(), open: Vec::new(), dead: false });
            number
        };
        let kernel = drive.clone();
        process.at_kill(move || kernel.state().close_all(number));
        let (drive, path) = (drive.clone(), path());
        Ok(Queue { drive, process, number, path, wake, files: Vec::new(), pushed: Vec::new() })
    }

    fn opened(&self, file: FileId) -> io::Result<Opened> {
        let found = self.files.get(file.0 as usize).copied().flatten();
        found.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the file was closed"))
    }

    fn node(&self, file: FileId) -> io::Result<u64> {
        self.opened(file).map(|(node, _)| node)
    }
}

/// The folder that holds a name, and the name's last part.
fn parent<'a>(state: &mut State, name: &'a str) -> io::Result<(u64, &'a str)> {
    let (folder, last) = name.rsplit_once('/').unwrap_or(("", name));
    let found = state.find(folder).filter(|at| matches!(state.nodes.get(at), Some(Node::Folder(_))));
    Ok((found.ok_or_else(absent)?, last))
}

fn folder(state: &mut State, number: u64) -> &mut Folder {
    match state.nodes.get_mut(&number) {
        Some(Node::Folder(folder)) => folder,
        _ => unreachable!("it was found as a folder"),
    }
}

fn absent() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Disk for Queue {
    fn path(&self) -> &Path {
        &self.path
    }

    fn way(&self) -> IoPath {
        IoPath { uring: true, direct: true }
    }

    fn list(&mut self, name: &str) -> io::Result<Vec<Entry>> {
        self.drive.operation("lists", 0);
        let state = self.drive.state();
        let Some(Node::Folder(folder)) = state.find(name).and_then(|at| state.nodes.get(&at)) else {
            return Err(absent());
        };
        let entry = |(name, number): (&str, u64)| {
            let is_folder = matches!(state.nodes.get(&number), Some(Node::Folder(_)));
            Entry { name: name.to_owned(), is_file: !is_folder, is_folder, is_private: true }
        };
        Ok(folder.iter().map(entry).collect())
    }

    fn create_folder(&mut self, name: &str) -> io::Result<()> {
        self.drive.operation("makes a folder", 0);
        let mut state = self.drive.state();
        let (at, last) = parent(&mut state, name)?;
        if folder(&mut state, at).get(last).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.next += 1;
        let number = state.next;
        state.nodes.insert(number, Node::Folder(Folder::default()));
        folder(&mut state, at).put(last, number);
        Ok(())
    }

    fn open(&mut self, name: &str, how: Open) -> io::Result<FileId> {
        self.drive.operation("opens", 0);
        let mut state = self.drive.state();
        let found = state.find(name);
        let number = match (how, found) {
            (Open::Create { .. }, Some(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Open::Create { .. }, None) => {
                let (at, last) = parent(&mut state, name)?;
                state.next += 1;
                let number = state.next;
                state.nodes.insert(number, Node::File { file: File::default(), lock: None });
                folder(&mut state, at).put(last, number);
                number
            }
            (_, None) => return Err(absent()),
            (how, Some(number)) => {
                let is_folder = matches!(state.nodes.get(&number), Some(Node::Folder(_)));
                if is_folder != (how == Open::Folder) {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "is of another kind"));
                }
                number
            }
        };
        if let Some(queue) = state.queues.get_mut(&self.number) {
            queue.open.push(number);
        }
        drop(state);
        let free = self.files.iter().position(Option::is_none).unwrap_or_else(|| {
            self.files.push(None);
            self.files.len() - 1
        });
        let direct = match how {
            Open::Read { direct } | Open::Write { direct } | Open::Create { direct } => direct,
            Open::Folder => false,
        };
        self.files[free] = Some((number, direct));
        Ok(FileId(free as u32))
    }

    fn close(&mut self, file: FileId) {
        let Some((node, _)) = self.files.get_mut(file.0 as usize).and_then(Option::take) else { return };
        let (mut state, queue) = (self.drive.state(), self.number);
        if let Some(Node::File { lock: Some(lock), .. }) = state.nodes.get_mut(&node)
            && lock.queue == queue
        {
            lock.ends = true;
        }
        if let Some(queue) = state.queues.get_mut(&queue)
            && let Some(at) = queue.open.iter().position(|open| *open == node)
        {
            queue.open.swap_remove(at);
        }
        state.let_go(queue, node);
        state.forget_unnamed();
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.drive.operation("renames", 0);
        let mut state = self.drive.state();
        let ((from_folder, from), (to_folder, to)) = (parent(&mut state, from)?, parent(&mut state, to)?);
        let number = folder(&mut state, from_folder).get(from).ok_or_else(absent)?;
        if from_folder == to_folder {
            folder(&mut state, from_folder).rename(from, to);
        } else {
            folder(&mut state, to_folder).put(to, number);
            folder(&mut state, from_folder).take(from);
        }
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.drive.operation("unlinks", 0);
        let mut state = self.drive.state();
        let (at, last) = parent(&mut state, name)?;
        folder(&mut state, at).get(last).ok_or_else(absent)?;
        folder(&mut state, at).take(last);
        Ok(())
    }

    fn length(&mut self, file: FileId) -> io::Result<u64> {
        let node = self.node(file)?;
        match self.drive.state().nodes.get(&node) {
            Some(Node::File { file, .. }) => Ok(file.len()),
            Some(Node::Folder(_)) => Ok(0),
            None => Err(absent()),
        }
    }

    fn lock(&mut self, file: FileId, wait: Duration) -> io::Result<bool> {
        const STEP: Duration = Duration::from_millis(10);
        let node = self.node(file)?;
        let clock = self.drive.0.clock.clone();
        let until = clock.now() + wait;
        loop {
            {
                let mut state = self.drive.state();
                let Some(Node::File { lock, .. }) = state.nodes.get_mut(&node) else { return Err(absent()) };
                if lock.is_none() {
                    *lock = Some(Lock { queue: self.number, ends: false });
                    return Ok(true);
                }
            }
            if clock.now() >= until {
                return Ok(false);
            }
            clock.sleep(STEP);
        }
    }

    fn space(&mut self) -> io::Result<u64> {
        let state = self.drive.state();
        Ok(state.options.capacity.saturating_sub(state.used()))
    }

    fn push(&mut self, token: u64, request: Request) {
        let opened = self.opened(request.file());
        self.pushed.push(Pushed { token, request, opened });
    }

    fn submit(&mut self) -> io::Result<()> {
        for Pushed { token, request, opened } in std::mem::take(&mut self.pushed) {
            let (what, place) = match &request {
                Request::Read { at, .. } => ("reads", *at),
                Request::Write { at, sync: false, .. } => ("writes", *at),
                Request::Write { at, .. } => ("writes through", *at),
                Request::Sync { .. } => ("syncs", 0),
                Request::Allocate { length, .. } => ("allocates", *length),
            };
            self.drive.operation(what, place);
            let now = self.drive.0.clock.now();
            let mut state = self.drive.state();
            let (node, direct) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    let result = Err(error);
                    if let Some(queue) = state.queues.get_mut(&self.number) {
                        queue.done.push(Completion { token, request, result });
                    }
                    signal(&self.wake);
                    continue;
                }
            };
            let covers = match state.nodes.get(&node) {
                Some(Node::File { file, .. }) => file.written(),
                Some(Node::Folder(folder)) => folder.changed() as u64,
                None => 0,
            };
            state.next += 1;
            let number = state.next;
            let State { options, chance, .. } = &mut *state;
            let mut latency = Duration::from_nanos(1 + chance.below(options.latency_max.as_nanos().max(1) as u64));
            let stalls = chance.one_in(options.stall_one_in);
            if stalls {
                latency += options.stall;
            }
            let (due, queue) = (now + latency, self.number);
            state.under_way.push(InFlight { number, due, queue, token, node, request, covers, direct });
            drop(state);
            if stalls {
                self.drive.0.world.note(super::STALLS, 0);
            }
            signal(&self.drive.0.wake);
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        drain(&self.wake);
        if let Some(queue) = self.drive.state().queues.get_mut(&self.number) {
            done.append(&mut queue.done);
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let clock = &self.drive.0.clock;
        let until = clock.now() + timeout;
        clock.wait(&[self.wake.as_fd()], Some(until)).map_err(io::Error::other)
    }

    fn another(&self) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(Queue::new(&self.drive, self.process.clone())?))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.drive.state().close_all(self.number);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("number", &self.number).field("process", &self.process).finish_non_exhaustive()
    }
}
