//! What the two ends of a connection do with each other before they end it: phases that follow one
//! another.

use super::calls::{disturb, receive, receive_call, send, send_call, way, way_over_unread};
use super::endings;
use super::generate::{Builder, Link};
use super::program::{Side, Step};

/// Fills the lists of a program.
pub fn fill(b: &mut Builder) {
    let connections = *b.random.pick(&[&1, &1, &2, &2, &3, &4, &6]);
    b.begin_phase();
    let openings = ["plain", "plain", "plain", "flags", "stream"];
    for connection in 0..connections {
        open(b, connection, &openings);
    }
    b.barrier_of_all();
    if b.random.percent(12) {
        forker(b);
    }
    let daemon = daemon_side(b);
    for connection in 0..connections {
        // A server that forks for each connection, or hands it to another program.
        let beside_daemon = if connection == 0 { daemon } else { None };
        if b.random.percent(if beside_daemon.is_some() { 40 } else { 12 }) {
            let side = *b.random.pick(&[&Side::A, &Side::A, &Side::B]);
            let side = beside_daemon.map_or(side, Side::other);
            if daemon != Some(side) {
                // Without the library at its other end a connection looks for it for long.
                let kinds = ["fork", "fork", "exec", "stdin", "plainly", "pass"];
                let kind = if beside_daemon.is_some() { "plainly" } else { b.random.pick(&kinds) };
                served_by_child(b, side, connection, connections, kind);
            }
        }
    }
    if let Some(side) = daemon {
        daemon_starts(b, side);
    }
    let mut phases: Vec<usize> = (0..connections).flat_map(|c| vec![c; b.random.below(4)]).collect();
    for at in (1..phases.len()).rev() {
        let other = b.random.below(at + 1);
        phases.swap(at, other);
    }
    for connection in 0..connections {
        b.begin_phase();
        warm(b, connection);
    }
    for connection in phases {
        if b.has_room() {
            b.begin_phase();
            middle(b, connection);
        }
    }
    if daemon.is_some() {
        b.begin_phase();
        let side = daemon.unwrap_or(Side::A);
        let main = b.main(side);
        b.add(main, Step::new("file", 0));
        // Other threads may be making some just now.
        if b.is_alone(side) && b.random.percent(30) {
            b.add(main, Step::new("visible", 0));
        }
    }
    endings::fill(b, connections);
}

fn open(b: &mut Builder, connection: usize, openings: &[&'static str]) {
    for side in [Side::A, Side::B] {
        let way = b.random.pick(openings);
        let (main, back) = (b.main(side), i64::from(b.random.percent(50)));
        b.add(main, Step::new("open", connection).call(way).n(back));
    }
}

/// One more thread that forks or starts programs now and then, whatever the others do; or a timer.
fn forker(b: &mut Builder) {
    let side = *b.random.pick(&[&Side::A, &Side::B]);
    if b.random.percent(25) {
        let main = b.main(side);
        let every = b.random.size(500, 5000);
        b.add(main, Step::new("ticks", 0).n(every));
        return;
    }
    let list = b.list(side, false);
    let kind = b.random.pick(&["fork", "fork", "fork", "spawn", "vfork", "system", "hold"]);
    let (times, every) = (b.random.size(2, 20), b.random.size(500, 20_000));
    b.add(list, Step::new("run", 0).n(times).piece(2000).call(kind).delay(every));
}

fn served_by_child(b: &mut Builder, side: Side, connection: usize, connections: usize, kind: &str) {
    b.begin_phase();
    let (main, child) = (b.main(side), b.give_to_child(side, connection));
    // What it has inherited beside would keep the other connections open.
    for other in (0..connections).filter(|other| *other != connection) {
        if !b.is_with_child(side, other) {
            b.add(child, Step::new("close", other));
        }
    }
    b.add(main, Step::new("spawn", connection).n(child as i64).call(kind));
    b.add(main, Step::new("close", connection));
}

/// A side that closes what it does not know, if there is one: it has one thread.
fn daemon_side(b: &mut Builder) -> Option<Side> {
    let side = *b.random.pick(&[&Side::A, &Side::B]);
    let is_daemon = b.random.percent(15) && b.is_alone(side);
    if is_daemon && b.random.percent(30) {
        // Its peers never come by, so it goes on looking for them.
        b.program.under = format!("{side:?}");
    }
    is_daemon.then_some(side)
}

/// Some exchanges, then all unknown descriptors are closed, a file is opened, and perhaps one
/// connection more.
fn daemon_starts(b: &mut Builder, side: Side) {
    b.begin_phase();
    brief(b, 0);
    let main = b.main(side);
    let from = b.random.size(3, 12);
    let how = b.random.pick(&["close", "close", "range", "rest", "raw"]);
    b.add(main, Step::new("closeall", 0).n(from).call(how));
    let number = *b.random.pick(&[&0, &0, &5, &6, &8, &10, &20, &300, &500, &500]);
    b.add(main, Step::new("file", 0).n(number));
    if b.random.percent(50) {
        let connection = 7;
        open(b, connection, &["plain"]);
        b.barrier_of_all();
        for _ in 0..3 {
            brief(b, connection);
            if b.random.percent(60) {
                one_way(b, connection, side);
            }
            brief(b, 0);
        }
        warm(b, connection);
        warm(b, 0);
        let link = b.link(connection);
        endings::shut_both(b, link);
    }
}

/// So few messages that one end may still look for the other.
fn brief(b: &mut Builder, connection: usize) {
    if b.random.percent(30) {
        return warm(b, connection);
    }
    let link = b.link(connection);
    let rounds = 1 + b.random.below(4) as i64;
    for list in [link.a, link.b] {
        let (call, wait) = (receive_call(b), way(b));
        b.add(list, Step::new("talk", connection).n(rounds).piece(8).call(call).wait(wait));
    }
}

/// A message, and time enough for whatever its receiver does then, before the sender makes another
/// call.
fn one_way(b: &mut Builder, connection: usize, sender: Side) {
    let (s, r) = b.link(connection).from(sender);
    send(b, s, connection, 8);
    receive(b, r, connection, 8);
    b.settle(&[s, r]);
}

/// Messages there and back: from some number of calls on the connection is in the rings.
fn warm(b: &mut Builder, connection: usize) {
    let link = b.link(connection);
    let rounds = if b.random.percent(15) { 0 } else { b.random.size(1, 60) };
    let piece = if b.random.percent(70) { 8 } else { b.random.size(1, 4000) };
    let pause = if b.random.percent(60) { 0 } else { b.random.size(100, 60_000 / rounds.max(1) + 100) };
    for list in [link.a, link.b] {
        let (call, wait) = (receive_call(b), way(b));
        b.add(list, Step::new("talk", connection).n(rounds).piece(piece).call(call).wait(wait).delay(pause));
    }
}

/// A phase after which the connection is as before it.
fn middle(b: &mut Builder, connection: usize) {
    let link = b.link(connection);
    let sender = *b.random.pick(&[&Side::A, &Side::B]);
    let (s, r) = link.from(sender);
    match b.random.below(13) {
        0 => warm(b, connection),
        1 | 2 => {
            let n = b.flow();
            if b.random.percent(30) {
                disturb(b, s, connection);
            }
            send(b, s, connection, n);
            if b.random.percent(30) {
                disturb(b, r, connection);
            }
            receive(b, r, connection, n);
        }
        3..=5 => unread(b, link, sender),
        6 => {
            let (n, piece) = b.unread_alone(link);
            for list in [s, r] {
                let (call, wait) = (send_call(b), way(b));
                b.add(list, Step::new("send", connection).n(n).piece(piece).call(call).wait(wait));
            }
            for list in [r, s] {
                receive(b, list, connection, n);
            }
        }
        7 | 8 => duplex(b, link),
        9 => quiet(b, link),
        10 | 11 => borrowed(b, link, sender),
        _ => {
            let list = *b.random.pick(&[&s, &r]);
            disturb(b, list, connection);
            warm(b, connection);
        }
    }
}

/// What lies unread while the receiver does something, and its sender makes no call until it has
/// been read.
fn unread(b: &mut Builder, link: Link, sender: Side) {
    let (s, r) = link.from(sender);
    let (n, piece) = b.unread_alone(link);
    let (call, wait) = (send_call(b), way_over_unread(b));
    b.add(s, Step::new("send", link.connection).n(n).piece(piece).call(call).wait(wait));
    if b.random.percent(25) {
        disturb(b, s, link.connection);
    }
    b.settle(&[s, r]);
    for _ in 0..=b.random.below(2) {
        disturb(b, r, link.connection);
    }
    receive(b, r, link.connection, n);
    b.barrier(&[s, r]);
}

/// Both directions at once, each in a thread of its own on at least one side.
fn duplex(b: &mut Builder, link: Link) {
    let (n, m) = (b.flow(), b.flow());
    let c = link.connection;
    let sides = [(link.a, n, m), (link.b, m, n)];
    let single = b.random.below(3);
    let others = [0, 1].map(|index| if index == single { None } else { b.beside(sides[index].0) });
    for ((list, out, into), other) in sides.into_iter().zip(others) {
        match other {
            Some(other) => {
                b.barrier(&[list, other]);
                let (reads, writes) = if b.random.percent(50) { (list, other) } else { (other, list) };
                receive(b, reads, c, into);
                send(b, writes, c, out);
                b.barrier(&[list, other]);
            }
            // One thread, so that it must know which comes first; two such sides take turns.
            None if others == [None, None] && list == link.b => {
                send(b, list, c, out);
                receive(b, list, c, into);
            }
            None => {
                receive(b, list, c, into);
                send(b, list, c, out);
            }
        }
    }
}

/// Nothing is on its way: what each end shows, and calls of no bytes.
fn quiet(b: &mut Builder, link: Link) {
    let c = link.connection;
    let (s, r) = link.from(*b.random.pick(&[&Side::A, &Side::B]));
    let there = if b.random.percent(50) { b.random.size(1, 20_000) } else { 0 };
    if there == 0 && !b.is_unix() && b.random.percent(15) {
        b.add(s, Step::new("urge", c));
        b.settle(&[s, r]);
        b.add(r, Step::new("look", c));
        b.add(r, Step::new("urged", c));
    }
    if there > 0 {
        b.add(s, Step::new("send", c).n(there).piece(there).call("send").wait("block"));
    }
    b.settle(&[s, r]);
    for list in [s, r] {
        for _ in 0..=b.random.below(3) {
            match b.random.below(4) {
                0 | 1 => b.add(list, Step::new("look", c)),
                2 => {
                    // Over Unix sockets an empty message is none; over both, nothing arrives.
                    let call = b.random.pick(&["recv", "peek", "trunc", "read", "send", "write"]);
                    b.add(list, Step::new("zero", c).call(call));
                }
                _ if list == s => {
                    let time = b.random.size(1000, 40_000);
                    b.add(list, Step::new("timeout", c).n(time));
                }
                _ => disturb(b, list, c),
            }
        }
    }
    if there > 0 {
        if b.random.percent(30) {
            let least = b.random.size(1, 30_000);
            b.add(r, Step::new("option", c).n(least).call("lowat"));
            b.add(r, Step::new("look", c));
            b.add(r, Step::new("option", c).n(1).call("lowat"));
        }
        receive(b, r, c, there);
    }
    b.barrier(&[s, r]);
}

/// A child goes on with the connection for a while; its parent waits, then has it again.
fn borrowed(b: &mut Builder, link: Link, sender: Side) {
    let c = link.connection;
    let (s, r) = link.from(sender);
    let n = b.flow();
    let (parent, other, reads) = if b.random.percent(50) { (s, r, false) } else { (r, s, true) };
    let side = b.side(parent);
    let child = b.list(side, true);
    if reads {
        receive(b, child, c, n);
        send(b, other, c, n);
    } else {
        send(b, child, c, n);
        receive(b, other, c, n);
    }
    let kind = b.random.pick(&["fork", "fork", "exec", "stdin", "plainly", "pass"]);
    b.add(parent, Step::new("spawn", c).n(child as i64).call(kind).wait("wait"));
    b.barrier(&[parent, other]);
}
