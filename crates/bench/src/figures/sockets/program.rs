//! The programs of the figure: a server and a client that know the standard library's sockets,
//! hence the C library's, and nothing of Overside. Whether they run under the sockets library is
//! their environment's business.

use crate::{
    figures::messages::{
        MESSAGE_BYTES,
        play::{Ball, Stretch, WARM_UP, follow, lead},
        sockets::Bytes,
    },
    measure::{Cpu, elapsed_ns, now_ns},
    process::{child_socket, read_word, write_words},
};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::{
    ffi::OsString,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    str::FromStr,
};

/// What a pair of programs does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// 64 bytes there and back, over one connection.
    Echo,
    /// 64 KiB after 64 KiB in one direction, over one connection.
    Stream,
    /// A connection for 64 bytes there and back, and the next.
    Connect,
    /// Connections that have carried something and then do nothing: as many as are asked for.
    Idle,
}

/// Between which addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Tcp,
    Unix,
}

impl Job {
    pub(super) fn name(self) -> &'static str {
        match self {
            Job::Echo => "echo",
            Job::Stream => "stream",
            Job::Connect => "connect",
            Job::Idle => "idle",
        }
    }
}

impl FromStr for Job {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Job> {
        let jobs = [Job::Echo, Job::Stream, Job::Connect, Job::Idle];
        jobs.into_iter().find(|job| job.name() == name).with_context(|| format!("there is no job {name:?}"))
    }
}

/// What one of the two processes does: `serve JOB NAME` or `call JOB ADDRESS`, where a name or
/// address with a port is TCP and any other an abstract Unix socket's. It takes a word for each
/// turn over its line and answers what it came to.
pub(super) fn run(arguments: &[OsString]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let mut line = child_socket()?;
    let limit = getrlimit(Resource::Nofile);
    // Many connections at once are one of the jobs.
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })?;
    match arguments[..] {
        ["serve", job, name] => serve(&mut line, job.parse()?, &Listener::bind(name)?),
        ["call", job, address] => call(&mut line, job.parse()?, address),
        _ => bail!("there is no such program: {arguments:?}"),
    }
}

/// The server's turns. Each answers with its processor time.
fn serve(line: &mut UnixStream, job: Job, listener: &Listener) -> Result<()> {
    write_words(line, &[listener.port()?])?;
    let mut open: Vec<Socket> = Vec::new();
    // The parent hangs up when it is done.
    while let Ok(count) = read_word(line) {
        let before = Cpu::own();
        match job {
            Job::Echo | Job::Stream => {
                if open.is_empty() {
                    open.push(listener.accept()?);
                }
                serve_one(job, &mut open[0])?;
            }
            Job::Connect => while !answered(&mut listener.accept()?)? {},
            Job::Idle => {
                for _ in 0..count {
                    let mut socket = listener.accept()?;
                    serve_one(Job::Echo, &mut socket)?;
                    open.push(socket);
                }
            }
        }
        write_words(line, &[Cpu::own() - before])?;
    }
    Ok(())
}

fn serve_one(job: Job, socket: &mut Socket) -> Result<()> {
    if job == Job::Echo {
        return follow(&mut Bytes { socket, message: vec![0; MESSAGE_BYTES] });
    }
    let mut stretch = vec![0; STREAM_BYTES];
    while stretch[0] == 0 {
        socket.read_exact(&mut stretch)?;
    }
    Ok(socket.write_all(&[1])?)
}

/// Whether it was the last.
fn answered(socket: &mut Socket) -> Result<bool> {
    let mut message = [0; MESSAGE_BYTES];
    socket.read_exact(&mut message)?;
    socket.write_all(&message)?;
    Ok(message[0] == 1)
}

/// The client's turns: so many nanoseconds, or so many connections. Each answers with how often, in
/// what time, and its processor time.
fn call(line: &mut UnixStream, job: Job, address: &str) -> Result<()> {
    let mut open: Vec<Socket> = Vec::new();
    while let Ok(word) = read_word(line) {
        if open.is_empty() && matches!(job, Job::Echo | Job::Stream) {
            open.push(Socket::connect(address)?);
        }
        let stretch = match job {
            Job::Echo => lead(&mut Bytes { socket: &mut open[0], message: vec![0; MESSAGE_BYTES] }, word)?,
            Job::Stream => stream(&mut open[0], word)?,
            Job::Connect => connect(address, word)?,
            Job::Idle => idle(address, word, &mut open)?,
        };
        write_words(line, &[stretch.round_trips, stretch.wall_ns, stretch.cpu_ns])?;
    }
    Ok(())
}

fn stream(socket: &mut Socket, slice_ns: u64) -> Result<Stretch> {
    let mut bytes = vec![0; STREAM_BYTES];
    for _ in 0..WARM_UP {
        socket.write_all(&bytes)?;
    }
    let (start, before) = (now_ns(), Cpu::own());
    let mut sent = 0;
    while elapsed_ns(start) < slice_ns {
        socket.write_all(&bytes)?;
        sent += 1;
    }
    bytes[0] = 1;
    socket.write_all(&bytes)?;
    // Sent is not yet received.
    socket.read_exact(&mut bytes[..1])?;
    Ok(Stretch { round_trips: sent + 1, wall_ns: elapsed_ns(start), cpu_ns: Cpu::own() - before })
}

fn connect(address: &str, slice_ns: u64) -> Result<Stretch> {
    let mut message = [0; MESSAGE_BYTES];
    let mut once = |last: bool| -> Result<()> {
        let mut socket = Socket::connect(address)?;
        message[0] = u8::from(last);
        socket.write_all(&message)?;
        socket.read_exact(&mut message)?;
        Ok(())
    };
    for _ in 0..WARM_UP {
        once(false)?;
    }
    let (start, before) = (now_ns(), Cpu::own());
    let (mut done, mut wall_ns) = (0, 0);
    while wall_ns < slice_ns {
        once(false)?;
        done += 1;
        wall_ns = elapsed_ns(start);
    }
    let cpu_ns = Cpu::own() - before;
    once(true)?;
    Ok(Stretch { round_trips: done, wall_ns, cpu_ns })
}

fn idle(address: &str, count: u64, open: &mut Vec<Socket>) -> Result<Stretch> {
    let (start, before) = (now_ns(), Cpu::own());
    for _ in 0..count {
        let mut socket = Socket::connect(address)?;
        let mut ball = Bytes { socket: &mut socket, message: vec![0; MESSAGE_BYTES] };
        for _ in 0..EXCHANGES {
            ball.send(false)?;
            ensure!(!ball.receive()?, "the server stopped by itself");
        }
        ball.send(true)?;
        open.push(socket);
    }
    Ok(Stretch { round_trips: count, wall_ns: elapsed_ns(start), cpu_ns: Cpu::own() - before })
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    fn bind(name: &str) -> Result<Listener> {
        let listener = if name.contains(':') {
            TcpListener::bind(name).map(Listener::Tcp)
        } else {
            SocketAddr::from_abstract_name(name).and_then(|name| UnixListener::bind_addr(&name)).map(Listener::Unix)
        };
        listener.with_context(|| format!("nobody can listen at {name}"))
    }

    /// 0 for a Unix socket.
    fn port(&self) -> Result<u64> {
        match self {
            Listener::Tcp(listener) => Ok(listener.local_addr()?.port().into()),
            Listener::Unix(_) => Ok(0),
        }
    }

    fn accept(&self) -> Result<Socket> {
        Ok(match self {
            Listener::Tcp(listener) => Socket::tcp(listener.accept()?.0)?,
            Listener::Unix(listener) => Socket::Unix(listener.accept()?.0),
        })
    }
}

impl Socket {
    fn connect(address: &str) -> Result<Socket> {
        if address.contains(':') {
            return Socket::tcp(TcpStream::connect(address)?);
        }
        let name = SocketAddr::from_abstract_name(address)?;
        Ok(Socket::Unix(UnixStream::connect_addr(&name)?))
    }

    fn tcp(socket: TcpStream) -> Result<Socket> {
        // As whoever asks and waits for the answer does.
        socket.set_nodelay(true)?;
        Ok(Socket::Tcp(socket))
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(bytes),
            Socket::Unix(socket) => socket.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A message of [`Job::Stream`].
pub(super) const STREAM_BYTES: usize = 64 << 10;
/// What a connection has carried before it idles: enough for its ends to have met.
const EXCHANGES: u32 = 16;
