//! Requests carried out by system calls that wait: where the kernel refuses io_uring.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::folder::{File, Folder};
use crate::{Completion, Disk, Entry, FileId, IoPath, Open, Request};

/// A folder whose requests are carried out, and completed, when they are submitted.
#[derive(Debug)]
pub struct Plain {
    folder: Folder,
    pushed: Vec<(u64, Request)>,
    done: Vec<Completion>,
}

impl Plain {
    /// The folder at `path`, made if there is none.
    ///
    /// # Errors
    /// `path` is no folder of this user's alone.
    pub fn open(path: &Path) -> io::Result<Plain> {
        Ok(Plain::over(Folder::open(path)?))
    }

    fn over(folder: Folder) -> Plain {
        Plain { folder, pushed: Vec::new(), done: Vec::new() }
    }
}

impl Disk for Plain {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn way(&self) -> IoPath {
        IoPath { uring: false, direct: self.folder.direct() }
    }

    fn list(&mut self, folder: &str) -> io::Result<Vec<Entry>> {
        self.folder.list(folder)
    }

    fn create_folder(&mut self, name: &str) -> io::Result<()> {
        self.folder.create_folder(name)
    }

    fn open(&mut self, name: &str, how: Open) -> io::Result<FileId> {
        self.folder.open_file(name, how)
    }

    fn close(&mut self, file: FileId) {
        self.folder.close(file);
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.folder.unlink(name)
    }

    fn length(&mut self, file: FileId) -> io::Result<u64> {
        self.folder.length(file)
    }

    fn lock(&mut self, file: FileId, wait: Duration) -> io::Result<bool> {
        self.folder.lock(file, wait)
    }

    fn space(&mut self) -> io::Result<u64> {
        self.folder.space()
    }

    fn push(&mut self, token: u64, request: Request) {
        self.pushed.push((token, request));
    }

    fn submit(&mut self) -> io::Result<()> {
        for (token, mut request) in self.pushed.drain(..) {
            let result = self.folder.file(request.file()).and_then(|file| carry_out(&file, &mut request));
            self.done.push(Completion { token, request, result });
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        done.append(&mut self.done);
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wait(&mut self, _timeout: Duration) -> io::Result<()> {
        Ok(())
    }

    fn another(&self) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(Plain::over(self.folder.another())))
    }
}

pub(crate) fn carry_out(file: &File, request: &mut Request) -> io::Result<u64> {
    match request {
        Request::Read { at, buffer, .. } => read(file, *at, buffer),
        Request::Write { at, buffer, length, sync, .. } => write(file, *at, &buffer[..*length], *sync),
        Request::Sync { .. } if file.folder => retried(|| rustix::fs::fsync(&*file.fd)).map(|()| 0),
        Request::Sync { .. } => retried(|| rustix::fs::fdatasync(&*file.fd)).map(|()| 0),
        Request::Allocate { length, .. } => {
            retried(|| rustix::fs::fallocate(&*file.fd, FallocateFlags::empty(), 0, *length)).map(|()| 0)
        }
    }
}

fn read(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<u64> {
    let mut filled = 0;
    while filled < buffer.len() {
        match retried(|| rustix::io::pread(&*file.fd, &mut buffer[filled..], at + filled as u64))? {
            0 => break,
            bytes => filled += bytes,
        }
        // Short of a block: that was the file's end, and a direct read cannot go on from there.
        if !filled.is_multiple_of(crate::BLOCK_BYTES) {
            break;
        }
    }
    Ok(filled as u64)
}

fn write(file: &File, at: u64, bytes: &[u8], sync: bool) -> io::Result<u64> {
    let mut flags = if sync { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    let mut written = 0;
    while written < bytes.len() {
        let rest = [IoSlice::new(&bytes[written..])];
        match retried(|| rustix::io::pwritev2(&*file.fd, &rest, at + written as u64, flags)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            // A direct write goes on from a whole block.
            Ok(some) => written = whole_blocks(written + some, bytes.len()),
            Err(error) if unsupported(&error) && !flags.is_empty() => flags = ReadWriteFlags::empty(),
            Err(error) => return Err(error),
        }
    }
    if sync && flags.is_empty() {
        retried(|| rustix::fs::fdatasync(&*file.fd))?;
    }
    Ok(written as u64)
}

/// Of a transfer that moved `moved` bytes of `wanted`, those from which it can go on.
pub(crate) fn whole_blocks(moved: usize, wanted: usize) -> usize {
    if moved >= wanted { wanted } else { moved - moved % crate::BLOCK_BYTES }
}

fn unsupported(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::OPNOTSUPP | Errno::NOSYS))
}

fn retried<T>(call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    Ok(rustix::io::retry_on_intr(call)?)
}
