//! What of a request is its transfer: beside each goes an echo that asks and answers as
//! many bytes without work.

use super::ROWS;
use crate::{
    figures::{
        Figure, Over, Setting,
        figure::{Table, shown},
        tables::{
            clients::{Worker, quantile, row, scattered},
            echo::Echo,
            server::{Kept, Served, VALUE_BYTES},
        },
    },
    measure::{Ratio, alternate, elapsed_ns, now_ns},
};
use anyhow::Result;
use overside::table::{
    row::RowBuilder,
    wire::{self, Applied, Bounds, Mode, PutMode, Reply, Request, ScanReply, ScanRequest},
};
use std::path::Path;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    Put,
    /// [`RANGE_ROWS`] rows that lie together.
    Range,
}

/// Table server, client and echo over one provider.
pub(super) struct Transport {
    pub(super) name: &'static str,
    _served: Served,
    worker: Worker,
    echo: Echo,
    /// Bytes of each kind's request and of its reply, without heads.
    bytes: [(usize, usize); Operation::ALL.len()],
}

impl Operation {
    pub(super) const ALL: [Operation; 3] = [Operation::Get, Operation::Put, Operation::Range];

    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::Range => "range",
        }
    }

    pub(super) fn series(self, transport: &str) -> String {
        format!("split {}, p50 ns: {transport}", self.name())
    }

    pub(super) fn echo_series(self, transport: &str) -> String {
        format!("echo of a {}, p50 ns: {transport}", self.name())
    }
}

impl Transport {
    fn start(over: &Over, name: &'static str) -> Result<Transport> {
        let served = Served::start(over, Kept::Memory, Path::new(""), false)?;
        let mut worker = Worker::new(&served, ROWS, 3)?;
        worker.fill(|number| scattered(number, ROWS))?;
        let bytes = bytes(&mut worker)?;
        Ok(Transport { name, _served: served, worker, echo: Echo::start(over)?, bytes })
    }

    fn request(&mut self, kind: Operation) -> Result<()> {
        match kind {
            Operation::Get => self.worker.get(),
            Operation::Put => self.worker.put(1),
            Operation::Range => self.worker.read(RANGE_ROWS, Mode::Copy).map(drop),
        }
    }
}

/// What each kind asks and is answered.
fn bytes(worker: &mut Worker) -> Result<[(usize, usize); Operation::ALL.len()]> {
    let table = worker.table().info().id;
    let row_bytes = RowBuilder::new(worker.table().layout().clone()).encode(&row(0, &[0; VALUE_BYTES]))?.len();
    let long = |request: &Request<'_>| appended(request);
    // A key of 8 bytes takes 8.
    let key = [0; 8];
    let bounds = Bounds { from: Some((&key, true)), to: Some((&key, true)) };
    let range = ScanRequest { table, bounds, columns: None, mode: Mode::Copy, rows_max: None };
    let end = worker.read(RANGE_ROWS, Mode::Copy)?.1;
    let applied = Applied { rows: 1, applied: 1, replaced: 1, failed: Vec::new() };
    Ok([
        (long(&Request::Get { table, key: &key }), appended(&Reply::Row(Some(vec![0; row_bytes])))),
        (
            long(&Request::Put { table, mode: PutMode::Upsert, rows: &vec![0; 4 + row_bytes] }),
            appended(&Reply::Applied(applied)),
        ),
        (long(&Request::Scan(range)), end.bytes_sent as usize + appended(&Reply::ScanEnd(ScanReply { ..end }))),
    ])
}

fn appended<T: serde::Serialize>(body: &T) -> usize {
    let mut out = Vec::new();
    wire::append(&mut out, body);
    out.len()
}

/// Requests and their echoes, side by side, over this figure's provider and over TCP.
pub(super) fn measure(setting: &Setting<'_>, figure: &mut Figure) -> Result<Vec<Transport>> {
    let tcp = Over::new(TCP, None)?;
    let own = overside::Transport::names().find(|name| *name == setting.over.name()).unwrap_or(TCP);
    let mut transports = vec![Transport::start(setting.over, own)?];
    if own != TCP {
        transports.push(Transport::start(&tcp, TCP)?);
    }
    let (kinds, rounds, mut done) = (Operation::ALL.len(), setting.rounds(), 0);
    let sides = transports.len() * kinds * 2;
    let samples = alternate(sides, rounds, |side, _| -> Result<f64> {
        done += 1;
        setting.progress.part("mixed: requests and echoes", done, rounds * sides);
        let (transport, kind) = (&mut transports[side / (2 * kinds)], side / 2 % kinds);
        let (asks, gets) = transport.bytes[kind];
        let (start, mut times) = (now_ns(), Vec::new());
        let mut at = start;
        while elapsed_ns(start) < setting.slice_ns() {
            if side % 2 == 0 {
                transport.request(Operation::ALL[kind])?;
            } else {
                transport.echo.exchange(asks, gets)?;
            }
            let now = now_ns();
            times.push(now - at);
            at = now;
        }
        Ok(quantile(&times, 0.5))
    })?;
    for (side, values) in samples.into_iter().enumerate() {
        let (transport, kind) = (&transports[side / (2 * kinds)], Operation::ALL[side / 2 % kinds]);
        let series = if side % 2 == 0 { kind.series(transport.name) } else { kind.echo_series(transport.name) };
        figure.record(series, 0, values);
    }
    Ok(transports)
}

/// Times and shares, by transport and kind.
pub(super) fn table(figure: &Figure, transports: &[Transport]) -> Table {
    let mut rows = Vec::new();
    for transport in transports {
        for (kind, (asks, gets)) in Operation::ALL.into_iter().zip(transport.bytes) {
            let (whole, echo) = (kind.series(transport.name), kind.echo_series(transport.name));
            let micro = |series: &str| format!("{:.1}", figure.spread_of(series).median / 1e3);
            let share = Ratio::paired(figure.values_of(&echo), figure.values_of(&whole));
            rows.push(vec![
                format!("{} over {}", kind.name(), transport.name),
                asks.to_string(),
                gets.to_string(),
                micro(&whole),
                micro(&echo),
                shown(share),
            ]);
        }
    }
    let head = ["", "asks B", "answers B", "p50 µs", "its echo µs", "share of it"];
    Table {
        caption: format!("Requests beside echoes of as many bytes; a range has {RANGE_ROWS} rows"),
        head: head.map(str::to_owned).to_vec(),
        rows,
    }
}

const TCP: &str = "tcp";
/// Less than a message.
const RANGE_ROWS: u64 = 100;
