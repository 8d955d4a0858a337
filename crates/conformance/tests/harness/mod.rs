//! The suite's needs, met by the reference provider.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use overside_conformance::{Doomed, Harness, peer_until_killed};
use overside_reference::{Reference, World};
use overside_verbs::Provider;

/// Providers over one fabric, one for each end.
pub struct ReferenceHarness(pub World);

impl Harness for ReferenceHarness {
    fn provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.0.provider())
    }

    fn doomed(&self, name: &str) -> Option<Box<dyn Doomed>> {
        let provider = Arc::new(self.0.provider());
        let doomed = DoomedThread { provider: provider.clone(), killed: Arc::new(AtomicBool::new(false)) };
        let (name, killed) = (name.to_owned(), doomed.killed.clone());
        std::thread::spawn(move || peer_until_killed(provider, &name, &killed));
        Some(Box::new(doomed))
    }
}

struct DoomedThread {
    provider: Arc<Reference>,
    killed: Arc<AtomicBool>,
}

impl Doomed for DoomedThread {
    fn kill(&mut self) {
        self.killed.store(true, Ordering::Release);
        self.provider.kill();
    }
}
