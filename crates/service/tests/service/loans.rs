//! Messages that are lent instead of copied: what counts in the window, what a client may keep, and for how long.

use overside_service::client::Arrived;
use overside_verbs::Loan;

use super::system::Obedient;
use super::*;

const TAKING: LinkOptions = LinkOptions {
    buffer_bytes: 36 << 10,
    buffers: 24,
    posted: 8,
    timeout: PATIENCE,
    transmit_bytes: 64 << 10,
    transmits: 6,
    loans: true,
};

fn windowed(window: usize, deadline: Duration) -> ServiceOptions {
    ServiceOptions { window, deadline, ..one_worker() }
}

fn loan(link: &mut Link) -> Loan {
    match link.message_or_loan().unwrap() {
        Arrived::Lent(lent) => lent.into_loan(),
        Arrived::Copied(message) => panic!("copied: {:?}", message.as_ref()),
    }
}

fn first_byte(loan: &Loan) -> u8 {
    let mut byte = [0];
    loan.read(0, &mut byte).unwrap();
    assert!(loan.is_valid());
    byte[0]
}

/// A loan that is out counts in the window; one that is back makes room, in whatever order they come back.
#[test]
fn a_window_counts_what_is_lent() {
    let bench = Bench::start("shm", &Obedient::new(), windowed(4, PATIENCE));
    let mut link = bench.client_with(TAKING);
    send(&mut link, &[b'g', 7]);
    let mut kept: Vec<Loan> = (0..4).map(|_| loan(&mut link)).collect();
    assert_eq!(kept.iter().map(first_byte).collect::<Vec<_>>(), [6, 5, 4, 3]);
    silent(&mut link, Duration::from_millis(100));
    drop(kept.remove(2));
    assert_eq!(first_byte(&loan(&mut link)), 2, "it is returned at once, and so on to the end");
    for left in (0..2).rev() {
        assert_eq!(first_byte(&loan(&mut link)), left);
    }
    let (_, end) = reply(&mut link);
    assert_eq!((end, kept.iter().map(first_byte).collect::<Vec<_>>()), (b"end".to_vec(), vec![6, 5, 3]));
}

/// Whoever asks for whole messages gets them, wherever they were; and where nothing is lent, all are copies.
#[test]
fn what_may_be_lent_reads_the_same_as_a_copy() {
    for transport in TRANSPORTS {
        let bench = Bench::start(transport, &Obedient::new(), one_worker());
        for loans in [true, false] {
            let mut link = bench.client_with(LinkOptions { loans, ..TAKING });
            send(&mut link, &[b'g', 200]);
            for left in (0..200).rev() {
                assert_eq!(link.message().unwrap().as_ref(), [left; 100]);
            }
            assert_eq!(reply(&mut link).1, b"end");
        }
        let mut link = bench.client_with(TAKING);
        send(&mut link, &[b'g', 2]);
        for _ in 0..2 {
            let lent = matches!(link.message_or_loan().unwrap(), Arrived::Lent(_));
            assert_eq!(lent, transport == "shm");
        }
    }
}

/// A client that keeps one loan is let go, however diligently it takes and returns the others. What it kept stays readable, and is
/// not vouched for.
#[test]
fn a_loan_that_is_kept_past_the_deadline_costs_the_connection() {
    let system = Obedient::new();
    let bench = Bench::start("shm", &system, windowed(4, Duration::from_millis(1500)));
    let mut link = bench.client_with(TAKING);
    send(&mut link, &[b'g', 1]);
    let kept = loan(&mut link);
    assert_eq!((first_byte(&kept), reply(&mut link).1), (0, b"end".to_vec()));
    let start = Instant::now();
    while system.ended.lock().unwrap().is_empty() {
        assert!(start.elapsed() < PATIENCE, "it was not let go");
        if link.send(|body| body.extend([b'g', 1])).is_err() {
            break;
        }
        match link.message_or_loan() {
            Ok(Arrived::Lent(lent)) => drop(lent.into_loan()),
            Ok(Arrived::Copied(_)) => continue,
            Err(_) => break,
        }
        if link.message().is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    until("its session is told", || system.ended.lock().unwrap().len() == 1);
    assert_eq!(system.ended.lock().unwrap()[0], "it kept what it was lent too long");
    assert_eq!(bench.server.statistics().closed_for_cause, 1);
    let mut bytes = [1; 100];
    kept.read(0, &mut bytes).unwrap();
    assert!(!kept.is_valid());
    // An honest one goes on.
    let mut honest = bench.client_with(TAKING);
    send(&mut honest, &[b'g', 1]);
    assert_eq!(first_byte(&loan(&mut honest)), 0);
}

/// What a client keeps holds up its own share of transmit buffers only.
#[test]
fn buffers_that_are_lent_are_of_the_clients_share() {
    let transmit = overside_service::TransmitOptions { small_count: 8, ..Default::default() };
    let options = ServiceOptions { transmit, ..windowed(64, PATIENCE) };
    let bench = Bench::start("shm", &Obedient::new(), options);
    let mut hoarder = bench.client_with(TAKING);
    send(&mut hoarder, &[b'g', 50]);
    let kept: Vec<Loan> = (0..4).map(|_| loan(&mut hoarder)).collect();
    silent(&mut hoarder, Duration::from_millis(100));
    let mut honest = bench.client_with(TAKING);
    send(&mut honest, &[b'g', 50]);
    for left in (0..50).rev() {
        assert_eq!(first_byte(&loan(&mut honest)), left);
    }
    drop(kept);
    assert_eq!(first_byte(&loan(&mut hoarder)), 45);
}
