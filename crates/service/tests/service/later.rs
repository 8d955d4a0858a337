//! Requests that finish later, in order and not.

use std::time::Duration;

use super::system::Obedient;
use super::*;

#[test]
fn replies_that_keep_nothing_back_come_as_they_are_finished() {
    for transport in TRANSPORTS {
        let system = Obedient::new();
        let bench = Bench::start(transport, &system, one_worker());
        let mut link = bench.client();
        let [a, b] = [b"fa", b"fb"].map(|body| send(&mut link, body));
        assert_eq!(ask(&mut link, b"nnow"), b"now", "a later request is answered meanwhile");
        system.finish(b'b');
        assert_eq!(reply(&mut link), (b, b"b".to_vec()));
        system.finish(b'a');
        assert_eq!(reply(&mut link), (a, b"a".to_vec()));
        assert_eq!(bench.server.statistics().unfinished, 0);
    }
}

#[test]
fn replies_in_order_wait_and_requests_are_carried_out_meanwhile() {
    let system = Obedient::new();
    let bench = Bench::start("shm", &system, one_worker());
    let mut link = bench.client();
    let bodies: [&[u8]; 6] = [b"ra", b"n1", b"rb", b"n2", b"fc", b"n3"];
    let numbers = bodies.map(|body| send(&mut link, body));
    until("all are carried out", || *system.carried_out.lock().unwrap() == bodies);
    system.finish(b'c');
    system.finish(b'b');
    silent(&mut link, Duration::from_millis(50));
    system.finish(b'a');
    let expected: [&[u8]; 4] = [b"a", b"1", b"b", b"2"];
    for (number, body) in numbers.iter().zip(expected) {
        assert_eq!(reply(&mut link), (*number, body.to_vec()));
    }
    // Of the last two one was finished and one carried out, in whatever order.
    let mut last = [reply(&mut link), reply(&mut link)];
    last.sort();
    assert_eq!(last, [(numbers[4], b"c".to_vec()), (numbers[5], b"3".to_vec())]);
}

#[test]
fn requests_wait_behind_one_that_holds_them_up_unless_they_overtake_it() {
    let system = Obedient::new();
    let bench = Bench::start("shm", &system, one_worker());
    let (mut link, mut other) = (bench.client(), bench.client());
    let bodies: [&[u8]; 4] = [b"qa", b"n1", b"qb", b"n2"];
    let numbers = bodies.map(|body| send(&mut link, body));
    send(&mut link, b"o3");
    until("one overtakes", || *system.carried_out.lock().unwrap() == [&b"qa"[..], b"o3"]);
    assert_eq!(ask(&mut other, b"nother"), b"other", "nobody else is held up");
    system.carried_out.lock().unwrap().clear();
    system.finish(b'a');
    assert_eq!(reply(&mut link), (numbers[0], b"a".to_vec()));
    assert_eq!(reply(&mut link).1, b"3", "it was carried out, and its reply kept in order");
    assert_eq!(reply(&mut link), (numbers[1], b"1".to_vec()));
    system.finish(b'b');
    assert_eq!(reply(&mut link), (numbers[2], b"b".to_vec()));
    assert_eq!(reply(&mut link), (numbers[3], b"2".to_vec()));
    assert_eq!(*system.carried_out.lock().unwrap(), [&b"n1"[..], b"qb", b"n2"]);
}

/// The worker sleeps, and its own time wakes it.
#[test]
fn a_session_finishes_a_request_when_its_time_has_come() {
    for transport in TRANSPORTS {
        let system = Obedient::new();
        let bench = Bench::start(transport, &system, one_worker());
        let mut link = bench.client();
        let start = Instant::now();
        assert_eq!(ask(&mut link, &[b't', b'x', 60]), b"x");
        assert!(start.elapsed() >= Duration::from_millis(60), "{:?}", start.elapsed());
        assert!(start.elapsed() < PATIENCE / 3, "the sweep of a second is not what woke it: {:?}", start.elapsed());
    }
}

#[test]
fn a_ticket_that_is_dropped_answers_with_a_fault() {
    let system = Obedient::new();
    let bench = Bench::start("shm", &system, one_worker());
    let mut link = bench.client();
    let a = send(&mut link, b"ra");
    let b = send(&mut link, b"nb");
    drop(system.ticket(b'a'));
    assert_eq!(reply(&mut link), (a, b"dropped".to_vec()));
    assert_eq!(reply(&mut link), (b, b"b".to_vec()), "nothing stays kept back");
    let c = send(&mut link, b"fc");
    let ticket = system.ticket(b'c');
    let panicked = std::thread::spawn(move || ticket.complete(|_| panic!("planted"))).join();
    assert!(panicked.is_err());
    assert_eq!(reply(&mut link), (c, b"dropped".to_vec()));
}

/// A stream that is asked for behind an unfinished request waits for it; one that runs already does not.
#[test]
fn streams_keep_their_place_among_replies() {
    let system = Obedient::new();
    let bench = Bench::start("shm", &system, one_worker());
    let mut link = bench.client();
    let a = send(&mut link, b"ra");
    let stream = send(&mut link, b"s\x03");
    until("it is asked for", || system.carried_out.lock().unwrap().len() == 2);
    silent(&mut link, Duration::from_millis(50));
    system.finish(b'a');
    assert_eq!(reply(&mut link), (a, b"a".to_vec()));
    for left in (0..3).rev() {
        assert_eq!(link.message().unwrap().as_ref(), [left; 100]);
    }
    assert_eq!(reply(&mut link), (stream, b"end".to_vec()));
    // More than the client's receives take: it runs when the next request comes.
    let stream = send(&mut link, &[b's', 200]);
    assert_eq!(link.message().unwrap().as_ref(), [199; 100]);
    let b = send(&mut link, b"rb");
    for left in (0..199).rev() {
        assert_eq!(link.message().unwrap().as_ref(), [left; 100]);
    }
    assert_eq!(reply(&mut link), (stream, b"end".to_vec()));
    system.finish(b'b');
    assert_eq!(reply(&mut link), (b, b"b".to_vec()));
}

/// Many threads finish many requests of many connections at once.
#[test]
fn tickets_are_used_from_any_thread() {
    const REQUESTS: u8 = 200;
    for transport in TRANSPORTS {
        let system = Obedient::new();
        let bench = Bench::start(transport, &system, ServiceOptions { workers: 2, ..ServiceOptions::default() });
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..REQUESTS).for_each(|called| system.finish(called)));
                let mut link = bench.client();
                scope.spawn(move || {
                    let numbers: Vec<u32> = (0..REQUESTS).map(|called| send(&mut link, &[b'r', called])).collect();
                    for (called, number) in numbers.into_iter().enumerate() {
                        assert_eq!(reply(&mut link), (number, vec![called as u8]));
                    }
                });
            }
        });
        assert_eq!(bench.server.statistics().unfinished, 0);
    }
}
