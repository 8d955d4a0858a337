//! The ways to another process: one row of one table each. Nobody else names them.

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use overside_ibv::IbvProvider;
use overside_shm::ShmProvider;
use overside_tcp::TcpProvider;
use overside_verbs::Provider;

use crate::{AddressError, Error, Network, calibrate};

/// A way to another process.
pub struct Transport {
    /// As addresses begin.
    pub name: &'static str,
    /// How its addresses are written.
    pub form: &'static str,
    /// Whom it reaches.
    pub reaches: &'static str,
    /// Whether other hosts and users can be let in: then a key, tags and [`Network::anyone`] mean
    /// something.
    pub is_network: bool,
    /// Whether it goes over devices, of which [`Network::rdma_device`] names one.
    pub has_devices: bool,
    /// Whether messages with tags have prices of their own.
    pub prices_tags: bool,
    /// Receives that a client should post at once, where fewer than usual serve.
    pub(crate) receives: Option<usize>,
    /// The provider's part of an address, as the provider takes it.
    parse: fn(&str) -> Result<String, AddressError>,
    /// The provider's part of an address on this host, which is of this name alone.
    here: fn(&str) -> String,
    open: fn(&Network) -> Result<Arc<dyn Provider>, Error>,
}

static TRANSPORTS: [Transport; 3] = [
    Transport {
        name: "shm",
        form: "shm:NAME",
        reaches: "processes of this host",
        is_network: false,
        has_devices: false,
        prices_tags: false,
        // A client copies messages itself, one after another, and few buffers stay in its nearest caches: one being copied
        // into, one ahead.
        receives: Some(2),
        parse: word,
        here: str::to_owned,
        open: |_| Ok(ShmProvider::new()?),
    },
    Transport {
        name: "tcp",
        form: "tcp:HOST:PORT",
        reaches: "processes of any host",
        is_network: true,
        has_devices: false,
        prices_tags: true,
        receives: None,
        parse: host,
        here: loopback,
        open: |network| {
            let (key, mac, anyone) = (network.key()?, !network.no_mac, network.anyone);
            Ok(TcpProvider::with_options(overside_tcp::Options { key, mac, anyone, ..Default::default() }))
        },
    },
    Transport {
        name: "rdma",
        form: "rdma:HOST:PORT",
        reaches: "processes of any host with an RDMA device",
        is_network: true,
        has_devices: true,
        prices_tags: false,
        receives: None,
        parse: in_numbers,
        here: loopback,
        open: |network| {
            let (key, mac, anyone) = (network.key()?, !network.no_mac, network.anyone);
            let device = network.rdma_device.clone();
            Ok(IbvProvider::with_options(overside_ibv::Options { device, key, mac, anyone, ..Default::default() })?)
        },
    },
];

impl Transport {
    /// All that this version has.
    pub fn all() -> impl Iterator<Item = &'static Transport> {
        TRANSPORTS.iter()
    }

    /// Their names; the first serves where none is named.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::all().map(|transport| transport.name)
    }

    /// The transport of a name.
    ///
    /// # Errors
    /// When this version does not have it.
    pub fn of(name: &str) -> Result<&'static Transport, AddressError> {
        Self::all().find(|transport| transport.name == name).ok_or_else(|| AddressError::Transport(name.into()))
    }

    /// How addresses are written, for people.
    pub fn forms() -> String {
        listed(Self::all().map(|transport| transport.form), "or")
    }

    /// Those that lead to other hosts, for people.
    pub fn networks() -> String {
        listed(Self::all().filter(|transport| transport.is_network).map(|transport| transport.name), "and")
    }

    /// Whether this host has what it takes.
    pub fn is_here(&self) -> bool {
        !self.has_devices || overside_ibv::devices().is_ok_and(|devices| !devices.is_empty())
    }

    /// A provider.
    ///
    /// # Errors
    /// When it cannot be had on this system, or the key file is refused.
    pub fn provider(&self, network: &Network) -> Result<Arc<dyn Provider>, Error> {
        (self.open)(network)
    }

    /// Under which name prices are stored: tags on every frame are priced apart, and so are devices
    /// that are named.
    pub(crate) fn label(&self, network: &Network) -> Cow<'static, str> {
        match &network.rdma_device {
            Some(device) if self.has_devices => format!("{}-{}", self.name, calibrate::slug(device, "device")).into(),
            _ if self.prices_tags && network.key_file.is_some() && !network.no_mac => {
                format!("{}-mac", self.name).into()
            }
            _ => self.name.into(),
        }
    }

    pub(crate) fn parse(&self, name: &str) -> Result<String, AddressError> {
        (self.parse)(name)
    }

    pub(crate) fn here(&self, name: &str) -> String {
        (self.here)(name)
    }
}

impl PartialEq for Transport {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Transport {}

impl Hash for Transport {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn listed(all: impl Iterator<Item = &'static str>, last: &str) -> String {
    let all: Vec<&str> = all.collect();
    match all.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => all.concat(),
    }
}

fn word(name: &str) -> Result<String, AddressError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(allowed);
    if fits { Ok(name.into()) } else { Err(AddressError::Name(name.into())) }
}

fn host(name: &str) -> Result<String, AddressError> {
    match name.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(name.into()),
        _ => Err(AddressError::Host(name.into())),
    }
}

/// The provider looks no names up: it may have to live where that is not allowed.
fn in_numbers(name: &str) -> Result<String, AddressError> {
    let name = host(name)?;
    let unknown = |reason: String| AddressError::Unknown { name: name.clone(), reason };
    let mut found = name.to_socket_addrs().map_err(|e| unknown(e.to_string()))?;
    let first: Option<SocketAddr> = found.next();
    first.map(|address| address.to_string()).ok_or_else(|| unknown("it has none".to_owned()))
}

/// All of 127.0.0.0/8 is this host: room for as many names, at ports that the system gives to
/// nobody.
fn loopback(name: &str) -> String {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let [a, b, c, d, e, ..] = hasher.finish().to_le_bytes();
    let port = 10_000 + u16::from_le_bytes([d, e]) % 20_000;
    format!("127.{}.{b}.{}:{port}", a.max(1), c.clamp(1, 254))
}

/// Longest name of a word.
const NAME_BYTES_MAX: usize = 64;
