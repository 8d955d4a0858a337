//! Disks of so many requests a second and memory of so many bytes, for the programs of one side.
//!
//! The kernel's control groups hold both: of version 1, where each kind is a tree of its own, or of
//! version 2. A disk is a file behind a loop device past the page cache. What a side mounts is
//! mounted in a namespace of its own, and gone with its programs.

use crate::figures::sockets::keeper::{Keeper, Launch};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Where control groups are.
#[derive(Clone, Debug, PartialEq)]
enum Trees {
    /// One for disks, one for memory.
    Apart { disks: PathBuf, memory: PathBuf },
    /// One for both.
    Together(PathBuf),
}

/// A group of processes, whose folders the keeper removes.
pub(super) struct ControlGroup {
    trees: Trees,
    name: String,
}

/// Whether this process may do all that the figure does.
///
/// # Errors
/// What is missing, and what to do.
pub(super) fn check() -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "a database on an attached volume needs a loop device and control groups: run as root"
    );
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse; `modprobe fuse` makes it");
    for (program, package) in PROGRAMS {
        ensure!(program_at(program).is_some(), "there is no {program}; install {package}");
    }
    trees().map(drop)
}

/// A program of administration, which the search path may lack.
pub(in crate::figures) fn program_at(name: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .into_iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|at| at.is_file())
}

fn trees() -> Result<Trees> {
    trees_of(&fs::read_to_string("/proc/mounts").context("the kernel does not say what is mounted")?)
}

/// From `/proc/mounts`.
fn trees_of(mounts: &str) -> Result<Trees> {
    let rows = || mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|row| row.len() > 3);
    let apart = |kind: &str| {
        let mut some = rows().filter(|row| row[2] == "cgroup" && row[3].split(',').any(|option| option == kind));
        some.next().map(|row| PathBuf::from(row[1]))
    };
    if let (Some(disks), Some(memory)) = (apart("blkio"), apart("memory")) {
        return Ok(Trees::Apart { disks, memory });
    }
    let one = rows().find(|row| row[2] == "cgroup2").map(|row| Trees::Together(row[1].into()));
    one.context("no control groups for disks and memory are mounted")
}

impl ControlGroup {
    /// Removes what measuring processes left behind that were killed with their keepers: their
    /// groups, and what still runs there.
    pub(super) fn clear() -> Result<()> {
        let trees = trees()?;
        let roots = match &trees {
            Trees::Apart { disks, memory } => vec![disks, memory],
            Trees::Together(root) => vec![root],
        };
        let names = roots.iter().filter_map(|root| fs::read_dir(root).ok()).flatten().flatten();
        let names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        for name in names.into_iter().filter(|name| left_by(name).is_some_and(|process| !is_there(process))) {
            let group = ControlGroup { trees: trees.clone(), name };
            group.kill();
            for folder in group.folders() {
                let deadline = Instant::now() + LEAVING;
                while fs::remove_dir(&folder).is_err() && folder.exists() && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
        Ok(())
    }

    /// A new one. The keeper holds a process that removes its folders when all is over.
    pub(super) fn new(keeper: &mut Keeper, name: &str) -> Result<ControlGroup> {
        let group = ControlGroup { trees: trees()?, name: format!("{PREFIX}{}-{name}", std::process::id()) };
        if let Trees::Together(root) = &group.trees {
            // Where they are there already this changes nothing.
            fs::write(root.join("cgroup.subtree_control"), "+io +memory")
                .context("the kernel gives disks and memory to no further control group")?;
        }
        for folder in group.folders() {
            fs::create_dir(&folder).with_context(|| format!("no control group {}", folder.display()))?;
        }
        let mut arguments = vec!["-c".to_owned(), REMOVE.to_owned(), "remove".to_owned()];
        arguments.extend(group.folders().iter().map(|folder| folder.display().to_string()));
        let stays = Some((keeper.folder().join(format!("removed-{name}")), Signal::TERM.as_raw()));
        keeper.serve(&Launch { program: "/bin/sh".into(), arguments, stays, ..Launch::default() })?;
        Ok(group)
    }

    fn folders(&self) -> Vec<PathBuf> {
        match &self.trees {
            Trees::Apart { disks, memory } => vec![disks.join(&self.name), memory.join(&self.name)],
            Trees::Together(root) => vec![root.join(&self.name)],
        }
    }

    /// Ends its processes at once: nothing of theirs is asked for any more.
    pub(super) fn kill(&self) {
        let lists =
            self.folders().into_iter().filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok());
        for process in lists.flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>()) {
            let process = process.parse().ok().and_then(Pid::from_raw);
            let _ = process.map(|process| kill_process(process, Signal::KILL));
        }
    }

    /// Its processes have so much memory, with what the kernel caches for them.
    pub(super) fn memory(&self, bytes: u64) -> Result<()> {
        match &self.trees {
            Trees::Apart { memory, .. } => {
                put(&memory.join(&self.name).join("memory.limit_in_bytes"), &bytes.to_string())
            }
            Trees::Together(root) => put(&root.join(&self.name).join("memory.max"), &bytes.to_string()),
        }
    }

    /// They read so often a second from the disk of this number
    /// (`major:minor`), and write as often.
    pub(super) fn disk(&self, device: &str, a_second: u64) -> Result<()> {
        match &self.trees {
            Trees::Apart { disks, .. } => ["read", "write"].into_iter().try_for_each(|what| {
                let file = format!("blkio.throttle.{what}_iops_device");
                put(&disks.join(&self.name).join(file), &format!("{device} {a_second}"))
            }),
            Trees::Together(root) => {
                put(&root.join(&self.name).join("io.max"), &format!("{device} riops={a_second} wiops={a_second}"))
            }
        }
    }
}

/// Which process made the group of this name, if one as this did.
fn left_by(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

fn is_there(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

fn put(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("{} does not take {text:?}", file.display()))
}

/// A file system, and what runs on it.
pub(super) struct Mounted<'a> {
    /// A file, or a device that is there.
    pub(super) from: &'a Path,
    pub(super) at: &'a Path,
    /// What is copied to it first.
    pub(super) copied: Option<&'a Path>,
    pub(super) group: &'a ControlGroup,
    /// Arguments and all.
    pub(super) runs: Vec<String>,
    pub(super) log: &'a Path,
    /// What stops it.
    pub(super) stops: Signal,
}

impl Mounted<'_> {
    /// Starts it, and says which process it is.
    pub(super) fn start(self, keeper: &mut Keeper) -> Result<u32> {
        fs::create_dir(self.at)?;
        let text = |path: &Path| path.display().to_string();
        let groups: Vec<String> =
            self.group.folders().iter().map(|folder| text(&folder.join("cgroup.procs"))).collect();
        let copied = self.copied.map_or_else(String::new, text);
        let mut arguments: Vec<String> =
            ["--mount", "--propagation", "private", "/bin/sh", "-c", MOUNT, "mount"].map(str::to_owned).to_vec();
        arguments.extend([groups.join(" "), text(self.from), text(self.at), copied]);
        arguments.extend(self.runs);
        let program = program_at("unshare").context("there is no unshare")?;
        let stays = Some((self.log.to_owned(), self.stops.as_raw()));
        keeper.serve(&Launch { program, arguments, stays, ..Launch::default() })
    }

    /// Number of the disk that it is on, which is known once the log says so.
    pub(super) fn device(log: &Path) -> Option<String> {
        fs::read_to_string(log).ok()?.lines().find_map(|line| line.strip_prefix(DEVICE).map(str::to_owned))
    }
}

/// Of the names of all groups, before the number of who made them.
const PREFIX: &str = "overside-bench-";
/// Whoever was killed leaves a group within this.
const LEAVING: Duration = Duration::from_secs(5);
/// Before the line with the number of a disk.
const DEVICE: &str = "disk ";
/// The loop device goes with the mount, however that ends.
const MOUNT: &str = r#"set -e
groups=$1 from=$2 at=$3 copied=$4
shift 4
device=$from
[ -b "$from" ] || device=$(losetup --find --show --direct-io=on "$from")
mount -o noatime "$device" "$at"
[ -b "$from" ] || losetup --detach "$device"
# What is copied counts as this group's memory, and not as that of whoever copies.
for group in $groups; do echo $$ >"$group"; done
[ -z "$copied" ] || cp -a "$copied" "$at"
echo "disk $(cat "/sys/block/${device##*/}/dev")"
exec "$@""#;
/// Processes leave a group a moment after they were told to end.
const REMOVE: &str = r#"trap : TERM INT
sleep infinity & wait
kill $!
for folder in "$@"; do until rmdir "$folder" || [ ! -e "$folder" ]; do sleep 0.1; done; done"#;
const PROGRAMS: [(&str, &str); 6] = [
    ("losetup", "mount"),
    ("mount", "mount"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
    ("cp", "coreutils"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_says_who_made_it_and_others_are_left_alone() {
        assert_eq!(left_by("overside-bench-4711-attached-each-node"), Some(4711));
        assert_eq!([left_by("system.slice"), left_by("overside-bench-x-node"), left_by("overside-bench-7")], [None; 3]);
        assert!(is_there(std::process::id()) && !is_there(u32::MAX));
    }

    /// Where this process may make groups.
    #[test]
    fn what_a_killed_run_left_is_removed_and_what_runs_is_not() {
        let Ok(trees) = trees() else { return };
        let [left, runs] = [u32::MAX, std::process::id()]
            .map(|process| ControlGroup { trees: trees.clone(), name: format!("{PREFIX}{process}-test") });
        let folders = [left.folders(), runs.folders()].concat();
        let made = folders.iter().try_for_each(fs::create_dir);
        let cleared = ControlGroup::clear();
        let there = folders.iter().map(|folder| folder.exists()).collect::<Vec<_>>();
        folders.iter().for_each(|folder| _ = fs::remove_dir(folder));
        if made.is_ok() {
            cleared.unwrap();
            let half = folders.len() / 2;
            assert_eq!(there, [vec![false; half], vec![true; half]].concat());
        }
    }

    #[test]
    fn control_groups_of_both_versions_are_found() {
        let first = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /g/cpu cgroup rw,cpu 0 0\ncgroup /g/m cgroup rw,relatime,memory 0 0\n\
                     cgroup /g/b cgroup rw,blkio 0 0\ncgroup2 /g/unified cgroup2 rw 0 0\n";
        assert_eq!(trees_of(first).unwrap(), Trees::Apart { disks: "/g/b".into(), memory: "/g/m".into() });
        let second = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(trees_of(second).unwrap(), Trees::Together("/sys/fs/cgroup".into()));
        assert!(trees_of("proc /proc proc rw 0 0\n").is_err());
    }
}
