//! The plainest client of NBD there is: the same for every server, so that servers are
//! compared and not their clients.

use super::load::{LoadSpec, STEP_BYTES, Stretch, closed_loop, known};
use anyhow::{Context, Result, bail, ensure};
use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// A connection that has chosen its export.
pub(super) struct Nbd {
    line: Box<dyn Line>,
    /// A reply's head and a READ's bytes.
    reply: Vec<u8>,
    /// A WRITE's head and bytes.
    request: Vec<u8>,
}

trait Line: Read + Write {}

impl<T: Read + Write> Line for T {}

impl Nbd {
    pub(super) fn unix(path: &Path, export: &str) -> Result<Nbd> {
        let line = UnixStream::connect(path)?;
        line.set_read_timeout(Some(PATIENCE))?;
        Nbd::greeted(Box::new(line), export)
    }

    pub(super) fn tcp(port: u16, export: &str) -> Result<Nbd> {
        let line = TcpStream::connect(("127.0.0.1", port))?;
        line.set_nodelay(true)?;
        line.set_read_timeout(Some(PATIENCE))?;
        Nbd::greeted(Box::new(line), export)
    }

    /// Newstyle negotiation, with simple replies.
    fn greeted(line: Box<dyn Line>, export: &str) -> Result<Nbd> {
        let mut nbd = Nbd { line, reply: Vec::new(), request: Vec::new() };
        let hello: [u8; 18] = nbd.read()?;
        ensure!(&hello[..16] == b"NBDMAGICIHAVEOPT", "no NBD server answers");
        // Both know the fixed negotiation, and neither sends zeros.
        nbd.line.write_all(&3u32.to_be_bytes())?;
        let mut go = b"IHAVEOPT".to_vec();
        for word in [GO, export.len() as u32 + 6, export.len() as u32] {
            go.extend(word.to_be_bytes());
        }
        go.extend(export.as_bytes());
        go.extend([0, 0]);
        nbd.line.write_all(&go)?;
        loop {
            let head: [u8; 20] = nbd.read()?;
            ensure!(be64(&head[..8]) == OPTION_REPLY, "the NBD server answers no option");
            let (kind, length) = (be64(&head[12..16]) as u32, be64(&head[16..20]) as usize);
            ensure!(length <= OPTION_BYTES_MAX, "the NBD server has too much to say of its export");
            let mut text = vec![0; length];
            nbd.line.read_exact(&mut text)?;
            match kind {
                ACK => return Ok(nbd),
                refused if refused >> 31 == 1 => {
                    bail!("the NBD server has no such export: {}", String::from_utf8_lossy(&text))
                }
                _ => {}
            }
        }
    }

    /// As [`Client::run`](super::load::Client::run).
    pub(super) fn run(&mut self, load: LoadSpec, place: &mut dyn FnMut() -> Option<u64>) -> Result<Stretch> {
        let kind = if load.writes { WRITE } else { READ };
        let payload = vec![0xA5; if load.writes { load.bytes } else { 0 }];
        self.reply.resize(HEAD_BYTES + load.bytes - payload.len(), 0);
        let asks = |nbd: &mut Nbd, number: u32, at| nbd.ask(kind, number.into(), at, load.bytes, &payload);
        closed_loop(self, load, place, asks, |nbd| {
            nbd.line.read_exact(&mut nbd.reply).context("the NBD server does not answer")?;
            answered(&nbd.reply)
        })
    }

    /// Writes what every block is known by.
    pub(super) fn fill(&mut self, bytes: u64) -> Result<()> {
        let mut block = vec![0; STEP_BYTES];
        for at in (0..bytes).step_by(STEP_BYTES) {
            known(at, &mut block);
            self.ask(WRITE, at, at, STEP_BYTES, &block)?;
            let head: [u8; HEAD_BYTES] = self.read()?;
            ensure!(answered(&head)? == at, "the NBD server answers what was not asked");
        }
        Ok(())
    }

    /// Reads all of it, and holds it against that.
    pub(super) fn check(&mut self, bytes: u64) -> Result<()> {
        let (mut reply, mut wanted) = (vec![0; HEAD_BYTES + STEP_BYTES], vec![0; STEP_BYTES]);
        for at in (0..bytes).step_by(STEP_BYTES) {
            self.ask(READ, at, at, STEP_BYTES, &[])?;
            self.line.read_exact(&mut reply)?;
            known(at, &mut wanted);
            let is_it = answered(&reply)? == at && reply[HEAD_BYTES..] == wanted[..];
            ensure!(is_it, "what was read at {at} is not what was written");
        }
        Ok(())
    }

    fn ask(&mut self, kind: u16, cookie: u64, at: u64, length: usize, payload: &[u8]) -> Result<()> {
        let mut request = [0; 28];
        request[..4].copy_from_slice(&REQUEST.to_be_bytes());
        request[6..8].copy_from_slice(&kind.to_be_bytes());
        request[8..16].copy_from_slice(&cookie.to_be_bytes());
        request[16..24].copy_from_slice(&at.to_be_bytes());
        request[24..].copy_from_slice(&(length as u32).to_be_bytes());
        if payload.is_empty() {
            return Ok(self.line.write_all(&request)?);
        }
        self.request.clear();
        self.request.extend(request);
        self.request.extend(payload);
        Ok(self.line.write_all(&self.request)?)
    }

    fn read<const BYTES: usize>(&mut self) -> Result<[u8; BYTES]> {
        let mut bytes = [0; BYTES];
        self.line.read_exact(&mut bytes).context("the NBD server does not answer")?;
        Ok(bytes)
    }
}

/// Which request a reply is of. One that failed has no bytes behind it, so nothing could follow.
fn answered(reply: &[u8]) -> Result<u64> {
    ensure!(reply.len() >= HEAD_BYTES && be64(&reply[..4]) == REPLY, "the NBD server says what is no reply");
    let error = be64(&reply[4..8]);
    ensure!(error == 0, "the NBD server refuses a request with error {error}");
    Ok(be64(&reply[8..16]))
}

/// Of eight bytes or fewer.
fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

const GO: u32 = 7;
const ACK: u32 = 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u64 = 0x6744_6698;
const HEAD_BYTES: usize = 16;
const OPTION_BYTES_MAX: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io, net::Shutdown, thread};

    /// A server that says `greeting`, and then `replies` whatever it is asked.
    fn told(greeting: &'static [u8], replies: &'static [u8]) -> Result<Nbd> {
        let (ours, mut theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        thread::spawn(move || {
            let _ = theirs.write_all(greeting).and_then(|()| theirs.write_all(replies));
            let _ = theirs.shutdown(Shutdown::Write).and_then(|()| io::copy(&mut theirs, &mut io::sink()));
        });
        Nbd::greeted(Box::new(ours), "v")
    }

    const HELLO: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
    const ACKED: &[u8] = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0";

    #[test]
    fn servers_that_say_what_none_says_are_refused() {
        assert!(told(HELLO, ACKED).is_ok());
        let why =
            |greeting, replies| told(greeting, replies).err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(why(b"NBDMAGICIHAVEOPT", b"").contains("does not answer"));
        assert!(why(b"NBDMAGICIHAVE---\0\x03", b"").contains("no NBD server"));
        assert!(why(HELLO, b"").contains("does not answer"));
        assert!(why(HELLO, b"\x01\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0").contains("no option"));
        assert!(why(HELLO, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\x7f\0\0\0").contains("too much"));
        let unknown = why(HELLO, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x02no");
        assert!(unknown.contains("no such export: no"), "{unknown}");
    }

    #[test]
    fn replies_are_of_a_request_or_refused() {
        let reply = |magic: u32, error: u32, cookie: u64| {
            [&magic.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
        };
        assert_eq!(answered(&reply(0x6744_6698, 0, 7)).unwrap(), 7);
        assert!(answered(&reply(0x6744_6698, 5, 7)).unwrap_err().to_string().contains("error 5"));
        assert!(answered(&reply(0x668e_33ef, 0, 7)).is_err());
        assert!(answered(&reply(0x6744_6698, 0, 7)[..15]).is_err());
    }
}
