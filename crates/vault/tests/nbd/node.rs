//! All volumes of a node on one socket.

use overside_service::{Listening, ServiceOptions};
use overside_shm::ShmProvider;
use overside_vault::fronts::nbd::NodeExports;
use overside_vault::server::{Node, NodeOptions};
use overside_volume::client::{Link, LinkOptions};
use overside_volume::wire::Role;

use super::client::*;
use super::*;

#[test]
fn a_node_exports_its_volumes_while_nobody_else_writes_them() {
    let node = Node::new(SystemClock::handle(), NodeOptions::default()).unwrap();
    let add = |name| node.add(name, Box::new(MemoryDevice::new(BYTES).unwrap())).unwrap();
    add("v");
    let address = format!("nbd-node-{}", std::process::id());
    let listening = Listening::open(ShmProvider::new().unwrap(), &[&address]).unwrap();
    let nodes = node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap();
    let served = Served::exporting(Box::new(NodeExports::new(node.clone())), NbdOptions::default());
    add("later");
    let mut lists = Client::greeted(&served.path());
    let listed: Vec<_> = lists.ask(3, &[]).into_iter().map(|answer| answer.data).collect();
    assert_eq!(listed, [name("later", &[]), name("v", &[]), vec![]]);
    let attach = |role| {
        let options = LinkOptions { role, ..LinkOptions::default() };
        Link::attach(ShmProvider::new().unwrap(), &address, "v", options)
    };
    let mut client = Client::connected(&served.path(), true);
    let mut second = Client::connected(&served.path(), false);
    client.write(0, 512, &[3; 1024]);
    assert_eq!(second.read(512, 1024), [3; 1024], "connections share the volume");
    assert!(attach(Role::Writer).is_err(), "the front writes it");
    let reader = attach(Role::Reader).unwrap();
    drop((client, second));
    // The front lets go of it when nobody uses it any more.
    let limit = Instant::now() + PATIENCE;
    let writer = loop {
        match attach(Role::Writer) {
            Ok(writer) => break writer,
            Err(error) => assert!(Instant::now() < limit, "{error}"),
        }
    };
    let mut refused = Client::greeted(&served.path());
    let answer = refused.ask(GO, &name("v", &[0, 0])).pop().unwrap();
    assert_eq!(answer.kind, 1 << 31 | 2, "a policy");
    assert!(String::from_utf8(answer.data).unwrap().contains("another client writes the volume"));
    assert_eq!(refused.ask(GO, &name("later", &[0, 0])).pop().unwrap().kind, ACK);
    writer.close(PATIENCE);
    let mut client = Client::connected(&served.path(), false);
    assert_eq!(client.read(512, 1024), [3; 1024]);
    let _taken = attach(Role::TakeOver).unwrap();
    assert_eq!(client.carry_out(0, WRITE, 0, 512, &[1; 512]).error, 1, "it is fenced off");
    drop((reader, served, nodes));
}
