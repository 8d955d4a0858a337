//! The sending side: this process, its receivers, and one stretch of sending at a time.

use super::{
    Over,
    receiver::{self, Answer, Command},
    remote::OtherEnd,
};
use crate::{
    measure::{Cpu, elapsed_ns, median, now_ns},
    process::{Process, write_words},
    progress::{MEASURING, Progress},
};
use anyhow::{Context, Result, bail, ensure};
use overside::{
    Prices,
    calibrate::Effort,
    memory::{Buffer, Pool},
    planner::{Capabilities, Profile},
    prices,
    transfer::{Ended, Endpoint},
    verbs::{
        Access, CompletionQueue, Listener, Memory, PortOptions, ProtectionDomain, Provider, QueuePair, Status,
        WorkCompletion, WorkRequest,
    },
};
use std::{collections::VecDeque, os::unix::net::UnixStream, sync::Arc, time::Duration};

/// What comes next on a connection.
pub enum Next {
    /// This.
    Request(WorkRequest),
    /// Nothing until something that was sent completes.
    Wait,
    /// Nothing more.
    Done,
}

/// One way of sending something.
pub trait Side {
    /// The next request for destination `to`.
    ///
    /// # Errors
    /// What this side cannot send at all.
    fn next(&mut self, to: usize) -> Result<Next>;

    /// Bytes of the request that [`next`](Self::next) gave last.
    fn bytes(&self) -> u64;

    /// Whether its requests carry their bytes inline: all of them, or none.
    fn inlines(&self) -> bool {
        false
    }

    /// Takes back what a completion brought.
    fn completed(&mut self, _done: WorkCompletion) {}
}

/// What posts by itself: a declared send, a shared one.
pub trait Post {
    /// Once before the first [`post`](Self::post); counted as part of sending.
    ///
    /// # Errors
    /// What cannot be sent at all.
    fn begin(&mut self, pairs: &[QueuePair]) -> Result<()>;

    /// Posts what queues take now; true once all is posted.
    ///
    /// # Errors
    /// What was refused.
    fn post(&mut self, queue: &mut CompletionQueue, pairs: &[QueuePair]) -> Result<bool>;

    /// Payload of all that was posted since [`begin`](Self::begin).
    fn bytes(&self) -> u64;
}

/// When a stretch ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After so many nanoseconds.
    Elapsed(u64),
    /// After so many requests to each destination.
    Requests(u64),
    /// When the side has nothing more.
    Done,
}

/// What one stretch of sending came to. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Payload, to all destinations.
    pub bytes: u64,
    /// Requests, to all destinations.
    pub requests: u64,
    /// From the first request to the last completion.
    pub wall_ns: u64,
    /// Processor time of this process.
    pub sender_ns: u64,
    /// Of it, polling for nothing.
    pub sender_poll_ns: u64,
    /// Processor time of all receivers.
    pub receiver_ns: u64,
    /// Of it, polling for nothing.
    pub receiver_poll_ns: u64,
    /// Time in which a process of either side was ready to run and another
    /// program had its processor.
    pub crowded_ns: u64,
}

impl Sample {
    /// Payload bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    /// Processor time of the sender for a byte.
    pub fn sender_per_byte(&self) -> f64 {
        self.sender_ns as f64 / self.bytes.max(1) as f64
    }

    /// Of it, work alone.
    pub fn work_per_byte(&self) -> f64 {
        self.sender_ns.saturating_sub(self.sender_poll_ns) as f64 / self.bytes.max(1) as f64
    }

    /// Processor time of both ends for a byte.
    pub fn both_per_byte(&self) -> f64 {
        self.sender_per_byte() + self.receiver_per_byte()
    }

    /// Of it, without polling for nothing.
    pub fn both_work_per_byte(&self) -> f64 {
        let all = self.sender_ns + self.receiver_ns;
        all.saturating_sub(self.sender_poll_ns + self.receiver_poll_ns) as f64 / self.bytes.max(1) as f64
    }

    /// One stretch after another.
    pub fn add(&mut self, next: Sample) {
        self.bytes += next.bytes;
        self.requests += next.requests;
        self.wall_ns += next.wall_ns;
        self.sender_ns += next.sender_ns;
        self.sender_poll_ns += next.sender_poll_ns;
        self.receiver_ns += next.receiver_ns;
        self.receiver_poll_ns += next.receiver_poll_ns;
        self.crowded_ns += next.crowded_ns;
    }

    /// Processor time of the receivers for a byte.
    pub fn receiver_per_byte(&self) -> f64 {
        self.receiver_ns as f64 / self.bytes.max(1) as f64
    }
}

/// This process as the sender, with its receivers.
pub struct Sender {
    /// Limits and promises of the provider.
    pub capabilities: Capabilities,
    /// What things cost on it: as stored, else as calibrated first.
    pub profile: Profile,
    endpoint: Endpoint,
    listener: Box<dyn Listener>,
    pairs: Vec<QueuePair>,
    // Killed and reaped last; those of another host, which are no processes of this one, end with their lines.
    receivers: Vec<(UnixStream, Option<Process>)>,
}

impl Sender {
    /// Starts `receivers` processes; none is connected yet.
    ///
    /// # Errors
    /// A process or a port could not be had.
    pub fn start(over: &Over, receivers: usize) -> Result<Sender> {
        let rendezvous = over.rendezvous()?;
        let provider = rendezvous.provider()?;
        let measuring = Progress::new();
        if !prices::is_stored(&rendezvous.address, &rendezvous.network) {
            measuring.say(MEASURING);
        }
        let profile = Prices::Measured(Effort::Full).of(&rendezvous.address, &rendezvous.network, &provider)?;
        drop(measuring);
        let endpoint = Endpoint::builder(provider).port(port_options()).open()?;
        let listener = endpoint.listen(rendezvous.address.name())?;
        let end = OtherEnd::Receiver(rendezvous.address.clone());
        let process = |_| -> Result<(UnixStream, Option<Process>)> {
            let (line, process) = match &over.to {
                Some(host) => (host.start(&end)?, None),
                None => {
                    let (process, line) = end.start(&rendezvous.network)?;
                    (line, Some(process))
                }
            };
            line.set_read_timeout(Some(PATIENCE)).context("a socket refuses a deadline")?;
            Ok((line, process))
        };
        let receivers = (0..receivers).map(process).collect::<Result<Vec<_>>>()?;
        Ok(Sender {
            capabilities: endpoint.capabilities().clone(),
            profile,
            endpoint,
            listener,
            pairs: Vec::new(),
            receivers,
        })
    }

    /// Memory to send from, registered; peers may read it.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn memory(&mut self, bytes: usize) -> Result<Buffer> {
        Ok(self.endpoint.allocate(bytes)?)
    }

    /// Transmit buffers of `bytes` each, registered.
    ///
    /// # Errors
    /// The memory is not there.
    pub fn pool(&mut self, bytes: usize, count: usize) -> Result<Pool> {
        Ok(self.endpoint.pool(bytes, count)?)
    }

    /// Registers memory until this sender is dropped.
    ///
    /// # Errors
    /// The provider refuses.
    pub fn register(&mut self, memory: &Memory) -> Result<()> {
        self.endpoint.register(memory.clone(), Access::LOCAL)?;
        Ok(())
    }

    /// The provider, and the domain that everything of this sender is in.
    pub fn device(&self) -> (&Arc<dyn Provider>, &ProtectionDomain) {
        (self.endpoint.provider(), self.endpoint.domain())
    }

    /// Connects the first `count` receivers anew, each with a ring of receive buffers of
    /// `message_bytes`. They share `buffers` transmit buffers, which come back when a later request
    /// of their queue pair is reported. With many queue pairs reports must come often, or the pool
    /// is empty before the first report.
    ///
    /// # Errors
    /// A receiver has ended or does not connect.
    pub fn connect(&mut self, count: usize, message_bytes: usize, buffers: usize) -> Result<()> {
        self.connect_to(count, message_bytes, buffers, false)
    }

    /// As [`connect`](Self::connect), to clients that have stalled: they post no receive before
    /// [`stalled`](Self::stalled) has them go on.
    ///
    /// # Errors
    /// As there.
    pub fn connect_stalled(&mut self, count: usize, message_bytes: usize) -> Result<()> {
        self.connect_to(count, message_bytes, usize::MAX, true)
    }

    fn connect_to(&mut self, count: usize, message_bytes: usize, buffers: usize, stalled: bool) -> Result<()> {
        self.hang_up()?;
        // Whoever polls takes the processor from those it waits for.
        let crowded = count + 1 > std::thread::available_parallelism().map_or(1, usize::from);
        self.endpoint.queue().set_spin(if crowded { SPIN_CROWDED } else { SPIN });
        self.endpoint.queue().set_signal_every(buffers / (2 * count.max(1)));
        for at in 0..count {
            self.tell(at, Command::Connect { message_bytes: message_bytes as u64, crowded, stalled })?;
            let accepted = self.endpoint.accept(&mut *self.listener, PATIENCE);
            self.pairs.push(accepted.context("a receiver does not connect")?.0);
            self.answer(at)?;
        }
        Ok(())
    }

    /// How long a cache line took to come from the processor of destination `to`, if that is known;
    /// measured anew by what follows.
    pub fn line_ns(&mut self, to: usize) -> Option<f64> {
        self.endpoint.queue().line_ns(*self.pairs.get(to)?)
    }

    /// Destinations that are connected.
    pub fn destinations(&self) -> usize {
        self.pairs.len()
    }

    /// Asks receiver `at` for something, outside of any stretch.
    ///
    /// # Errors
    /// The receiver has ended.
    pub fn ask(&mut self, at: usize, command: Command) -> Result<Answer> {
        self.tell(at, command)?;
        self.answer(at)
    }

    /// One stretch: sends what `side` gives, and waits until all of it has arrived. Receivers keep
    /// a digest of what arrives if `check` (it costs them time: nothing that is checked is timed).
    ///
    /// # Errors
    /// A request was refused, failed, or a receiver has ended.
    pub fn run(&mut self, side: &mut dyn Side, until: Until, check: bool) -> Result<(Sample, Vec<Answer>)> {
        let begun = self.begin(check)?;
        let sent = self.send_all(side, until, begun.start)?;
        self.end(begun, sent, &mut |done| side.completed(done))
    }

    /// Posts `requests`, one list a destination, to clients that have stalled; what `meanwhile`
    /// finds; then lets them go on until all of it has arrived, and says what each got.
    ///
    /// # Errors
    /// A request was refused, completed though its receiver had stalled, or
    /// did not when it went on.
    pub fn stalled<T>(
        &mut self,
        requests: Vec<VecDeque<WorkRequest>>,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Vec<Answer>)> {
        let mut done = Vec::new();
        for (pair, mut batch) in self.pairs.iter().zip(requests) {
            let wanted = batch.len();
            self.endpoint.queue().post(*pair, &mut batch)?;
            self.endpoint.queue().poll(&mut done);
            let under_way = self.endpoint.queue().sends_in_flight(*pair);
            ensure!(batch.is_empty() && done.is_empty() && under_way == wanted, "a stalled client took a message");
        }
        let found = meanwhile()?;
        self.endpoint.queue().poll(&mut done);
        ensure!(done.is_empty(), "a stalled client took a message");
        let begun = self.begin(true)?;
        self.tell_end(&mut done)?;
        let (_, answers) = self.end(begun, Sample::default(), &mut drop)?;
        Ok((found, answers))
    }

    /// Sends to the first destination what `next` gives, each after the one before has completed,
    /// for so long. Returns the median of the nanoseconds from a post to its completion.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn one_by_one(
        &mut self,
        next: &mut dyn FnMut() -> Result<WorkRequest>,
        completed: &mut dyn FnMut(WorkCompletion),
        slice_ns: u64,
    ) -> Result<f64> {
        let begun = self.begin(false)?;
        let (pair, mut done, mut times) = (self.pairs[0], Vec::new(), Vec::new());
        while elapsed_ns(begun.start) < slice_ns {
            let mut batch = VecDeque::from([next()?]);
            let posted_ns = now_ns();
            while !batch.is_empty() || self.endpoint.queue().sends_in_flight(pair) > 0 {
                if self.endpoint.queue().post(pair, &mut batch)? == 0 {
                    self.endpoint.queue().poll_wait(&mut done, Some(LOOK))?;
                    if done.is_empty() {
                        self.watch()?;
                    }
                }
                settle(&mut done, completed)?;
            }
            times.push(elapsed_ns(posted_ns) as f64);
        }
        let mut last = VecDeque::from([end_of_stretch()]);
        while self.endpoint.queue().post(pair, &mut last)? == 0 {
            self.endpoint.queue().poll_wait(&mut done, Some(LOOK))?;
            settle(&mut done, &mut drop)?;
        }
        self.end(begun, Sample::default(), &mut drop)?;
        Ok(median(&times))
    }

    /// One stretch of what posts by itself: all of it.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn post(&mut self, what: &mut dyn Post, check: bool) -> Result<(Sample, Vec<Answer>)> {
        self.post_times(what, 1, check)
    }

    /// One stretch of what posts by itself, so many `times` over.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn post_times(&mut self, what: &mut dyn Post, times: usize, check: bool) -> Result<(Sample, Vec<Answer>)> {
        let begun = self.begin(check)?;
        let (mut done, mut bytes) = (Vec::new(), 0);
        for _ in 0..times {
            what.begin(&self.pairs)?;
            while !what.post(self.endpoint.queue(), &self.pairs)? {
                self.endpoint.queue().poll_wait(&mut done, Some(LOOK))?;
                if done.is_empty() {
                    self.watch()?;
                }
                settle(&mut done, &mut drop)?;
            }
            bytes += what.bytes();
        }
        self.tell_end(&mut done)?;
        self.end(begun, Sample { bytes, ..Sample::default() }, &mut drop)
    }

    /// Tells each receiver that this was all.
    fn tell_end(&mut self, done: &mut Vec<WorkCompletion>) -> Result<()> {
        for to in 0..self.pairs.len() {
            let mut last = VecDeque::from([end_of_stretch()]);
            while self.endpoint.queue().post(self.pairs[to], &mut last)? == 0 {
                self.endpoint.queue().poll_wait(done, Some(LOOK))?;
                settle(done, &mut drop)?;
            }
        }
        Ok(())
    }

    /// Every receiver is ready; time begins.
    fn begin(&mut self, check: bool) -> Result<Begun> {
        let command = if check { Command::Check } else { Command::Receive };
        for at in 0..self.pairs.len() {
            self.ask(at, command)?;
        }
        let crowded = self.crowded();
        Ok(Begun { start: now_ns(), cpu: Cpu::own(), spun: self.endpoint.queue().spun(), crowded })
    }

    /// Everything has arrived and every receiver has said what it got.
    fn end(
        &mut self,
        begun: Begun,
        mut sample: Sample,
        completed: &mut dyn FnMut(WorkCompletion),
    ) -> Result<(Sample, Vec<Answer>)> {
        let (mut done, mut open) = (Vec::new(), self.pairs.clone());
        while !open.is_empty() {
            open.retain(|pair| self.endpoint.queue().sends_in_flight(*pair) > 0);
            if !open.is_empty() {
                self.endpoint.queue().poll_wait(&mut done, Some(LOOK))?;
                settle(&mut done, completed)?;
            }
        }
        sample.wall_ns = elapsed_ns(begun.start);
        sample.sender_ns = Cpu::own() - begun.cpu;
        let polled = (self.endpoint.queue().spun() - begun.spun).as_nanos() as u64;
        sample.sender_poll_ns = polled.min(sample.sender_ns);
        let answers = (0..self.pairs.len()).map(|at| self.answer(at)).collect::<Result<Vec<_>>>()?;
        sample.crowded_ns = self.crowded().saturating_sub(begun.crowded);
        sample.receiver_ns = answers.iter().map(|answer| answer.cpu_ns).sum();
        sample.receiver_poll_ns = answers.iter().map(|answer| answer.poll_ns).sum();
        Ok((sample, answers))
    }

    /// Posts to each destination in turn until the end, then tells each that this was all.
    fn send_all(&mut self, side: &mut dyn Side, until: Until, start: u64) -> Result<Sample> {
        let mut sample = Sample::default();
        let mut queues: Vec<Outgoing> = self.pairs.iter().map(|_| Outgoing::default()).collect();
        let mut done = Vec::new();
        loop {
            let late = matches!(until, Until::Elapsed(ns) if elapsed_ns(start) >= ns);
            let (mut posted, mut open) = (0, false);
            for (to, out) in queues.iter_mut().enumerate() {
                out.fill(side, to, until, late, &mut sample)?;
                if !out.batch.is_empty() {
                    posted += self.endpoint.queue().post(self.pairs[to], &mut out.batch)?;
                }
                open |= !(out.ended && out.batch.is_empty());
            }
            if !open {
                return Ok(sample);
            }
            if posted == 0 {
                self.endpoint.queue().poll_wait(&mut done, Some(LOOK))?;
                if done.is_empty() {
                    self.watch()?;
                }
            } else {
                self.endpoint.queue().poll(&mut done);
            }
            settle(&mut done, &mut |done| side.completed(done))?;
        }
    }

    /// How long all processes have waited for a processor; nothing where the
    /// kernel keeps no such account.
    fn crowded(&self) -> u64 {
        let receivers = self.receivers.iter().filter_map(pid);
        receivers.chain([std::process::id()]).map(crowded_ns).sum()
    }

    /// An error if a receiver has gone.
    fn watch(&mut self) -> Result<()> {
        while let Some(Ended { queue_pair, reason, .. }) = self.endpoint.next_end() {
            if self.pairs.contains(&queue_pair) {
                bail!("a receiver has gone ({reason}); its last words are above");
            }
        }
        self.receivers.iter_mut().filter_map(|(_, process)| process.as_mut()).try_for_each(Process::alive)
    }

    fn hang_up(&mut self) -> Result<()> {
        for pair in self.pairs.drain(..) {
            self.endpoint.close(pair);
        }
        // Closed queue pairs leave when what was pending on them is told.
        let mut done = Vec::new();
        self.endpoint.queue().poll(&mut done);
        while self.endpoint.next_end().is_some() {}
        Ok(())
    }

    fn tell(&mut self, at: usize, command: Command) -> Result<()> {
        let (line, _) = self.receivers.get_mut(at).context("there is no such receiver")?;
        write_words(line, &command.words()).context("a receiver does not listen")
    }

    fn answer(&mut self, at: usize) -> Result<Answer> {
        let (line, process) = self.receivers.get_mut(at).context("there is no such receiver")?;
        let answer = Answer::read(line);
        if let (Err(_), Some(process)) = (&answer, process) {
            process.alive()?;
        }
        answer.context("a receiver does not answer")
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Whatever is pending belongs to receivers that go now.
        let _ = self.hang_up();
    }
}

/// How things stood when a stretch began.
struct Begun {
    start: u64,
    cpu: Cpu,
    spun: Duration,
    crowded: u64,
}

/// The number of a receiver's process, where that is one of this host.
fn pid((_, process): &(UnixStream, Option<Process>)) -> Option<u32> {
    process.as_ref().map(Process::pid)
}

/// The second field of a process's schedstat: what its first thread waited on a run queue.
fn crowded_ns(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn settle(done: &mut Vec<WorkCompletion>, completed: &mut dyn FnMut(WorkCompletion)) -> Result<()> {
    for completion in done.drain(..) {
        if completion.status != Status::Success {
            bail!("a request ended as {:?}; its receiver's last words are above", completion.status);
        }
        completed(completion);
    }
    Ok(())
}

/// Tells a receiver that this was all. It is signalled, so all before it are settled with it.
fn end_of_stretch() -> WorkRequest {
    WorkRequest::send_inline(0, &[0]).with_immediate(receiver::END)
}

/// What waits to be posted to one destination.
#[derive(Default)]
struct Outgoing {
    batch: VecDeque<WorkRequest>,
    given: u64,
    ended: bool,
}

impl Outgoing {
    fn fill(&mut self, side: &mut dyn Side, to: usize, until: Until, late: bool, sample: &mut Sample) -> Result<()> {
        while !self.ended && self.batch.len() < BATCH {
            let enough = late || matches!(until, Until::Requests(most) if self.given >= most);
            match if enough { Next::Done } else { side.next(to)? } {
                Next::Request(request) => {
                    // Inlining is off where it is not what is measured (thesis §2.5 TH-M07).
                    ensure!(request.is_inline() == side.inlines(), "what is compared posts inline data, or lacks it");
                    sample.bytes += side.bytes();
                    sample.requests += 1;
                    self.given += 1;
                    self.batch.push_back(request);
                }
                Next::Wait => return Ok(()),
                Next::Done => {
                    self.ended = true;
                    self.batch.push_back(end_of_stretch());
                }
            }
        }
        Ok(())
    }
}

/// How large the ports of both ends are.
pub fn port_options() -> PortOptions {
    PortOptions { depth: 128, sges: 4096, shared_receives: 0, regions: true, ..PortOptions::default() }
}

/// How long either end polls before it sleeps.
pub const SPIN: Duration = Duration::from_micros(50);
/// As [`SPIN`], where there are more processes than processors.
pub const SPIN_CROWDED: Duration = Duration::from_micros(3);
/// Requests made ready before they are posted.
const BATCH: usize = 16;
const LOOK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    /// One request, and what is said of it.
    struct One(bool);

    impl Side for One {
        fn next(&mut self, _to: usize) -> Result<Next> {
            Ok(Next::Request(WorkRequest::send_inline(0, &[7])))
        }
        fn bytes(&self) -> u64 {
            1
        }
        fn inlines(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn inline_data_is_refused_where_it_is_not_what_is_measured() {
        let fill = |inlines| {
            let (mut out, mut sample) = (Outgoing::default(), Sample::default());
            let filled = out.fill(&mut One(inlines), 0, Until::Requests(1), false, &mut sample);
            (filled.is_ok(), sample.requests)
        };
        assert_eq!((fill(true), fill(false)), ((true, 1), (false, 0)));
    }
}
