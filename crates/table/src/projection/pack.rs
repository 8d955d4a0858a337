//! Packing rows: the chosen bytes of whole rows, moved next to each other.
//!
//! Prefixes are packed column by column: a page's prefixes stay in the first-level cache, and a pass that moves 1, 2, 4,
//! 8 or 16 bytes from one constant stride to another is a handful of instructions a row, where a row-by-row walk over a
//! list of runs would call memcpy for every few bytes. A run of another width is two overlapping moves.

use overside_shape::Run;

use super::Projection;
use crate::row::Malformed;

/// One move of a row: `width` bytes (1, 2, 4, 8 or 16, or more as one memcpy) within the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    from: usize,
    to: usize,
    width: usize,
}

impl Projection {
    /// Packs the prefixes of consecutive rows, whole prefixes one after another in `prefixes`, into `out`.
    ///
    /// # Panics
    /// The lengths are not the same number of whole and of packed prefixes.
    pub fn pack_prefixes(&self, prefixes: &[u8], out: &mut [u8]) {
        let (from, to) = (self.in_place.prefix_len, self.packed.prefix_len);
        if from == to {
            return out.copy_from_slice(prefixes);
        }
        if to == 0 {
            return assert!(out.is_empty(), "packed prefixes of no bytes take none");
        }
        let rows = prefixes.len() / from;
        assert!(prefixes.len() == rows * from && out.len() == rows * to, "as many packed prefixes as whole ones");
        for one in &self.moves {
            match one.width {
                1 => pass::<1>(one, prefixes, from, out, to),
                2 => pass::<2>(one, prefixes, from, out, to),
                4 => pass::<4>(one, prefixes, from, out, to),
                8 => pass::<8>(one, prefixes, from, out, to),
                16 => pass::<16>(one, prefixes, from, out, to),
                _ => wide_pass(one, prefixes, from, out, to),
            }
        }
    }

    /// Bytes that [`Projection::pack_rest`] would write for this rest.
    ///
    /// # Errors
    /// The rest's offsets are broken.
    pub fn packed_rest_len(&self, rest: &[u8]) -> Result<usize, Malformed> {
        if self.keeps_rests() {
            return Ok(rest.len());
        }
        let mut bytes = self.variables.len() * 4;
        for &variable in &self.variables {
            bytes += self.variable(rest, variable)?.len();
        }
        Ok(bytes)
    }

    /// Packs one rest into the start of `out`; answers how many bytes that took.
    ///
    /// # Errors
    /// The rest's offsets are broken, or `out` is shorter than [`Projection::packed_rest_len`].
    pub fn pack_rest(&self, rest: &[u8], out: &mut [u8]) -> Result<usize, Malformed> {
        const SHORT: Malformed = Malformed("a packed rest does not fit where it was to go");
        if self.keeps_rests() {
            out.get_mut(..rest.len()).ok_or(SHORT)?.copy_from_slice(rest);
            return Ok(rest.len());
        }
        let offsets = self.variables.len() * 4;
        let mut at = offsets;
        for (index, &variable) in self.variables.iter().enumerate() {
            let bytes = self.variable(rest, variable)?;
            out.get_mut(at..at + bytes.len()).ok_or(SHORT)?.copy_from_slice(bytes);
            at += bytes.len();
            out[index * 4..index * 4 + 4].copy_from_slice(&((at - offsets) as u32).to_le_bytes());
        }
        Ok(at)
    }

    fn variable<'a>(&self, rest: &'a [u8], index: usize) -> Result<&'a [u8], Malformed> {
        const BROKEN: Malformed = Malformed("a row's offsets point outside it");
        let (offsets, bytes) = rest.split_at_checked(self.variables_of_row * 4).ok_or(BROKEN)?;
        let end = |index: usize| {
            let offset = &offsets[index * 4..index * 4 + 4];
            u32::from_le_bytes([offset[0], offset[1], offset[2], offset[3]]) as usize
        };
        let start = if index == 0 { 0 } else { end(index - 1) };
        bytes.get(start..end(index)).ok_or(BROKEN)
    }
}

/// How to move these runs of a prefix next to each other.
pub(super) fn moves(runs: &[Run]) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut to = 0;
    for run in runs {
        let (from, len) = (run.at as usize, run.len as usize);
        let width = match len {
            0..16 => 1 << len.ilog2(),
            16..=32 => 16,
            _ => len,
        };
        moves.push(Move { from, to, width });
        if width < len {
            moves.push(Move { from: from + len - width, to: to + len - width, width });
        }
        to += len;
    }
    moves
}

#[inline(always)]
fn pass<const WIDTH: usize>(one: &Move, source: &[u8], from: usize, target: &mut [u8], to: usize) {
    let rows = source.chunks_exact(from).zip(target.chunks_exact_mut(to));
    for (source, target) in rows {
        target[one.to..one.to + WIDTH].copy_from_slice(&source[one.from..one.from + WIDTH]);
    }
}

fn wide_pass(one: &Move, source: &[u8], from: usize, target: &mut [u8], to: usize) {
    for (source, target) in source.chunks_exact(from).zip(target.chunks_exact_mut(to)) {
        target[one.to..one.to + one.width].copy_from_slice(&source[one.from..one.from + one.width]);
    }
}
