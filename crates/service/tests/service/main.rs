//! Servers of small systems, over shared memory and over TCP.

mod attends;
mod dialled;
mod group;
mod hostile;
mod later;
mod loans;
mod system;
mod vanishing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use overside_service::client::{Link, LinkError, LinkOptions};
use overside_service::{Listening, Server, ServiceOptions, System, open};
use overside_shm::ShmProvider;
use overside_tcp::TcpProvider;
use overside_verbs::Provider;

/// Providers that every host has.
const TRANSPORTS: [&str; 2] = ["shm", "tcp"];
/// On a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(30);

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
        return format!("service-{process}-{next}");
    }
    let (host, port) = (1 + process % 254, 12_000 + (process * 137 + next * 7) % 18_000);
    format!("127.{}.{}.{host}:{port}", 40 + next % 200, process >> 8 & 255)
}

/// A server of a system, and how to reach it.
struct Bench<S: System> {
    server: Server<S>,
    provider: Arc<dyn Provider>,
    name: String,
}

impl<S: System> Bench<S> {
    fn start(transport: &str, system: &Arc<S>, options: ServiceOptions) -> Bench<S> {
        let name = fresh_name(transport);
        let listening = Listening::open(provider(transport), &[&name]).unwrap();
        let server = Server::start(vec![(listening, system.clone())], options).unwrap();
        Bench { server, provider: provider(transport), name }
    }

    fn client(&self) -> Link {
        self.client_with(LinkOptions::default())
    }

    fn client_with(&self, options: LinkOptions) -> Link {
        Link::connect(self.provider.clone(), &self.name, LinkOptions { timeout: PATIENCE, ..options }).unwrap()
    }
}

/// One worker, so that what is said of one holds for all connections.
fn one_worker() -> ServiceOptions {
    ServiceOptions { workers: 1, ..ServiceOptions::default() }
}

fn send(link: &mut Link, body: &[u8]) -> u32 {
    link.send(|out| out.extend_from_slice(body)).unwrap()
}

/// The next reply: the number of its request, and its body.
fn reply(link: &mut Link) -> (u32, Vec<u8>) {
    let message = link.message().unwrap();
    let (number, body) = open(message.as_ref()).unwrap();
    (number, body.to_vec())
}

/// Asks, and takes the next reply.
fn ask(link: &mut Link, body: &[u8]) -> Vec<u8> {
    let number = send(link, body);
    let (answered, body) = reply(link);
    assert_eq!(answered, number);
    body
}

/// Nothing arrives for a while.
fn silent(link: &mut Link, within: Duration) {
    let start = Instant::now();
    while start.elapsed() < within {
        match link.try_message() {
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("{other:?} arrived"),
        }
    }
}

/// Waits until the connection has ended.
fn ended(link: &mut Link) -> LinkError {
    loop {
        if let Err(error) = link.message() {
            assert!(matches!(error, LinkError::Disconnected { .. }), "{error}");
            return error;
        }
    }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
