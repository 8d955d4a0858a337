//! Table servers of figures, which are processes of their own, and clients of them in
//! the process that measures.

pub(super) mod clients;
pub(super) mod echo;
pub(super) mod reading;
pub(super) mod server;

use anyhow::Result;
use std::ffi::OsString;

/// The role of these servers.
pub(super) const ROLE: &str = "figure-tables";

/// A server's process.
pub(super) fn serve(arguments: &[OsString]) -> Result<()> {
    match arguments {
        [role, arguments @ ..] if role == SERVE => server::serve(arguments),
        [role, arguments @ ..] if role == ECHO => echo::serve(arguments),
        _ => anyhow::bail!("no such process of a figure"),
    }
}

const SERVE: &str = "serve";
const ECHO: &str = "echo";
