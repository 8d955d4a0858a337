//! Where the processes of a measurement find each other, and over which device.

use anyhow::{Context, Result};
use overside::{Address, AddressError, Network, verbs::Provider};
use std::{ffi::OsString, fmt, str::FromStr, sync::Arc};

/// An address of this host, and what goes with it; as text it is one argument of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rendezvous {
    pub(crate) address: Address,
    pub(crate) network: Network,
}

impl Rendezvous {
    /// An address of its own for each `name`. The device, by name, is of `rdma` alone.
    ///
    /// # Errors
    /// There is no such transport.
    pub(crate) fn here(transport: &str, rdma_device: Option<&str>, name: &str) -> Result<Rendezvous, AddressError> {
        let network = Network { rdma_device: rdma_device.map(str::to_owned), ..Network::default() };
        Ok(Rendezvous { address: Address::here(transport, name)?, network })
    }

    /// From the first argument of a process.
    ///
    /// # Errors
    /// It has none, or another.
    pub(crate) fn from_arguments(arguments: &[OsString]) -> Result<Rendezvous> {
        let text = arguments.first().and_then(|argument| argument.to_str()).context("no address")?;
        Ok(text.parse()?)
    }

    /// Says now what the first process that is started would say: that there is no RDMA
    /// device, or none of that name.
    ///
    /// # Errors
    /// Which there are, or why there is none.
    pub(crate) fn check(&self) -> Result<()> {
        if self.address.transport().has_devices {
            self.provider()?;
        }
        Ok(())
    }

    /// A provider that gets there.
    ///
    /// # Errors
    /// It cannot be had on this system.
    pub(crate) fn provider(&self) -> Result<Arc<dyn Provider>, overside::Error> {
        self.address.provider(&self.network)
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rendezvous { address, network } = self;
        write!(f, "{address}")?;
        let (device, key) = (network.rdma_device.as_deref(), network.key_file.as_deref());
        if device.is_some() || key.is_some() {
            // No address has a space in it, and no device a tabulator.
            write!(f, " {}", device.unwrap_or_default())?;
        }
        key.map_or(Ok(()), |key| write!(f, "\t{}", key.display()))
    }
}

impl FromStr for Rendezvous {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Rendezvous, AddressError> {
        let (address, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (device, key) = rest.split_once('\t').map_or((rest, None), |(device, key)| (device, Some(key)));
        let rdma_device = (!device.is_empty()).then(|| device.to_owned());
        let network = Network { rdma_device, key_file: key.map(Into::into), ..Network::default() };
        Ok(Rendezvous { address: address.parse()?, network })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_the_address_and_the_device() {
        for (transport, device) in
            [("shm", None), ("rdma", None), ("rdma", Some("mlx5_1")), ("rdma", Some("a device "))]
        {
            let rendezvous = Rendezvous::here(transport, device, "told").unwrap();
            assert_eq!(rendezvous.network.rdma_device.as_deref(), device);
            assert_eq!(
                Rendezvous::from_arguments(&[rendezvous.to_string().into(), "more".into()]).unwrap(),
                rendezvous
            );
        }
        let mut keyed = Rendezvous::here("tcp", None, "told").unwrap();
        keyed.network.key_file = Some("a folder/key".into());
        assert_eq!(Rendezvous::from_arguments(&[keyed.to_string().into()]).unwrap(), keyed);
        assert!(Rendezvous::from_arguments(&[]).is_err() && Rendezvous::from_arguments(&["nowhere".into()]).is_err());
    }
}
