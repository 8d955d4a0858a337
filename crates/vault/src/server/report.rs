//! What a node says of itself and its volumes.

use std::time::Instant;

use overside_volume::MemberState;
use overside_volume::wire::{Counts, MemberReport, Report, SessionReport, Status, VolumeReport, VolumeState};

use super::volume::Volume;
use super::{Node, Writes, lock};

impl Node {
    /// How a volume does, or where no name is given all of them.
    pub(super) fn report(&self, number: u32, volume: &str, now: Instant) -> Report {
        let is_meant = |name: &str| volume.is_empty() || name == volume;
        let known: Vec<_> = lock(&self.volumes).iter().map(|(name, volume)| (name.clone(), volume.clone())).collect();
        let known = known.into_iter().filter(|(name, _)| is_meant(name));
        let mut volumes: Vec<_> = known.map(|(name, volume)| self.report_of(name, &volume, now)).collect();
        let writes_back = self.options.writes == Writes::Back;
        for (name, reason) in lock(&self.failed).iter().filter(|(name, _)| is_meant(name)) {
            volumes.push(VolumeReport {
                name: name.clone(),
                state: VolumeState::Failed,
                reason: reason.clone(),
                layout: String::new(),
                writes_back,
                bytes: 0,
                counts: Counts::default(),
                members: Vec::new(),
                sessions: Vec::new(),
            });
        }
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        let up = lock(&self.serving).as_ref().map(|serving| now.saturating_duration_since(serving.since));
        let is_unknown = !volume.is_empty() && volumes.is_empty();
        Report {
            number,
            status: if is_unknown { Status::Unknown } else { Status::Done },
            incarnation: self.incarnation,
            process: std::process::id(),
            cpu_us: self.options.cpu.map_or(0, |cpu| cpu().as_micros() as u64),
            request_bytes_max: self.options.request_bytes_max,
            up_us: up.unwrap_or_default().as_micros() as u64,
            volumes,
        }
    }

    fn report_of(&self, name: String, volume: &Volume, now: Instant) -> VolumeReport {
        let about = &volume.about();
        let members = about.members.iter().enumerate().map(|(number, (place, bytes))| {
            let stale = about.health.state(number) == MemberState::Stale;
            let sums = about.sums.get(number).copied().unwrap_or(false);
            MemberReport { place: place.clone(), bytes: *bytes, stale, sums }
        });
        let members: Vec<_> = members.collect();
        let stale = members.iter().filter(|member| member.stale).count();
        let mut reasons = Vec::new();
        if stale != 0 {
            let mend =
                "they get them as soon as they can be written, or by `overside volume repair` when the node has ended";
            reasons.push(format!("{stale} of {} members have missed writes; {mend}", members.len()));
        }
        for (number, (place, _)) in
            about.members.iter().enumerate().filter(|(number, _)| about.health.lost(*number) != 0)
        {
            let lost = about.health.lost(number);
            reasons.push(format!("{lost} bytes of {place} cannot be made anew, and reads of them fail; {FIND}"));
        }
        let state = if reasons.is_empty() { VolumeState::Ok } else { VolumeState::Degraded };
        let reason = reasons.join("; ");
        let sessions: Vec<SessionReport> = lock(&self.attachments)
            .values()
            .filter(|attachment| std::ptr::eq(&*attachment.volume, volume))
            .map(|attachment| attachment.report(now))
            .collect();
        VolumeReport {
            name,
            state,
            reason,
            layout: about.layout.clone(),
            writes_back: volume.writes == Writes::Back,
            bytes: volume.bytes(),
            counts: volume.counts(),
            members,
            sessions,
        }
    }
}

const FIND: &str = "`overside volume check` names them, and a write heals what it covers";
