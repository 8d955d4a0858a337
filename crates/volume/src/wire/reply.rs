//! An answer: 64 bytes, and what a READ read.

use super::{HEADER, Malformed, begin, header, put, request, u32_at, u64_at, zeros};
use crate::device::DeviceError;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it ended.
    pub status: Status,
    /// The session.
    pub session: u64,
    /// And its generation.
    pub generation: u32,
    /// The request's number.
    pub number: u64,
    /// Which life of the node answered.
    pub incarnation: u64,
    /// Bytes that follow.
    pub length: u32,
    /// Of a CHECK: members that had some of it wrong, as bits.
    pub wrong: u64,
}

/// How a request, or a greeting, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Done,
    /// The device says why it is not.
    Device(DeviceError),
    /// There is no such volume, or the key is another one: one answer for both.
    Unknown,
    /// Another session writes the volume.
    Busy,
    /// The node speaks another version.
    Version,
    /// The node has no room for another session.
    Full,
    /// Of a greeting or a change: the client must prove the volume's key first.
    Prove,
    /// Of a change: it is not carried out, and the answer's text says why.
    Refused,
    /// Of a greeting: the volume keeps files and the client wants blocks, or the other way.
    Kind,
}

impl Status {
    /// Its code.
    pub fn code(self) -> u8 {
        match self {
            Status::Done => 0,
            Status::Device(DeviceError::Invalid) => 1,
            Status::Device(DeviceError::ReadOnly) => 2,
            Status::Device(DeviceError::NoSpace) => 3,
            // A node that another one refuses has lost a member.
            Status::Device(DeviceError::Failed | DeviceError::Refused) => 4,
            Status::Device(DeviceError::Corrupt) => 5,
            Status::Device(DeviceError::Fenced) => 6,
            Status::Device(DeviceError::Unreachable) => 7,
            Status::Device(DeviceError::NoMemory) => 8,
            Status::Unknown => 9,
            Status::Busy => 10,
            Status::Version => 11,
            Status::Full => 12,
            Status::Prove => 13,
            Status::Refused => 14,
            Status::Kind => 15,
        }
    }

    /// From its code.
    ///
    /// # Errors
    /// [`Malformed`] for any other.
    pub fn parse(code: u8) -> Result<Status, Malformed> {
        Ok(match code {
            0 => Status::Done,
            1 => Status::Device(DeviceError::Invalid),
            2 => Status::Device(DeviceError::ReadOnly),
            3 => Status::Device(DeviceError::NoSpace),
            4 => Status::Device(DeviceError::Failed),
            5 => Status::Device(DeviceError::Corrupt),
            6 => Status::Device(DeviceError::Fenced),
            7 => Status::Device(DeviceError::Unreachable),
            8 => Status::Device(DeviceError::NoMemory),
            9 => Status::Unknown,
            10 => Status::Busy,
            11 => Status::Version,
            12 => Status::Full,
            13 => Status::Prove,
            14 => Status::Refused,
            15 => Status::Kind,
            _ => return Err(Malformed("no status of this version")),
        })
    }
}

impl From<Result<(), DeviceError>> for Status {
    fn from(result: Result<(), DeviceError>) -> Status {
        result.map_or_else(Status::Device, |()| Status::Done)
    }
}

impl Reply {
    /// As it goes over the wire.
    pub fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = begin(self.number);
        bytes[8..10].copy_from_slice(&[request::READ, self.status.code()]);
        put(&mut bytes, 12, &self.length.to_le_bytes());
        put(&mut bytes, 16, &self.session.to_le_bytes());
        put(&mut bytes, 24, &self.generation.to_le_bytes());
        put(&mut bytes, 32, &self.number.to_le_bytes());
        put(&mut bytes, 40, &self.incarnation.to_le_bytes());
        put(&mut bytes, 48, &self.wrong.to_le_bytes());
        bytes
    }

    /// An answer and its payload.
    ///
    /// # Errors
    /// [`Malformed`] for anything else.
    pub fn parse(message: &[u8]) -> Result<(Reply, &[u8]), Malformed> {
        let (bytes, payload) = header(message)?;
        Ok((Self::of(bytes, payload.len() as u64)?, payload))
    }

    /// The same of a header and the length of what follows.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of(bytes: &[u8; HEADER], payload: u64) -> Result<Reply, Malformed> {
        if bytes[..4] != super::MAGIC {
            return Err(Malformed("wrong magic"));
        }
        if bytes[8] != request::READ {
            return Err(Malformed("no answer to a request"));
        }
        zeros(&bytes[10..12])?;
        zeros(&bytes[28..32])?;
        zeros(&bytes[56..])?;
        let reply = Reply {
            status: Status::parse(bytes[9])?,
            session: u64_at(bytes, 16),
            generation: u32_at(bytes, 24),
            number: u64_at(bytes, 32),
            incarnation: u64_at(bytes, 40),
            length: u32_at(bytes, 12),
            wrong: u64_at(bytes, 48),
        };
        if u32_at(bytes, 4) != reply.number as u32 {
            return Err(Malformed("an answer with two numbers"));
        }
        if payload != u64::from(reply.length) {
            return Err(Malformed("a payload of another length"));
        }
        Ok(reply)
    }
}
