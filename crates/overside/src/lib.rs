//! Overside: a user-level I/O stack for databases. Declare what to send; Overside decides how.
//!
//! - [`at`]: what is to be at an address, field by field: a channel, a listener, a scatter, a
//!   table's server or client.
//! - [`Channel`]: declare a region of memory, see the plan and its prices, send it.
//! - [`Scatter`]: declare what each of several receivers gets of one memory, and read that memory
//!   once.
//! - [`calibrate`], [`prices`]: what things cost on this device, measured once and stored.
//! - [`serve`] and [`connect`]: an in-memory table store with bulk scans, and its client.
//! - [`vault`] and [`volume`]: block volumes that a node serves, and their clients.
//! - The layers themselves, for engine authors: [`shape`], [`planner`], [`memory`], [`verbs`],
//!   [`transfer`], [`bwtree`], [`service`], [`table`].
//!
//! An address says which provider carries the bytes: each [`Transport`] has addresses of its own,
//! such as `shm:NAME` for processes of one host.
//!
//! `transport` is the one table that knows providers by name. `builder` refuses by the field's name
//! what no provider at that address could do.
//!
//! # Volumes, natively
//!
//! What the 15 calls of vi-attached-storage's cDSA do (§3.2), and by what:
//!
//! | call | here |
//! |---|---|
//! | open, close | [`Builder::volume`], [`volume::client::Volume::close`] |
//! | info | [`volume::Device::geometry`]; [`Builder::node_status`] |
//! | allocate | [`memory::Segment::shared`], which a node can read |
//! | read, write | [`volume::Device::submit`] of [`volume::Work::Read`], [`volume::Work::Write`] |
//! | both scattered | [`volume::Staged::submit_scattered`] |
//! | flush, discard, zero, hint | [`volume::Device::submit`] of their [`volume::Work`] |
//! | poll | [`volume::Device::poll`] |
//! | wait | [`volume::wait`]; [`volume::complete`] for one request alone |
//! | mode | [`volume::Waiter::new`] with [`volume::Completions`]; or [`volume::Device::arm`] |
//!
//! No constructor measures. What the builder makes plans by the stored profile, else by the
//! provider's own, whose `source` says so.
#![forbid(unsafe_code)]

mod address;
mod builder;
pub mod prices;
mod reach;
mod transport;

pub use overside_bwtree as bwtree;
pub use overside_calibrate as calibrate;
pub use overside_memory as memory;
pub use overside_planner as planner;
pub use overside_service as service;
pub use overside_shape as shape;
pub use overside_table as table;
pub use overside_transfer as transfer;
pub use overside_vault as vault;
pub use overside_verbs as verbs;
pub use overside_volume as volume;

pub use address::{Address, AddressError, Network};
pub use builder::{Builder, RecoveredServer, at, at_each};
pub use overside_ibv::{Device, DevicePort, devices as rdma_devices};
pub use overside_planner::Method;
pub use overside_transfer::{Batch, Buffers, Channel, Declared, Listener, Message, Scatter};
pub use prices::Prices;
pub use reach::reach;
pub use transport::Transport;

use table::client::{Client, ClientError, ClientOptions};
use table::server::{Server, ServerOptions};

/// What goes wrong at the facade.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address leads nowhere.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The key file is refused.
    #[error(transparent)]
    Key(#[from] verbs::handshake::KeyError),
    /// Nothing could be measured.
    #[error(transparent)]
    Calibrate(#[from] calibrate::Error),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] verbs::VerbsError),
    /// A channel, or a field of what is to be at an address.
    #[error(transparent)]
    Transfer(#[from] transfer::Error),
    /// The table client failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A volume cannot be attached.
    #[error(transparent)]
    Volume(#[from] volume::client::LinkError),
    /// A node does not say how it does.
    #[error(transparent)]
    Status(#[from] vault::server::StatusError),
    /// A volume is not changed.
    #[error(transparent)]
    Change(#[from] vault::server::ChangeError),
    /// The directory of a server's data cannot be used.
    #[error(transparent)]
    Data(#[from] table::server::DataError),
}

impl From<table::server::StartError> for Error {
    fn from(error: table::server::StartError) -> Error {
        match error {
            table::server::StartError::Verbs(error) => Error::Verbs(error),
            table::server::StartError::Data(error) => Error::Data(error),
        }
    }
}

/// Starts a table server on every address, without a key: [`Builder::serve`] of [`at_each`].
///
/// # Errors
/// When an address is malformed or taken, or other hosts can reach it.
pub fn serve(addresses: &[&str], options: ServerOptions) -> Result<Server, Error> {
    at_each(addresses.iter().copied()).serve(options)
}

/// Connects to a table server, without a key: [`Builder::client`] of [`at`].
///
/// # Errors
/// When the address is malformed or nobody listens there.
pub fn connect(address: &str) -> Result<Client, Error> {
    at(address).client(ClientOptions::default())
}
