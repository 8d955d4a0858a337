//! How a server is set up, whatever it serves.

use std::sync::Arc;
use std::time::Duration;

use crate::hold::Watermarks;
use crate::latency::Latencies;
use crate::notices::{Notices, OnFailure};
use crate::threads::{SystemThreads, Threads};

/// How a server is set up, whatever it serves.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Threads that serve connections, for each provider. Default: half of the processors.
    pub workers: usize,
    /// Connections at once; a client beyond them is turned away. Default: 4,096.
    pub connections_max: usize,
    /// Messages of one connection in flight, where its receive buffers have the usual length
    /// ([`buffer_bytes`](Self::buffer_bytes)). Longer buffers have a smaller window, so that as
    /// many bytes are in flight. A message that is lent counts as one, however long. Half of a
    /// window must cover the time that a sleeping worker needs to wake. Default: 128.
    pub window: usize,
    /// The usual length of a client's receive buffers, in bytes.
    pub buffer_bytes: usize,
    /// Longest request, in bytes.
    pub request_bytes_max: usize,
    /// How long a client may take nothing, or not introduce itself, before its connection is
    /// closed.
    pub deadline: Duration,
    /// The workers' transmit buffers.
    pub transmit: TransmitOptions,
    /// Told of every peer that is turned away, closed for cause or lost.
    pub notices: Option<Notices>,
    /// Told when the server cannot go on. It should be dropped then.
    pub on_failure: Option<OnFailure>,
    /// What held messages wait for ([`Context::hold`](crate::Context::hold)); none holds nothing.
    pub watermarks: Option<Arc<Watermarks>>,
    /// Where workers record what requests take; none records nothing.
    pub latencies: Option<Arc<Latencies>>,
    /// Starts the server's threads.
    pub threads: Arc<dyn Threads>,
}

/// A worker's registered buffers for what it packs: large ones for payloads, small ones for replies
/// and headers. Both lengths hold for one connection as for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitOptions {
    /// Bytes of a large buffer.
    pub large_bytes: usize,
    /// Large buffers of a worker; a client that is alone may have all of them.
    pub large_count: usize,
    /// Bytes of a small buffer.
    pub small_bytes: usize,
    /// Small buffers of a worker; one connection may have half of them.
    pub small_count: usize,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            workers: (processors / 2).max(1),
            connections_max: 4096,
            window: 128,
            buffer_bytes: 36 << 10,
            request_bytes_max: 64 << 10,
            deadline: Duration::from_secs(10),
            transmit: TransmitOptions::default(),
            notices: None,
            on_failure: None,
            watermarks: None,
            latencies: None,
            threads: Arc::new(SystemThreads),
        }
    }
}

impl Default for TransmitOptions {
    fn default() -> Self {
        // 36 KiB is no power of two, so that the buffers do not fall into the same sets of a cache.
        Self { large_bytes: 36 << 10, large_count: 32, small_bytes: 2 << 10, small_count: 1024 }
    }
}
