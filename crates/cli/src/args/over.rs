//! What the commands take that start both ends themselves.

use super::Cli;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory};
use overside::Transport;

/// Which provider, and which device of it.
#[derive(Clone, Debug, Args)]
pub struct Over {
    /// The transport between the processes.
    #[arg(long, value_name = "TRANSPORT", default_value = Transport::names().next(), value_parser = PossibleValuesParser::new(Transport::names()))]
    pub over: String,
    /// With --over rdma: the device, as `overside devices` names it. By default the first with an
    /// active port.
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Option<String>,
}

impl Over {
    /// Of the command of this name, what cannot be said in its definition.
    ///
    /// # Errors
    /// A device of a provider that has none.
    pub(super) fn check(&self, name: &str) -> Result<(), clap::Error> {
        if self.rdma_device.is_none() || Transport::of(&self.over).is_ok_and(|over| over.has_devices) {
            return Ok(());
        }
        Err(wrong(name, "--rdma-device names a device of --over rdma; give both, or neither"))
    }
}

/// A wrong command line of the command of this name, for what its definition cannot say.
pub(super) fn wrong(name: &str, reason: &str) -> clap::Error {
    let mut all = Cli::command();
    // The usage line has the whole command then.
    all.build();
    let mut command = all.find_subcommand(name).cloned().unwrap_or(all);
    command.error(ErrorKind::ArgumentConflict, reason)
}
