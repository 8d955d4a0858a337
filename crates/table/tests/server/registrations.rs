//! What memory is registered, and when: before messages, never for one.

use super::watched::Watched;
use super::*;

/// Messages are slices of memory that was registered before (to-copy §3 TC-M03, rdma-sockets RS-M08): at a client from its
/// first message on, at a server as long as its tables do not grow.
#[test]
fn no_message_registers_memory() {
    let (serving, asking) = (Watched::new(usize::MAX), Watched::new(usize::MAX));
    let name = format!("table-test-counting-{}", std::process::id());
    let server = Server::start(serving.clone(), &[&name], ServerOptions::default()).unwrap();
    let mut client = Client::connect(asking.clone(), &name).unwrap();
    let begun = asking.registered();
    assert!(begun > 0 && serving.registered() > 0, "buffers are registered when they are made");
    let table = client.create_table("t", &schema()).unwrap();
    let grown = serving.registered();
    // More than a receive buffer, a transmit buffer and a message have room for.
    (0..5).for_each(|part| put(&mut client, &table, part * 4000..(part + 1) * 4000, 1, 200));
    assert!(serving.registered() > grown, "a table that grows registers its memory");
    let before = serving.registered();
    for mode in ALL_MODES {
        let options = ScanOptions { mode, ..ScanOptions::default() };
        let rows = match mode {
            Mode::InPlace => in_place::collect_in_place(&mut client, &table, &options, 200).0,
            _ => collect(&mut client, &table, &options, 200),
        };
        assert_eq!(rows.len(), 20_000, "{mode:?}");
    }
    for id in 0..500 {
        assert!(client.get(&table, &[ValueRef::UInt64(id)]).unwrap().is_some());
    }
    assert_eq!((serving.registered(), asking.registered()), (before, begun));
    // Only a SEND brings what the peer may not reach (large-transfers §2.6.1 TH-M03).
    assert_eq!((serving.reachable(), asking.reachable()), (0, 0));
    server.shutdown();
}
