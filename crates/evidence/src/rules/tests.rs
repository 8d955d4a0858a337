//! Every rule can say everything: data is made up until each half has agreed, differed and, where
//! it is measured, not told.

use super::*;
use crate::{DataPoint, Judged, Lack, Measured, Says, SplitMix64, judge};
use serde_json::{Map, Value, json};

/// Numbers from a seed.
struct Made(SplitMix64);

impl Made {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    /// From a thousandth to a thousand, every size of number equally often.
    fn scale(&mut self) -> f64 {
        10f64.powf(self.below(6001) as f64 / 1000.0 - 3.0)
    }

    /// Rounds around one value; as often without noise as with much of it.
    fn rounds(&mut self, quiet: bool, value: f64) -> Value {
        let mut one = |_| if quiet { value } else { value * self.scale() };
        (0..7).map(&mut one).collect()
    }

    fn place(&mut self, series: &str, x: u64, rows: Option<u64>) -> DataPoint {
        let quiet = self.below(4) != 0;
        let mut rounds = Map::new();
        for name in ["bytes", "requests", "wall_ns", "receiver_ns", "value"] {
            let value = self.scale() * if name == "value" { 1.0 } else { 1e6 };
            rounds.insert(name.into(), self.rounds(quiet, value));
        }
        // Shares of time are shares: no more than all of it, most often.
        let busy = (1 + self.below(1050)) as f64 / 1000.0;
        let wall: Vec<f64> = rounds["wall_ns"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let sender: Vec<f64> =
            wall.iter().map(|wall| wall * if quiet { busy } else { (1 + self.below(1000)) as f64 / 1000.0 }).collect();
        let idle = self.below(1000) as f64 / 1000.0;
        rounds.insert("sender_poll_ns".into(), sender.iter().map(|ns| ns * idle).collect());
        rounds.insert("sender_ns".into(), json!(sender));
        rounds.insert("receiver_poll_ns".into(), json!([0, 0, 0, 0, 0, 0, 0]));
        DataPoint { series: series.to_owned(), x, rows, rounds, exact: None }
    }

    /// What was missing.
    fn supply(&mut self, figure: &mut Measured, lack: &Lack) {
        let Some(x) = lack.x else {
            // A curve: one place or several, that begin and end somewhere.
            for _ in 0..1 + self.below(4) {
                let x = [1u64, 64, 1024, 2048, 4096, 6144, 16384, 65536][self.below(8)];
                let place = self.place(&lack.series, x, lack.rows);
                figure.places.push(place);
            }
            return;
        };
        let place = self.place(&lack.series, x, lack.rows);
        figure.places.push(place);
    }
}

/// A figure with everything that parts ask for.
fn made_up(name: &str, parts: &[ClaimPart], seed: u64) -> Vec<Judged> {
    let mut made = Made(SplitMix64(seed));
    let mut figure = Measured { figure: name.to_owned(), places: Vec::new() };
    // What is counted takes the numbers that the paper states, or others.
    let counts = [1.0, 2.0, 5.0, 10.0, 12.0, 64.0, 4096.0, 327_680.0, 1e6];
    for _ in 0..200 {
        let lack = parts.iter().find_map(|part| part.of.readings(&figure).err());
        match lack {
            Some(lack) => made.supply(&mut figure, &lack),
            None => break,
        }
        let last = figure.places.len() - 1;
        if made.below(3) == 0 {
            let counted = counts[made.below(counts.len())];
            // Of all that is counted this alone is to be nothing at all, and nothing is divided by it.
            let nothing = figure.places[last].series == "idle, bytes written" && made.below(2) == 0;
            figure.places[last].exact = Some(if nothing { 0.0 } else { counted });
        }
    }
    parts.iter().map(|part| part.judge(&figure)).collect()
}

#[test]
fn every_half_of_every_rule_can_agree_differ_and_not_tell() {
    let claims = rules().map(|rule| (rule.claim, rule.figure, rule.parts));
    let bars = goals().map(|goals| ("bars", goals.figure, goals.parts));
    for (of, name, parts) in claims.chain(bars) {
        let mut seen = vec![[false; 3]; parts.len()];
        let mut seed = 0;
        // A count has no interval, so it always tells.
        let complete = |(says, part): (&[bool; 3], &ClaimPart)| says[0] && says[2] && (says[1] || counted(part));
        while !seen.iter().zip(parts).all(complete) && seed < SEEDS {
            for (says, judged) in seen.iter_mut().zip(made_up(name, parts, seed)) {
                assert!(judged.lacks.is_none(), "{of}: {judged}");
                says[judged.verdict as usize] = true;
            }
            seed += 1;
        }
        for (part, [agrees, cannot_tell, differs]) in parts.iter().zip(seen) {
            assert!(agrees && differs, "{of}: no data makes `{}` agree ({agrees}) and differ ({differs})", part.says);
            assert!(cannot_tell || counted(part), "{of}: `{}` always tells", part.says);
        }
    }
}

/// What is missed is said to be missed, by the figure's own JSON, and what cannot be told is not
/// called met.
#[test]
fn a_figure_that_misses_its_bars_says_so() {
    let place = |series: &str, value: f64, spread: f64| {
        json!({"series": series, "x": 0, "rounds": {"value":
        [value, value * (1.0 + spread), value * (1.0 - spread), value * (1.0 + spread), value * (1.0 - spread)]}})
    };
    let said = |sync: f64, spread: f64| {
        let figure = json!({"figure": "durability", "measured": [
            place("one row, p50 ns: in memory", 20e3, 0.0), place("one row, p50 ns: sync", sync, spread),
            place("bare write of 4 KiB, p50 ns", 100e3, 0.0)]});
        let bars = crate::bars(&figure).unwrap().unwrap();
        (bars[0].verdict, bars[1].verdict, bars[0].ratio.map(|ratio| (ratio.median * 100.0).round() / 100.0))
    };
    assert_eq!(said(120e3, 0.0), (crate::Verdict::Met, crate::Verdict::NotMeasured, Some(1.0)));
    assert_eq!(said(180e3, 0.0), (crate::Verdict::Missed, crate::Verdict::NotMeasured, Some(1.5)));
    assert_eq!(said(150e3, 0.2).0, crate::Verdict::CannotTell);
    assert_eq!(crate::bars(&json!({"figure": "messages", "measured": []})).unwrap().map(|bars| bars.len()), None);
}

/// Whether a part may be asked of counts alone.
fn counted(part: &ClaimPart) -> bool {
    let number = matches!(part.bar, Wanted::Within(least, most) if least == most);
    number || matches!(part.of, Of::End(_) | Of::Named(_))
}

#[test]
fn a_figure_without_the_series_cannot_tell_and_names_it() {
    for rule in rules() {
        let judgement = rule.judge(&Measured { figure: rule.figure.to_owned(), places: Vec::new() });
        assert_eq!(judgement.verdict, Says::CannotTell, "{}", rule.claim);
        assert!(judgement.lacks().is_some_and(|lack| lack.contains("lacks the series")), "{}", rule.claim);
    }
}

#[test]
fn rules_ask_figures_that_there_are_and_stand_once() {
    let mut seen = std::collections::BTreeSet::new();
    for rule in rules() {
        assert!(crate::FIGURES.contains(&rule.figure), "{}: {}", rule.claim, rule.figure);
        assert!(seen.insert((rule.claim, rule.figure)), "{} asks {} twice", rule.claim, rule.figure);
        assert!(!rule.parts.is_empty(), "{} asks nothing", rule.claim);
    }
}

/// Five rounds of a place.
fn place(series: &str, x: u64, gb_per_s: f64, work: f64) -> Value {
    let bytes = gb_per_s * 1e9;
    json!({"series": series, "x": x, "rounds": {
        "bytes": vec![bytes; 5], "wall_ns": [1e9, 1e9, 1e9, 1e9, 1e9], "requests": [1000, 1000, 1000, 1000, 1000],
        "sender_ns": vec![bytes * work; 5], "sender_poll_ns": [0, 0, 0, 0, 0],
    }})
}

fn verdict(points: &[Value], claim: &str) -> (Says, String) {
    let figure = json!({"figure": "transmit", "points": points});
    let all = judge(&figure).unwrap();
    let one = all.iter().find(|judgement| judgement.claim == claim).unwrap();
    (one.verdict, one.here())
}

/// The paper's server sends to 15 clients in every experiment: no part reads the curves of one
/// client.
#[test]
fn what_is_asked_of_transmit_and_delta_is_asked_of_15_clients() {
    let mut made = Made(SplitMix64(1));
    let asked = rules().filter(|rule| ["transmit", "delta"].contains(&rule.figure));
    for (claim, part) in asked.flat_map(|rule| rule.parts.iter().map(|part| (rule.claim, part))) {
        let mut figure = Measured::default();
        for _ in 0..200 {
            let Err(lack) = part.of.readings(&figure) else { break };
            assert!(lack.series.ends_with(", 15 clients"), "{claim}, {}: {lack}", part.says);
            made.supply(&mut figure, &lack);
        }
        assert!(!figure.places.is_empty(), "{claim}, {} asks nothing", part.says);
    }
}

/// 44 % ahead on short results, and as far ahead at 16 records: half of the claim.
#[test]
fn gathering_that_stays_ahead_at_16_records_differs() {
    let mut points = vec![
        place("copy-out 1024 B, 15 clients", 4096, 5.0, 0.1),
        place("zero-copy 1024 B, 15 clients", 4096, 7.2, 0.1),
    ];
    points.extend([
        place("copy-out 1024 B, 15 clients", 16384, 8.0, 0.1),
        place("zero-copy 1024 B, 15 clients", 16384, 11.5, 0.1),
    ]);
    let (says, here) = verdict(&points, "TC-C16");
    assert_eq!(says, Says::Differs, "{here}");
    points.pop();
    points.push(place("zero-copy 1024 B, 15 clients", 16384, 8.1, 0.1));
    assert_eq!(verdict(&points, "TC-C16").0, Says::Agrees);
}

/// The sender waits a third of its time by gathering and never by copying out: the paper says
/// mostly, of both.
#[test]
fn a_sender_that_hardly_waits_differs() {
    let curves = [
        "copy-out 1024 B, 15 clients",
        "zero-copy 1024 B, 15 clients",
        "copy-out 128 B, 15 clients",
        "zero-copy 128 B, 15 clients",
    ];
    let of = |shares: [f64; 4]| -> Vec<Value> {
        curves.iter().zip(shares).map(|(name, busy)| place(name, 65536, 1.0, busy)).collect()
    };
    assert_eq!(verdict(&of([0.99, 0.66, 0.99, 0.9]), "TC-C22").0, Says::Differs);
    assert_eq!(verdict(&of([0.2, 0.1, 0.3, 0.3]), "TC-C22").0, Says::Agrees);
    assert_eq!(verdict(&of([0.2, 0.1, 0.3, 0.6]), "TC-C22").0, Says::Differs);
}

/// Less work in nine places of ten is not less work in every case.
#[test]
fn one_send_with_more_work_refutes_every_case() {
    let mut points = Vec::new();
    for x in [1024, 4096, 16384] {
        points.extend([
            place("copy-out 1024 B, 15 clients", x, 1.0, 0.4),
            place("zero-copy 1024 B, 15 clients", x, 1.0, 0.2),
        ]);
        points.extend([
            place("copy-out 128 B, 15 clients", x, 1.0, 0.4),
            place("zero-copy 128 B, 15 clients", x, 1.0, 0.3),
        ]);
    }
    assert_eq!(verdict(&points, "TC-C23").0, Says::Agrees);
    points.pop();
    points.push(place("zero-copy 128 B, 15 clients", 16384, 1.0, 0.5));
    let (says, here) = verdict(&points, "TC-C23");
    assert_eq!(says, Says::Differs, "{here}");
    assert!(here.contains("(at 16384)"), "{here}");
}

/// Of small records copying is ahead, work grows with a list, and lists end. Where as many bytes in
/// one entry pay no better, it is not for the entries. Where a shorter list goes as fast as the
/// longest, it is not for their end.
#[test]
fn gathering_does_not_pay_for_its_entries_and_for_their_end() {
    let said = |in_one_entry: f64, before_the_end: f64| {
        let points = [
            place("copy-out 128 B, 15 clients", 131_072, 8.0, 0.1),
            place("zero-copy 128 B, 15 clients", 128, 4.0, 0.05),
            place("zero-copy 128 B, 15 clients", 16384, before_the_end, 0.1),
            place("zero-copy 128 B, 15 clients", 32768, 7.0, 0.1),
            place("copy-out 256 B, 15 clients", 16384, 8.0, 0.1),
            place("zero-copy 256 B, 15 clients", 16384, 9.0, 0.1),
            place("copy-out 16384 B, 15 clients", 16384, 8.0, 0.1),
            place("zero-copy 16384 B, 15 clients", 16384, in_one_entry, 0.1),
        ];
        verdict(&points, "TC-C06").0
    };
    assert_eq!([said(16.0, 6.0), said(8.5, 6.0), said(16.0, 7.5)], [Says::Agrees, Says::Differs, Says::Differs]);
}

/// Gets that take no longer beside scans than beside nothing refute that large transfers harm them;
/// and where most of a request is the server's work, it is not its transfer.
#[test]
fn requests_that_scans_do_not_disturb_differ() {
    let modes = ["copy", "gather", "delta", "in-place", "auto"];
    let said = |beside_scans: f64, echo: f64| {
        let recorded =
            |series: String, value: f64| json!({"series": series, "x": 0, "rounds": {"value": vec![value; 5]}});
        let mut all = Vec::new();
        for kind in ["get", "put"] {
            for share in ["p50", "p99", "p99.9"] {
                all.extend(modes.map(|mode| recorded(format!("{kind}, {share} ns: {mode}"), beside_scans)));
                all.extend(
                    ["undisturbed", "busy thread"].map(|load| recorded(format!("{kind}, {share} ns: {load}"), 1e4)),
                );
            }
        }
        for kind in ["get", "put", "range"] {
            all.push(recorded(format!("split {kind}, p50 ns: tcp"), 1e4));
            all.push(recorded(format!("echo of a {kind}, p50 ns: tcp"), echo));
        }
        let judged = judge(&json!({"figure": "mixed", "measured": all})).unwrap();
        judged.iter().map(|judgement| judgement.verdict).collect::<Vec<_>>()
    };
    // TH-C13, TH-C16, TH-C18.
    assert_eq!(said(1.5e4, 8e3), [Says::Agrees, Says::Agrees, Says::Agrees]);
    assert_eq!(said(0.9e4, 4e3), [Says::Agrees, Says::Differs, Says::Differs]);
    assert_eq!(said(9e4, 8e3), [Says::Differs, Says::Agrees, Says::Agrees]);
}

/// Buffers that stay in the cache cost memory the reads alone.
#[test]
fn copies_that_add_one_read_differ_from_twice_the_rate() {
    let said = |added: f64| {
        let exact = |x: u64| json!({"series": "memory traffic that copying adds", "x": x, "exact": added});
        let figure = json!({"figure": "costs", "measured": [exact(128), exact(1024)]});
        judge(&figure).unwrap().iter().find(|one| one.claim == "TC-C26").unwrap().verdict
    };
    assert_eq!((said(2.0), said(1.0), said(3.0)), (Says::Agrees, Says::Differs, Says::Differs));
}

/// Twice the transactions are not 70 % more of them, and half as many more are not 1.56 times.
#[test]
fn transactions_that_gain_more_or_less_than_stated_differ() {
    let said = |gain: f64| {
        let rate = |of: &str, side: &str, value: f64| json!({"series": format!("{of}, per s: {side}"), "x": 0, "rounds": {"value": vec![value; 5]}});
        let pair =
            |of: &str, family: &str| [rate(of, family, 1e3), rate(of, &format!("{family}, library"), 1e3 * gain)];
        let all = [
            pair("pgbench TPC-B, prepared, 1 client", "Unix socket"),
            pair("psql replays a session of pgbench", "TCP"),
        ];
        let judged = judge(&json!({"figure": "sockets", "measured": all.as_flattened()})).unwrap();
        judged.iter().map(|judgement| judgement.verdict).collect::<Vec<_>>()
    };
    // RS-C02, RS-C13; RS-C14 asks other series.
    assert_eq!(said(1.7), [Says::Agrees, Says::Agrees, Says::CannotTell]);
    assert_eq!(said(1.3), [Says::Differs, Says::Differs, Says::CannotTell]);
    assert_eq!(said(2.0), [Says::Differs, Says::Differs, Says::CannotTell]);
}

/// Where the library gains more by transactions that connect each, counting set-up does not favour
/// TCP.
#[test]
fn set_up_that_favours_the_library_differs() {
    let said = |kept: f64, again: f64| {
        let rate = |of: &str, side: &str, value: f64| json!({"series": format!("{of}, per s: {side}"), "x": 0, "rounds": {"value": vec![value; 5]}});
        let pair = |of: &str, plain: f64, gain: f64| [rate(of, "TCP", plain), rate(of, "TCP, library", plain * gain)];
        let simple = "pgbench TPC-B, simple, 1 client";
        let all = [pair(simple, 1e3, kept), pair(&format!("{simple}, a connection each"), 1e2, again)];
        let judged = judge(&json!({"figure": "sockets", "measured": all.as_flattened()})).unwrap();
        judged.iter().find(|one| one.claim == "RS-C14").unwrap().verdict
    };
    assert_eq!((said(1.3, 1.1), said(1.3, 1.4), said(0.9, 1.0)), (Says::Agrees, Says::Differs, Says::Differs));
}

/// An atomic that takes less than a plain operation is not slower.
#[test]
fn an_atomic_that_is_faster_than_a_write_differs() {
    let said = |add: f64| {
        let word = |of: &str, ns: f64| json!({"series": format!("a word, ns: {of}"), "x": 8, "rounds": {"value": vec![ns; 5]}});
        let figure = json!({"figure": "costs", "measured": [word("WRITE", 1000.0), word("FETCH_ADD", add)]});
        judge(&figure).unwrap().iter().find(|one| one.claim == "RS-C04").unwrap().verdict
    };
    assert_eq!((said(1500.0), said(900.0)), (Says::Agrees, Says::Differs));
}

/// Where gathering rows through an index is faster, copying them out is not.
#[test]
fn an_index_through_which_gathering_is_faster_differs() {
    let said = |copied: f64, gathered: f64| {
        let rate = |mode: &str, value: f64| {
            let series = format!("through an index, rows/s: {mode}");
            json!({"series": series, "x": 10_000, "rounds": {"value": vec![value; 5]}})
        };
        let figure = json!({"figure": "scans", "measured": [rate("copy", copied), rate("gather", gathered)]});
        judge(&figure).unwrap()[0].verdict
    };
    assert_eq!((said(2e6, 1e6), said(1e6, 2e6)), (Says::Agrees, Says::Differs));
}

/// Bytes in the descriptor that cost twice what copying does are not almost as cheap.
#[test]
fn inline_sends_that_are_far_from_copies_differ() {
    let said = |rate: f64, work: f64| {
        let points = [64, 256].map(|x| {
            [place("copy-out 64 B, 15 clients", x, 1.0, 0.4), place("inline 64 B, 15 clients", x, rate, work)]
        });
        verdict(points.as_flattened(), "TC-C44").0
    };
    assert_eq!((said(1.1, 0.38), said(0.5, 0.4), said(1.0, 0.8)), (Says::Agrees, Says::Differs, Says::Differs));
}

/// A node that does all that the paper says of one, and all that the project wants.
const NODE: [(&str, u64, f64); 71] = [
    ("idle sessions, share of a processor: at rest", 100, 0.002),
    ("idle sessions, share of a processor: 1 s after full load", 100, 0.003),
    ("cached, CPU ns: tcp", 16, 6e3),
    ("hits, ns: node", 0, 6.06e6),
    ("hits, ns: node", 40, 3.6e6),
    ("hits, ns: node", 80, 1.2e6),
    ("hits, ns: node", 100, 2e4),
    ("hits, ns: local disk", 0, 6e6),
    ("five disks, bytes/s: local", 8192, 1e7),
    ("five disks, bytes/s: local", 65536, 6e7),
    ("five disks, bytes/s: no hits", 8192, 1e7),
    ("five disks, bytes/s: no hits", 65536, 6e7),
    ("five disks, bytes/s: 80 % hits", 8192, 4e7),
    ("five disks, bytes/s: 80 % hits", 65536, 2e8),
    ("five disks, bytes/s: 100 % hits", 8192, 1e9),
    ("five disks, bytes/s: 100 % hits", 65536, 4.8e9),
    ("copied, bytes/s", 65536, 5e9),
    ("cache off, a read, ns: node", 512, 6.06e6),
    ("cache off, a read, ns: node", 8192, 6.06e6),
    ("cache off, a read, ns: node", 32768, 6.06e6),
    ("cache off, a read, ns: node", 131_072, 6.6e6),
    ("cache off, a read, ns: local disk", 512, 6e6),
    ("cache off, a read, ns: local disk", 8192, 6e6),
    ("cache off, a read, ns: local disk", 32768, 6e6),
    ("cache off, a read, ns: local disk", 131_072, 6e6),
    ("cache off, a write, ns: node", 512, 6.06e6),
    ("cache off, a write, ns: node", 8192, 6.06e6),
    ("cache off, a write, ns: node", 32768, 6.06e6),
    ("cache off, a write, ns: node", 65536, 6.06e6),
    ("cache off, a write, ns: node", 131_072, 6.3e6),
    ("cache off, a write, ns: local disk", 512, 6e6),
    ("cache off, a write, ns: local disk", 8192, 6e6),
    ("cache off, a write, ns: local disk", 32768, 6e6),
    ("cache off, a write, ns: local disk", 65536, 6e6),
    ("cache off, a write, ns: local disk", 131_072, 6e6),
    ("cache off, reads/s: node", 2, 170.0),
    ("cache off, reads/s: local disk", 2, 170.0),
    ("cache off, writes/s: node", 8, 170.0),
    ("cache off, writes/s: local disk", 8, 170.0),
    ("cached, mean ns: shm", 1, 1e4),
    ("cached, mean ns: shm", 2, 1.2e4),
    ("cached, mean ns: shm", 4, 2.5e4),
    ("cached, mean ns: shm", 16, 1e5),
    ("cached, bytes/s: 1 outstanding", 131_072, 4e9),
    ("cached, bytes/s: 4 outstanding", 131_072, 5e9),
    ("cached, bytes/s: 4 outstanding", 8192, 4.7e9),
    ("two processors, p50 ns", 8192, 9e3),
    ("one processor, p50 ns", 8192, 1e4),
    ("node's share of a processor", 1, 0.02),
    ("node's share of a processor", 5, 0.08),
    ("five disks, a read, ns: at most 64 KiB", 655_360, 9e6),
    ("five disks, a read, ns: all at once", 655_360, 9.5e6),
    ("RAID 5, a write, ns: local disks", 8192, 1.2e7),
    ("RAID 5, a write, ns: local disks", 1_179_648, 1e7),
    ("RAID 5, a write, ns: at most 64 KiB", 8192, 1.2e7),
    ("RAID 5, a write, ns: at most 64 KiB", 1_179_648, 3.5e7),
    ("RAID 5, a write, ns: at most 256 KiB", 1_179_648, 1.8e7),
    ("RAID 5, a write, ns: all at once", 8192, 1.2e7),
    ("RAID 5, a write, ns: all at once", 1_179_648, 1e7),
    ("RAID 5, I/Os of a write: local disks", 8192, 4.0),
    ("RAID 5, I/Os of a write: local disks", 1_179_648, 20.0),
    ("RAID 5, I/Os of a write: at most 64 KiB", 8192, 4.0),
    ("RAID 5, I/Os of a write: at most 64 KiB", 1_179_648, 72.0),
    ("RAID 5, I/Os of a write: all at once", 1_179_648, 20.0),
    ("cached, p50 ns: shm", 1, 5e3),
    ("cached, p50 ns: tcp", 1, 1.4e4),
    ("cached, CPU ns: shm", 1, 1e4),
    ("cached, CPU ns: shm", 16, 3e3),
    ("cached, CPU ns: tcp", 1, 3e4),
    ("cached, requests/s: NBD", 1, 4e4),
    ("cached, requests/s: NBD", 16, 1e5),
];

/// The servers beside it.
const PEERS: [(&str, u64, f64); 13] = [
    ("cached, p50 ns: FUSE", 1, 2.2e4),
    ("cached, p50 ns: wDSA", 1, 1.2e4),
    ("cached, p50 ns: ext4 on a loop, FUSE", 1, 4e4),
    ("cached, p50 ns: ext4 on a loop, nbdfuse", 1, 9e4),
    ("cached, p50 ns: nbdkit", 1, 2.8e4),
    ("cached, CPU ns: nbdkit", 1, 3.4e4),
    ("cached, p50 ns: nbdkit over TCP", 1, 3.6e4),
    ("cached, CPU ns: nbdkit over TCP", 1, 4e4),
    ("cached, CPU ns: qemu-nbd", 16, 2e4),
    ("cached, requests/s: nbdkit", 1, 3.5e4),
    ("cached, requests/s: nbdkit", 16, 9e4),
    ("cached, requests/s: qemu-nbd", 1, 1.5e4),
    ("cached, requests/s: qemu-nbd", 16, 4e4),
];

/// The figure's JSON, with other values at some places.
fn blocks(all: &[(&str, u64, f64)], other: &[(&str, u64, f64)]) -> Value {
    let place = |(series, x, value): &(&str, u64, f64)| {
        let value = other.iter().find(|(s, at, _)| s == series && at == x).map_or(*value, |(_, _, value)| *value);
        match series.contains("I/Os") {
            true => json!({"series": series, "x": x, "exact": value}),
            false => json!({"series": series, "x": x, "rounds": {"value": vec![value; 5]}}),
        }
    };
    json!({"figure": "blocks", "measured": all.iter().map(place).collect::<Vec<_>>()})
}

/// Each half of each claim, broken by one place.
#[test]
fn a_node_that_does_not_do_what_the_paper_says_differs() {
    let said = |other: &[(&str, u64, f64)]| -> Vec<(&'static str, Says, String)> {
        let all = judge(&blocks(&NODE, other)).unwrap();
        all.iter().map(|judgement| (judgement.claim, judgement.verdict, judgement.here())).collect()
    };
    for (claim, says, here) in said(&[]) {
        assert_eq!(says, Says::Agrees, "{claim}: {here}");
    }
    for (claim, series, x, value) in [
        ("VI-C18", "hits, ns: node", 40, 4.8e6),
        ("VI-C18", "hits, ns: node", 80, 3.5e6),
        ("VI-C18", "cache off, a read, ns: node", 8192, 6e6),
        ("VI-C19", "five disks, bytes/s: no hits", 65536, 4e7),
        ("VI-C19", "five disks, bytes/s: 80 % hits", 8192, 8e6),
        ("VI-C19", "five disks, bytes/s: 80 % hits", 65536, 6e7),
        ("VI-C19", "five disks, bytes/s: 100 % hits", 65536, 3e9),
        ("VI-C28", "cache off, a read, ns: node", 32768, 6.3e6),
        ("VI-C28", "cache off, a read, ns: node", 131_072, 6.06e6),
        ("VI-C29", "cache off, a write, ns: node", 512, 6.3e6),
        ("VI-C29", "cache off, a write, ns: node", 65536, 6.9e6),
        ("VI-C29", "cache off, a write, ns: node", 131_072, 6.9e6),
        ("VI-C30", "cache off, reads/s: node", 2, 160.0),
        ("VI-C30", "cache off, writes/s: node", 8, 160.0),
        ("VI-C30", "cache off, a read, ns: node", 8192, 7e6),
        ("VI-C30", "cache off, a write, ns: node", 8192, 7e6),
        ("VI-C31", "cached, mean ns: shm", 2, 1.9e4),
        ("VI-C31", "cached, mean ns: shm", 16, 5e4),
        ("VI-C32", "cached, bytes/s: 1 outstanding", 131_072, 2e9),
        ("VI-C32", "cached, bytes/s: 4 outstanding", 8192, 2e9),
        ("VI-C32", "five disks, bytes/s: 100 % hits", 8192, 4e7),
        ("VI-C33", "two processors, p50 ns", 8192, 1.1e4),
        ("VI-C34", "node's share of a processor", 1, 0.2),
        ("VI-C34", "node's share of a processor", 5, 0.02),
        ("VI-C35", "five disks, a read, ns: at most 64 KiB", 655_360, 1.2e7),
        ("VI-C36", "RAID 5, a write, ns: at most 64 KiB", 1_179_648, 1.1e7),
        ("VI-C36", "RAID 5, a write, ns: at most 64 KiB", 1_179_648, 6e7),
        ("VI-C36", "RAID 5, I/Os of a write: at most 64 KiB", 1_179_648, 20.0),
        ("VI-C37", "RAID 5, a write, ns: at most 256 KiB", 1_179_648, 2.5e7),
        ("VI-C37", "RAID 5, a write, ns: all at once", 8192, 1.5e7),
        ("VI-C37", "RAID 5, I/Os of a write: all at once", 1_179_648, 38.0),
        ("VI-C37", "RAID 5, a write, ns: at most 64 KiB", 8192, 2e7),
        ("VI-C37", "RAID 5, I/Os of a write: at most 64 KiB", 8192, 10.0),
    ] {
        let all = said(&[(series, x, value)]);
        let (_, says, here) = all.iter().find(|(other, ..)| *other == claim).unwrap();
        assert_eq!(*says, Says::Differs, "{claim} with {series} at {x} of {value}: {here}");
    }
}

#[test]
fn a_node_that_misses_its_bars_is_said_to() {
    let all: Vec<_> = NODE.into_iter().chain(PEERS).collect();
    let judged = |other: &[(&str, u64, f64)]| crate::bars(&blocks(&all, other)).unwrap().unwrap();
    for bar in judged(&[]).iter().filter(|bar| !bar.name.contains("by io_uring")) {
        assert_eq!(bar.verdict, crate::Verdict::Met, "{}: {:?}", bar.name, bar.ratio);
    }
    for (name, series, x, value) in [
        ("shm, 1 outstanding: p50 over", "cached, p50 ns: nbdkit", 1, 1.5e4),
        ("shm, 1 outstanding: CPU", "cached, CPU ns: nbdkit", 1, 1.5e4),
        ("a goal", "cached, p50 ns: shm", 1, 6.5e3),
        ("tcp, 1 outstanding: p50", "cached, p50 ns: nbdkit over TCP", 1, 1.5e4),
        ("tcp, 1 outstanding: CPU", "cached, CPU ns: nbdkit over TCP", 1, 2e4),
        ("shm, 16 outstanding: CPU", "cached, CPU ns: qemu-nbd", 16, 8e3),
        ("tcp, 16 outstanding: CPU", "cached, CPU ns: tcp", 16, 7e3),
        ("FUSE by /dev/fuse", "cached, p50 ns: FUSE", 1, 2.7e4),
        ("a loop's on nbdfuse", "cached, p50 ns: ext4 on a loop, FUSE", 1, 5e4),
        ("wDSA's pread", "cached, p50 ns: wDSA", 1, 1.5e4),
        ("NBD, 1 outstanding: requests/s over nbdkit", "cached, requests/s: nbdkit", 1, 5e4),
        ("NBD, 16 outstanding: requests/s over nbdkit", "cached, requests/s: nbdkit", 16, 2e5),
        ("NBD, 1 outstanding: requests/s over qemu", "cached, requests/s: qemu-nbd", 1, 3e4),
        ("NBD, 16 outstanding: requests/s over qemu", "cached, requests/s: qemu-nbd", 16, 6e4),
        ("reads below 64 KiB", "cache off, a read, ns: node", 32768, 6.3e6),
        ("40 % hits", "hits, ns: node", 40, 4.8e6),
        ("2 reads outstanding", "cache off, reads/s: node", 2, 160.0),
        ("8 writes outstanding", "cache off, writes/s: node", 8, 160.0),
        ("100 idle sessions", "idle sessions, share of a processor: at rest", 100, 0.02),
        ("1 s after full load", "idle sessions, share of a processor: 1 s after full load", 100, 0.02),
    ] {
        let bars = judged(&[(series, x, value)]);
        let bar = bars.iter().find(|bar| bar.name.contains(name)).unwrap();
        assert_eq!(bar.verdict, crate::Verdict::Missed, "{name}: {:?}", bar.ratio);
    }
    // A file's requests came one way, and its bar is that way's.
    use crate::Verdict::{Met, Missed, NotMeasured};
    let ways = |name: &'static str, fuse: f64| {
        let without = all.iter().copied().filter(|(series, ..)| *series != "cached, p50 ns: FUSE");
        let bars = crate::bars(&blocks(&without.chain([(name, 1, fuse)]).collect::<Vec<_>>(), &[])).unwrap().unwrap();
        ["FUSE by /dev/fuse", "FUSE by io_uring", "wDSA's pread"]
            .map(|name| bars.iter().find(|bar| bar.name.contains(name)).unwrap().verdict)
    };
    let names = ["cached, p50 ns: FUSE", "cached, p50 ns: FUSE by io_uring"];
    assert_eq!(names.map(|name| ways(name, 2.2e4)), [[Met, NotMeasured, Met], [NotMeasured, Met, Met]]);
    assert_eq!(names.map(|name| ways(name, 2.7e4)), [[Missed, NotMeasured, Met], [NotMeasured, Missed, Met]]);
    assert_eq!(ways(names[1], 1.5e4), [NotMeasured, Met, Missed]);
    // Without the peers, what needs them was not measured.
    let alone = crate::bars(&blocks(&NODE, &[])).unwrap().unwrap();
    let lacking = alone.iter().filter(|bar| bar.verdict == NotMeasured).count();
    assert_eq!((lacking, alone.len()), (14, 21));
}

/// Where LRU has nearly the hits of MQ it suits, and where the default has fewer than another
/// policy that is said.
#[test]
fn a_trace_that_suits_lru_differs() {
    let figure = |lru: f64, default: f64, warmest: f64| {
        let mut all =
            vec![json!({"series": "second level: accesses to the warmest fifth, share", "x": 0, "exact": warmest})];
        for trace in ["zipf", "scan", "loop", "mixed", "second level"] {
            let hits = [
                ("mq", 0.4),
                ("lru", lru),
                ("arc", 0.3),
                ("2q", 0.3),
                ("lirs", 0.3),
                ("s3-fifo", 0.3),
                ("w-tinylfu", default),
            ];
            all.extend(
                hits.map(|(policy, hits)| json!({"series": format!("{trace}: {policy}"), "x": 10, "exact": hits})),
            );
        }
        json!({"figure": "policies", "measured": all})
    };
    let said = |lru: f64, warmest: f64| judge(&figure(lru, 0.45, warmest)).unwrap()[0].verdict;
    assert_eq!((said(0.2, 0.7), said(0.39, 0.7), said(0.2, 0.3)), (Says::Agrees, Says::Differs, Says::Differs));
    let bars = |default: f64| crate::bars(&figure(0.2, default, 0.7)).unwrap().unwrap();
    assert!(bars(0.45).iter().all(|bar| bar.verdict == crate::Verdict::Met));
    // MQ is one of the others.
    assert!(bars(0.39).iter().all(|bar| bar.verdict == crate::Verdict::Missed));
}

/// A client that polls for nothing, a volume that costs less than its transport, and a way
/// through the kernel that costs less than the native one.
#[test]
fn clients_that_are_not_as_the_paper_has_them_differ() {
    let said = |values: [f64; 8]| {
        let series = [
            ("a read, p50 ns: native, asleep", 8192),
            ("a read, p50 ns: bare transport", 8192),
            ("a read, client's CPU ns: native", 8192),
            ("a read, client's CPU ns: native, asleep", 8192),
            ("a read, p50 ns: node's front", 8192),
            ("a read, client's CPU ns: node's front", 8192),
            ("a read, node's work over its time: native, asleep", 2048),
            ("a read, node's work over its time: native, asleep", 8192),
        ];
        let place = |((series, x), value): ((&str, u64), f64)| json!({"series": series, "x": x, "rounds": {"value": vec![value; 5]}});
        let all: Vec<Value> = series.into_iter().zip(values).map(place).collect();
        let judged = judge(&json!({"figure": "clients", "measured": all})).unwrap();
        let asked = judged.iter().filter(|judgement| judgement.lacks().is_none());
        asked.map(|judgement| judgement.verdict).collect::<Vec<_>>()
    };
    use Says::{Agrees, Differs};
    // VI-C05, VI-C20, VI-C23, VI-C27.
    assert_eq!(said([2e4, 1e4, 2e4, 1e4, 3e4, 3e4, 0.2, 0.09]), [Agrees; 4]);
    assert_eq!(said([0.9e4, 1e4, 1e4, 1e4, 0.8e4, 3e4, 0.5, 0.4]), [Differs; 4]);
    assert_eq!(said([2e4, 1e4, 2e4, 1e4, 3e4, 0.9e4, 0.2, 0.09]), [Differs, Agrees, Agrees, Agrees]);
    // A node whose share does not fall with longer reads.
    for same in [0.09, 0.13, 0.2] {
        assert_eq!(said([2e4, 1e4, 2e4, 1e4, 3e4, 3e4, same, same])[2], Differs);
    }
}

/// wDSA that is as soon as the native client, or takes the processor no longer; a native client
/// that is later than both; one that does most of its work when the reply comes.
#[test]
fn the_three_clients_stand_in_the_papers_order_or_differ() {
    // Time and processor time of the native client, of FUSE and of wDSA; the reply's share.
    let said = |values: [f64; 7]| {
        let series = ["native", "FUSE", "wDSA"]
            .map(|way| ["p50 ns", "client's CPU ns"].map(|what| format!("a read, {what}: {way}")));
        let share = "a read, the reply's share of the client's time: native".to_owned();
        let all = series.into_iter().flatten().chain([share]).zip(values);
        let place =
            |(series, value): (String, f64)| json!({"series": series, "x": 8192, "rounds": {"value": vec![value; 5]}});
        let judged = judge(&json!({"figure": "clients", "measured": all.map(place).collect::<Vec<_>>()})).unwrap();
        let asked = judged.iter().filter(|judgement| ["VI-C21", "VI-C24", "VI-C26"].contains(&judgement.claim));
        asked.map(|judgement| judgement.verdict).collect::<Vec<_>>()
    };
    use Says::{Agrees, Differs};
    assert_eq!(said([0.9e4, 1e4, 1e4, 2e4, 1.1e4, 2.9e4, 0.4]), [Agrees; 3]);
    assert_eq!(said([0.9e4, 1e4, 1e4, 2e4, 0.9e4, 2.9e4, 0.4]), [Differs, Agrees, Agrees], "wDSA before FUSE");
    assert_eq!(said([0.6e4, 1e4, 1e4, 2e4, 1.1e4, 2.9e4, 0.4]), [Differs, Agrees, Agrees], "native by much more");
    assert_eq!(said([0.9e4, 1e4, 1e4, 0.9e4, 1.1e4, 2.9e4, 0.4]), [Agrees, Differs, Agrees], "FUSE for less");
    assert_eq!(
        said([0.9e4, 1e4, 1e4, 2e4, 1.1e4, 1.5e4, 0.6]),
        [Agrees, Differs, Differs],
        "wDSA for half as much again"
    );
}

/// A client that sleeps under load; deregistering in regions that pays with one request, or does
/// not with many.
#[test]
fn steps_that_do_not_pay_as_the_paper_says_differ() {
    let said = |values: [f64; 5]| {
        let series = [
            ("steps, wake-ups: a read, polled, then slept", 16),
            ("steps, requests/s: a write, registered each time", 1),
            ("steps, requests/s: a write, registered by 1,000", 1),
            ("steps, requests/s: a write, registered each time", 16),
            ("steps, requests/s: a write, registered by 1,000", 16),
        ];
        let place = |((series, x), value): ((&str, u64), f64)| json!({"series": series, "x": x, "rounds": {"value": vec![value; 5]}});
        let all: Vec<Value> = series.into_iter().zip(values).map(place).collect();
        let judged = judge(&json!({"figure": "clients", "measured": all})).unwrap();
        let asked = judged.iter().filter(|judgement| judgement.lacks().is_none());
        asked.map(|judgement| (judgement.claim, judgement.verdict)).collect::<Vec<_>>()
    };
    use Says::{Agrees, Differs};
    let all = |says: [Says; 3]| ["VI-C12", "VI-C22", "VI-C50"].into_iter().zip(says).collect::<Vec<_>>();
    assert_eq!(said([0.01, 1e5, 1e5, 2e5, 3e5]), all([Agrees; 3]));
    assert_eq!(said([0.9, 1e5, 2e5, 3e5, 2e5]), all([Differs; 3]));
}

/// Fewer transactions, or a deregistration for each WRITE, are not what batches promise; what was
/// not measured says nothing.
#[test]
fn transactions_that_batches_of_deregistrations_slow_down_differ() {
    let said = |each: f64, by_1000: f64, deregistrations: f64| {
        let rate = |side: &str, value: f64| json!({"series": format!("transactions/s: {side}"), "x": 0, "rounds": {"value": vec![value; 5]}});
        let counted =
            json!({"series": "deregistrations for a WRITE: registered by 1,000", "x": 0, "exact": deregistrations});
        let all = [rate("registered each time", each), rate("registered by 1,000", by_1000), counted];
        let judged = judge(&json!({"figure": "oltp", "measured": all})).unwrap();
        ["VI-C50", "VI-C10"].map(|claim| judged.iter().find(|one| one.claim == claim).unwrap().verdict)
    };
    assert_eq!(said(100.0, 115.0, 0.001), [Says::Agrees; 2]);
    assert_eq!(said(100.0, 90.0, 0.02), [Says::Differs; 2]);
    let lacks = judge(&json!({"figure": "oltp", "measured": []})).unwrap();
    assert!(lacks.iter().filter(|one| ["VI-C50", "VI-C10"].contains(&one.claim)).all(|one| one.lacks().is_some()));
}

/// Both halves are asked: who works least in the client, and who most in it and the kernel.
#[test]
fn a_database_whose_own_client_costs_less_than_the_kernels_differs() {
    let said = |attached: [f64; 2], wdsa: [f64; 2]| {
        let share = |what: &str, side: &str, value: f64| json!({"series": format!("{what}: {side}"), "x": 0, "rounds": {"value": vec![value; 5]}});
        let of = |side, [client, both]: [f64; 2]| {
            [share("the client's share", side, client), share("the kernel's and the client's share", side, both)]
        };
        let all = [of("attached", attached), of("wDSA", wdsa)].concat();
        let judged = judge(&json!({"figure": "oltp", "measured": all})).unwrap();
        judged.iter().find(|one| one.claim == "VI-C46").unwrap().verdict
    };
    assert_eq!(said([0.02, 0.4], [0.1, 0.6]), Says::Agrees);
    assert_eq!(said([0.1, 0.4], [0.02, 0.6]), Says::Differs);
    assert_eq!(said([0.02, 0.6], [0.1, 0.4]), Says::Differs);
}

/// Each client of a database has a bar of its own, and one that was not measured has none.
#[test]
fn a_database_that_a_client_slows_down_misses_its_bar() {
    let said = |sides: &[(&str, f64)]| {
        let place = |(side, value): &(&str, f64)| json!({"series": format!("transactions/s: {side}"), "x": 0, "rounds": {"value": vec![value; 5]}});
        let all: Vec<Value> = [("local", 100.0)].iter().chain(sides).map(place).collect();
        let bars = crate::bars(&json!({"figure": "oltp", "measured": all})).unwrap().unwrap();
        bars.iter().map(|bar| bar.verdict).collect::<Vec<_>>()
    };
    use crate::Verdict::{Met, Missed, NotMeasured};
    assert_eq!(said(&[("attached", 120.0), ("wDSA", 95.0)]), [Met, Met, Met]);
    assert_eq!(said(&[("attached", 110.0), ("wDSA", 85.0)]), [Met, Missed, Missed]);
    assert_eq!(said(&[("attached", 90.0)]), [Missed, Missed, NotMeasured]);
}

/// A region that takes longer to describe than the lists it stands for saves nothing there, however
/// cheap its post.
#[test]
fn regions_that_are_dearer_to_describe_than_lists_differ() {
    let said = |describing: f64| {
        let point = |series: &str, work: f64| {
            json!({"series": series, "x": 2, "rows": 64 << 10, "rounds": {"bytes": [1e6, 1e6, 1e6], "wall_ns": [1e9, 1e9, 1e9],
                   "requests": [1, 1, 1], "sender_ns": vec![1e6 * work; 3], "sender_poll_ns": [0, 0, 0]}})
        };
        let points = [
            point("sge-list", 30.0),
            point("sge-list, described", 60.0),
            point("declared", 0.1),
            point("declared, described", 0.1 + describing),
        ];
        let all = judge(&json!({"figure": "shuffle", "points": points})).unwrap();
        all.iter().find(|judgement| judgement.claim == "DR-C12").unwrap().verdict
    };
    assert_eq!((said(0.2), said(40.0)), (Says::Agrees, Says::Differs));
}

/// More than any rule needs.
const SEEDS: u64 = 3000;
