//! Tables as wholes: listed, described, dropped, watched; loaded from a pipe; keys that begin alike.

use super::server::{Server, numbered, overside, told};
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

/// A command with this on its standard input, through a pipe.
fn piped(server: &Server, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = server.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that refuses what it reads may have ended.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

#[test]
fn tables_are_listed_described_and_dropped() {
    let server = Server::start();
    assert_eq!(server.ok(&["tables", "@"]), "no tables\n");
    let file = server.file("t.csv", "order,line,place\n1,1,here\n1,2,\n");
    server.ok(&["load", "@", "t", &file, "--key", "line,order"]);
    let listed = server.json(&["tables", "@"]);
    assert_eq!(listed["tables"][0]["name"], "t");
    assert_eq!(listed["tables"][0]["key"], json!(["line", "order"]));
    assert_eq!(listed["tables"][0]["rows"], 2);
    assert!(server.ok(&["tables", "@"]).lines().nth(2).unwrap().starts_with("t      line,order     2"));

    let described = server.json(&["describe", "@", "t"]);
    let columns = json!([
        { "name": "order", "type": "int64", "nullable": false, "key": 2 },
        { "name": "line", "type": "int64", "nullable": false, "key": 1 },
        { "name": "place", "type": "utf8", "nullable": true, "key": null },
    ]);
    assert_eq!((&described["columns"], &described["rows"]), (&columns, &json!(2)));
    let text = server.ok(&["describe", "@", "t"]);
    assert!(text.contains("\nplace   utf8        yes\n") && text.contains("\nrows    2\npages   1\n"), "{text}");
    assert!(text.contains("\nsent    copy 0, gather 0, delta 0, in-place 0 "), "{text}");
    server.ok(&["scan", "@", "t", "--mode", "delta"]);
    let sent = json!({ "pages": { "copy": 0, "gather": 0, "delta": 1, "in-place": 0 }, "chain_max": 8 });
    assert_eq!(server.json(&["describe", "@", "t"])["sent"], sent);
    let prices = &server.json(&["status", "@"])["prices"];
    assert!(prices["source"].is_string() && prices["request_ns"]["server"].as_f64().unwrap() > 0.0, "{prices}");
    assert_eq!(prices["pieces"][0]["bytes"], 128);
    let held = &server.json(&["status", "@"])["memory"]["held"];
    assert!(["pins", "pinned_bytes", "epochs_bytes"].iter().all(|field| held[field].is_u64()), "{held}");
    let status = server.ok(&["status", "@"]);
    assert!(status.contains(" held by scans, ") && status.contains(" by readers and writers\n"), "{status}");
    assert!(status.contains("\nprices      ") && status.contains("16,384 bytes: copied "), "{status}");
    assert!(server.fails(&["describe", "@", "absent"]).contains("absent"));

    let refused = piped(&server, &["drop", "@", "t"], b"y\n");
    assert_eq!(refused.status.code(), Some(1), "a pipe is nobody to ask");
    assert!(told(&refused).contains("has 2 rows; say --yes"), "{}", told(&refused));
    assert_eq!(server.json(&["tables", "@"])["tables"][0]["rows"], 2);
    assert_eq!(server.ok(&["drop", "@", "t", "--yes"]), "table `t` dropped (2 rows)\n");
    assert!(server.fails(&["drop", "@", "t", "--yes"]).contains("no table \"t\""));
    assert_eq!(server.json(&["tables", "@"]), json!({ "tables": [] }));
}

/// What is stored, and what is measured where nothing is.
#[test]
fn a_server_plans_by_prices_of_an_experiment() {
    let folder = tempfile::tempdir().unwrap();
    let prices = || {
        let (server, _) = Server::by(&[], |command| _ = command.env("XDG_DATA_HOME", folder.path()));
        server.json(&["status", "@"])["prices"].clone()
    };
    let measured = prices();
    let source = measured["source"].as_str().unwrap();
    assert!(source.contains("no profile is stored: run `overside calibrate`"), "{source}");
    // Where others disturbed it each time, it says why the provider's own serve.
    assert!(source.contains("measured quickly") || source.contains(", since "), "{source}");
    let (address, network) = (overside::Address::here("shm", "any").unwrap(), overside::Network::default());
    let known = address.provider(&network).unwrap().profile();
    let other = overside::planner::Profile { send_request_ns: 54_321.0, source: "an experiment".into(), ..known };
    let store = overside::calibrate::Store::at(folder.path().join("overside/profiles"));
    store.save(&overside::prices::label(&address, &network), &other).unwrap();
    let stored = prices();
    assert_eq!((&stored["source"], &stored["request_ns"]["server"]), (&json!("an experiment"), &json!(54_321.0)));
}

#[test]
fn rows_come_from_a_pipe() {
    let server = Server::start();
    let loaded = piped(&server, &["load", "@", "t", "-", "--json"], numbered(40_000).as_bytes());
    assert!(loaded.status.success(), "{}", told(&loaded));
    let loaded: Json = serde_json::from_slice(&loaded.stdout).unwrap();
    assert_eq!((&loaded["rows"], &loaded["created"]), (&json!(40_000), &json!(true)));
    // Beside a file, after it.
    let more = server.file("more.csv", "id,name,price\n40000,a,1\n");
    let both = piped(&server, &["load", "@", "t", &more, "-"], b"id,name,price\n40001,\"\",\n");
    assert!(both.status.success(), "{}", told(&both));
    assert_eq!(server.json(&["get", "@", "t", "40001"]), json!({ "id": 40001, "name": "", "price": null }));
    // A file that is the standard input may be of any format.
    let out = server.path("t.parquet");
    server.ok(&["scan", "@", "t", "--out", &out]);
    let mut load = server.command(&["load", "@", "u", "-"]);
    let load = load.stdin(File::open(&out).unwrap()).output().unwrap();
    assert!(String::from_utf8_lossy(&load.stdout).contains("40,002 rows loaded"), "{}", told(&load));

    for (input, why) in [
        (&std::fs::read(&out).unwrap()[..], "Parquet cannot be read from a pipe"),
        (b"", "there is nothing to read"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"id,name,price\n50000,x,cheap\n", "standard input: line 2, column `price`"),
    ] {
        let refused = piped(&server, &["load", "@", "t", "-"], input);
        assert_eq!(refused.status.code(), Some(1));
        assert!(told(&refused).contains(why), "{}", told(&refused));
    }
    assert!(server.fails(&["load", "@", "t", "-", "-"]).contains("once"));
}

#[test]
fn keys_that_begin_alike() {
    let server = Server::start();
    let file = server.file("t.csv", "town,street,n\nBern,Aare,1\nBern,Main,2\nBern,Maine,3\nBonn,Main,4\n");
    server.ok(&["load", "@", "t", &file, "--key", "town,street"]);
    let numbers = |prefix: &str| -> Vec<i64> {
        let scanned = server.json(&["scan", "@", "t", "--where-key-prefix", prefix, "--columns", "n"]);
        scanned["rows"].as_array().unwrap().iter().map(|row| row["n"].as_i64().unwrap()).collect()
    };
    assert_eq!(numbers("Bern"), [1, 2, 3]);
    assert_eq!(numbers("Bern,Main"), [2]);
    assert_eq!(numbers("Bern,Main*"), [2, 3]);
    assert_eq!(numbers("Bern,*"), [1, 2, 3]);
    assert_eq!(numbers("B*"), [1, 2, 3, 4]);
    assert_eq!(numbers("*"), [1, 2, 3, 4]);
    assert_eq!(numbers("Bo*"), [4]);
    assert!(numbers("C*").is_empty());
    let wrong = server.command(&["scan", "@", "t", "--where-key-prefix", "B*", "--from", "A"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn a_row_is_put_from_a_file() {
    let server = Server::start();
    let file = server.file("t.csv", "id,name,price\n1,a,1.5\n");
    server.ok(&["load", "@", "t", &file]);
    let row = server.file("row.json", "{\"name\": \"b\", \"price\": 2}\n");
    assert_eq!(server.ok(&["put", "@", "t", "1", "--file", &row]), "replaced\n");
    assert_eq!(server.json(&["get", "@", "t", "1"]), json!({ "id": 1, "name": "b", "price": 2.0 }));
    let put = piped(&server, &["put", "@", "t", "2", "--file", "-"], b"c,3\n");
    assert!(put.status.success(), "{}", told(&put));
    assert_eq!(server.json(&["get", "@", "t", "2"])["name"], "c");
    assert!(server.fails(&["put", "@", "t", "3", "--file", "absent.json"]).contains("absent.json"));
    let endless = server.command(&["put", "@", "t", "3", "--file", "/dev/zero"]).output().unwrap();
    assert!(told(&endless).contains("too long"), "{}", told(&endless));
}

#[test]
fn a_status_that_is_watched_says_what_happens_and_ends_by_a_signal() {
    let server = Server::start();
    let mut watch = server.command(&["status", "@", "--watch", "1", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Json { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    assert!(first["rates"].is_null() && first["tables"] == json!([]));
    assert_eq!((&first["pid"], &first["connections"]), (&json!(server.child.id()), &json!(1)));
    let file = server.file("t.csv", numbered(5000));
    server.ok(&["load", "@", "t", &file]);
    let (mut rows, mut looks) = (0.0, 0);
    while rows == 0.0 {
        let look = next();
        rows = look["rates"]["rows_per_s"].as_f64().unwrap();
        looks += 1;
        assert!(looks < 100, "{look}");
    }
    super::server::send(&watch, Signal::INT);
    assert!(watch.wait().unwrap().success());
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = overside(&["completions", shell]).output().unwrap();
        let script = String::from_utf8(script.stdout).unwrap();
        assert!(script.contains("where-key-prefix") && script.contains("describe"), "{shell}");
        assert!(script.contains("exit-status"), "{shell}");
    }
    // As bash asks, for what is typed so far.
    let completed = |typed: &[&str]| {
        let words = typed.join(" ");
        let asked = format!(
            "source <({} completions bash); COMP_WORDS=(overside {words}); COMP_CWORD={}; _overside overside '{}' '{}'; \
             echo ${{COMPREPLY[@]}}",
            env!("CARGO_BIN_EXE_overside"),
            typed.len(),
            typed[typed.len() - 1],
            if typed.len() > 1 { typed[typed.len() - 2] } else { "overside" },
        );
        let output = Command::new("bash").args(["-c", &asked]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(completed(&["help", "du"]), "dump durability");
    assert_eq!(completed(&["help", "exit"]), "exit-status");
    assert_eq!(completed(&["des"]), "describe");
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("man1");
    let written = overside(&["man", man.to_str().unwrap()]).output().unwrap();
    assert!(written.status.success(), "{}", told(&written));
    let count = std::fs::read_dir(&man).unwrap().count();
    assert!(String::from_utf8_lossy(&written.stdout).starts_with(&format!("{count} pages in ")));
    let page = std::fs::read_to_string(man.join("overside-scan.1")).unwrap();
    assert!(page.contains("where\\-key\\-prefix") && page.contains("Examples:"), "{page}");
    let topic = std::fs::read_to_string(man.join("overside-modes.1")).unwrap();
    assert!(topic.contains("lent and read where it lies") && !topic.contains("SYNOPSIS"), "{topic}");
    assert!(!man.join("overside-bench-child.1").exists());
    let blocked = overside(&["man", "/proc/none"]).output().unwrap();
    assert_eq!(blocked.status.code(), Some(1));
    assert!(told(&blocked).contains("/proc/none"));
}

#[test]
fn help_has_topics_and_calibrating_wants_none() {
    let run = |words: &[&str]| overside(words).output().unwrap();
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let prices = run(&["help", "prices"]);
    assert!(prices.status.success() && said(&prices).contains("share no cache"), "{}", said(&prices));
    // What to do stands there, and no more: the rest is the topic's.
    let calibrate = said(&run(&["help", "calibrate"]));
    assert!(calibrate.contains("overside help prices") && !calibrate.contains("cache"), "{calibrate}");
    let unknown = run(&["help", "price"]);
    assert_eq!((unknown.status.code(), said(&unknown)), (Some(2), String::new()));
    assert!(told(&unknown).contains("neither a command nor a topic") && told(&unknown).contains("prices"));
}

#[test]
fn rows_are_found_through_an_index() {
    let server = Server::start();
    let file = server.file("t.csv", "id,town,price\n1,Bern,30\n2,Bonn,10\n3,,20\n4,Bern,5\n");
    server.ok(&["load", "@", "t", &file, "--index", "price"]);
    let ids = |arguments: &[&str]| -> Vec<i64> {
        let scanned = server.json(&[&["scan", "@", "t", "--columns", "id", "--index"], arguments].concat());
        scanned["rows"].as_array().unwrap().iter().map(|row| row["id"].as_i64().unwrap()).collect()
    };
    assert_eq!(ids(&["price"]), [4, 2, 3, 1]);
    assert_eq!(ids(&["price", "--from", "6", "--to", "20"]), [2, 3]);
    let made = server.json(&["index", "create", "@", "t", "town,price"]);
    assert_eq!((&made["table"], &made["columns"]), (&json!("t"), &json!(["town", "price"])));
    // The row without a town comes first.
    assert_eq!(ids(&["town,price"]), [3, 4, 1, 2]);
    assert_eq!(ids(&["town,price", "--from", "Bern", "--to", "Bern"]), [4, 1]);
    assert_eq!(ids(&["town,price", "--from", "Bern,6", "--mode", "gather"]), [1, 2]);
    server.ok(&["put", "@", "t", "4", "Bonn,11"]);
    server.ok(&["delete", "@", "t", "1"]);
    assert_eq!(ids(&["town,price", "--from", "Bern"]), [2, 4]);

    let described = server.json(&["describe", "@", "t"]);
    let indexes = described["indexes"].as_array().unwrap();
    assert_eq!(
        indexes.iter().map(|index| &index["columns"]).collect::<Vec<_>>(),
        [&json!(["price"]), &json!(["town", "price"])]
    );
    assert!(server.ok(&["describe", "@", "t"]).contains("\nindex   town,price (1 pages, "));
    // A table that has it already is loaded all the same.
    let more = server.file("more.csv", "id,town,price\n9,Chur,1\n");
    server.ok(&["load", "@", "t", &more, "--index", "price"]);
    assert_eq!(ids(&["price", "--to", "1"]), [9]);
    assert_eq!(server.ok(&["index", "drop", "@", "t", "price"]), "index on price of table `t` dropped\n");

    assert!(server.fails(&["scan", "@", "t", "--index", "price"]).contains("no index on price; there are: town,price"));
    assert!(server.fails(&["index", "create", "@", "t", "street"]).contains("street"));
    assert!(server.fails(&["index", "create", "@", "t", "town,town"]).contains("named twice"));
    assert!(server.fails(&["index", "create", "@", "t", "town,price"]).contains("has an index on town,price already"));
    assert!(server.fails(&["index", "drop", "@", "t", "price"]).contains("no index on price"));
    assert!(server.fails(&["scan", "@", "t", "--index", "town,price", "--from", "Bern,x"]).contains("index column"));
    // Nothing is loaded where the index cannot be.
    assert!(server.fails(&["load", "@", "u", &more, "--index", "street"]).contains("street"));
    assert!(server.fails(&["describe", "@", "u"]).contains("no table \"u\""));
}

/// The kernel says of the process whether it gets huge pages.
#[test]
fn a_server_lies_on_pages_of_the_size_that_was_chosen() {
    for (options, huge) in [(&["--pages", "4K"][..], "0"), (&["--pages", "2M"], "1"), (&[], "1")] {
        let server = Server::with(options);
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let said = status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).map(str::trim);
        assert_eq!(said, Some(huge), "{options:?}");
    }
    let refused = overside(&["serve", "--listen", "shm:pages", "--pages", "1G"]).output().unwrap();
    assert!(!refused.status.success() && told(&refused).contains("give 4K or 2M"), "{}", told(&refused));
}

/// The same rows, by a client that reads the server's memory, over shared memory and over TCP.
#[test]
fn a_server_that_was_asked_to_is_read_one_sidedly() {
    let server = Server::start();
    let file = server.file("t.csv", numbered(3000));
    server.ok(&["load", "@", "t", &file, "--key", "id"]);
    assert!(server.fails(&["scan", "@", "t", "--one-sided"]).contains("start it with --one-sided"));
    let refused = overside(&["scan", "shm:x", "t", "--one-sided", "--mode", "copy"]).output().unwrap();
    assert!(refused.status.code() == Some(2) && told(&refused).contains("cannot be used with"), "{}", told(&refused));
    let refused = overside(&["serve", "--listen", "shm:x", "--one-sided", "--data", "d"]).output().unwrap();
    assert!(refused.status.code() == Some(2) && told(&refused).contains("cannot be used with"), "{}", told(&refused));
    drop(server);

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let network = format!("tcp:{free}");
    let server = Server::with(&["--listen", &network, "--one-sided"]);
    let file = server.file("t.csv", numbered(3000));
    server.ok(&["load", "@", "t", &file, "--key", "id"]);
    let rows = |at: &str, more: &[&str]| {
        let found = server.json(&[&["scan", at, "t", "--from", "1000"], more].concat());
        found["rows"].clone()
    };
    let usual = rows("@", &[]);
    assert_eq!(usual.as_array().unwrap().len(), 2000);
    assert_eq!(rows("@", &["--one-sided"]), usual);
    assert_eq!(rows(&network, &["--one-sided"]), usual);
    let out = server.path("out.csv");
    server.ok(&["scan", "@", "t", "--one-sided", "--out", &out]);
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 3001);
}
