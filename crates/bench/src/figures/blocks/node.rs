//! A storage node of the figure: a process that serves volumes as it is told.

use super::{disks::Disks, load::Client};
use crate::{
    measure::Cpu,
    process::{Process, child_socket, read_word, write_words},
};
use anyhow::{Context, Result};
use overside::{
    Address,
    service::ServiceOptions,
    vault::{
        cache::CacheOptions,
        fronts::nbd::{NbdOptions, NbdServer, NbdSocket, NodeExports},
        server::{self, About, NodeOptions},
    },
    verbs::SystemClock,
    volume::{client::LinkOptions, files::Preset, wire::Role},
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

/// The role of this process.
pub(in crate::figures) const ROLE: &str = "figure-blocks";

/// What a node is to be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Launch {
    pub(super) volumes: Vec<(String, Disks)>,
    /// Of all volumes together; 0: none.
    pub(super) cache_bytes: u64,
    /// Bytes of one request at most, and how many buffers of that length.
    pub(super) request_bytes_max: u32,
    pub(super) blocks: usize,
    /// A Unix socket for NBD.
    pub(super) nbd: Option<PathBuf>,
    /// Over TCP in addition to shared memory.
    pub(super) tcp: bool,
    /// Chosen when it starts.
    pub(super) listen: Vec<String>,
}

/// A node that runs.
pub(super) struct Node {
    process: Process,
    line: UnixStream,
    order: Launch,
}

impl Node {
    pub(super) fn start(mut order: Launch) -> Result<Node> {
        let name = format!("overside-blocks-{}-{}", std::process::id(), GIVEN.fetch_add(1, Ordering::Relaxed));
        let transports = ["shm", "tcp"].into_iter().take(if order.tcp { 2 } else { 1 });
        let addresses = transports.map(|transport| Address::here(transport, &name));
        order.listen = addresses.map(|address| Ok(address?.to_string())).collect::<Result<_>>()?;
        let (process, mut line) = Process::start("storage node", ROLE, &[&serde_json::to_string(&order)?], None)?;
        read_word(&mut line).context("the storage node ended; its last words are above")?;
        Ok(Node { process, line, order })
    }

    /// A client of a volume, that asks for so many bytes at once at most.
    pub(super) fn client(&self, transport: &str, volume: &str, role: Role, bytes_max: u32) -> Result<Client> {
        self.client_as(transport, volume, bytes_max, LinkOptions { role, ..LinkOptions::default() })
    }

    /// One that writes it together with others of its group.
    pub(super) fn writer(&self, transport: &str, volume: &str, bytes_max: u32, group: u64) -> Result<Client> {
        self.client_as(transport, volume, bytes_max, LinkOptions { group, ..LinkOptions::default() })
    }

    pub(super) fn client_as(
        &self,
        transport: &str,
        volume: &str,
        bytes_max: u32,
        options: LinkOptions,
    ) -> Result<Client> {
        // Long answers are few.
        let receives = ((8 << 20) / bytes_max as usize).clamp(4, 64);
        let options = LinkOptions { request_bytes_max: bytes_max, receives, ..options };
        let at = self.address(transport)?;
        Ok(Client::over(overside::at(at).volume(volume, options)?))
    }

    /// Writes what every block of a volume is known by, and lets go of it.
    pub(super) fn fill(&self, volume: &str, bytes: u64) -> Result<()> {
        let options = LinkOptions::default();
        let link = overside::at(self.address("shm")?).volume(volume, options)?;
        let handle = link.handle();
        let mut client = Client::over(link);
        client.fill(bytes)?;
        client.close(&handle);
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn cpu(&self) -> Result<Cpu> {
        Ok(Cpu::of(self.process.pid())?)
    }

    /// READs and WRITEs that the disks of a volume were given.
    pub(super) fn ios(&mut self, volume: &str) -> Result<[u64; 2]> {
        let at = self.order.volumes.iter().position(|(name, _)| name == volume).context("no such volume")?;
        write_words(&mut self.line, &[at as u64])?;
        let mut word = || read_word(&mut self.line).context("the storage node ended; its last words are above");
        Ok([word()?, word()?])
    }

    /// Nanoseconds in which the workers that serve volumes have polled for nothing. The process
    /// that is asked works for the answer: ask outside of what is measured.
    pub(super) fn polled_ns(&mut self) -> Result<u64> {
        write_words(&mut self.line, &[POLLED])?;
        read_word(&mut self.line).context("the storage node ended; its last words are above")
    }

    /// Blocks of READs that were in a volume's cache, and that were not.
    pub(super) fn found(&self, volume: &str) -> Result<[u64; 2]> {
        let report = overside::at(self.address("shm")?).node_status(volume, PATIENCE)?;
        let counts = report.volumes.first().context("the node knows nothing of its volume")?.counts;
        Ok([counts.hits, counts.misses])
    }

    pub(super) fn address(&self, transport: &str) -> Result<&String> {
        self.order
            .listen
            .iter()
            .find(|address| address.starts_with(transport))
            .context("the node does not listen there")
    }
}

/// The process itself.
pub(in crate::figures) fn serve(arguments: &[OsString]) -> Result<()> {
    if let Some(done) = super::clients::serve(arguments) {
        return done;
    }
    let words: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
    if let [super::READ, found, file] = words[..] {
        return super::reader::serve(found, file);
    }
    let text = arguments.first().and_then(|order| order.to_str()).context("no order")?;
    let order: Launch = serde_json::from_str(text).context("an order that is none")?;
    let options = NodeOptions {
        cache: CacheOptions { bytes: order.cache_bytes, ..CacheOptions::default() },
        request_bytes_max: order.request_bytes_max,
        blocks: order.blocks,
        ..NodeOptions::default()
    };
    let node = server::Node::new(SystemClock::handle(), options)?;
    let mut ios = Vec::new();
    for (name, disks) in &order.volumes {
        let (device, counted) = disks.open()?;
        let files = matches!(disks, Disks::Files(_)).then_some(Preset::Sqlite);
        node.add_described(name, device, About { files, ..About::default() }, None)?;
        ios.push(counted);
    }
    let served = overside::at_each(order.listen.iter().cloned()).node(&node, ServiceOptions::default())?;
    let mut front = None;
    if let Some(path) = &order.nbd {
        let exports = Box::new(NodeExports::new(node.clone()));
        let server = NbdServer::new(NbdSocket::bind(path)?, exports, SystemClock::handle(), NbdOptions::default())?;
        front = Some((server.stopper(), thread::spawn(move || server.run().map(drop))));
    }
    let mut line = child_socket()?;
    write_words(&mut line, &[READY])?;
    // The parent hangs up when it is done.
    while let Ok(word) = read_word(&mut line) {
        if word == POLLED {
            write_words(&mut line, &[served.service().empty_poll_ns])?;
            continue;
        }
        let counts = ios.get(word as usize).context("a volume that is none")?.counts();
        write_words(&mut line, &counts)?;
    }
    if let Some((stopper, thread)) = front {
        stopper.notify();
        thread.join().ok().context("the NBD server panicked")??;
    }
    drop(served);
    Ok(())
}

static GIVEN: AtomicU64 = AtomicU64::new(0);
const READY: u64 = 1;
/// Asks for what was polled, instead of the number of a volume.
const POLLED: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(20);
