//! Messages that are read where they lie: between two queues, and between processes of which one is killed in the middle.

mod ends;

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ends::{End, fresh_name, pair, process};
use overside_memory::{Buffer, View};
use overside_shape::{Run, Shape};
use overside_verbs::*;

/// A registered page of numbers, and a view of `len` bytes of it.
fn page(end: &End) -> Arc<Buffer> {
    let mut buffer = end.buffers(1, PAGE).pop().unwrap();
    buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = number(at));
    Arc::new(buffer)
}

fn number(at: usize) -> u8 {
    (at * 7 + at / 256) as u8
}

fn view(page: &Arc<Buffer>, at: u64, len: u64) -> View {
    View::of(page, &Shape::contiguous(at, len).unwrap()).unwrap()
}

fn read(loan: &Loan) -> Vec<u8> {
    let mut bytes = vec![0; loan.bytes() as usize];
    loan.read(0, &mut bytes).unwrap();
    bytes
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// Lends so many pages to the other end: its loans.
fn lend(from: &mut End, qp: QueuePair, to: &mut End, back: QueuePair, pages: &[&Arc<Buffer>]) -> Vec<Loan> {
    to.post_receives_or_loans(Some(back), pages.len(), PAGE);
    let request = |(id, page): (u64, &&Arc<Buffer>)| WorkRequest::send(id, view(page, 0, PAGE as u64)).lendable();
    from.post(qp, (0..).zip(pages).map(request).collect());
    let (sent, got) = ends::both(from, pages.len(), to, pages.len());
    assert!(sent.iter().chain(&got).all(|c| c.status == Status::Success), "{sent:?} {got:?}");
    got.into_iter().map(|mut c| c.loan.take().expect("it is lent")).collect()
}

/// Fewer than a sleeper is woken for, from a borrower that polls: whoever wakes for something else sees them all the same.
#[test]
fn few_returns_are_seen_by_whoever_is_awake_for_another_reason() {
    let (mut server, to_client, mut client, to_server) =
        ends::pair_with(PortOptions { wake_at_half: true, ..PortOptions::default() });
    let pages: Vec<Arc<Buffer>> = (0..4).map(|_| page(&server)).collect();
    let shared: Vec<&Arc<Buffer>> = pages.iter().collect();
    let mut loans = lend(&mut server, to_client, &mut client, to_server, &shared);
    // As who has slept, and no longer polls the memory of who was idle.
    until("it can be armed", || server.queue.arm().unwrap());
    drop(loans.remove(2));
    until("a hold is released", || {
        server.queue.poll(&mut Vec::new());
        Arc::strong_count(&pages[2]) == 1
    });
    assert_eq!(server.queue.loans_out(to_client), 3);
}

#[test]
fn what_a_message_holds_is_released_when_its_loan_ends() {
    let (mut server, to_client, mut client, to_server) = pair();
    let pages: Vec<Arc<Buffer>> = (0..4).map(|_| page(&server)).collect();
    let shared: Vec<&Arc<Buffer>> = pages.iter().collect();
    for _ in 0..300 {
        let mut loans = lend(&mut server, to_client, &mut client, to_server, &shared);
        assert!(loans.iter().all(|loan| read(loan).iter().enumerate().all(|(at, byte)| *byte == number(at))));
        assert!(pages.iter().all(|page| Arc::strong_count(page) == 2));
        assert_eq!(server.queue.loans_out(to_client), 4);
        // The third and the first, the first of them elsewhere.
        drop(loans.remove(2));
        let first = loans.remove(0);
        std::thread::spawn(move || drop(first)).join().unwrap();
        until("two holds are released", || {
            server.queue.poll(&mut Vec::new());
            [0, 2].iter().all(|at| Arc::strong_count(&pages[*at]) == 1)
        });
        assert!([1, 3].iter().all(|at| Arc::strong_count(&pages[*at]) == 2), "the others are out");
        drop(loans);
        until("all holds are released", || {
            server.queue.poll(&mut Vec::new());
            server.queue.in_flight() == 0
        });
    }
    assert!(pages.iter().all(|page| Arc::strong_count(page) == 1));
}

#[test]
fn a_loan_of_many_pieces_shows_them_in_order() {
    let (mut server, to_client, mut client, to_server) = pair();
    let page = page(&server);
    for pieces in [1, 3, 4, 200] {
        let runs: Vec<Run> = (0..pieces).map(|i| Run::new((i * 7919 + 13) % 16_000, 1 + i % 60)).collect();
        let view = View::of(&page, &Shape::list(&runs).unwrap()).unwrap();
        let mut expected = vec![0; view.bytes() as usize];
        view.copy_to(&mut expected);
        client.post_receives_or_loans(Some(to_server), 1, PAGE);
        server.post(to_client, vec![WorkRequest::send(1, view).lendable().with_immediate(pieces as u32)]);
        let (_, got) = ends::both(&mut server, 1, &mut client, 1);
        let loan = got[0].loan.as_ref().expect("it is lent");
        assert_eq!((read(loan), got[0].bytes, got[0].immediate), (expected, loan.bytes(), Some(pieces as u32)));
        assert_eq!(loan.parts().len(), pieces as usize);
    }
}

/// Its owner lets go of a segment, and the peer is told to forget it: who has a loan keeps it mapped, and the end of the loan lets it go.
#[test]
fn a_segment_that_goes_while_it_is_lent_stays_readable() {
    let (mut server, to_client, mut client, to_server) = pair();
    let mut buffers = overside_memory::Segment::shared(PAGE).unwrap().carve(PAGE);
    buffers[0].iter_mut().enumerate().for_each(|(at, byte)| *byte = number(at));
    let page = Arc::new(buffers.pop().unwrap());
    let region = server.provider.register(&server.domain, &Memory::Segment(page.segment().clone()), Access::LOCAL);
    let segment = Arc::downgrade(page.segment());
    let loan = lend(&mut server, to_client, &mut client, to_server, &[&page]).pop().unwrap();
    server.provider.deregister(region.unwrap()).unwrap();
    drop(page);
    for _ in 0..2000 {
        server.queue.poll(&mut Vec::new());
        client.queue.poll(&mut Vec::new());
    }
    assert!(segment.upgrade().is_some(), "its hold keeps it");
    assert!(loan.is_valid() && read(&loan).iter().enumerate().all(|(at, byte)| *byte == number(at)));
    // Others are lent from meanwhile.
    let other = self::page(&server);
    assert_eq!(read(&lend(&mut server, to_client, &mut client, to_server, &[&other])[0]), &other[..]);
    drop(loan);
    until("the segment is let go", || {
        server.queue.poll(&mut Vec::new());
        segment.upgrade().is_none()
    });
}

/// Whoever goes first, nothing stays held, and what is kept stays readable and says that it is over.
#[test]
fn queues_that_are_dropped_end_their_loans() {
    for lender_first in [true, false] {
        let (mut server, to_client, mut client, to_server) = pair();
        let page = page(&server);
        let loan = lend(&mut server, to_client, &mut client, to_server, &[&page]).pop().unwrap();
        if lender_first {
            drop(server);
            assert_eq!(Arc::strong_count(&page), 1);
            assert!(!loan.is_valid());
            drop(client);
        } else {
            drop(client);
            until("the lender hears of it", || {
                server.queue.poll(&mut Vec::new());
                Arc::strong_count(&page) == 1
            });
            assert!(!loan.is_valid());
            drop(server);
        }
        assert_eq!(read(&loan).len(), PAGE);
        drop(loan);
    }
}

/// Role: connects and lends, or borrows; says how far it is and goes on until it is killed.
#[test]
#[ignore = "the other process of the tests here"]
fn victim() {
    let Ok(name) = std::env::var("OVERSIDE_TEST_NAME") else { return };
    let mut end = End::new();
    let qp = end.connect(&name);
    let page = page(&end);
    let lends = std::env::var("OVERSIDE_TEST_LENDS").is_ok();
    if lends {
        end.post(qp, (0..LOANS).map(|id| WorkRequest::send(id, view(&page, id, 8192)).lendable()).collect());
    } else {
        end.post_receives_or_loans(Some(qp), LOANS as usize, PAGE);
    }
    let done = end.completions(LOANS as usize);
    assert!(done.iter().all(|c| c.status == Status::Success && c.loan.is_some() != lends), "{done:?}");
    println!("\nready");
    std::io::stdout().flush().unwrap();
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        if lends {
            end.queue.poll_wait(&mut Vec::new(), Some(Duration::from_millis(100))).unwrap();
        } else {
            // In the middle of reading.
            done.iter().filter_map(|c| c.loan.as_ref()).for_each(|loan| _ = read(loan));
        }
    }
}

/// Starts the victim, and takes its connection.
fn with_victim(end: &mut End, lends: bool) -> (std::process::Child, QueuePair) {
    let name = fresh_name("loans");
    let mut listener = end.listen(&name);
    let mut variables = vec![("OVERSIDE_TEST_NAME", name.as_str())];
    if lends {
        variables.push(("OVERSIDE_TEST_LENDS", "1"));
    }
    let child = process("victim", &variables);
    let qp = end.accept(&mut *listener);
    (child, qp)
}

fn ready(child: &mut std::process::Child) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().trim() == "ready"), "the other process ended before");
}

#[test]
fn what_a_killed_lender_lent_stays_as_it_was() {
    let mut end = End::new();
    let (mut child, qp) = with_victim(&mut end, true);
    end.post_receives_or_loans(Some(qp), LOANS as usize, PAGE);
    let got = end.completions(LOANS as usize);
    let loans: Vec<&Loan> = got.iter().map(|c| c.loan.as_ref().expect("it is lent")).collect();
    ready(&mut child);
    let whole =
        || (0..).zip(&loans).all(|(id, loan)| read(loan).iter().enumerate().all(|(at, byte)| *byte == number(at + id)));
    let reader = std::thread::scope(|scope| {
        let reader = scope.spawn(|| (0..300).all(|_| whole()));
        std::thread::sleep(Duration::from_millis(2));
        child.kill().unwrap();
        child.wait().unwrap();
        reader.join().unwrap()
    });
    assert!(reader, "it was read while its owner was killed");
    assert!(matches!(end.event(), PortEvent::Disconnected { status: Status::PeerDied, .. }));
    end.queue.close(qp);
    drop(end);
    assert!(whole() && loans.iter().all(|loan| loan.is_valid()), "nobody writes there any more");
}

#[test]
fn what_a_killed_borrower_had_is_given_back() {
    let mut end = End::new();
    let (mut child, qp) = with_victim(&mut end, false);
    let page = page(&end);
    end.post(qp, (0..LOANS).map(|id| WorkRequest::send(id, view(&page, id, 8192)).lendable()).collect());
    assert!(end.completions(LOANS as usize).iter().all(|c| c.status == Status::Success));
    ready(&mut child);
    assert_eq!(Arc::strong_count(&page), 1 + LOANS as usize);
    let killed = Instant::now();
    child.kill().unwrap();
    while Arc::strong_count(&page) > 1 {
        end.queue.poll_wait(&mut Vec::new(), Some(Duration::from_millis(100))).unwrap();
        assert!(killed.elapsed() < Duration::from_secs(1), "within a second");
    }
    child.wait().unwrap();
    assert!(matches!(end.event(), PortEvent::Disconnected { status: Status::PeerDied, .. }));
    end.queue.close(qp);
}

/// A forked child has the parent's loans, too: what it drops returns nothing.
#[test]
fn a_forked_childs_copy_of_a_loan_is_nobodys() {
    let (mut server, to_client, mut client, to_server) = pair();
    let page = page(&server);
    let loan = lend(&mut server, to_client, &mut client, to_server, &[&page]).pop().unwrap();
    // SAFETY: [test] the child reads, frees a little and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(loan);
        // SAFETY: [test] ends the child without the harness.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: [test] our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    for _ in 0..2000 {
        server.queue.poll(&mut Vec::new());
    }
    assert_eq!(Arc::strong_count(&page), 2, "the child returned it");
    assert!(loan.is_valid());
    drop(loan);
    until("the loan has ended", || {
        server.queue.poll(&mut Vec::new());
        Arc::strong_count(&page) == 1
    });
    assert!(server.queue.next_event().is_none() && client.queue.next_event().is_none());
}

const PAGE: usize = 16 << 10;
const LOANS: u64 = 8;
