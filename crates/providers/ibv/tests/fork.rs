//! Processes that fork, and processes whose forked children outlive them.

mod ends;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use ends::{End, address, pattern};
use overside_ibv::Options;
use overside_memory::View;
use overside_verbs::{CompletionQueue, Opcode, PortOptions, Provider, QueuePair, Status, VerbsError, WorkRequest};

/// Two ends of one process, connected.
fn pair(which: u16) -> (End, QueuePair, End, QueuePair) {
    let (mut server, mut client) = (End::new(Options::default()), End::new(Options::default()));
    let (ours, theirs) = connect(&mut server, &mut client, which);
    (server, ours, client, theirs)
}

fn connect(server: &mut End, client: &mut End, which: u16) -> (QueuePair, QueuePair) {
    let address = address(which);
    let mut listener = server.listen(&address);
    let (provider, domain) = (client.provider.clone(), client.domain.clone());
    let connecting = std::thread::spawn(move || provider.connect(&domain, &address, ends::PATIENCE).unwrap());
    let ours = server.accept(&mut *listener);
    let theirs = client.queue.attach(connecting.join().unwrap()).unwrap();
    server.receives(Some(ours), 20);
    (ours, theirs)
}

/// A message from the one to the other, both driven from here.
fn pass(from: &mut End, out: QueuePair, to: &mut End, into: QueuePair, request: WorkRequest, expected: &[u8]) {
    from.post(out, request);
    let end = std::time::Instant::now() + ends::PATIENCE;
    while to.done.is_empty() || from.done.is_empty() {
        from.wait(Duration::from_millis(1));
        to.wait(Duration::from_millis(1));
        assert!(std::time::Instant::now() < end, "the message does not come");
    }
    assert_eq!(to.message(into).0, expected);
    from.succeeded(Opcode::Send);
}

/// Runs `what` in a forked child and waits for it: whether it was content.
fn in_child(what: impl FnOnce() -> bool) -> bool {
    // SAFETY: [test] the child runs `what` alone, and ends without running anything of its parent's.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: [test] a timer of its own: it does not stay for ever.
            unsafe { libc::alarm(60) };
            let content = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).unwrap_or(false);
            // SAFETY: [test] ends the child at once.
            unsafe { libc::_exit(if content { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: [test] our own child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status == 0
        }
    }
}

#[test]
fn a_child_that_uses_or_drops_what_it_inherited_disturbs_nobody() {
    if !ends::device() {
        return;
    }
    let (mut server, ours, mut client, theirs) = pair(1);
    let request = WorkRequest::send(1, client.view(1, &[3000, 100]));
    pass(&mut client, theirs, &mut server, ours, request, &pattern(1, 3100));
    // A completion queue leaks what it inherited; a port by itself is dropped.
    let spare = client.provider.open_port(&client.domain, PortOptions::default()).unwrap();
    let mut inherited = Some((server, client, spare));
    let content = in_child(|| {
        let (server, mut client, spare) = inherited.take().unwrap();
        let mut batch = [WorkRequest::send_inline(2, b"from the child")].into();
        let forked = |result: Result<usize, VerbsError>| matches!(result, Err(VerbsError::Forked));
        let posted = forked(client.queue.post(theirs, &mut batch));
        let domain = matches!(client.provider.allocate_domain(), Err(VerbsError::Forked));
        let nothing = client.queue.poll(&mut Vec::new()) == 0;
        drop((server, client, spare));
        posted && domain && nothing
    });
    assert!(content, "the child was not told that what it inherited is not its own");
    let (mut server, mut client, spare) = inherited.take().unwrap();
    for i in 0..20 {
        let request = WorkRequest::send(i, client.view(i, &[2000]));
        pass(&mut client, theirs, &mut server, ours, request, &pattern(i, 2000));
    }
    assert!(server.queue.next_event().is_none() && client.queue.next_event().is_none());
    client.queue = CompletionQueue::new(spare);
    server.disconnected();
    server.done.clear();
    let (ours, theirs) = connect(&mut server, &mut client, 4);
    let request = WorkRequest::send(1, client.view(1, &[2000]));
    pass(&mut client, theirs, &mut server, ours, request, &pattern(1, 2000));
}

/// While a child lives, the parent's pages must stay where the device reads and writes them.
#[test]
fn a_child_that_only_lives_moves_no_page_of_its_parent() {
    if !ends::device() {
        return;
    }
    let (mut server, ours, mut client, theirs) = pair(2);
    let mut buffer = client.memory(5000);
    // SAFETY: [test] the child only waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: [test] a timer of its own: it does not stay for ever.
        unsafe { libc::alarm(60) };
        loop {
            // SAFETY: [test] it only waits.
            unsafe { libc::pause() };
        }
    }
    for i in 0..20 {
        buffer[..5000].copy_from_slice(&pattern(i, 5000));
        let view = View::prefix(buffer, 5000);
        pass(&mut client, theirs, &mut server, ours, WorkRequest::send(i, view), &pattern(i, 5000));
        buffer = client.memory(5000);
    }
    // SAFETY: [test] our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

/// Role: connects, leaves a forked child behind that holds every descriptor, says so, and waits to be killed.
#[test]
#[ignore = "the other process of the test below"]
fn victim() {
    let Ok(name) = std::env::var("OVERSIDE_TEST_ADDRESS") else { return };
    let mut end = End::new(Options::default());
    let qp = end.connect(&name);
    end.post(qp, WorkRequest::send_inline(1, b"here"));
    // SAFETY: [test] the child does nothing but wait to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: [test] a timer of its own: should its killer fail, it does not stay for ever.
        unsafe { libc::alarm(300) };
        loop {
            // SAFETY: [test] it only waits.
            unsafe { libc::pause() };
        }
    }
    println!("\nforked {child}");
    std::io::stdout().flush().unwrap();
    for _ in 0..1200 {
        end.wait(Duration::from_millis(100));
    }
}

#[test]
fn a_peer_whose_child_holds_its_descriptors_is_dead_all_the_same() {
    if !ends::device() {
        return;
    }
    let mut end = End::new(Options::default());
    let name = address(3);
    let mut listener = end.listen(&name);
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture", "--ignored"])
        .env("OVERSIDE_TEST_ADDRESS", &name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let qp = end.accept(&mut *listener);
    end.receives(Some(qp), 2);
    assert_eq!(end.message(qp).0, b"here");
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let child = loop {
        let line = lines.next().expect("the victim ended before it forked").unwrap();
        if let Some(child) = line.strip_prefix("forked ") {
            break child.parse::<i32>().unwrap();
        }
    };
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(end.ended(), (qp, Status::PeerDied));
    // SAFETY: [test] the victim's child, which still lived.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0, "the child lived on");
}
