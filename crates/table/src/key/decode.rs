//! One value of a key from bytes.

use super::encode::{CLOSED, ESCAPED};
use crate::row::Value;
use crate::schema::ColumnType;

/// Takes a value off the front of `rest`; none when the bytes are no value of this type. `last` as
/// in encoding.
pub(super) fn value(column_type: &ColumnType, last: bool, rest: &mut &[u8]) -> Option<Value> {
    Some(match column_type {
        ColumnType::Int8 => Value::Int8((take::<1>(rest)?[0] ^ 0x80) as i8),
        ColumnType::Int16 => Value::Int16(i16::from_be_bytes(take(rest)?) ^ i16::MIN),
        ColumnType::Int32 => Value::Int32(i32::from_be_bytes(take(rest)?) ^ i32::MIN),
        ColumnType::Date32 => Value::Date32(i32::from_be_bytes(take(rest)?) ^ i32::MIN),
        ColumnType::Int64 => Value::Int64(i64::from_be_bytes(take(rest)?) ^ i64::MIN),
        ColumnType::Timestamp { .. } => Value::Timestamp(i64::from_be_bytes(take(rest)?) ^ i64::MIN),
        ColumnType::UInt8 => Value::UInt8(take::<1>(rest)?[0]),
        ColumnType::UInt16 => Value::UInt16(u16::from_be_bytes(take(rest)?)),
        ColumnType::UInt32 => Value::UInt32(u32::from_be_bytes(take(rest)?)),
        ColumnType::UInt64 => Value::UInt64(u64::from_be_bytes(take(rest)?)),
        ColumnType::Float32 => {
            let bits = u32::from_be_bytes(take(rest)?);
            Value::Float32(f32::from_bits(bits ^ (!(bits as i32 >> 31) as u32 | 1 << 31)))
        }
        ColumnType::Float64 => {
            let bits = u64::from_be_bytes(take(rest)?);
            Value::Float64(f64::from_bits(bits ^ (!(bits as i64 >> 63) as u64 | 1 << 63)))
        }
        ColumnType::Decimal128 { .. } => Value::Decimal128(i128::from_be_bytes(take(rest)?) ^ i128::MIN),
        ColumnType::Boolean => match take::<1>(rest)? {
            [0] => Value::Boolean(false),
            [1] => Value::Boolean(true),
            _ => return None,
        },
        ColumnType::FixedBinary(width) => {
            let (bytes, after) = rest.split_at_checked(usize::from(*width))?;
            *rest = after;
            Value::FixedBinary(bytes.to_vec())
        }
        ColumnType::Utf8 => Value::Utf8(String::from_utf8(bytes(last, rest)?).ok()?),
        ColumnType::Binary => Value::Binary(bytes(last, rest)?),
    })
}

fn take<const WIDTH: usize>(rest: &mut &[u8]) -> Option<[u8; WIDTH]> {
    let (head, after) = rest.split_first_chunk::<WIDTH>()?;
    *rest = after;
    Some(*head)
}

fn bytes(last: bool, rest: &mut &[u8]) -> Option<Vec<u8>> {
    if last {
        return Some(std::mem::take(rest).to_vec());
    }
    let mut out = Vec::new();
    loop {
        let zero = rest.iter().position(|&byte| byte == 0)?;
        out.extend_from_slice(&rest[..zero]);
        *rest = &rest[zero..];
        match take::<2>(rest)? {
            CLOSED => return Some(out),
            ESCAPED => out.push(0),
            _ => return None,
        }
    }
}
