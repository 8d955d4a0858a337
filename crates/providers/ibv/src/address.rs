//! `HOST:PORT` of the side channel, by which queue pairs find each other.
//!
//! Numbers only, and `localhost`: looking names up is the business of whoever may read the system's
//! configuration.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use overside_verbs::VerbsError;

/// The address of `HOST:PORT`, an IPv6 host in brackets.
pub(crate) fn resolve(name: &str) -> Result<SocketAddr, VerbsError> {
    let parsed = match name.strip_prefix("localhost:") {
        Some(port) => port.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => name.parse().ok(),
    };
    parsed.ok_or_else(|| VerbsError::Address {
        address: format!("rdma:{name}"),
        reason: "write rdma:ADDRESS:PORT with the address in numbers, for example rdma:127.0.0.1:7070".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_malformed_ones_explained() {
        assert_eq!(resolve("127.0.0.1:70").unwrap(), "127.0.0.1:70".parse().unwrap());
        assert_eq!(resolve("localhost:70").unwrap(), "127.0.0.1:70".parse().unwrap());
        assert_eq!(resolve("[::1]:70").unwrap(), "[::1]:70".parse().unwrap());
        for bad in ["127.0.0.1", "127.0.0.1:", ":70", "host:port", "127.0.0.1:70000", "localhost:x"] {
            assert!(resolve(bad).unwrap_err().to_string().contains("rdma:127.0.0.1:7070"), "{bad}");
        }
    }
}
