//! Messages of a shape, packed a stretch of rows at a time.

use overside_shape::{Column, Messages, ShapeKind};

use super::columns::Bits;
use super::kernel::PackKernel;
use super::{indexed, pack_with};
use crate::MemoryError;
use crate::pack::Layout;

/// Packs messages of one length, some at a time. Several packers over the same columns, taken in
/// turn, read what they share from the nearest cache: a stretch is about a thousand rows (d-rdma §6
/// DR-M59).
#[derive(Debug)]
pub struct Packer<'a> {
    kernel: PackKernel,
    memory: &'a [u8],
    /// Those that are left.
    messages: Messages<'a>,
    message_bytes: usize,
    rows: Option<(&'a [Column], Bits<'a>)>,
}

impl<'a> Packer<'a> {
    /// Over `memory`; none for messages of several lengths, or of none.
    ///
    /// # Errors
    /// [`MemoryError::Escapes`] when the shape leaves the memory.
    pub fn new(memory: &'a [u8], messages: Messages<'a>) -> Result<Option<Self>, MemoryError> {
        let (shape, len) = (messages.shape(), memory.len() as u64);
        shape.within(len).map_err(|_| MemoryError::Escapes { at: 0, len: shape.end(), of: len })?;
        let Some(bytes @ 1..) = messages.uniform_bytes() else { return Ok(None) };
        let rows = match shape.kind() {
            ShapeKind::Bitmapped { columns, rows }
                if columns.len() > 1 && columns.iter().map(|column| column.width).sum::<u64>() == bytes =>
            {
                Some((columns, Bits::new(rows, messages.range().start)))
            }
            _ => None,
        };
        Ok(Some(Self { kernel: PackKernel::best(), memory, messages, message_bytes: bytes as usize, rows }))
    }

    /// Messages that are left.
    pub fn left(&self) -> u64 {
        self.messages.count()
    }

    /// Packs messages of the next stretch (of all, where the shape has no bitmap) into the start of
    /// `out`, as many as fit, and gives how many: possibly none, where the stretch has none.
    ///
    /// # Errors
    /// [`MemoryError::Short`] when `out` has no room for a message and one is left.
    pub fn stretch(&mut self, out: &mut [u8]) -> Result<u64, MemoryError> {
        let most = self.left().min((out.len() / self.message_bytes) as u64);
        if most == 0 && self.left() > 0 {
            return Err(MemoryError::Short { needed: self.message_bytes as u64, has: out.len() as u64 });
        }
        let taken = match &mut self.rows {
            Some((columns, bits)) => {
                let base = self.memory.as_ptr();
                // SAFETY: [pack] the shape lies within the slice, `out` has room, and the kernel is available.
                let ones =
                    unsafe { indexed::stretch(self.kernel, base, columns, bits, most as usize, out.as_mut_ptr()) };
                ones.map_or(0, |ones| ones as u64)
            }
            None => {
                pack_with(self.kernel, Layout::Messages, self.memory, &self.messages.slice(0..most), out)?;
                most
            }
        };
        self.messages = self.messages.slice(taken..self.left());
        Ok(taken)
    }
}
