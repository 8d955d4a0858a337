//! The table as the demo uses it: loading, scanning with a consumer, scanning to verify.

use crate::{
    limits::{Touched, touch, touch_lent},
    lineitem::{NarrowFile, Row, Rows, schema},
    measure::{Cpu, Split, elapsed_ns, now_ns},
    process::Process,
    rendezvous::Rendezvous,
    report::{Chosen, Sample},
    verify::{Scan as Scanned, Seen, Shown},
};
use anyhow::{Context, Result, bail, ensure};
use overside::table::{
    block::Answer,
    client::{Client, ClientOptions, Received, RemoteTable, ScanOptions, ScanSummary},
    row::{Bytes, RowLayout, RowPart, RowView, ValueRef},
    wire::{Mode, PutMode},
};
use std::{
    ops::{Bound, Range},
    time::{Duration, Instant},
};

type Block = Answer<Received>;

/// The name of the demo's table.
pub(super) const TABLE: &str = "lineitem";

/// A connection to the demo's table.
pub(super) struct Table {
    client: Client,
    table: RemoteTable,
}

/// What a scan is asked for.
#[derive(Clone, Debug)]
pub(super) struct ScanSpec {
    /// Indexes in the generated table.
    pub(super) rows: Range<usize>,
    /// Only [`PROJECTED`].
    pub(super) projected: bool,
}

/// A page of the table, as a scan finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// Index of its first row.
    pub(super) first: usize,
    /// Its rows.
    pub(super) rows: usize,
    /// Delta records on its base page.
    pub(super) deltas: usize,
}

impl Table {
    /// Creates the table at a server that was just started, waiting for it to listen.
    pub(super) fn create(rendezvous: &Rendezvous, server: &mut Process) -> Result<Table> {
        let mut client = connect(rendezvous, || server.alive())?;
        let table = client.create_table(TABLE, &schema()?)?;
        Ok(Table { client, table })
    }

    /// Opens the table.
    pub(super) fn open(rendezvous: &Rendezvous) -> Result<Table> {
        let mut client = connect(rendezvous, || Ok(()))?;
        let table = client.table(TABLE)?;
        Ok(Table { client, table })
    }

    /// Inserts all rows.
    pub(super) fn load(&mut self, rows: &dyn Rows, mut progress: impl FnMut(usize)) -> Result<()> {
        let mut batch = self.table.batch();
        for index in 0..rows.len() {
            batch.push(&rows.row(index).values())?;
            if batch.bytes() >= BATCH_BYTES || index + 1 == rows.len() {
                let applied = self.client.put(&self.table, PutMode::Insert, &batch)?;
                ensure!(
                    applied.applied as usize == batch.len(),
                    "rows were refused while loading: {:?}",
                    applied.failed
                );
                batch.clear();
                progress(index + 1);
            }
        }
        Ok(())
    }

    /// Puts versions of rows.
    pub(super) fn put(&mut self, rows: &mut NarrowFile, versions: &[(usize, i64)]) -> Result<()> {
        let mut batch = self.table.batch();
        for (index, version) in versions {
            batch.push(&rows.at_version(*index, *version)?.values())?;
        }
        let applied = self.client.put(&self.table, PutMode::Upsert, &batch)?;
        ensure!(applied.applied as usize == versions.len(), "updates were refused: {:?}", applied.failed);
        Ok(())
    }

    /// Deletes a row that is there.
    pub(super) fn delete(&mut self, rows: &mut NarrowFile, index: usize) -> Result<()> {
        let (orderkey, linenumber) = rows.key(index)?;
        let key = [ValueRef::Int64(orderkey), ValueRef::Int32(linenumber)];
        ensure!(self.client.delete(&self.table, &key)?, "row {index} to delete was not there");
        Ok(())
    }

    /// User and system time of the server and of this process.
    ///
    /// # Errors
    ///
    /// The server has ended.
    pub(super) fn splits(&self) -> Result<[Split; 2]> {
        Ok([Split::of(self.client.server_pid())?, Split::of(std::process::id())?])
    }

    /// Where columns lie in a whole row.
    pub(super) fn layout(&self) -> &std::sync::Arc<RowLayout> {
        self.table.layout()
    }

    /// Scans as often as asked, one after another, reading what every side of a
    /// comparison reads: of whole rows key, length and a byte of each cache line, of
    /// projected ones the three columns.
    pub(super) fn measure(
        &mut self,
        rows: &dyn Rows,
        specs: &[ScanSpec],
        mode: Mode,
    ) -> Result<(Sample, Touched, ScanSummary)> {
        let before = self.client.stats()?;
        let (start, cpu) = (now_ns(), Cpu::own());
        let mut touched = Touched::default();
        let mut all = ScanSummary::default();
        for spec in specs {
            let consume = if spec.projected { touch_projected } else { touch_whole };
            let summary = self.scan(rows, spec, mode, |block| {
                touched.add(consume(&block)?);
                Ok(())
            })?;
            add(&mut all, &summary);
        }
        let (wall_ns, client_cpu_ns) = (elapsed_ns(start), Cpu::own() - cpu);
        let after = self.client.stats()?;
        let sample = Sample {
            scans: specs.len() as u32,
            rows: touched.rows,
            bytes: touched.bytes,
            wall_ns,
            server_cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns),
            server_poll_ns: after.empty_poll_ns.saturating_sub(before.empty_poll_ns),
            client_cpu_ns,
            server_bytes_copied: all.server.bytes_copied,
            chosen: Chosen::of(all.server.chosen),
        };
        Ok((sample, touched, all))
    }

    /// Scans and keeps of every row what verification needs.
    pub(super) fn observe(&mut self, rows: &dyn Rows, spec: &ScanSpec, mode: Mode) -> Result<(Scanned, Vec<Seen>)> {
        let mut seen = Vec::with_capacity(spec.rows.len());
        let mut broken = None;
        let start_ns = now_ns();
        let mut see = |row: &RowView<'_>| {
            let row = match spec.projected {
                true => Ok(seen_projected(row)),
                false => Row::of_view(row).map(|row| Seen::row(&row)),
            };
            match row {
                Ok(row) => seen.push(row),
                Err(error) => broken = Some(error),
            }
        };
        self.scan(rows, spec, mode, |block| {
            match &block {
                Answer::Copied(block) => block.rows().for_each(|row| see(&row)),
                // What is lent is looked at when it is known to be what was lent.
                Answer::Lent(block) => {
                    for (prefix, rest) in block.read(|rows| rows.map(|row| own(&row)).collect::<Vec<_>>())? {
                        see(&RowView::new(&prefix, &rest, block.layout())?);
                    }
                }
            }
            Ok(())
        })?;
        let end_ns = now_ns();
        match broken {
            Some(error) => bail!("a scanned row is broken: {error}"),
            None => Ok((Scanned { rows: spec.rows.clone(), start_ns, end_ns }, seen)),
        }
    }

    /// The pages that these rows lie in, with the number of deltas on each.
    pub(super) fn pages(&mut self, rows: &dyn Rows, of: Range<usize>) -> Result<Vec<Page>> {
        let mut pages = Vec::new();
        let mut first = of.start;
        let spec = ScanSpec { rows: of.clone(), projected: false };
        self.scan(rows, &spec, Mode::Delta, |block| {
            let Answer::Copied(block) = block else { bail!("a scan by deltas was lent pages") };
            for page in block.pages() {
                pages.push(Page { first, rows: page.rows, deltas: page.deltas });
                first += page.rows;
            }
            Ok(())
        })?;
        ensure!(first == of.end, "a scan of the pages of rows {of:?} returned rows until {first}");
        Ok(pages)
    }

    fn scan(
        &mut self,
        rows: &dyn Rows,
        spec: &ScanSpec,
        mode: Mode,
        mut each: impl FnMut(Block) -> Result<()>,
    ) -> Result<ScanSummary> {
        let bound = |index: usize| (index > 0 && index < rows.len()).then(|| rows.key_values(index));
        let (from, to): (Option<[ValueRef<'_>; 2]>, _) = (bound(spec.rows.start), bound(spec.rows.end));
        let options = ScanOptions {
            from: from.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(key.as_slice())),
            to: to.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice())),
            columns: spec.projected.then_some(&PROJECTED),
            mode,
            ..ScanOptions::default()
        };
        let mut scan = self.client.scan_in_place(&self.table, &options)?;
        while let Some(block) = scan.next_in_place()? {
            each(block)?;
        }
        Ok(scan.summary())
    }
}

/// Where the columns that a consumer reads by value lie in a row's prefix. Looked up once a block:
/// a consumer in a hurry does not ask a row for its layout.
#[derive(Clone, Copy)]
pub(super) struct KeyAt {
    orderkey: usize,
    linenumber: usize,
    price: usize,
}

impl KeyAt {
    /// In rows of this layout, whose columns `orderkey`, `linenumber` and `price` are these.
    pub(super) fn of(layout: &RowLayout, [orderkey, linenumber, price]: [usize; 3]) -> KeyAt {
        let at = |column: usize| match layout.column(column).place {
            RowPart::Fixed { offset, .. } => offset,
            RowPart::Variable { .. } => unreachable!("the key and the price have fixed widths"),
        };
        KeyAt { orderkey: at(orderkey), linenumber: at(linenumber), price: at(price) }
    }

    /// Key, length and a byte of each cache line of a whole row.
    #[inline]
    pub(super) fn touch_whole(self, row: &RowView<'_>) -> Touched {
        self.touched(row, touch)
    }

    /// The same of a row wherever it lies; `touch` reads a byte of each line.
    #[inline]
    fn touched<P: Bytes>(self, row: &RowView<'_, P>, touch: impl Fn(P) -> u64) -> Touched {
        let (prefix, rest) = (row.prefix(), row.rest());
        let orderkey = i64::from_le_bytes(array(prefix, self.orderkey));
        let linenumber = i32::from_le_bytes(array(prefix, self.linenumber));
        let key = (orderkey as u64).wrapping_add(linenumber as u64);
        let sum = key.wrapping_add(touch(prefix)).wrapping_add(touch(rest));
        Touched { rows: 1, bytes: (prefix.len() + rest.len()) as u64, sum }
    }

    /// The three columns of a projected row.
    #[inline]
    fn touch_projected<P: Bytes>(self, row: &RowView<'_, P>) -> Touched {
        let prefix = row.prefix();
        touch_three(
            i64::from_le_bytes(array(prefix, self.orderkey)),
            i32::from_le_bytes(array(prefix, self.linenumber)),
            i128::from_le_bytes(array(prefix, self.price)),
        )
    }
}

#[inline]
fn array<P: Bytes, const WIDTH: usize>(prefix: P, at: usize) -> [u8; WIDTH] {
    prefix.load(at).unwrap_or([0; WIDTH])
}

/// Prefix and rest of a row in memory of one's own.
fn own<P: Bytes>(row: &RowView<'_, P>) -> (Vec<u8>, Vec<u8>) {
    let (mut prefix, mut rest) = (Vec::new(), Vec::new());
    row.prefix().append_to(&mut prefix);
    row.rest().append_to(&mut rest);
    (prefix, rest)
}

/// The three columns of a projected row: their values and their bytes.
#[inline]
fn touch_three(orderkey: i64, linenumber: i32, price: i128) -> Touched {
    let sum = (orderkey as u64).wrapping_add(linenumber as u64).wrapping_add(price as u64);
    Touched { rows: 1, bytes: crate::baseline::PROJECTED_BYTES as u64, sum }
}

/// What [`Table::measure`] reads of a projected row, from the generated data.
pub(super) fn touch_expected(row: &Row<'_>) -> Touched {
    touch_three(row.orderkey, row.linenumber, i128::from(row.extendedprice))
}

fn touch_whole(block: &Block) -> Result<Touched> {
    Ok(match block {
        Answer::Copied(block) => {
            let key = KeyAt::of(block.layout(), PROJECTED);
            sum(block.rows(), |row| key.touch_whole(&row))
        }
        Answer::Lent(block) => {
            let key = KeyAt::of(block.layout(), PROJECTED);
            block.read(|rows| sum(rows, |row| key.touched(&row, touch_lent)))?
        }
    })
}

fn touch_projected(block: &Block) -> Result<Touched> {
    Ok(match block {
        Answer::Copied(block) => {
            let key = KeyAt::of(block.layout(), [0, 1, 2]);
            sum(block.rows(), |row| key.touch_projected(&row))
        }
        Answer::Lent(block) => {
            let key = KeyAt::of(block.layout(), [0, 1, 2]);
            block.read(|rows| sum(rows, |row| key.touch_projected(&row)))?
        }
    })
}

#[inline]
fn sum<R>(rows: impl Iterator<Item = R>, touch: impl Fn(R) -> Touched) -> Touched {
    rows.fold(Touched::default(), |mut all, row| {
        all.add(touch(row));
        all
    })
}

fn seen_projected(row: &RowView<'_>) -> Seen {
    let price = row.i128(2).and_then(|price| i64::try_from(price).ok());
    Seen {
        key: (row.i64(0).unwrap_or_default(), row.i32(1).unwrap_or_default()),
        shown: Shown::Price(price.unwrap_or(i64::MIN)),
    }
}

fn add(all: &mut ScanSummary, one: &ScanSummary) {
    all.rows += one.rows;
    all.row_bytes += one.row_bytes;
    for at in 0..all.server.chosen.len() {
        all.server.chosen[at] += one.server.chosen[at];
        all.server.price_ns[at] += one.server.price_ns[at];
    }
    all.server.messages += one.server.messages;
    all.server.bytes_copied += one.server.bytes_copied;
    all.server.bytes_sent += one.server.bytes_sent;
}

/// Waits for a server that was started a moment ago, as long as it is `alive`.
fn connect(rendezvous: &Rendezvous, mut alive: impl FnMut() -> Result<()>) -> Result<Client> {
    let address = rendezvous.address.to_string();
    let start = Instant::now();
    loop {
        match overside::at(&address).network(&rendezvous.network).client(ClientOptions::default()) {
            Ok(client) => return Ok(client),
            Err(_) if start.elapsed() < PATIENCE => {
                alive()?;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error).with_context(|| format!("the server at {address} does not answer")),
        }
    }
}

/// The projection's columns: the key's two, and the price.
pub(super) const PROJECTED: [usize; 3] = [0, 3, 5];
const BATCH_BYTES: usize = 1 << 20;
/// It measures prices before it listens, which beside many other programs takes many
/// times what it does alone.
const PATIENCE: Duration = Duration::from_secs(120);
