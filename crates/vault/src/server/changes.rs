//! Volumes that a node lets go of to be changed: made larger, given another member, deleted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use overside_service::client::{Link, LinkError, LinkOptions};
use overside_service::{CONTROL_HEADER, Context, RequestOrder, Running};
use overside_verbs::Provider;
use overside_verbs::handshake::Key;
use overside_volume::Device;
use overside_volume::wire::{Alteration, Change, Changed, Malformed, NONCE_BYTES, Proof, Status};

use super::volume::Volume;
use super::{About, Node, lock};

/// The owner of the home folder of a node's volumes, which carries changes out there.
pub trait Keeper: Send + Sync + fmt::Debug {
    /// Whether a volume may be let go of for a change. It reads what is written down, and no more.
    ///
    /// # Errors
    /// Why not, and what to do, in a line.
    fn allows(&self, volume: &str, what: &Alteration) -> Result<(), String>;

    /// Changes a volume that the node has let go of, and [adds](Node::add_described) to the node
    /// what there is then, also after a change that failed. What was done, in a line.
    ///
    /// # Errors
    /// Why not, and what to do, in a line. The volume is as it was.
    fn change(&self, node: &Arc<Node>, volume: &str, what: &Alteration) -> Result<String, String>;

    /// Puts another member in the place of one of a volume that the node has let go of while
    /// clients use it; and the volume as it is then, also after a change that failed.
    fn replace(&self, volume: &str, old: &str, new: &str) -> (Result<String, String>, Reopened);
}

/// A volume's device and what it lies on, or why it cannot be opened.
pub type Reopened = Result<(Box<dyn Device>, About), String>;

/// Why a change was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Nobody answers there, or not before the deadline.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What answers is no node of this version.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// There is no such volume.
    #[error("the node has no volume {0}, or the key is another one; `overside volume list` says which there are")]
    Unknown(String),
    /// The volume has a key.
    #[error("the node asks for the volume's key; give it with --access-key FILE")]
    NeedsKey,
    /// The volume's key does not let its holder change it.
    #[error("the volume's key allows to read alone; use one that writes")]
    ReadOnly,
    /// The node says why.
    #[error("{0}")]
    Refused(String),
}

/// Why a volume is not let go of.
enum Kept {
    Unknown,
    Because(String),
}

impl Node {
    /// Begins a change, and answers when it is done. Unlike a request it may take long, and
    /// has a thread of its own.
    pub(super) fn change_later(self: &Arc<Self>, context: &mut Context<'_>, number: u32, change: Change) {
        context.admit();
        let ticket = context.later(number, RequestOrder::Free);
        let answer = move |status, text: String| {
            let changed = Changed { number, status, nonce: [0; NONCE_BYTES], text };
            ticket.complete(|body| body.extend_from_slice(&changed.bytes()[CONTROL_HEADER..]));
        };
        let Some(keeper) = self.options.keeper.clone() else {
            let why =
                "this node's volumes are not changed over connections; end it, and change them in its home folder";
            return answer(Status::Refused, why.to_owned());
        };
        if self.serves(&change.volume)
            && let Err(why) = keeper.allows(&change.volume, &change.what)
        {
            return answer(Status::Refused, why);
        }
        if let Alteration::Replace { old, new } = &change.what
            && self.volume(&change.volume).is_some()
        {
            let (old, new) = (old.clone(), new.clone());
            return self.replace_later(keeper, change.volume, (old, new), answer);
        }
        let gone = match self.let_go(&change.volume) {
            Ok(gone) => gone,
            Err(Kept::Unknown) => return answer(Status::Unknown, String::new()),
            Err(Kept::Because(why)) => return answer(Status::Refused, why),
        };
        // No volume has a name with a space.
        let (node, name, volume) = (self.clone(), format!("change {}", change.volume), change.volume.clone());
        let run = move || {
            let Change { volume, what, .. } = change;
            if let Some((device, running)) = gone {
                device.stop();
                if let Some(running) = running {
                    running.join();
                }
                device.forget_writers();
                // Its members are free once nobody has it.
                drop(device);
            }
            let done = keeper.change(&node, &volume, &what);
            lock(&node.changing).remove(&volume);
            match done {
                Ok(text) => answer(Status::Done, text),
                Err(why) => answer(Status::Refused, why),
            }
        };
        if !self.start_change(name, Box::new(run)) {
            // Its answer is the connection's end.
            lock(&self.changing).remove(&volume);
            self.add_failed(&volume, "the system has no thread to change it; start the node again");
        }
    }

    fn start_change(&self, name: String, run: Box<dyn FnOnce() + Send>) -> bool {
        let mut serving = lock(&self.serving);
        let started = serving.as_ref().map(|serving| serving.threads.start(&name, run));
        if let (Some(Ok(running)), Some(serving)) = (started, &mut *serving) {
            serving.running.insert(name, running);
            return true;
        }
        false
    }

    /// Another member takes the place of one while clients use the volume: their
    /// requests wait until the volume is open again, and the new member gets what the
    /// others have while they go on.
    fn replace_later(
        self: &Arc<Self>,
        keeper: Arc<dyn Keeper>,
        name: String,
        (old, new): (String, String),
        answer: impl FnOnce(Status, String) + Send + 'static,
    ) {
        if !lock(&self.changing).insert(name.clone()) {
            return answer(Status::Refused, being_changed(&name));
        }
        // From here on nobody else lets go of it.
        let Some(volume) = self.volume(&name) else {
            lock(&self.changing).remove(&name);
            return answer(Status::Refused, being_changed(&name));
        };
        let (node, its_name) = (self.clone(), name.clone());
        let run = move || {
            let done = match volume.take_device() {
                Err(_) => Err(format!("{name} has requests that do not end; try again once its members answer")),
                Ok(()) => {
                    let (done, reopened) = keeper.replace(&name, &old, &new);
                    let why = reopened.as_ref().err().cloned();
                    volume.put_device(reopened.ok());
                    match why {
                        None => done,
                        Some(why) => {
                            node.fail(&name, &volume, &why);
                            let done = done.unwrap_or_else(|error| error);
                            Err(format!("{done}; but it cannot be served: {why}"))
                        }
                    }
                }
            };
            lock(&node.changing).remove(&name);
            match done {
                Ok(text) => answer(Status::Done, text),
                Err(why) => answer(Status::Refused, why),
            }
        };
        if !self.start_change(format!("change {its_name}"), Box::new(run)) {
            // Its answer is the connection's end.
            lock(&self.changing).remove(&its_name);
        }
    }

    /// A volume that cannot be opened again: its clients' requests have failed, and they are
    /// told why when they return.
    fn fail(&self, name: &str, volume: &Arc<Volume>, why: &str) {
        let mut attachments = lock(&self.attachments);
        attachments.retain(|_, other| {
            let stays = !Arc::ptr_eq(&other.volume, volume);
            if !stays {
                other.fence();
            }
            stays
        });
        lock(&self.volumes).remove(name);
        drop(attachments);
        volume.stop();
        volume.forget_writers();
        self.add_failed(name, why);
    }

    /// A volume that nobody uses is the node's no more; where it could not be opened,
    /// there is nothing to end.
    #[expect(clippy::type_complexity, reason = "the volume and its thread")]
    fn let_go(&self, name: &str) -> Result<Option<(Arc<Volume>, Option<Running>)>, Kept> {
        let now = self.clock.now();
        let mut attachments = lock(&self.attachments);
        // Until the end: a replacement begins without the attachments.
        let mut changing = lock(&self.changing);
        if changing.contains(name) {
            return Err(Kept::Because(being_changed(name)));
        }
        let Some(volume) = self.volume(name) else {
            if !lock(&self.failed).contains_key(name) {
                return Err(Kept::Unknown);
            }
            changing.insert(name.to_owned());
            return Ok(None);
        };
        attachments.retain(|_, other| !Arc::ptr_eq(&other.volume, &volume) || !other.is_gone(now, self.options.linger));
        let users = attachments.values().filter(|other| Arc::ptr_eq(&other.volume, &volume));
        let users: Vec<String> = users.map(|other| format!("process {}", other.process())).collect();
        if !users.is_empty() {
            return Err(Kept::Because(format!("{name} is in use by {}; detach it there first", users.join(", "))));
        }
        changing.insert(name.to_owned());
        let mut volumes = lock(&self.volumes);
        volumes.remove(name);
        self.share_cache(&volumes);
        drop((volumes, changing, attachments));
        let running = lock(&self.serving).as_mut().and_then(|serving| serving.running.remove(name));
        Ok(Some((volume, running)))
    }
}

fn being_changed(name: &str) -> String {
    format!("{name} is being changed; try again once that is done")
}

/// Asks the node at the provider's part of an address for a change. What was done, in a line.
///
/// # Errors
/// Nobody answers there in time, or the node refuses.
pub fn change(
    provider: Arc<dyn Provider>,
    address: &str,
    volume: &str,
    what: Alteration,
    key: Option<&Key>,
    within: Duration,
) -> Result<String, ChangeError> {
    let options = LinkOptions { timeout: within, ..LinkOptions::default() };
    let mut link = Link::connect(provider, address, options)?;
    // The link numbers its messages itself.
    let change = Change { number: 0, volume: volume.to_owned(), what };
    let number = link.send(|body| body.extend_from_slice(&change.bytes()[CONTROL_HEADER..]))?;
    let mut said = Changed::parse(link.reply(number)?.as_ref())?;
    if let (Status::Prove, Some(key)) = (said.status, key) {
        let change = Change { number, ..change };
        let proof = Proof::over(key, 0, &change.bytes(), &said.bytes()).bytes();
        let number = link.send(|body| body.extend_from_slice(&proof[CONTROL_HEADER..]))?;
        said = Changed::parse(link.reply(number)?.as_ref())?;
    }
    match said.status {
        Status::Done => Ok(said.text),
        Status::Unknown => Err(ChangeError::Unknown(volume.to_owned())),
        Status::Prove => Err(ChangeError::NeedsKey),
        Status::Device(overside_volume::DeviceError::ReadOnly) => Err(ChangeError::ReadOnly),
        _ => Err(ChangeError::Refused(said.text)),
    }
}
