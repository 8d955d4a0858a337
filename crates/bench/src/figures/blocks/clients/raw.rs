//! The bare transport, as the paper tests it (vi-attached-storage §6.2): register the memory, send
//! 64 bytes, be written to from memory that was registered before, wake up, deregister.

use super::super::load::Stretch;
use crate::{
    figures::sender::port_options,
    measure::{Cpu, elapsed_ns, now_ns},
    process::{Process, child_socket, read_word, write_words},
};
use anyhow::{Context, Result, ensure};
use overside::{
    Address, Network,
    memory::{View, Window},
    shape::{Run, Shape},
    transfer::{Endpoint, Ring, RingOptions},
    verbs::{Access, Memory, Opcode, QueuePair, Remote, RemoteToken, Status, WorkCompletion, WorkRequest, Writable},
};
use std::{collections::VecDeque, os::unix::net::UnixStream, sync::Arc, time::Duration};

/// The asking end, with the process at the other.
pub(super) struct Raw {
    endpoint: Endpoint,
    pair: QueuePair,
    ring: Ring,
    window: Arc<Window>,
    done: Vec<WorkCompletion>,
    process: Process,
    /// The other ends when this is closed.
    _line: UnixStream,
}

impl Raw {
    pub(super) fn start() -> Result<Raw> {
        let address = Address::here("shm", &format!("overside-raw-{}", std::process::id()))?;
        let (process, mut line) =
            Process::start("answering process", super::super::ROLE, &[super::RAW, &address.to_string()], None)?;
        read_word(&mut line).context("the answering process ended; its last words are above")?;
        // It sleeps at once; the other end polls for a while.
        let mut endpoint = endpoint(&address)?;
        endpoint.queue().set_spin(Duration::ZERO);
        let pair = endpoint.connect(address.name(), PATIENCE)?;
        let ring = ring(&mut endpoint, pair)?;
        let window = Arc::new(Window::new(super::LONGEST)?);
        Ok(Raw { endpoint, pair, ring, window, done: Vec::new(), process, _line: line })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Asks for so many bytes again and again, for so long, and once at least.
    pub(super) fn run(&mut self, bytes: usize, ns: u64) -> Result<Stretch> {
        let (mut done, mut last) = (Stretch::default(), None);
        let (cpu, start) = (Cpu::own(), now_ns());
        loop {
            let since = now_ns();
            let memory = Memory::Window(self.window.clone());
            let token = self.endpoint.register(memory.clone(), Access::REMOTE_WRITE)?;
            ensure!(last.replace(token.rkey) != Some(token.rkey), "two rounds share a registration");
            self.ask(&token, bytes)?;
            self.written(bytes)?;
            self.endpoint.deregister(&memory)?;
            done.times.push(elapsed_ns(since));
            if elapsed_ns(start) >= ns {
                break;
            }
        }
        (done.wall_ns, done.client_ns) = (elapsed_ns(start), Cpu::own() - cpu);
        done.bytes = done.times.len() as u64 * bytes as u64;
        Ok(done)
    }

    /// What is there is what the other end has.
    pub(super) fn check(&self, bytes: usize) -> Result<()> {
        let mut found = vec![0; bytes];
        self.window.read(0, &mut found)?;
        ensure!(found.iter().all(|byte| *byte == FILLED), "the other end has written something else");
        Ok(())
    }

    fn ask(&mut self, token: &RemoteToken, bytes: usize) -> Result<()> {
        let mut request = [0; REQUEST_BYTES];
        request[..32].copy_from_slice(&token.to_bytes());
        request[32..40].copy_from_slice(&(bytes as u64).to_le_bytes());
        while !self.endpoint.queue().post_inline(self.pair, 0, &request, None, false)? {
            self.endpoint.queue().poll(&mut self.done);
        }
        Ok(())
    }

    /// Sleeps until the other end says that the bytes are there.
    fn written(&mut self, bytes: usize) -> Result<()> {
        loop {
            if self.done.is_empty() && self.endpoint.queue().poll_wait(&mut self.done, Some(PATIENCE))? == 0 {
                ensure!(self.endpoint.next_end().is_none(), "the other end is gone");
                continue;
            }
            let Some(done) = self.done.pop() else { continue };
            ensure!(done.status == Status::Success, "a request ended as {:?}", done.status);
            if let Some(buffer) = done.buffer {
                ensure!(done.immediate == Some(bytes as u32), "the other end answers what was not asked");
                self.ring.completed();
                self.ring.put(buffer);
                self.ring.post(self.endpoint.queue())?;
                return Ok(());
            }
        }
    }
}

/// The answering process.
pub(super) fn serve(address: &str) -> Result<()> {
    let address: Address = address.parse()?;
    let mut endpoint = endpoint(&address)?;
    let mut listener = endpoint.listen(address.name())?;
    write_words(&mut child_socket()?, &[1])?;
    let (pair, _) = endpoint.accept(&mut *listener, PATIENCE)?;
    let mut ring = ring(&mut endpoint, pair)?;
    let mut blocks = endpoint.allocate(super::LONGEST)?;
    blocks.fill(FILLED);
    let blocks = Arc::new(blocks);
    let (mut done, mut batch) = (Vec::new(), VecDeque::new());
    loop {
        if endpoint.queue().poll_wait(&mut done, Some(PATIENCE))? == 0 && endpoint.next_end().is_some() {
            return Ok(());
        }
        for WorkCompletion { opcode, status, bytes, buffer, .. } in done.drain(..) {
            let (Opcode::Receive, Some(buffer)) = (opcode, buffer) else { continue };
            if status != Status::Success {
                return Ok(());
            }
            ensure!(bytes == REQUEST_BYTES as u64, "a request of {bytes} bytes came");
            let token = RemoteToken::from_bytes(std::array::from_fn(|at| buffer[at]));
            let length = u64::from_le_bytes(std::array::from_fn(|at| buffer[32 + at])).min(super::LONGEST as u64);
            let view = View::of(&blocks, &Shape::list(&[Run::new(0, length)])?)?;
            let write = WorkRequest::write(0, view, Remote::<Writable>::new(token).part(0, length)?);
            batch.push_back(write.with_immediate(length as u32).unsignalled());
            ring.completed();
            ring.put(buffer);
        }
        while !batch.is_empty() {
            endpoint.queue().post(pair, &mut batch)?;
            if !batch.is_empty() {
                endpoint.queue().poll(&mut done);
            }
        }
        ring.post(endpoint.queue())?;
    }
}

fn endpoint(address: &Address) -> Result<Endpoint> {
    Ok(Endpoint::builder(address.provider(&Network::default())?).port(port_options()).open()?)
}

fn ring(endpoint: &mut Endpoint, pair: QueuePair) -> Result<Ring> {
    let options = RingOptions { queue_pair: Some(pair), bytes: REQUEST_BYTES, count: 16, ..RingOptions::default() };
    let mut ring = endpoint.ring(options)?;
    ring.post_all(endpoint.queue())?;
    Ok(ring)
}

const REQUEST_BYTES: usize = 64;
const FILLED: u8 = 0xA5;
const PATIENCE: Duration = Duration::from_secs(20);
