//! What an NBD client and its server say to each other, as bytes: newstyle, big-endian. Pure and
//! total.

use overside_volume::{DeviceError, Geometry};

/// A client's or a server's message that there cannot be: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an NBD message is malformed: {0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// The server's first words: fixed newstyle, and the zeros after an export may be left out.
pub(super) fn greeting() -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&OPTION_MAGIC);
    out.extend_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    out
}

/// The client's answer to them. Whether it wants the zeros left out.
pub(super) fn client_flags(bytes: [u8; FLAGS_BYTES]) -> Result<bool, Malformed> {
    let flags = u32::from_be_bytes(bytes);
    let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
    if flags & !known != 0 {
        Err(Malformed("flags that no version has"))
    } else {
        Ok(flags & u32::from(NO_ZEROES) != 0)
    }
}

/// What comes before an option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionHeader {
    pub(super) option: u32,
    pub(super) length: u32,
}

impl OptionHeader {
    pub(super) fn parse(bytes: [u8; OPTION_BYTES]) -> Result<OptionHeader, Malformed> {
        if bytes[..8] != OPTION_MAGIC {
            return Err(Malformed("an option without its magic"));
        }
        Ok(OptionHeader { option: u32_at(&bytes, 8), length: u32_at(&bytes, 12) })
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        [&OPTION_MAGIC[..], &self.option.to_be_bytes(), &self.length.to_be_bytes()].concat()
    }
}

/// What an option asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted<'a> {
    /// To begin, without a word if it cannot be.
    ExportName(&'a str),
    Abort,
    List,
    /// What an export is; to begin with it, too, where `go` is set.
    Info {
        go: bool,
        name: &'a str,
        canonical: bool,
    },
    StructuredReplies,
    /// What can be known of blocks; to know it from then on, where `set` is set.
    Contexts {
        set: bool,
        name: &'a str,
        queries: Vec<&'a str>,
    },
}

impl<'a> Wanted<'a> {
    /// From an option and its data.
    ///
    /// # Errors
    /// What the option is answered with.
    pub(super) fn parse(option: u32, data: &'a [u8]) -> Result<Wanted<'a>, Refusal> {
        let empty = |wanted| if data.is_empty() { Ok(wanted) } else { Err(Refusal::Invalid) };
        let mut rest = Rest(data);
        match option {
            EXPORT_NAME => Ok(Wanted::ExportName(text(data)?)),
            ABORT => Ok(Wanted::Abort),
            LIST => empty(Wanted::List),
            STRUCTURED_REPLY => empty(Wanted::StructuredReplies),
            INFO | GO => {
                let name = rest.text()?;
                let mut canonical = false;
                for _ in 0..rest.u16()? {
                    canonical |= rest.u16()? == INFO_NAME;
                }
                rest.end(Wanted::Info { go: option == GO, name, canonical })
            }
            LIST_META_CONTEXT | SET_META_CONTEXT => {
                let name = rest.text()?;
                let count = rest.u32()?;
                // Each has its length before it, so a count that lies ends here.
                let mut queries = Vec::new();
                for _ in 0..count {
                    queries.push(rest.text()?);
                }
                rest.end(Wanted::Contexts { set: option == SET_META_CONTEXT, name, queries })
            }
            _ => Err(Refusal::Unsupported),
        }
    }
}

/// What is left of an option's data.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Refusal> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Refusal::Invalid)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.take(4).map(|bytes| u32_at(bytes, 0))
    }

    fn text(&mut self) -> Result<&'a str, Refusal> {
        let length = self.u32()?;
        text(self.take(length as usize)?)
    }

    fn end<T>(&self, whole: T) -> Result<T, Refusal> {
        if self.0.is_empty() { Ok(whole) } else { Err(Refusal::Invalid) }
    }
}

fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    let text = std::str::from_utf8(bytes).map_err(|_| Refusal::Invalid)?;
    if text.len() > TEXT_BYTES_MAX || text.contains('\0') { Err(Refusal::Invalid) } else { Ok(text) }
}

/// Why an option is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Unsupported = 1,
    Policy = 2,
    Invalid = 3,
    Unknown = 6,
    TooBig = 9,
}

/// What an option is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    Done,
    /// The name of an export.
    Server(&'a str),
    /// What an export is.
    Export(Geometry, u16),
    Name(&'a str),
    BlockSizes(Geometry),
    /// A context, and its number.
    Context(u32, &'a str),
    Refused(Refusal, &'a str),
}

/// Appends an option's answer.
pub(super) fn say(out: &mut Vec<u8>, option: u32, answer: Answer<'_>) {
    let mut data = Vec::new();
    let kind = match answer {
        Answer::Done => 1,
        Answer::Server(name) => {
            data.extend_from_slice(&(name.len() as u32).to_be_bytes());
            data.extend_from_slice(name.as_bytes());
            2
        }
        Answer::Export(geometry, flags) => {
            data.extend_from_slice(&INFO_EXPORT.to_be_bytes());
            data.extend_from_slice(&geometry.bytes.to_be_bytes());
            data.extend_from_slice(&flags.to_be_bytes());
            3
        }
        Answer::Name(name) => {
            data.extend_from_slice(&INFO_NAME.to_be_bytes());
            data.extend_from_slice(name.as_bytes());
            3
        }
        Answer::BlockSizes(geometry) => {
            let least = geometry.unit_bytes.min(u64::from(PREFERRED_MAX)) as u32;
            data.extend_from_slice(&INFO_BLOCK_SIZE.to_be_bytes());
            for size in [least, least.max(PREFERRED), PAYLOAD_BYTES_MAX] {
                data.extend_from_slice(&size.to_be_bytes());
            }
            3
        }
        Answer::Context(number, name) => {
            data.extend_from_slice(&number.to_be_bytes());
            data.extend_from_slice(name.as_bytes());
            4
        }
        Answer::Refused(refusal, why) => {
            data.extend_from_slice(why.as_bytes());
            ERROR | refusal as u32
        }
    };
    out.extend_from_slice(&REPLY_MAGIC);
    for field in [option, kind, data.len() as u32] {
        out.extend_from_slice(&field.to_be_bytes());
    }
    out.extend_from_slice(&data);
}

/// Appends what [`Wanted::ExportName`] is answered with.
pub(super) fn say_export(out: &mut Vec<u8>, geometry: Geometry, flags: u16, zeros: bool) {
    out.extend_from_slice(&geometry.bytes.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    if zeros {
        out.extend_from_slice(&[0; 124]);
    }
}

/// What an export can do. One device serves all connections, so a FLUSH covers them all.
pub(super) fn transmission_flags(geometry: Geometry, structured: bool) -> u16 {
    let always = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
    let writes = if geometry.read_only { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO };
    always | writes | if structured { SEND_DF } else { 0 }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NbdRequest {
    /// The client's own number.
    pub(super) cookie: u64,
    /// None: no command that this server knows.
    pub(super) command: Option<Command>,
    kind: u16,
    flags: u16,
    pub(super) at: u64,
    pub(super) length: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    Cache = 5,
    WriteZeroes = 6,
    BlockStatus = 7,
}

impl Command {
    const ALL: [Command; 8] = [
        Command::Read,
        Command::Write,
        Command::Disconnect,
        Command::Flush,
        Command::Trim,
        Command::Cache,
        Command::WriteZeroes,
        Command::BlockStatus,
    ];
}

impl NbdRequest {
    pub(super) fn parse(bytes: [u8; REQUEST_BYTES]) -> Result<NbdRequest, Malformed> {
        if bytes[..4] != REQUEST_MAGIC {
            return Err(Malformed("a request without its magic"));
        }
        let kind = u16::from_be_bytes([bytes[6], bytes[7]]);
        Ok(NbdRequest {
            cookie: u64_at(&bytes, 8),
            command: Command::ALL.get(usize::from(kind)).copied(),
            kind,
            flags: u16::from_be_bytes([bytes[4], bytes[5]]),
            at: u64_at(&bytes, 16),
            length: u32_at(&bytes, 24),
        })
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        let mut out = REQUEST_MAGIC.to_vec();
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.kind.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.at.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        out
    }

    /// Bytes that follow it.
    pub(super) fn payload(self) -> u32 {
        if self.command == Some(Command::Write) { self.length } else { 0 }
    }

    pub(super) fn fua(self) -> bool {
        self.flags & FUA != 0
    }

    /// Room must be kept for the zeros.
    pub(super) fn no_hole(self) -> bool {
        self.flags & NO_HOLE != 0
    }

    /// Whether an export of this geometry can carry it out; `allocation`: the client chose that
    /// context.
    pub(super) fn check(self, geometry: Geometry, allocation: bool) -> Result<(), Failure> {
        use Command::{BlockStatus, Disconnect, Flush, Read, Trim, Write, WriteZeroes};
        let command = self.command.ok_or(Failure::Invalid)?;
        let allowed = match command {
            Read => FUA | DF,
            WriteZeroes => FUA | NO_HOLE | FAST_ZERO,
            BlockStatus => FUA | REQ_ONE,
            _ => FUA,
        };
        if self.flags & !allowed != 0 || (command == BlockStatus && !allocation) {
            return Err(Failure::Invalid);
        }
        if matches!(command, Flush | Disconnect) {
            return Ok(());
        }
        let length = u64::from(self.length);
        if matches!(command, Read | Write) && self.length > PAYLOAD_BYTES_MAX {
            return Err(Failure::Invalid);
        }
        if geometry.read_only && matches!(command, Write | Trim | WriteZeroes) {
            return Err(Failure::NotPermitted);
        }
        if length == 0 || !self.at.is_multiple_of(geometry.unit_bytes) || !length.is_multiple_of(geometry.unit_bytes) {
            return Err(Failure::Invalid);
        }
        if self.at.checked_add(length).is_none_or(|end| end > geometry.bytes) {
            let grows = matches!(command, Write | WriteZeroes);
            return Err(if grows { Failure::NoSpace } else { Failure::Invalid });
        }
        // Zeros are written here, so they take as long as a WRITE of them.
        if self.flags & FAST_ZERO != 0 {
            return Err(Failure::NotSupported);
        }
        Ok(())
    }
}

/// Why a request failed, in the protocol's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NotPermitted = 1,
    Io = 5,
    NoMemory = 12,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        match error {
            DeviceError::Invalid => Failure::Invalid,
            DeviceError::ReadOnly | DeviceError::Fenced | DeviceError::Refused => Failure::NotPermitted,
            DeviceError::NoSpace => Failure::NoSpace,
            DeviceError::NoMemory => Failure::NoMemory,
            DeviceError::Failed | DeviceError::Corrupt | DeviceError::Unreachable => Failure::Io,
        }
    }
}

/// What comes before a reply's payload, or is all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    length: u8,
}

impl Head {
    /// A request without a payload has ended.
    pub(super) fn done(cookie: u64, structured: bool) -> Head {
        if structured { chunk(NONE, cookie, &[], 0) } else { simple(0, cookie) }
    }

    pub(super) fn failed(cookie: u64, structured: bool, failure: Failure) -> Head {
        let error = (failure as u32).to_be_bytes();
        // A message of no bytes follows the error.
        let body = [error[0], error[1], error[2], error[3], 0, 0];
        if structured { chunk(FAILED, cookie, &body, 0) } else { simple(failure as u32, cookie) }
    }

    /// `length` bytes of a READ follow.
    pub(super) fn data(cookie: u64, structured: bool, at: u64, length: usize) -> Head {
        if structured { chunk(OFFSET_DATA, cookie, &at.to_be_bytes(), length as u32) } else { simple(0, cookie) }
    }

    /// All of the range is there. Devices do not say which blocks hold nothing but zeros.
    pub(super) fn status(cookie: u64, length: u32) -> Head {
        let mut body = [0; 12];
        body[..4].copy_from_slice(&ALLOCATION_NUMBER.to_be_bytes());
        body[4..8].copy_from_slice(&length.to_be_bytes());
        chunk(BLOCK_STATUS, cookie, &body, 0)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

fn simple(error: u32, cookie: u64) -> Head {
    let mut head = Head { bytes: [0; HEAD_BYTES_MAX], length: 0 };
    head.push(&SIMPLE_MAGIC);
    head.push(&error.to_be_bytes());
    head.push(&cookie.to_be_bytes());
    head
}

/// The only chunk of a reply: `body`, and `more` bytes that follow it.
fn chunk(kind: u16, cookie: u64, body: &[u8], more: u32) -> Head {
    let mut head = Head { bytes: [0; HEAD_BYTES_MAX], length: 0 };
    head.push(&STRUCTURED_MAGIC);
    head.push(&LAST.to_be_bytes());
    head.push(&kind.to_be_bytes());
    head.push(&cookie.to_be_bytes());
    head.push(&(body.len() as u32 + more).to_be_bytes());
    head.push(body);
    head
}

impl Head {
    fn push(&mut self, field: &[u8]) {
        let at = usize::from(self.length);
        self.bytes[at..at + field.len()].copy_from_slice(field);
        self.length += field.len() as u8;
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(super) const FLAGS_BYTES: usize = 4;
pub(super) const OPTION_BYTES: usize = 16;
pub(super) const REQUEST_BYTES: usize = 28;
/// Bytes of an option that are looked at; what is longer is refused.
pub(super) const OPTION_BYTES_MAX: u32 = 8 << 10;
/// Bytes of one READ or WRITE: what clients assume that ask for nothing else.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// The one context that there is.
pub(super) const ALLOCATION: &str = "base:allocation";
pub(super) const ALLOCATION_NUMBER: u32 = 1;
/// Options that the negotiation names.
pub(super) const EXPORT_NAME: u32 = 1;

const TEXT_BYTES_MAX: usize = 4096;
const HEAD_BYTES_MAX: usize = 32;
const PREFERRED: u32 = 4096;
/// Of preferred sizes, what clients take.
const PREFERRED_MAX: u32 = 64 << 10;

const MAGIC: [u8; 8] = *b"NBDMAGIC";
const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
const REPLY_MAGIC: [u8; 8] = 0x0003_e889_0455_65a9_u64.to_be_bytes();
const REQUEST_MAGIC: [u8; 4] = 0x2560_9513_u32.to_be_bytes();
const SIMPLE_MAGIC: [u8; 4] = 0x6744_6698_u32.to_be_bytes();
const STRUCTURED_MAGIC: [u8; 4] = 0x668e_33ef_u32.to_be_bytes();

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const ABORT: u32 = 2;
const LIST: u32 = 3;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;
const LIST_META_CONTEXT: u32 = 9;
const SET_META_CONTEXT: u32 = 10;
const ERROR: u32 = 1 << 31;

const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_BLOCK_SIZE: u16 = 3;

const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;
const SEND_DF: u16 = 1 << 7;
const CAN_MULTI_CONN: u16 = 1 << 8;
const SEND_CACHE: u16 = 1 << 10;
const SEND_FAST_ZERO: u16 = 1 << 11;

const FUA: u16 = 1;
const NO_HOLE: u16 = 1 << 1;
const DF: u16 = 1 << 2;
const REQ_ONE: u16 = 1 << 3;
const FAST_ZERO: u16 = 1 << 4;

/// No chunk follows.
const LAST: u16 = 1;
const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const BLOCK_STATUS: u16 = 5;
const FAILED: u16 = 1 << 15 | 1;
