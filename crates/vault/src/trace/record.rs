//! Writing down what a device is asked for.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use overside_volume::{Completion, Device, Geometry, Request, Work};

use super::TraceRequest;
use crate::server::lock;

/// A device whose READs and WRITEs are written down as they are submitted. What cannot be written
/// down is carried out all the same; [`Trace::written`] says so.
#[derive(Debug)]
pub struct Recorder<D, W> {
    device: D,
    trace: Arc<Mutex<State<W>>>,
}

#[derive(Debug)]
struct State<W> {
    out: W,
    written: io::Result<u64>,
}

/// What a recorder has written, for those who have no hold of it.
#[derive(Debug)]
pub struct Trace<W>(Arc<Mutex<State<W>>>);

impl<D, W: Write> Recorder<D, W> {
    /// Writes lines to `out`.
    pub fn over(device: D, out: W) -> (Recorder<D, W>, Trace<W>) {
        let trace = Arc::new(Mutex::new(State { out, written: Ok(0) }));
        (Recorder { device, trace: trace.clone() }, Trace(trace))
    }
}

impl<W: Write> Trace<W> {
    /// Requests that are written down, once all of them have left memory.
    ///
    /// # Errors
    /// The first one that could not be.
    pub fn written(self) -> io::Result<u64> {
        let state = &mut *lock(&self.0);
        let written = std::mem::replace(&mut state.written, Ok(0))?;
        state.out.flush()?;
        Ok(written)
    }
}

impl<D: Device, W: Write + Send + std::fmt::Debug> Device for Recorder<D, W> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let asked: Vec<Option<TraceRequest>> = batch.iter().map(|request| described(&request.work)).collect();
        self.device.submit(batch);
        let taken = asked.len() - batch.len();
        let state = &mut *lock(&self.trace);
        for request in asked.into_iter().take(taken).flatten() {
            if let Ok(written) = &mut state.written {
                match writeln!(state.out, "{request}") {
                    Ok(()) => *written += 1,
                    Err(error) => state.written = Err(error),
                }
            }
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.device.poll(out)
    }

    fn arm(&mut self) -> bool {
        self.device.arm()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }

    fn due(&self) -> Option<Instant> {
        self.device.due()
    }
}

fn described(work: &Work) -> Option<TraceRequest> {
    let (writes, (offset, bytes)) = match work {
        Work::Read { .. } => (false, work.range()?),
        Work::Write { .. } => (true, work.range()?),
        _ => return None,
    };
    Some(TraceRequest { writes, offset, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use overside_memory::Segment;
    use overside_volume::MemoryDevice;

    #[test]
    fn what_is_taken_is_written_down_and_nothing_else() {
        let (mut recorder, trace) = Recorder::over(MemoryDevice::new(1 << 20).unwrap(), Vec::new());
        let buffer = || Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        let works = [
            Work::Write { at: 512, from: buffer().into(), fua: true },
            Work::Flush,
            Work::Read { at: 8192, length: 1024, into: buffer() },
            Work::Discard { at: 0, length: 4096 },
        ];
        let mut batch = works.into_iter().map(|work| Request { tag: 0, work }).collect();
        recorder.submit(&mut batch);
        assert_eq!(recorder.poll(&mut Vec::new()), 4);
        assert_eq!(lock(&recorder.trace).out, b"w,512,4096\nr,8192,1024\n");
        assert_eq!(trace.written().unwrap(), 2);
    }

    #[test]
    fn a_trace_that_cannot_be_written_says_so_and_the_device_goes_on() {
        #[derive(Debug)]
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut recorder, trace) = Recorder::over(MemoryDevice::new(1 << 20).unwrap(), Full);
        let into = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
        recorder.submit(&mut [Request { tag: 7, work: Work::Read { at: 0, length: 512, into } }].into());
        let mut done = Vec::new();
        recorder.poll(&mut done);
        assert_eq!((done[0].tag, done[0].result), (7, Ok(())));
        assert_eq!(trace.written().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
