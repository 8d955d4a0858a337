//! PostgreSQL as it comes, with pgbench's clients, each with a statement of as many rows under way.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;

use anyhow::{Context, Result};
use overside_bench::figures::{Batches, Launch, Testbed, account, free_port, postgresql, tree_ns};

use super::Contender;

pub struct PostgreSql {
    programs: PathBuf,
    user: Option<(u32, u32)>,
    place: Vec<String>,
    script: PathBuf,
}

impl PostgreSql {
    /// A server with all rows, or why there is none.
    pub fn start(testbed: &mut Testbed) -> Result<Result<PostgreSql, &'static str>> {
        let Some(programs) = postgresql() else { return Ok(Err("not installed (Debian's package postgresql-15)")) };
        let user = match (rustix::process::geteuid().is_root(), account("postgres")) {
            (false, _) => None,
            (true, Some(user)) => Some(user),
            (true, None) => return Ok(Err("it refuses to run as root, and there is no user postgres")),
        };
        let folder = testbed.folder().join("postgresql");
        fs::create_dir(&folder)?;
        if let Some((user, group)) = user {
            chown(&folder, Some(user), Some(group))?;
        }
        let (data, host) = (folder.join("data").display().to_string(), folder.display().to_string());
        let port = free_port()?.to_string();
        let script = folder.join("upsert.sql");
        fs::write(&script, upsert())?;
        let place = ["-h", &host, "-p", &port, "-U", "postgres"].map(str::to_owned).to_vec();
        let made = PostgreSql { programs, user, place, script };
        let keeper = testbed.keeper();
        keeper.must(&made.order("initdb", &["-D", &data, "-A", "trust", "-U", "postgres", "--no-sync"]))?;
        let mut server =
            made.order("postgres", &["-D", &data, "-p", &port, "-k", &host, "-h", "", "-c", "logging_collector=off"]);
        server.stays = Some((folder.join("log"), INTERRUPT));
        keeper.serve(&server)?;
        keeper.until_it_succeeds(&made.order("pg_isready", &["-q", "-h", &host, "-p", &port]))?;
        let table = format!(
            "CREATE TABLE rows (key bigint PRIMARY KEY, value bytea NOT NULL); INSERT INTO rows SELECT key, '{}' FROM \
             generate_series(0, {}) key",
            "v".repeat(Testbed::VALUE_BYTES),
            Testbed::ROWS - 1
        );
        keeper.must(&made.client("psql", &["-q", "-v", "ON_ERROR_STOP=1", "-c", &table]))?;
        Ok(Ok(made))
    }

    fn order(&self, program: &str, arguments: &[&str]) -> Launch {
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        Launch { program: self.programs.join(program), arguments, user: self.user, ..Launch::default() }
    }

    fn client(&self, program: &str, arguments: &[&str]) -> Launch {
        let mut order = self.order(program, arguments);
        order.arguments.extend(self.place.iter().cloned());
        order.arguments.push("postgres".into());
        order
    }
}

impl Contender for PostgreSql {
    fn batches(&mut self, testbed: &mut Testbed, ns: u64) -> Result<Batches> {
        let (clients, script) = (Testbed::CLIENTS.to_string(), self.script.display().to_string());
        let seconds = ns.div_ceil(1_000_000_000).to_string();
        let words = ["-n", "-M", "prepared", "-c", &clients, "-j", "2", "-T", &seconds, "-f", &script];
        let order = self.client("pgbench", &words);
        let keeper = testbed.keeper();
        // The keeper is the parent of server and clients; others that it keeps do nothing meanwhile.
        let before = tree_ns(keeper.process());
        let ended = keeper.must(&order)?;
        let cpu_ns = tree_ns(keeper.process()).saturating_sub(before);
        let (done, per_s) = processed(&ended.said).with_context(|| format!("pgbench said {:?}", ended.said))?;
        Ok(Batches { rows: done * Testbed::BATCH_ROWS, wall_ns: (done as f64 * 1e9 / per_s) as u64, cpu_ns })
    }
}

/// A statement of a batch's rows. Each has keys of its own, ascending, so that no two statements
/// wait for each other's rows in turn.
fn upsert() -> String {
    let each = Testbed::ROWS / Testbed::BATCH_ROWS;
    let (mut script, mut rows) = (String::new(), Vec::new());
    for at in 0..Testbed::BATCH_ROWS {
        // Writing to a string does not fail.
        let _ = writeln!(script, "\\set k{at} random({}, {})", at * each, (at + 1) * each - 1);
        rows.push(format!("(:k{at}, '{}')", "w".repeat(Testbed::VALUE_BYTES)));
    }
    script
        + "INSERT INTO rows VALUES "
        + &rows.join(", ")
        + " ON CONFLICT (key) DO UPDATE SET value = excluded.value;\n"
}

/// Transactions, and how many a second once connected.
fn processed(said: &str) -> Option<(u64, f64)> {
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
    let done = value("number of transactions actually processed: ")?.split('/').next()?.trim().parse().ok()?;
    let per_s = value("tps = ")?.split(' ').next()?.parse().ok()?;
    Some((done, per_s)).filter(|(_, per_s)| *per_s > 0.0)
}

const INTERRUPT: i32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timed_run_of_pgbench_is_read() {
        let said = "number of transactions actually processed: 4711\nnumber of failed transactions: 0 (0.000%)\n\
                    tps = 2355.5 (without initial connection time)\n";
        assert_eq!(processed(said), Some((4711, 2355.5)));
        assert_eq!(processed("pgbench: error"), None);
    }

    #[test]
    fn no_two_rows_of_a_statement_have_a_key() {
        let script = upsert();
        assert!(
            script.contains("\\set k0 random(0, ") && script.matches("\\set ").count() as u64 == Testbed::BATCH_ROWS
        );
        assert_eq!(script.matches("(:k").count() as u64, Testbed::BATCH_ROWS);
    }
}
