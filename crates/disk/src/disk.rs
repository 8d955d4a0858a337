//! What files can do: one folder, and a queue of requests.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use crate::AlignedBuffer;

/// One folder with all that lies in it, and a queue of requests to its files.
///
/// Names are relative to the folder: `IDENTITY`, `log/0000000000000001`. No part of one may be a
/// link or `..`. Operations on names happen at once; a name is on the disk only after a
/// [`Request::Sync`] of the folder that holds it. What is read and written goes by requests.
///
/// A request owns its buffer until its completion gives the buffer back. Requests in the queue at
/// the same time may be carried out in any order: a sync covers those writes whose completions were
/// polled before the sync was pushed.
pub trait Disk: Send + fmt::Debug {
    /// The folder, for messages.
    fn path(&self) -> &Path;

    /// How requests are carried out.
    fn way(&self) -> IoPath;

    /// What lies in a folder (`""` is the disk's own), by name in ascending order.
    ///
    /// # Errors
    /// There is no such folder, or it cannot be read.
    fn list(&mut self, folder: &str) -> io::Result<Vec<Entry>>;

    /// Makes a folder, for this user alone.
    ///
    /// # Errors
    /// The name is taken, or the device is full or failing.
    fn create_folder(&mut self, name: &str) -> io::Result<()>;

    /// Opens a file or, for [`Open::Folder`], a folder.
    ///
    /// # Errors
    /// The name leads through a link, is taken or is absent, or the device is full or failing.
    fn open(&mut self, name: &str, how: Open) -> io::Result<FileId>;

    /// Lets go of a file. Requests under way keep it until they complete; its lock ends with the
    /// last.
    fn close(&mut self, file: FileId);

    /// Gives a file or folder another name, replacing a file that has it.
    ///
    /// # Errors
    /// `from` is absent, or the device is full or failing.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Takes a file's name away.
    ///
    /// # Errors
    /// It is absent, or the device is failing.
    fn unlink(&mut self, name: &str) -> io::Result<()>;

    /// Length of a file in bytes.
    ///
    /// # Errors
    /// The device is failing.
    fn length(&mut self, file: FileId) -> io::Result<u64>;

    /// Locks a file against every other opening of it, waiting for at most `wait`. False when
    /// another one still holds the lock then. A killed process holds its locks until its last write
    /// has landed.
    ///
    /// # Errors
    /// The file system has no locks.
    fn lock(&mut self, file: FileId, wait: Duration) -> io::Result<bool>;

    /// Bytes that the file system still has for this user.
    ///
    /// # Errors
    /// The device is failing.
    fn space(&mut self) -> io::Result<u64>;

    /// Puts a request into the queue. Its completion carries the token.
    fn push(&mut self, token: u64, request: Request);

    /// Hands what was pushed to the system. It does not wait for the disk where [`IoPath::uring`]
    /// is true.
    ///
    /// # Errors
    /// The queue itself is broken. What is under way may or may not happen.
    fn submit(&mut self) -> io::Result<()>;

    /// Appends to `done` what has completed.
    ///
    /// # Errors
    /// The queue itself is broken.
    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Readable while completions wait to be polled. None where every request completes in
    /// `submit`.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Waits until a completion can be polled, at most for `timeout`. It may return earlier.
    ///
    /// # Errors
    /// The queue itself is broken.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// Another queue onto the same folder, for another thread. Files are each queue's own.
    ///
    /// # Errors
    /// The system has no descriptor or memory for it.
    fn another(&self) -> io::Result<Box<dyn Disk>>;
}

/// An open file of one [`Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// How a file is opened. `direct` asks for transfers past the page cache (`O_DIRECT`); a file
/// system that has none gives them through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// A file that is there, to be read.
    Read {
        /// Past the page cache.
        direct: bool,
    },
    /// A file that is there, to be read and written.
    Write {
        /// Past the page cache.
        direct: bool,
    },
    /// A new file, to be read and written; an error where the name is taken.
    Create {
        /// Past the page cache.
        direct: bool,
    },
    /// A folder that is there, to be synced.
    Folder,
}

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// It is a file: no folder, link, device or socket.
    pub is_file: bool,
    /// It is a folder.
    pub is_folder: bool,
    /// It is this user's, and no other may write it.
    pub is_private: bool,
}

/// What can be asked of a file. Places and lengths of reads and writes are whole blocks
/// ([`BLOCK_BYTES`](crate::BLOCK_BYTES)).
#[derive(Debug)]
pub enum Request {
    /// Fills the buffer, as far as the file reaches.
    Read {
        /// Which file.
        file: FileId,
        /// Place in the file, in bytes.
        at: u64,
        /// As many bytes as are wanted.
        buffer: AlignedBuffer,
    },
    /// Writes the first `length` bytes of the buffer, all of them or it is an error.
    Write {
        /// Which file.
        file: FileId,
        /// Place in the file, in bytes.
        at: u64,
        /// What is written.
        buffer: AlignedBuffer,
        /// How much of it, in bytes.
        length: usize,
        /// Complete only when the bytes are on the disk (`RWF_DSYNC`).
        sync: bool,
    },
    /// Brings a file's bytes and length, or a folder's names, to the disk.
    Sync {
        /// Which file or folder.
        file: FileId,
    },
    /// Sets blocks aside for the file's first `length` bytes and makes it as long. What is written
    /// there later cannot find the disk full. Kind `Unsupported` where the file system has no such
    /// call.
    Allocate {
        /// Which file.
        file: FileId,
        /// In bytes.
        length: u64,
    },
}

/// A request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// As it was pushed.
    pub token: u64,
    /// The request, with its buffer.
    pub request: Request,
    /// Bytes transferred: fewer than wanted at a file's end, and 0 of what transfers none. After a
    /// failed write the file's bytes there are anything.
    pub result: io::Result<u64>,
}

/// How requests are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoPath {
    /// By io_uring; otherwise by system calls that wait.
    pub uring: bool,
    /// Past the page cache; otherwise through it.
    pub direct: bool,
}

impl fmt::Display for IoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.uring { "io_uring" } else { "pwritev2" })?;
        f.write_str(if self.direct { ", O_DIRECT" } else { ", page cache" })
    }
}

/// Carries one request out and waits for it. Nothing else may be under way in the queue.
///
/// # Errors
/// The request failed, or took longer than `deadline`.
pub fn complete(disk: &mut dyn Disk, request: Request, deadline: Duration) -> io::Result<(Request, u64)> {
    const STEP: Duration = Duration::from_millis(100);
    disk.push(0, request);
    disk.submit()?;
    let mut done = Vec::new();
    let mut waited = Duration::ZERO;
    loop {
        disk.poll(&mut done)?;
        if let Some(completion) = done.pop() {
            return completion.result.map(|bytes| (completion.request, bytes));
        }
        if waited >= deadline {
            let text = format!("{}: the disk did not answer for {} s", disk.path().display(), deadline.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        disk.wait(STEP)?;
        waited += STEP;
    }
}

impl Request {
    /// The file that it is for.
    pub fn file(&self) -> FileId {
        match self {
            Request::Read { file, .. }
            | Request::Write { file, .. }
            | Request::Sync { file }
            | Request::Allocate { file, .. } => *file,
        }
    }
}

impl<D: Disk + ?Sized> Disk for Box<D> {
    fn path(&self) -> &Path {
        (**self).path()
    }
    fn way(&self) -> IoPath {
        (**self).way()
    }
    fn list(&mut self, folder: &str) -> io::Result<Vec<Entry>> {
        (**self).list(folder)
    }
    fn create_folder(&mut self, name: &str) -> io::Result<()> {
        (**self).create_folder(name)
    }
    fn open(&mut self, name: &str, how: Open) -> io::Result<FileId> {
        (**self).open(name, how)
    }
    fn close(&mut self, file: FileId) {
        (**self).close(file);
    }
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        (**self).rename(from, to)
    }
    fn unlink(&mut self, name: &str) -> io::Result<()> {
        (**self).unlink(name)
    }
    fn length(&mut self, file: FileId) -> io::Result<u64> {
        (**self).length(file)
    }
    fn lock(&mut self, file: FileId, wait: Duration) -> io::Result<bool> {
        (**self).lock(file, wait)
    }
    fn space(&mut self) -> io::Result<u64> {
        (**self).space()
    }
    fn push(&mut self, token: u64, request: Request) {
        (**self).push(token, request);
    }
    fn submit(&mut self) -> io::Result<()> {
        (**self).submit()
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        (**self).poll(done)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }
    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        (**self).wait(timeout)
    }
    fn another(&self) -> io::Result<Box<dyn Disk>> {
        (**self).another()
    }
}
