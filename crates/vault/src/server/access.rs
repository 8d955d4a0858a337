//! Who may attach which volume: keys, by names.

use std::path::{Path, PathBuf};

use overside_verbs::handshake::Key;
use overside_volume::wire::Proof;

/// Keys of volumes. A volume without one cannot be attached over a connection.
#[derive(Clone, Debug, Default)]
pub struct Access(Vec<Entry>);

#[derive(Clone, Debug)]
struct Entry {
    volume: String,
    writes: bool,
    key: Key,
}

/// A line that says nothing of access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {0} is not `VOLUME ro|rw KEYFILE`")]
pub struct BadAccess(usize);

impl Access {
    /// What the lines of a file say: volumes, whether their holders may write, and files of
    /// keys. Empty lines and lines that begin with `#` are passed over. A path that is not
    /// absolute begins at `folder`.
    ///
    /// # Errors
    /// The first line that is neither.
    pub fn lines(text: &str, folder: &Path) -> Result<Vec<(String, bool, PathBuf)>, BadAccess> {
        let said = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        let lines = text.lines().enumerate().filter(|(_, line)| said(line));
        lines
            .map(|(number, line)| {
                let bad = || BadAccess(number + 1);
                let (volume, rest) = line.trim().split_once(char::is_whitespace).ok_or_else(bad)?;
                let (may, file) = rest.trim_start().split_once(char::is_whitespace).ok_or_else(bad)?;
                let writes = match may {
                    "rw" => true,
                    "ro" => false,
                    _ => return Err(bad()),
                };
                Ok((volume.to_owned(), writes, folder.join(file.trim_start())))
            })
            .collect()
    }

    /// The holder of a key may attach a volume.
    pub fn allow(&mut self, volume: &str, writes: bool, key: Key) {
        self.0.push(Entry { volume: volume.to_owned(), writes, key });
    }

    /// Whether the proof is of a key of the volume, for a message and what the node said to it,
    /// and then whether its holder may write. As many keys are tried for a volume that there is
    /// as for one that there is not.
    pub(super) fn permits(&self, volume: &str, (message, asked): (&[u8], &[u8]), proof: &Proof) -> Option<bool> {
        let tried = self.0.iter().map(|entry| (entry, proof.is_of(&entry.key, message, asked)));
        let tried: Vec<_> = tried.filter(|(entry, holds)| *holds && entry.volume == volume).collect();
        tried.iter().map(|(entry, _)| entry.writes).max()
    }
}

/// Files of access.
#[doc(hidden)]
pub fn seeds_access() -> Vec<Vec<u8>> {
    let texts = ["# who\n\n pg  rw  pg.key\nold ro /keys/with space\n", "pg\trw\tkey\r\npg ro other", ""];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// Reads a file of access. What it says must be said again by the lines that are made of it.
/// Whether it says anything sound.
#[doc(hidden)]
pub fn fuzz_access(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let Ok(found) = Access::lines(&text, Path::new("/keys")) else { return false };
    assert!(found.len() <= text.lines().count(), "a line is one entry");
    for (volume, writes, file) in &found {
        assert!(!volume.is_empty() && !volume.contains(char::is_whitespace), "{volume:?}");
        let line = format!("{volume} {} {}", if *writes { "rw" } else { "ro" }, file.display());
        let again = Access::lines(&line, Path::new("/elsewhere")).map(|mut lines| lines.pop());
        assert_eq!(again, Ok(Some((volume.clone(), *writes, file.clone()))), "{line:?}");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_access_or_refused() {
        let folder = Path::new("/etc/overside");
        let read = |text| Access::lines(text, folder);
        let found = read("# who\n\n pg  rw  pg.key\nold ro /keys/with space\n").unwrap();
        let expected = [("pg", true, "/etc/overside/pg.key"), ("old", false, "/keys/with space")];
        assert_eq!(found, expected.map(|(name, writes, path)| (name.to_owned(), writes, path.into())));
        for (text, line) in [("pg rw", 1), ("pg", 1), ("\npg wo key", 2), ("pg RW key", 1)] {
            assert_eq!(read(text), Err(BadAccess(line)), "{text}");
        }
    }
}
