//! Overside: a user-level I/O stack for databases. Declare what to send; Overside decides how.
//!
//! - [`Channel`]: declare a region of memory, see the plan and its prices, send it.
//! - [`Fan`]: declare what each of several receivers gets of one memory, and read that memory once.
//! - [`calibrate`], [`prices`]: what things cost on this device, measured once and stored.
//! - [`serve`] and [`connect`]: an in-memory table store with bulk scans, and its client.
//! - The layers themselves, for engine authors: [`shape`], [`planner`], [`memory`], [`verbs`], [`transfer`], [`bwtree`],
//!   [`service`], [`table`].
//!
//! An address says which provider carries the bytes: `shm:NAME` for processes of one host, `tcp:HOST:PORT` for processes
//! of any, `rdma:HOST:PORT` for those with an RDMA device ([`rdma_devices`]).
#![forbid(unsafe_code)]

mod address;
mod channel;
mod declared;
mod endpoint;
mod fan;
pub mod prices;

pub use overside_bwtree as bwtree;
pub use overside_calibrate as calibrate;
pub use overside_memory as memory;
pub use overside_planner as planner;
pub use overside_service as service;
pub use overside_shape as shape;
pub use overside_table as table;
pub use overside_transfer as transfer;
pub use overside_verbs as verbs;

pub use address::{Address, AddressError, Network};
pub use channel::{Batch, Channel, Gate, Message, RECEIVE_BYTES};
pub use declared::Declared;
pub use fan::Fan;
pub use overside_ibv::{Device, DevicePort, devices as rdma_devices};
pub use overside_planner::Way;
pub use prices::Prices;

use table::client::{Client, ClientError, ClientOptions};
use table::server::{ListenerConfig, Server, ServerOptions};

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
    /// A fan was given more or fewer shapes than it has destinations.
    #[error("shapes: {shapes} for {destinations} destinations; give one for each, in the order of their addresses")]
    Shapes {
        /// How many were given.
        shapes: usize,
        /// How many there must be.
        destinations: usize,
    },
    /// A region cannot be sent as asked.
    #[error(transparent)]
    Plan(#[from] planner::PlanError),
    /// The table client failed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Starts a table server on every address; it serves in the background until it is dropped. Each transport has its own
/// prices: the stored ones, else its provider's.
///
/// # Errors
/// When an address is malformed or taken.
pub fn serve(addresses: &[&str], options: ServerOptions) -> Result<Server, Error> {
    serve_over(addresses, options, &Network::default(), Prices::Known)
}

/// As [`serve`], with a key for what comes over a network, and with prices that may be measured first.
///
/// # Errors
/// As [`serve`], and when the key file is refused.
pub fn serve_over(
    addresses: &[&str],
    options: ServerOptions,
    network: &Network,
    prices: Prices,
) -> Result<Server, Error> {
    let addresses = addresses.iter().map(|a| a.parse()).collect::<Result<Vec<Address>, _>>()?;
    if addresses.is_empty() {
        return Err(AddressError::Form(String::new()).into());
    }
    let mut listeners: Vec<(address::Transport, ListenerConfig)> = Vec::new();
    for address in &addresses {
        let name = address.name().to_owned();
        match listeners.iter_mut().find(|(transport, _)| *transport == address.transport()) {
            Some((_, listener)) => listener.names.push(name),
            None => {
                let provider = address.provider_over(network)?;
                let profile = Some(prices.of(address, network, &provider)?);
                listeners.push((address.transport(), ListenerConfig { provider, names: vec![name], profile }));
            }
        }
    }
    Ok(Server::start_on(listeners.into_iter().map(|(_, listener)| listener).collect(), options)?)
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
    connect_over(address, options, &Network::default())
}

/// As [`connect_with`], with a key for what goes over a network.
///
/// # Errors
/// As [`connect`], and when the key file is refused or the server has another key.
pub fn connect_over(address: &str, options: ClientOptions, network: &Network) -> Result<Client, Error> {
    let address: Address = address.parse()?;
    let posted = options.posted.or_else(|| address.receives());
    let options = ClientOptions { posted, ..options };
    Ok(Client::connect_with(address.provider_over(network)?, address.name(), options)?)
}
