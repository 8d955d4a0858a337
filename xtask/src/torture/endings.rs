//! How connections end: shut down, closed over unread bytes, handed to a child, left to the end of
//! the process, killed.

use super::calls::{disturb, receive, send, send_call, way_over_unread};
use super::generate::{Builder, Link};
use super::program::{Side, Step};

/// How connections end.
pub fn fill(b: &mut Builder, connections: usize) {
    b.begin_phase();
    if !b.has_children() && b.random.percent(8) {
        return killed(b, connections);
    }
    if !b.has_children() && connections > 1 && b.random.percent(12) {
        return served(b, connections);
    }
    let mut left = Vec::new();
    for connection in 0..connections {
        b.begin_phase();
        let link = b.link(connection);
        // Side A alone, or both would wait for the other's end.
        if b.random.percent(10) {
            left.push(link);
            continue;
        }
        let sender = *b.random.pick(&[&Side::A, &Side::B]);
        match b.random.below(14) {
            0 => shut_both(b, link),
            11 | 12 => waiters(b, link, sender),
            13 => cut(b, link, sender),
            1..=3 => closed_by_sender(b, link, sender, false),
            4 | 5 => closed_by_sender(b, link, sender, true),
            6 => closed_over_unread(b, link, sender),
            7 | 8 => echoed(b, link, sender),
            9 => shared(b, link, sender),
            _ => handed_over(b, link, sender),
        }
    }
    for link in &left {
        b.begin_phase();
        let n = b.flow();
        send(b, link.a, link.connection, n);
    }
    // When side A has nothing left to do it ends, and with it what it has sent.
    for link in left {
        receive(b, link.b, link.connection, -1);
    }
}

pub fn shut_both(b: &mut Builder, link: Link) {
    let c = link.connection;
    for list in [link.a, link.b] {
        b.add(list, Step::new("shut", c).call("wr"));
        receive(b, list, c, -1);
        b.add(list, Step::new("close", c));
    }
}

/// A sender that closes, or shuts down, what it has sent; before that is read, or while it is.
fn closed_by_sender(b: &mut Builder, link: Link, sender: Side, before: bool) {
    let c = link.connection;
    let (s, r) = link.from(sender);
    let (n, piece) = if before {
        b.unread_alone(link)
    } else {
        let n = b.flow();
        (n, b.piece(n))
    };
    let (call, wait) = (send_call(b), way_over_unread(b));
    if b.random.percent(10) {
        b.add(s, Step::new("shut", c).call("rd"));
    }
    b.add(s, Step::new("send", c).n(n).piece(piece).call(call).wait(wait));
    if b.random.percent(25) {
        disturb(b, s, c);
    }
    let closes = b.random.percent(70);
    let how = b.random.pick(&["wr", "wr", "rdwr"]);
    b.add(s, if closes { Step::new("close", c) } else { Step::new("shut", c).call(how) });
    if before {
        b.settle(&[s, r]);
    }
    for _ in 0..b.random.below(3) {
        disturb(b, r, c);
    }
    if b.random.percent(15) {
        b.add(r, Step::new("shut", c).call("wr"));
    }
    receive(b, r, c, -1);
    if closes && before && b.random.percent(40) {
        b.add(r, Step::new("look", c));
        b.add(r, Step::new("poke", c));
        b.add(r, Step::new("sleep", c).n(30_000));
        b.add(r, Step::new("poke", c));
    }
    b.add(r, Step::new("close", c));
    if !closes {
        // The receiver has closed without a word more.
        receive(b, s, c, -1);
        b.add(s, Step::new("close", c));
    }
}

/// Who closes has something unread: the other end is reset.
fn closed_over_unread(b: &mut Builder, link: Link, sender: Side) {
    let c = link.connection;
    let (s, r) = link.from(sender);
    let n = b.random.size(1, 100_000);
    let n = if b.is_unix() { n.min(60_000) } else { n };
    b.add(r, Step::new("send", c).n(n).piece(65536).call("send").wait("block"));
    b.settle(&[s, r]);
    if b.random.percent(40) {
        disturb(b, s, c);
    }
    b.add(s, Step::new("close", c));
    b.settle(&[s, r]);
    for _ in 0..=b.random.below(2) {
        match b.random.below(3) {
            0 => b.add(r, Step::new("look", c)),
            1 => b.add(r, Step::new("poke", c)),
            _ => receive(b, r, c, -1),
        }
    }
    b.add(r, Step::new("close", c));
}

/// One end echoes; the other sends and receives in two threads, or in one without blocking.
fn echoed(b: &mut Builder, link: Link, sender: Side) {
    let c = link.connection;
    let (s, r) = link.from(sender);
    let n = b.flow();
    let (piece, wait) = (b.piece(n), b.random.pick(&["block", "block", "poll", "epoll", "select"]));
    b.add(r, Step::new("echo", c).piece(piece).call("read").wait(wait));
    b.add(r, Step::new("close", c));
    let other = if b.random.percent(35) { None } else { b.beside(s) };
    if let Some(other) = other {
        b.barrier(&[s, other]);
        send(b, other, c, n);
        b.add(other, Step::new("shut", c).call("wr"));
        receive(b, s, c, -1);
        b.barrier(&[s, other]);
    } else {
        let (piece, wait) = (b.piece(n), b.random.pick(&["poll", "select", "epoll", "ppoll", "pselect"]));
        b.add(s, Step::new("pump", c).n(n).piece(piece).wait(wait));
    }
    b.add(s, Step::new("close", c));
}

/// Nobody blocks in a call: one thread waits to read, one to write, much in both directions, from
/// the first call on or later.
fn waiters(b: &mut Builder, link: Link, sender: Side) {
    let c = link.connection;
    let (s, r) = link.from(sender);
    let Some(other) = b.beside(s) else { return shut_both(b, link) };
    let n = b.random.size(60_000, 600_000);
    let ways = ["poll", "poll", "select", "epoll", "newset", "edge", "oneshot", "ppoll", "pselect", "pwait"];
    let wait = b.random.pick(&["block", "block", "poll", "epoll"]);
    b.add(r, Step::new("echo", c).piece(30_000).call("read").wait(wait));
    b.add(r, Step::new("close", c));
    b.barrier(&[s, other]);
    let (reads, writes) = (b.random.pick(&ways), b.random.pick(&ways));
    let (piece, taken) = (b.random.size(3000, 20_000), b.random.size(3000, 20_000));
    b.add(other, Step::new("send", c).n(n).piece(piece).call("send").wait(writes));
    b.add(other, Step::new("shut", c).call("wr"));
    b.add(s, Step::new("recv", c).n(-1).piece(taken).call("recv").wait(reads));
    b.barrier(&[s, other]);
    b.add(s, Step::new("close", c));
}

/// A thread receives what never comes; another shuts the connection down.
fn cut(b: &mut Builder, link: Link, sender: Side) {
    let c = link.connection;
    let (s, r) = link.from(sender);
    let Some(other) = b.beside(r) else { return shut_both(b, link) };
    b.barrier(&[r, other]);
    let (pause, how) = (b.random.size(1000, 30_000), b.random.pick(&["rd", "rdwr"]));
    b.add(other, Step::new("sleep", c).n(pause));
    b.add(other, Step::new("shut", c).call(how));
    receive(b, r, c, -1);
    b.barrier(&[r, other]);
    b.add(r, Step::new("close", c));
    receive(b, s, c, -1);
    b.add(s, Step::new("close", c));
}

/// Several threads read one stream to its end.
fn shared(b: &mut Builder, link: Link, sender: Side) {
    let c = link.connection;
    let (s, r) = link.from(sender);
    let n = b.flow();
    send(b, s, c, n);
    b.add(s, Step::new("shut", c).call("wr"));
    let mut readers = vec![r];
    for _ in 0..=b.random.below(2) {
        readers.extend(b.beside(r));
    }
    b.barrier(&readers);
    for reader in &readers {
        let (call, piece) = (b.random.pick(&["recv", "read", "readv", "recvmsg", "recvfrom"]), b.piece(n));
        let wait = b.random.pick(&["block", "poll", "select", "epoll", "newset", "oneshot", "first-poll", "spin"]);
        b.add(*reader, Step::new("share", c).piece(piece).call(call).wait(wait));
    }
    b.barrier(&readers);
    b.add(r, Step::new("sum", c));
    b.add(r, Step::new("close", c));
    receive(b, s, c, -1);
    b.add(s, Step::new("close", c));
}

/// A child goes on to the end; the parent closes at once.
fn handed_over(b: &mut Builder, link: Link, sender: Side) {
    let c = link.connection;
    let (s, r) = link.from(sender);
    let side = b.side(r);
    let child = b.list(side, true);
    let n = b.flow();
    receive(b, child, c, -1);
    let back = b.flow();
    send(b, child, c, back);
    b.add(child, Step::new("close", c));
    let kind = b.random.pick(&["fork", "fork", "exec", "stdin", "plainly", "pass"]);
    b.add(r, Step::new("spawn", c).n(child as i64).call(kind));
    b.add(r, Step::new("close", c));
    send(b, s, c, n);
    b.add(s, Step::new("shut", c).call("wr"));
    receive(b, s, c, -1);
    b.add(s, Step::new("close", c));
}

/// One loop on one side echoes all connections; each is pumped by a thread on the other.
fn served(b: &mut Builder, connections: usize) {
    let server = *b.random.pick(&[&Side::A, &Side::B]);
    let other = server.other();
    b.barrier_of_all();
    let main = b.main(server);
    let (piece, wait) = (b.random.size(500, 60_000), b.random.pick(&["poll", "epoll", "edge"]));
    b.add(main, Step::new("serve", 0).n(connections as i64).piece(piece).wait(wait));
    let first = b.main(other);
    for connection in 0..connections {
        let list = if connection == 0 { first } else { b.list(other, false) };
        if list != first {
            b.barrier(&[first, list]);
        }
    }
    let lists: Vec<usize> = (0..b.program.lists.len()).collect();
    let mut pumps: Vec<usize> = vec![first];
    pumps.extend(lists.iter().rev().take(connections - 1));
    for (connection, list) in pumps.into_iter().enumerate() {
        let n = b.flow();
        let (piece, wait) = (b.piece(n), b.random.pick(&["poll", "select", "epoll", "ppoll", "pselect"]));
        b.add(list, Step::new("pump", connection).n(n).piece(piece).wait(wait));
    }
}

/// One side is killed: what it has sent is there, then the end.
fn killed(b: &mut Builder, connections: usize) {
    let victim = *b.random.pick(&[&Side::A, &Side::B]);
    b.barrier_of_all();
    let main = b.main(victim);
    for connection in 0..connections {
        if b.random.percent(60) {
            let (n, piece) = b.unread(connection);
            let n = n / connections as i64 + 1;
            b.add(main, Step::new("send", connection).n(n).piece(piece).call("send").wait("block"));
        }
    }
    if b.random.percent(50) {
        b.add(main, Step::new("sleep", 0).n(20_000));
    }
    b.add(main, Step::new("kill", 0));
    let other = b.main(victim.other());
    for connection in 0..connections {
        if b.random.percent(30) {
            disturb(b, other, connection);
        }
        receive(b, other, connection, -1);
    }
}
