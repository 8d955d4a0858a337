//! How a node and its volumes do: asked for without a session, by any client
//! that the node lets connect.

use super::request::INQUIRY;
use super::{HEADER, Malformed, NAME_BYTES_MAX, Status, VERSION, begin, header, put, u32_at, u64_at, zeros};

/// Asks a node how it does. It may be the first message of a connection, or any later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// The message's number, which the answer has too.
    pub number: u32,
    /// Of which volume; empty for all of them.
    pub volume: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The inquiry's number.
    pub number: u32,
    /// Whether there is such a volume.
    pub status: Status,
    /// Which life of the node this is.
    pub incarnation: u64,
    /// The node's process.
    pub process: u32,
    /// Processor time that it has used, in microseconds; 0 where it does not know.
    pub cpu_us: u64,
    /// How long it has been served, in microseconds.
    pub up_us: u64,
    /// Bytes of one request at most.
    pub request_bytes_max: u32,
    /// What was asked for.
    pub volumes: Vec<VolumeReport>,
}

/// How one volume does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// Whether it can be used.
    pub state: VolumeState,
    /// Why not, for people.
    pub reason: String,
    /// How it lies on its members, as the command line says it.
    pub layout: String,
    /// WRITEs are acknowledged when the node's kernel has them.
    pub writes_back: bool,
    /// Its length in bytes.
    pub bytes: u64,
    /// What was carried out since the node has it.
    pub counts: Counts,
    /// What it lies on.
    pub members: Vec<MemberReport>,
    /// Who is attached.
    pub sessions: Vec<SessionReport>,
}

/// What a volume has carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// FLUSHes, DISCARDs, ZEROs and HINTs.
    pub others: u64,
    /// Of all of these, those that failed.
    pub failed: u64,
    /// Bytes that READs read.
    pub read_bytes: u64,
    /// Bytes that WRITEs wrote.
    pub written_bytes: u64,
    /// Bytes of its cache; 0 where it has none.
    pub cache_bytes: u64,
    /// Blocks that were found there.
    pub hits: u64,
    /// Blocks that were not.
    pub misses: u64,
}

/// Whether a volume can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeState {
    /// All of it is there.
    Ok,
    /// It can be used, and another failure may end that.
    Degraded,
    /// It cannot be used.
    Failed,
}

/// One of the things that a volume lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// As the command line says it.
    pub place: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// It has missed a write.
    pub stale: bool,
    /// It has a checksum of each block.
    pub sums: bool,
}

/// A client of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionReport {
    /// Its session.
    pub session: u64,
    /// Its process, as it says itself.
    pub process: u32,
    /// What it may do.
    pub role: SessionRole,
    /// Connections that it has now.
    pub connections: u32,
    /// Requests that it has now.
    pub in_flight: u32,
    /// How long the oldest of them has been here, in microseconds.
    pub waiting_us: Option<u64>,
    /// Requests that were carried out for it.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

/// What a session may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRole {
    /// Read.
    Reader,
    /// Read and write.
    Writer,
    /// Nothing any more: another writer has taken the volume over.
    Fenced,
}

impl Inquiry {
    /// As it goes over the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = begin(u64::from(self.number));
        let name = &self.volume.as_bytes()[..self.volume.len().min(NAME_BYTES_MAX)];
        bytes[8..12].copy_from_slice(&[INQUIRY, VERSION, 0, name.len() as u8]);
        [&bytes[..], name].concat()
    }

    /// Whether a message with this header is an inquiry, of whichever version.
    pub fn inquires(bytes: &[u8; HEADER]) -> bool {
        bytes[8] == INQUIRY
    }

    /// An inquiry.
    ///
    /// # Errors
    /// [`Malformed`] for anything else, and for another version.
    pub fn parse(message: &[u8]) -> Result<Inquiry, Malformed> {
        let (bytes, name) = header(message)?;
        Self::of(bytes, name)
    }

    /// The same of a header and what follows.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of(bytes: &[u8; HEADER], name: &[u8]) -> Result<Inquiry, Malformed> {
        if bytes[8] != INQUIRY {
            return Err(Malformed("no inquiry"));
        }
        if bytes[9] != VERSION {
            return Err(Malformed("an inquiry of another version"));
        }
        zeros(&bytes[10..11])?;
        zeros(&bytes[12..])?;
        if name.len() != usize::from(bytes[11]) || name.len() > NAME_BYTES_MAX {
            return Err(Malformed("a volume's name of another length"));
        }
        let name = std::str::from_utf8(name).map_err(|_| Malformed("a volume's name is no text"))?;
        Ok(Inquiry { number: u32_at(bytes, 4), volume: name.to_owned() })
    }
}

impl Report {
    /// As it goes over the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut body = Writer(Vec::new());
        body.u64(self.cpu_us);
        body.u64(self.up_us);
        body.count(self.volumes.len());
        self.volumes.iter().for_each(|volume| volume.write(&mut body));
        let mut bytes = begin(u64::from(self.number));
        bytes[8..11].copy_from_slice(&[INQUIRY, self.status.code(), VERSION]);
        put(&mut bytes, 12, &(body.0.len() as u32).to_le_bytes());
        put(&mut bytes, 16, &self.process.to_le_bytes());
        put(&mut bytes, 20, &self.request_bytes_max.to_le_bytes());
        put(&mut bytes, 40, &self.incarnation.to_le_bytes());
        [&bytes[..], &body.0].concat()
    }

    /// An answer to an inquiry.
    ///
    /// # Errors
    /// [`Malformed`] for anything else.
    pub fn parse(message: &[u8]) -> Result<Report, Malformed> {
        let (bytes, payload) = header(message)?;
        if bytes[8] != INQUIRY {
            return Err(Malformed("no answer to an inquiry"));
        }
        if bytes[10] != VERSION {
            return Err(Malformed("an answer of another version"));
        }
        zeros(&bytes[11..12])?;
        zeros(&bytes[24..40])?;
        zeros(&bytes[48..])?;
        if payload.len() as u64 != u64::from(u32_at(bytes, 12)) {
            return Err(Malformed("a report of another length"));
        }
        let mut body = Reader(payload);
        let (cpu_us, up_us) = (body.u64()?, body.u64()?);
        let volumes = body.list(VolumeReport::read)?;
        if !body.0.is_empty() {
            return Err(Malformed("a report with something behind it"));
        }
        Ok(Report {
            number: u32_at(bytes, 4),
            status: Status::parse(bytes[9])?,
            incarnation: u64_at(bytes, 40),
            process: u32_at(bytes, 16),
            cpu_us,
            up_us,
            request_bytes_max: u32_at(bytes, 20),
            volumes,
        })
    }
}

impl VolumeReport {
    fn write(&self, to: &mut Writer) {
        to.text(&self.name);
        to.u8(match self.state {
            VolumeState::Ok => 0,
            VolumeState::Degraded => 1,
            VolumeState::Failed => 2,
        });
        to.text(&self.reason);
        to.text(&self.layout);
        to.u8(u8::from(self.writes_back));
        to.u64(self.bytes);
        self.counts.fields().into_iter().for_each(|count| to.u64(count));
        to.count(self.members.len());
        for member in &self.members {
            to.text(&member.place);
            to.u64(member.bytes);
            to.u8(u8::from(member.stale));
            to.u8(u8::from(member.sums));
        }
        to.count(self.sessions.len());
        self.sessions.iter().for_each(|session| session.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Result<VolumeReport, Malformed> {
        Ok(VolumeReport {
            name: from.text()?,
            state: match from.u8()? {
                0 => VolumeState::Ok,
                1 => VolumeState::Degraded,
                2 => VolumeState::Failed,
                _ => return Err(Malformed("no state of this version")),
            },
            reason: from.text()?,
            layout: from.text()?,
            writes_back: from.flag()?,
            bytes: from.u64()?,
            counts: Counts::read(from)?,
            members: from.list(|from| {
                let (place, bytes) = (from.text()?, from.u64()?);
                Ok(MemberReport { place, bytes, stale: from.flag()?, sums: from.flag()? })
            })?,
            sessions: from.list(SessionReport::read)?,
        })
    }
}

impl Counts {
    fn fields(&self) -> [u64; 9] {
        let Counts { reads, writes, others, failed, read_bytes, written_bytes, cache_bytes, hits, misses } = *self;
        [reads, writes, others, failed, read_bytes, written_bytes, cache_bytes, hits, misses]
    }

    fn read(from: &mut Reader<'_>) -> Result<Counts, Malformed> {
        Ok(Counts {
            reads: from.u64()?,
            writes: from.u64()?,
            others: from.u64()?,
            failed: from.u64()?,
            read_bytes: from.u64()?,
            written_bytes: from.u64()?,
            cache_bytes: from.u64()?,
            hits: from.u64()?,
            misses: from.u64()?,
        })
    }
}

impl SessionReport {
    fn write(&self, to: &mut Writer) {
        to.u64(self.session);
        to.u32(self.process);
        to.u8(match self.role {
            SessionRole::Reader => 0,
            SessionRole::Writer => 1,
            SessionRole::Fenced => 2,
        });
        to.u32(self.connections);
        to.u32(self.in_flight);
        to.u8(u8::from(self.waiting_us.is_some()));
        to.u64(self.waiting_us.unwrap_or(0));
        to.u64(self.requests);
        to.u64(self.bytes);
    }

    fn read(from: &mut Reader<'_>) -> Result<SessionReport, Malformed> {
        Ok(SessionReport {
            session: from.u64()?,
            process: from.u32()?,
            role: match from.u8()? {
                0 => SessionRole::Reader,
                1 => SessionRole::Writer,
                2 => SessionRole::Fenced,
                _ => return Err(Malformed("no role of this version")),
            },
            connections: from.u32()?,
            in_flight: from.u32()?,
            waiting_us: match (from.flag()?, from.u64()?) {
                (true, waiting) => Some(waiting),
                (false, 0) => None,
                (false, _) => return Err(Malformed("bytes that mean nothing are not zero")),
            },
            requests: from.u64()?,
            bytes: from.u64()?,
        })
    }
}

/// Appends fields, little-endian.
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// How many follow.
    fn count(&mut self, count: usize) {
        self.u32(count as u32);
    }

    /// Text, of which what is too long is left out.
    fn text(&mut self, text: &str) {
        let ends = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        let text = &text[..ends.unwrap_or(0)];
        self.0.extend_from_slice(&(text.len() as u16).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Takes fields off the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed("a report that ends too early"))?;
        self.0 = rest;
        Ok(*field)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[value]| value)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let too_early = Malformed("a report that ends too early");
        let (text, rest) = self.0.split_at_checked(length).ok_or(too_early)?;
        if length > TEXT_BYTES_MAX {
            return Err(Malformed("a text that is too long"));
        }
        self.0 = rest;
        std::str::from_utf8(text).map(str::to_owned).map_err(|_| Malformed("a text that is none"))
    }

    /// As many as are said to follow. Memory is taken as they come, not as they are announced.
    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        let count = self.u32()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(one(self)?);
        }
        Ok(list)
    }
}

/// Longest text of a report, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// One that has something of everything.
pub(super) fn example() -> Report {
    let session = SessionReport {
        session: 3,
        process: 71,
        role: SessionRole::Writer,
        connections: 1,
        in_flight: 2,
        waiting_us: Some(350),
        requests: 9,
        bytes: 72 << 10,
    };
    let reader = SessionReport { session: 4, role: SessionRole::Reader, waiting_us: None, in_flight: 0, ..session };
    let member = MemberReport { place: "/srv/a.img".into(), bytes: 1 << 20, stale: false, sums: true };
    let volume = VolumeReport {
        name: "pg".into(),
        state: VolumeState::Degraded,
        reason: "a member has missed a write".into(),
        layout: "raid1".into(),
        writes_back: true,
        bytes: 1 << 20,
        counts: Counts { reads: 5, writes: 4, read_bytes: 40 << 10, written_bytes: 32 << 10, ..Counts::default() },
        members: vec![member.clone(), MemberReport { place: "memory".into(), stale: true, ..member }],
        sessions: vec![session, reader, SessionReport { role: SessionRole::Fenced, ..reader }],
    };
    Report {
        number: 1,
        status: Status::Done,
        incarnation: 1,
        process: 70,
        cpu_us: 5_000_000,
        up_us: 9_000_000,
        request_bytes_max: 128 << 10,
        volumes: vec![volume],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_wire_and_no_part_of_it_is_one() {
        let report = example();
        let bytes = report.bytes();
        assert_eq!(Report::parse(&bytes), Ok(report));
        for length in 0..bytes.len() {
            assert!(Report::parse(&bytes[..length]).is_err(), "{length}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Report::parse(&longer).is_err());
        longer[12] += 1;
        assert!(Report::parse(&longer).is_err(), "something behind the last field");
    }

    #[test]
    fn a_count_without_what_it_counts_takes_no_memory() {
        let mut bytes = Report { volumes: Vec::new(), ..example() }.bytes();
        let count = HEADER + 16;
        bytes[count..count + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Report::parse(&bytes), Err(Malformed("a report that ends too early")));
    }

    #[test]
    fn long_texts_are_cut_where_a_character_ends() {
        let place = "ü".repeat(TEXT_BYTES_MAX);
        let mut report = example();
        report.volumes[0].members[0].place = place.clone();
        let heard = Report::parse(&report.bytes()).unwrap();
        assert_eq!(heard.volumes[0].members[0].place, place[..TEXT_BYTES_MAX]);
    }
}
