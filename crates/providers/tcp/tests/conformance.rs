//! Every sentence of the `Port` contract: without a key, with a key and tags on every frame, and with a key alone.

use std::sync::Arc;

use overside_tcp::{Options, TcpProvider};
use overside_verbs::Provider;
use overside_verbs::handshake::Key;

fn provider(key: bool, mac: bool) -> Arc<dyn Provider> {
    let key = key
        .then(|| Key::from_bytes(b"ac5d960c71f2731a0ce76f67ca8980aab6ae4bc13d2a43a6ada270691286d33c").expect("random"));
    TcpProvider::with_options(Options { key, mac, ..Options::default() })
}

mod bare {
    fn provider() -> std::sync::Arc<dyn overside_verbs::Provider> {
        super::provider(false, false)
    }

    overside_conformance::conformance_tests!(provider, overside_conformance::loopback_name);
}

mod tagged {
    fn provider() -> std::sync::Arc<dyn overside_verbs::Provider> {
        super::provider(true, true)
    }

    overside_conformance::conformance_tests!(provider, overside_conformance::loopback_name);
}

mod keyed {
    fn provider() -> std::sync::Arc<dyn overside_verbs::Provider> {
        super::provider(true, false)
    }

    overside_conformance::conformance_tests!(provider, overside_conformance::loopback_name);
}
