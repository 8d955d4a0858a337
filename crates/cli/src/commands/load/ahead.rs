//! A file that a thread of its own decodes, a batch ahead of the rows that are encoded and sent.

use crate::signals::NO_THREAD;
use anyhow::{Context, Result};
use arrow_array::RecordBatch;
use overside_files::FileReader;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// The batches of one file, in its order.
///
/// Dropped early it does not wait for the thread, which may wait for a pipe: the thread ends with
/// its next batch, or with the process.
pub struct ReadAhead {
    batches: Receiver<Result<Option<Read>>>,
}

/// A batch, and how far its reader had come with it.
pub struct Read {
    pub batch: RecordBatch,
    pub bytes_done: u64,
}

impl ReadAhead {
    /// Starts to read.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn new(mut reader: FileReader) -> Result<ReadAhead> {
        let (batches_to, batches) = sync_channel(BATCHES_AHEAD);
        let read = move || {
            loop {
                let read =
                    reader.next_batch().map(|batch| batch.map(|batch| Read { batch, bytes_done: reader.bytes_done() }));
                // Nothing can be read after an error, and nobody wants more once the receiver is gone.
                let goes_on = matches!(read, Ok(Some(_)));
                if batches_to.send(read).is_err() || !goes_on {
                    return;
                }
            }
        };
        thread::Builder::new().name("reading".into()).spawn(read).context(NO_THREAD)?;
        Ok(ReadAhead { batches })
    }

    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// As [`FileReader::next_batch`].
    pub fn next(&mut self) -> Result<Option<Read>> {
        // The end is sent as well, so that no file counts as read whose thread has died.
        self.batches.recv().context("the thread that reads the file has died")?
    }
}

/// Decoded batches that wait, besides the one that is being decoded: a batch that begins a row
/// group takes longer than the others.
const BATCHES_AHEAD: usize = 1;
