//! Rows in and out: loaded by one process, read and changed by others.

use super::server::{Server, fixture, numbered};
use serde_json::{Value as Json, json};

#[test]
fn every_type_survives_the_table_in_every_mode_and_format() {
    let server = Server::start();
    let loaded = server.json(&["load", "@", "t", &fixture("every_type.parquet")]);
    assert_eq!(loaded["rows"], 40);
    assert_eq!((&loaded["created"], &loaded["key"]), (&json!(true), &json!(["id"])));
    let direct = server.json(&["scan", "@", "t"]);
    assert_eq!(direct["row_count"], 40);
    assert_eq!(direct["rows"].as_array().unwrap().len(), 40);
    assert_eq!(direct["rows"][4]["dec"], "-5.00");
    assert_eq!(direct["rows"][4]["u64"], json!(u64::MAX - 4));
    assert_eq!(direct["rows"][3]["text"], Json::Null);
    for mode in ["auto", "copy", "gather", "delta", "in-place"] {
        for extension in ["arrow", "parquet", "csv"] {
            let out = server.path(&format!("{mode}.{extension}"));
            let scanned = server.json(&["scan", "@", "t", "--mode", mode, "--out", &out]);
            assert_eq!((&scanned["row_count"], &scanned["mode"]), (&json!(40), &json!(mode)));
            assert!(scanned["rows"].is_null() && scanned["out_bytes"].as_u64().unwrap() > 1000);
            let copy = format!("{mode}_{extension}");
            // CSV files do not say their types.
            let types = direct["columns"].as_array().unwrap().iter();
            let types: Vec<String> =
                types.map(|c| format!("{}:{}", c["name"].as_str().unwrap(), c["type"].as_str().unwrap())).collect();
            let types = types.join(",");
            let schema: &[&str] = if extension == "csv" { &["--schema", &types] } else { &[] };
            server.json(&[&["load", "@", &copy, &out], schema].concat());
            let again = server.json(&["scan", "@", &copy]);
            assert_eq!(again["rows"], direct["rows"], "{copy}");
            assert_eq!(again["columns"], direct["columns"], "{copy}");
        }
    }
}

#[test]
fn many_rows_from_several_files_scan_as_one_table() {
    let server = Server::start();
    let whole = numbered(60_000);
    let (head, rest) = whole.split_once('\n').unwrap();
    let middle = rest.match_indices('\n').nth(29_999).unwrap().0 + 1;
    let first = server.file("first.csv", format!("{head}\n{}", &rest[..middle]));
    let second = server.file("second.csv", format!("{head}\n{}", &rest[middle..]));
    let loaded = server.json(&["load", "@", "t", &second, &first, "--key", "id"]);
    assert_eq!((&loaded["rows"], &loaded["files"]), (&json!(60_000), &json!(2)));
    let part = server.json(&["scan", "@", "t", "--from", "29990", "--to", "30010", "--columns", "price,id"]);
    let ids: Vec<i64> = part["rows"].as_array().unwrap().iter().map(|row| row["id"].as_i64().unwrap()).collect();
    assert_eq!(ids, (29_990..=30_010).collect::<Vec<_>>());
    assert_eq!(part["rows"][0], json!({ "price": 990.5, "id": 29_990 }));
    for mode in ["copy", "gather", "delta"] {
        let out = server.path(&format!("{mode}.csv"));
        server.ok(&["scan", "@", "t", "--mode", mode, "--out", &out]);
        assert!(std::fs::read_to_string(&out).unwrap() == whole, "{mode}");
    }
    let limited = server.json(&["scan", "@", "t", "--limit", "7"]);
    assert_eq!(limited["rows"].as_array().unwrap().len(), 7);
    let out = server.path("limited.csv");
    assert!(server.ok(&["scan", "@", "t", "--limit", "7", "--out", &out]).starts_with("7 rows"));
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 8);
    // Rows of the same answer that are beyond the limit are not counted.
    let seventh = limited["rows"][6]["id"].to_string();
    let ranged = server.json(&["scan", "@", "t", "--to", &seventh]);
    let exported = server.json(&["scan", "@", "t", "--limit", "7", "--out", &out]);
    assert_eq!([&limited["row_bytes"], &exported["row_bytes"]], [&ranged["row_bytes"]; 2]);
}

#[test]
fn get_put_and_delete_one_row() {
    let server = Server::start();
    let table = server.file("t.csv", "order,line,place,price\n1,1,here,1.5\n1,2,\"there, too\",\n");
    server.ok(&["load", "@", "t", &table, "--key", "order,line", "--schema", "price:decimal(9,2)"]);
    let row = json!({ "order": 1, "line": 1, "place": "here", "price": "1.50" });
    assert_eq!(server.json(&["get", "@", "t", "1,1"]), row);
    assert!(server.ok(&["get", "@", "t", "1,2"]).contains("place   there, too\nprice   null\n"));
    assert_eq!(server.ok(&["put", "@", "t", "-1,7", "\"a, b\",2"]), "put\n");
    let replaced = server.json(&["put", "@", "t", "-1,7", r#"{"price": 3.25}"#]);
    assert_eq!(replaced["replaced"], true);
    let row = json!({ "order": -1, "line": 7, "place": null, "price": "3.25" });
    assert_eq!(server.json(&["get", "@", "t", "-1,7"]), row);
    let first = server.json(&["scan", "@", "t", "--to", "1,1"]);
    assert_eq!(first["rows"].as_array().unwrap().len(), 2);
    let all_of_one = server.json(&["scan", "@", "t", "--from", "1", "--to", "1"]);
    assert_eq!(all_of_one["rows"].as_array().unwrap().len(), 2);
    assert_eq!(server.json(&["delete", "@", "t", "-1,7"])["deleted"], true);
    assert!(server.fails(&["get", "@", "t", "-1,7"]).contains("no row with key -1,7"));
    assert!(server.fails(&["delete", "@", "t", "-1,7"]).contains("no row with key -1,7"));
}

#[test]
fn a_load_says_which_key_it_took_and_replaces_when_told() {
    let server = Server::start();
    let first = server.file("first.csv", "id,v\n1,a\n2,b\n");
    let told = server.ok(&["load", "@", "t", &first]);
    assert!(told.contains("created with key id (the first column; --key chooses others)"), "{told}");
    assert!(told.contains("2 rows loaded"), "{told}");
    let second = server.file("second.csv", "id,v\n2,B\n3,C\n");
    let loaded = server.json(&["load", "@", "t", &second, "--replace"]);
    assert_eq!((&loaded["created"], &loaded["rows"], &loaded["replaced"]), (&json!(false), &json!(2), &json!(1)));
    let rows = server.json(&["scan", "@", "t", "--columns", "v"]);
    assert_eq!(rows["rows"], json!([{ "v": "a" }, { "v": "B" }, { "v": "C" }]));
    let text = server.ok(&["scan", "@", "t"]);
    assert_eq!(text, "id  v\n--  -\n 1  a\n 2  B\n 3  C\n");
}

#[test]
fn a_server_on_two_addresses_serves_the_same_tables() {
    let other = format!("shm:cli-test-other-{}", std::process::id());
    let mut server = Server::with(&["--listen", &other, "--workers", "1"]);
    let mut line = String::new();
    std::io::BufRead::read_line(&mut server.output, &mut line).unwrap();
    assert_eq!(line, format!("listening on {other}\n"));
    let path = server.file("t.csv", numbered(10));
    server.ok(&["load", "@", "t", &path]);
    assert_eq!(server.json(&["get", &other, "t", "7"])["price"], 7.5);
}
