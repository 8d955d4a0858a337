//! The sender's side.

use super::{PIECE_BYTES, PROJECTED_BYTES, REQUEST_BYTES, Request};
use crate::{
    lineitem::{PackedRows, Rows},
    measure::Cpu,
};
use std::{
    io::{self, Read, Write},
    ops::Range,
    os::unix::net::UnixStream,
};

/// Answers requests for `rows` until the other side closes the socket.
///
/// An answer is its length in bytes, the rows, and the nanoseconds of CPU time it took this side.
///
/// # Errors
///
/// The socket failed.
pub fn serve(rows: &PackedRows, socket: &mut UnixStream) -> io::Result<()> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    loop {
        let mut request = [0; REQUEST_BYTES];
        match socket.read_exact(&mut request) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let before = Cpu::own();
        let request = Request::decode(&request);
        let place = |key| rows.find(key).unwrap_or_else(|place| place);
        let range = place(request.keys.start)..place(request.keys.end);
        if request.projected {
            send_projected(rows, range, &mut piece, socket)?;
        } else {
            send_whole(rows, range, &mut piece, socket)?;
        }
        socket.write_all(&(Cpu::own() - before).to_le_bytes())?;
    }
}

fn send_whole(rows: &PackedRows, range: Range<usize>, piece: &mut Vec<u8>, socket: &mut UnixStream) -> io::Result<()> {
    let length: usize = range.clone().map(|at| rows.row_bytes(at).len()).sum();
    socket.write_all(&(length as u64).to_le_bytes())?;
    for index in range {
        let row = rows.row_bytes(index);
        if piece.len() + row.len() > PIECE_BYTES {
            flush(piece, socket)?;
        }
        piece.extend_from_slice(row);
    }
    flush(piece, socket)
}

fn send_projected(
    rows: &PackedRows,
    range: Range<usize>,
    piece: &mut Vec<u8>,
    socket: &mut UnixStream,
) -> io::Result<()> {
    let length = range.len() * PROJECTED_BYTES;
    socket.write_all(&(length as u64).to_le_bytes())?;
    for index in range {
        if piece.len() + PROJECTED_BYTES > PIECE_BYTES {
            flush(piece, socket)?;
        }
        let (orderkey, linenumber, price) = rows.projected(index);
        piece.extend_from_slice(orderkey);
        piece.extend_from_slice(linenumber);
        piece.extend_from_slice(price);
    }
    flush(piece, socket)
}

fn flush(piece: &mut Vec<u8>, socket: &mut UnixStream) -> io::Result<()> {
    socket.write_all(piece)?;
    piece.clear();
    Ok(())
}
