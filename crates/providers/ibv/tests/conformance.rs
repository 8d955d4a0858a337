//! Every sentence of the `Port` contract, over the first RDMA device of this host.
//!
//! Where there is none, each test says why, and that is all: `cargo xtask guest conformance` runs them on a device.

use std::sync::Arc;

use overside_conformance::{Harness, Processes, SENTENCES, assert_kept, loopback_name};
use overside_ibv::{IbvProvider, Options, devices};
use overside_verbs::Provider;
use overside_verbs::handshake::Key;

/// A queue of this depth is filled and drained message by message in time.
fn provider() -> Arc<dyn Provider> {
    let key = Key::from_bytes(b"ac5d960c71f2731a0ce76f67ca8980aab6ae4bc13d2a43a6ada270691286d33c").ok();
    IbvProvider::with_options(Options { depth_max: 64, key, ..Options::default() }).expect("a device")
}

fn kept(id: &str) {
    if let Err(why) = devices() {
        assert!(std::env::var_os("OVERSIDE_DEVICE_EXPECTED").is_none(), "there must be a device here: {why}");
        eprintln!("{id}: skipped, {why}");
        return;
    }
    let harness: Arc<dyn Harness> = Arc::new(Processes::new(provider, module_path!()).named(loopback_name));
    assert_kept(id, &harness);
}

/// Does nothing by itself: `death` starts it as another process.
#[test]
fn second_process() {
    overside_conformance::second_process(provider);
}

macro_rules! sentences {
    ($($name:ident $id:literal),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                kept($id);
            }
        )*

        #[test]
        fn no_sentence_is_left_out() {
            assert_eq!([$($id),*].to_vec(), SENTENCES.iter().map(|sentence| sentence.id).collect::<Vec<_>>());
        }
    };
}

sentences!(
    own "own", private "private", accept "accept", once "once", silent "silent", room "room", order "order", fifo "fifo",
    placed "placed", gather "gather", inline "inline", region "region", lend "lend", give_back "return", revoke "revoke", immediate "immediate", rnr "rnr", length "length",
    last_word "last-word", write_order "write-order", fence "fence", atomic "atomic", keys "keys", progress "progress",
    shared "shared", close "close", death "death", hostile "hostile", arm "arm", half "half", wait "wait", forget "forget", idle "idle",
    nonblocking "nonblocking", line "line", learn "learn",
);
