//! The receiver's side.

use super::{PIECE_BYTES, PROJECTED_BYTES, REQUEST_BYTES, Request};
use crate::{
    limits::{Touched, touch},
    lineitem::PackedRows,
    measure::{Cpu, elapsed_ns, now_ns},
};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

/// A connection to a process that runs [`super::serve`].
pub struct Baseline {
    socket: UnixStream,
    buffer: Vec<u8>,
}

/// One request, measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaselineRun {
    /// What was read.
    pub touched: Touched,
    /// From the request to its last row.
    pub wall_ns: u64,
    /// CPU time of this process.
    pub client_cpu_ns: u64,
    /// CPU time of the other one.
    pub server_cpu_ns: u64,
}

impl Baseline {
    /// Talks over `socket`.
    pub fn new(socket: UnixStream) -> Baseline {
        Baseline { socket, buffer: vec![0; PIECE_BYTES] }
    }

    /// Asks, and reads key, length and a byte of each cache line of every row that comes.
    ///
    /// # Errors
    ///
    /// The socket failed, or what came is cut off.
    pub fn run(&mut self, request: &Request) -> io::Result<BaselineRun> {
        let (start, cpu) = (now_ns(), Cpu::own());
        let asked: [u8; REQUEST_BYTES] = request.encode();
        self.socket.write_all(&asked)?;
        let mut left = self.read_u64()?;
        let mut touched = Touched::default();
        let mut kept = 0;
        while left > 0 {
            let room = (self.buffer.len() - kept).min(left as usize);
            let came = self.socket.read(&mut self.buffer[kept..kept + room])?;
            if came == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= came as u64;
            let filled = kept + came;
            let rest = if request.projected {
                walk_projected(&self.buffer[..filled], &mut touched)
            } else {
                walk_whole(&self.buffer[..filled], &mut touched)
            };
            kept = rest;
            self.buffer.copy_within(filled - rest..filled, 0);
        }
        if kept > 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the last row of an answer is cut off"));
        }
        let (wall_ns, client_cpu_ns) = (elapsed_ns(start), Cpu::own() - cpu);
        Ok(BaselineRun { touched, wall_ns, client_cpu_ns, server_cpu_ns: self.read_u64()? })
    }

    fn read_u64(&mut self) -> io::Result<u64> {
        let mut word = [0; 8];
        self.socket.read_exact(&mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}

/// Walks the whole rows in `bytes`; returns how many bytes at the end are the start of another.
fn walk_whole(mut bytes: &[u8], touched: &mut Touched) -> usize {
    while let Some((row, rest)) = PackedRows::split_first(bytes) {
        let key = (row.key.0 as u64).wrapping_add(row.key.1 as u64);
        touched.add(Touched { rows: 1, bytes: row.bytes.len() as u64, sum: key.wrapping_add(touch(row.bytes)) });
        bytes = rest;
    }
    bytes.len()
}

fn walk_projected(bytes: &[u8], touched: &mut Touched) -> usize {
    let (rows, rest) = bytes.as_chunks::<PROJECTED_BYTES>();
    for row in rows {
        touched.add(Touched { rows: 1, bytes: PROJECTED_BYTES as u64, sum: touch(row) });
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{baseline::serve, lineitem::Lineitem};
    use std::thread;

    #[test]
    fn every_row_asked_for_comes_and_is_read() {
        let table = Lineitem::sample(0.002);
        let rows = table.rows();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(move || serve(rows, &mut theirs));
            let mut baseline = Baseline::new(ours);
            let full = baseline.run(&Request::full()).unwrap();
            assert_eq!(full.touched.rows, rows.len() as u64);
            assert_eq!(full.touched.bytes, rows.bytes().len() as u64);
            let mut here = Touched::default();
            assert_eq!(walk_whole(rows.bytes(), &mut here), 0);
            assert_eq!(full.touched, here);
            assert!(full.client_cpu_ns > 0 && full.server_cpu_ns > 0 && full.wall_ns > 0);
            let range = Request { keys: rows.row(100).key()..rows.row(300).key(), projected: false };
            assert_eq!(baseline.run(&range).unwrap().touched.rows, 200);
            let projected = Request { projected: true, ..Request::full() };
            let projected = baseline.run(&projected).unwrap().touched;
            assert_eq!(projected.rows, rows.len() as u64);
            assert_eq!(projected.bytes, (rows.len() * PROJECTED_BYTES) as u64);
            let mut sum = 0u64;
            for index in 0..rows.len() {
                let row = rows.row(index);
                let price = i128::from(row.extendedprice).to_le_bytes();
                sum = sum.wrapping_add(u64::from(row.orderkey.to_le_bytes()[0]));
                sum = sum.wrapping_add(u64::from(price[15]));
            }
            assert_eq!(projected.sum, sum);
            drop(baseline);
            server.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_server_that_dies_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let mut theirs = theirs;
            let mut request = [0; REQUEST_BYTES];
            theirs.read_exact(&mut request).unwrap();
            theirs.write_all(&1000u64.to_le_bytes()).unwrap();
            theirs.write_all(&[0; 10]).unwrap();
        });
        assert!(Baseline::new(ours).run(&Request::full()).is_err());
        server.join().unwrap();
    }
}
