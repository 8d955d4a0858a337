//! One sender and several receivers: what is declared for all of them goes in one post.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use overside_memory::Buffer;
use overside_planner::ViewPlan;
use overside_shape::Shape;
use overside_verbs::{Provider, QueuePair};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::options::{Buffers, Options};
use crate::sending::{Rest, Sending};
use crate::shared::{Balance, Destination, SharedSend, SharedTerms, Sharing};

/// Connections to several listeners, for shuffles: every destination's rows in one pass over the
/// table.
///
/// ```no_run
/// # use std::{sync::Arc, time::Duration};
/// # use overside_transfer::{Options, Scatter}; use overside_shape::{Mask, Run, Shape};
/// # fn example(provider: Arc<dyn overside_verbs::Provider>) -> Result<(), overside_transfer::Error> {
/// let within = Duration::from_secs(5);
/// let mut scatter = Scatter::connect(provider, &["worker-0", "worker-1"], &Options::default(), within)?;
/// let table = Arc::new(scatter.allocate(2 * 4 * 1000)?); // two columns of 1000 values of 4 bytes
/// // Row i goes to worker i % 2.
/// let rows_of = |worker: u64| {
///     let column = |at| Shape::strided(at + worker * 4, 8, 500, &[Run::new(0, 4)]);
///     Shape::set(vec![column(0)?, column(4000)?], Mask::Rows).map(Arc::new)
/// };
/// let shapes = [rows_of(0), rows_of(1)].into_iter().collect::<Result<Vec<_>, _>>().expect("checked geometry");
/// scatter.send(&table, &shapes, within)?;
/// scatter.flush(within)
/// # }
/// ```
#[derive(Debug)]
pub struct Scatter {
    sending: Sending,
    balance: Balance,
    sharing: Sharing,
}

impl Scatter {
    /// Connects to the listeners at these names; a destination is its place among them.
    ///
    /// # Errors
    /// When there is no name, or nobody listens at one of them before the deadline;
    /// [`Error::Field`] for buffers that cannot be.
    pub fn connect(
        provider: Arc<dyn Provider>,
        names: &[&str],
        options: &Options,
        within: Duration,
    ) -> Result<Scatter, Error> {
        if names.is_empty() {
            return Err(Error::Field {
                field: "addresses",
                reason: "there is none; name one for each destination".into(),
            });
        }
        let buffers = options.buffers.unwrap_or(Buffers::SCATTER);
        // It receives nothing.
        let buffers = Buffers { receives: 1, ..buffers }.check(&provider.capabilities())?;
        let mut sending = Sending::open(provider, None, options, buffers)?;
        let mut deadline = Deadline::within(within);
        for (destination, name) in names.iter().enumerate() {
            let endpoint = &mut sending.endpoint;
            let connected = deadline.left(endpoint.clock()).and_then(|left| endpoint.connect(name, left));
            sending.add(connected.map_err(|reason| Error::Destination { destination, reason })?);
        }
        Ok(Scatter { sending, balance: Balance::Equal, sharing: Sharing::Refused })
    }

    /// Whether destinations may have different numbers of elements: as many each, unless said
    /// otherwise.
    pub fn set_balance(&mut self, balance: Balance) {
        self.balance = balance;
    }

    /// Whether a byte may go to several destinations: to one, unless said otherwise.
    pub fn set_sharing(&mut self, sharing: Sharing) {
        self.sharing = sharing;
    }

    /// Sends each destination its shape of the common memory, which is read once, tile by tile. The
    /// messages are those that separate sends would bring. Waits for room, not until they have
    /// arrived. Returns each destination's plan.
    ///
    /// # Errors
    /// Nothing is sent when there are not as many shapes as destinations, a shape leaves the
    /// memory, or two have a byte in common or different numbers of elements that are not allowed
    /// to. When a connection has ended. At the deadline as [`Channel::send`](crate::Channel::send).
    pub fn send(
        &mut self,
        memory: &Arc<Buffer>,
        shapes: &[Arc<Shape>],
        within: Duration,
    ) -> Result<Vec<ViewPlan>, Error> {
        let Sending { pairs, .. } = &self.sending;
        if shapes.len() != pairs.len() {
            return Err(Error::Shapes { shapes: shapes.len(), destinations: pairs.len() });
        }
        let to = |(id, (pair, shape)): (u64, (&QueuePair, &Arc<Shape>))| Destination {
            queue_pair: *pair,
            id,
            shape: shape.clone(),
        };
        let destinations: Vec<Destination> = (0..).zip(pairs.iter().zip(shapes)).map(to).collect();
        let mut deadline = Deadline::within(within);
        self.sending.make_way(&mut deadline)?;
        self.sending.look_how_far();
        let (view, balance, sharing) = (*self.sending.terms(), self.balance, self.sharing);
        let terms = SharedTerms { view, balance, sharing, ..SharedTerms::default() };
        let (planner, capabilities) = (self.sending.planner(), self.sending.endpoint.capabilities());
        let send = SharedSend::new(memory, &destinations, Some(planner), capabilities, &terms)?;
        let plans = send.plans().flatten().cloned().collect();
        let wanting = shapes.iter().enumerate().filter(|(_, shape)| shape.messages().count() > 0);
        self.sending.send(Rest::Several(send), wanting.map(|(destination, _)| destination), &mut deadline)?;
        Ok(plans)
    }
}

impl Deref for Scatter {
    type Target = Sending;

    fn deref(&self) -> &Sending {
        &self.sending
    }
}

impl DerefMut for Scatter {
    fn deref_mut(&mut self) -> &mut Sending {
        &mut self.sending
    }
}
