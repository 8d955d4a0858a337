//! ext4 on a loop device over a file that a process serves, and a program that reads a file
//! there past the page cache.

use super::reader::{Found, Reader};
use crate::figures::oltp::place::program_at;
use anyhow::{Context, Result, ensure};
use rustix::process::geteuid;
use std::{fs, path::Path};

/// Makes the file system on `image`, and mounts it at `at` for the program
/// alone: the mount goes with it.
pub(super) fn start(image: &Path, at: &Path) -> Result<Reader> {
    ensure!(geteuid().is_root(), "a loop device needs root");
    for (program, package) in [("losetup", "mount"), ("mount", "mount"), ("mkfs.ext4", "e2fsprogs")] {
        ensure!(program_at(program).is_some(), "there is no {program}; install {package}");
    }
    ensure!(Path::new("/dev/loop-control").exists(), "there is no /dev/loop-control; `modprobe loop` makes it");
    let unshare = program_at("unshare").context("there is no unshare; install util-linux")?;
    fs::create_dir(at)?;
    let [unshare, image, folder] = [&unshare, image, at].map(|path| path.to_str().context("a path that is no text"));
    let by = [unshare?, "--mount", "--propagation", "private", "/bin/sh", "-c", MOUNT, "mount", image?, folder?];
    Reader::start(&by, Found::MakesDirect, &at.join("file"))
}

/// Its output is the line of the program. The loop device goes with the mount, however that ends.
const MOUNT: &str = r#"set -e
PATH=$PATH:/usr/sbin:/sbin image=$1 at=$2
shift 2
exec 3>&1 >&2
device=$(losetup --find --show --direct-io=on "$image")
trap 'losetup --detach "$device"' EXIT
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$device"
mount -o noatime "$device" "$at"
trap - EXIT
losetup --detach "$device"
exec "$@" >&3 3>&-"#;
