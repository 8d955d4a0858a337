//! Programs that know nothing of the library, in pairs: with it and without it they must see the same.
//!
//! Each test starts a server and a client (this very executable, which links nothing of the library), first plainly, then
//! both with the library preloaded, then so that the ends meet as early as they can; each writes down what its calls returned.
//! The transcripts must be equal, and with the library the connection must really have gone through rings. Over TCP and over
//! Unix sockets; or, with `OVERSIDE_PAIRS_OVER=ADDRESS` and OVERSIDE_RDMA, over RDMA to an address of this host that its programs reach from
//! another one, as `cargo xtask guest sockets` does it.

mod calls;
mod confined;
mod edges;
mod eventfds;
mod files;
mod forks;
mod halves;
mod leaving;
mod list;
mod numbers;
mod options;
mod other_names;
mod passing;
mod programs;
mod sets;
mod shared_sets;
mod signals;
mod sock;
mod started;
mod strangers;
mod two_waiters;
mod unread;
mod unseen;
mod urgency;
mod waiting;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use list::PROGRAMS;

/// What the report must say of a program that ran with the library.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// Both ends used rings.
    Rings,
    /// The same, except where the ends meet at once: then a fork right after `accept` finds them in rings, and takes them out.
    RingsAfterFork,
    /// Both ends used rings, for more than a megabyte.
    ManyBytes,
    /// One end used them for so many messages: it came into them a second time.
    Often(u64),
    /// Correct is all it must be: the connection may have gone back, or never left.
    Any,
    /// An end used rings and says why no longer, in words that have these among them.
    Says(&'static str),
    /// No end used rings, and one says why, in words that have these among them.
    Kernel(&'static str),
    /// The same where the tests run as root: others cannot do what is tested.
    OfRoot(&'static str),
    /// The same where a process may have namespaces of its own.
    OfNamespaces(&'static str),
}

impl Expect {
    /// Why it is to stay with the kernel, if that can be said here.
    fn reason(self, plain: &Run) -> Option<&'static str> {
        match self {
            Self::Rings | Self::RingsAfterFork | Self::ManyBytes | Self::Often(_) | Self::Says(_) | Self::Any => None,
            Self::Kernel(reason) => Some(reason),
            Self::OfRoot(reason) => {
                let root = rustix::process::geteuid().is_root();
                (root && !plain.transcripts[0].contains("secure: 0")).then_some(reason)
            }
            Self::OfNamespaces(reason) => {
                let may = Command::new("unshare").args(["-U", "-n", "true"]).stderr(Stdio::null()).status();
                may.is_ok_and(|status| status.success()).then_some(reason)
            }
        }
    }
}

fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let beside = exe.parent().unwrap().join("liboverside_preload.so");
    assert!(beside.exists(), "{} is built with this test", beside.display());
    beside
}

/// How a pair runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PairRun {
    Plain,
    With,
    /// With the library, whose ends look for each other from the first call.
    Soon,
    /// With the library, where no process may borrow another's socket.
    Walled,
}

struct Run {
    transcripts: [String; 2],
    report: String,
}

fn start(role: &str, program: &str, folder: &Path, address: &str, way: PairRun) -> Child {
    let mut executable = std::env::current_exe().unwrap();
    if program == "set_user_id" && role == "server" {
        executable = of_nobody(&executable, folder);
    }
    let mut command = Command::new(executable);
    command.args(["--exact", "as_a_program", "--nocapture"]).stdout(Stdio::null());
    command.env("PAIR", program).env("ROLE", role).env("ADDRESS", address).env("FOLDER", folder);
    command.env_remove("LD_PRELOAD").env_remove("OVERSIDE_SOCKETS_REPORT").env_remove("OVERSIDE_SOCKETS_SOON");
    command.env_remove(started::INHERITED);
    if way != PairRun::Plain {
        command.env("LD_PRELOAD", library()).env("OVERSIDE_SOCKETS_REPORT", folder.join("report"));
    }
    if way == PairRun::Soon {
        command.env("OVERSIDE_SOCKETS_SOON", "1");
    }
    if way == PairRun::Walled {
        // SAFETY: between fork and exec, system calls alone.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, confined::without_borrowing) };
    }
    loop {
        match command.spawn() {
            // A child of another test has the copy open for writing, from its fork to its exec.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            started => return started.unwrap(),
        }
    }
}

/// A copy of this executable that runs as another user, where this one may make such a thing.
fn of_nobody(executable: &Path, folder: &Path) -> PathBuf {
    use std::os::unix::fs::{PermissionsExt, chown};
    let copy = folder.join("program");
    std::fs::copy(executable, &copy).unwrap();
    if chown(&copy, Some(65_534), None).is_ok() {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).unwrap();
    }
    copy
}

fn run(program: &str, family: &str, way: PairRun) -> Run {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("report"), "").unwrap();
    let address = match family {
        "unix" => folder.path().join("socket").display().to_string(),
        "six" => "[::1]:0".to_string(),
        "far" => std::env::var(OVER).unwrap(),
        _ => "127.0.0.1:0".to_string(),
    };
    let mut server = start("server", program, folder.path(), &address, way);
    let mut client = start("client", program, folder.path(), &address, way);
    let deadline = Instant::now() + Duration::from_secs(150);
    for (child, role) in [(&mut client, "client"), (&mut server, "server")] {
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                let transcript = std::fs::read_to_string(folder.path().join(role)).unwrap_or_default();
                panic!("{program} over {family}, {way:?}: the {role} hangs after\n{transcript}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let transcripts = ["server", "client"].map(|role| {
        std::fs::read_to_string(folder.path().join(role)).unwrap_or_else(|_| format!("the {role} wrote nothing"))
    });
    Run { transcripts, report: std::fs::read_to_string(folder.path().join("report")).unwrap() }
}

fn check(program: &str, expect: Expect) {
    let six = std::net::TcpListener::bind("[::1]:0").is_ok();
    let remote = std::env::var_os(OVER).is_some();
    let families: &[&str] = match program {
        _ if remote => &["far"],
        "six" if six => &["six"],
        _ => &["tcp", "unix"],
    };
    for family in families {
        let plain = run(program, family, PairRun::Plain);
        let ways: &[PairRun] = if program.starts_with("unread") {
            &[PairRun::With, PairRun::Soon, PairRun::Walled]
        } else {
            &[PairRun::With, PairRun::Soon]
        };
        for way in ways.iter().copied() {
            let with = run(program, family, way);
            for (role, (plain, with)) in
                ["server", "client"].iter().zip(plain.transcripts.iter().zip(&with.transcripts))
            {
                assert!(plain.contains("done"), "{program} over {family}: the {role} without the library:\n{plain}");
                assert_eq!(plain, with, "{program} over {family}: the {role}, plain and {way:?}");
            }
            // Ends that meet at once may have done so before what keeps them apart.
            let reason = expect.reason(&plain).filter(|_| way == PairRun::With && !remote);
            let expect = match (expect, way) {
                (Expect::RingsAfterFork, PairRun::Soon) => Expect::Any,
                // Between hosts the ends do not come together again.
                (Expect::Often(_) | Expect::Kernel(_) | Expect::OfNamespaces(_) | Expect::OfRoot(_), _) if remote => {
                    Expect::Any
                }
                (Expect::RingsAfterFork, _) => Expect::Rings,
                (other, _) => other,
            };
            if let Err(missed) = judge(expect, reason, &with.report, if remote { "rdma" } else { "ring" }) {
                panic!("{program} over {family}, {way:?}: {missed}:\n{}", with.report);
            }
        }
    }
}

/// Whether the report says what is expected.
fn judge(expect: Expect, reason: Option<&str>, report: &str, by: &str) -> Result<(), String> {
    let column = |index| report.lines().filter_map(move |line| line.split('\t').nth(index));
    let numbers = |index| column(index).map(|number| number.parse::<u64>().unwrap());
    let rings = column(4).filter(|way| *way == by).count();
    match expect {
        Expect::Says(reason) if !report.contains(reason) => Err(format!("nobody says {reason:?}")),
        Expect::ManyBytes if numbers(6).sum::<u64>() <= 1 << 20 => Err("few bytes in rings".into()),
        Expect::Often(least) => match numbers(7).zip(numbers(9)).map(|(out, back)| out + back).max() {
            most if most >= Some(least) => Ok(()),
            most => Err(format!("{most:?} messages in rings where there must be {least}")),
        },
        Expect::Rings | Expect::ManyBytes | Expect::Says(_) if rings == 0 => Err("all went through the kernel".into()),
        _ => match reason {
            Some(_) if rings > 0 => Err("it used rings".into()),
            Some(reason) if !report.contains(reason) => Err(format!("nobody says {reason:?}")),
            _ => Ok(()),
        },
    }
}

/// Says which address the programs are to meet at, by RDMA.
const OVER: &str = "OVERSIDE_PAIRS_OVER";

macro_rules! pairs {
    ($($name:ident: $expect:expr,)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name), $expect);
        })*

        #[test]
        fn every_program_is_run() {
            let mut run = vec![$(stringify!($name)),*];
            let mut there: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
            run.sort_unstable();
            there.sort_unstable();
            assert_eq!(run, there);
        }
    };
}

use Expect::{Any, Kernel, ManyBytes, OfNamespaces, OfRoot, Often, Rings, RingsAfterFork, Says};

pairs! {
    echo: Rings,
    sizes: Rings,
    stream: Rings,
    one_way: ManyBytes,
    flags: Rings,
    vectors: Rings,
    half_close: Rings,
    close_with_unread: Rings,
    broken_pipe: Rings,
    killed_peer: Any,
    timeouts: Rings,
    nonblocking: Rings,
    queues: Rings,
    duplicates: Rings,
    threads: Rings,
    fork_after_accept: RingsAfterFork,
    fork_in_the_middle: Rings,
    exec_without_the_library: Rings,
    polled: Rings,
    polled_ends: Rings,
    polled_full: Rings,
    selected: Rings,
    set_before_connect: Rings,
    set_level: Rings,
    set_edge: Rings,
    set_oneshot: Rings,
    set_end: Rings,
    set_half_close: Rings,
    two_sets: Rings,
    nested_sets: Rings,
    set_with_odd_data: Rings,
    bytes_before_the_set: Rings,
    set_full: Rings,
    set_timeouts: Rings,
    close_in_a_set: Rings,
    fork_with_a_set: Rings,
    shot_over_a_fork: RingsAfterFork,
    threads_in_a_set: Rings,
    change_under_a_sleeper: Rings,
    set_of_many: Rings,
    set_with_a_pipe: Rings,
    late_accept: Rings,
    urgent: Any,
    connect_again: Rings,
    vfork_first: Rings,
    addresses: Rings,
    printed: Rings,
    exec_by_list: Rings,
    polled_many: Often(60),
    polled_to_the_limit: Often(100),
    masks: Rings,
    cancelled: Rings,
    jumps: Rings,
    out_of_resources: Kernel("out of memory or descriptors"),
    another_user: OfRoot("did not come by"),
    before_constructors: Rings,
    noise: Says("nonsense"),
    files: ManyBytes,
    file_first: Any,
    stream_behind_a_wake_byte: Any,
    looks_across: Any,
    unread_looked_at: Any,
    corked: Rings,
    fortified: Rings,
    spawned: Rings,
    closed_by_range: Rings,
    one_over_the_other: Rings,
    set_exclusive: Kernel("EPOLLEXCLUSIVE"),
    lingering: Rings,
    tcp_info: Rings,
    waitall: Rings,
    spliced: Rings,
    streams: Rings,
    rights: Rings,
    few_descriptors: Any,
    no_address_space: Kernel("out of memory or descriptors"),
    full_shm: RingsAfterFork,
    another_network: OfNamespaces("did not come by"),
    user_namespace: OfNamespaces("did not come by"),
    set_user_id: OfRoot("did not come by"),
    mapped_users: OfNamespaces("was not the other end"),
    another_container: OfRoot("was not the other end"),
    effective_user: OfRoot("did not come by"),
    six: Rings,
    many: Rings,
    sandboxed: Rings,
    without_calls: Often(400),
    strict: RingsAfterFork,
    scattered: Any,
    other_version: Kernel("was not the other end"),
    unsealed: Kernel("was not the other end"),
    empty_handed: Kernel("was not the other end"),
    stranger: OfRoot("was not the other end"),
    taken_before: Kernel("was not the other end"),
    late: Kernel("closed it or went back"),
    strays: Rings,
    all_are_told: Rings,
    what_is_not_its_own: Rings,
    numbers_of_its_own: Any,
    as_many_as_allowed: Often(60),
    killed_after_a_fork: Any,
    fork_beside: Often(600),
    snapshots: Often(300),
    closed_by_the_child: Often(500),
    forks_on_both_ends: Rings,
    used_by_the_child: Often(400),
    uncounted_by_the_child: Rings,
    left_to_the_child: Often(500),
    unread_by_the_parent: Rings,
    unread_by_the_program: Rings,
    half_close_in_a_flood: Rings,
    half_close_over_unread: ManyBytes,
    half_close_after_poll: Rings,
    polled_over_unread: Rings,
    interruptions: Rings,
    pipe_signal: Rings,
    cancelled_with_bytes: Rings,
    long_times: Rings,
    timeout_of_a_sender: Rings,
    timeout_of_many_waits: Rings,
    standard_output: Rings,
    passed_on: Rings,
    asynchronous: Rings,
    made_beside_a_fork: Rings,
    shut_down_beside: Rings,
    shut_down_in_a_send: Rings,
    fork_beside_a_sender: Rings,
    killed_connector: Rings,
    cancelled_senders: Rings,
    jumps_out_of_a_send: Rings,
    jumps_out_of_anything: Rings,
    jumps_out_of_looks: Rings,
    jumps_and_goes_on: Rings,
    exec_with_the_library: Rings,
    vfork_and_exec: Rings,
    inherited_by_spawn: Rings,
    closed_from: Rings,
    bad_buffers: Rings,
    delays: Rings,
    at_positions: Rings,
    sent_after_a_switch: Rings,
    unread_of_a_closed: Rings,
    unread_of_a_half_closed: Rings,
    unread_of_an_idle: Rings,
    reset_for_any_call: Rings,
    unread_by_both: Rings,
    unread_by_a_stream: Rings,
    unseen_of_a_closed: Rings,
    unseen_of_an_idle: Rings,
    written_before_read: ManyBytes,
    written_without_waiting: Rings,
    urgent_polled: Rings,
    second_names: Often(100),
    raw_calls: Rings,
    stream_before_connect: Any,
    no_bytes: Rings,
    two_waiters: ManyBytes,
    two_waiters_without_eventfds: ManyBytes,
    waits_from_before: Any,
}

/// What this executable is when a test started it.
#[test]
fn as_a_program() {
    let Ok(name) = std::env::var("PAIR") else { return };
    let (_, program) = PROGRAMS.iter().find(|(known, _)| *known == name).unwrap();
    let folder = PathBuf::from(std::env::var("FOLDER").unwrap());
    let (role, address) = (std::env::var("ROLE").unwrap(), std::env::var("ADDRESS").unwrap());
    let mut log = sock::Log::new(folder.join(&role));
    if name == "vfork_first" {
        sock::vfork_child();
    }
    let side = match std::env::var(started::INHERITED) {
        Ok(fd) => sock::Side { fd: fd.parse().unwrap(), server: role == "server", tcp: !address.starts_with('/') },
        Err(_) => sock::attach(&role, &address, &folder),
    };
    program(side, &mut log);
    log.say("done");
}
