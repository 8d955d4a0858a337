//! `overside volume create`

use super::{home, named};
use crate::args::{Create, MemberKeys, bytes};
use crate::output::{self, grouped};
use anyhow::{Context, Result, anyhow, ensure};
use overside::vault::home::{Creation, LayoutKind, MemberSpec, RemoteVolume};
use overside::vault::members::SpindleKind;
use overside::verbs::{Clock, SystemClock};
use overside::volume::files::Preset;
use overside::{Address, Transport};
use serde_json::json;
use std::path::PathBuf;

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
    let on = with_their_keys(&args.on)?;
    let members = on.iter().map(|member| member_spec(member, &args.keys)).collect::<Result<Vec<_>>>()?;
    let mut id = [0; 16];
    SystemClock.fill(&mut id)?;
    let stripe = if is_striped { args.stripe.unwrap_or(STRIPE_BYTES) as u64 } else { 0 };
    let files = args.files.as_deref().map(|name| Preset::parse(name).context("there is no such preset")).transpose()?;
    let creation = Creation { name: args.name.clone(), bytes: args.size as u64, members, layout, stripe, id, files };
    let home = home(&args.home)?;
    home.create(&creation, &SystemClock::handle())?;
    if args.json {
        let json = json!({
            "volume": args.name,
            "bytes": args.size,
            "layout": layout.name(),
            "members": on,
            "files": args.files,
            "home": home.folder(),
        });
        return output::line(&json.to_string());
    }
    let (bytes, folder) = (grouped(args.size as u64), home.folder().display());
    output::line(&format!("{} of {bytes} bytes is made ({}); it is written down in {folder}", args.name, layout.name()))
}

/// What was given of each member: its keys follow it.
fn with_their_keys(on: &[String]) -> Result<Vec<String>> {
    let mut members: Vec<String> = Vec::new();
    for text in on {
        if !KEYS.iter().any(|word| text.starts_with(word)) {
            members.push(text.clone());
            continue;
        }
        let of = members.last_mut().filter(|member| is_remote(member));
        let of = of.with_context(|| format!("{text} follows no volume of another node; write ADDR/VOLUME,{text}"))?;
        of.push(',');
        of.push_str(text);
    }
    Ok(members)
}

fn is_remote(member: &str) -> bool {
    member.split_once(':').is_some_and(|(kind, _)| Transport::names().any(|name| name == kind))
}

/// The member that a text names. Behind a volume of another node, its own keys may follow.
pub(super) fn member_spec(text: &str, keys: &MemberKeys) -> Result<MemberSpec> {
    ensure!(!text.is_empty(), "a member is empty; write the path of a file, or ADDR/VOLUME");
    if text == "memory" {
        return Ok(MemberSpec::Memory(None));
    }
    match text.split_once(':') {
        Some(("memory", size)) => {
            let bytes = bytes(size).map_err(|why| anyhow!("memory:{size} is no member: {why}"))?;
            Ok(MemberSpec::Memory(Some(bytes as u64)))
        }
        Some(("volatile", rest)) => {
            let (seed, path) = rest.split_once(':').context("write volatile:SEED:PATH, as volatile:1:a.img")?;
            let seed =
                seed.parse().with_context(|| format!("{seed} is no seed; write a number, as volatile:1:a.img"))?;
            ensure!(!path.is_empty(), "volatile:{seed}: names no file; write volatile:SEED:PATH");
            Ok(MemberSpec::Volatile { seed, path: path.into() })
        }
        Some(("spindle", rest)) => {
            let (kind, path) = rest.split_once(':').unwrap_or((rest, ""));
            let kind = SpindleKind::parse(kind).with_context(|| {
                format!("`{kind}` is no disk that turns; write spindle:10k:PATH or spindle:15k:PATH")
            })?;
            ensure!(!path.is_empty(), "spindle:{}: names no file; write spindle:{0}:PATH", kind.name());
            Ok(MemberSpec::Spindle { kind, path: path.into() })
        }
        Some(_) if is_remote(text) => {
            let mut words = text.split(',');
            let (address, volume) = named(words.next().unwrap_or_default())?;
            address.parse::<Address>()?;
            let mut own = [&keys.key_file, &keys.access_key].map(Clone::clone);
            for word in words {
                let found = (0..KEYS.len()).find_map(|at| Some((at, word.strip_prefix(KEYS[at])?)));
                let (at, file) = found.filter(|(_, file)| !file.is_empty()).with_context(|| {
                    format!("{word} is no key of a member; write ADDR/VOLUME,key-file=FILE,access-key=FILE")
                })?;
                own[at] = Some(file.into());
            }
            let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
            let (key_file, access_key) = (absolute(&own[0])?, absolute(&own[1])?);
            Ok(MemberSpec::Remote(RemoteVolume {
                address: address.into(),
                volume: volume.into(),
                key_file,
                access_key,
            }))
        }
        _ => Ok(MemberSpec::File(text.into())),
    }
}

/// A member's own keys: of its node, of its volume.
pub(super) const KEYS: [&str; 2] = ["key-file=", "access-key="];
const STRIPE_BYTES: usize = 64 << 10;
