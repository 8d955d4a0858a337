//! TPC-C on PostgreSQL: its tables, its transactions as functions, pgbench as the terminals.

use crate::figures::sockets::keeper::{Keeper, Launch};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

/// PostgreSQL's programs, and the scripts.
pub(super) struct Tpcc {
    programs: PathBuf,
    user: (u32, u32),
    /// Where scripts and sockets lie.
    folder: PathBuf,
    warehouses: u32,
}

/// What terminals did in some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Done {
    /// Of all kinds.
    pub(super) transactions: u64,
    pub(super) per_s: f64,
    /// What the benchmark counts.
    pub(super) new_orders_per_s: f64,
}

impl Tpcc {
    /// Puts the scripts into a folder of the keeper's.
    pub(super) fn new(keeper: &Keeper, programs: PathBuf, user: (u32, u32), warehouses: u32) -> Result<Tpcc> {
        let folder = keeper.folder().join("tpcc");
        fs::create_dir(&folder)?;
        chown(&folder, Some(user.0), Some(user.1))?;
        for (name, text) in SCRIPTS {
            let file = folder.join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        }
        Ok(Tpcc { programs, user, folder, warehouses })
    }

    fn order(&self, program: &str, arguments: &[&str]) -> Launch {
        let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        Launch { program: self.programs.join(program), arguments, user: Some(self.user), ..Launch::default() }
    }

    /// Words that run, as the database's user, what is behind them; who starts them is root.
    pub(super) fn as_user(&self) -> Vec<String> {
        let [user, group] = [self.user.0, self.user.1].map(|id| id.to_string());
        ["setpriv", "--reuid", &user, "--regid", &group, "--clear-groups"].map(str::to_owned).to_vec()
    }

    /// Its number and its group's.
    pub(super) fn user(&self) -> (u32, u32) {
        self.user
    }

    /// Words that run a server of this database; who starts them is its user.
    pub(super) fn server(&self, data: &Path, port: u16, shared: &str) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let mut words = vec![text(&self.programs.join("postgres")), "-D".into(), text(data), "-p".into()];
        words.extend([
            port.to_string(),
            "-k".into(),
            text(&self.folder),
            "-c".into(),
            format!("shared_buffers={shared}"),
        ]);
        words.extend(SETTINGS.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]));
        words
    }

    /// Makes the database that every side has a copy of.
    pub(super) fn load(&self, keeper: &mut Keeper, data: &Path, port: u16, mut told: impl FnMut(u32)) -> Result<()> {
        let place = data.display().to_string();
        keeper.must(&self.order("initdb", &["-D", &place, "-A", "trust", "-U", "postgres", "--no-sync"]))?;
        let words = [self.as_user(), self.server(data, port, "256MB")].concat();
        let stays = Some((self.folder.join("load.log"), rustix::process::Signal::INT.as_raw()));
        let (program, arguments) = words.split_first().context("no program")?;
        let mut order = Launch { program: program.into(), arguments: arguments.to_vec(), stays, ..Launch::default() };
        // Nothing of it need survive before it is whole.
        order.arguments.extend(["-c", "fsync=off", "-c", "maintenance_work_mem=256MB"].map(str::to_owned));
        keeper.serve(&order)?;
        self.is_there(keeper, port)?;
        self.script(keeper, port, "schema.sql", 0)?;
        self.script(keeper, port, "items.sql", 0)?;
        for warehouse in 1..=self.warehouses {
            self.script(keeper, port, "warehouse.sql", warehouse)?;
            told(warehouse);
        }
        for last in ["keys.sql", "transactions.sql"] {
            self.script(keeper, port, last, 0)?;
        }
        self.check(keeper, port)?;
        self.stop(keeper, data)
    }

    pub(super) fn is_there(&self, keeper: &mut Keeper, port: u16) -> Result<()> {
        let folder = self.folder.display().to_string();
        keeper.until_it_succeeds(&self.order("pg_isready", &["-q", "-h", &folder, "-p", &port.to_string()]))
    }

    /// Ends a server as its owner would, with all on its disk.
    pub(super) fn stop(&self, keeper: &mut Keeper, data: &Path) -> Result<()> {
        let place = data.display().to_string();
        keeper.must(&self.order("pg_ctl", &["-D", &place, "-m", "fast", "-w", "stop"])).map(drop)
    }

    fn script(&self, keeper: &mut Keeper, port: u16, name: &str, warehouse: u32) -> Result<String> {
        let (file, warehouse) = (self.folder.join(name).display().to_string(), format!("w={warehouse}"));
        self.psql(keeper, port, &["-v", &warehouse, "-f", &file])
    }

    fn psql(&self, keeper: &mut Keeper, port: u16, more: &[&str]) -> Result<String> {
        let (folder, port) = (self.folder.display().to_string(), port.to_string());
        let mut words =
            vec!["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", &folder, "-p", &port, "-U", "postgres"];
        words.extend(more);
        Ok(keeper.must(&self.order("psql", &words))?.said)
    }

    /// The benchmark's conditions 1 to 4.
    ///
    /// # Errors
    /// One does not hold.
    pub(super) fn check(&self, keeper: &mut Keeper, port: u16) -> Result<()> {
        let said = self.script(keeper, port, "consistent.sql", 0)?;
        ensure!(said.trim() == "0|0|0|0", "TPC-C's conditions 1 to 4 are violated so often: {}", said.trim());
        Ok(())
    }

    /// What a round before has dirtied is no matter of the next.
    pub(super) fn checkpoint(&self, keeper: &mut Keeper, port: u16) -> Result<()> {
        self.psql(keeper, port, &["-c", "CHECKPOINT"]).map(drop)
    }

    /// Terminals without a pause between transactions, for so many seconds.
    pub(super) fn run(&self, keeper: &mut Keeper, port: u16, seconds: u64) -> Result<Done> {
        let (folder, port, seconds) = (self.folder.display().to_string(), port.to_string(), seconds.to_string());
        let warehouses = format!("warehouses={}", self.warehouses);
        let mut words: Vec<String> = ["-n", "-M", "prepared", "-j", "1", "-c", TERMINALS, "-h", &folder, "-p", &port]
            .into_iter()
            .chain(["-U", "postgres", "-T", &seconds, "-D", &warehouses])
            .map(str::to_owned)
            .collect();
        for (name, weight) in MIX {
            words.extend(["-f".to_owned(), format!("{}@{weight}", self.folder.join(name).display())]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = keeper.must(&self.order("pgbench", &words))?.said;
        done(&said).with_context(|| format!("pgbench said {said:?}"))
    }
}

/// What pgbench says at its end, unless a transaction failed.
fn done(said: &str) -> Option<Done> {
    let value = |text: &str, name: &str| -> Option<f64> {
        let rest = text.lines().find_map(|line| line.split_once(name))?.1;
        rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
    };
    let (all, scripts) = said.split_once("SQL script 1:")?;
    (value(all, "number of failed transactions: ")? == 0.0).then_some(())?;
    let transactions = value(all, "number of transactions actually processed: ")? as u64;
    let (per_s, new_orders_per_s) = (value(all, "tps = ")?, value(scripts, "tps = ")?);
    (per_s > 0.0).then_some(Done { transactions, per_s, new_orders_per_s })
}

/// Clients that never think.
pub(super) const TERMINALS: &str = "8";
/// Kinds of transactions, and how many of a hundred are of each (clause 5.2.3).
const MIX: [(&str, u32); 5] = [
    ("new_order.pgbench", 45),
    ("payment.pgbench", 43),
    ("order_status.pgbench", 4),
    ("delivery.pgbench", 4),
    ("stock_level.pgbench", 4),
];
const SETTINGS: [&str; 6] = [
    "listen_addresses=",
    "max_wal_size=4GB",
    "checkpoint_timeout=1h",
    "autovacuum=off",
    "logging_collector=off",
    "max_connections=20",
];
const SCRIPTS: [(&str, &str); 11] = [
    ("schema.sql", include_str!("../../../data/tpcc/schema.sql")),
    ("items.sql", include_str!("../../../data/tpcc/items.sql")),
    ("warehouse.sql", include_str!("../../../data/tpcc/warehouse.sql")),
    ("keys.sql", include_str!("../../../data/tpcc/keys.sql")),
    ("transactions.sql", include_str!("../../../data/tpcc/transactions.sql")),
    ("consistent.sql", include_str!("../../../data/tpcc/consistent.sql")),
    ("new_order.pgbench", include_str!("../../../data/tpcc/new_order.pgbench")),
    ("payment.pgbench", include_str!("../../../data/tpcc/payment.pgbench")),
    ("order_status.pgbench", include_str!("../../../data/tpcc/order_status.pgbench")),
    ("delivery.pgbench", include_str!("../../../data/tpcc/delivery.pgbench")),
    ("stock_level.pgbench", include_str!("../../../data/tpcc/stock_level.pgbench")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pgbench_says_of_all_and_of_new_orders_is_read() {
        let said = "number of transactions actually processed: 10973\nnumber of failed transactions: 0 (0.000%)\n\
                    tps = 1835.098359 (without initial connection time)\nSQL script 1: new_order.pgbench\n\
                    - 4946 transactions (45.1% of total, tps = 827.157248)\n - number of failed transactions: 0 (0.000%)\n\
                    SQL script 2: payment.pgbench\n - 4742 transactions (43.2% of total, tps = 793.040775)\n";
        let wanted = Done { transactions: 10973, per_s: 1835.098359, new_orders_per_s: 827.157248 };
        assert_eq!(done(said), Some(wanted));
        assert_eq!(done(&said.replacen("transactions: 0", "transactions: 3", 1)), None, "failed ones are no result");
        assert_eq!(done("pgbench: error"), None);
    }

    #[test]
    fn the_mix_is_the_benchmarks() {
        assert_eq!(MIX.iter().map(|(_, weight)| weight).sum::<u32>(), 100);
        // The least of each that the clause allows; the rest are new orders.
        for (name, least) in [("payment", 43), ("order_status", 4), ("delivery", 4), ("stock_level", 4)] {
            assert!(MIX.iter().any(|(script, weight)| script.starts_with(name) && *weight >= least), "{name}");
        }
        assert!(MIX.iter().all(|(name, _)| SCRIPTS.iter().any(|(script, _)| script == name)), "each kind has a script");
    }
}
