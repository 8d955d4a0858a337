//! The command line: what can be said, and what the help says about it.

mod help;
mod index;
mod over;
mod topics;
mod volume;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Args, Parser, Subcommand};
use help::*;
use overside::table::wire::{Durability, Mode};
use overside::{Network, Transport};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

pub use index::{Index, IndexCommand, OneIndex};
pub use over::Over;
pub use topics::Topic;
pub use volume::{
    AnyVolume, Attach, BenchVolume, CacheRoom, CheckVolume, Create, DeleteVolume, Detach, HomeDir, MemberKeys,
    OneVolume, RecordTrace, RepairVolume, ReplaceMember, ReplayTrace, RequestOptions, ResizeVolume, ServeVolumes,
    Trace, TraceCommand, Volume, VolumeCommand, VolumeStatus,
};

/// Move a database's data between processes and hosts: tables, block volumes, sockets.
///
/// One process serves tables in memory (`serve`), and others load, scan and change them. A node
/// serves block volumes (`volume`). Unmodified programs talk over shared memory (`run`).
///
/// Every command prints a table or a line for people, or one JSON object with --json. An error is
/// one line on standard error and exit status 1 (2 for a wrong command line).
#[derive(Debug, Parser)]
#[command(name = "overside", version, max_term_width = 100, after_long_help = OVERVIEW)]
#[command(disable_help_flag = true, arg = help_flag())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of this process; a wrong one ends it with status 2.
    pub fn read() -> Cli {
        let words: Vec<OsString> = std::env::args_os().collect();
        if let Some(answer) = topics::answer(&words) {
            let text = answer.unwrap_or_else(|error| error.exit());
            // A reader that has gone (`| head`) has had enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            std::process::exit(0);
        }
        let cli = Cli::parse();
        cli.check().unwrap_or_else(|error| error.exit());
        cli
    }

    /// What clap has no word for.
    fn check(&self) -> Result<(), clap::Error> {
        match &self.command {
            Command::Demo(demo) => demo.over.check("demo"),
            Command::Bench(bench) => bench.check(),
            Command::Serve(serve) => serve.check(),
            Command::Run(run) => run.check(),
            _ => Ok(()),
        }
    }
}

/// Of every command: what fits on a screen. The `help` command and the manual pages have all of it.
fn help_flag() -> Arg {
    let says = "Print this summary. `overside help COMMAND|TOPIC` has more, with examples";
    Arg::new("help").short('h').long("help").global(true).action(ArgAction::HelpShort).help(says)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve generated TPC-H data, change it, scan it in every mode, and check every row.
    #[command(long_about = DEMO, after_long_help = DEMO_EXAMPLES)]
    Demo(Demo),
    /// Measure a figure of the papers on this machine, or all of them.
    #[command(long_about = BENCH, after_long_help = BENCH_EXAMPLES)]
    Bench(Bench),
    /// Serve tables until Ctrl-C.
    #[command(long_about = SERVE, after_long_help = SERVE_EXAMPLES)]
    Serve(Serve),
    /// Show a server's tables, memory, log and checkpoints.
    #[command(long_about = STATUS, after_long_help = STATUS_EXAMPLES)]
    Status(Status),
    /// List a server's tables.
    #[command(long_about = TABLES, after_long_help = TABLES_EXAMPLES)]
    Tables(At),
    /// Show a table's columns, its key and how large it is.
    #[command(long_about = DESCRIBE, after_long_help = DESCRIBE_EXAMPLES)]
    Describe(Describe),
    /// Drop a table with all its rows.
    #[command(long_about = DROP, after_long_help = DROP_EXAMPLES)]
    Drop(Drop),
    /// Write a checkpoint of each table that has changed.
    #[command(long_about = CHECKPOINT, after_long_help = CHECKPOINT_EXAMPLES)]
    Checkpoint(At),
    /// Check every checksum of a data directory, without a server.
    #[command(long_about = CHECK, after_long_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Write a table of a data directory to a file, without a server.
    #[command(long_about = DUMP, after_long_help = DUMP_EXAMPLES)]
    Dump(Dump),
    /// Load Parquet, CSV or Arrow files into a table.
    #[command(long_about = LOAD, after_long_help = LOAD_EXAMPLES)]
    Load(Load),
    /// Create and drop secondary indexes.
    #[command(long_about = index::INDEX, after_long_help = index::INDEX_EXAMPLES)]
    Index(Index),
    /// Read a table or a range of it, in the order of its key or of an index.
    #[command(long_about = SCAN, after_long_help = SCAN_EXAMPLES)]
    Scan(Scan),
    /// Print one row.
    #[command(long_about = GET, after_long_help = GET_EXAMPLES)]
    Get(Point),
    /// Put one row, replacing the one with the same key.
    #[command(long_about = PUT, after_long_help = PUT_EXAMPLES)]
    Put(Put),
    /// Delete one row.
    #[command(long_about = DELETE, after_long_help = DELETE_EXAMPLES)]
    Delete(Point),
    /// Create, serve, attach and check block volumes.
    #[command(long_about = volume::VOLUME, after_long_help = volume::VOLUME_EXAMPLES)]
    Volume(Volume),
    /// Run a program unmodified, its sockets over shared memory or its files on a volume.
    #[command(long_about = RUN, after_long_help = RUN_EXAMPLES)]
    Run(Run),
    /// Measure what transfers cost on this machine, and keep the prices.
    #[command(long_about = CALIBRATE, after_long_help = CALIBRATE_EXAMPLES)]
    Calibrate(Calibrate),
    /// Show the RDMA devices of this host, or why there are none.
    #[command(long_about = DEVICES, after_long_help = DEVICES_EXAMPLES)]
    Devices(Devices),
    /// Print a script that completes this command in a shell.
    #[command(long_about = COMPLETIONS, after_long_help = COMPLETIONS_EXAMPLES)]
    Completions(Completions),
    /// Write the manual pages, one for each command.
    #[command(long_about = MAN, after_long_help = MAN_EXAMPLES)]
    Man(Man),
    /// A process of the demo or of a figure.
    #[command(name = overside_bench::SUBCOMMAND, hide = true)]
    BenchChild {
        /// Its role and what goes with it.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// `overside demo`
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// TPC-H scale factor, from 0.0001 to 10: 0.1 is 600,572 rows.
    #[arg(long, value_name = "SF", default_value = "0.1", value_parser = scale, allow_hyphen_values = true)]
    pub scale: f64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Where to write the report.
    #[arg(long, value_name = "FILE.html", default_value = "overside-demo.html")]
    pub report: PathBuf,
    /// Few rounds: to see that it works, not for figures.
    #[arg(long)]
    pub quick: bool,
    /// What to go over.
    #[command(flatten)]
    pub over: Over,
}

/// `overside bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// A figure (`overside help figures`), `all` of them, or `receive` for those of another host.
    #[arg(value_name = "FIGURE|all|receive", value_parser = figure())]
    pub figure: String,
    /// Measure fewer points in shorter rounds: shows the shapes, not figures to quote.
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Measure only the series of `sockets` (echo, pgbench, "1 client") or the sides of `messages`
    /// ("shm: SEND", UCX) whose names contain TEXT, and what they are compared with.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// The seed of the shapes of `regret`: each number gives another grid.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number, allow_hyphen_values = true)]
    pub seed: u64,
    /// Where `durability`, `oltp` and `targets` make a folder for their data, and remove it at the
    /// end. By default in the current folder.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// A trace for `policies` in addition to its own, as `overside volume trace record` writes it.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Where to write the report. By default overside-figures.html for `all`, and
    /// overside-figure-FIGURE.html for one.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Keep a full run in DIR/MACHINE/DATE-COMMIT, a file for each figure. Run it in the checkout
    /// that was built.
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Where `receive` waits for figures of other hosts: tcp:HOST:PORT or rdma:HOST:PORT.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Send to another host: the address at which its `overside bench receive` listens.
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["listen", "over"])]
    pub to: Option<String>,
    /// With --to or --listen: the file with the key that both hosts have.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// What to go over.
    #[command(flatten)]
    pub over: Over,
}

impl Bench {
    /// What clap has no word for.
    fn check(&self) -> Result<(), clap::Error> {
        if (self.figure == "receive") != self.listen.is_some() {
            return Err(over::wrong("bench", "`receive` and --listen ADDR belong together; give both, or neither"));
        }
        if self.key_file.is_some() && self.listen.is_none() && self.to.is_none() {
            return Err(over::wrong("bench", "--key-file is for --to and --listen; give one of them, too"));
        }
        // The device of an address is that of its own transport.
        if self.to.is_some() || self.listen.is_some() { Ok(()) } else { self.over.check("bench") }
    }
}

fn figure() -> PossibleValuesParser {
    PossibleValuesParser::new(overside_bench::figures::NAMES.into_iter().chain(["all", "receive"]))
}

/// What every command that may go over a network takes.
#[derive(Debug, Args)]
pub struct Wire {
    /// The file with the key that both sides have: 32 random bytes or more, which only its owner
    /// can read (tcp:, rdma:).
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Without a key: let every user of this host connect, not only this one. A client then
    /// accepts a server of any user (tcp:, rdma:).
    #[arg(long, conflicts_with = "key_file")]
    pub anyone: bool,
    /// Put no tags on frames (over rdma: on what sets a connection up): an attacker who can write
    /// to the wire can change what travels. Both sides must agree.
    #[arg(long)]
    pub no_mac: bool,
    /// The RDMA device, as `overside devices` names it. By default the first with an active port
    /// (rdma:).
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Option<String>,
}

impl Wire {
    /// As the library takes it.
    pub fn network(&self) -> Network {
        let (key_file, rdma_device) = (self.key_file.clone(), self.rdma_device.clone());
        Network { key_file, anyone: self.anyone, no_mac: self.no_mac, rdma_device }
    }
}

/// What every command takes that asks a server.
#[derive(Debug, Args)]
pub struct At {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside run`
#[derive(Debug, Args)]
pub struct Run {
    /// Report on standard error, at the end, which connections were accelerated, and why others
    /// were not.
    #[arg(long)]
    pub verbose: bool,
    /// Print the path of the library, for LD_PRELOAD in a service file, and run nothing.
    #[arg(long)]
    pub print_library: bool,
    /// Keep the program's data files below the folder PREFIX on this volume, which was made with
    /// `volume create --files`. Its node is on this host (shm:) or another (rdma:).
    #[arg(long, value_name = "PREFIX=ADDR/NAME", conflicts_with = "print_library")]
    pub volume: Option<String>,
    /// With --volume: become the volume's writer, and shut out the client that is.
    #[arg(long, requires = "volume")]
    pub take_over: bool,
    /// With --volume: the file with the volume's key, if its node is served with --access. Each
    /// process of the program reads it.
    #[arg(long, value_name = "FILE", requires = "volume")]
    pub access_key: Option<PathBuf>,
    /// With --volume over rdma: the file with the key that both sides have. Each process of the
    /// program reads it.
    #[arg(long, value_name = "FILE", requires = "volume")]
    pub key_file: Option<PathBuf>,
    /// With --volume over rdma: the device, as `overside devices` names it. By default the first
    /// with an active port.
    #[arg(long, value_name = "NAME", requires = "volume")]
    pub rdma_device: Option<String>,
    /// The program and its arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND",
        required_unless_present = "print_library"
    )]
    pub command: Vec<OsString>,
}

impl Run {
    /// What clap has no word for: any option may be the program's.
    fn check(&self) -> Result<(), clap::Error> {
        match self.command.first().map(|program| program.to_string_lossy()) {
            Some(program) if program.starts_with('-') => {
                let text =
                    format!("{program} is no option of run (`overside run --help`); write the program behind --");
                Err(over::wrong("run", &text))
            }
            _ => Ok(()),
        }
    }
}

/// `overside calibrate`
#[derive(Debug, Args)]
pub struct Calibrate {
    /// The transport to measure. By default all that this host has.
    #[arg(value_name = "PROVIDER", value_parser = PossibleValuesParser::new(Transport::names()))]
    pub provider: Option<String>,
    /// Measure and show, but store nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Store the prices even when other programs disturbed the measuring.
    #[arg(long, conflicts_with = "dry_run")]
    pub force: bool,
    /// Compare the new prices with those in a profile, on the shapes of `bench regret`.
    #[arg(long, value_name = "PROFILE", requires = "provider")]
    pub against: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside devices`
#[derive(Debug, Args)]
pub struct Devices {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `overside serve`
#[derive(Debug, Args)]
pub struct Serve {
    #[arg(long, value_name = "ADDR", required = true, help = format!("Where to listen: {}. May be given several times", Transport::forms()))]
    pub listen: Vec<String>,
    /// Memory that all tables together may take, as 512M or 8G. By default three quarters of what
    /// is available.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory: Option<usize>,
    /// Threads that serve connections. By default half as many as processors.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Changes of a page before it is rewritten. By default 8, and 4 for a table of which more
    /// pages are copied to clients than rows are changed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=200))]
    pub chain_max: Option<u8>,
    /// The size of the system's pages under the server's memory. By default 2M, as far as the
    /// system has them.
    #[arg(long, value_name = "4K|2M", value_parser = pages)]
    pub pages: Option<PageSize>,
    /// Connections at a time: the next one is refused with an error. By default 4096.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: Option<u32>,
    /// Keep the tables in this directory over a restart. It is made if it is not there. By default
    /// tables live in memory alone.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// What an acknowledged change survives. sync: kill -9, a crash of the kernel, a loss of
    /// power. group: kill -9; the others cost the last --group-ms. none: a clean end alone.
    #[arg(long, value_name = "LEVEL", requires = "data", default_value = "sync", value_parser = durability)]
    pub durability: Durability,
    /// With --durability group: milliseconds of changes that a loss of power may cost. By default
    /// 10.
    #[arg(long, value_name = "N", requires = "data", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub group_ms: Option<u32>,
    /// Start from what is sound of a damaged directory: report what is lost, and move the old files
    /// aside.
    #[arg(long, requires = "data")]
    pub salvage: bool,
    /// Let clients read the server's memory by themselves (`scan --one-sided`). They see deleted
    /// rows, too, and the memory never shrinks.
    #[arg(long, conflicts_with = "data")]
    pub one_sided: bool,
    /// Print one JSON object when it listens.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

impl Serve {
    /// What clap has no word for.
    fn check(&self) -> Result<(), clap::Error> {
        if self.group_ms.is_none() || self.durability == Durability::Group {
            return Ok(());
        }
        let text = "--group-ms means nothing without --durability group; give both, or neither";
        Err(over::wrong("serve", text))
    }
}

/// `overside status`
#[derive(Debug, Args)]
pub struct Status {
    /// Which server, and how it is asked.
    #[command(flatten)]
    pub at: At,
    /// Show it again every SECONDS (by default 2), with rates a second, until Ctrl-C.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub watch: Option<u32>,
}

/// `overside describe`
#[derive(Debug, Args)]
pub struct Describe {
    /// Which server, and how it is asked.
    #[command(flatten)]
    pub at: At,
    /// The table.
    pub table: String,
}

/// `overside drop`
#[derive(Debug, Args)]
pub struct Drop {
    /// Which server, and how it is asked.
    #[command(flatten)]
    pub at: At,
    /// The table.
    pub table: String,
    /// Drop it without asking.
    #[arg(long, short)]
    pub yes: bool,
}

/// `overside completions`
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// `overside man`
#[derive(Debug, Args)]
pub struct Man {
    /// The folder to write to. It is made if it is not there.
    pub dir: PathBuf,
}

/// `overside check`
#[derive(Debug, Args)]
pub struct Check {
    /// The directory that was given to serve --data.
    pub dir: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `overside dump`
#[derive(Debug, Args)]
pub struct Dump {
    /// The directory that was given to serve --data.
    pub dir: PathBuf,
    /// The table, which needs --out. Without it the tables are listed.
    #[arg(requires = "out")]
    pub table: Option<String>,
    /// The file to write: .arrow, .parquet or .csv.
    #[arg(long, value_name = "FILE", requires = "table")]
    pub out: Option<PathBuf>,
    /// Least key to write: values of the key's first columns, comma-separated.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, requires = "table")]
    pub from: Option<String>,
    /// Greatest key to write (included), in the same form.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, requires = "table")]
    pub to: Option<String>,
    /// Columns to write, in this order. By default all.
    #[arg(long, value_name = "A,B", value_delimiter = ',', requires = "table")]
    pub columns: Vec<String>,
    /// Memory that the table may take, as 512M or 8G. By default three quarters of what is
    /// available.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory: Option<usize>,
    /// Take what is sound of a damaged directory, and report on standard error what is lost.
    #[arg(long)]
    pub salvage: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `overside load`
#[derive(Debug, Args)]
pub struct Load {
    /// Which server, and how it is asked.
    #[command(flatten)]
    pub at: At,
    /// The table. It is created if it is not there.
    pub table: String,
    /// Files to load, one after another: .parquet, .csv or .arrow; - is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Columns of the primary key of a new table, most significant first. By default the first
    /// column.
    #[arg(long, value_name = "COLUMN[,COLUMN]", value_delimiter = ',')]
    pub key: Vec<String>,
    /// Types of columns of CSV files, as id:int64,price:decimal(15,2). The others are guessed.
    #[arg(long, value_name = "COLUMN:TYPE[,…]")]
    pub schema: Option<String>,
    /// Create an index on these columns after the load, unless there is one. May be given several
    /// times.
    #[arg(long, value_name = "COLUMN[,COLUMN]")]
    pub index: Vec<String>,
    /// Replace rows whose key is there already, instead of refusing them.
    #[arg(long)]
    pub replace: bool,
}

/// `overside scan`
#[derive(Debug, Args)]
pub struct Scan {
    /// Which server, and how it is asked.
    #[command(flatten)]
    pub at: At,
    /// The table.
    pub table: String,
    /// Least key to read: values of the key's first columns, comma-separated.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// Greatest key to read (included), in the same form.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub to: Option<String>,
    /// Only keys that begin with these values of the key's first columns. A last value of text or
    /// bytes may end with *: then what is before it is the beginning.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    pub where_key_prefix: Option<String>,
    /// Read through the index on these columns, in its order. --from and --to then take their
    /// values.
    #[arg(long, value_name = "A,B", conflicts_with = "where_key_prefix")]
    pub index: Option<String>,
    /// Columns to read, in this order. By default all.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// How the rows travel: auto, copy, gather, delta or in-place (`overside help modes`).
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = mode)]
    pub mode: Mode,
    /// Read the server's memory without its help. The server must be served with --one-sided.
    #[arg(long, conflicts_with_all = ["mode", "index"])]
    pub one_sided: bool,
    /// Stop after this many rows. By default all are read.
    #[arg(long, value_name = "ROWS", value_parser = number, allow_hyphen_values = true)]
    pub limit: Option<u64>,
    /// Write the rows to a file: .arrow, .parquet or .csv. By default they are printed.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `overside get` and `delete`
#[derive(Debug, Args)]
pub struct Point {
    /// Which server, and how it is asked.
    #[command(flatten)]
    pub at: At,
    /// The table.
    pub table: String,
    /// The key: a value for each of its columns, comma-separated.
    #[arg(allow_hyphen_values = true)]
    pub key: String,
}

/// `overside put`
#[derive(Debug, Args)]
pub struct Put {
    /// Which server, and how it is asked.
    #[command(flatten)]
    pub at: At,
    /// The table.
    pub table: String,
    /// The key: a value for each of its columns, comma-separated.
    #[arg(allow_hyphen_values = true)]
    pub key: String,
    /// The other columns: comma-separated in their order, or a JSON object by name.
    #[arg(allow_hyphen_values = true)]
    pub value: Option<String>,
    /// Read the other columns from a file instead; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub file: Option<PathBuf>,
}

/// The size of pages under a server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB, where the system has them.
    Huge,
}

fn pages(text: &str) -> Result<PageSize, String> {
    match text {
        "4K" => Ok(PageSize::Small),
        "2M" => Ok(PageSize::Huge),
        other => Err(format!("{other} is no size of pages here: give 4K or 2M")),
    }
}

fn durability(text: &str) -> Result<Durability, String> {
    text.parse()
}

fn mode(text: &str) -> Result<Mode, String> {
    text.parse()
}

pub fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "give a whole number, 0 or more".into())
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.0001..=10.0).contains(&scale) => Ok(scale),
        _ => Err("a scale factor is a number from 0.0001 to 10".into()),
    }
}

/// A number of bytes, with K, M, G or T for powers of 1024.
pub fn bytes(text: &str) -> Result<usize, String> {
    let upper = text.to_ascii_uppercase();
    let shown = upper.trim_end_matches("IB").trim_end_matches('B');
    let (digits, shift) = match shown.as_bytes().last() {
        Some(b'K') => (&shown[..shown.len() - 1], 10),
        Some(b'M') => (&shown[..shown.len() - 1], 20),
        Some(b'G') => (&shown[..shown.len() - 1], 30),
        Some(b'T') => (&shown[..shown.len() - 1], 40),
        _ => (shown, 0),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "a size is a number of bytes, or as 512M or 8G".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent_and_every_command_has_examples_of_itself() {
        let mut command = Cli::command();
        command.build();
        command.debug_assert();
        for (path, command) in all_commands() {
            let mut examples = examples(&command).into_iter();
            assert!(examples.any(|example| example.starts_with(&path) || path.len() == 1), "{path:?}");
        }
    }

    /// Every command that is shown, with the words that lead to it.
    fn all_commands() -> Vec<(Vec<String>, clap::Command)> {
        let (mut found, mut waiting) = (Vec::new(), vec![(vec!["overside".to_string()], Cli::command())]);
        while let Some((path, command)) = waiting.pop() {
            let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
            let below = |inner: &clap::Command| [path.clone(), vec![inner.get_name().to_string()]].concat();
            waiting.extend(inner.map(|inner| (below(inner), inner.clone())));
            found.push((path, command));
        }
        found
    }

    /// Words of each command line behind a command's long help.
    fn examples(command: &clap::Command) -> Vec<Vec<String>> {
        let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        command_lines(&text)
    }

    fn command_lines(text: &str) -> Vec<Vec<String>> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("  "));
        let lines = lines.filter(|line| line.trim_start_matches("sudo ").starts_with("overside "));
        lines
            .map(|line| split_like_a_shell(line.trim_start_matches("sudo ").split(['>', '&']).next().unwrap()))
            .collect()
    }

    #[test]
    fn what_the_help_flag_says_fits_a_screen_and_the_help_command_says_more() {
        let commands = all_commands();
        assert!(commands.len() > 30, "{}", commands.len());
        for (path, _) in commands {
            let said = |columns: usize, words: &[&str]| {
                let cli = Cli::command().term_width(columns);
                cli.try_get_matches_from(words).unwrap_err().to_string()
            };
            let words = |more| [path.iter().map(String::as_str).collect(), vec![more]].concat();
            for (columns, lines_max) in [(100, 50), (80, 50)] {
                let short = said(columns, &words("--help"));
                let fits = |line: &str| line.starts_with("Usage: ") || line.chars().count() <= columns;
                assert!(short.lines().all(fits), "{path:?}: {short}");
                let lines: usize = short.lines().map(|line| line.chars().count().div_ceil(columns).max(1)).sum();
                assert!((5..=lines_max).contains(&lines), "{path:?}: {lines} lines of {columns} columns\n{short}");
            }
            let short = said(100, &words("--help"));
            assert_eq!(short, said(100, &words("-h")));
            let long = [&["overside", "help"][..], &words("")[1..path.len()]].concat();
            let long = said(100, &long);
            assert!(long.lines().count() > short.lines().count(), "{path:?}: {long}");
        }
    }

    #[test]
    fn the_overview_lists_every_topic() {
        let (_, topics) = OVERVIEW.split_once("Topics").unwrap();
        assert!(Topic::ALL.iter().all(|topic| topics.contains(topic.name)), "{topics}");
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes("512M"), Ok(512 << 20));
        assert_eq!(bytes("8GiB"), Ok(8 << 30));
        assert_eq!(bytes("100"), Ok(100));
        for bad in ["", "0", "x", "8X", "-1", "99999999999T"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_example_in_the_help_parses() {
        let of_commands = all_commands().into_iter().flat_map(|(_, command)| examples(&command));
        let of_topics = Topic::ALL.into_iter().flat_map(|topic| command_lines(topic.text()));
        let mut parsed = 0;
        for words in of_commands.chain(of_topics) {
            let cli = Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            cli.check().unwrap_or_else(|error| panic!("{words:?}: {error}"));
            parsed += 1;
        }
        assert!(parsed > 80, "{parsed}");
    }

    fn split_like_a_shell(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        parts
            .flat_map(|(index, part)| match index % 2 {
                0 => part.split_whitespace().map(str::to_string).collect::<Vec<_>>(),
                _ => vec![part.to_string()],
            })
            .collect()
    }
}
