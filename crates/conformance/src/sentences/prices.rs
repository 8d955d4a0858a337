//! What a provider tells of prices, and what it is told.

use overside_planner::{Bends, Profile};
use overside_verbs::port::QpIndex;
use overside_verbs::probe::{Area, Data};

use crate::ends::{Pair, QP, owes, pattern};
use crate::{Harness, Stop};

pub(super) fn line(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(AREA_BYTES)?, pair.b.area(AREA_BYTES)?);
    for round in 0..20 {
        let said = pair.a.probe.line_ns(QP);
        owes!(said.is_none_or(|ns| (0.0..f64::INFINITY).contains(&ns)), "a line takes {said:?} ns");
        gathered(&mut pair, &from, &to, round)?;
    }
    owes!(pair.a.probe.line_ns(QpIndex(77)).is_none(), "a line of a queue pair that never was");
    pair.a.probe.close(QP);
    pair.a.turn();
    owes!(pair.a.probe.line_ns(QP).is_none(), "a line of a queue pair that was closed");
    Ok(())
}

pub(super) fn learn(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(AREA_BYTES)?, pair.b.area(AREA_BYTES)?);
    let (provider, mut before) = (pair.a.provider.clone(), None);
    // Prices of nothing, of everything, and of what cannot be.
    for (round, ns) in [0.0, 1.0, 4096.0, 1e12, f64::INFINITY, f64::NAN, -1.0].into_iter().enumerate() {
        let bends = Bends { copied_bytes: ns, both_busy: ns, mixture_ns: ns, ..Bends::default() };
        let (send_fragment_ns, send_byte_ns) = (ns, ns);
        let told = provider.learn(&Profile { bends, send_fragment_ns, send_byte_ns, ..provider.profile() });
        owes!(
            *before.get_or_insert(told) == told,
            "it had something to learn before and has not now, or the other way round"
        );
        gathered(&mut pair, &from, &to, round)?;
    }
    Ok(())
}

/// A message of several fragments, backwards from where they lie, arrives as it was sent.
fn gathered(pair: &mut Pair, from: &Area, to: &Area, round: usize) -> Result<(), Stop> {
    let bytes = pattern(round as u64, AREA_BYTES);
    from.write(0, &bytes)?;
    let parts = pair.a.capabilities.sge_max.min(PARTS);
    let at = |part: usize| (PARTS - 1 - part) * PITCH;
    let got = pair.b.receive(Some(QP), to.piece(0, AREA_BYTES)?)?;
    let pieces = (0..parts).map(|part| from.piece(at(part), PITCH / 2)).collect::<Result<_, _>>()?;
    let sent = pair.a.send(QP, Data::Gather(pieces), None)?;
    pair.finish(&[sent], &[got])?;
    pair.a.success(sent)?;
    let done = pair.b.success(got)?;
    let expected: Vec<u8> = (0..parts).flat_map(|part| &bytes[at(part)..][..PITCH / 2]).copied().collect();
    owes!(done.bytes == expected.len() as u64, "{} bytes came of {}", done.bytes, expected.len());
    owes!(to.read(0, expected.len())? == expected, "a message has other bytes than were sent");
    Ok(())
}

const PARTS: usize = 6;
const PITCH: usize = 512;
const AREA_BYTES: usize = PARTS * PITCH;
