//! Pages of a column chunk: read, decompressed, and checked before the decoders see them.
//!
//! The decoders of the `parquet` crate allocate what a page's counts ask for; a failed
//! allocation aborts the process, so no panic handler helps. What they allocate from is
//! bounded here: page sizes by the file, dictionaries by their bytes, delta lengths by the
//! page's number of values.

use super::super::codec::{Codec, decompress};
use super::delta;
use super::thrift::{CutOff, PageHeader, PageKind, page_header};
use anyhow::{Context, Result, bail, ensure};
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The pages of one column chunk.
pub struct Pages {
    file: Arc<File>,
    next: u64,
    end: u64,
    values_left: u64,
    codec: Option<Codec>,
    /// Least bytes that a dictionary's entry takes, in PLAIN encoding.
    entry_bytes: usize,
    nullable: bool,
    bytes_done: Arc<AtomicU64>,
}

impl Pages {
    /// The pages of `chunk`, which lies within the file's first `file_bytes`.
    ///
    /// # Errors
    /// The chunk lies elsewhere, or is compressed by a codec that is not built in.
    pub fn new(
        file: Arc<File>,
        file_bytes: u64,
        chunk: &ColumnChunkMetaData,
        bytes_done: Arc<AtomicU64>,
    ) -> Result<Pages> {
        ensure!(chunk.file_path().is_none(), "a column lies in another file; merge the files");
        let data = chunk.data_page_offset();
        let start = match chunk.dictionary_page_offset() {
            // Some writers state 0 where there is no dictionary.
            Some(dictionary) if dictionary > 0 && dictionary < data => dictionary,
            _ => data,
        };
        let range = u64::try_from(start).ok().zip(u64::try_from(chunk.compressed_size()).ok());
        let (next, end) = range
            .and_then(|(start, bytes)| Some((start, start.checked_add(bytes)?)))
            .filter(|(_, end)| *end <= file_bytes)
            .context("a column's pages lie outside of the file; it is damaged or cut off")?;
        let descriptor = chunk.column_descr();
        let entry_bytes = match descriptor.physical_type() {
            Type::BOOLEAN => 1,
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(descriptor.type_length()).unwrap_or(0),
        };
        ensure!(entry_bytes > 0, "a column's values have no length");
        Ok(Pages {
            file,
            next,
            end,
            values_left: u64::try_from(chunk.num_values()).unwrap_or(0),
            codec: codec(chunk.compression())?,
            entry_bytes,
            nullable: descriptor.max_def_level() > 0,
            bytes_done,
        })
    }

    fn next_page(&mut self) -> Result<Option<Page>> {
        loop {
            if self.next >= self.end || self.values_left == 0 {
                return Ok(None);
            }
            let header = self.header()?;
            let bytes = self.read(header.compressed_bytes)?;
            if let Some(page) = self.page(&header, bytes)? {
                return Ok(Some(page));
            }
        }
    }

    /// Reads the header at `next` and moves past it; doubles what it reads until the header is whole.
    fn header(&mut self) -> Result<PageHeader> {
        let left = self.end - self.next;
        let mut length = left.min(HEADER_BYTES);
        loop {
            let mut bytes = vec![0; length as usize];
            self.file.read_exact_at(&mut bytes, self.next)?;
            match page_header(&bytes) {
                Ok(header) => {
                    self.advance(header.header_bytes as u64);
                    let fits = header.compressed_bytes as u64 <= self.end - self.next;
                    ensure!(fits, "a page reaches beyond its column; the file is damaged");
                    // A few bytes of a page that repeats itself unpack into gigabytes, for every column at once.
                    let most = header.uncompressed_bytes.max(header.compressed_bytes);
                    ensure!(
                        most <= PAGE_BYTES_MAX,
                        "a page unpacks into {most} bytes, more than the {} MiB that are taken; rewrite the file with smaller \
                         pages",
                        PAGE_BYTES_MAX >> 20
                    );
                    return Ok(header);
                }
                Err(error) if error.is::<CutOff>() && length < left.min(HEADER_BYTES_MAX) => {
                    length = (length * 2).min(left);
                }
                Err(error) => return Err(error.context("a page's header is damaged")),
            }
        }
    }

    fn read(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, self.next)?;
        self.advance(length as u64);
        Ok(bytes)
    }

    fn advance(&mut self, bytes: u64) {
        self.next += bytes;
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn page(&mut self, header: &PageHeader, bytes: Vec<u8>) -> Result<Option<Page>> {
        let length = header.uncompressed_bytes;
        Ok(Some(match header.kind {
            PageKind::Index => return Ok(None),
            PageKind::Dictionary { values, encoding } => {
                let buf = self.unpacked(bytes, 0, length)?;
                let holds = buf.len() / self.entry_bytes;
                ensure!(values as usize <= holds, "a dictionary claims {values} entries");
                Page::DictionaryPage {
                    buf: buf.into(),
                    num_values: values,
                    encoding: known_encoding(encoding)?,
                    is_sorted: false,
                }
            }
            PageKind::Data { values, encoding, level_encoding } => {
                let buf = self.unpacked(bytes, 0, length)?;
                let levels = match self.nullable {
                    true => v1_level_bytes(&buf, level_encoding)?,
                    false => 0,
                };
                let encoding = known_encoding(encoding)?;
                self.check(values, encoding, &buf[levels..])?;
                Page::DataPage {
                    buf: buf.into(),
                    num_values: values,
                    encoding,
                    def_level_encoding: Encoding::RLE,
                    rep_level_encoding: Encoding::RLE,
                    statistics: None,
                }
            }
            PageKind::DataV2 { values, nulls, rows, encoding, definition_bytes, repetition_bytes, compressed } => {
                let levels = definition_bytes as usize + repetition_bytes as usize;
                let buf = match compressed {
                    true => self.unpacked(bytes, levels, length)?,
                    false => bytes,
                };
                ensure!(levels <= buf.len(), "a page's levels reach beyond it");
                ensure!(nulls <= values && rows == values, "a page's counts contradict each other");
                let encoding = known_encoding(encoding)?;
                self.check(values, encoding, &buf[levels..])?;
                Page::DataPageV2 {
                    buf: buf.into(),
                    num_values: values,
                    encoding,
                    num_nulls: nulls,
                    num_rows: rows,
                    def_levels_byte_len: definition_bytes,
                    rep_levels_byte_len: repetition_bytes,
                    is_compressed: compressed,
                    statistics: None,
                }
            }
        }))
    }

    /// The page with all after its first `plain` bytes decompressed.
    fn unpacked(&self, bytes: Vec<u8>, plain: usize, length: usize) -> Result<Vec<u8>> {
        let Some(codec) = self.codec else {
            return Ok(bytes);
        };
        ensure!(plain <= bytes.len() && plain <= length, "a page's levels reach beyond it");
        let (levels, packed) = bytes.split_at(plain);
        let values = decompress(codec, packed, length - plain).context("a page is damaged")?;
        if plain == 0 {
            return Ok(values);
        }
        Ok([levels, &values].concat())
    }

    fn check(&mut self, values: u32, encoding: Encoding, encoded: &[u8]) -> Result<()> {
        self.values_left =
            self.values_left.checked_sub(values.into()).context("a page has more values than its column")?;
        match encoding {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => delta::check(encoded, values, 1),
            Encoding::DELTA_BYTE_ARRAY => delta::check(encoded, values, 2),
            _ => Ok(()),
        }
    }
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        self.next_page().map_err(|error| ParquetError::General(format!("{error:#}")))
    }

    // Whole columns are read from the start, so nothing is looked ahead or passed over.
    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        Err(ParquetError::NYI("pages are read in order".into()))
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.get_next_page().map(|_| ())
    }
}

/// Bytes of a version 1 page's definition levels, their length field included.
fn v1_level_bytes(page: &[u8], encoding: i32) -> Result<usize> {
    ensure!(encoding == 3, "levels are packed the old way (BIT_PACKED); rewrite the file");
    let length = page.first_chunk::<4>().context("a page is shorter than its levels")?;
    let end = (u32::from_le_bytes(*length) as usize).saturating_add(4);
    ensure!(end <= page.len(), "a page's levels reach beyond it");
    Ok(end)
}

fn codec(compression: Compression) -> Result<Option<Codec>> {
    Ok(Some(match compression {
        Compression::UNCOMPRESSED => return Ok(None),
        Compression::SNAPPY => Codec::Snappy,
        Compression::GZIP(_) => Codec::Gzip,
        Compression::LZ4_RAW => Codec::Lz4Block,
        Compression::ZSTD(_) => Codec::Zstd,
        Compression::BROTLI(_) | Compression::LZO | Compression::LZ4 => {
            let name = match compression {
                Compression::BROTLI(_) => "Brotli",
                Compression::LZO => "LZO",
                _ => "LZ4 in Hadoop's framing",
            };
            bail!("is compressed with {name}, which is not built in; rewrite it with snappy or zstd")
        }
    }))
}

fn known_encoding(number: i32) -> Result<Encoding> {
    Ok(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        other => bail!("a page has the unknown encoding {other}; rewrite the file"),
    })
}

/// A page header is tens of bytes, more with statistics of long strings.
const HEADER_BYTES: u64 = 4 << 10;
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// Writers make pages of a MiB; one that holds a single long value is as long as that.
const PAGE_BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::basic::Repetition;
    use parquet::schema::types::{ColumnDescriptor, ColumnPath, Type as SchemaType};
    use std::io::Write;

    /// The pages of an optional BYTE_ARRAY column of 3 values that consists of `bytes`.
    fn pages(bytes: &[u8], compression: Compression) -> Pages {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        let ty = SchemaType::primitive_type_builder("c", Type::BYTE_ARRAY)
            .with_repetition(Repetition::OPTIONAL)
            .build()
            .unwrap();
        let path = ColumnPath::new(vec!["c".into()]);
        let descriptor = Arc::new(ColumnDescriptor::new(Arc::new(ty), 1, 0, path));
        let chunk = ColumnChunkMetaData::builder(descriptor)
            .set_compression(compression)
            .set_num_values(3)
            .set_total_compressed_size(bytes.len() as i64)
            .build()
            .unwrap();
        let length = bytes.len() as u64;
        Pages::new(Arc::new(file), length, &chunk, Arc::new(AtomicU64::new(0))).unwrap()
    }

    fn zigzag(number: i64) -> Vec<u8> {
        let (mut rest, mut bytes) = ((number << 1 ^ number >> 63) as u64, Vec::new());
        while rest > 127 {
            bytes.push(rest as u8 | 128);
            rest >>= 7;
        }
        bytes.push(rest as u8);
        bytes
    }

    /// A page's header: its type, its sizes, and the fields of its kind's structure in `slot`.
    fn header(kind: i64, sizes: (i64, i64), slot: u8, fields: &[i64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [kind, sizes.0, sizes.1] {
            bytes.push(0x15);
            bytes.extend(zigzag(number));
        }
        bytes.push((slot - 3) << 4 | 12);
        for number in fields {
            bytes.push(0x15);
            bytes.extend(zigzag(*number));
        }
        bytes.extend([0, 0]);
        bytes
    }

    fn told(header: Vec<u8>, page: &[u8], compression: Compression) -> String {
        let error = pages(&[&header[..], page].concat(), compression).next_page();
        format!("{:#}", error.unwrap_err())
    }

    #[test]
    fn what_a_header_claims_is_checked_before_a_decoder_allocates_it() {
        let plain = Compression::UNCOMPRESSED;
        let two_levels = [2, 0, 0, 0, 6, 1];
        let cases: [(Vec<u8>, &[u8], &str); 6] = [
            (header(2, (8, 8), 7, &[1 << 30, 0]), &[0; 8], "claims 1073741824 entries"),
            (header(0, (6, 6), 5, &[4, 0, 3, 3]), &two_levels, "more values than its column"),
            (header(0, (6, 6), 5, &[3, 0, 4, 3]), &two_levels, "BIT_PACKED"),
            (header(0, (6, 6), 5, &[3, 0, 3, 3]), &[9, 0, 0, 0, 6, 1], "levels reach beyond"),
            (header(0, (6, 7), 5, &[3, 0, 3, 3]), &two_levels, "reaches beyond its column"),
            (header(0, (-1, 6), 5, &[3, 0, 3, 3]), &two_levels, "negative size"),
        ];
        for (header, page, expected) in cases {
            let told = told(header, page, plain);
            assert!(told.contains(expected), "{told}");
        }
        let huge = header(0, (1 << 28, 6), 5, &[3, 0, 3, 3]);
        let refused = told(huge, &two_levels, Compression::SNAPPY);
        assert!(refused.contains("cannot hold 268435456"), "{refused}");
        // What a codec without a greatest ratio could hold all the same.
        let bomb = header(0, ((1 << 28) + 1, 6), 5, &[3, 0, 3, 3]);
        let refused = told(bomb, &two_levels, Compression::ZSTD(Default::default()));
        assert!(refused.contains("more than the 256 MiB"), "{refused}");
    }

    #[test]
    fn lengths_by_delta_may_not_claim_more_than_the_page_has_values() {
        let lengths = [0x80, 0x01, 4, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0];
        let page = [&[2, 0, 0, 0, 6, 1][..], &lengths].concat();
        let header = header(0, (page.len() as i64, page.len() as i64), 5, &[3, 6, 3, 3]);
        let told = told(header, &page, Compression::UNCOMPRESSED);
        assert!(told.contains("4294967295 lengths for 3 values"), "{told}");
    }
}
