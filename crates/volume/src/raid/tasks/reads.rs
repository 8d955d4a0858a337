//! READs: from one member, and where it fails from others.

use super::*;

impl Raid {
    pub(super) fn begin_read(&mut self, id: u64, at: u64, length: usize, into: Buffer) {
        let mut pieces = Vec::new();
        self.layout.cut(at, length as u64, &mut pieces);
        if let Some(parent) = self.parents.get_mut(id) {
            parent.work = ParentWork::Read { at, length, parts: BTreeMap::new() };
        }
        self.read_pieces(id, 0, pieces, into);
    }

    /// Pieces of a READ one behind the other, of which the first is `part`.
    fn read_pieces(&mut self, id: u64, mut part: u64, pieces: Vec<Piece>, into: Buffer) {
        let (mut rest, last) = (Some(into), pieces.len() - 1);
        for (number, piece) in pieces.into_iter().enumerate() {
            let Some(buffer) = rest.take() else { break };
            let into = if number == last {
                buffer
            } else {
                let (into, behind) = buffer.split_at(piece.length as usize);
                rest = Some(behind);
                into
            };
            let task = self.task(id, State::Read { part, piece, into: None });
            self.read(task, part, piece, into, DeviceError::Failed);
            part += piece.length;
        }
    }

    /// No member has all of a part: each unit is asked for by itself, or the part fails.
    pub(super) fn read_units(&mut self, id: u64, part: u64, piece: Piece, into: Buffer, error: DeviceError) {
        let Some((parent, corrupt)) = self.tasks.get_mut(id).map(|task| (task.parent, task.corrupt)) else { return };
        let unit = self.geometry.unit_bytes;
        let lacks = match self.layout {
            Layout::Parity(_) => self.lost.lacks(piece.member, piece.at, piece.length),
            _ => self.lost.lacking(piece.at, piece.length) != 0,
        };
        if (corrupt == 0 && !lacks) || piece.length <= unit {
            self.deliver(id, part, into);
            return self.end(id, Err(error));
        }
        let units =
            (0..piece.length / unit).map(|number| Piece { at: piece.at + number * unit, length: unit, ..piece });
        self.read_pieces(parent, part, units.collect(), into);
        self.end(id, Ok(()));
    }

    /// Reads a part from a member that was not tried; from all others, where there is a parity.
    /// `error` is of the last.
    pub(super) fn read(&mut self, id: u64, part: u64, piece: Piece, into: Buffer, error: DeviceError) {
        let Some(avoid) = self.tasks.get_mut(id).map(|task| task.avoid) else { return };
        let is_parity = matches!(self.layout, Layout::Parity(_));
        let is_lost = is_parity && self.lost.lacks(piece.member, piece.at, piece.length);
        if is_lost && !mutant("volume-lost-unit-read") {
            return self.read_units(id, part, piece, into, DeviceError::Corrupt);
        }
        // What others of the row lack counts as what they have.
        let lacking = if is_parity { 0 } else { self.lost.lacking(piece.at, piece.length) };
        let may = |this: &Raid, member: usize| this.members.is_readable(member) && (avoid | lacking) & 1 << member == 0;
        let side = match &self.layout {
            Layout::Parity(_) => may(self, piece.member).then_some(piece.member),
            // What a crash left may differ: all READs must agree.
            _ if self.is_unsettled(piece.at, piece.length) => (0..self.members.len()).find(|side| may(self, *side)),
            _ => {
                self.turn = self.turn.wrapping_add(1);
                let count = self.members.len();
                (0..count).map(|i| (self.turn + i) % count).find(|side| may(self, *side))
            }
        };
        if let Some(member) = side {
            if let Some(task) = self.tasks.get_mut(id) {
                task.state = State::Read { part, piece, into: None };
            }
            return self.push(id, member, NO_SOURCE, Work::Read { at: piece.at, length: piece.length as usize, into });
        }
        let (at, length) = self.volume_range(piece.at, piece.length);
        let others = (0..self.members.len()).filter(|member| *member != piece.member);
        let others: Vec<usize> = others.filter(|member| may(self, *member)).collect();
        let fits = is_parity && others.len() + 1 == self.members.len();
        if !fits || !self.is_trusted(at, length) {
            let error = if fits || lacking != 0 { DeviceError::Corrupt } else { error };
            return self.read_units(id, part, piece, into, error);
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.state = State::Rebuild { part, piece, into, read: Vec::new() };
        }
        self.gather_from(id, &others, piece.at, piece.length);
    }

    /// The same bytes of several members, into buffers of our own.
    pub(super) fn gather_from(&mut self, id: u64, members: &[usize], at: u64, length: u64) {
        let mut buffers: Vec<Buffer> = members.iter().filter_map(|_| self.scratch(length as usize)).collect();
        if buffers.len() < members.len() {
            if let Some(task) = self.tasks.get_mut(id) {
                task.error = Some(DeviceError::NoMemory);
            }
            self.scratch.append(&mut buffers);
            return self.advance(id);
        }
        for (member, into) in members.iter().zip(buffers) {
            self.push(id, *member, NO_SOURCE, Work::Read { at, length: length as usize, into });
        }
    }

    /// A part of a READ's buffer is back.
    fn deliver(&mut self, task: u64, part: u64, into: Buffer) {
        let Some(parent) = self.tasks.get_mut(task).map(|task| task.parent) else { return };
        if let Some(Parent { work: ParentWork::Read { parts, .. }, .. }) = self.parents.get_mut(parent) {
            parts.insert(part, into);
        }
    }

    /// A part of a READ is here. Members that had it wrong get it again.
    pub(super) fn heal(&mut self, id: u64, part: u64, piece: Piece, into: Buffer, corrupt: u64) {
        let length = piece.length as usize;
        let again = if corrupt == 0 { None } else { self.scratch(length) };
        let again = again.map(|mut again| {
            again[..length].copy_from_slice(&into[..length]);
            Bytes::prefix(again, length)
        });
        self.deliver(id, part, into);
        let Some(from) = again else { return self.end(id, Ok(())) };
        if let Some(task) = self.tasks.get_mut(id) {
            task.state = State::Heal;
        }
        for member in (0..self.members.len()).filter(|member| corrupt & 1 << member != 0) {
            self.push(id, member, NO_SOURCE, Work::Write { at: piece.at, from: from.clone(), fua: false });
        }
    }
}
