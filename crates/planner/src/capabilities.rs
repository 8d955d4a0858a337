//! What a provider can do, as far as anybody above it must know.

/// Limits and promises of a provider. What differs between providers is said here and in
/// their profiles, and nowhere else does code ask which provider it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// Entries of a gather list in one request (to-copy §3 TC-M06: 32 on a ConnectX-3).
    pub sge_max: usize,
    /// Bytes that may ride in the descriptor (to-copy §5.6 TC-M11: 912 on a ConnectX-3).
    pub inline_max: usize,
    /// Bytes of one message.
    pub message_max: u64,
    /// Requests in flight on one queue pair, in each direction.
    pub depth_max: usize,
    /// Whether one-sided operations reach a target that never calls in.
    pub progress_by_itself: bool,
    /// Whether READ, WRITE and atomics exist at all.
    pub one_sided: bool,
    /// Among whom atomics are atomic.
    pub atomics: AtomicScope,
    /// Whether the last aligned 8 bytes of a WRITE into memory here become visible after all its
    /// others.
    pub last_byte_last: bool,
    /// Bytes of a region's description that one request may have, where the other end carries
    /// regions out by their description (d-rdma §3 DR-M01); 0 where requests name fragments only.
    pub region_bytes_max: u64,
    /// What happens to memory outside of registered segments.
    pub foreign: ForeignMemory,
    /// Whether a receiver can have a message as a loan, which it reads where it lies, instead of a
    /// copy.
    pub lends: bool,
}

/// Among whom a provider's atomics are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicScope {
    /// There are none.
    None,
    /// Among operations of the same device.
    Device,
    /// With the processor's own atomics as well.
    Cpu,
}

/// What happens to a view over memory that is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForeignMemory {
    /// It is sent from where it lies.
    Direct,
    /// The sender's provider copies it first.
    Pushed,
}
