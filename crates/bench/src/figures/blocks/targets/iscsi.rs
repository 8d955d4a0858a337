//! The plainest initiator of iSCSI there is (RFC 7143): one connection, one session, no digests,
//! and no way back from an error. Beside `nbd` it is what asks other people's servers, so that
//! servers are compared and not their clients.

use super::super::load::{LoadSpec, STEP_BYTES, Stretch, closed_loop, known};
use anyhow::{Context, Result, bail, ensure};
use std::{
    io::{BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// A session with one disk of a target.
pub(super) struct Iscsi {
    line: BufReader<Box<dyn Line>>,
    /// What the target takes in one part, and with a command.
    part_bytes: usize,
    first_bytes: usize,
    command: u32,
    status: u32,
    /// One whole request, and one reply's bytes.
    request: Vec<u8>,
    reply: Vec<u8>,
}

trait Line: Read + Write {}

impl<T: Read + Write> Line for T {}

/// What one unit of the target's says.
#[derive(Debug, PartialEq)]
enum Said {
    /// Bytes of a READ, from the request's byte on, which lie in `reply`; the request has ended.
    Data { tag: u32, at: u32, ended: bool },
    /// The request has ended.
    Ended { tag: u32 },
    /// It wants so many bytes of a WRITE.
    Wants { tag: u32, transfer: [u8; 4], at: u32, bytes: u32 },
}

impl Iscsi {
    pub(super) fn connect(port: u16, target: &str) -> Result<Iscsi> {
        let line = TcpStream::connect(("127.0.0.1", port))?;
        line.set_nodelay(true)?;
        line.set_read_timeout(Some(PATIENCE))?;
        Iscsi::logged_in(Box::new(line), target)
    }

    fn logged_in(line: Box<dyn Line>, target: &str) -> Result<Iscsi> {
        let mut iscsi = Iscsi {
            line: BufReader::with_capacity(256 << 10, line),
            part_bytes: 8192,
            first_bytes: 0,
            command: 1,
            status: 0,
            request: Vec::new(),
            reply: Vec::new(),
        };
        let mut text = format!("InitiatorName={NAME}\0TargetName={target}\0").into_bytes();
        for pair in WANTED {
            text.extend(pair.as_bytes());
            text.push(0);
        }
        let mut said = String::new();
        // It may want to hear twice that there is nothing more to negotiate.
        while !iscsi.log_in(&text, &mut said)? {
            ensure!(!text.is_empty(), "the iSCSI target wants to negotiate further");
            text.clear();
        }
        iscsi.takes(&said);
        // The first commands of a session are told of what happened before it.
        for _ in 0..TRIES {
            iscsi.ask(0, [0; 16], None, 0)?;
            if iscsi.says_good()? {
                return Ok(iscsi);
            }
        }
        bail!("the iSCSI target's disk is not ready")
    }

    /// Whether commands may follow; appends what the target says.
    fn log_in(&mut self, text: &[u8], said: &mut String) -> Result<bool> {
        let mut head = [0; HEAD_BYTES];
        // From negotiation of parameters straight to commands.
        (head[0], head[1]) = (LOGIN | IMMEDIATE, 0x87);
        head[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
        head[8] = 0x80;
        head[24..28].copy_from_slice(&self.command.to_be_bytes());
        head[28..32].copy_from_slice(&self.status.wrapping_add(1).to_be_bytes());
        self.request.clear();
        self.request.extend(head);
        self.request.extend(text);
        self.request.resize(self.request.len().next_multiple_of(4), 0);
        self.send()?;
        let head = self.head()?;
        ensure!(head[0] == LOGIN_REPLY, "no iSCSI target answers");
        ensure!(head[36] == 0, "the iSCSI target lets nobody in (status {}.{})", head[36], head[37]);
        said.push_str(&String::from_utf8_lossy(&self.reply));
        Ok(head[1] & 0x83 == 0x83)
    }

    /// What may be sent to it, from what it said.
    fn takes(&mut self, said: &str) {
        let number =
            |key: &str| said.split('\0').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
        self.part_bytes = number("MaxRecvDataSegmentLength").unwrap_or(8192).clamp(512, PART_BYTES_MAX);
        let first: usize = number("FirstBurstLength").unwrap_or(65536);
        let with_commands = !said.split('\0').any(|pair| pair == "ImmediateData=No");
        self.first_bytes = if with_commands { first.min(self.part_bytes) } else { 0 };
    }

    /// As [`Client::run`](super::super::load::Client::run).
    pub(super) fn run(&mut self, load: LoadSpec, place: &mut dyn FnMut() -> Option<u64>) -> Result<Stretch> {
        let payload = vec![0xA5; if load.writes { load.bytes } else { 0 }];
        let asks = |iscsi: &mut Iscsi, tag, at| iscsi.ask_at(tag, at, load.bytes, load.writes.then_some(&payload));
        closed_loop(self, load, place, asks, |iscsi| iscsi.until_ended(&payload).map(u64::from))
    }

    /// Writes what every block is known by.
    pub(super) fn fill(&mut self, bytes: u64) -> Result<()> {
        let mut block = vec![0; STEP_BYTES];
        for at in (0..bytes).step_by(STEP_BYTES) {
            known(at, &mut block);
            self.ask_at(0, at, STEP_BYTES, Some(&block))?;
            ensure!(self.until_ended(&block)? == 0, "the iSCSI target answers what was not asked");
        }
        Ok(())
    }

    /// Reads all of it, and holds it against that.
    pub(super) fn check(&mut self, bytes: u64) -> Result<()> {
        let (mut found, mut wanted) = (vec![0; STEP_BYTES], vec![0; STEP_BYTES]);
        for at in (0..bytes).step_by(STEP_BYTES) {
            self.ask_at(0, at, STEP_BYTES, None)?;
            found.fill(0);
            loop {
                let (part, ended) = match self.next()? {
                    Said::Data { tag: 0, at, ended } => (at as usize, ended),
                    Said::Ended { tag: 0 } => break,
                    other => bail!("the iSCSI target answers what was not asked: {other:?}"),
                };
                let into = found.get_mut(part..part + self.reply.len()).context("more came than was asked for")?;
                into.copy_from_slice(&self.reply);
                if ended {
                    break;
                }
            }
            known(at, &mut wanted);
            ensure!(found == wanted, "what was read at {at} is not what was written");
        }
        Ok(())
    }

    fn ask_at(&mut self, tag: u32, at: u64, bytes: usize, payload: Option<&[u8]>) -> Result<()> {
        let mut command = [0; 16];
        command[0] = if payload.is_some() { WRITE_10 } else { READ_10 };
        command[2..6].copy_from_slice(&((at / SECTOR) as u32).to_be_bytes());
        command[7..9].copy_from_slice(&((bytes as u64 / SECTOR) as u16).to_be_bytes());
        self.ask(tag, command, payload, bytes)
    }

    fn ask(&mut self, tag: u32, command: [u8; 16], payload: Option<&[u8]>, bytes: usize) -> Result<()> {
        let mut head = [0; HEAD_BYTES];
        let way = if payload.is_some() {
            WRITES
        } else if bytes > 0 {
            READS
        } else {
            0
        };
        (head[0], head[1]) = (COMMAND, FINAL | way | SIMPLE);
        let with = payload.map_or(&[][..], |payload| &payload[..payload.len().min(self.first_bytes)]);
        head[5..8].copy_from_slice(&(with.len() as u32).to_be_bytes()[1..]);
        head[9] = LUN;
        head[16..20].copy_from_slice(&tag.to_be_bytes());
        head[20..24].copy_from_slice(&(bytes as u32).to_be_bytes());
        head[24..28].copy_from_slice(&self.command.to_be_bytes());
        head[28..32].copy_from_slice(&self.status.wrapping_add(1).to_be_bytes());
        head[32..].copy_from_slice(&command);
        self.command = self.command.wrapping_add(1);
        self.request.clear();
        self.request.extend(head);
        self.request.extend(with);
        self.send()
    }

    /// What the target wants of a WRITE.
    fn give(&mut self, tag: u32, transfer: [u8; 4], at: usize, wanted: &[u8]) -> Result<()> {
        let parts = wanted.len().div_ceil(self.part_bytes);
        for (number, part) in wanted.chunks(self.part_bytes).enumerate() {
            let mut head = [0; HEAD_BYTES];
            (head[0], head[1]) = (DATA_OUT, if number + 1 == parts { FINAL } else { 0 });
            head[5..8].copy_from_slice(&(part.len() as u32).to_be_bytes()[1..]);
            head[9] = LUN;
            head[16..20].copy_from_slice(&tag.to_be_bytes());
            head[20..24].copy_from_slice(&transfer);
            head[28..32].copy_from_slice(&self.status.wrapping_add(1).to_be_bytes());
            head[36..40].copy_from_slice(&(number as u32).to_be_bytes());
            head[40..44].copy_from_slice(&((at + number * self.part_bytes) as u32).to_be_bytes());
            self.request.clear();
            self.request.extend(head);
            self.request.extend(part);
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        Ok(self.line.get_mut().write_all(&self.request)?)
    }

    /// Until a request has ended, which it says. `payload` is what WRITEs write.
    fn until_ended(&mut self, payload: &[u8]) -> Result<u32> {
        loop {
            match self.next()? {
                Said::Data { tag, ended: true, .. } | Said::Ended { tag } => return Ok(tag),
                Said::Data { .. } => {}
                Said::Wants { tag, transfer, at, bytes } => {
                    let (at, bytes) = (at as usize, bytes as usize);
                    let wanted = payload.get(at..at.saturating_add(bytes));
                    self.give(tag, transfer, at, wanted.context("the iSCSI target wants more than there is")?)?;
                }
            }
        }
    }

    /// The one command that is under way has ended: whether well.
    fn says_good(&mut self) -> Result<bool> {
        let head = self.head()?;
        ensure!(head[0] == REPLY, "the iSCSI target answers what was not asked");
        Ok(head[2..4] == [0, 0])
    }

    fn next(&mut self) -> Result<Said> {
        let head = self.head()?;
        said(&head)
    }

    /// The next unit's head; what is behind it lies in `reply`.
    fn head(&mut self) -> Result<[u8; HEAD_BYTES]> {
        let mut head = [0; HEAD_BYTES];
        self.line.read_exact(&mut head).context(SILENT)?;
        let more = usize::from(head[4]) * 4;
        let bytes = be32(&[0, head[5], head[6], head[7]]) as usize;
        ensure!(bytes <= PART_BYTES_MAX, "the iSCSI target sends {bytes} bytes at once");
        // What is between head and bytes is for others.
        self.reply.resize(more.max(bytes), 0);
        self.line.read_exact(&mut self.reply[..more]).context(SILENT)?;
        self.reply.resize(bytes, 0);
        self.line.read_exact(&mut self.reply).context(SILENT)?;
        let padding = bytes.next_multiple_of(4) - bytes;
        self.line.read_exact(&mut [0; 3][..padding]).context(SILENT)?;
        if matches!(head[0], REPLY | LOGIN_REPLY) || head[0] == DATA_IN && head[1] & HAS_STATUS != 0 {
            self.status = be32(&head[24..28]);
        }
        Ok(head)
    }
}

fn said(head: &[u8; HEAD_BYTES]) -> Result<Said> {
    let (tag, at) = (be32(&head[16..20]), be32(&head[40..44]));
    match head[0] {
        DATA_IN => {
            let ended = head[1] & HAS_STATUS != 0;
            ensure!(!ended || head[3] == 0, "the iSCSI target fails a request with status {}", head[3]);
            Ok(Said::Data { tag, at, ended })
        }
        REPLY => {
            ensure!(head[2..4] == [0, 0], "the iSCSI target fails a request with status {}.{}", head[2], head[3]);
            Ok(Said::Ended { tag })
        }
        WANTS => {
            let transfer = [head[20], head[21], head[22], head[23]];
            Ok(Said::Wants { tag, transfer, at, bytes: be32(&head[44..48]) })
        }
        other => bail!("the iSCSI target says {other:#x}, which this initiator does not know"),
    }
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

const NAME: &str = "iqn.2026-01.overside:bench";
const WANTED: [&str; 14] = [
    "SessionType=Normal",
    "HeaderDigest=None",
    "DataDigest=None",
    "InitialR2T=No",
    "ImmediateData=Yes",
    "MaxRecvDataSegmentLength=262144",
    "MaxBurstLength=262144",
    "FirstBurstLength=262144",
    "MaxConnections=1",
    "MaxOutstandingR2T=1",
    "DefaultTime2Wait=2",
    "DefaultTime2Retain=0",
    "ErrorRecoveryLevel=0",
    "DataPDUInOrder=Yes",
];
const COMMAND: u8 = 0x01;
const LOGIN: u8 = 0x03;
const DATA_OUT: u8 = 0x05;
const IMMEDIATE: u8 = 0x40;
const REPLY: u8 = 0x21;
const LOGIN_REPLY: u8 = 0x23;
const DATA_IN: u8 = 0x25;
const WANTS: u8 = 0x31;
const FINAL: u8 = 0x80;
const READS: u8 = 0x40;
const WRITES: u8 = 0x20;
const SIMPLE: u8 = 0x01;
const HAS_STATUS: u8 = 0x01;
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;
/// tgt's own controller is disk 0.
const LUN: u8 = 1;
const SECTOR: u64 = 512;
const HEAD_BYTES: usize = 48;
const PART_BYTES_MAX: usize = 256 << 10;
const TRIES: usize = 8;
const SILENT: &str = "the iSCSI target does not answer";
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io, net::Shutdown, os::unix::net::UnixStream, thread};

    /// A target that says all of this, whatever it is asked.
    fn told(all: Vec<u8>) -> Result<Iscsi> {
        let (ours, mut theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        thread::spawn(move || {
            let _ = theirs.write_all(&all);
            let _ = theirs.shutdown(Shutdown::Write).and_then(|()| io::copy(&mut theirs, &mut io::sink()));
        });
        Iscsi::logged_in(Box::new(ours), "iqn.a")
    }

    fn unit(kind: u8, flags: u8, status: u8, tag: u32, bytes: &[u8]) -> Vec<u8> {
        let mut unit = vec![0; HEAD_BYTES];
        (unit[0], unit[1], unit[3]) = (kind, flags, status);
        unit[5..8].copy_from_slice(&(bytes.len() as u32).to_be_bytes()[1..]);
        unit[16..20].copy_from_slice(&tag.to_be_bytes());
        unit.extend(bytes);
        unit.resize(unit.len().next_multiple_of(4), 0);
        unit
    }

    fn welcome() -> Vec<u8> {
        let login = unit(LOGIN_REPLY, 0x87, 0, 0, b"MaxRecvDataSegmentLength=4096\0FirstBurstLength=65536\0");
        // What happened before, then nothing any more.
        [login, unit(REPLY, FINAL, 2, 0, &[0; 18]), unit(REPLY, FINAL, 0, 0, b"")].concat()
    }

    #[test]
    fn targets_that_say_what_none_says_are_refused() {
        let iscsi = told(welcome()).unwrap();
        assert_eq!((iscsi.part_bytes, iscsi.first_bytes), (4096, 4096));
        let why = |all| told(all).err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(why(b"HTTP/1.1 400 Bad Request".to_vec()).contains("does not answer"));
        assert!(why(unit(0x7f, 0, 0, 0, b"")).contains("no iSCSI target"));
        let mut refused = unit(LOGIN_REPLY, 0x87, 0, 0, b"");
        (refused[36], refused[37]) = (2, 3);
        assert!(why(refused).contains("2.3"));
        let more = unit(LOGIN_REPLY, 0, 0, 0, b"");
        assert!(told([more.clone(), welcome()].concat()).is_ok());
        assert!(why([more.clone(), more].concat()).contains("further"));
        let mut long = unit(LOGIN_REPLY, 0x87, 0, 0, b"");
        long[5] = 0xff;
        assert!(why(long).contains("at once"));
        let busy = (0..TRIES).map(|_| unit(REPLY, FINAL, 8, 0, b"")).collect::<Vec<_>>().concat();
        assert!(why([unit(LOGIN_REPLY, 0x87, 0, 0, b""), busy].concat()).contains("not ready"));
    }

    #[test]
    fn reads_end_with_their_last_part_and_failures_are_said() {
        let read = |rest: Vec<Vec<u8>>| {
            let mut iscsi = told([welcome(), rest.concat()].concat()).unwrap();
            let mut left = [0u64].into_iter();
            let done = iscsi.run(LoadSpec { writes: false, bytes: 8192, depth: 1 }, &mut || left.next());
            done.map(|done| done.times.len()).map_err(|error| format!("{error:#}"))
        };
        let part = |flags, status, tag| unit(DATA_IN, flags, status, tag, &[7; 4096]);
        assert_eq!(read(vec![part(0, 0, 0), part(FINAL | HAS_STATUS, 0, 0)]), Ok(1));
        assert_eq!(read(vec![part(0, 0, 0), part(FINAL, 0, 0), unit(REPLY, FINAL, 0, 0, b"")]), Ok(1));
        assert!(read(vec![part(HAS_STATUS, 2, 0)]).unwrap_err().contains("status 2"));
        assert!(read(vec![part(HAS_STATUS, 0, 9)]).unwrap_err().contains("not asked"));
        assert!(read(vec![unit(0x20, 0, 0, 0, b"")]).unwrap_err().contains("0x20"));
        assert!(read(vec![part(0, 0, 0)]).unwrap_err().contains("does not answer"));
    }

    #[test]
    fn a_target_gets_what_it_wants_of_a_write_and_no_more() {
        let wants = |at: u32, bytes: u32| {
            let mut unit = unit(WANTS, FINAL, 0, 0, b"");
            unit[20..24].copy_from_slice(b"abcd");
            unit[40..44].copy_from_slice(&at.to_be_bytes());
            unit[44..48].copy_from_slice(&bytes.to_be_bytes());
            unit
        };
        let write = |rest: Vec<Vec<u8>>| {
            let mut iscsi = told([welcome(), rest.concat()].concat()).unwrap();
            let mut left = [0u64].into_iter();
            let done = iscsi.run(LoadSpec { writes: true, bytes: 8192, depth: 1 }, &mut || left.next());
            done.map(|_| iscsi.request.len()).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(write(vec![wants(4096, 4096), unit(REPLY, FINAL, 0, 0, b"")]), Ok(HEAD_BYTES + 4096));
        assert!(write(vec![wants(4096, 4097)]).unwrap_err().contains("more than there is"));
        assert!(write(vec![wants(u32::MAX, u32::MAX)]).unwrap_err().contains("more than there is"));
    }
}
