//! `cargo xtask papers`: docs/reference/claims.md out of docs/claims.toml and the committed
//! results, and what docs/reference/results.md has of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, bail};
use overside_evidence::{Claim, Judged, Judgement, Kept, Rule, Says, Verdict, rules};

use crate::lines;
use crate::tree::Tree;

pub const CLAIMS: &str = "docs/claims.toml";
pub const PAPERS: &str = "docs/reference/claims.md";
pub const FIGURES: &str = "docs/reference/results.md";
/// Where committed results lie.
pub const RESULTS: &str = "results/";
pub const BEGIN: &str = "<!-- results: made by `cargo xtask papers` -->";
pub const END: &str = "<!-- end of results -->";
/// The papers, by the prefix of their ids.
const TITLES: [(&str, &str); 5] = [
    ("TC", "Kesavan, Ricci, Stutsman: *To Copy or Not to Copy: Making In-Memory Databases Fast on Modern NICs*"),
    ("TH", "Kesavan: *Large Transfers of In-Memory Data Made Fast and Discreet* (only what TC lacks)"),
    ("DR", "Ryser, Lerner, Forencich, Cudré-Mauroux: *D-RDMA: Bringing Zero-Copy RDMA to Database Systems*"),
    ("RS", "*rdma-sockets* (a writeup on sockets over RDMA by a preloaded library)"),
    ("VI", "*vi-attached-storage* (block storage behind a user-level interconnect)"),
];

/// What the papers say, and what results say of it.
#[derive(Debug, Default)]
pub struct Evidence {
    pub claims: Vec<Claim>,
    /// By path.
    pub results: BTreeMap<String, Kept>,
    /// What the results say of each claim that asked one of them.
    pub verdicts: BTreeMap<&'static str, Says>,
}

impl Evidence {
    /// Of a tree; else a line for each file that cannot be read: path, line, what.
    pub fn of(tree: &Tree) -> Result<Evidence, Vec<(String, usize, String)>> {
        let mut wrong = Vec::new();
        let claims = overside_evidence::parse(tree.text(CLAIMS)).unwrap_or_else(|error| {
            let (line, what) = error.split_once(": ").unwrap_or(("0", &error));
            wrong.push((CLAIMS.to_owned(), line.parse().unwrap_or(0), what.to_owned()));
            Vec::new()
        });
        let mut results = BTreeMap::new();
        let files = tree.files.iter().filter(|(path, _)| path.starts_with(RESULTS) && path.ends_with(".json"));
        for (path, text) in files {
            let whole = Kept::read(path, text).and_then(|kept| {
                let run = path.split('/').count() == 4;
                match () {
                    () if !run => Err(format!("{path}: results lie in `{RESULTS}MACHINE/DATE-COMMIT/FIGURE.json`")),
                    () if kept.quick => Err(format!("{path}: a quick run shows shapes alone; commit a full one")),
                    () => kept.judge(path).and_then(|_| kept.bars(path)).map(|_| kept),
                }
            });
            match whole {
                Ok(kept) => drop(results.insert(path.clone(), kept)),
                Err(error) => {
                    let what = error.strip_prefix(&format!("{path}: ")).unwrap_or(&error);
                    wrong.push((path.clone(), 0, what.to_owned()));
                }
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let verdicts = overside_evidence::verdicts(&results).map_err(|error| vec![(RESULTS.to_owned(), 0, error)])?;
        Ok(Evidence { claims, results, verdicts })
    }
}

/// Writes both pages, or checks that they are as they would be written.
pub fn run(root: &Path, check: bool) -> Result<()> {
    let tree = Tree::load(root)?;
    let evidence = match Evidence::of(&tree) {
        Ok(evidence) => evidence,
        Err(wrong) => {
            for (path, line, what) in &wrong {
                eprintln!("{path}:{line}: {what}");
            }
            bail!("{} files cannot be read", wrong.len());
        }
    };
    let claims = with_verdicts(tree.text(CLAIMS), &evidence);
    let [papers, figures] = pages(&tree, &evidence)?;
    for (path, text) in [(CLAIMS, claims), papers, figures] {
        let stale = tree.text(path) != text;
        if stale && check {
            bail!("{path} is stale: run `cargo xtask papers`");
        }
        if stale {
            std::fs::write(root.join(path), text)?;
            println!("{path} written");
        }
    }
    Ok(())
}

/// claims.toml with the verdicts of the committed results: a change of mind is a line of a diff.
fn with_verdicts(text: &str, evidence: &Evidence) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // From the last claim on, so that a line more moves none that is still to be looked at.
    for claim in evidence.claims.iter().rev() {
        let Some(says) = evidence.verdicts.get(claim.id.as_str()).filter(|says| claim.verdict != Some(**says)) else {
            continue;
        };
        let end = lines
            .iter()
            .skip(claim.line)
            .position(|line| line.starts_with("[["))
            .map_or(lines.len(), |at| claim.line + at);
        let find = |key: &str| (claim.line..end).find(|at| lines[*at].starts_with(key));
        let line = format!("verdict = \"{}\"", says.text());
        match (find("verdict = "), find("state = ")) {
            (Some(at), _) => lines[at] = line,
            (None, Some(at)) => lines.insert(at + 1, line),
            (None, None) => {}
        }
    }
    lines.join("\n") + "\n"
}

/// The pages as they should read.
pub fn pages(tree: &Tree, evidence: &Evidence) -> Result<[(&'static str, String); 2]> {
    let figures = tree.text(FIGURES);
    let Some((before, rest)) = figures.split_once(BEGIN) else { bail!("{FIGURES} lacks the line `{BEGIN}`") };
    let Some((_, after)) = rest.split_once(END) else { bail!("{FIGURES} lacks the line `{END}`") };
    let figures = format!("{before}{BEGIN}\n\n{}\n{END}{after}", bars(evidence));
    Ok([(PAPERS, papers(tree, evidence)), (FIGURES, figures)])
}

fn papers(tree: &Tree, evidence: &Evidence) -> String {
    let mut out = String::from(INTRODUCTION);
    for (prefix, title) in TITLES {
        let _ = writeln!(out, "- {prefix}: {title}.");
    }
    out.push('\n');
    out.push_str(&counts(evidence));
    for (prefix, _) in TITLES {
        for (kind, name) in [("M", "mechanisms"), ("C", "claims")] {
            let own = evidence.claims.iter().filter(|claim| claim.id.starts_with(&format!("{prefix}-{kind}")));
            let rows: String = own.map(|claim| row(tree, evidence, claim)).collect();
            let _ = write!(
                out,
                "\n## {prefix}: {name}\n\n| id | what the paper says | code | test | figure | state |\n|---|---|---|---|---|---|\n{rows}"
            );
        }
    }
    out.push_str(&asked(evidence));
    out
}

/// How many are in which state.
fn counts(evidence: &Evidence) -> String {
    let mut out = String::from("| | built | partly | not yet | not applicable |\n|---|---|---|---|---|\n");
    for (prefix, _) in TITLES {
        for (kind, name) in [("M", "mechanisms"), ("C", "claims")] {
            let own = format!("{prefix}-{kind}");
            let count = |state: &str| {
                evidence.claims.iter().filter(|claim| claim.id.starts_with(&own) && claim.state == state).count()
            };
            let [built, partly, not_yet, not] = ["built", "partly", "not yet", "not applicable"].map(count);
            let _ = writeln!(out, "| {prefix}: {name} | {built} | {partly} | {not_yet} | {not} |");
        }
    }
    out
}

fn row(tree: &Tree, evidence: &Evidence, claim: &Claim) -> String {
    let quoted = |all: &[String]| all.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(" ");
    let mut code = quoted(&claim.code);
    if let Some(caller) = &claim.caller {
        let _ = write!(code, "; used by `{caller}`");
    }
    let mut state = claim.state.clone();
    let judged = evidence.verdicts.get(claim.id.as_str()).map(|says| (says, ""));
    match judged.or(claim.verdict.as_ref().map(|says| (says, " (quick runs)"))) {
        Some((says, of)) => drop(write!(state, ": **{}**{of}", says.text())),
        None if rules().any(|rule| rule.claim == claim.id) => state.push_str(": not judged yet"),
        None => {}
    }
    state.push_str(&said(evidence, claim));
    if !claim.note.is_empty() {
        state.push_str(if state == claim.state { ": " } else { "; " });
        state.push_str(&claim.note);
    }
    if !claim.counted.is_empty() {
        let _ = write!(state, "; {}", counted(tree, &claim.counted));
    }
    let (id, says, tests, figures) = (&claim.id, &claim.states, quoted(&claim.tests), claim.figures.join("; "));
    format!("| {id} | {says} ({}) | {code} | {tests} | {figures} | {state} |\n", claim.place)
}

/// What every run says, by machine; with the figure's name where a claim asks more than one.
fn said(evidence: &Evidence, claim: &Claim) -> String {
    let own: Vec<_> = rules().filter(|rule| rule.claim == claim.id).collect();
    if own.iter().all(|rule| of_rule(evidence, rule).is_empty()) {
        return String::new();
    }
    let each = own.iter().map(|rule| {
        let runs =
            of_rule(evidence, rule).into_iter().map(|(run, judgement)| (run, judgement.verdict.text().to_owned()));
        let (runs, figure) = (by_machine(runs), rule.figure);
        match own.len() {
            _ if runs.is_empty() => format!("no full run of {figure}"),
            1 => runs,
            _ => format!("{figure}: {runs}"),
        }
    });
    format!(" ({})", each.collect::<Vec<_>>().join("; "))
}

/// `MACHINE one, another; MACHINE one`, in the order of runs.
fn by_machine(runs: impl IntoIterator<Item = (String, String)>) -> String {
    let mut machines: Vec<(String, Vec<String>)> = Vec::new();
    for (run, says) in runs {
        let machine = run.split_once(", ").map_or(&run[..], |(machine, _)| machine);
        match machines.last_mut() {
            Some((last, all)) if last == machine => all.push(says),
            _ => machines.push((machine.to_owned(), vec![says])),
        }
    }
    let each = machines.iter().map(|(machine, all)| format!("{machine} {}", all.join(", ")));
    each.collect::<Vec<_>>().join("; ")
}

/// Lines of code of each file, of how many in their crates.
fn counted(tree: &Tree, paths: &[String]) -> String {
    let mut crates = BTreeMap::new();
    let each = paths.iter().map(|path| match lines::shipped(tree, path) {
        Some((own, whole)) => {
            crates.insert(path.split("/src/").next().unwrap_or(path), whole);
            format!("`{}` {own}", path.rsplit('/').next().unwrap_or(path))
        }
        None => format!("`{path}` is not there"),
    });
    let each = each.collect::<Vec<_>>().join(", ");
    let whole = crates.iter().map(|(name, lines)| format!("{lines} in `{name}`")).collect::<Vec<_>>().join(", ");
    format!("lines of code: {each}, of {whole}")
}

/// Each half of each rule, and what every run came to.
fn asked(evidence: &Evidence) -> String {
    let mut out = String::from(
        "\n## What each verdict asks\n\nEvery half of a claim must hold. It is measured with its 95 % interval: *agrees* if the interval lies \
         within what is wanted,\n*differs* if it lies outside, else *cannot tell*.\n\n\
         | claim | figure | what is read | wanted | measured, in each committed full run |\n|---|---|---|---|---|\n",
    );
    for rule in rules() {
        let runs = of_rule(evidence, rule);
        for (at, part) in rule.parts.iter().enumerate() {
            let measured = runs.iter().map(|(run, judgement)| {
                let dated = run.rsplit(", ").next().unwrap_or(run);
                (run.clone(), format!("{} ({dated})", reading(&judgement.parts[at])))
            });
            let (measured, Rule { claim, figure, .. }) = (by_machine(measured), rule);
            let _ = writeln!(out, "| {claim} | {figure} | {} | {} | {measured} |", part.says, part.bar);
        }
    }
    out
}

/// What each run of its figure says of a claim.
fn of_rule(evidence: &Evidence, rule: &Rule) -> Vec<(String, Judgement)> {
    let runs = evidence.results.iter().filter(|(_, kept)| kept.name() == rule.figure);
    let judged = |(path, kept): (&String, &Kept)| {
        let measured = overside_evidence::Measured::of(&kept.figure).ok()?;
        let judgement = rule.judge(&measured);
        // What an optional side is not there for is no reading.
        (!rule.optional || judgement.lacks().is_none()).then(|| (run_of(path), judgement))
    };
    runs.filter_map(judged).collect()
}

/// `MACHINE, DATE-COMMIT`.
fn run_of(path: &str) -> String {
    let folder = path.trim_start_matches(RESULTS).rsplit_once('/').map_or("", |(folder, _)| folder);
    folder.replace('/', ", ")
}

fn reading(part: &Judged) -> String {
    let at = if part.at.is_empty() { String::new() } else { format!(" at {}", part.at) };
    part.measured.map_or("not measured".into(), |r| {
        let [median, low, high] = [r.median, r.low, r.high].map(number);
        format!("{median} [{low}, {high}]{at}: {}", part.verdict.text())
    })
}

/// Three digits, or all before the point.
fn number(value: f64) -> String {
    let before = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    format!("{value:.*}", (2.0 - before.min(2.0)) as usize)
}

/// What must be reached, and what each run has reached: a column for each machine, and which of its
/// runs each value is of.
fn bars(evidence: &Evidence) -> String {
    let mut machines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut rows: Vec<(String, BTreeMap<String, Vec<String>>)> = Vec::new();
    for (path, kept) in &evidence.results {
        let run = run_of(path);
        let (machine, run) = run.split_once(", ").unwrap_or((&run, ""));
        let runs = machines.entry(machine.to_owned()).or_default();
        let number = runs.iter().position(|known| known == run).unwrap_or_else(|| {
            runs.push(run.to_owned());
            runs.len() - 1
        });
        for bar in kept.bars(path).unwrap_or_default() {
            let sign = if bar.at_most { '≤' } else { '≥' };
            let row = format!("| {} | {} | {sign} {} |", kept.name(), bar.name, (bar.wanted * 1000.0).round() / 1000.0);
            let measured = bar.ratio.map_or("–".into(), |r| format!("{:.2} [{:.2}, {:.2}]", r.median, r.low, r.high));
            let cell = match bar.verdict {
                Verdict::Met => measured,
                Verdict::Missed => format!("**{measured}**"),
                other => format!("{measured}, {}", other.text()),
            };
            let cell = format!("{cell} ({})", number + 1);
            let at = rows.iter().position(|(known, _)| *known == row).unwrap_or_else(|| {
                rows.push((row, BTreeMap::new()));
                rows.len() - 1
            });
            rows[at].1.entry(machine.to_owned()).or_default().push(cell);
        }
    }
    if rows.is_empty() {
        return "No full run is committed yet: `overside bench all --results results` keeps one.\n".to_owned();
    }
    let names = machines.keys().map(String::as_str).collect::<Vec<_>>();
    let mut table = String::from(
        "What is missed is **bold**. The number behind a value is that of its run.\n\n| machine | runs: day and commit |\n|---|---|\n",
    );
    for (machine, runs) in &machines {
        let numbered = runs.iter().enumerate().map(|(at, run)| format!("({}) {run}", at + 1));
        let _ = writeln!(table, "| {machine} | {} |", numbered.collect::<Vec<_>>().join(", "));
    }
    let columns = names.join(" | ");
    let _ = write!(table, "\n| figure | bar | wanted | {columns} |\n|---|---|---|{}\n", "---|".repeat(names.len()));
    for (row, cells) in &rows {
        let cells = names.iter().map(|name| cells.get(*name).map_or(String::new(), |runs| runs.join("; ")));
        let _ = writeln!(table, "{row} {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    table
}

const INTRODUCTION: &str = "<!-- made by `cargo xtask papers` from docs/claims.toml and results/: edit those -->
# Papers: what is where, and in which state

Five papers stand behind what is built or planned here. Each mechanism (`-M`) and claim (`-C`) has
a row: what the paper says and where, the code, what fails when it breaks, the figure that shows
it, and its state. Code that rests on a row cites it: `//= to-copy §5.3 TC-M28`.

States: **built** (code and test stand; shipped code uses a mechanism; a rule or a test judges a claim),
**partly** (what is missing is named), **not yet**, **not applicable** (with the reason). A verdict
is computed from a figure's JSON by the rules below; beside it stands what each committed full run
says, by machine, and the last table has what was measured. Where no full run is committed, it is
the one of quick runs, which show shapes alone. A claim without a verdict has not been judged.

Absolute figures belong to the papers' machines. What is checked here is checked as a ratio within
one run, over a provider of this host.

What the papers have in addition, and no row names:

- *RAMCloud's own migration as a baseline* (thesis). There is no migration here to compare it with;
  TH-M18 to TH-M21 are not built.
- *The cluster that the thesis presupposes*: tablets, a coordinator, replicated memory, recovery by
  many. Not built: a server here is one. TH-M17 has its log and its recovery.
- *No consolidation at all* (To Copy §4.1). Not built: readers walk each chain, and one ends at 200
  deltas (`bwtree::Options::chain_max`). `bench consolidate` has the curve up to 32.
- *Shorter commands on the bus* (D-RDMA, figure 1), *segments read in parallel* (§6), *places of
  boxes* (figure 10). They belong to the model NIC, which is not built. The processor's side is
  DR-C12.
- *Other layouts and operations* (D-RDMA §1). Shuffle and projection are measured, others are not.
  Columns under a dictionary are built (DR-M53).
- *Converged Ethernet and other networks* (rdma-sockets). RoCE runs in the guest, as software
  (`cargo xtask guest`). No other network has been tried.
- *How vi-attached-storage measured.* Disks alike, local and behind a node: VI-C18, VI-C28, VI-C48.
  Instead of a cache of 64 MB, hits are chosen by place. What batched writes save is not timed
  (VI-M10). AWE is Windows' own (VI-M36). Control operations are named in VI-M02.

The papers:

";

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        "[[claim]]\nid = \"TC-C02\"\nwhere = \"§1\"\nstates = \"75 % less\"\nnumbers = [\"75\"]\nstate = \"built\"\n";

    fn tree(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Tree::new(files, Vec::new(), Default::default())
    }

    /// A run of a figure that has all that rules ask of it, each of it once.
    fn delta(work: u64) -> String {
        let place = |series: &str, x: u64, work: u64| {
            serde_json::json!({"series": series, "x": x, "rounds": {"bytes": [1000, 1000, 1000], "wall_ns": [1000, 1000, 1000],
                "requests": [1, 1, 1], "sender_ns": [work, work, work], "sender_poll_ns": [0, 0, 0]}})
        };
        let mut points: Vec<_> = [0, 1, 4, 32].map(|x| place("page and deltas 128 B, 15 clients", x, work)).into();
        points.extend([0, 32].map(|x| place("page and deltas 1024 B, 15 clients", x, work)));
        points.push(place("scattered 128 B, 15 clients", 4, 100));
        let bars = serde_json::json!([{"name": "work", "wanted": 2.0, "ratio": {"median": 3.0, "low": 2.5, "high": 3.5, "rounds": 9}}]);
        let figure = serde_json::json!({"figure": "delta", "points": points, "bars": bars});
        serde_json::json!({"format": 1, "commit": "0a1b2c3d", "date": "2026-11-25", "quick": false, "machine": {}, "figure": figure})
            .to_string()
    }

    #[test]
    fn results_are_joined_with_their_intervals_and_runs() {
        let page = format!("# Figures\n{BEGIN}\nformer\n{END}\nmore\n");
        let runs = ["p/2026-11-25-0a1b2c3d", "p/2026-11-26-0a1b2c3d", "q/2026-11-25-0a1b2c3d"];
        let runs = runs.map(|run| format!("results/{run}/delta.json"));
        let measured = delta(10);
        let mut files = vec![(CLAIMS, ONE), (FIGURES, page.as_str())];
        files.extend(runs.iter().map(|run| (run.as_str(), measured.as_str())));
        let tree = tree(&files);
        let evidence = Evidence::of(&tree).unwrap();
        assert_eq!(evidence.verdicts["TC-C02"], Says::Agrees);
        let [(_, papers), (_, figures)] = pages(&tree, &evidence).unwrap();
        let row = "| TC-C02 | 75 % less (§1) |  |  |  | built: **agrees** (p agrees, agrees; q agrees) |";
        assert!(papers.contains(row), "{papers}");
        let row = "| ≤ 0.25 | p 0.100 [0.100, 0.100]: agrees (2026-11-25-0a1b2c3d), 0.100 [0.100, 0.100]: agrees (2026-11-26-0a1b2c3d); q 0.100";
        assert!(papers.contains(row), "{papers}");
        let row = "| delta | work | ≥ 2 | 3.00 [2.50, 3.50] (1); 3.00 [2.50, 3.50] (2) | 3.00 [2.50, 3.50] (1) |\n";
        assert!(
            figures.contains(
                "| p | (1) 2026-11-25-0a1b2c3d, (2) 2026-11-26-0a1b2c3d |\n| q | (1) 2026-11-25-0a1b2c3d |\n"
            ),
            "{figures}"
        );
        assert!(figures.contains("| wanted | p | q |\n|---|---|---|---|---|\n"), "{figures}");
        assert!(figures.contains(row) && figures.ends_with("more\n") && !figures.contains("former"), "{figures}");
    }

    #[test]
    fn verdicts_of_results_are_written_into_the_claims() {
        let other = ONE.replace("C02", "C06");
        let claims =
            format!("# head\n{ONE}verdict = \"differs\"\nnote = \"why\"\n\n{other}\n{}", ONE.replace("C02", "C33"));
        let tree = tree(&[(CLAIMS, &claims), ("results/p/2026-11-25-0a1b2c3d/delta.json", &delta(10))]);
        let written = with_verdicts(&claims, &Evidence::of(&tree).unwrap());
        let verdicts: Vec<_> = overside_evidence::parse(&written).unwrap().iter().map(|claim| claim.verdict).collect();
        assert_eq!(verdicts, [Some(Says::Agrees), None, Some(Says::Agrees)], "{written}");
        assert!(
            written.starts_with("# head\n[[claim]]\nid = \"TC-C02\"")
                && written.contains("verdict = \"agrees\"\nnote = \"why\"")
        );
    }

    #[test]
    fn lines_of_code_are_counted_as_the_page_is_made() {
        let claims = format!("{ONE}counted = [\"crates/a/src/one.rs\", \"crates/a/src/none.rs\"]\n");
        let files = [
            (CLAIMS, &claims[..]),
            (FIGURES, &format!("{BEGIN}\n{END}\n")),
            ("crates/a/src/one.rs", "//! Words.\nfn one() {}\n\n#[cfg(test)]\nmod tests {\n    fn two() {}\n}\n"),
            ("crates/a/src/lib.rs", "mod one;\nuse one::one;\n"),
        ];
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let package = crate::tree::Package { folder: "crates/a".to_owned(), ..Default::default() };
        let tree = Tree::new(files, vec![package], Default::default());
        let [(_, papers), _] = pages(&tree, &Evidence::of(&tree).unwrap()).unwrap();
        let row = "lines of code: `one.rs` 1, `crates/a/src/none.rs` is not there, of 3 in `crates/a` |";
        assert!(papers.contains(row), "{papers}");
    }

    #[test]
    fn without_results_quick_verdicts_are_called_so() {
        let claims = format!("{ONE}verdict = \"agrees\"\nnote = \"why\"\n");
        let page = format!("{BEGIN}\n{END}\n");
        let tree = tree(&[(CLAIMS, &claims), (FIGURES, &page)]);
        let [(_, papers), (_, figures)] = pages(&tree, &Evidence::of(&tree).unwrap()).unwrap();
        assert!(papers.contains("built: **agrees** (quick runs); why |"), "{papers}");
        assert!(figures.contains("No full run is committed yet"));
    }

    #[test]
    fn files_that_cannot_be_read_are_named_in_one_line() {
        let path = "results/p/2026-11-25-0a1b2c3d/delta.json";
        let whole = delta(10);
        let cases = [
            (&whole[..200], "cut short"),
            (&whole.replace("\"format\":1", "\"format\":2"), "of version 2"),
            (&whole.replace("scattered", "strewn"), "lacks the series `scattered 128 B, 15 clients` at 4"),
            (&whole.replace("\"quick\":false", "\"quick\":true"), "a quick run"),
            (&whole.replace("\"wanted\"", "\"asked\""), "a bar is not whole"),
        ];
        for (text, says) in cases {
            let wrong = Evidence::of(&tree(&[(CLAIMS, ONE), (path, text)])).unwrap_err();
            assert_eq!(wrong.len(), 1);
            assert!(wrong[0].0 == path && wrong[0].2.contains(says), "{wrong:?}");
        }
        let wrong = Evidence::of(&tree(&[(CLAIMS, ONE), ("results/delta.json", &whole)])).unwrap_err();
        assert!(wrong[0].2.contains("MACHINE/DATE-COMMIT"), "{wrong:?}");
        let wrong = Evidence::of(&tree(&[(CLAIMS, "[[claim]]\nid = 3\n")])).unwrap_err();
        assert_eq!((wrong[0].0.as_str(), wrong[0].1), (CLAIMS, 2));
    }
}
