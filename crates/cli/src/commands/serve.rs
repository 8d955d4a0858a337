//! `overside serve`

use super::dump::recovering;
use crate::args::{PageSize, Serve};
use crate::output::{self, Progress};
use crate::signals::Doorbell;
use anyhow::{Context, Result, bail};
use overside::calibrate::Effort;
use overside::table::server::{DataOptions, Notices, OnFailure, Server, ServerOptions};
use overside::{Address, Network, Prices, prices};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Serves until a signal comes.
///
/// # Errors
/// An address is malformed or taken; or the server could not go on.
pub fn run(args: &Serve) -> Result<()> {
    let mut options = usual(args)?;
    options.notices = Some(Notices::new(|line| {
        // Nobody may be listening there.
        let _ = writeln!(std::io::stderr(), "{line}");
    }));
    // Before anything is served, so that no signal finds the server without its end prepared.
    let doorbell = Doorbell::new()?;
    let failure = Failure::default();
    options.on_failure = Some(failure.watch(&doorbell)?);
    if let Some(dir) = &args.data {
        let usual = DataOptions::new(dir);
        options.data = Some(DataOptions {
            durability: args.durability,
            group: args.group_ms.map_or(usual.group, |ms| Duration::from_millis(ms.into())),
            salvage: args.salvage,
            on_progress: Some(recovering()),
            ..usual
        });
    }
    let addresses: Vec<&str> = args.listen.iter().map(String::as_str).collect();
    let network = args.network.network();
    let serving = overside::at_each(addresses.iter().copied()).network(&network);
    let serving = serving.prices(Prices::Measured(Effort::Quick));
    // A directory that cannot be used is refused before anything is measured.
    let recovered = doorbell.or_interrupted("nothing in the data directory is lost", || serving.recover(options))??;
    let measuring = measuring(&addresses, &network);
    let server = recovered.serve()?;
    drop(measuring);
    for lost in server.recovery().into_iter().flat_map(|recovery| &recovery.losses) {
        // Nobody may be listening there.
        let _ = writeln!(std::io::stderr(), "lost: {lost}");
    }
    for address in addresses.iter().filter(|address| network.anyone && is_network(address)) {
        // Nobody may be listening there.
        let _ =
            writeln!(std::io::stderr(), "every user of this host may connect to {address}, read and change (--anyone)");
    }
    if args.json {
        output::line(
            &json!({ "listening": addresses, "pid": std::process::id(), "data": data(args, &server) }).to_string(),
        )?;
    } else {
        for address in &addresses {
            output::line(&format!("listening on {address}"))?;
        }
    }
    doorbell.wait();
    server.shutdown();
    failure.check()?;
    if !args.json {
        output::line(
            match &args.data {
                None => "ended; the tables are gone".to_owned(),
                Some(dir) => format!("ended; the tables are in {}", dir.display()),
            }
            .as_str(),
        )?;
    }
    Ok(())
}

/// What does not concern a data directory.
fn usual(args: &Serve) -> Result<ServerOptions> {
    if args.pages == Some(PageSize::Small) {
        // For all that this process maps from here on, shared memory included.
        rustix::thread::disable_transparent_huge_pages(true).context("the kernel does not choose the size of pages")?;
    }
    let (chain_max, one_sided) = (args.chain_max.map(usize::from), args.one_sided);
    let mut options = ServerOptions { chain_max, one_sided, ..ServerOptions::default() };
    if let Some(memory) = args.memory {
        options.memory_max = memory;
    }
    if let Some(connections) = args.max_connections {
        options.connections_max = connections as usize;
    }
    if let Some(workers) = args.workers {
        options.workers = workers.into();
    }
    Ok(options)
}

/// Whether other users could be let in there.
fn is_network(address: &str) -> bool {
    address.parse().is_ok_and(|address: Address| address.transport().is_network)
}

/// What the server found in its directory.
fn data(args: &Serve, server: &Server) -> Value {
    let (Some(dir), Some(recovered)) = (&args.data, server.recovery()) else { return Value::Null };
    json!({
        "dir": dir,
        "durability": args.durability.name(),
        "rows": recovered.rows,
        "adopted_rows": recovered.adopted_rows,
        "adopt_ms": recovered.adopt_took.as_millis() as u64,
        "replayed": recovered.replayed,
        "replay_ms": recovered.replay_took.as_millis() as u64,
        "cut_bytes": recovered.cut_bytes,
        "recovered_ms": recovered.took.as_millis() as u64,
    })
}

/// Says that prices are to be measured before anything is served, if that is so: it takes a second
/// or two, and more on a busy machine.
fn measuring(addresses: &[&str], network: &Network) -> Progress {
    let unknown = |address: &&str| address.parse().is_ok_and(|address: Address| !prices::is_stored(&address, network));
    if !addresses.iter().any(unknown) {
        return Progress::none();
    }
    let what = "measuring what transfers cost before listening; `overside calibrate` would store that";
    Progress::waiting(what)
}

/// Why the server could not go on, if it could not.
#[derive(Default)]
struct Failure(Arc<OnceLock<String>>);

impl Failure {
    /// What the server is to tell of it; that rings, too.
    fn watch(&self, doorbell: &Doorbell) -> Result<OnFailure> {
        let (first, ringer) = (self.0.clone(), doorbell.ringer()?);
        Ok(OnFailure::new(move |why| {
            let _ = first.set(why.to_owned());
            ringer.ring();
        }))
    }

    /// The command fails as the server did.
    fn check(&self) -> Result<()> {
        match self.0.get() {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_go_on_ends_the_command_with_its_reason() {
        let doorbell = Doorbell::new().unwrap();
        let failure = Failure::default();
        let told = failure.watch(&doorbell).unwrap();
        assert!(failure.check().is_ok());
        std::thread::spawn(move || {
            told.tell("the first reason");
            told.tell("another");
        });
        doorbell.wait();
        assert_eq!(failure.check().unwrap_err().to_string(), "the first reason");
    }
}
