//! A disk that forgets: what no flush covers is gone with the power, or some of it, sector by sector. A machine has it over NBD,
//! so that each of its flushes arrives here.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};

use crate::host::output;

/// The disk, which outlives the machines that use it.
#[derive(Debug)]
pub struct Drive {
    sectors: Arc<Mutex<Sectors>>,
    socket: PathBuf,
}

/// A machine's connection to it.
#[derive(Debug)]
pub struct Attached {
    serving: JoinHandle<()>,
    socket: PathBuf,
}

impl Drive {
    /// A new disk of so many bytes with an ext4 file system. One that `lies` calls a flush done and does nothing.
    pub fn formatted(folder: &Path, bytes: u64, lies: bool) -> Result<Drive> {
        let scratch = folder.join(format!("disk-{}.scratch", std::process::id()));
        let file = std::fs::File::create(&scratch)?;
        file.set_len(bytes)?;
        drop(file);
        let made =
            output(Command::new("/usr/sbin/mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0"]).arg(&scratch));
        let stable = std::fs::read(&scratch);
        std::fs::remove_file(&scratch)?;
        made?;
        let sectors = Sectors { stable: stable?, lies, ..Sectors::default() };
        let socket = folder.join(format!("disk-{}", std::process::id()));
        Ok(Drive { sectors: Arc::new(Mutex::new(sectors)), socket })
    }

    /// Serves the next machine.
    pub fn attach(&self) -> Result<Attached> {
        let _ = std::fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).context("no socket for the disk")?;
        let sectors = self.sectors.clone();
        let serving = std::thread::spawn(move || {
            // It ends when its machine does.
            if let Ok((peer, _)) = listener.accept() {
                let _ = serve(peer, &sectors);
            }
        });
        Ok(Attached { serving, socket: self.socket.clone() })
    }

    /// It stops in the middle of what it does: behind so many more writes that are in its cache alone.
    pub fn stop_after(&self, writes: u64) {
        lock(&self.sectors).stops_after = Some(writes);
    }

    /// Whether it has stopped.
    pub fn has_stopped(&self) -> bool {
        lock(&self.sectors).stopped
    }

    /// The power goes; what that leaves, by chance.
    pub fn lose_power(&self, chance: &mut Chance) -> Lost {
        lock(&self.sectors).lose_power(chance)
    }
}

impl Attached {
    /// For QEMU's command line.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits until everything that the machine sent has arrived. The machine must have ended.
    pub fn ended(self) {
        // Wakes the thread, should no machine have come.
        let _ = UnixStream::connect(&self.socket);
        let _ = self.serving.join();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// What became of the sectors that no flush had covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Sectors that were in the cache.
    pub cached: usize,
    /// Those that have what they had before.
    pub lost: usize,
}

/// Chance from a seed.
#[derive(Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn of(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}

/// What the disk keeps, and what it only has in its cache.
#[derive(Debug, Default)]
struct Sectors {
    stable: Vec<u8>,
    /// Of each sector that was written since the last flush, all that it was given, in order.
    cached: BTreeMap<usize, Vec<Box<[u8]>>>,
    lies: bool,
    /// So many more writes into the cache are carried out.
    stops_after: Option<u64>,
    stopped: bool,
}

impl Sectors {
    fn read(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.stable[at..at + bytes.len()]);
        for (sector, versions) in self.cached.range(at / SECTOR..(at + bytes.len()).div_ceil(SECTOR)) {
            if let Some(newest) = versions.last() {
                let from = sector * SECTOR - at;
                bytes[from..from + SECTOR].copy_from_slice(newest);
            }
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8], through: bool) {
        for (sector, content) in (at / SECTOR..).zip(bytes.chunks(SECTOR)) {
            if through {
                self.cached.remove(&sector);
                self.stable[sector * SECTOR..][..SECTOR].copy_from_slice(content);
            } else {
                self.cached.entry(sector).or_default().push(content.into());
            }
        }
        if let Some(left) = self.stops_after.filter(|_| !through) {
            self.stopped = left == 0;
            self.stops_after = left.checked_sub(1);
        }
    }

    fn flush(&mut self) {
        if self.lies {
            return;
        }
        for (sector, versions) in std::mem::take(&mut self.cached) {
            if let Some(newest) = versions.last() {
                self.stable[sector * SECTOR..][..SECTOR].copy_from_slice(newest);
            }
        }
    }

    /// Everything in the cache is lost, or nothing, or each sector on its own: it has any of what it was given, or none.
    fn lose_power(&mut self, chance: &mut Chance) -> Lost {
        let cached = std::mem::take(&mut self.cached);
        (self.stops_after, self.stopped) = (None, false);
        let mut lost = Lost { cached: cached.len(), lost: 0 };
        let way = chance.below(4);
        for (sector, versions) in cached {
            let kept = match way {
                0 => 0,
                1 => versions.len(),
                _ => chance.below(versions.len() as u64 + 1) as usize,
            };
            match kept.checked_sub(1).and_then(|at| versions.get(at)) {
                Some(version) => self.stable[sector * SECTOR..][..SECTOR].copy_from_slice(version),
                None => lost.lost += 1,
            }
        }
        lost
    }
}

fn lock(sectors: &Mutex<Sectors>) -> MutexGuard<'_, Sectors> {
    sectors.lock().unwrap_or_else(|e| e.into_inner())
}

/// One connection of the NBD protocol (fixed newstyle, simple replies), until its peer is gone.
fn serve(mut peer: UnixStream, sectors: &Mutex<Sectors>) -> Result<()> {
    let length = lock(sectors).stable.len() as u64;
    peer.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    take::<4>(&mut peer)?;
    while !option(&mut peer, length)? {}
    let mut bytes = Vec::new();
    loop {
        let request = take::<28>(&mut peer)?;
        let [flags, kind] = [half(&request, 4), half(&request, 6)];
        let (at, count) = (word(&request, 16) as usize, number(&request, 24) as usize);
        if number(&request, 0) != REQUEST_MAGIC || count > REQUEST_BYTES_MAX {
            bail!("no request");
        }
        let inside = at.checked_add(count).is_some_and(|end| end <= length as usize);
        let whole = at.is_multiple_of(SECTOR) && count.is_multiple_of(SECTOR);
        let mut error = if inside && whole { 0 } else { INVALID };
        bytes.resize(count, 0);
        match kind {
            READ if error == 0 => lock(sectors).read(at, &mut bytes),
            READ => {}
            WRITE => {
                peer.read_exact(&mut bytes)?;
                if error == 0 {
                    lock(sectors).write(at, &bytes, flags & FUA != 0);
                }
            }
            FLUSH => {
                lock(sectors).flush();
                error = 0;
            }
            DISCONNECT => return Ok(()),
            _ => error = INVALID,
        }
        if lock(sectors).stopped {
            // Nobody is answered any more; the machine is killed.
            std::io::copy(&mut peer, &mut std::io::sink())?;
            return Ok(());
        }
        let mut reply = REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend(error.to_be_bytes());
        reply.extend(&request[8..16]);
        if kind == READ && error == 0 {
            reply.extend(&bytes);
        }
        peer.write_all(&reply)?;
    }
}

/// Answers an option; whether the disk is served from here on.
fn option(peer: &mut UnixStream, length: u64) -> Result<bool> {
    let header = take::<16>(peer)?;
    let (option, count) = (number(&header, 8), number(&header, 12) as usize);
    if &header[..8] != b"IHAVEOPT" || count > OPTION_BYTES_MAX {
        bail!("no option");
    }
    let mut said = vec![0; count];
    peer.read_exact(&mut said)?;
    let export = [&length.to_be_bytes()[..], &TRANSMISSION.to_be_bytes()].concat();
    if option == EXPORT_NAME {
        peer.write_all(&export)?;
        return Ok(true);
    }
    let mut reply = |kind: u32, body: &[u8]| -> Result<()> {
        let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        [option, kind, body.len() as u32].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        bytes.extend(body);
        Ok(peer.write_all(&bytes)?)
    };
    if option != GO {
        reply(UNSUPPORTED, &[])?;
        return Ok(false);
    }
    reply(INFO, &[&[0, 0][..], &export].concat())?;
    // Sectors, pages, and as much as is taken at once.
    let sizes = [SECTOR as u32, 4096, REQUEST_BYTES_MAX as u32].map(u32::to_be_bytes).concat();
    reply(INFO, &[&[0, 3][..], &sizes].concat())?;
    reply(ACKNOWLEDGED, &[])?;
    Ok(true)
}

fn take<const N: usize>(peer: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    peer.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) << 16 | u32::from(half(bytes, at + 2))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from(number(bytes, at)) << 32 | u64::from(number(bytes, at + 4))
}

const SECTOR: usize = 512;
const REQUEST_BYTES_MAX: usize = 32 << 20;
const OPTION_BYTES_MAX: usize = 4096;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// It has flags, flushes, and writes that go through its cache.
const TRANSMISSION: u16 = 1 | 4 | 8;
const EXPORT_NAME: u32 = 1;
const GO: u32 = 7;
const ACKNOWLEDGED: u32 = 1;
const INFO: u32 = 3;
const UNSUPPORTED: u32 = 0x8000_0001;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const FUA: u16 = 1;
const INVALID: u32 = 22;

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(lies: bool) -> Sectors {
        Sectors { stable: vec![0; 8 * SECTOR], lies, ..Sectors::default() }
    }

    fn content(sectors: &Sectors) -> Vec<u8> {
        let mut bytes = vec![0; 8 * SECTOR];
        sectors.read(0, &mut bytes);
        bytes.chunks(SECTOR).map(|sector| sector[0]).collect()
    }

    #[test]
    fn what_a_flush_covers_stays_and_the_rest_may_go() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut sectors = disk(false);
            sectors.write(0, &[1; 2 * SECTOR], false);
            sectors.flush();
            sectors.write(2 * SECTOR, &[2; SECTOR], true);
            sectors.write(SECTOR, &[3; 3 * SECTOR], false);
            sectors.write(3 * SECTOR, &[4; SECTOR], false);
            assert_eq!(content(&sectors), [1, 3, 3, 4, 0, 0, 0, 0]);
            let lost = sectors.lose_power(&mut Chance::of(seed));
            let left = content(&sectors);
            assert_eq!((left[0], lost.cached), (1, 3));
            assert!([1, 3].contains(&left[1]) && [2, 3].contains(&left[2]) && [0, 3, 4].contains(&left[3]), "{left:?}");
            seen.insert(left[1..4].to_vec());
        }
        assert_eq!(seen.len(), 12, "each way is possible: {seen:?}");
        let mut stopping = Sectors { stops_after: Some(1), ..disk(false) };
        let stopped = [true, false, false].map(|through| {
            stopping.write(0, &[1; SECTOR], through);
            stopping.stopped
        });
        assert_eq!(stopped, [false, false, true], "behind the second write into the cache");
        let mut liar = disk(true);
        liar.write(0, &[1; SECTOR], false);
        liar.flush();
        assert_eq!(liar.cached.len(), 1);
    }

    #[test]
    fn a_machine_reads_what_it_wrote_before_and_after_its_flush() {
        let sectors = Arc::new(Mutex::new(disk(false)));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let served = sectors.clone();
        let serving = std::thread::spawn(move || serve(theirs, &served));
        let mut peer = ours;
        assert_eq!(take::<18>(&mut peer).unwrap(), *b"NBDMAGICIHAVEOPT\x00\x03");
        peer.write_all(&3u32.to_be_bytes()).unwrap();
        let option = |option: u32| [&b"IHAVEOPT"[..], &option.to_be_bytes(), &0u32.to_be_bytes()].concat();
        // Structured replies, which it does not have.
        peer.write_all(&option(8)).unwrap();
        assert_eq!(number(&take::<20>(&mut peer).unwrap(), 12), UNSUPPORTED);
        peer.write_all(&option(GO)).unwrap();
        let export = take::<32>(&mut peer).unwrap();
        assert_eq!((word(&export, 22), half(&export, 30)), (8 * SECTOR as u64, TRANSMISSION));
        take::<34>(&mut peer).unwrap();
        assert_eq!(number(&take::<20>(&mut peer).unwrap(), 12), ACKNOWLEDGED);
        let mut ask = |flags: u16, kind: u16, at: u64, count: usize, bytes: &[u8]| {
            let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
            request.extend(flags.to_be_bytes().into_iter().chain(kind.to_be_bytes()));
            request.extend(77u64.to_be_bytes().into_iter().chain(at.to_be_bytes()));
            request.extend((count as u32).to_be_bytes());
            request.extend(bytes);
            peer.write_all(&request).unwrap();
            if kind == DISCONNECT {
                return (0, Vec::new());
            }
            let reply = take::<16>(&mut peer).unwrap();
            assert_eq!((number(&reply, 0), word(&reply, 8)), (REPLY_MAGIC, 77));
            let mut read = vec![0; if kind == READ && number(&reply, 4) == 0 { count } else { 0 }];
            peer.read_exact(&mut read).unwrap();
            (number(&reply, 4), read)
        };
        assert_eq!(ask(0, WRITE, 512, 512, &[5; 512]), (0, vec![]));
        assert_eq!(ask(0, READ, 512, 512, &[]), (0, vec![5; 512]));
        assert_eq!(lock(&sectors).cached.len(), 1);
        assert_eq!(ask(0, FLUSH, 0, 0, &[]), (0, vec![]));
        let has = |at: usize| {
            let sectors = lock(&sectors);
            (sectors.cached.len(), sectors.stable[at])
        };
        assert_eq!(has(512), (0, 5));
        assert_eq!(ask(FUA, WRITE, 1024, 512, &[6; 512]), (0, vec![]));
        assert_eq!(has(1024), (0, 6));
        assert_eq!(ask(0, READ, 8 * 512, 512, &[]), (INVALID, vec![]), "behind its end");
        assert_eq!(ask(0, READ, 100, 512, &[]), (INVALID, vec![]), "no sector");
        ask(0, DISCONNECT, 0, 0, &[]);
        serving.join().unwrap().unwrap();
    }
}
