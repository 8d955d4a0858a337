//! What a user sees of a connection from its first message to its end, as recorded streams of events.
//!
//! Accept a meant change with `INSTA_UPDATE=always cargo test -p overside-shm --test events`.

mod ends;

use std::fmt::Write;

use ends::{End, both, pair};
use overside_memory::View;
use overside_verbs::*;

/// Completions of both ends, in the order in which each reports them.
struct Stream(String);

impl Stream {
    fn add(&mut self, who: &str, completions: &[WorkCompletion]) {
        for done in completions {
            let buffer = if done.buffer.is_some() { ", buffer back" } else { "" };
            let immediate = done.immediate.map_or(String::new(), |i| format!(", immediate {i}"));
            writeln!(
                self.0,
                "{who} #{} {:?} {:?} {} bytes{immediate}{buffer}",
                done.id, done.opcode, done.status, done.bytes
            )
            .expect("a string takes everything");
        }
    }

    fn event(&mut self, who: &str, end: &mut End) {
        let PortEvent::Disconnected { status, .. } = end.event();
        writeln!(self.0, "{who} disconnected: {status:?}").expect("a string takes everything");
    }
}

fn view(end: &End, len: usize) -> View {
    View::prefix(end.buffers(1, len.max(1)).pop().expect("one"), len)
}

#[test]
fn messages_of_every_kind_then_a_close_with_receives_waiting() {
    let (mut a, to_b, mut b, from_a) = pair();
    let mut stream = Stream(String::new());
    b.post_receives(Some(from_a), 6, 4096);
    let requests = vec![
        WorkRequest::send(1, view(&a, 100)),
        WorkRequest::send_inline(2, b"inline").with_immediate(7),
        WorkRequest::send(3, view(&a, 0)).unsignalled(),
        WorkRequest::send(4, view(&a, 4096)),
    ];
    a.post(to_b, requests);
    let (sent, received) = both(&mut a, 3, &mut b, 4);
    stream.add("a", &sent);
    stream.add("b", &received);
    a.queue.close(to_b);
    stream.add("b", &b.completions(2));
    stream.event("b", &mut b);
    insta::assert_snapshot!(stream.0);
}

#[test]
fn a_message_too_long_ends_both_sides() {
    let (mut a, to_b, mut b, from_a) = pair();
    let mut stream = Stream(String::new());
    b.post_receives(Some(from_a), 2, 64);
    a.post(
        to_b,
        vec![WorkRequest::send(1, view(&a, 64)), WorkRequest::send(2, view(&a, 65)), WorkRequest::send(3, view(&a, 1))],
    );
    let (sent, received) = both(&mut a, 3, &mut b, 2);
    stream.add("a", &sent);
    stream.add("b", &received);
    stream.event("a", &mut a);
    stream.event("b", &mut b);
    insta::assert_snapshot!(stream.0);
}
