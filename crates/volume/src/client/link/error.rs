//! Why a volume cannot be attached.

use overside_verbs::VerbsError;

use crate::array::ArrayError;
use crate::device::DeviceError;
use crate::wire::Status;

/// Why a volume cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody answers there.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The node does not let this side in.
    #[error("{}", refusal(*.0))]
    Refused(Status),
    /// The node says what no node says.
    #[error("the node does not speak this program's protocol; are both of the same version?")]
    Malformed,
    /// The system has no descriptor.
    #[error(transparent)]
    Array(#[from] ArrayError),
}

fn refusal(status: Status) -> &'static str {
    match status {
        Status::Unknown => {
            "the node has no such volume, or the key is another one; `overside volume list` says which there are"
        }
        Status::Busy => "another client writes the volume; attach it with --read-only, or take it over (--take-over)",
        Status::Version => "the node is of another version; update one of the two",
        Status::Full => "the node has no room for another client; try again later",
        Status::Device(DeviceError::ReadOnly) => "the volume's key allows to read alone; attach it with --read-only",
        Status::Device(DeviceError::Fenced) => "another client has taken the volume over",
        Status::Prove => "the node asks for the volume's key; give it with --access-key FILE",
        Status::Kind => {
            "the volume keeps files and is not attached as blocks, or keeps none; `overside run --volume` takes those made with --files"
        }
        Status::Device(_) | Status::Done | Status::Refused => "the node refuses the volume; its own messages say why",
    }
}
