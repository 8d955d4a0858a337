//! Greetings: the first message of each connection, and its answer.

use super::request::{HELLO, PROOF};
use super::{HEADER, Malformed, Status, VERSION, begin, header, put, u32_at, u64_at, zeros};
use overside_verbs::handshake::{Key, same};

/// Bytes of a volume's name at most.
pub const NAME_BYTES_MAX: usize = 64;
/// A feature: the node acknowledges writes before they are on stable storage, and the client keeps
/// what no FLUSH has covered.
pub const KEEPS: u64 = 1;
/// A feature: the volume keeps files, and places are those of [`files`](crate::files).
pub const FILES: u64 = 2;
/// A feature: the client lets the node read from its memory what a WRITE writes, and the node does.
pub const GRANTS: u64 = 4;
/// Features of this version for those who want blocks. A node answers with those that both have,
/// and of which it makes use.
pub const FEATURES: u64 = KEEPS | GRANTS;

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// The role of a client that attaches a volume: a proof is of no use anywhere else.
const PROVES: &str = "overside volume attach 1";

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The message's number, which the answer has too.
    pub number: u32,
    /// The volume's name.
    pub name: String,
    /// What it wants.
    pub role: Role,
    /// The session that it goes on with; 0 begins one.
    pub session: u64,
    /// The life of the node that gave it the session; 0 where none did.
    pub incarnation: u64,
    /// The session's generation from now on: higher than any before. A connection with the current
    /// one joins it.
    pub generation: u32,
    /// Bytes of its receive buffers.
    pub buffer_bytes: u32,
    /// Features that it has.
    pub features: u64,
    /// The client's process, for people; 0 where it is not told.
    pub process: u32,
    /// Sessions that write one volume together say the same, by chance; 0: it writes alone.
    pub group: u64,
}

/// What a client wants of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To read.
    Reader,
    /// To write, unless another session does.
    Writer,
    /// To write, whoever does now.
    TakeOver,
}

/// What the node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The greeting's number.
    pub number: u32,
    /// Whether the client is let in.
    pub status: Status,
    /// Its session.
    pub session: u64,
    /// And its generation.
    pub generation: u32,
    /// Which life of the node this is.
    pub incarnation: u64,
    /// Length of the volume in bytes.
    pub bytes: u64,
    /// Its units.
    pub unit_bytes: u32,
    /// It can only be read by this client.
    pub read_only: bool,
    /// Requests that the client may have in flight.
    pub requests_max: u16,
    /// Bytes of one request at most.
    pub request_bytes_max: u32,
    /// Features that both have.
    pub features: u64,
}

/// What a client says to a node that gave it a nonce: that it has the volume's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The message's number, which the answer to the greeting has.
    pub number: u32,
    /// Over the message and the nonce.
    pub proof: [u8; PROOF_BYTES],
}

impl Proof {
    /// Of a key, for a greeting and what the node said to it.
    pub fn new(key: &Key, hello: &Hello, asked: &Welcome) -> Proof {
        Self::over(key, hello.number, &hello.bytes(), &asked.bytes())
    }

    /// The same for any message, and what the node said to it.
    pub fn over(key: &Key, number: u32, message: &[u8], asked: &[u8]) -> Proof {
        Proof { number, proof: key.prove(PROVES, &[message, asked].concat()) }
    }

    /// Whether it is of that key, for a message and what the node said to it.
    pub fn is_of(&self, key: &Key, message: &[u8], asked: &[u8]) -> bool {
        same(&Self::over(key, self.number, message, asked).proof, &self.proof)
    }

    /// As it goes over the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = begin(u64::from(self.number));
        bytes[8..10].copy_from_slice(&[PROOF, VERSION]);
        [&bytes[..], &self.proof].concat()
    }

    /// Whether a message with this header is a proof, of whichever version.
    pub fn proves(bytes: &[u8; HEADER]) -> bool {
        bytes[8] == PROOF
    }

    /// A proof.
    ///
    /// # Errors
    /// [`Malformed`] for anything else.
    pub fn parse(message: &[u8]) -> Result<Proof, Malformed> {
        let (bytes, proof) = header(message)?;
        Self::of(bytes, proof)
    }

    /// The same of a header and what follows.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of(bytes: &[u8; HEADER], proof: &[u8]) -> Result<Proof, Malformed> {
        if bytes[8..10] != [PROOF, VERSION] {
            return Err(Malformed("no proof of this version"));
        }
        zeros(&bytes[10..])?;
        let proof = proof.try_into().map_err(|_| Malformed("a proof of another length"))?;
        Ok(Proof { number: u32_at(bytes, 4), proof })
    }
}

impl Hello {
    /// As it goes over the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = begin(u64::from(self.number));
        let role = match self.role {
            Role::Reader => 0,
            Role::Writer => 1,
            Role::TakeOver => 2,
        };
        let name = &self.name.as_bytes()[..self.name.len().min(NAME_BYTES_MAX)];
        bytes[8..12].copy_from_slice(&[HELLO, VERSION, role, name.len() as u8]);
        put(&mut bytes, 12, &self.buffer_bytes.to_le_bytes());
        put(&mut bytes, 16, &self.session.to_le_bytes());
        put(&mut bytes, 24, &self.generation.to_le_bytes());
        put(&mut bytes, 32, &self.features.to_le_bytes());
        put(&mut bytes, 40, &self.process.to_le_bytes());
        put(&mut bytes, 48, &self.incarnation.to_le_bytes());
        put(&mut bytes, 56, &self.group.to_le_bytes());
        [&bytes[..], name].concat()
    }

    /// Whether a message with this header is a greeting, of whichever version.
    pub fn greets(bytes: &[u8; HEADER]) -> bool {
        bytes[8] == HELLO
    }

    /// A greeting.
    ///
    /// # Errors
    /// [`Malformed`] for anything else, and for another version.
    pub fn parse(message: &[u8]) -> Result<Hello, Malformed> {
        let (bytes, name) = header(message)?;
        Self::of(bytes, name)
    }

    /// The same of a header and what follows.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of(bytes: &[u8; HEADER], name: &[u8]) -> Result<Hello, Malformed> {
        if bytes[8] != HELLO {
            return Err(Malformed("no greeting"));
        }
        if bytes[9] != VERSION {
            return Err(Malformed("a greeting of another version"));
        }
        let role = match bytes[10] {
            0 => Role::Reader,
            1 => Role::Writer,
            2 => Role::TakeOver,
            _ => return Err(Malformed("no role of this version")),
        };
        zeros(&bytes[28..32])?;
        zeros(&bytes[44..48])?;
        if name.len() != usize::from(bytes[11]) || name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Malformed("a volume's name of another length"));
        }
        let name = std::str::from_utf8(name).map_err(|_| Malformed("a volume's name is no text"))?;
        Ok(Hello {
            number: u32_at(bytes, 4),
            name: name.to_owned(),
            role,
            session: u64_at(bytes, 16),
            incarnation: u64_at(bytes, 48),
            generation: u32_at(bytes, 24),
            buffer_bytes: u32_at(bytes, 12),
            features: u64_at(bytes, 32),
            process: u32_at(bytes, 40),
            group: u64_at(bytes, 56),
        })
    }
}

impl Welcome {
    /// As it goes over the wire.
    pub fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = begin(u64::from(self.number));
        bytes[8..12].copy_from_slice(&[HELLO, self.status.code(), VERSION, u8::from(self.read_only)]);
        put(&mut bytes, 12, &self.request_bytes_max.to_le_bytes());
        put(&mut bytes, 16, &self.session.to_le_bytes());
        put(&mut bytes, 24, &self.generation.to_le_bytes());
        put(&mut bytes, 28, &self.unit_bytes.to_le_bytes());
        put(&mut bytes, 32, &self.features.to_le_bytes());
        put(&mut bytes, 40, &self.incarnation.to_le_bytes());
        put(&mut bytes, 48, &self.bytes.to_le_bytes());
        put(&mut bytes, 56, &self.requests_max.to_le_bytes());
        bytes
    }

    /// An answer to a greeting.
    ///
    /// # Errors
    /// [`Malformed`] for anything else.
    pub fn parse(message: &[u8]) -> Result<Welcome, Malformed> {
        let (bytes, rest) = header(message)?;
        if bytes[8] != HELLO || !rest.is_empty() {
            return Err(Malformed("no answer to a greeting"));
        }
        if bytes[10] != VERSION {
            return Err(Malformed("an answer of another version"));
        }
        if bytes[11] > 1 {
            return Err(Malformed("no answer of this version"));
        }
        zeros(&bytes[58..])?;
        Ok(Welcome {
            number: u32_at(bytes, 4),
            status: Status::parse(bytes[9])?,
            session: u64_at(bytes, 16),
            generation: u32_at(bytes, 24),
            incarnation: u64_at(bytes, 40),
            bytes: u64_at(bytes, 48),
            unit_bytes: u32_at(bytes, 28),
            read_only: bytes[11] == 1,
            requests_max: u16::from_le_bytes([bytes[56], bytes[57]]),
            request_bytes_max: u32_at(bytes, 12),
            features: u64_at(bytes, 32),
        })
    }
}
