//! A server and a client, both under the library or neither.

use super::{
    ROLE,
    program::{Family, Job},
};
use crate::{
    figures::messages::play::{PATIENCE, Seats, Stretch, WARM_UP},
    process::{Process, memory_file, read_word, write_words},
};
use anyhow::{Context, Result};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File},
    os::{
        fd::AsRawFd,
        unix::{fs::FileExt, net::UnixStream},
    },
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// The two processes.
pub(super) struct Pair {
    pub(super) name: String,
    server: (Process, UnixStream),
    client: (Process, UnixStream),
    /// Where the library tells what became of each connection.
    report: File,
}

/// What became of connections' ends under the library.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ends {
    pub(super) in_rings: u64,
    pub(super) all: u64,
    /// What the library says of those that went through the kernel, and of how many.
    pub(super) why_not: BTreeMap<String, u64>,
}

impl Pair {
    /// Starts both; `library` is what they run under.
    pub(super) fn start(seats: &Seats, job: Job, family: Family, library: Option<&Path>) -> Result<Pair> {
        let report = memory_file(b"")?;
        let told = OsString::from(format!("/proc/{}/fd/{}", std::process::id(), report.as_raw_fd()));
        let environment: Vec<(&str, &OsStr)> = match library {
            // To tell of each connection costs more system calls than a short one has.
            Some(library) if job == Job::Connect => vec![("LD_PRELOAD", library.as_os_str())],
            Some(library) => vec![("LD_PRELOAD", library.as_os_str()), ("OVERSIDE_SOCKETS_REPORT", &told)],
            None => Vec::new(),
        };
        let start = |what, arguments: &[&str]| -> Result<(Process, UnixStream)> {
            let (process, line) = Process::start_in(&environment, what, ROLE, arguments, None)?;
            line.set_read_timeout(Some(PATIENCE)).context("a socket refuses a deadline")?;
            Ok((process, line))
        };
        let name = match family {
            Family::Tcp => "127.0.0.1:0".to_owned(),
            Family::Unix => {
                format!("overside-figure-sockets-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed))
            }
        };
        let mut server = seats.across(|| start("server", &["serve", job.name(), &name]))?;
        let port = read_word(&mut server.1).context("the server does not listen")?;
        let address = if family == Family::Tcp { format!("127.0.0.1:{port}") } else { name };
        let client = start("client", &["call", job.name(), &address])?;
        Ok(Pair { name: side_name(family, library.is_some()), server, client, report })
    }

    /// A turn: for so many nanoseconds, or with so many connections.
    pub(super) fn play(&mut self, word: u64) -> Result<Stretch> {
        write_words(&mut self.server.1, &[word])?;
        write_words(&mut self.client.1, &[word])?;
        let mut told = || read_word(&mut self.client.1).with_context(|| format!("{}: the client ended", self.name));
        let mut stretch = Stretch { round_trips: told()?, wall_ns: told()?, cpu_ns: told()? };
        let server = read_word(&mut self.server.1).with_context(|| format!("{}: the server ended", self.name))?;
        // The warm-up's share of the server's time is as large as that of its messages.
        stretch.cpu_ns += server * stretch.round_trips / (stretch.round_trips + WARM_UP);
        Ok(stretch)
    }

    /// Bytes of memory that both have, what they share counted once.
    pub(super) fn memory(&self) -> Result<u64> {
        Ok(share_of_memory(self.server.0.pid())? + share_of_memory(self.client.0.pid())?)
    }

    /// Lets both end by themselves and says what became of their connections.
    pub(super) fn end(self) -> Result<Ends> {
        for (process, line) in [self.client, self.server] {
            drop(line);
            process.end(PATIENCE);
        }
        let mut told = vec![0; self.report.metadata()?.len() as usize];
        self.report.read_exact_at(&mut told, 0)?;
        Ok(Ends::of(&String::from_utf8_lossy(&told)))
    }
}

impl Ends {
    /// Of the library's report: a line for each end, whose fifth field is the way it
    /// went and whose sixth is why.
    pub(super) fn of(report: &str) -> Ends {
        let mut ends = Ends::default();
        for line in report.lines() {
            let mut fields = line.split('\t').skip(4);
            let (Some(way), Some(why)) = (fields.next(), fields.next()) else { continue };
            ends.all += 1;
            if way == "ring" {
                ends.in_rings += 1;
            } else {
                *ends.why_not.entry(why.to_owned()).or_default() += 1;
            }
        }
        ends
    }
}

pub(super) fn side_name(family: Family, library: bool) -> String {
    let family = match family {
        Family::Tcp => "TCP",
        Family::Unix => "Unix socket",
    };
    if library { format!("{family}, library") } else { family.to_owned() }
}

fn share_of_memory(process: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))
        .context("the kernel does not say how much memory a process has")?;
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("/proc/PID/smaps_rollup has no Pss")? << 10)
}

static STARTED: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_which_ends_were_in_rings() {
        let report = "7\tconnected\ta\tb\tring\t\t1\t1\t1\t1\n7\taccepted\ta\tb\tkernel\twhy\t0\t0\t0\t0\nnonsense\n";
        assert_eq!(Ends::of(report), Ends { in_rings: 1, all: 2, why_not: [("why".to_owned(), 1)].into() });
    }

    #[test]
    fn memory_of_a_process_is_what_it_has_touched() {
        let before = share_of_memory(std::process::id()).unwrap();
        let touched = vec![1u8; 64 << 20];
        let after = share_of_memory(std::process::id()).unwrap();
        assert!(touched.iter().map(|byte| u64::from(*byte)).sum::<u64>() == 64 << 20);
        // Other tests run beside this one.
        assert!(after > before + (32 << 20), "{before} {after}");
    }
}
