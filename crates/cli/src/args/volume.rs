//! `overside volume`: block volumes.

use super::{At, Wire, bytes, number};
use clap::{Args, Subcommand};
use overside::Transport;
use overside::vault::cache::PolicyKind;
use overside::vault::server::REQUEST_BYTES_MAX;
use std::path::PathBuf;

/// `overside volume`
#[derive(Debug, Args)]
pub struct Volume {
    /// What to do.
    #[command(subcommand)]
    pub what: VolumeCommand,
}

/// What can be done with volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume of files, memory or other nodes' volumes.
    #[command(long_about = CREATE, after_long_help = CREATE_EXAMPLES)]
    Create(Create),
    /// Serve this host's volumes until Ctrl-C.
    #[command(long_about = SERVE, after_long_help = SERVE_EXAMPLES)]
    Serve(ServeVolumes),
    /// List a node's volumes.
    #[command(long_about = LIST, after_long_help = LIST_EXAMPLES)]
    List(At),
    /// Show the state of volumes, their members, clients and requests.
    #[command(long_about = STATUS, after_long_help = STATUS_EXAMPLES)]
    Status(VolumeStatus),
    /// Measure how fast a volume is, and whether it keeps every byte.
    #[command(long_about = BENCH, after_long_help = BENCH_EXAMPLES)]
    Bench(BenchVolume),
    /// Make a volume a disk or a file of this host, until Ctrl-C.
    #[command(long_about = ATTACH, after_long_help = ATTACH_EXAMPLES)]
    Attach(Attach),
    /// Bring members that missed writes up to date, while no node serves the volume.
    #[command(long_about = REPAIR, after_long_help = REPAIR_EXAMPLES)]
    Repair(RepairVolume),
    /// Check every byte of a served volume, on each of its members.
    #[command(long_about = CHECK, after_long_help = CHECK_EXAMPLES)]
    Check(CheckVolume),
    /// Record the requests to a volume, or compare cache policies on them.
    #[command(long_about = TRACE, after_long_help = TRACE_EXAMPLES)]
    Trace(Trace),
    /// End an `attach`, so that others can write the volume.
    #[command(long_about = DETACH, after_long_help = DETACH_EXAMPLES)]
    Detach(Detach),
    /// Make a volume larger that no client has attached.
    #[command(long_about = RESIZE, after_long_help = RESIZE_EXAMPLES)]
    Resize(ResizeVolume),
    /// Replace a member of a raid1 or raid5 volume, while clients use it.
    #[command(long_about = REPLACE, after_long_help = REPLACE_EXAMPLES)]
    Replace(ReplaceMember),
    /// Delete a volume that no client has attached, with its data.
    #[command(long_about = DELETE, after_long_help = DELETE_EXAMPLES)]
    Delete(DeleteVolume),
}

/// `overside volume create`
#[derive(Debug, Args)]
pub struct Create {
    /// The volume's name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The volume's size in bytes, as 512M or 2G: a multiple of 4K.
    #[arg(long, value_name = "BYTES", value_parser = blocks)]
    pub size: usize,
    /// What it lies on: paths of new files, volumes of other nodes (ADDR/VOLUME), `memory` or
    /// memory:SIZE. `overside help volume create` has more.
    #[arg(long, value_name = "MEMBER,…", value_delimiter = ',', required = true)]
    pub on: Vec<String>,
    /// How it lies on its members. concat: one behind the other. raid0: in stripes. raid1: the same
    /// on each. raid5: in stripes with a parity.
    #[arg(long, default_value = "concat", value_name = "LAYOUT", value_parser = layout())]
    pub layout: String,
    /// With --layout raid0 or raid5: bytes of a stripe on one member. By default 64K.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub stripe: Option<usize>,
    /// Keep files of programs (`overside run --volume`), not blocks. postgresql: tables, indexes,
    /// write-ahead log. sqlite: databases (.db, .db3, .sqlite, .sqlite3), journals and logs.
    #[arg(long, value_name = "PRESET", value_parser = ["postgresql", "sqlite"])]
    pub files: Option<String>,
    /// What members on other nodes ask for.
    #[command(flatten)]
    pub keys: MemberKeys,
    /// Where volumes are written down.
    #[command(flatten)]
    pub home: HomeDir,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn layout() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(["concat", "raid0", "raid1", "raid5"])
}

/// What members on other nodes ask for. The files must stay where they are.
#[derive(Debug, Args)]
pub struct MemberKeys {
    /// The file with the key of members' nodes beyond this host, for members without one of their
    /// own.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The file with the key of members' volumes, if their nodes are served with --access, for
    /// members without one of their own.
    #[arg(long, value_name = "FILE")]
    pub access_key: Option<PathBuf>,
}

/// Where volumes are written down.
#[derive(Debug, Args)]
pub struct HomeDir {
    /// The folder with this host's list of volumes. By default overside/volumes in $XDG_DATA_HOME
    /// or ~/.local/share.
    #[arg(long, value_name = "DIR")]
    pub home: Option<PathBuf>,
}

/// `overside volume serve`
#[derive(Debug, Args)]
pub struct ServeVolumes {
    #[arg(long, value_name = "ADDR", required = true, help = format!("Where to listen: {}. May be given several times", Transport::forms()))]
    pub listen: Vec<String>,
    /// When a write is acknowledged. through: when it is on stable storage. back: when the node's
    /// kernel has it; a flush brings it to stable storage. kill -9 of the node loses
    /// nothing either way.
    #[arg(long, value_name = "WHEN", default_value = "through", value_parser = ["through", "back"])]
    pub writes: String,
    /// Memory for blocks that were read or written, as 256M. All volumes share it in equal parts;
    /// 0 is none.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes_or_none)]
    pub cache: usize,
    /// The cache policy: which block makes room for another.
    #[arg(long, value_name = "POLICY", default_value = PolicyKind::default().name(), value_parser = policy())]
    pub policy: String,
    /// Bytes of a block of the cache: a power of two from 512 to 1M.
    #[arg(long, value_name = "BYTES", default_value = "8K", value_parser = block)]
    pub block: usize,
    /// Also serve all volumes to NBD clients of this user, on this socket (mode 0600). A client
    /// there is its volume's writer. May be given several times.
    #[arg(long, value_name = "unix:PATH", value_parser = unix)]
    pub nbd: Vec<PathBuf>,
    /// Who may attach which volume: lines `VOLUME ro|rw KEYFILE`. Without the volume's key a client
    /// is answered as if it were not there. `list` and `status` need no key.
    #[arg(long, value_name = "FILE")]
    pub access: Option<PathBuf>,
    /// Bytes of one request at most, 64K to 16M in steps of 4K: clients cut longer ones. A node
    /// that is started again with less than before leaves its attached clients waiting.
    ///
    /// Memory is taken at once: 256 times this length, at most 256M, and for each worker 32 times,
    /// at most 64M. Each client may have 32M in flight.
    #[arg(long, value_name = "BYTES", default_value = "128K", hide_short_help = true, value_parser = max_request)]
    pub max_request: u32,
    /// Threads that serve connections. By default half as many as processors.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Where volumes are written down.
    #[command(flatten)]
    pub home: HomeDir,
    /// Print one JSON object when it listens.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// As many bytes as whole blocks of a volume have.
fn blocks(text: &str) -> Result<usize, String> {
    let bytes = bytes(text)?;
    if bytes.is_multiple_of(4096) {
        Ok(bytes)
    } else {
        Err("a volume's size is a multiple of 4K, as 512M or 2G".into())
    }
}

/// Bytes, or 0 for none.
fn bytes_or_none(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { bytes(text) }
}

fn max_request(text: &str) -> Result<u32, String> {
    let fits = |bytes: &usize| bytes.is_multiple_of(4096) && (64 << 10..=REQUEST_BYTES_MAX as usize).contains(bytes);
    let bytes = bytes(text).ok().filter(fits).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "a request has from 64K to 16M at most, in steps of 4K, as 1M".into())
}

fn block(text: &str) -> Result<usize, String> {
    let fits = |bytes: &usize| bytes.is_power_of_two() && (512..=1 << 20).contains(bytes);
    bytes(text).ok().filter(fits).ok_or_else(|| "a block is a power of two from 512 to 1M, as 8K".into())
}

fn policy() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(PolicyKind::ALL.map(PolicyKind::name))
}

/// The path of `unix:PATH`.
fn unix(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix:").filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or_else(|| "a socket is given as unix:PATH, for example unix:pg.sock".into())
}

/// What every command takes that asks a node for a volume.
#[derive(Debug, Args)]
pub struct OneVolume {
    /// The address of the node and the name of its volume, as shm:vault/pg.
    #[arg(value_name = "ADDR/NAME")]
    pub volume: String,
    /// The file with the volume's key, if its node is served with --access. Only its owner can read
    /// it.
    #[arg(long, value_name = "FILE")]
    pub access_key: Option<PathBuf>,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// How requests and their bytes get from a client to its node.
#[derive(Debug, Args)]
pub struct RequestOptions {
    /// How the bytes of writes get to the node. copied: in the request. The others register this
    /// process's memory, and the node reads it: once for good, each for one write, regions for a
    /// thousand. auto: copied or regions, by price.
    #[arg(long, value_name = "WAY", default_value = "auto", hide_short_help = true, value_parser = ["auto", "copied", "once", "each", "regions"])]
    pub data: String,
    /// Bytes of one request at most, 64K to 16M in steps of 4K: a longer one goes as several. The
    /// node's own --max-request holds, too.
    ///
    /// Memory is taken at once: 96 times this length, at most 192M.
    #[arg(long, value_name = "BYTES", default_value = "128K", hide_short_help = true, value_parser = max_request)]
    pub max_request: u32,
}

/// `overside volume status`
#[derive(Debug, Args)]
pub struct VolumeStatus {
    /// The address of the node, and the name of its volume, as shm:vault/pg. Without a name, all.
    #[arg(value_name = "ADDR[/NAME]")]
    pub volume: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside volume bench`
#[derive(Debug, Args)]
pub struct BenchVolume {
    /// Which volume, and how its node is reached.
    #[command(flatten)]
    pub at: OneVolume,
    /// Which requests, at random places. randread: reads. randwrite: writes, which replace what the
    /// volume holds. randrw: half of each.
    #[arg(long, value_name = "KIND", default_value = "randread", value_parser = ["randread", "randwrite", "randrw"])]
    pub rw: String,
    /// Bytes of a request.
    #[arg(long, value_name = "BYTES", default_value = "8K", value_parser = bytes)]
    pub bs: usize,
    /// Requests outstanding at a time, 1 to 1024.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// Seconds to run. By default 10; with --trace, to the trace's end.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub time: Option<u32>,
    /// Carry out the requests of a trace, in order: lines `r|w,offset,bytes`. Writes replace what
    /// the volume holds.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rw", "bs", "verify", "seed"])]
    pub trace: Option<PathBuf>,
    /// Check every read against what was written last, and at the end read all that was written.
    ///
    /// Only the first 8G of a volume are used.
    #[arg(long)]
    pub verify: bool,
    /// Become the volume's writer, and shut out the client that is.
    #[arg(long)]
    pub take_over: bool,
    /// Seconds that requests wait for a node that is away, before they fail. By default they wait
    /// for ever.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub give_up: Option<u32>,
    /// The seed of the random places.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number, allow_hyphen_values = true)]
    pub seed: u64,
    /// How it learns of completions. interrupt: it sleeps until one comes. poll: it never sleeps,
    /// and takes a processor. auto: it polls before it sleeps while that pays.
    #[arg(long, value_name = "HOW", default_value = "auto", hide_short_help = true, value_parser = ["auto", "interrupt", "poll"])]
    pub completions: String,
    /// How requests and their bytes get to the node.
    #[command(flatten)]
    pub ways: RequestOptions,
}

/// `overside volume attach`
#[derive(Debug, Args)]
pub struct Attach {
    /// Which volume, and how its node is reached.
    #[command(flatten)]
    pub at: OneVolume,
    /// Serve it to NBD clients of this user on this socket, which is made (mode 0600), and removed
    /// at the end.
    #[arg(long, value_name = "unix:PATH", value_parser = unix, required_unless_present_any = ["fuse", "ublk"], conflicts_with_all = ["fuse", "ublk"])]
    pub nbd: Option<PathBuf>,
    /// Make it a file at this path, until this command ends. An empty file may be there already.
    #[arg(long, value_name = "FILE", conflicts_with = "ublk")]
    pub fuse: Option<PathBuf>,
    /// Make it a block device, /dev/ublkbN, by the kernel's ublk driver. Needs root and Linux 6.5
    /// or later.
    #[arg(long)]
    pub ublk: bool,
    /// With --fuse: also make the file a loop device, for file systems. Needs root.
    #[arg(long = "loop", requires = "fuse")]
    pub block_device: bool,
    /// Only read. Another client may write meanwhile.
    #[arg(long)]
    pub read_only: bool,
    /// Become the volume's writer, and shut out the client that is.
    #[arg(long, conflicts_with = "read_only")]
    pub take_over: bool,
    /// Seconds that I/O waits for a node that is away; then it fails, and so does all later I/O. By
    /// default it waits for ever.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub give_up: Option<u64>,
    /// How requests and their bytes get to the node.
    #[command(flatten)]
    pub ways: RequestOptions,
}

/// `overside volume repair`
#[derive(Debug, Args)]
pub struct RepairVolume {
    /// The volume's name.
    pub name: String,
    /// Where volumes are written down.
    #[command(flatten)]
    pub home: HomeDir,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// `overside volume check`
#[derive(Debug, Args)]
pub struct CheckVolume {
    /// Which volume, and how its node is reached.
    #[command(flatten)]
    pub at: OneVolume,
    /// Write again what is wrong on a member, from the members that have it right.
    #[arg(long)]
    pub repair: bool,
}

/// `overside volume trace`
#[derive(Debug, Args)]
pub struct Trace {
    /// What to do.
    #[command(subcommand)]
    pub what: TraceCommand,
}

/// What can be done with traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Serve a volume to NBD clients, and write down their requests, until Ctrl-C.
    #[command(long_about = RECORD, after_long_help = RECORD_EXAMPLES)]
    Record(RecordTrace),
    /// Show the hit ratio of each cache policy on a trace.
    #[command(long_about = REPLAY, after_long_help = REPLAY_EXAMPLES)]
    Replay(ReplayTrace),
}

/// `overside volume trace record`
#[derive(Debug, Args)]
pub struct RecordTrace {
    /// The trace to write, which must not be there yet.
    pub file: PathBuf,
    /// Which volume, and how its node is reached.
    #[command(flatten)]
    pub at: OneVolume,
    /// Serve it to NBD clients of this user on this socket, which is made (mode 0600), and removed
    /// at the end.
    #[arg(long, value_name = "unix:PATH", required = true, value_parser = unix)]
    pub nbd: PathBuf,
    /// Only read. Another client may write meanwhile.
    #[arg(long)]
    pub read_only: bool,
}

/// `overside volume trace replay`
#[derive(Debug, Args)]
pub struct ReplayTrace {
    /// The trace: a line for each request, `r|w,offset,bytes`.
    pub file: PathBuf,
    /// One policy, or all of them and, last, the best that there can be (Belady's).
    #[arg(long, value_name = "POLICY", default_value = "all", value_parser = policies())]
    pub policy: String,
    /// The size of the cache in bytes, as 256M, or as a part of what the trace touches, as 10%.
    #[arg(long, value_name = "BYTES|N%", default_value = "10%", value_parser = room)]
    pub cache: CacheRoom,
    /// Bytes of a block of the cache: a power of two from 512 to 1M.
    #[arg(long, value_name = "BYTES", default_value = "8K", value_parser = block)]
    pub block: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How large a cache is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheRoom {
    /// So many bytes.
    Bytes(usize),
    /// So much of what the trace touches, in hundredths.
    Percent(f64),
}

fn policies() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(PolicyKind::ALL.map(PolicyKind::name).into_iter().chain(["all"]))
}

fn room(text: &str) -> Result<CacheRoom, String> {
    let Some(percent) = text.strip_suffix('%') else { return bytes(text).map(CacheRoom::Bytes) };
    let percent = percent.parse().ok().filter(|percent| (0.001..=100.0).contains(percent));
    percent.map(CacheRoom::Percent).ok_or_else(|| "a part is given as 0.001% to 100%, for example 10%".into())
}

/// A volume that is to be changed.
#[derive(Debug, Args)]
pub struct AnyVolume {
    /// ADDR/NAME of a volume that is served, or, if no node serves it, its NAME in the home folder.
    #[arg(value_name = "[ADDR/]NAME")]
    pub volume: String,
    /// The file with the volume's key, if its node is served with --access. Only its owner can read
    /// it.
    #[arg(long, value_name = "FILE")]
    pub access_key: Option<PathBuf>,
    /// Where volumes are written down.
    #[command(flatten)]
    pub home: HomeDir,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// What goes over a network.
    #[command(flatten)]
    pub network: Wire,
}

/// `overside volume resize`
#[derive(Debug, Args)]
pub struct ResizeVolume {
    /// Which volume.
    #[command(flatten)]
    pub of: AnyVolume,
    /// The new size in bytes, as 4G: a multiple of 4K, and larger than before.
    #[arg(long, value_name = "BYTES", value_parser = blocks)]
    pub size: usize,
}

/// `overside volume replace`
#[derive(Debug, Args)]
pub struct ReplaceMember {
    /// Which volume.
    #[command(flatten)]
    pub of: AnyVolume,
    /// The member to remove, as `overside volume status` names it.
    #[arg(value_name = "OLD")]
    pub old: String,
    /// The member to add: the path of a new file, or an empty volume of another node (ADDR/VOLUME,
    /// with keys as in `create --on`, by default those of the old member).
    #[arg(value_name = "NEW")]
    pub new: String,
}

/// `overside volume delete`
#[derive(Debug, Args)]
pub struct DeleteVolume {
    /// Which volume.
    #[command(flatten)]
    pub of: AnyVolume,
}

/// `overside volume detach`
#[derive(Debug, Args)]
pub struct Detach {
    /// What it was attached as: unix:PATH, a file or /dev/ublkbN.
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What `overside help volume` says.
pub const VOLUME: &str = "\
Block volumes: disks that another process or host serves. A node (`volume serve`) serves volumes
that lie on its files, its memory or other nodes; clients on this host or on others read and write
them. When the node is killed and started again, I/O waits and goes on without a wrong byte.
docs/guide/volumes.md leads through it, docs/volumes.md says what survives what.";
pub const VOLUME_EXAMPLES: &str = "\
Examples:
  overside volume create pg --size 2G --on a.img,b.img,c.img --layout raid0
  overside volume serve --listen shm:vault &
  overside volume status shm:vault/pg
  overside volume attach shm:vault/pg --nbd unix:pg.sock";

const CREATE: &str = "\
Make a volume. Its members' files are made, with room that the file system gives as it is written.
The volume is written down in the home folder, where `overside volume serve` finds it, a running one
too. What fails in the middle leaves nothing.

Members are paths of files that are not there yet, and `memory` or memory:SIZE, which is the node's
and is gone when the node ends. ADDR/VOLUME is a volume of another node, which must be empty, larger
by 1M than what lies on it, and not in use; its keys may follow it, as
ADDR/VOLUME,key-file=FILE,access-key=FILE. A raid1 over two nodes goes on without either of them;
what is back gets what it has missed.

volatile:SEED:PATH is a file for tests: whenever it is opened, the seed says which writes are lost
that no flush covered. spindle:10k:PATH and spindle:15k:PATH are files that answer no sooner than a
disk of so many turns a minute would.

concat puts one member behind the other. raid0 cuts stripes and deals them out: it is faster, and
lost with any member. raid1 keeps the same on each. raid5 has stripes with a parity, on at least
three. With raid1 and raid5 a member may fail.";
const CREATE_EXAMPLES: &str = "\
Examples:
  overside volume create pg --size 2G --on a.img
  overside volume create pg --size 2G --on a.img,b.img,c.img --layout raid0 --stripe 128K
  overside volume create safe --size 2G --on /disk1/a.img,/disk2/b.img --layout raid1
  overside volume create pg5 --size 2G --on a.img,b.img,c.img --layout raid5
  overside volume create far --size 2G --on tcp:10.0.0.1:7071/a,tcp:10.0.0.2:7071/b --layout raid1 --key-file key
  overside volume create scratch --size 256M --on memory --home ./volumes";

const SERVE: &str = "\
Serve the volumes of the home folder on each address until Ctrl-C or SIGTERM. The first lines of the
output say where. Volumes that are created later are served as soon as they are there. A volume that
cannot be opened is named on standard error, and the others are served; if none can be opened the
command fails. A raid1 or raid5 volume is served without a member that cannot be opened; one that is
back gets what it has missed meanwhile.

Over shm: any process of the same user may attach volumes; over tcp: and rdma: every holder of the
key. Nothing on the wire is secret. At the end what is under way is completed, and what was written
is brought to stable storage. After kill -9 start it again: clients wait, and go on.";
const SERVE_EXAMPLES: &str = "\
Examples:
  overside volume serve --listen shm:vault
  overside volume serve --listen shm:vault --writes back --cache 256M --nbd unix:vault.sock
  overside volume serve --listen shm:vault --listen tcp:0.0.0.0:7071 --key-file key --home ./volumes";

const LIST: &str = "Show which volumes a node has: their state, layout, size, and who is attached.";
const LIST_EXAMPLES: &str = "\
Examples:
  overside volume list shm:vault
  overside volume list tcp:10.0.0.1:7071 --key-file key --json";

const STATUS: &str = "\
Show how a node and its volumes do. A volume is ok, degraded (usable, and another failure may end
that) or failed. Of each member it says whether it has missed a write; of each client its process,
what it may do, what it has moved, and since when its oldest request has been waiting.";
const STATUS_EXAMPLES: &str = "\
Examples:
  overside volume status shm:vault/pg
  overside volume status shm:vault --json";

const BENCH: &str = "\
Read and write a volume at random places. Reports requests a second, how long half of them and all
but one in a hundred took at most, and what processor time each cost here and in the node. With
randwrite and randrw what the volume holds is lost.

--verify makes it a test: every sector that is written names itself, its generation and its
checksum, requests overlap, and what is read must be what was written last. Kill the node meanwhile
and start it again: requests wait, and `corrupt` stays 0. It says how often it connected again.
Status 1 if a request failed or a byte was wrong. Ctrl-C ends it with the results so far.";
const BENCH_EXAMPLES: &str = "\
Examples:
  overside volume bench shm:vault/pg
  overside volume bench shm:vault/pg --rw randrw --verify --time 60
  overside volume bench shm:vault/pg --trace pg.trace --depth 8
  overside volume bench tcp:10.0.0.1:7071/pg --key-file key --rw randwrite --bs 64K --depth 32 --json";

const ATTACH: &str = "\
Attach a node's volume for programs that know nothing of it, until Ctrl-C or SIGTERM. With --nbd,
clients of this user find it on a Unix socket: fio, qemu and libnbd at nbd+unix:///NAME?socket=PATH,
the kernel's own client too (nbd-client, as root).

With --fuse it is a file, which any program of this user opens, reads and writes past the page
cache. Its size is the volume's. A user who may not mount needs fusermount3 (package fuse3). With
--loop it is a block device as well: mkfs and mount it. The kernel's requests come by io_uring where
/sys/module/fuse/parameters/enable_uring is Y, else by /dev/fuse; it says which.

With --ublk it is a block device, /dev/ublkbN, without a file in between. It needs root and
`modprobe ublk_drv`. Unmount it before this command ends; else the kernel writes what it has, and
the file system fails from then on.

When the node ends, is killed, or cannot be reached, I/O waits and goes on once it is back. Nothing
that was acknowledged is lost, and nothing is carried out twice. A volume has one writer: with
--read-only it is attached beside it, with --take-over in its place.";
const ATTACH_EXAMPLES: &str = "\
Examples:
  overside volume attach shm:vault/pg --nbd unix:pg.sock
  overside volume attach tcp:10.0.0.1:7071/pg --key-file key --nbd unix:/run/pg.sock --read-only
  overside volume attach shm:vault/pg --fuse pg.img
  overside volume attach shm:vault/pg --fuse pg.img --loop
  overside volume attach shm:vault/pg --ublk
  overside volume attach shm:vault/pg --nbd unix:pg.sock --take-over --give-up 60";

const REPAIR: &str = "\
Bring each member of a raid1 or raid5 volume up to date that has missed writes, and make those anew
whose files are gone. Until then the volume is degraded: the node serves it from the others, and
reads nothing from these. No node may serve it meanwhile. A node brings members up to date by
itself; only their files it does not make.";
const REPAIR_EXAMPLES: &str = "\
Examples:
  overside volume repair safe
  overside volume repair safe --home ./volumes --json";

const CHECK: &str = "\
Read all of a volume on every member, past the node's cache, and hold it against the checksums. It
prints a line for each 4 KiB that are wrong on a member, and ends with status 1 if any stay so. The
volume is used meanwhile; requests to a place wait while it is read. With --repair what is wrong is
written again from a mirror's other side or a RAID 5's other members.

What a crash left is summed again while the volume is served, and not checked until then. Members
that were made before there were checksums, and memory, have none: of these it finds what the disk
itself refuses to read.";
const CHECK_EXAMPLES: &str = "\
Examples:
  overside volume check shm:vault/pg
  overside volume check --repair tcp:10.0.0.1:7071/pg --key-file key --json";

const TRACE: &str = "\
A trace is text, a line a request: `r,offset,bytes` or `w,offset,bytes`. `record` writes one while
programs use a volume over NBD. `replay` lets every policy of the node's cache decide on it, and
prints which part of the blocks was in the cache. The best policy there can be knows what comes
next; what it reaches is the last line.";
const TRACE_EXAMPLES: &str = "\
Examples:
  overside volume trace record pg.trace shm:vault/pg --nbd unix:pg.sock
  overside volume trace replay pg.trace
  overside volume trace replay pg.trace --policy mq --cache 256M --json";

const RECORD: &str = "\
Serve a volume to NBD clients on a socket, and write a trace of what they read and write, until
Ctrl-C or SIGTERM. The volume is used as by `overside volume attach --nbd`.";
const RECORD_EXAMPLES: &str = "\
Examples:
  overside volume trace record pg.trace shm:vault/pg --nbd unix:pg.sock
  overside volume trace record pg.trace shm:vault/pg --nbd unix:pg.sock --read-only";

const REPLAY: &str = "\
Let each policy of the node's cache decide on a trace, and print which part of the blocks it had in
the cache. No volume is read. The last line is the best that there can be: a policy that knows what
comes next.";
const REPLAY_EXAMPLES: &str = "\
Examples:
  overside volume trace replay pg.trace
  overside volume trace replay pg.trace --policy mq --cache 256M --json";

const DETACH: &str = "\
End the `overside volume attach` that serves a volume at a socket, as a file or as a block device.
What was taken is carried out first, and the node hears that its writer goes. A file that a program
has open, a block device over it, and one of which a file system is mounted are refused: close or
unmount them first.";
const DETACH_EXAMPLES: &str = "\
Examples:
  overside volume detach unix:pg.sock
  overside volume detach /dev/ublkb0
  overside volume detach pg.img --json";

const RESIZE: &str = "\
Make a volume larger; what is new reads as zeros, and no volume becomes smaller. A volume that a
client has attached is refused, and the client named. By ADDR/NAME the node that serves it carries
it out and serves it on; by NAME alone no node may serve it. Members on other nodes grow first, by
their nodes; one that does not is named. Memory does not grow. What breaks off in the middle is
finished when the volume is opened next. A volume of files may grow to 16 times the size that it was
made with.";
const RESIZE_EXAMPLES: &str = "\
Examples:
  overside volume resize shm:vault/pg --size 4G
  overside volume resize pg --size 4G --home ./volumes";

const REPLACE: &str = "\
Put a new member in the place of one of a raid1 or raid5 volume, whether that is still there or not.
The new one gets what the others have while the volume is used; until `status` says ok it is
degraded. Clients stay attached: their requests wait for the moment that the change takes. The old
member's file stays. Asked for by ADDR/NAME, a node makes files only in folders in which it has
members already; by NAME alone, where no node serves the volume, anywhere.";
const REPLACE_EXAMPLES: &str = "\
Examples:
  overside volume replace shm:vault/safe /disk1/a.img /disk2/c.img
  overside volume replace safe /disk1/a.img /disk3/a.img --home ./volumes
  overside volume replace shm:vault/far tcp:10.0.0.2:7071/b tcp:10.0.0.3:7071/b";

const DELETE: &str = "\
Delete a volume, and its members' files with all that is in them. A volume that a client has
attached is refused, and the client named. By ADDR/NAME the node that serves it deletes it; by NAME
alone no node may serve it. A file that is no member of it any more stays, and is named on standard
error. A volume of another node stays, and is empty where it said whose member it is.";
const DELETE_EXAMPLES: &str = "\
Examples:
  overside volume delete pg
  overside volume delete shm:vault/pg
  overside volume delete scratch --home ./volumes --json";
