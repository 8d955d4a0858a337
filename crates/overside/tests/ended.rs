//! How a client is told that its connection has ended.

use std::time::Duration;

use overside::Address;
use overside::table::server::ServerOptions;

/// Over `tcp:` a thread of the port's own hears of it meanwhile, so that the next request finds no connection to be posted to.
#[test]
fn a_request_after_the_end_is_told_why() {
    for transport in ["shm", "tcp"] {
        let address = Address::here(transport, &format!("ended-{}", std::process::id())).unwrap().to_string();
        let server = overside::serve(&[&address], ServerOptions::default()).unwrap();
        let mut client = overside::connect(&address).unwrap();
        assert!(client.tables().unwrap().is_empty());
        drop(server);
        // Long enough for that thread as a rule. Where it was not, the answer is waited for in vain, and the same is said.
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..2 {
            let error = client.tables().unwrap_err().to_string();
            let told = "the connection to the server ended: the peer closed the connection;";
            assert!(error.starts_with(told), "{transport}: {error}");
        }
    }
}
