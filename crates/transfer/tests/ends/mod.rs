//! Providers and addresses for tests, and two connected endpoints.
#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use overside_shm::ShmProvider;
use overside_tcp::TcpProvider;
use overside_transfer::Endpoint;
use overside_verbs::{PortOptions, Provider, QueuePair};

/// Providers that every host has.
pub const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

pub fn provider(transport: &str) -> Arc<dyn Provider> {
    match transport {
        "shm" => ShmProvider::new().unwrap(),
        _ => TcpProvider::with_options(overside_tcp::Options::default()),
    }
}

/// A name that nobody else uses.
pub fn fresh_name(transport: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, next) = (u64::from(std::process::id()), NEXT.fetch_add(1, Ordering::Relaxed));
    match transport {
        "shm" => format!("transfer-{process}-{next}"),
        _ => format!(
            "127.{}.{}.{}:{}",
            40 + next % 200,
            process >> 8 & 255,
            1 + process % 254,
            12_000 + (process * 137 + next * 7) % 18_000
        ),
    }
}

/// Two connected endpoints, each of a provider of its own.
pub struct Ends {
    pub here: Endpoint,
    pub to: QueuePair,
    pub there: Endpoint,
    pub from: QueuePair,
}

impl Ends {
    pub fn open(transport: &str) -> Ends {
        Ends::with(transport, PortOptions { shared_receives: 0, ..PortOptions::default() })
    }

    pub fn with(transport: &str, port: PortOptions) -> Ends {
        let [mut here, mut there] = [0; 2].map(|_| Endpoint::builder(provider(transport)).port(port).open().unwrap());
        let name = fresh_name(transport);
        let mut listener = there.listen(&name).unwrap();
        let (to, from) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| here.connect(&name, PATIENCE).unwrap());
            let (from, _) = there.accept(&mut *listener, PATIENCE).unwrap();
            (connecting.join().unwrap(), from)
        });
        Ends { here, to, there, from }
    }
}

/// On a machine with other things to do.
pub const PATIENCE: Duration = Duration::from_secs(20);
