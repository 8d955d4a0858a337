//! What to-copy says of its figures 3 to 5, beside what this run shows: with one client, as ratios within the run.

use super::{TRAFFIC, Way, series};
use crate::figures::{Figure, Point, papers};

/// A claim's id, what was measured, and whether that agrees.
type Told = (&'static str, String, bool);

/// Puts all of them beside the figure.
pub(super) fn tell(figure: &mut Figure) {
    let seen = Seen(figure);
    let parts = [seen.small(), seen.larger_sends(), seen.saturation(), seen.peaks(), seen.work(), seen.traffic()];
    let told: Vec<Told> = parts.into_iter().flatten().flatten().collect();
    for (claim, here, agrees) in told {
        figure.compare(claim, papers::says(claim), here, agrees);
    }
}

struct Seen<'a>(&'a Figure);

impl Seen<'_> {
    fn curve(&self, way: Way, size: usize) -> Vec<&Point> {
        self.0.curve(&series(way, size, 1))
    }

    fn peak(&self, way: Way, size: usize) -> Option<&Point> {
        self.0.peak(&series(way, size, 1), |p| p.bytes_per_s)
    }

    /// Where both ways have a point: the bytes a send, what zero-copy is over copy-out in throughput, and in the sender's work.
    fn zero_over_copy(&self, size: usize) -> Vec<(u64, f64, f64)> {
        let pairs = self.curve(Way::ZeroCopy, size).into_iter().filter_map(|zero| {
            let copy = self.0.point(&series(Way::CopyOut, size, 1), zero.x)?;
            let work = zero.sender_work_ns_per_byte / copy.sender_work_ns_per_byte;
            Some((zero.x, zero.bytes_per_s / copy.bytes_per_s, work))
        });
        pairs.collect()
    }

    /// Records of 128 B.
    fn small(&self) -> Option<Vec<Told>> {
        let (copy, zero) = (self.peak(Way::CopyOut, 128)?, self.peak(Way::ZeroCopy, 128)?);
        let large = self.peak(Way::CopyOut, 1024)?;
        let (ratio, last) = (rate(copy) / rate(zero), self.curve(Way::ZeroCopy, 128).last()?.x);
        let of_large = rate(copy) / rate(large);
        Some(vec![
            (
                "TC-C06",
                format!(
                    "128 B: zero-copy reaches {:.2} of copy-out; its lists end at {} records",
                    1.0 / ratio,
                    last / 128
                ),
                ratio > 1.05,
            ),
            (
                "TC-C19",
                format!("{:.2} and {:.2} GB/s at the peaks: copy-out {ratio:.2} × zero-copy", rate(copy), rate(zero)),
                ratio > 1.05,
            ),
            (
                "TC-C17",
                format!("zero-copy of 128 B ends at {} a send with {:.2} GB/s", size(last), rate(zero)),
                ratio > 1.05,
            ),
            ("TC-C18", format!("copy-out of 128 B reaches {of_large:.2} of copy-out of 1024 B"), of_large > 0.9),
        ])
    }

    fn larger_sends(&self) -> Option<Vec<Told>> {
        let curve = self.curve(Way::CopyOut, 1024);
        let (short, long) = (curve.first()?, curve.last()?);
        let (faster, less) =
            (rate(long) / rate(short), 1.0 - long.sender_work_ns_per_byte / short.sender_work_ns_per_byte);
        let here = format!(
            "1024 B copied out, {} a send over {}: {faster:.1} × the throughput, {:.0} % less work of the sender for a byte",
            size(long.x),
            size(short.x),
            less * 100.0
        );
        Some(vec![("TC-C13", here, faster > 1.0 && less > 0.0)])
    }

    /// Records of 1024 B, of which few fill a send.
    fn saturation(&self) -> Option<Vec<Told>> {
        // Within a tenth of the curve's best, as far as the places that were measured show.
        let from = |way| {
            let best = rate(self.peak(way, 1024)?);
            self.curve(way, 1024).iter().find(|point| rate(point) > 0.9 * best).map(|point| point.x)
        };
        let (zero, copy) = (from(Way::ZeroCopy)?, from(Way::CopyOut)?);
        let here =
            |way: &str, from| format!("1024 B by {way}: within a tenth of its best from {} a send on", size(from));
        let pairs = self.zero_over_copy(1024);
        let best = |few: &dyn Fn(u64) -> bool| pairs.iter().filter(|p| few(p.0)).map(|p| p.1).max_by(f64::total_cmp);
        let (short, sixteen) = (best(&|x| x < 16 << 10)?, best(&|x| x == 16 << 10)?);
        let gain =
            format!("1024 B: zero-copy over copy-out {short:.2} at its best below 16 records, {sixteen:.2} at 16");
        Some(vec![
            ("TC-C14", here("zero-copy", zero), zero <= 16 << 10),
            ("TC-C15", here("copy-out", copy), copy >= 16 << 10),
            ("TC-C16", gain, short > 1.0 && short > sixteen),
        ])
    }

    fn peaks(&self) -> Option<Vec<Told>> {
        let (copy, zero) = (self.peak(Way::CopyOut, 1024)?, self.peak(Way::ZeroCopy, 1024)?);
        let here = format!("1024 B: {:.2} GB/s copy-out, {:.2} GB/s zero-copy", rate(copy), rate(zero));
        let idle = |point: &Point| (1.0 - point.sender_cpu_ns_per_byte * point.bytes_per_s / 1e9).max(0.0);
        let waits = format!(
            "at the peaks with 1024 B the sender waits {:.0} % of the time by copy-out, {:.0} % by zero-copy",
            idle(copy) * 100.0,
            idle(zero) * 100.0
        );
        Some(vec![
            ("TC-C20", here, (0.8..1.1).contains(&(rate(copy) / rate(zero)))),
            ("TC-C22", waits, idle(copy) > 0.5 && idle(zero) > 0.5),
        ])
    }

    /// The sender's work for a byte.
    fn work(&self) -> Option<Vec<Told>> {
        let saved = |size| {
            let pairs = self.zero_over_copy(size).into_iter().map(|(x, _, work)| (1.0 - work, x));
            pairs.max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let here = |bytes: usize, (saving, x): (f64, u64)| {
            format!(
                "{bytes} B: zero-copy saves up to {:.0} % of the sender's work for a byte (at {} a send)",
                saving * 100.0,
                size(x)
            )
        };
        let (large, small) = (saved(1024)?, saved(128)?);
        let less = |size| {
            let pairs = self.zero_over_copy(size);
            (pairs.iter().filter(|pair| pair.2 < 1.0).count(), pairs.len())
        };
        let ((less_large, all_large), (less_small, all_small)) = (less(1024), less(128));
        let places = format!(
            "less work of the sender by zero-copy at {less_large} of {all_large} lengths with 1024 B, {less_small} of {all_small} with 128 B"
        );
        Some(vec![
            ("TC-C23", places, less_large == all_large && less_small == all_small && large.0 > small.0),
            ("TC-C29", here(1024, large), large.0 > 0.5),
            ("TC-C30", here(128, small), small.0 > 0.0),
        ])
    }

    fn traffic(&self) -> Option<Vec<Told>> {
        let of = |way| self.peak(way, 1024).map(|point| point.label(TRAFFIC) / point.bytes_per_s);
        let (copy, zero) = (of(Way::CopyOut)?, of(Way::ZeroCopy)?);
        let here = format!(
            "computed, not measured: {copy:.1} bytes of memory traffic a byte by copy-out, {zero:.1} by zero-copy"
        );
        Some(vec![("TC-C26", here, (1.9..2.1).contains(&(copy - zero)))])
    }
}

/// In GB/s.
fn rate(point: &Point) -> f64 {
    point.bytes_per_s / 1e9
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 10) { format!("{} KiB", bytes >> 10) } else { format!("{bytes} B") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Sample;

    #[test]
    fn every_claim_of_the_figure_is_told() {
        let mut figure = Figure::new("transmit", "shm", "");
        for (way, bytes) in super::super::curve_list() {
            for (at, records) in [1u64, 4, 16, 64].into_iter().enumerate() {
                let sample = Sample { bytes: 10 * (at as u64 + 1), wall_ns: 10, sender_ns: 1, ..Sample::default() };
                let point = Point::of(series(way, bytes, 1), records * bytes as u64, vec![sample; 3], &[1e9]);
                figure.points.push(point.with(TRAFFIC, 1e9));
            }
        }
        tell(&mut figure);
        let mut told: Vec<_> = figure.claims.iter().map(|claim| claim.claim.as_str()).collect();
        told.sort_unstable();
        assert_eq!(told, papers::claims("transmit"));
        assert!(figure.claims.iter().all(|claim| !claim.paper.is_empty()));
    }
}
