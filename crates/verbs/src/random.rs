//! Bytes that nobody guesses.

use std::mem::MaybeUninit;

use rustix::rand::GetRandomFlags;

use crate::VerbsError;
use crate::watch::failed;

/// Bytes that nobody guesses, for nonces and keys of regions.
///
/// # Errors
/// When the system has none.
pub fn random<const N: usize>() -> Result<[u8; N], VerbsError> {
    let mut bytes = [MaybeUninit::uninit(); N];
    match rustix::rand::getrandom(&mut bytes[..], GetRandomFlags::empty()) {
        Ok((filled, _)) if filled.len() == N => Ok(std::array::from_fn(|i| filled[i])),
        Ok(_) => Err(VerbsError::System { what: "getrandom", reason: "it returned too little".to_owned() }),
        Err(errno) => Err(failed("getrandom", errno)),
    }
}
