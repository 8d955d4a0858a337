//! What things cost on this machine.

use overside_planner::Profile;

/// Before anything was measured: figures of a two-core server of 2024.
pub(crate) fn default_profile() -> Profile {
    Profile {
        send_request_ns: 60.0,
        send_fragment_ns: 6.0,
        send_byte_ns: 0.0,
        pack_byte_ns: 0.08,
        pack_piece_ns: 8.0,
        row_ns: 4.0,
        receive_request_ns: 80.0,
        receive_fragment_ns: 12.0,
        receive_byte_ns: 0.08,
        wire_byte_ns: 0.0,
        source: "default".to_owned(),
    }
}
