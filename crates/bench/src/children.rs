//! What this executable does when it is started as a process of a measurement.

use crate::{demo, figures, process};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;

/// Runs a process of the demo or of a figure; `arguments` are those after the hidden subcommand
/// ([`crate::SUBCOMMAND`]).
///
/// # Errors
///
/// The arguments are not this crate's own, or the process cannot do its part.
pub fn child_main(arguments: &[OsString]) -> Result<()> {
    let [role, parent, arguments @ ..] = arguments else {
        bail!("`{}` is for other commands; run `overside demo` or `overside bench`", crate::SUBCOMMAND);
    };
    process::die_with(parent)?;
    let role = role.to_str().context("the role is no text")?;
    let done = demo::child(role, arguments).or_else(|| figures::child(role, arguments));
    done.unwrap_or_else(|| bail!("there is no process {role:?}; run `overside demo` or `overside bench`"))
}
