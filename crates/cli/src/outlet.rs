//! Standard output for a scan's rows, written by a thread of its own.
//!
//! Whoever reads the output may pause (a pager does), and a server closes the connection of a
//! client that takes nothing for ten seconds. So rows are taken from the server as they come and
//! wait here, up to [`WAITING_BYTES_MAX`], for their reader.

use crate::output::refused;
use std::io::{self, ErrorKind, Write};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Takes text at once and writes it when its reader is ready.
pub struct Outlet {
    chunk: Vec<u8>,
    chunks: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl Outlet {
    /// An outlet to `sink`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(mut sink: impl Write + Send + 'static) -> io::Result<Outlet> {
        let (chunks, waiting) = sync_channel::<Vec<u8>>(WAITING_BYTES_MAX / CHUNK_BYTES);
        let write = move || {
            for chunk in waiting {
                sink.write_all(&chunk)?;
            }
            sink.flush()
        };
        let writer = std::thread::Builder::new().name("output".into()).spawn(write)?;
        Ok(Outlet { chunk: Vec::with_capacity(CHUNK_BYTES), chunks: Some(chunks), writer: Some(writer) })
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// What the writer met; [`ErrorKind::BrokenPipe`] when the reader has gone.
    pub fn finish(mut self) -> io::Result<()> {
        let chunk = std::mem::take(&mut self.chunk);
        let sent = self.send(chunk);
        self.end().and(sent)
    }

    fn send(&mut self, chunk: Vec<u8>) -> io::Result<()> {
        let sent = self.chunks.as_ref().map(|chunks| chunks.send(chunk));
        match sent {
            Some(Ok(())) => Ok(()),
            // The writer has ended before its time; it says why.
            _ => Err(self.end().err().unwrap_or(ErrorKind::BrokenPipe.into())),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.chunks = None;
        let ended = self.writer.take().map(JoinHandle::join);
        ended.map_or(Ok(()), |ended| {
            ended.unwrap_or_else(|_| Err(io::Error::other("the output thread failed"))).map_err(refused)
        })
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
            self.send(chunk)?;
        }
        Ok(bytes.len())
    }

    /// Nothing: text waits for a full chunk, or for [`Outlet::finish`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const CHUNK_BYTES: usize = 64 << 10;

/// Text that waits for a reader, at most. Beyond it the scan waits as well.
const WAITING_BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>, Option<usize>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut written = self.0.lock().unwrap();
            if self.1.is_some_and(|most| written.len() >= most) {
                return Err(ErrorKind::BrokenPipe.into());
            }
            written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_arrives_in_order() {
        let sink = Sink::default();
        let mut outlet = Outlet::new(sink.clone()).unwrap();
        let mut expected = Vec::new();
        for number in 0..50_000 {
            let line = format!("{number}\n");
            outlet.write_all(line.as_bytes()).unwrap();
            expected.extend_from_slice(line.as_bytes());
        }
        outlet.finish().unwrap();
        assert!(*sink.0.lock().unwrap() == expected);
    }

    #[test]
    fn a_reader_that_has_gone_is_said() {
        let mut outlet = Outlet::new(Sink(Arc::default(), Some(100_000))).unwrap();
        let line = [b'x'; 1000];
        let error = (0..100_000).find_map(|_| outlet.write_all(&line).err());
        assert_eq!(error.unwrap().kind(), ErrorKind::BrokenPipe);
        let mut outlet = Outlet::new(Sink(Arc::default(), Some(0))).unwrap();
        outlet.write_all(&line).unwrap();
        assert_eq!(outlet.finish().unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
