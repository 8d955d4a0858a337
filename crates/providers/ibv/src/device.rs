//! Which devices there are, and, if none, why.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use overside_verbs::{ForkMark, VerbsError};
use rustix::fs::{Mode, OFlags};

use crate::ffi::{IBV_ATOMIC_NONE, IBV_PORT_ACTIVE, ibv_device, ibv_device_attr, ibv_port_attr};
use crate::library::{Library, library};
use crate::objects::{Context, made};

/// A device, as `overside devices` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, as the system has it (`mlx5_0`, `rxe0`).
    pub name: String,
    /// Its ports, by number from 1.
    pub ports: Vec<DevicePort>,
    /// Entries of a gather list.
    pub sge_max: usize,
    /// Requests of one queue pair.
    pub depth_max: usize,
    /// Whether it has atomics.
    pub atomics: bool,
    /// Why it cannot be used; none where it can.
    pub unusable: Option<String>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePort {
    /// From 1.
    pub number: u8,
    /// Whether it is connected and configured.
    pub active: bool,
    /// Bytes of a packet's payload.
    pub mtu: u32,
    /// Gigabits a second.
    pub speed: u32,
    /// Its addresses.
    pub gids: Vec<String>,
}

/// All devices of this host.
///
/// # Errors
/// In words for people, when there is none: what is missing and how to get it.
pub fn devices() -> Result<Vec<Device>, String> {
    let library = library()?;
    let found = List::new(library)?;
    if found.names().is_empty() {
        return Err(nothing_found());
    }
    let mut devices = Vec::new();
    for (raw, name) in found.names() {
        let described = found.open(raw).map_err(|e| unopened(&e)).and_then(|context| described(&name, &context));
        devices.push(described.unwrap_or_else(|why| Device {
            name,
            ports: Vec::new(),
            sge_max: 0,
            depth_max: 0,
            atomics: false,
            unusable: Some(why),
        }));
    }
    Ok(devices)
}

/// A device that is open, and the port of it that is used.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) context: Arc<Context>,
    pub(crate) name: String,
    pub(crate) attributes: ibv_device_attr,
    pub(crate) number: u8,
    pub(crate) port: ibv_port_attr,
}

impl std::fmt::Debug for ibv_device_attr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ibv_device_attr").field("vendor_id", &self.vendor_id).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ibv_port_attr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ibv_port_attr").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Opens the named device, or the first with an active port.
pub(crate) fn open(wanted: Option<&str>) -> Result<Opened, VerbsError> {
    let missing = |reason: String| VerbsError::System { what: "looking for an RDMA device", reason };
    let library = library().map_err(missing)?;
    let found = List::new(library).map_err(missing)?;
    let mut names = found.names();
    if names.is_empty() {
        return Err(missing(nothing_found()));
    }
    if let Some(wanted) = wanted {
        if !names.iter().any(|(_, name)| name == wanted) {
            let there: Vec<&str> = names.iter().map(|(_, name)| &**name).collect();
            let there = there.join(", ");
            return Err(missing(format!("there is no {wanted}, only {there}; `overside devices` says more of them")));
        }
        names.retain(|(_, name)| name == wanted);
    }
    let mut reasons = Vec::new();
    for (raw, name) in names {
        let context = match found.open(raw) {
            Ok(context) => Arc::new(context),
            Err(error) => {
                reasons.push(format!("{name}: {}", unopened(&error)));
                continue;
            }
        };
        match active_port(&context) {
            Ok(Some((attributes, number, port))) => return Ok(Opened { context, name, attributes, number, port }),
            Ok(None) => reasons.push(format!("{name}: {NO_PORT}")),
            Err(error) => reasons.push(format!("{name}: {error}")),
        }
    }
    Err(missing(reasons.join("; ")))
}

/// The first port that is active, with what it and the device say of themselves.
fn active_port(context: &Context) -> Result<Option<(ibv_device_attr, u8, ibv_port_attr)>, VerbsError> {
    let attributes = context.attributes()?;
    for number in 1..=attributes.phys_port_cnt {
        let port = context.port(number)?;
        if port.state == IBV_PORT_ACTIVE {
            return Ok(Some((attributes, number, port)));
        }
    }
    Ok(None)
}

/// The system's list of devices.
struct List {
    library: &'static Library,
    raw: NonNull<*mut ibv_device>,
    count: usize,
}

impl List {
    fn new(library: &'static Library) -> Result<Self, String> {
        let mut count = 0;
        // SAFETY: [ibv-object] a list of `count` devices, ended by drop.
        let raw = unsafe { (library.ibv_get_device_list)(&mut count) };
        let raw = NonNull::new(raw).ok_or_else(nothing_found)?;
        Ok(Self { library, raw, count: usize::try_from(count).unwrap_or(0) })
    }

    fn names(&self) -> Vec<(*mut ibv_device, String)> {
        let name = |i: usize| {
            // SAFETY: [ibv-object] `i` is within the list, which lives; names end in 0.
            unsafe {
                let device = *self.raw.as_ptr().add(i);
                let name = (self.library.ibv_get_device_name)(device);
                (device, CStr::from_ptr(name).to_string_lossy().into_owned())
            }
        };
        (0..self.count).map(name).collect()
    }

    fn open(&self, device: *mut ibv_device) -> Result<Context, VerbsError> {
        let fork = ForkMark::new()?;
        // SAFETY: [ibv-object] a device of the list, which lives.
        let raw = unsafe { (self.library.ibv_open_device)(device) };
        let context = Context { raw: made("ibv_open_device", raw)?, library: self.library, fork };
        crate::objects::nonblocking(context.events())?;
        Ok(context)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: [ibv-object] once, by its owner.
        unsafe { (self.library.ibv_free_device_list)(self.raw.as_ptr()) };
    }
}

fn described(name: &str, context: &Context) -> Result<Device, String> {
    let attributes = context.attributes().map_err(|e| e.to_string())?;
    let mut ports = Vec::new();
    for number in 1..=attributes.phys_port_cnt {
        let port = context.port(number).map_err(|e| e.to_string())?;
        let gids = (0..port.gid_tbl_len).filter_map(|i| context.gid(number, i)).map(|gid| gid_text(&gid)).collect();
        ports.push(DevicePort {
            number,
            active: port.state == IBV_PORT_ACTIVE,
            mtu: mtu_bytes(port.active_mtu),
            speed: gigabits(&port),
            gids,
        });
    }
    let unusable = (!ports.iter().any(|port| port.active)).then(|| NO_PORT.to_owned());
    Ok(Device {
        name: name.to_owned(),
        ports,
        sge_max: usize::try_from(attributes.max_sge).unwrap_or(0),
        depth_max: usize::try_from(attributes.max_qp_wr).unwrap_or(0),
        atomics: attributes.atomic_cap != IBV_ATOMIC_NONE,
        unusable,
    })
}

/// Why the library lists nothing.
fn nothing_found() -> String {
    let exists = |path: &str| rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok();
    if !exists("/sys/class/infiniband") {
        return "this host has no RDMA device: no driver has made /sys/class/infiniband. Without a NIC, soft-RoCE works \
                over any network interface: modprobe rdma_rxe, then rdma link add rxe0 type rxe netdev INTERFACE"
            .to_owned();
    }
    if !exists("/dev/infiniband") {
        return "the kernel has RDMA drivers but no way to them: load ib_uverbs (modprobe ib_uverbs); in a container, pass \
                /dev/infiniband in"
            .to_owned();
    }
    "libibverbs has no driver for this host's RDMA device; install them (Debian and Ubuntu: apt install ibverbs-providers)"
        .to_owned()
}

fn unopened(error: &VerbsError) -> String {
    format!("{error}; may this user open /dev/infiniband/uverbs*?")
}

/// Bytes of a packet's payload, of the enumeration's value.
pub(crate) fn mtu_bytes(mtu: u32) -> u32 {
    128 << mtu.clamp(1, 5)
}

/// What the port moves, in gigabits a second.
pub(crate) fn gigabits(port: &ibv_port_attr) -> u32 {
    let lanes = match port.active_width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    let lane = match port.active_speed {
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => 25,
    };
    (lanes * lane / 10).max(1)
}

const NO_PORT: &str = "no port of it is active; bring its network interface up";

fn gid_text(gid: &[u8; 16]) -> String {
    core::net::Ipv6Addr::from(*gid).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_its_remedy() {
        match devices() {
            Ok(found) => assert!(found.iter().all(|device| !device.name.is_empty())),
            Err(why) => assert!(
                ["apt install", "modprobe"].iter().any(|remedy| why.contains(remedy)),
                "no device, and no word on what to do: {why}"
            ),
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = open(Some("no-such-device")).unwrap_err().to_string();
        assert!(error.contains("looking for an RDMA device"), "{error}");
    }
}
