//! The demo from end to end, with its processes, on a small table. No harness: this executable is also the demo's
//! children, as the command is.

use overside_bench::{
    SUBCOMMAND, child_main,
    demo::{self, Options},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::OsString,
    fs,
    process::{Child, Command},
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
        Some(RUN) => drop(demo::run(&options("killed")).expect("a demo that nobody disturbs works")),
        // What a harness would be asked, so that `cargo test NAME` and `--list` do no harm.
        Some(other) if !other.starts_with("--") || other == "--list" => {}
        _ => {
            for over in ["shm", "tcp"] {
                a_demo_verifies_writes_its_report_and_leaves_nothing(over);
            }
            for signal in [Signal::INT, Signal::KILL] {
                nothing_outlives_a_demo_that_is_stopped(signal);
            }
            println!("test result: ok. 3 passed");
        }
    }
}

fn a_demo_verifies_writes_its_report_and_leaves_nothing(over: &str) {
    let options = Options { over: over.into(), ..options("whole") };
    let report = demo::run(&options).expect("the demo works");
    assert!(report.verified, "{:?}", report.verification);
    assert!((11_000..13_000).contains(&report.rows), "{} rows", report.rows);
    let modes = ["copy", "gather", "delta", "auto"];
    for workload in ["full", "range", "projection", "hot"] {
        for mode in modes {
            let run = report.run(workload, mode).expect("every workload runs in every mode");
            assert!(run.verified && run.rows_per_s > 0.0 && run.server_cpu_ns_per_row > 0.0, "{run:?}");
            let sent = run.chosen.parts();
            assert!(sent.iter().sum::<u64>() > 0, "{run:?}");
            // A mode that was asked for is what was done.
            if let Some(way) = modes[..3].iter().position(|m| *m == mode) {
                assert!(sent[way] * 10 >= run.chosen.pages() * 9, "{run:?}");
            }
        }
    }
    let full = |mode: &str| report.run("full", mode).map_or(0, |run| run.server_bytes_copied);
    assert!(full("copy") >= report.table_bytes && full("delta") * 10 < report.table_bytes);
    assert!(report.verification.updates > 1000 && report.verification.scans > 30);
    assert_eq!(report.fresh_updates.len(), 10);
    let page = fs::read_to_string(&options.report).expect("the report is written");
    assert!(page.contains("</html>") && page.contains("No violation was found"));
    let _ = fs::remove_file(&options.report);
    assert_eq!(children_of(std::process::id()), [0; 0]);
}

fn nothing_outlives_a_demo_that_is_stopped(signal: Signal) {
    let executable = std::env::current_exe().expect("this executable has a path");
    // Stopped at several points of its course.
    for after in [30, 200, 500, 900] {
        let mut demo = Command::new(&executable).arg(RUN).spawn().expect("the demo starts");
        thread::sleep(Duration::from_millis(after));
        let children = children_of(demo.id());
        stop(&mut demo, signal);
        // At once; a busy machine takes its time.
        let deadline = Instant::now() + Duration::from_secs(10);
        for child in children {
            while alive(child) {
                assert!(Instant::now() < deadline, "process {child} outlives a demo stopped after {after} ms");
                thread::sleep(Duration::from_millis(5));
            }
        }
        let name = format!("overside-demo-{}", demo.id());
        while fs::read_to_string("/proc/net/unix").unwrap_or_default().contains(&name) {
            assert!(Instant::now() < deadline, "a socket named {name} is left");
            thread::sleep(Duration::from_millis(5));
        }
    }
    let _ = fs::remove_file(options("killed").report);
}

fn stop(demo: &mut Child, signal: Signal) {
    if let Some(pid) = Pid::from_raw(demo.id() as i32) {
        // It may have finished already.
        let _ = kill_process(pid, signal);
    }
    demo.wait().expect("a child can be waited for");
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

fn options(name: &str) -> Options {
    let report = std::env::temp_dir().join(format!("overside-demo-test-{name}-{}.html", std::process::id()));
    Options { scale: 0.002, json: true, report, quick: true, ..Options::default() }
}

const RUN: &str = "run-a-demo";
