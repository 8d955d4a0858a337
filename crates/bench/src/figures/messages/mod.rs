//! `messages`: round trips of small messages (table 1 of rdma-sockets and its sweep of
//! inline sizes). The kernel's sockets and bare shared memory stand beside, on idle cores,
//! on one core and on busy ones.

pub(super) mod bare;
mod foreign;
pub(super) mod play;
pub(super) mod sockets;
mod sweep;
mod verbs;

use super::{
    Over, Setting,
    figure::{Figure, Table},
    remote::{Host, OtherEnd},
};
use crate::measure::{Bar, Ratio, Spread, alternate};
use anyhow::{Context, Result, ensure};
use foreign::Foreign;
use overside::{Network, Transport};
use play::{Match, Pinned, Seats, Stretch};
use serde_json::json;
use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr},
    os::unix::net::UnixStream,
    time::Duration,
};
use verbs::Verbs;

pub(super) use play::ROLE;
pub(super) use verbs::MessageForm;

/// The answering process of a side.
pub(super) fn answer(arguments: &[OsString]) -> Result<()> {
    play::child(arguments)
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let placements: &[Placement] = if setting.over.to.is_some() { &[BETWEEN] } else { &PLACEMENTS };
    let (provider, transports) = match &setting.over.to {
        Some(host) => (setting.over.name(), vec![host.transport().name]),
        None => ("every provider present", transports()),
    };
    let mut figure = Figure::new("messages", provider, "Round trips of small messages");
    let ours = transports.iter().flat_map(|transport| MessageForm::ALL.map(|way| side_name(transport, way)));
    let mut names: Vec<String> = ours.chain([TCP.to_owned()]).collect();
    if setting.over.to.is_none() {
        names.extend(WITHIN.map(str::to_owned).into_iter().chain(Foreign::names()));
    }
    // Of all figures it may choose among those of another.
    ensure!(
        !setting.installed || names.iter().any(|name| setting.wants(name)),
        "no side of messages has that in its name; --only chooses among {}",
        names.join(", ")
    );
    let mut absent = Vec::new();
    let mut measured = Vec::new();
    for placement in placements {
        measured.push((*placement, measure_at(setting, *placement, &transports, &mut absent)?));
    }
    for (placement, sides) in &measured {
        table(&mut figure, placement, sides);
    }
    let swept = |transport: &&str| setting.wants(&side_name(transport, MessageForm::FramedInline));
    let swept: Vec<&str> = transports.iter().copied().filter(swept).collect();
    sweep::measure(setting, &placements[0], &swept, &mut figure)?;
    if setting.over.to.is_none() {
        bars(&mut figure, &measured);
    }
    record(&mut figure, &measured);
    figure.more.insert("placements".into(), measured.iter().map(|(placement, sides)| data(placement, sides)).collect());
    for why in &absent {
        eprintln!("messages, not measured: {why}");
    }
    figure.more.insert("not_measured".into(), absent.into());
    figure.text = match setting.over.to {
        None => text_within(),
        Some(_) => text_between(),
    };
    Ok(figure)
}

fn text_between() -> String {
    format!(
        "Messages of {MESSAGE_BYTES} bytes go back and forth between a process of each host, one at a time. Index, and header and footer \
         are one-sided and poll memory, as in <i>rdma-sockets</i>; SEND meets a receive and sleeps by itself where polling brings \
         nothing. TCP is the kernel's. Ratios are of paired rounds."
    )
}

fn text_within() -> String {
    format!(
        "Messages of {MESSAGE_BYTES} bytes go back and forth between two processes, one at a time. <i>Bare</i> is what shared memory \
         gives with nothing around it: a ring whose two ends spin, and a word that the kernel hands over (a futex). Index, and header \
         and footer are one-sided and poll memory, as in <i>rdma-sockets</i>; SEND meets a receive and sleeps by itself where polling \
         brings nothing. Idle: two processors with nothing else to do, an end pinned to each. One core: both processes pinned to one. Busy: two other \
         programs that never sleep, on the same two processors. Ratios are of paired rounds. libfabric's are of <i>fi_pingpong</i>, UCX's of \
         <i>ucx_perftest</i>, Open MPI's of <i>NetPIPE</i> (the best of its trials), which poll, and start anew for each round: their processor time is not known."
    )
}

/// Where both ends run, and beside what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Placement {
    pub(super) name: &'static str,
    processors: usize,
    busy: usize,
    /// Each end on a processor of its own.
    apart: bool,
}

impl Placement {
    /// Puts this process there, and those that it starts from now on, until that is dropped.
    pub(super) fn take(&self) -> Result<Seats> {
        Seats::take(self.processors, self.busy, self.apart)
    }
}

pub(super) const PLACEMENTS: [Placement; 3] = [
    Placement { name: "two idle cores", processors: 2, busy: 0, apart: true },
    Placement { name: "one core", processors: 1, busy: 0, apart: false },
    Placement { name: "two busy cores", processors: 2, busy: 2, apart: false },
];

/// Two processors, and the scheduler says who is on which.
pub(super) const ANYWHERE: Placement = Placement { name: "two cores", processors: 2, busy: 0, apart: false };

/// This end where the scheduler puts it, the other one on another host.
const BETWEEN: Placement = Placement { name: "between hosts", ..ANYWHERE };

/// A side's rounds.
struct Rounds {
    name: String,
    stretches: Vec<Stretch>,
}

impl Rounds {
    fn per_s(&self) -> Vec<f64> {
        self.stretches.iter().map(Stretch::per_s).collect()
    }

    /// Unless it is not known.
    fn cpu_each(&self) -> Option<f64> {
        let known = self.stretches.iter().all(|stretch| stretch.cpu_ns > 0);
        known.then(|| Spread::of(&self.stretches.iter().map(Stretch::cpu_each).collect::<Vec<_>>()).median)
    }
}

/// The transports of which there is a device.
fn transports() -> Vec<&'static str> {
    Transport::all().filter(|transport| transport.is_here()).map(|transport| transport.name).collect()
}

fn measure_at(
    setting: &Setting<'_>,
    placement: Placement,
    transports: &[&str],
    absent: &mut Vec<String>,
) -> Result<Vec<Rounds>> {
    let seats = placement.take()?;
    let mut sides = sides(setting, &seats, transports)?;
    let (mut others, why) = match setting.over.to {
        None => Foreign::present(&seats, slice_ns(setting), MESSAGE_BYTES, |name| setting.wants(name)),
        // Nobody starts them on the other host.
        Some(_) => (Vec::new(), Vec::new()),
    };
    let rounds = setting.rounds();
    let (mut done, all) = (0, sides.len() + others.len());
    let samples = alternate(all, rounds, |side, round| {
        done += 1;
        setting.progress.part(&format!("messages, {}", placement.name), done, rounds * all);
        match sides.get_mut(side) {
            Some(ours) => ours.play(slice_ns(setting), MESSAGE_BYTES),
            // Most of their time is starting.
            None if round >= OTHERS_ROUNDS => Ok(Stretch::default()),
            None => Ok(others[side - sides.len()].play(&seats, slice_ns(setting), MESSAGE_BYTES)),
        }
    })?;
    let why = why.into_iter().chain(others.iter().filter_map(Foreign::failed));
    absent.extend(why.map(|why| format!("{}: {why}", placement.name)));
    let names = sides.iter().map(|side| side.name.clone()).chain(others.iter().map(Foreign::name));
    let mut named: Vec<_> = names.zip(samples).map(|(name, stretches)| Rounds { name, stretches }).collect();
    named.iter_mut().for_each(|side| side.stretches.retain(|stretch| stretch.round_trips > 0));
    named.retain(|side| !others.iter().any(|other| other.failed().is_some() && other.name() == side.name));
    Ok(named)
}

fn slice_ns(setting: &Setting<'_>) -> u64 {
    if setting.quick { 20_000_000 } else { 60_000_000 }
}

/// What shared memory gives with nothing around it: the ring and the futex.
pub(super) fn bare_sides(seats: &Seats) -> Result<Vec<Match>> {
    let (spin, memory) = bare::Spin::ours()?;
    let spin = Match::start(seats, SPIN, &["spin"], Some(memory), |_| Ok(Box::new(spin)))?;
    let (futex, memory) = bare::Futex::ours()?;
    Ok(vec![spin, Match::start(seats, FUTEX, &["futex"], Some(memory), |_| Ok(Box::new(futex)))?])
}

/// Those that are wanted, ready; what all others are compared with always is.
fn sides(setting: &Setting<'_>, seats: &Seats, transports: &[&str]) -> Result<Vec<Match>> {
    let mut all = Vec::new();
    if setting.over.to.is_none() {
        all = bare_sides(seats)?;
        let (ours, theirs) = UnixStream::pair().context("no socket pair could be made")?;
        let unix = sockets::Stream::unix(ours.into());
        all.push(Match::start(seats, UNIX, &["unix"], Some(theirs.into()), |_| Ok(Box::new(unix)))?);
    }
    all.push(kernel_tcp(setting, seats)?);
    for transport in transports {
        for way in MessageForm::ALL.into_iter().filter(|way| setting.wants(&side_name(transport, *way))) {
            all.push(provided(setting, seats, transport, way)?.0);
        }
    }
    Ok(all)
}

/// A side whose other end is a process of this host, or of the one that receives.
fn against(
    setting: &Setting<'_>,
    seats: &Seats,
    name: &str,
    end: &OtherEnd,
    network: &Network,
    open: impl FnOnce(&mut UnixStream) -> Result<Box<dyn play::Side>>,
) -> Result<Match> {
    let (process, line) = match &setting.over.to {
        Some(host) => (None, host.start(end)?),
        None => {
            let (process, line) = seats.across(|| end.start(network))?;
            (Some(process), line)
        }
    };
    Match::over(name, line, process, open)
}

fn kernel_tcp(setting: &Setting<'_>, seats: &Seats) -> Result<Match> {
    let here = || Ok(IpAddr::from(Ipv4Addr::LOCALHOST));
    let awaiting = sockets::Awaiting::at(setting.over.to.as_ref().map_or_else(here, Host::towards)?)?;
    let end = OtherEnd::Tcp { address: awaiting.address()?, secret: awaiting.secret.clone() };
    let open = |_: &mut UnixStream| Ok(Box::new(awaiting.accept()?) as Box<dyn play::Side>);
    against(setting, seats, TCP, &end, &Network::default(), open)
}

/// A side over a provider, and how long an inline message of its may be.
fn provided(setting: &Setting<'_>, seats: &Seats, transport: &str, way: MessageForm) -> Result<(Match, usize)> {
    let rendezvous = match &setting.over.to {
        Some(host) => host.rendezvous()?,
        None => Over::new(transport, setting.over.rdma_device.as_deref())?.rendezvous()?,
    };
    let mut endpoint = Verbs::endpoint(&rendezvous)?;
    let mut listener = endpoint.listen(rendezvous.address.name())?;
    let mut inline_max = 0;
    let name = side_name(transport, way);
    let open = |line: &mut UnixStream| {
        let accepted = endpoint.accept(&mut *listener, PATIENCE);
        let (pair, _) = accepted.context("the answering process does not connect")?;
        let side = Verbs::over(way, endpoint, pair, line)?;
        inline_max = side.inline_max;
        Ok(Box::new(side) as Box<dyn play::Side>)
    };
    let end = OtherEnd::Answers(way, rendezvous.address.clone());
    let side = against(setting, seats, &name, &end, &rendezvous.network, open)?;
    Ok((side, inline_max))
}

fn side_name(transport: &str, way: MessageForm) -> String {
    format!("{transport}: {}", way.name())
}

fn table(figure: &mut Figure, placement: &Placement, sides: &[Rounds]) {
    let over = |side: &Rounds, other: &str| {
        let other = sides.iter().find(|side| side.name == other);
        other
            .and_then(|other| Ratio::paired(&side.per_s(), &other.per_s()))
            .map_or("–".into(), |r| format!("{:.2}", r.median))
    };
    let row = |side: &Rounds| {
        let spread = Spread::of(&side.per_s());
        vec![
            side.name.clone(),
            format!("{:.1}", spread.median / 1e3),
            format!("{:.1}–{:.1}", spread.quarter_low / 1e3, spread.quarter_high / 1e3),
            side.cpu_each().map_or("–".into(), |ns| format!("{:.2}", ns / 1e3)),
            over(side, SPIN),
            over(side, FUTEX),
            over(side, UNIX),
            over(side, TCP),
        ]
    };
    let head = ["", "thousand/s", "quartiles", "CPU µs each", "× spin ring", "× futex", "× Unix", "× TCP"];
    figure.tables.push(Table {
        caption: format!("Round trips of {MESSAGE_BYTES} B, {}", placement.name),
        head: head.map(str::to_owned).to_vec(),
        rows: sides.iter().map(row).collect(),
    });
}

fn data(placement: &Placement, sides: &[Rounds]) -> serde_json::Value {
    let side = |side: &Rounds| {
        let spread = Spread::of(&side.per_s());
        json!({"side": side.name, "round_trips_per_s": spread.median, "spread": spread, "cpu_ns_each": side.cpu_each()})
    };
    json!({"placement": placement.name, "sides": sides.iter().map(side).collect::<Vec<_>>()})
}

fn ratio(measured: &[(Placement, Vec<Rounds>)], placement: usize, ours: &str, theirs: &str) -> Option<Ratio> {
    let sides = &measured.get(placement)?.1;
    let of = |name: &str| Some(sides.iter().find(|side| side.name == name)?.per_s());
    Ratio::paired(&of(ours)?, &of(theirs)?)
}

fn bars(figure: &mut Figure, measured: &[(Placement, Vec<Rounds>)]) {
    let ours = side_name("shm", MessageForm::SendInline);
    let two = Pinned::processors() >= 2;
    for (placement, theirs, wanted) in [(0, SPIN, 0.6), (1, FUTEX, 0.7), (1, UNIX, 1.3), (2, UNIX, 1.0)] {
        // With one processor in all there is no such placement.
        let ratio = if two || placement == 1 { ratio(measured, placement, &ours, theirs) } else { None };
        figure.bars.push(Bar::at_least(format!("{ours} over {theirs}, {}", PLACEMENTS[placement].name), wanted, ratio));
    }
}

/// What every round came to, as rules read it.
fn record(figure: &mut Figure, measured: &[(Placement, Vec<Rounds>)]) {
    let sides = measured.iter().flat_map(|(placement, sides)| sides.iter().map(move |side| (placement, side)));
    for (placement, side) in sides.filter(|(_, side)| !side.stretches.is_empty()) {
        figure.record(format!("{}, {}", placement.name, side.name), MESSAGE_BYTES as u64, side.per_s());
    }
}

pub(super) const SPIN: &str = "bare spin ring";
pub(super) const FUTEX: &str = "bare futex";
const UNIX: &str = "Unix socket";
const TCP: &str = "TCP";
/// What there is within one host alone.
const WITHIN: [&str; 3] = [SPIN, FUTEX, UNIX];
pub(super) const MESSAGE_BYTES: usize = 64;
/// In so many of the first rounds other libraries' programs play.
const OTHERS_ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(20);
