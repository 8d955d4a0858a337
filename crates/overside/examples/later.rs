//! A service whose replies come later: it echoes each text after the delay that its client asks for.
//!
//! `cargo run --release -p overside --example later` runs server and client in one process;
//! `-- --listen ADDR [--key-file F]` serves, `-- --connect ADDR [--key-file F]` asks.
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overside::service::client::{Link, LinkOptions};
use overside::service::{
    BadMessage, Context, Listening, RequestOrder, Server, ServiceOptions, Session, System, Ticket, open,
};
use overside::{Address, Network};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    run().map_or_else(|error| (eprintln!("{error}"), ExitCode::FAILURE).1, |()| ExitCode::SUCCESS)
}

fn run() -> Result<()> {
    let (mut listen, mut connect, mut network) = (None, None, Network::default());
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--listen" => listen = Some(value),
            "--connect" => connect = Some(value),
            "--key-file" => network.key_file = Some(value.into()),
            _ => return Err(format!("{name} is unknown; give --listen, --connect or --key-file").into()),
        }
    }
    if let Some(address) = connect {
        return ask(&address, &network);
    }
    let address = listen.clone().unwrap_or_else(|| format!("shm:later-{}", std::process::id()));
    let server = serve(&address, &network)?;
    if listen.is_some() {
        println!("listening on {address}; press Enter to stop");
        std::io::stdin().read_line(&mut String::new())?;
    } else {
        ask(&address, &network)?;
    }
    server.shutdown();
    Ok(())
}

fn serve(address: &str, network: &Network) -> Result<Server<Echo>> {
    let address: Address = address.parse()?;
    let listening = Listening::open(address.provider(network)?, &[address.name()])?;
    Ok(Server::start(vec![(listening, Arc::new(Echo))], ServiceOptions::default())?)
}

/// Asks for several texts at once; they come back as their delays have passed, not as they were sent.
fn ask(address: &str, network: &Network) -> Result<()> {
    let address: Address = address.parse()?;
    let mut link = Link::connect(address.provider(network)?, address.name(), LinkOptions::default())?;
    let start = Instant::now();
    let mut asked = BTreeMap::new();
    for (delay_ms, text) in [(60u16, "last"), (30, "second"), (0, "first")] {
        let number = link.send(|body| {
            body.extend_from_slice(&delay_ms.to_le_bytes());
            body.extend_from_slice(text.as_bytes());
        })?;
        asked.insert(number, delay_ms);
    }
    while !asked.is_empty() {
        let reply = link.message()?;
        let (number, text) = open(reply.as_ref())?;
        let delay_ms = asked.remove(&number).ok_or("a reply to nothing")?;
        let text = String::from_utf8_lossy(text);
        println!("after {:3} ms of {delay_ms:2}: request {number}, {text}", start.elapsed().as_millis());
    }
    Ok(())
}

/// The service. All that it knows is in its sessions.
struct Echo;

/// A connection's texts that wait for their time, and how many there were.
#[derive(Default)]
struct Echoes {
    waiting: BTreeMap<(Instant, u64), (Ticket, Vec<u8>)>,
    count: u64,
}

impl System for Echo {
    type Session = Echoes;

    fn session(self: &Arc<Self>) -> Echoes {
        Echoes::default()
    }

    fn unfinished(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(b"the service gave it up");
    }
}

impl Session for Echoes {
    fn opened(&mut self, context: &mut Context<'_>) {
        // This protocol has no greeting: whoever is connected may ask.
        context.admit();
    }

    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> std::result::Result<(), BadMessage> {
        let (delay_ms, text) = body.split_first_chunk().ok_or(BadMessage("no delay"))?;
        let delay = Duration::from_millis(u16::from_le_bytes(*delay_ms).into());
        if delay.is_zero() {
            context.reply(number, |reply| reply.extend_from_slice(text));
            return Ok(());
        }
        self.count += 1;
        let due = (context.clock().now() + delay, self.count);
        self.waiting.insert(due, (context.later(number, RequestOrder::Free), text.to_vec()));
        self.woken(context)
    }

    /// Answers what is due, and sees to it that the next is not forgotten.
    fn woken(&mut self, context: &mut Context<'_>) -> std::result::Result<(), BadMessage> {
        while let Some(entry) = self.waiting.first_entry() {
            let (due, _) = *entry.key();
            if due > context.clock().now() {
                context.wake_at(due);
                break;
            }
            let (ticket, text) = entry.remove();
            context.complete(ticket, |reply| reply.extend_from_slice(&text));
        }
        Ok(())
    }
}
