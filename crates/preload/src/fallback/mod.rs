//! Back to the kernel: what stops a connection's rings, at a counted byte.
//!
//! Either end may switch a direction at any moment, by one step on its tail word that names the
//! *border*. Bytes before it are read from the ring, and bytes behind it travel through the kernel.
//! Nobody waits for anybody.
//!
//! - A receiver that leaves puts the border at the head: it takes what is unread along, and serves
//!   its program from the ring, with the kernel's stream behind it. A send that is under way at
//!   that moment finds the border before its own bytes, and gives them to the kernel; what that
//!   does not take has not been sent.
//! - A sender that leaves gives what is unread to the kernel, if that takes all of it, and puts the
//!   border before it; else it puts the border at the head.
//! - Where another program will read the socket (`resend`), the receiver puts the border before
//!   what is unread, and has it sent again.
//!
//! That is so of two ends with one memory (`local`); what another host has to be told
//! and asked is in `remote`.
//!
//! Wake bytes that are in the kernel's stream are counted (`wake_bytes`), so
//! exactly those are dropped.

mod local;
mod remote;
pub(crate) mod resend;

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};

use crate::connection::{Inner, LockHeld};
use crate::diagnosis::Reason;
use crate::eventfd;
use crate::fault::{self, Fault};
use crate::futex;
use crate::kernel;
use crate::layout::{SWITCHED, SharedMemory};
use crate::leaving::{self, Action, Event, Find, Push, Pushed, Unread};
use crate::own;
use crate::reattach;
use crate::sets;
use crate::state::{Family, Incoming, Outgoing, Search, Source};
use crate::step::{self, Agreement};
use crate::table;
use crate::wake;

pub(crate) use remote::lose;
pub(crate) use resend::announce_socket_elsewhere;

/// Ends acceleration of this connection; what is unread is taken along.
pub(crate) fn leave(held: &mut LockHeld<'_>, fd: c_int, reason: Reason) {
    leave_with(held, fd, reason, Unread::TakenAlong);
}

pub(crate) fn leave_with(held: &mut LockHeld<'_>, fd: c_int, reason: Reason, unread: Unread) {
    match held.step(step::Event::Leaves(reason)) {
        step::Action::Cancel => give_up(held, reason),
        step::Action::Leave(shared, agreement) => {
            if !held.outgoing.has_left() && !held.incoming.has_left() {
                held.reason = reason;
            }
            reattach::say(&shared, agreement);
            leave_ring(held, fd, &shared, unread);
        }
        _ => {}
    }
}

/// Never in the rings, since bytes may pass that nobody counts.
pub(crate) fn give_up(held: &mut LockHeld<'_>, reason: Reason) {
    held.reason = reason;
    held.counts().spoil();
    cancel(held);
}

/// Takes back what was offered or left at the other end, who may find it later and
/// must then find it switched.
pub(crate) fn cancel(held: &mut LockHeld<'_>) {
    withdraw_offer(held);
    if let Some(shared) = held.shared() {
        reattach::say(&shared, Agreement::End);
        shared.cancel();
        shared.tail(0).fetch_or(SWITCHED, Ordering::SeqCst);
        shared.tail(1).fetch_or(SWITCHED, Ordering::SeqCst);
        shared.left(held.end).store(1, Ordering::SeqCst);
        wake::disarm(shared.wake_word(held.end));
        release(held);
    }
}

/// Nobody can come by any more.
pub(crate) fn withdraw_offer(held: &mut Inner) {
    if let Some(socket) = std::mem::replace(&mut held.search, Search::Idle).socket() {
        own::close(socket);
    }
}

/// Gives the socket back the settings that it had.
pub(crate) fn restore(held: &mut Inner, fd: c_int) {
    let Family::Tcp { nagle, cork } = &mut held.family else { return };
    if std::mem::take(nagle) {
        let _ = sockopt::set_tcp_nodelay(kernel::borrowed(fd), false);
    }
    if std::mem::take(cork) {
        let _ = sockopt::set_tcp_cork(kernel::borrowed(fd), true);
    }
}

fn leave_ring(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory, unread: Unread) {
    // A wake byte of ours means something only behind a counted start.
    if shared.present(held.peer()).load(Ordering::Acquire) == 1 {
        start_now(held, shared);
    }
    switch_in_with(held, shared, unread);
    let leaves = !held.outgoing.has_left();
    let fits = leaves && stop_sending(held, fd, shared);
    if fits && fault::is_planted(Fault::NotifiesLate) {
        push_all(held, fd, shared);
    }
    if leaves {
        // Another thread may wait in poll for room, of which nobody would tell it any more.
        if held.connection.pollers.any() {
            eventfd::pass_on(held.connection);
        }
    }
    // The peer may sleep for room in a ring that is not used any more, or has our unread bytes to send again. One that finds nothing
    // of that to do is not woken: what it sleeps for comes through the kernel, and a wake byte that it has not read when it is killed would
    // make a reset of its end. One that is gone would do so, too. Before any byte of ours goes to the stream: of what is there the peer
    // takes so many for wake bytes as it has counted.
    if rim(shared).is_peer_needed(held, shared) && !kernel::is_over(fd) {
        notify(held, fd, shared, wake::DATA | wake::ROOM);
    }
    if fits {
        push_all(held, fd, shared);
    }
    let _ = push(held, fd, shared);
    finish(held, fd);
}

/// What differs between a peer that has the same memory and one on another host,
/// once a direction goes back.
pub(crate) trait Rim: Sync {
    /// The receiving direction comes through the kernel from here on.
    fn switch_in(&self, held: &mut Inner, shared: &SharedMemory, unread: Unread);

    /// Ends the sending direction. True if what is unread is to be pushed, since the
    /// kernel takes all of it now.
    fn stop_sending(&self, held: &mut Inner, fd: c_int, shared: &SharedMemory) -> bool;

    /// Takes note that the sending direction is switched, at the position this tail word has.
    fn note_out(&self, held: &mut Inner, shared: &SharedMemory, word: u64);

    /// Looks whether the receiver has left, in a sending direction that has not.
    fn find_border(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory);

    /// This end leaves: whether the peer has something to do for that, and must be woken.
    fn is_peer_needed(&self, held: &Inner, shared: &SharedMemory) -> bool;

    /// Before this end leaves: whether the peer is to say first how far it has read.
    fn ask(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> PeerAnswer;

    /// Once the receiving direction is switched: whether all is known about its end. Nothing of the
    /// kernel's stream may be taken for bytes before.
    fn is_settled(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> bool;

    /// Whether the kernel calls a reset, or would, what is the end of a peer that was killed
    /// with a wake byte unread.
    fn is_of_a_wake_byte(&self, held: &mut Inner, shared: &SharedMemory) -> bool;

    /// This end is closed: what the peer has not taken.
    fn close(&self, held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory);

    /// Milliseconds that the peer may take until it has answered.
    fn patience(&self) -> u32;

    /// Whether a forked child may use it.
    fn is_for_children(&self) -> bool;
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerAnswer {
    /// There is nothing to ask, ever.
    Never,
    /// It has answered, or is not there.
    Answered,
    Waits,
}

fn rim(shared: &SharedMemory) -> &'static dyn Rim {
    if shared.device().is_none() { &local::Local } else { &remote::Remote }
}

/// The receiving direction comes through the kernel from here on; what is unread is taken along.
pub(crate) fn switch_in(held: &mut Inner, shared: &SharedMemory) {
    switch_in_with(held, shared, Unread::TakenAlong);
}

fn switch_in_with(held: &mut Inner, shared: &SharedMemory, unread: Unread) {
    if !held.incoming.has_left() {
        rim(shared).switch_in(held, shared, unread);
    }
}

/// Does what a machine of `leaving` says, with a word of this direction or the socket `fd`. What
/// puts bytes into the stream, and what says who does, is for the caller.
pub(crate) fn act(held: &mut Inner, fd: c_int, shared: &SharedMemory, direction: usize, action: Action) -> Event {
    if let Some(word) = look(held, shared, direction, action) {
        return Event::Word(word);
    }
    let receiver = direction ^ 1;
    match action {
        Action::LookLeft
        | Action::LookHead
        | Action::LookTail
        | Action::LookPushed
        | Action::LookGiven
        | Action::LookBorder => Event::Refused,
        Action::SayLeft => {
            shared.left(receiver).store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            Event::Done
        }
        Action::SayHead(head) => {
            held.out.unsend(shared, direction, head);
            Event::Done
        }
        Action::SayBorder(border) => {
            resend::mark_giving(shared, direction, true);
            held.counts().border.store(border, Ordering::SeqCst);
            Event::Done
        }
        Action::SayPushed(position) => {
            shared.pushed(direction).store(position.saturating_add(1), Ordering::SeqCst);
            resend::mark_giving(shared, direction, false);
            Event::Done
        }
        Action::Switch => Event::Word(shared.tail(direction).fetch_or(SWITCHED, Ordering::SeqCst)),
        Action::SwitchAt(position) => {
            let there = |word| (word & SWITCHED == 0).then_some(position | SWITCHED);
            let before = shared.tail(direction).fetch_update(Ordering::SeqCst, Ordering::SeqCst, there);
            Event::Word(before.map_or_else(|word| word, |_| position | SWITCHED))
        }
        Action::Disarm => Event::Word(wake::disarm(shared.wake_word(receiver))),
        Action::Release => {
            shared.pusher(direction).store(0, Ordering::SeqCst);
            Event::Done
        }
        Action::SayGiven => {
            shared.given(direction).fetch_add(1, Ordering::SeqCst);
            Event::Done
        }
        Action::Room(bytes) if kernel::takes(fd, bytes) => Event::Done,
        Action::Room(_) | Action::Claim | Action::Borrow | Action::GiveWakeByte | Action::Give { .. } => Event::Refused,
    }
}

/// What of this is a look alone. It changes nothing, so the program may jump out of it.
fn look(held: &Inner, shared: &SharedMemory, direction: usize, action: Action) -> Option<u64> {
    match action {
        Action::LookLeft => Some(shared.left(direction ^ 1).load(Ordering::SeqCst)),
        Action::LookHead => Some(shared.head(direction).load(Ordering::SeqCst)),
        Action::LookTail => Some(shared.tail(direction).load(Ordering::SeqCst)),
        Action::LookPushed => Some(shared.pushed(direction).load(Ordering::SeqCst).saturating_sub(1)),
        Action::LookGiven => Some(shared.given(direction).load(Ordering::SeqCst)),
        Action::LookBorder => Some(held.border()),
        _ => None,
    }
}

/// Ends the sending direction. Bytes that the peer has not taken go through the kernel, if that
/// takes all of them now, and any reader of the socket gets them. Else the peer reads them from the
/// ring. True if it is to be pushed.
pub(crate) fn stop_sending(held: &mut Inner, fd: c_int, shared: &SharedMemory) -> bool {
    rim(shared).stop_sending(held, fd, shared)
}

/// Before this end leaves: whether the peer is to say first how far it has read.
pub(crate) fn ask(held: &mut LockHeld<'_>, fd: c_int) -> PeerAnswer {
    match held.ring() {
        Some(shared) => rim(&shared).ask(held, fd, &shared),
        None => PeerAnswer::Never,
    }
}

/// Milliseconds that the peer may take until it has answered.
pub(crate) fn patience(shared: &SharedMemory) -> u32 {
    rim(shared).patience()
}

/// Whether a forked child may use it.
pub(crate) fn is_for_children(shared: &SharedMemory) -> bool {
    rim(shared).is_for_children()
}

/// This end is closed: what the peer has not taken goes another way, or stays in the ring.
pub(crate) fn close(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) {
    rim(shared).close(held, fd, shared);
}

/// The sending direction alone: the peer is gone, and the kernel is to say how.
pub(crate) fn switch_out(held: &mut Inner, shared: &SharedMemory) {
    if !held.outgoing.has_left() {
        let word = shared.tail(held.end).fetch_or(SWITCHED, Ordering::SeqCst);
        note_out(held, shared, word);
    }
}

/// Takes note that the sending direction is switched, at the position this tail word has.
pub(crate) fn note_out(held: &mut Inner, shared: &SharedMemory, word: u64) {
    rim(shared).note_out(held, shared, word);
}

/// The sending direction has left, and its bytes from here on are sent again.
fn go_out(held: &mut Inner, resend: u64) {
    let head = held.out.head;
    held.step(step::Event::StopsSending { resend, head });
    if matches!(held.reason, Reason::None) {
        held.reason = Reason::Peer;
    }
}

/// What was asked of us by the peer's switch: to be done before sleeping.
pub(crate) fn respond(held: &mut LockHeld<'_>, fd: c_int) {
    let Some(shared) = held.ring() else { return };
    if !held.outgoing.has_left() {
        rim(&shared).find_border(held, fd, &shared);
    }
    if held.outgoing.has_left() {
        let _ = push(held, fd, &shared);
    }
}

/// Of the last bytes that were written, how many the kernel has to be offered anew: the
/// peer has left before them.
pub(crate) fn unsend(held: &mut Inner, fd: c_int, shared: &SharedMemory, bytes: u64) -> u64 {
    if !held.outgoing.has_left() {
        let find = Find::published(held.out.head);
        local::find(&mut &mut *held, fd, shared, find);
    }
    if !held.outgoing.has_left() {
        return 0;
    }
    let from = held.outgoing.resend(held.out.head);
    push_from(held, fd, shared, from, bytes).1
}

/// Sends again through the kernel what the peer did not take from the ring.
pub(crate) fn push(held: &mut Inner, fd: c_int, shared: &SharedMemory) -> Result<(), Errno> {
    let from = held.outgoing.resend(held.out.head);
    push_from(held, fd, shared, from, 0).0
}

/// The same of what lies behind a position, and wake bytes first; of the last `own` bytes, what the
/// kernel does not take is taken back.
fn push_from(held: &mut Inner, fd: c_int, shared: &SharedMemory, from: u64, own: u64) -> (Result<(), Errno>, u64) {
    if held.outgoing.owed() == 0 && from >= held.out.head {
        return (Ok(()), 0);
    }
    let (end, mut broken) = (held.end, Errno::AGAIN);
    let mut push = Push::new(held.out.head, from, held.outgoing.owed(), own);
    leaving::run(&mut push, |action| match action {
        Action::Claim => {
            let claimed = resend::claim(held, shared);
            if claimed == Event::Broken {
                broken = Errno::CONNRESET;
                held.error = Some(Errno::CONNRESET);
                break_connection(fd, held.family.is_unix());
            }
            claimed
        }
        Action::GiveWakeByte | Action::Give { .. } => {
            let (at, len) = match action {
                Action::Give { from, .. } => held.out.written(shared, end, from),
                _ => ((&raw const WAKE_BYTE).cast_mut(), 1),
            };
            if action != Action::GiveWakeByte {
                resend::mark_giving(shared, end, true);
            }
            let given = kernel::give(fd, at, len);
            if action != Action::GiveWakeByte && given.is_err() {
                resend::mark_giving(shared, end, false);
            }
            match given {
                Ok(sent) => {
                    held.count_sent(sent);
                    if action == Action::GiveWakeByte { Event::Done } else { Event::Word(sent as u64) }
                }
                Err(Errno::AGAIN) => Event::Refused,
                Err(error) => {
                    broken = error;
                    if action != Action::GiveWakeByte {
                        // The error was meant for the program.
                        held.error = (error != Errno::PIPE).then_some(error);
                    }
                    Event::Broken
                }
            }
        }
        action => act(held, fd, shared, end, action),
    });
    held.count_sent(usize::try_from(push.in_place).unwrap_or(0));
    let head = held.out.head;
    held.step(step::Event::Pushed { to: push.resend, owed: push.owed, head });
    let result = match push.result {
        Pushed::All => Ok(()),
        Pushed::Full => Err(Errno::AGAIN),
        Pushed::Broken => Err(broken),
    };
    (result, push.unsent)
}

/// The same where the kernel's buffer, which the program has made small, is full of what nobody
/// reads: it is made large enough meanwhile.
pub(crate) fn push_all(held: &mut Inner, fd: c_int, shared: &SharedMemory) {
    let unsent = held.out.head - held.outgoing.resend(held.out.head);
    let backlog = usize::try_from(unsent).unwrap_or(0) + held.outgoing.owed() as usize;
    kernel::with_buffer_for(fd, backlog, || {
        let _ = push(held, fd, shared);
    });
}

/// Whether the kernel reports a reset, or would, for the end of a peer that was killed with a wake
/// byte unread. Such a peer had taken all of our bytes, and since the ring began nothing but wake
/// bytes went to it through the kernel.
pub(crate) fn is_of_a_wake_byte(held: &mut Inner, shared: &SharedMemory) -> bool {
    rim(shared).is_of_a_wake_byte(held, shared)
}

/// The kernel alone says how the stream ends from now on: a reset that is none is taken from it.
fn take_reset_of_a_wake_byte(held: &mut Inner, fd: c_int, shared: &SharedMemory) {
    if kernel::events(fd, PollFlags::empty()).contains(PollFlags::ERR)
        && is_of_a_wake_byte(held, shared)
        && let Some(error) = kernel::take_error(fd)
        && error != Errno::CONNRESET
    {
        held.error = Some(error);
    }
}

/// What a close that is a reset comes to. The peer has said so, and closes its socket next; if
/// bytes lay unread there, too, the kernel says it again, which is not told twice.
pub(crate) fn error_of_close(fd: c_int) -> Errno {
    let _ = kernel::soon(CLOSE_YIELDS, CLOSE_NAPS, || kernel::is_over(fd).then_some(0));
    kernel::take_error(fd).unwrap_or(Errno::CONNRESET)
}

/// Whether what the kernel calls a reset is one. It says so of a wake byte, too, that a killed peer
/// had not read. Told once.
pub(crate) fn is_reset(held: &mut Inner, shared: &SharedMemory) -> bool {
    let (end, peer) = (held.end, held.peer());
    let unread =
        !held.outgoing.has_left() && held.out.taken(shared, end).is_ok_and(|taken| taken.tail != held.out.head);
    if unread {
        switch_out(held, shared);
    }
    shared.reset(peer).swap(0, Ordering::Relaxed) == 1 || unread
}

/// Once the receiving direction is switched: whether all is known about its end. Nothing of the
/// kernel's stream may be taken for bytes before.
pub(crate) fn is_settled(held: &mut LockHeld<'_>, fd: c_int, shared: &SharedMemory) -> bool {
    rim(shared).is_settled(held, fd, shared)
}

/// Whether the peer is still to say so.
pub(crate) fn is_unsettled(held: &Inner) -> bool {
    held.incoming == Incoming::Unsettled
}

/// Nobody can go on with it: the other end is reset, or finds an end that it takes for one.
fn break_connection(fd: c_int, unix: bool) {
    #[cfg(test)]
    if crate::explore::is_on() {
        return;
    }
    let fd = kernel::borrowed(fd);
    let _ = if unix { rustix::net::shutdown(fd, Shutdown::Both) } else { rustix::net::connect_unspec(fd) };
}

/// Sends wake bytes that are counted but did not fit, and what must follow them.
pub(crate) fn pay(held: &mut Inner, fd: c_int) -> Result<(), Errno> {
    let Some(shared) = held.ring() else { return Ok(()) };
    push(held, fd, &shared)
}

/// What a wake byte is in the kernel's stream.
static WAKE_BYTE: u8 = 0;

/// Wakes the other end if it sleeps for one of these and our direction has started, so that it
/// knows a wake byte when it sees one.
#[inline]
pub(crate) fn notify(held: &mut Inner, fd: c_int, shared: &SharedMemory, requests: u64) {
    // One that only ever receives starts here, or its wake bytes would mean nothing and the sender would sleep for ever.
    if !shared.may_wake() {
        return;
    }
    let can = held.outgoing.has_begun()
        || shared.present(held.peer()).load(Ordering::Acquire) == 1 && start_now(held, shared);
    if can {
        shared.look_for_requests();
        let wake = wake::claim(shared.wake_word(held.peer()), requests);
        if wake.futex {
            futex::wake(shared.wake_word(held.peer()));
        }
        if wake.eventfd {
            eventfd::signal_peer(held);
        }
        if wake.byte {
            let head = held.out.head;
            held.step(step::Event::Owes { head });
            // The peer knows of a wake byte before it comes.
            shared.publish_wake_byte();
            let _ = pay(held, fd);
        }
    }
}

/// Begins the sending direction, when nobody is in the kernel with bytes that are not counted yet.
pub(crate) fn start_now(held: &mut Inner, shared: &SharedMemory) -> bool {
    if !held.outgoing.has_begun() && held.sending == 0 {
        let sent = held.counts().sent.load(Ordering::Relaxed);
        let given = shared.given(held.end).load(Ordering::Relaxed);
        shared.start(held.end).store(sent + 1, Ordering::SeqCst);
        held.step(step::Event::Begins { given });
    }
    held.outgoing.has_begun()
}

/// Whether the peer may sleep, and cannot be notified yet to send its bytes again. A
/// thread of ours still sends earlier bytes through the kernel, so the peer could not
/// recognise our first wake byte.
pub(crate) fn is_unnotified(held: &Inner, shared: &SharedMemory) -> bool {
    held.outgoing.has_left()
        && !held.outgoing.has_begun()
        && held.sending > 0
        && shared.present(held.peer()).load(Ordering::Acquire) == 1
}

/// No thread is in the kernel any more: the notification that was held back is sent.
pub(crate) fn announce(held: &mut LockHeld<'_>, fd: c_int) {
    let Some(shared) = held.ring() else { return };
    if held.sending > 0 || held.outgoing.has_begun() || !held.outgoing.has_left() {
        return;
    }
    notify(held, fd, &shared, wake::DATA | wake::ROOM);
    finish(held, fd);
}

/// The kernel's, once nothing of the rings is left: for good, or until the
/// ends come together again.
pub(crate) fn finish(held: &mut LockHeld<'_>, fd: c_int) -> bool {
    let Some(shared) = held.ring() else { return true };
    let done = matches!(held.outgoing, Outgoing::Kernel { .. })
        && held.incoming.wake_bytes().is_some_and(|wake_bytes| held.drained() >= wake_bytes)
        && matches!(held.source(&shared), Source::NotBegun | Source::Kernel)
        && resend::due(held, &shared) == 0
        // A poll of the kernel's own would not say that it takes more than the ring.
        && !held.out.was_full();
    let reset = held.error.is_some() || shared.reset(held.peer()).load(Ordering::Acquire) != 0;
    if !done || reset || is_unnotified(held, &shared) {
        return false;
    }
    // A vfork child has this memory, and not the descriptors that other threads have opened since: sets of epoll among them.
    if !table::is_ours() {
        return false;
    }
    take_reset_of_a_wake_byte(held, fd, &shared);
    restore(held, fd);
    sets::restore(fd, held.connection);
    let may_reattach = reattach::is_open(&shared) && !held.connection.tainted.load(Ordering::Relaxed);
    match held.step(step::Event::Returns { may_reattach }) {
        step::Action::Rest => reattach::rest(held),
        _ => release(held),
    }
    true
}

/// Ends the mapping, if nobody looks at it without the lock, and what went with it.
pub(crate) fn release(held: &mut LockHeld<'_>) {
    eventfd::drop_of(held);
    if held.connection.watchers.load(Ordering::SeqCst) == 0
        && let step::Action::Unmap(shared) = held.step(step::Event::IsUnwatched)
    {
        // SAFETY: [preload-shared] the lock is held and there are no watchers; new ones need the lock and `shared`.
        unsafe { shared.destroy() };
    }
}

/// As long as a peer may be without a processor between what it says of its close and the close.
const CLOSE_YIELDS: u32 = 100;
const CLOSE_NAPS: u32 = 20;
