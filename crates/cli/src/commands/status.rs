//! `overside status`

use super::connect;
use super::tables::{grid, summary};
use crate::args::Status;
use crate::output::{self, grouped};
use crate::signals::Signals;
use anyhow::Result;
use overside::table::client::Client;
use overside::table::wire::{DataStatus, GovernorStatus, Held, MODES, PiecePrice, PriceList, ServerStats, TableInfo};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Shows a server's tables, its log and its checkpoints; again and again with `--watch`.
///
/// # Errors
/// Nobody serves there, or standard output is closed.
pub fn run(args: &Status) -> Result<()> {
    let mut client = connect(&args.at)?;
    let Some(seconds) = args.watch else { return Look::new(&mut client)?.print(args, None) };
    let signals = Signals::take()?;
    let every = Duration::from_secs(seconds.into());
    let mut before: Option<Look> = None;
    loop {
        let look = Look::new(&mut client)?;
        if !args.at.json && std::io::stdout().is_terminal() {
            // The cursor to the upper left, and what was there away.
            output::text("\x1b[H\x1b[2J")?;
        }
        look.print(args, before.as_ref())?;
        let again = look.at + every;
        before = Some(look);
        while Instant::now() < again {
            if signals.check().is_err() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50).min(again.saturating_duration_since(Instant::now())));
        }
    }
}

/// What a server said at one moment.
struct Look {
    at: Instant,
    tables: Vec<TableInfo>,
    stats: ServerStats,
    data: Option<DataStatus>,
    prices: Option<PriceList>,
    held: Option<Held>,
}

impl Look {
    fn new(client: &mut Client) -> Result<Look> {
        let (tables, stats, data, prices) = (client.tables()?, client.stats()?, client.status()?, client.prices()?);
        Ok(Look { at: Instant::now(), tables, stats, data, prices, held: client.held()? })
    }

    fn print(&self, args: &Status, before: Option<&Look>) -> Result<()> {
        let rates = before.map(|before| self.rates(before));
        if args.at.json {
            let tables: Vec<Value> = self.tables.iter().map(summary).collect();
            let stats = &self.stats;
            let mut told = json!({
                "tables": tables,
                "pid": stats.pid,
                "connections": stats.connections,
                "waiting": stats.waiting,
                "closed_for_cause": stats.closed_for_cause,
                "memory": {
                    "committed": stats.bytes_committed,
                    "allocated": stats.bytes_allocated,
                    "pinned": stats.bytes_pinned,
                    "held": self.held.as_ref().map(holding),
                },
                "cpu_s": stats.cpu_ns as f64 / 1e9,
                "data": self.data.as_ref().map(described),
                "prices": self.prices.as_ref().map(listed),
            });
            if let Some(rates) = rates {
                told["rates"] = json!({
                    "rows_per_s": rates.rows,
                    "consolidations_per_s": rates.consolidations,
                    "cpu": rates.cpu,
                    "log_bytes_per_s": rates.log,
                });
            }
            return output::line(&told.to_string());
        }
        output::text(&grid(&self.tables))?;
        output::text(&self.process(rates.as_ref()))?;
        output::text(&self.prices.as_ref().map_or(String::new(), priced))?;
        match &self.data {
            None => output::line("in memory alone: the tables are gone when the server ends (serve --data keeps them)"),
            Some(status) => output::text(&shown(status)),
        }
    }

    fn process(&self, rates: Option<&Rates>) -> String {
        let stats = &self.stats;
        let waiting = match stats.waiting {
            0 => String::new(),
            waiting => format!(", {} of them wait for memory that others hold back", grouped(waiting)),
        };
        let closed = match stats.closed_for_cause {
            0 => String::new(),
            closed => format!("; {} were closed for what they sent or took no more", grouped(closed)),
        };
        let rates = rates.map_or(String::new(), |rates| {
            let log = rates.log.map_or(String::new(), |log| format!(", {} bytes of log", grouped(log as u64)));
            format!(
                "a second    {:+.0} rows, {} consolidations, {:.2} s of processor{log}\n",
                rates.rows,
                grouped(rates.consolidations as u64),
                rates.cpu
            )
        });
        format!(
            "\nserver      process {}, {:.1} s of processor time\n\
             connections {}{waiting}{closed}\n\
             memory      {} bytes, {} of them in use, {} held by scans{}\n{rates}",
            stats.pid,
            stats.cpu_ns as f64 / 1e9,
            grouped(stats.connections),
            grouped(stats.bytes_committed),
            grouped(stats.bytes_allocated),
            grouped(stats.bytes_pinned),
            self.held.as_ref().map_or(String::new(), held),
        )
    }

    fn rates(&self, before: &Look) -> Rates {
        let seconds = (self.at - before.at).as_secs_f64().max(1e-9);
        let rows = |look: &Look| look.tables.iter().map(|table| table.rows as f64).sum::<f64>();
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            rows: (rows(self) - rows(before)) / seconds,
            consolidations: per_s(self.stats.consolidations, before.stats.consolidations),
            cpu: per_s(self.stats.cpu_ns, before.stats.cpu_ns) / 1e9,
            log: self
                .data
                .as_ref()
                .zip(before.data.as_ref())
                .map(|(now, before)| per_s(now.log_position, before.log_position)),
        }
    }
}

/// What happened in a second, between two looks.
struct Rates {
    /// More rows, or fewer.
    rows: f64,
    consolidations: f64,
    /// Seconds of processor time.
    cpu: f64,
    /// Bytes of the log.
    log: Option<f64>,
}

fn shown(status: &DataStatus) -> String {
    let now = if status.is_checkpointing { ", one being written" } else { "" };
    format!(
        "data        {} ({}, by {})\n\
         log         {} bytes, of which {} have what that promises; {} since the last checkpoint began\n\
         checkpoints {} since the start{now}\n\
         governor    {}\n",
        status.dir,
        status.durability.name(),
        status.way,
        grouped(status.log_position),
        grouped(status.log_durable),
        grouped(status.since_checkpoint),
        grouped(status.checkpoints),
        paced(&status.governor),
    )
}

/// What is held beside what scans hold, and who stalls.
fn held(held: &Held) -> String {
    let stall = held.stall.as_ref().map_or(String::new(), |stall| {
        let seconds = stall.ns as f64 / 1e9;
        format!("; thread {} has been inside table {} for {seconds:.1} s", stall.thread, stall.table)
    });
    format!(", {} by readers and writers{stall}", grouped(held.by_epochs))
}

fn holding(held: &Held) -> Value {
    let stall = held.stall.as_ref();
    json!({
        "pins": held.pins,
        "pinned_bytes": held.by_pins,
        "epochs_bytes": held.by_epochs,
        "stall": stall.map(|stall| json!({ "table": stall.table, "thread": stall.thread, "s": stall.ns as f64 / 1e9 })),
    })
}

/// What sending is thought to cost, server and client apart.
fn priced(prices: &PriceList) -> String {
    let both = |(server, client): (f64, f64)| format!("{server:.0} + {client:.0}");
    let pieces = prices.pieces.iter().map(|piece| {
        let (copied, gathered) = (both(piece.copied_ns), both(piece.gathered_ns));
        format!("            {} bytes: copied {copied} ns, gathered {gathered} ns\n", grouped(piece.bytes))
    });
    let beyond = MODES.iter().zip(prices.beyond_ns).map(|(mode, beyond)| {
        let beyond = beyond.map_or("unknown".to_owned(), |ns| format!("{ns:+}"));
        format!("{} {beyond}", mode.name())
    });
    format!(
        "prices      {}; at the server + at the client: a request {} ns\n{}            a page beyond these, ns, as measured of late: {}\n",
        prices.source,
        both(prices.request_ns),
        pieces.collect::<String>(),
        beyond.collect::<Vec<_>>().join(", "),
    )
}

fn listed(prices: &PriceList) -> Value {
    let both = |(server, client): (f64, f64)| json!({ "server": server, "client": client });
    let piece = |piece: &PiecePrice| json!({ "bytes": piece.bytes, "copied_ns": both(piece.copied_ns), "gathered_ns": both(piece.gathered_ns) });
    let beyond: serde_json::Map<String, Value> =
        MODES.iter().zip(prices.beyond_ns).map(|(mode, beyond)| (mode.name().to_owned(), beyond.into())).collect();
    json!({
        "source": prices.source,
        "request_ns": both(prices.request_ns),
        "pieces": prices.pieces.iter().map(piece).collect::<Vec<_>>(),
        "beyond_ns": beyond,
    })
}

fn paced(governor: &GovernorStatus) -> String {
    let us = |ns: Option<u64>| ns.map_or("unknown".to_owned(), |ns| format!("{} µs", grouped(ns.div_ceil(1000))));
    format!(
        "{} MiB/s for checkpoints, halved {} times; requests take (p99.9) {}, undisturbed {}",
        grouped(governor.pace >> 20),
        grouped(governor.halvings),
        us(governor.p999_ns),
        us(governor.undisturbed_ns),
    )
}

fn described(status: &DataStatus) -> Value {
    json!({
        "dir": status.dir,
        "durability": status.durability.name(),
        "way": status.way,
        "log_position": status.log_position,
        "log_durable": status.log_durable,
        "since_checkpoint": status.since_checkpoint,
        "checkpoints": status.checkpoints,
        "checkpointing": status.is_checkpointing,
        "governor": {
            "pace": status.governor.pace,
            "p999_ns": status.governor.p999_ns,
            "undisturbed_ns": status.governor.undisturbed_ns,
            "halvings": status.governor.halvings,
        },
    })
}
