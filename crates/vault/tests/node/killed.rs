//! kill -9 of the node at any depth: I/O goes on, and every byte is right.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use overside_memory::{Bytes, Segment};
use overside_vault::home::Home;
use overside_vault::server::Writes;
use overside_volume::client::{Link, LinkOptions};
use overside_volume::{Completion, MemoryDevice, Request, Work};

use super::*;

const BYTES: u64 = 256 << 10;
/// Two halves of a journal, and 32 pieces.
const FILES_BYTES: u64 = (64 << 10) * (1 + 8 + 32);
const ASKED: &str = "OVERSIDE_TEST_NODE";

/// Serves a file, or the volume `v` of a home, until it is killed.
pub fn second_process() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let [transport, name, folder, how] = asked.split('|').collect::<Vec<_>>()[..] else { panic!("{asked}") };
    let writes = if how.contains("back") { Writes::Back } else { Writes::Through };
    let none = NodeOptions::default().cache;
    let cache = if how.contains("cached") { small_cache() } else { none };
    let _served = if how.contains("home") {
        let opened = Home::open(Path::new(folder)).unwrap().open_volume("v", &SystemClock::handle()).unwrap();
        let options = NodeOptions { writes, cache, ..NodeOptions::default() };
        serve_as(transport, name, (opened.device, Some(opened.writer)), opened.about, options)
    } else {
        let device = file(Path::new(folder), if how.contains("files") { FILES_BYTES } else { BYTES });
        let files = how.contains("files").then_some(overside_volume::files::Preset::Sqlite);
        let options = NodeOptions { writes, cache, ..NodeOptions::default() };
        serve_as(transport, name, (device, None), About { files, ..About::default() }, options)
    };
    println!("serving");
    loop {
        std::thread::park();
    }
}

pub struct Killed(Child);

impl Killed {
    pub fn start(transport: &str, name: &str, folder: &Path, writes: &str) -> Killed {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["second_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(ASKED, format!("{transport}|{name}|{}|{writes}", folder.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.map_while(Result::ok).any(|line| line.contains("serving")), "the node did not come up");
        Killed(child)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Lcg(pub u64);

impl Lcg {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit
    }
}

/// Requests that overlap, 16 at a time, while the node is killed and started again: each READ finds what
/// was written before it was submitted.
fn goes_on(transport: &str, writes: &str, kills: u64, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (path, name) = (folder.path().join("disk"), fresh_name(transport));
    let mut node = Some(Killed::start(transport, &name, &path, writes));
    let mut device = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
    let (mut chance, mut model) = (Lcg(seed), vec![0u8; BYTES as usize]);
    let mut under_way: BTreeMap<u64, Option<Vec<u8>>> = BTreeMap::new();
    let (mut tag, mut done, mut killed, limit) = (0u64, 0u64, 0, Instant::now() + PATIENCE * 3);
    let mut out: Vec<Completion> = Vec::new();
    while killed < kills || !under_way.is_empty() {
        let mut batch = std::collections::VecDeque::new();
        while killed < kills && under_way.len() < 16 {
            tag += 1;
            let sectors = 1 + chance.below(24);
            // Few places, so that many overlap.
            let at = chance.below(BYTES / 512 / 4 - sectors) * 512;
            let (length, range) = ((sectors * 512) as usize, at as usize..(at + sectors * 512) as usize);
            let work = if chance.below(10) < 4 {
                under_way.insert(tag, Some(model[range].to_vec()));
                let into = Segment::private(length).unwrap().carve(length).pop().unwrap();
                Work::Read { at, length, into }
            } else {
                let mut buffer = Segment::private(length).unwrap().carve(length).pop().unwrap();
                buffer[..length].iter_mut().enumerate().for_each(|(i, byte)| *byte = (tag * 31 + i as u64 / 512) as u8);
                model[range].copy_from_slice(&buffer[..length]);
                under_way.insert(tag, None);
                Work::Write { at, from: Bytes::prefix(buffer, length), fua: chance.below(8) == 0 }
            };
            batch.push_back(Request { tag, work });
        }
        device.submit(&mut batch);
        assert!(batch.is_empty());
        if device.poll(&mut out) == 0 {
            let look = Some(Instant::now() + Duration::from_millis(20));
            overside_volume::wait(&mut device, &SystemClock, look).unwrap();
        }
        for completion in out.drain(..) {
            assert_eq!(completion.result, Ok(()), "I/O waits, and does not fail");
            done += 1;
            let Some(expected) = under_way.remove(&completion.tag).unwrap() else { continue };
            let Work::Read { into, at, .. } = completion.work else { panic!("another request came back") };
            assert!(into[..expected.len()] == expected[..], "a wrong byte at {at} after {killed} kills");
        }
        if killed < kills && done >= (killed + 1) * 150 {
            killed += 1;
            drop(node.take());
            node = Some(Killed::start(transport, &name, &path, writes));
        }
        assert!(Instant::now() < limit, "I/O does not go on: {} under way, {done} done", under_way.len());
    }
    assert!(kills > 0 && done >= kills * 150);
}

#[test]
fn io_goes_on_over_shm_when_the_node_is_killed_and_writes_go_through() {
    goes_on("shm", "through", 4, 1);
}

#[test]
fn io_goes_on_over_tcp_when_the_node_is_killed_and_writes_go_back() {
    goes_on("tcp", "back", 4, 2);
}

#[test]
fn io_goes_on_with_a_cache_when_the_node_is_killed() {
    goes_on("shm", "cached back", 3, 3);
    goes_on("tcp", "cached through", 3, 4);
}

/// Two connections of one writer, for two threads that share no lock: what either wrote last is there, though the node that
/// acknowledges what is not yet on the disk is killed in between.
#[test]
fn sessions_of_a_group_write_over_each_other_and_lose_nothing() {
    for transport in TRANSPORTS {
        let folder = tempfile::tempdir().unwrap();
        let (path, name) = (folder.path().join("disk"), fresh_name(transport));
        let mut node = Some(Killed::start(transport, &name, &path, "cached back"));
        let attach = || {
            let options = LinkOptions { group: 3, ..LinkOptions::default() };
            Link::attach(provider(transport), &name, "v", options).unwrap()
        };
        let (mut links, mut chance) = ([attach(), attach()], Lcg(7));
        let mut model = vec![0u8; 8 * 4096];
        let read = |link: &mut dyn Device, length: usize| {
            let into = Segment::private(length).unwrap().carve(length).pop().unwrap();
            let work = Work::Read { at: 0, length, into };
            match overside_volume::complete(link, &SystemClock, work, PATIENCE) {
                (Some(Work::Read { into, .. }), Ok(())) => into[..length].to_vec(),
                (_, result) => panic!("{result:?}"),
            }
        };
        for round in 1..60u8 {
            let (who, place) = (chance.below(2) as usize, chance.below(8) * 4096);
            let mut buffer = Segment::private(4096).unwrap().carve(4096).pop().unwrap();
            buffer[..4096].fill(round);
            model[place as usize..place as usize + 4096].fill(round);
            let work = Work::Write { at: place, from: Bytes::prefix(buffer, 4096), fua: false };
            let (_, result) = overside_volume::complete(&mut links[who], &SystemClock, work, PATIENCE);
            assert_eq!(result, Ok(()));
            if round % 15 == 0 {
                drop(node.take());
                node = Some(Killed::start(transport, &name, &path, "cached back"));
                // Both come again, in either order.
                let first = chance.below(2) as usize;
                for who in [first, 1 - first, first] {
                    assert!(read(&mut links[who], model.len()) == model, "{transport}, round {round}, link {who}");
                }
            }
        }
    }
}

/// In more pieces than numbers may run ahead of a request that waits meanwhile. The node's next life has lost them all.
#[test]
fn what_a_client_keeps_in_many_pieces_is_written_again() {
    const PIECES: u64 = 17_000;
    for transport in TRANSPORTS {
        let name = fresh_name(transport);
        let serve = || {
            let device = MemoryDevice::new(PIECES * 512).unwrap();
            serve(transport, &name, Box::new(device), NodeOptions { writes: Writes::Back, ..NodeOptions::default() })
        };
        let served = serve();
        let mut client = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
        let write = |number: u64| {
            let mut buffer = Segment::private(512).unwrap().carve(512).pop().unwrap();
            buffer[..8].copy_from_slice(&number.to_le_bytes());
            Request {
                tag: number,
                work: Work::Write { at: number * 512, from: Bytes::prefix(buffer, 512), fua: false },
            }
        };
        let (limit, mut done) = (Instant::now() + PATIENCE, Vec::new());
        let (mut next, mut batch) = (0, std::collections::VecDeque::new());
        while done.len() < PIECES as usize {
            while next < PIECES && next - (done.len() as u64) < 256 {
                batch.push_back(write(next));
                next += 1;
            }
            client.submit(&mut batch);
            overside_volume::wait(&mut client, &SystemClock, Some(limit)).unwrap();
            client.poll(&mut done);
            assert!(Instant::now() < limit, "{} of {PIECES} are written", done.len());
        }
        drop(served);
        let length = PIECES as usize * 512;
        let into = Segment::private(length).unwrap().carve(length).pop().unwrap();
        client.submit(&mut [Request { tag: 7, work: Work::Read { at: 0, length, into } }].into());
        let _served = serve();
        let mut read = Vec::new();
        while client.poll(&mut read) == 0 {
            assert!(Instant::now() < limit, "{transport}: {} pieces, and no end", client.handle().rewrites());
            let look = Some(Instant::now() + Duration::from_millis(20));
            overside_volume::wait(&mut client, &SystemClock, look).unwrap();
        }
        let Some(Completion { work: Work::Read { into, .. }, result: Ok(()), .. }) = read.pop() else { panic!() };
        let number = |sector: &[u8]| u64::from_le_bytes(std::array::from_fn(|byte| sector[byte]));
        assert!(into[..length].chunks_exact(512).map(number).eq(0..PIECES), "{transport}: something is not there");
        assert_eq!(client.handle().rewrites(), PIECES);
    }
}

/// Nobody comes back: requests end once the client would not wait longer.
#[test]
fn io_ends_when_the_client_gives_up() {
    let folder = tempfile::tempdir().unwrap();
    let (path, name) = (folder.path().join("disk"), fresh_name("shm"));
    let node = Killed::start("shm", &name, &path, "back");
    let options = LinkOptions { give_up: Some(Duration::from_millis(200)), ..LinkOptions::default() };
    let mut device = Link::attach(provider("shm"), &name, "v", options).unwrap();
    drop(node);
    let (_, result) = overside_volume::complete(&mut device, &SystemClock, Work::Flush, PATIENCE);
    assert_eq!(result, Err(overside_volume::DeviceError::Unreachable));
}
