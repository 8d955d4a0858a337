//! A volume attached for programs that know nothing of it, while its node is killed.

use super::server::overside;
use overside::Address;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// A command that goes on until it is killed, and the first line that it said.
struct Going {
    child: Child,
    said: String,
    _output: BufReader<std::process::ChildStdout>,
}

impl Going {
    fn start(arguments: &[&str]) -> Going {
        let mut child = overside(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        output.read_line(&mut said).unwrap();
        assert!(!said.is_empty(), "{arguments:?} did not come up");
        Going { child, said, _output: output }
    }

    /// As the user ends it.
    fn ends(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A volume `v` that is written down in a folder, and an address for its node.
struct Volume {
    folder: tempfile::TempDir,
    address: String,
}

impl Volume {
    fn new(what: &str, size: &str) -> Volume {
        Volume::over("shm", what, size)
    }

    fn over(transport: &str, what: &str, size: &str) -> Volume {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("cli-attached-{what}-{}", std::process::id());
        let volume = Volume { folder, address: Address::here(transport, &name).unwrap().to_string() };
        let (home, member) = (volume.path("home"), volume.path("member"));
        let made = overside(&["volume", "create", "v", "--size", size, "--on", &member, "--home", &home]).output();
        assert!(made.unwrap().status.success());
        volume
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn serve(&self, options: &[&str]) -> Going {
        let home = self.path("home");
        Going::start(&[&["volume", "serve", "--listen", &self.address, "--home", &home], options].concat())
    }

    fn attach_arguments(&self, socket: &str) -> [String; 5] {
        let (at, unix) = (format!("{}/v", self.address), format!("unix:{}", self.path(socket)));
        ["volume".into(), "attach".into(), at, "--nbd".into(), unix]
    }

    fn attach(&self, socket: &str, options: &[&str]) -> Going {
        let arguments = self.attach_arguments(socket);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(options.iter().copied()).collect();
        Going::start(&arguments)
    }

    fn attach_as_file(&self, options: &[&str]) -> Going {
        let (at, file) = (format!("{}/v", self.address), self.path("v.img"));
        Going::start(&[&["volume", "attach", &at, "--fuse", &file, "--json"], options].concat())
    }

    /// Whether files can be served here; says why not. The node must be there. What a refused attachment leaves is looked at.
    fn may_be_a_file(&self) -> bool {
        // The place comes before the node, and goes with what was refused.
        let (absent, place) = (format!("{}/absent", self.address), self.path("absent.img"));
        let refused = overside(&["volume", "attach", &absent, "--fuse", &place]).output().unwrap();
        let told = String::from_utf8(refused.stderr).unwrap();
        if told.contains("/dev/fuse") || told.contains("mount") {
            println!("skipped: {told}");
            return false;
        }
        assert!(told.contains("the node has no such volume") && !Path::new(&place).exists(), "{told}");
        true
    }

    /// What a refused attachment says.
    fn refuses(&self, socket: &str, options: &[&str]) -> String {
        let output = overside(&[]).args(self.attach_arguments(socket)).args(options).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn greets(socket: &str) -> bool {
    let mut said = [0; 8];
    let stream = UnixStream::connect(socket);
    stream.is_ok_and(|mut stream| stream.read_exact(&mut said).is_ok() && said == *b"NBDMAGIC")
}

#[test]
fn a_volume_is_attached_by_one_writer_and_by_readers_beside_it() {
    let volume = Volume::new("once", "4M");
    let _node = volume.serve(&["--cache", "1M", "--policy", "arc", "--block", "4K"]);
    let writer = volume.attach("w.sock", &["--json"]);
    let said: serde_json::Value = serde_json::from_str(&writer.said).unwrap();
    assert_eq!(said["nbd"], format!("nbd+unix:///v?socket={}", volume.path("w.sock")));
    assert_eq!((&said["bytes"], &said["read_only"]), (&serde_json::json!(4 << 20), &serde_json::json!(false)));
    assert!(greets(&volume.path("w.sock")));
    let told = volume.refuses("second.sock", &[]);
    assert!(told.contains("another client writes the volume"), "{told}");
    assert!(!Path::new(&volume.path("second.sock")).exists());
    let reader = volume.attach("r.sock", &["--read-only"]);
    assert!(reader.said.contains("to be read only") && greets(&volume.path("r.sock")), "{}", reader.said);
    let told = volume.refuses("r.sock", &["--read-only"]);
    assert!(told.contains("another server listens there"), "{told}");
    reader.ends();
    assert!(!Path::new(&volume.path("r.sock")).exists());
    // It says goodbye, so the next one need not wait.
    writer.ends();
    let second = volume.attach("w.sock", &[]);
    let third = volume.attach("t.sock", &["--take-over"]);
    assert!(greets(&volume.path("t.sock")));
    drop(second);
    third.ends();
    let unknown = volume.path("x.sock");
    let output = overside(&["volume", "attach", &format!("{}/w", volume.address), "--nbd"])
        .arg(format!("unix:{unknown}"))
        .output();
    let told = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(told.contains("the node has no such volume"), "{told}");
    // Who cannot say where it is gives the writer's place back.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut silent = overside(&[]).args(volume.attach_arguments("w.sock")).stdout(full).spawn().unwrap();
    assert_eq!(silent.wait().unwrap().code(), Some(1));
    // Who finds no place for the socket has not taken the writer's.
    let told = volume.refuses("no/folder.sock", &[]);
    assert!(told.contains("No such file"), "{told}");
    volume.attach("w.sock", &[]).ends();
}

#[test]
fn what_is_attached_is_detached_and_nothing_else_is() {
    let volume = Volume::new("detached", "4M");
    let node_socket = format!("unix:{}", volume.path("node.sock"));
    let node = volume.serve(&["--nbd", &node_socket]);
    let detach = |target: &str| overside(&["volume", "detach", target, "--json"]).output().unwrap();
    let told = |target: &str| {
        let output = detach(target);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for _ in 0..2 {
        let mut writer = volume.attach("w.sock", &[]);
        assert!(greets(&volume.path("w.sock")));
        assert!(detach(&format!("unix:{}", volume.path("w.sock"))).status.success());
        assert!(writer.child.wait().unwrap().success(), "it ends as its user ends it");
        assert!(!Path::new(&volume.path("w.sock")).exists());
        // Its place is free at once, so the next round need not wait.
    }
    assert!(told(&format!("unix:{}", volume.path("w.sock"))).contains("nobody serves a volume"));
    let limit = Instant::now() + PATIENCE;
    while !greets(&volume.path("node.sock")) {
        assert!(Instant::now() < limit, "nobody listens");
        std::thread::yield_now();
    }
    assert!(told(&node_socket).contains("is no `overside volume attach`"));
    assert!(told(&volume.path("member")).contains("no volume is attached there"));
    assert!(told(&volume.path("no/where")).contains("No such file"));
    node.ends();
}

#[test]
fn a_node_serves_nbd_clients_itself() {
    let volume = Volume::new("node", "4M");
    let socket = volume.path("node.sock");
    let node = volume.serve(&["--nbd", &format!("unix:{socket}")]);
    // The address comes first; it says so once all sockets are there.
    let limit = Instant::now() + PATIENCE;
    while !greets(&socket) {
        assert!(Instant::now() < limit, "nobody listens");
        std::thread::yield_now();
    }
    let taken =
        overside(&["volume", "serve", "--listen", "shm:cli-attached-other", "--home", &volume.path("empty"), "--nbd"])
            .arg(format!("unix:{socket}"))
            .output()
            .unwrap();
    let told = String::from_utf8(taken.stderr).unwrap();
    assert!(told.contains("another server listens there"), "{told}");
    node.ends();
    assert!(!Path::new(&socket).exists());
}

/// How fio gets at the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    Nbd,
    File,
    /// ext4 on a loop device over that file. Root's alone.
    Ext4,
}

impl Front {
    /// Where that cannot be, it says why.
    fn is_here(self, volume: &Volume) -> bool {
        let engine = if self == Front::Nbd { "nbd" } else { "libaio" };
        let asked = Command::new("fio").arg("--enghelp").output();
        let knows = |said: &[u8]| String::from_utf8_lossy(said).lines().any(|line| line.trim() == engine);
        if !asked.is_ok_and(|output| knows(&output.stdout)) {
            println!("skipped: there is no fio with its engine {engine}");
            return false;
        }
        let has = |program: &&str| ["/usr/sbin", "/usr/bin"].iter().any(|at| Path::new(at).join(program).exists());
        let tools = ["mkfs.ext4", "losetup", "mount", "unshare"].iter().all(has);
        let may = rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists() && tools;
        if self == Front::Ext4 && !may {
            println!("skipped: ext4 on a loop device needs root, /dev/loop-control, mount and e2fsprogs");
        }
        self == Front::Nbd || (self != Front::Ext4 || may) && volume.may_be_a_file()
    }

    fn attach(self, volume: &Volume) -> Going {
        match self {
            Front::Nbd => volume.attach("v.sock", &["--json"]),
            Front::File => volume.attach_as_file(&[]),
            Front::Ext4 => volume.attach_as_file(&["--loop"]),
        }
    }

    /// Four jobs, 32 requests of each outstanding, each in a part of its own: what one writes another must not verify.
    fn fio(self, volume: &Volume, said: &serde_json::Value, seed: u64) -> Child {
        let common = ["--name=v", "--rw=randwrite", "--bs=8k", "--iodepth=32", "--numjobs=4", "--size=8M"];
        let verify = ["--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1", "--fsync=256", "--rate_iops=400"];
        let engine = if self == Front::Nbd { "--ioengine=nbd" } else { "--ioengine=libaio" };
        let place = |key: &str| said[key].as_str().unwrap().to_owned();
        let mut command = Command::new(if self == Front::Ext4 { "unshare" } else { "fio" });
        if self == Front::Ext4 {
            let at = volume.path("mounted");
            std::fs::create_dir_all(&at).unwrap();
            command.args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                MOUNTED,
                "sh",
                &place("device"),
                &at,
                "fio",
            ]);
            command.arg(format!("--directory={at}"));
        }
        command.args(common).args(verify).arg(engine).arg(format!("--randseed={seed}"));
        // Its engine is known by now, or that one's options are none.
        match self {
            Front::Nbd => _ = command.arg(format!("--uri={}", place("nbd"))).arg("--offset_increment=8M"),
            Front::File => _ = command.arg(format!("--filename={}", place("file"))).arg("--offset_increment=8M"),
            Front::Ext4 => {}
        }
        command.args((self != Front::Nbd).then_some("--direct=1"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// A new file system each time, which goes with what runs in it.
const MOUNTED: &str = r#"PATH=$PATH:/usr/sbin:/sbin device=$1 at=$2
shift 2
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$device" && mount "$device" "$at" || exit 1
"$@"
ended=$?
umount "$at" && exit $ended"#;

/// Its program's I/O waits, and every byte that it wrote is there. The node is killed so often, or as often as
/// `OVERSIDE_KILL_ROUNDS` says.
fn goes_on(front: Front, transport: &str, options: &[&str], kills: u64) {
    let kills = std::env::var("OVERSIDE_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(kills);
    let volume = Volume::over(transport, &format!("{front:?}-{transport}-{}", options.len()).to_lowercase(), "64M");
    let mut node = Some(volume.serve(options));
    if !front.is_here(&volume) {
        return;
    }
    let attached = front.attach(&volume);
    let said: serde_json::Value = serde_json::from_str(&attached.said).unwrap();
    let (mut killed, mut seed, limit) = (0, 1, Instant::now() + PATIENCE * (3 + kills as u32));
    while killed < kills {
        let mut running = front.fio(&volume, &said, seed);
        // At another moment of each life of the node.
        while running.try_wait().unwrap().is_none() && killed < kills {
            std::thread::sleep(Duration::from_millis(150 + seed * 37 % 200 + killed * 83 % 300));
            if running.try_wait().unwrap().is_none() {
                drop(node.take());
                node = Some(volume.serve(options));
                killed += 1;
            }
        }
        let done = running.wait_with_output().unwrap();
        let said = [String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)].concat();
        assert!(done.status.success() && !said.contains("verify:"), "{front:?}, after {killed} kills: {said}");
        assert_eq!(said.matches(": pid=").count(), 4, "each job says how it went: {said}");
        assert!(Instant::now() < limit, "it takes too long");
        seed += 1;
    }
    let shown = overside(&["volume", "status", &format!("{}/v", volume.address), "--json"]).output().unwrap();
    assert!(shown.status.success());
    println!("{front:?} over {transport}: {killed} kills, fio ran {} times", seed - 1);
    attached.ends();
}

const BACK: &[&str] = &["--writes", "back", "--cache", "4M"];

#[test]
fn fio_goes_on_while_the_node_is_killed() {
    goes_on(Front::Nbd, "shm", BACK, 3);
    goes_on(Front::Nbd, "shm", &[], 2);
}

#[test]
fn fio_goes_on_over_tcp_while_the_node_is_killed() {
    goes_on(Front::Nbd, "tcp", BACK, 2);
    goes_on(Front::Nbd, "tcp", &[], 2);
}

#[test]
fn fio_goes_on_in_a_file_while_the_node_is_killed() {
    goes_on(Front::File, "shm", BACK, 2);
    goes_on(Front::File, "tcp", &[], 2);
}

#[test]
fn fio_goes_on_in_ext4_while_the_node_is_killed() {
    goes_on(Front::Ext4, "tcp", BACK, 2);
    goes_on(Front::Ext4, "shm", &[], 2);
}

#[test]
fn what_nbd_clients_ask_for_is_recorded() {
    let volume = Volume::new("recorded", "4M");
    let _node = volume.serve(&[]);
    let (at, unix) = (format!("{}/v", volume.address), format!("unix:{}", volume.path("t.sock")));
    let trace = volume.path("trace");
    let record = ["volume", "trace", "record", &trace, &at, "--nbd", &unix];
    let recorder = Going::start(&record);
    let mut stream = UnixStream::connect(volume.path("t.sock")).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    // Fixed newstyle without zeros; the export by its name.
    let hello = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &1u32.to_be_bytes(), b"v"].concat();
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    for (kind, offset, length) in [(0u16, 8192u64, 1024u32), (1, 512, 512), (3, 0, 0)] {
        let head = [&0x2560_9513u32.to_be_bytes()[..], &[0; 2], &kind.to_be_bytes(), &[7; 8]].concat();
        let data = vec![9; if kind == 1 { length as usize } else { 0 }];
        stream.write_all(&[&head[..], &offset.to_be_bytes(), &length.to_be_bytes(), &data].concat()).unwrap();
        let mut reply = vec![0; 16 + if kind == 0 { length as usize } else { 0 }];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "request {kind} failed");
    }
    drop(stream);
    recorder.ends();
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), "r,8192,1024\nw,512,512\n");
    let again = overside(&record).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "a trace that is there stays");
}

/// Bytes that say where they are, and in which round.
fn pattern(at: usize, length: usize, round: usize) -> Vec<u8> {
    (at..at + length).map(|at| (at / 512 + at % 512 + round) as u8).collect()
}

#[test]
fn a_file_is_the_volume_while_its_node_and_its_server_are_killed() {
    use std::os::unix::fs::FileExt;
    let volume = Volume::new("fuse", "8M");
    let mut node = Some(volume.serve(&["--writes", "back"]));
    let (at, file) = (format!("{}/v", volume.address), volume.path("v.img"));
    let arguments = ["volume", "attach", &at, "--fuse", &file, "--json"];
    let refused = overside(&["volume", "attach", &at, "--fuse", &volume.path("home")]).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("no regular file") && refused.status.code() == Some(1), "{told}");
    if !volume.may_be_a_file() {
        return;
    }
    let attached = Going::start(&arguments);
    let said: serde_json::Value = serde_json::from_str(&attached.said).unwrap();
    assert_eq!((&said["file"], &said["bytes"]), (&serde_json::json!(file), &serde_json::json!(8 << 20)));
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    for round in 0..40 {
        if round % 8 == 7 {
            // Its writes wait until another one serves.
            drop(node.take());
            node = Some(volume.serve(&["--writes", "back"]));
        }
        let (from, length) = (round * 199_993, 4096 + round * 777);
        opened.write_all_at(&pattern(from, length, round), from as u64).unwrap();
        let mut found = vec![0; length];
        opened.read_exact_at(&mut found, from as u64).unwrap();
        assert!(found == pattern(from, length, round), "round {round}");
    }
    opened.sync_all().unwrap();
    // Killed, it leaves a file that answers nothing; the next one takes its place.
    drop(attached);
    assert!(std::fs::metadata(&file).is_err());
    drop(opened);
    let attached = Going::start(&[&arguments[..], &["--take-over"]].concat());
    let opened = std::fs::File::open(&file).unwrap();
    let (from, length) = (39 * 199_993, 4096 + 39 * 777);
    let mut found = vec![0; length];
    opened.read_exact_at(&mut found, from as u64).unwrap();
    assert!(found == pattern(from, length, 39));
    let detach = || overside(&["volume", "detach", &file]).output().unwrap();
    let busy = detach();
    let told = String::from_utf8(busy.stderr).unwrap();
    assert!(busy.status.code() == Some(1) && told.contains("a program has it open"), "{told}");
    drop(opened);
    let mut attached = attached;
    assert!(detach().status.success());
    assert!(attached.child.wait().unwrap().success());
    assert!(std::fs::read(&file).is_ok_and(|left| left.is_empty()), "the second one found the file there");
    drop(node);
}

/// With the driver the guest's test attaches one (`cargo xtask guest ublk`).
#[test]
fn without_its_driver_a_block_device_is_refused_in_one_line() {
    if Path::new("/dev/ublk-control").exists() {
        println!("skipped: this kernel has the driver");
        return;
    }
    let refused = overside(&["volume", "attach", "shm:nobody/v", "--ublk"]).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && told.contains("modprobe ublk_drv"), "{told}");
    let refused = overside(&["volume", "detach", "/dev/ublkb0"]).output().unwrap();
    let told = told.lines().count() + String::from_utf8(refused.stderr).unwrap().lines().count();
    assert!(refused.status.code() == Some(1) && told == 2);
    for other in [["--nbd", "unix:a"], ["--fuse", "a"]] {
        let arguments = ["volume", "attach", "shm:nobody/v", "--ublk", other[0], other[1]];
        assert_eq!(overside(&arguments).output().unwrap().status.code(), Some(2), "{other:?} beside it");
    }
}
