//! What an atomic costs beside a plain operation: a word of the peer's memory, written by WRITE and
//! added to by FETCH_ADD, each request alone (rdma-sockets, variant 2).

use super::super::{
    Setting,
    figure::{Figure, Table, shown},
    receiver::Command,
    sender::Sender,
};
use crate::measure::{Ratio, Spread, alternate};
use anyhow::{Context, Result, ensure};
use overside::{
    memory::{Buffer, View},
    shape::{Run, Shape},
    verbs::{Atomic, AtomicScope, Opcode, Remote, WorkCompletion, WorkRequest, Writable},
};
use std::sync::Arc;

pub(super) fn measure(
    setting: &Setting<'_>,
    sender: &mut Sender,
    region: &Arc<Buffer>,
    figure: &mut Figure,
) -> Result<()> {
    if !sender.capabilities.one_sided || sender.capabilities.atomics == AtomicScope::None {
        return Ok(());
    }
    setting.progress.say("costs: a word of the peer's");
    sender.connect(1, WORD_BYTES, 8)?;
    let window = sender.ask(0, Command::Offer { bytes: WINDOW_BYTES })?.writable.context("no memory is offered")?;
    let word = WORD_BYTES as u64;
    let written = Remote::<Writable>::new(window).part(0, word)?;
    let raised = Remote::<Atomic>::new(window).part(64, word)?;
    let shape = Shape::list(&[Run::new(0, word)])?;
    let mut added = 0;
    let samples = alternate(SERIES.len(), setting.rounds(), |side, _| -> Result<f64> {
        if side == 0 {
            let mut next = || -> Result<_> { Ok(WorkRequest::write(0, View::of(region, &shape)?, written)) };
            return sender.one_by_one(&mut next, &mut drop, setting.slice_ns());
        }
        let mut next = || Ok(WorkRequest::fetch_add(0, raised, 1));
        let mut wrong = false;
        let mut check = |done: WorkCompletion| {
            if done.opcode == Opcode::FetchAdd {
                wrong |= done.value != added;
                added += 1;
            }
        };
        let each = sender.one_by_one(&mut next, &mut check, setting.slice_ns())?;
        ensure!(!wrong && added > 0, "a FETCH_ADD found another number than the one before had left");
        Ok(each)
    })?;
    for (series, values) in SERIES.into_iter().zip(samples) {
        figure.record(series, word, values);
    }
    Ok(())
}

/// None where there are no atomics.
pub(super) fn table(figure: &Figure) -> Option<Table> {
    let [(_, write), (_, add)] = SERIES.map(|series| figure.recorded(series).next().unwrap_or_default());
    if add.is_empty() {
        return None;
    }
    let micro = |values: &[f64]| format!("{:.2}", Spread::of(values).median / 1e3);
    let rows = vec![vec!["a word of 8 B".to_owned(), micro(write), micro(add), shown(Ratio::paired(add, write))]];
    let head = ["", "WRITE, µs", "FETCH_ADD, µs", "FETCH_ADD over WRITE"].map(str::to_owned).to_vec();
    let caption = "A word of the peer's memory, from the post of its request to the completion".into();
    Some(Table { caption, head, rows })
}

const SERIES: [&str; 2] = ["a word, ns: WRITE", "a word, ns: FETCH_ADD"];
const WORD_BYTES: usize = 8;
const WINDOW_BYTES: u64 = 4096;
