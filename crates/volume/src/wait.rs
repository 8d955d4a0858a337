//! Waiting for a device, for callers who have nothing else to do.

use std::time::{Duration, Instant};

use overside_verbs::{Clock, VerbsError};

use crate::device::{Completion, Device, DeviceError, Request, Work};

/// Sleeps until `device` has something to give back or wants to be polled, at most until `until`. It
/// may return earlier.
///
/// # Errors
/// When the system refuses to wait.
pub fn wait(device: &mut dyn Device, clock: &dyn Clock, until: Option<Instant>) -> Result<(), VerbsError> {
    if !device.arm() {
        return Ok(());
    }
    let until = [until, device.due()].into_iter().flatten().min();
    match device.fd() {
        Some(fd) => clock.wait(&[fd], until),
        None => clock.wait(&[], Some(until.unwrap_or_else(|| clock.now()))),
    }
}

/// Carries one request out and waits for it, at most for `patience`. Nothing else may be in flight.
/// The request comes back, unless the device still has it after that time.
///
/// # Errors
/// Why it failed; [`DeviceError::Unreachable`] where it took longer.
pub fn complete(
    device: &mut dyn Device,
    clock: &dyn Clock,
    work: Work,
    patience: Duration,
) -> (Option<Work>, Result<(), DeviceError>) {
    let until = clock.now() + patience;
    let mut batch = [Request { tag: 0, work }].into();
    let mut done: Vec<Completion> = Vec::new();
    loop {
        device.submit(&mut batch);
        if device.poll(&mut done) > 0
            && let Some(completion) = done.pop()
        {
            return (Some(completion.work), completion.result);
        }
        if clock.now() >= until || wait(device, clock, Some(until)).is_err() {
            return (batch.pop_front().map(|request| request.work), Err(DeviceError::Unreachable));
        }
    }
}
