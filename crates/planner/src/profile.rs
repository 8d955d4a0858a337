//! What things cost on a device.

use crate::curve::{Curve, Line};

/// The work that one way of sending causes at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Requests posted or completed.
    pub requests: f64,
    /// Gather entries (sender) or fragments copied (receiver).
    pub fragments: f64,
    /// Bytes moved by the provider on this side's processor.
    pub bytes: f64,
    /// Bytes packed into a transmit buffer before sending.
    pub packed_bytes: f64,
    /// Separate pieces packed (runs of a copy kernel).
    pub packed_pieces: f64,
    /// Rows looked at one by one beyond what every alternative does (merging, slots).
    pub rows: f64,
    /// What else this end does for the message, in nanoseconds, as the caller has measured it.
    pub other_ns: f64,
}

/// Costs in nanoseconds, calibrated on the device: straight lines, and [`Bends`] where measurement bends.
///
/// On a NIC the receiver's part is near zero; on a provider where the receiver plays the NIC
/// the bytes are the receiver's.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Posting and completing a request, sender.
    pub send_request_ns: f64,
    /// One more gather entry, sender.
    pub send_fragment_ns: f64,
    /// A byte moved by the sender's processor when sending (0 where the receiver or a NIC moves it).
    pub send_byte_ns: f64,
    /// A byte packed into a transmit buffer.
    pub pack_byte_ns: f64,
    /// A separate piece packed.
    pub pack_piece_ns: f64,
    /// A row touched on its own.
    pub row_ns: f64,
    /// Receiving a request.
    pub receive_request_ns: f64,
    /// A fragment of it, receiver.
    pub receive_fragment_ns: f64,
    /// A byte of it, receiver.
    pub receive_byte_ns: f64,
    /// What the link itself takes for a byte, overlapping with both (0 where memory is the link).
    pub wire_byte_ns: f64,
    /// Costs by length, where they were measured.
    pub bends: Bends,
    /// Where the figures come from: `"default"` or the calibration's date and machine.
    pub source: String,
}

/// Costs of a piece by its length; where a curve is empty, the profile's straight lines hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bends {
    /// Packing a piece that no cache holds, by the kernel for any runs.
    pub pack: Curve,
    /// Packing a piece that is in the cache, likewise.
    pub pack_warm: Curve,
    /// Packing an element of a regular region (periods, row pointers, several columns row by row), by its width.
    pub pack_regular: Curve,
    /// Packing a set row's value of a bitmapped region, by its width.
    pub pack_bitmapped: Curve,
    /// Receiving a gathered fragment from where it lay.
    pub receive: Curve,
    /// Receiving an entry that the sender has just packed.
    pub receive_packed: Curve,
}

impl Profile {
    /// Nanoseconds of the sender's processor, by straight lines.
    pub fn sender_ns(&self, work: &Work) -> f64 {
        work.requests * self.send_request_ns
            + work.fragments * self.send_fragment_ns
            + work.bytes * self.send_byte_ns
            + work.packed_bytes * self.pack_byte_ns
            + work.packed_pieces * self.pack_piece_ns
            + work.rows * self.row_ns
            + work.other_ns
    }

    /// Nanoseconds of the receiver's processor, by straight lines.
    pub fn receiver_ns(&self, work: &Work) -> f64 {
        work.requests * self.receive_request_ns
            + work.fragments * self.receive_fragment_ns
            + work.bytes * self.receive_byte_ns
            + work.rows * self.row_ns
            + work.other_ns
    }

    /// Packing pieces of about this length.
    pub fn pack(&self, bytes: u64, warm: bool) -> Line {
        let straight = Line { fixed_ns: self.pack_piece_ns, byte_ns: self.pack_byte_ns };
        let cold = || self.bends.pack.line(bytes).unwrap_or(straight);
        if warm { self.bends.pack_warm.line(bytes).unwrap_or_else(cold) } else { cold() }
    }

    /// Receiving gathered fragments of about this length.
    pub fn receive(&self, bytes: u64) -> Line {
        let straight = Line { fixed_ns: self.receive_fragment_ns, byte_ns: self.receive_byte_ns };
        self.bends.receive.line(bytes).unwrap_or(straight)
    }

    /// Receiving entries of about this length that the sender has just packed.
    pub fn receive_packed(&self, bytes: u64) -> Line {
        let straight = Line { fixed_ns: self.receive_fragment_ns, byte_ns: self.receive_byte_ns };
        self.bends.receive_packed.line(bytes).unwrap_or(straight)
    }
}
