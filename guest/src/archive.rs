//! A cpio archive of the kind that the kernel unpacks into its first file system.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

/// Files by their path in the guest, without a leading slash.
#[derive(Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    mode: u32,
    content: Vec<u8>,
}

impl Archive {
    /// An empty folder, and those above it.
    pub fn folder(&mut self, path: &str) {
        self.above(path);
        self.entries.entry(path.to_owned()).or_insert(Entry { mode: 0o040_755, content: Vec::new() });
    }

    /// A file.
    pub fn file(&mut self, path: &str, executable: bool, content: impl Into<Vec<u8>>) {
        self.above(path);
        let mode = if executable { 0o100_755 } else { 0o100_644 };
        self.entries.insert(path.to_owned(), Entry { mode, content: content.into() });
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, to: &str) {
        self.above(path);
        self.entries.insert(path.to_owned(), Entry { mode: 0o120_777, content: to.as_bytes().to_vec() });
    }

    /// A file of this host; what it links to, where it is a link.
    pub fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        let content = std::fs::read(from).with_context(|| format!("{} cannot be read", from.display()))?;
        self.file(path, true, content);
        Ok(())
    }

    /// Whether something is there.
    pub fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path)
    }

    /// The archive's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, (path, entry)) in self.entries.iter().enumerate() {
            write(&mut out, number + 1, path, entry.mode, &entry.content);
        }
        write(&mut out, 0, "TRAILER!!!", 0, &[]);
        out
    }

    fn above(&mut self, path: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
    }
}

fn write(out: &mut Vec<u8>, number: usize, path: &str, mode: u32, content: &[u8]) {
    let links = 1;
    let fields = [number, mode as usize, 0, 0, links, 0, content.len(), 0, 0, 0, 0, path.len() + 1, 0];
    out.extend(b"070701");
    fields.iter().for_each(|field| out.extend(format!("{field:08x}").bytes()));
    out.extend(path.bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(content);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them_and_all_is_aligned() {
        let mut archive = Archive::default();
        archive.file("a/b/c", true, *b"xyz");
        archive.link("a/l", "b/c");
        let paths: Vec<&String> = archive.entries.keys().collect();
        assert_eq!(paths, ["a", "a/b", "a/b/c", "a/l"]);
        let bytes = archive.bytes();
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.starts_with(b"07070100000001000041ed"));
        let at = bytes.windows(6).position(|w| w == b"a/b/c\0").unwrap();
        assert_eq!(&bytes[at + 6..at + 9], b"xyz", "110 bytes of head and 6 of name are a multiple of 4");
        assert!(bytes.windows(11).any(|w| w == b"TRAILER!!!\0"));
    }
}
