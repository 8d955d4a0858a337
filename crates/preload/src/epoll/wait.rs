//! Waiting for a set: rings and kernel as one.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{EPOLL_CTL_MOD, epoll_event, sigset_t, timespec};

use crate::connection::{Connection, State};
use crate::fault::Fault;
use crate::ready::{self, Look, Watch};
use crate::sets::member::{self, Member};
use crate::sets::set::{self, SetHeld};
use crate::sets::{NOTHING, Reported, Set, give_back, given, reported, wanted};
use crate::{errno, eventfd, fault, kernel, real, spin, table, wait, wake};

/// How long to wait, as the program said it.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    Forever,
    /// In milliseconds, as `epoll_wait` counts.
    Coarse(Duration),
    /// As `epoll_pwait2` does.
    Fine(Duration),
}

impl Limit {
    fn duration(self) -> Option<Duration> {
        match self {
            Self::Forever => None,
            Self::Coarse(limit) | Self::Fine(limit) => Some(limit),
        }
    }
}

/// One wait: the places for events and how many are filled.
struct Catch<'a> {
    set: &'static Set,
    fd: c_int,
    out: &'a mut [epoll_event],
    found: usize,
    /// This wait's number.
    call: u64,
}

/// As `epoll_pwait`.
pub(crate) fn wait(
    set: &'static Set,
    fd: c_int,
    out: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
) -> c_int {
    wait::cancellation_point();
    let duration = limit.duration();
    let at_once = duration == Some(Duration::ZERO);
    // A time that the clock does not reach is for ever.
    let deadline = duration.filter(|_| !at_once).and_then(|limit| Instant::now().checked_add(limit));
    let Some((call, kernel_first)) = begin(set) else { return errno::fail(libc::EINTR) as c_int };
    let mut catch = Catch { set, fd, out, found: 0, call };
    if kernel_first {
        catch.ask_kernel();
    }
    let seen = catch.pass(false);
    if catch.found > 0 || at_once {
        return if kernel_first { catch.found as c_int } else { catch.ask_kernel() };
    }
    if seen.looked > 0 && spin(set) {
        catch.pass(false);
        if catch.found > 0 {
            skipped_kernel(set);
            return catch.found as c_int;
        }
    }
    catch.sleep(limit, deadline, mask)
}

/// A number for this wait, and whether the kernel is to be asked first because it has not
/// been asked for some time.
fn begin(set: &'static Set) -> Option<(u64, bool)> {
    if set::MISSED.swap(false, Ordering::SeqCst) {
        set::look_everywhere();
    }
    let mut members = set.hold()?;
    let queue = members.queue();
    queue.calls += 1;
    let kernel_first = queue.without_kernel >= WITHOUT_KERNEL;
    Some((queue.calls, kernel_first))
}

fn skipped_kernel(set: &'static Set) {
    if let Some(mut members) = set.hold() {
        let queue = members.queue();
        queue.without_kernel = queue.without_kernel.saturating_add(1);
    }
}

/// What a pass over the queue saw.
struct Pass {
    looked: usize,
    /// Something in passing is not to be waited for for long.
    brief: bool,
}

/// What is known of a member without its connection's lock.
#[derive(Clone, Copy)]
struct View {
    fd: c_int,
    wanted: i16,
    given: u32,
    reported: Option<Reported>,
    fruitless: u8,
}

impl View {
    fn of(members: &mut SetHeld, member: &'static Member) -> Option<Self> {
        let fd = member.fd();
        let entry = members.entry(member)?;
        let (wanted, given, reported) = (wanted(entry.events), entry.given, reported(entry));
        (entry.ring && !entry.spent).then_some(Self { fd, wanted, given, reported, fruitless: entry.fruitless })
    }

    fn connection(&self) -> Option<&'static Connection> {
        table::find(self.fd).filter(|connection| connection.state() == State::Ring)
    }
}

impl Catch<'_> {
    /// Sleeps until there is something to say, or the time is up.
    fn sleep(&mut self, limit: Limit, deadline: Option<Instant>, mask: *const sigset_t) -> c_int {
        let mut strays = 0;
        loop {
            self.set.sleepers.fetch_add(1, Ordering::SeqCst);
            let seen = self.pass(true);
            if self.found > 0 {
                self.set.sleepers.fetch_sub(1, Ordering::SeqCst);
                return self.ask_kernel();
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let pause = if seen.brief { Some(left.map_or(BRIEF, |left| left.min(BRIEF))) } else { left };
            let fine = matches!(limit, Limit::Fine(_));
            let got = self.kernel(pause, fine, mask);
            let error = errno::get();
            self.set.sleepers.fetch_sub(1, Ordering::SeqCst);
            if got < 0 {
                errno::set(error);
                return -1;
            }
            self.translate(got as usize);
            if self.found > 0 {
                errno::set(error);
                return self.found as c_int;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) || got == 0 && !seen.brief {
                errno::set(error);
                return 0;
            }
            // What wakes again and again and has nothing to say is not to keep a processor busy.
            strays += 1;
            if strays > STRAYS {
                kernel::nap();
            }
        }
    }

    /// What the kernel has now, beside what is found already. Returns how many there are in all.
    fn ask_kernel(&mut self) -> c_int {
        if self.found == self.out.len() {
            skipped_kernel(self.set);
            return self.found as c_int;
        }
        if let Some(mut members) = self.set.hold() {
            members.queue().without_kernel = 0;
        }
        let got = self.kernel(Some(Duration::ZERO), false, std::ptr::null());
        if got < 0 && self.found == 0 {
            return -1;
        }
        self.translate(got.max(0) as usize);
        self.found as c_int
    }

    fn kernel(&mut self, pause: Option<Duration>, fine: bool, mask: *const sigset_t) -> c_int {
        let Some(free) = self.out.get_mut(self.found..) else { return 0 };
        let (at, len) = (free.as_mut_ptr(), free.len() as c_int);
        if fine {
            let pause = pause.map(|pause| timespec {
                tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(pause.subsec_nanos()),
            });
            let pause = pause.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: [preload-real] the program's places, mask and a time of ours.
            return unsafe { real::epoll_pwait2(self.fd, at, len, pause, mask) };
        }
        let ms = pause.map_or(-1, |pause| c_int::try_from(pause.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX));
        // SAFETY: [preload-real] the program's places and mask.
        unsafe { real::epoll_pwait(self.fd, at, len, ms, mask) }
    }

    /// Looks at those that may have something. With `arm`, those that have nothing are left so that
    /// a wake byte announces them.
    fn pass(&mut self, arm: bool) -> Pass {
        let mut pass = Pass { looked: 0, brief: false };
        let set = self.set;
        let Some(_scan) = set.scan.lock() else { return Pass { looked: 0, brief: true } };
        let rounds = set.hold().map_or(0, |mut members| members.hot());
        for _ in 0..rounds {
            if self.found == self.out.len() {
                break;
            }
            let next = set.hold().and_then(|mut members| {
                let member = members.turn()?;
                Some((member, View::of(&mut members, member)))
            });
            let Some((member, view)) = next else { break };
            let held = view.and_then(|view| Some((view, table::hold(view.fd, view.connection()?)?)));
            let Some((view, mut held)) = held else {
                if let Some(broken) = view.and_then(|view| ready::of_broken(view.connection()?, view.wanted)) {
                    self.note(member, broken, false);
                } else if let Some(mut members) = set.hold() {
                    members.cool(member);
                }
                continue;
            };
            let arm = arm || view.fruitless >= FRUITLESS;
            let look = ready::look_held(&mut held, view.fd, view.wanted, arm, view.reported);
            pass.looked += 1;
            pass.brief |= look.brief;
            self.note(member, look, arm);
        }
        pass
    }

    /// Says what the kernel's answers, which lie behind what is found already, mean.
    fn translate(&mut self, got: usize) {
        let set = self.set;
        let Some(_scan) = set.scan.lock() else { return };
        for at in self.found..self.found + got {
            let Some(event) = self.out.get(at).copied() else { return };
            match member::of_tag(event.u64) {
                Some(member) if member.is_of(set) => self.translate_one(member, event),
                // An event of before, of a member that is no more; or the program's own data.
                _ if member::looks_like_a_tag(event.u64) && !set.collides() => {}
                _ => self.push(event),
            }
        }
    }

    fn translate_one(&mut self, member: &'static Member, event: epoll_event) {
        let set = self.set;
        let Some(mut members) = set.hold() else { return };
        let Some(view) = View::of(&mut members, member) else {
            // An eventfd says nothing that the program wants to hear.
            if !member::is_of_an_eventfd(event.u64) {
                self.not_in_rings(members, member, event);
            }
            return;
        };
        if view.connection().is_none() {
            // It went back while this thread's own signal handler kept the set from being told.
            if let Some(entry) = members.entry(member) {
                entry.ring = false;
            }
            return errno::kept(|| give_back(&mut members, member));
        }
        members.heat(member);
        drop(members);
        let Some(mut held) = view.connection().and_then(|connection| table::hold(view.fd, connection)) else { return };
        let mut look = if member::is_of_an_eventfd(event.u64) {
            ready::look_held(&mut held, view.fd, view.wanted, false, view.reported)
        } else {
            let (ask, got) = (wanted(view.given), wanted(event.events));
            ready::translate_held(&mut held, view.fd, view.wanted, ask, got, view.reported)
        };
        if set.sleepers.load(Ordering::SeqCst) > 0 && !look.plain && !fault::is_planted(Fault::KeepsEvent) {
            // The event was this thread's alone; the others are to hear of what comes next.
            if look.ready == 0 {
                look = ready::look_held(&mut held, view.fd, view.wanted, true, view.reported);
            } else if let Some(shared) = held.shared() {
                eventfd::arm(&held, &shared, wake::DATA | wake::ROOM);
            }
            // Also of what came before this wake request: nobody was woken for it, since another's had taken the last one away.
            if look.ready != 0 && view.reported.is_none() {
                eventfd::pass_on(held.connection);
            }
        }
        self.note(member, look, false);
    }

    /// A tag of one that the rings do not have, or that nobody wants to hear of for now.
    fn not_in_rings(&mut self, mut members: SetHeld, member: &'static Member, event: epoll_event) {
        let Some(entry) = members.entry(member) else { return };
        if entry.ring {
            // The kernel is to say at most once what it cannot be kept from saying.
            if entry.given != NOTHING {
                entry.given = NOTHING;
                errno::kept(|| members.give(EPOLL_CTL_MOD, member.fd(), NOTHING, member.tag()));
            }
        } else if entry.tagged {
            entry.spent = entry.events & libc::EPOLLONESHOT as u32 != 0;
            let event = epoll_event { events: event.events, u64: entry.data };
            drop(members);
            self.push(event);
        } else if self.set.collides() {
            drop(members);
            self.push(event);
        }
    }

    /// Writes down what a look came to. The connection's lock is held, and the scan's.
    fn note(&mut self, member: &'static Member, look: Look, armed: bool) {
        let Some(mut members) = self.set.hold() else { return };
        let Some(entry) = members.entry(member).filter(|entry| entry.ring) else { return };
        if look.plain {
            return members.cool(member);
        }
        let given = given(look.ask, entry.events, false);
        if entry.given != given {
            let kick = entry.given & !given & libc::EPOLLOUT as u32 != 0 && reported(entry).is_none();
            entry.given = given;
            errno::kept(|| members.give(EPOLL_CTL_MOD, member.fd(), given, member.tag()));
            // It was meant for another, who may not have seen it yet.
            if kick
                && self.set.sleepers.load(Ordering::SeqCst) > 0
                && let Some(connection) = table::find(member.fd())
            {
                eventfd::pass_on(connection);
            }
        }
        let Some(entry) = members.entry(member) else { return };
        let events = u32::from(look.ready as u16) & (entry.events | ALWAYS);
        if events == 0 {
            entry.fruitless = entry.fruitless.saturating_add(1);
            if armed && !look.brief {
                members.cool(member);
            }
            return;
        }
        (entry.fruitless, entry.reported) = (0, look.news);
        if entry.call == self.call
            && let Some(event) = self.out.get_mut(entry.place)
        {
            // Said already in this wait.
            event.events |= events;
            return;
        }
        (entry.call, entry.place) = (self.call, self.found);
        let event = epoll_event { events, u64: entry.data };
        if entry.events & libc::EPOLLONESHOT as u32 != 0 {
            entry.spent = true;
            members.cool(member);
        }
        drop(members);
        self.push(event);
    }

    fn push(&mut self, event: epoll_event) {
        if let Some(place) = self.out.get_mut(self.found) {
            *place = event;
            self.found += 1;
        }
    }
}

/// Watches the first few of the queue for a while.
fn spin(set: &'static Set) -> bool {
    let mut views = [None; WATCHED];
    let mut count = 0;
    if let Some(mut members) = set.hold() {
        members.queued(|member, entry| {
            let view = View {
                fd: member.fd(),
                wanted: wanted(entry.events),
                given: 0,
                reported: reported(entry),
                fruitless: 0,
            };
            match views.get_mut(count) {
                Some(place) => {
                    *place = Some(view);
                    count += 1;
                    true
                }
                None => false,
            }
        });
    }
    if views.iter().flatten().find_map(View::connection).is_some_and(|first| spin::is_in_vain(&first.spin)) {
        return false;
    }
    let mut watches = [None; WATCHED];
    for (watch, view) in watches.iter_mut().zip(views.iter().flatten()) {
        *watch = view.connection().and_then(|connection| Watch::begin(view.fd, connection, view.wanted, view.reported));
    }
    let found = wait::spin_over(watches.get(..count).unwrap_or(&[]));
    for watch in watches.into_iter().flatten() {
        watch.end();
    }
    found
}

/// Reported whether wanted or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Looks that find nothing before a member is left until a wake byte announces it:
/// about what a wake byte costs.
const FRUITLESS: u8 = 32;
/// Waits that may end without asking the kernel.
const WITHOUT_KERNEL: u8 = 8;
const STRAYS: u32 = 64;
const WATCHED: usize = 16;
const BRIEF: Duration = Duration::from_millis(2);

/// For the explorer: the parts of a wait, for a set of one member.
#[cfg(test)]
pub(crate) mod explored {
    use super::*;

    fn with_catch<T>(set: &'static Set, call: u64, found: u32, f: impl FnOnce(&mut Catch<'_>) -> T) -> (u32, T) {
        let mut out = [epoll_event { events: found, u64: 0 }; 3];
        let mut catch = Catch { set, fd: -1, out: &mut out, found: usize::from(found != 0), call };
        let value = f(&mut catch);
        let found = catch.found;
        (out.iter().take(found).fold(0, |all, event| all | event.events), value)
    }

    /// What a pass finds, and whether something is in passing.
    pub(crate) fn pass(set: &'static Set, call: u64, arm: bool) -> (u32, bool) {
        with_catch(set, call, 0, |catch| catch.pass(arm).brief)
    }

    /// What is found once the kernel's answers are understood.
    pub(crate) fn translate(set: &'static Set, call: u64, found: u32, caught: [(u32, u64); 2]) -> u32 {
        let found = with_catch(set, call, found, |catch| {
            let mut got = 0;
            for (events, data) in caught.into_iter().filter(|(events, _)| *events != 0) {
                if let Some(place) = catch.out.get_mut(catch.found + got) {
                    *place = epoll_event { events, u64: data };
                    got += 1;
                }
            }
            catch.translate(got);
        });
        found.0
    }
}
