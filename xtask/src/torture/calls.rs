//! Single steps: sends and receives by any call and way of waiting, and what disturbs a connection
//! without changing its bytes.

use super::generate::Builder;
use super::program::Step;

pub fn send(b: &mut Builder, list: usize, connection: usize, n: i64) {
    let (piece, call, wait, delay) = (b.piece(n), send_call(b), way(b), pause(b, n));
    b.add(list, Step::new("send", connection).n(n).piece(piece).call(call).wait(wait).delay(delay));
}

pub fn receive(b: &mut Builder, list: usize, connection: usize, n: i64) {
    let few = if n < 0 { 100_000 } else { n };
    let (piece, call, wait, delay) = (b.piece(few), receive_call(b), way(b), pause(b, few));
    b.add(list, Step::new("recv", connection).n(n).piece(piece).call(call).wait(wait).delay(delay));
}

/// Microseconds after each piece; few enough in all.
fn pause(b: &mut Builder, n: i64) -> i64 {
    if b.random.percent(75) || n > 200_000 { 0 } else { b.random.size(1, 800) }
}

pub fn send_call(b: &mut Builder) -> &'static str {
    b.random.pick(&[
        "send", "send", "write", "write", "writev", "sendmsg", "sendto", "more", "sendfile", "splice", "sendmmsg",
    ])
}

pub fn receive_call(b: &mut Builder) -> &'static str {
    b.random.pick(&[
        "recv", "recv", "recv", "read", "read", "readv", "recvmsg", "recvfrom", "waitall", "peek", "recvmmsg", "fread",
        "splice",
    ])
}

/// How a thread waits: half of them in the call itself.
pub fn way(b: &mut Builder) -> &'static str {
    if b.random.percent(45) {
        return "block";
    }
    b.random.pick(&[
        "poll",
        "poll",
        "ppoll",
        "select",
        "select",
        "pselect",
        "epoll",
        "epoll",
        "pwait",
        "newset",
        "edge",
        "oneshot",
        "timeo",
        "spin",
        "first-poll",
        "first-select",
        "first-epoll",
    ])
}

/// The same for what is written before it is read: a socket that would take it need not be writable
/// for poll.
pub fn way_over_unread(b: &mut Builder) -> &'static str {
    let way = way(b);
    if way.starts_with("first-") { "block" } else { way }
}

/// Something that changes nothing for the bytes of the connection.
pub fn disturb(b: &mut Builder, list: usize, connection: usize) {
    let side = b.side(list);
    let step = Step::new;
    let made = match b.random.below(14) {
        0..=2 => {
            let kind = b.random.pick(&["fork", "fork", "hold", "vfork", "spawn", "system", "popen"]);
            step("run", connection).n(1).piece(b.random.size(1, 15_000)).call(kind)
        }
        3 => step("many", connection).n(b.random.size(200, 500)),
        4 => step("option", connection).n(1).call(b.random.pick(&["lowat", "oobinline", "keepalive"])),
        5 => {
            b.bounded(connection);
            // Over Unix sockets no less than there is, so that what is written before it is read still fits.
            let least = if b.is_unix() { 200_000 } else { 20_000 };
            step("option", connection).n(b.random.size(least, 300_000)).call(b.random.pick(&["sndbuf", "rcvbuf"]))
        }
        6 => step("option", connection).n(1).call(b.random.pick(&["nodelay", "cork"])),
        7 => step("stream", connection),
        8 => {
            let how = b.random.pick(&["dup", "dup2", "fcntl"]);
            let number = if how == "dup2" { b.number(side) } else { 30 };
            step("dup", connection).n(number).call(how)
        }
        9 => step("empty", connection),
        10 => step("option", connection).n(1).call("linger"),
        11 => step("sleep", connection).n(b.random.size(100, 40_000)),
        12 => step("stream", connection),
        _ => step("option", connection).n(1).call("lowat"),
    };
    b.add(list, made);
}
