//! Programs that know nothing of the library, in pairs: with it and without it they must see the same.
//!
//! Each test starts a server and a client (this very executable, which links nothing of the library), first plainly, then
//! both with the library preloaded, then so that the ends meet as early as they can; each writes down what its calls returned.
//! The transcripts must be equal, and with the library the connection must really have gone through rings. Over TCP and over
//! Unix sockets.

mod calls;
mod files;
mod list;
mod programs;
mod sets;
mod shared_sets;
mod sock;
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
    /// Correct is all it must be: the connection may have gone back, or never left.
    Any,
}

fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let beside = exe.parent().unwrap().join("liboverside_preload.so");
    assert!(beside.exists(), "{} is built with this test", beside.display());
    beside
}

/// How a pair runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Plain,
    With,
    /// With the library, whose ends look for each other from the first call.
    Soon,
}

struct Run {
    transcripts: [String; 2],
    report: String,
}

fn start(role: &str, program: &str, folder: &Path, address: &str, way: Way) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "as_a_program", "--nocapture"]).stdout(Stdio::null());
    command.env("PAIR", program).env("ROLE", role).env("ADDRESS", address).env("FOLDER", folder);
    command.env_remove("LD_PRELOAD").env_remove("OVERSIDE_SOCKETS_REPORT").env_remove("OVERSIDE_SOCKETS_SOON");
    if way != Way::Plain {
        command.env("LD_PRELOAD", library()).env("OVERSIDE_SOCKETS_REPORT", folder.join("report"));
    }
    if way == Way::Soon {
        command.env("OVERSIDE_SOCKETS_SOON", "1");
    }
    command.spawn().unwrap()
}

fn run(program: &str, family: &str, way: Way) -> Run {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("report"), "").unwrap();
    let address = match family {
        "unix" => folder.path().join("socket").display().to_string(),
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
    for family in ["tcp", "unix"] {
        let plain = run(program, family, Way::Plain);
        for way in [Way::With, Way::Soon] {
            let with = run(program, family, way);
            for (role, (plain, with)) in
                ["server", "client"].iter().zip(plain.transcripts.iter().zip(&with.transcripts))
            {
                assert!(plain.contains("done"), "{program} over {family}: the {role} without the library:\n{plain}");
                assert_eq!(plain, with, "{program} over {family}: the {role}, plain and {way:?}");
            }
            if expect == Expect::ManyBytes {
                let sent = |line: &str| line.split('\t').nth(6).and_then(|bytes| bytes.parse::<u64>().ok());
                let bytes: u64 = with.report.lines().filter_map(sent).sum();
                assert!(bytes > 1 << 20, "{program} over {family}, {way:?}: few bytes in rings:\n{}", with.report);
            }
            if expect != Expect::Any && !(expect == Expect::RingsAfterFork && way == Way::Soon) {
                let rings = with.report.lines().filter(|line| line.split('\t').nth(4) == Some("ring")).count();
                assert!(rings >= 1, "{program} over {family}, {way:?}, went through the kernel:\n{}", with.report);
            }
        }
    }
}

macro_rules! pairs {
    ($($name:ident: $expect:ident,)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name), Expect::$expect);
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

pairs! {
    echo: Rings,
    sizes: Rings,
    stream: Rings,
    one_way: Rings,
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
    polled_many: Rings,
    masks: Rings,
    cancelled: Rings,
    jumps: Rings,
    out_of_resources: Any,
    another_user: Any,
    before_constructors: Rings,
    noise: Any,
    files: ManyBytes,
    corked: Rings,
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
    let side = sock::meet(&role, &address, &folder);
    program(side, &mut log);
    log.say("done");
}
