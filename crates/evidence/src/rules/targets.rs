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
                LESS,
            ),
            beside(
                "– 16 outstanding: rate",
                "in memory, reads, 16 outstanding, bytes/s: volume, shm",
                "in memory, reads, 16 outstanding, bytes/s: tgt",
                KIB_8,
                MORE,
            ),
            beside("– CPU of both ends", SHM_CPU, TGT_CPU, KIB_8, LESS),
            beside(
                "over tcp, 1 outstanding: time over iSCSI's",
                "in memory, reads, 1 outstanding, mean ns: volume, tcp",
                "in memory, reads, 1 outstanding, mean ns: tgt",
                KIB_8,
                LESS,
            ),
        ],
    ),
];

/// What is significant is a quarter at least.
const LESS: Wanted = AtMost(0.75);
const MORE: Wanted = AtLeast(1.25);
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

#[cfg(test)]
mod tests {
    use crate::{Says, judge};
    use serde_json::{Value, json};

    /// One that is a little better than iSCSI has no significant advantage, whichever is asked.
    #[test]
    fn a_volume_that_is_little_better_than_iscsi_differs() {
        let said = |of_iscsis: [f64; 4]| {
            let what = [
                ("1 outstanding, mean ns", "volume, shm"),
                ("16 outstanding, bytes/s", "volume, shm"),
                ("16 outstanding, CPU ns", "volume, shm"),
                ("1 outstanding, mean ns", "volume, tcp"),
            ];
            let place = |what: &str, side: &str, value: f64| json!({"series": format!("in memory, reads, {what}: {side}"), "x": 8192, "rounds": {"value": vec![value; 5]}});
            let mut all: Vec<Value> = what.iter().take(3).map(|(what, _)| place(what, "tgt", 1e5)).collect();
            all.extend(what.iter().zip(of_iscsis).map(|((what, side), times)| place(what, side, 1e5 * times)));
            let judged = judge(&json!({"figure": "targets", "measured": all})).unwrap();
            judged.iter().find(|one| one.claim == "VI-C57").unwrap().verdict
        };
        let better = [0.5, 2.0, 0.5, 0.5];
        assert_eq!(said(better), Says::Agrees);
        for (part, little) in [0.9, 1.1, 0.9, 0.9].into_iter().enumerate() {
            let mut one = better;
            one[part] = little;
            assert_eq!(said(one), Says::Differs, "{one:?}");
        }
    }
}
