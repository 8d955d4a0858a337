//! The threads that keep a server's data, and their end.

use std::sync::Arc;

use overside_service::{Running, Threads};
use overside_verbs::VerbsError;

use super::Journal;
use super::checkpoint::Checkpointer;
use super::writer::Writer;

/// What keeps a server's data. Dropped after the last change, it brings the rest to the disk.
#[derive(Debug)]
pub(crate) struct Keeper {
    journal: Arc<Journal>,
    threads: Vec<Running>,
}

impl Keeper {
    /// # Errors
    /// When there can be no further thread.
    pub(crate) fn start(
        writer: Writer,
        checkpointer: Checkpointer,
        threads: &dyn Threads,
    ) -> Result<Keeper, VerbsError> {
        let journal = writer.desk.journal().clone();
        let mut keeper = Keeper { journal, threads: Vec::new() };
        keeper.threads.push(threads.start("checkpoints", Box::new(move || checkpointer.run()))?);
        keeper.threads.push(threads.start("log", Box::new(move || writer.run()))?);
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.journal.close();
        self.threads.drain(..).for_each(Running::join);
    }
}
