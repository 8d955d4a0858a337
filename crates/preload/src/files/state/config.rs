//! Which volume the program's files lie on, as the environment says it, and how its node is
//! reached.

use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overside_ibv::IbvProvider;
use overside_shm::ShmProvider;
use overside_verbs::Provider;
use overside_verbs::handshake::Key;
use overside_volume::files::Preset;

use super::tell;

/// What the environment says.
pub(super) struct VolumeConfig {
    pub(super) preset: Preset,
    /// The folder below which files are made on the volume, without links.
    pub(super) prefix: Vec<u8>,
    pub(super) over: Over,
    /// The file of the volume's key, where its node asks for one.
    pub(super) access_key: Option<PathBuf>,
    pub(super) node: String,
    pub(super) volume: String,
    pub(super) group: u64,
}

/// How the node is reached.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// On this host.
    Memory,
    /// By an RDMA device, the first with an active port where none is named, and the key in that
    /// file.
    Device { device: Option<String>, key_file: Option<PathBuf> },
}

impl VolumeConfig {
    /// Lines: preset, the transport of the node's address, the rest of that, volume, group, device,
    /// the key's file, that of the volume's key, folder.
    pub(super) fn parse(value: &[u8]) -> Option<VolumeConfig> {
        let mut lines = value.split(|byte| *byte == b'\n');
        let mut text = || std::str::from_utf8(lines.next()?).ok();
        let preset = Preset::parse(text()?)?;
        let transport = text()?;
        let (node, volume, group) = (text()?.to_owned(), text()?.to_owned(), u64::from_str_radix(text()?, 16).ok()?);
        let device = Some(text()?).filter(|device| !device.is_empty()).map(str::to_owned);
        let mut path = || {
            let line = lines.next()?;
            Some((!line.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(line))))
        };
        let (key_file, access_key) = (path()?, path()?);
        let over = match transport {
            "shm" if device.is_none() && key_file.is_none() => Over::Memory,
            "rdma" => Over::Device { device, key_file },
            _ => return None,
        };
        // The last one: a folder may be called anything.
        let mut prefix = lines.collect::<Vec<_>>().join(&b'\n');
        while prefix.last() == Some(&b'/') {
            prefix.pop();
        }
        Some(VolumeConfig { preset, prefix, over, access_key, node, volume, group })
    }
}

impl Over {
    /// A provider of this process's own: what a parent has opened is not its child's. The key is
    /// read each time, so that no program finds it in its environment.
    pub(super) fn provider(&self) -> Result<Arc<dyn Provider>, c_int> {
        let Over::Device { device, key_file } = self else {
            return Ok(ShmProvider::new().map_err(|_| libc::ENOMEM)?);
        };
        let key = key(key_file.as_deref())?;
        let options = overside_ibv::Options { device: device.clone(), key, ..Default::default() };
        let provider = IbvProvider::with_options(options).map_err(|_| {
            tell("attach", "this process cannot open the RDMA device");
            libc::EIO
        })?;
        Ok(provider)
    }
}

pub(super) fn key(file: Option<&Path>) -> Result<Option<Key>, c_int> {
    file.map(Key::from_file).transpose().map_err(|_| {
        tell("attach", "this process may not read the key file, or others may");
        libc::EIO
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_says_is_taken_or_refused() {
        let config = VolumeConfig::parse(b"sqlite\nshm\nvault\ndb\n1f\n\n\n/v\n/srv/a\nb//").unwrap();
        assert_eq!((config.preset, config.group, &config.prefix[..]), (Preset::Sqlite, 31, &b"/srv/a\nb"[..]));
        assert_eq!((config.over, &*config.node), (Over::Memory, "vault"));
        assert_eq!(config.access_key, Some(PathBuf::from("/v")));
        let config = VolumeConfig::parse(b"sqlite\nrdma\n10.0.0.1:7\ndb\n1\nrxe0\n/k\n\n/").unwrap();
        let (device, key_file) = (Some("rxe0".to_owned()), Some(PathBuf::from("/k")));
        assert_eq!((config.over, &*config.node), (Over::Device { device, key_file }, "10.0.0.1:7"));
        for wrong in [
            &b""[..],
            b"sqlite",
            b"sqlite\nshm\nvault\ndb\n1\n\n",
            b"other\nshm\nvault\ndb\n1\n\n\n\n/",
            b"sqlite\nshm\nvault\ndb\nx\n\n\n\n/",
            b"sqlite\nshm\nvault\ndb\n1\n\n/k\n\n/",
            b"sqlite\ntcp\n10.0.0.1:7\ndb\n1\n\n/k\n\n/",
        ] {
            assert!(VolumeConfig::parse(wrong).is_none());
        }
    }

    #[test]
    fn a_key_that_others_may_read_is_not_taken() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, (0..64u8).map(|i| i.wrapping_mul(97) ^ 0x5a).collect::<Vec<_>>()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let over = Over::Device { device: None, key_file: Some(path) };
        assert_eq!(over.provider().err(), Some(libc::EIO));
    }
}
