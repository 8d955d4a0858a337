//! A member with the times of a disk that turns, really waited: for
//! measurements on a host without one.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside_verbs::watch::{Watch, failed, timespec};
use overside_verbs::{Clock, VerbsError};
use overside_volume::{Completion, Device, Geometry, Request, Work};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

/// What a disk takes for a request: the way of the arm, the turn of the platter, the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpindleTimes {
    /// The shortest way of the arm.
    pub seek_min: Duration,
    /// The way over the whole disk. Between them the time grows with the root of the distance.
    pub seek_max: Duration,
    /// One turn. What begins elsewhere than the last request ended waits for a
    /// part of it, half on average.
    pub turn: Duration,
    /// Bytes that pass the head in a second.
    pub bytes_per_s: u64,
}

/// Which disk a member has the times of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpindleKind {
    /// 10,000 turns a minute.
    TenK,
    /// 15,000 turns a minute.
    FifteenK,
}

impl SpindleKind {
    /// By its name: `10k` or `15k`.
    pub fn parse(name: &str) -> Option<SpindleKind> {
        [SpindleKind::TenK, SpindleKind::FifteenK].into_iter().find(|kind| kind.name() == name)
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            SpindleKind::TenK => "10k",
            SpindleKind::FifteenK => "15k",
        }
    }

    /// What it takes for a request.
    pub fn times(self) -> SpindleTimes {
        match self {
            SpindleKind::TenK => SpindleTimes::TEN_K,
            SpindleKind::FifteenK => SpindleTimes::FIFTEEN_K,
        }
    }
}

/// A device that ends each request no earlier than a disk would.
///
/// One request after the other, in the order in which they came; no write cache. The times follow
/// from the places alone: the same requests take the same time again, from any client.
#[derive(Debug)]
pub struct Spindle {
    base: Box<dyn Device>,
    times: SpindleTimes,
    clock: Arc<dyn Clock>,
    /// The base's descriptor, where it has one, and the timer.
    watch: Watch,
    /// Readable when the first held request may end: a waiter may have begun to wait
    /// before the request came.
    timer: OwnedFd,
    timed: Option<Instant>,
    /// Where the last request ended.
    head: u64,
    /// When the last one that was taken ends.
    free_at: Option<Instant>,
    next: u64,
    /// Of each request that the base has: the caller's tag, and when it may end.
    under_way: BTreeMap<u64, (u64, Instant)>,
    /// What the base has had no room for yet.
    queue: VecDeque<Request>,
    /// What the base has ended, and the time has not.
    held: BTreeMap<(Instant, u64), Completion>,
    polled: Vec<Completion>,
}

impl SpindleTimes {
    /// 10,000 turns a minute.
    pub const TEN_K: SpindleTimes = SpindleTimes {
        seek_min: Duration::from_micros(600),
        seek_max: Duration::from_micros(8600),
        turn: Duration::from_micros(6000),
        bytes_per_s: 60_000_000,
    };
    /// 15,000 turns a minute.
    pub const FIFTEEN_K: SpindleTimes = SpindleTimes {
        seek_min: Duration::from_micros(400),
        seek_max: Duration::from_micros(6600),
        turn: Duration::from_micros(4000),
        bytes_per_s: 75_000_000,
    };

    /// What a request takes of a disk of `disk` bytes whose head is at `head`.
    pub fn of(&self, disk: u64, head: u64, at: u64, length: u64) -> Duration {
        let bytes =
            Duration::from_nanos((u128::from(length) * 1_000_000_000 / u128::from(self.bytes_per_s.max(1))) as u64);
        if at == head {
            // It passes the head just now.
            return bytes;
        }
        let way = (head.abs_diff(at) as f64 / disk.max(1) as f64).min(1.0);
        let seek = self.seek_min + self.seek_max.saturating_sub(self.seek_min).mul_f64(way.sqrt());
        seek + self.turn.mul_f64(share_of_a_turn(head, at)) + bytes
    }
}

impl Spindle {
    /// Over a device that has the blocks.
    ///
    /// # Errors
    /// When the system has no descriptor.
    pub fn over(base: Box<dyn Device>, times: SpindleTimes, clock: Arc<dyn Clock>) -> Result<Spindle, VerbsError> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|errno| failed("timerfd_create", errno))?;
        let watch = Watch::new()?;
        watch.add(&timer, 0)?;
        if let Some(fd) = base.fd() {
            watch.add(fd, 1)?;
        }
        Ok(Spindle {
            base,
            times,
            clock,
            watch,
            timer,
            timed: None,
            head: 0,
            free_at: None,
            next: 0,
            under_way: BTreeMap::new(),
            queue: VecDeque::new(),
            held: BTreeMap::new(),
            polled: Vec::new(),
        })
    }

    fn take(&mut self, mut request: Request, now: Instant) {
        let geometry = self.base.geometry();
        let begins = self.free_at.map_or(now, |free| free.max(now));
        let moves = geometry.check(&request.work).is_ok() && is_carried_out_by_the_arm(&request);
        let ends = match request.work.range().filter(|_| moves) {
            Some((at, length)) => {
                let ends = begins + self.times.of(geometry.bytes, self.head, at, length);
                self.head = at + length;
                self.free_at = Some(ends);
                ends
            }
            // What is refused, and a hint, ask nothing of the disk. A flush waits for what came before.
            None if request.work.range().is_some() => now,
            None => begins,
        };
        self.under_way.insert(self.next, (request.tag, ends));
        request.tag = self.next;
        self.next += 1;
        self.queue.push_back(request);
    }

    /// Takes what the base has ended.
    fn collect(&mut self) {
        if !self.queue.is_empty() {
            self.base.submit(&mut self.queue);
        }
        let mut polled = std::mem::take(&mut self.polled);
        self.base.poll(&mut polled);
        for mut completion in polled.drain(..) {
            let number = completion.tag;
            if let Some((tag, ends)) = self.under_way.remove(&number) {
                completion.tag = tag;
                self.held.insert((ends, number), completion);
            }
        }
        self.polled = polled;
    }

    /// The timer rings when the first of what is held may end, and not at all where nothing is.
    fn set_timer(&mut self, now: Instant) {
        let first = self.held.first_key_value().map(|((ends, _), _)| *ends);
        if first == self.timed {
            return;
        }
        // A timer of no time is none.
        let left =
            first.map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now).max(Duration::from_nanos(1)));
        let ring = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(left) };
        // A timer that is there takes any time.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &ring);
        self.timed = first;
    }
}

impl Device for Spindle {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        let now = self.clock.now();
        while self.under_way.len() + self.held.len() < REQUESTS_MAX
            && let Some(request) = batch.pop_front()
        {
            self.take(request, now);
        }
        self.collect();
        self.set_timer(now);
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.collect();
        let (now, before) = (self.clock.now(), out.len());
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            out.push(first.remove());
        }
        self.set_timer(now);
        out.len() - before
    }

    fn arm(&mut self) -> bool {
        self.collect();
        let now = self.clock.now();
        self.set_timer(now);
        // Without a descriptor the base ends everything at once, unless it had no room.
        let waits = self.queue.is_empty() || self.base.fd().is_some();
        waits && self.base.arm() && self.held.first_key_value().is_none_or(|((ends, _), _)| *ends > now)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.as_fd())
    }

    fn due(&self) -> Option<Instant> {
        self.base.due()
    }
}

fn is_carried_out_by_the_arm(request: &Request) -> bool {
    !matches!(request.work, Work::Hint { .. })
}

/// How far the platter must turn between two places: any part of a turn, always the same one.
fn share_of_a_turn(from: u64, to: u64) -> f64 {
    let mut word = from.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ to.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((word ^ (word >> 29)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Requests in flight; more wait with the caller.
const REQUESTS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_memory::Segment;
    use overside_verbs::SystemClock;
    use overside_volume::{MemoryDevice, wait};

    #[test]
    fn a_disk_takes_the_time_of_its_arm_its_turn_and_its_bytes() {
        let (times, disk) = (SpindleTimes::FIFTEEN_K, 64u64 << 20);
        let blocks = disk / 8192;
        let mean = |count: u64| {
            let (mut head, mut all) = (0, Duration::ZERO);
            for number in 0..count {
                let at = number * 3_571 % blocks * 8192;
                all += times.of(disk, head, at, 8192);
                head = at + 8192;
            }
            all / count as u32
        };
        // 3.9 ms of the arm, 2 of the turn, 0.1 of the bytes; the walk's ways are not those of chance.
        let mean = mean(2000);
        assert!((4..9).contains(&(mean.as_millis() as u64)), "{mean:?}");
        // One behind the other passes the head without a wait.
        assert_eq!(times.of(disk, 8192, 8192, 75_000), Duration::from_millis(1));
        assert!(times.of(disk, 0, disk - 512, 512) > times.seek_max);
        let turns: Vec<f64> = (0..1000).map(|number| share_of_a_turn(0, number * 8192)).collect();
        assert!(turns.iter().all(|share| (0.0..1.0).contains(share)));
        let mean = turns.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }

    #[test]
    fn requests_end_one_after_the_other_and_no_earlier() {
        let times = SpindleTimes { seek_min: Duration::from_millis(5), ..SpindleTimes::FIFTEEN_K };
        let base = Box::new(MemoryDevice::new(1 << 20).unwrap());
        let mut disk = Spindle::over(base, times, SystemClock::handle()).unwrap();
        let read = |tag, at| {
            let into = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
            Request { tag, work: Work::Read { at, length: 4096, into } }
        };
        let places = [512 << 10, 0, 900 << 10];
        let (mut head, mut least) = (0, Duration::ZERO);
        for at in places {
            least += times.of(1 << 20, head, at, 4096);
            head = at + 4096;
        }
        let mut batch: VecDeque<Request> = (7..).zip(places).map(|(tag, at)| read(tag, at)).collect();
        let start = SystemClock.now();
        disk.submit(&mut batch);
        let mut done = Vec::new();
        assert_eq!(disk.poll(&mut done), 0, "a disk that has not moved has read nothing");
        while done.len() < places.len() {
            wait(&mut disk, &SystemClock, None).unwrap();
            disk.poll(&mut done);
        }
        assert!(SystemClock.now() - start >= least, "earlier than {least:?}");
        assert_eq!(done.iter().map(|completion| completion.tag).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(disk.arm() && disk.due().is_none());
    }
}
