//! Where it was measured.

use serde::Serialize;
use std::{fs, thread};

/// The machine, as the kernel describes it; what it does not say is `unknown`.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Cores this process may use.
    pub cores: usize,
    /// The caches of core 0.
    pub caches: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// How the kernel grants huge pages to shared memory.
    pub shared_huge_pages: String,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = field(&memory, "MemTotal").and_then(|v| v.split(' ').next()?.parse::<u64>().ok());
        let huge = line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        Machine {
            processor: field(&cpu, "model name").unwrap_or(UNKNOWN).to_owned(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            caches: caches(),
            memory_bytes: memory.unwrap_or(0) * 1024,
            kernel: line("/proc/sys/kernel/osrelease"),
            shared_huge_pages: chosen(&huge).to_owned(),
        }
    }
}

fn line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let text = text.trim();
    if text.is_empty() { UNKNOWN.to_owned() } else { text.to_owned() }
}

/// The value of `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let is = |line: &&str| line.split(':').next().is_some_and(|n| n.trim() == name);
    text.lines().find(is)?.split_once(':').map(|(_, value)| value.trim())
}

/// The bracketed one of several choices.
fn chosen(choices: &str) -> &str {
    let between = |text| Some(text).and_then(|t: &str| t.split_once('[')?.1.split_once(']')).map(|(c, _)| c);
    between(choices).unwrap_or(UNKNOWN)
}

fn caches() -> String {
    let cache = |index: usize| {
        let of = |what: &str| line(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{what}"));
        let (level, kind, size) = (of("level"), of("type"), of("size"));
        (level != UNKNOWN && kind != "Instruction").then(|| format!("L{level} {size}"))
    };
    let all: Vec<_> = (0..6).filter_map(cache).collect();
    if all.is_empty() { UNKNOWN.to_owned() } else { all.join(", ") }
}

const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_taken_apart() {
        assert_eq!(field("a : 1\nmodel name\t: X (R) : Y\n", "model name"), Some("X (R) : Y"));
        assert_eq!(chosen("always [advise] never"), "advise");
        assert_eq!(chosen("unknown"), UNKNOWN);
        let here = Machine::here();
        assert!(here.cores > 0 && here.memory_bytes > 1 << 20);
    }
}
