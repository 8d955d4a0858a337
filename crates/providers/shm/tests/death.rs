//! Processes that are killed, and processes that fork.

mod ends;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use ends::{End, fresh_name, process};
use overside_verbs::*;

/// Role: connects, fills its queues, says so, and stops in its tracks; with FORK, leaves a forked
/// child behind that holds every descriptor.
#[test]
#[ignore = "the other process of the tests here"]
fn victim() {
    let Ok(name) = std::env::var("OVERSIDE_TEST_NAME") else { return };
    let mut end = End::new();
    let qp = if std::env::var("OVERSIDE_TEST_LISTEN").is_ok() {
        let mut listener = end.listen(&name);
        println!("\nlistening");
        end.accept(&mut *listener)
    } else {
        end.connect(&name)
    };
    end.post_receives(Some(qp), 4, 64);
    end.post(qp, (0..10).map(|i| WorkRequest::send_inline(i, b"pending")).collect());
    if std::env::var("OVERSIDE_TEST_FORK").is_ok() {
        // SAFETY: [test] the child does nothing but wait to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Should its killer fail, it does not stay for ever.
            // SAFETY: [test] a timer of its own.
            unsafe { libc::alarm(15) };
            loop {
                // SAFETY: [test] it only waits.
                unsafe { libc::pause() };
            }
        }
        println!("\nforked {child}");
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    let end_at = Instant::now() + Duration::from_secs(15);
    while Instant::now() < end_at {
        end.queue.poll_wait(&mut Vec::new(), Some(Duration::from_millis(100))).unwrap();
    }
}

/// What another process says, line by line.
struct Said(BufReader<ChildStdout>);

impl Said {
    fn by(child: &mut Child) -> Self {
        Self(BufReader::new(child.stdout.take().unwrap()))
    }

    /// The rest of the next line that starts so.
    fn next(&mut self, prefix: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the other process ended before it said {prefix}");
            if let Some(rest) = line.trim().strip_prefix(prefix) {
                return rest.to_owned();
            }
        }
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn kill(pid: i32) {
    // SAFETY: [test] a process this test started.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// The tests here count descriptors: one at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Kills the victim and checks what the survivor is told.
fn survive(listens: bool, forks: bool) {
    let _alone = alone();
    let name = fresh_name("death");
    let mut variables = vec![("OVERSIDE_TEST_NAME", name.as_str())];
    if listens {
        variables.push(("OVERSIDE_TEST_LISTEN", "1"));
    }
    if forks {
        variables.push(("OVERSIDE_TEST_FORK", "1"));
    }
    let mut end = End::new();
    let mut bystander = ends::pair();
    let descriptors = open_descriptors();
    let (mut child, mut said, qp);
    if listens {
        child = process("victim", &variables);
        said = Said::by(&mut child);
        said.next("listening");
        qp = end.connect(&name);
    } else {
        let mut listener = end.listen(&name);
        child = process("victim", &variables);
        said = Said::by(&mut child);
        qp = end.accept(&mut *listener);
    }
    end.post(qp, (0..8).map(|i| WorkRequest::send_inline(i, &[1; 40])).collect());
    let grandchild = forks.then(|| said.next("forked ").parse::<i32>().unwrap());
    said.next("ready");
    // 4 of the 8 fit the victim's receives; 10 of the victim's wait for ours.
    end.post_receives(Some(qp), 12, 64);
    let mut done = Vec::new();
    while done.len() < 4 + 10 {
        end.queue.poll_wait(&mut done, Some(Duration::from_millis(10))).unwrap();
    }
    assert!(done.iter().all(|c| c.status == Status::Success), "{done:?}");
    done.clear();
    let killed = Instant::now();
    child.kill().unwrap();
    while done.len() < 4 + 2 {
        end.queue.poll_wait(&mut done, Some(Duration::from_millis(100))).unwrap();
        assert!(killed.elapsed() < Duration::from_secs(1), "within a second; have {done:?}");
    }
    assert!(done.iter().all(|c| c.status == Status::PeerDied), "{done:?}");
    assert!(matches!(end.event(), PortEvent::Disconnected { status: Status::PeerDied, .. }));
    end.queue.close(qp);
    grandchild.into_iter().for_each(kill);
    child.wait().unwrap();
    drop((child, said));
    assert_eq!(open_descriptors(), descriptors, "a descriptor is left behind");
    let (a, to_b, b, from_a) = (&mut bystander.0, bystander.1, &mut bystander.2, bystander.3);
    b.post_receives(Some(from_a), 1, 64);
    a.post(to_b, vec![WorkRequest::send_inline(0, b"others live on")]);
    assert_eq!(b.completions(1)[0].status, Status::Success);
}

#[test]
fn a_killed_client_fails_everything_pending_within_a_second() {
    survive(false, false);
}

#[test]
fn a_killed_server_fails_everything_pending_within_a_second() {
    survive(true, false);
}

#[test]
fn a_forked_child_that_holds_the_sockets_makes_no_difference() {
    survive(false, true);
    survive(true, true);
}

/// Role: forks and uses what the child inherited; both processes say how it went.
#[test]
#[ignore = "the other process of a_forked_childs_use_is_an_error"]
fn forker() {
    let Ok(name) = std::env::var("OVERSIDE_TEST_NAME") else { return };
    let mut end = End::new();
    let mut listener = end.listen(&fresh_name("inherited"));
    let qp = end.connect(&name);
    end.post_receives(Some(qp), 1, 64);
    end.post(qp, vec![WorkRequest::send_inline(1, b"before")]);
    end.completions(1);
    // SAFETY: [test] the child runs on this thread alone and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |result: Result<(), VerbsError>| matches!(result, Err(VerbsError::Forked));
        let mut batch = std::collections::VecDeque::from([WorkRequest::send_inline(1, b"child")]);
        let start = Instant::now();
        let fine = forked(end.queue.post(qp, &mut batch).map(drop))
            && forked(end.queue.arm().map(drop))
            && forked(end.provider.allocate_domain().map(drop))
            && forked(end.provider.connect(&end.domain, &name, Duration::ZERO).map(drop))
            && forked(listener.accept(Duration::ZERO).map(drop))
            && forked(end.provider.open_port(&end.domain, PortOptions::default()).map(drop));
        end.queue.poll(&mut Vec::new());
        drop((end, listener));
        let fast = start.elapsed() < Duration::from_millis(500);
        // SAFETY: [test] ends the child without the harness.
        unsafe { libc::_exit(if fine && fast { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: [test] our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "a use in the child was not refused, or dropping took its time");
    end.post(qp, vec![WorkRequest::send_inline(2, b"after")]);
    let done = end.completions(2);
    assert!(done.iter().all(|c| c.status == Status::Success), "{done:?}");
    println!("\nfine");
    end.queue.close(qp);
}

#[test]
fn a_forked_childs_use_is_an_error_and_its_end_disturbs_nobody() {
    let _alone = alone();
    let name = fresh_name("fork");
    let mut end = End::new();
    let mut listener = end.listen(&name);
    let mut child = process("forker", &[("OVERSIDE_TEST_NAME", &name)]);
    let qp = end.accept(&mut *listener);
    end.post_receives(Some(qp), 2, 64);
    let got = end.completions(2);
    assert_eq!(&got[1].buffer.as_ref().unwrap()[..5], b"after");
    end.post(qp, vec![WorkRequest::send_inline(2, b"answer")]);
    assert_eq!(end.completions(1)[0].status, Status::Success);
    Said::by(&mut child).next("fine");
    assert!(matches!(end.event(), PortEvent::Disconnected { status: Status::Flushed, .. }));
    child.wait().unwrap();
}
