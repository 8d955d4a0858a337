//! Sets of epoll, whose members may be ring connections.
//!
//! The program's set stays the kernel's. As long as a connection goes through the kernel, the set
//! has exactly what the program gave. Once it is in the rings, the set has a *tag* in place of
//! the program's data, and asks for the events that the kernel still has. Wake bytes and the end
//! of the stream arrive as EPOLLIN. `epoll_wait` reads the rings of those members that may have
//! something (the *hot* ones), and asks to be woken by all of them before it sleeps. Of a tagged
//! event it reports what the kernel would report if the bytes were its own. A member that has
//! left its wake request is no longer looked at: a wake byte announces it, so 10,000 idle
//! connections cost a wait nothing.
//!
//! What holds at any time: while a thread sleeps in a set, each tagged member whose events are
//! wanted has its wake request left, or something unread in the kernel that wakes. A thread that
//! takes wake bytes out of the kernel keeps that true (`sets::drained`).
//!
//! A connection that has an eventfd has it in the set as well, edge-triggered and never read: it is
//! the wake byte then, and the socket tells the end and what else the kernel knows.
//!
//! A set that is not known whole (inherited, nested in another, polled itself, with data that look
//! like a tag) is *foreign*: its connections are the kernel's.
//!
//! Locks, in the order in which they are taken: a set's `scan`, a connection's,
//! `sets::member::LISTS`, a set's own.

mod control;
mod foreign;
mod wait;

pub(crate) use control::{apply, closing, closing_range};
pub(crate) use foreign::{alias, make_foreign};
#[cfg(test)]
pub(crate) use wait::explored;
pub(crate) use wait::{Limit, wait};
