//! Row tiles for several destinations at once (d-rdma §3.2, §6 DR-M59): all destinations' messages
//! whose first bytes lie in one stretch of memory, so that the stretch is read once for all of
//! them.

use std::ops::Range;

use crate::cut::Cut;
use crate::form::{Form, Mask};
use crate::messages::Messages;
use crate::shape::Shape;
use crate::walk::Walk;

impl Messages<'_> {
    /// How many of these messages begin below an address, for kinds whose messages begin in
    /// ascending order: by arithmetic or bit counts. None for lists, mapped rows, regions one after
    /// another, and messages cut otherwise than by the rule of the kind.
    pub fn beginning_below(&self, address: u64) -> Option<u64> {
        let all = begins_below(self.shape(), self.shape().message, address)?;
        let range = self.range();
        Some(all.clamp(range.start, range.end) - range.start)
    }
}

fn begins_below(shape: &Shape, cut: Cut, address: u64) -> Option<u64> {
    let count = shape.unit_count(cut);
    match (&shape.form, cut) {
        // One message, or few fragments that ascend: look where each begins.
        (form, _) if count <= 1 || matches!(form, Form::List(_)) && shape.ascends() => {
            let begins = |index: &u64| {
                let first = Walk::at_byte(shape, shape.unit_start(cut, *index)).take(1);
                first.is_none_or(|byte| byte.at < address)
            };
            Some((0..count).take_while(begins).count() as u64)
        }
        (Form::Contiguous(run), Cut::Every(bytes)) => {
            let before = address.saturating_sub(run.at);
            Some(before.div_ceil(bytes.max(1)).min(count))
        }
        (Form::Strided(s), Cut::Every(bytes)) if bytes == s.period_bytes => {
            let levels = s.levels.iter();
            let (mut at, mut count, mut inside) = (address.saturating_sub(s.base), 0, s.periods());
            for level in levels {
                inside /= level.count;
                let periods = at / level.period;
                if periods >= level.count {
                    return Some(count + level.count * inside);
                }
                (count, at) = (count + periods * inside, at % level.period);
            }
            Some(count + u64::from(at > 0))
        }
        (Form::Bitmapped(b), Cut::Every(bytes)) if bytes == b.row_bytes => {
            let column = b.columns[0];
            Some(b.rows.rank(address.saturating_sub(column.base).div_ceil(column.stride)))
        }
        (Form::Variable(v), Cut::Natural) => {
            let row = v.offsets[..v.offsets.len() - 1].partition_point(|offset| v.data + offset < address) as u64;
            Some(v.rows.as_ref().map_or(row, |rows| rows.rank(row)))
        }
        (Form::Set { regions, mask: Mask::Rows }, _) if cut == shape.element => {
            begins_below(&regions[0], regions[0].element, address)
        }
        _ => None,
    }
}

/// The messages of several destinations in tiles of memory. See [`shared_tiles`].
#[derive(Clone, Debug)]
pub struct SharedTiles<'a> {
    destinations: &'a [Messages<'a>],
    /// Address of the first byte of the first region that the next tile covers.
    at: u64,
    /// Address behind the last message's first byte.
    end: u64,
    tile_bytes: u64,
    ranges: Vec<Range<u64>>,
}

/// Cuts the messages of several destinations into tiles: in each are those that begin (in their
/// first region) within the same `tile_bytes` of memory. None where a destination's messages do not
/// begin in ascending order.
///
/// # Panics
/// When `tile_bytes` is 0.
pub fn shared_tiles<'a>(destinations: &'a [Messages<'a>], tile_bytes: u64) -> Option<SharedTiles<'a>> {
    assert!(tile_bytes > 0, "a tile has a byte at least");
    let (mut at, mut end) = (u64::MAX, 0);
    for messages in destinations.iter().filter(|m| m.count() > 0) {
        messages.beginning_below(0)?;
        let begin = |index: u64| messages.message(index).next().map(|run| run.at);
        at = at.min(begin(0).unwrap_or(0));
        // Behind the end all are taken that are left, messages without bytes among them.
        end = end.max(begin(messages.count() - 1).map_or(messages.shape().end(), |last| last + 1));
    }
    let ranges = vec![0..0; destinations.len()];
    Some(SharedTiles { destinations, at: at.min(end), end, tile_bytes, ranges })
}

impl SharedTiles<'_> {
    /// The next tile that has messages: those of each destination, counted from its first. Every
    /// message is in exactly one tile.
    pub fn next_tile(&mut self) -> Option<&[Range<u64>]> {
        while self.at < self.end || self.left() {
            self.at = self.at.saturating_add(self.tile_bytes);
            for (range, messages) in self.ranges.iter_mut().zip(self.destinations) {
                let below = if self.at < self.end { messages.beginning_below(self.at) } else { None };
                *range = range.end..below.unwrap_or(messages.count()).max(range.end);
            }
            if self.ranges.iter().any(|range| !range.is_empty()) {
                return Some(&self.ranges);
            }
        }
        None
    }

    fn left(&self) -> bool {
        self.ranges.iter().zip(self.destinations).any(|(range, messages)| range.end < messages.count())
    }
}
