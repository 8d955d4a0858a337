//! How many bytes a connection has carried through the kernel, and in which processes it is open.
//!
//! Both ends leave the kernel's stream at a counted byte, so the counts must hold across `fork`:
//! before one, those of all connections move into a page that parent and child share. Everything
//! counts that goes through the kernel's socket: the program's bytes, wake bytes, and bytes of a
//! ring that are sent again.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::word::Word;

/// Counts of one connection.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) sent: Word,
    pub(crate) received: Word,
    /// Wake bytes read from the kernel's stream.
    pub(crate) drained: Word,
    /// Once the receiving direction is switched: how far what lies before the border is taken.
    pub(crate) taken: Word,
    /// And where that border is.
    pub(crate) border: Word,
    /// Some process has moved bytes of it that are not counted.
    spoiled: AtomicBool,
    /// The processes that have it open, once it was shared: their numbers, 0 for none, `UNBORN` for
    /// a child that a fork is making.
    who: [AtomicI32; PROCESSES],
}

impl Counts {
    pub(crate) const fn new() -> Self {
        Self {
            sent: Word::new(0),
            received: Word::new(0),
            drained: Word::new(0),
            taken: Word::new(0),
            border: Word::new(0),
            spoiled: AtomicBool::new(false),
            who: [const { AtomicI32::new(0) }; PROCESSES],
        }
    }

    pub(crate) fn copy_from(&self, other: &Counts) {
        self.sent.store(other.sent.load(Ordering::Relaxed), Ordering::Relaxed);
        self.received.store(other.received.load(Ordering::Relaxed), Ordering::Relaxed);
        self.drained.store(other.drained.load(Ordering::Relaxed), Ordering::Relaxed);
        self.taken.store(other.taken.load(Ordering::Relaxed), Ordering::Relaxed);
        self.border.store(other.border.load(Ordering::Relaxed), Ordering::Relaxed);
        self.replace(0, me());
    }

    /// Bytes pass that nobody counts.
    pub(crate) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }

    /// A fork is about to make one more process that has it open.
    pub(crate) fn expect_child(&self) {
        if !self.replace(0, UNBORN) {
            // Some may have ended long since.
            let _ = self.is_ours_alone();
            if !self.replace(0, UNBORN) {
                self.spoil();
            }
        }
    }

    /// This process is that one.
    pub(crate) fn be_born(&self) {
        self.name_child(me());
    }

    /// The fork has made this one, or none. The child says so itself as soon as it runs;
    /// it may be killed before.
    pub(crate) fn name_child(&self, child: i32) {
        if child <= 0 {
            self.replace(UNBORN, 0);
        } else if !self.who.iter().any(|who| who.load(Ordering::Acquire) == child) {
            self.replace(UNBORN, child);
        }
    }

    /// This process has it open no more.
    pub(crate) fn leave(&self) {
        self.replace(me(), 0);
    }

    /// Whether no other process has it open. Those that have ended without a word are found out
    /// here; one whose number was given to another since counts as alive, which only costs speed.
    pub(crate) fn is_ours_alone(&self) -> bool {
        #[cfg(test)]
        if let Some(alone) = crate::explore::is_alone() {
            return alone;
        }
        let me = me();
        let mut alone = !self.spoiled.load(Ordering::Acquire);
        for who in &self.who {
            let number = who.load(Ordering::Acquire);
            if number == 0 || number == me {
                continue;
            }
            let gone = Pid::from_raw(number.max(0))
                .is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH));
            if gone {
                let _ = who.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            alone &= gone;
        }
        alone
    }

    /// For the explorer.
    #[cfg(test)]
    pub(crate) const WORDS: usize = 5;

    #[cfg(test)]
    fn each(&self) -> [&Word; Self::WORDS] {
        [&self.sent, &self.received, &self.drained, &self.taken, &self.border]
    }

    #[cfg(test)]
    pub(crate) fn words(&self) -> std::ops::Range<usize> {
        let first = std::ptr::from_ref(self).addr();
        first..first + size_of::<Self>()
    }

    #[cfg(test)]
    pub(crate) fn get_words(&self) -> [u64; Self::WORDS] {
        self.each().map(|word| word.load(Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(crate) fn set_words(&self, words: [u64; Self::WORDS]) {
        self.each().into_iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }

    fn replace(&self, old: i32, new: i32) -> bool {
        self.who.iter().any(|who| who.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }
}

/// The counts, not who has them.
impl Clone for Counts {
    fn clone(&self) -> Self {
        let counts = Self::new();
        counts.copy_from(self);
        counts
    }
}

impl std::hash::Hash for Counts {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for word in [&self.sent, &self.received, &self.drained, &self.taken, &self.border] {
            word.load(Ordering::Relaxed).hash(state);
        }
    }
}

fn me() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

const UNBORN: i32 = -1;
const PROCESSES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ours_alone_when_the_others_have_left_or_ended() {
        let (page, own) = (Counts::new(), Counts::new());
        page.copy_from(&own);
        assert!(page.is_ours_alone());
        page.expect_child();
        assert!(!page.is_ours_alone(), "the child may be there any moment");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        page.name_child(child.id() as i32);
        page.expect_child();
        page.name_child(-1);
        child.wait().unwrap();
        assert!(page.is_ours_alone(), "it has ended");
        page.expect_child();
        assert!(page.replace(UNBORN, 1) && !page.is_ours_alone(), "the first process is there for ever");
        assert!(page.replace(1, 0) && page.is_ours_alone());
        page.spoil();
        assert!(!page.is_ours_alone(), "nobody can count on its counts");
    }

    #[test]
    fn more_processes_than_can_be_named_are_too_many() {
        let page = Counts::new();
        page.copy_from(&Counts::new());
        for _ in 0..PROCESSES - 1 {
            page.expect_child();
            assert!(page.replace(UNBORN, 1));
        }
        assert!(!page.spoiled.load(Ordering::Relaxed));
        page.expect_child();
        assert!(page.spoiled.load(Ordering::Relaxed));
    }
}
