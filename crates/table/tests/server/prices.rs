//! `auto` goes by the prices of the device: each wrong one changes what it chooses.

use overside_planner::{Bends, Curve, Profile};
use overside_table::server::ListenerConfig;
use overside_table::wire::MODES;

use super::*;

/// How many pages of a scan of all columns, and of one of sixteen, travelled as in [`MODES`] by these
/// prices.
fn chosen(change: impl Fn(&mut Profile), columns: Option<&[usize]>, in_place: bool) -> [u64; 4] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("table-prices-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let provider: Arc<dyn Provider> = ShmProvider::new().unwrap();
    let mut profile = Profile {
        send_request_ns: 100.0,
        send_fragment_ns: 10.0,
        send_byte_ns: 0.0,
        pack_byte_ns: 10.0,
        pack_piece_ns: 1.0,
        pack_request_ns: 20.0,
        row_ns: 5.0,
        receive_request_ns: 100.0,
        receive_fragment_ns: 10.0,
        receive_byte_ns: 0.02,
        wire_byte_ns: 0.0,
        bends: Bends::default(),
        source: "made up".into(),
        elsewhere: None,
    };
    change(&mut profile);
    let listener = ListenerConfig { provider, names: vec![name.clone()], profile: Some(profile) };
    let server = Server::start_on(vec![listener], ServerOptions::default()).unwrap();
    let mut client = Client::connect(ShmProvider::new().unwrap(), &name).unwrap();
    let numbers = (0..16).map(|i| Column::new(format!("c{i}"), ColumnType::UInt64)).collect();
    let table = client.create_table("t", &Schema::with_key(numbers, &["c0"]).unwrap()).unwrap();
    for round in 0..3 {
        let mut batch = table.batch();
        // Every hundredth row once more, so that pages have deltas on them.
        for id in (0..20_000u64).filter(|id| round == 0 || id % 100 == round) {
            let row: Vec<_> = (0..16).map(|column| ValueRef::UInt64(id + column * round)).collect();
            batch.push(&row).unwrap();
        }
        client.put(&table, PutMode::Upsert, &batch).unwrap();
    }
    let options = ScanOptions { columns, mode: Mode::Auto, ..ScanOptions::default() };
    let scan = if in_place { client.scan_in_place(&table, &options) } else { client.scan(&table, &options) };
    let mut scan = scan.unwrap();
    while scan.next_in_place().unwrap().is_some() {}
    let chosen = scan.summary().server.chosen;
    drop(scan);
    server.shutdown();
    chosen
}

/// The mode in which most pages travelled.
fn mostly(change: impl Fn(&mut Profile), columns: Option<&[usize]>) -> Mode {
    mostly_of(chosen(change, columns, false))
}

fn mostly_of(chosen: [u64; 4]) -> Mode {
    let most = (0..4).max_by_key(|i| chosen[*i]).unwrap();
    assert!(chosen[most] * 10 >= chosen.iter().sum::<u64>() * 9, "{chosen:?}");
    MODES[most]
}

fn dear(ns: f64) -> Curve {
    Curve::new([(64, ns), (1 << 20, ns * 100.0)]).unwrap()
}

#[test]
fn each_price_that_is_wrong_changes_the_choice() {
    assert_ne!(mostly(|_| {}, None), Mode::Copy, "16 KiB are dearer to pack than a few fragments to name");
    // Merging is the receiver's alone, and only where deltas travel as they lie.
    assert_eq!(mostly(|p| p.row_ns = 1e6, None), Mode::Gather);
    for fragments in [|p: &mut Profile| p.bends.send = dear(1e6), |p: &mut Profile| p.bends.receive = dear(1e6)] {
        assert_eq!(mostly(fragments, None), Mode::Copy);
        let packing_too = |p: &mut Profile| {
            fragments(p);
            p.bends.pack = dear(1e9);
        };
        assert_ne!(mostly(packing_too, None), Mode::Copy);
    }
}

/// Reading in place is chosen where it is known to be cheap, for a client that does so, and by what it reads.
#[test]
fn the_price_of_loans_decides_on_reading_in_place() {
    let lend = |ns: f64| move |p: &mut Profile| p.bends.lend = Curve::new([(4096, ns), (1 << 14, 4.0 * ns)]).unwrap();
    let mostly = |change: &dyn Fn(&mut Profile), columns, in_place| mostly_of(chosen(change, columns, in_place));
    assert_eq!(mostly(&lend(10.0), None, true), Mode::InPlace);
    assert_ne!(mostly(&lend(10.0), None, false), Mode::InPlace, "it would copy all");
    assert_ne!(mostly(&lend(1e5), None, true), Mode::InPlace);
    assert_ne!(mostly(&|_| {}, None, true), Mode::InPlace, "nobody measured it");
    // Of a few columns few lines are read: dearer than copying for all, it is not for these.
    let some = |p: &mut Profile| {
        lend(300.0)(p);
        (p.receive_byte_ns, p.pack_byte_ns) = (0.06, 100.0);
    };
    assert_ne!(mostly(&some, None, true), Mode::InPlace);
    assert_eq!(mostly(&some, Some(&[1, 2]), true), Mode::InPlace);
}

/// Two of sixteen columns: an eighth of the bytes, packed column by column at the price of elements
/// at a distance.
#[test]
fn a_projection_is_packed_unless_its_elements_are_dear() {
    let two: Option<&[usize]> = Some(&[1, 9]);
    let wire = |p: &mut Profile| (p.receive_byte_ns, p.pack_byte_ns) = (100.0, 0.02);
    assert_eq!(mostly(wire, two), Mode::Copy);
    let pack_far = |p: &mut Profile| {
        wire(p);
        let dear = Curve::new([(4, 1e5), (64, 1e5)]).unwrap();
        (p.bends.pack_near, p.bends.pack_far) = (dear.clone(), dear);
    };
    assert_ne!(mostly(pack_far, two), Mode::Copy);
}

/// What a table's scans sent, and by which prices, is said to who asks; and chains follow it.
//= to-copy §5.4 TC-M31, TC-M32
#[test]
fn how_pages_travelled_is_said_and_sets_the_length_of_chains() {
    let bench = Bench::new();
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..20_000, 1, 100);
    let fresh = client.choices(&table).unwrap().unwrap();
    assert_eq!((fresh.pages, fresh.chain_max), ([0; 4], 8));
    let scanned = |client: &mut Client, mode: Mode, pages: u64| {
        let (mut sent, at) = (0, MODES.iter().position(|own| *own == mode).unwrap());
        while sent < pages {
            let options = ScanOptions { mode, ..ScanOptions::default() };
            let mut scan = client.scan(&table, &options).unwrap();
            while scan.next_block().unwrap().is_some() {}
            sent += scan.summary().server.chosen[at];
        }
        (sent, client.choices(&table).unwrap().unwrap())
    };
    let (copied, after) = scanned(&mut client, Mode::Copy, 600);
    assert_eq!((after.pages, after.chain_max), ([copied, 0, 0, 0], 4), "they are merged each time");
    let (gathered, after) = scanned(&mut client, Mode::Gather, 600);
    assert_eq!((after.pages, after.chain_max), ([copied, gathered, 0, 0], 8));
    assert_eq!(scanned(&mut client, Mode::Copy, 600).1.chain_max, 4);
    put(&mut client, &table, 0..20_000, 2, 100);
    assert_eq!(client.choices(&table).unwrap().unwrap().chain_max, 8, "more is changed than read");
    assert_eq!(scanned(&mut client, Mode::Copy, 600).1.chain_max, 4);
    (0..600).for_each(|key| assert!(client.delete(&table, &[ValueRef::UInt64(key)]).unwrap()));
    assert_eq!(client.choices(&table).unwrap().unwrap().chain_max, 8, "what is deleted is changed, too");
    let prices = client.prices().unwrap().unwrap();
    assert_eq!(prices.source, "default");
    assert!(prices.pieces.iter().all(|piece| piece.copied_ns.0 > 0.0 && piece.gathered_ns.0 > 0.0), "{prices:?}");
    assert_eq!(prices.beyond_ns, [None; 4], "nothing was planned yet");
    // What `auto` plans is measured now and then, but for messages that something interrupted.
    let mut looks = 0;
    while client.prices().unwrap().unwrap().beyond_ns == [None; 4] {
        let mut scan = client.scan(&table, &ScanOptions::default()).unwrap();
        while scan.next_block().unwrap().is_some() {}
        looks += 1;
        assert!(looks < 10_000, "no page is ever measured");
    }
}

#[test]
fn chains_of_a_chosen_length_keep_it() {
    let bench = Bench::with(ServerOptions { chain_max: Some(3), ..ServerOptions::default() });
    let mut client = bench.client();
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 0..20_000, 1, 100);
    for _ in 0..10 {
        let options = ScanOptions { mode: Mode::Copy, ..ScanOptions::default() };
        let mut scan = client.scan(&table, &options).unwrap();
        while scan.next_block().unwrap().is_some() {}
    }
    let choices = client.choices(&table).unwrap().unwrap();
    assert!(choices.pages[0] > 600, "{choices:?}");
    assert_eq!(choices.chain_max, 3);
}
