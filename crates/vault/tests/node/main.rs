//! A node and its clients, over shared memory and over TCP.

mod attached;
mod cached;
mod counted;
mod door;
mod ended;
mod ends;
mod files;
mod forgetful;
mod granted;
mod hostile;
mod killed;
mod late;
mod posted;
mod refused;
mod swapped;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overside_disk::{Disk, Open};
use overside_service::{Listening, ServiceOptions};
use overside_shm::ShmProvider;
use overside_tcp::TcpProvider;
use overside_vault::cache::{CacheOptions, PolicyKind};
use overside_vault::members::FileMember;
use overside_vault::server::{About, Node, NodeOptions, Served, WriterRecord};
use overside_verbs::{Provider, SystemClock};
use overside_volume::{Device, Sectors};

/// Providers that every host has.
const TRANSPORTS: [&str; 2] = ["shm", "tcp"];
/// On a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(60);

fn provider(transport: &str) -> Arc<dyn Provider> {
    match transport {
        "shm" => ShmProvider::new().unwrap(),
        _ => TcpProvider::with_options(overside_tcp::Options::default()),
    }
}

/// A name that nothing else uses.
fn fresh_name(transport: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, next) = (u64::from(std::process::id()), NEXT.fetch_add(1, Ordering::Relaxed));
    if transport == "shm" {
        return format!("node-{process}-{next}");
    }
    let (host, port) = (1 + process % 254, 12_000 + (process * 137 + next * 7) % 18_000);
    format!("127.{}.{}.{host}:{port}", 40 + next % 200, process >> 8 & 255)
}

/// Serves one volume, `v`.
fn serve(transport: &str, name: &str, device: Box<dyn Device>, options: NodeOptions) -> Served {
    serve_as(transport, name, (device, None), About::default(), options)
}

fn serve_as(
    transport: &str,
    name: &str,
    (device, writer): (Box<dyn Device>, Option<WriterRecord>),
    about: About,
    options: NodeOptions,
) -> Served {
    let node = Node::new(SystemClock::handle(), options).unwrap();
    node.add_described("v", device, about, writer).unwrap();
    let listening = Listening::open(provider(transport), &[name]).unwrap();
    node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap()
}

/// A cache so small that blocks come and go.
fn small_cache() -> CacheOptions {
    CacheOptions { bytes: 16 * 8192, block_bytes: 8192, policy: PolicyKind::Mq }
}

/// A file in `folder` that nobody else has, in sectors.
fn file(folder: &Path, bytes: u64) -> Box<dyn Device> {
    let mut disk = overside_disk::open(folder).unwrap();
    let file = disk.open("member", Open::Write { direct: true });
    let file = file.or_else(|_| disk.open("member", Open::Create { direct: true })).unwrap();
    assert!(disk.lock(file, PATIENCE).unwrap(), "a dead node's writes never end");
    Box::new(Sectors::over(FileMember::new(disk, file, 0, bytes)))
}

/// Does nothing by itself: other tests start it as another process, a node or a client.
#[test]
fn second_process() {
    killed::second_process();
    ended::second_process();
}
