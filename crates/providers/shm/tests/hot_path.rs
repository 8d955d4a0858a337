//! What the data path does not do: allocate, register memory, enter the kernel (to-copy §3 TC-M03 TC-M05 TC-M09).

mod ends;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use ends::{End, pair, process};
use overside_memory::{Buffer, View};
use overside_shape::{Run, Shape};
use overside_verbs::*;

/// Counts what the thread that asked for it allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<Option<usize>> = const { Cell::new(None) };
}

// SAFETY: [test] the system's allocator does the work; counting touches a thread's own cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get().map(|n| n + 1));
        // SAFETY: [test] the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: [test] the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Two ends and what they send again and again: inline, whole and gathered messages, signalled and not. (A view of more than
/// four fragments has its list on the heap; that is made by who declares it, not by the post.)
struct Exchange {
    a: End,
    to_b: QueuePair,
    b: End,
    from_a: QueuePair,
    source: Arc<Buffer>,
    shapes: [Shape; 2],
    batch: VecDeque<WorkRequest>,
    done: Vec<WorkCompletion>,
    free: Vec<(u64, Buffer)>,
}

impl Exchange {
    fn new() -> Exchange {
        let (a, to_b, b, from_a) = pair();
        let source = Arc::new(a.buffers(1, 16 << 10).pop().unwrap());
        let free = b.buffers(64, 16 << 10).into_iter().map(|buffer| (0, buffer)).collect();
        let strided = Shape::strided(0, 4096, 4, &[Run::new(0, 1500)]).unwrap();
        let shapes = [Shape::contiguous(0, 4096).unwrap(), strided];
        let (batch, done) = (VecDeque::with_capacity(64), Vec::with_capacity(64));
        Exchange { a, to_b, b, from_a, source, shapes, batch, done, free }
    }

    fn rounds(&mut self, rounds: usize) {
        for round in 0..rounds {
            for turn in 0..8u64 {
                let request = match turn % 4 {
                    0 => WorkRequest::send_inline(turn, &[1; 48]),
                    1 => WorkRequest::send(turn, View::of(&self.source, &self.shapes[0]).unwrap()),
                    _ => WorkRequest::send(turn, View::of(&self.source, &self.shapes[1]).unwrap()),
                };
                self.batch.push_back(if (round + turn as usize).is_multiple_of(3) {
                    request
                } else {
                    request.unsignalled()
                });
            }
            self.b.queue.post_receive(Some(self.from_a), &mut self.free).unwrap();
            let mut got = 0;
            while got < 8 {
                self.a.queue.post(self.to_b, &mut self.batch).unwrap();
                self.b.queue.poll(&mut self.done);
                for done in self.done.drain(..) {
                    assert_eq!(done.status, Status::Success);
                    self.free.extend(done.buffer.map(|buffer| (0, buffer)));
                    got += 1;
                }
                self.a.queue.poll(&mut self.done);
                self.done.clear();
            }
        }
    }
}

#[test]
fn sending_and_receiving_allocate_nothing() {
    let mut exchange = Exchange::new();
    exchange.rounds(200); // lists grow to their size
    ALLOCATIONS.set(Some(0));
    exchange.rounds(500);
    let allocations = ALLOCATIONS.replace(None);
    assert_eq!(allocations, Some(0), "4,000 messages");
}

#[test]
fn sending_and_receiving_make_no_system_call() {
    let mut child = process("in_a_cell", &[("OVERSIDE_CELL", "1")]);
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (said, hear) = mpsc::channel();
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            let _ = said.send(line);
        }
    });
    let mut before = Vec::new();
    let free = loop {
        match hear.recv_timeout(Duration::from_secs(20)) {
            Ok(line) if line.contains("sent from the cell") => break true,
            Ok(line) => before.push(line),
            Err(_) => break false,
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(free, "a system call ended the thread that sends and receives; it had said {before:?}");
}

#[test]
#[ignore = "run by sending_and_receiving_make_no_system_call in a process of its own"]
fn in_a_cell() {
    if std::env::var("OVERSIDE_CELL").is_err() {
        return;
    }
    let mut exchange = Exchange::new();
    exchange.rounds(200);
    println!("into the cell");
    lock_the_cell();
    exchange.rounds(500);
    let words = b"\nsent from the cell\n";
    // SAFETY: [test] `words` is that long.
    unsafe { libc::write(1, words.as_ptr().cast(), words.len()) };
    loop {
        std::hint::spin_loop();
    }
}

/// From here on this thread may write and look whether the peer still lives, which a port does every few thousand polls;
/// any other system call kills it.
fn lock_the_cell() {
    let number = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let verdict = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = [
        step(number, 0, 0),
        step(equal, 2, libc::SYS_write as u32),
        step(equal, 1, libc::SYS_epoll_pwait as u32),
        step(verdict, 0, libc::SECCOMP_RET_KILL_THREAD),
        step(verdict, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: [test] the kernel copies the program, which lives on this stack.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter), 0);
    }
}
