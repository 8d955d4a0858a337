//! A peer whose process stands still, as under a debugger: its host is there, and says that its socket is full.

mod ends;

use std::time::{Duration, Instant};

use ends::*;
use overside_verbs::Status;

/// It has no deadline: once it goes on, all is done.
#[test]
fn a_peer_that_stands_still_is_waited_for() {
    let name = fresh_name();
    let mut flood = Flood::start(&name, None, |end| end.connect(&name).unwrap());
    let begun = Instant::now();
    while begun.elapsed() < STANDS_STILL {
        flood.look();
        assert_eq!(flood.ended, None, "after {:?}", begun.elapsed());
    }
    assert!(flood.done.len() < flood.posted, "it has read all");
    while flood.done.len() < flood.posted {
        flood.to.queue.poll_wait(&mut Vec::new(), Some(Duration::from_millis(1))).unwrap();
        flood.look();
        assert!(flood.ended.is_none() && begun.elapsed() < STANDS_STILL + PATIENCE, "{:?}", flood.ended);
    }
    assert!(flood.done.iter().all(|done| done.status == Status::Success));
    flood.from.queue.close(flood.qp);
}

/// Longer than an unplugged cable takes to be noticed.
const STANDS_STILL: Duration = Duration::from_secs(6);
