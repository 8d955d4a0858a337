//! Members: one record for each descriptor in each known set, whatever the descriptor is, for
//! it may be connected later.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::Reported;
use super::set::Set;
use crate::lock::Lock;
use crate::policy::DESCRIPTORS;

/// Never unmapped; `set` is null while it is free.
#[derive(Debug)]
pub(crate) struct Member {
    index: u32,
    pub(crate) fd: AtomicI32,
    set: AtomicPtr<Set>,
    /// The next of the same descriptor, or of the free ones.
    next: AtomicPtr<Member>,
    /// Reached under the set's lock.
    pub(crate) entry: UnsafeCell<Entry>,
}

// SAFETY: [preload-members] `entry` is reached under the lock of the member's set alone.
unsafe impl Sync for Member {}

/// What the lock of the set guards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// What the program gave.
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// What the kernel has.
    pub(crate) given: u32,
    /// The kernel has a tag: it is in the rings, or to be noticed for another reason.
    pub(crate) tagged: bool,
    /// The rings have its connection.
    pub(crate) ring: bool,
    /// ONESHOT has had its shot.
    pub(crate) spent: bool,
    /// Not in the kernel's set at all, though the program has it there: a spent one of a
    /// connection that went back.
    pub(crate) parked: bool,
    /// The eventfd that the kernel's set has beside it.
    pub(crate) eventfd: Option<c_int>,
    /// In the queue of those that are looked at.
    pub(crate) hot: bool,
    pub(crate) before: Option<&'static Member>,
    pub(crate) after: Option<&'static Member>,
    /// Looks in a row that found nothing.
    pub(crate) fruitless: u8,
    pub(crate) reported: Reported,
    /// The wait that reported it last, and where.
    pub(crate) call: u64,
    pub(crate) place: usize,
}

/// Guards the lists of each descriptor and the free list.
pub(crate) static LISTS: Lock = Lock::new();

/// The same for who looks; the explorer leaves sections that have it.
pub(crate) fn lists() -> &'static Lock {
    #[cfg(test)]
    if let Some(lists) = crate::explore::lists() {
        return lists;
    }
    &LISTS
}

static OF: [AtomicPtr<Member>; DESCRIPTORS] = [const { AtomicPtr::new(null_mut()) }; DESCRIPTORS];
static FREE: AtomicPtr<Member> = AtomicPtr::new(null_mut());
static CHUNKS: [AtomicPtr<Member>; CHUNKS_AT_MOST] = [const { AtomicPtr::new(null_mut()) }; CHUNKS_AT_MOST];
static MAPPED: AtomicUsize = AtomicUsize::new(0);

impl Member {
    /// What stands for it in the kernel's set.
    pub(crate) fn tag(&self) -> u64 {
        TAG << 32 | u64::from(self.index)
    }

    /// What stands there for its eventfd.
    pub(crate) fn eventfd_tag(&self) -> u64 {
        EVENTFD_TAG << 32 | u64::from(self.index)
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self) -> Option<&'static Set> {
        // SAFETY: [preload-members] sets are never unmapped.
        unsafe { self.set.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn is_of(&self, set: &Set) -> bool {
        std::ptr::eq(self.set.load(Ordering::Acquire), set)
    }
}

/// Whether these data could be taken for a tag.
pub(crate) fn looks_like_a_tag(data: u64) -> bool {
    data >> 32 == TAG || data >> 32 == EVENTFD_TAG
}

/// Whether a tag stands for an eventfd.
pub(crate) fn is_of_an_eventfd(data: u64) -> bool {
    data >> 32 == EVENTFD_TAG
}

/// The member that a tag stands for.
pub(crate) fn of_tag(data: u64) -> Option<&'static Member> {
    let index = if looks_like_a_tag(data) { data as u32 as usize } else { return None };
    at(index)
}

fn at(index: usize) -> Option<&'static Member> {
    #[cfg(test)]
    if let Some(member) = crate::explore::member() {
        return Some(member);
    }
    let chunk = NonNull::new(CHUNKS.get(index / CHUNK)?.load(Ordering::Acquire))?;
    // SAFETY: [preload-members] within a chunk of this length, never unmapped.
    Some(unsafe { chunk.add(index % CHUNK).as_ref() })
}

/// The members of a descriptor. The caller holds `LISTS`.
pub(crate) fn of(fd: c_int) -> impl Iterator<Item = &'static Member> {
    let first = usize::try_from(fd).ok().and_then(|fd| OF.get(fd));
    let mut next = first.map_or(null_mut(), |first| first.load(Ordering::Acquire));
    #[cfg(test)]
    if let Some(member) = crate::explore::member().filter(|member| member.fd() == fd) {
        next = std::ptr::from_ref(member).cast_mut();
    }
    std::iter::from_fn(move || {
        // SAFETY: [preload-members] never unmapped.
        let member = unsafe { next.as_ref() }?;
        next = member.next.load(Ordering::Acquire);
        Some(member)
    })
}

/// Whether any set has this descriptor.
pub(crate) fn has_any(fd: c_int) -> bool {
    usize::try_from(fd).ok().and_then(|fd| OF.get(fd)).is_some_and(|first| !first.load(Ordering::Acquire).is_null())
}

/// All that are in use, in no order.
pub(crate) fn all() -> impl Iterator<Item = &'static Member> {
    (0..MAPPED.load(Ordering::Acquire)).filter_map(at).filter(|member| member.set().is_some())
}

/// A new one. The caller holds `LISTS`.
pub(crate) fn add(set: &'static Set, fd: c_int) -> Option<&'static Member> {
    let first = OF.get(usize::try_from(fd).ok()?)?;
    if FREE.load(Ordering::Relaxed).is_null() {
        refill();
    }
    // SAFETY: [preload-members] never unmapped.
    let member = unsafe { FREE.load(Ordering::Relaxed).as_ref() }?;
    FREE.store(member.next.load(Ordering::Relaxed), Ordering::Relaxed);
    member.fd.store(fd, Ordering::Relaxed);
    member.next.store(first.load(Ordering::Relaxed), Ordering::Release);
    member.set.store(std::ptr::from_ref(set).cast_mut(), Ordering::Release);
    first.store(std::ptr::from_ref(member).cast_mut(), Ordering::Release);
    Some(member)
}

/// It is a member no more. The caller holds `LISTS`, and has taken it out of the set's queue.
pub(crate) fn remove(member: &'static Member) {
    let Some(mut link) = usize::try_from(member.fd()).ok().and_then(|fd| OF.get(fd)) else { return };
    let this = std::ptr::from_ref(member).cast_mut();
    loop {
        let now = link.load(Ordering::Relaxed);
        // SAFETY: [preload-members] never unmapped.
        let Some(next) = (unsafe { now.as_ref() }) else { return };
        if now == this {
            link.store(member.next.load(Ordering::Relaxed), Ordering::Release);
            break;
        }
        link = &next.next;
    }
    member.set.store(null_mut(), Ordering::Release);
    member.next.store(FREE.load(Ordering::Relaxed), Ordering::Relaxed);
    FREE.store(this, Ordering::Relaxed);
}

/// More places, from the system directly; pages that are not used cost nothing.
fn refill() {
    let first = MAPPED.load(Ordering::Relaxed);
    let Some(chunk) = CHUNKS.get(first / CHUNK) else { return };
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: [preload-members] a new mapping at an address of the system's choice.
    let base = unsafe { rustix::mm::mmap_anonymous(null_mut(), CHUNK * size_of::<Member>(), prot, flags) };
    let Some(base) = base.ok().and_then(|base| NonNull::new(base.cast::<Member>())) else { return };
    for index in (0..CHUNK).rev() {
        let fresh = Member {
            index: (first + index) as u32,
            fd: AtomicI32::new(-1),
            set: AtomicPtr::new(null_mut()),
            next: AtomicPtr::new(FREE.load(Ordering::Relaxed)),
            entry: UnsafeCell::new(Entry::default()),
        };
        // SAFETY: [preload-members] within the new mapping, which is aligned to a page.
        unsafe {
            base.add(index).write(fresh);
            FREE.store(base.add(index).as_ptr(), Ordering::Relaxed);
        }
    }
    chunk.store(base.as_ptr(), Ordering::Release);
    MAPPED.store(first + CHUNK, Ordering::Release);
}

/// For the explorer, which has one set with one member.
#[cfg(test)]
impl Member {
    pub(crate) fn alone(set: &'static Set, fd: c_int) -> &'static Self {
        Box::leak(Box::new(Self {
            index: 0,
            fd: AtomicI32::new(fd),
            set: AtomicPtr::new(std::ptr::from_ref(set).cast_mut()),
            next: AtomicPtr::new(null_mut()),
            entry: UnsafeCell::new(Entry::default()),
        }))
    }
}

/// The upper half of what stands in the kernel for the program's data: no
/// address, and no small number.
const TAG: u64 = 0x9e4f_d1a7;
const EVENTFD_TAG: u64 = 0x9e4f_d1a8;
const CHUNK: usize = 256;
const CHUNKS_AT_MOST: usize = 4096;
