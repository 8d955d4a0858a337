//! `overside volume resize`, `overside volume replace` and `overside volume delete`

use super::create::{KEYS, member_spec};
use super::{home, named};
use crate::args::{AnyVolume, DeleteVolume, MemberKeys, ReplaceMember, ResizeVolume};
use crate::output::{self, grouped};
use anyhow::{Result, ensure};
use overside::vault::home::{Home, HomeError, MemberSpec};
use overside::vault::server::{Keeper, Node, Reopened};
use overside::verbs::SystemClock;
use overside::verbs::handshake::Key;
use overside::volume::wire::Alteration;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Makes a volume larger.
///
/// # Errors
/// It is in use, is not to become so large, or a disk fails.
pub fn resize(args: &ResizeVolume) -> Result<()> {
    carry_out(&args.of, Alteration::Resize { bytes: args.size as u64 })
}

/// Puts another member in the place of one.
///
/// # Errors
/// It is in use, cannot do without the member, or the new one cannot be made.
pub fn replace(args: &ReplaceMember) -> Result<()> {
    let none = MemberKeys { key_file: None, access_key: None };
    let new = match member_spec(&args.new, &none)? {
        // The node may have another folder.
        MemberSpec::File(path) => MemberSpec::File(std::path::absolute(path)?).to_string(),
        MemberSpec::Volatile { seed, path } => {
            MemberSpec::Volatile { seed, path: std::path::absolute(path)? }.to_string()
        }
        MemberSpec::Spindle { kind, path } => {
            MemberSpec::Spindle { kind, path: std::path::absolute(path)? }.to_string()
        }
        MemberSpec::Remote(remote) => {
            let keys = KEYS.iter().zip([&remote.key_file, &remote.access_key]);
            let own = keys.filter_map(|(word, file)| Some(format!(",{word}{}", file.as_ref()?.display())));
            format!("{remote}{}", own.collect::<String>())
        }
        other => other.to_string(),
    };
    carry_out(&args.of, Alteration::Replace { old: args.old.clone(), new })
}

/// Deletes a volume and its members.
///
/// # Errors
/// There is none, or it is in use.
pub fn delete(args: &DeleteVolume) -> Result<()> {
    let AnyVolume { volume, home: folder, json, .. } = &args.of;
    if volume.contains('/') {
        return carry_out(&args.of, Alteration::Delete);
    }
    let deleted = home(folder)?.delete(volume, &SystemClock::handle())?;
    for (path, why) in &deleted.left {
        // Nobody may be listening there.
        let _ = writeln!(std::io::stderr(), "{} stays: it {why}", path.display());
    }
    if *json {
        let left: Vec<_> = deleted.left.iter().map(|(path, _)| path).collect();
        return output::line(&json!({ "volume": volume, "deleted": deleted.gone, "left": left }).to_string());
    }
    output::line(&format!("{volume} is deleted, and {} files with it", deleted.gone.len()))
}

fn carry_out(of: &AnyVolume, what: Alteration) -> Result<()> {
    let (name, text) = if of.volume.contains('/') {
        ensure!(of.home.home.is_none(), "--home is for volumes that no node serves; leave it out, or the address");
        let (address, name) = named(&of.volume)?;
        let key = of.access_key.as_deref().map(Key::from_file).transpose()?;
        let node = overside::at(address).network(&of.network.network());
        (name, node.node_change(name, what.clone(), key.as_ref(), PATIENCE)?)
    } else {
        (&of.volume[..], changed(&home(&of.home)?, &of.volume, &what, &keys(of))?)
    };
    if of.json {
        return output::line(&json!({ "volume": name, "done": text }).to_string());
    }
    output::line(&text)
}

fn keys(of: &AnyVolume) -> MemberKeys {
    MemberKeys { key_file: of.network.key_file.clone(), access_key: of.access_key.clone() }
}

/// Changes a volume that nobody serves; what was done.
fn changed(home: &Home, name: &str, what: &Alteration, keys: &MemberKeys) -> Result<String> {
    let clock = SystemClock::handle();
    Ok(match what {
        Alteration::Resize { bytes } => {
            home.resize(name, *bytes, &clock)?;
            format!("{name} has {} bytes", grouped(*bytes))
        }
        Alteration::Replace { old, new } => {
            let old = home.replace(name, old, &member_spec(new, keys)?, &clock)?;
            format!(
                "{new} is a member of {name} in the place of {old}, and gets what the others have once it is served"
            )
        }
        Alteration::Delete => {
            let deleted = home.delete(name, &clock)?;
            let left = deleted.left.iter().map(|(path, why)| format!("; {} stays: it {why}", path.display()));
            format!("{name} is deleted, and {} files with it{}", deleted.gone.len(), left.collect::<String>())
        }
    })
}

/// Changes a node's volumes in its home folder.
#[derive(Debug)]
pub struct HomeKeeper {
    /// The folder.
    pub home: Home,
    /// Adds a volume of it to a node.
    pub open: fn(&Home, &Arc<Node>, &str) -> Result<(), HomeError>,
}

impl Keeper for HomeKeeper {
    fn allows(&self, volume: &str, what: &Alteration) -> Result<(), String> {
        if *what == Alteration::Delete {
            return Ok(());
        }
        self.home.outlives_its_node(volume).map_err(|error| error.to_string())?;
        if let Alteration::Replace { new, .. } = what { self.is_place(new) } else { Ok(()) }
    }

    fn change(&self, node: &Arc<Node>, volume: &str, what: &Alteration) -> Result<String, String> {
        let done = self.changed(volume, what);
        if done.is_ok() && *what == Alteration::Delete {
            node.remove_failed(volume);
            return done;
        }
        match ((self.open)(&self.home, node, volume), done) {
            (Ok(()), done) => done,
            (Err(error), Ok(done)) => Err(format!("{done}; but it cannot be served: {error}")),
            (Err(_), Err(why)) => Err(why),
        }
    }

    fn replace(&self, volume: &str, old: &str, new: &str) -> (Result<String, String>, Reopened) {
        let done = self.changed(volume, &Alteration::Replace { old: old.to_owned(), new: new.to_owned() });
        let opened = self.home.open_volume(volume, &SystemClock::handle());
        (done, opened.map(|opened| (opened.device, opened.about)).map_err(|error| error.to_string()))
    }
}

impl HomeKeeper {
    fn changed(&self, volume: &str, what: &Alteration) -> Result<String, String> {
        let none = MemberKeys { key_file: None, access_key: None };
        changed(&self.home, volume, what, &none).map_err(|error| format!("{error:#}"))
    }

    /// Whoever may change a volume is not to make files all over the host, or to use its keys.
    fn is_place(&self, new: &str) -> Result<(), String> {
        let none = MemberKeys { key_file: None, access_key: None };
        let spec = member_spec(new, &none).map_err(|error| format!("{error:#}"))?;
        if let MemberSpec::Remote(remote) = &spec {
            let own = [&remote.key_file, &remote.access_key].into_iter().flatten();
            if let Some(file) = own.into_iter().find(|file| !self.home.has_key(file)) {
                return Err(format!(
                    "the node has no member with the key {}; give it with the node ended: `overside volume replace NAME OLD NEW`",
                    file.display()
                ));
            }
        }
        let Some(path) = spec.path() else { return Ok(()) };
        let folder: PathBuf = path.parent().map(Path::to_path_buf).unwrap_or_default();
        if path.is_absolute() && self.home.has_members_in(&folder) {
            return Ok(());
        }
        Err(format!(
            "the node has no member in {}; make it there with the node ended: `overside volume replace NAME OLD NEW`",
            folder.display()
        ))
    }
}

/// Members on other nodes may be slow.
const PATIENCE: Duration = Duration::from_secs(120);
