//! As much of Thrift's compact protocol as page headers and a schema's outline need.
//!
//! The `parquet` crate reads the footer. Page headers are read here, so that every size in one is
//! checked before a page is allocated. The schema is walked here first, because a hostile one nests
//! deep enough to exhaust the stack of a recursive reader.

use anyhow::{Context, Result, bail, ensure};

/// A page's header.
pub struct PageHeader {
    /// Bytes that the header itself took.
    pub header_bytes: usize,
    /// Bytes of the page in the file.
    pub compressed_bytes: usize,
    /// Bytes of the page once decompressed.
    pub uncompressed_bytes: usize,
    /// What kind of page, with what that kind says.
    pub kind: PageKind,
}

/// The kinds of pages.
pub enum PageKind {
    /// Version 1: levels and values, compressed together.
    Data {
        /// Values, nulls included.
        values: u32,
        /// Encoding of the values.
        encoding: i32,
        /// Encoding of the definition levels.
        level_encoding: i32,
    },
    /// Version 2: levels, never compressed, before the values.
    DataV2 {
        /// Values, nulls included.
        values: u32,
        /// Nulls among them.
        nulls: u32,
        /// Rows.
        rows: u32,
        /// Encoding of the values.
        encoding: i32,
        /// Bytes of definition levels.
        definition_bytes: u32,
        /// Bytes of repetition levels.
        repetition_bytes: u32,
        /// Whether the values are compressed.
        compressed: bool,
    },
    /// The dictionary that later pages refer to.
    Dictionary {
        /// Entries.
        values: u32,
        /// Encoding of the entries.
        encoding: i32,
    },
    /// An index page, to be passed over.
    Index,
}

/// A reader that has come to the end of its bytes; with more bytes it may succeed.
#[derive(Debug, thiserror::Error)]
#[error("a structure is cut off")]
pub struct CutOff;

/// Reads a page header from the start of `bytes`.
///
/// # Errors
/// [`CutOff`] when `bytes` ends within the header; anything else is damage.
pub fn page_header(bytes: &[u8]) -> Result<PageHeader> {
    let mut reader = Compact { bytes, at: 0 };
    let (mut kind, mut sizes) = (None, [None; 2]);
    let (mut data, mut v2, mut dictionary) = (None, None, None);
    reader.fields(|reader, id, ty| {
        match (id, ty) {
            (1, Compact::I32) => kind = Some(reader.i32()?),
            (2 | 3, Compact::I32) => sizes[id as usize - 2] = Some(reader.i32()?),
            (5, Compact::STRUCT) => data = Some(reader.numbers()?),
            (7, Compact::STRUCT) => dictionary = Some(reader.numbers()?),
            (8, Compact::STRUCT) => v2 = Some(reader.numbers()?),
            (_, ty) => reader.skip(ty, 0)?,
        }
        Ok(())
    })?;
    let size = |size: Option<i32>| {
        usize::try_from(size.context("a page header has no size")?).context("a page header has a negative size")
    };
    let kind = match kind.context("a page header has no type")? {
        0 => data_page(&data.context("a data page has no header")?)?,
        1 => PageKind::Index,
        2 => {
            let numbers = dictionary.context("a dictionary page has no header")?;
            PageKind::Dictionary {
                values: numbers.count(1)?,
                encoding: numbers.number(2).context("a dictionary page has no encoding")?,
            }
        }
        3 => data_page_v2(&v2.context("a data page has no header")?)?,
        other => bail!("a page has the unknown type {other}"),
    };
    Ok(PageHeader {
        header_bytes: reader.at,
        uncompressed_bytes: size(sizes[0])?,
        compressed_bytes: size(sizes[1])?,
        kind,
    })
}

/// The first column of a footer's schema that is a list, a struct or a map.
///
/// # Errors
/// The footer is damaged.
pub fn nested_column(footer: &[u8]) -> Result<Option<String>> {
    let mut reader = Compact { bytes: footer, at: 0 };
    let mut nested = None;
    reader.fields(|reader, id, ty| {
        if (id, ty) != (2, Compact::LIST) {
            return reader.skip(ty, 0);
        }
        let (element, count) = reader.list()?;
        ensure!(element == Compact::STRUCT, "the schema is damaged");
        for index in 0..count {
            let (mut children, mut repeated, mut name) = (0, false, String::new());
            reader.fields(|reader, id, ty| {
                match (id, ty) {
                    (3, Compact::I32) => repeated = reader.i32()? == 2,
                    (4, Compact::BINARY) => {
                        name = String::from_utf8_lossy(reader.binary()?).into_owned();
                    }
                    (5, Compact::I32) => children = reader.i32()?,
                    (_, ty) => reader.skip(ty, 0)?,
                }
                Ok(())
            })?;
            if index > 0 && (children != 0 || repeated) && nested.is_none() {
                nested = Some(name);
            }
        }
        Ok(())
    })?;
    Ok(nested)
}

fn data_page(numbers: &Numbers) -> Result<PageKind> {
    Ok(PageKind::Data {
        values: numbers.count(1)?,
        encoding: numbers.number(2).context("a data page has no encoding")?,
        level_encoding: numbers.number(3).unwrap_or(3),
    })
}

fn data_page_v2(numbers: &Numbers) -> Result<PageKind> {
    Ok(PageKind::DataV2 {
        values: numbers.count(1)?,
        nulls: numbers.count(2)?,
        rows: numbers.count(3)?,
        encoding: numbers.number(4).context("a data page has no encoding")?,
        definition_bytes: numbers.count(5)?,
        repetition_bytes: numbers.count(6)?,
        compressed: numbers.number(7) != Some(0),
    })
}

/// The integer and boolean fields, 1 to 8, of a small structure.
struct Numbers([Option<i32>; 9]);

impl Numbers {
    fn number(&self, id: usize) -> Option<i32> {
        self.0[id]
    }

    fn count(&self, id: usize) -> Result<u32> {
        let number = self.number(id).context("a page header lacks a count")?;
        u32::try_from(number).context("a page header has a negative count")
    }
}

struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Compact<'a> {
    const TRUE: u8 = 1;
    const FALSE: u8 = 2;
    const I32: u8 = 5;
    const BINARY: u8 = 8;
    const LIST: u8 = 9;
    const STRUCT: u8 = 12;
    const DEPTH_MAX: usize = 32;

    fn fields(&mut self, mut field: impl FnMut(&mut Self, i16, u8) -> Result<()>) -> Result<()> {
        let mut id = 0i16;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Ok(());
            }
            let (delta, ty) = (header >> 4, header & 15);
            id = match delta {
                0 => i16::try_from(unzigzag(self.varint()?)).context("a field's id is damaged")?,
                delta => id.checked_add(delta.into()).context("a field's id is damaged")?,
            };
            field(self, id, ty)?;
        }
    }

    fn numbers(&mut self) -> Result<Numbers> {
        let mut numbers = Numbers([None; 9]);
        self.fields(|reader, id, ty| {
            let number = match ty {
                Compact::TRUE => 1,
                Compact::FALSE => 0,
                Compact::I32 => reader.i32()?,
                ty => return reader.skip(ty, 0),
            };
            if let Some(slot) = usize::try_from(id).ok().and_then(|id| numbers.0.get_mut(id)) {
                *slot = Some(number);
            }
            Ok(())
        })?;
        Ok(numbers)
    }

    fn skip(&mut self, ty: u8, depth: usize) -> Result<()> {
        ensure!(depth < Compact::DEPTH_MAX, "a structure nests too deep");
        match ty {
            Compact::TRUE | Compact::FALSE => {}
            3 => self.advance(1)?,
            4..=6 => _ = self.varint()?,
            7 => self.advance(8)?,
            Compact::BINARY => _ = self.binary()?,
            Compact::LIST | 10 => {
                let (element, count) = self.list()?;
                for _ in 0..count {
                    match element {
                        Compact::TRUE | Compact::FALSE => self.advance(1)?,
                        element => self.skip(element, depth + 1)?,
                    }
                }
            }
            Compact::STRUCT => self.fields(|reader, _, ty| reader.skip(ty, depth + 1))?,
            ty => bail!("a structure has a field of unknown type {ty}"),
        }
        Ok(())
    }

    fn list(&mut self) -> Result<(u8, usize)> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => usize::try_from(self.varint()?).unwrap_or(usize::MAX),
            count => count.into(),
        };
        // Every element takes a byte at least, so a count beyond the bytes is cut off.
        ensure!(count <= self.bytes.len() - self.at, CutOff);
        Ok((header & 15, count))
    }

    fn i32(&mut self) -> Result<i32> {
        i32::try_from(unzigzag(self.varint()?)).context("a number is out of range")
    }

    fn binary(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        let start = self.at;
        self.advance(length)?;
        Ok(&self.bytes[start..self.at])
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        bail!("a number is longer than 64 bits")
    }

    fn byte(&mut self) -> Result<u8> {
        self.advance(1)?;
        Ok(self.bytes[self.at - 1])
    }

    fn advance(&mut self, count: usize) -> Result<()> {
        ensure!(count <= self.bytes.len() - self.at, CutOff);
        self.at += count;
        Ok(())
    }
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// type DATA_PAGE, 100 bytes uncompressed, 50 compressed, {10 values, PLAIN, RLE, RLE}.
    const DATA_PAGE: &[u8] =
        &[0x15, 0x00, 0x15, 0xC8, 0x01, 0x15, 0x64, 0x2C, 0x15, 0x14, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0];

    #[test]
    fn a_page_header_and_every_truncation_of_it() {
        let header = page_header(DATA_PAGE).unwrap();
        assert_eq!(header.header_bytes, DATA_PAGE.len());
        assert_eq!((header.uncompressed_bytes, header.compressed_bytes), (100, 50));
        let PageKind::Data { values: 10, encoding: 0, level_encoding: 3 } = header.kind else {
            panic!("another kind of page");
        };
        for length in 0..DATA_PAGE.len() {
            let error = page_header(&DATA_PAGE[..length]).err().unwrap();
            assert!(error.is::<CutOff>(), "{length}: {error}");
        }
    }

    #[test]
    fn a_structure_that_nests_without_end_is_refused_before_the_stack_is_exhausted() {
        let deep = vec![0x1C; 1 << 20];
        assert!(page_header(&deep).is_err());
        assert!(nested_column(&deep).is_err());
    }
}
