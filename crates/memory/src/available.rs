//! How much memory may still be taken: what the machine has, and what this process' control groups
//! and its limit of address space leave of it.

use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;

/// Bytes that can be allocated without pushing others out or being killed: what the kernel says of
/// the machine (`MemAvailable`). It is less where a control group of this process, of either
/// version, or the process itself (`ulimit -v`) has a limit. None where nobody says.
pub fn available_bytes() -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup"))
        .and_then(|own| left_by_groups(&String::from_utf8_lossy(&own), Path::new("/sys/fs/cgroup")));
    [machine_bytes(), groups, address_space_left()].into_iter().flatten().min()
}

/// What the limit of this process' address space (`ulimit -v`) leaves; none where there is no
/// limit.
pub fn address_space_left() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let text = read(Path::new("/proc/self/statm"))?;
    let pages = number(text.split(|byte| *byte == b' ').next()?)?;
    Some(limit.saturating_sub(pages.saturating_mul(rustix::param::page_size() as u64)))
}

/// Bytes that the machine has for anybody, whatever this process may use of them.
pub(crate) fn machine_bytes() -> Option<u64> {
    let text = read(Path::new("/proc/meminfo"))?;
    let text = std::str::from_utf8(&text).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the memory groups leave that `own`, the text of a process' `cgroup` file, names, whose
/// files lie under `mount`; none when no group has a limit.
fn left_by_groups(own: &str, mount: &Path) -> Option<u64> {
    own.lines()
        .filter_map(|line| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            let version = match controllers {
                "" => &UNIFIED,
                names if names.split(',').any(|name| name == "memory") => &SEPARATE,
                _ => return None,
            };
            left_by_group(version, &mount.join(version.folder), group)
        })
        .min()
}

/// The least that a group and those above it leave. A limit holds for all below it, so each level
/// counts; in a container the group's own path may not be visible, and the limit is that of the
/// mount.
fn left_by_group(version: &Version, mount: &Path, group: &str) -> Option<u64> {
    let group = Path::new(group.trim_start_matches('/'));
    group.ancestors().filter_map(|group| version.left(&mount.join(group))).min()
}

/// Which files tell of a group's memory.
struct Version {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// What `memory.stat` calls pages of files that nobody looked at lately: the kernel gives them
    /// up before it kills.
    idle_files: &'static str,
}

impl Version {
    fn left(&self, group: &Path) -> Option<u64> {
        // "max" in one version, a huge number in the other, which the machine's own memory undercuts.
        let limit = number(&read(&group.join(self.limit))?)?;
        let used = number(&read(&group.join(self.used))?)?;
        let stat = read(&group.join("memory.stat")).unwrap_or_default();
        let idle = String::from_utf8_lossy(&stat)
            .lines()
            .find_map(|line| line.strip_prefix(self.idle_files)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(idle)))
    }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// A file of the kernel's, whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let (mut text, mut len) = (vec![0; 4096], 0);
    loop {
        let more = retry_on_intr(|| rustix::io::read(&file, &mut text[len..])).ok()?;
        len += more;
        if more == 0 || len == FILE_BYTES_MAX {
            text.truncate(len);
            return Some(text);
        }
        if len == text.len() {
            text.resize((len * 2).min(FILE_BYTES_MAX), 0);
        }
    }
}

const UNIFIED: Version =
    Version { folder: "", limit: "memory.max", used: "memory.current", idle_files: "inactive_file" };

const SEPARATE: Version = Version {
    folder: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    idle_files: "total_inactive_file",
};

/// None of these files is nearly as long.
const FILE_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of groups; gone with the value.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("overside-groups-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_tightest_group_of_the_unified_version_counts() {
        let tree = Tree::new(
            "unified",
            &[
                ("memory.stat", "anon 5\n"),
                ("a/memory.max", "1000\n"),
                ("a/memory.current", "900\n"),
                ("a/memory.stat", "anon 1\ninactive_file 50\nactive_file 7\n"),
                ("a/b/memory.max", "max\n"),
                ("a/b/memory.current", "300\n"),
                ("a/b/c/memory.max", "400\n"),
                ("a/b/c/memory.current", "100\n"),
                ("other/memory.max", "1\n"),
                ("other/memory.current", "1\n"),
            ],
        );
        assert_eq!(left_by_groups("0::/a/b/c\n", &tree.0), Some(150));
        assert_eq!(left_by_groups("0::/a/b\n", &tree.0), Some(150));
        assert_eq!(left_by_groups("0::/\n", &tree.0), None);
    }

    #[test]
    fn a_group_of_the_separate_version() {
        let tree = Tree::new(
            "separate",
            &[
                ("memory/x/memory.limit_in_bytes", "1000"),
                ("memory/x/memory.usage_in_bytes", "1200"),
                ("memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n"),
                ("memory/memory.limit_in_bytes", "9223372036854771712"),
                ("memory/memory.usage_in_bytes", "5000"),
            ],
        );
        assert_eq!(left_by_groups("4:cpu,memory:/x\n1:cpu:/x\n0::/\n", &tree.0), Some(100));
        // A container's own path, which only the host sees: the mount is its group.
        assert_eq!(left_by_groups("4:memory:/docker/1234", &tree.0), Some(9_223_372_036_854_771_712 - 5000));
        // More used than allowed leaves nothing.
        std::fs::write(tree.0.join("memory/x/memory.stat"), "").unwrap();
        assert_eq!(left_by_groups("4:memory:/x", &tree.0), Some(0));
    }

    #[test]
    fn nonsense_is_no_limit() {
        let tree = Tree::new("nonsense", &[("memory.max", "-1"), ("memory.current", "")]);
        for own in ["", "\n", "0", "0::", "x:memory", ":::", "0::/../../..", "4:memory:/"] {
            assert_eq!(left_by_groups(own, &tree.0), None, "{own}");
        }
    }

    #[test]
    fn this_process_may_have_some() {
        let (machine, all) = (machine_bytes().unwrap(), available_bytes().unwrap());
        assert!(all > 0 && machine > 0);
    }
}
