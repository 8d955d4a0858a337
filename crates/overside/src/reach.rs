//! How a node gets to other nodes, whose volumes are members of its own.

use std::sync::Arc;
use std::time::Duration;

use overside_service::{SystemThreads, Threads};
use overside_vault::home::{Reach, RemoteVolume};
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
    fn attach(&self, remote: &RemoteVolume, options: LinkOptions) -> Result<Volume, String> {
        attach(remote, options).map_err(|error| error.to_string())
    }

    fn resize(&self, remote: &RemoteVolume, bytes: u64) -> Result<(), String> {
        resize(remote, bytes).map_err(|error| error.to_string())
    }

    fn threads(&self) -> Arc<dyn Threads> {
        Arc::new(SystemThreads)
    }
}

fn network(remote: &RemoteVolume) -> Result<Network, Error> {
    let address: Address = remote.address.parse()?;
    let key_file = remote.key_file.clone().filter(|_| address.transport().is_network);
    Ok(Network { key_file, ..Network::default() })
}

fn key(remote: &RemoteVolume) -> Result<Option<Key>, Error> {
    Ok(remote.access_key.as_deref().map(Key::from_file).transpose()?)
}

fn resize(remote: &RemoteVolume, bytes: u64) -> Result<(), Error> {
    let (what, key) = (Alteration::Resize { bytes }, key(remote)?);
    let node = at(remote.address.as_str()).network(&network(remote)?);
    node.node_change(&remote.volume, what, key.as_ref(), PATIENCE).map(drop)
}

fn attach(remote: &RemoteVolume, options: LinkOptions) -> Result<Volume, Error> {
    let (network, key) = (network(remote)?, key(remote)?);
    at(remote.address.as_str()).network(&network).volume(&remote.volume, LinkOptions { key, ..options })
}

/// A node that makes a volume larger may have to ask others.
const PATIENCE: Duration = Duration::from_secs(60);
