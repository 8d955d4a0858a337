//! Where somebody is, and which provider gets there.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use overside_verbs::Provider;
use overside_verbs::handshake::{Key, KeyError};

use crate::{Error, Transport};

/// `TRANSPORT:NAME`, where the transport says how names are written ([`Transport::form`]): a word
/// for processes of one host, `HOST:PORT` for processes anywhere. Those with an RDMA device find
/// each other by a TCP address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    transport: &'static Transport,
    name: String,
}

/// What connections over a network need besides an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// A file with the key that both sides have: 32 to 4,096 random bytes, as they are, in hex or
    /// in base64, readable by its owner alone. Without one, only this host can be listened on, and
    /// only this user's processes may connect.
    pub key_file: Option<PathBuf>,
    /// Without a key, every user of this host may connect, and any may be connected to.
    pub anyone: bool,
    /// Frames carry no tags: whoever can write to the wire can change what travels on it.
    pub no_mac: bool,
    /// Of `rdma:`, the device by name, as [`rdma_devices`](crate::rdma_devices) has it; none: the
    /// first with an active port.
    pub rdma_device: Option<String>,
}

/// An address that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not of the form `TRANSPORT:NAME`.
    #[error("{0:?} is no address; write {forms}, for example shm:demo or tcp:127.0.0.1:7070", forms = Transport::forms())]
    Form(String),
    /// A transport that this version does not have.
    #[error("there is no transport {0}: this version has {forms}", forms = Transport::forms())]
    Transport(String),
    /// A name that a provider cannot use.
    #[error("{0:?} is no name for shm:; use 1 to 64 letters, digits, '-', '_' or '.'")]
    Name(String),
    /// No host or no port.
    #[error("{0:?} is no HOST:PORT; write for example tcp:127.0.0.1:7070 or tcp:[::1]:7070")]
    Host(String),
    /// A host whose address cannot be found.
    #[error("the address of {name} cannot be found ({reason}); give it in numbers")]
    Unknown {
        /// The host and port.
        name: String,
        /// What the system said.
        reason: String,
    },
}

impl Address {
    /// An address on this host, for a measurement or a test that needs one; nobody else uses it if
    /// nobody uses `name`.
    ///
    /// # Errors
    /// When this version does not have the transport.
    pub fn here(transport: &str, name: &str) -> Result<Address, AddressError> {
        let transport = Transport::of(transport)?;
        Ok(Address { transport, name: transport.parse(&transport.here(name))? })
    }

    /// The provider's part: `NAME` of `shm:NAME`, `HOST:PORT` of `tcp:HOST:PORT`; of
    /// `rdma:HOST:PORT` with the host in numbers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How one gets there.
    pub fn transport(&self) -> &'static Transport {
        self.transport
    }

    /// A provider that gets there.
    ///
    /// # Errors
    /// When the provider cannot be had on this system, or the key file is refused.
    pub fn provider(&self, network: &Network) -> Result<Arc<dyn Provider>, Error> {
        self.transport.provider(network)
    }
}

impl Network {
    pub(crate) fn key(&self) -> Result<Option<Key>, KeyError> {
        self.key_file.as_deref().map(Key::from_file).transpose()
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let form = || AddressError::Form(text.into());
        let (transport, name) = text.split_once(':').ok_or_else(form)?;
        let transport = Transport::of(transport).map_err(|_| form())?;
        Ok(Address { transport, name: transport.parse(name)? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.transport.name, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Or one device's prices would be taken for another's.
    #[test]
    fn prices_are_stored_by_what_they_are_of() {
        let device = |name: &str| Network { rdma_device: Some(name.into()), ..Network::default() };
        let key = Network { key_file: Some("key".into()), ..device("mlx5_1") };
        for (transport, network, label) in [
            ("shm", &key, "shm"),
            ("tcp", &device("mlx5_1"), "tcp"),
            ("tcp", &key, "tcp-mac"),
            ("tcp", &Network { no_mac: true, ..key.clone() }, "tcp"),
            ("rdma", &Network::default(), "rdma"),
            ("rdma", &device("mlx5_1"), "rdma-mlx5-1"),
            ("rdma", &device("../x"), "rdma-x"),
        ] {
            assert_eq!(Transport::of(transport).unwrap().label(network), label, "{network:?}");
        }
    }

    #[test]
    fn addresses_are_read_and_bad_ones_explained() {
        let address: Address = "shm:demo-1".parse().unwrap();
        assert_eq!((address.name(), address.to_string().as_str()), ("demo-1", "shm:demo-1"));
        let here = |name| Address::here("tcp", name).unwrap();
        assert!(here("a").name().starts_with("127.") && here("a") == here("a") && here("a") != here("b"));
        for text in ["tcp:localhost:7070", "tcp:[::1]:1", "tcp:10.0.0.1:65535", "rdma:10.0.0.1:7070", "rdma:[::1]:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for (text, says) in [
            ("demo", "write shm:NAME"),
            ("tcp:localhost", "HOST:PORT"),
            ("tcp::1", "HOST:PORT"),
            ("tcp:host:0", "HOST:PORT"),
            ("tcp:host:70000", "HOST:PORT"),
            ("rdma:host", "HOST:PORT"),
            ("rdma:no.such.host.invalid:1", "cannot be found"),
            ("shm:", "1 to 64"),
            ("shm:a/b", "1 to 64"),
            ("udp:x", "write shm:NAME"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        for transport in Transport::names() {
            assert!(Address::here(transport, "a-1").is_ok(), "{transport}");
        }
        assert!(Address::here("udp", "a").unwrap_err().to_string().contains("no transport"));
    }
}
