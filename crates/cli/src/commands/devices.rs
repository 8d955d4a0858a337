//! `overside devices`

use crate::args::Devices;
use crate::output;
use anyhow::Result;
use overside::{Device, Transport};
use serde_json::{Value, json};

/// Shows the RDMA devices of this host, or why there is none.
///
/// # Errors
/// Standard output is closed.
pub fn run(args: &Devices) -> Result<()> {
    let found = overside::rdma_devices();
    if args.json {
        let (devices, why) = match &found {
            Ok(devices) => (devices.iter().map(described).collect(), Value::Null),
            Err(why) => (Vec::new(), json!(why)),
        };
        return output::line(&json!({ "rdma": devices, "why_none": why }).to_string());
    }
    for Transport { name, reaches, has_devices, .. } in Transport::all() {
        match &found {
            _ if !has_devices => output::line(&format!("{name:<5} {reaches}: always there"))?,
            Ok(devices) => devices.iter().try_for_each(|device| shown(name, device))?,
            Err(why) => output::line(&format!("{name:<5} none: {why}"))?,
        }
    }
    Ok(())
}

fn shown(name: &str, device: &Device) -> Result<()> {
    match &device.unusable {
        Some(why) => output::line(&format!("{name:<5} {}: cannot be used: {why}", device.name))?,
        None => output::line(&format!(
            "{name:<5} {}: {} gather entries, {} requests a queue pair, {} atomics",
            device.name,
            device.sge_max,
            output::grouped(device.depth_max as u64),
            if device.atomics { "with" } else { "no" },
        ))?,
    }
    for port in &device.ports {
        let state = if port.active { "active" } else { "down" };
        let addresses = port.gids.join(", ");
        output::line(&format!(
            "        port {}: {state}, {} Gbit/s, packets of {} bytes, {addresses}",
            port.number, port.speed, port.mtu
        ))?;
    }
    Ok(())
}

fn described(device: &Device) -> Value {
    let ports: Vec<Value> = device
        .ports
        .iter()
        .map(|port| {
            json!({
                "port": port.number,
                "active": port.active,
                "gigabits": port.speed,
                "mtu": port.mtu,
                "gids": port.gids,
            })
        })
        .collect();
    json!({
        "device": device.name,
        "sge_max": device.sge_max,
        "depth_max": device.depth_max,
        "atomics": device.atomics,
        "unusable": device.unusable,
        "ports": ports,
    })
}
