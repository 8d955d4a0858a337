//! Faults that tests plant into the code that is shipped, so that the explorer shows it finds them.

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Fault {
    /// A receiver that leaves the ring leaves what is unread there.
    LeavesUnread,
    /// Who is about to sleep takes a wake byte away though others have not run.
    DrainsAtOnce,
    /// The same of an eventfd.
    DrainsEventfdAtOnce,
    /// The ends come into the rings while a thread sleeps in `poll` that knows nothing of them.
    AttachesEarly,
    /// A full ring stays as it is.
    StaysShallow,
    /// The sender does not look whether the receiver has left.
    NoLookForLeft,
    /// Who closes does not give the kernel what the peer has not taken.
    ClosesWithout,
    /// A sleeper does not look once more after it has said that it sleeps.
    NoLookAgain,
    /// A receive believes the end of the stream though the ring has begun meanwhile.
    NoLookForStart,
    /// A sender that leaves rings behind the bytes that it gives to the kernel.
    NotifiesLate,
    /// A receiver does not look for what nobody has sent again.
    NothingDue,
    /// Who takes wake bytes away, or reads an eventfd, does not think of those who sleep in a set.
    DrainsWithoutSets,
    /// He asks for their wake-up anew, but does not wake them for what stands already.
    NoLookForSets,
    /// Who was woken by an eventfd takes back the wake requests of others, too.
    DisarmsAlways,
    /// A set that is woken by EPOLLOUT alone is taken to hear it always.
    TakesSetsForWakeable,
    /// Who was woken in a set keeps the event for himself.
    KeepsEvent,
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_planted(_: Fault) -> bool {
    false
}

#[cfg(test)]
pub(crate) fn is_planted(fault: Fault) -> bool {
    crate::explore::is_planted(fault)
}
