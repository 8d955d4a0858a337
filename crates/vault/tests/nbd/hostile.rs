//! Clients that lie, that say half of it, that do not listen, and that die.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::client::*;
use super::*;

#[test]
fn requests_that_cannot_be_are_refused_and_the_connection_stays() {
    let served = Served::memory();
    for structured in [false, true] {
        let mut client = Client::connected(&served.path(), structured);
        let absurd = [
            (READ, BYTES, 512, 22),
            (READ, u64::MAX - 511, 512, 22),
            (READ, u64::MAX, 1, 22),
            (READ, BYTES - 512, 1024, 22),
            (READ, 0, 0, 22),
            (READ, 1, 512, 22),
            (READ, 0, 100, 22),
            (READ, 0, u32::MAX - 511, 22),
            (TRIM, BYTES, 512, 22),
            (TRIM, 0, u32::MAX - 511, 22),
            (CACHE, BYTES, 512, 22),
            (WRITE_ZEROES, BYTES, 512, 28),
            (WRITE_ZEROES, 0, 513, 22),
            (BLOCK_STATUS, 0, 512, 22),
            (8, 0, 512, 22),
            (u16::MAX, u64::MAX, u32::MAX, 22),
        ];
        for (kind, at, length, error) in absurd {
            let reply = client.carry_out(0, kind, at, length, &[]);
            assert_eq!(reply.error, error, "{kind} {at} {length}");
        }
        for (flags, kind) in [(2, READ), (2, WRITE), (4, WRITE_ZEROES), (0x8000, FLUSH), (16, TRIM), (32, READ)] {
            let payload: &[u8] = if kind == WRITE { &[7; 512] } else { &[] };
            assert_eq!(client.carry_out(flags, kind, 0, 512, payload).error, 22, "flags {flags} of {kind}");
        }
        // Their bytes come all the same, and are thrown away.
        assert_eq!(client.carry_out(0, WRITE, BYTES - 512, 1024, &[7; 1024]).error, 28);
        assert_eq!(client.carry_out(0, WRITE, 3, 1024, &[7; 1024]).error, 22);
        assert_eq!(client.carry_out(0, WRITE, 0, 40 << 20, &vec![7; 40 << 20]).error, 22);
        assert_eq!(client.carry_out(0, WRITE, 0, 0, &[]).error, 22);
        assert_eq!(client.read(0, 4096), [0; 4096]);
    }
    assert!(!served.log().iter().any(|said| !said.starts_with("read 0 4096")), "{:?}", served.log());
}

#[test]
fn who_speaks_something_else_loses_its_connection_alone() {
    let served = Served::memory();
    let mut other = Client::connected(&served.path(), false);
    let flagged = |bytes: &[u8]| {
        let mut client = Client::greeted(&served.path());
        client.say(bytes);
        client
    };
    let mut oldest = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
    std::io::Write::write_all(&mut oldest, &[0xff; 64]).unwrap();
    let mut said = Vec::new();
    oldest.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = std::io::Read::read_to_end(&mut oldest, &mut said);
    assert_eq!(said.len(), 18, "flags that no version has end it");
    assert!(flagged(&[0xee; 16]).ended(), "no option");
    assert!(flagged(&[&b"IHAVEOPT"[..], &[0, 0, 0, 1], &[0xff; 4]].concat()).ended(), "an export's name of 4 GiB");
    let mut client = Client::connected(&served.path(), true);
    client.say(&[0x11; 28]);
    assert!(client.ended(), "no request");
    assert_eq!(other.read(0, 512), [0; 512]);
}

/// At every byte: the server forgets it, and nothing that was not whole is carried out.
#[test]
fn a_client_may_die_at_any_byte() {
    let served = Served::memory();
    let mut words = Vec::new();
    words.extend_from_slice(&3u32.to_be_bytes());
    words.extend_from_slice(&[&b"IHAVEOPT"[..], &GO.to_be_bytes(), &7u32.to_be_bytes(), &name("v", &[0, 0])].concat());
    words.extend_from_slice(&[&request(0, WRITE, 1, 0, 512)[..], &[9; 512]].concat());
    for cut in 0..words.len() {
        let mut stream = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
        std::io::Write::write_all(&mut stream, &words[..cut]).unwrap();
    }
    // A server that keeps dead clients has no room for this one.
    let limit = Instant::now() + PATIENCE;
    let mut client = loop {
        let mut stream = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
        if std::io::Read::read(&mut stream, &mut [0; 18]).is_ok_and(|read| read == 18) {
            drop(stream);
            break Client::connected(&served.path(), false);
        }
        assert!(Instant::now() < limit, "dead clients are kept");
    };
    assert_eq!(client.read(0, 512), [0; 512], "half a WRITE was carried out");
    assert!(served.log().iter().all(|said| said.starts_with("read")), "{:?}", served.log());
}

/// It fills its socket with requests and takes no reply: what the server keeps has a bound, and others
/// are served on.
#[test]
fn a_client_that_does_not_listen_keeps_nobody_waiting() {
    let served = Served::memory();
    let mut deaf = Client::connected(&served.path(), false);
    deaf.stream.set_nonblocking(true).unwrap();
    let reads: Vec<u8> = (0..1000).flat_map(|cookie| request(0, READ, cookie, 0, 64 << 10)).collect();
    let (mut asked, mut other) = (0usize, Client::connected(&served.path(), true));
    for round in 0..200u64 {
        use std::io::Write;
        // From where the last write was cut.
        if let Ok(wrote) = deaf.stream.write(&reads[asked % reads.len()..]) {
            asked += wrote;
        }
        other.write(0, round % 64 * 512, &[round as u8; 512]);
        assert_eq!(other.read(round % 64 * 512, 512), [round as u8; 512]);
    }
    let carried_out = served.log().iter().filter(|said| *said == "read 0 65536").count();
    assert!(carried_out > 0 && carried_out <= 300, "{carried_out} replies of 64 KiB are kept for one client");
    served.sleeps();
    // It listens after all, and is served on.
    deaf.stream.set_nonblocking(false).unwrap();
    for cookie in 0..(asked / 28).min(900) as u64 {
        assert_eq!(deaf.reply(64 << 10).cookie, cookie % 1000);
    }
}

/// A device that keeps what it is asked for until it is let go.
#[derive(Debug)]
struct Stuck {
    device: MemoryDevice,
    held: VecDeque<Request>,
    goes: Arc<Signal>,
}

impl Device for Stuck {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        self.held.append(batch);
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let mut ready = [PollFd::new(&self.goes, PollFlags::IN)];
        if rustix::event::poll(&mut ready, Some(&Timespec::default())).unwrap() > 0 {
            self.device.submit(&mut self.held);
        }
        self.device.poll(out)
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.goes.as_fd())
    }
}

/// While its requests are under way: the server forgets it, sleeps, and serves others.
#[test]
fn a_client_may_die_while_a_device_has_its_requests() {
    let goes = Arc::new(Signal::new().unwrap());
    let device = MemoryDevice::new(BYTES).unwrap();
    let served = Served::of(Box::new(Stuck { device, held: VecDeque::new(), goes: goes.clone() }));
    let mut dies = Client::connected(&served.path(), false);
    dies.say(&[&request(0, WRITE, 1, 0, 512)[..], &[5; 512]].concat());
    dies.say(&request(0, READ, 2, 0, 512));
    let mut stays = Client::connected(&served.path(), true);
    stays.say(&request(0, READ, 3, 0, 512));
    let limit = Instant::now() + PATIENCE;
    while served.log().len() < 3 {
        assert!(Instant::now() < limit, "the device is asked at once: {:?}", served.log());
        std::thread::yield_now();
    }
    drop(dies);
    served.sleeps();
    goes.notify();
    let reply = stays.reply(512);
    assert_eq!((reply.cookie, &reply.data[8..]), (3, &[5; 512][..]), "what was asked before is carried out");
}

#[test]
fn one_connection_too_many_is_turned_away() {
    let options = NbdOptions { connections_max: 2, ..NbdOptions::default() };
    let served = Served::with(Box::new(MemoryDevice::new(BYTES).unwrap()), options);
    let (mut first, second) = (Client::connected(&served.path(), false), Client::connected(&served.path(), false));
    let mut third = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
    assert_eq!(std::io::Read::read(&mut third, &mut [0; 18]).unwrap_or(0), 0, "it is not greeted");
    assert_eq!(first.read(0, 512), [0; 512]);
    drop(second);
    let limit = Instant::now() + PATIENCE;
    while {
        let mut again = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
        std::io::Read::read(&mut again, &mut [0; 18]).unwrap_or(0) == 0
    } {
        assert!(Instant::now() < limit, "a place that is free again is not given");
    }
}

/// It keeps a place for as long as a greeting may take, and no longer; who was greeted may be silent.
#[test]
fn a_client_that_never_greets_loses_its_place() {
    let options = NbdOptions { greeting: Duration::from_secs(3), ..NbdOptions::default() };
    let served = Served::with(Box::new(MemoryDevice::new(BYTES).unwrap()), options);
    let mut greeted = Client::connected(&served.path(), true);
    let mut silent = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    std::io::Read::read_to_end(&mut silent, &mut said).expect("the connection ends");
    assert_eq!(said.len(), 18);
    assert_eq!(greeted.read(0, 512), [0; 512]);
    served.sleeps();
}
