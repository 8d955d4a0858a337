//! Which bytes of an array lie where. Pure: no device, no buffer.
//!
//! A layout cuts a request into [`Piece`]s, each on one member. Pieces come in the order of the
//! request's bytes and cover each of them once; a mirror's pieces are for every member alike.

mod concat;
mod mirror;
mod parity;
mod stripes;

pub use concat::Concat;
pub use mirror::Mirror;
pub use parity::Parity;
pub use stripes::Stripes;

/// How members make a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One behind the other.
    Concat(Concat),
    /// In turn, a stripe each (RAID 0).
    Stripes(Stripes),
    /// Each has everything (RAID 1).
    Mirror(Mirror),
    /// In turn, with a parity (RAID 5).
    Parity(Parity),
}

/// A part of a request that lies on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which member.
    pub member: usize,
    /// First byte there.
    pub at: u64,
    /// How many bytes.
    pub length: u64,
}

/// Why members make no volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// There are none.
    #[error("a volume needs at least {0} members of this layout; name more with --on")]
    TooFew(usize),
    /// A stripe is no stripe.
    #[error(
        "a stripe has whole units of its members ({unit} bytes) and at least one; {stripe} bytes are none (--stripe)"
    )]
    Stripe {
        /// As it was asked for.
        stripe: u64,
        /// Of the members.
        unit: u64,
    },
    /// A member has no room for a single unit or stripe.
    #[error("member {0} is too small to hold anything; make it larger")]
    TooSmall(usize),
    /// More bytes than can be counted.
    #[error("the members together are longer than can be said in 64 bits")]
    TooLong,
}

impl Layout {
    /// Bytes of the volume.
    pub fn bytes(&self) -> u64 {
        match self {
            Layout::Concat(layout) => layout.bytes(),
            Layout::Stripes(layout) => layout.bytes(),
            Layout::Mirror(layout) => layout.bytes(),
            Layout::Parity(layout) => layout.bytes(),
        }
    }

    /// How many members it has.
    pub fn members(&self) -> usize {
        match self {
            Layout::Concat(layout) => layout.members(),
            Layout::Stripes(layout) => layout.members(),
            Layout::Mirror(layout) => layout.members(),
            Layout::Parity(layout) => layout.members(),
        }
    }

    /// Appends the pieces of `length` bytes at `at`, which lie within the volume. Of a mirror there
    /// is one, for its first member, and it is the same on every other.
    pub fn cut(&self, at: u64, length: u64, pieces: &mut Vec<Piece>) {
        let mut done = 0;
        while done < length {
            let piece = match self {
                Layout::Concat(layout) => layout.piece(at + done, length - done),
                Layout::Stripes(layout) => layout.piece(at + done, length - done),
                Layout::Mirror(layout) => layout.piece(at + done, length - done),
                Layout::Parity(layout) => layout.piece(at + done, length - done),
            };
            done += piece.length;
            pieces.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn layouts(members: &[u64], stripe: u64) -> Vec<Layout> {
        let mut all = vec![Layout::Concat(Concat::new(members, 512).unwrap())];
        all.push(Layout::Concat(Concat::new(members, 512).unwrap().in_pieces(stripe * 512)));
        all.extend(Stripes::new(members, stripe, 512).ok().map(Layout::Stripes));
        all.extend(Mirror::new(members, 512).ok().map(Layout::Mirror));
        all.extend(Parity::new(members, stripe, 512).ok().map(Layout::Parity));
        all
    }

    proptest! {
        /// Byte by byte: each of the volume has a place of its own on a member, the same however
        /// requests are cut.
        #[test]
        fn every_byte_has_one_place_whatever_the_requests(
            units in proptest::collection::vec(1u64..9, 1..5),
            stripe in 1u64..4,
            cuts in proptest::collection::vec(1u64..7, 1..12),
        ) {
            let sizes: Vec<u64> = units.iter().map(|units| units * 512).collect();
            for layout in layouts(&sizes, stripe * 512) {
                let sectors = layout.bytes() / 512;
                let place = |at: u64| {
                    let mut pieces = Vec::new();
                    layout.cut(at * 512, 512, &mut pieces);
                    assert_eq!(pieces.len(), 1);
                    (pieces[0].member, pieces[0].at)
                };
                let places: Vec<_> = (0..sectors).map(place).collect();
                if let Layout::Parity(parity) = &layout {
                    let is_data = |(member, at): &(usize, u64)| *member != parity.parity_of(at / parity.stripe());
                    prop_assert!(places.iter().all(is_data), "{:?} puts data where parity is", parity);
                }
                let distinct: BTreeSet<_> = places.iter().collect();
                prop_assert_eq!(distinct.len(), places.len(), "{:?}", layout);
                for (member, at) in &places {
                    prop_assert!(at + 512 <= sizes[*member], "{:?} leaves member {}", layout, member);
                }
                let (mut at, mut turn) = (0, 0);
                while at < sectors {
                    let length = cuts[turn % cuts.len()].min(sectors - at);
                    turn += 1;
                    let mut pieces = Vec::new();
                    layout.cut(at * 512, length * 512, &mut pieces);
                    let walked = pieces.iter().flat_map(|piece| (0..piece.length / 512).map(|i| (piece.member, piece.at + i * 512)));
                    prop_assert_eq!(walked.collect::<Vec<_>>(), places[at as usize..(at + length) as usize].to_vec());
                    at += length;
                }
            }
        }
    }

    #[test]
    fn what_makes_no_volume_is_refused() {
        assert_eq!(Concat::new(&[], 512), Err(LayoutError::TooFew(1)));
        assert_eq!(Mirror::new(&[512], 512), Err(LayoutError::TooFew(2)));
        assert_eq!(Parity::new(&[512, 512], 512, 512), Err(LayoutError::TooFew(3)));
        assert_eq!(Stripes::new(&[512, 511], 512, 512), Err(LayoutError::TooSmall(1)));
        assert_eq!(Stripes::new(&[512, 512], 0, 512), Err(LayoutError::Stripe { stripe: 0, unit: 512 }));
        assert_eq!(Stripes::new(&[8192, 8192], 512, 4096), Err(LayoutError::Stripe { stripe: 512, unit: 4096 }));
        assert_eq!(Concat::new(&[u64::MAX, u64::MAX], 512), Err(LayoutError::TooLong));
        let stripes = Stripes::new(&[5 * 512, 4 * 512], 1024, 512).unwrap();
        assert_eq!(stripes.bytes(), 8 * 512, "whole stripes of the shorter member");
    }
}
