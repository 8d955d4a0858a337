//! Names of listeners: `shm:NAME` is an abstract Unix socket with the user's id in its name.

use overside_verbs::VerbsError;
use rustix::net::SocketAddrUnix;

/// What a listener called `name` of this user is bound to: `overside/UID/NAME`, abstract, so that
/// it leaves no file and ends with its process.
///
/// # Errors
/// [`VerbsError::Address`] for a name that is empty, longer than 64 bytes or has other characters
/// than letters, digits, `.`, `_` and `-`.
pub(crate) fn resolve(name: &str) -> Result<SocketAddrUnix, VerbsError> {
    let refused = |reason: &str| VerbsError::Address { address: format!("shm:{name}"), reason: reason.to_owned() };
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(refused("a name has 1 to 64 bytes"));
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        return Err(refused("a name has letters, digits, '.', '_' and '-' only"));
    }
    let uid = rustix::process::getuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("overside/{uid}/{name}").as_bytes())
        .map_err(|errno| refused(&errno.to_string()))
}

/// Longest name.
pub const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_refused() {
        for name in ["", "a/b", "a b", "ä", "\0", &"x".repeat(65)] {
            assert!(matches!(resolve(name), Err(VerbsError::Address { .. })), "{name:?}");
        }
        let bound = resolve("a.b_c-9").unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(bound.abstract_name(), Some(format!("overside/{uid}/a.b_c-9").as_bytes()));
    }
}
