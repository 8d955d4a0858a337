//! What must not stand in the crates that will run inside a preload library.
//!
//! There, the program's own sockets and files are hooked, its threads are not ours to add
//! to, thread-locals with destructors run at the wrong time and its stdout is its own.

use super::{Violation, violation};
use crate::source::Source;
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "preload-safe";
const CRATES: [&str; 6] =
    ["overside-memory", "overside-verbs", "overside-transfer", "overside-volume", "overside-shm", "overside-ibv"];
const PATHS: [(&str, &str); 8] = [
    ("std::net", "sockets go through rustix"),
    ("std::os::unix::net", "sockets go through rustix"),
    ("std::fs", "files go through rustix"),
    ("std::thread", "the caller's thread drives everything; this crate starts none"),
    ("std::process", "processes are the caller's"),
    ("std::env", "the environment is the program's: let the caller pass the value"),
    ("tracing", "no logging here: return an error, or count it in the statistics"),
    ("log", "no logging here: return an error, or count it in the statistics"),
];
/// What tells where the process stands without touching its threads or environment.
const HARMLESS: [&str; 2] = ["std::thread::panicking", "std::process::abort"];
/// Where a thread is the remedy: closing what a peer passed may take for ever, and no caller waits
/// for that. None is made unless a peer passes what no honest one does.
const CLOSING: &str = "crates/providers/shm/src/closing.rs";
const MACROS: [&str; 4] = ["println", "eprintln", "print", "eprint"];

pub fn check(tree: &Tree) -> Vec<Violation> {
    tree.sources_of(&CRATES).flat_map(check_source).collect()
}

fn check_source(source: &Source) -> Vec<Violation> {
    let code = &source.code;
    let mut found: Vec<(usize, String)> = Vec::new();
    for (at, path) in syntax::use_paths(code) {
        found.extend(forbidden(&path).map(|why| (at, format!("`use {path}`: {why}"))));
    }
    for (prefix, _) in PATHS {
        for at in syntax::words(code, prefix) {
            let end = code[at..].find(|c: char| !(c == '_' || c == ':' || c.is_alphanumeric()));
            let path = &code[at..at + end.unwrap_or(code.len() - at)];
            let is_path = path.contains("::") && !code[..at].ends_with("::");
            let why = if is_path { forbidden(path) } else { None };
            found.extend(why.map(|why| (at, format!("`{path}`: {why}"))));
        }
    }
    for name in MACROS {
        let calls = syntax::words(code, name).filter(|at| code[at + name.len()..].starts_with('!'));
        found.extend(calls.map(|at| (at, format!("`{name}!`: stdout and stderr are the program's"))));
    }
    found.extend(
        syntax::words(code, "thread_local")
            .map(|at| (at, "`thread_local!`: destructors run at the wrong time".to_string())),
    );
    let closes = source.path == CLOSING;
    let violations = found.into_iter().filter(|(_, message)| !closes || !message.contains("std::thread"));
    violations
        .map(|(at, message)| violation(RULE, &source.path, source.line_of(at), message))
        .filter(|violation| source.is_shipped(violation.line))
        .collect()
}

fn forbidden(path: &str) -> Option<&'static str> {
    let below = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    if HARMLESS.contains(&path) {
        return None;
    }
    PATHS.iter().find(|(prefix, _)| below(prefix)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    fn found(code: &str) -> Vec<Violation> {
        let mut found = check(&planted::tree(&[("crates/verbs/src/lib.rs", code)]));
        found.sort();
        found.dedup_by_key(|violation| violation.line);
        found
    }

    #[test]
    fn imports_calls_and_macros_are_found() {
        let code = "use std::{io, fs};\nfn a() {\n  std::thread::spawn(b);\n  println!();\n\
                    tracing::info!();\n}\nthread_local! {}\nuse std::os::unix::net::UnixStream;\n";
        assert_eq!(planted::lines(&found(code)), [1, 3, 4, 5, 7, 8]);
    }

    #[test]
    fn tests_comments_and_other_crates_are_free() {
        let code = "// std::fs\nuse std::io;\nfn a() { std::thread::panicking(); b.log(c) }\n\
                    #[cfg(test)]\nmod tests {\n  use std::thread;\n}\n";
        assert_eq!(found(code), []);
        let example = ("crates/verbs/examples/a.rs", "use std::fs;");
        assert_eq!(check(&planted::tree(&[("crates/verbs/src/lib.rs", ""), example])), []);
        let tree = planted::tree(&[("crates/bench/src/lib.rs", "use std::fs;")]);
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn what_closes_may_have_threads_and_nothing_else() {
        let code = "fn a() { std::thread::spawn(b); std::fs::read(c); }\n";
        let tree = planted::tree(&[("crates/providers/shm/src/lib.rs", code), (CLOSING, code)]);
        let found = check(&tree);
        let of = |path: &str| found.iter().filter(|violation| violation.path == path).count();
        assert_eq!((of(CLOSING), of("crates/providers/shm/src/lib.rs")), (1, 2), "{found:?}");
    }
}
