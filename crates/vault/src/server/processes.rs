//! Processes that write a volume together, and the end of one of them.
//!
//! Whoever learns that such a process has ended may write what that one was about to write. So
//! nothing of it is carried out any more that was not handed to the device by then, although its
//! connection may have more.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_verbs::watch::Watch;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::attachment::Attachment;
use super::lock;

/// Sessions of processes of this host.
#[derive(Debug, Default)]
pub(super) struct Processes(Mutex<Watched>);

#[derive(Debug, Default)]
struct Watched {
    /// Readable when one of them has ended; none before there is one.
    watch: Option<Watch>,
    /// By session, its process's end.
    of: BTreeMap<u64, (OwnedFd, Arc<Attachment>)>,
}

impl Processes {
    /// A session of this process writes from now on. Of other hosts' the connection alone tells,
    /// and so it does where the system has no descriptor.
    pub(super) fn enter(&self, who: &Arc<Attachment>, process: Option<u32>) {
        let pid = process.and_then(|process| Pid::from_raw(process.try_into().ok()?));
        let Some(end) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return };
        let mut watched = lock(&self.0);
        if watched.watch.is_none() {
            watched.watch = Watch::new().ok();
        }
        if watched.watch.as_ref().is_some_and(|watch| watch.add(&end, who.session).is_ok()) {
            watched.of.insert(who.session, (end, who.clone()));
        }
    }

    /// It does not write any more.
    pub(super) fn leave(&self, session: u64) {
        lock(&self.0).leave(session);
    }

    pub(super) fn forget(&self) {
        lock(&self.0).of.clear();
    }

    /// Fences off those that have ended, unless who asks is the only one.
    pub(super) fn fence_ended(&self, asks: u64) {
        let mut watched = lock(&self.0);
        if watched.of.keys().all(|session| *session == asks) {
            return;
        }
        // It says of some at a time; those that have left are not said again.
        while watched.fence_some() {}
    }
}

impl Watched {
    /// Whether there were any.
    fn fence_some(&mut self) -> bool {
        let mut ended = Vec::new();
        if let Some(watch) = &self.watch {
            // Without an answer the connections' ends tell.
            let _ = watch.wait(Duration::ZERO, |session, _| ended.push(session));
        }
        let mut some = false;
        for who in ended.into_iter().filter_map(|session| self.leave(session)) {
            who.fence();
            some = true;
        }
        some
    }

    fn leave(&mut self, session: u64) -> Option<Arc<Attachment>> {
        let (end, who) = self.of.remove(&session)?;
        if let Some(watch) = &self.watch {
            watch.remove(&end);
        }
        Some(who)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use overside_verbs::SystemClock;
    use overside_volume::MemoryDevice;

    use super::*;
    use crate::server::blocks::Registered;
    use crate::server::volume::Volume;
    use crate::server::{About, NodeOptions};

    /// More than a watch says at a time.
    #[test]
    fn however_many_have_ended_all_are_fenced_off() {
        let (device, clock) = (Box::new(MemoryDevice::new(1 << 20).unwrap()), SystemClock::handle());
        let memory = Arc::new(Registered::new(0));
        let volume = Volume::new(device, &NodeOptions::default(), clock, About::default(), None, memory).unwrap();
        let (volume, processes) = (Arc::new(volume), Processes::default());
        let enter = |session: u64, process| {
            let who = Arc::new(Attachment::new(session, volume.clone(), true, (process, 7)));
            processes.enter(&who, Some(process));
            who
        };
        let asks = enter(1, std::process::id());
        let mut children: Vec<Child> = (0..200).map(|_| Command::new("sleep").arg("1000").spawn().unwrap()).collect();
        let ended: Vec<_> = children.iter().zip(2..).map(|(child, session)| enter(session, child.id())).collect();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        processes.fence_ended(asks.session);
        assert!(ended.iter().all(|who| who.is_fenced()) && !asks.is_fenced());
    }
}
