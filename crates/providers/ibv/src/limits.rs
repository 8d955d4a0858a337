//! What the device grants a queue pair: asked of one that is made and thrown away.

use std::sync::Arc;

use overside_verbs::VerbsError;
use rustix::fs::{Mode, OFlags};

use crate::device::Opened;
use crate::ffi::{IBV_ATOMIC_NONE, IBV_QPT_RC, IBV_WR_RDMA_WRITE, ibv_qp_cap, ibv_qp_init_attr};
use crate::objects::{Context, Cq, Domain, Qp};

/// Limits of a queue pair, and of the queues around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) sge_max: usize,
    pub(crate) inline_max: usize,
    pub(crate) depth_max: usize,
    pub(crate) message_max: u64,
    /// READs and atomics under way at a time, as initiator and as target.
    pub(crate) reads: [u8; 2],
    pub(crate) shared_receives_max: usize,
    pub(crate) completions_max: usize,
    pub(crate) atomics: bool,
    /// Whether a WRITE's bytes become visible in the order of their addresses.
    pub(crate) in_order: bool,
}

/// How a port of the device is addressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortAddress {
    pub(crate) port: u8,
    pub(crate) lid: u16,
    pub(crate) mtu: u8,
    /// Index and address, in the order in which they are to be used.
    pub(crate) gids: Vec<(u8, [u8; 16])>,
}

impl Limits {
    /// With at most `depth` requests a queue pair.
    pub(crate) fn of(device: &Opened, depth: usize) -> Result<Self, VerbsError> {
        let attributes = &device.attributes;
        let positive = |limit: i32| usize::try_from(limit).unwrap_or(0).max(1);
        let few = |limit: i32| u8::try_from(positive(limit).min(READS_MAX)).unwrap_or(1);
        let domain = Arc::new(Domain::new(&device.context)?);
        let cq = Cq::new(&device.context, 16)?;
        // A queue's entries grow with their gather list, so the most of both may not be had at once.
        let depth = positive(attributes.max_qp_wr).min(depth.max(DEPTH_MIN));
        let wanted = |sges: usize, inline: usize| ibv_qp_cap {
            max_send_wr: depth as u32,
            max_recv_wr: depth as u32,
            max_send_sge: sges as u32,
            max_recv_sge: 1,
            max_inline_data: inline as u32,
        };
        let sges = positive(attributes.max_sge).min(SGES_MAX);
        let mut last = None;
        for sges in [sges, sges / 2, sges / 4, 1] {
            for inline in INLINE {
                match make(&domain, &cq, None, wanted(sges.max(1), inline)) {
                    Ok((qp, granted)) => {
                        return Ok(Self {
                            sge_max: (granted.max_send_sge as usize).clamp(1, sges.max(1)),
                            inline_max: (granted.max_inline_data as usize).min(INLINE[0]),
                            depth_max: depth,
                            message_max: u64::from(device.port.max_msg_sz).max(4096),
                            reads: [few(attributes.max_qp_init_rd_atom), few(attributes.max_qp_rd_atom)],
                            shared_receives_max: positive(attributes.max_srq_wr),
                            completions_max: positive(attributes.max_cqe),
                            atomics: attributes.atomic_cap != IBV_ATOMIC_NONE,
                            in_order: in_order(&device.context, &qp),
                        });
                    }
                    Err(error) => last = Some(error),
                }
            }
        }
        Err(last.unwrap_or(VerbsError::Unsupported("a device without queue pairs")))
    }
}

/// Makes a queue pair; also returns what was granted.
pub(crate) fn make(
    domain: &Arc<Domain>,
    cq: &Cq,
    srq: Option<&crate::objects::Srq>,
    cap: ibv_qp_cap,
) -> Result<(Qp, ibv_qp_cap), VerbsError> {
    let mut wanted = ibv_qp_init_attr {
        qp_context: std::ptr::null_mut(),
        send_cq: cq.raw.as_ptr(),
        recv_cq: cq.raw.as_ptr(),
        srq: srq.map_or(std::ptr::null_mut(), |srq| srq.raw.as_ptr()),
        cap,
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    };
    let qp = domain.queue_pair(&mut wanted)?;
    Ok((qp, wanted.cap))
}

fn in_order(context: &Context, qp: &Qp) -> bool {
    // SAFETY: [ibv-object] the queue pair lives.
    let asked =
        context.library.ibv_query_qp_data_in_order.map(|ask| unsafe { ask(qp.raw.as_ptr(), IBV_WR_RDMA_WRITE, 0) });
    asked == Some(1)
}

impl PortAddress {
    /// Of the device's port: addresses that can be routed first, of them those of IPv4.
    pub(crate) fn of(device: &Opened) -> Self {
        let mut gids: Vec<(u8, [u8; 16], u32)> = (0..device.port.gid_tbl_len.clamp(0, 255) as u8)
            .filter_map(|i| device.context.gid(device.number, i32::from(i)).map(|gid| (i, gid)))
            .map(|(i, gid)| (i, gid, rank(&kind(&device.name, device.number, i), &gid)))
            .collect();
        gids.sort_by_key(|(_, _, rank)| *rank);
        Self {
            port: device.number,
            lid: device.port.lid,
            mtu: device.port.active_mtu.clamp(1, 5) as u8,
            gids: gids.into_iter().map(|(i, gid, _)| (i, gid)).collect(),
        }
    }

    /// The address to be used on a connection whose side channel has this one here.
    pub(crate) fn gid(&self, here: Option<core::net::SocketAddr>) -> (u8, [u8; 16]) {
        let mapped = here.map(|here| match here.ip() {
            core::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            core::net::IpAddr::V6(ip) => ip.octets(),
        });
        let same = self.gids.iter().find(|(_, gid)| Some(*gid) == mapped);
        same.or(self.gids.first()).copied().unwrap_or((0, [0; 16]))
    }
}

/// What the system calls an entry of the table of addresses.
fn kind(device: &str, port: u8, index: u8) -> String {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    let mut text = [0; 32];
    let read = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut text));
    String::from_utf8_lossy(&text[..read.unwrap_or(0).min(text.len())]).trim().to_owned()
}

fn rank(kind: &str, gid: &[u8; 16]) -> u32 {
    let ip = core::net::Ipv6Addr::from(*gid);
    match (kind, ip.to_ipv4_mapped().is_some(), ip.is_unicast_link_local()) {
        ("RoCE v2", true, _) => 0,
        ("RoCE v2", false, false) => 1,
        ("RoCE v2", false, true) => 2,
        (_, _, false) => 3,
        (_, _, true) => 4,
    }
}

/// Inline payloads asked for, longest first (912 bytes on a ConnectX-3)..
const INLINE: [usize; 8] = [912, 512, 400, 220, 128, 64, 28, 0];
/// More than any device grants today.
const SGES_MAX: usize = 64;
const READS_MAX: usize = 16;
const DEPTH_MIN: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routable_addresses_come_first_and_the_side_channels_own_before_all() {
        let ip = |text: &str| text.parse::<core::net::Ipv6Addr>().unwrap().octets();
        let (v4, v6, link) = (ip("::ffff:10.0.0.1"), ip("2001:db8::1"), ip("fe80::1"));
        assert!(rank("RoCE v2", &v4) < rank("RoCE v2", &v6));
        assert!(rank("RoCE v2", &v6) < rank("RoCE v2", &link));
        assert!(rank("RoCE v2", &link) < rank("IB/RoCE v1", &v4));
        let place = PortAddress { port: 1, lid: 0, mtu: 5, gids: vec![(1, v4), (0, link)] };
        assert_eq!(place.gid(None).0, 1);
        assert_eq!(place.gid(Some("[fe80::1]:7".parse().unwrap())).0, 0);
        assert_eq!(place.gid(Some("127.0.0.1:7".parse().unwrap())).0, 1);
    }
}
