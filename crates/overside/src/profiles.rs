//! Stored profiles: what `overside calibrate` measured, for each user, host and device.
//!
//! `$XDG_DATA_HOME/overside/profiles/HOST/PROVIDER.DEVICE.profile` (`~/.local/share` without that variable), in the text form of
//! [`Profile`]. A file that is not there, of another version or damaged is no obstacle: the device is measured
//! quickly instead, and the profile's `source` says why.

use std::borrow::Cow;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use overside_disk::AtomicFile;
use overside_planner::Profile;
use overside_verbs::Provider;

use crate::calibrate::{Doubt, Effort, calibrate};
use crate::{Address, Error, Network};

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

/// A provider's prices here: the stored ones, else figures measured in a tenth of a second, once in this process, whose
/// source says why. `label` is what they are stored as: the transport, or what it is apart from that.
///
/// # Errors
/// When nothing is stored and there is no room to measure in.
pub(crate) fn of(label: &str, provider: &Arc<dyn Provider>) -> Result<Profile, Error> {
    with(label, provider, Effort::Quick)
}

/// What the prices of what goes over `address` are stored as.
pub fn label(address: &Address, network: &Network) -> Cow<'static, str> {
    address.label(network)
}

/// Whether prices of what goes over `address` are stored; else who serves or sends there measures some first.
pub fn is_stored(address: &Address, network: &Network) -> bool {
    Store::of_user().and_then(|store| store.load(&label(address, network))).is_ok_and(|profile| profile.is_some())
}

/// As the library prices what goes over `address`; measured with care where nothing is stored, once in this process, which
/// takes some seconds.
///
/// # Errors
/// When nothing is stored and there is no room to measure in.
pub fn careful(address: &Address, network: &Network, provider: &Arc<dyn Provider>) -> Result<Profile, Error> {
    with(&address.label(network), provider, Effort::Full)
}

fn with(label: &str, provider: &Arc<dyn Provider>, effort: Effort) -> Result<Profile, Error> {
    let profile = found(label, provider, effort)?;
    provider.learn(&profile);
    Ok(profile)
}

fn found(label: &str, provider: &Arc<dyn Provider>, effort: Effort) -> Result<Profile, Error> {
    /// By label and effort. Held while measuring: two calibrations at once would measure each other.
    static MEASURED: Mutex<Vec<(String, Effort, Profile)>> = Mutex::new(Vec::new());
    let note = match Store::of_user().and_then(|store| store.load(label)) {
        Ok(Some(profile)) => return Ok(profile),
        Ok(None) => "no profile is stored: run `overside calibrate`".to_owned(),
        Err(error) => format!("the stored profile is not used: {error}"),
    };
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., known)) = measured.iter().find(|(of, with, _)| *of == label && *with == effort) {
        return Ok(known.clone());
    }
    let transport = label.split('-').next().unwrap_or(label);
    let found = match effort {
        Effort::Quick => quick(provider.profile(), || {
            let found = calibrate(transport, provider, effort, &mut |_| true)?;
            let doubt = found.quick_doubt();
            Ok((found.profile, doubt))
        })?,
        Effort::Full => steadiest(provider.profile(), || {
            let found = calibrate(transport, provider, effort, &mut |_| true)?;
            let doubt = found.doubt();
            Ok((found.profile, doubt))
        })?,
    };
    let profile = Profile { source: format!("{}; {note}", found.source), ..found };
    measured.push((label.to_owned(), effort, profile.clone()));
    Ok(profile)
}

/// A quick calibration that nobody disturbed, else the provider's own figures: what is started beside busy programs must not take
/// its wait for a processor as the price of a message, for as long as it runs.
fn quick(
    known: Profile,
    mut measure: impl FnMut() -> Result<(Profile, Option<Doubt>), Error>,
) -> Result<Profile, Error> {
    let mut disturbed = None;
    for _ in 0..QUICK_TRIES {
        match measure()? {
            (found, None) => return Ok(found),
            (_, doubt) => disturbed = doubt,
        }
    }
    let why = disturbed.map_or_else(String::new, |doubt| format!(", since {doubt}"));
    Ok(Profile { source: format!("{}{why}", known.source), ..known })
}

/// A careful calibration that nothing speaks against, else the steadiest of a few that nobody disturbed; else the provider's own figures.
fn steadiest(
    known: Profile,
    mut measure: impl FnMut() -> Result<(Profile, Option<Doubt>), Error>,
) -> Result<Profile, Error> {
    let (mut best, mut why): (Option<(f64, Profile)>, _) = (None, String::new());
    for _ in 0..CAREFUL_TRIES {
        let (found, doubt) = measure()?;
        let Some(doubt) = doubt else { return Ok(found) };
        if let Doubt::Unsteady { median, .. } = doubt
            && best.as_ref().is_none_or(|(least, _)| median < *least)
        {
            best = Some((median, Profile { source: format!("{}, though {doubt}", found.source), ..found }));
        }
        why = format!(", since {doubt}");
    }
    Ok(best.map_or_else(|| Profile { source: format!("{}{why}", known.source), ..known }, |(_, found)| found))
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

/// What may stand in a file name.
pub(crate) fn slug(text: &str, without: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let slug = words.collect::<Vec<_>>().join("-").to_lowercase();
    if slug.is_empty() { without.to_owned() } else { slug.chars().take(NAME_BYTES_MAX).collect() }
}

/// A profile has a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const NAME_BYTES_MAX: usize = 80;
/// A tenth of a second each.
const QUICK_TRIES: usize = 3;
/// Some ten seconds each.
const CAREFUL_TRIES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Store {
        let directory = std::env::temp_dir().join(format!("overside-profiles-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        Store::at(directory)
    }

    fn profile() -> Profile {
        overside_shm::ShmProvider::new().unwrap().profile()
    }

    #[test]
    fn what_others_disturbed_is_measured_again_and_then_not_believed() {
        let wrong = Profile { send_request_ns: 1e6, ..profile() };
        let right = Profile { send_request_ns: 321.0, ..profile() };
        let doubt = Some(Doubt::Disturbed { points: 20, of: 25 });
        let mut calls = 0;
        let found = quick(profile(), || {
            calls += 1;
            Ok(if calls < 3 { (wrong.clone(), doubt) } else { (right.clone(), None) })
        });
        assert_eq!(found.unwrap(), right);
        let never = quick(profile(), || Ok((wrong.clone(), doubt))).unwrap();
        assert_eq!(never.send_request_ns, profile().send_request_ns);
        assert!(never.source.contains("other programs took processor time from 20 of 25"), "{}", never.source);
        assert!(quick(profile(), || Err(Error::Stopped)).is_err());
    }

    #[test]
    fn of_careful_ones_the_steadiest_is_taken_and_none_that_was_disturbed() {
        let of = |ns: f64| Profile { send_request_ns: ns, ..profile() };
        let unsteady = |median| Some(Doubt::Unsteady { median, p90: 0.5 });
        let disturbed = Some(Doubt::Disturbed { points: 20, of: 25 });
        for (doubts, taken, says) in [
            ([None, None], 100.0, None),
            ([disturbed, None], 101.0, None),
            ([unsteady(0.2), unsteady(0.1)], 101.0, Some("10 % apart")),
            ([unsteady(0.1), unsteady(0.2)], 100.0, Some("10 % apart")),
            ([unsteady(0.2), disturbed], 100.0, Some("20 % apart")),
            ([disturbed; 2], profile().send_request_ns, Some("20 of 25")),
        ] {
            let mut tries = doubts.into_iter().enumerate();
            let found = steadiest(profile(), || {
                let (at, doubt) = tries.next().unwrap();
                Ok((of(100.0 + at as f64), doubt))
            })
            .unwrap();
            assert_eq!(found.send_request_ns, taken, "{doubts:?}");
            assert!(
                says.map_or(found.source == profile().source, |says| found.source.contains(says)),
                "{}",
                found.source
            );
        }
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
            (text.replace("profile = 3", "profile = 9"), "\"9\", this build reads 3"),
            (text.replace("profile = 3", "profile = 2"), "\"2\", this build reads 3"),
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
