//! A file that appears under its name complete, or not at all.

use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

/// A file written under a temporary name in the folder of its final one.
pub struct Output {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    published: bool,
}

impl Output {
    /// Begins a file that is to be called `path`.
    ///
    /// # Errors
    /// `path` is a folder, or its folder cannot be written.
    pub fn create(path: &Path) -> Result<Output> {
        if path.is_dir() {
            bail!("is a folder; name a file");
        }
        let name = path.file_name().context("names no file")?.to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .with_context(|| format!("cannot create {}", temporary.display()))?;
        Ok(Output { file, temporary, path: path.to_path_buf(), published: false })
    }

    /// The file to write to, through a handle of its own.
    ///
    /// # Errors
    /// The process has no more file descriptors.
    pub fn file(&self) -> Result<File> {
        Ok(self.file.try_clone()?)
    }

    /// Gives the file its name, replacing one that was there. Returns its length in bytes.
    ///
    /// # Errors
    /// The device fails; the temporary file is removed then.
    pub fn publish(mut self) -> Result<u64> {
        self.file.sync_data()?;
        let length = self.file.metadata()?.len();
        fs::rename(&self.temporary, &self.path)?;
        self.published = true;
        Ok(length)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_name_appears_with_the_whole_content_or_nothing_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.csv");
        let entries = || fs::read_dir(folder.path()).unwrap().count();

        let output = Output::create(&path).unwrap();
        output.file().unwrap().write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(output);
        assert_eq!(entries(), 0);

        let output = Output::create(&path).unwrap();
        output.file().unwrap().write_all(b"whole").unwrap();
        assert_eq!(output.publish().unwrap(), 5);
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(entries(), 1);

        assert!(Output::create(folder.path()).is_err());
        assert!(Output::create(&folder.path().join("no/such/folder.csv")).is_err());
    }
}
