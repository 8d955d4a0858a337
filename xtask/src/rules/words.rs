//! Words that must not be committed: unfinished work, and paths of somebody's machine.

use super::{Violation, violation};
use crate::source::Source;
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "words";
const UNFINISHED_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
const UNFINISHED_COMMENTS: [&str; 4] = ["TODO", "FIXME", "XXX", "HACK"];
/// Documents that a reader of this repository does not have, by the names they go by.
const ELSEWHERE: [&str; 2] = ["DESIGN", "ANCHORS"];
/// Assembled, so that this file does not hold what it looks for.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/tmp", "/t-"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!(".cargo/reg", "istry"),
];
const LOCKED_SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Whether a line names such a path, and not a folder of ours that is called alike.
fn names(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric()))
}

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<Violation> = tree.sources.iter().flat_map(unfinished).collect();
    for (path, text) in &tree.files {
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = MACHINE_PATHS.iter().find(|found| names(line, found)) {
                let message = format!("`{found}` is a path of one machine: make it relative");
                violations.push(violation(RULE, path, index + 1, message));
            }
        }
    }
    violations.extend(foreign_sources(tree));
    violations
}

fn unfinished(source: &Source) -> Vec<Violation> {
    let mut violations = Vec::new();
    for name in UNFINISHED_MACROS {
        for at in syntax::words(&source.code, name) {
            if source.code[at + name.len()..].starts_with('!') {
                let message = format!("`{name}!`: finish it, or answer a clear error");
                violations.push(violation(RULE, &source.path, source.line_of(at), message));
            }
        }
    }
    for comment in &source.comments {
        let holds = |word: &&&str| syntax::words(&comment.text, word).next().is_some();
        if let Some(word) = UNFINISHED_COMMENTS.iter().find(holds) {
            let message = format!("`{word}`: finish it, or open an issue");
            violations.push(violation(RULE, &source.path, comment.line, message));
        }
        let names = |word: &&&str| syntax::words(&comment.text, word).next().is_some();
        if let Some(word) = ELSEWHERE.iter().find(names) {
            let message = format!("`{word}` is not in this repository: name docs/architecture.md, or say it here");
            violations.push(violation(RULE, &source.path, comment.line, message));
        }
    }
    violations
}

/// Packages come from crates.io, and no configuration says otherwise.
fn foreign_sources(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in tree.text("Cargo.lock").lines().enumerate() {
        let source = line.strip_prefix("source = ").map(|source| source.trim_matches('"'));
        if source.is_some_and(|source| source != LOCKED_SOURCE) {
            let message = "a package that does not come from crates.io";
            violations.push(violation(RULE, "Cargo.lock", index + 1, message));
        }
    }
    for (index, line) in tree.text(".cargo/config.toml").lines().enumerate() {
        if line.trim_start().starts_with("[source") || line.contains("[registr") {
            let message = "a registry of one machine: keep it out of the repository";
            violations.push(violation(RULE, ".cargo/config.toml", index + 1, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn unfinished_work_is_found() {
        let marked = format!("// {}: later", UNFINISHED_COMMENTS[1]);
        let code = format!("fn a() {{ todo!() }}\n{marked}\nfn b() {{ dbg!(1); }}\nlet todo = 1;\n");
        let tree = planted::tree(&[("crates/table/src/lib.rs", &code)]);
        let mut found = check(&tree);
        found.sort();
        assert_eq!(planted::lines(&found), [1, 2, 3]);
    }

    #[test]
    fn documents_that_nobody_has_are_found() {
        let code = format!("// ({}, Providers)\nfn a() {{}}\n", ELSEWHERE[0]);
        assert_eq!(planted::lines(&check(&planted::tree(&[("crates/table/src/lib.rs", &code)]))), [1]);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let line = format!("see {}x", MACHINE_PATHS[0]);
        let tree = planted::tree(&[("docs/a.md", &line)]);
        assert_eq!(planted::lines(&check(&tree)), [1]);
        let [whole, ours] = ["", "crates/vault/src"].map(|before| format!("see `{before}{}x`", MACHINE_PATHS[2]));
        let tree = planted::tree(&[("docs/a.md", &format!("{ours}\n{whole}\n"))]);
        assert_eq!(planted::lines(&check(&tree)), [2]);
    }

    #[test]
    fn packages_come_from_crates_io() {
        let lock = format!("source = \"{LOCKED_SOURCE}\"\nsource = \"git+https://x\"\n");
        let tree = planted::tree(&[("Cargo.lock", &lock), (".cargo/config.toml", "[source.x]\n")]);
        assert_eq!(planted::lines(&check(&tree)), [2, 1]);
    }
}
