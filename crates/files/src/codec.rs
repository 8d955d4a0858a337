//! Decompression of what files hold, bounded by what the compressed bytes can possibly yield.
//!
//! Sizes in a file are claims. A codec with a greatest possible ratio has the claim checked
//! against it before anything is allocated; the others grow their output as it is decoded and
//! stop one byte past the claim.

use anyhow::{Context, Result, bail, ensure};
use std::io::Read;

/// The codecs that can be decoded here, all in Rust (zstd's C library costs half a minute to
/// build).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Snappy's block format.
    Snappy,
    /// DEFLATE in gzip's or zlib's frame.
    Gzip,
    /// LZ4's block format (Parquet's LZ4_RAW).
    Lz4Block,
    /// LZ4's frame format (Arrow files).
    Lz4Frame,
    /// Zstandard.
    Zstd,
}

/// Decompresses `input`, which its file claims to hold `length` bytes.
///
/// # Errors
/// Not the codec's format, or not exactly `length` bytes.
pub fn decompress(codec: Codec, input: &[u8], length: usize) -> Result<Vec<u8>> {
    if length == 0 {
        return Ok(Vec::new());
    }
    if let Some(ratio) = codec.ratio_max() {
        ensure!(
            length <= input.len().saturating_mul(ratio).saturating_add(64),
            "{} compressed bytes cannot hold {length}",
            input.len()
        );
    }
    let output = match codec {
        Codec::Snappy => {
            let mut output = vec![0; length];
            ensure!(snap::raw::decompress_len(input)? == length, "the length does not match");
            snap::raw::Decoder::new().decompress(input, &mut output)?;
            output
        }
        Codec::Lz4Block => {
            let mut output = vec![0; length];
            let filled = lz4_flex::block::decompress_into(input, &mut output)?;
            output.truncate(filled);
            output
        }
        Codec::Lz4Frame => read_up_to(lz4_flex::frame::FrameDecoder::new(input), length)?,
        Codec::Gzip => read_up_to(flate2::read::MultiGzDecoder::new(input), length)?,
        Codec::Zstd => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(input)
                .map_err(|error| anyhow::anyhow!("{error}"))
                .context("no zstd frame")?;
            read_up_to(decoder, length)?
        }
    };
    if output.len() != length {
        bail!("{} bytes instead of {length} after decompression", output.len());
    }
    Ok(output)
}

impl Codec {
    /// The most bytes that one compressed byte can stand for, where the format has such a bound.
    fn ratio_max(self) -> Option<usize> {
        match self {
            Codec::Snappy => Some(64),
            Codec::Lz4Block | Codec::Lz4Frame => Some(256),
            Codec::Gzip => Some(1032),
            Codec::Zstd => None,
        }
    }
}

fn read_up_to(decoder: impl Read, length: usize) -> Result<Vec<u8>> {
    let mut output = Vec::new();
    decoder.take(length as u64 + 1).read_to_end(&mut output)?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn compressed(codec: Codec, input: &[u8]) -> Vec<u8> {
        match codec {
            Codec::Snappy => snap::raw::Encoder::new().compress_vec(input).unwrap(),
            Codec::Lz4Block => lz4_flex::block::compress(input),
            Codec::Lz4Frame => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(input).unwrap();
                encoder.finish().unwrap()
            }
            Codec::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
                encoder.write_all(input).unwrap();
                encoder.finish().unwrap()
            }
            Codec::Zstd => ruzstd::encoding::compress_to_vec(input, ruzstd::encoding::CompressionLevel::Fastest),
        }
    }

    #[test]
    fn each_codec_decodes_and_refuses_other_lengths_truncation_and_absurd_claims() {
        let input: Vec<u8> = (0..5000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for codec in [Codec::Snappy, Codec::Gzip, Codec::Lz4Block, Codec::Lz4Frame, Codec::Zstd] {
            let packed = compressed(codec, &input);
            assert_eq!(decompress(codec, &packed, input.len()).unwrap(), input, "{codec:?}");
            assert!(decompress(codec, &packed, input.len() - 1).is_err(), "{codec:?}");
            assert!(decompress(codec, &packed, input.len() + 1).is_err(), "{codec:?}");
            assert!(decompress(codec, &packed, 1 << 40).is_err(), "{codec:?}");
            assert!(decompress(codec, &packed[..packed.len() / 2], input.len()).is_err());
            assert!(decompress(codec, b"not compressed at all", 100).is_err(), "{codec:?}");
        }
    }
}
