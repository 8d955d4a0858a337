//! Overside: a user-level I/O stack for databases. Declare what to send; Overside decides how.
//!
//! - [`Channel`]: declare a region of memory, see the plan and its prices, send it.
//! - [`serve`] and [`connect`]: an in-memory table store with bulk scans, and its client.
//! - The layers themselves, for engine authors: [`shape`], [`planner`], [`memory`], [`verbs`], [`bwtree`], [`table`].
//!
//! An address says which provider carries the bytes: `shm:NAME` for processes of one host.
#![forbid(unsafe_code)]

mod address;
mod channel;
mod declared;

pub use overside_bwtree as bwtree;
pub use overside_memory as memory;
pub use overside_planner as planner;
pub use overside_shape as shape;
pub use overside_table as table;
pub use overside_verbs as verbs;

pub use address::{Address, AddressError};
pub use channel::{Channel, Gate, Message, RECEIVE_BYTES};
pub use declared::{Declared, Way};

use table::client::{Client, ClientError, ClientOptions};
use table::server::{Server, ServerOptions};

/// What goes wrong at the facade.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address leads nowhere.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] verbs::VerbsError),
    /// The table client failed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Starts a table server on every address; it serves in the background until it is dropped. The device is
/// calibrated first, unless the options bring prices of their own.
///
/// # Errors
/// When an address is malformed or taken.
pub fn serve(addresses: &[&str], options: ServerOptions) -> Result<Server, Error> {
    let addresses = addresses.iter().map(|a| a.parse()).collect::<Result<Vec<Address>, _>>()?;
    let Some(first) = addresses.first() else {
        return Err(AddressError::Form(String::new()).into());
    };
    let names: Vec<&str> = addresses.iter().map(Address::name).collect();
    let provider = first.provider()?;
    if options.profile.is_none() {
        provider.calibrate()?;
    }
    Ok(Server::start(provider, &names, options)?)
}

/// Connects to a table server.
///
/// # Errors
/// When the address is malformed or nobody listens there.
pub fn connect(address: &str) -> Result<Client, Error> {
    connect_with(address, ClientOptions::default())
}

/// As [`connect`], with other buffers or patience.
///
/// # Errors
/// As [`connect`].
pub fn connect_with(address: &str, options: ClientOptions) -> Result<Client, Error> {
    let address: Address = address.parse()?;
    Ok(Client::connect_with(address.provider()?, address.name(), options)?)
}
