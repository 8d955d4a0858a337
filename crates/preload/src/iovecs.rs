//! The program's own buffers, walked in order.

use libc::iovec;

/// Whether no program's memory can be there, as at null: the kernel is to refuse it. Other
/// addresses where nothing is are not told apart.
#[inline]
pub(crate) fn is_outside(part: &iovec) -> bool {
    let (at, end) = (part.iov_base as isize, (part.iov_base as isize).wrapping_add_unsigned(part.iov_len));
    part.iov_len > 0 && (at < LOWEST || end < at)
}

/// Whether there is no byte in any of them.
#[inline]
pub(crate) fn is_empty(list: &[iovec]) -> bool {
    list.iter().all(|part| part.iov_len == 0)
}

/// Whether a structure of the program's may lie there.
#[inline]
pub(crate) fn is_inside<T>(at: *const T) -> bool {
    at as isize >= LOWEST
}

/// The first page is never the program's, and addresses above the middle are the kernel's.
const LOWEST: isize = 4096;

/// So many buffers go in one message.
pub(crate) const PARTS: usize = 64;

/// A place in a list of buffers.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [iovec],
    /// Bytes of the first buffer that are behind us.
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(list: &'a [iovec]) -> Self {
        Self { rest: list, at: 0 }
    }

    /// The next run of at most `limit` bytes that lie together; none at the end.
    #[inline]
    pub(crate) fn peek(&mut self, limit: usize) -> Option<(*mut u8, usize)> {
        while let Some((first, rest)) = self.rest.split_first() {
            let left = first.iov_len.saturating_sub(self.at);
            if left > 0 {
                return Some((first.iov_base.cast::<u8>().wrapping_add(self.at), left.min(limit)));
            }
            (self.rest, self.at) = (rest, 0);
        }
        None
    }

    /// Moves on by `bytes` of the run that `peek` told.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.at = self.at.wrapping_add(bytes);
    }

    /// Moves on by so many bytes, over as many buffers as they lie in.
    pub(crate) fn skip(&mut self, mut bytes: usize) {
        while let Some((_, len)) = self.peek(bytes).filter(|(_, len)| *len > 0) {
            self.advance(len);
            bytes -= len;
        }
    }

    /// What is left, buffer by buffer, as far as there is place for it. Returns how many those are.
    pub(crate) fn list<T>(mut self, to: &mut [T], mut part: impl FnMut(*mut u8, usize) -> T) -> usize {
        let mut many = 0;
        while let Some(place) = to.get_mut(many)
            && let Some((at, len)) = self.peek(usize::MAX)
        {
            *place = part(at, len);
            self.advance(len);
            many += 1;
        }
        many
    }

    /// Whether nothing is left.
    #[inline]
    pub(crate) fn is_done(&mut self) -> bool {
        self.peek(1).is_none()
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.rest.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len)).saturating_sub(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_in_order_and_empty_buffers_are_passed_over() {
        let mut bytes = *b"abcdef";
        let base = bytes.as_mut_ptr();
        let part = |at: usize, len| iovec { iov_base: base.wrapping_add(at).cast(), iov_len: len };
        let list = [part(0, 2), part(2, 0), part(2, 3), part(5, 1)];
        let mut cursor = Cursor::new(&list);
        let mut seen = Vec::new();
        assert_eq!(cursor.left(), 6);
        cursor.advance(1);
        let mut listed = [(0, 0); 3];
        assert_eq!(cursor.list(&mut listed, |at, len| (at as usize - base as usize, len)), 3);
        assert_eq!((listed, cursor.list(&mut listed[..1], |_, len| (0, len))), ([(1, 1), (2, 3), (5, 1)], 1));
        cursor = Cursor::new(&list);
        while let Some((at, len)) = cursor.peek(2) {
            seen.push((at as usize - base as usize, len));
            cursor.advance(len);
        }
        assert_eq!(seen, [(0, 2), (2, 2), (4, 1), (5, 1)]);
        assert!(cursor.is_done() && cursor.left() == 0);
    }
}
