//! Asking a node how it does.

use std::sync::Arc;
use std::time::Duration;

use overside_service::CONTROL_HEADER;
use overside_service::client::{Link, LinkError, LinkOptions};
use overside_verbs::Provider;
use overside_volume::wire::{Inquiry, Malformed, Report, Status};

/// Why a node does not say how it does.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// Nobody answers there, or not before the deadline.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What answers is no node of this version.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// There is no such volume.
    #[error("the node has no volume {0}; `overside volume list` says which there are")]
    Unknown(String),
}

/// How the node at the provider's part of an address does, and its volumes: one, or
/// where none is named all.
///
/// # Errors
/// Nobody answers there in time, or there is no such volume.
pub fn status(
    provider: Arc<dyn Provider>,
    address: &str,
    volume: &str,
    within: Duration,
) -> Result<Report, StatusError> {
    let options = LinkOptions { timeout: within, ..LinkOptions::default() };
    let mut link = Link::connect(provider, address, options)?;
    // The link numbers its messages itself.
    let inquiry = Inquiry { number: 0, volume: volume.to_owned() }.bytes();
    let number = link.send(|body| body.extend_from_slice(&inquiry[CONTROL_HEADER..]))?;
    let report = Report::parse(link.reply(number)?.as_ref())?;
    if report.status == Status::Unknown {
        return Err(StatusError::Unknown(volume.to_owned()));
    }
    Ok(report)
}
