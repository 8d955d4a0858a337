//! `overside serve`

use crate::args::Serve;
use crate::output;
use crate::signals::Doorbell;
use anyhow::{Result, bail};
use overside::table::server::{Notices, OnFailure, ServerOptions};
use serde_json::json;
use std::io::Write;
use std::sync::{Arc, OnceLock};

/// Serves until a signal comes.
///
/// # Errors
/// An address is malformed or taken; or the server could not go on.
pub fn run(args: &Serve) -> Result<()> {
    let mut options = ServerOptions::default();
    if let Some(memory) = args.memory {
        options.memory_max = memory;
    }
    if let Some(connections) = args.max_connections {
        options.connections_max = connections as usize;
    }
    if let Some(workers) = args.workers {
        options.workers = workers.into();
    }
    options.notices = Some(Notices::new(|line| {
        // Nobody may be listening there.
        let _ = writeln!(std::io::stderr(), "{line}");
    }));
    // Before anything is served, so that no signal finds the server without its end prepared.
    let doorbell = Doorbell::new()?;
    let failure = Arc::new(OnceLock::new());
    options.on_failure = Some(OnFailure::new({
        let (failure, ringer) = (failure.clone(), doorbell.ringer()?);
        move |why| {
            let _ = failure.set(why.to_owned());
            ringer.ring();
        }
    }));
    let addresses: Vec<&str> = args.listen.iter().map(String::as_str).collect();
    let server = overside::serve_over(&addresses, options, &args.network.network())?;
    if args.json {
        output::line(&json!({ "listening": addresses, "pid": std::process::id() }).to_string())?;
    } else {
        for address in &addresses {
            output::line(&format!("listening on {address}"))?;
        }
    }
    doorbell.wait();
    server.shutdown();
    if let Some(why) = failure.get() {
        bail!("{why}");
    }
    if !args.json {
        output::line("ended; the tables are gone")?;
    }
    Ok(())
}
