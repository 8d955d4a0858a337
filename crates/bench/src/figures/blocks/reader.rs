//! A program that reads a file by `pread`: a process of its own, so that the same program reads
//! whatever it is told of, under whatever it is run by.

use super::{
    cached::BYTES,
    load::{LoadSpec, STEP_BYTES, Stretch, known},
};
use crate::{
    measure::{Cpu, elapsed_ns, now_ns},
    process::{Process, child_socket, read_word, write_words},
};
use anyhow::{Context, Result, ensure};
use overside::memory::{Buffer, Segment};
use overside_evidence::SplitMix64;
use rustix::fs::OFlags;
use std::{
    fs::File,
    hint::black_box,
    os::unix::{
        fs::{FileExt, OpenOptionsExt},
        net::UnixStream,
    },
    path::Path,
    time::Duration,
};

/// How it finds its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is there, with what every block is known by.
    There,
    /// It makes it.
    Makes,
    /// It makes it, and reads it past the page cache.
    MakesDirect,
}

const ALL: [(Found, &str); 3] =
    [(Found::There, "there"), (Found::Makes, "makes"), (Found::MakesDirect, "makes-direct")];

/// The program, as who measures sees it.
pub(super) struct Reader {
    process: Option<Process>,
    /// It ends when this is closed.
    line: Option<UnixStream>,
}

impl Reader {
    /// Runs it by a command that is given the program's words behind its own, and has
    /// checked all of the file.
    pub(super) fn start(by: &[&str], found: Found, file: &Path) -> Result<Reader> {
        let file = file.to_str().context("the name of the folder for scratch files is no text; choose another")?;
        let found = ALL.iter().find(|(one, _)| *one == found).map_or("", |(_, name)| name);
        let (process, mut line) =
            Process::start_by(by, &[], "reader of a file", super::ROLE, &[super::READ, found, file], None)?;
        line.set_read_timeout(Some(PATIENCE))?;
        read_word(&mut line).context("the reader of a file ended; its last words are above")?;
        Ok(Reader { process: Some(process), line: Some(line) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// Reads at random places for so long.
    pub(super) fn reads(&mut self, load: LoadSpec, ns: u64, seed: u64) -> Result<Stretch> {
        ensure!(load.depth == 1, "a file is read by one call at a time");
        let line = self.line.as_mut().context("the reader of a file has ended")?;
        write_words(line, &[load.bytes as u64, ns, seed])?;
        let mut word = || read_word(line).context("the reader of a file ended; its last words are above");
        let (wall_ns, client_ns, count) = (word()?, word()?, word()?);
        let times = (0..count).map(|_| word()).collect::<Result<Vec<_>>>()?;
        let bytes = count * load.bytes as u64;
        Ok(Stretch { times, bytes, wall_ns, client_ns, ..Stretch::default() })
    }
}

impl Drop for Reader {
    /// What it has mounted goes with it, and a session that it has is ended by itself.
    fn drop(&mut self) {
        self.line = None;
        if let Some(process) = self.process.take() {
            process.end(PATIENCE);
        }
    }
}

/// The program itself.
pub(super) fn serve(found: &str, path: &str) -> Result<()> {
    let (found, _) = ALL.into_iter().find(|(_, name)| *name == found).context("a way to a file that is none")?;
    if found != Found::There {
        make(path)?;
    }
    let mut options = File::options();
    options.read(true);
    if found == Found::MakesDirect {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    let file = options.open(path).with_context(|| path.to_owned())?;
    check(&file)?;
    let mut line = child_socket()?;
    write_words(&mut line, &[1])?;
    while let Ok(bytes) = read_word(&mut line) {
        let (ns, seed) = (read_word(&mut line)?, read_word(&mut line)?);
        let done = reads(&file, bytes as usize, ns, seed)?;
        write_words(&mut line, &[done.wall_ns, done.client_ns, done.times.len() as u64])?;
        write_words(&mut line, &done.times)?;
    }
    Ok(())
}

fn reads(file: &File, bytes: usize, ns: u64, seed: u64) -> Result<Stretch> {
    let (mut into, mut random, mut done) = (aligned(bytes)?, SplitMix64(seed), Stretch::default());
    let (cpu, start) = (Cpu::own(), now_ns());
    while elapsed_ns(start) < ns {
        let at = random.below(BYTES / bytes as u64) * bytes as u64;
        let begun = now_ns();
        file.read_exact_at(black_box(&mut into), at)?;
        done.times.push(elapsed_ns(begun));
    }
    (done.wall_ns, done.client_ns) = (elapsed_ns(start), Cpu::own() - cpu);
    Ok(done)
}

/// Writes what every block is known by.
fn make(path: &str) -> Result<()> {
    let file = File::options().read(true).write(true).create_new(true).open(path).with_context(|| path.to_owned())?;
    let mut block = vec![0; STEP_BYTES];
    for at in (0..BYTES).step_by(STEP_BYTES) {
        known(at, &mut block);
        file.write_all_at(&block, at)?;
    }
    Ok(file.sync_all()?)
}

/// Reads all of a file, and holds it against that.
fn check(file: &File) -> Result<()> {
    let (mut found, mut wanted) = (aligned(STEP_BYTES)?, vec![0; STEP_BYTES]);
    for at in (0..BYTES).step_by(STEP_BYTES) {
        file.read_exact_at(&mut found, at)?;
        known(at, &mut wanted);
        ensure!(
            found[..] == wanted[..],
            "the file has other bytes than were written, within {STEP_BYTES} from {at} on"
        );
    }
    Ok(())
}

/// Whole pages, as reads past the page cache want them.
fn aligned(bytes: usize) -> Result<Buffer> {
    Segment::private(bytes)?.carve(bytes).pop().context("no memory for a request")
}

const PATIENCE: Duration = Duration::from_secs(60);
