//! `overside volume create`

use super::home;
use crate::args::Create;
use crate::output::{self, grouped};
use anyhow::{Context, Result, bail, ensure};
use overside::vault::home::{Creation, LayoutKind, Place};
use overside::verbs::{Clock, SystemClock};
use serde_json::json;

/// Makes a volume.
///
/// # Errors
/// The name or a member is taken, the members make no volume, or a disk is full.
pub fn run(args: &Create) -> Result<()> {
    let layout = LayoutKind::parse(&args.layout)
        .with_context(|| format!("{} is not built yet; use raid1, which survives a member's loss too", args.layout))?;
    let is_striped = layout == LayoutKind::Stripes;
    ensure!(
        args.stripe.is_none() || is_striped,
        "--stripe means nothing without --layout raid0; give both, or neither"
    );
    let members = args.on.iter().map(|member| place(member)).collect::<Result<Vec<_>>>()?;
    let mut id = [0; 16];
    SystemClock.fill(&mut id)?;
    let stripe = if is_striped { args.stripe.unwrap_or(STRIPE_BYTES) as u64 } else { 0 };
    let creation = Creation { name: args.name.clone(), bytes: args.size as u64, members, layout, stripe, id };
    let home = home(&args.home)?;
    home.create(&creation)?;
    if args.json {
        let json = json!({
            "volume": args.name,
            "bytes": args.size,
            "layout": layout.name(),
            "members": args.on,
            "home": home.folder(),
        });
        return output::line(&json.to_string());
    }
    let (bytes, folder) = (grouped(args.size as u64), home.folder().display());
    output::line(&format!("{} of {bytes} bytes is made ({}); it is written down in {folder}", args.name, layout.name()))
}

/// What a member is.
fn place(text: &str) -> Result<Place> {
    ensure!(!text.is_empty(), "a member of --on is empty; write paths with commas between them");
    if text == "memory" {
        return Ok(Place::Memory);
    }
    let kind = text.split_once(':').map(|(kind, _)| kind);
    if let Some(kind) = kind.filter(|kind| OTHER_KINDS.contains(kind)) {
        bail!("members of the kind {kind}: are not built yet; use paths of files, or memory");
    }
    Ok(Place::File(text.into()))
}

/// What members may be one day. A file of such a name is ./NAME.
const OTHER_KINDS: [&str; 6] = ["memory", "shm", "tcp", "rdma", "spindle", "volatile"];
const STRIPE_BYTES: usize = 64 << 10;
