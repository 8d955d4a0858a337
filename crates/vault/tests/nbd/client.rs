//! A client that says exactly what a test tells it to.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::PATIENCE;

pub struct Client {
    pub stream: UnixStream,
    structured: bool,
}

/// An option's answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub kind: u32,
    pub data: Vec<u8>,
}

/// A request's.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    /// Of a chunk.
    pub kind: u16,
    pub data: Vec<u8>,
}

pub const GO: u32 = 7;
pub const STRUCTURED: u32 = 8;
pub const ACK: u32 = 1;
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;
pub const FUA: u16 = 1;

impl Client {
    /// Greeted, and nothing else.
    pub fn greeted(path: &Path) -> Client {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client { stream, structured: false };
        assert_eq!(client.bytes(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.say(&3u32.to_be_bytes());
        client
    }

    /// Ready for requests.
    pub fn connected(path: &Path, structured: bool) -> Client {
        let mut client = Client::greeted(path);
        if structured {
            assert_eq!(client.ask(STRUCTURED, &[]).last().unwrap().kind, ACK);
            client.structured = true;
        }
        let answers = client.ask(GO, &name("v", &[0, 0]));
        assert_eq!(answers.last().unwrap().kind, ACK, "{answers:?}");
        client
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server has ended the connection, without another word.
    pub fn ended(&mut self) -> bool {
        // It may have thrown away what this side said.
        self.stream.read(&mut [0]).map_or_else(|e| e.kind() == std::io::ErrorKind::ConnectionReset, |read| read == 0)
    }

    /// An option, and its answers up to the last.
    pub fn ask(&mut self, option: u32, data: &[u8]) -> Vec<Answer> {
        self.say(&[&b"IHAVEOPT"[..], &option.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat());
        let mut answers = Vec::new();
        loop {
            let head = self.bytes(20);
            assert_eq!(head[..8], 0x3e889045565a9u64.to_be_bytes());
            assert_eq!(number(&head[8..12]), u64::from(option), "the answer of another option");
            let kind = number(&head[12..16]) as u32;
            let data = self.bytes(number(&head[16..20]) as usize);
            answers.push(Answer { kind, data });
            if kind == ACK || kind >> 31 == 1 {
                return answers;
            }
        }
    }

    pub fn request(&mut self, flags: u16, kind: u16, cookie: u64, at: u64, length: u32, payload: &[u8]) {
        self.say(&[&request(flags, kind, cookie, at, length)[..], payload].concat());
    }

    /// The next reply; `length`: of a READ's data, where replies are simple.
    pub fn reply(&mut self, length: usize) -> Reply {
        let magic = number(&self.bytes(4)) as u32;
        if magic == 0x6744_6698 {
            assert!(!self.structured);
            let head = self.bytes(12);
            let error = number(&head[..4]) as u32;
            let data = if error == 0 { self.bytes(length) } else { Vec::new() };
            return Reply { cookie: number(&head[4..12]), error, kind: 0, data };
        }
        assert_eq!((magic, self.structured), (0x668e_33ef, true));
        let head = self.bytes(16);
        assert_eq!(number(&head[..2]), 1, "the only chunk");
        let kind = number(&head[2..4]) as u16;
        let data = self.bytes(number(&head[12..16]) as usize);
        let error = if kind >> 15 == 1 { number(&data[..4]) as u32 } else { 0 };
        Reply { cookie: number(&head[4..12]), error, kind, data }
    }

    /// A request and its reply, which must be its own.
    pub fn carry_out(&mut self, flags: u16, kind: u16, at: u64, length: u32, payload: &[u8]) -> Reply {
        let cookie = 0x1234_5678_9abc_0000 ^ u64::from(kind) ^ at.rotate_left(20);
        self.request(flags, kind, cookie, at, length, payload);
        let reply = self.reply(if kind == READ { length as usize } else { 0 });
        assert_eq!(reply.cookie, cookie, "the reply of another request");
        reply
    }

    pub fn read(&mut self, at: u64, length: u32) -> Vec<u8> {
        let reply = self.carry_out(0, READ, at, length, &[]);
        assert_eq!(reply.error, 0);
        if self.structured {
            assert_eq!((reply.kind, number(&reply.data[..8])), (1, at));
            return reply.data[8..].to_vec();
        }
        reply.data
    }

    pub fn write(&mut self, flags: u16, at: u64, bytes: &[u8]) {
        assert_eq!(self.carry_out(flags, WRITE, at, bytes.len() as u32, bytes).error, 0);
    }
}

pub fn request(flags: u16, kind: u16, cookie: u64, at: u64, length: u32) -> Vec<u8> {
    let mut out = 0x2560_9513_u32.to_be_bytes().to_vec();
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&at.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out
}

/// A name as options have it, and what follows it.
pub fn name(name: &str, behind: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), behind].concat()
}

pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
