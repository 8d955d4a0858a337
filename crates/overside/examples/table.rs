//! A table from a program: serve it, create it, put rows, and read a range of them back.
//!
//! Server and client are in one process here. Give the address of a running server (`overside serve
//! --listen shm:mine`) and it is the client alone: `cargo run -p overside --example table -- shm:mine`.
use std::error::Error;
use std::ops::Bound;

use overside::table::client::ScanOptions;
use overside::table::row::ValueRef;
use overside::table::schema::{Column, ColumnType, Schema};
use overside::table::server::ServerOptions;
use overside::table::wire::PutMode;

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args().nth(1);
    let address = given.clone().unwrap_or_else(|| format!("shm:table-example-{}", std::process::id()));
    let _server = match given {
        Some(_) => None,
        None => Some(overside::serve(&[&address], ServerOptions::default())?),
    };
    let mut client = overside::connect(&address)?;

    let columns = vec![
        Column::new("id", ColumnType::UInt64),
        Column::new("street", ColumnType::Utf8),
        Column::nullable("price", ColumnType::Float64),
    ];
    let table = client.create_table("example", &Schema::with_key(columns, &["id"])?)?;

    let mut batch = table.batch();
    for id in 0..1000 {
        let price = if id % 2 == 0 { ValueRef::Float64(id as f64 / 4.0) } else { ValueRef::Null };
        batch.push(&[ValueRef::UInt64(id), ValueRef::Utf8("Main Street"), price])?;
    }
    client.put(&table, PutMode::Insert, &batch)?;

    // Both ends are included. How the rows travel is chosen page by page.
    let (from, to) = ([ValueRef::UInt64(500)], [ValueRef::UInt64(503)]);
    let (from, to) = (Bound::Included(&from[..]), Bound::Included(&to[..]));
    let mut scan = client.scan(&table, &ScanOptions { from, to, ..ScanOptions::default() })?;
    while let Some(block) = scan.next_block()? {
        for row in block.rows() {
            // Values lie where they arrived: nothing is copied.
            println!("{} {} {}", row.value(0)?, row.value(1)?, row.value(2)?);
        }
    }
    println!("{} rows", scan.summary().rows);
    drop(scan);
    client.drop_table("example")?;
    Ok(())
}
