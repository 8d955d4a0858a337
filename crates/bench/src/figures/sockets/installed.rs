//! Programs that nobody here wrote, where they are installed: the same server twice, plainly and
//! under the library, and a client of each, over TCP and over a Unix socket, sides alternating.

use super::{
    keeper::{Keeper, Launch, tree_ns},
    pair::{Ends, side_name},
    program::Family,
    table::{Series, SideRounds},
};
use crate::{
    figures::{Setting, messages::play::Stretch},
    measure::alternate,
};
use anyhow::{Context, Result};
use std::{
    env,
    fs::{self, File},
    net::TcpListener,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

/// A kind of server and its clients.
pub(super) trait Installed {
    /// What a client does once, of this side's server, with `work` of it to do: how often it did
    /// it, and how long that took.
    fn once(&self, keeper: &mut Keeper, work: &Work, side: &Stack) -> Result<(u64, u64)>;
}

/// What the clients are told to do.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) name: &'static str,
    /// Words of their command line.
    pub(super) arguments: Vec<&'static str>,
    /// How much.
    pub(super) count: u64,
}

/// One of the four sides.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    pub(super) family: Family,
    pub(super) server: Server,
    /// What its client runs with.
    pub(super) environment: Vec<(String, PathBuf)>,
    report: PathBuf,
}

/// A server that runs.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) port: u16,
    /// Where its files are, the socket among them.
    pub(super) folder: PathBuf,
    pub(super) library: bool,
}

/// What a program under the library has in its environment; the report is made.
pub(super) fn environment(library: &Path, report: &Path, user: Option<(u32, u32)>) -> Result<Vec<(String, PathBuf)>> {
    File::create(report)?;
    if let Some((user, group)) = user {
        chown(report, Some(user), Some(group))?;
    }
    Ok(vec![("LD_PRELOAD".into(), library.into()), ("OVERSIDE_SOCKETS_REPORT".into(), report.into())])
}

/// The library where any user can read it.
pub(super) fn copied(keeper: &Keeper, library: &Path) -> Result<PathBuf> {
    let copy = keeper.folder().join("library.so");
    fs::copy(library, &copy).context("the sockets library could not be copied")?;
    Ok(copy)
}

/// The four sides of two servers.
pub(super) fn ways(
    servers: &[Server; 2],
    library: &Path,
    folder: &Path,
    user: Option<(u32, u32)>,
) -> Result<Vec<Stack>> {
    let mut all = Vec::new();
    for family in [Family::Tcp, Family::Unix] {
        for server in servers {
            let report = folder.join(format!("report-{}", side_name(family, server.library)));
            let environment = if server.library { environment(library, &report, user)? } else { Vec::new() };
            all.push(Stack { family, server: server.clone(), environment, report });
        }
    }
    Ok(all)
}

/// A series of it, after finding out how much work fills a round.
pub(super) fn measure(
    setting: &Setting<'_>,
    keeper: &mut Keeper,
    kind: &dyn Installed,
    mut work: Work,
    ways: &[Stack],
) -> Result<Series> {
    let slice_ns: u64 = if setting.quick { 250_000_000 } else { 1_000_000_000 };
    let rounds = setting.rounds();
    // Twice: the first run of all also fills caches.
    for _ in 0..2 {
        let (done, wall_ns) = kind.once(keeper, &work, &ways[0])?;
        work.count = (done.saturating_mul(slice_ns) / wall_ns.max(1)).clamp(work.count, 100_000_000);
    }
    for way in ways.iter().filter(|way| way.server.library) {
        // What was before does not count.
        File::create(&way.report)?;
    }
    let mut done = 0;
    let samples = alternate(ways.len(), rounds, |side, _| {
        done += 1;
        setting.progress.part(&format!("sockets, {}", work.name), done, rounds * ways.len());
        stretch(keeper, kind, &work, &ways[side])
    })?;
    let side = |(way, stretches): (&Stack, _)| -> Result<SideRounds> {
        let ends = if way.server.library { Some(Ends::of(&fs::read_to_string(&way.report)?)) } else { None };
        Ok(SideRounds { name: side_name(way.family, way.server.library), stretches, ends })
    };
    let sides = ways.iter().zip(samples).map(side).collect::<Result<_>>()?;
    Ok(Series { name: work.name.to_owned(), sides })
}

fn stretch(keeper: &mut Keeper, kind: &dyn Installed, work: &Work, way: &Stack) -> Result<Stretch> {
    // The keeper is the client's parent and the server's: both are in its tree.
    let before = tree_ns(keeper.process());
    let (round_trips, wall_ns) = kind.once(keeper, work, way).with_context(|| work.name)?;
    Ok(Stretch { round_trips, wall_ns, cpu_ns: tree_ns(keeper.process()).saturating_sub(before) })
}

/// An order for a client of this side.
pub(super) fn client(program: &Path, arguments: Vec<String>, way: &Stack, user: Option<(u32, u32)>) -> Launch {
    Launch { program: program.into(), arguments, environment: way.environment.clone(), user, stays: None }
}

/// A program of the search path.
pub fn found(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// A port of this host that was free just now.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
