//! What else the host did: a figure taken while others used the cores is not the machine's.

use std::fs;

/// Ticks of all cores so far, from `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTime {
    /// Doing anything.
    pub busy: u64,
    /// Wanted, but taken by the hypervisor.
    pub stolen: u64,
    /// All, idle included.
    pub all: u64,
}

impl HostTime {
    /// Until now; all zero where the kernel does not say.
    pub fn now() -> HostTime {
        HostTime::parse(&fs::read_to_string("/proc/stat").unwrap_or_default()).unwrap_or_default()
    }

    /// The share of the cores' time since `before`, 0 to 1, that neither idled nor went to
    /// processes that used `own` ticks: other programs and the hypervisor.
    pub fn others_share(self, before: HostTime, own: u64) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let taken = (self.busy + self.stolen).saturating_sub(before.busy + before.stolen);
        if all == 0 { 0.0 } else { taken.saturating_sub(own) as f64 / all as f64 }
    }

    /// The first line: user, nice, system, idle, waiting, interrupts twice, stolen, and
    /// guests, which user has already.
    fn parse(stat: &str) -> Option<HostTime> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, idle, waiting, hard, soft, stolen, ..] = ticks[..] else { return None };
        let busy = user + nice + system + hard + soft;
        Some(HostTime { busy, stolen, all: busy + stolen + idle + waiting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_took_is_what_is_neither_idle_nor_ours() {
        let before = HostTime::parse("cpu  100 10 20 1000 5 1 2 3 7 0\ncpu0 1 2").unwrap();
        assert_eq!(before, HostTime { busy: 133, stolen: 3, all: 1141 });
        let after = HostTime { busy: 133 + 60, stolen: 3 + 10, all: 1141 + 100 };
        assert!((after.others_share(before, 50) - 0.2).abs() < 1e-9);
        assert_eq!(after.others_share(before, 500), 0.0);
        assert_eq!(before.others_share(before, 0), 0.0);
        assert_eq!(HostTime::parse("intr 1"), None);
    }
}
