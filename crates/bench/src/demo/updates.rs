//! The third process: it updates rows and stamps every write.
//!
//! The child's side is [`serve`], over anything that takes rows ([`Sink`]); the parent's is
//! [`Updater`]. Both talk over the child's socket: a command is three words, a reply is a status, a
//! length, and the log of the writes since the last one (or the words of an error).

use crate::process::{Process, read_word, write_words};
use crate::{
    measure::{Split, now_ns},
    verify::Write,
};
use anyhow::{Context, Result, bail};
use overside_evidence::SplitMix64;
use std::{
    io::{Read, Write as _},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, TryRecvError, channel},
    thread,
    time::Duration,
};

/// Where updates go.
pub(super) trait Sink {
    /// Replaces rows, or brings them back: index and version of each.
    fn put(&mut self, rows: &[(usize, i64)]) -> Result<()>;
    /// Deletes a row.
    fn delete(&mut self, index: usize) -> Result<()>;
}

/// The parent's end of the updating process.
#[derive(Debug)]
pub(super) struct Updater {
    process: Process,
    socket: UnixStream,
}

impl Updater {
    /// Takes over a started process and waits until it is ready.
    pub(super) fn new(process: Process, socket: UnixStream) -> Result<Updater> {
        let mut updater = Updater { process, socket };
        updater.reply()?;
        Ok(updater)
    }

    /// Lets it update random rows, about `per_second` of them, until [`stop`](Self::stop).
    pub(super) fn run(&mut self, per_second: u64) -> Result<()> {
        self.command(&[RUN, per_second, 0])
    }

    /// Stops it; returns the log of what it wrote. Every row is there again.
    pub(super) fn stop(&mut self) -> Result<Vec<u8>> {
        self.command(&[STOP, 0, 0])?;
        self.reply()
    }

    /// Lets it update these rows, all different, in this order; returns the log.
    pub(super) fn update(&mut self, indexes: &[u64]) -> Result<Vec<u8>> {
        self.command(&[UPDATE, indexes.len() as u64, 0])?;
        self.command(indexes)?;
        self.reply()
    }

    /// User and system time it has used.
    pub(super) fn used(&self) -> Result<Split> {
        self.process.used()
    }

    fn command(&mut self, words: &[u64]) -> Result<()> {
        let sent = write_words(&mut self.socket, words);
        self.explain(sent)
    }

    fn reply(&mut self) -> Result<Vec<u8>> {
        let status = read_word(&mut self.socket);
        let status = self.explain(status)?;
        let length = read_word(&mut self.socket)?;
        let mut bytes = vec![0; length as usize];
        self.socket.read_exact(&mut bytes)?;
        match status {
            DONE => Ok(bytes),
            _ => bail!("the updating process failed: {}", String::from_utf8_lossy(&bytes)),
        }
    }

    /// A broken socket means that the process has ended: that is what should be said.
    fn explain<T>(&mut self, outcome: std::io::Result<T>) -> Result<T> {
        if outcome.is_err() {
            thread::sleep(Duration::from_millis(50));
            self.process.alive()?;
        }
        outcome.context("the updating process does not answer")
    }
}

/// The child's side: obeys commands until the parent hangs up. `rows` is how many rows there are.
pub(super) fn serve(sink: impl Sink, rows: usize, mut socket: UnixStream) -> Result<()> {
    let mut reader = socket.try_clone()?;
    let (sender, commands) = channel();
    thread::spawn(move || {
        while let Ok(word) = read_word(&mut reader) {
            if sender.send(word).is_err() {
                return;
            }
        }
    });
    let mut writer =
        Writer { sink, versions: vec![1; rows], log: Vec::new(), random: SplitMix64(0), batches: 0, deleted: None };
    reply(&mut socket, Ok(Vec::new()))?;
    // The parent's end of the channel closing is the end of the demo.
    while let Ok(command) = commands.recv() {
        let (Ok(count), Ok(_)) = (commands.recv(), commands.recv()) else { break };
        let outcome = match command {
            RUN => writer.run(count, &commands),
            UPDATE => {
                let indexes: Vec<u64> = (0..count).map_while(|_| commands.recv().ok()).collect();
                writer.update(&indexes)
            }
            _ => Ok(()),
        };
        let outcome = outcome.map(|()| std::mem::take(&mut writer.log));
        reply(&mut socket, outcome)?;
    }
    Ok(())
}

fn reply(socket: &mut UnixStream, outcome: Result<Vec<u8>>) -> Result<()> {
    let (status, bytes) = match outcome {
        Ok(log) => (DONE, log),
        Err(error) => (FAILED, format!("{error:#}").into_bytes()),
    };
    write_words(socket, &[status, bytes.len() as u64])?;
    Ok(socket.write_all(&bytes)?)
}

/// Writes rows and stamps them.
struct Writer<S> {
    sink: S,
    /// The latest version of each row.
    versions: Vec<u32>,
    log: Vec<u8>,
    random: SplitMix64,
    batches: u64,
    /// A row that is deleted just now.
    deleted: Option<usize>,
}

impl<S: Sink> Writer<S> {
    /// Random batches at a steady rate until the next command, which is STOP and is taken.
    fn run(&mut self, per_second: u64, commands: &Receiver<u64>) -> Result<()> {
        let start = now_ns();
        let mut written = 0u64;
        while let Err(TryRecvError::Empty) = commands.try_recv() {
            let due = start + written * 1_000_000_000 / per_second.max(1);
            let ahead = due.saturating_sub(now_ns());
            if ahead > 0 {
                thread::sleep(Duration::from_nanos(ahead));
            }
            written += self.random_batch()?;
        }
        // The two other words of STOP.
        let _ = (commands.recv(), commands.recv());
        self.bring_back()
    }

    fn update(&mut self, indexes: &[u64]) -> Result<()> {
        for batch in indexes.chunks(LARGE_BATCH) {
            let batch: Vec<usize> = batch.iter().map(|index| *index as usize).collect();
            if batch.iter().any(|index| *index >= self.versions.len()) {
                bail!("a row beyond the table's {} was to be updated", self.versions.len());
            }
            self.put(&batch)?;
        }
        Ok(())
    }

    /// Updates a few rows; now and then a row is deleted, and comes back with the next batch.
    fn random_batch(&mut self) -> Result<u64> {
        self.bring_back()?;
        let mut batch: Vec<usize> = Vec::with_capacity(BATCH);
        while batch.len() < BATCH.min(self.versions.len()) {
            let index = self.next_random();
            if !batch.contains(&index) {
                batch.push(index);
            }
        }
        self.put(&batch)?;
        self.batches += 1;
        if self.batches.is_multiple_of(DELETE_EVERY) {
            let index = self.next_random();
            self.stamped(&[index], true, |sink, rows| sink.delete(rows[0].0))?;
            self.deleted = Some(index);
        }
        Ok(batch.len() as u64)
    }

    fn bring_back(&mut self) -> Result<()> {
        match self.deleted.take() {
            None => Ok(()),
            Some(index) => self.put(&[index]),
        }
    }

    fn put(&mut self, batch: &[usize]) -> Result<()> {
        self.stamped(batch, false, |sink, rows| sink.put(rows))
    }

    fn stamped(
        &mut self,
        batch: &[usize],
        delete: bool,
        write: impl FnOnce(&mut S, &[(usize, i64)]) -> Result<()>,
    ) -> Result<()> {
        let mut rows = Vec::with_capacity(batch.len());
        for index in batch {
            self.versions[*index] += 1;
            rows.push((*index, i64::from(self.versions[*index])));
        }
        let before_ns = now_ns();
        write(&mut self.sink, &rows)?;
        let after_ns = now_ns();
        for (index, version) in rows {
            let write = Write { index: index as u64, version, delete, before_ns, after_ns };
            self.log.extend_from_slice(&write.encode());
        }
        Ok(())
    }

    fn next_random(&mut self) -> usize {
        self.random.below(self.versions.len() as u64) as usize
    }
}

const RUN: u64 = 1;
const STOP: u64 = 2;
const UPDATE: u64 = 3;
const DONE: u64 = 0;
const FAILED: u64 = 1;
/// Rows of a batch while others scan: small, so that stamps are tight.
const BATCH: usize = 16;
/// Rows of a batch while nobody scans.
const LARGE_BATCH: usize = 1024;
const DELETE_EVERY: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::History;
    use std::{
        collections::HashMap,
        process::Command,
        sync::{Arc, Mutex},
    };

    /// What a table would hold: the version of each row that was written, none when deleted.
    #[derive(Clone, Default)]
    struct Model(Arc<Mutex<HashMap<usize, Option<i64>>>>);

    impl Sink for Model {
        fn put(&mut self, rows: &[(usize, i64)]) -> Result<()> {
            let mut model = self.0.lock().unwrap();
            model.extend(rows.iter().map(|(index, version)| (*index, Some(*version))));
            Ok(())
        }

        fn delete(&mut self, index: usize) -> Result<()> {
            self.0.lock().unwrap().insert(index, None);
            Ok(())
        }
    }

    /// The parent's end, with a process that stands for the child's.
    fn updater(socket: UnixStream) -> Updater {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        Updater::new(Process::of(child, "updating process"), socket).unwrap()
    }

    #[test]
    fn the_log_tells_what_the_table_holds() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let model = Model::default();
        let sink = model.clone();
        let child = thread::spawn(move || serve(sink, 100, theirs));
        let mut updater = updater(ours);
        let mut history = History::default();
        history.extend(&updater.update(&[5]).unwrap()).unwrap();
        history.extend(&updater.update(&[5, 7]).unwrap()).unwrap();
        assert_eq!((history.latest(5), history.latest(7)), ((3, true), (2, true)));
        updater.run(1_000_000).unwrap();
        while model.0.lock().unwrap().len() < 100 {
            thread::yield_now();
        }
        history.extend(&updater.stop().unwrap()).unwrap();
        let model = model.0.lock().unwrap().clone();
        for (index, version) in model {
            let (latest, there) = history.latest(index as u64);
            assert_eq!((version, there), (Some(latest), true), "row {index}");
        }
        let deletions = (0..100).any(|index| history.absent_between(index, 0, u64::MAX));
        assert!(deletions && history.len() > 100, "{} writes", history.len());
        assert!(updater.update(&[100]).unwrap_err().to_string().contains("beyond"));
        drop(updater);
        child.join().unwrap().unwrap();
    }

    #[test]
    fn the_rate_is_kept() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || serve(Model::default(), 1000, theirs));
        let mut updater = updater(ours);
        updater.run(10_000).unwrap();
        thread::sleep(Duration::from_millis(200));
        let writes = updater.stop().unwrap().len() / Write::BYTES;
        // 2,000 and the few that are deleted and come back; less on a machine that is busy.
        assert!((200..2700).contains(&writes), "{writes}");
    }
}
