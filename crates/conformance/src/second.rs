//! A peer that can be killed.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use overside_verbs::Provider;
use overside_verbs::probe::Data;

use crate::ends::End;
use crate::{Harness, Stop, unused_name};

/// A peer that runs [`peer_until_killed`].
pub trait Doomed: Send {
    /// Ends it at once, without giving it a word.
    fn kill(&mut self);
}

/// The usual harness: the second end is the test's own executable once more.
#[derive(Debug)]
pub struct Processes {
    provider: fn() -> Arc<dyn Provider>,
    name: Option<fn() -> String>,
    test: String,
}

impl Processes {
    /// `module_path` is that of the module in which `conformance_tests!` stands.
    pub fn new(provider: fn() -> Arc<dyn Provider>, module_path: &str) -> Self {
        let test = match module_path.split_once("::") {
            Some((_, inner)) => format!("{inner}::second_process"),
            None => "second_process".into(),
        };
        Self { provider, name: None, test }
    }

    /// For a provider whose names are of another form: `name` gives one that nobody uses.
    #[must_use]
    pub fn named(self, name: fn() -> String) -> Self {
        Self { name: Some(name), ..self }
    }
}

impl Harness for Processes {
    fn provider(&self) -> Arc<dyn Provider> {
        (self.provider)()
    }

    fn name(&self) -> String {
        self.name.unwrap_or(unused_name)()
    }

    fn doomed(&self, name: &str) -> Option<Box<dyn Doomed>> {
        let child = Command::new(std::env::current_exe().ok()?)
            .args([self.test.as_str(), "--exact", "--nocapture", "--test-threads=1"])
            .env(NAME, name)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        Some(Box::new(Process { child }))
    }
}

struct Process {
    child: Child,
}

impl Doomed for Process {
    fn kill(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the `second_process` test does: nothing, unless it was started by `death`.
///
/// # Panics
/// When it was and cannot connect.
pub fn second_process(provider: fn() -> Arc<dyn Provider>) {
    if let Ok(name) = std::env::var(NAME) {
        let never = AtomicBool::new(false);
        let ended = peer_until_killed(provider(), &name, &never);
        assert!(ended.is_ok(), "{ended:?}");
    }
}

/// Connects to `name`, says that it is there, and polls until `killed`, the other end's end, or a
/// minute has passed.
///
/// # Errors
/// What went wrong, in words.
pub fn peer_until_killed(provider: Arc<dyn Provider>, name: &str, killed: &AtomicBool) -> Result<(), String> {
    let run = || -> Result<(), Stop> {
        let mut end = End::open(provider)?;
        let link = end.provider.connect(&end.domain, name, CONNECT)?;
        let qp = end.attach(link)?;
        let area = end.area(4096)?;
        area.write(0, READY)?;
        end.lend(qp, Data::Gather(vec![area.piece(0, READY.len())?]), None)?;
        let start = Instant::now();
        while end.events.is_empty() && !killed.load(Ordering::Acquire) && start.elapsed() < LIFE {
            end.turn();
            std::thread::sleep(Duration::from_micros(200));
        }
        // The end is leaked, not dropped: whoever is killed does not close.
        if killed.load(Ordering::Acquire) {
            std::mem::forget(end);
        }
        Ok(())
    };
    run().map_err(|stop| format!("{stop:?}"))
}

/// What the second end sends first.
pub(crate) const READY: &[u8] = b"ready to die";
/// Names the address to connect to, for the second process.
const NAME: &str = "OVERSIDE_CONFORMANCE_SECOND_END";
/// Until the first end accepts.
const CONNECT: Duration = Duration::from_secs(20);
/// No second end outlives a test run by more.
const LIFE: Duration = Duration::from_secs(60);
