//! Files that appear under their names whole, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// A file that is written before it has its name. Until it is published, what stood under the name
/// stays as it is, and nothing is left behind whatever becomes of this process: the file has no
/// name at all. Where a file system knows no such files (`O_TMPFILE`) it has one beside its own,
/// `.NAME.PID.part`; dropping it takes that away, and if the process is killed, whoever next writes
/// `NAME` does.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    path: PathBuf,
    place: Target,
}

#[derive(Debug)]
enum Target {
    Unnamed,
    Part(PathBuf),
    /// A device or a pipe, which is written to as it is.
    There,
}

impl AtomicFile {
    /// Begins the file that is to be `path`.
    ///
    /// # Errors
    /// `path` is a folder or names nothing, or no file can be made beside it.
    pub fn create(path: &Path) -> io::Result<AtomicFile> {
        // A link stays a link: what it leads to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        match fs::metadata(&path) {
            Ok(there) if there.is_dir() => {
                return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a folder; name a file"));
            }
            Ok(there) if !there.is_file() => {
                let file = OpenOptions::new().write(true).open(&path)?;
                return Ok(AtomicFile { file, path, place: Target::There });
            }
            _ => {}
        }
        if path.file_name().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "names no file"));
        }
        sweep(&path);
        match unnamed(folder(&path)) {
            Some(file) => Ok(AtomicFile { file, path, place: Target::Unnamed }),
            None => AtomicFile::beside(path),
        }
    }

    /// With a name of its own.
    fn beside(path: PathBuf) -> io::Result<AtomicFile> {
        let part = part(&path);
        let file = OpenOptions::new().write(true).create_new(true).open(&part)?;
        // Says that somebody writes it. A file system without locks says it to nobody.
        let _ = file.try_lock();
        Ok(AtomicFile { file, path, place: Target::Part(part) })
    }

    /// The file, to be written to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, replacing one that was there. Returns its length in bytes.
    ///
    /// # Errors
    /// The device is full or failing; what stood under the name stays.
    pub fn publish(mut self) -> io::Result<u64> {
        if let Target::There = self.place {
            return Ok(self.file.metadata()?.len());
        }
        self.file.sync_data()?;
        let length = self.file.metadata()?.len();
        if let Target::Unnamed = self.place {
            match named(&self.file, &self.path) {
                Ok(()) => return Ok(length),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            // No call puts a file without a name in the place of another.
            let part = part(&self.path);
            named(&self.file, &part)?;
            self.place = Target::Part(part);
        }
        if let Target::Part(part) = &self.place {
            fs::rename(part, &self.path)?;
            self.place = Target::There;
        }
        Ok(length)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Target::Part(part) = &self.place {
            let _ = fs::remove_file(part);
        }
    }
}

/// A file without a name in this folder; none where the file system has no such files, or nothing
/// could name it later.
fn unnamed(folder: &Path) -> Option<File> {
    if !Path::new(DESCRIPTORS).exists() {
        return None;
    }
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::open(folder, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode).ok().map(File::from)
}

fn named(file: &File, path: &Path) -> io::Result<()> {
    let descriptor = format!("{DESCRIPTORS}/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    Ok(rustix::fs::linkat(CWD, descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn part(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

/// Takes away what killed processes left of this file.
fn sweep(path: &Path) {
    let Some(name) = path.file_name() else { return };
    let head = format!(".{}.", name.to_string_lossy());
    for entry in fs::read_dir(folder(path)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&head)?.strip_suffix(".part"));
        let left = number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
        // Who writes it has it locked.
        if left && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

const DESCRIPTORS: &str = "/proc/self/fd";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("overside-atomic-file-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn entries(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|name| name.into_string().unwrap()).collect()
    }

    fn ways() -> [fn(PathBuf) -> io::Result<AtomicFile>; 2] {
        [|path| AtomicFile::create(&path), AtomicFile::beside]
    }

    #[test]
    fn the_name_appears_with_the_whole_content_or_nothing_does() {
        for (number, create) in ways().into_iter().enumerate() {
            let folder = scratch(&format!("whole-{number}"));
            let path = folder.join("table.csv");
            for text in ["whole", "another"] {
                let before = fs::read(&path).ok();
                let half = create(path.clone()).unwrap();
                half.file().write_all(b"half").unwrap();
                assert_eq!(fs::read(&path).ok(), before);
                drop(half);
                let whole = create(path.clone()).unwrap();
                whole.file().write_all(text.as_bytes()).unwrap();
                assert_eq!(fs::read(&path).ok(), before);
                assert_eq!(whole.publish().unwrap(), text.len() as u64);
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
                assert_eq!(entries(&folder), ["table.csv"]);
            }
            assert!(create(folder.join("no/such/folder.csv")).is_err());
            fs::remove_dir_all(&folder).unwrap();
        }
        assert!(AtomicFile::create(&std::env::temp_dir()).is_err());
    }

    #[test]
    fn what_a_killed_process_left_is_taken_away_and_what_a_living_one_writes_is_not() {
        let folder = scratch("sweep");
        let path = folder.join("table.csv");
        for left in [".table.csv.17.part", ".table.csv.part", ".table.csv.x.part", ".other.csv.17.part"] {
            fs::write(folder.join(left), "left").unwrap();
        }
        let living = AtomicFile::beside(path.clone()).unwrap();
        AtomicFile::create(&path).unwrap().publish().unwrap();
        let own = format!(".table.csv.{}.part", std::process::id());
        let mut kept = [".other.csv.17.part", ".table.csv.part", ".table.csv.x.part", "table.csv", own.as_str()];
        kept.sort_unstable();
        assert_eq!(entries(&folder), kept);
        drop(living);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_link_leads_to_the_new_file_and_a_device_is_written_to() {
        let folder = scratch("link");
        let (path, link) = (folder.join("table.csv"), folder.join("link.csv"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let new = AtomicFile::create(&link).unwrap();
        new.file().write_all(b"new").unwrap();
        new.publish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(link.is_symlink());
        let null = AtomicFile::create(Path::new("/dev/null")).unwrap();
        null.file().write_all(b"gone").unwrap();
        null.publish().unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        fs::remove_dir_all(&folder).unwrap();
    }
}
