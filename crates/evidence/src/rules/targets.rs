//! A volume beside iSCSI, NBD and a disk of this host. x is bytes of a request.

use super::{at, ratio};
use crate::{
    measured::Metric,
    verdict::{ClaimPart, Goals, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::{AtLeast, AtMost, Within};

/// In the order of the project's table.
pub(super) const GOALS: &Goals = &Goals {
    figure: "targets",
    parts: &[
        beside(
            "in memory, shm, 16 outstanding: CPU of both ends over tgt's",
            SHM_CPU,
            TGT_CPU,
            KIB_8,
            AtMost(1.0 / 3.0),
        ),
        beside(
            "in memory, tcp, 16 outstanding: CPU of both ends over tgt's",
            TCP_CPU,
            TGT_CPU,
            KIB_8,
            AtMost(1.0 / 3.0),
        ),
    ],
};

pub(super) const RULES: &[Rule] = &[
    rule(
        "VI-C55",
        &[
            // About a third.
            beside(
                "iSCSI on a disk, 128 KiB, 16 outstanding: rate over local",
                "on a disk, reads, 16 outstanding, bytes/s: tgt",
                "on a disk, reads, 16 outstanding, bytes/s: local",
                KIB_128,
                Within(0.25, 0.45),
            ),
            beside(
                "– 8 KiB, 1 outstanding: time over local",
                "on a disk, reads, 1 outstanding, mean ns: tgt",
                "on a disk, reads, 1 outstanding, mean ns: local",
                KIB_8,
                AtLeast(1.0),
            ),
        ],
    ),
    rule(
        "VI-C56",
        &[
            beside(
                "iSCSI on a disk, 8 KiB written, 1 outstanding: time over local",
                "on a disk, writes, 1 outstanding, mean ns: tgt",
                "on a disk, writes, 1 outstanding, mean ns: local",
                KIB_8,
                AtLeast(1.0),
            ),
            beside(
                "– 16 outstanding: rate",
                "on a disk, writes, 16 outstanding, bytes/s: tgt",
                "on a disk, writes, 16 outstanding, bytes/s: local",
                KIB_8,
                AtMost(1.0),
            ),
            beside(
                "– CPU of both ends",
                "on a disk, writes, 16 outstanding, CPU ns: tgt",
                "on a disk, writes, 16 outstanding, CPU ns: local",
                KIB_8,
                AtLeast(1.0),
            ),
        ],
    ),
    rule(
        "VI-C57",
        &[
            beside(
                "8 KiB in memory, shm, 1 outstanding: time over iSCSI's",
                "in memory, reads, 1 outstanding, mean ns: volume, shm",
                "in memory, reads, 1 outstanding, mean ns: tgt",
                KIB_8,
                AtMost(1.0),
            ),
            beside(
                "– 16 outstanding: rate",
                "in memory, reads, 16 outstanding, bytes/s: volume, shm",
                "in memory, reads, 16 outstanding, bytes/s: tgt",
                KIB_8,
                AtLeast(1.0),
            ),
            beside("– CPU of both ends", SHM_CPU, TGT_CPU, KIB_8, AtMost(1.0)),
            beside(
                "over tcp, 1 outstanding: time over iSCSI's",
                "in memory, reads, 1 outstanding, mean ns: volume, tcp",
                "in memory, reads, 1 outstanding, mean ns: tgt",
                KIB_8,
                AtMost(1.0),
            ),
        ],
    ),
];

const SHM_CPU: &str = "in memory, reads, 16 outstanding, CPU ns: volume, shm";
const TCP_CPU: &str = "in memory, reads, 16 outstanding, CPU ns: volume, tcp";
const TGT_CPU: &str = "in memory, reads, 16 outstanding, CPU ns: tgt";
const KIB_8: u64 = 8 << 10;
const KIB_128: u64 = 128 << 10;

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "targets", parts, optional: false }
}

const fn beside(says: &'static str, ours: &'static str, theirs: &'static str, x: u64, bar: Wanted) -> ClaimPart {
    ratio(says, Recorded, at(ours, x), at(theirs, x), bar)
}
