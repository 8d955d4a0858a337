//! The demo as the command runs it.

use super::server::{overside, send, told};
use rustix::process::Signal;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Processes that a demo of this process id has started and that are still there.
fn companions(demo: u32) -> usize {
    let told = format!("\0{demo}\0");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.filter(|line| line.contains("\0bench-child\0") && line.contains(&told)).count()
}

/// SIGINT, unless whoever started the tests has it ignored, as a shell does for what runs in its background.
fn interrupt() -> Signal {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    if ignored & 1 << (Signal::INT.as_raw() - 1) == 0 { Signal::INT } else { Signal::TERM }
}

#[test]
fn a_small_demo_is_verified_and_says_so_as_one_object() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("demo.html");
    let mut command = overside(&["demo", "--quick", "--scale", "0.001", "--json", "--report"]);
    let output = command.arg(&report).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let demo: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&demo["rows"], &demo["verified"]), (&6005.into(), &true.into()));
    for workload in ["full", "range", "projection", "hot"] {
        for mode in ["copy", "gather", "delta", "in-place", "auto"] {
            let mut runs = demo["runs"].as_array().unwrap().iter();
            let run = runs.find(|run| run["workload"] == workload && run["mode"] == mode);
            let run = run.unwrap_or_else(|| panic!("no run {workload} {mode}"));
            assert!(run["rows_per_s"].as_f64().unwrap() > 0.0 && run["verified"] == true, "{run}");
        }
    }
    let page = fs::read_to_string(&report).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script src") && !page.contains("https://"));
}

#[test]
fn an_interrupted_demo_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = overside(&["demo", "--scale", "0.005"]);
    let command = command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    let start = Instant::now();
    while companions(demo.id()) < 2 {
        if demo.try_wait().unwrap().is_some() {
            panic!("it has ended: {}", told(&demo.wait_with_output().unwrap()));
        }
        assert!(start.elapsed() < Duration::from_secs(240), "it has started no processes");
        std::thread::sleep(Duration::from_millis(10));
    }
    send(&demo, interrupt());
    let ended = demo.wait().unwrap();
    assert!(!ended.success(), "it had ended before it was interrupted: {ended}");
    let start = Instant::now();
    while companions(demo.id()) > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "a process outlives the demo");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
