//! What idle clients cost a server: processor share and memory, measured from outside of it.
//!
//! `cargo run --release -p overside --example idle -- [CLIENTS] [SECONDS]`
use std::time::{Duration, Instant};

use overside::table::server::ServerOptions;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, address] = arguments.as_slice()
        && serve == "serve"
    {
        let _server = overside::serve(&[address], ServerOptions::default())?;
        std::io::stdin().read_line(&mut String::new())?; // until the parent ends
        return Ok(());
    }
    let number = |at: usize, default: u64| arguments.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (count, seconds) = (number(0, 1000), number(1, 5));
    let address = format!("shm:idle-example-{}", std::process::id());
    let mut server = std::process::Command::new(std::env::current_exe()?)
        .args(["serve", &address])
        .stdin(std::process::Stdio::piped())
        .spawn()?;
    let mut observer = loop {
        match overside::connect(&address) {
            Ok(client) => break client,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    // A server of this process would raise the limit of descriptors; its clients need it as well.
    let _own = overside::serve(&[&format!("{address}-own")], ServerOptions::default())?;
    let before = memory(server.id())?;
    let start = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(overside::connect(&address)?);
    }
    println!("{count} clients connected in {:.2?}", start.elapsed());
    std::thread::sleep(Duration::from_secs(1));
    let after = memory(server.id())?;
    let (start, cpu) = (Instant::now(), observer.stats()?.cpu_ns);
    std::thread::sleep(Duration::from_secs(seconds));
    let share = (observer.stats()?.cpu_ns - cpu) as f64 / start.elapsed().as_nanos() as f64;
    println!("server: {:.3} % of a core over {:.1?}", share * 100.0, start.elapsed());
    println!(
        "server: {:.1} KiB a client (resident, shared memory of its own included)",
        (after - before) / count as f64
    );
    let busy = clients.iter_mut().map(|client| client.tables()).collect::<std::result::Result<Vec<_>, _>>()?;
    println!("all {} still answer", busy.len());
    drop((clients, observer, server.stdin.take()));
    server.wait()?;
    Ok(())
}

/// Resident KiB of a process: private, and shared memory that it maps.
fn memory(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> f64 {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
    };
    Ok(field("VmRSS:"))
}
