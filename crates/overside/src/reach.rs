//! How a node gets to other nodes, whose volumes are members of its own.

use std::sync::Arc;
use std::time::Duration;

use overside_service::{SystemThreads, Threads};
use overside_vault::home::{Reach, RemotePlace};
use overside_verbs::handshake::Key;
use overside_volume::client::{LinkOptions, Volume};
use overside_volume::wire::Alteration;

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

    fn resize(&self, place: &RemotePlace, bytes: u64) -> Result<(), String> {
        resize(place, bytes).map_err(|error| error.to_string())
    }

    fn threads(&self) -> Arc<dyn Threads> {
        Arc::new(SystemThreads)
    }
}

fn network(place: &RemotePlace) -> Result<Network, Error> {
    let address: Address = place.address.parse()?;
    let key_file = place.key_file.clone().filter(|_| address.transport().is_network);
    Ok(Network { key_file, ..Network::default() })
}

fn key(place: &RemotePlace) -> Result<Option<Key>, Error> {
    Ok(place.access_key.as_deref().map(Key::from_file).transpose()?)
}

fn resize(place: &RemotePlace, bytes: u64) -> Result<(), Error> {
    let (what, key) = (Alteration::Resize { bytes }, key(place)?);
    let node = at(place.address.as_str()).network(&network(place)?);
    node.node_change(&place.volume, what, key.as_ref(), PATIENCE).map(drop)
}

fn attach(place: &RemotePlace, options: LinkOptions) -> Result<Volume, Error> {
    let (network, key) = (network(place)?, key(place)?);
    at(place.address.as_str()).network(&network).volume(&place.volume, LinkOptions { key, ..options })
}

/// A node that makes a volume larger may have to ask others.
const PATIENCE: Duration = Duration::from_secs(60);
