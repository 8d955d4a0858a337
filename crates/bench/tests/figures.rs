//! Figures from end to end, with their processes. No harness: this executable is also the figures' receivers, as the command is.

use overside_bench::{
    SUBCOMMAND, child_main,
    figures::{self, Figures, Options},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|first| first.to_str()) {
        Some(SUBCOMMAND) => {
            if let Err(error) = child_main(&arguments[1..]) {
                eprintln!("{error:#}");
                std::process::exit(1);
            }
        }
        Some(RECEIVE) => {
            let address = arguments.get(1).and_then(|address| address.to_str()).expect("an address");
            let told = |line: &str| {
                println!("{line}");
                Ok(())
            };
            figures::receive(address, &overside::Network::default(), told).expect("it listens");
        }
        Some(RUN) => {
            let mut told = arguments[1..].iter().filter_map(|argument| argument.to_str());
            let name = told.next().unwrap_or("transmit");
            drop(figures::run(&Options { to: told.next().map(str::to_owned), ..options(name) }).expect("it works"));
        }
        // What a harness would be asked, so that `cargo test NAME` and `--list` do no harm.
        Some(other) if !other.starts_with("--") || other == "--list" => {}
        _ => {
            a_figure_has_its_points_and_its_page();
            what_there_is_not_is_said();
            messages_are_answered_on_another_host();
            nothing_outlives_a_figure_that_is_killed();
            servers_and_their_folder_go_when_nobody_measures_any_more();
            tables_and_their_folder_go_with_a_figure_that_is_killed();
            println!("test result: ok. 6 passed");
        }
    }
}

fn a_figure_has_its_points_and_its_page() {
    let figures = run("delta");
    let json = serde_json::to_value(&figures.figures[0]).expect("figures are plain data");
    assert_eq!((json["figure"].as_str(), json["provider"].as_str()), (Some("delta"), Some("shm")));
    let points = json["points"].as_array().expect("a list");
    assert_eq!(points.len(), 6 * 2 * 4 * 2);
    for point in points {
        for figure in ["bytes_per_s", "sender_cpu_ns_per_byte", "limit_bytes_per_s"] {
            assert!(point[figure].as_f64().is_some_and(|value| value > 0.0), "{figure} of {point}");
        }
        assert!(point["series"].is_string() && point["x"].is_u64(), "{point}");
    }
    let claims = json["claims"].as_array().expect("a list");
    assert!(claims.len() >= 5);
    for claim in claims {
        let parts = claim["parts"].as_array().expect("a list");
        assert!(!parts.is_empty() && parts.iter().all(|part| part["measured"]["rounds"] == 5), "{claim}");
    }
    let page = fs::read_to_string(report("delta")).expect("the report is written");
    assert!(page.contains("</html>") && page.contains("the paper&#39;s") && page.contains("TC-C32"));
    for loader in ["<script", "<link", "@import", "url(", "src="] {
        assert!(!page.contains(loader), "{loader}");
    }
    for tag in ["figure", "svg", "table", "details", "p", "tr", "td"] {
        let open = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    // On a telephone a table is moved by itself, not the page.
    let within = |table: &str| page.matches(&format!("<div class=\"scroll\"><table{table}")).count();
    assert_eq!(page.matches("<table").count(), within(""));
    assert!(within(" class=\"claims bars\"") == 1 && within(" class=\"claims\"") == 1, "bars and claims");
    let _ = fs::remove_file(report("delta"));
    assert_eq!(children_of(std::process::id()), [0; 0]);
}

fn what_there_is_not_is_said() {
    let error = figures::run(&options("weather")).expect_err("there is no such figure");
    assert!(format!("{error:#}").contains("choose one of verbs, transmit"), "{error:#}");
    let error = figures::run(&Options { over: "pigeon".into(), ..options("delta") }).expect_err("no such provider");
    assert!(format!("{error:#}").contains("there is no transport"), "{error:#}");
    let nowhere = Options { report: Some("/nonexistent/page.html".into()), ..options("delta") };
    let error = figures::run(&nowhere).expect_err("the report cannot be written");
    assert!(format!("{error:#}").contains("choose another --report"), "{error:#}");
    let error = figures::run(&Options { only: Some("TCP".into()), ..options("delta") }).expect_err("no such choice");
    assert!(format!("{error:#}").contains("--only"), "{error:#}");
    let error = figures::run(&Options { only: Some("SEMD".into()), ..options("messages") }).expect_err("no such side");
    assert!(format!("{error:#}").contains("shm: SEND"), "{error:#}");
    let error = figures::run(&Options { seed: 1, ..options("delta") }).expect_err("no such choice");
    assert!(format!("{error:#}").contains("--seed"), "{error:#}");
    let error =
        figures::run(&Options { results: Some("results".into()), ..options("delta") }).expect_err("a quick run");
    assert!(format!("{error:#}").contains("--results keeps full runs"), "{error:#}");
    let error = figures::run(&Options { dir: Some("/".into()), ..options("delta") }).expect_err("it has no data");
    assert!(format!("{error:#}").contains("--dir"), "{error:#}");
    let error = figures::run(&Options { trace: Some("/".into()), ..options("delta") }).expect_err("it replays nothing");
    assert!(format!("{error:#}").contains("--trace"), "{error:#}");
    let to = Some("tcp:127.0.0.1:1".to_owned());
    let error = figures::run(&Options { to: to.clone(), ..options("durability") }).expect_err("it has no receiver");
    assert!(format!("{error:#}").contains("--to is for verbs, transmit"), "{error:#}");
    let error = figures::run(&Options { to, ..options("messages") }).expect_err("nobody receives");
    assert!(format!("{error:#}").contains("nobody receives at tcp:127.0.0.1:1"), "{error:#}");
    let error = figures::run(&options("sockets")).expect_err("without the library there is no such figure");
    assert!(format!("{error:#}").contains("sockets library is not beside"), "{error:#}");
}

/// The other host is this one by its loopback: between two, `.ci/between` does the same.
fn messages_are_answered_on_another_host() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let address = format!("tcp:127.0.0.1:{port}");
    let executable = std::env::current_exe().expect("this executable has a path");
    let mut there =
        Command::new(executable).args([RECEIVE, &address]).stdout(Stdio::piped()).spawn().expect("it starts");
    let (mut said, mut out) = (String::new(), BufReader::new(there.stdout.take().expect("a pipe")));
    out.read_line(&mut said).expect("it says something");
    assert_eq!(said, format!("receiving for figures at {address}\n"));
    let only = Some("SEND inline".to_owned());
    let figures = figures::run(&Options { to: Some(address), only, ..options("messages") }).expect("it is answered");
    let json = serde_json::to_value(&figures.figures[0]).expect("figures are plain data");
    assert_eq!(json["provider"], "tcp");
    let measured = json["measured"].as_array().expect("a list");
    let series: Vec<&str> = measured.iter().filter_map(|one| one["series"].as_str()).collect();
    assert_eq!(series, ["between hosts, TCP", "between hosts, tcp: SEND inline"]);
    for one in measured {
        let rounds = one["rounds"]["value"].as_array().expect("a list");
        assert!(rounds.len() == 5 && rounds.iter().all(|value| value.as_f64() > Some(0.0)), "{one}");
    }
    assert!(json["bars"].as_array().is_none_or(Vec::is_empty), "bars are of one host: {}", json["bars"]);
    let _ = fs::remove_file(report("messages"));
    // Who answered is gone, though the one that started them goes on.
    let started = Instant::now();
    while !children_of(there.id()).is_empty() {
        assert!(started.elapsed() < LIMIT, "who answers outlives the figure: {:?}", children_of(there.id()));
        thread::sleep(Duration::from_millis(5));
    }
    assert!(there.try_wait().expect("a child can be looked at").is_none(), "it serves one figure alone");
    there.kill().expect("it is a child");
    there.wait().expect("a child can be waited for");
}

/// Receivers also end when their line hangs up. One that is stopped cannot notice that: only the kernel's signal ends it.
fn nothing_outlives_a_figure_that_is_killed() {
    let executable = std::env::current_exe().expect("this executable has a path");
    let mut run = Command::new(&executable).arg(RUN).stdout(Stdio::null()).spawn().expect("it starts");
    let started = Instant::now();
    let children = loop {
        let ready: Vec<u32> = children_of(run.id()).into_iter().filter(|child| has_a_port(*child)).collect();
        if !ready.is_empty() {
            break ready;
        }
        assert!(started.elapsed() < LEARNING, "no receiver within {LEARNING:?}");
        assert!(run.try_wait().expect("a child can be looked at").is_none(), "it ended before anybody saw a receiver");
        thread::sleep(Duration::from_millis(1));
    };
    children.iter().for_each(|child| signal(*child, Signal::STOP));
    signal(run.id(), Signal::KILL);
    run.wait().expect("a child can be waited for");
    let deadline = Instant::now() + LIMIT;
    for child in &children {
        while alive(*child) {
            if Instant::now() >= deadline {
                signal(*child, Signal::KILL);
                panic!("process {child} outlives a figure that was killed");
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    // A receiver that was just being started sees by itself that nobody is there, and the kernel closes sockets a moment after their owner.
    let name = format!("overside-figure-{}-", run.id());
    while fs::read_to_string("/proc/net/unix").unwrap_or_default().contains(&name) {
        assert!(Instant::now() < deadline, "a socket is left");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What Ctrl-C does to a figure with other people's servers: the line to their keeper hangs up.
fn servers_and_their_folder_go_when_nobody_measures_any_more() {
    let folder = std::env::temp_dir().join(format!("overside-figure-test-keeper-{}", std::process::id()));
    let (line, theirs) = UnixStream::pair().expect("a socket pair");
    let name = folder.to_str().expect("a name that is text");
    let parent = std::process::id().to_string();
    let executable = std::env::current_exe().expect("this executable has a path");
    let mut keeper = Command::new(executable)
        .args([SUBCOMMAND, "figure-sockets", &parent, "keep", name])
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .expect("it starts");
    let mut line = BufReader::new(line);
    let mut answer = String::new();
    line.read_line(&mut answer).expect("it answers");
    assert!(answer.contains("Started") && folder.is_dir(), "{answer}");
    let order = serde_json::json!({"program": "sleep", "arguments": ["600"], "environment": [], "user": null,
                                   "stays": [folder.join("log"), 15]});
    writeln!(line.get_mut(), "{order}").expect("it listens");
    answer.clear();
    line.read_line(&mut answer).expect("it answers");
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("an object");
    let server = answer["Started"].as_u64().expect("a process id") as u32;
    assert!(alive(server));
    drop(line);
    keeper.wait().expect("a child can be waited for");
    assert!(!alive(server), "a server outlives who measured it");
    assert!(!folder.exists(), "{name} is left");
}

/// The figure's own servers, too, whose files lie in that folder.
fn tables_and_their_folder_go_with_a_figure_that_is_killed() {
    let executable = std::env::current_exe().expect("this executable has a path");
    let mut run = Command::new(&executable).args([RUN, "durability"]).stdout(Stdio::null()).spawn().expect("it starts");
    let folder = place().join(format!("overside-bench-{}", run.id()));
    let started = Instant::now();
    while !folder.join("sync").join("LOCK").exists() {
        assert!(started.elapsed() < LEARNING, "no table within {LEARNING:?}");
        assert!(run.try_wait().expect("a child can be looked at").is_none(), "it ended before anybody saw a table");
        thread::sleep(Duration::from_millis(1));
    }
    let children = children_of(run.id());
    signal(run.id(), Signal::KILL);
    run.wait().expect("a child can be waited for");
    let deadline = Instant::now() + LIMIT;
    while folder.exists() || children.iter().any(|child| alive(*child)) {
        assert!(Instant::now() < deadline, "{} or one of the processes {children:?} is left", folder.display());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Where data lies meanwhile: beside what is built, which is on a disk.
fn place() -> std::path::PathBuf {
    let executable = std::env::current_exe().expect("this executable has a path");
    executable.parent().expect("it lies in a folder").to_owned()
}

fn signal(id: u32, signal: Signal) {
    // It may have gone already.
    let _ = Pid::from_raw(id as i32).map(|pid| kill_process(pid, signal));
}

/// Whether the process has opened a provider's port, which it does after it has tied its life to its parent's.
fn has_a_port(id: u32) -> bool {
    // Until it is this executable anew, it has its parent's descriptors.
    let words = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    if !words.split(|byte| *byte == 0).any(|word| word == SUBCOMMAND.as_bytes()) {
        return false;
    }
    let open = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|file| file.to_string_lossy().contains("eventpoll"))
}

fn run(figure: &str) -> Figures {
    figures::run(&options(figure)).expect("a figure that nobody disturbs works")
}

fn options(figure: &str) -> Options {
    let report = Some(report(figure));
    Options {
        figure: figure.into(),
        quick: true,
        json: true,
        report,
        over: "shm".into(),
        rdma_device: None,
        to: None,
        network: overside::Network::default(),
        library: None,
        only: None,
        results: None,
        seed: 0,
        dir: (figure == "durability").then(place),
        trace: None,
    }
}

fn report(figure: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("overside-figure-test-{figure}-{}.html", std::process::id()))
}

/// Processes whose parent is `parent`.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| field_after_name(*id, 1).and_then(|field| field.parse().ok()) == Some(parent)).collect()
}

/// Whether the process exists and is more than a zombie that nobody has reaped.
fn alive(id: u32) -> bool {
    field_after_name(id, 0).is_some_and(|state| state != "Z" && state != "X")
}

fn field_after_name(id: u32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(field).map(str::to_owned)
}

const RUN: &str = "run-a-figure";
const RECEIVE: &str = "receive-for-figures";
/// Nothing here takes long on a machine of its own.
const LIMIT: Duration = Duration::from_secs(60);
/// Before it starts a receiver the figure learns prices, which takes this build seconds, and many times that beside other programs.
const LEARNING: Duration = Duration::from_secs(600);
