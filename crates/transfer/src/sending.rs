//! What a channel and a scatter have in common: an endpoint that sends, its prices, its transmit
//! buffers, and what has not arrived yet.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use overside_memory::{Buffer, Pool};
use overside_planner::{PlanCache, Planner, Profile, Terms, ViewPlan};
use overside_shape::Shape;
use overside_verbs::{Opcode, PortOptions, ProtectionDomain, Provider, QueuePair, Status, VerbsError, WorkCompletion};

use crate::deadline::Deadline;
use crate::endpoint::Endpoint;
use crate::error::{Error, Missing};
use crate::options::{Buffers, Options};
use crate::send::DeclaredSend;
use crate::shared::SharedSend;

/// One side of connections that sends regions: what a [`Channel`](crate::Channel) and a
/// [`Scatter`](crate::Scatter) are both.
#[derive(Debug)]
pub struct Sending {
    pub(crate) endpoint: Endpoint,
    pub(crate) pairs: Vec<QueuePair>,
    pub(crate) buffers: Buffers,
    terms: Terms,
    profile: Profile,
    /// Where the prices come from, for people.
    prices: Arc<str>,
    /// Made for the first region: who only receives needs none.
    planner: OnceCell<Planner>,
    plans: RefCell<PlanCache>,
    transmit: Option<Pool>,
    pub(crate) received: Vec<WorkCompletion>,
    done: Vec<WorkCompletion>,
    /// Sends to each destination that have not been reported.
    unreported: Vec<usize>,
    /// What of a send has found no room before its deadline.
    rest: Option<Rest>,
    /// The destination whose connection ended first, and how.
    ended: Option<(usize, Status, Option<String>)>,
    /// How long a line took to come from the peer's processor, as last heard.
    line_ns: Option<f64>,
    /// Sends until that is asked again.
    until_asked: u32,
}

/// A send on its way to the queue.
#[derive(Debug)]
pub(crate) enum Rest {
    One(DeclaredSend),
    Several(SharedSend),
}

impl Rest {
    /// Messages to each destination that found no room.
    fn unposted(&self) -> Vec<(usize, u64)> {
        let all: Vec<(usize, u64)> = match self {
            Rest::One(send) => vec![(0, send.unposted())],
            Rest::Several(send) => send.unposted().map(|(id, messages)| (id as usize, messages)).collect(),
        };
        all.into_iter().filter(|(_, messages)| *messages > 0).collect()
    }
}

impl Sending {
    /// Registered memory to send from; zeroed.
    ///
    /// # Errors
    /// When the memory is not there.
    pub fn allocate(&mut self, bytes: usize) -> Result<Buffer, Error> {
        Ok(self.endpoint.allocate(bytes)?)
    }

    /// The prices that plans are made with: those of the options, else the provider's own.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Goal, limits and a forced way, for each destination.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Declares and sends what comes by other terms. No request is longer than the buffers.
    pub fn set_terms(&mut self, terms: Terms) {
        let request_bytes_max = terms.request_bytes_max.min(self.buffers.message_bytes as u64);
        self.terms = Terms { request_bytes_max, ..terms };
    }

    /// Waits until everything sent has arrived at the peers' providers.
    ///
    /// # Errors
    /// When a connection ends first; [`Error::Unflushed`] at the deadline, with the destinations
    /// that are missing.
    pub fn flush(&mut self, within: Duration) -> Result<(), Error> {
        let deadline = &mut Deadline::within(within);
        let mut overdue = self.post_rest(deadline)?;
        while overdue.is_none() && self.unreported.iter().any(|sends| *sends > 0) {
            overdue = self.wait(deadline)?;
        }
        match overdue {
            Some(within) => Err(Error::Unflushed { within, missing: self.missing() }),
            None => Ok(()),
        }
    }

    /// An endpoint without connections.
    pub(crate) fn open(
        provider: Arc<dyn Provider>,
        domain: Option<ProtectionDomain>,
        options: &Options,
        buffers: Buffers,
    ) -> Result<Sending, Error> {
        let depth = PortOptions::default().depth.max(buffers.receives);
        let port = PortOptions { depth, shared_receives: 0, regions: true, ..PortOptions::default() };
        let builder = Endpoint::builder(provider).port(port);
        let endpoint = match domain {
            Some(domain) => builder.domain(domain).open()?,
            None => builder.open()?,
        };
        let prices = match &options.profile {
            Some(profile) => Arc::from(profile.source.as_str()),
            None => Arc::from(DEFAULT_PRICES),
        };
        let profile = options.profile.clone().unwrap_or_else(|| endpoint.provider().profile());
        let request_bytes_max = buffers.message_bytes as u64;
        Ok(Sending {
            endpoint,
            pairs: Vec::new(),
            buffers,
            terms: Terms { goal: options.goal, request_bytes_max, ..Terms::default() },
            profile,
            prices,
            planner: OnceCell::new(),
            plans: RefCell::default(),
            transmit: None,
            received: Vec::new(),
            done: Vec::new(),
            unreported: Vec::new(),
            rest: None,
            ended: None,
            line_ns: None,
            until_asked: 0,
        })
    }

    pub(crate) fn add(&mut self, pair: QueuePair) {
        self.pairs.push(pair);
        self.unreported.push(0);
    }

    /// Where the prices come from.
    pub(crate) fn prices(&self) -> &Arc<str> {
        &self.prices
    }

    /// For where the peer's processor is.
    pub(crate) fn planner(&self) -> &Planner {
        let new = || Planner::new(self.endpoint.capabilities().clone(), self.profile.clone());
        self.planner.get_or_init(new).at(self.line_ns)
    }

    pub(crate) fn plan(&self, shape: &Arc<Shape>) -> Result<ViewPlan, Error> {
        Ok(self.plans.borrow_mut().plan(self.planner(), shape, &self.terms)?.clone())
    }

    /// Asks every now and then how far the peer's processor is, by which plans are priced; before
    /// each send to it.
    #[inline]
    pub(crate) fn look_how_far(&mut self) {
        match self.until_asked.checked_sub(1) {
            Some(left) => self.until_asked = left,
            None => {
                self.until_asked = ASKED_EVERY;
                let first = self.pairs[0];
                self.line_ns = self.endpoint.queue().line_ns(first).or(self.line_ns);
            }
        }
    }

    /// Nothing is sent before what was sent earlier has found room.
    pub(crate) fn make_way(&mut self, deadline: &mut Deadline) -> Result<(), Error> {
        self.check()?;
        match self.post_rest(deadline)? {
            Some(within) => Err(Error::Untaken { within, missing: self.missing() }),
            None => Ok(()),
        }
    }

    /// Posts a send, as far as there is room before the deadline. The messages for these
    /// destinations count as missing until they are reported.
    pub(crate) fn send(
        &mut self,
        send: Rest,
        to: impl IntoIterator<Item = usize>,
        deadline: &mut Deadline,
    ) -> Result<(), Error> {
        to.into_iter().for_each(|destination| self.unreported[destination] += 1);
        self.rest = Some(send);
        match self.post_rest(deadline)? {
            Some(within) => Err(Error::Unsent { within, missing: self.missing() }),
            None => Ok(()),
        }
    }

    /// Posts what waits for room; how long the deadline was, if it passed first.
    fn post_rest(&mut self, deadline: &mut Deadline) -> Result<Option<Duration>, Error> {
        if self.rest.is_none() {
            return Ok(None);
        }
        let pool = self.pool()?;
        while let Some(rest) = &mut self.rest {
            let queue = self.endpoint.queue();
            let posted = match rest {
                Rest::One(send) => send.post(queue, self.pairs[0], &pool),
                Rest::Several(send) => send.post(queue, &pool),
            };
            match posted {
                Ok(true) => self.rest = None,
                Ok(false) => {
                    if let Some(within) = self.wait(deadline)? {
                        return Ok(Some(within));
                    }
                }
                Err(error) => {
                    // No room helps it, and what has no last request is never reported.
                    for (destination, _) in self.rest.take().iter().flat_map(Rest::unposted) {
                        self.unreported[destination] -= 1;
                    }
                    return Err(self.explain(error));
                }
            }
        }
        Ok(None)
    }

    fn pool(&mut self) -> Result<Pool, Error> {
        if let Some(pool) = &self.transmit {
            return Ok(pool.clone());
        }
        let pool = self.endpoint.pool(self.buffers.message_bytes, self.buffers.transmits)?;
        Ok(self.transmit.insert(pool).clone())
    }

    /// As [`progress`](Self::progress); how long the deadline was, if it has passed.
    fn wait(&mut self, deadline: &mut Deadline) -> Result<Option<Duration>, Error> {
        match self.progress(deadline) {
            Ok(()) => Ok(None),
            Err(Error::Verbs(VerbsError::TimedOut(within))) => Ok(Some(within)),
            Err(error) => Err(error),
        }
    }

    /// Takes in what completed; waits for something until the deadline.
    pub(crate) fn progress(&mut self, deadline: &mut Deadline) -> Result<(), Error> {
        self.check()?;
        self.endpoint.progress(&mut self.done, deadline)?;
        for done in self.done.drain(..) {
            match done.opcode {
                Opcode::Receive if done.status == Status::Success => self.received.push(done),
                Opcode::Send if done.status == Status::Success => {
                    if let Some(sends) = self.unreported.get_mut(done.id as usize) {
                        *sends = sends.saturating_sub(1);
                    }
                }
                _ => {
                    let of = self.pairs.iter().position(|pair| Some(*pair) == done.queue_pair).unwrap_or(0);
                    self.ended.get_or_insert((of, done.status, None));
                }
            }
        }
        // What had arrived before the end is still delivered.
        if self.received.is_empty() {
            self.hear();
        }
        Ok(())
    }

    /// Notes the first end of a connection, with its reason.
    fn hear(&mut self) {
        for at in 0..self.pairs.len() {
            if let Some(ended) = self.endpoint.ended(self.pairs[at]) {
                let (status, reason) = (ended.status, ended.reason.clone());
                match &mut self.ended {
                    None => self.ended = Some((at, status, Some(reason))),
                    Some((of, _, known @ None)) if *of == at => *known = Some(reason),
                    Some(_) => {}
                }
                return;
            }
        }
    }

    /// An error once a connection has ended.
    fn check(&mut self) -> Result<(), Error> {
        if self.ended.is_none() {
            return Ok(());
        }
        self.hear();
        match &self.ended {
            Some((of, status, reason)) => {
                let reason = reason.clone().unwrap_or_else(|| status.to_string());
                Err(self.of(*of, VerbsError::Ended { status: *status, reason }))
            }
            None => Ok(()),
        }
    }

    /// Closes a connection whose peer does not keep to the format.
    pub(crate) fn condemn(&mut self, destination: usize) -> Error {
        self.endpoint.close(self.pairs[destination]);
        self.ended = Some((destination, Status::Malformed, None));
        self.of(destination, VerbsError::ended(Status::Malformed))
    }

    /// What to report of a request that was not taken: where a connection has ended meanwhile, why.
    fn explain(&mut self, error: Error) -> Error {
        if matches!(error, Error::Verbs(VerbsError::Closed)) {
            self.hear();
            if let Err(ended) = self.check() {
                return ended;
            }
        }
        error
    }

    fn of(&self, destination: usize, reason: VerbsError) -> Error {
        if self.pairs.len() > 1 { Error::Destination { destination, reason } } else { reason.into() }
    }

    fn missing(&self) -> Missing {
        let sends = self.unreported.iter().copied().enumerate().filter(|(_, sends)| *sends > 0).collect();
        let messages = self.rest.iter().flat_map(Rest::unposted).map(|(_, messages)| messages).sum();
        Missing { sends, destinations: self.pairs.len(), messages }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // Requests that were not posted hold transmit buffers.
        self.rest = None;
        self.pairs.iter().for_each(|pair| self.endpoint.close(*pair));
    }
}

/// Sends between two questions how far the peer is: one reads the clock for some tens of polls, and
/// what moves is moved every few seconds.
const ASKED_EVERY: u32 = 63;
/// What a plan says of prices that nobody measured.
const DEFAULT_PRICES: &str = "the provider's own, not measured here";
