//! `overside volume delete`

use super::home;
use crate::args::DeleteVolume;
use crate::output;
use anyhow::Result;
use serde_json::json;
use std::io::Write;

/// Deletes a volume and its members.
///
/// # Errors
/// There is none, or it is being served.
pub fn run(args: &DeleteVolume) -> Result<()> {
    let deleted = home(&args.home)?.delete(&args.name)?;
    for (path, why) in &deleted.left {
        // Nobody may be listening there.
        let _ = writeln!(std::io::stderr(), "{} stays: it {why}", path.display());
    }
    if args.json {
        let left: Vec<_> = deleted.left.iter().map(|(path, _)| path).collect();
        return output::line(&json!({ "volume": args.name, "deleted": deleted.gone, "left": left }).to_string());
    }
    output::line(&format!("{} is deleted, and {} files with it", args.name, deleted.gone.len()))
}
