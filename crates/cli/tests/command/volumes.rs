//! `overside volume`: made, served, verified while the node is killed, and one clear line for whatever cannot be.

use super::server::{overside, send, told};
use overside::Address;
use overside::volume::client::LinkOptions;
use overside::volume::wire::Role;
use rustix::process::Signal;
use serde_json::Value as Json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// As `openssl rand -hex 32` makes them.
pub(super) const KEY: &str = "7d0c1b7fa9c1a5a0c1be5f1b0c3be9217f5f4e0a9f5f8dc2b0b1f9f0c7d6a351\n";
pub(super) const ANOTHER: &str = "ac5d960c71f2731a0ce76f67ca8980aab6ae4bc13d2a43a6ada270691286d33c\n";
const THIRD: &str = "2f9e51c3d7a84b06e1a9f3c58d27b4609e6c1fd08ab35742c9d0e8f1a6b37c54\n";
/// On a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node on an address of its own, its home, and room for members.
pub(super) struct Node {
    pub(super) address: String,
    folder: tempfile::TempDir,
    pub(super) options: Vec<String>,
    child: Option<Child>,
}

impl Node {
    /// Nothing is served yet.
    pub(super) fn new(transport: &str) -> Node {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("cli-volumes-{}-{number}", std::process::id());
        let address = Address::here(transport, &name).unwrap().to_string();
        Node { address, folder: tempfile::tempdir().unwrap(), options: Vec::new(), child: None }
    }

    /// With one volume, `pg`, of `members` files.
    pub(super) fn with(transport: &str, size: &str, members: &[&str], layout: &str) -> Node {
        let mut node = Node::new(transport);
        let paths: Vec<String> = members.iter().map(|member| node.path(member)).collect();
        node.ok(&[
            "create",
            "pg",
            "--size",
            size,
            "--on",
            &paths.join(","),
            "--layout",
            layout,
            "--home",
            &node.home(),
        ]);
        node.start();
        node
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(super) fn home(&self) -> String {
        self.path("home")
    }

    pub(super) fn key(&self, name: &str, content: &str) -> String {
        std::fs::write(self.path(name), content).unwrap();
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        self.path(name)
    }

    pub(super) fn volume(&self) -> String {
        format!("{}/pg", self.address)
    }

    /// Serves, and waits until it does.
    pub(super) fn start(&mut self) {
        let mut command = overside(&["volume", "serve", "--listen", &self.address, "--home", &self.home()]);
        command.args(&self.options);
        self.start_by(command);
    }

    /// The same by a command that becomes the node; its process.
    pub(super) fn start_by(&mut self, mut command: Command) -> u32 {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(self.path("serve.log")).unwrap())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, format!("listening on {}\n", self.address), "{}", self.log());
        // What it says at its end goes nowhere, and that must not end it.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        self.child.insert(child).id()
    }

    pub(super) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(super) fn end(&mut self) {
        let mut child = self.child.take().unwrap();
        send(&child, Signal::TERM);
        assert!(child.wait().unwrap().success(), "{}", self.log());
    }

    /// What all threads of the node's process have used; the kernel counts it in hundredths of a second.
    fn processor_time(&self) -> Duration {
        let stat = format!("/proc/{}/stat", self.child.as_ref().unwrap().id());
        let stat = std::fs::read_to_string(stat).unwrap();
        // The name may have anything in it.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.path("serve.log")).unwrap_or_default()
    }

    pub(super) fn output(&self, arguments: &[&str]) -> Output {
        overside(&[&["volume"], arguments].concat()).stdin(Stdio::null()).output().unwrap()
    }

    /// The standard output of a command that succeeds.
    pub(super) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", told(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn json(&self, arguments: &[&str]) -> Json {
        parsed(&self.ok(&[arguments, &["--json"]].concat()))
    }

    /// The one line of a command that fails.
    pub(super) fn fails(&self, arguments: &[&str]) -> String {
        one_line(&self.output(arguments))
    }

    /// What the node says of `pg`.
    pub(super) fn status(&self) -> Json {
        self.json(&["status", &self.volume()])["volumes"][0].clone()
    }

    /// A client that goes on until it is told to end.
    pub(super) fn bench(&self, options: &[&str]) -> Child {
        overside(&["volume", "bench", &self.volume(), "--time", "3600", "--json"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprint!("{}", self.log());
        }
    }
}

fn parsed(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(super) fn one_line(output: &Output) -> String {
    let told = told(output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(told.starts_with("overside: ") && told.lines().count() == 1, "{told}");
    told
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The results of a client that is told to end.
pub(super) fn ended(mut client: Child) -> Json {
    assert!(client.try_wait().unwrap().is_none(), "{}", told(&client.wait_with_output().unwrap()));
    send(&client, Signal::INT);
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", told(&output));
    parsed(&String::from_utf8(output.stdout).unwrap())
}

/// Reads and writes that overlap, while the node is killed and started again.
fn goes_on(transport: &str, options: &[&str], kills: u64) {
    let mut node = Node::new(transport);
    node.options = options.iter().map(|option| (*option).to_owned()).collect();
    let members = ["a", "b", "c"].map(|member| node.path(member)).join(",");
    node.ok(&["create", "pg", "--size", "4M", "--on", &members, "--layout", "raid0", "--home", &node.home()]);
    node.start();
    let client = node.bench(&["--rw", "randrw", "--verify"]);
    for _ in 0..kills {
        // A new life counts from 0: the client has found it.
        until("requests are carried out", || node.status()["writes_done"].as_u64() >= Some(100));
        node.kill();
        node.start();
    }
    until("requests are carried out", || node.status()["writes_done"].as_u64() >= Some(100));
    let found = ended(client);
    assert_eq!((&found["corrupt"], &found["errors"], &found["interrupted"]), (&0.into(), &0.into(), &true.into()));
    assert!(found["reconnects"].as_u64() >= Some(kills), "{found}");
    assert!(found["verified"].as_u64() > Some(0) && found["writes"].as_u64() > Some(100), "{found}");
    // And what is there is whole, for another client, too.
    let again = node.json(&["bench", &node.volume(), "--rw", "randrw", "--verify", "--time", "1"]);
    assert_eq!((&again["corrupt"], &again["errors"], &again["reconnects"]), (&0.into(), &0.into(), &0.into()));
    assert!(again["cpu_us_per_io"]["node"].as_f64() > Some(0.0), "{again}");
    assert!(again["p99_us"].as_f64() >= again["p50_us"].as_f64(), "{again}");
}

#[test]
fn no_byte_is_wrong_over_shm_when_the_node_is_killed() {
    goes_on("shm", &[], 3);
}

#[test]
fn no_byte_is_wrong_over_tcp_when_the_node_is_killed_and_writes_go_back() {
    goes_on("tcp", &["--writes", "back"], 3);
}

#[test]
fn a_node_says_how_it_does_serves_what_comes_later_and_ends_cleanly() {
    let mut node = Node::with("shm", "4M", &["a", "b"], "raid1");
    let later = node.path("later");
    let made = node.json(&["create", "later", "--size", "1M", "--on", &later, "--home", &node.home()]);
    assert_eq!((&made["volume"], &made["layout"]), (&"later".into(), &"concat".into()));
    let names = |node: &Node| -> Vec<String> {
        let listed = node.json(&["list", &node.address]);
        listed["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|volume| volume["volume"].as_str().unwrap().to_owned())
            .collect()
    };
    until("the new volume is served", || names(&node) == ["later", "pg"]);
    let client = node.bench(&["--rw", "randwrite"]);
    until("requests are carried out", || node.status()["writes_done"].as_u64() > Some(10));
    let status = node.status();
    assert_eq!(
        (&status["state"], &status["layout"], &status["writes"]),
        (&"ok".into(), &"raid1".into(), &"through".into())
    );
    assert_eq!(status["members"].as_array().unwrap().len(), 2);
    let session = &status["sessions"][0];
    assert_eq!((&session["role"], &session["pid"]), (&"writer".into(), &client.id().into()));
    until("a request is under way", || node.status()["sessions"][0]["waiting_since"].is_string());
    let text = node.ok(&["status", &node.volume()]);
    assert!(text.contains("pg is ok") && text.contains(&format!("process {}", client.id())), "{text}");
    let text = node.ok(&["list", &node.address]);
    assert!(text.contains("raid1") && text.contains("later"), "{text}");
    let found = ended(client);
    assert_eq!((&found["errors"], &found["corrupt"]), (&0.into(), &Json::Null));
    // The client has said goodbye: nobody has to wait for its place.
    assert_eq!(node.status()["sessions"], Json::Array(Vec::new()));
    let served = node.fails(&["delete", "pg", "--home", &node.home()]);
    assert!(served.contains("another node serves"), "{served}");
    node.end();
    let deleted = node.json(&["delete", "pg", "--home", &node.home()]);
    assert_eq!(deleted["deleted"].as_array().unwrap().len(), 2);
    assert!(!Path::new(&node.path("a")).exists() && Path::new(&later).exists());
}

#[test]
fn a_second_writer_is_refused_and_one_that_takes_over_fences_the_first_off() {
    let node = Node::with("shm", "4M", &["a"], "concat");
    let first = node.bench(&["--rw", "randwrite", "--verify"]);
    until("the first writes", || node.status()["writes_done"].as_u64() > Some(10));
    let volume = node.volume();
    let second = ["bench", &volume, "--rw", "randwrite", "--time", "1", "--json"];
    let refused = node.fails(&second);
    assert!(refused.contains("another client writes the volume") && refused.contains("--take-over"), "{refused}");
    // Those who read are no writers.
    let reads = node.json(&["bench", &volume, "--rw", "randread", "--time", "1", "--verify"]);
    assert_eq!((&reads["corrupt"], &reads["writes"]), (&0.into(), &0.into()));
    let took = parsed(&node.ok(&[&second[..], &["--take-over", "--verify"]].concat()));
    assert_eq!((&took["corrupt"], &took["errors"]), (&0.into(), &0.into()));
    let fenced = one_line(&first.wait_with_output().unwrap());
    assert!(fenced.contains("another writer has taken the volume over"), "{fenced}");
}

/// The prices choose unless it is said which way the bytes of writes go, and how it learns of what has ended.
#[test]
fn which_way_bytes_go_and_how_completions_come_can_be_fixed() {
    let [near, far] = ["shm", "tcp"].map(|transport| Node::with(transport, "4M", &["a"], "concat"));
    let writes = |node: &Node, options: &[&str]| {
        let volume = node.volume();
        let bench = ["bench", &volume, "--rw", "randwrite", "--bs", "512", "--time", "1"];
        let found = node.json(&[&bench[..], options].concat());
        assert_eq!(found["errors"], 0);
        let [granted, writes, deregistrations] =
            ["granted", "writes", "deregistrations"].map(|name| found[name].as_u64().unwrap());
        assert!(writes > 0);
        (granted, writes, deregistrations)
    };
    for node in [&near, &far] {
        for fixed in ["once", "each", "regions"] {
            let (granted, writes, deregistrations) = writes(node, &["--data", fixed, "--completions", "poll"]);
            assert_eq!(granted, writes, "{fixed}: short ones, too");
            // All lie in one segment, which the last region has, too.
            let expected = match fixed {
                "once" => 1..=1,
                "each" => writes..=writes,
                _ => writes / 1000..=writes / 1000 + 1,
            };
            assert!(expected.contains(&deregistrations), "{fixed}: {deregistrations} for {writes} writes");
        }
        assert_eq!(writes(node, &["--data", "copied", "--completions", "interrupt"]).0, 0);
    }
    assert_eq!(writes(&far, &["--data", "auto", "--completions", "auto"]).0, 0, "there a processor sends what is read");
}

/// The shorter of what node and client take holds, and a longer request goes as several.
#[test]
fn a_request_is_as_long_as_node_and_client_allow() {
    let parts = |transport: &str, node_takes: &str, client_takes: &str| {
        let mut node = Node::with(transport, "8M", &["a"], "concat");
        node.end();
        node.options = ["--max-request", node_takes].map(str::to_owned).into();
        node.start();
        let volume = node.volume();
        let bench = ["bench", &volume, "--bs", "1M", "--depth", "2", "--time", "1", "--max-request", client_takes];
        let asked = [["--rw", "randread"], ["--rw", "randwrite"]].map(|rw| node.json(&[&bench[..], &rw].concat()));
        assert_eq!(asked.each_ref().map(|found| found["errors"].as_u64()), [Some(0); 2]);
        let status = node.status();
        let had = ["reads", "writes_done"].map(|name| status[name].as_u64().unwrap());
        let asked = [&asked[0]["reads"], &asked[1]["writes"]].map(|count| count.as_u64().unwrap());
        assert!(asked.iter().all(|asked| *asked > 0) && (0..2).all(|i| had[i].is_multiple_of(asked[i])), "{had:?}");
        let takes = node.json(&["status", &node.address])["node"]["max_request"].as_u64().unwrap();
        ([had[0] / asked[0], had[1] / asked[1]], takes)
    };
    assert_eq!(parts("shm", "1M", "1M"), ([1, 1], 1 << 20));
    assert_eq!(parts("tcp", "1M", "2M"), ([1, 1], 1 << 20));
    assert_eq!(parts("shm", "128K", "1M"), ([8, 8], 128 << 10), "the node cuts it");
    assert_eq!(parts("tcp", "2M", "256K"), ([4, 4], 2 << 20), "the client does");
    // As many as a node has memory for: who is slower than its cache is not sent away for that.
    let mut node = Node::with("tcp", "64M", &["a"], "concat");
    node.end();
    node.options = ["--max-request", "16M", "--cache", "64M"].map(str::to_owned).into();
    node.start();
    let volume = node.volume();
    for (bs, depth) in [("16M", "8"), ("2M", "64")] {
        let bench = ["bench", &volume, "--bs", bs, "--depth", depth, "--time", "1", "--max-request", "16M"];
        let found = node.json(&bench);
        assert_eq!((found["errors"].as_u64(), found["reconnects"].as_u64()), (Some(0), Some(0)), "{found}");
    }
    let node = Node::new("shm");
    for absurd in ["63K", "17M", "100001"] {
        let refused = node.output(&["serve", "--listen", &node.address, "--max-request", absurd]);
        assert!(!refused.status.success() && told(&refused).contains("from 64K to 16M at most"), "{}", told(&refused));
    }
}

/// Each of its requests once, with its length, and none that there cannot be.
#[test]
fn a_trace_is_carried_out_natively() {
    let node = Node::with("shm", "4M", &["a", "b"], "raid0");
    let lengths = [512, 8 << 10, 640 << 10, 4096];
    let (mut lines, mut moved) = (String::new(), [0, 0]);
    for number in 0..1000 {
        let (writes, bytes) = (number % 3 == 0, lengths[number % 4]);
        moved[usize::from(writes)] += bytes as u64;
        let what = if writes { 'w' } else { 'r' };
        lines += &format!("{what},{},{bytes}\n", number * 512);
    }
    let (trace, volume) = (node.path("pg.trace"), node.volume());
    std::fs::write(&trace, &lines).unwrap();
    let bench = ["bench", &volume, "--trace", &trace, "--depth", "5"];
    let found = node.json(&bench);
    assert_eq!((&found["reads"], &found["writes"], &found["errors"]), (&666.into(), &334.into(), &0.into()));
    assert!(found["p99_us"].as_f64() >= found["p50_us"].as_f64() && found["iops"].as_f64() > Some(0.0), "{found}");
    assert!(found["cpu_us_per_io"]["node"].is_f64() && found["cpu_us_per_io"]["client"].is_f64(), "{found}");
    let status = node.status();
    assert_eq!([&status["read_bytes"], &status["written_bytes"]].map(Json::as_u64), moved.map(Some));
    assert!(node.ok(&bench).contains("334 writes of "), "for people, too");
    for (line, said) in [("r,4194304,512", "line 1001"), ("w,1,512", "no units of 512 bytes"), ("x,0,512", "line 1001")]
    {
        std::fs::write(&trace, format!("{lines}{line}\n")).unwrap();
        let refused = node.fails(&bench);
        assert!(refused.contains(said), "{refused}");
    }
    assert_eq!(node.status()["reads"].as_u64(), status["reads"].as_u64().map(|reads| 2 * reads), "nothing was begun");
}

#[test]
fn a_mirror_is_served_without_a_member_and_repaired() {
    let mut node = Node::with("shm", "4M", &["a", "b"], "raid1");
    let written = |node: &Node| {
        let found = node.json(&["bench", &node.volume(), "--rw", "randrw", "--verify", "--time", "1"]);
        assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    };
    let home = node.home();
    written(&node);
    node.kill();
    std::fs::rename(node.path("a"), node.path("away")).unwrap();
    node.start();
    assert!(node.log().contains("pg is degraded"), "{}", node.log());
    let status = node.status();
    assert_eq!((&status["state"], &status["members"][0]["stale"]), (&"degraded".into(), &true.into()), "{status}");
    assert!(status["reason"].as_str().unwrap().contains("overside volume repair"), "{status}");
    written(&node);
    node.kill();
    // What it has is old: it gets the rest while the volume is served, and is read then.
    std::fs::rename(node.path("away"), node.path("a")).unwrap();
    node.start();
    written(&node);
    until("the member is up to date", || node.status()["state"] == "ok");
    let refused = node.fails(&["repair", "pg", "--home", &home]);
    assert!(refused.contains("another node serves"), "{refused}");
    node.kill();
    std::fs::remove_file(node.path("a")).unwrap();
    assert_eq!(node.json(&["repair", "pg", "--home", &home])["repaired"], Json::from(vec![node.path("a")]));
    assert!(node.ok(&["repair", "pg", "--home", &home]).contains("all members of pg are current"));
    assert_eq!(std::fs::read(node.path("a")).unwrap()[1 << 20..], std::fs::read(node.path("b")).unwrap()[1 << 20..]);
    std::fs::remove_file(node.path("b")).unwrap();
    node.start();
    let found = node.json(&["bench", &node.volume(), "--verify", "--time", "1"]);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
}

#[test]
fn who_has_no_key_of_a_volume_is_answered_as_if_there_were_none() {
    let mut node = Node::new("shm");
    let (member, home) = (node.path("a"), node.home());
    node.ok(&["create", "pg", "--size", "4M", "--on", &member, "--home", &home]);
    let [writes, reads, other] =
        [("rw", KEY), ("ro", ANOTHER), ("other", THIRD)].map(|(name, key)| node.key(name, key));
    let access = node.path("access");
    std::fs::write(&access, "# relative to this file\npg rw rw\npg ro ro\nelse rw other\n").unwrap();
    node.options = vec!["--access".into(), access.clone()];
    node.start();
    let (volume, absent) = (node.volume(), format!("{}/absent", node.address));
    let refused = |volume: &str, key: &[&str]| {
        let told = node.fails(&[&["bench", volume, "--rw", "randread", "--time", "1"], key].concat());
        assert!(told.contains("no such volume, or the key is another one"), "{told}");
        told.replace("absent", "pg")
    };
    let wrong = refused(&volume, &["--access-key", &other]);
    assert_eq!(wrong, refused(&absent, &["--access-key", &writes]), "nothing says whether there is such a volume");
    let without = node.fails(&["bench", &volume, "--rw", "randread", "--time", "1"]);
    assert!(without.contains("--access-key"), "{without}");
    assert_eq!(without, node.fails(&["bench", &absent, "--rw", "randread", "--time", "1"]).replace("absent", "pg"));
    // One who may only read reads, and neither writes nor mends.
    let read = node.json(&["bench", &volume, "--rw", "randread", "--time", "1", "--access-key", &reads]);
    assert_eq!(read["errors"], 0, "{read}");
    let written = node.fails(&["bench", &volume, "--rw", "randwrite", "--time", "1", "--access-key", &reads]);
    assert!(written.contains("allows to read alone"), "{written}");
    assert_eq!(node.json(&["check", &volume, "--access-key", &reads])["left"], 0);
    // A client that comes again proves it again.
    let client = node.bench(&["--rw", "randrw", "--verify", "--access-key", &writes]);
    until("requests are carried out", || node.status()["writes_done"].as_u64() >= Some(100));
    node.kill();
    node.start();
    until("requests are carried out", || node.status()["writes_done"].as_u64() >= Some(100));
    let found = ended(client);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    node.end();
    std::fs::write(&access, "pg rw\n").unwrap();
    let bad = node.fails(&["serve", "--listen", &node.address, "--home", &home, "--access", &access]);
    assert!(bad.contains("line 1"), "{bad}");
}

#[test]
fn clients_end_in_one_line_when_their_node_takes_another_key() {
    let mut node = Node::new("shm");
    let (member, home) = (node.path("a"), node.home());
    node.ok(&["create", "pg", "--size", "4M", "--on", &member, "--home", &home]);
    let own = node.key("own", KEY);
    node.key("other", ANOTHER);
    let access = node.path("access");
    std::fs::write(&access, "pg rw own\n").unwrap();
    node.options = vec!["--access".into(), access.clone()];
    node.start();
    let (volume, socket) = (node.volume(), format!("unix:{}", node.path("sock")));
    let bench = node.bench(&["--rw", "randrw", "--verify", "--access-key", &own]);
    until("requests are carried out", || node.status()["writes_done"].as_u64() >= Some(100));
    let mut attach = overside(&["volume", "attach", &volume, "--nbd", &socket, "--read-only", "--access-key", &own])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut attached = String::new();
    BufReader::new(attach.stdout.as_mut().unwrap()).read_line(&mut attached).unwrap();
    assert!(attached.contains("is attached"), "{attached}");
    node.kill();
    std::fs::write(&access, "pg rw other\n").unwrap();
    node.start();
    for client in [bench, attach] {
        let refused = one_line(&client.wait_with_output().unwrap());
        assert!(refused.contains("the node refuses this client") && refused.contains("attach"), "{refused}");
    }
    assert!(!Path::new(&node.path("sock")).exists());
}

#[test]
fn bytes_that_change_on_a_disk_are_named_mended_and_never_read() {
    let mut node = Node::with("shm", "4M", &["a", "b"], "raid1");
    let home = node.home();
    let alone = node.path("alone");
    node.ok(&["create", "alone", "--size", "1M", "--on", &alone, "--home", &home]);
    let written = node.json(&["bench", &node.volume(), "--rw", "randwrite", "--verify", "--time", "1"]);
    assert_eq!((&written["corrupt"], &written["errors"]), (&0.into(), &0.into()), "{written}");
    assert!(node.ok(&["status", &node.volume()]).contains("crc32c"));
    let change = |node: &mut Node, members: &[&str], at: u64| {
        node.end();
        for member in members {
            let file = File::options().read(true).write(true).open(node.path(member)).unwrap();
            // Behind a superblock and the table of sums.
            let (at, mut byte) = ((2 << 20) + at, [0]);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        }
        node.start();
    };
    let (volume, a, b) = (node.volume(), node.path("a"), node.path("b"));
    assert_eq!(node.json(&["check", &volume])["faults"], Json::Array(Vec::new()));
    change(&mut node, &["a"], 5000);
    change(&mut node, &["b"], (1 << 20) + 7);
    let output = node.output(&["check", &volume]);
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{lines}");
    assert!(
        lines.contains(&format!("at 4'096 are wrong on {a}")) || lines.contains(&format!("wrong on {a}")),
        "{lines}"
    );
    assert!(lines.contains(&format!("wrong on {b}")) && lines.lines().count() == 3, "{lines}");
    let read = node.json(&["bench", &volume, "--verify", "--time", "1"]);
    assert_eq!((&read["corrupt"], &read["errors"]), (&0.into(), &0.into()), "{read}");
    let mended = node.ok(&["check", "--repair", &volume]);
    assert!(mended.contains("0 faults left"), "{mended}");
    assert_eq!(node.json(&["check", &volume])["left"], 0);
    // What both have wrong, and what lies on one member alone, nothing mends.
    change(&mut node, &["a", "b"], 5000);
    let output = node.output(&["check", "--repair", &volume, "--json"]);
    let found = parsed(&String::from_utf8(output.stdout).unwrap());
    assert_eq!((output.status.code(), &found["left"]), (Some(1), &1.into()), "{found}");
    assert_eq!(found["faults"][0]["members"], Json::from(vec![a, b]), "{found}");
    change(&mut node, &["alone"], 9);
    let alone = format!("{}/alone", node.address);
    assert_eq!(node.output(&["check", &alone]).status.code(), Some(1));
    let refused = node.output(&["bench", &alone, "--rw", "randread", "--time", "1"]);
    assert_eq!(refused.status.code(), Some(1), "a READ of it fails");
}

/// Its members forget what no flush covered, whenever their node is started.
#[test]
fn raid_5_of_members_that_forget_keeps_what_was_acknowledged_and_may_lose_one() {
    let mut node = Node::new("shm");
    let [a, b, c] = ["a", "b", "c"].map(|name| format!("volatile:{}:{}", name.len(), node.path(name)));
    let (members, home) = (format!("{a},{b},{c}"), node.home());
    node.ok(&["create", "pg", "--size", "4M", "--on", &members, "--layout", "raid5", "--home", &home]);
    node.start();
    let volume = node.volume();
    let client = node.bench(&["--rw", "randrw", "--verify"]);
    for _ in 0..2 {
        until("requests are carried out", || node.status()["written_bytes"].as_u64() > Some(0));
        node.kill();
        node.start();
    }
    let found = ended(client);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    // Whoever ends it waits until nothing differs.
    node.end();
    std::fs::remove_file(node.path("b")).unwrap();
    assert_eq!(node.json(&["repair", "pg", "--home", &home])["repaired"], Json::from(vec![node.path("b")]));
    node.start();
    let found = node.json(&["bench", &volume, "--rw", "randrw", "--verify", "--time", "1"]);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
}

#[test]
fn who_gives_up_says_so() {
    let mut node = Node::with("shm", "4M", &["a"], "concat");
    let client = node.bench(&["--rw", "randrw", "--give-up", "1"]);
    until("requests are carried out", || node.status()["writes_done"].as_u64() > Some(10));
    node.kill();
    let gave_up = one_line(&client.wait_with_output().unwrap());
    assert!(gave_up.contains("did not answer in time"), "{gave_up}");
    let nobody = node.fails(&["status", &node.volume()]);
    assert!(nobody.contains("nobody listens"), "{nobody}");
}

#[test]
fn another_key_and_another_volume_are_refused_in_one_line() {
    let mut node = Node::new("tcp");
    let (own, other) = (node.key("key", KEY), node.key("other", ANOTHER));
    node.ok(&["create", "pg", "--size", "1M", "--on", "memory", "--home", &node.home()]);
    node.options = vec!["--key-file".to_owned(), own.clone()];
    node.start();
    let (volume, unknown) = (node.volume(), format!("{}/nope", node.address));
    let bench = |volume: &str, key: &str| ["bench", volume, "--time", "1", "--key-file", key].map(str::to_owned);
    let fails = |arguments: &[String]| node.fails(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(fails(&bench(&volume, &other)).contains("key"));
    assert!(node.fails(&["list", &node.address, "--key-file", &other]).contains("key"));
    let told = fails(&bench(&unknown, &own));
    assert!(told.contains("no such volume"), "{told}");
    assert!(node.fails(&["status", &unknown, "--key-file", &own]).contains("no volume nope"));
    assert!(node.fails(&["bench", &node.address]).contains("ADDR/NAME"));
    assert!(node.json(&["bench", &volume, "--time", "1", "--key-file", &own])["reads"].as_u64() > Some(0));
}

/// Processor time, not wall time: a busy machine does not change what a node does.
#[test]
fn a_node_with_a_hundred_sessions_rests_soon_after_full_load() {
    for transport in ["shm", "tcp"] {
        let node = Node::with(transport, "4M", &["a"], "concat");
        let reads =
            LinkOptions { role: Role::Reader, request_bytes_max: 8 << 10, receives: 4, ..LinkOptions::default() };
        let attach = || overside::at(&node.address).volume("pg", reads.clone()).unwrap();
        let sessions: Vec<_> = (0..100).map(|_| attach()).collect();
        node.ok(&["bench", &node.volume(), "--rw", "randrw", "--depth", "16", "--time", "1"]);
        std::thread::sleep(Duration::from_secs(1));
        let (before, since) = (node.processor_time(), Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        let used = node.processor_time() - before;
        let share = used.as_secs_f64() / since.elapsed().as_secs_f64();
        assert!(share < 0.01, "{transport}: {used:?}, {share} of a processor");
        assert_eq!(node.status()["sessions"].as_array().map(Vec::len), Some(sessions.len()), "{}", node.status());
    }
}

/// What is asserted of its times is that they are not shorter: a busy machine makes them longer alone.
#[test]
fn a_member_that_turns_takes_its_time_and_is_found_again() {
    let mut node = Node::new("shm");
    let (home, disk) = (node.home(), format!("spindle:15k:{}", node.path("disk")));
    node.ok(&["create", "pg", "--size", "64M", "--on", &disk, "--home", &home]);
    node.start();
    for _ in 0..2 {
        assert_eq!(node.status()["members"][0]["place"], disk.as_str(), "{}", node.status());
        let bench = ["bench", &node.volume(), "--rw", "randrw", "--verify", "--depth", "1", "--time", "1"];
        let found = node.json(&bench);
        assert_eq!(found["corrupt"], 0, "{found}");
        assert!(found["p50_us"].as_f64().is_some_and(|us| us > 1500.0), "no arm moves so fast: {found}");
        node.end();
        node.start();
    }
    let told = node.fails(&["replace", &node.volume(), &disk, &format!("spindle:10k:{}/elsewhere", node.path("home"))]);
    assert!(told.contains("no member in"), "the node makes no file anywhere: {told}");
}

#[test]
fn half_a_volume_is_none_and_a_member_that_shrank_is_named() {
    let mut node = Node::new("shm");
    let home = node.home();
    let (sound, nowhere) = (node.path("sound"), node.path("nowhere/file"));
    let create = |name: &str, on: &str, layout: &str| {
        ["create", name, "--size", "3M", "--on", on, "--layout", layout, "--home", &home].map(str::to_owned)
    };
    let fails = |arguments: &[String]| node.fails(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let told = fails(&create("pg", &format!("{sound},{nowhere}"), "concat"));
    assert!(told.contains("nowhere/file"), "{told}");
    assert!(!Path::new(&sound).exists(), "nothing stays of half a volume");
    assert!(fails(&create("pg", &sound, "raid5")).contains("at least 3 members"));
    assert!(fails(&create("pg", &sound, "raid1")).contains("at least 2 members"));
    assert!(fails(&create("../pg", &sound, "concat")).contains("no name of a volume"));
    assert!(fails(&create("pg", "spindle:7k:x", "concat")).contains("spindle:15k:PATH"));
    assert!(fails(&create("pg", "spindle:10k:", "concat")).contains("names no file"));
    assert!(!Path::new(&sound).exists());
    let create: Vec<String> = create("pg", &sound, "concat").to_vec();
    node.ok(&create.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(fails(&create).contains("there is a volume pg already"));
    let member = File::options().write(true).open(&sound).unwrap();
    member.set_len(2 << 20).unwrap();
    let shrunk = node.fails(&["serve", "--listen", &node.address, "--home", &home]);
    assert!(shrunk.contains("shorter than it was made"), "{shrunk}");
    // A volume that can be served is, and the other one is told of.
    node.ok(&["create", "other", "--size", "1M", "--on", "memory", "--home", &home]);
    node.start();
    assert!(node.log().contains("pg is not served"), "{}", node.log());
    let status = node.status();
    assert_eq!(status["state"], "failed");
    assert!(status["reason"].as_str().unwrap().contains("shorter"), "{status}");
    let refused = node.fails(&["bench", &node.volume(), "--time", "1"]);
    assert!(refused.contains("refuses the volume"), "{refused}");
    assert_eq!(node.json(&["bench", &format!("{}/other", node.address), "--rw", "randrw", "--time", "1"])["errors"], 0);
}

/// Its members' files are as long, and hold next to nothing.
#[test]
fn a_volume_of_256_tebibytes_keeps_what_is_written_at_its_ends() {
    use overside::memory::{Bytes, Segment};
    use overside::verbs::SystemClock;
    use overside::volume::{Device, Work, complete};
    let members: Vec<String> = (0..64).map(|number| format!("m{number}")).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    let mut node = Node::with("shm", "256T", &members, "raid0");
    let mut volume = overside::at(&node.address).volume("pg", LinkOptions::default()).unwrap();
    let bytes = volume.geometry().bytes;
    assert_eq!(bytes, 256 << 40);
    let places = [0, (2 << 40) - 4096, 2 << 40, bytes / 2, bytes - 4096];
    let buffer = || Segment::private(4096).unwrap().carve(4096).pop().unwrap();
    for (fill, at) in (1..).zip(places) {
        let mut from = buffer();
        from.fill(fill);
        let write = Work::Write { at, from: Bytes::from(from), fua: false };
        assert_eq!(complete(&mut volume, &SystemClock, write, PATIENCE).1, Ok(()), "{at}");
    }
    // What is in the members' files, in the node's next life.
    node.kill();
    node.start();
    for (fill, at) in (1..).zip(places) {
        let read = Work::Read { at, length: 4096, into: buffer() };
        let (work, result) = complete(&mut volume, &SystemClock, read, PATIENCE);
        assert_eq!(result, Ok(()), "{at}");
        assert!(matches!(work, Some(Work::Read { into, .. }) if into.iter().all(|byte| *byte == fill)), "{at}");
    }
}

/// The page's own words, at an address that no other test has.
#[test]
fn what_the_page_says_to_try_works_word_for_word() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/volumes.md")).unwrap();
    let (_, tried) = page.split_once("## Try it").unwrap();
    let script = tried.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let node = Node::new("shm");
    let script = script.replace("shm:vault", &node.address);
    assert_eq!(script.matches(&node.address).count(), 5, "{script}");
    let built = Path::new(env!("CARGO_BIN_EXE_overside")).parent().unwrap();
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-e", "-c", &script])
        .current_dir(node.folder.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (said, told) = (String::from_utf8(output.stdout.clone()).unwrap(), told(&output));
    assert!(output.status.success(), "{said}{told}");
    assert!(
        said.contains("of which 0 are corrupt") && said.contains("0 requests failed; connected again"),
        "{said}{told}"
    );
    assert!(said.contains("pg is ok") && said.contains("pg is deleted, and 2 files with it"), "{said}{told}");
}

#[test]
fn a_trace_says_what_each_policy_makes_of_it() {
    let node = Node::new("shm");
    let trace = node.path("trace");
    let loops: String = (0..400).map(|at| format!("r,{},8192\n", at % 20 * 8192)).collect();
    std::fs::write(&trace, format!("# a loop\n{loops}w,0,512\n")).unwrap();
    let found = node.json(&["trace", "replay", &trace, "--cache", "50%"]);
    assert_eq!((&found["accesses"], &found["cache_blocks"]), (&401.into(), &10.into()), "{found}");
    let ratio = |name: &str| found["hit_ratio"][name].as_f64().unwrap();
    // The block that a loop needs next is the one that has not been used for longest.
    assert_eq!(ratio("lru"), 0.0);
    assert!(ratio("belady") > 0.4 && ratio("lirs") <= ratio("belady"), "{found}");
    assert_eq!(found["hit_ratio"].as_object().unwrap().len(), 8);
    let all = node.json(&["trace", "replay", &trace, "--policy", "mq", "--cache", "1M"]);
    let hits = all["hit_ratio"]["mq"].as_f64().unwrap() * 401.0;
    assert!((hits - 381.0).abs() < 0.01, "{all}");
    assert!(node.ok(&["trace", "replay", &trace]).contains("belady"));
    assert!(node.fails(&["trace", "replay", &trace, "--cache", "4K"]).contains("no room"));
    std::fs::write(&trace, "r,0,8192\nr,1\n").unwrap();
    assert!(node.fails(&["trace", "replay", &trace]).contains("line 2"));
}
