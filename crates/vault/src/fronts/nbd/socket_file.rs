//! The file by which clients find the server: a Unix socket that only its owner may open.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A socket under a name, which goes with it.
#[derive(Debug)]
pub(super) struct SocketFile {
    socket: OwnedFd,
    path: PathBuf,
    /// Which file it was when it was made: device and inode.
    file: (u64, u64),
}

impl SocketFile {
    /// Listens at `path`. A socket that nobody listens on is replaced; anything else there stays.
    ///
    /// # Errors
    /// The text says what is in the way.
    pub(super) fn open(path: &Path) -> io::Result<SocketFile> {
        let address = SocketAddrUnix::new(path).map_err(|errno| match errno {
            Errno::NAMETOOLONG => io::Error::other("the path is too long for a socket; use a shorter one"),
            errno => errno.into(),
        })?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // One at a time looks whether somebody listens and takes the name.
        let folder = File::open(folder)?;
        rustix::fs::flock(&folder, FlockOperation::LockExclusive)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Before it has a name: there is no moment at which others may open it.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                clear(path)?;
                rustix::net::bind(&socket, &address)?;
            }
            bound => bound?,
        }
        rustix::net::listen(&socket, BACKLOG)?;
        let found = fs::symlink_metadata(path)?;
        Ok(SocketFile { socket, path: path.to_owned(), file: (found.dev(), found.ino()) })
    }

    /// A connection, if one waits.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Takes a dead server's socket away.
fn clear(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of this name; choose another one"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there; stop that one first")),
    }
}

impl AsFd for SocketFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_owner_may_open_it_and_it_goes_with_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let place = SocketFile::open(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = SocketFile::open(&path).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse, "{second}");
        assert!(path.exists(), "who was refused takes nothing away");
        drop(place);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind, as by a killed server");
        let place = SocketFile::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        assert_eq!(SocketFile::open(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(place);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine", "another file under the name stays");
        let long = folder.path().join("s".repeat(120));
        assert!(SocketFile::open(&long).unwrap_err().to_string().contains("shorter"));
    }
}
