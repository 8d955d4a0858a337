//! pgbench, and psql with what pgbench would have sent, against PostgreSQL.

use super::{
    installed::{self, Installed, Server, Stack, Work, client, found, free_port},
    keeper::{Keeper, Launch},
    program::Family,
    table::Series,
};
use crate::figures::Setting;
use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, geteuid};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, chown},
    path::{Path, PathBuf},
};

/// Where it is and as whom it runs.
struct PostgreSql {
    programs: PathBuf,
    user: Option<(u32, u32)>,
}

/// A session as pgbench would have it, to be replayed.
struct Replay<'a> {
    postgresql: &'a PostgreSql,
    script: PathBuf,
    transactions: u64,
}

/// Its series, or why there are none.
pub(super) fn measure(
    setting: &Setting<'_>,
    keeper: &mut Keeper,
    library: &Path,
) -> Result<Result<Vec<Series>, &'static str>> {
    let wanted: Vec<_> = WORK.into_iter().filter(|(name, _)| setting.wants(name)).collect();
    if wanted.is_empty() && !setting.wants(super::REPLAY) {
        return Ok(Ok(Vec::new()));
    }
    let Some(programs) = programs() else { return Ok(Err("not installed")) };
    let user = match (geteuid().is_root(), account(ACCOUNT)) {
        (false, _) => None,
        (true, Some(user)) => Some(user),
        (true, None) => return Ok(Err("it refuses to run as root, and there is no user postgres")),
    };
    let postgresql = PostgreSql { programs, user };
    let servers = [postgresql.serve(keeper, None)?, postgresql.serve(keeper, Some(library))?];
    let folder = keeper.folder().to_owned();
    let ways = installed::ways(&servers, library, &folder, user)?;
    let mut all = Vec::new();
    for (name, arguments) in wanted {
        let work = Work { name, arguments: arguments.to_vec(), count: 100 };
        all.push(installed::measure(setting, keeper, &postgresql, work, &ways)?);
    }
    if !setting.wants(super::REPLAY) {
        return Ok(Ok(all));
    }
    let transactions = if setting.quick { REPLAYED / 5 } else { REPLAYED };
    let script = postgresql.record(keeper, &ways[0], transactions)?;
    let replay = Replay { postgresql: &postgresql, script, transactions };
    let work = Work { name: super::REPLAY, arguments: Vec::new(), count: transactions };
    all.push(installed::measure(setting, keeper, &replay, work, &ways)?);
    Ok(Ok(all))
}

impl PostgreSql {
    fn order(&self, program: &str, arguments: &[&str]) -> Launch {
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        Launch { program: self.programs.join(program), arguments, user: self.user, ..Launch::default() }
    }

    fn serve(&self, keeper: &mut Keeper, library: Option<&Path>) -> Result<Server> {
        let name = if library.is_some() { "postgresql-library" } else { "postgresql" };
        let folder = keeper.folder().join(name);
        fs::DirBuilder::new().mode(0o755).create(&folder)?;
        if let Some((user, group)) = self.user {
            chown(&folder, Some(user), Some(group))?;
        }
        let port = free_port()?;
        let (number, place) = (port.to_string(), folder.display().to_string());
        let data = folder.join("data").display().to_string();
        keeper.must(&self.order("initdb", &["-D", &data, "-A", "trust", "-U", "postgres", "--no-sync"]))?;
        // The disk would only hide what the sockets cost.
        let mut order = self.order(
            "postgres",
            &["-D", &data, "-p", &number, "-k", &place, "-h", "127.0.0.1", "-F", "-c", "logging_collector=off"],
        );
        if let Some(library) = library {
            order.environment = installed::environment(library, &folder.join("report"), self.user)?;
        }
        order.stays = Some((folder.join("log"), Signal::INT.as_raw()));
        keeper.serve(&order)?;
        let server = Server { port, folder, library: library.is_some() };
        keeper.until_it_succeeds(&self.order("pg_isready", &["-q", "-h", "127.0.0.1", "-p", &number]))?;
        let fill = ["-i", "-q", "-h", "127.0.0.1", "-p", &number, "-U", "postgres", "postgres"];
        keeper.must(&self.order("pgbench", &fill))?;
        Ok(server)
    }

    /// What pgbench sends in so many transactions, as the server logs it.
    fn record(&self, keeper: &mut Keeper, way: &Stack, transactions: u64) -> Result<PathBuf> {
        let count = transactions.to_string();
        let mut order = client(&self.programs.join("pgbench"), place(way), way, self.user);
        order.environment.push(("PGOPTIONS".into(), "-c log_statement=all".into()));
        order.arguments.splice(0..0, ["-n", "-M", "simple", "-t", &count].map(str::to_owned));
        keeper.must(&order)?;
        let log = fs::read_to_string(way.server.folder.join("log"))?;
        let script = keeper.folder().join("replay.sql");
        let statements = statements(&log);
        ensure!(statements.lines().count() as u64 >= 7 * transactions, "PostgreSQL's log has not what pgbench sent");
        fs::write(&script, statements)?;
        Ok(script)
    }
}

impl Installed for PostgreSql {
    fn once(&self, keeper: &mut Keeper, work: &Work, way: &Stack) -> Result<(u64, u64)> {
        let count = (work.count / clients(&work.arguments)).max(1).to_string();
        let mut arguments = ["-n", "-t", &count].map(str::to_owned).to_vec();
        arguments.extend(work.arguments.iter().map(|word| (*word).to_owned()));
        arguments.extend(place(way));
        let ended = keeper.must(&client(&self.programs.join("pgbench"), arguments, way, self.user))?;
        let (done, per_s) = processed(&ended.said).with_context(|| format!("pgbench said {:?}", ended.said))?;
        Ok((done, (done as f64 * 1e9 / per_s) as u64))
    }
}

impl Installed for Replay<'_> {
    /// Connecting, ending and starting psql count.
    fn once(&self, keeper: &mut Keeper, _work: &Work, way: &Stack) -> Result<(u64, u64)> {
        let script = self.script.display().to_string();
        let mut arguments =
            ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-f", &script].map(str::to_owned).to_vec();
        arguments.extend(place(way));
        let psql = self.postgresql.programs.join("psql");
        let ended = keeper.must(&client(&psql, arguments, way, self.postgresql.user))?;
        Ok((self.transactions, ended.wall_ns))
    }
}

/// pgbench counts transactions for each of its clients.
fn clients(arguments: &[&str]) -> u64 {
    let after = arguments.iter().skip_while(|word| **word != "-c").nth(1);
    after.and_then(|count| count.parse().ok()).unwrap_or(1).max(1)
}

/// Where a client finds the server.
fn place(way: &Stack) -> Vec<String> {
    let host = match way.family {
        Family::Tcp => "127.0.0.1".to_owned(),
        Family::Unix => way.server.folder.display().to_string(),
    };
    // No encryption: both families alike, as Unix sockets have none.
    vec!["-h".into(), host, "-p".into(), way.server.port.to_string(), "-U".into(), "postgres".into(), "postgres".into()]
}

/// Transactions, and how many a second: once connected, or with each one's connection.
fn processed(said: &str) -> Option<(u64, f64)> {
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
    let (done, wanted) = value("number of transactions actually processed: ")?.split_once('/')?;
    let per_s = value("tps = ")?.split(' ').next()?.parse().ok()?;
    (done == wanted).then_some(())?;
    Some((done.parse().ok()?, per_s)).filter(|(_, per_s)| *per_s > 0.0)
}

/// From lines such as `2026-01-31 12:00:00.000 UTC [77] LOG:  statement: BEGIN;`.
fn statements(log: &str) -> String {
    let mut all = String::new();
    for statement in log.lines().filter_map(|line| line.split_once("LOG:  statement: ")).map(|(_, statement)| statement)
    {
        all += statement.trim_end_matches(';');
        all += ";\n";
    }
    all
}

/// Debian's place, its newest version first; else those of the search path.
pub fn programs() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort();
    let places = versions.into_iter().rev().map(|(_, place)| place);
    let places = places.chain(found("postgres").and_then(|program| Some(program.parent()?.to_owned())));
    let needed = ["initdb", "postgres", "pg_isready", "pgbench", "psql"];
    places.into_iter().find(|place| needed.iter().all(|name| place.join(name).is_file()))
}

/// User and group of an account.
pub fn account(name: &str) -> Option<(u32, u32)> {
    let all = fs::read_to_string("/etc/passwd").ok()?;
    let fields: Vec<&str> =
        all.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == name)?;
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

const ACCOUNT: &str = "postgres";
/// Transactions of a session that is replayed.
const REPLAYED: u64 = 2_000;
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    WORK.into_iter().map(|(name, _)| name).chain([super::REPLAY])
}

const WORK: [(&str, &[&str]); 8] = [
    (super::SELECT_1, &["-S", "-M", "prepared"]),
    ("pgbench select-only, simple, 1 client", &["-S", "-M", "simple"]),
    ("pgbench select-only, extended, 1 client", &["-S", "-M", "extended"]),
    (super::SELECT_8, &["-S", "-M", "prepared", "-c", "8", "-j", "2"]),
    (super::TPC_B_1, &["-M", "prepared"]),
    (super::TPC_B_8, &["-M", "prepared", "-c", "8", "-j", "2"]),
    (super::TPC_B_KEPT, &["-M", "simple"]),
    (super::TPC_B_AGAIN, &["-M", "simple", "-C"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgbench_says_is_read_and_lost_transactions_are_no_result() {
        let said = "number of transactions actually processed: 100/100\nnumber of failed transactions: 0 (0.000%)\n\
                    latency average = 0.063 ms\ntps = 15873.015873 (without initial connection time)\n";
        assert_eq!(processed(said), Some((100, 15873.015873)));
        let each =
            said.replace("15873.015873 (without initial connection time)", "300.5 (including reconnection times)");
        assert_eq!(processed(&each), Some((100, 300.5)));
        assert_eq!(processed(&said.replace("100/100", "99/100")), None);
        assert_eq!(processed("pgbench: error"), None);
    }

    #[test]
    fn the_work_is_divided_among_clients() {
        let counts = WORK.map(|(_, arguments)| clients(arguments));
        assert_eq!(counts, [1, 1, 1, 8, 1, 8, 1, 1]);
        assert_eq!(clients(&["-c", "0"]), 1);
    }

    #[test]
    fn statements_are_taken_out_of_the_log() {
        let log = "2026-01-31 12:00:00.000 UTC [77] LOG:  statement: BEGIN;\n\
                   2026-01-31 12:00:00.001 UTC [78] LOG:  checkpoint starting\n\
                   2026-01-31 12:00:00.001 UTC [77] LOG:  statement: SELECT 1\n";
        assert_eq!(statements(log), "BEGIN;\nSELECT 1;\n");
    }

    #[test]
    fn the_first_user_is_root() {
        assert_eq!(account("root"), Some((0, 0)));
        assert_eq!(account("nobody-of-this-name"), None);
    }
}
