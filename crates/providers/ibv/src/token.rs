//! What a key carries: the device's key, where the region begins for the device, and a check of
//! both.
//!
//! A device takes 32 bits for a key. What makes it hard to guess is the region's place in the
//! device's address space, which is chosen at random: a peer that guesses wrongly loses its
//! connection.

use overside_verbs::RemoteToken;

/// A key as it travels.
pub(crate) fn pack(rkey: u32, iova: u64) -> u128 {
    u128::from(rkey) | u128::from(iova) << 32 | u128::from(check(rkey, iova)) << 96
}

/// Device address and key of `len` bytes of a token; none when it can only be forged or leaves its
/// region.
pub(crate) fn unpack(token: &RemoteToken, len: u64) -> Option<(u64, u32)> {
    let (rkey, iova, told) = (token.rkey as u32, (token.rkey >> 32) as u64, (token.rkey >> 96) as u32);
    let fits = len <= token.len && token.at.checked_add(token.len).is_some();
    let address = iova.checked_add(token.at)?;
    (fits && told == check(rkey, iova) && address.checked_add(token.len).is_some()).then_some((address, rkey))
}

/// Not a secret: it tells a key that was damaged on its way.
fn check(rkey: u32, iova: u64) -> u32 {
    let mixed = (u64::from(rkey) ^ iova.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(iova) as u32 ^ (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_travel_and_damaged_ones_are_told() {
        let (rkey, iova) = (0x1234_5678, 0x7abc_dea0_3000);
        let token = RemoteToken { at: 16, len: 64, rkey: pack(rkey, iova) };
        assert_eq!(unpack(&token, 64), Some((iova + 16, rkey)));
        assert_eq!(unpack(&token, 65), None, "more than was granted");
        for bit in 0..128 {
            let forged = RemoteToken { rkey: token.rkey ^ 1 << bit, ..token };
            assert_eq!(unpack(&forged, 64), None, "bit {bit}");
        }
        for at in [u64::MAX - 31, u64::MAX - iova] {
            assert_eq!(unpack(&RemoteToken { at, ..token }, 64), None, "it wraps around");
        }
    }
}
