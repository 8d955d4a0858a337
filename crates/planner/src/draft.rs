//! A way of sending that its caller has laid out piece by piece, priced by the curves that shapes
//! are priced by.

use crate::plan::{Goal, Price};
use crate::planner::Planner;
use crate::profile::Distance;
use crate::tally::range_of;

/// What both ends do for one way of sending, added up piece by piece. Allocates nothing: it may run
/// for every page of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'p> {
    planner: &'p Planner,
    sender_ns: f64,
    receiver_ns: f64,
    pack_ns: f64,
    packed_bytes: f64,
    bytes: f64,
}

impl Planner {
    /// A way of sending in which nothing is sent yet.
    pub fn draft(&self) -> Draft<'_> {
        Draft { planner: self, sender_ns: 0.0, receiver_ns: 0.0, pack_ns: 0.0, packed_bytes: 0.0, bytes: 0.0 }
    }
}

impl Planner {
    /// Whether it is known what reading a loan costs.
    pub fn prices_loans(&self) -> bool {
        !self.profile().bends.lend.is_empty()
    }
}

impl Draft<'_> {
    /// One fragment is sent from where it lies, in memory that no cache holds.
    #[inline]
    pub fn gather(&mut self, bytes: u64) {
        let ends = self.planner.tables().scattered(range_of(bytes), bytes as f64);
        self.sender_ns += ends.sender_ns;
        self.receiver_ns += ends.receiver_ns;
        self.bytes += bytes as f64;
    }

    /// A message of `fragments` is lent, of which the receiver reads `bytes` bytes where they lie,
    /// in memory that no cache holds. Nothing where loans were not measured
    /// ([`Planner::prices_loans`]).
    #[inline]
    pub fn lend(&mut self, fragments: u64, bytes: u64) {
        let profile = self.planner.profile();
        let Some(line) = profile.lend(bytes) else { return };
        // An entry of the list costs either end the same, whether its bytes are copied or not.
        self.sender_ns += fragments as f64 * profile.send(0, false).at(1.0, 0.0);
        self.receiver_ns += line.at(1.0, bytes as f64) + (fragments - 1) as f64 * profile.receive(0).at(1.0, 0.0);
        self.bytes += bytes as f64;
    }

    /// One entry is sent that the sender has just written, between gathered ones: a head.
    #[inline]
    pub fn write(&mut self, bytes: u64) {
        let entry = &self.planner.tables().beside[range_of(bytes)];
        self.sender_ns += entry.send.at(1.0, bytes as f64);
        self.receiver_ns += entry.receive.at(1.0, bytes as f64);
        self.bytes += bytes as f64;
    }

    /// `pieces` of `bytes` in all, alike in length and lying anywhere, are packed.
    #[inline]
    pub fn pack(&mut self, pieces: u64, bytes: u64) {
        let line = self.planner.tables().pack_cold(range_of(bytes / pieces.max(1)));
        self.packed(line.at(pieces as f64, bytes as f64), bytes);
    }

    /// `pieces` elements of `width` bytes each are packed, the next one `stride` bytes behind the
    /// one before.
    #[inline]
    pub fn pack_regular(&mut self, pieces: u64, width: u64, stride: u64) {
        let distance = Distance::of_gap(stride.saturating_sub(width) as f64);
        let bytes = pieces * width;
        let ns = self.planner.tables().kernel_at(range_of(width), distance).at(pieces as f64, bytes as f64);
        self.packed(ns, bytes);
    }

    /// The receiver merges so many rows into others.
    #[inline]
    pub fn merge(&mut self, rows: u64) {
        self.receiver_ns += rows as f64 * self.planner.profile().row_ns;
    }

    /// The sender does something else for it, which takes so many nanoseconds.
    #[inline]
    pub fn also(&mut self, ns: f64) {
        self.sender_ns += ns;
    }

    /// Nanoseconds that packing takes, beyond the request.
    pub fn pack_ns(&self) -> f64 {
        self.pack_ns
    }

    /// The price, with so many requests. None are its own where it joins a message that is sent
    /// anyway.
    #[inline]
    pub fn price(&self, requests: f64, goal: Goal) -> Price {
        let profile = self.planner.profile();
        let mut sender = requests * profile.send_request_ns + self.sender_ns + self.pack_ns;
        let mut receiver = requests * profile.receive_request_ns + self.receiver_ns;
        if self.packed_bytes > 0.0 {
            let entry = &self.planner.tables().whole[range_of(self.packed_bytes as u64)];
            sender += requests * profile.pack_begin(false) + entry.send.at(requests, self.packed_bytes);
            receiver += entry.receive.at(requests, self.packed_bytes);
        }
        self.planner.weighed(sender, receiver, self.bytes, goal)
    }

    fn packed(&mut self, ns: f64, bytes: u64) {
        self.pack_ns += ns;
        self.packed_bytes += bytes as f64;
        self.bytes += bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::tests::{listed, planner};
    use crate::{Bends, Curve, Method, Profile, Terms};

    /// What a shape's plan says, whichever way it is laid out by hand.
    #[test]
    fn a_draft_costs_what_a_shape_of_the_same_pieces_costs() {
        let planner = planner(64, Profile::clone);
        for goal in [Goal::Throughput, Goal::TotalCpu, Goal::SenderCpu, Goal::Latency] {
            for lens in [vec![100; 7], vec![16; 20], vec![1000, 1000, 1000]] {
                let plan = planner.plan(&listed(&lens), &Terms { goal, ..Terms::default() }).unwrap();
                let (mut copied, mut gathered) = (planner.draft(), planner.draft());
                copied.pack(lens.len() as u64, lens.iter().sum());
                lens.iter().for_each(|len| gathered.gather(*len));
                for (draft, way) in [(copied, Method::Copy), (gathered, Method::Gather)] {
                    let (ours, theirs) = (draft.price(1.0, goal).ns, plan.price(way).unwrap().ns);
                    assert!((ours - theirs).abs() < 0.01, "{way} of {lens:?}: {ours} and {theirs}");
                }
            }
        }
    }

    /// A ConnectX-3, fitted to the figures of to-copy: descriptors grow with the record count.
    //= to-copy §5.1, §6 TC-C06
    #[test]
    fn small_records_are_copied_and_large_ones_gathered_when_the_sender_counts() {
        let connectx3 = |p: &Profile| Profile {
            send_request_ns: 100.0,
            send_fragment_ns: 34.0,
            send_byte_ns: 1.0 / 5.8,
            pack_byte_ns: 1.0 / 7.04,
            pack_piece_ns: 0.0,
            pack_request_ns: 0.0,
            receive_request_ns: 0.0,
            receive_fragment_ns: 0.0,
            receive_byte_ns: 0.0,
            wire_byte_ns: 1.0 / 5.8,
            bends: Bends::default(),
            ..p.clone()
        };
        let nic_moves_bytes = |p: &Profile| Profile { send_byte_ns: 0.0, ..connectx3(p) };
        let ns = |planner: &Planner, goal, records: u64, size: u64| {
            let (mut copied, mut gathered) = (planner.draft(), planner.draft());
            copied.pack(records, records * size);
            (0..records).for_each(|_| gathered.gather(size));
            [copied, gathered].map(|draft| draft.price(1.0, goal).ns)
        };
        let [copied, gathered] = ns(&planner(64, connectx3), Goal::Throughput, 32, 128);
        assert!(copied < gathered, "{copied} and {gathered}");
        let [copied, gathered] = ns(&planner(64, nic_moves_bytes), Goal::SenderCpu, 16, 1024);
        assert!(gathered < copied, "{copied} and {gathered}");
    }

    /// The cheapest way turns when the price that it stands on does.
    #[test]
    fn a_wrong_price_changes_the_choice() {
        let cheaper = |planner: &Planner| {
            let (mut copied, mut gathered) = (planner.draft(), planner.draft());
            copied.pack(12, 12 * 512);
            (0..12).for_each(|_| gathered.gather(512));
            let ns = |draft: &Draft<'_>| draft.price(1.0, Goal::TotalCpu).ns;
            if ns(&copied) < ns(&gathered) { Method::Copy } else { Method::Gather }
        };
        assert_eq!(cheaper(&planner(64, Profile::clone)), Method::Gather);
        let dear = Curve::new([(64, 300.0), (4096, 900.0)]).unwrap();
        let receive = |p: &Profile| Profile { bends: Bends { receive: dear.clone(), ..p.bends.clone() }, ..p.clone() };
        assert_eq!(cheaper(&planner(64, receive)), Method::Copy, "fragments are dear to receive");
        let send = |p: &Profile| Profile { bends: Bends { send: dear.clone(), ..p.bends.clone() }, ..p.clone() };
        assert_eq!(cheaper(&planner(64, send)), Method::Copy, "fragments are dear to send");
    }

    #[test]
    fn what_joins_a_message_costs_no_request_and_merging_is_the_receivers() {
        let planner = planner(64, Profile::clone);
        let profile = planner.profile();
        let mut draft = planner.draft();
        draft.gather(4096);
        let (alone, joined) = (draft.price(1.0, Goal::Latency), draft.price(0.0, Goal::Latency));
        assert!((alone.sender_ns - joined.sender_ns - profile.send_request_ns).abs() < 0.01);
        assert!((alone.receiver_ns - joined.receiver_ns - profile.receive_request_ns).abs() < 0.01);
        let before = draft.price(1.0, Goal::Latency);
        draft.merge(10);
        let after = draft.price(1.0, Goal::Latency);
        assert_eq!(after.sender_ns, before.sender_ns);
        assert!((after.receiver_ns - before.receiver_ns - 10.0 * profile.row_ns).abs() < 0.01);
    }

    /// Reading a loan takes the place of receiving its bytes: which is cheaper is for its price to
    /// say, and for what is read.
    #[test]
    fn a_wrong_price_of_loans_changes_the_choice() {
        let lends = |ns, bytes| {
            let lend = Curve::new([(4096, ns), (1 << 14, 4.0 * ns)]).unwrap();
            let planner = planner(64, |p: &Profile| Profile {
                bends: Bends { lend: lend.clone(), ..p.bends.clone() },
                ..p.clone()
            });
            assert!(planner.prices_loans());
            let (mut lent, mut gathered) = (planner.draft(), planner.draft());
            lent.lend(2, bytes);
            [128, 16_000].into_iter().for_each(|bytes| gathered.gather(bytes));
            lent.price(1.0, Goal::Throughput).ns < gathered.price(1.0, Goal::Throughput).ns
        };
        assert!(lends(10.0, 16_000) && !lends(1e5, 16_000));
        assert!(lends(1000.0, 1000) && !lends(1000.0, 16_000), "of a few columns less is read");
        let unknown = planner(64, Profile::clone);
        assert!(!unknown.prices_loans());
    }

    #[test]
    fn elements_at_a_distance_are_packed_by_their_own_price() {
        let near = Curve::new([(4, 1.0), (64, 2.0)]).unwrap();
        let far = Curve::new([(4, 9.0), (64, 12.0)]).unwrap();
        let planner = planner(64, |p| Profile {
            bends: Bends { pack_near: near.clone(), pack_far: far.clone(), ..p.bends.clone() },
            ..p.clone()
        });
        let pack_ns = |stride| {
            let mut draft = planner.draft();
            draft.pack_regular(100, 4, stride);
            draft.pack_ns()
        };
        assert!((pack_ns(16) - 100.0).abs() < 0.01, "{}", pack_ns(16));
        assert!((pack_ns(4096) - 900.0).abs() < 0.01, "{}", pack_ns(4096));
    }
}
