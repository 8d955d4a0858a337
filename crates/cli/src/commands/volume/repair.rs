//! `overside volume repair`

use super::home;
use crate::args::RepairVolume;
use crate::output::{self, Progress, grouped};
use anyhow::Result;
use overside::verbs::SystemClock;
use serde_json::json;

/// Brings members up to date that have missed writes.
///
/// # Errors
/// The volume is being served, no member has all writes, or a disk fails.
pub fn run(args: &RepairVolume) -> Result<()> {
    let mut progress = None;
    let mended = home(&args.home)?.repair(&args.name, &SystemClock::handle(), |copied, of| {
        let progress = progress.get_or_insert_with(|| Progress::new("copying", of));
        progress.at(copied, || format!("{} bytes", grouped(copied)));
    })?;
    drop(progress);
    if args.json {
        return output::line(&json!({ "volume": args.name, "repaired": mended }).to_string());
    }
    if mended.is_empty() {
        return output::line(&format!("all members of {} are current", args.name));
    }
    mended.iter().try_for_each(|path| output::line(&format!("{} has all of {} now", path.display(), args.name)))
}
