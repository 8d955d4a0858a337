//! `auto` goes by the prices of the device: each wrong one changes what it chooses.

use overside_planner::{Bends, Curve, Profile};
use overside_table::server::ListenerConfig;

use super::*;

/// How many pages of a scan of all columns, and of one of sixteen, travelled as in [`MODES`] by these
/// prices.
fn chosen(change: impl Fn(&mut Profile), columns: Option<&[usize]>) -> [u64; 3] {
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
    let mut scan = client.scan(&table, &options).unwrap();
    while scan.next_block().unwrap().is_some() {}
    let chosen = scan.summary().server.chosen;
    drop(scan);
    server.shutdown();
    chosen
}

/// The mode in which most pages travelled.
fn mostly(change: impl Fn(&mut Profile), columns: Option<&[usize]>) -> Mode {
    let chosen = chosen(change, columns);
    let most = (0..3).max_by_key(|i| chosen[*i]).unwrap();
    assert!(chosen[most] * 10 >= chosen.iter().sum::<u64>() * 9, "{chosen:?}");
    overside_table::wire::MODES[most]
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
