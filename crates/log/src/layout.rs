//! Names in a data directory.

/// Locked by the server that has the directory.
pub(crate) const LOCK: &str = "LOCK";
/// Says that this is a data directory, and which.
pub(crate) const IDENTITY: &str = "IDENTITY";
/// The same, until it is on the disk.
pub(crate) const IDENTITY_PART: &str = "IDENTITY.part";
/// Where salvage keeps what is not sound.
pub(crate) const SALVAGED: &str = "salvaged";
/// The folder of segments.
pub(crate) const LOG: &str = "log";
/// The folder of checkpoints.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// Ends the name of a segment that is not begun.
pub(crate) const SPARE: &str = ".spare";
/// Ends the name of a table's file of a checkpoint.
pub(crate) const PAGES: &str = ".pages";
/// Ends the name of what lists the tables of a checkpoint.
pub(crate) const MANIFEST: &str = ".manifest";
/// Ends the name of the same until it is on the disk.
pub(crate) const PART: &str = ".part";

pub(crate) fn segment(number: u64) -> String {
    format!("{LOG}/{number:016x}")
}

pub(crate) fn spare(number: u64) -> String {
    format!("{LOG}/{number:016x}{SPARE}")
}

pub(crate) fn pages(number: u64) -> String {
    format!("{CHECKPOINT}/{number:016x}{PAGES}")
}

pub(crate) fn manifest(number: u64) -> String {
    format!("{CHECKPOINT}/{number:016x}{MANIFEST}")
}

pub(crate) fn part(number: u64) -> String {
    format!("{CHECKPOINT}/{number:016x}{PART}")
}

/// The number in a name with this end, if it is one.
pub(crate) fn number(name: &str, end: &str) -> Option<u64> {
    let digits = name.rsplit('/').next()?.strip_suffix(end)?;
    let all = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    all.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
