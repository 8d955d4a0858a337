//! The command line: what can be said, and what `--help` says about it.

mod over;
mod volume;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use overside::table::wire::{Durability, Mode};
use overside::{Network, Transport};
use std::ffi::OsString;
use std::path::PathBuf;

pub use over::Over;
pub use volume::{
    Attach, BenchVolume, Create, DeleteVolume, HomeDir, List, RepairVolume, ServeVolumes, Volume, VolumeCommand,
    VolumeStatus,
};

/// Tables in memory, scanned in bulk by other processes.
///
/// One process serves tables, others load, scan and change them over shared memory. Tables live in
/// memory; with `serve --data` they survive the server.
///
/// Every command prints a table or a line for people, or one JSON object with --json. An error is
/// one line on standard error and exit status 1 (2 for a wrong command line).
#[derive(Debug, Parser)]
#[command(name = "overside", version, max_term_width = 100, after_long_help = OVERVIEW)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// The command line of this process; a wrong one ends it with status 2.
    pub fn read() -> Cli {
        let cli = Cli::parse();
        let checked = match &cli.command {
            Command::Demo(demo) => demo.over.check("demo"),
            Command::Bench(bench) => bench.over.check("bench"),
            Command::Serve(serve) => serve.check(),
            _ => Ok(()),
        };
        checked.unwrap_or_else(|error| error.exit());
        cli
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate TPC-H data, serve it, change it and scan it in every way, and check every row.
    #[command(long_about = DEMO, after_long_help = DEMO_EXAMPLES)]
    Demo(Demo),
    /// Measure a figure of the papers on this machine, or all of them.
    #[command(long_about = BENCH, after_long_help = BENCH_EXAMPLES)]
    Bench(Bench),
    /// Serve tables until Ctrl-C.
    #[command(long_about = SERVE, after_long_help = SERVE_EXAMPLES)]
    Serve(Serve),
    /// Show a server's tables, and how far its log and its checkpoints have come.
    #[command(long_about = STATUS, after_long_help = STATUS_EXAMPLES)]
    Status(Status),
    /// List a server's tables.
    #[command(long_about = TABLES, after_long_help = TABLES_EXAMPLES)]
    Tables(Tables),
    /// Show a table's columns, its key and how large it is.
    #[command(long_about = DESCRIBE, after_long_help = DESCRIBE_EXAMPLES)]
    Describe(Describe),
    /// Drop a table with all its rows.
    #[command(long_about = DROP, after_long_help = DROP_EXAMPLES)]
    Drop(Drop),
    /// Write a checkpoint of each table that has changed.
    #[command(long_about = CHECKPOINT, after_long_help = CHECKPOINT_EXAMPLES)]
    Checkpoint(Checkpoint),
    /// Check every checksum of a data directory that no server has open.
    #[command(long_about = CHECK, after_long_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Write a table of a data directory that no server has open to a file.
    #[command(long_about = DUMP, after_long_help = DUMP_EXAMPLES)]
    Dump(Dump),
    /// Load Parquet, CSV or Arrow files into a table.
    #[command(long_about = LOAD, after_long_help = LOAD_EXAMPLES)]
    Load(Load),
    /// Read the rows of a table, or a range of them, in key order.
    #[command(long_about = SCAN, after_long_help = SCAN_EXAMPLES)]
    Scan(Scan),
    /// Print one row.
    #[command(long_about = GET, after_long_help = GET_EXAMPLES)]
    Get(Get),
    /// Put one row, replacing the one with the same key.
    #[command(long_about = PUT, after_long_help = PUT_EXAMPLES)]
    Put(Put),
    /// Delete one row.
    #[command(long_about = DELETE, after_long_help = DELETE_EXAMPLES)]
    Delete(Delete),
    /// Make, serve and look at block volumes.
    #[command(long_about = volume::VOLUME, after_long_help = volume::VOLUME_EXAMPLES)]
    Volume(Volume),
    /// Run an unmodified program with its sockets over shared memory, or RDMA, where the other end runs so too.
    #[command(long_about = RUN, after_long_help = RUN_EXAMPLES)]
    Run(Run),
    /// Measure what transfers cost on this machine, and keep the prices.
    #[command(long_about = CALIBRATE, after_long_help = CALIBRATE_EXAMPLES)]
    Calibrate(Calibrate),
    /// Show the RDMA devices of this host and, if there are none, why.
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
    /// TPC-H scale factor: 0.1 is 600,572 rows.
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
    /// Which figure, or all.
    #[arg(value_name = "FIGURE|all", value_parser = figure())]
    pub figure: String,
    /// Fewer places, fewer and shorter rounds: to see the shapes, not for figures to quote.
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Of `sockets`: only the series with this in their names (echo, stream, pgbench, redis, "1 client"). Of `messages`: only the
    /// sides ("shm: SEND", UCX), and always those that they are compared with.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Of `regret`: another grid of shapes than the usual one, which is that of 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Of `durability`: in which folder its data lies while it measures; a new folder beside the current one unless said.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Where to write the report: overside-figures.html, or overside-figure-FIGURE.html for one.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Keep a full run in DIR/MACHINE/DATE-COMMIT, a file a figure; run it in the checkout that was built.
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// What to go over.
    #[command(flatten)]
    pub over: Over,
}

fn figure() -> PossibleValuesParser {
    PossibleValuesParser::new(overside_bench::figures::NAMES.into_iter().chain(["all"]))
}

/// What every command that may go over a network takes.
#[derive(Debug, Args)]
pub struct Wire {
    /// A file with the key that both sides have: 32 random bytes or more, readable by its owner
    /// alone (tcp: and rdma:).
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Without a key, take every user of this host, not only this one: all of them may read and
    /// change every table (tcp: and rdma:; a client takes a server of any user).
    #[arg(long, conflicts_with = "key_file")]
    pub anyone: bool,
    /// No tag on every frame: a stranger who can write to the wire may change what travels on it (tcp: and rdma:, on both sides).
    #[arg(long)]
    pub no_mac: bool,
    /// Which RDMA device, as `overside devices` names it; unless said the first with an active port (rdma:).
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

/// `overside run`
#[derive(Debug, Args)]
pub struct Run {
    /// Tell at the end, on standard error, which connections were accelerated, which not and why.
    #[arg(long)]
    pub verbose: bool,
    /// Print where the library lies, for LD_PRELOAD in a service file, and run nothing.
    #[arg(long)]
    pub print_library: bool,
    /// The program and its arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND",
        required_unless_present = "print_library"
    )]
    pub command: Vec<OsString>,
}

/// `overside calibrate`
#[derive(Debug, Args)]
pub struct Calibrate {
    /// What to measure. Without it, all that this host has.
    #[arg(value_name = "PROVIDER", value_parser = PossibleValuesParser::new(Transport::names()))]
    pub provider: Option<String>,
    /// Measure and show, but keep what was stored before.
    #[arg(long)]
    pub dry_run: bool,
    /// Store the prices even when other programs disturbed the measuring.
    #[arg(long, conflicts_with = "dry_run")]
    pub force: bool,
    /// Say how far the new prices are from those in a profile, on the shapes of `bench regret`.
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
    #[arg(long, value_name = "ADDR", required = true, help = format!("Where to listen: {}; may be given several times", Transport::forms()))]
    pub listen: Vec<String>,
    /// Memory that all tables together may take, as 512M or 8G. Three quarters of what is available by default.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory: Option<usize>,
    /// Threads that serve connections. Half of the processors by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Connections at once; one too many gets an error that says so. 4096 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: Option<u32>,
    /// Keep the tables in this directory, so that they are there again when the server starts anew. It
    /// is made where there is none. Without it tables live in memory alone.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// What an acknowledged change survives. sync: kill -9, a kernel's crash, loss of power. group:
    /// kill -9; of the others all but the last --group-ms. none: a clean end, or `overside checkpoint`.
    #[arg(long, value_name = "sync|group|none", requires = "data", default_value = "sync", value_parser = durability)]
    pub durability: Durability,
    /// With --durability group: milliseconds of changes that a loss of power may cost.
    /// 10 by default.
    #[arg(long, value_name = "N", requires = "data", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub group_ms: Option<u32>,
    /// Start from what is sound of a damaged directory: says what is lost, and moves the old files aside.
    #[arg(long, requires = "data")]
    pub salvage: bool,
    /// Print one JSON object once it listens.
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
    /// Where the server listens: shm:NAME, tcp:HOST:PORT or rdma:HOST:PORT.
    pub addr: String,
    /// Show it again every SECONDS, 2 unless said, with what happens in a second, until Ctrl-C.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub watch: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside tables`
#[derive(Debug, Args)]
pub struct Tables {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside describe`
#[derive(Debug, Args)]
pub struct Describe {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
    /// The table.
    pub table: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside drop`
#[derive(Debug, Args)]
pub struct Drop {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
    /// The table.
    pub table: String,
    /// Drop it without asking.
    #[arg(long, short)]
    pub yes: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
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
    /// The folder to write to; it is made where there is none.
    pub dir: PathBuf,
}

/// `overside checkpoint`
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// Where the server listens: shm:NAME, tcp:HOST:PORT or rdma:HOST:PORT.
    pub addr: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
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
    /// The table. Without it the tables are listed.
    #[arg(requires = "out")]
    pub table: Option<String>,
    /// The file to write: .arrow, .parquet or .csv.
    #[arg(long, value_name = "FILE", requires = "table")]
    pub out: Option<PathBuf>,
    /// Least key to write: a value for each of the key's first columns, comma-separated.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, requires = "table")]
    pub from: Option<String>,
    /// Greatest key to write, itself included, likewise.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, requires = "table")]
    pub to: Option<String>,
    /// Columns to write, in this order. All by default.
    #[arg(long, value_name = "A,B", value_delimiter = ',', requires = "table")]
    pub columns: Vec<String>,
    /// Memory that the table may take, as 512M or 8G. Three quarters of what is available by default.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory: Option<usize>,
    /// Take what is sound of a damaged directory, and say on standard error what is lost.
    #[arg(long)]
    pub salvage: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `overside load`
#[derive(Debug, Args)]
pub struct Load {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
    /// The table; it is created if it is not there.
    pub table: String,
    /// Files to load, one after another: .parquet, .csv or .arrow; - is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Columns of the primary key of a new table, most significant first. The first column by default.
    #[arg(long, value_name = "COLUMN[,COLUMN]", value_delimiter = ',')]
    pub key: Vec<String>,
    /// Types of columns of CSV files, as id:int64,price:decimal(15,2). Others are guessed.
    #[arg(long, value_name = "COLUMN:TYPE[,…]")]
    pub schema: Option<String>,
    /// Replace rows that are there already instead of refusing them.
    #[arg(long)]
    pub replace: bool,
    /// Print one JSON object instead of a line.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside scan`
#[derive(Debug, Args)]
pub struct Scan {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
    /// The table.
    pub table: String,
    /// Least key to read: a value for each of the key's first columns, comma-separated.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// Greatest key to read, itself included, likewise.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub to: Option<String>,
    /// Only keys that begin so: values for the key's first columns. A last one of text or bytes that
    /// ends with * stands for all that begin with what is before it.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    pub where_key_prefix: Option<String>,
    /// Columns to read, in this order. All by default.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// How the rows travel: auto, copy, gather, delta or in-place.
    #[arg(long, default_value = "auto", value_parser = mode)]
    pub mode: Mode,
    /// Stop after this many rows.
    #[arg(long, value_name = "ROWS")]
    pub limit: Option<u64>,
    /// Write the rows to a file: .arrow, .parquet or .csv.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object; with --out without the rows.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside get`
#[derive(Debug, Args)]
pub struct Get {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
    /// The table.
    pub table: String,
    /// The key: a value for each of its columns, comma-separated.
    #[arg(allow_hyphen_values = true)]
    pub key: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside put`
#[derive(Debug, Args)]
pub struct Put {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
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
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside delete`
#[derive(Debug, Args)]
pub struct Delete {
    #[arg(help = format!("Where the server listens: {}", Transport::forms()))]
    pub addr: String,
    /// The table.
    pub table: String,
    /// The key: a value for each of its columns, comma-separated.
    #[arg(allow_hyphen_values = true)]
    pub key: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

fn durability(text: &str) -> Result<Durability, String> {
    text.parse()
}

fn mode(text: &str) -> Result<Mode, String> {
    text.parse()
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.0001..=10.0).contains(&scale) => Ok(scale),
        _ => Err("a scale factor is a number from 0.0001 to 10".into()),
    }
}

/// A number of bytes, with K, M, G or T for powers of 1024.
fn bytes(text: &str) -> Result<usize, String> {
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

const OVERVIEW: &str = "\
Your own file, from another process: one terminal serves,
  overside serve --listen shm:mine
and another, once that says that it listens, loads and scans:
  overside load shm:mine trips trips.parquet --key id
  overside scan shm:mine trips --from 1000 --to 2000 --out part.csv

Addresses: shm:NAME reaches processes of the same host and user, tcp:HOST:PORT processes of any host
that have the same key (head -c 32 /dev/urandom > key; chmod 600 key). Nothing on the wire is secret.
Exit status: 0 done, 1 failed, 2 wrong command line, 130 interrupted.";

const DEMO: &str = "\
Generate TPC-H lineitem, serve it from another process, load it, keep a third process updating
rows, and run full, range, projection and hot scans in each way that rows can travel: copied by
the server, gathered from where they lie, as pages with their deltas, or such pages read in place;
and in the way that the planner chooses. Every row of every scan is checked. Prints a table and writes a report that opens
offline. Ctrl-C leaves no process and no memory behind.";
const DEMO_EXAMPLES: &str = "\
Examples:
  overside demo
  overside demo --scale 1 --report big.html
  overside demo --json > demo.json";

const BENCH: &str = "\
Measure a figure of the papers on this machine: between processes, sides alternating within one
run, with the limit for copies beside it and the papers' own points where their texts state them.
Prints a table and what of the papers' claims holds here, and writes a report that opens offline.
A full run takes some minutes a figure; --quick all of them a few. Other programs disturb it.
Ctrl-C leaves no process and no memory behind.

Figures: verbs (rate by opcode and gather length), transmit (copied out, gathered, or as planned),
delta (a page with deltas), consolidate (chains of deltas: updates, sending, what is held back),
shuffle (a columnar table to 2, 8 and 32 receivers), projection (rows without some columns), regret
(what the planner's choice loses against the best fixed strategy, known afterwards), messages (round
trips of small messages, beside sockets and bare shared memory), sockets (unmodified programs under
`overside run` and without it), durability (tables that survive, beside tables in memory and the bare
disk: requests, checkpoints, recovery).";
const BENCH_EXAMPLES: &str = "\
Examples:
  overside bench transmit --quick
  overside bench all --quick --report figures.html
  overside bench delta --json > delta.json
  overside bench sockets --report sockets.html
  overside bench sockets --quick --only pgbench
  overside bench durability --dir /var/tmp
  overside bench verbs --over rdma --rdma-device mlx5_1";

const RUN: &str = "\
Run a program that knows nothing of Overside. Its stream sockets (TCP and Unix) whose other end is on this host, in a
program run the same way by the same user, go over shared memory after the first few messages; all others
through the kernel, as ever. Where OVERSIDE_RDMA=DEVICE,key-file=FILE names an RDMA device and a key on both hosts, TCP
connections between hosts go over it. The program keeps its real sockets, and whatever is not covered brings a connection
back to them: fork, exec, passing the descriptor on, and what docs/reference/sockets.md lists.

Nothing is printed unless --verbose asks for it. The exit status is the program's.";
const RUN_EXAMPLES: &str = "\
Examples:
  overside run -- postgres -D data
  overside run --verbose -- psql -h localhost
  overside run --print-library";

const SERVE: &str = "\
Serve tables on each address until Ctrl-C or SIGTERM. The first line of the output says where. Over
shm: any process of the same user may connect, read and change every table; over tcp: and rdma:
whoever has the key. Without a key, which is for this host alone, any process of the same user may,
or with --anyone of every user. Both sides of a connection prove the key, and every frame carries a
tag made with it, but nothing on the wire is secret. Tables live in memory: they are gone when the
server ends, unless --data names a directory. Then every change is in a log there before it is
acknowledged, and a server that starts from the directory has all of them. Nothing in the directory
is encrypted. The server ends with status 1 if a bug, or a disk that fails, keeps it from going on.

Where `overside calibrate` has stored no prices, it measures some before it listens, which takes a second or two, and more
on a busy machine. It says so on standard error meanwhile.";
const SERVE_EXAMPLES: &str = "\
Examples:
  overside serve --listen shm:mine
  overside serve --listen shm:mine --data tables
  overside serve --listen shm:mine --data tables --durability group --group-ms 50
  overside serve --listen shm:mine --memory 8G --workers 2 --max-connections 100
  overside serve --listen shm:mine --listen tcp:0.0.0.0:7070 --key-file key";

const STATUS: &str = "\
Show a server's tables, its connections and memory, and, where it keeps tables in a directory (serve
--data), how its files are written, how far its log has come, and what its checkpoints have done.
With --watch and --json: one object a line.";
const STATUS_EXAMPLES: &str = "\
Examples:
  overside status shm:mine
  overside status shm:mine --watch
  overside status shm:mine --json";

const TABLES: &str = "List a server's tables: their keys, rows, pages and bytes of memory.";
const TABLES_EXAMPLES: &str = "\
Examples:
  overside tables shm:mine
  overside tables shm:mine --json";

const DESCRIBE: &str = "\
Show a table's columns with their types, which of them are its key and in which order, which may be
null, and how many rows, pages and bytes of memory it has.";
const DESCRIBE_EXAMPLES: &str = "\
Examples:
  overside describe shm:mine trips
  overside describe shm:mine trips --json";

const DROP: &str = "\
Drop a table with all its rows. On a terminal it asks before; elsewhere it wants --yes. A server that
keeps its tables in a directory has dropped it for good once this command says so.";
const DROP_EXAMPLES: &str = "\
Examples:
  overside drop shm:mine trips
  overside drop shm:mine trips --yes";

const COMPLETIONS: &str = "\
Print a script that completes this command's names and flags in a shell, to be put where the shell
looks for such scripts.";
const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  overside completions bash > ~/.local/share/bash-completion/completions/overside
  overside completions zsh > ~/.zfunc/_overside
  overside completions fish > ~/.config/fish/completions/overside.fish";

const MAN: &str = "Write the manual pages to a folder: overside.1, and one for each command.";
const MAN_EXAMPLES: &str = "\
Examples:
  overside man man1
  overside man ~/.local/share/man/man1";

const CHECKPOINT: &str = "\
Write a checkpoint of each table that has changed since its last one, and wait until it is on the
disk. The server goes on meanwhile. A recovery then reads the checkpoint in place of the log before
it.";
const CHECKPOINT_EXAMPLES: &str = "\
Examples:
  overside checkpoint shm:mine
  overside checkpoint shm:mine --json";

const CHECK: &str = "\
Read all that counts in a data directory: its checkpoint, and the log behind it. Every checksum is
checked, and nothing is changed. Prints a line for each fault, and ends with status 1 if there is
one. Nobody may serve the directory meanwhile.";
const CHECK_EXAMPLES: &str = "\
Examples:
  overside check /var/lib/overside
  overside check /var/lib/overside --json";

const DUMP: &str = "\
Write a table of a data directory to a file, without a server. The table is recovered in memory, as a
server that starts from the directory would do it: every acknowledged change is in the file. It is
one state of the table, which a scan of a table that is being changed is not. Nothing in the
directory is changed, and nobody may serve it meanwhile.

Without a table: which tables there are, and their rows.";
const DUMP_EXAMPLES: &str = "\
Examples:
  overside dump /var/lib/overside
  overside dump /var/lib/overside trips --out trips.parquet
  overside dump /var/lib/overside trips --out part.csv --from 1000 --to 2000 --columns id,price --json";

const LOAD: &str = "\
Load files into a table. A table that is not there is created with the first file's columns; --key
names its primary key, which holds no nulls and no value twice. Parquet and Arrow files say their
types. A CSV file needs a header row; its types are those of the table, or those of --schema, or
guessed from its first 10,000 rows. A field with nothing in it is a null, and \"\" is the empty text.
Standard input (-) may be a pipe that carries CSV, or a file of any of the formats.

A row is loaded whole or not at all, but a load that fails keeps the rows it has loaded, and says
how many. Rows whose key is there already are refused; --replace replaces them.

Types: int8 to int64, uint8 to uint64, float32, float64, decimal(P,S), date, timestamp[s|ms|us|ns],
timestamp[unit,zone], boolean, utf8, binary, fixed(N).";
const LOAD_EXAMPLES: &str = "\
Examples:
  overside load shm:mine trips trips-01.parquet trips-02.parquet --key id
  overside load shm:mine lines lines.csv --key order,line --schema 'price:decimal(15,2)'
  overside load shm:mine trips more.arrow --replace --json
  overside load shm:mine trips - --key id";

const SCAN: &str = "\
Read rows in key order and print them, or write them to a file. On a terminal the first rows are
shown, with the number of all. A scan is no snapshot: every row was current at some moment of the
scan, and rows present throughout come exactly once.

--from and --to take values of the key's first columns, both ends included; --where-key-prefix those
whose key begins so. --mode says how rows
travel: the server copies them together (copy), they are gathered from where they lie (gather),
pages go with their deltas and the client merges (delta), over shm: the same pages are lent and read
where they lie (in-place), or whichever is cheapest, page by page (auto).";
const SCAN_EXAMPLES: &str = "\
Examples:
  overside scan shm:mine trips --limit 10
  overside scan shm:mine trips --from 1000 --to 2000 --columns id,price
  overside scan shm:mine lines --from 17 --to 17,3
  overside scan shm:mine lines --where-key-prefix 17
  overside scan shm:mine streets --where-key-prefix 'Main*'
  overside scan shm:mine trips --out trips.parquet --mode delta --json";

const GET: &str = "Print the row with this key. A key that is not there is an error (exit status 1).";
const GET_EXAMPLES: &str = "\
Examples:
  overside get shm:mine trips 1000
  overside get shm:mine lines 17,3 --json";

const PUT: &str = "\
Put a row: the key, and the other columns either comma-separated in the table's order (an empty
field is a null) or as a JSON object by name (what it leaves out is null). A row with the same key
is replaced. Dates are written 2024-02-29, timestamps 2024-02-29T12:30:00Z, bytes 0xc0ffee.";
const PUT_EXAMPLES: &str = "\
Examples:
  overside put shm:mine trips 1000 'Main Street,12.50,2024-02-29'
  overside put shm:mine trips 1000 '{\"street\": \"Main Street\", \"price\": 12.5}'
  overside put shm:mine trips 1000 --file row.json";

const DELETE: &str = "Delete the row with this key. A key that is not there is an error (exit status 1).";
const DELETE_EXAMPLES: &str = "\
Examples:
  overside delete shm:mine trips 1000
  overside delete shm:mine lines 17,3";

const CALIBRATE: &str = "\
Measure what requests, gathered fragments, packed pieces and bytes cost on this machine, at both ends of a connection
between two threads of this process, and store the prices for this user, host and device. From then on declared sends,
servers and figures plan by them; without them each process measures a few of them when it first needs them.

Takes a few seconds a provider, up to a quarter of a minute on a busy machine. Shows the prices by length, how far they are
from what was measured, and how well they predict shapes that were held out. Ctrl-C stores nothing. Over tcp with a key,
every frame carries a tag, and the prices are kept apart from those without.

Packing costs more between processors that share no cache, and threads, or a virtual machine's processors, are moved from
near to far and back. Over shm prices are made of both where both were met; a calibration that met one alone keeps what an
earlier one found of the other, and what is declared is planned by those that hold.";
const CALIBRATE_EXAMPLES: &str = "\
Examples:
  overside calibrate
  overside calibrate shm --json
  overside calibrate tcp --dry-run
  overside calibrate shm --against yesterday.profile";

const DEVICES: &str = "\
Show what carries bytes on this host: shm: and tcp:, which are always there, and the RDMA devices for rdma:. Where there is no \
device, says what is missing: the library, its drivers, the kernel's, or the device itself.";
const DEVICES_EXAMPLES: &str = "\
Examples:
  overside devices
  overside devices --json";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent_and_every_command_has_examples() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands_mut().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
            let help = subcommand.render_long_help().to_string();
            assert!(help.contains("Examples:\n  overside "), "{}", subcommand.get_name());
            for inner in subcommand.get_subcommands_mut().filter(|c| c.get_name() != "help") {
                let help = inner.render_long_help().to_string();
                assert!(help.contains("Examples:\n  overside "), "{}", inner.get_name());
            }
        }
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
        let texts = [
            OVERVIEW,
            CALIBRATE_EXAMPLES,
            DEMO_EXAMPLES,
            BENCH_EXAMPLES,
            SERVE_EXAMPLES,
            STATUS_EXAMPLES,
            CHECKPOINT_EXAMPLES,
            CHECK_EXAMPLES,
            LOAD_EXAMPLES,
            SCAN_EXAMPLES,
            GET_EXAMPLES,
            TABLES_EXAMPLES,
            DESCRIBE_EXAMPLES,
            DROP_EXAMPLES,
            COMPLETIONS_EXAMPLES,
            MAN_EXAMPLES,
        ];
        let mut parsed = 0;
        let texts = texts.iter().chain(&[PUT_EXAMPLES, DELETE_EXAMPLES]).chain(&volume::ALL_EXAMPLES);
        for line in texts.flat_map(|text| text.lines()) {
            let Some(line) = line.strip_prefix("  overside ") else { continue };
            let words = split_like_a_shell(line.split(['>', '&']).next().unwrap());
            let words = std::iter::once("overside".to_string()).chain(words);
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            parsed += 1;
        }
        assert!(parsed >= 18, "{parsed}");
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
