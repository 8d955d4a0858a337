//! What every message begins with: what it is, and of a request or reply its number.

/// Bytes before the body of a request or reply: magic, number.
pub const CONTROL_HEADER: usize = 8;
/// Magic of a request or reply, read as little-endian: the bytes `OVSC`.
pub const CONTROL_MAGIC: u32 = u32::from_le_bytes(*b"OVSC");
/// Magic of a part of something longer: the bytes `OVSP`.
pub const PART_MAGIC: u32 = u32::from_le_bytes(*b"OVSP");

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A request or a reply.
    Control,
    /// A part of a longer message.
    Part,
    /// Anything else: the system parses it.
    Data,
}

/// What a received message is, by its first bytes.
pub fn kind(message: &[u8]) -> MessageKind {
    match message.first_chunk().map(|m| u32::from_le_bytes(*m)) {
        Some(CONTROL_MAGIC) => MessageKind::Control,
        Some(PART_MAGIC) => MessageKind::Part,
        _ => MessageKind::Data,
    }
}

/// A message that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message from the other side is malformed: {0}; is it the same version?")]
pub struct BadMessage(pub &'static str);

/// A request or reply: its header, and the body that `body` appends.
pub fn message(number: u32, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(&CONTROL_MAGIC.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    body(&mut out);
    out
}

/// Number and body of a request or reply.
///
/// # Errors
/// [`BadMessage`] for anything else.
#[inline]
pub fn open(message: &[u8]) -> Result<(u32, &[u8]), BadMessage> {
    let (header, body) = message.split_first_chunk::<CONTROL_HEADER>().ok_or(BadMessage("shorter than its header"))?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    if word(0) != CONTROL_MAGIC {
        return Err(BadMessage("wrong magic"));
    }
    Ok((word(4), body))
}
