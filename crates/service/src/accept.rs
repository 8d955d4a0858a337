//! Listening, and the thread that hands new connections to the workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use overside_verbs::{Listener, ProtectionDomain, Provider, VerbsError};

use crate::state::State;
use crate::ticket::Mailbox;
use crate::worker::{Arrival, Origin};

/// A provider with a protection domain, and the names at which it listens.
#[derive(Debug)]
pub struct Listening {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) domain: ProtectionDomain,
    pub(crate) listeners: Vec<Box<dyn Listener>>,
}

/// A worker's door: where its connections come in.
pub(crate) struct Door<S> {
    pub(crate) sender: Sender<Arrival<S>>,
    pub(crate) mailbox: Arc<Mailbox>,
}

impl<S> Clone for Door<S> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), mailbox: self.mailbox.clone() }
    }
}

impl<S> Door<S> {
    /// Hands a connection to the worker; false when it has ended.
    pub(crate) fn pass(&self, arrival: Arrival<S>) -> bool {
        let passed = self.sender.send(arrival).is_ok();
        self.mailbox.signal();
        passed
    }
}

impl Listening {
    /// Listens at the provider's part of each address; at none, workers serve only what is
    /// [dialled](crate::Dialer).
    ///
    /// # Errors
    /// When an address is taken or the system has no room.
    pub fn open(provider: Arc<dyn Provider>, names: &[impl AsRef<str>]) -> Result<Listening, VerbsError> {
        raise_descriptor_limit();
        let domain = provider.allocate_domain()?;
        let mut listening = Listening { provider, domain, listeners: Vec::new() };
        listening.listen(names)?;
        Ok(listening)
    }

    /// Listens at other names, too: for a system that has something to do before anybody connects,
    /// in the [domain](Self::domain) that it is to be served from.
    ///
    /// # Errors
    /// When an address is taken or the system has no room.
    pub fn listen(&mut self, names: &[impl AsRef<str>]) -> Result<(), VerbsError> {
        for name in names {
            self.listeners.push(self.provider.listen(&self.domain, name.as_ref())?);
        }
        Ok(())
    }

    /// The provider.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// The domain in which the system registers the memory that it sends from.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }
}

/// A connection takes a few descriptors, a segment one: the usual 1,024 are soon spent, and the
/// system allows more to a process that asks. Refusal leaves what there is.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// An accepting thread: hands new connections to the workers in turn, until the server ends.
pub(crate) fn accept<S>(state: &Arc<State>, name: &str, mut listener: Box<dyn Listener>, doors: &[Door<S>]) {
    let mut turn = 0;
    let meant = "the connections that it was greeting are lost";
    while !state.survives(name, meant, || accept_from(state, &mut *listener, doors, &mut turn)) {
        state.clock.sleep(ACCEPT_LOOK);
    }
}

fn accept_from<S>(state: &Arc<State>, listener: &mut dyn Listener, doors: &[Door<S>], turn: &mut usize) {
    while !state.stop.load(Ordering::Acquire) {
        state.look();
        if let Some(refused) = listener.refused() {
            state.say(&refused.to_string());
        }
        match accept_one(state, listener, ACCEPT_LOOK) {
            Ok(Some(arrival)) => {
                doors[*turn % doors.len()].pass(arrival);
                *turn += 1;
            }
            Ok(None) => {}
            // Out of descriptors, say: others close theirs, and looking again is all there is to do.
            Err(_) => state.clock.sleep(ACCEPT_LOOK),
        }
    }
}

/// The next connection that is let in, within `patience`.
pub(crate) fn accept_one<S>(
    state: &Arc<State>,
    listener: &mut dyn Listener,
    patience: Duration,
) -> Result<Option<Arrival<S>>, VerbsError> {
    let Some(link) = listener.accept(patience)? else { return Ok(None) };
    let Some(permit) = state.admit() else {
        state.say(&format!("no place for the connection of {}", link.peer.description));
        return Ok(None);
    };
    Ok(Some(Arrival { link, origin: Origin::Peer(permit) }))
}

/// How often the accepting thread looks whether it should stop.
const ACCEPT_LOOK: Duration = Duration::from_millis(200);
