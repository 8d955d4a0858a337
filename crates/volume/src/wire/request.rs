//! A request: 64 bytes, and what a WRITE writes.

use super::{HEADER, Malformed, PAYLOAD_BYTES_MAX, begin, header, put, u32_at, u64_at, zeros};
use crate::device::Hint;
use overside_verbs::RemoteToken;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Which operation.
    pub operation: Operation,
    /// The client's session.
    pub session: u64,
    /// And its generation.
    pub generation: u32,
    /// The request's number in the session: never used for another one.
    pub number: u64,
    /// The lowest number whose answer the client has not seen. What lies below is forgotten.
    pub lowest: u64,
    /// First sector.
    pub lba: u64,
    /// Bytes.
    pub length: u32,
}

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// READ.
    Read,
    /// WRITE of the payload.
    Write {
        /// Answered only when it is on stable storage.
        fua: bool,
    },
    /// WRITE of bytes in memory of the client's that it grants; the payload names them.
    WriteGranted {
        /// Answered only when it is on stable storage.
        fua: bool,
    },
    /// FLUSH.
    Flush,
    /// DISCARD.
    Discard,
    /// ZERO.
    Zero,
    /// HINT.
    Hint(Hint),
    /// CHECK.
    Check {
        /// What is wrong is written again.
        mend: bool,
    },
    /// The session ends.
    Goodbye,
}

impl Operation {
    /// Whether it reads or writes so many bytes.
    pub fn moves(self) -> bool {
        matches!(self, Operation::Read | Operation::Write { .. } | Operation::WriteGranted { .. })
    }
}

impl RequestHeader {
    /// Bytes of the payload that follows.
    pub fn payload(&self) -> usize {
        match self.operation {
            Operation::Write { .. } => self.length as usize,
            Operation::WriteGranted { .. } => TOKEN_BYTES,
            _ => 0,
        }
    }

    /// Of a [`WriteGranted`](Operation::WriteGranted), what its payload grants.
    pub fn granted(&self, payload: &[u8]) -> Option<RemoteToken> {
        let granted = matches!(self.operation, Operation::WriteGranted { .. });
        Some(RemoteToken::from_bytes(*payload.first_chunk().filter(|_| granted)?))
    }

    /// As it goes over the wire.
    pub fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = begin(self.number);
        let (code, flags, hint) = match self.operation {
            Operation::Read => (READ, 0, 0),
            Operation::Write { fua } => (WRITE, u8::from(fua), 0),
            Operation::WriteGranted { fua } => (WRITE, u8::from(fua) | GRANTED, 0),
            Operation::Flush => (FLUSH, 0, 0),
            Operation::Discard => (DISCARD, 0, 0),
            Operation::Zero => (ZERO, 0, 0),
            Operation::Hint(hint) => (HINT, 0, hint_code(hint)),
            Operation::Check { mend } => (CHECK, u8::from(mend), 0),
            Operation::Goodbye => (GOODBYE, 0, 0),
        };
        bytes[8..11].copy_from_slice(&[code, flags, hint]);
        put(&mut bytes, 12, &self.length.to_le_bytes());
        put(&mut bytes, 16, &self.session.to_le_bytes());
        put(&mut bytes, 24, &self.generation.to_le_bytes());
        put(&mut bytes, 32, &self.number.to_le_bytes());
        put(&mut bytes, 40, &self.lowest.to_le_bytes());
        put(&mut bytes, 48, &self.lba.to_le_bytes());
        bytes
    }

    /// A request and its payload.
    ///
    /// # Errors
    /// [`Malformed`] for anything else.
    pub fn parse(message: &[u8]) -> Result<(RequestHeader, &[u8]), Malformed> {
        let (bytes, payload) = header(message)?;
        Ok((Self::of(bytes, payload)?, payload))
    }

    /// The same of a header and a payload.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of(bytes: &[u8; HEADER], payload: &[u8]) -> Result<RequestHeader, Malformed> {
        let (flags, hint) = (bytes[9], bytes[10]);
        let operation = match (bytes[8], flags, hint) {
            (READ, 0, 0) => Operation::Read,
            (WRITE, 0 | 1, 0) => Operation::Write { fua: flags == 1 },
            (WRITE, 2 | 3, 0) => Operation::WriteGranted { fua: flags == 3 },
            (FLUSH, 0, 0) => Operation::Flush,
            (DISCARD, 0, 0) => Operation::Discard,
            (ZERO, 0, 0) => Operation::Zero,
            (HINT, 0, code) => Operation::Hint(hint_of(code)?),
            (CHECK, 0 | 1, 0) => Operation::Check { mend: flags == 1 },
            (GOODBYE, 0, 0) => Operation::Goodbye,
            _ => return Err(Malformed("no operation of this version")),
        };
        zeros(&[bytes[11]])?;
        zeros(&bytes[28..32])?;
        zeros(&bytes[56..])?;
        let request = RequestHeader {
            operation,
            session: u64_at(bytes, 16),
            generation: u32_at(bytes, 24),
            number: u64_at(bytes, 32),
            lowest: u64_at(bytes, 40),
            lba: u64_at(bytes, 48),
            length: u32_at(bytes, 12),
        };
        if u32_at(bytes, 4) != request.number as u32 {
            return Err(Malformed("a request with two numbers"));
        }
        if request.lowest > request.number {
            return Err(Malformed("a request below those that are unanswered"));
        }
        let bare = matches!(operation, Operation::Flush | Operation::Goodbye);
        if bare && (request.lba, request.length) != (0, 0) {
            return Err(Malformed("an operation without a place has one"));
        }
        let moves = operation.moves();
        if moves && request.length > PAYLOAD_BYTES_MAX {
            return Err(Malformed("more bytes than a message may have"));
        }
        if payload.len() != request.payload() {
            return Err(Malformed("a payload of another length"));
        }
        if request.granted(payload).is_some_and(|token| token.len != u64::from(request.length)) {
            return Err(Malformed("a grant of another length"));
        }
        Ok(request)
    }
}

fn hint_code(hint: Hint) -> u8 {
    match hint {
        Hint::WillNeed => 1,
        Hint::DontNeed => 2,
        Hint::Sequential => 3,
        Hint::Random => 4,
    }
}

fn hint_of(code: u8) -> Result<Hint, Malformed> {
    match code {
        1 => Ok(Hint::WillNeed),
        2 => Ok(Hint::DontNeed),
        3 => Ok(Hint::Sequential),
        4 => Ok(Hint::Random),
        _ => Err(Malformed("no hint of this version")),
    }
}

pub(super) const HELLO: u8 = 0;
pub(super) const READ: u8 = 1;
const WRITE: u8 = 2;
/// Flag of a WRITE.
const GRANTED: u8 = 2;
/// Bytes of what grants memory.
const TOKEN_BYTES: usize = 32;
const FLUSH: u8 = 3;
const DISCARD: u8 = 4;
const ZERO: u8 = 5;
const HINT: u8 = 6;
const GOODBYE: u8 = 7;
/// No operation of a session: it needs none.
pub(super) const INQUIRY: u8 = 8;
const CHECK: u8 = 9;
/// Nor is a proof.
pub(super) const PROOF: u8 = 10;
/// Nor is a change.
pub(super) const CHANGE: u8 = 11;
