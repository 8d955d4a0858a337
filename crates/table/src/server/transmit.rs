//! Transmit buffers of a worker, registered once (to-copy §3 TC-M03), and what each connection may have of them.
//!
//! A client may leave what it asked for untaken until its deadline, and its buffers stay with it as long. So a connection has a most
//! that it may take, and a share that it gets in any case: where others have taken all there are, some are added.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use overside_memory::{Buffer, Pool, Segment, View};
use overside_verbs::{Access, Memory, MemoryRegion, VerbsError};

use super::Shared;

/// Large buffers for packed answers, small ones for the headers of answers that are gathered.
#[derive(Debug)]
pub(crate) struct Transmit {
    shared: Arc<Shared>,
    large: Class,
    small: Class,
    received: Option<MemoryRegion>,
}

/// Buffers of one length.
#[derive(Debug)]
struct Class {
    size: Size,
    buffer_bytes: usize,
    /// That one connection may have.
    lent_max: usize,
    /// The first has as many as some connections need; each other was added for one that had less than its share.
    pools: RefCell<Vec<(Pool, MemoryRegion)>>,
}

/// Which buffers a message lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Large,
    Small,
    /// It lies on the heap, or wherever it was stored.
    None,
}

/// A buffer that was taken.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) buffer: Buffer,
    size: Size,
    /// Which of its length's pools it is of.
    pool: usize,
}

/// A message, and the buffer that it takes until it is sent.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) view: View,
    pub(crate) size: Size,
}

/// What one connection's messages take, those that wait and those that are under way. Messages complete in order.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    messages: VecDeque<Size>,
    large: usize,
    small: usize,
}

impl Lent {
    /// A message is queued.
    pub(crate) fn queued(&mut self, size: Size) {
        self.messages.push_back(size);
        if let Some(count) = self.count(size) {
            *count += 1;
        }
    }

    /// The first of those queued is sent.
    pub(crate) fn sent(&mut self) {
        if let Some(count) = self.messages.pop_front().and_then(|size| self.count(size)) {
            *count -= 1;
        }
    }

    fn count(&mut self, size: Size) -> Option<&mut usize> {
        match size {
            Size::Large => Some(&mut self.large),
            Size::Small => Some(&mut self.small),
            Size::None => None,
        }
    }
}

impl Transmit {
    /// # Errors
    /// When the memory is not there or the provider has no room for three more regions.
    pub(crate) fn new(shared: &Arc<Shared>, received: &Arc<Segment>) -> Result<Self, VerbsError> {
        Ok(Self {
            large: Class::new(shared, Size::Large, (LARGE_BYTES, LARGE_COUNT), LARGE_COUNT)?,
            small: Class::new(shared, Size::Small, (SMALL_BYTES, SMALL_COUNT), SMALL_COUNT / 2)?,
            received: Some(register(shared, received)?),
            shared: shared.clone(),
        })
    }

    /// The smallest buffer of at least `len` bytes, for a connection with `lent`; none when it has its share, or none is so long.
    pub(crate) fn take(&self, len: usize, lent: &Lent) -> Option<Taken> {
        match len {
            0..=SMALL_BYTES => self.small.take(lent.small, &self.shared),
            _ if len <= LARGE_BYTES => self.large.take(lent.large, &self.shared),
            _ => None,
        }
    }

    /// The first `len` bytes of a taken buffer, which comes back when they are sent.
    pub(crate) fn message(&self, Taken { buffer, size, pool }: Taken, len: usize) -> Message {
        Message { view: self.class(size).pools.borrow()[pool].0.view(buffer, len), size }
    }

    /// Gives an unused buffer back.
    pub(crate) fn put(&self, Taken { buffer, size, pool }: Taken) {
        self.class(size).pools.borrow()[pool].0.put(buffer);
    }

    /// `bytes` in a transmit buffer, or on the heap when the connection may have none or it is longer than any.
    pub(crate) fn packed(&self, bytes: Vec<u8>, lent: &Lent) -> Message {
        match self.take(bytes.len(), lent) {
            Some(mut taken) => {
                taken.buffer[..bytes.len()].copy_from_slice(&bytes);
                self.message(taken, bytes.len())
            }
            None => Message { view: View::foreign(Arc::new(bytes)), size: Size::None },
        }
    }

    /// Gives back what was added for connections that are gone.
    pub(crate) fn trim(&self) {
        self.large.trim(&self.shared);
        self.small.trim(&self.shared);
    }

    /// Ends the registrations; what is in flight still completes.
    pub(crate) fn close(&mut self) {
        let pools = [&mut self.large, &mut self.small].into_iter().flat_map(|class| class.pools.get_mut().drain(..));
        for region in pools.map(|(_, region)| region).chain(self.received.take()) {
            let _ = self.shared.provider.deregister(region);
        }
    }

    fn class(&self, size: Size) -> &Class {
        if size == Size::Small { &self.small } else { &self.large }
    }
}

impl Class {
    fn new(
        shared: &Shared,
        size: Size,
        (buffer_bytes, count): (usize, usize),
        lent_max: usize,
    ) -> Result<Self, VerbsError> {
        let class = Self { size, buffer_bytes, lent_max, pools: RefCell::default() };
        class.add(shared, count)?;
        Ok(class)
    }

    fn add(&self, shared: &Shared, count: usize) -> Result<(), VerbsError> {
        let pool = Pool::new(Segment::shared(self.buffer_bytes * count)?, self.buffer_bytes)?;
        let region = register(shared, pool.segment())?;
        self.pools.borrow_mut().push((pool, region));
        Ok(())
    }

    /// A buffer for a connection that has `lent` of them.
    fn take(&self, lent: usize, shared: &Shared) -> Option<Taken> {
        if lent >= self.lent_max {
            return None;
        }
        self.free_one().or_else(|| {
            let has_share = lent >= SHARE;
            // The system may have no room for more; then it waits.
            (!has_share && self.add(shared, ADDED).is_ok()).then(|| self.free_one()).flatten()
        })
    }

    fn free_one(&self) -> Option<Taken> {
        let pools = self.pools.borrow();
        let taken =
            |(pool, (buffers, _)): (usize, &(Pool, _))| Some(Taken { buffer: buffers.take()?, size: self.size, pool });
        pools.iter().enumerate().find_map(taken)
    }

    /// Gives the last pool back when nobody uses it and there is plenty without it.
    fn trim(&self, shared: &Shared) {
        let mut pools = self.pools.borrow_mut();
        let [(first, _), .., (last, _)] = pools.as_slice() else { return };
        if last.free() == last.capacity() && first.free() * 2 >= first.capacity() {
            let last = pools.pop();
            drop(pools);
            last.into_iter().for_each(|(_, region)| _ = shared.provider.deregister(region));
        }
    }
}

fn register(shared: &Shared, segment: &Arc<Segment>) -> Result<MemoryRegion, VerbsError> {
    shared.provider.register(&shared.domain, &Memory::Segment(segment.clone()), Access::LOCAL)
}

/// A packed answer: at least a page's rows and their header. No power of two, so that the buffers do not fall into the
/// same sets of a cache.
pub(crate) const LARGE_BYTES: usize = 36 << 10;
/// A client that is alone may have all: enough for it to copy some while the worker packs others.
const LARGE_COUNT: usize = 32;
/// Header, run table and delta table of a page with a long chain.
const SMALL_BYTES: usize = 2 << 10;
/// For some clients that scan at once, each of which has a window of them in flight.
const SMALL_COUNT: usize = 1024;
/// Buffers that a connection gets in any case: one that is copied, one that is next, and as many again while the server is told.
const SHARE: usize = 4;
/// Buffers that are added at once, for as many connections as that is the share of.
const ADDED: usize = 16 * SHARE;
