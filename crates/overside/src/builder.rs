//! From an address to whatever is to be there: a channel, a listener, a scatter, a table's server
//! or client.

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use overside_planner::{Goal, Profile};
use overside_service::{Listening, ServiceOptions};
use overside_table::client::{Client, ClientOptions};
use overside_table::server::{ListenerConfig, Recovered, Server, ServerOptions};
use overside_transfer::{Buffers, Channel, Error as TransferError, Listener, Options, Scatter};
use overside_vault::server::{Node, Served, change, status};
use overside_verbs::Provider;
use overside_verbs::handshake::{Key, NEEDS_KEY};
use overside_volume::client::{Files, Link, LinkOptions, Volume};
use overside_volume::wire::{Alteration, Report};

use crate::{Address, AddressError, Error, Network, Prices, Transport};

/// What is to be at an address, field by field. The last call says what it is.
///
/// ```no_run
/// # use std::time::Duration;
/// # fn example() -> Result<(), overside::Error> {
/// let within = Duration::from_secs(5);
/// let mut listener = overside::at("tcp:0.0.0.0:7000").key_file("key").listen()?;
/// let mut channel = overside::at("tcp:db-1:7000").key_file("key").connect(within)?;
/// let mut workers = overside::at_each(["shm:worker-0", "shm:worker-1"]).scatter(within)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "the last call says what is to be at the address: connect, listen, scatter, serve, client, node or volume"]
pub struct Builder {
    addresses: Vec<String>,
    network: Network,
    prices: Prices,
    profile: Option<Profile>,
    goal: Option<Goal>,
    buffers: Option<Buffers>,
}

/// Whatever is to be at one address.
pub fn at(address: impl Into<String>) -> Builder {
    at_each([address])
}

/// Whatever is to be at several addresses: a scatter's destinations in their order, or a server's
/// addresses.
pub fn at_each<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Builder {
    let addresses = addresses.into_iter().map(Into::into).collect();
    Builder { addresses, network: Network::default(), prices: Prices::Known, profile: None, goal: None, buffers: None }
}

impl Builder {
    /// A file with the key that both sides have ([`Network::key_file`]). A listener beyond this
    /// host needs one.
    pub fn key_file(mut self, path: impl Into<PathBuf>) -> Builder {
        self.network.key_file = Some(path.into());
        self
    }

    /// Whether frames carry tags made with the key; they do unless said otherwise.
    pub fn tags(mut self, tags: bool) -> Builder {
        self.network.no_mac = !tags;
        self
    }

    /// Whether every user of this host may connect where there is no key; this user alone unless
    /// said otherwise.
    pub fn anyone(mut self, anyone: bool) -> Builder {
        self.network.anyone = anyone;
        self
    }

    /// The RDMA device by name, of `rdma:` alone; the first with an active port unless said
    /// otherwise.
    pub fn rdma_device(mut self, device: impl Into<String>) -> Builder {
        self.network.rdma_device = Some(device.into());
        self
    }

    /// Key, tags and device at once.
    pub fn network(self, network: &Network) -> Builder {
        Builder { network: network.clone(), ..self }
    }

    /// Which prices serve where none are stored: the provider's own unless said otherwise, so
    /// nothing is measured.
    pub fn prices(self, prices: Prices) -> Builder {
        Builder { prices, ..self }
    }

    /// What things cost, whatever is stored.
    pub fn profile(self, profile: Profile) -> Builder {
        Builder { profile: Some(profile), ..self }
    }

    /// What plans make small.
    pub fn goal(self, goal: Goal) -> Builder {
        Builder { goal: Some(goal), ..self }
    }

    /// Memory for messages; both ends should have the same [`Buffers::message_bytes`].
    pub fn buffers(self, buffers: Buffers) -> Builder {
        Builder { buffers: Some(buffers), ..self }
    }

    /// A channel to whoever listens there.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when nobody listens there, or not before the deadline.
    pub fn connect(self, within: Duration) -> Result<Channel, Error> {
        let address = self.only_address()?;
        let (provider, options) = self.opened(&address, false)?;
        Ok(Channel::connect(provider, address.name(), &options, within)?)
    }

    /// A listener, which accepts channels.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when somebody listens there already.
    pub fn listen(self) -> Result<Listener, Error> {
        let address = self.only_address()?;
        let (provider, options) = self.opened(&address, true)?;
        Ok(Listener::listen(provider, address.name(), options)?)
    }

    /// Connections to all of the addresses, which are of one transport.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and when the transports differ.
    pub fn scatter(self, within: Duration) -> Result<Scatter, Error> {
        let addresses = self.parsed()?;
        let first = &addresses[0];
        if let Some(other) = addresses.iter().find(|address| address.transport() != first.transport()) {
            let reason = format!("{first} and {other} are of two transports; a scatter is of one");
            return Err(field("addresses", reason));
        }
        let (provider, options) = self.opened(first, false)?;
        let names: Vec<&str> = addresses.iter().map(Address::name).collect();
        Ok(Scatter::connect(provider, &names, &options, within)?)
    }

    /// A table server on every address; it serves in the background until it is dropped. Each
    /// transport has its own prices: the stored ones, else those that [`prices`](Self::prices)
    /// names.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when an address is taken.
    pub fn serve(self, options: ServerOptions) -> Result<Server, Error> {
        self.recover(options)?.serve()
    }

    /// As [`serve`](Self::serve), up to where the tables are recovered from the directory of their
    /// data. What transfers cost is measured behind that, if it is: a directory that cannot be used
    /// is refused at once.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when the data cannot be used.
    pub fn recover(self, options: ServerOptions) -> Result<RecoveredServer, Error> {
        self.refuse_fields_of_channels()?;
        let addresses = self.parsed()?;
        self.check(&addresses, true)?;
        let mut listeners: Vec<(&Transport, ListenerConfig)> = Vec::new();
        for address in &addresses {
            let name = address.name().to_owned();
            match listeners.iter_mut().find(|(transport, _)| *transport == address.transport()) {
                Some((_, listener)) => listener.names.push(name),
                None => {
                    let provider = address.provider(&self.network)?;
                    listeners
                        .push((address.transport(), ListenerConfig { provider, names: vec![name], profile: None }));
                }
            }
        }
        let listeners = listeners.into_iter().map(|(_, listener)| listener).collect();
        let tables = Server::recover(listeners, options)?;
        Ok(RecoveredServer { tables, addresses, prices: self.prices, network: self.network })
    }

    /// A client of a table server.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when nobody serves there, or the server has another
    /// key.
    pub fn client(self, options: ClientOptions) -> Result<Client, Error> {
        self.refuse_fields_of_channels()?;
        let address = self.only_address()?;
        self.check(std::slice::from_ref(&address), false)?;
        let posted = options.posted.or(address.transport().receives);
        let options = ClientOptions { posted, ..options };
        Ok(Client::connect_with(address.provider(&self.network)?, address.name(), options)?)
    }

    /// A node's volumes on every address; they are served until the result is dropped.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when an address is taken.
    pub fn node(self, node: &Arc<Node>, options: ServiceOptions) -> Result<Served, Error> {
        self.refuse_fields_of_channels()?;
        let addresses = self.parsed()?;
        self.check(&addresses, true)?;
        let mut listening: Vec<(&Transport, Listening)> = Vec::new();
        for address in &addresses {
            match listening.iter_mut().find(|(transport, _)| *transport == address.transport()) {
                Some((_, listening)) => listening.listen(&[address.name()])?,
                None => {
                    let opened = Listening::open(address.provider(&self.network)?, &[address.name()])?;
                    listening.push((address.transport(), opened));
                }
            }
        }
        Ok(node.serve(listening.into_iter().map(|(_, listening)| listening).collect(), options)?)
    }

    /// A volume of the node there, as a device that takes requests of any length.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when nobody serves there, or the node does not let this
    /// side in.
    pub fn volume(self, name: &str, options: LinkOptions) -> Result<Volume, Error> {
        let (provider, address, options) = self.attached(options)?;
        Ok(Link::attach(provider, address.name(), name, options)?)
    }

    /// Files on a volume of the node there that keeps some.
    ///
    /// # Errors
    /// As [`volume`](Self::volume).
    pub fn files(self, name: &str, options: LinkOptions) -> Result<Files, Error> {
        let (provider, address, options) = self.attached(options)?;
        Ok(Files::attach(provider, address.name(), name, options)?)
    }

    /// What attaches this process to a volume there.
    fn attached(self, options: LinkOptions) -> Result<(Arc<dyn Provider>, Address, LinkOptions), Error> {
        self.refuse_fields_of_channels()?;
        let address = self.only_address()?;
        self.check(std::slice::from_ref(&address), false)?;
        let process = if options.process == 0 { std::process::id() } else { options.process };
        let provider = address.provider(&self.network)?;
        let prices = match options.prices {
            None => Prices::Known.of(&address, &self.network, &provider)?,
            Some(prices) => prices,
        };
        Ok((provider, address, LinkOptions { process, prices: Some(prices), ..options }))
    }

    /// How the node there does, and its volumes: one by its name, or where the name is empty all of
    /// them.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when nobody answers there in time, or there is no such
    /// volume.
    pub fn node_status(self, volume: &str, within: Duration) -> Result<Report, Error> {
        self.refuse_fields_of_channels()?;
        let address = self.only_address()?;
        self.check(std::slice::from_ref(&address), false)?;
        Ok(status(address.provider(&self.network)?, address.name(), volume, within)?)
    }

    /// Changes a volume of the node there that nobody uses, with its key where it has one; what was
    /// done, in a line.
    ///
    /// # Errors
    /// A field that cannot be, by its name; when nobody answers there in time, or the node refuses,
    /// and why.
    pub fn node_change(
        self,
        volume: &str,
        what: Alteration,
        key: Option<&Key>,
        within: Duration,
    ) -> Result<String, Error> {
        self.refuse_fields_of_channels()?;
        let address = self.only_address()?;
        self.check(std::slice::from_ref(&address), false)?;
        Ok(change(address.provider(&self.network)?, address.name(), volume, what, key, within)?)
    }

    /// The provider, and how a channel over it is to be.
    fn opened(self, address: &Address, listens: bool) -> Result<(Arc<dyn Provider>, Options), Error> {
        self.check(std::slice::from_ref(address), listens)?;
        let provider = address.provider(&self.network)?;
        let profile = match self.profile {
            Some(profile) => profile,
            None => self.prices.of(address, &self.network, &provider)?,
        };
        Ok((provider, Options { profile: Some(profile), goal: self.goal.unwrap_or_default(), buffers: self.buffers }))
    }

    fn parsed(&self) -> Result<Vec<Address>, Error> {
        if self.addresses.is_empty() {
            return Err(field("addresses", "there is none; write for example shm:demo".into()));
        }
        Ok(self.addresses.iter().map(|address| address.parse()).collect::<Result<_, AddressError>>()?)
    }

    fn only_address(&self) -> Result<Address, Error> {
        match &self.parsed()?[..] {
            [address] => Ok(address.clone()),
            several => {
                Err(field("addresses", format!("there are {}; only scatter and serve take several", several.len())))
            }
        }
    }

    /// Refuses what no provider there could do, before anything is opened.
    fn check(&self, addresses: &[Address], listens: bool) -> Result<(), Error> {
        let Network { key_file, anyone, no_mac, rdma_device } = &self.network;
        let all = |is: fn(&Transport) -> bool| addresses.iter().all(|address| is(address.transport()));
        for (name, given) in [("key_file", key_file.is_some()), ("tags", *no_mac), ("anyone", *anyone)] {
            if given && all(|transport| !transport.is_network) {
                let (address, networks) = (&addresses[0], Transport::networks());
                let reason = format!(
                    "{address} stays on this host and is this user's alone; leave it out, or go over {networks}"
                );
                return Err(field(name, reason));
            }
        }
        if *anyone && key_file.is_some() {
            let reason = "a key says who may connect; leave out the one or the other";
            return Err(field("anyone", reason.into()));
        }
        if rdma_device.is_some() && all(|transport| !transport.has_devices) {
            return Err(field("rdma_device", format!("{} goes over no such device; leave it out", addresses[0])));
        }
        if let Some(path) = key_file {
            // What the provider would say, by the field's name.
            Key::from_file(path).map_err(|error| field("key_file", error.to_string()))?;
        }
        if let Some(open) =
            addresses.iter().find(|address| listens && key_file.is_none() && is_beyond_this_host(address))
        {
            let reason = format!("{open}: {NEEDS_KEY}");
            return Err(field("key_file", reason));
        }
        Ok(())
    }

    fn refuse_fields_of_channels(&self) -> Result<(), Error> {
        let given =
            [("profile", self.profile.is_some()), ("goal", self.goal.is_some()), ("buffers", self.buffers.is_some())];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(field(name, "it is of channels; tables have options of their own".into())),
            None => Ok(()),
        }
    }
}

/// A table server whose tables are there, and which nobody can reach yet.
#[derive(Debug)]
pub struct RecoveredServer {
    tables: Recovered,
    addresses: Vec<Address>,
    prices: Prices,
    network: Network,
}

impl RecoveredServer {
    /// Measures what transfers cost, where that was asked for and is not stored; then listens, and
    /// serves in the background.
    ///
    /// # Errors
    /// When an address is taken, or there is no room to measure in.
    pub fn serve(self) -> Result<Server, Error> {
        let RecoveredServer { mut tables, addresses, prices, network } = self;
        let mut transports: Vec<&Address> = Vec::new();
        for address in &addresses {
            if !transports.iter().any(|other| other.transport() == address.transport()) {
                transports.push(address);
            }
        }
        // Listeners were made in the order of their transports' first addresses.
        let mut transports = transports.into_iter();
        tables.price(|listener| {
            transports.next().map(|address| prices.of(address, &network, &listener.provider)).transpose()
        })?;
        Ok(tables.serve()?)
    }
}

fn is_beyond_this_host(address: &Address) -> bool {
    let reaches = |found: &std::net::SocketAddr| !found.ip().is_loopback();
    // What has no address is refused for that where it is opened.
    address.transport().is_network && address.name().to_socket_addrs().is_ok_and(|mut all| all.any(|a| reaches(&a)))
}

fn field(field: &'static str, reason: String) -> Error {
    TransferError::Field { field, reason }.into()
}
