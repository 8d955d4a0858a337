//! redis-benchmark against redis-server.

use super::{
    installed::{self, Installed, Server, Stack, Work, client, found, free_port},
    keeper::{Keeper, Launch},
    program::Family,
    table::Series,
};
use crate::figures::Setting;
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

struct Redis {
    benchmark: PathBuf,
}

/// Its series, or nothing where it is not installed.
pub(super) fn measure(setting: &Setting<'_>, keeper: &mut Keeper, library: &Path) -> Result<Option<Vec<Series>>> {
    let (Some(server), Some(benchmark)) = (found("redis-server"), found("redis-benchmark")) else { return Ok(None) };
    let Some(cli) = found("redis-cli") else { return Ok(None) };
    let wanted: Vec<_> = WORK.into_iter().filter(|(name, _)| setting.wants(name)).collect();
    if wanted.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let servers = [serve(keeper, &server, &cli, None)?, serve(keeper, &server, &cli, Some(library))?];
    let folder = keeper.folder().to_owned();
    let ways = installed::ways(&servers, library, &folder, None)?;
    let redis = Redis { benchmark };
    let mut all = Vec::new();
    for (name, arguments) in wanted {
        let work = Work { name, arguments: arguments.to_vec(), count: 2_000 };
        all.push(installed::measure(setting, keeper, &redis, work, &ways)?);
    }
    Ok(Some(all))
}

fn serve(keeper: &mut Keeper, server: &Path, cli: &Path, library: Option<&Path>) -> Result<Server> {
    let name = if library.is_some() { "redis-library" } else { "redis" };
    let folder = keeper.folder().join(name);
    std::fs::create_dir(&folder)?;
    let port = free_port()?;
    let environment = match library {
        Some(library) => installed::environment(library, &folder.join("report"), None)?,
        None => Vec::new(),
    };
    let socket = folder.join("socket").display().to_string();
    let (number, place) = (port.to_string(), folder.display().to_string());
    let words = ["--port", &number, "--bind", "127.0.0.1", "--unixsocket", &socket, "--save", "", "--dir", &place];
    let arguments = words.map(str::to_owned).to_vec();
    let stays = Some((folder.join("log"), Signal::TERM.as_raw()));
    keeper.serve(&Launch { program: server.into(), arguments, environment, user: None, stays })?;
    let ping = ["-p", &number, "ping"].map(str::to_owned).to_vec();
    keeper.until_it_succeeds(&Launch { program: cli.into(), arguments: ping, ..Launch::default() })?;
    Ok(Server { port, folder, library: library.is_some() })
}

impl Installed for Redis {
    fn once(&self, keeper: &mut Keeper, work: &Work, way: &Stack) -> Result<(u64, u64)> {
        let mut arguments = match way.family {
            Family::Tcp => vec!["-h".into(), "127.0.0.1".into(), "-p".into(), way.server.port.to_string()],
            Family::Unix => vec!["-s".into(), way.server.folder.join("socket").display().to_string()],
        };
        arguments.extend(["--csv", "-t", "get", "-n"].map(str::to_owned));
        let count = whole_pipelines(work.count);
        arguments.push(count.to_string());
        arguments.extend(work.arguments.iter().map(|word| (*word).to_owned()));
        let ended = keeper.must(&client(&self.benchmark, arguments, way, None))?;
        let per_s = rate(&ended.said).with_context(|| format!("redis-benchmark said {:?}", ended.said))?;
        Ok((count, (count as f64 * 1e9 / per_s) as u64))
    }
}

/// So many requests that no part of a pipeline is left over. redis-benchmark would send a whole one
/// for that, and have more answers than it was to ask for. If its clock ticks when it has the last,
/// four times a second, it says that all clients have disconnected, and fails.
fn whole_pipelines(count: u64) -> u64 {
    count.next_multiple_of(PIPELINE)
}

/// Requests a second, from the line `"GET","123456.78",…`.
fn rate(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix("\"GET\",\""))?;
    line.split('"').next()?.parse().ok().filter(|rate| *rate > 0.0)
}

/// The most that a client has under way.
const PIPELINE: u64 = 16;
/// Clients and requests under way of each.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    WORK.into_iter().map(|(name, _)| name)
}

const WORK: [(&str, &[&str]); 4] = [
    (super::GET_1, &["-c", "1"]),
    (super::GET_50, &["-c", "50"]),
    ("redis GET, 1 client, 16 at a time", &["-c", "1", "-P", "16"]),
    ("redis GET, 50 clients, 16 at a time", &["-c", "50", "-P", "16"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_among_warnings() {
        let said = "WARNING: Could not fetch server CONFIG\n\"test\",\"rps\",\"avg\"\n\"GET\",\"20833.33\",\"0.042\"\n";
        assert_eq!(rate(said), Some(20833.33));
        assert_eq!(rate("\"GET\",\"0.00\""), None);
        assert_eq!(rate("Could not connect"), None);
    }

    #[test]
    fn requests_fill_the_pipelines_of_all_series() {
        for (name, words) in WORK {
            let depth = words.iter().skip_while(|word| **word != "-P").nth(1).map_or(1, |depth| depth.parse().unwrap());
            for count in [1, 15, 16, 2000, 71_685] {
                let asked = whole_pipelines(count);
                assert!(asked >= count && asked.is_multiple_of(depth), "{name}: {asked} for {count}");
            }
        }
    }
}
