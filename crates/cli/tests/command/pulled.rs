//! The cable between a volume's client and its node is pulled: two network namespaces play the hosts. Needs root and the `ip`
//! command; where there is neither, it says so and passes.

use super::server::overside;
use super::volumes::{KEY, Node, ended, until};
use serde_json::Value as Json;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Two namespaces with a cable between them.
struct Hosts([String; 2]);

impl Hosts {
    /// None where they cannot be made.
    fn new() -> Option<Hosts> {
        let hosts = Hosts(["n", "c"].map(|host| format!("overside-volume-{host}-{}", std::process::id())));
        let [node, client] = &hosts.0;
        let made: Result<(), String> = [
            &["netns", "add", node][..],
            &["netns", "add", client],
            &["-n", node, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", client],
            &["-n", node, "address", "add", &format!("{ADDRESS}/24"), "dev", "cable"],
            &["-n", client, "address", "add", "10.88.1.2/24", "dev", "cable"],
            // The node is asked how it does on its own host.
            &["-n", node, "link", "set", "lo", "up"],
            &["-n", node, "link", "set", "cable", "up"],
            &["-n", client, "link", "set", "cable", "up"],
        ]
        .into_iter()
        .try_for_each(ip);
        if let Err(why) = made {
            println!("skipped: network namespaces cannot be made here ({why}); run as root with iproute2 installed");
            return None;
        }
        Some(hosts)
    }

    /// The client's end of the cable.
    fn cable(&self, plugged: bool) {
        ip(&["-n", &self.0[1], "link", "set", "cable", if plugged { "up" } else { "down" }]).unwrap();
    }

    /// The program on one of them; it becomes the program itself.
    fn on(&self, host: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host]]).arg(overside(&[]).get_program()).args(arguments);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| _ = ip(&["netns", "delete", name]));
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let done = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()) }
}

/// Its writes wait, and every byte that it reads is right. It is pulled twice, or as often as `OVERSIDE_CABLE_PULLS` says, for 1
/// to 30 s.
#[test]
fn io_goes_on_when_the_cable_is_plugged_in_again() {
    let Some(hosts) = Hosts::new() else { return };
    let pulls = std::env::var("OVERSIDE_CABLE_PULLS").ok().and_then(|pulls| pulls.parse::<u64>().ok());
    let seconds: Vec<u64> = match pulls {
        Some(pulls) => (0..pulls).map(|pull| 1 + pull * 29 / (pulls - 1).max(1)).collect(),
        None => vec![1, 4],
    };
    let mut node = Node::new("tcp");
    let (home, members, key) =
        (node.home(), ["a", "b"].map(|member| node.path(member)).join(","), node.key("key", KEY));
    node.ok(&["create", "pg", "--size", "4M", "--on", &members, "--layout", "raid1", "--home", &home]);
    node.address = format!("tcp:{ADDRESS}:4110");
    node.start_by(hosts.on(0, &["volume", "serve", "--listen", &node.address, "--home", &home, "--key-file", &key]));
    let volume = node.volume();
    let status = || -> Json {
        let said = hosts.on(0, &["volume", "status", &volume, "--key-file", &key, "--json"]).output().unwrap();
        serde_json::from_slice::<Json>(&said.stdout).unwrap()["volumes"][0].clone()
    };
    let writes = || status()["writes_done"].as_u64().unwrap();
    let arguments =
        ["volume", "bench", &volume, "--rw", "randrw", "--verify", "--time", "3600", "--json", "--key-file", &key];
    let client = hosts.on(1, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("requests are carried out", || writes() > 100);
    for seconds in seconds {
        let pulled = Instant::now();
        hosts.cable(false);
        // What has come over it ends.
        std::thread::sleep(Duration::from_millis(500));
        let before = writes();
        std::thread::sleep(Duration::from_secs(seconds).saturating_sub(pulled.elapsed()));
        assert_eq!(writes(), before, "nothing comes over a cable that is pulled");
        hosts.cable(true);
        let plugged = Instant::now();
        until("I/O goes on", || writes() > before);
        println!("pulled for {seconds} s: I/O goes on {:?} after it is back", plugged.elapsed());
        until("I/O goes on", || writes() > before + 100);
    }
    let found = ended(client);
    assert_eq!((&found["corrupt"], &found["errors"]), (&0.into(), &0.into()), "{found}");
    println!("connected again {} times, {} reads verified", found["reconnects"], found["verified"]);
    let checked = hosts.on(0, &["volume", "check", &volume, "--key-file", &key, "--json"]).output().unwrap();
    let checked: Json = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!((&checked["faults"], &checked["left"]), (&Json::Array(Vec::new()), &0.into()), "{checked}");
    drop(node);
}

const ADDRESS: &str = "10.88.1.1";
