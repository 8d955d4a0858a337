//! What things cost over loopback on this machine, without and with tags on every frame.

use overside_tcp::{Options, TcpProvider};
use overside_verbs::handshake::Key;

fn main() {
    for key in [None, Key::from_bytes(b"a key for measuring with")] {
        println!("{:#?}", TcpProvider::with_options(Options { key, ..Options::default() }).calibrate().unwrap());
    }
}
