//! Flatbuffers, the encoding of Arrow's metadata, read without trust in a single offset.
//!
//! Arrow's messages use few of the format's features; reading these directly costs less than
//! a generated crate (arrow-format: 11,000 lines, and no view types), and every access checks
//! its bounds. Nothing here recurses.

use anyhow::{Context, Result, ensure};

/// A table: fields found through its vtable, absent ones with their default.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    vtable: usize,
    vtable_bytes: usize,
}

impl<'a> Table<'a> {
    /// The root table of a buffer.
    ///
    /// # Errors
    /// The buffer is damaged.
    pub fn root(bytes: &'a [u8]) -> Result<Table<'a>> {
        Table::follow(bytes, 0)
    }

    /// The table that the offset at `at` refers to.
    fn follow(bytes: &'a [u8], at: usize) -> Result<Table<'a>> {
        let at = offset(bytes, at)?;
        let back = i32::from_le_bytes(array(bytes, at)?) as i64;
        let vtable = usize::try_from(at as i64 - back).context(DAMAGED)?;
        let vtable_bytes = u16::from_le_bytes(array(bytes, vtable)?).into();
        ensure!(vtable_bytes >= 4 && vtable + vtable_bytes <= bytes.len(), DAMAGED);
        Ok(Table { bytes, at, vtable, vtable_bytes })
    }

    /// Where field `slot` lies; `None` when it is absent.
    fn field(&self, slot: usize) -> Result<Option<usize>> {
        let entry = 4 + 2 * slot;
        if entry + 2 > self.vtable_bytes {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(array(self.bytes, self.vtable + entry)?);
        Ok((offset != 0).then(|| self.at + usize::from(offset)))
    }

    /// An unsigned byte: a union's type, a small enumeration, a boolean.
    pub fn u8(&self, slot: usize, default: u8) -> Result<u8> {
        let at = self.field(slot)?;
        at.map_or(Ok(default), |at| Ok(array::<1>(self.bytes, at)?[0]))
    }

    /// A boolean, false by default.
    pub fn bool(&self, slot: usize) -> Result<bool> {
        Ok(self.u8(slot, 0)? != 0)
    }

    /// A 16-bit integer.
    pub fn i16(&self, slot: usize, default: i16) -> Result<i16> {
        let at = self.field(slot)?;
        at.map_or(Ok(default), |at| Ok(i16::from_le_bytes(array(self.bytes, at)?)))
    }

    /// A 32-bit integer.
    pub fn i32(&self, slot: usize, default: i32) -> Result<i32> {
        let at = self.field(slot)?;
        at.map_or(Ok(default), |at| Ok(i32::from_le_bytes(array(self.bytes, at)?)))
    }

    /// A 64-bit integer, 0 by default.
    pub fn i64(&self, slot: usize) -> Result<i64> {
        let at = self.field(slot)?;
        at.map_or(Ok(0), |at| Ok(i64::from_le_bytes(array(self.bytes, at)?)))
    }

    /// A table, or `None`.
    pub fn table(&self, slot: usize) -> Result<Option<Table<'a>>> {
        self.field(slot)?.map(|at| Table::follow(self.bytes, at)).transpose()
    }

    /// A text, or `None`.
    pub fn text(&self, slot: usize) -> Result<Option<&'a str>> {
        let Some(at) = self.field(slot)? else { return Ok(None) };
        let (start, length) = vector(self.bytes, at, 1)?;
        Ok(Some(std::str::from_utf8(&self.bytes[start..start + length]).context(DAMAGED)?))
    }

    /// A vector of tables; empty when absent.
    pub fn tables(&self, slot: usize) -> Result<Vec<Table<'a>>> {
        let Some(at) = self.field(slot)? else { return Ok(Vec::new()) };
        let (start, length) = vector(self.bytes, at, 4)?;
        (0..length).map(|index| Table::follow(self.bytes, start + 4 * index)).collect()
    }

    /// A vector of structures of `SIZE` bytes each; empty when absent.
    pub fn structs<const SIZE: usize>(&self, slot: usize) -> Result<&'a [[u8; SIZE]]> {
        let Some(at) = self.field(slot)? else { return Ok(&[]) };
        let (start, length) = vector(self.bytes, at, SIZE)?;
        Ok(self.bytes[start..start + length * SIZE].as_chunks().0)
    }
}

/// A little-endian 64-bit integer of a structure.
pub fn i64_at(bytes: &[u8], at: usize) -> i64 {
    array(bytes, at).map_or(0, i64::from_le_bytes)
}

fn offset(bytes: &[u8], at: usize) -> Result<usize> {
    let offset = u32::from_le_bytes(array(bytes, at)?);
    Ok(at + offset as usize)
}

/// Start and length of the vector that the offset at `at` refers to.
fn vector(bytes: &[u8], at: usize, element: usize) -> Result<(usize, usize)> {
    let at = offset(bytes, at)?;
    let length = u32::from_le_bytes(array(bytes, at)?) as usize;
    let start = at + 4;
    let held = bytes.len().saturating_sub(start) / element;
    ensure!(length <= held, DAMAGED);
    Ok((start, length))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let from = bytes.get(at..).context(DAMAGED)?;
    from.first_chunk().copied().context(DAMAGED)
}

const DAMAGED: &str = "the metadata is damaged";
