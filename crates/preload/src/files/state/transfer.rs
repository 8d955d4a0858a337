//! Bytes and lengths of files on the volume.

use std::ffi::{CStr, c_int};
use std::os::fd::AsRawFd;

use libc::iovec;
use overside_volume::DeviceError;
use overside_volume::files::{Attributes, Command, FILE_BYTES_MAX, PIECE_BYTES};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::descriptors::low_numbers;
use super::{State, errno_of, tell};
use crate::files::{self, placeholder::Name};
use crate::{errno, real};

impl State {
    /// The file's length, and what it takes.
    pub(in crate::files) fn attributes(&mut self, name: Name) -> Result<(u64, u64), c_int> {
        let Attributes { token, size, allocated } = self.client()?.attributes(name.id).map_err(errno_of)?;
        if token != name.token {
            tell("a placeholder", "names a file that this volume does not have");
            return Err(libc::EIO);
        }
        Ok((size, allocated))
    }

    pub(in crate::files) fn size(&mut self, name: Name) -> Result<u64, c_int> {
        self.attributes(name).map(|(size, _)| size)
    }

    pub(in crate::files) fn read(&mut self, name: Name, at: u64, into: &mut [u8]) -> Result<usize, c_int> {
        let read = self.client()?.read((name.id, name.token), at, into);
        // There is no such file: what the program has open names nothing.
        read.map_err(|error| if error == DeviceError::Invalid { libc::EIO } else { errno_of(error) })
    }

    /// Buffers, one behind the other. How many bytes; fewer where the rest cannot be written.
    pub(in crate::files) fn write(&mut self, name: Name, at: u64, list: &[iovec]) -> Result<u64, c_int> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let mut done = 0;
        let mut result = Ok(());
        for part in list.iter().filter(|part| part.iov_len > 0) {
            // SAFETY: [preload-program] the program's buffer.
            let bytes = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
            if list.len() == 1 {
                result = self.write_all(name, at, bytes, &mut done);
                break;
            }
            gathered.extend_from_slice(bytes);
            if gathered.len() >= GATHERED_MAX {
                result = self.write_all(name, at + done, &gathered, &mut done);
                gathered.clear();
                if result.is_err() {
                    break;
                }
            }
        }
        if result.is_ok() && !gathered.is_empty() {
            result = self.write_all(name, at + done, &gathered, &mut done);
        }
        gathered.clear();
        self.gathered = gathered;
        match result {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    fn write_all(&mut self, name: Name, at: u64, mut bytes: &[u8], done: &mut u64) -> Result<(), c_int> {
        let mut at = at;
        while !bytes.is_empty() {
            let written = self.client()?.write(name.id, at, bytes).map_err(|error| match error {
                DeviceError::Invalid => libc::EFBIG,
                error => errno_of(error),
            })?;
            *done += written as u64;
            at += written as u64;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    pub(in crate::files) fn resize(&mut self, name: Name, size: u64) -> Result<(), c_int> {
        self.change(name, size, Command::Resize(size))
    }

    /// Of a file that becomes as long as `size`, or may.
    fn change(&mut self, name: Name, size: u64, command: Command) -> Result<(), c_int> {
        if size >= FILE_BYTES_MAX {
            return Err(libc::EFBIG);
        }
        let changed = self.client()?.command(name.id, command, name.token);
        // There is no such file: what the program has open names nothing.
        changed.map_err(|error| if error == DeviceError::Invalid { libc::EIO } else { errno_of(error) })
    }

    /// Bytes from `at` to `end` have places on the volume, and the file is at least so long. What
    /// another process writes there meanwhile stays.
    pub(in crate::files) fn reserve(&mut self, name: Name, at: u64, end: u64) -> Result<(), c_int> {
        if end >= FILE_BYTES_MAX {
            return Err(libc::EFBIG);
        }
        let mut at = at;
        while at < end {
            at = end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
            self.change(name, at, Command::Reserve(at))?;
        }
        Ok(())
    }

    /// Appends alone among those who append to a file through descriptors of their own. A lock on
    /// the placeholder would meet the program's, which may be on all of it. So it is a byte of a
    /// file that all processes have, and that no program locks.
    pub(in crate::files) fn append<T>(
        &mut self,
        entry: u32,
        append: impl FnOnce(&mut State) -> Result<T, c_int>,
    ) -> Result<T, c_int> {
        let (device, number) = self.entry(entry).ok_or(libc::EBADF)?.inode;
        let byte = (device.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 2;
        let fd = match &self.appends {
            Some(file) => file.as_raw_fd(),
            None => {
                let _low = low_numbers();
                let file = rustix::fs::open(LOCKED, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
                let file = self.appends.insert(file.map_err(Errno::raw_os_error)?);
                files::mark(file.as_raw_fd(), true);
                file.as_raw_fd()
            }
        };
        lock(fd, byte, libc::F_WRLCK, libc::F_OFD_SETLKW)?;
        let result = append(self);
        let _ = lock(fd, byte, libc::F_UNLCK, libc::F_OFD_SETLK);
        result
    }
}

fn lock(fd: c_int, byte: u64, kind: c_int, command: c_int) -> Result<(), c_int> {
    let place = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as i64,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: [preload-real] a structure of ours.
    let result = unsafe { real::fcntl(fd, command, (&raw const place).addr()) };
    if result == 0 { Ok(()) } else { Err(errno::get()) }
}

/// Bytes that are written at once where they come in pieces.
const GATHERED_MAX: usize = 1 << 20;
/// Anybody may open it, and nobody has a reason to lock it.
const LOCKED: &CStr = c"/dev/full";
