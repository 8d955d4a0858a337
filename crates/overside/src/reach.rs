//! How a node gets to other nodes, whose volumes are members of its own.

use std::sync::Arc;

use overside_service::{SystemThreads, Threads};
use overside_vault::home::{Reach, RemotePlace};
use overside_verbs::handshake::Key;
use overside_volume::client::{LinkOptions, Volume};

use crate::{Address, Error, Network, at};

/// Over every transport that this version has, with the keys that a member's place names.
pub fn reach() -> Arc<dyn Reach> {
    Arc::new(Everywhere)
}

#[derive(Debug)]
struct Everywhere;

impl Reach for Everywhere {
    fn attach(&self, place: &RemotePlace, options: LinkOptions) -> Result<Volume, String> {
        attach(place, options).map_err(|error| error.to_string())
    }

    fn threads(&self) -> Arc<dyn Threads> {
        Arc::new(SystemThreads)
    }
}

fn attach(place: &RemotePlace, options: LinkOptions) -> Result<Volume, Error> {
    let address: Address = place.address.parse()?;
    let key_file = place.key_file.clone().filter(|_| address.transport().is_network);
    let key = place.access_key.as_deref().map(Key::from_file).transpose()?;
    let network = Network { key_file, ..Network::default() };
    at(place.address.as_str()).network(&network).volume(&place.volume, LinkOptions { key, ..options })
}
