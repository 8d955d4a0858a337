//! A database whose files are on a volume: PostgreSQL as it is, under `overside run --volume`, with
//! a node of its user's.

use super::{
    Database, PORTS, Served, folder_bytes, image, node_words,
    place::{ControlGroup, Mounted},
    tpcc::Tpcc,
    words_of,
};
use crate::figures::sockets::keeper::Keeper;
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Copies the data onto a volume, and starts a database there.
pub(super) fn start(keeper: &mut Keeper, tpcc: &Tpcc, data: &Path, library: Option<&Path>) -> Result<Database> {
    let library =
        library.context("the library is not beside this executable; `cargo build --release` puts it there")?;
    // The database's user may not reach this executable where it lies.
    let own = program(keeper);
    fs::copy(env::current_exe().context("this program does not know where it lies")?, &own)?;
    fs::copy(library, own.with_file_name(library.file_name().context("a library without a name")?))?;
    let own = own.display().to_string();
    let folder = keeper.folder().to_owned();
    let user = tpcc.user();
    let owner = format!("{}:{}", user.0, user.1);
    let as_owner = |at: &Path, words: Vec<String>| {
        let gives = ["/bin/sh", "-c", GIVES, &owner, &at.display().to_string()].map(str::to_owned).to_vec();
        [gives, tpcc.as_user(), words].concat()
    };

    let size = (folder_bytes(data)? * 2).next_multiple_of(64 << 20);
    let disk = image(keeper, "files-node.img", size + size / 8 + (128 << 20))?;
    let (group, log, at) =
        (ControlGroup::new(keeper, "files")?, folder.join("files-node.log"), folder.join("files-node"));
    let address = format!("shm:overside-oltp-files-{}", std::process::id());
    let runs = as_owner(&at, node_words(&own, size, &at, &address, "--files postgresql"));
    let on = Mounted { from: &disk, at: &at, copied: None, group: &group, runs, log: &log, stops: Signal::TERM };
    let node = Served { process: on.start(keeper)?, address, user: Some(user) };
    node.is_there(keeper, &own).with_context(|| words_of(&log))?;
    let of_node = (group, Mounted::device(&log).context("the node's disk has no number")?);

    let disk = image(keeper, "files.img", 256 << 20)?;
    let (group, log, at) = (ControlGroup::new(keeper, "wdsa")?, folder.join("files.log"), folder.join("files-mount"));
    group.memory(super::MEMORY + SESSIONS)?;
    let to = at.join("data");
    let volume = format!("{}={}/{}", to.display(), node.address, super::VOLUME);
    let words = ["/bin/sh", "-c", RUN, &own, &volume, &data.display().to_string(), &to.display().to_string()];
    let runs = [words.map(str::to_owned).to_vec(), tpcc.server(&to, PORTS[2], SHARED)].concat();
    let runs = as_owner(&at, runs);
    let on = Mounted { from: &disk, at: &at, copied: None, group: &group, runs, log: &log, stops: Signal::INT };
    let process = on.start(keeper)?;
    // A volume takes a while to be written.
    let mut there = Ok(());
    for _ in 0..ATTEMPTS {
        there = tpcc.is_there(keeper, PORTS[2]);
        if there.is_ok() {
            break;
        }
    }
    if there.is_err() {
        // Whatever it does would be in the way of the others.
        group.kill();
    }
    there.with_context(|| words_of(&log))?;
    let own_disk = (group, Mounted::device(&log).context("the database's disk has no number")?);
    Ok(Database {
        process,
        port: PORTS[2],
        disks: vec![of_node, own_disk],
        attached: None,
        node: Some(node),
        log: None,
    })
}

/// Where the database's user finds this program.
pub(super) fn program(keeper: &Keeper) -> PathBuf {
    keeper.folder().join("overside")
}

/// Gives a folder away, and runs what is behind.
const GIVES: &str = r#"chown "$0" "$1" && shift && exec "$@""#;
/// Copies a folder onto a volume, and runs what is behind with its files there.
const RUN: &str = r#"set -e
own=$0 volume=$1 from=$2 to=$3
shift 3
mkdir -m 700 "$to"
"$own" run --volume "$volume" -- cp -a "$from/." "$to"
exec "$own" run --volume "$volume" -- "$@""#;
/// Memory of the processes' sessions with the node. The library takes none of the last 64 MiB that
/// a control group leaves: without these a process that comes later finds none for its session.
pub(super) const SESSIONS: u64 = 128 << 20;
/// There is no page cache below it for tables.
pub(super) const SHARED: &str = "64MB";
/// Of a minute each.
const ATTEMPTS: usize = 5;
