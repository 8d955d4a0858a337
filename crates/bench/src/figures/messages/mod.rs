//! `messages`: round trips of small messages (table 1 of rdma-sockets and its sweep of inline sizes), beside the kernel's sockets and
//! what bare shared memory gives, on idle cores, on one core and on busy ones.

pub(super) mod bare;
mod foreign;
pub(super) mod play;
pub(super) mod sockets;
mod sweep;
mod verbs;

use super::{
    Over, Setting,
    figure::{Figure, Table},
};
use crate::measure::{Bar, Ratio, Spread, alternate};
use anyhow::{Context, Result, ensure};
use foreign::Foreign;
use overside::Transport;
use play::{Match, Pinned, Seats, Stretch};
use serde_json::json;
use std::{ffi::OsString, net::TcpListener, os::unix::net::UnixStream, time::Duration};
use verbs::{Verbs, Way};

pub(super) use play::ROLE;

/// The answering process of a side.
pub(super) fn answer(arguments: &[OsString]) -> Result<()> {
    play::child(arguments)
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<Figure> {
    let mut figure = Figure::new("messages", "every provider present", "Round trips of small messages");
    let transports = transports();
    let ours = transports.iter().flat_map(|transport| Way::ALL.map(|way| side_name(transport, way)));
    let names: Vec<String> = ours.chain(BASELINES.map(str::to_owned)).chain(Foreign::names()).collect();
    // Of all figures it may choose among those of another.
    ensure!(
        !setting.installed || names.iter().any(|name| setting.wants(name)),
        "no side of messages has that in its name; --only chooses among {}",
        names.join(", ")
    );
    let mut absent = Vec::new();
    let mut measured = Vec::new();
    for place in PLACES {
        measured.push((place, placement(setting, place, &transports, &mut absent)?));
    }
    for (place, sides) in &measured {
        table(&mut figure, place, sides);
    }
    let swept = |transport: &&str| setting.wants(&side_name(transport, Way::FramedInline));
    let swept: Vec<&str> = transports.iter().copied().filter(swept).collect();
    sweep::measure(setting, &swept, &mut figure)?;
    bars(&mut figure, &measured);
    record(&mut figure, &measured);
    figure.more.insert("placements".into(), measured.iter().map(|(place, sides)| data(place, sides)).collect());
    for why in &absent {
        eprintln!("messages, not measured: {why}");
    }
    figure.more.insert("not_measured".into(), absent.into());
    figure.text = format!(
        "Messages of {MESSAGE_BYTES} bytes go back and forth between two processes, one at a time. <i>Bare</i> is what shared memory \
         gives with nothing around it: a ring whose two ends spin, and a word that the kernel hands over (a futex). Index, and header \
         and footer are one-sided and poll memory, as in <i>rdma-sockets</i>; SEND meets a receive and sleeps by itself where polling \
         brings nothing. Idle: two processors with nothing else to do, an end pinned to each. One core: both processes pinned to one. Busy: two other \
         programs that never sleep, on the same two processors. Ratios are of paired rounds. libfabric's are of <i>fi_pingpong</i>, UCX's of \
         <i>ucx_perftest</i>, which poll, and start anew for each round: their processor time is not known."
    );
    Ok(figure)
}

/// Where both ends run, and beside what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) name: &'static str,
    processors: usize,
    busy: usize,
    /// Each end on a processor of its own.
    apart: bool,
}

impl Place {
    /// Puts this process there, and those that it starts from now on, until that is dropped.
    pub(super) fn take(&self) -> Result<Seats> {
        Seats::take(self.processors, self.busy, self.apart)
    }
}

pub(super) const PLACES: [Place; 3] = [
    Place { name: "two idle cores", processors: 2, busy: 0, apart: true },
    Place { name: "one core", processors: 1, busy: 0, apart: false },
    Place { name: "two busy cores", processors: 2, busy: 2, apart: false },
];

/// Two processors, and the scheduler says who is on which.
pub(super) const ANYWHERE: Place = Place { name: "two cores", processors: 2, busy: 0, apart: false };

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

fn placement(
    setting: &Setting<'_>,
    place: Place,
    transports: &[&str],
    absent: &mut Vec<String>,
) -> Result<Vec<Rounds>> {
    let seats = place.take()?;
    let mut sides = sides(setting, &seats, transports)?;
    let (mut others, why) = Foreign::present(&seats, slice_ns(setting), MESSAGE_BYTES, |name| setting.wants(name));
    let rounds = setting.rounds();
    let (mut done, all) = (0, sides.len() + others.len());
    let samples = alternate(all, rounds, |side, round| {
        done += 1;
        setting.progress.part(&format!("messages, {}", place.name), done, rounds * all);
        match sides.get_mut(side) {
            Some(ours) => ours.play(slice_ns(setting), MESSAGE_BYTES),
            // Most of their time is starting.
            None if round >= OTHERS_ROUNDS => Ok(Stretch::default()),
            None => Ok(others[side - sides.len()].play(&seats, slice_ns(setting), MESSAGE_BYTES)),
        }
    })?;
    let why = why.into_iter().chain(others.iter().filter_map(Foreign::failed));
    absent.extend(why.map(|why| format!("{}: {why}", place.name)));
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

/// Those that are wanted, ready; the four that all others are compared with always are.
fn sides(setting: &Setting<'_>, seats: &Seats, transports: &[&str]) -> Result<Vec<Match>> {
    let mut all = bare_sides(seats)?;
    let (ours, theirs) = UnixStream::pair().context("no socket pair could be made")?;
    let unix = sockets::Stream::unix(ours.into());
    all.push(Match::start(seats, UNIX, &["unix"], Some(theirs.into()), |_| Ok(Box::new(unix)))?);
    let listener = TcpListener::bind("127.0.0.1:0").context("no TCP port of this host is free")?;
    let address = listener.local_addr()?.to_string();
    let tcp = |_: &mut UnixStream| Ok(Box::new(sockets::Stream::accept(&listener)?) as Box<dyn play::Side>);
    all.push(Match::start(seats, TCP, &["tcp", &address], None, tcp)?);
    for transport in transports {
        for way in Way::ALL.into_iter().filter(|way| setting.wants(&side_name(transport, *way))) {
            all.push(provided(setting, seats, transport, way)?.0);
        }
    }
    Ok(all)
}

/// A side over a provider, and how long an inline message of its may be.
fn provided(setting: &Setting<'_>, seats: &Seats, transport: &str, way: Way) -> Result<(Match, usize)> {
    let meeting = Over::new(transport, setting.over.rdma_device.as_deref())?.meeting()?;
    let mut endpoint = Verbs::endpoint(&meeting)?;
    let mut listener = endpoint.listen(meeting.address.name())?;
    let mut inline_max = 0;
    let name = side_name(transport, way);
    let open = |line: &mut UnixStream| {
        let accepted = endpoint.accept(&mut *listener, PATIENCE);
        let (pair, _) = accepted.context("the answering process does not connect")?;
        let side = Verbs::over(way, endpoint, pair, line)?;
        inline_max = side.inline_max;
        Ok(Box::new(side) as Box<dyn play::Side>)
    };
    let side = Match::start(seats, &name, &["verbs", way.name(), &meeting.to_string()], None, open)?;
    Ok((side, inline_max))
}

fn side_name(transport: &str, way: Way) -> String {
    format!("{transport}: {}", way.name())
}

fn table(figure: &mut Figure, place: &Place, sides: &[Rounds]) {
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
        caption: format!("Round trips of {MESSAGE_BYTES} B, {}", place.name),
        head: head.map(str::to_owned).to_vec(),
        rows: sides.iter().map(row).collect(),
    });
}

fn data(place: &Place, sides: &[Rounds]) -> serde_json::Value {
    let side = |side: &Rounds| {
        let spread = Spread::of(&side.per_s());
        json!({"side": side.name, "round_trips_per_s": spread.median, "spread": spread, "cpu_ns_each": side.cpu_each()})
    };
    json!({"placement": place.name, "sides": sides.iter().map(side).collect::<Vec<_>>()})
}

fn ratio(measured: &[(Place, Vec<Rounds>)], place: usize, ours: &str, theirs: &str) -> Option<Ratio> {
    let sides = &measured.get(place)?.1;
    let of = |name: &str| Some(sides.iter().find(|side| side.name == name)?.per_s());
    Ratio::paired(&of(ours)?, &of(theirs)?)
}

fn bars(figure: &mut Figure, measured: &[(Place, Vec<Rounds>)]) {
    let ours = side_name("shm", Way::SendInline);
    let two = Pinned::processors() >= 2;
    for (place, theirs, wanted) in [(0, SPIN, 0.6), (1, FUTEX, 0.7), (1, UNIX, 1.3), (2, UNIX, 1.0)] {
        // With one processor in all there is no such placement.
        let ratio = if two || place == 1 { ratio(measured, place, &ours, theirs) } else { None };
        figure.bars.push(Bar::at_least(format!("{ours} over {theirs}, {}", PLACES[place].name), wanted, ratio));
    }
}

/// What every round came to, as rules read it.
fn record(figure: &mut Figure, measured: &[(Place, Vec<Rounds>)]) {
    let sides = measured.iter().flat_map(|(place, sides)| sides.iter().map(move |side| (place, side)));
    for (place, side) in sides.filter(|(_, side)| !side.stretches.is_empty()) {
        figure.record(format!("{}, {}", place.name, side.name), MESSAGE_BYTES as u64, side.per_s());
    }
}

pub(super) const SPIN: &str = "bare spin ring";
pub(super) const FUTEX: &str = "bare futex";
const UNIX: &str = "Unix socket";
const TCP: &str = "TCP";
const BASELINES: [&str; 4] = [SPIN, FUTEX, UNIX, TCP];
pub(super) const MESSAGE_BYTES: usize = 64;
/// In so many of the first rounds other libraries' programs play.
const OTHERS_ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(20);
