//! Whether the page can be written, asked before minutes are spent on what it is to say.

use anyhow::{Context, Result};
use std::{
    fs::{self, OpenOptions},
    path::Path,
};

/// An error if no file can be written there. Nothing is left that was not there before, and what was there stays as it is.
pub fn writable(page: &Path) -> Result<()> {
    let new = !page.exists();
    OpenOptions::new().append(true).create(true).open(page).with_context(|| refused(page))?;
    if new {
        fs::remove_file(page).with_context(|| refused(page))?;
    }
    Ok(())
}

/// Writes the page.
pub fn write(page: &Path, html: &str) -> Result<()> {
    fs::write(page, html).with_context(|| refused(page))
}

fn refused(page: &Path) -> String {
    format!("{} could not be written; choose another --report", page.display())
}

#[cfg(test)]
mod tests {
    use super::*;

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
