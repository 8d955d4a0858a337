//! One sender and several receivers: what is declared for all of them goes in one post.

use std::sync::Arc;
use std::time::Duration;

use overside_memory::Buffer;
use overside_planner::{Terms, ViewPlan};
use overside_shape::Shape;
use overside_transfer::{Balance, Destination, SharedSend, SharedTerms};
use overside_verbs::{QueuePair, VerbsError};

use crate::endpoint::{Endpoint, LOOK};
use crate::{Address, AddressError, Error};

/// Connections to several gates, for shuffles: every destination's rows in one pass over the table.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use overside::{Fan, shape::{Mask, Run, Shape}};
/// # fn example() -> Result<(), overside::Error> {
/// let mut fan = Fan::connect(&["shm:worker-0", "shm:worker-1"])?;
/// let table = Arc::new(fan.allocate(2 * 4 * 1000)?); // two columns of 1000 values of 4 bytes
/// // Row i goes to worker i % 2.
/// let rows_of = |worker: u64| {
///     let column = |at| Shape::strided(at + worker * 4, 8, 500, &[Run::new(0, 4)]);
///     Shape::set(vec![column(0)?, column(4000)?], Mask::Rows).map(Arc::new)
/// };
/// let shapes = [rows_of(0), rows_of(1)].into_iter().collect::<Result<Vec<_>, _>>().expect("checked geometry");
/// fan.send(&table, &shapes)?;
/// fan.flush()
/// # }
/// ```
#[derive(Debug)]
pub struct Fan {
    endpoint: Endpoint,
    pairs: Vec<QueuePair>,
    balance: Balance,
}

impl Fan {
    /// Connects to gates, all of one transport; a destination is its place in `addresses`.
    ///
    /// # Errors
    /// When an address is malformed or of another transport, or nobody listens there.
    pub fn connect(addresses: &[&str]) -> Result<Fan, Error> {
        let addresses = addresses.iter().map(|a| a.parse()).collect::<Result<Vec<Address>, _>>()?;
        let first = addresses.first().ok_or_else(|| AddressError::Form(String::new()))?;
        let mut endpoint = Endpoint::open(first, TRANSMIT)?;
        let mut pairs = Vec::with_capacity(addresses.len());
        for address in &addresses {
            if address.transport_name() != first.transport_name() {
                return Err(AddressError::Transport(address.transport_name().to_owned()).into());
            }
            let link = endpoint.provider.connect(&endpoint.domain, address.name(), CONNECT_TIMEOUT)?;
            pairs.push(endpoint.queue.attach(link)?);
        }
        Ok(Fan { endpoint, pairs, balance: Balance::Equal })
    }

    /// Whether destinations may have different numbers of elements: as many each, unless said otherwise.
    pub fn set_balance(&mut self, balance: Balance) {
        self.balance = balance;
    }

    /// Registered memory to send from; zeroed.
    ///
    /// # Errors
    /// When the memory is not there.
    pub fn allocate(&mut self, bytes: usize) -> Result<Buffer, Error> {
        self.endpoint.allocate(bytes)
    }

    /// Sends each destination its shape of the common memory, which is read once, tile by tile. The messages are
    /// those that separate sends would bring. Does not wait until they have arrived.
    ///
    /// # Errors
    /// When there are not as many shapes as destinations, when a shape leaves the memory, two have a byte in
    /// common or different numbers of elements (nothing is sent then), or when a connection has ended.
    pub fn send(&mut self, memory: &Arc<Buffer>, shapes: &[Arc<Shape>]) -> Result<Vec<ViewPlan>, Error> {
        self.send_with(memory, shapes, &Terms::default())
    }

    /// As [`send`](Self::send), for another goal or in a way of the caller's choice. Returns each destination's plan.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_with(
        &mut self,
        memory: &Arc<Buffer>,
        shapes: &[Arc<Shape>],
        terms: &Terms,
    ) -> Result<Vec<ViewPlan>, Error> {
        if shapes.len() != self.pairs.len() {
            return Err(Error::Shapes { shapes: shapes.len(), destinations: self.pairs.len() });
        }
        let to = |(id, (pair, shape)): (usize, (&QueuePair, &Arc<Shape>))| Destination {
            queue_pair: *pair,
            id: id as u64,
            shape: shape.clone(),
        };
        let destinations: Vec<Destination> = self.pairs.iter().zip(shapes).enumerate().map(to).collect();
        let view = Terms { request_bytes_max: terms.request_bytes_max.min(TRANSMIT.0 as u64), ..*terms };
        let terms = SharedTerms { view, balance: self.balance, ..SharedTerms::default() };
        self.endpoint.look_how_far(self.pairs[0]);
        let planner = Some(self.endpoint.planner()?.at(self.endpoint.line_ns));
        let mut send = SharedSend::new(memory, &destinations, planner, &self.endpoint.capabilities, &terms)
            .map_err(VerbsError::from)?;
        let pool = self.endpoint.pool()?;
        self.endpoint.unsent += shapes.iter().filter(|shape| shape.messages().count() > 0).count();
        loop {
            match send.post(&mut self.endpoint.queue, &pool) {
                Ok(true) => break,
                Ok(false) => self.endpoint.progress(LOOK)?,
                Err(error) => return Err(self.endpoint.refused(error)),
            }
        }
        Ok(send.plans().flatten().cloned().collect())
    }

    /// Waits until everything sent has arrived at the peers' providers.
    ///
    /// # Errors
    /// When a connection ends first.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.endpoint.flush()
    }
}

impl Drop for Fan {
    fn drop(&mut self) {
        self.pairs.iter().for_each(|pair| self.endpoint.queue.close(*pair));
    }
}

/// Bytes of a transmit buffer, and how many there are: small ones, for each destination needs some.
const TRANSMIT: (usize, usize) = (128 << 10, 64);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
