//! `overside volume`

mod attach;
mod bench;
mod change;
mod check;
mod create;
mod detach;
mod repair;
mod serve;
mod status;
mod trace;

use crate::args::{HomeDir, OneVolume, RequestOptions, Volume, VolumeCommand};
use anyhow::{Context, Result};
use overside::vault::home::Home;
use overside::verbs::handshake::Key;
use overside::volume::client::{self, LinkOptions, Registration};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Carries out what is asked of volumes.
///
/// # Errors
/// As each command.
pub fn run(args: &Volume) -> Result<()> {
    match &args.what {
        VolumeCommand::Create(args) => create::run(args),
        VolumeCommand::Serve(args) => serve::run(args),
        VolumeCommand::List(args) => status::list(args),
        VolumeCommand::Status(args) => status::run(args),
        VolumeCommand::Bench(args) => bench::run(args),
        VolumeCommand::Attach(args) => attach::run(args),
        VolumeCommand::Repair(args) => repair::run(args),
        VolumeCommand::Check(args) => check::run(args),
        VolumeCommand::Trace(args) => trace::run(args),
        VolumeCommand::Detach(args) => detach::run(args),
        VolumeCommand::Resize(args) => change::resize(args),
        VolumeCommand::Replace(args) => change::replace(args),
        VolumeCommand::Delete(args) => change::delete(args),
    }
}

/// The folder in which volumes are written down.
fn home(args: &HomeDir) -> Result<Home> {
    let home = match &args.home {
        Some(folder) => Home::open(folder)?,
        None => Home::of_user()?,
    };
    Ok(home.reaching(overside::reach()))
}

/// Attaches a volume with the key that its node may ask for.
fn attach(at: &OneVolume, options: LinkOptions) -> Result<client::Volume> {
    let (address, name) = named(&at.volume)?;
    let options = LinkOptions { key: at.access_key.as_deref().map(Key::from_file).transpose()?, ..options };
    Ok(overside::at(address).network(&at.network.network()).volume(name, options)?)
}

/// With what is said of the ways to the node.
fn going(ways: &RequestOptions, options: LinkOptions) -> LinkOptions {
    let fixed = |writes| Some(Registration { writes, by_price: false, ..Registration::default() });
    let registration = match &ways.data[..] {
        "copied" => None,
        "once" => fixed(u32::MAX),
        "each" => fixed(1),
        "regions" => fixed(Registration::default().writes),
        _ => Some(Registration::default()),
    };
    LinkOptions { registration, request_bytes_max: ways.max_request, ..options }
}

/// An address and a volume's name, of `ADDR/NAME`.
pub(super) fn named(text: &str) -> Result<(&str, &str)> {
    text.rsplit_once('/')
        .filter(|(_, name)| !name.is_empty())
        .with_context(|| format!("`{text}` names no volume; write ADDR/NAME, for example shm:vault/pg"))
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_the_way_of_bytes_are_the_librarys_ways() {
        let way = |data: &str| {
            going(&RequestOptions { data: data.into(), max_request: 1 << 20 }, LinkOptions::default()).registration
        };
        let fixed = |data| way(data).filter(|way| !way.by_price).map(|way| way.writes);
        assert_eq!((way("copied"), way("auto")), (None, Some(Registration::default())));
        assert_eq!(["once", "each", "regions"].map(fixed), [Some(u32::MAX), Some(1), Some(1000)]);
    }
}
