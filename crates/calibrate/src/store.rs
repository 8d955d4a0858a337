//! Stored profiles: what `overside calibrate` measured, for each user, host and device.
//!
//! `$XDG_DATA_HOME/overside/profiles/HOST/PROVIDER.DEVICE.profile` (`~/.local/share` without that
//! variable), in the text form of [`Profile`]. A file of another version, or with a field that is
//! no cost, is refused by the field's name.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use overside_disk::AtomicFile;
use overside_planner::Profile;

/// Where a user's profiles lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    directory: PathBuf,
}

/// Why a profile could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Neither XDG_DATA_HOME nor HOME says where.
    #[error("XDG_DATA_HOME and HOME are not set, so there is no place for profiles; set one of them")]
    Nowhere,
    /// The file cannot be read or written.
    #[error("{}: {reason}; check the path, its owner and the free space there", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The file is no profile.
    #[error("{}: {reason}", path.display())]
    Profile {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: overside_planner::ProfileError,
    },
}

impl Store {
    /// This user's, by `XDG_DATA_HOME` and `HOME`.
    ///
    /// # Errors
    /// [`StoreError::Nowhere`].
    pub fn of_user() -> Result<Store, StoreError> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
        Ok(Store::at(data.ok_or(StoreError::Nowhere)?.join("overside").join("profiles")))
    }

    /// In a directory, made when something is stored.
    pub fn at(directory: impl Into<PathBuf>) -> Store {
        Store { directory: directory.into() }
    }

    /// The file of a provider's profile on this host and device.
    pub fn path(&self, transport: &str) -> PathBuf {
        self.directory.join(host()).join(format!("{transport}.{}.profile", device()))
    }

    /// The stored profile; none when nothing is stored.
    ///
    /// # Errors
    /// When the file cannot be read, or is no profile of this version.
    pub fn load(&self, transport: &str) -> Result<Option<Profile>, StoreError> {
        match read(&self.path(transport)) {
            Ok(profile) => Ok(Some(profile)),
            Err(StoreError::File { reason, .. }) if reason.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores a profile in the place of the one before, whole or not at all.
    ///
    /// # Errors
    /// When the file cannot be written; the one before stays.
    pub fn save(&self, transport: &str, profile: &Profile) -> Result<PathBuf, StoreError> {
        let path = self.path(transport);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(&self.directory))?;
            let file = AtomicFile::create(&path)?;
            file.file().write_all(profile.to_string().as_bytes())?;
            file.publish()
        };
        match write() {
            Ok(_) => Ok(path),
            Err(reason) => Err(StoreError::File { path, reason }),
        }
    }
}

/// The profile in a file.
///
/// # Errors
/// When the file cannot be read, or is no profile of this version.
pub fn read(path: &Path) -> Result<Profile, StoreError> {
    let file = |reason| StoreError::File { path: path.to_owned(), reason };
    let known = fs::metadata(path).map_err(file)?;
    // Opening a pipe would wait for whoever writes to it, and a device has no end.
    if !known.is_file() {
        return Err(file(std::io::Error::other("is no regular file")));
    }
    if known.len() > FILE_BYTES_MAX {
        return Err(file(ErrorKind::FileTooLarge.into()));
    }
    let text = fs::read(path).map_err(file)?;
    // What is no text is no profile either, and says so as such.
    let profile = String::from_utf8_lossy(&text).parse();
    profile.map_err(|reason| StoreError::Profile { path: path.to_owned(), reason })
}

fn host() -> String {
    slug(&fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default(), "host")
}

/// The processor, which is what the soft providers' prices depend on.
fn device() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    slug(model.map_or("", |(_, name)| name), std::env::consts::ARCH)
}

/// `text` as it may stand in a file name; `without` where nothing of it may.
pub fn slug(text: &str, without: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let slug = words.collect::<Vec<_>>().join("-").to_lowercase();
    if slug.is_empty() { without.to_owned() } else { slug.chars().take(NAME_BYTES_MAX).collect() }
}

/// A profile has a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const NAME_BYTES_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_verbs::Provider;

    fn scratch(name: &str) -> Store {
        let directory = std::env::temp_dir().join(format!("overside-profiles-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        Store::at(directory)
    }

    fn profile() -> Profile {
        overside_shm::ShmProvider::new().unwrap().profile()
    }

    #[test]
    fn a_profile_is_found_where_it_was_stored() {
        let store = scratch("found");
        assert!(store.load("shm").unwrap().is_none());
        let path = store.save("shm", &profile()).unwrap();
        assert_eq!(path, store.path("shm"));
        assert_eq!(store.load("shm").unwrap(), Some(profile()));
        let other = Profile { row_ns: 77.0, ..profile() };
        store.save("shm", &other).unwrap();
        assert_eq!(store.load("shm").unwrap(), Some(other), "the one before is replaced");
        assert!(store.load("tcp").unwrap().is_none(), "a profile is of its provider");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        let _ = fs::remove_dir_all(&store.directory);
    }

    #[test]
    fn what_is_no_profile_is_said_and_measured_instead() {
        let store = scratch("damaged");
        let path = store.save("shm", &profile()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for (bad, says) in [
            (text.replace("profile = 4", "profile = 9"), "\"9\", this build reads 4"),
            (text.replace("profile = 4", "profile = 2"), "\"2\", this build reads 4"),
            (text.replacen("row_ns = 4", "row_ns = nan", 1), "row_ns is no cost"),
            ("\0\u{1}\u{2}".to_owned(), "first line"),
        ] {
            fs::write(&path, bad).unwrap();
            let error = store.load("shm").unwrap_err().to_string();
            assert!(error.contains(says) && error.contains(path.to_str().unwrap()), "{error}");
        }
        // Whoever opened a pipe there would wait for good.
        fs::remove_file(&path).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = store.load("shm").unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
        let _ = fs::remove_dir_all(&store.directory);
    }

    #[test]
    fn names_of_hosts_and_devices_are_file_names() {
        assert_eq!(slug("Intel(R) Xeon(R) Processor\n", "x"), "intel-r-xeon-r-processor");
        assert_eq!(slug("../..", "x"), "x");
    }
}
