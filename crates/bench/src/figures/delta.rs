//! `delta`: a base page with a varying number of delta records behind it, as one
//! message (to-copy figure 6).

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
    /// One cursor a destination, of both.
    pages: Vec<Records>,
    deltas: Vec<Records>,
    delta_bytes: usize,
    count: usize,
    pool: Pool,
    runs: Vec<Run>,
    sge_max: usize,
}

impl Pages {
    /// Records a message of `Scattered` has: as many as make up the page and its
    /// deltas, as far as a list goes.
    fn scattered(&self) -> usize {
        (PAGE_BYTES / self.delta_bytes + self.count).min(self.sge_max)
    }
}

impl Side for Pages {
    fn next(&mut self, to: usize) -> Result<Next> {
        let scattered = self.scattered();
        let (pages, deltas) = (&mut self.pages[to], &mut self.deltas[to]);
        let view = match self.way {
            PageForm::CopyOut => {
                let Some(mut buffer) = self.pool.take() else { return Ok(Next::Wait) };
                pages.pack(1, &mut buffer);
                let behind = deltas.pack(self.count, &mut buffer[PAGE_BYTES..]);
                self.pool.view(buffer, PAGE_BYTES + behind)
            }
            PageForm::Gather => {
                let place = pages.take();
                let page = View::runs(pages.memory(), [place])?;
                self.runs.clear();
                self.runs.extend((0..self.count).map(|_| deltas.take()));
                match self.count {
                    0 => page,
                    _ => page.then(View::runs(deltas.memory(), self.runs.iter().copied())?),
                }
            }
            PageForm::Scattered => {
                self.runs.clear();
                self.runs.extend((0..scattered).map(|_| deltas.take()));
                View::runs(deltas.memory(), self.runs.iter().copied())?
            }
            PageForm::ScatteredCopied => {
                let Some(mut buffer) = self.pool.take() else { return Ok(Next::Wait) };
                let bytes = deltas.pack(scattered, &mut buffer);
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
        (page + records * self.delta_bytes) as u64
    }
}

/// Measures the figure.
pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("delta", setting.over.name(), "A base page and its deltas");
    let mut sender = Sender::start(setting.over, CLIENTS[1])?;
    let pages = Records::region(&mut sender, setting.region_bytes())?;
    let deltas = Records::region(&mut sender, setting.region_bytes())?;
    let counts: &[usize] = if setting.quick { &[0, 1, 4, 8, 16, 32] } else { &[0, 1, 2, 4, 8, 12, 16, 24, 32] };
    let sizes = SIZES.into_iter().flat_map(|size| CLIENTS.map(|clients| (size, clients)));
    let cells: Vec<_> = counts.iter().flat_map(|count| sizes.clone().map(|(size, to)| (*count, size, to))).collect();
    for (at, (count, size, clients)) in cells.iter().copied().enumerate() {
        setting.progress.part("delta", at, cells.len());
        let message_bytes = PAGE_BYTES + count * size;
        // In common, at least four a client: with fewer, what is copied out would wait more often. What is gathered never does.
        let pool = sender.pool(message_bytes, (POOL_BYTES / message_bytes).max(4 * clients))?;
        sender.connect(clients, message_bytes, pool.capacity())?;
        let parts = |records: Records| (0..clients).map(|part| records.part(part, clients)).collect::<Vec<_>>();
        let side = |way| Pages {
            way,
            pages: parts(Records::new(&pages, PAGE_BYTES)),
            deltas: parts(Records::new(&deltas, size)),
            delta_bytes: size,
            count,
            pool: pool.clone(),
            runs: Vec::new(),
            sge_max: sender.capabilities.sge_max,
        };
        let sides = PageForm::ALL.map(side);
        one(setting, &mut sender, &mut figure, (count, size, clients), sides)?;
    }
    tell(&mut figure, setting);
    Ok(figure)
}

fn one(
    setting: &Setting<'_>,
    sender: &mut Sender,
    figure: &mut Figure,
    (count, size, clients): (usize, usize, usize),
    mut sides: [Pages; PageForm::ALL.len()],
) -> Result<()> {
    let mut digests = Vec::new();
    for side in &mut sides {
        let answers = sender.run(side, Until::Requests(CHECKED), true)?.1;
        digests.push(answers.iter().map(|answer| (answer.digest, answer.messages)).collect::<Vec<_>>());
    }
    ensure!(digests[0] == digests[1], "gathered and copied pages differ");
    ensure!(digests[2] == digests[3], "gathered and copied records differ");
    let mut whole = sides[0].pages[0].clone();
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
        let point = Point::of(series(way, size, clients), count as u64, rounds, &limits);
        figure.points.push(point.with("delta_bytes", size).with("way", way.name()).with("clients", clients));
    }
    Ok(())
}

fn series(way: PageForm, size: usize, clients: usize) -> String {
    match clients {
        1 => format!("{} {size} B", way.name()),
        _ => format!("{} {size} B, {clients} clients", way.name()),
    }
}

fn tell(figure: &mut Figure, setting: &Setting<'_>) {
    figure.text = format!(
        "Each message is one base page of 16 KiB with 0 to 32 delta records of 128 or 1024 bytes, pages and deltas scattered \
         over {} MiB each. <i>Scattered</i> sends about the same bytes as records of the deltas' size, which is what a store \
         without pages would do, gathered or packed first. They go to one client, and to 15 as in the paper. The limit copies \
         pages of 16 KiB.",
        setting.region_bytes() >> 20
    );
    for (size, clients) in SIZES.into_iter().flat_map(|size| CLIENTS.map(|clients| (size, clients))) {
        charts(figure, size, clients);
    }
    bar(figure);
}

/// The charts of one size of deltas.
fn charts(figure: &mut Figure, size: usize, clients: usize) {
    let who = if clients == 1 { "one client".to_owned() } else { format!("{clients} clients") };
    let mut throughput = Curves::new("throughput (GB/s)", "deltas behind the page", Scale::Linear);
    let mut cpu = Curves::new("CPU of the sender (ns per byte)", "deltas behind the page", Scale::Linear).logarithmic();
    for (colour, way) in PageForm::ALL.into_iter().enumerate() {
        let points = figure.curve(&series(way, size, clients));
        let work = points.iter().map(|p| (p.x, p.sender_work_ns_per_byte)).collect();
        throughput.add(Curve::of(way.name(), colour, points, |p| p.spread.bytes_per_s, 1e-9));
        cpu.add(Curve::values(way.name(), colour, work));
    }
    let pages = figure.curve(&series(PageForm::Gather, size, clients));
    throughput.add(Curve::limit("memcpy of pages", 4, &pages));
    throughput.marks(papers::marks("delta", "throughput"));
    let caption = format!(
        "Throughput of a page with its deltas of {size} B to {who}, as figure 6 of <i>To Copy or Not to Copy</i>. Diamonds are \
         the paper's."
    );
    figure.charts.push((curves(&throughput), caption));
    let caption = format!(
        "Work of the sender's processor for a byte, without empty polling, deltas of {size} B to {who}; log axis."
    );
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
const CLIENTS: [usize; 2] = [1, 15];
const POOL_BYTES: usize = 1 << 20;
const CHECKED: u64 = 40;
