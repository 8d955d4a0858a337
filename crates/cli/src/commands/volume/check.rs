//! `overside volume check`

use super::{attach, named, status};
use crate::args::CheckVolume;
use crate::output::{self, Progress, grouped};
use anyhow::{Context, Result, bail};
use overside::verbs::SystemClock;
use overside::volume::client::{LinkOptions, Volume};
use overside::volume::wire::Role;
use overside::volume::{Device, DeviceError, Work, complete};
use serde_json::{Value, json};
use std::time::Duration;

/// Reads every member of a volume, and says what is wrong.
///
/// # Errors
/// The node does not let this side in, or something is wrong and stays so.
pub fn run(args: &CheckVolume) -> Result<()> {
    let (address, name) = named(&args.at.volume)?;
    let report = status::report(address, name, &args.at.network)?;
    let volume = report.volumes.first().context("the node says nothing of the volume")?;
    let places: Vec<&str> = volume.members.iter().map(|member| member.place.as_str()).collect();
    let options = LinkOptions { role: Role::Reader, ..LinkOptions::default() };
    let mut device = attach(&args.at, options)?;
    let bytes = device.geometry().bytes;
    let (progress, mut faults) = (Progress::new("checking", bytes), Vec::new());
    for at in (0..bytes).step_by(STEP as usize) {
        progress.at(at, || format!("{} bytes", grouped(at)));
        let length = STEP.min(bytes - at);
        if look(&mut device, at, length, false)?.is_right() {
            continue;
        }
        for at in (at..at + length).step_by(BLOCK as usize) {
            let found = look(&mut device, at, BLOCK.min(bytes - at), args.repair)?;
            if !found.is_right() {
                faults.push((at, found));
            }
        }
    }
    drop(progress);
    device.close(GOODBYE_PATIENCE);
    let left = faults.iter().filter(|(_, found)| !args.repair || found.error.is_some()).count();
    if args.at.json {
        let unchecked = volume.members.iter().filter(|member| !member.sums).map(|member| &member.place);
        let json = json!({
            "volume": args.at.volume,
            "bytes": bytes,
            "faults": faults.iter().map(|(at, found)| found.json(*at, &places, args.repair)).collect::<Vec<_>>(),
            "left": left,
            "without_checksums": unchecked.collect::<Vec<_>>(),
        });
        output::line(&json.to_string())?;
    } else {
        faults.iter().try_for_each(|(at, found)| output::line(&found.line(*at, &places, args.repair)))?;
        for member in volume.members.iter().filter(|member| !member.sums) {
            output::line(&format!("{} has no checksums: only what cannot be read was seen there", member.place))?;
        }
        let mended = faults.len() - left;
        let (all, left, mended) = (grouped(bytes), grouped(left as u64), grouped(mended as u64));
        output::line(&format!("{all} bytes checked on every member: {left} faults left, {mended} mended"))?;
    }
    match left {
        0 => Ok(()),
        _ if args.repair => bail!("what no member has right cannot be mended; write it again, from a backup"),
        _ => {
            bail!("{} has faults; `overside volume check --repair` mends what another member has right", args.at.volume)
        }
    }
}

/// What a CHECK found.
struct CheckOutcome {
    wrong: u64,
    error: Option<DeviceError>,
}

fn look(device: &mut Volume, at: u64, length: u64, mend: bool) -> Result<CheckOutcome> {
    let (work, result) = complete(device, &SystemClock, Work::Check { at, length, mend, wrong: 0 }, PATIENCE);
    let wrong = if let Some(Work::Check { wrong, .. }) = work { wrong } else { 0 };
    match result {
        Ok(()) => Ok(CheckOutcome { wrong, error: None }),
        Err(error @ (DeviceError::Corrupt | DeviceError::Failed)) => Ok(CheckOutcome { wrong, error: Some(error) }),
        Err(error) => Err(error.into()),
    }
}

impl CheckOutcome {
    fn is_right(&self) -> bool {
        self.wrong == 0 && self.error.is_none()
    }

    fn members<'a>(&self, places: &[&'a str]) -> Vec<&'a str> {
        let is_wrong = |number: usize| number < 64 && self.wrong & 1 << number != 0;
        places.iter().enumerate().filter(|(number, _)| is_wrong(*number)).map(|(_, place)| *place).collect()
    }

    fn line(&self, at: u64, places: &[&str], repair: bool) -> String {
        let end = match (repair, self.error) {
            (true, None) => ": mended",
            (true, Some(_)) => ": cannot be mended",
            (false, _) => "",
        };
        let members = self.members(places);
        let of = if members.is_empty() { String::new() } else { format!(" on {}", members.join(", ")) };
        format!("the {BLOCK} bytes at {} are wrong{of}{end}", grouped(at))
    }

    fn json(&self, at: u64, places: &[&str], repair: bool) -> Value {
        json!({ "at": at, "bytes": BLOCK, "members": self.members(places), "mended": repair && self.error.is_none() })
    }
}

/// Bytes that are looked at together, and what a fault is told by.
const STEP: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// A node that is away may come back.
const PATIENCE: Duration = Duration::from_secs(120);
const GOODBYE_PATIENCE: Duration = Duration::from_secs(2);
