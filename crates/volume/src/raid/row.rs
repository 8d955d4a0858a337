//! One row of RAID 5: what must be read before a part of it is written, and what its parity is
//! then. Pure.

use overside_memory::{Buffer, Bytes};

use crate::layout::Parity;

/// New bytes of a part of a row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) number: u64,
    /// The columns that are written: bytes of each stripe, from and to.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) parts: Vec<Part>,
}

/// New bytes of one stripe.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) stripe: usize,
    pub(super) from: u64,
    pub(super) bytes: Bytes,
}

/// How the parity is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// There is nobody to hold it.
    WithoutParity,
    /// From the old bytes of what is written and the old parity.
    Change,
    /// From the bytes of all stripes; what is written whole is not read.
    Reconstruct,
    /// From everything but the member that is missing.
    Everything,
}

/// Something to be read: which stripe, or the parity; from which column on, how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) stripe: Option<usize>,
    pub(super) from: u64,
    pub(super) length: u64,
}

impl Part {
    fn to(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }
}

impl Row {
    /// Of the parts, in any order.
    pub(super) fn new(number: u64, parts: Vec<Part>) -> Row {
        let from = parts.iter().map(|part| part.from).min().unwrap_or(0);
        let to = parts.iter().map(Part::to).max().unwrap_or(0);
        Row { number, from, to, parts }
    }

    /// Nothing new: its parity is found again.
    pub(super) fn as_it_is(number: u64, stripe_bytes: u64) -> Row {
        Row { number, from: 0, to: stripe_bytes, parts: Vec::new() }
    }

    /// Of it, some columns; none where nothing of it is new there.
    pub(super) fn columns(&self, from: u64, to: u64) -> Option<Row> {
        let cut = |part: &Part| {
            let (first, end) = (part.from.max(from), part.to().min(to));
            let bytes =
                (first < end).then(|| part.bytes.slice((first - part.from) as usize..(end - part.from) as usize))?;
            Some(Part { stripe: part.stripe, from: first, bytes })
        };
        let parts: Vec<Part> = self.parts.iter().filter_map(cut).collect();
        (self.parts.is_empty() || !parts.is_empty()).then_some(Row { number: self.number, from, to, parts })
    }

    pub(super) fn is_whole(&self, stripe: usize) -> bool {
        self.parts.iter().any(|part| part.stripe == stripe && part.from == self.from && part.to() == self.to)
    }

    /// The cheapest plan that reads only what may be read. `trusted`: its parity is that of its
    /// stripes.
    pub(super) fn plan(
        &self,
        layout: &Parity,
        trusted: bool,
        readable: impl Fn(usize) -> bool,
        writable: impl Fn(usize) -> bool,
    ) -> Option<Plan> {
        let (parity, stripes) = (layout.parity_of(self.number), layout.members() - 1);
        let of = |stripe: usize| layout.member_of(self.number, stripe);
        if !writable(parity) {
            return self.parts.iter().all(|part| writable(of(part.stripe))).then_some(Plan::WithoutParity);
        }
        let rest = || (0..stripes).filter(|stripe| !self.is_whole(*stripe));
        let change =
            readable(parity) && !self.parts.is_empty() && self.parts.iter().all(|part| readable(of(part.stripe)));
        let reconstruct = rest().all(|stripe| readable(of(stripe)));
        let missing = (0..stripes).filter(|stripe| !readable(of(*stripe))).count();
        match (change, reconstruct) {
            // What changes a parity that is not trusted leaves it so.
            (true, true) if trusted && self.parts.len() + 1 < rest().count() => Some(Plan::Change),
            (_, true) => Some(Plan::Reconstruct),
            (true, false) if trusted => Some(Plan::Change),
            (_, false) => (trusted && missing == 1 && readable(parity)).then_some(Plan::Everything),
        }
    }

    /// What a plan reads.
    pub(super) fn sources(&self, plan: Plan, layout: &Parity, readable: impl Fn(usize) -> bool) -> Vec<Source> {
        let stripes = 0..layout.members() - 1;
        let (from, length) = (self.from, self.to - self.from);
        let parity = Source { stripe: None, from, length };
        let all = |stripe| Source { stripe: Some(stripe), from, length };
        match plan {
            Plan::WithoutParity => Vec::new(),
            Plan::Change => {
                let of = |part: &Part| Source {
                    stripe: Some(part.stripe),
                    from: part.from,
                    length: part.bytes.len() as u64,
                };
                self.parts.iter().map(of).chain([parity]).collect()
            }
            Plan::Reconstruct => stripes.filter(|stripe| !self.is_whole(*stripe)).map(all).collect(),
            Plan::Everything => {
                let present = stripes.filter(|stripe| readable(layout.member_of(self.number, *stripe)));
                present.map(all).chain([parity]).collect()
            }
        }
    }

    /// The parity of its columns, into a buffer that is long enough, from what the plan has read.
    pub(super) fn parity(&self, plan: Plan, stripes: usize, read: &[(Source, Buffer)], parity: &mut [u8]) {
        let length = (self.to - self.from) as usize;
        let parity = &mut parity[..length];
        parity.fill(0);
        if plan == Plan::WithoutParity {
            return;
        }
        for (source, bytes) in read {
            let column = (source.from - self.from) as usize;
            xor(&mut parity[column..column + source.length as usize], &bytes[..source.length as usize]);
        }
        if plan == Plan::Everything {
            // Now it is what the missing stripe has. With all that was read, the parity is the exclusive or of what changes.
            let missing: Vec<u8> = parity.to_vec();
            parity.fill(0);
            let present = |stripe: usize| read.iter().find(|(source, _)| source.stripe == Some(stripe));
            for stripe in 0..stripes {
                let old = present(stripe).map_or(&missing[..], |(_, bytes)| &bytes[..length]);
                let mut new = old.to_vec();
                self.overlay(stripe, &mut new);
                xor(parity, &new);
            }
            return;
        }
        for part in &self.parts {
            let column = (part.from - self.from) as usize;
            let place = &mut parity[column..column + part.bytes.len()];
            let old = read.iter().find(|(source, _)| source.stripe == Some(part.stripe));
            if plan == Plan::Reconstruct
                && let Some((_, old)) = old
            {
                // Its old bytes went in with the rest of its columns.
                xor(place, &old[column..column + part.bytes.len()]);
            }
            xor(place, &part.bytes);
        }
    }

    fn overlay(&self, stripe: usize, bytes: &mut [u8]) {
        for part in self.parts.iter().filter(|part| part.stripe == stripe) {
            let column = (part.from - self.from) as usize;
            bytes[column..column + part.bytes.len()].copy_from_slice(&part.bytes);
        }
    }
}

/// `into ^= of`, both of whole words.
pub(super) fn xor(into: &mut [u8], of: &[u8]) {
    let (words, rest) = into.as_chunks_mut::<8>();
    let (of_words, of_rest) = of.as_chunks::<8>();
    for (into, of) in words.iter_mut().zip(of_words) {
        *into = (u64::from_ne_bytes(*into) ^ u64::from_ne_bytes(*of)).to_ne_bytes();
    }
    rest.iter_mut().zip(of_rest).for_each(|(into, of)| *into ^= of);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::intents::buffer;
    use proptest::prelude::*;

    const STRIPE: u64 = 2048;

    fn bytes(length: usize, seed: u8) -> Bytes {
        let mut bytes = buffer(length).unwrap();
        (0..length).for_each(|at| bytes[at] = seed.wrapping_mul(31).wrapping_add(at as u8));
        Bytes::prefix(bytes, length)
    }

    proptest! {
        /// Any parts, any member missing: the parity is that of the stripes as they are afterwards.
        #[test]
        fn every_plan_finds_the_same_parity(
            members in 3usize..6,
            number in 0u64..7,
            cuts in proptest::collection::vec((0u64..4, 1u64..5), 1..5),
            missing in proptest::option::of(0usize..6),
        ) {
            let layout = Parity::new(&vec![STRIPE * 8; members], STRIPE, 512).unwrap();
            let missing = missing.filter(|member| *member < members);
            let parts: Vec<Part> = cuts.iter().take(members - 1).enumerate().map(|(stripe, (from, length))| {
                let length = (*length).min(4 - from) * 512;
                Part { stripe, from: from * 512, bytes: bytes(length as usize, stripe as u8 + 100) }
            }).collect();
            let row = Row::new(number, parts);
            let mut old: Vec<Vec<u8>> = (0..members - 1).map(|stripe| bytes(STRIPE as usize, stripe as u8).to_vec()).collect();
            let mut parity = vec![0; STRIPE as usize];
            old.iter().for_each(|stripe| xor(&mut parity, stripe));
            let here = |member: usize| missing != Some(member);
            let plan = row.plan(&layout, true, here, here);
            prop_assert!(plan.is_some());
            let plan = plan.unwrap();
            let sources = row.sources(plan, &layout, here);
            let read: Vec<(Source, Buffer)> = sources.iter().map(|source| {
                let member = source.stripe.map_or(layout.parity_of(number), |stripe| layout.member_of(number, stripe));
                assert!(here(member), "{plan:?} reads what is missing");
                let from = source.stripe.map_or(&parity, |stripe| &old[stripe]);
                let mut into = buffer(source.length as usize).unwrap();
                let range = source.from as usize..(source.from + source.length) as usize;
                into[..range.len()].copy_from_slice(&from[range]);
                (*source, into)
            }).collect();
            let mut found = vec![1; STRIPE as usize];
            row.parity(plan, members - 1, &read, &mut found);
            if plan == Plan::WithoutParity {
                prop_assert_eq!(missing, Some(layout.parity_of(number)));
                return Ok(());
            }
            for part in &row.parts {
                old[part.stripe][part.from as usize..part.to() as usize].copy_from_slice(&part.bytes);
            }
            let mut expected = vec![0; STRIPE as usize];
            old.iter().for_each(|stripe| xor(&mut expected, stripe));
            let (from, to) = (row.from as usize, row.to as usize);
            prop_assert_eq!(&found[..to - from], &expected[from..to], "{:?}", plan);
        }
    }

    #[test]
    fn a_whole_row_reads_nothing_and_a_small_part_reads_two() {
        let layout = Parity::new(&[STRIPE * 8; 6], STRIPE, 512).unwrap();
        let (all, reads) = (
            |_: usize| true,
            |row: &Row| {
                let plan = row.plan(&layout, true, |_| true, |_| true).unwrap();
                row.sources(plan, &layout, |_| true).len()
            },
        );
        let part = |stripe, from, length| Part { stripe, from, bytes: bytes(length, 1) };
        let whole = Row::new(3, (0..5).map(|stripe| part(stripe, 0, STRIPE as usize)).collect());
        assert_eq!((whole.plan(&layout, true, all, all), reads(&whole)), (Some(Plan::Reconstruct), 0));
        assert_eq!(reads(&Row::new(3, vec![part(2, 512, 512)])), 2);
        // All but one stripe: the one is read, not the four.
        assert_eq!(reads(&Row::new(3, (0..4).map(|stripe| part(stripe, 0, STRIPE as usize)).collect())), 1);
    }

    #[test]
    fn a_parity_that_is_not_trusted_gives_nothing_back() {
        let layout = Parity::new(&[STRIPE * 8; 3], STRIPE, 512).unwrap();
        let row = Row::new(
            0,
            vec![
                Part { stripe: 0, from: 0, bytes: bytes(512, 1) },
                Part { stripe: 1, from: 512, bytes: bytes(512, 1) },
            ],
        );
        let here = |member: usize| member != layout.member_of(0, 0);
        assert_eq!(row.plan(&layout, true, here, here), Some(Plan::Everything));
        assert_eq!(row.plan(&layout, false, here, here), None);
    }
}
