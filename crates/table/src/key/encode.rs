//! One value of a key to bytes.

use crate::row::ValueRef;

/// Appends a value that is not null; `last` when no column follows it in the key.
#[inline]
pub(super) fn value(value: &ValueRef<'_>, last: bool, out: &mut Vec<u8>) {
    match *value {
        ValueRef::Null => {}
        ValueRef::Int8(v) => out.push(v as u8 ^ 0x80),
        ValueRef::Int16(v) => out.extend_from_slice(&(v ^ i16::MIN).to_be_bytes()),
        ValueRef::Int32(v) | ValueRef::Date32(v) => out.extend_from_slice(&(v ^ i32::MIN).to_be_bytes()),
        ValueRef::Int64(v) | ValueRef::Timestamp(v) => out.extend_from_slice(&(v ^ i64::MIN).to_be_bytes()),
        ValueRef::UInt8(v) => out.push(v),
        ValueRef::UInt16(v) => out.extend_from_slice(&v.to_be_bytes()),
        ValueRef::UInt32(v) => out.extend_from_slice(&v.to_be_bytes()),
        ValueRef::UInt64(v) => out.extend_from_slice(&v.to_be_bytes()),
        ValueRef::Float32(v) => {
            let bits = v.to_bits();
            // A negative number's bits grow as it falls: invert them all; else set the sign above the negatives.
            out.extend_from_slice(&(bits ^ ((bits as i32 >> 31) as u32 | 1 << 31)).to_be_bytes());
        }
        ValueRef::Float64(v) => {
            let bits = v.to_bits();
            out.extend_from_slice(&(bits ^ ((bits as i64 >> 63) as u64 | 1 << 63)).to_be_bytes());
        }
        ValueRef::Decimal128(v) => out.extend_from_slice(&(v ^ i128::MIN).to_be_bytes()),
        ValueRef::Boolean(v) => out.push(u8::from(v)),
        ValueRef::FixedBinary(v) => out.extend_from_slice(v),
        ValueRef::Utf8(v) => bytes(v.as_bytes(), last, out),
        ValueRef::Binary(v) => bytes(v, last, out),
    }
}

fn bytes(bytes: &[u8], last: bool, out: &mut Vec<u8>) {
    if last {
        out.extend_from_slice(bytes);
        return;
    }
    let mut parts = bytes.split(|&byte| byte == 0);
    out.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        out.extend_from_slice(&ESCAPED);
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&CLOSED);
}

/// A zero byte within a value; sorts above the end of a value that is its prefix.
pub(super) const ESCAPED: [u8; 2] = [0x00, 0xff];
/// The end of a value that another column follows.
pub(super) const CLOSED: [u8; 2] = [0x00, 0x00];
