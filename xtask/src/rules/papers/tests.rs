use super::super::planted;
use super::*;

const LIB: &str = "crates/table/src/lib.rs";
const SERVER: &str = "crates/table/src/server.rs";

/// A claim in its place among all others.
fn claims(id: &str, lines: &str) -> String {
    let mut text = format!("[[claim]]\nid = \"{id}\"\nwhere = \"§1\"\n{lines}\n");
    for (prefix, count) in COUNTS {
        let others = (1..=count).map(|number| format!("{prefix}{number:02}"));
        for other in others.filter(|other| other != id) {
            let asked = rules().filter(|rule| rule.claim == other).map(|rule| format!("bench {}", rule.figure));
            let asked = asked.collect::<Vec<_>>();
            text += &format!(
                "[[claim]]\nfigure = {asked:?}\nid = \"{other}\"\nwhere = \"§1\"\nstates = \"s\"\nstate = \"not yet\"\nnote = \"n\"\n"
            );
        }
    }
    text
}

fn found_in(id: &str, lines: &str, files: &[(&str, &str)]) -> Vec<String> {
    let claims = claims(id, lines);
    let mut all = vec![(CLAIMS, claims.as_str()), (JOBS, "name: \"sockets\"")];
    all.extend(SCRIPTS);
    all.extend(files);
    let found = check(&planted::tree(&all));
    // Of the planted pages alone.
    found.into_iter().map(|violation| violation.message).filter(|message| !message.contains("lacks the line")).collect()
}

/// A CI that runs all figures.
const SCRIPTS: [(&str, &str); 3] = [
    (
        NIGHTLY,
        "overside bench oltp --json --quick\noverside bench targets --json --quick\noverside bench sockets --json --quick",
    ),
    (CI, ".ci/figures\n.ci/demo\ncargo xtask guest"),
    (
        ".ci/figures",
        "[\"verbs\", \"transmit\", \"delta\", \"consolidate\", \"shuffle\", \"projection\", \"regret\", \"messages\", \"durability\", \"mixed\", \"scans\", \"costs\", \"blocks\", \"policies\", \"clients\"]",
    ),
];

fn found(lines: &str, code: &str) -> Vec<String> {
    found_in("TC-M01", lines, &[(LIB, code), (SERVER, "fn serve() { send() }")])
}

const BUILT: &str = "states = \"s\"\nstate = \"built\"\ncode = [\"crates/table/src/lib.rs\"]\ntest = [\"send_works\"]\n\
                     caller = \"crates/table/src/server.rs:send\"\n";
const TESTED: &str = "mod tests { #[test]\nfn send_works() {} }";

#[test]
fn rows_name_files_tests_and_figures_that_there_are() {
    assert_eq!(found(BUILT, TESTED), [""; 0]);
    assert!(found(BUILT, "")[0].contains("no test `send_works` runs"));
    assert!(found(BUILT, "fn send_works() {}")[0].contains("no test `send_works` runs"));
    assert!(found(BUILT, "#[test]\n#[ignore = \"slow\"]\nfn send_works() {}")[0].contains("no test `send_works` runs"));
    let gone = BUILT.replace("src/lib.rs\"]", "src/gone.rs\"]");
    assert!(found(&gone, TESTED)[0].contains("`crates/table/src/gone.rs` does not exist"));
    for (test, runs) in [(".ci/figures", true), (".ci/gone", false), ("guest: sockets", true), ("guest: gone", false)] {
        assert_eq!(found(&BUILT.replace("send_works", test), "").is_empty(), runs, "{test}");
    }
    for (figure, runs) in [
        ("bench delta: CPU", true),
        ("bench sockets", true),
        ("bench weather", false),
        ("demo", true),
        ("bench oltp", true),
        ("bench targets", true),
    ] {
        let lines = format!("{BUILT}figure = [\"{figure}\"]\n");
        assert_eq!(found(&lines, TESTED).is_empty(), runs, "{figure}");
    }
    // Where no script calls for it.
    let claims = claims("TC-M01", &format!("{BUILT}figure = [\"bench oltp\"]\n"));
    let tree =
        planted::tree(&[(CLAIMS, &claims), (LIB, TESTED), (CI, ""), (NIGHTLY, "overside bench targets --json ")]);
    assert!(check(&tree).iter().any(|found| found.message.starts_with("TC-M01: no figure `bench oltp` runs")));
}

/// A job that no script calls by its name runs where a script calls for all of them.
#[test]
fn jobs_in_a_guest_run_where_they_are_called() {
    let of = |ci: &str, nightly: &str| {
        let jobs = "name: \"sockets\" name: \"scan\" name: \"power\"";
        let tree = planted::tree(&[(CI, ci), (NIGHTLY, nightly), (JOBS, jobs)]);
        ["sockets", "scan", "power"].map(|job| runs(&tree, &BTreeSet::new(), &format!("guest: {job}")))
    };
    assert_eq!(of("within 2100 cargo xtask guest death scan", ""), [false, true, false]);
    assert_eq!(of("", "    cargo xtask guest >\"$log\" 2>&1 || broken=1"), [true, true, false]);
    assert_eq!(of("# cargo xtask guest", "cargo xtask guest power >\"$log\""), [false, false, true]);
}

#[test]
fn states_are_known_and_backed() {
    let state = |state: &str| found(&format!("states = \"s\"\nstate = \"{state}\"\n"), "").join("; ");
    assert!(state("done").contains("the state is one of"));
    assert!(state("built").contains("names no file") && state("built").contains("names no test"));
    assert!(state("not applicable").contains("say in `note`"));
}

#[test]
fn numbers_that_the_paper_states_stay() {
    let row = |states: &str| {
        format!("states = \"{states}\"\nnumbers = [\"1.7\", \"75\"]\nstate = \"not yet\"\nnote = \"n\"\n")
    };
    assert_eq!(found(&row("1.7 times, 75 % less (TC-C01)"), ""), [""; 0]);
    assert_eq!(found(&row("1.7 times"), ""), ["TC-M01: `states` drops the number 75"]);
    assert!(found(&row("1.7 to 75, or 3"), "")[0].contains("has not, the number 3"));
}

#[test]
fn a_mechanism_that_is_built_has_a_shipped_caller() {
    let with = |caller: &str| BUILT.replace("crates/table/src/server.rs:send", caller);
    let files =
        |server: &'static str| [(LIB, TESTED), (SERVER, server), ("crates/bench/src/lib.rs", "fn f() { send() }")];
    let found = |caller: &str, server| found_in("TC-M01", &with(caller), &files(server));
    assert_eq!(found("crates/table/src/server.rs:send", "fn serve() { send() }"), [""; 0]);
    for (caller, server) in [
        ("crates/table/src/gone.rs:send", ""),
        ("crates/table/src/server.rs:send", "fn send() {}"),
        ("crates/table/src/server.rs:send", "#[cfg(test)] mod tests { fn serve() { send() } }"),
        ("crates/table/src/server.rs:send", "// send\nfn serve() { resend() }"),
        ("crates/bench/src/lib.rs:send", ""),
    ] {
        assert!(found(caller, server)[0].contains("is no shipped code that uses `send`"), "{caller} {server}");
    }
    // A module that stands twice, for fuzzing with more of it to be seen, is shipped; one that stands there alone is not.
    let fuzzed = "#[cfg(fuzzing)]\npub mod server;\n";
    for (modules, shipped) in [(format!("mod server;\n{fuzzed}"), true), (fuzzed.to_owned(), false)] {
        let lib = format!("{modules}{TESTED}");
        let found = found_in("TC-M01", BUILT, &[(LIB, &lib), (SERVER, "fn serve() { send() }")]);
        assert_eq!(found.is_empty(), shipped, "{found:?}");
    }
    let none = BUILT.replace("caller = \"crates/table/src/server.rs:send\"\n", "");
    assert!(found_in("TC-M01", &none, &files(""))[0].contains("name in `caller`"));
    let measured = format!("{none}measurement = true\n");
    assert!(found_in("TC-M01", &measured, &files(""))[0].contains("no figure carries out"));
}

#[test]
fn a_claim_that_is_built_has_a_rule_or_a_test() {
    let built = "states = \"s\"\nstate = \"built\"\ncode = [\"crates/table/src/lib.rs\"]\n";
    let found = |id, lines: &str| found_in(id, lines, &[(LIB, TESTED)]);
    assert!(found("TC-C05", built)[0].contains("no rule judges it and no test shows it"));
    assert!(found("TC-C05", &format!("{built}test = [\".ci/figures\"]\n"))[0].contains("no rule"));
    assert_eq!(found("TC-C05", &format!("{built}test = [\"send_works\"]\n")), [""; 0]);
    let figure = "figure = [\"bench delta\"]\n";
    assert_eq!(found("TC-C01", &format!("{built}{figure}")), [""; 0]);
    assert!(found("TC-C01", built)[0].contains("name `bench delta`"));
    let verdict = format!("{built}test = [\"send_works\"]\nverdict = \"agrees\"\n");
    assert!(found("TC-C05", &verdict)[0].contains("has a verdict and no rule"));
}

#[test]
fn every_claim_stands_once() {
    let text = "[[claim]]\nid = \"TC-M99\"\nwhere = \"§1\"\nstates = \"s\"\nstate = \"not yet\"\nnote = \"n\"\n";
    let found = check(&planted::tree(&[(CLAIMS, text)]));
    assert_eq!(
        found.iter().filter(|v| v.message.starts_with("lacks `") && !v.message.contains("of which")).count(),
        436
    );
    assert!(found.iter().any(|v| v.message.contains("`TC-M99` is no claim") && v.line == 1));
    assert!(found.iter().any(|v| v.message == "lacks `TC-C01`, of which a rule judges delta"));
    let twice =
        claims("TC-M01", "states = \"s\"\nstate = \"not yet\"\nnote = \"n\"\n") + text.replace("99", "02").as_str();
    assert!(check(&planted::tree(&[(CLAIMS, &twice)]))[0].message.contains("`TC-M02` stands on line"));
}

#[test]
fn citations_are_of_claims_that_are_built() {
    let row = "states = \"s\"\nstate = \"not yet\"\nnote = \"n\"\n";
    assert!(found_in("TC-M28", row, &[(LIB, "//= to-copy §5.3 TC-M28")])[0].contains("not yet built"));
    assert!(found_in("TC-M28", row, &[(LIB, "//= d-rdma §4.1 DR-M99")])[0].contains("no claim"));
}

#[test]
fn a_page_that_was_written_by_hand_is_stale() {
    let mut figures = String::from("<!-- results: made by `cargo xtask papers` -->\n<!-- end of results -->\n");
    let claims = claims("TC-M01", "states = \"s\"\nstate = \"not yet\"\nnote = \"n\"\n");
    let stale = |figures: &str| {
        let mut all = vec![(CLAIMS, claims.as_str()), (papers::FIGURES, figures), (papers::PAPERS, "by hand")];
        all.extend(SCRIPTS);
        check(&planted::tree(&all)).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(stale(&figures).len(), 2, "{:?}", stale(&figures));
    assert!(stale(&figures).iter().all(|message| message.contains("is stale: run `cargo xtask papers`")));
    figures.clear();
    assert!(stale(&figures)[0].contains("lacks the line"));
}

#[test]
fn a_note_counts_nothing_that_the_next_result_changes() {
    let noted = |note: &str| found(&format!("{BUILT}note = \"{note}\"\n"), TESTED);
    let ruled = |note: &str| {
        let lines = "states = \"1.7\"\nnumbers = [\"1.7\"]\nstate = \"not yet\"\nfigure = [\"bench delta\"]\n";
        found_in("TC-C01", &format!("{lines}note = \"{note}\"\n"), &[])
    };
    for (note, what) in [
        ("all committed runs but the newest made lists", "all committed runs"),
        ("on one of three machines it differs", "one of three machines"),
        ("no full run is there", "no full run"),
        ("16 cores say otherwise", "16 cores"),
        ("in 3 of its 8 steps", "of its 8 steps"),
        ("on Intel it differs", "intel"),
        ("it is 0.29", "0.29"),
    ] {
        assert!(noted(note)[0].contains(&format!("`note` says `{what}`")), "{note}: {:?}", noted(note));
    }
    for note in
        ["a list of runs", "stops between the steps of a split", "committed to memory", "256 entries, 4 KiB, 6 %"]
    {
        assert_eq!(noted(note), [""; 0], "{note}");
    }
    // What the paper states and what a rule asks.
    assert_eq!(ruled("asked is 1.7"), [""; 0]);
    assert!(ruled("asked is 1.7, it is 1.8")[0].contains("`note` says `1.8`"));
}
