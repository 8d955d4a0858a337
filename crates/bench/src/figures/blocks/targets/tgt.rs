//! tgt, the target of iSCSI that runs at user level, where it is installed.

use super::iscsi::Iscsi;
use crate::figures::{
    oltp::place::program_at,
    sockets::{
        installed::free_port,
        keeper::{Keeper, Launch},
    },
};
use anyhow::{Context, Result, ensure};
use rustix::process::geteuid;
use std::{
    fs::{self, File},
    path::PathBuf,
};

/// When a write has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// When the page cache has it.
    Cached,
    /// When the disk has it, past the page cache.
    Through,
}

/// What a target leaves that is killed, removed in the end.
pub(super) struct Leaves(String);

impl Drop for Leaves {
    fn drop(&mut self) {
        for end in ["", ".lock"] {
            let _ = fs::remove_file(format!("/var/run/tgtd/socket.{}{end}", self.0));
        }
    }
}

/// A target with one disk of `bytes`, and a session.
pub(super) fn start(keeper: &mut Keeper, bytes: u64, writes: Writes) -> Result<(u32, Iscsi, Leaves)> {
    let lacks = "is not installed; Debian's package tgt has it";
    let (program, control) = (program_at("tgtd").context(lacks)?, program_at("tgtadm").context(lacks)?);
    ensure!(geteuid().is_root(), "runs as root alone");
    let file = keeper.folder().join("tgt.img");
    File::create(&file)?.set_len(bytes)?;
    let port = free_port()?;
    // Its name among this host's targets, of fifteen bits.
    let number = (port & 0x7fff).to_string();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let leaves = Leaves(number.clone());
    let arguments = words(&["-f", "-C", &number, "--iscsi", &format!("portal=127.0.0.1:{port}")]);
    let says = keeper.folder().join("tgtd-says");
    let stays = Some((says.clone(), KILL));
    let pid = keeper.serve(&Launch { program, arguments, stays, ..Launch::default() })?;
    let order = |more: &[&str]| {
        let arguments = [words(&["-C", &number, "--lld", "iscsi"]), words(more)].concat();
        Launch { program: PathBuf::from(&control), arguments, ..Launch::default() }
    };
    keeper
        .until_it_succeeds(&order(&["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET]))
        .with_context(|| fs::read_to_string(&says).unwrap_or_default().trim().to_owned())?;
    for pair in SETTINGS {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        keeper.must(&order(&["--op", "update", "--mode", "target", "--tid", "1", "-n", name, "-v", value]))?;
    }
    let file = file.display().to_string();
    let mut disk = vec!["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &file];
    if writes == Writes::Through {
        disk.extend(["--bsoflags", "sync:direct"]);
    }
    keeper.must(&order(&disk))?;
    keeper.must(&order(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "127.0.0.1"]))?;
    Ok((pid, Iscsi::connect(port, TARGET)?, leaves))
}

const TARGET: &str = "iqn.2026-01.overside:target";
/// The longest request of the figure in one part, so that nothing is asked for twice.
const SETTINGS: [&str; 6] = [
    "InitialR2T=No",
    "ImmediateData=Yes",
    "MaxRecvDataSegmentLength=262144",
    "MaxXmitDataSegmentLength=262144",
    "FirstBurstLength=262144",
    "MaxBurstLength=262144",
];
/// It takes no notice of a request to end.
const KILL: i32 = 9;
