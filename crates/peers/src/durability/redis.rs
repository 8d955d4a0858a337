//! redis-server with an append-only file, and clients that pipeline.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use overside_bench::figures::{Batches, Launch, Testbed, Values, found};
use overside_bench::measure::{Cpu, elapsed_ns, now_ns};

use super::Contender;

pub struct Redis {
    server: u32,
    clients: Vec<Connection>,
}

struct Connection {
    stream: UnixStream,
    values: Values,
}

impl Redis {
    /// A server with all rows; none where it is not installed.
    pub fn start(testbed: &mut Testbed, fsync: &str) -> Result<Option<Redis>> {
        let Some(program) = found("redis-server") else { return Ok(None) };
        let folder = testbed.folder().join(format!("redis-{fsync}"));
        fs::create_dir(&folder)?;
        let (place, socket) = (folder.display().to_string(), folder.join("socket"));
        let at = socket.display().to_string();
        let words = ["--port", "0", "--unixsocket", &at, "--dir", &place, "--save", "", "--appendonly", "yes"];
        // It would rewrite its file while it is measured.
        let more = ["--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0"];
        let arguments = words.into_iter().chain(more).map(str::to_owned).collect();
        let stays = Some((folder.join("log"), TERMINATE));
        let server = testbed.keeper().serve(&Launch { program, arguments, stays, ..Launch::default() })?;
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&socket).is_err() {
            ensure!(Instant::now() < deadline, "redis-server does not listen at {at}");
            thread::sleep(Duration::from_millis(20));
        }
        let mut clients = Vec::new();
        for seed in 0..Testbed::CLIENTS {
            let stream = UnixStream::connect(&socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            clients.push(Connection { stream, values: Values::new(seed) });
        }
        let filling: Vec<u64> = (0..Testbed::ROWS).collect();
        for keys in filling.chunks(Testbed::BATCH_ROWS as usize) {
            clients[0].put(keys.iter().copied())?;
        }
        Ok(Some(Redis { server, clients }))
    }
}

impl Contender for Redis {
    fn batches(&mut self, _: &mut Testbed, ns: u64) -> Result<Batches> {
        let (start, client, server) = (now_ns(), Cpu::own(), Cpu::of(self.server)?);
        let parts = thread::scope(|scope| {
            let running: Vec<_> =
                self.clients.iter_mut().map(|one| scope.spawn(move || one.until(start, ns))).collect();
            running.into_iter().map(|part| part.join().expect("a client panicked")).collect::<Result<Vec<u64>>>()
        })?;
        let cpu_ns = (Cpu::own() - client) + (Cpu::of(self.server)? - server);
        Ok(Batches { rows: parts.iter().sum(), wall_ns: elapsed_ns(start), cpu_ns })
    }
}

impl Connection {
    fn until(&mut self, start: u64, ns: u64) -> Result<u64> {
        let mut rows = 0;
        while elapsed_ns(start) < ns {
            let keys: Vec<u64> = (0..Testbed::BATCH_ROWS).map(|_| self.values.row().0).collect();
            rows += self.put(keys.into_iter())?;
        }
        Ok(rows)
    }

    /// All in one write; every reply is awaited.
    fn put(&mut self, keys: impl Iterator<Item = u64>) -> Result<u64> {
        let (mut request, mut count) = (Vec::new(), 0);
        for key in keys {
            let value = self.values.row().1;
            request.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$8\r\n");
            request.extend_from_slice(&key.to_be_bytes());
            write!(request, "\r\n${}\r\n", value.len())?;
            request.extend_from_slice(value);
            request.extend_from_slice(b"\r\n");
            count += 1;
        }
        self.stream.write_all(&request)?;
        let mut replies = vec![0; count * OK.len()];
        self.stream.read_exact(&mut replies).context("redis-server does not answer")?;
        ensure!(replies.chunks(OK.len()).all(|reply| reply == OK), "redis-server refused a row");
        Ok(count as u64)
    }
}

const OK: &[u8] = b"+OK\r\n";
const TERMINATE: i32 = 15;
const PATIENCE: Duration = Duration::from_secs(30);
