//! Settings, or builds, of a server and its client side by side: each scans a table of its own, in turn, with the limit for copies
//! between them.
//!
//! `cargo run --release -p overside-bench --example sides -- [ROUNDS] [SIDE]…`, a side being `NAME` or `NAME:KEY=VALUE,…` with keys
//! `block` (KiB of a receive buffer), `blocks`, `posted`, `window`, `pinned` (MiB), `mode`, `updates` (fresh ones on each page) and `program`:
//! the path of this example as another build made it.
use anyhow::{Context, Result, bail};
use overside::memory::kernels::Kernel;
use overside::table::client::{Client, ClientOptions, RemoteTable, ScanOptions};
use overside::table::row::{RowPart, ValueRef};
use overside::table::server::ServerOptions;
use overside::table::wire::{Mode, PutMode};
use overside_bench::limits::{Chunks, touch};
use overside_bench::lineitem::{Lineitem, PackedRows, Rows, schema};
use overside_bench::measure::{Cpu, Ratio, Spread, elapsed_ns, median, now_ns, rotation};
use overside_bench::overside;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Bound;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(&arguments[1], &Settings::parse(&arguments[2])?),
        Some("side") => side(&Settings::parse(&arguments[1])?),
        _ => compare(&arguments),
    }
}

/// `KEY=VALUE,…`.
struct Settings(HashMap<String, String>);

impl Settings {
    fn parse(text: &str) -> Result<Settings> {
        let pair = |item: &str| item.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
        let pairs = text.split(',').filter(|item| !item.is_empty()).map(|item| pair(item).context("not KEY=VALUE"));
        Ok(Settings(pairs.collect::<Result<_>>()?))
    }

    fn of<T: FromStr>(&self, key: &str) -> Result<Option<T>> {
        let parse = |value: &String| value.parse().ok().with_context(|| format!("{key}={value} is no such value"));
        self.0.get(key).map(parse).transpose()
    }
}

fn serve(address: &str, settings: &Settings) -> Result<()> {
    let mut options = ServerOptions::default();
    options.window = settings.of("window")?.unwrap_or(options.window);
    options.pinned_max = settings.of::<u64>("pinned")?.map_or(options.pinned_max, |mib| mib << 20);
    let _server = overside::serve(&[address], options)?;
    std::io::stdin().read_line(&mut String::new())?; // until the parent ends
    Ok(())
}

/// A server and its client; a line of standard input asks for a scan, a line of standard output tells of it.
fn side(settings: &Settings) -> Result<()> {
    let address = format!("shm:sides-{}", std::process::id());
    let text = settings.0.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
    let _server =
        Command::new(std::env::current_exe()?).args(["serve", &address, &text]).stdin(Stdio::piped()).spawn()?;
    let mut options = ClientOptions::default();
    options.block_bytes = settings.of::<usize>("block")?.map_or(options.block_bytes, |kib| kib << 10);
    options.blocks = settings.of("blocks")?.unwrap_or(options.blocks);
    options.posted = settings.of("posted")?.or(options.posted);
    let mut client = loop {
        match overside::at(&address).client(options) {
            Ok(client) => break client,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    };
    let generated = Lineitem::generate(settings.of("scale")?.unwrap_or(0.1), 1)?;
    let rows = generated.rows();
    let table = load(&mut client, rows, settings.of("updates")?.unwrap_or(0))?;
    let mode: Mode = settings.of("mode")?.unwrap_or(Mode::Gather);
    println!("ready");
    for (number, line) in std::io::stdin().lock().lines().enumerate() {
        let scans: Vec<[usize; 2]> = match line?.as_str() {
            "range" => (0..40).map(|at| place(rows.len(), number * 40 + at)).collect(),
            _ => vec![[0, rows.len()]],
        };
        let before = client.stats()?.cpu_ns;
        let (start, cpu) = (now_ns(), Cpu::own());
        let (mut count, mut bytes, mut messages) = (0, 0, 0);
        for [from, to] in scans {
            let summary = scan(&mut client, &table, rows, from..to, mode)?;
            (count, bytes, messages) = (count + summary[0], bytes + summary[1], messages + summary[2]);
        }
        let (wall, own) = (elapsed_ns(start), Cpu::own() - cpu);
        let server = client.stats()?.cpu_ns - before;
        println!("{wall} {own} {server} {count} {bytes} {messages}");
    }
    Ok(())
}

fn place(rows: usize, number: usize) -> [usize; 2] {
    let length = rows / 100;
    let start = (number * 7919 * 613) % (rows - length);
    [start, start + length]
}

fn scan(
    client: &mut Client,
    table: &RemoteTable,
    rows: &PackedRows,
    range: std::ops::Range<usize>,
    mode: Mode,
) -> Result<[u64; 3]> {
    let bound = |index: usize| (index > 0 && index < rows.len()).then(|| rows.key_values(index));
    let (from, to): (Option<[ValueRef<'_>; 2]>, _) = (bound(range.start), bound(range.end));
    let options = ScanOptions {
        from: from.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(key.as_slice())),
        to: to.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice())),
        mode,
        ..ScanOptions::default()
    };
    let at = |column: usize| match table.layout().column(column).place {
        RowPart::Fixed { offset, .. } => offset,
        RowPart::Variable { .. } => 0,
    };
    let (order, line) = (at(0), at(3));
    let mut sum = 0u64;
    let mut scan = client.scan(table, &options)?;
    while let Some(block) = scan.next_block()? {
        sum = block.rows().fold(sum, |sum, row| {
            let (prefix, rest) = (row.prefix(), row.rest());
            let order = u64::from_le_bytes(prefix[order..order + 8].try_into().unwrap_or_default());
            let line = u32::from_le_bytes(prefix[line..line + 4].try_into().unwrap_or_default());
            sum.wrapping_add(order).wrapping_add(u64::from(line)).wrapping_add(touch(prefix)).wrapping_add(touch(rest))
        });
    }
    std::hint::black_box(sum);
    let summary = scan.summary();
    Ok([summary.rows, summary.row_bytes, summary.server.messages])
}

fn load(client: &mut Client, rows: &PackedRows, updates: usize) -> Result<RemoteTable> {
    let table = client.create_table("lineitem", &schema()?)?;
    let mut batch = table.batch();
    for index in 0..rows.len() {
        batch.push(&rows.row(index).values())?;
        if batch.bytes() >= 1 << 20 || index + 1 == rows.len() {
            client.put(&table, PutMode::Insert, &batch)?;
            batch.clear();
        }
    }
    // What loading left as deltas is consolidated, and then each page gets as many as were asked for.
    for update in 0..9 + updates {
        let mut scan = client.scan(&table, &ScanOptions { mode: Mode::Delta, ..ScanOptions::default() })?;
        let (mut first, mut due) = (0, Vec::new());
        while let Some(block) = scan.next_block()? {
            for page in block.pages() {
                let wanted = if update < 9 { page.deltas > 0 } else { page.rows > 20 };
                if wanted {
                    due.push(first + (update % 9) * page.rows / 9);
                }
                first += page.rows;
            }
        }
        drop(scan);
        for index in due {
            batch.push(&rows.at_version(index, update as i64 + 1).values())?;
        }
        client.put(&table, PutMode::Upsert, &batch)?;
        batch.clear();
    }
    Ok(table)
}

struct Side {
    name: String,
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
    samples: Vec<[f64; 6]>,
}

fn start(text: &str) -> Result<Side> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let program = Settings::parse(settings)?.of::<String>("program")?;
    let program = program.map_or_else(std::env::current_exe, |path| Ok(path.into()))?;
    let mut child =
        Command::new(program).args(["side", settings]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let answers = BufReader::new(child.stdout.take().context("it has an output")?);
    Ok(Side { name: name.to_owned(), child, answers, samples: Vec::new() })
}

impl Side {
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("side {} ended", self.name);
        }
        Ok(line)
    }

    fn run(&mut self, what: &str) -> Result<()> {
        writeln!(self.child.stdin.as_mut().context("it has an input")?, "{what}")?;
        let numbers: Vec<f64> = self.line()?.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        self.samples.push(numbers.try_into().ok().context("six numbers")?);
        Ok(())
    }
}

fn compare(arguments: &[String]) -> Result<()> {
    let rounds: usize = arguments.first().map_or(Ok(10), |text| text.parse())?;
    let mut sides = Vec::new();
    for text in arguments.iter().skip(1) {
        // One after another: a server that starts measures what its device costs.
        let mut side = start(text)?;
        side.line()?;
        sides.push(side);
    }
    let generated = Lineitem::generate(0.1, 1)?;
    let mut chunks = Chunks::lay_out(generated.rows(), 16 << 10, 1 << 20)?;
    drop(generated);
    let mut kernels = Kernel::available();
    kernels.sort_by_cached_key(|kernel| (0..5).map(|_| chunks.chunked(*kernel, 1) as u64).max());
    let fastest = *kernels.last().context("there is a kernel")?;
    for what in ["full", "range"] {
        let mut limit = Vec::new();
        sides.iter_mut().for_each(|side| side.samples.clear());
        for round in 0..rounds + 1 {
            for at in rotation(sides.len() + 1, round) {
                match sides.get_mut(at) {
                    Some(side) => side.run(what)?,
                    None => limit.push(chunks.chunked(fastest, 1)),
                }
            }
        }
        println!("{what}:");
        report(&sides, &limit[1..]);
    }
    for side in &mut sides {
        drop(side.child.stdin.take());
        side.child.wait()?;
    }
    Ok(())
}

fn report(sides: &[Side], limit: &[f64]) {
    let spread = Spread::of(limit);
    println!(
        "limit {:.2} GB/s ({:.2}-{:.2})",
        spread.median / 1e9,
        spread.quarter_low / 1e9,
        spread.quarter_high / 1e9
    );
    let rate = |side: &Side| side.samples[1..].iter().map(|s| s[4] / s[0] * 1e9).collect::<Vec<_>>();
    let first = rate(&sides[0]);
    let text =
        |ratio: Option<Ratio>| ratio.map_or("-".into(), |r| format!("{:.3} [{:.2}, {:.2}]", r.median, r.low, r.high));
    for side in sides {
        let own = rate(side);
        let a_row = |at: usize| median(&side.samples[1..].iter().map(|s| s[at] / s[3]).collect::<Vec<_>>());
        println!(
            "{:14} {:5.2} GB/s  of limit {}  of first {}  wall {:.1} client {:.1} server {:.1} ns a row  {:.0} messages",
            side.name,
            median(&own) / 1e9,
            text(Ratio::paired(&own, limit)),
            text(Ratio::paired(&own, &first)),
            a_row(0),
            a_row(1),
            a_row(2),
            side.samples[1][5],
        );
    }
}
