//! Where the page is written; whether it can be is asked before minutes are
//! spent on what it is to say.

use anyhow::{Context, Result};
use overside_disk::AtomicFile;
use std::{io::Write, path::Path};

/// An error if no file can be written there. Nothing is left that was not there before, and what
/// was there stays as it is.
pub fn writable(page: &Path) -> Result<()> {
    AtomicFile::create(page).map(drop).with_context(|| refused(page))
}

/// Writes the page, whole or not at all: a page that was there stays until then.
pub fn write(page: &Path, html: &str) -> Result<()> {
    let write = || {
        let file = AtomicFile::create(page)?;
        file.file().write_all(html.as_bytes())?;
        file.publish()
    };
    write().map(drop).with_context(|| refused(page))
}

fn refused(page: &Path) -> String {
    format!("{} could not be written; choose another --report", page.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_there_stays_and_nothing_else_is_left() {
        let folder = std::env::temp_dir().join(format!("overside-report-place-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (new, old) = (folder.join("new.html"), folder.join("old.html"));
        fs::write(&old, "kept").unwrap();
        writable(&new).unwrap();
        writable(&old).unwrap();
        assert!(!new.exists() && fs::read_to_string(&old).unwrap() == "kept");
        let error = writable(&folder.join("nowhere/page.html")).unwrap_err();
        assert!(error.to_string().contains("choose another --report"), "{error}");
        assert!(writable(&folder).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
