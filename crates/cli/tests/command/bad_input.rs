//! Bad input: a clear error to the one who caused it, and nobody else disturbed.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::server::{Server, fixture, numbered, overside, told};

/// A server with a table `t` of three rows, which every test leaves as it was.
fn with_table() -> Server {
    let server = Server::start();
    let path = server.file("t.csv", "id,name,price\n1,a,1.5\n2,b,\n3,c,3.5\n");
    server.ok(&["load", "@", "t", &path]);
    server
}

fn undisturbed(server: &Server) {
    assert_eq!(server.json(&["scan", "@", "t"])["row_count"], 3);
}

#[test]
fn a_wrong_command_line_exits_with_2_and_names_the_mistake() {
    for (arguments, expected) in [
        (&["scan"][..], "ADDR"),
        (&["scan", "shm:x", "t", "--mode", "fast"], "auto, copy, gather, delta or in-place"),
        (&["serve"], "--listen"),
        (&["load", "shm:x", "t"], "FILE"),
        (&["scan", "shm:x", "t", "--limit", "-1"], "a whole number"),
        (&["volume", "create", "v", "--size", "5", "--on", "memory"], "a multiple of 4K"),
        (&["demo", "--scale", "-1"], "scale factor"),
        (&["bench", "weather"], "verbs, transmit, delta"),
        (&["bench", "delta", "--over", "udp"], "shm"),
        (&["bench", "delta", "--rdma-device", "rxe0"], "--over rdma"),
        (&["demo", "--over", "tcp", "--rdma-device", "rxe0"], "--over rdma"),
        (&["run", "--bogus", "--", "true"], "--bogus is no option of run"),
        (&["nothing"], "nothing"),
    ] {
        let output = overside(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(told(&output).contains(expected), "{arguments:?}: {}", told(&output));
    }
}

#[test]
fn an_address_a_table_or_a_column_that_is_not_there() {
    let server = with_table();
    for (arguments, expected) in [
        (&["scan", "shm:nobody-is-here", "t"][..], &["nobody-is-here", "running"][..]),
        (&["scan", "nowhere", "t"], &["nowhere", "shm:NAME"]),
        (&["scan", "udp:localhost:1", "t"], &["udp", "shm:NAME"]),
        (&["scan", "rdma:localhost", "t"], &["HOST:PORT"]),
        (&["scan", "tcp:localhost", "t"], &["HOST:PORT"]),
        (&["scan", "@", "u"], &["\"u\"", "t"]),
        (&["get", "@", "u", "1"], &["\"u\""]),
        (&["scan", "@", "t", "--columns", "id,size"], &["`size`"]),
        (&["scan", "@", "t", "--columns", "id,name,id"], &["`id` twice"]),
        (&["scan", "@", "t", "--rdma-device", "rxe0"], &["--rdma-device: ", "leave it out"]),
        (&["load", "@", "t", "absent.csv"], &["absent.csv", "; check the path"]),
        (&["put", "@", "t", "1"], &["name,price", "comma-separated"]),
        (&["scan", "@", "t", "--from", "x"], &["--from", "`id`", "int64"]),
        (&["scan", "@", "t", "--from", "1,2"], &["--from", "int64"]),
        (&["get", "@", "t", "first"], &["`id`", "int64"]),
        (&["put", "@", "t", "4", "d"], &["name,price"]),
        (&["put", "@", "t", "4", "d,cheap"], &["`price`", "`cheap`"]),
        (&["put", "@", "t", "4", r#"{"size": 1}"#], &["size"]),
        (&["scan", "@", "t", "--out", "rows.json"], &["rows.json", ".parquet"]),
        (&["scan", "@", "t", "--out", "no/such/folder.csv"], &["no/such/folder.csv", "; check the path"]),
        (
            &["volume", "serve", "--listen", "@", "--home", "/dev/null/x", "--cache", "64K", "--block", "1M"],
            &["no room for a block of 1,048,576", "--cache 0"],
        ),
        (&["load", "tcp:no.such.host.invalid:1", "t", "absent.parquet"], &["absent.parquet", "; check the path"]),
        (&["tables", "tcp:no.such.host.invalid:1"], &["no.such.host.invalid", "; check the host's name"]),
        (&["man", "/dev/null"], &["/dev/null", "; choose another name"]),
        (&["run", "--", "no/such/program"], &["no/such/program cannot be started", "; check the path"]),
    ] {
        let told = server.fails(arguments);
        assert!(expected.iter().all(|part| told.contains(part)), "{arguments:?}: {told}");
    }
    undisturbed(&server);
}

#[test]
fn an_address_that_is_taken() {
    let server = with_table();
    // It may say before that it measures.
    let output = server.command(&["serve", "--listen", "@"]).output().unwrap();
    let told = told(&output);
    let last = told.lines().last().unwrap_or_default();
    assert!(last.starts_with("overside: ") && last.contains(&server.address), "{told}");
    assert_eq!(output.status.code(), Some(1));
    undisturbed(&server);
}

#[test]
fn a_duplicate_or_null_key_names_the_file_and_the_row_and_what_was_loaded() {
    let server = with_table();
    let twice = server.file("twice.csv", "id,v\n1,a\n2,b\n1,c\n4,d\n");
    let told = server.fails(&["load", "@", "twice", &twice]);
    for part in ["twice.csv", "row 3", "key 1", "stands twice", "3 rows of this load stay"] {
        assert!(told.contains(part), "{told}");
    }
    assert_eq!(server.json(&["scan", "@", "twice"])["row_count"], 3);

    let null = server.file("null.csv", "id,v\n1,a\n,b\n");
    let told = server.fails(&["load", "@", "null", &null]);
    for part in ["null.csv", "row 2", "`id`", "null", "nothing was loaded"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(server.fails(&["scan", "@", "null"]).contains("no table"));

    // Rows are counted through all batches of a file.
    let late = server.file("late.csv", numbered(9000) + "17,again,1\n");
    let told = server.fails(&["load", "@", "late", &late]);
    assert!(told.contains("row 9001: key 17") && told.contains("9,000 rows of this load stay"), "{told}");
    let late = server.file("late.csv", numbered(9000) + ",none,1\n");
    let told = server.fails(&["load", "@", "none", &late]);
    assert!(told.contains("row 9001: no value for column `id`"), "{told}");

    let known = server.file("known.csv", "id,name,price\n9,x,1\n2,y,2\n");
    let told = server.fails(&["load", "@", "t", &known]);
    assert!(told.contains("row 2") && told.contains("--replace") && told.contains("1 rows of this load"), "{told}");
    server.ok(&["delete", "@", "t", "9"]);
    undisturbed(&server);
}

#[test]
fn a_file_that_does_not_fit_the_table() {
    let server = with_table();
    let extra = server.file("extra.csv", "id,name,size\n4,d,1\n");
    assert!(server.fails(&["load", "@", "t", &extra]).contains("`size`"));
    let missing = server.file("missing.csv", "name,price\nd,1\n");
    assert!(server.fails(&["load", "@", "t", &missing]).contains("`id`"));
    let wrong = server.file("wrong.csv", "id,name,price\n4,d,cheap\n");
    let told = server.fails(&["load", "@", "t", &wrong]);
    assert!(told.contains("wrong.csv") && told.contains("line 2, column `price`"), "{told}");
    let told = server.fails(&["load", "@", "t", &fixture("every_type.parquet")]);
    assert!(told.contains("every_type.parquet") && told.contains("no column"), "{told}");
    let told = server.fails(&["load", "@", "t", &extra, "--key", "name"]);
    assert!(told.contains("has the key id"), "{told}");
    let told = server.fails(&["load", "@", "u", &extra, "--key", "nothing"]);
    assert!(told.contains("`nothing`"), "{told}");
    let told = server.fails(&["load", "@", "u", &extra, "--schema", "nothing:int8"]);
    assert!(told.contains("`nothing`"), "{told}");
    assert!(server.fails(&["load", "@", "u", &extra, "absent.csv"]).contains("absent.csv"));
    assert!(server.fails(&["scan", "@", "u"]).contains("no table"));
    undisturbed(&server);
}

#[test]
fn damaged_files_of_every_format() {
    let server = with_table();
    for name in ["every_type.parquet", "every_type.arrow"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        for part in [9, 10] {
            let cut = server.file(name, &whole[..whole.len() * part / 11]);
            let told = server.fails(&["load", "@", "cut", &cut]);
            assert!(told.contains(name) && told.contains("cut off"), "{told}");
            assert!(told.contains("copy it again"), "what to do is not said: {told}");
        }
        let mut overwritten = whole.clone();
        // Where the footer lies: Arrow files have no checksum over their values.
        let footer = whole.len() - 700;
        overwritten[footer..footer + 200].fill(0xFF);
        let damaged = server.file(name, &overwritten);
        let output = server.command(&["load", "@", "damaged", &damaged]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert_eq!(told(&output).lines().count(), 1, "{name}: {}", told(&output));
    }
    let cut = server.file("cut.csv", "id,name\n1,\"never closed\n2,b\n");
    assert!(server.fails(&["load", "@", "cut", &cut]).contains("line 2"));
    let other = server.file("other.parquet", "id,name\n1,a\n");
    assert!(server.fails(&["load", "@", "cut", &other]).contains("the name says Parquet"));
    let empty = server.file("empty.csv", "");
    assert!(server.fails(&["load", "@", "cut", &empty]).contains("empty"));
    assert!(server.fails(&["load", "@", "cut", &fixture("nested.parquet")]).contains("`tags`"));
    assert!(server.fails(&["scan", "@", "cut"]).contains("no table"));
    undisturbed(&server);
}

#[test]
fn a_value_too_large_names_its_row() {
    let server = with_table();
    let large = server.file("large.csv", format!("id,v\n1,a\n2,{}\n", "x".repeat(1 << 20)));
    let told = server.fails(&["load", "@", "large", &large]);
    assert!(told.contains("large.csv") && told.contains("row 2") && told.contains("1 MiB"), "{told}");
    let fits = server.file("fits.csv", format!("id,v\n1,a\n2,{}\n", "x".repeat(1_000_000)));
    server.ok(&["load", "@", "fits", &fits]);
    let row = server.json(&["get", "@", "fits", "2"]);
    assert_eq!(row["v"].as_str().unwrap().len(), 1_000_000);
    undisturbed(&server);
}

#[test]
fn exhausted_memory_is_said_and_other_tables_go_on() {
    let server = Server::with(&["--memory", "32M"]);
    let small = server.file("t.csv", "id,name,price\n1,a,1.5\n2,b,\n3,c,3.5\n");
    server.ok(&["load", "@", "t", &small]);
    let mut text = String::from("id,v\n");
    (0..2000).for_each(|row| text += &format!("{row},{}\n", "x".repeat(20_000)));
    let big = server.file("big.csv", text);
    let told = server.fails(&["load", "@", "big", &big]);
    for part in ["big.csv", "memory limit", "rows of this load stay"] {
        assert!(told.contains(part), "{told}");
    }
    undisturbed(&server);
    let kept = server.json(&["scan", "@", "big", "--columns", "id"])["row_count"].as_u64().unwrap();
    assert!((1..2000).contains(&kept), "{kept}");
}

/// The command under a limit of the shell's.
fn under(limit: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_overside")]);
    shell
}

/// A command of `server`'s under a limit of the shell's.
fn limited(server: &Server, limit: &str, arguments: &[&str]) -> Output {
    under(limit).args(arguments.iter().map(|&a| if a == "@" { &server.address } else { a })).output().unwrap()
}

#[test]
fn a_process_without_memory_ends_with_an_error_and_no_file() {
    let server = Server::start();
    let path = server.file("t.csv", numbered(150_000));
    server.ok(&["load", "@", "t", &path]);
    let out = server.path("out.parquet");
    let (mut kib, mut refused, mut heap) = (10_000, 0, 0);
    loop {
        assert!(kib < 8 << 20, "it has no memory for 150,000 rows");
        let limit = format!("-v {kib}");
        kib += kib / 16;
        // Less than it takes to start at all says nothing of this command.
        if !limited(&server, &limit, &["--version"]).status.success() {
            continue;
        }
        std::fs::write(&out, "before").unwrap();
        let output = limited(&server, &limit, &["scan", "@", "t", "--out", &out]);
        if output.status.success() {
            break;
        }
        let told = told(&output);
        assert_eq!(output.status.code(), Some(1), "{limit}: {told}");
        assert!(
            told.starts_with("overside: ") && told.contains("memory") && told.lines().count() == 1,
            "{limit}: {told}"
        );
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "before");
        assert!(!server.part());
        refused += 1;
        heap += u32::from(told.contains("overside: out of memory: "));
    }
    assert!(heap > 0, "{refused} were refused, none for want of heap");
}

#[test]
fn a_server_without_memory_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("shm:cli-test-lacks-{}", std::process::id());
    // No prices are stored there, so they are measured first, which takes memory of its own. What it said; none: it listens.
    let refused = |limit: &str| {
        let mut command = under(limit);
        command.args(["serve", "--listen", &address]).env("XDG_DATA_HOME", folder.path()).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let listens = child.stdout.take().unwrap().read(&mut [0]).unwrap() > 0;
        if listens {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(listens || output.status.code() == Some(1), "{limit}: {}", told(&output));
        (!listens).then(|| told(&output).lines().last().unwrap_or_default().to_string())
    };
    let mut kib = 20_000;
    loop {
        assert!(kib < 8 << 20, "it has no memory to listen");
        let limit = format!("-v {kib}");
        kib += kib / 8;
        if !under(&limit).arg("--version").output().unwrap().status.success() {
            continue;
        }
        let Some(said) = refused(&limit) else { break };
        assert!(said.starts_with("overside: ") && said.contains("memory"), "{limit}: {said}");
    }
    let said = refused("-f 20").unwrap();
    assert!(said.contains("(ulimit -f)") && said.matches("File too large").count() == 1, "{said}");
    // Whoever started it says so as well, and does not wait for it; the rows themselves find room.
    let demo = under("-f 4000").args(["demo", "--scale", "0.001", "--json"]).output().unwrap();
    let said = told(&demo);
    assert!(said.contains("(ulimit -f)") && said.contains("the server ended early (exit status: 1)"), "{said}");
}

#[test]
fn a_full_disk_leaves_the_file_that_was_there() {
    let server = Server::start();
    let path = server.file("t.csv", numbered(400_000));
    server.ok(&["load", "@", "t", &path]);
    // Blocks of 512 bytes or of 1 KiB, by shell. The client's buffers are shorter, and the files longer.
    for (name, limit) in [("out.arrow", "-f 2000"), ("out.csv", "-f 2000"), ("out.parquet", "-f 2000")] {
        let out = server.file(name, "before");
        let output = limited(&server, limit, &["scan", "@", "t", "--out", &out]);
        let told = told(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(name) && told.lines().count() == 1, "{told}");
        assert!(told.matches("too large").count() == 1 && !told.contains("External"), "{told}");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "before");
        assert!(!server.part());
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = server.command(&["get", "@", "t", "1", "--json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).starts_with("overside: standard output cannot be written: "), "{}", told(&output));
}

#[test]
fn one_connection_too_many_is_said() {
    let server = Server::with(&["--max-connections", "1"]);
    let file = server.file("t.csv", numbered(20_000));
    server.ok(&["load", "@", "t", &file]);
    // A place is free again soon after its process has ended.
    let start = Instant::now();
    let free = || {
        while !server.command(&["get", "@", "t", "1"]).output().unwrap().status.success() {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    };
    let (mut first, mut output) = loop {
        free();
        let mut scan = server.command(&["scan", "@", "t", "--json"]);
        let mut first = scan.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut output = first.stdout.take().unwrap();
        // Whoever scans keeps its connection until its output is read.
        if output.read_exact(&mut [0]).is_ok() {
            break (first, output);
        }
        first.wait().unwrap();
    };
    let told = server.fails(&["get", "@", "t", "1"]);
    assert!(told.contains("1 connections") && told.contains("--max-connections"), "{told}");
    std::io::copy(&mut output, &mut std::io::sink()).unwrap();
    assert!(first.wait().unwrap().success());
    free();
}

#[test]
fn what_was_loaded_before_an_error_in_a_late_row_is_counted() {
    let server = with_table();
    let mut text = numbered(20_000);
    text.push_str("20000,\"x\",abc\n");
    let late = server.file("late.csv", text);
    let told = server.fails(&["load", "@", "late", &late, "--schema", "price:float64"]);
    assert!(told.contains("line 20002, column `price`"), "{told}");
    let kept = server.json(&["scan", "@", "late", "--columns", "id"])["row_count"].as_u64().unwrap();
    assert!(told.contains(&format!("{},{:03} rows of this load stay", kept / 1000, kept % 1000)), "{told}");
    undisturbed(&server);
}
