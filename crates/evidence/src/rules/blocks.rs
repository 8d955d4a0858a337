//! A volume's requests: the node's cache, disks that turn below it, processors, and longest
//! requests. x is bytes, requests outstanding, hits in a hundred, or disks.

use super::{ANYWHERE, at, part, ratio};
use crate::{
    measured::{Lack, Measured, Metric, Reading, over},
    verdict::{ClaimPart, Goals, Of, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost, Within};

/// In the order of the project's table.
pub(super) const GOALS: &Goals = &Goals {
    figure: "blocks",
    parts: &[
        beside(
            "cached, shm, 1 outstanding: p50 over nbdkit's on a Unix socket",
            "cached, p50 ns: shm",
            "cached, p50 ns: nbdkit",
            1,
            AtMost(0.25),
        ),
        beside(
            "cached, shm, 1 outstanding: CPU of both ends over nbdkit's",
            "cached, CPU ns: shm",
            "cached, CPU ns: nbdkit",
            1,
            AtMost(0.5),
        ),
        part(
            "cached, shm, 1 outstanding: p50, ns; a goal",
            Of::Value(Recorded, at("cached, p50 ns: shm", 1)),
            AtMost(6000.0),
        ),
        beside(
            "cached, tcp, 1 outstanding: p50 over nbdkit's over TCP",
            "cached, p50 ns: tcp",
            "cached, p50 ns: nbdkit over TCP",
            1,
            AtMost(0.7),
        ),
        beside(
            "cached, tcp, 1 outstanding: CPU of both ends over nbdkit's over TCP",
            "cached, CPU ns: tcp",
            "cached, CPU ns: nbdkit over TCP",
            1,
            AtMost(1.0),
        ),
        beside(
            "cached, shm, 16 outstanding: CPU of both ends over qemu-nbd's",
            "cached, CPU ns: shm",
            "cached, CPU ns: qemu-nbd",
            16,
            AtMost(1.0 / 3.0),
        ),
        beside(
            "cached, tcp, 16 outstanding: CPU of both ends over qemu-nbd's",
            "cached, CPU ns: tcp",
            "cached, CPU ns: qemu-nbd",
            16,
            AtMost(1.0 / 3.0),
        ),
        beside(
            "cached, FUSE by /dev/fuse, 1 outstanding: p50 over nbdkit's on a Unix socket",
            "cached, p50 ns: FUSE",
            "cached, p50 ns: nbdkit",
            1,
            AtMost(0.9),
        ),
        beside(
            "cached, FUSE by io_uring, 1 outstanding: p50 over nbdkit's on a Unix socket",
            "cached, p50 ns: FUSE by io_uring",
            "cached, p50 ns: nbdkit",
            1,
            AtMost(0.9),
        ),
        beside(
            "cached, ext4 on FUSE's loop, 1 outstanding: p50 over a loop's on nbdfuse",
            "cached, p50 ns: ext4 on a loop, FUSE",
            "cached, p50 ns: ext4 on a loop, nbdfuse",
            1,
            AtMost(0.5),
        ),
        part("cached, wDSA's pread: p50 over FUSE's", Of::Named(wdsa_over_fuse), AtMost(0.6)),
        beside(
            "cached, NBD, 1 outstanding: requests/s over nbdkit's",
            "cached, requests/s: NBD",
            "cached, requests/s: nbdkit",
            1,
            AtLeast(1.0),
        ),
        beside(
            "cached, NBD, 16 outstanding: requests/s over nbdkit's",
            "cached, requests/s: NBD",
            "cached, requests/s: nbdkit",
            16,
            AtLeast(1.0),
        ),
        beside(
            "cached, NBD, 1 outstanding: requests/s over qemu-nbd's",
            "cached, requests/s: NBD",
            "cached, requests/s: qemu-nbd",
            1,
            AtLeast(2.0),
        ),
        beside(
            "cached, NBD, 16 outstanding: requests/s over qemu-nbd's",
            "cached, requests/s: NBD",
            "cached, requests/s: qemu-nbd",
            16,
            AtLeast(2.0),
        ),
        part("cache off, reads below 64 KiB: time over a local disk", SHORT_READS, AtMost(1.03)),
        ratio("40 % hits: time over a local disk", Recorded, at(HITS, 40), at(NO_NODE, 0), AtMost(0.7)),
        beside("cache off, 2 reads outstanding: rate over a local disk", READS, LOCAL_READS, 2, PAR),
        beside("cache off, 8 writes outstanding: rate over a local disk", WRITES, LOCAL_WRITES, 8, PAR),
        idle("100 idle sessions: share of a processor", "idle sessions, share of a processor: at rest"),
        idle(
            "100 idle sessions, 1 s after full load: share of a processor",
            "idle sessions, share of a processor: 1 s after full load",
        ),
    ],
};

pub(super) const RULES: &[Rule] = &[
    rule(
        "VI-C18",
        &[
            ratio("8 KiB, 40 % hits: over a local disk", Recorded, at(HITS, 40), at(NO_NODE, 0), AtMost(0.7)),
            // A gain is a tenth, and what shows half of a percent.
            part("more hits: over fewer, from none to all", Of::Named(more_hits), AtMost(0.9)),
            beside("without cache: over a local disk", READ, LOCAL_READ, 8192, AtLeast(1.005)),
        ],
    ),
    rule(
        "VI-C19",
        &[
            five("5 disks, no hits: rate over local ones", "five disks, bytes/s: no hits", Within(0.9, 1.1)),
            five("80 % hits: at worst competitive", "five disks, bytes/s: 80 % hits", AtLeast(0.9)),
            ratio(
                "80 % hits, 64 KiB over 8 KiB: it scales with the size",
                Recorded,
                at("five disks, bytes/s: 80 % hits", 65536),
                at("five disks, bytes/s: 80 % hits", 8192),
                AtLeast(2.0),
            ),
            // The link of one host is a copy.
            ratio(
                "100 % hits, 64 KiB: rate over a bare copy",
                Recorded,
                at("five disks, bytes/s: 100 % hits", 65536),
                at("copied, bytes/s", 65536),
                AtLeast(0.9),
            ),
        ],
    ),
    rule(
        "VI-C28",
        &[
            part("reads below 64 KiB: over a local disk", SHORT_READS, AtMost(1.03)),
            beside("128 KiB", READ, LOCAL_READ, 131_072, Within(1.05, 1.15)),
        ],
    ),
    rule(
        "VI-C29",
        &[
            part(
                "writes to 32 KiB: over a local disk",
                Of::Curves(Recorded, WRITE, LOCAL_WRITE, (512, 32768)),
                Within(0.97, 1.03),
            ),
            part("longer writes", Of::Curves(Recorded, WRITE, LOCAL_WRITE, (32769, 131_072)), AtMost(1.1)),
        ],
    ),
    rule(
        "VI-C30",
        &[
            beside("2 reads outstanding: rate over a local disk", READS, LOCAL_READS, 2, PAR),
            beside("8 writes outstanding", WRITES, LOCAL_WRITES, 8, PAR),
            beside("1 read: its time over a local disk", READ, LOCAL_READ, 8192, OVERHEAD),
            beside("1 write", WRITE, LOCAL_WRITE, 8192, OVERHEAD),
        ],
    ),
    rule(
        "VI-C31",
        &[
            grows("8 KiB cached, 2 outstanding: mean over 1", 2, 1, AtMost(1.5)),
            // Four times as many wait for as long.
            grows("16 outstanding over 4", 16, 4, Within(3.0, 5.0)),
        ],
    ),
    rule(
        "VI-C32",
        &[
            // 90 of 110 MB/s.
            part("1 outstanding, 128 KiB: rate over the highest", Of::Named(long_of_highest), Within(0.7, 0.95)),
            part("4 outstanding, 8 KiB: rate over the highest", Of::Named(four_of_highest), AtLeast(0.9)),
            ratio(
                "80 % hits, as many outstanding: rate over 100 %",
                Recorded,
                at("five disks, bytes/s: 80 % hits", 8192),
                at("five disks, bytes/s: 100 % hits", 8192),
                AtMost(0.9),
            ),
        ],
    ),
    rule(
        "VI-C33",
        &[part(
            "two processors of the node: time of a cached read over one's",
            Of::Curves(Recorded, "two processors, p50 ns", "one processor, p50 ns", ANYWHERE),
            AtMost(1.0),
        )],
    ),
    rule(
        "VI-C34",
        &[
            // Low: a tenth of one.
            part("one disk: share of a processor", Of::Value(Recorded, at(SHARE, 1)), AtMost(0.1)),
            ratio("5 disks over one", Recorded, at(SHARE, 5), at(SHARE, 1), AtLeast(1.5)),
        ],
    ),
    rule(
        "VI-C35",
        &[ratio(
            "RAID 0, a read of 640 KiB: at most 64 KiB at once over all at once",
            Recorded,
            at("five disks, a read, ns: at most 64 KiB", 655_360),
            at("five disks, a read, ns: all at once", 655_360),
            AtMost(1.0),
        )],
    ),
    rule(
        "VI-C36",
        &[
            beside(
                "two rows of 10 disks, at most 64 KiB at once: time over local",
                RAID_64,
                RAID_LOCAL,
                ROWS_BYTES,
                Within(1.5, 4.0),
            ),
            beside("– I/Os of disks", IOS_64, IOS_LOCAL, ROWS_BYTES, Within(1.5, 4.0)),
        ],
    ),
    rule(
        "VI-C37",
        &[
            beside("at most 256 KiB at once: time over local", RAID_256, RAID_LOCAL, ROWS_BYTES, AtMost(2.0)),
            part(
                "all at once, any length: time over local",
                Of::Curves(Recorded, RAID_WHOLE, RAID_LOCAL, ANYWHERE),
                AtMost(1.1),
            ),
            beside("– I/Os of disks", IOS_WHOLE, IOS_LOCAL, ROWS_BYTES, Within(1.0, 1.0)),
            beside("8 KiB, at most 64 KiB at once: time over local", RAID_64, RAID_LOCAL, 8192, Within(0.9, 1.1)),
            beside("– I/Os of disks", IOS_64, IOS_LOCAL, 8192, Within(1.0, 1.0)),
        ],
    ),
];

const HITS: &str = "hits, ns: node";
const NO_NODE: &str = "hits, ns: local disk";
const READ: &str = "cache off, a read, ns: node";
const LOCAL_READ: &str = "cache off, a read, ns: local disk";
const WRITE: &str = "cache off, a write, ns: node";
const LOCAL_WRITE: &str = "cache off, a write, ns: local disk";
const READS: &str = "cache off, reads/s: node";
const LOCAL_READS: &str = "cache off, reads/s: local disk";
const WRITES: &str = "cache off, writes/s: node";
const LOCAL_WRITES: &str = "cache off, writes/s: local disk";
const SHARE: &str = "node's share of a processor";
const RAID_LOCAL: &str = "RAID 5, a write, ns: local disks";
const RAID_64: &str = "RAID 5, a write, ns: at most 64 KiB";
const RAID_256: &str = "RAID 5, a write, ns: at most 256 KiB";
const RAID_WHOLE: &str = "RAID 5, a write, ns: all at once";
const IOS_LOCAL: &str = "RAID 5, I/Os of a write: local disks";
const IOS_64: &str = "RAID 5, I/Os of a write: at most 64 KiB";
const IOS_WHOLE: &str = "RAID 5, I/Os of a write: all at once";
/// Two rows of nine stripes of 64 KiB.
const ROWS_BYTES: u64 = 1_179_648;

const SHORT_READS: Of = Of::Curves(Recorded, READ, LOCAL_READ, (512, 65_535));
/// Equal, as near as can be measured.
const PAR: Wanted = AtLeast(0.97);
/// 3 to 10 %; of a read of 8 KiB VI-C28 asks for less than 3.
const OVERHEAD: Wanted = AtMost(1.1);

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "blocks", parts, optional: false }
}

const fn beside(says: &'static str, ours: &'static str, theirs: &'static str, x: u64, bar: Wanted) -> ClaimPart {
    ratio(says, Recorded, at(ours, x), at(theirs, x), bar)
}

const fn idle(says: &'static str, series: &'static str) -> ClaimPart {
    part(says, Of::Value(Recorded, at(series, 100)), AtMost(0.01))
}

const fn five(says: &'static str, series: &'static str, bar: Wanted) -> ClaimPart {
    part(says, Of::Curves(Recorded, series, "five disks, bytes/s: local", ANYWHERE), bar)
}

const fn grows(says: &'static str, x: u64, base: u64, bar: Wanted) -> ClaimPart {
    ratio(says, Recorded, at("cached, mean ns: shm", x), at("cached, mean ns: shm", base), bar)
}

fn values(figure: &Measured, series: &str, x: u64) -> Result<Vec<f64>, Lack> {
    figure.place(series, x, None)?.values(figure, Recorded)
}

/// Over a file of FUSE's, whichever way the kernel hands over its requests.
fn wdsa_over_fuse(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let fuse =
        values(figure, "cached, p50 ns: FUSE by io_uring", 1).or_else(|_| values(figure, "cached, p50 ns: FUSE", 1))?;
    let ratios = over(&values(figure, "cached, p50 ns: wDSA", 1)?, &fuse);
    Ok(Reading::of(String::new(), &ratios, false).into_iter().collect())
}

fn more_hits(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let mut readings = Vec::new();
    for (fewer, more) in [(0, 40), (40, 80), (80, 100)] {
        let ratios = over(&values(figure, HITS, more)?, &values(figure, HITS, fewer)?);
        readings.extend(Reading::of(format!("{more} %"), &ratios, false));
    }
    Ok(readings)
}

/// Over what four outstanding requests of the longest kind reach, or one, whichever is more.
fn of_highest(figure: &Measured, values_of: Vec<f64>) -> Result<Vec<Reading>, Lack> {
    let long = 131_072;
    let (one, four) = (values(figure, ONE, long)?, values(figure, FOUR, long)?);
    let highest: Vec<f64> = one.iter().zip(&four).map(|(one, four)| one.max(*four)).collect();
    Ok(Reading::of(String::new(), &over(&values_of, &highest), false).into_iter().collect())
}

fn long_of_highest(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    of_highest(figure, values(figure, ONE, 131_072)?)
}

fn four_of_highest(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    of_highest(figure, values(figure, FOUR, 8192)?)
}

const ONE: &str = "cached, bytes/s: 1 outstanding";
const FOUR: &str = "cached, bytes/s: 4 outstanding";
