//! `overside status`

use super::connect;
use crate::args::Status;
use crate::output::{self, Grid, grouped};
use anyhow::Result;
use overside::table::wire::{DataStatus, GovernorStatus};
use serde_json::{Value, json};

/// Shows a server's tables, its log and its checkpoints.
///
/// # Errors
/// Nobody serves there, or standard output is closed.
pub fn run(args: &Status) -> Result<()> {
    let mut client = connect(&args.addr, &args.network)?;
    let (tables, status) = (client.tables()?, client.status()?);
    if args.json {
        let tables: Vec<Value> = tables
            .iter()
            .map(|table| json!({ "name": table.name, "rows": table.rows, "pages": table.pages, "bytes": table.bytes }))
            .collect();
        return output::line(&json!({ "tables": tables, "data": status.as_ref().map(described) }).to_string());
    }
    let mut grid = Grid::new(&["table", "rows", "pages", "bytes"], &[false, true, true, true]);
    for table in tables {
        grid.push(vec![table.name, grouped(table.rows), grouped(table.pages), grouped(table.bytes)]);
    }
    if grid.len() == 0 {
        output::line("no tables")?;
    } else {
        output::text(&grid.render())?;
    }
    match status {
        None => output::line("\nin memory alone: the tables are gone when the server ends (serve --data keeps them)"),
        Some(status) => output::text(&shown(&status)),
    }
}

fn shown(status: &DataStatus) -> String {
    let now = if status.is_checkpointing { ", one being written" } else { "" };
    format!(
        "\ndata        {} ({}, by {})\n\
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
