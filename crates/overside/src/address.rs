//! Where somebody is, and which provider gets there.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use overside_shm::ShmProvider;
use overside_verbs::{Provider, VerbsError};

/// `shm:NAME`, for processes of one host and user. `tcp:HOST:PORT` and `rdma:HOST:PORT` are read, and
/// refused as long as their providers are not built.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    transport: Transport,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Transport {
    Shm,
}

/// An address that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not of the form `TRANSPORT:NAME`.
    #[error("{0:?} is no address; write shm:NAME, for example shm:demo")]
    Form(String),
    /// A transport that this version does not have.
    #[error("{0}: is not built yet; this version has shm:NAME, for processes of one host and user")]
    Transport(String),
    /// A name that a provider cannot use.
    #[error("{0:?} is no name for shm:; use 1 to 64 letters, digits, '-', '_' or '.'")]
    Name(String),
}

impl Address {
    /// The transports that this version has, as addresses begin.
    pub const TRANSPORTS: [&'static str; 1] = ["shm"];

    /// An address on this host, for a measurement or a test that needs one; nobody else uses it if nobody uses `name`.
    ///
    /// # Errors
    /// When this version does not have the transport.
    pub fn here(transport: &str, name: &str) -> Result<Address, AddressError> {
        if !Self::TRANSPORTS.contains(&transport) {
            return Err(AddressError::Transport(transport.into()));
        }
        format!("{transport}:{name}").parse()
    }

    /// The provider's part: `NAME` of `shm:NAME`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A provider that gets there.
    ///
    /// # Errors
    /// When the provider cannot be had on this system.
    pub fn provider(&self) -> Result<Arc<dyn Provider>, VerbsError> {
        match self.transport {
            Transport::Shm => Ok(ShmProvider::new()?),
        }
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
            Some((transport @ ("tcp" | "rdma"), _)) => Err(AddressError::Transport(transport.into())),
            _ => Err(AddressError::Form(text.into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Shm => write!(f, "shm:{}", self.name),
        }
    }
}

/// Longest name of an address.
const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_bad_ones_explained() {
        let address: Address = "shm:demo-1".parse().unwrap();
        assert_eq!((address.name(), address.to_string().as_str()), ("demo-1", "shm:demo-1"));
        for (text, says) in [
            ("demo", "write shm:NAME"),
            ("tcp:localhost:1", "not built yet"),
            ("rdma:host:1", "not built yet"),
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
        assert!(Address::here("tcp", "a").unwrap_err().to_string().contains("not built yet"));
    }
}
