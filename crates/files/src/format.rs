//! Which format a file has: what its name says, checked against what its first bytes say.

use anyhow::{Error, Result, anyhow, bail};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The formats that are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Comma-separated text with a header row.
    Csv,
    /// Arrow IPC: the file format, or (read only) the stream format.
    Arrow,
}

impl Format {
    /// The format that a name's extension stands for.
    ///
    /// # Errors
    /// An extension of none; lists those there are.
    pub fn of(path: &Path) -> Result<Format> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_lowercase();
        Ok(match extension.as_str() {
            "parquet" | "pq" => Format::Parquet,
            "csv" => Format::Csv,
            "arrow" | "arrows" | "feather" | "ipc" => Format::Arrow,
            "" => bail!("the name has no extension; files are {KNOWN}"),
            other => bail!("`.{other}` is no known format; files are {KNOWN}"),
        })
    }

    /// This format, if the file's first bytes do not speak against it.
    ///
    /// # Errors
    /// The file is empty, or another format by its first bytes.
    pub fn checked(self, file: &File) -> Result<Format> {
        let mut head = [0; HEAD_BYTES];
        let length = read_head(file, &mut head)?;
        let head = &head[..length];
        if head.is_empty() {
            bail!("the file is empty; copy it again, or write it anew");
        }
        let found = Detected::of(head);
        match (self, found) {
            (Format::Parquet, Detected::Parquet)
            | (Format::Arrow, Detected::ArrowFile | Detected::ArrowStream)
            // A NUL is a character of text like another.
            | (Format::Csv, Detected::Text | Detected::Unknown) => Ok(self),
            (Format::Parquet, Detected::EncryptedParquet) => {
                bail!("the file is encrypted Parquet; decrypt it before loading")
            }
            _ => {
                bail!("the name says {}, the content is {}; rename the file, or convert it", self.name(), found.name())
            }
        }
    }

    /// What has no name: the format by its first bytes.
    ///
    /// # Errors
    /// There are none, or they are of no format that is read.
    pub fn of_head(head: &[u8]) -> Result<Format> {
        match Detected::of(head) {
            _ if head.is_empty() => bail!("there is nothing to read"),
            Detected::Parquet => Ok(Format::Parquet),
            Detected::ArrowFile | Detected::ArrowStream => Ok(Format::Arrow),
            Detected::Text | Detected::Unknown => Ok(Format::Csv),
            found => bail!("the content is {}; convert it to CSV, Arrow or Parquet", found.name()),
        }
    }

    /// An error of a reader of this format, with what to do. Most of what a Parquet or Arrow file
    /// is refused for is damage; causes of another kind say by themselves what helps.
    pub fn advised(self, error: Error) -> Error {
        // What stands between backquotes is the file's: a column's name may hold any character.
        let own = |text: &str| text.split('`').step_by(2).collect::<String>();
        let is_advice = |part: &str| ADVICE.iter().any(|verb| part.starts_with(verb));
        let advises = |text: &str| own(text).split("; ").skip(1).any(is_advice);
        if self == Format::Csv || error.chain().any(|cause| advises(&cause.to_string())) {
            return error;
        }
        anyhow!("{error:#}; copy the file again, or write it anew")
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Format::Parquet => "Parquet",
            Format::Csv => "CSV",
            Format::Arrow => "Arrow",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Detected {
    Parquet,
    EncryptedParquet,
    ArrowFile,
    ArrowStream,
    FeatherV1,
    Gzip,
    Zstd,
    Zip,
    Utf16,
    Text,
    Unknown,
}

impl Detected {
    fn of(head: &[u8]) -> Detected {
        match head {
            [b'P', b'A', b'R', b'1', ..] => Detected::Parquet,
            [b'P', b'A', b'R', b'E', ..] => Detected::EncryptedParquet,
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Detected::ArrowFile,
            [0xFF, 0xFF, 0xFF, 0xFF, ..] => Detected::ArrowStream,
            [b'F', b'E', b'A', b'1', ..] => Detected::FeatherV1,
            [0x1F, 0x8B, ..] => Detected::Gzip,
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Detected::Zstd,
            [b'P', b'K', 3, 4, ..] => Detected::Zip,
            [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => Detected::Utf16,
            head if head.contains(&0) => Detected::Unknown,
            _ => Detected::Text,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Detected::Parquet => "Parquet",
            Detected::EncryptedParquet => "encrypted Parquet",
            Detected::ArrowFile => "an Arrow file",
            Detected::ArrowStream => "an Arrow stream",
            Detected::FeatherV1 => "Feather version 1",
            Detected::Gzip => "compressed with gzip",
            Detected::Zstd => "compressed with zstd",
            Detected::Zip => "a ZIP archive",
            Detected::Utf16 => "text in UTF-16 (iconv -f UTF-16 -t UTF-8)",
            Detected::Text => "text, or of an unknown format",
            Detected::Unknown => "of an unknown format",
        }
    }
}

/// First bytes of a file that say its format.
pub const HEAD_BYTES: usize = 8;

/// Reads a file's first bytes.
///
/// # Errors
/// The file cannot be read.
pub fn read_head(file: &File, head: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < head.len() {
        match file.read_at(&mut head[filled..], filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// How what helps begins, behind a semicolon. Decoders write semicolons, too.
const ADVICE: [&str; 14] = [
    "convert",
    "copy",
    "decode",
    "decrypt",
    "flatten",
    "it holds only nulls: leave it out",
    "leave",
    "make it binary",
    "merge",
    "rename",
    "rewrite",
    "shorten",
    "store",
    "write",
];

const KNOWN: &str = ".parquet, .csv and .arrow";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_name_and_the_content_must_agree() {
        let cases: [(&str, &[u8], &str); 8] = [
            ("a.parquet", b"id,name\n1,x\n", "content is text"),
            ("a.csv", b"PAR1\x15\x04", "content is Parquet"),
            ("a.arrow", b"PAR1\x15\x04", "content is Parquet"),
            ("a.csv", b"\x1f\x8b\x08\x00", "compressed with gzip"),
            ("a.csv", b"", "empty"),
            ("a.csv", b"\xff\xfei\0d\0", "UTF-16"),
            ("a.json", b"{}", "no known format"),
            ("a", b"{}", "no extension"),
        ];
        for (name, content, told) in cases {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(content).unwrap();
            let checked = Format::of(Path::new(name)).and_then(|format| format.checked(&file));
            let error = checked.unwrap_err().to_string();
            assert!(error.contains(told), "{name}: {error}");
        }
    }

    #[test]
    fn a_nul_among_the_first_characters_of_a_text_is_one_of_them() {
        let text = b"id\0,name\n1,x\n";
        assert!(text[..HEAD_BYTES].contains(&0), "the first bytes decide");
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let csv = Format::of(Path::new("a.csv")).and_then(|format| format.checked(&file));
        assert_eq!(csv.unwrap(), Format::Csv);
        assert_eq!(Format::of_head(&text[..HEAD_BYTES]).unwrap(), Format::Csv);
    }

    #[test]
    fn an_error_that_says_nothing_of_what_to_do_gets_it() {
        let said = |format: Format, error: Error| format!("{:#}", format.advised(error));
        let damaged = "a page's levels reach beyond it";
        assert_eq!(
            said(Format::Parquet, anyhow!(damaged)),
            format!("{damaged}; copy the file again, or write it anew")
        );
        assert_eq!(said(Format::Csv, anyhow!(damaged)), damaged);
        let other = anyhow!("is encrypted; decrypt it").context("column `a`");
        assert_eq!(said(Format::Arrow, other), "column `a`: is encrypted; decrypt it");
        let snappy = anyhow!("corrupt input (offset 5; dst position: 1)");
        assert!(said(Format::Parquet, snappy).ends_with("write it anew"));
        let named = anyhow!(damaged).context("column `a;b`");
        assert!(said(Format::Parquet, named).ends_with("write it anew"));
    }
}
