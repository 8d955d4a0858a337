//! Where somebody is, and which provider gets there.

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use overside_ibv::IbvProvider;
use overside_shm::ShmProvider;
use overside_tcp::TcpProvider;
use overside_verbs::Provider;
use overside_verbs::handshake::{Key, KeyError};

use crate::{Error, calibrate};

/// `shm:NAME`, for processes of one host and user, `tcp:HOST:PORT`, for processes anywhere, or `rdma:HOST:PORT`, for processes
/// with an RDMA device: the TCP address by which they find each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    transport: Transport,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Transport {
    Shm,
    Tcp,
    Rdma,
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
    /// Of `rdma:`, the device by name, as [`rdma_devices`](crate::rdma_devices) has it; none: the first with an active port.
    pub rdma_device: Option<String>,
}

/// An address that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not of the form `TRANSPORT:NAME`.
    #[error(
        "{0:?} is no address; write shm:NAME, tcp:HOST:PORT or rdma:HOST:PORT, for example shm:demo or tcp:127.0.0.1:7070"
    )]
    Form(String),
    /// A transport that this version does not have.
    #[error("there is no transport {0}: this version has shm:NAME, tcp:HOST:PORT and rdma:HOST:PORT")]
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
    /// The transports that this version has, as addresses begin.
    pub const TRANSPORTS: [&'static str; 3] = ["shm", "tcp", "rdma"];

    /// An address on this host, for a measurement or a test that needs one; nobody else uses it if nobody uses `name`.
    ///
    /// # Errors
    /// When this version does not have the transport.
    pub fn here(transport: &str, name: &str) -> Result<Address, AddressError> {
        match transport {
            "shm" => format!("shm:{name}").parse(),
            "tcp" | "rdma" => {
                // All of 127.0.0.0/8 is this host: room for as many names, at ports that the system gives to nobody.
                let mut hasher = DefaultHasher::new();
                name.hash(&mut hasher);
                let [a, b, c, d, e, ..] = hasher.finish().to_le_bytes();
                let port = 10_000 + u16::from_le_bytes([d, e]) % 20_000;
                format!("{transport}:127.{}.{b}.{}:{port}", a.max(1), c.clamp(1, 254)).parse()
            }
            _ => Err(AddressError::Transport(transport.into())),
        }
    }

    /// The provider's part: `NAME` of `shm:NAME`, `HOST:PORT` of `tcp:HOST:PORT`; of `rdma:HOST:PORT` with the host in numbers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How one gets there: `shm` of `shm:NAME`.
    pub fn transport_name(&self) -> &'static str {
        match self.transport {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Rdma => "rdma",
        }
    }

    /// A provider that gets there, without a key.
    ///
    /// # Errors
    /// When the provider cannot be had on this system.
    pub fn provider(&self) -> Result<Arc<dyn Provider>, Error> {
        self.provider_over(&Network::default())
    }

    /// A provider that gets there.
    ///
    /// # Errors
    /// When the provider cannot be had on this system, or the key file is refused.
    pub fn provider_over(&self, network: &Network) -> Result<Arc<dyn Provider>, Error> {
        self.transport.provider(network)
    }

    /// Receives that a client should post at once, where fewer than usual serve: over shared memory it copies messages itself, one
    /// after another, and few buffers stay in its nearest caches.
    pub(crate) fn receives(&self) -> Option<usize> {
        (self.transport == Transport::Shm).then_some(SHM_RECEIVES)
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Under which name prices are stored: tags on every frame are priced apart, and so are devices that are named.
    pub(crate) fn label(&self, network: &Network) -> Cow<'static, str> {
        match (self.transport, &network.rdma_device) {
            (Transport::Tcp, _) if network.key_file.is_some() && !network.no_mac => "tcp-mac".into(),
            (Transport::Rdma, Some(device)) => format!("rdma-{}", calibrate::slug(device, "device")).into(),
            _ => self.transport_name().into(),
        }
    }
}

impl Transport {
    pub(crate) fn provider(self, network: &Network) -> Result<Arc<dyn Provider>, Error> {
        match self {
            Transport::Shm => Ok(ShmProvider::new()?),
            Transport::Tcp => {
                let (key, mac, anyone) = (network.key()?, !network.no_mac, network.anyone);
                Ok(TcpProvider::with_options(overside_tcp::Options { key, mac, anyone, ..Default::default() }))
            }
            Transport::Rdma => {
                let (key, mac, anyone) = (network.key()?, !network.no_mac, network.anyone);
                let device = network.rdma_device.clone();
                Ok(IbvProvider::with_options(overside_ibv::Options { device, key, mac, anyone, ..Default::default() })?)
            }
        }
    }
}

impl Network {
    fn key(&self) -> Result<Option<Key>, KeyError> {
        self.key_file.as_deref().map(Key::from_file).transpose()
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.split_once(':') {
            Some(("shm", name)) => {
                let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
                    return Err(AddressError::Name(name.into()));
                }
                Ok(Address { transport: Transport::Shm, name: name.into() })
            }
            Some((transport @ ("tcp" | "rdma"), name)) => match name.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
                    match transport {
                        "tcp" => Ok(Address { transport: Transport::Tcp, name: name.into() }),
                        _ => Ok(Address { transport: Transport::Rdma, name: in_numbers(name)? }),
                    }
                }
                _ => Err(AddressError::Host(name.into())),
            },
            _ => Err(AddressError::Form(text.into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Shm => write!(f, "shm:{}", self.name),
            Transport::Tcp => write!(f, "tcp:{}", self.name),
            Transport::Rdma => write!(f, "rdma:{}", self.name),
        }
    }
}

/// The provider looks no names up: it may have to live where that is not allowed.
fn in_numbers(name: &str) -> Result<String, AddressError> {
    let unknown = |reason: String| AddressError::Unknown { name: name.into(), reason };
    let mut found = name.to_socket_addrs().map_err(|e| unknown(e.to_string()))?;
    let first: Option<SocketAddr> = found.next();
    first.map(|address| address.to_string()).ok_or_else(|| unknown("it has none".to_owned()))
}

/// One being copied into, one ahead.
const SHM_RECEIVES: usize = 2;
/// Longest name of an address.
const NAME_BYTES_MAX: usize = 64;

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
            assert_eq!(Address::here(transport, "a").unwrap().label(network), label, "{network:?}");
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
        for transport in Address::TRANSPORTS {
            assert!(Address::here(transport, "a-1").is_ok(), "{transport}");
        }
        assert!(Address::here("udp", "a").unwrap_err().to_string().contains("no transport"));
    }
}
