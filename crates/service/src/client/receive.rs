//! Receive buffers: from the ring to the caller and back.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use overside_memory::Buffer;
use overside_verbs::Loan;

use crate::envelope::CONTROL_HEADER;

/// Receive buffers that callers gave back, from any thread.
#[derive(Clone, Debug)]
pub(super) struct Returned(Arc<ArrayQueue<Buffer>>);

impl Returned {
    /// With room for `count` buffers.
    pub(super) fn new(count: usize) -> Returned {
        Returned(Arc::new(ArrayQueue::new(count.max(1))))
    }

    /// One of them.
    pub(super) fn take(&self) -> Option<Buffer> {
        self.0.pop()
    }

    /// A message in a buffer that comes back here.
    pub(super) fn received(&self, buffer: Buffer, len: usize) -> Received {
        Received { bytes: Bytes::Ring(Some(buffer), self.clone()), len }
    }

    /// A message that was lent, and the buffer that it met.
    pub(super) fn lent(&self, buffer: Buffer, loan: Loan) -> LentMessage {
        let len = usize::try_from(loan.bytes()).unwrap_or(usize::MAX);
        LentMessage { buffer: self.received(buffer, len), loan }
    }
}

/// A message as it came.
#[derive(Debug)]
pub enum Arrived {
    /// In a buffer of the client's.
    Copied(Received),
    /// Where it lies in the server's memory.
    Lent(LentMessage),
}

/// A message that was lent, and the receive buffer that it left unused.
#[derive(Debug)]
pub struct LentMessage {
    loan: Loan,
    buffer: Received,
}

impl LentMessage {
    pub(super) fn loan(&self) -> &Loan {
        &self.loan
    }

    /// The loan. The buffer may be received into again.
    pub fn into_loan(self) -> Loan {
        self.loan
    }

    /// The message in the buffer, as if it had not been lent; none when the server took it back
    /// meanwhile.
    pub fn copied(self) -> Option<Received> {
        let LentMessage { loan, mut buffer } = self;
        let Bytes::Ring(Some(bytes), _) = &mut buffer.bytes else { return None };
        loan.read(0, bytes.get_mut(..buffer.len)?).ok()?;
        loan.is_valid().then_some(buffer)
    }
}

/// A received message. Dropping it lets its buffer be received into again.
#[derive(Debug)]
pub struct Received {
    bytes: Bytes,
    len: usize,
}

#[derive(Debug)]
enum Bytes {
    Ring(Option<Buffer>, Returned),
    /// Came in parts.
    Heap(Vec<u8>),
}

impl Received {
    /// A message that was put together of what came in other ways.
    pub fn assembled(bytes: Vec<u8>) -> Received {
        Received { len: bytes.len(), bytes: Bytes::Heap(bytes) }
    }

    /// Of a reply, what lies behind its header.
    pub fn body(&self) -> &[u8] {
        self.as_ref().get(CONTROL_HEADER..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Received {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Ring(Some(buffer), _) => &buffer[..self.len],
            Bytes::Ring(None, _) => &[],
            Bytes::Heap(bytes) => bytes,
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Bytes::Ring(buffer, returned) = &mut self.bytes
            && let Some(buffer) = buffer.take()
        {
            // The queue has room for every buffer there is.
            let _ = returned.0.push(buffer);
        }
    }
}
