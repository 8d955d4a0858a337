//! `HOST:PORT`, and which hosts are this one.

use std::net::{SocketAddr, ToSocketAddrs};

use overside_verbs::VerbsError;

/// All addresses of `HOST:PORT`, an IPv6 host in brackets; at least one.
pub(crate) fn resolve(name: &str) -> Result<Vec<SocketAddr>, VerbsError> {
    let malformed = |reason: String| VerbsError::Address { address: format!("tcp:{name}"), reason };
    let (host, port) = name.rsplit_once(':').unwrap_or((name, ""));
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(malformed("write tcp:HOST:PORT, for example tcp:127.0.0.1:7070".to_owned()));
    }
    let found: Vec<SocketAddr> = name.to_socket_addrs().map_err(|e| malformed(e.to_string()))?.collect();
    if found.is_empty() { Err(malformed("the host has no address".to_owned())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_and_malformed_names_explained() {
        assert_eq!(resolve("127.0.0.1:70").unwrap(), ["127.0.0.1:70".parse().unwrap()]);
        assert_eq!(resolve("[::1]:70").unwrap(), ["[::1]:70".parse().unwrap()]);
        for bad in ["127.0.0.1", "127.0.0.1:", ":70", "host:port", "127.0.0.1:70000"] {
            assert!(resolve(bad).unwrap_err().to_string().contains("tcp:HOST:PORT"), "{bad}");
        }
    }
}
