//! `delta`: a base page with a varying number of delta records behind it, as one message (to-copy figure 6).

use super::{
    Setting,
    charts::{Curve, Curves, curves},
    figure::{Figure, Point},
    papers,
    records::{Records, Ring},
    sender::{Next, Sample, Sender, Side, Until},
};
use crate::{
    measure::{Bar, alternate},
    svg::Scale,
};
use anyhow::{Result, ensure};
use overside::{
    memory::{Pool, View},
    shape::Run,
    verbs::WorkRequest,
};

/// How a page and its deltas travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageForm {
    /// As they lie: the page one gather entry, each delta one.
    Gather,
    /// Packed first.
    CopyOut,
    /// The same bytes as records of the deltas' size, scattered.
    Scattered,
    /// Those records, packed first.
    ScatteredCopied,
}

impl PageForm {
    const ALL: [PageForm; 4] = [PageForm::Gather, PageForm::CopyOut, PageForm::Scattered, PageForm::ScatteredCopied];

    fn name(self) -> &'static str {
        match self {
            PageForm::Gather => "page and deltas",
            PageForm::CopyOut => "copied out",
            PageForm::Scattered => "scattered",
            PageForm::ScatteredCopied => "scattered, copied out",
        }
    }
}

struct Pages {
    way: PageForm,
    pages: Records,
    deltas: Records,
    count: usize,
    pool: Pool,
    runs: Vec<Run>,
    sge_max: usize,
}

impl Pages {
    /// Records a message of `Scattered` has: as many as make up the page and its deltas, as far as a list goes.
    fn scattered(&self) -> usize {
        (PAGE_BYTES / self.deltas.record_bytes() + self.count).min(self.sge_max)
    }
}

impl Side for Pages {
    fn next(&mut self, _to: usize) -> Result<Next> {
        let view = match self.way {
            PageForm::CopyOut => {
                let Some(mut buffer) = self.pool.take() else { return Ok(Next::Wait) };
                self.pages.pack(1, &mut buffer);
                let deltas = self.deltas.pack(self.count, &mut buffer[PAGE_BYTES..]);
                self.pool.view(buffer, PAGE_BYTES + deltas)
            }
            PageForm::Gather => {
                let place = self.pages.take();
                let page = View::runs(self.pages.memory(), [place])?;
                self.runs.clear();
                self.runs.extend((0..self.count).map(|_| self.deltas.take()));
                match self.count {
                    0 => page,
                    _ => page.then(View::runs(self.deltas.memory(), self.runs.iter().copied())?),
                }
            }
            PageForm::Scattered => {
                let count = self.scattered();
                self.runs.clear();
                self.runs.extend((0..count).map(|_| self.deltas.take()));
                View::runs(self.deltas.memory(), self.runs.iter().copied())?
            }
            PageForm::ScatteredCopied => {
                let Some(mut buffer) = self.pool.take() else { return Ok(Next::Wait) };
                let bytes = self.deltas.pack(self.scattered(), &mut buffer);
                self.pool.view(buffer, bytes)
            }
        };
        Ok(Next::Request(WorkRequest::send(0, view).unsignalled()))
    }

    fn bytes(&self) -> u64 {
        let (page, records) = match self.way {
            PageForm::Gather | PageForm::CopyOut => (PAGE_BYTES, self.count),
            PageForm::Scattered | PageForm::ScatteredCopied => (0, self.scattered()),
        };
        (page + records * self.deltas.record_bytes()) as u64
    }
}

/// Measures the figure.
pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("delta", setting.over.name(), "A base page and its deltas");
    let mut sender = Sender::start(setting.over, 1)?;
    let pages = Records::region(&mut sender, setting.region_bytes())?;
    let deltas = Records::region(&mut sender, setting.region_bytes())?;
    let counts: &[usize] = if setting.quick { &[0, 1, 4, 8, 16, 32] } else { &[0, 1, 2, 4, 8, 12, 16, 24, 32] };
    for (at, count) in counts.iter().enumerate() {
        for (of, size) in SIZES.into_iter().enumerate() {
            setting.progress.part("delta", at * SIZES.len() + of, counts.len() * SIZES.len());
            let message_bytes = PAGE_BYTES + count * size;
            let pool = sender.pool(message_bytes, POOL_BYTES / message_bytes)?;
            sender.connect(1, message_bytes, pool.capacity())?;
            let side = |way| Pages {
                way,
                pages: Records::new(&pages, PAGE_BYTES),
                deltas: Records::new(&deltas, size),
                count: *count,
                pool: pool.clone(),
                runs: Vec::new(),
                sge_max: sender.capabilities.sge_max,
            };
            let sides = PageForm::ALL.map(side);
            one(setting, &mut sender, &mut figure, *count, size, sides)?;
        }
    }
    tell(&mut figure, setting);
    Ok(figure)
}

fn one(
    setting: &Setting<'_>,
    sender: &mut Sender,
    figure: &mut Figure,
    count: usize,
    size: usize,
    mut sides: [Pages; PageForm::ALL.len()],
) -> Result<()> {
    let mut digests = Vec::new();
    for side in &mut sides {
        let answers = sender.run(side, Until::Requests(CHECKED), true)?.1;
        digests.push((answers[0].digest, answers[0].messages));
    }
    ensure!(digests[0] == digests[1], "gathered and copied pages differ");
    ensure!(digests[2] == digests[3], "gathered and copied records differ");
    let mut whole = sides[0].pages.clone();
    let mut ring = Ring::new(PAGE_BYTES, &mut whole, 1)?;
    let mut limits = Vec::new();
    let samples = alternate(sides.len() + 1, setting.rounds(), |side, _| -> Result<Sample> {
        let Some(side) = sides.get_mut(side) else {
            limits.push(ring.limit(&mut whole, 1, setting.slice_ns()));
            return Ok(Sample::default());
        };
        Ok(sender.run(side, Until::Elapsed(setting.slice_ns()), false)?.0)
    })?;
    for (way, rounds) in PageForm::ALL.into_iter().zip(samples) {
        let point = Point::of(format!("{} {size} B", way.name()), count as u64, rounds, &limits);
        figure.points.push(point.with("delta_bytes", size).with("way", way.name()));
    }
    Ok(())
}

fn tell(figure: &mut Figure, setting: &Setting<'_>) {
    figure.text = format!(
        "Each message is one base page of 16 KiB with 0 to 32 delta records of 128 or 1024 bytes, pages and deltas scattered \
         over {} MiB each. <i>Scattered</i> sends about the same bytes as records of the deltas' size, which is what a store \
         without pages would do, gathered or packed first. The limit copies pages of 16 KiB.",
        setting.region_bytes() >> 20
    );
    for size in SIZES {
        charts(figure, size);
    }
    bar(figure);
}

/// The charts of one size of deltas.
fn charts(figure: &mut Figure, size: usize) {
    let mut throughput = Curves::new("throughput (GB/s)", "deltas behind the page", Scale::Linear);
    let mut cpu = Curves::new("CPU of the sender (ns per byte)", "deltas behind the page", Scale::Linear).logarithmic();
    for (colour, way) in PageForm::ALL.into_iter().enumerate() {
        let points = figure.curve(&format!("{} {size} B", way.name()));
        let work = points.iter().map(|p| (p.x, p.sender_work_ns_per_byte)).collect();
        throughput.add(Curve::of(way.name(), colour, points, |p| p.spread.bytes_per_s, 1e-9));
        cpu.add(Curve::values(way.name(), colour, work));
    }
    throughput.add(Curve::limit("memcpy of pages", 4, &figure.curve(&format!("page and deltas {size} B"))));
    throughput.marks(papers::marks("delta", "throughput"));
    let caption = format!(
        "Throughput of a page with its deltas of {size} B, as figure 6 of <i>To Copy or Not to Copy</i>. Diamonds are the paper's."
    );
    figure.charts.push((curves(&throughput), caption));
    let caption =
        format!("Work of the sender's processor for a byte, without empty polling, deltas of {size} B; log axis.");
    figure.charts.push((curves(&cpu), caption));
}

fn bar(figure: &mut Figure) {
    let at = |name: &str| figure.point(name, 8).cloned();
    let bar = at("page and deltas 128 B").zip(at("scattered, copied out 128 B")).map(|(page, copied)| {
        let work = copied.ratio(&page, Sample::work_per_byte);
        Bar::at_least("sender's work: scattered rows copied out over a page with 8 deltas", 2.0, work)
    });
    figure.bars.extend(bar);
}

const PAGE_BYTES: usize = 16 << 10;
const SIZES: [usize; 2] = [128, 1024];
const POOL_BYTES: usize = 1 << 20;
const CHECKED: u64 = 40;
