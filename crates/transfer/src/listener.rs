//! Waits for channels.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use overside_verbs::acceptor::Refused;
use overside_verbs::{ProtectionDomain, Provider};

use crate::channel::Channel;
use crate::deadline::Deadline;
use crate::endpoint::accept;
use crate::error::Error;
use crate::options::{Buffers, Options};

/// Waits for channels at an address.
#[derive(Debug)]
pub struct Listener {
    provider: Arc<dyn Provider>,
    domain: ProtectionDomain,
    listener: Box<dyn overside_verbs::Listener>,
    options: Options,
    buffers: Buffers,
}

impl Listener {
    /// Listens at the provider's part of an address. The options are those of each channel.
    ///
    /// # Errors
    /// When the name is malformed or taken; [`Error::Field`] for buffers that cannot be.
    pub fn listen(provider: Arc<dyn Provider>, name: &str, options: Options) -> Result<Listener, Error> {
        let buffers = Channel::buffers(&*provider, &options)?;
        let domain = provider.allocate_domain()?;
        let listener = provider.listen(&domain, name)?;
        Ok(Listener { provider, domain, listener, options, buffers })
    }

    /// The next channel.
    ///
    /// # Errors
    /// [`VerbsError::TimedOut`](overside_verbs::VerbsError::TimedOut) when none comes before the
    /// deadline; when the listening socket fails. A peer that is refused ends nothing.
    pub fn accept(&mut self, within: Duration) -> Result<Channel, Error> {
        let clock = self.provider.clock();
        let link = accept(&mut *self.listener, &mut Deadline::within(within), &*clock)?;
        Channel::over(self.provider.clone(), self.domain.clone(), link, &self.options, self.buffers)
    }

    /// Readable when calling [`accept`](Self::accept) makes sense.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.fd()
    }

    /// Connections that were turned away since the last call, if any.
    pub fn refused(&mut self) -> Option<Refused> {
        self.listener.refused()
    }
}
