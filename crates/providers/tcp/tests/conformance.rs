//! Every sentence of the `Port` contract: without a key, with a key and tags on every frame, and with a key alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use overside_tcp::{Options, TcpProvider};
use overside_verbs::Provider;
use overside_verbs::handshake::Key;

/// An address of this process alone, within 127.0.0.0/8.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    format!("127.{}.{}.1:{}", 1 + (process >> 8 & 0x7f), process & 0xff, 20_000 + next % 40_000)
}

fn provider(key: bool, mac: bool) -> Arc<dyn Provider> {
    let key = key.then(|| Key::from_bytes(b"the key of the conformance suite").expect("long enough"));
    TcpProvider::with_options(Options { key, mac, ..Options::default() })
}

mod bare {
    fn provider() -> std::sync::Arc<dyn overside_verbs::Provider> {
        super::provider(false, false)
    }

    overside_conformance::conformance_tests!(provider, super::name);
}

mod tagged {
    fn provider() -> std::sync::Arc<dyn overside_verbs::Provider> {
        super::provider(true, true)
    }

    overside_conformance::conformance_tests!(provider, super::name);
}

mod keyed {
    fn provider() -> std::sync::Arc<dyn overside_verbs::Provider> {
        super::provider(true, false)
    }

    overside_conformance::conformance_tests!(provider, super::name);
}
