//! The device that OVERSIDE_RDMA names, opened when the first connection may want it.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use overside_ibv::Nic;
use overside_verbs::ForkMark;
use overside_verbs::handshake::Key;

use crate::own;

/// A copy of what the environment says; null when it says nothing.
static ASKED: AtomicPtr<libc::c_char> = AtomicPtr::new(std::ptr::null_mut());
static OPENED: AtomicPtr<Opened> = AtomicPtr::new(std::ptr::null_mut());

/// What came of opening the device, in one process.
struct Opened {
    /// Tells a forked child, which needs one of its own.
    mark: ForkMark,
    found: Result<Means, &'static str>,
}

/// What a connection to another host needs.
#[derive(Debug)]
pub(crate) struct Means {
    pub(crate) nic: Nic,
    pub(crate) key: Key,
}

/// Looks whether the environment asks for it. At start-up; nothing is opened.
pub(crate) fn find() {
    // SAFETY: [preload-real] at start-up, before the program can change its environment; the copy is never freed.
    let copy = unsafe {
        let value = libc::getenv(VARIABLE.as_ptr());
        if value.is_null() || *value == 0 { std::ptr::null_mut() } else { libc::strdup(value) }
    };
    ASKED.store(copy, Ordering::Release);
}

/// Whether connections to other hosts may leave the kernel at all.
#[inline]
pub(crate) fn is_asked_for() -> bool {
    !ASKED.load(Ordering::Acquire).is_null()
}

/// The device and the key; or why there is none, the same for the whole life of the process.
pub(crate) fn means() -> Result<&'static Means, &'static str> {
    // SAFETY: [preload-remote] never freed.
    if let Some(opened) = unsafe { OPENED.load(Ordering::Acquire).as_ref() }.filter(|opened| !opened.mark.inherited()) {
        return opened.found.as_ref().map_err(|why| *why);
    }
    let mark = ForkMark::new().map_err(|_| "out of memory")?;
    let found = open().map_err(|why| &*Box::leak(why.into_boxed_str()));
    let opened = Box::leak(Box::new(Opened { mark, found }));
    OPENED.store(opened, Ordering::Release);
    opened.found.as_ref().map_err(|why| *why)
}

fn open() -> Result<Means, String> {
    let config = ASKED.load(Ordering::Acquire);
    if config.is_null() {
        return Err("OVERSIDE_RDMA is not set".to_owned());
    }
    // SAFETY: [preload-real] the copy that `find` made.
    let config = parsed(unsafe { CStr::from_ptr(config) }.to_bytes())?;
    let key = Key::from_file(Path::new(OsStr::from_bytes(config.key_file))).map_err(|e| e.to_string())?;
    let device = std::str::from_utf8(config.device).map_err(|_| FORM.to_owned())?;
    let mut nic = Nic::open(device).map_err(|e| e.to_string())?;
    // Numbers that the program expects are to stay free.
    // SAFETY: [ibv-object] it duplicates what it is given, in that order.
    unsafe { nic.move_descriptors(|[first, second]| Some([own::aside(first)?, own::aside(second)?])) };
    Ok(Means { nic, key })
}

/// The variable's parts.
#[derive(Debug, PartialEq, Eq)]
struct DeviceConfig<'a> {
    device: &'a [u8],
    key_file: &'a [u8],
}

fn parsed(text: &[u8]) -> Result<DeviceConfig<'_>, String> {
    let comma = text.iter().position(|byte| *byte == b',');
    let (device, rest) = text.split_at(comma.unwrap_or(text.len()));
    match rest.strip_prefix(b",key-file=") {
        Some(key_file) if !device.is_empty() && !key_file.is_empty() => Ok(DeviceConfig { device, key_file }),
        _ => Err(FORM.to_owned()),
    }
}

/// A name, and a key that both hosts have: without one anybody could ask to
/// write into this process.
const FORM: &str = "OVERSIDE_RDMA is to name a device and a key: DEVICE,key-file=FILE";
const VARIABLE: &CStr = c"OVERSIDE_RDMA";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_a_key_are_named() {
        assert_eq!(parsed(b"rxe0,key-file=/k"), Ok(DeviceConfig { device: b"rxe0", key_file: b"/k" }));
        for bad in ["rxe0", "", ",key-file=/k", "rxe0,key-file=", "rxe0,port=7", "rxe0,"] {
            assert!(parsed(bad.as_bytes()).unwrap_err().contains("key-file=FILE"), "{bad}");
        }
    }
}
