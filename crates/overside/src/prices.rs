//! What transfers to an address cost: by its transport and what else sets its prices apart.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use overside_calibrate::{Effort, Store, known, measured};
use overside_planner::Profile;
use overside_verbs::Provider;

use crate::{Address, Error, Network};

/// Which prices serve where none are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prices {
    /// The provider's own. Nothing is measured.
    Known,
    /// Measured first, once in this process. Say so to whoever waits for it.
    Measured(Effort),
}

impl Prices {
    /// Of what goes over `address`: the stored prices, else these.
    ///
    /// # Errors
    /// When there is no room to measure in.
    pub fn of(self, address: &Address, network: &Network, provider: &Arc<dyn Provider>) -> Result<Profile, Error> {
        let label = label(address, network);
        match self {
            Prices::Known => Ok(known(&label, provider)),
            Prices::Measured(effort) => {
                let here = unused(address.transport().name)?;
                Ok(measured(&label, provider, here.name(), effort)?)
            }
        }
    }
}

/// What the prices of what goes over `address` are stored as.
pub fn label(address: &Address, network: &Network) -> Cow<'static, str> {
    address.transport().label(network)
}

/// Whether prices of what goes over `address` are stored.
pub fn is_stored(address: &Address, network: &Network) -> bool {
    Store::of_user().and_then(|store| store.load(&label(address, network))).is_ok_and(|profile| profile.is_some())
}

/// An address on this host at which nobody listens, for a measurement.
///
/// # Errors
/// When this version does not have the transport.
pub fn unused(transport: &str) -> Result<Address, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (number, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
    Ok(Address::here(transport, &format!("overside-calibrate-{process}-{number}"))?)
}
