//! A disk in memory that forgets, as disks do: what was not synced may be there or not, sector by sector and name by name.

#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use overside_disk::{Completion, Disk, Entry, FileId, IoPath, Open, Request};

/// What is there after a crash, and what only seems to be.
#[derive(Clone, Debug, Default)]
pub struct Files {
    names: BTreeMap<String, Node>,
    /// Names as the disk has them, and what happened to them since.
    synced: BTreeMap<String, Node>,
    changes: Vec<Renamed>,
    nodes: Vec<Content>,
    locks: BTreeSet<usize>,
    random: u64,
    /// Operations until the power goes. What is under way then may have happened.
    pub fuse: Option<u64>,
    /// Bytes that there is room for.
    pub room: Option<u64>,
    /// The operation after so many fails, for good.
    pub fails: Option<u64>,
    pub operations: u64,
    /// What was asked, for tests that look at the order of things.
    pub trace: Vec<String>,
}

/// A file or folder got this name, or lost that one, or both at once.
#[derive(Clone, Debug)]
struct Renamed {
    node: Node,
    from: Option<String>,
    to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Folder,
    File(usize),
}

#[derive(Clone, Debug, Default)]
struct Content {
    seen: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Debug)]
pub struct MemoryDisk {
    files: Arc<Mutex<Files>>,
    open: Vec<Option<(String, Node)>>,
    locked: Vec<usize>,
    pushed: Vec<InFlight>,
    under_way: Vec<InFlight>,
}

/// A request keeps its file, whatever becomes of the number that it had.
#[derive(Debug)]
struct InFlight {
    token: u64,
    request: Request,
    file: io::Result<(String, Node)>,
}

const SECTOR: usize = 512;

impl Files {
    pub fn new(seed: u64) -> Arc<Mutex<Files>> {
        Arc::new(Mutex::new(Files { random: seed | 1, ..Files::default() }))
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    /// One operation more: none after the fuse is gone.
    fn operation(&mut self, what: String) -> io::Result<()> {
        self.trace.push(what);
        self.operations += 1;
        if self.fuse.is_some_and(|fuse| self.operations > fuse) {
            return Err(io::Error::other("the power is gone"));
        }
        if self.fails.is_some_and(|fails| self.operations > fails) {
            return Err(io::Error::other("the disk fails"));
        }
        Ok(())
    }

    /// The power goes: of what was not synced some is there.
    pub fn crash(&mut self) {
        let mut names = self.synced.clone();
        // Names of different files reach the disk in any order; those of one file in order.
        let changes = std::mem::take(&mut self.changes);
        let mut kept: BTreeMap<Node, u64> = BTreeMap::new();
        for change in changes {
            let left = match kept.get(&change.node) {
                Some(left) => *left,
                None => self.draw(4),
            };
            kept.insert(change.node, left.saturating_sub(1));
            if left > 0 {
                change.apply(&mut names);
            }
        }
        for at in 0..self.nodes.len() {
            let length = self.nodes[at].seen.len().max(self.nodes[at].synced.len());
            // All of it, none, or each sector for itself.
            let way = self.draw(3);
            let mut synced = std::mem::take(&mut self.nodes[at].synced);
            let seen = std::mem::take(&mut self.nodes[at].seen);
            if way != 0 && seen.len() > synced.len() {
                synced.resize(length, 0);
            }
            for start in (0..seen.len().min(synced.len())).step_by(SECTOR) {
                let end = (start + SECTOR).min(seen.len()).min(synced.len());
                if way == 1 || (way == 2 && self.draw(2) == 0) {
                    synced[start..end].copy_from_slice(&seen[start..end]);
                }
            }
            self.nodes[at] = Content { seen: synced.clone(), synced };
        }
        self.names = names.clone();
        self.synced = names;
        self.restart();
    }

    /// The process is killed: the kernel keeps what it was given.
    pub fn restart(&mut self) {
        self.locks.clear();
        self.fuse = None;
        self.fails = None;
        self.operations = 0;
        self.trace.clear();
    }

    fn change(&mut self, node: Node, from: Option<&str>, to: Option<&str>) {
        let change = Renamed { node, from: from.map(str::to_owned), to: to.map(str::to_owned) };
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn used(&self) -> u64 {
        let files = self.names.values().filter_map(|node| match node {
            Node::File(at) => Some(self.nodes[*at].seen.len() as u64),
            Node::Folder => None,
        });
        files.sum()
    }

    fn grow(&mut self, at: usize, length: usize) -> io::Result<()> {
        let more = (length as u64).saturating_sub(self.nodes[at].seen.len() as u64);
        if more > 0 && self.room.is_some_and(|room| self.used() + more > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if more > 0 {
            self.nodes[at].seen.resize(length, 0);
        }
        Ok(())
    }

    /// Names of files, with their content.
    pub fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let files = self.names.iter().filter_map(|(name, node)| match node {
            Node::File(at) => Some((name.clone(), self.nodes[*at].seen.clone())),
            Node::Folder => None,
        });
        files.collect()
    }

    pub fn alter(&mut self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let Some(Node::File(at)) = self.names.get(name).copied() else { panic!("no file {name}") };
        change(&mut self.nodes[at].seen);
        self.nodes[at].synced = self.nodes[at].seen.clone();
    }

    /// A file, and the folder that it lies in.
    pub fn add(&mut self, name: &str, bytes: Vec<u8>) {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.names.insert(folder.to_owned(), Node::Folder);
        }
        self.nodes.push(Content { seen: bytes.clone(), synced: bytes });
        self.names.insert(name.to_owned(), Node::File(self.nodes.len() - 1));
        self.synced = self.names.clone();
    }

    pub fn remove(&mut self, name: &str) {
        self.names.remove(name);
        self.synced.remove(name);
    }

    pub fn swap(&mut self, a: &str, b: &str) {
        let (one, other) = (self.names[a], self.names[b]);
        self.names.insert(a.to_owned(), other);
        self.names.insert(b.to_owned(), one);
        self.synced = self.names.clone();
    }

    /// A second world that starts from this one.
    pub fn fork(&self) -> Arc<Mutex<Files>> {
        let mut files = self.clone();
        files.restart();
        Arc::new(Mutex::new(files))
    }
}

impl Renamed {
    fn apply(&self, names: &mut BTreeMap<String, Node>) {
        if let Some(from) = self.from.as_ref().filter(|from| names.get(*from) == Some(&self.node)) {
            names.remove(from);
        }
        if let Some(to) = &self.to {
            names.insert(to.clone(), self.node);
        }
    }
}

impl MemoryDisk {
    pub fn new(files: &Arc<Mutex<Files>>) -> MemoryDisk {
        MemoryDisk {
            files: files.clone(),
            open: Vec::new(),
            locked: Vec::new(),
            pushed: Vec::new(),
            under_way: Vec::new(),
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap()
    }

    fn node(&self, file: FileId) -> io::Result<(String, Node)> {
        self.open.get(file.0 as usize).cloned().flatten().ok_or_else(|| io::Error::other("closed"))
    }
}

fn carry_out(files: &mut Files, name: &str, node: Node, request: &mut Request) -> io::Result<u64> {
    match (request, node) {
        (Request::Read { at, buffer, .. }, Node::File(file)) => {
            let seen = &files.nodes[file].seen;
            let from = (*at as usize).min(seen.len());
            let bytes = buffer.len().min(seen.len() - from);
            buffer[..bytes].copy_from_slice(&seen[from..from + bytes]);
            Ok(bytes as u64)
        }
        (Request::Write { at, buffer, length, sync, .. }, Node::File(file)) => {
            let (from, end) = (*at as usize, *at as usize + *length);
            assert!(from.is_multiple_of(4096) && length.is_multiple_of(4096), "a write of part of a block");
            files.operation(format!("write {name} {at} {length} {sync}"))?;
            files.grow(file, end)?;
            files.nodes[file].seen[from..end].copy_from_slice(&buffer[..*length]);
            if *sync {
                let content = &mut files.nodes[file];
                let length = content.synced.len().max(end);
                content.synced.resize(length, 0);
                content.synced[from..end].copy_from_slice(&buffer[..end - from]);
            }
            Ok(*length as u64)
        }
        (Request::Sync { .. }, Node::File(file)) => {
            files.operation(format!("sync {name}"))?;
            files.nodes[file].synced = files.nodes[file].seen.clone();
            Ok(0)
        }
        (Request::Sync { .. }, Node::Folder) => {
            files.operation(format!("sync {name}/"))?;
            let prefix = if name.is_empty() { String::new() } else { format!("{name}/") };
            let inside =
                |path: &str| path.strip_prefix(&prefix).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'));
            let changes = std::mem::take(&mut files.changes);
            let is_inside = |change: &Renamed| change.to.iter().chain(&change.from).any(|name| inside(name));
            let (now, later) = changes.into_iter().partition::<Vec<_>, _>(is_inside);
            now.iter().for_each(|change| change.apply(&mut files.synced));
            files.changes = later;
            Ok(0)
        }
        (Request::Allocate { length, .. }, Node::File(file)) => {
            files.operation(format!("allocate {name} {length}"))?;
            files.grow(file, *length as usize)?;
            Ok(0)
        }
        _ => Err(io::Error::other("no file")),
    }
}

impl Disk for MemoryDisk {
    fn path(&self) -> &Path {
        Path::new("memory")
    }

    fn way(&self) -> IoPath {
        IoPath { uring: true, direct: true }
    }

    fn list(&mut self, folder: &str) -> io::Result<Vec<Entry>> {
        let files = self.files();
        if !folder.is_empty() && files.names.get(folder) != Some(&Node::Folder) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let inside = files.names.iter().filter_map(|(name, node)| {
            let rest = name.strip_prefix(&prefix)?;
            (!rest.contains('/')).then(|| Entry {
                name: rest.to_owned(),
                is_file: *node != Node::Folder,
                is_folder: *node == Node::Folder,
                is_private: true,
            })
        });
        Ok(inside.collect())
    }

    fn create_folder(&mut self, name: &str) -> io::Result<()> {
        let mut files = self.files();
        files.operation(format!("folder {name}"))?;
        if files.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        files.change(Node::Folder, None, Some(name));
        Ok(())
    }

    fn open(&mut self, name: &str, how: Open) -> io::Result<FileId> {
        let mut files = self.files.lock().unwrap();
        let node = if name.is_empty() { Some(Node::Folder) } else { files.names.get(name).copied() };
        let node = match (how, node) {
            (Open::Folder, Some(Node::Folder)) => Node::Folder,
            (Open::Create { .. }, None) => {
                files.operation(format!("create {name}"))?;
                files.nodes.push(Content::default());
                let node = Node::File(files.nodes.len() - 1);
                files.change(node, None, Some(name));
                node
            }
            (Open::Create { .. }, Some(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Open::Read { .. } | Open::Write { .. }, Some(Node::File(file))) => Node::File(file),
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        self.open.push(Some((name.to_owned(), node)));
        Ok(FileId(self.open.len() as u32 - 1))
    }

    fn close(&mut self, file: FileId) {
        if let Some((_, Node::File(node))) = self.open[file.0 as usize].take()
            && let Some(at) = self.locked.iter().position(|locked| *locked == node)
        {
            self.locked.remove(at);
            self.files().locks.remove(&node);
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files();
        files.operation(format!("rename {from} {to}"))?;
        let Some(node) = files.names.get(from).copied() else { return Err(io::ErrorKind::NotFound.into()) };
        files.change(node, Some(from), Some(to));
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        let mut files = self.files();
        files.operation(format!("unlink {name}"))?;
        let Some(node) = files.names.get(name).copied() else { return Err(io::ErrorKind::NotFound.into()) };
        files.change(node, Some(name), None);
        Ok(())
    }

    fn length(&mut self, file: FileId) -> io::Result<u64> {
        match self.node(file)? {
            (_, Node::File(at)) => Ok(self.files().nodes[at].seen.len() as u64),
            _ => Err(io::Error::other("no file")),
        }
    }

    fn lock(&mut self, file: FileId, _wait: Duration) -> io::Result<bool> {
        let (_, Node::File(at)) = self.node(file)? else { return Err(io::Error::other("no file")) };
        let free = self.files().locks.insert(at);
        if free {
            self.locked.push(at);
        }
        Ok(free)
    }

    fn space(&mut self) -> io::Result<u64> {
        let files = self.files();
        Ok(files.room.map_or(u64::MAX, |room| room.saturating_sub(files.used())))
    }

    fn push(&mut self, token: u64, request: Request) {
        let file = self.node(request.file());
        self.pushed.push(InFlight { token, request, file });
    }

    fn submit(&mut self) -> io::Result<()> {
        self.under_way.append(&mut self.pushed);
        Ok(())
    }

    /// Some of what is under way ends, in any order.
    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        while !self.under_way.is_empty() && self.files().draw(4) > 0 {
            let at = self.files().draw(self.under_way.len() as u64) as usize;
            let InFlight { token, mut request, file } = self.under_way.swap_remove(at);
            let result = file.and_then(|(name, node)| carry_out(&mut self.files(), &name, node, &mut request));
            done.push(Completion { token, request, result });
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        Ok(())
    }

    fn another(&self) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(MemoryDisk::new(&self.files)))
    }
}

/// Whoever had the disk is gone. Of the writes that were under way each may have reached the cache, in part.
impl Drop for MemoryDisk {
    fn drop(&mut self) {
        let mut files = self.files.lock().unwrap();
        for node in &self.locked {
            files.locks.remove(node);
        }
        for InFlight { request, file, .. } in self.under_way.drain(..) {
            let (Request::Write { at, buffer, length, .. }, Ok((_, Node::File(node)))) = (request, file) else {
                continue;
            };
            let at = at as usize;
            if files.nodes[node].seen.len() < at + length {
                continue;
            }
            let way = files.draw(3);
            for start in (0..length).step_by(SECTOR) {
                if way == 1 || (way == 2 && files.draw(2) == 0) {
                    files.nodes[node].seen[at + start..at + start + SECTOR]
                        .copy_from_slice(&buffer[start..start + SECTOR]);
                }
            }
        }
    }
}
