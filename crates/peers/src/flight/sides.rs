//! The clients: row views, Arrow batches, Flight.

use anyhow::{Context, Result, bail, ensure};
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_flight::Ticket;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_schema::DataType;
use futures_util::stream::{StreamExt, TryStreamExt};
use overside_bench::limits::{Touched, touch};
use overside_bench::lineitem::{PackedRows, schema};
use overside_bench::overside::table::arrow::BatchBuilder;
use overside_bench::overside::table::client::{Client, RemoteTable, ScanOptions};
use overside_bench::overside::table::projection::Projection;
use overside_bench::overside::table::row::{RowLayout, RowPart};
use overside_bench::overside::table::wire::PutMode;
use tonic::transport::{Channel, Endpoint};

use super::service::Tuning;

/// A connection to Overside's table.
pub struct Overside {
    client: Client,
    table: RemoteTable,
    /// For one scan after the other: what a batch took serves the next.
    builder: BatchBuilder,
}

impl Overside {
    /// Creates the table and loads it.
    pub fn load(mut client: Client, rows: &PackedRows) -> Result<Self> {
        let table = client.create_table(TABLE, &schema()?)?;
        let mut batch = table.batch();
        for index in 0..rows.len() {
            batch.push(&rows.row(index).values())?;
            if batch.bytes() >= 1 << 20 || index + 1 == rows.len() {
                let applied = client.put(&table, PutMode::Insert, &batch)?;
                ensure!(applied.applied as usize == batch.len(), "rows were refused: {:?}", applied.failed);
                batch.clear();
            }
        }
        Ok(Self::of(client, table))
    }

    /// The table that is there.
    pub fn open(mut client: Client) -> Result<Self> {
        let table = client.table(TABLE)?;
        Ok(Self::of(client, table))
    }

    fn of(client: Client, table: RemoteTable) -> Self {
        let builder = BatchBuilder::new(table.schema(), &Projection::whole(table.schema()));
        Self { client, table, builder }
    }

    pub fn server_pid(&self) -> u32 {
        self.client.server_pid()
    }

    /// Scans once; reads key, length and a byte of each cache line of every row.
    pub fn views(&mut self) -> Result<Touched> {
        let keys = key_places(self.table.layout())?;
        let mut touched = Touched::default();
        let mut scan = self.client.scan(&self.table, &ScanOptions::default())?;
        while let Some(block) = scan.next_block()? {
            touched = block.rows().fold(touched, |mut touched, row| {
                let (prefix, rest) = (row.prefix(), row.rest());
                let key = u64::from(prefix[keys[0]]).wrapping_add(u64::from(prefix[keys[1]]));
                touched.add(Touched {
                    rows: 1,
                    bytes: (prefix.len() + rest.len()) as u64,
                    sum: key.wrapping_add(touch(prefix)).wrapping_add(touch(rest)),
                });
                touched
            });
        }
        Ok(touched)
    }

    /// Scans once into Arrow batches of at least `rows` rows and hands them on.
    pub fn batches(&mut self, rows: usize, mut each: impl FnMut(RecordBatch) -> Result<()>) -> Result<()> {
        let mut scan = self.client.scan(&self.table, &ScanOptions::default())?;
        let builder = &mut self.builder;
        while let Some(block) = scan.next_block()? {
            builder.push(&block)?;
            if builder.rows() >= rows {
                each(builder.finish()?)?;
            }
        }
        if builder.rows() > 0 {
            each(builder.finish()?)?;
        }
        Ok(())
    }
}

fn key_places(layout: &RowLayout) -> Result<[usize; 2]> {
    let place = |column: usize| match layout.column(column).place {
        RowPart::Fixed { offset, .. } => Ok(offset),
        RowPart::Variable { .. } => bail!("the key has fixed widths"),
    };
    Ok([place(0)?, place(3)?])
}

/// A connection to the Flight server.
pub struct Flight {
    runtime: tokio::runtime::Runtime,
    client: FlightServiceClient<Channel>,
}

impl Flight {
    pub fn connect(address: &str, tuning: Tuning) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        if tuning == Tuning::Tuned {
            endpoint = endpoint
                .initial_stream_window_size(super::WINDOW_BYTES)
                .initial_connection_window_size(super::WINDOW_BYTES)
                .tcp_nodelay(true);
        }
        let channel = runtime.block_on(endpoint.connect()).context("the Flight server does not answer")?;
        let mut client = FlightServiceClient::new(channel);
        if tuning == Tuning::Tuned {
            client = client.max_decoding_message_size(64 << 20);
        }
        Ok(Self { runtime, client })
    }

    /// Gets all batches of `rows` rows once and hands them on.
    pub fn batches(&mut self, rows: usize, mut each: impl FnMut(RecordBatch) -> Result<()>) -> Result<()> {
        self.runtime.block_on(async {
            let ticket = Ticket { ticket: rows.to_string().into() };
            let answer = self.client.do_get(ticket).await?.into_inner().map_err(FlightError::from);
            let mut batches = FlightRecordBatchStream::new_from_flight_data(answer);
            while let Some(batch) = batches.next().await {
                each(batch?)?;
            }
            Ok(())
        })
    }
}

/// What a consumer of batches reads, of either side's: a byte of each cache line of every buffer,
/// which of strings are the ends and the text. Its `bytes` are those of the buffers.
pub fn read(batch: &RecordBatch) -> Touched {
    let (mut sum, mut bytes) = (0u64, 0);
    for column in batch.columns() {
        for buffer in column.to_data().buffers() {
            sum = sum.wrapping_add(touch(buffer));
            bytes += buffer.len() as u64;
        }
    }
    Touched { rows: batch.num_rows() as u64, bytes, sum }
}

/// Over what the batch says, however it is cut: the same for both sides when they deliver the same.
pub fn digest(batch: &RecordBatch) -> Result<Touched> {
    let mut sum = 0u64;
    for column in batch.columns() {
        match column.data_type() {
            DataType::Utf8 => sum = strings(sum, column.as_string::<i32>().iter()),
            fixed if fixed.is_primitive() => {
                let data = column.to_data();
                let width = fixed.primitive_width().unwrap_or(1);
                let values = data.buffers().first().context("a column of fixed width has values")?;
                let values = &values[data.offset() * width..][..data.len() * width];
                sum = values
                    .iter()
                    .zip((0..width).cycle())
                    .fold(sum, |sum, (byte, at)| sum.wrapping_add(u64::from(*byte) << (8 * (at % 8))));
            }
            other => bail!("a column of lineitem has type {other}"),
        }
    }
    Ok(Touched { rows: batch.num_rows() as u64, bytes: 0, sum })
}

fn strings<'a>(sum: u64, values: impl Iterator<Item = Option<&'a str>>) -> u64 {
    values.flatten().fold(sum, |sum, value| {
        let bytes = value.bytes().fold(0u64, |all, byte| all.wrapping_mul(31).wrapping_add(u64::from(byte)));
        sum.wrapping_add(bytes).wrapping_add((value.len() as u64) << 40)
    })
}

const TABLE: &str = "lineitem";
