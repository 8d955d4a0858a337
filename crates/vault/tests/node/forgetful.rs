//! Members that lose what no flush covered (`volatile:SEED:PATH`), under every layout, whenever their node is killed.
//!
//! A client that lives has all that it wrote, in the node's next life. Whoever comes after the client's death, too, finds all
//! that was acknowledged as durable; of the rest each sector has what was written there before or since, and never a mix. A
//! few seeds run here, and as many as `OVERSIDE_FORGETFUL_SEEDS` says.

use std::collections::{BTreeMap, VecDeque};
use std::fs;

use overside_memory::{Buffer, Bytes, Segment};
use overside_vault::home::{Creation, Home, LayoutKind, MemberSpec, Opened};
use overside_volume::client::{Link, LinkOptions};
use overside_volume::{Completion, Hint, Request, Work, complete, wait};

use super::killed::{Killed, Lcg};
use super::*;

const SECTORS: u64 = 384;
const SECTOR: usize = 512;
const DEPTH: usize = 8;

/// What was written to each sector, by the numbers of writes.
#[derive(Debug)]
struct Model {
    /// In order; the first one is durable.
    written: Vec<Vec<u32>>,
    /// Writes that were acknowledged and are not known to be durable, with their sectors.
    acknowledged: BTreeMap<u32, (u64, u64)>,
    next: u32,
}

/// What is under way.
#[derive(Debug)]
enum InFlight {
    Write {
        number: u32,
        at: u64,
        sectors: u64,
        fua: bool,
    },
    /// It covers these.
    Flush(BTreeMap<u32, (u64, u64)>),
}

impl Model {
    fn new() -> Model {
        Model { written: vec![vec![0]; SECTORS as usize], acknowledged: BTreeMap::new(), next: 1 }
    }

    /// A request by chance, and what it is.
    fn request(&mut self, chance: &mut Lcg) -> (Work, InFlight) {
        if chance.below(8) == 0 {
            return (Work::Flush, InFlight::Flush(self.acknowledged.clone()));
        }
        let sectors = 1 + chance.below(24);
        // Few places, so that many overlap, and rows of parity are written in parts.
        let (at, number, fua) = (chance.below(SECTORS - sectors), self.next, chance.below(10) == 0);
        self.next += 1;
        let mut from = buffer(sectors as usize * SECTOR);
        from.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
        self.written[at as usize..][..sectors as usize].iter_mut().for_each(|sector| sector.push(number));
        let from = Bytes::prefix(from, sectors as usize * SECTOR);
        (Work::Write { at: at * SECTOR as u64, from, fua }, InFlight::Write { number, at, sectors, fua })
    }

    /// It is acknowledged; of a node that writes through, that is durable.
    fn ended(&mut self, ended: InFlight, through: bool) {
        match ended {
            InFlight::Write { number, at, sectors, fua } if fua || through => self.is_durable(number, at, sectors),
            InFlight::Write { number, at, sectors, .. } => _ = self.acknowledged.insert(number, (at, sectors)),
            InFlight::Flush(covered) => {
                for (number, (at, sectors)) in covered {
                    self.acknowledged.remove(&number);
                    self.is_durable(number, at, sectors);
                }
            }
        }
    }

    /// What was written to its sectors before it is gone for good.
    fn is_durable(&mut self, number: u32, at: u64, sectors: u64) {
        for sector in &mut self.written[at as usize..][..sectors as usize] {
            let first = sector.iter().position(|written| *written == number);
            sector.drain(..first.unwrap_or(0));
        }
    }

    /// Sectors that do not have what they may have: the newest alone, or what was written since something was durable.
    fn wrong(&self, found: &[u32], newest: bool) -> Vec<(usize, u32)> {
        let is_right = |sector: usize, found: u32| match newest {
            true => self.written[sector].last() == Some(&found),
            false => self.written[sector].contains(&found),
        };
        found.iter().copied().enumerate().filter(|(sector, found)| !is_right(*sector, *found)).collect()
    }
}

fn buffer(bytes: usize) -> Buffer {
    Segment::private(bytes).unwrap().carve(bytes).pop().unwrap()
}

/// The number of the write that each sector has, all of it.
fn content(device: &mut dyn Device, of: &str) -> Vec<u32> {
    let (part, mut content) = (64, Vec::new());
    for at in (0..SECTORS).step_by(part) {
        let work = Work::Read { at: at * SECTOR as u64, length: part * SECTOR, into: buffer(part * SECTOR) };
        let (work, result) = complete(device, &SystemClock, work, PATIENCE);
        assert_eq!(result, Ok(()), "{of}: sectors from {at}");
        let Some(Work::Read { into, .. }) = work else { panic!("another request came back") };
        for sector in into[..part * SECTOR].chunks_exact(SECTOR) {
            assert!(sector.chunks_exact(4).all(|word| word == &sector[..4]), "{of}: a torn sector");
            content.push(u32::from_le_bytes(std::array::from_fn(|byte| sector[byte])));
        }
    }
    content
}

/// So many requests; the node is killed with some of them under way, and starts again where the client is to live on.
fn writes(
    client: &mut dyn Device,
    (model, chance): (&mut Model, &mut Lcg),
    (requests, through): (u64, bool),
    mut kill: impl FnMut(),
) -> BTreeMap<u64, InFlight> {
    let (mut under_way, mut done, mut tag) = (BTreeMap::new(), 0, 0);
    let mut out: Vec<Completion> = Vec::new();
    let limit = Instant::now() + PATIENCE;
    while done < requests {
        let mut batch = VecDeque::new();
        while under_way.len() < DEPTH {
            tag += 1;
            let (work, what) = model.request(chance);
            under_way.insert(tag, what);
            batch.push_back(Request { tag, work });
        }
        client.submit(&mut batch);
        assert!(batch.is_empty() && Instant::now() < limit, "{done} of {requests}");
        wait(client, &SystemClock, Some(Instant::now() + Duration::from_millis(20))).unwrap();
        client.poll(&mut out);
        for completion in out.drain(..) {
            assert_eq!(completion.result, Ok(()), "I/O waits, and does not fail");
            model.ended(under_way.remove(&completion.tag).unwrap(), through);
            done += 1;
        }
    }
    kill();
    under_way
}

/// Everything has ended, in the node's next life.
fn waits(client: &mut dyn Device, model: &mut Model, mut under_way: BTreeMap<u64, InFlight>, through: bool) {
    let (limit, mut out) = (Instant::now() + PATIENCE, Vec::new());
    while !under_way.is_empty() {
        assert!(Instant::now() < limit, "{} requests do not end", under_way.len());
        wait(client, &SystemClock, Some(limit)).unwrap();
        client.poll(&mut out);
        for completion in out.drain(..) {
            assert_eq!(completion.result, Ok(()), "I/O waits, and does not fail");
            model.ended(under_way.remove(&completion.tag).unwrap(), through);
        }
    }
}

fn loses_power((layout, count): (LayoutKind, usize), seed: u64) {
    let of = format!("{} with seed {seed}", layout.name());
    let (folder, clock) = (tempfile::tempdir().unwrap(), SystemClock::handle());
    let path = folder.path().join("home");
    let home = Home::open(&path).unwrap();
    let member = |number: usize| folder.path().join(format!("m{number}"));
    let members = (0..count).map(|number| MemberSpec::Volatile { seed: seed * 64, path: member(number) }).collect();
    let (name, bytes, stripe, id) = ("v".to_owned(), SECTORS * SECTOR as u64, 8192, *b"a volume's sixte");
    home.create(&Creation { name, bytes, members, layout, stripe, id, files: None }, &clock).unwrap();
    let (through, transport) = (seed % 4 == 3, TRANSPORTS[seed as usize % 2]);
    let (name, how) = (fresh_name(transport), if through { "home through" } else { "home back" });
    let (mut model, mut chance) = (Model::new(), Lcg(seed));
    let mut node = Some(Killed::start(transport, &name, &path, how));
    let mut client = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
    for _ in 0..2 {
        let requests = 20 + chance.below(80);
        let under_way = writes(&mut client, (&mut model, &mut chance), (requests, through), || {
            drop(node.take());
            node = Some(Killed::start(transport, &name, &path, how));
        });
        waits(&mut client, &mut model, under_way, through);
        let wrong = model.wrong(&content(&mut client, &of), true);
        assert!(wrong.is_empty(), "{of}: the living client finds old data: {wrong:?}");
    }
    // The client goes with the node.
    let requests = 20 + chance.below(80);
    let under_way = writes(&mut client, (&mut model, &mut chance), (requests, through), || drop(node.take()));
    drop((client, under_way));
    let Opened { mut device, about, .. } = home.open_volume("v", &clock).unwrap();
    let found = content(&mut *device, &of);
    let wrong = model.wrong(&found, false);
    assert!(wrong.is_empty(), "{of}: what was durable is gone: {wrong:?}, {model:?}");
    if !matches!(layout, LayoutKind::Mirror | LayoutKind::Parity) {
        return;
    }
    // What the crash left is settled, as a node does that ends; then one goes.
    let limit = Instant::now() + PATIENCE;
    while about.health.unsettled() > 0 {
        assert!(Instant::now() < limit, "{of}: it is never settled");
        device.poll(&mut Vec::new());
        wait(&mut *device, &SystemClock, Some(Instant::now() + Duration::from_millis(5))).unwrap();
    }
    let all = Work::Hint { at: 0, length: device.geometry().bytes, hint: Hint::DontNeed };
    for work in [Work::Flush, all] {
        assert_eq!(complete(&mut *device, &SystemClock, work, PATIENCE).1, Ok(()), "{of}");
    }
    drop(device);
    fs::remove_file(member(seed as usize % count)).unwrap();
    let mut device = home.open_volume("v", &clock).unwrap().device;
    assert!(content(&mut *device, &of) == found, "{of}: without a member it is another volume");
}

fn seeds_under(layout: (LayoutKind, usize)) {
    let asked = std::env::var("OVERSIDE_FORGETFUL_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    (0..asked.unwrap_or(3)).for_each(|seed| loses_power(layout, seed));
}

#[test]
fn members_that_forget_one_behind_the_other_keep_what_is_durable() {
    seeds_under((LayoutKind::Concat, 2));
}

#[test]
fn stripes_over_members_that_forget_keep_what_is_durable() {
    seeds_under((LayoutKind::Stripes, 3));
}

#[test]
fn a_mirror_of_members_that_forget_keeps_what_is_durable_and_may_lose_one() {
    seeds_under((LayoutKind::Mirror, 2));
}

#[test]
fn parity_over_members_that_forget_keeps_what_is_durable_and_may_lose_one() {
    seeds_under((LayoutKind::Parity, 3));
}
