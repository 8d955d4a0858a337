//! Looking at all of a directory, without changing it.

use overside_disk::Disk;

use crate::{Directory, Mode, Options, Refusal};

/// What a directory holds, and what is not sound in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// A line each; none if every checksum is right and nothing is missing.
    pub faults: Vec<String>,
    /// Tables of the checkpoint.
    pub tables: u64,
    /// Pages of all of them.
    pub pages: u64,
    /// Rows in those pages.
    pub rows: u64,
    /// Records of the log that the checkpoint does not have.
    pub records: u64,
    /// Bytes behind the log's end that were never acknowledged.
    pub cut_bytes: u64,
}

/// Reads all that counts in the directory, and checks every checksum in it.
///
/// # Errors
/// It is in use, no data directory, of another version, or the disk fails.
pub fn check<D: Disk>(disk: D, options: Options) -> Result<Checked, Refusal> {
    let mut checked = Checked::default();
    let mut directory = Directory::open(disk, [0; 16], options, Mode::Check)?;
    let manifest = directory.checkpoint()?;
    for table in manifest.iter().flat_map(|manifest| &manifest.tables) {
        checked.tables += 1;
        match directory.pages(table) {
            Ok(mut pages) => {
                for part in 0..pages.parts().len() {
                    let read = pages.read(part, &mut |page| {
                        checked.pages += 1;
                        checked.rows += u64::from(page.count);
                        Ok(())
                    });
                    note(read, &mut directory)?;
                }
            }
            Err(refusal) => note(Err(refusal), &mut directory)?,
        }
    }
    let replayed = directory.replay(&mut |_| Ok(()))?;
    (checked.records, checked.cut_bytes) = (replayed.records, replayed.cut_bytes);
    checked.faults = directory.losses().to_vec();
    Ok(checked)
}

/// Damage is a line; all else ends the check.
fn note<D: Disk>(read: Result<(), Refusal>, directory: &mut Directory<D>) -> Result<(), Refusal> {
    match read {
        Err(Refusal::Damage(damage)) => directory.lose(damage.to_string()),
        other => other?,
    }
    Ok(())
}
