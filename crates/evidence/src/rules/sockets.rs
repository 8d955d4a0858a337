//! rdma-sockets' table 2, and the speed-up that it cites: transactions of PostgreSQL a second,
//! plainly and under the library.

use super::{at, ratio};
use crate::{
    measured::Metric,
    verdict::{Part, Rule, Wanted},
};
use Metric::Recorded;
use Wanted::Within;

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
];

const fn rule(claim: &'static str, parts: &'static [Part]) -> Rule {
    Rule { claim, figure: "sockets", parts, optional: false }
}
