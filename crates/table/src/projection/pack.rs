//! Packing rows: the chosen bytes of whole rows, moved next to each other.
//!
//! Prefixes are packed column by column, by the kernels that copying is priced with. A page's
//! prefixes stay in the first-level cache. A pass that moves values of one width from one constant
//! stride to another is a handful of instructions a row.

use overside_memory::pack::pack_periods;

use super::Projection;
use crate::row::Malformed;

impl Projection {
    /// Packs the prefixes of consecutive rows, whole prefixes one after another in `prefixes`, into
    /// `out`.
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
        let packed = pack_periods(prefixes, from, &self.runs, out);
        debug_assert_eq!(packed.ok(), Some(out.len()), "runs lie within the prefix, and a packed one has their bytes");
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
