//! Receive buffers: posted, taken by messages, and posted again.

use std::sync::Arc;

use overside_memory::{Buffer, Segment};
use overside_verbs::{CompletionQueue, Memory, QueuePair, VerbsError};

/// How a [`Ring`] is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Whose receives they are; none: of the shared receive queue.
    pub queue_pair: Option<QueuePair>,
    /// The number that completions of these receives carry.
    pub id: u64,
    /// Bytes of a buffer: the longest message.
    pub bytes: usize,
    /// How many buffers there are.
    pub count: usize,
    /// How many are posted at once. With few, the same few buffers stay in the cache.
    pub posted_max: usize,
    /// How many come back before any is posted again: telling the sender of each one costs both
    /// ends.
    pub repost: usize,
    /// Whether a message that its sender lends comes as a loan; else it is copied as all others
    /// are.
    pub loans: bool,
    /// Whether each page is written first, so that no message meets a page that is not there yet.
    pub touched: bool,
}

/// Receive buffers of one size. They are posted, or here, or with whoever looks at a message.
#[derive(Debug)]
pub struct Ring {
    memory: Arc<Segment>,
    queue_pair: Option<QueuePair>,
    id: u64,
    posted: usize,
    posted_max: usize,
    repost: usize,
    loans: bool,
    /// The one that came back last is at the end, and is posted first: it is still in the cache.
    free: Vec<(u64, Buffer)>,
    /// About to be posted; empty between calls.
    next: Vec<(u64, Buffer)>,
}

impl RingOptions {
    /// Of no buffer; all that there are would be posted, each as soon as it is back.
    pub const EMPTY: RingOptions = RingOptions {
        queue_pair: None,
        id: 0,
        bytes: 0,
        count: 0,
        posted_max: usize::MAX,
        repost: 1,
        loans: false,
        touched: false,
    };
}

impl Default for RingOptions {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Ring {
    pub(crate) fn new(memory: Arc<Segment>, mut buffers: Vec<Buffer>, options: RingOptions) -> Ring {
        let RingOptions { queue_pair, id, count, posted_max, repost, loans, touched, .. } = options;
        buffers.truncate(count);
        if touched {
            buffers.iter_mut().for_each(|buffer| buffer.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1));
        }
        let free = buffers.into_iter().map(|buffer| (id, buffer)).collect();
        Ring {
            memory,
            queue_pair,
            id,
            posted: 0,
            posted_max: posted_max.max(1),
            repost: repost.max(1),
            loans,
            free,
            next: Vec::new(),
        }
    }

    /// What the buffers lie in: to end its registration before the endpoint ends.
    pub fn memory(&self) -> Memory {
        Memory::Segment(self.memory.clone())
    }

    /// Receives that are posted; none: whoever took the messages has all buffers.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// Counts a receive that has completed; its buffer is the caller's until it is
    /// [`put`](Self::put) back.
    #[inline]
    pub fn completed(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// Takes a buffer back, to be posted by [`post`](Self::post).
    #[inline]
    pub fn put(&mut self, buffer: Buffer) {
        self.free.push((self.id, buffer));
    }

    /// Posts what has come back, once it is enough.
    ///
    /// # Errors
    /// [`VerbsError::Closed`] when the queue pair is not there.
    #[inline]
    pub fn post(&mut self, queue: &mut CompletionQueue) -> Result<(), VerbsError> {
        if self.free.len() < self.repost { Ok(()) } else { self.post_all(queue) }
    }

    /// Posts what has come back, however little it is.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub fn post_all(&mut self, queue: &mut CompletionQueue) -> Result<(), VerbsError> {
        let room = self.posted_max.saturating_sub(self.posted);
        if room >= self.free.len() {
            let posted = post(queue, self.queue_pair, self.loans, &mut self.free);
            self.posted += posted.as_ref().map_or(0, |posted| *posted);
            return posted.map(drop);
        }
        self.next.extend(self.free.drain(self.free.len() - room..));
        let posted = post(queue, self.queue_pair, self.loans, &mut self.next);
        self.posted += posted.as_ref().map_or(0, |posted| *posted);
        self.free.append(&mut self.next);
        posted.map(drop)
    }
}

fn post(
    queue: &mut CompletionQueue,
    queue_pair: Option<QueuePair>,
    loans: bool,
    buffers: &mut Vec<(u64, Buffer)>,
) -> Result<usize, VerbsError> {
    match loans {
        true => queue.post_receive_or_loan(queue_pair, buffers),
        false => queue.post_receive(queue_pair, buffers),
    }
}

const PAGE_BYTES: usize = 4096;
