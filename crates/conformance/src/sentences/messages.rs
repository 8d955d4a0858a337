//! Messages, and the receives that they meet.

use overside_memory::Segment;
use overside_verbs::port::QpIndex;
use overside_verbs::probe::{Act, Area, Data};
use overside_verbs::{Access, Opcode, Status};

use crate::ends::{End, Pair, QP, connect, owes, part, pattern};
use crate::{Harness, Stop};

pub(super) fn fifo(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let inline_max = pair.a.capabilities.inline_max;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    for round in 0..60u64 {
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        let mut receives = Vec::new();
        for i in 0..8 {
            receives.push((pair.b.slot(), to.piece(i * 4096, 4096)?));
        }
        // All receives are there before the first message, or come at once when all messages wait.
        let receives_first = round % 2 == 0;
        if receives_first {
            pair.b.probe.post_receive(Some(QP), &receives)?;
        }
        for i in 0..8u64 {
            // Small and large, gathered and inline.
            let inline = i % 3 == 1 && inline_max >= 8;
            let len = if inline { 8 } else { ((round * 37 + i * 911) % 4000 + 8) as usize };
            let bytes = pattern(round * 8 + i, len);
            from.write(i as usize * 4096, &bytes)?;
            let data = match inline {
                true => Data::Inline(bytes.clone()),
                false => Data::Gather(vec![from.piece(i as usize * 4096, len)?]),
            };
            sent.push(pair.a.send(QP, data, None)?);
            expected.push(bytes);
        }
        if !receives_first {
            pair.turn();
            let accepted = pair.b.probe.post_receive(Some(QP), &receives)?;
            owes!(accepted == 8, "{accepted} of 8 receives were accepted on an empty queue");
        }
        let got: Vec<u32> = receives.iter().map(|(slot, _)| *slot).collect();
        pair.finish(&sent, &got)?;
        let order: Vec<u32> = pair.b.done[pair.b.done.len() - 8..].iter().map(|done| done.slot).collect();
        owes!(order == got, "receives were reported out of order");
        for (i, bytes) in expected.iter().enumerate() {
            let done = pair.b.success(got[i])?;
            owes!(done.bytes == bytes.len() as u64, "receive {i} has the length of another message");
            owes!(to.read(i * 4096, bytes.len())? == *bytes, "receive {i} did not get message {i}");
        }
    }
    Ok(())
}

pub(super) fn gather(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let capabilities = pair.a.capabilities.clone();
    let (first, second) = (pair.a.area(1 << 16)?, pair.a.area(1 << 16)?);
    let foreign = Area::foreign(Segment::private(1 << 16)?);
    for (seed, area) in [&first, &second, &foreign].into_iter().enumerate() {
        area.write(0, &pattern(seed as u64, area.len()))?;
    }
    let to = pair.b.area(1 << 17)?;
    let sge_max = capabilities.sge_max.min(256);
    for round in 0..64usize {
        let count = match round {
            0 => 0,
            1 => 1,
            2 => sge_max,
            _ => round % sge_max + 1,
        };
        // Downwards, overlapping, repeated, empty, odd: all of it in list order.
        let mut pieces = Vec::new();
        let mut expected = Vec::new();
        for i in 0..count {
            let area = [&first, &second, &foreign][if round % 4 == 3 { i % 3 } else { i % 2 }];
            let piece = area.piece(60_000 - (i * 577 + round * 13) % 50_000, (i * 31 + round * 7) % 400)?;
            expected.extend(piece.read());
            pieces.push(piece);
        }
        to.write(0, &vec![0xAA; expected.len() + 64])?;
        let got = pair.b.receive(Some(QP), to.piece(0, 1 << 17)?)?;
        let sent = pair.a.send(QP, Data::Gather(pieces), None)?;
        pair.finish(&[sent], &[got])?;
        pair.a.success(sent)?;
        let done = pair.b.success(got)?;
        owes!(done.bytes == expected.len() as u64, "{} of {} bytes in {count} pieces", done.bytes, expected.len());
        owes!(to.read(0, expected.len())? == expected, "{count} pieces did not arrive in list order");
        owes!(
            to.read(expected.len(), 64)?.iter().all(|b| *b == 0xAA),
            "bytes after a message of {} bytes changed",
            expected.len()
        );
    }
    Ok(())
}

pub(super) fn inline(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let capabilities = pair.a.capabilities.clone();
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    from.write(0, &pattern(40, 1 << 16))?;
    let longest = capabilities.inline_max.min(4096);
    // The probe writes over payload and lists before it lets anybody poll.
    for len in [0, 1, 7, 8, 9, 63, 64, 65, longest / 2, longest.saturating_sub(1), longest] {
        if len > longest {
            continue;
        }
        let bytes = pattern(len as u64, len);
        let sent = pair.a.send(QP, Data::Inline(bytes.clone()), None)?;
        let got = pair.b.receive(Some(QP), to.piece(0, 8192)?)?;
        pair.finish(&[sent], &[got])?;
        let done = pair.b.success(got)?;
        owes!(done.bytes == len as u64, "{len} inline bytes arrived as {}", done.bytes);
        owes!(to.read(0, len)? == bytes, "an inline payload of {len} bytes was read after post returned");
    }
    for count in 1..=capabilities.sge_max.min(32) {
        let pieces: Vec<_> = (0..count).map(|i| from.piece(i * 600, 100 + i)).collect::<Result<_, _>>()?;
        let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.read()).collect();
        let sent = pair.a.send(QP, Data::Gather(pieces), None)?;
        let got = pair.b.receive(Some(QP), to.piece(0, 8192)?)?;
        pair.finish(&[sent], &[got])?;
        pair.b.success(got)?;
        owes!(to.read(0, expected.len())? == expected, "a list of {count} fragments was read after post returned");
    }
    if capabilities.one_sided { inline_writes(&mut pair, longest) } else { Ok(()) }
}

fn inline_writes(pair: &mut Pair, longest: usize) -> Result<(), Stop> {
    let (window, token) = pair.b.window(8192, Access::REMOTE_WRITE)?;
    for len in [1, 8, 64, longest / 2, longest].into_iter().filter(|len| *len <= longest) {
        let bytes = pattern(70 + len as u64, len);
        let write = Act::Write(Data::Inline(bytes.clone()), part(token, 64, len as u64), None);
        let slot = pair.a.post(QP, write, true, false)?;
        pair.finish(&[slot], &[])?;
        pair.a.success(slot)?;
        let mut there = vec![0; len];
        window.read(64, &mut there)?;
        owes!(there == bytes, "an inline WRITE of {len} bytes was read after post returned");
    }
    Ok(())
}

pub(super) fn immediate(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
    from.write(0, &pattern(50, 4096))?;
    for (i, value) in [None, Some(0), Some(1), Some(u32::MAX), None, Some(0x1234_5678)].into_iter().enumerate() {
        let len = if i % 2 == 0 { 100 } else { 0 };
        let got = pair.b.receive(Some(QP), to.piece(0, 4096)?)?;
        let sent = pair.a.send(QP, Data::Gather(vec![from.piece(0, len)?]), value)?;
        pair.finish(&[sent], &[got])?;
        let done = pair.b.success(got)?;
        owes!(done.immediate == value, "immediate data {value:?} arrived as {:?}", done.immediate);
        owes!(done.opcode == Opcode::Receive && done.bytes == len as u64, "a SEND of {len} bytes came as {done:?}");
    }
    if pair.a.capabilities.one_sided { immediate_of_writes(harness) } else { Ok(()) }
}

fn immediate_of_writes(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(4096)?);
    let (window, token) = pair.b.window(1 << 17, Access::REMOTE_WRITE)?;
    to.write(0, &[0x55; 4096])?;
    for round in 0..20u64 {
        let bytes = pattern(60 + round, 1 << 16);
        from.write(0, &bytes)?;
        let mut posted = Vec::new();
        for i in 0..3u64 {
            let data = Data::Gather(vec![from.piece(i as usize * 16384, 16384)?]);
            let write = Act::Write(data, part(token, i * 16384, 16384), None);
            posted.push(pair.a.post(QP, write, true, false)?);
        }
        let data = Data::Gather(vec![from.piece(49152, 16384)?]);
        let last = Act::Write(data, part(token, 49152, 16384), Some(round as u32));
        posted.push(pair.a.post(QP, last, true, false)?);
        let got = pair.b.receive(Some(QP), to.piece(0, 4096)?)?;
        pair.until("a WRITE with immediate consumes a receive", |pair| pair.b.has(got))?;
        let mut there = vec![0; 1 << 16];
        window.read(0, &mut there)?;
        owes!(there == bytes, "a WRITE with immediate was received before all earlier WRITEs were visible");
        let done = pair.b.success(got)?;
        owes!(done.opcode == Opcode::ReceiveImmediate, "it was received as {:?}", done.opcode);
        owes!(done.immediate == Some(round as u32), "its immediate data is {:?}", done.immediate);
        owes!(to.read(0, 4096)?.iter().all(|b| *b == 0x55), "it changed the receive's buffer");
        pair.finish(&posted, &[])?;
        for slot in posted {
            pair.a.success(slot)?;
        }
    }
    Ok(())
}

pub(super) fn rnr(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 16)?);
    let count = pair.a.capabilities.depth_max.min(64);
    let mut sent = Vec::new();
    for i in 0..count {
        from.write(i * 512, &pattern(i as u64, 512))?;
        sent.push(pair.a.send(QP, Data::Gather(vec![from.piece(i * 512, 512)?]), Some(i as u32))?);
    }
    for _ in 0..5 {
        pair.quiet();
    }
    owes!(pair.a.done.is_empty(), "messages that wait for a receive were reported: {:?}", pair.a.done[0]);
    owes!(pair.a.events.is_empty() && pair.b.events.is_empty(), "waiting for a receive ended the connection");
    for (i, slot) in sent.iter().enumerate() {
        let got = pair.b.receive(Some(QP), to.piece(i * 512, 512)?)?;
        pair.finish(&[*slot], &[got])?;
        pair.a.success(*slot)?;
        let done = pair.b.success(got)?;
        owes!(done.immediate == Some(i as u32), "message {i} was lost or overtaken: {done:?}");
        owes!(to.read(i * 512, 512)? == pattern(i as u64, 512), "message {i} was not kept intact");
    }
    Ok(())
}

pub(super) fn length(harness: &dyn Harness) -> Result<(), Stop> {
    // One byte too long, much too long, inline, with no room at all; the canaries stand on both sides.
    for (room, len, inline) in [(1000, 1001, false), (64, 50_000, false), (4, 5, true), (0, 1, false)] {
        let mut pair = Pair::new(harness)?;
        if inline && pair.a.capabilities.inline_max < len || pair.a.capabilities.message_max < len as u64 {
            continue;
        }
        let (from, to) = (pair.a.area(1 << 16)?, pair.b.area(1 << 17)?);
        from.write(0, &pattern(70, 1 << 16))?;
        to.write(0, &vec![0xCC; to.len()])?;
        // What fits exactly is no error.
        if room > 0 {
            pair.message(from.piece(0, room)?, to.piece(0, room)?)?;
            let after = to.read(room, 64)?.iter().all(|b| *b == 0xCC);
            owes!(after, "a message of {room} bytes wrote past its receive of {room}");
        }
        to.write(0, &[0xCC; 4096])?;
        let data = match inline {
            true => Data::Inline(pattern(71, len)),
            false => Data::Gather(vec![from.piece(0, len)?]),
        };
        let got = pair.b.receive(Some(QP), to.piece(4096, room)?)?;
        let pending = pair.b.receive(Some(QP), to.piece(8192, 100)?)?;
        let after = Act::Send(Data::Gather(vec![from.piece(0, 1)?]), None);
        let batch = [Act::Send(data, None), after].map(|act| pair.a.request(act, true, false));
        // The second is refused where the queue pair is closed by then.
        let (accepted, error) = pair.a.probe.post(QP, &batch);
        owes!(accepted > 0, "a message too long for its receive was refused by post: {error:?}");
        let [sent, after] = batch.map(|request| request.slot);
        pair.finish(&[sent, after][..accepted.min(2)], &[got, pending])?;
        for (end, slot) in [(&pair.a, sent), (&pair.b, got)] {
            let status = end.completion(slot).map(|done| done.status);
            owes!(status == Some(Status::TooLong), "{len} bytes into {room}: an end was told {status:?}");
        }
        for (end, slot) in [(&pair.a, after), (&pair.b, pending)] {
            let status = end.completion(slot).map(|done| done.status);
            owes!(status != Some(Status::Success), "the queue pair lived on after a message that was too long");
        }
        let around = [to.read(0, 4096)?, to.read(4096 + room, to.len() - 4096 - room)?].concat();
        owes!(around.iter().all(|b| *b == 0xCC), "{len} bytes into {room}: bytes outside of the buffer were written");
    }
    Ok(())
}

pub(super) fn shared(harness: &dyn Harness) -> Result<(), Stop> {
    let mut hub = End::open(harness.provider())?;
    let mut ends = [End::open(harness.provider())?, End::open(harness.provider())?];
    let mut names: Vec<QpIndex> = Vec::new();
    for end in &mut ends {
        names.push(connect(harness, end, &mut hub)?.1);
    }
    let to = hub.area(1 << 16)?;
    let areas = [ends[0].area(4096)?, ends[1].area(4096)?];
    for round in 0..20usize {
        let mut got = Vec::new();
        for i in 0..8 {
            got.push(hub.receive(None, to.piece(i * 64, 64)?)?);
        }
        let mut sent = [Vec::new(), Vec::new()];
        for i in 0..8usize {
            let who = (i + round) % 2;
            areas[who].write(i * 16, &[&[who as u8], &(i as u64).to_le_bytes()[..7]].concat())?;
            sent[who].push(ends[who].send(QP, Data::Gather(vec![areas[who].piece(i * 16, 8)?]), None)?);
        }
        hub.until("receives of the shared queue complete", |hub| {
            ends.iter_mut().for_each(End::turn);
            got.iter().all(|slot| hub.has(*slot))
                && ends.iter().zip(&sent).all(|(end, sent)| sent.iter().all(|slot| end.has(*slot)))
        })?;
        let mut arrived = [0, 0];
        for (i, slot) in got.iter().enumerate() {
            let done = hub.success(*slot)?;
            let who = usize::from(to.read(i * 64, 1)?[0]);
            owes!(done.qp == Some(names[who]), "a message of {:?} was reported on {:?}", names[who], done.qp);
            owes!(hub.reports(*slot) == 1, "a shared receive was reported {} times", hub.reports(*slot));
            arrived[who] += 1;
        }
        owes!(arrived == [4, 4], "of four messages each, {arrived:?} arrived");
    }
    // The shared receives outlive a queue pair.
    let left = hub.receive(None, to.piece(0, 64)?)?;
    hub.probe.close(names[0]);
    let sent = ends[1].send(QP, Data::Gather(vec![areas[1].piece(0, 8)?]), None)?;
    hub.until("a shared receive serves the other queue pair", |hub| {
        ends.iter_mut().for_each(End::turn);
        hub.has(left) && ends[1].has(sent)
    })?;
    let done = hub.success(left)?;
    owes!(done.qp == Some(names[1]), "closing one queue pair took a shared receive with it: {done:?}");
    first_receive(harness)
}

/// A receiver that posts its first receive, to the shared queue, when the sender has a silent
/// request behind it.
fn first_receive(harness: &dyn Harness) -> Result<(), Stop> {
    let mut pair = Pair::new(harness)?;
    let (from, to) = (pair.a.area(4096)?, pair.b.area(4096)?);
    from.write(0, &pattern(73, 4096))?;
    if pair.a.capabilities.one_sided {
        let (window, writable) = pair.b.window(4096, Access::REMOTE_WRITE)?;
        let data = Data::Gather(vec![from.piece(0, 64)?]);
        pair.a.post(QP, Act::Write(data, part(writable, 0, 64), None), false, false)?;
        let mut there = [0; 64];
        pair.until("a WRITE arrives before the first receive is posted", |_| {
            window.read(0, &mut there).is_ok() && there[..] == pattern(73, 64)
        })?;
    }
    let got = pair.b.receive(None, to.piece(0, 64)?)?;
    let sent = pair.a.send(QP, Data::Gather(vec![from.piece(64, 64)?]), None)?;
    pair.finish(&[sent], &[got])?;
    pair.a.success(sent)?;
    pair.b.success(got)?;
    owes!(
        to.read(0, 64)? == pattern(73, 4096)[64..128],
        "the first of the shared receives has other bytes than were sent"
    );
    Ok(())
}
