//! `overside volume attach`

use super::named;
use crate::args::Attach;
use crate::output::{self, grouped};
use crate::signals::{Doorbell, NO_THREAD};
use anyhow::{Context, Result};
use overside::vault::fronts::nbd::{NbdOptions, NbdServer, OneExport};
use overside::verbs::SystemClock;
use overside::volume::Device;
use overside::volume::client::LinkOptions;
use overside::volume::wire::Role;
use serde_json::json;
use std::time::Duration;

/// Attaches a volume and serves it to NBD clients until a signal comes.
///
/// # Errors
/// The node does not let this side in, or the socket cannot be made.
pub fn run(args: &Attach) -> Result<()> {
    // Before anything is attached, so that no signal finds it without its end prepared.
    let doorbell = Doorbell::new()?;
    let (address, name) = named(&args.volume)?;
    let path = args.nbd.as_deref().context("say where programs find it: --nbd unix:PATH")?;
    let role = match (args.read_only, args.take_over) {
        (true, _) => Role::Reader,
        (_, true) => Role::TakeOver,
        _ => Role::Writer,
    };
    let options = LinkOptions { role, give_up: args.give_up.map(Duration::from_secs), ..LinkOptions::default() };
    let volume = overside::at(address).network(&args.network.network()).volume(name, options)?;
    let (handle, geometry) = (volume.handle(), volume.geometry());
    let exports = Box::new(OneExport::new(name, Box::new(volume)));
    let server = NbdServer::bind(path, exports, SystemClock::handle(), NbdOptions::default())?;
    let stopper = server.stopper();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            doorbell.wait();
            stopper.notify();
        })
        .context(NO_THREAD)?;
    let uri = format!("nbd+unix:///{name}?socket={}", path.display());
    if args.json {
        let json = json!({
            "attached": args.volume,
            "nbd": uri,
            "pid": std::process::id(),
            "bytes": geometry.bytes,
            "read_only": geometry.read_only,
        });
        output::line(&json.to_string())?;
    } else {
        let how = if geometry.read_only { ", to be read only" } else { "" };
        output::line(&format!("{} of {} bytes is attached{how}: {uri}", args.volume, grouped(geometry.bytes)))?;
    }
    let mut exports = server.run()?;
    if let Ok(mut device) = exports.open(name) {
        // So that the next writer need not wait.
        handle.close(&mut *device, &SystemClock, GOODBYE_PATIENCE);
    }
    if !args.json {
        output::line("ended; what was acknowledged is the node's")?;
    }
    Ok(())
}

/// How long a node may take to hear that this client goes.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(2);
