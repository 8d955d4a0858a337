//! `overside volume create`

use super::home;
use crate::args::{Create, bytes};
use crate::output::{self, grouped};
use anyhow::{Context, Result, anyhow, bail, ensure};
use overside::vault::home::{Creation, LayoutKind, Place};
use overside::verbs::{Clock, SystemClock};
use serde_json::json;

/// Makes a volume.
///
/// # Errors
/// The name or a member is taken, the members make no volume, or a disk is full.
pub fn run(args: &Create) -> Result<()> {
    let layout = LayoutKind::parse(&args.layout).context("there is no such layout")?;
    let is_striped = layout.is_striped();
    ensure!(
        args.stripe.is_none() || is_striped,
        "--stripe means nothing without --layout raid0 or raid5; give both, or neither"
    );
    let members = args.on.iter().map(|member| place(member)).collect::<Result<Vec<_>>>()?;
    let mut id = [0; 16];
    SystemClock.fill(&mut id)?;
    let stripe = if is_striped { args.stripe.unwrap_or(STRIPE_BYTES) as u64 } else { 0 };
    let creation = Creation { name: args.name.clone(), bytes: args.size as u64, members, layout, stripe, id };
    let home = home(&args.home)?;
    home.create(&creation, &SystemClock::handle())?;
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
        return Ok(Place::Memory(None));
    }
    match text.split_once(':') {
        Some(("memory", size)) => {
            let bytes = bytes(size).map_err(|why| anyhow!("memory:{size} is no member: {why}"))?;
            Ok(Place::Memory(Some(bytes as u64)))
        }
        Some(("volatile", rest)) => {
            let (seed, path) = rest.split_once(':').context("write volatile:SEED:PATH, as volatile:1:a.img")?;
            let seed =
                seed.parse().with_context(|| format!("{seed} is no seed; write a number, as volatile:1:a.img"))?;
            ensure!(!path.is_empty(), "volatile:{seed}: names no file; write volatile:SEED:PATH");
            Ok(Place::Volatile { seed, path: path.into() })
        }
        Some((kind, _)) if OTHER_KINDS.contains(&kind) => {
            bail!("members of the kind {kind}: are not built yet; use paths of files, memory or volatile:SEED:PATH")
        }
        _ => Ok(Place::File(text.into())),
    }
}

/// What members may be one day. A file of such a name is ./NAME.
const OTHER_KINDS: [&str; 4] = ["shm", "tcp", "rdma", "spindle"];
const STRIPE_BYTES: usize = 64 << 10;
