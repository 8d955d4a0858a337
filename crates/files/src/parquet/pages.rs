//! Pages of a column chunk: read, decompressed, and checked before the decoders see them.
//!
//! The decoders of the `parquet` crate allocate what a page's counts ask for; a failed
//! allocation aborts the process, so no panic handler helps. What they allocate from is
//! bounded here: page sizes by the file, dictionaries by their bytes, delta lengths by the
//! page's number of values. And all of it is charged to the file's budget before it is spent.

use super::super::budget::{Budget, Charge};
use super::super::codec::{Codec, decompress};
use super::delta;
use super::flow::Flow;
use super::thrift::{CutOff, PageHeader, PageKind, page_header};
use anyhow::{Context, Result, bail, ensure};
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::data_type::ByteArray;
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
    /// Bytes that it takes when it is decoded.
    decoded_bytes: u64,
    nullable: bool,
    bytes_done: Arc<AtomicU64>,
    budget: Budget,
    flow: Arc<Flow>,
    /// A page that the decoder could not take yet.
    ready: Option<Page>,
    /// What the decoder makes of the dictionary.
    dictionary: Option<Charge>,
    /// What the decoder makes of a page's lengths.
    lengths: Option<Charge>,
}

impl Pages {
    /// The pages of `chunk`, which lies within the file's first `file_bytes`. What they hold is
    /// charged to `budget`.
    ///
    /// # Errors
    /// The chunk lies elsewhere, or is compressed by a codec that is not built in.
    pub fn new(
        file: Arc<File>,
        file_bytes: u64,
        chunk: &ColumnChunkMetaData,
        bytes_done: Arc<AtomicU64>,
        budget: Budget,
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
            .context("a column's pages lie outside of the file, which is damaged or cut off; copy it again, or write it anew")?;
        let descriptor = chunk.column_descr();
        let array_bytes = std::mem::size_of::<ByteArray>();
        let (entry_bytes, decoded_bytes) = match descriptor.physical_type() {
            Type::BOOLEAN => (1, 1),
            Type::INT32 | Type::FLOAT => (4, 4),
            Type::INT64 | Type::DOUBLE => (8, 8),
            Type::INT96 => (12, 12),
            Type::BYTE_ARRAY => (4, array_bytes),
            Type::FIXED_LEN_BYTE_ARRAY => (usize::try_from(descriptor.type_length()).unwrap_or(0), array_bytes),
        };
        ensure!(entry_bytes > 0, "a column's values have no length");
        Ok(Pages {
            file,
            next,
            end,
            values_left: u64::try_from(chunk.num_values()).unwrap_or(0),
            codec: codec(chunk.compression())?,
            entry_bytes,
            decoded_bytes: decoded_bytes as u64,
            nullable: descriptor.max_def_level() > 0,
            bytes_done,
            budget,
            flow: Arc::default(),
            ready: None,
            dictionary: None,
            lengths: None,
        })
    }

    /// What the column's reader is to be told by, and tells.
    pub fn flow(&self) -> Arc<Flow> {
        self.flow.clone()
    }

    /// The next page; none at the column's end, or where the flow stops.
    fn next_page(&mut self) -> Result<Option<Page>> {
        if self.ready.is_none() && self.flow.admits_a_page() {
            self.ready = self.read_page()?;
        }
        let admitted = self.ready.as_ref().is_some_and(|page| self.flow.admits_values(copy_bytes(page)));
        Ok(if admitted { self.ready.take() } else { None })
    }

    fn read_page(&mut self) -> Result<Option<Page>> {
        loop {
            if self.next >= self.end || self.values_left == 0 {
                return Ok(None);
            }
            let header = self.header()?;
            let charge = self.budget.charge(header.uncompressed_bytes.max(header.compressed_bytes) as u64)?;
            let bytes = self.read(header.compressed_bytes)?;
            if let Some(page) = self.page(&header, bytes, charge)? {
                return Ok(Some(page));
            }
        }
    }

    /// Reads the header at `next` and moves past it; doubles what it reads until the header is
    /// whole.
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
                    ensure!(
                        fits,
                        "a page reaches beyond its column: the file is damaged; copy it again, or write it anew"
                    );
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
                Err(error) => {
                    return Err(error.context("a page's header is damaged; copy the file again, or write it anew"));
                }
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

    fn page(&mut self, header: &PageHeader, bytes: Vec<u8>, charge: Charge) -> Result<Option<Page>> {
        let length = header.uncompressed_bytes;
        Ok(Some(match header.kind {
            PageKind::Index => return Ok(None),
            PageKind::Dictionary { values, encoding } => {
                let buf = self.unpacked(bytes, 0, length)?;
                let holds = buf.len() / self.entry_bytes;
                ensure!(values as usize <= holds, "a dictionary claims {values} entries");
                ensure!(self.dictionary.is_none(), "a column has two dictionaries: the file is damaged; write it anew");
                self.dictionary = Some(self.budget.charge(u64::from(values) * self.decoded_bytes)?);
                Page::DictionaryPage {
                    buf: Arc::<Flow>::default().page(buf, charge),
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
                    buf: self.flow.page(buf, charge),
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
                    buf: self.flow.page(buf, charge),
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
        let values = decompress(codec, packed, length - plain)
            .context("a page is damaged; copy the file again, or write it anew")?;
        if plain == 0 {
            return Ok(values);
        }
        Ok([levels, &values].concat())
    }

    fn check(&mut self, values: u32, encoding: Encoding, encoded: &[u8]) -> Result<()> {
        self.values_left =
            self.values_left.checked_sub(values.into()).context("a page has more values than its column")?;
        let sequences = match encoding {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => 0,
        };
        // The decoder keeps its lengths until it gets a page of its kind again.
        if sequences > 0 {
            self.lengths = None;
            self.lengths = Some(self.budget.charge(u64::from(values) * sequences * LENGTH_BYTES)?);
        }
        delta::check(encoded, values, sequences)
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

/// Bytes that a value of the page may be copied into. Only one encoding copies: each value is what
/// it shares with the one before, and more, so it may be as long as the page.
fn copy_bytes(page: &Page) -> u64 {
    match page {
        Page::DataPage { buf, encoding: Encoding::DELTA_BYTE_ARRAY, .. }
        | Page::DataPageV2 { buf, encoding: Encoding::DELTA_BYTE_ARRAY, .. } => buf.len() as u64,
        _ => 0,
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
/// The decoders' numbers for a length.
const LENGTH_BYTES: u64 = 4;
/// Writers make pages of a MiB; one that holds a single long value is as long as that.
const PAGE_BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::basic::Repetition;
    use parquet::schema::types::{ColumnDescriptor, ColumnPath, Type as SchemaType};
    use std::io::Write;

    /// The pages of an optional BYTE_ARRAY column of so many values that consists of `bytes`.
    fn pages(bytes: &[u8], compression: Compression, values: i64) -> Pages {
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
            .set_num_values(values)
            .set_total_compressed_size(bytes.len() as i64)
            .build()
            .unwrap();
        let length = bytes.len() as u64;
        Pages::new(Arc::new(file), length, &chunk, Arc::new(AtomicU64::new(0)), Budget::of_file(length)).unwrap()
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
        told_of(3, header, page, compression)
    }

    fn told_of(values: i64, header: Vec<u8>, page: &[u8], compression: Compression) -> String {
        let mut pages = pages(&[&header[..], page].concat(), compression, values);
        pages.flow().ask(3, u64::MAX, u64::MAX);
        let error = pages.next_page();
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
    fn what_a_decoder_makes_of_a_page_is_charged_before_it_is_made() {
        // Entries of no bytes: 4 in the page, the length, and 32 when decoded.
        let entries = 8 << 20;
        let empty = vec![0; 4 * entries as usize];
        let packed = ruzstd::encoding::compress_to_vec(&empty[..], ruzstd::encoding::CompressionLevel::Fastest);
        let dictionary = header(2, (empty.len() as i64, packed.len() as i64), 7, &[entries, 0]);
        let refused = told(dictionary, &packed, Compression::ZSTD(Default::default()));
        assert!(refused.contains("at once"), "{refused}");
        // A hundred million lengths of 0: differences of no bits.
        let lengths = [0x80, 0x80, 0x80, 0x80, 0x08, 1, 0x80, 0xC2, 0xD7, 0x2F, 0, 0, 0];
        let page = [&[2, 0, 0, 0, 6, 1][..], &lengths].concat();
        let many = header(0, (page.len() as i64, page.len() as i64), 5, &[100_000_000, 6, 3, 3]);
        let refused = told_of(1 << 30, many, &page, Compression::UNCOMPRESSED);
        assert!(refused.contains("at once"), "{refused}");
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
