//! rdma-sockets' table 2, the speed-up that it cites, and what its timing includes: transactions of
//! PostgreSQL a second, plainly and under the library.

use super::{at, part, ratio};
use crate::{
    measured::{Lack, Measured, Metric, Reading, over},
    verdict::{ClaimPart, Of, Rule, Wanted, ratios},
};
use Metric::Recorded;
use Wanted::{AtMost, Within};

pub(super) const RULES: &[Rule] = &[
    rule(
        "RS-C02",
        // About 70 %: neither a quarter less nor a quarter more of it. The cited library replaces Unix sockets.
        &[ratio(
            "TPC-B of one client over a Unix socket: the library over the kernel",
            Recorded,
            at("pgbench TPC-B, prepared, 1 client, per s: Unix socket, library", 0),
            at("pgbench TPC-B, prepared, 1 client, per s: Unix socket", 0),
            Within(1.53, 1.87),
        )],
    ),
    rule(
        "RS-C13",
        // Within a tenth. As measured there: psql replays what pgbench has sent, its connection's set-up and end included.
        &[ratio(
            "psql replays a session of pgbench over TCP: the library over the kernel",
            Recorded,
            at("psql replays a session of pgbench, per s: TCP, library", 0),
            at("psql replays a session of pgbench, per s: TCP", 0),
            Within(1.4, 1.72),
        )],
    ),
    // A result of before the two series says nothing of it.
    Rule {
        claim: "RS-C14",
        figure: "sockets",
        // What TCP is favoured by, the library gains less by. How slightly is not asked: there each session connects once.
        parts: &[part(
            "TPC-B of one client over TCP, the library over the kernel: with a connection each over with one for all",
            Of::Named(connecting),
            AtMost(1.0),
        )],
        optional: true,
    },
];

const fn rule(claim: &'static str, parts: &'static [ClaimPart]) -> Rule {
    Rule { claim, figure: "sockets", parts, optional: false }
}

/// What the library gains where each transaction has a connection of its own, over what it gains
/// where all have the same.
fn connecting(figure: &Measured) -> Result<Vec<Reading>, Lack> {
    let gain = |series: &str| {
        let place = |side: &str| figure.place(&format!("{series}, per s: {side}"), 0, None);
        ratios(figure, Recorded, place("TCP, library")?, place("TCP")?)
    };
    let [again, kept] =
        ["pgbench TPC-B, simple, 1 client, a connection each", "pgbench TPC-B, simple, 1 client"].map(gain);
    Ok(Reading::of(String::new(), &over(&again?, &kept?), false).into_iter().collect())
}
