//! `overside volume serve`

use super::change::HomeKeeper;
use super::{home, processor_time};
use crate::args::ServeVolumes;
use crate::output::{self, grouped};
use crate::signals::{Doorbell, NO_THREAD};
use anyhow::{Context, Result, bail, ensure};
use overside::service::{Notices, OnFailure, ServiceOptions};
use overside::vault::cache::{CacheOptions, PolicyKind};
use overside::vault::fronts::nbd::{NbdOptions, NbdServer, NbdSocket, NodeExports};
use overside::vault::home::{Home, HomeError};
use overside::vault::server::{Access, Node, NodeOptions, Writes};
use overside::verbs::SystemClock;
use overside::verbs::handshake::Key;
use overside::verbs::watch::Signal;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use serde_json::json;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Serves volumes until a signal comes.
///
/// # Errors
/// An address is malformed or taken, no volume can be opened, or the node could not go on.
pub fn run(args: &ServeVolumes) -> Result<()> {
    // Before anything is served, so that no signal finds the node without its end prepared.
    let doorbell = Doorbell::new()?;
    let options = options(args)?;
    let home = home(&args.home)?;
    // Before the folder is read, so that no volume comes between.
    let changes = watch(&home)?;
    let keeper = HomeKeeper { home: home.clone(), open };
    let node = Node::new(SystemClock::handle(), NodeOptions { keeper: Some(Arc::new(keeper)), ..options })?;
    let names = home.list()?;
    let opened = names.iter().map(|name| (name, open(&home, &node, name)));
    let mut refused: Vec<_> = opened.filter_map(|(name, opened)| Some((name, opened.err()?))).collect();
    if node.statistics().volumes == 0
        && let Some((name, error)) = refused.pop()
    {
        let others = if refused.is_empty() { "" } else { ", and no other volume can be either" };
        bail!("{name} cannot be served{others}: {error}");
    }
    refused.iter().for_each(|(name, error)| say(&format!("{name} is not served: {error}")));
    let (addresses, network) = (args.listen.iter().map(String::as_str), args.network.network());
    let why = Arc::new(OnceLock::new());
    let (told, ringer) = (why.clone(), doorbell.ringer()?);
    let mut service = ServiceOptions {
        notices: Some(Notices::new(say)),
        on_failure: Some(OnFailure::new(move |why| {
            let _ = told.set(why.to_owned());
            ringer.ring();
        })),
        ..ServiceOptions::default()
    };
    if let Some(workers) = args.workers {
        service.workers = workers.into();
    }
    let served = overside::at_each(addresses).network(&network).node(&node, service)?;
    let (later, folder) = (node.clone(), home.clone());
    std::thread::Builder::new()
        .name("home".into())
        .spawn(move || follow(&changes, &folder, &later))
        .context(NO_THREAD)?;
    let fronts = Fronts::start(&args.nbd, &node, &why, &doorbell)?;
    announce(args, &home, &names)?;
    doorbell.wait();
    // Their clients' last requests end while the node is there.
    drop(fronts);
    drop(served);
    if let Some(why) = why.get() {
        bail!("{why}");
    }
    if !args.json {
        output::line("ended; what was written to files is on stable storage")?;
    }
    Ok(())
}

/// Says where what is served.
fn announce(args: &ServeVolumes, home: &Home, names: &[String]) -> Result<()> {
    if args.json {
        let json = json!({
            "listening": args.listen,
            "pid": std::process::id(),
            "home": home.folder(),
            "volumes": names,
            "writes": args.writes,
            "cache_bytes": args.cache,
            "policy": args.policy,
            "max_request": args.max_request,
            "nbd": args.nbd,
        });
        output::line(&json.to_string())?;
    } else {
        args.listen.iter().try_for_each(|address| output::line(&format!("listening on {address}")))?;
        args.nbd.iter().try_for_each(|path| output::line(&format!("listening for NBD on {}", path.display())))?;
        let volumes = match names {
            [] => "no volumes yet".to_owned(),
            names => names.join(", "),
        };
        output::line(&format!("serving {volumes}; writes go {}; home {}", args.writes, home.folder().display()))?;
    }
    Ok(())
}

/// NBD servers on threads of their own. Dropping it ends them.
#[derive(Default)]
struct Fronts(Vec<(Arc<Signal>, JoinHandle<()>)>);

impl Fronts {
    /// One for each path. One that cannot go on ends the node, and says why.
    fn start(paths: &[PathBuf], node: &Arc<Node>, why: &Arc<OnceLock<String>>, doorbell: &Doorbell) -> Result<Fronts> {
        let mut fronts = Fronts::default();
        for path in paths {
            let exports = Box::new(NodeExports::new(node.clone()));
            let server = NbdServer::new(NbdSocket::bind(path)?, exports, SystemClock::handle(), NbdOptions::default())?;
            let (stopper, why, ringer) = (server.stopper(), why.clone(), doorbell.ringer()?);
            let run = move || {
                if let Err(error) = server.run() {
                    let _ = why.set(error.to_string());
                    ringer.ring();
                }
            };
            let thread = std::thread::Builder::new().name("nbd".into()).spawn(run);
            fronts.0.push((stopper, thread.context(NO_THREAD)?));
        }
        Ok(fronts)
    }
}

impl Drop for Fronts {
    fn drop(&mut self) {
        self.0.iter().for_each(|(stopper, _)| stopper.notify());
        self.0.drain(..).for_each(|(_, thread)| drop(thread.join()));
    }
}

fn options(args: &ServeVolumes) -> Result<NodeOptions> {
    let writes = if args.writes == "back" { Writes::Back } else { Writes::Through };
    let (bytes, block_bytes) = (args.cache as u64, args.block as u64);
    ensure!(
        bytes == 0 || bytes >= block_bytes,
        "a cache of {} bytes has no room for a block of {}; give a larger --cache, a smaller --block, or --cache 0 for none",
        grouped(bytes),
        grouped(block_bytes)
    );
    let policy = PolicyKind::named(&args.policy).context("there is no such policy")?;
    let cache = CacheOptions { bytes, block_bytes, policy };
    let access = args.access.as_deref().map(access).transpose()?;
    let request_bytes_max = args.max_request;
    Ok(NodeOptions { writes, cache, access, request_bytes_max, cpu: Some(processor_time), ..NodeOptions::default() })
}

/// Who may attach which volume, with the keys themselves.
fn access(path: &Path) -> Result<Access> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let lines =
        Access::lines(&text, path.parent().unwrap_or(Path::new(""))).with_context(|| path.display().to_string())?;
    let mut access = Access::default();
    for (volume, writes, file) in lines {
        access.allow(&volume, writes, Key::from_file(&file)?);
    }
    Ok(access)
}

/// Opens a volume for the node.
fn open(home: &Home, node: &Arc<Node>, name: &str) -> Result<(), HomeError> {
    let opened = home.open_volume(name, &SystemClock::handle()).and_then(|opened| {
        for why in &opened.absent {
            say(&format!("{name} is degraded: {why}; a member that is gone is made anew by `overside volume repair` once this node has ended"));
        }
        let added = node.add_described(name, opened.device, opened.about, Some(opened.writer));
        added.map_err(|error| HomeError::Array(error.into()))
    });
    opened.inspect_err(|error| node.add_failed(name, &error.to_string()))
}

/// Notices volumes that are made, and failed ones that are deleted.
fn watch(home: &Home) -> Result<OwnedFd> {
    let changes = inotify::init(CreateFlags::CLOEXEC).context("the home folder cannot be watched")?;
    let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
    inotify::add_watch(&changes, home.folder(), flags).context("the home folder cannot be watched")?;
    Ok(changes)
}

/// Serves volumes that are made later. Ends with the process.
fn follow(changes: &OwnedFd, home: &Home, node: &Arc<Node>) {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(changes, &mut room);
    loop {
        match events.next() {
            Ok(event) => {
                let name = event.file_name().and_then(|name| Home::name_of(name.to_str().ok()?).map(str::to_owned));
                let Some(name) = name.filter(|name| !node.serves(name)) else { continue };
                if event.events().contains(inotify::ReadFlags::DELETE) {
                    node.remove_failed(&name);
                    continue;
                }
                match open(home, node, &name) {
                    Ok(()) => say(&format!("{name} is new, and served")),
                    Err(error) => say(&format!("{name} is new, and not served: {error}")),
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return say(&format!("volumes that are made from now on are not served: {error}")),
        }
    }
}

fn say(line: &str) {
    // Nobody may be listening there.
    let _ = writeln!(std::io::stderr(), "{line}");
}
