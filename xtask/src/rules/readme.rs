//! What README.md and the other pages quote equals what CI runs.

use super::{Violation, violation};
use crate::tree::Tree;

const RULE: &str = "readme";
const README: &str = "README.md";
const CI: &str = ".ci/run";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let readme = tree.text(README);
    let pages = tree.files.iter().filter(|(path, _)| path.ends_with(".md"));
    let mut violations: Vec<Violation> = pages.flat_map(|(path, page)| quotes(tree, path, page)).collect();
    let tests = readme.lines().find(|line| line.starts_with("cargo test "));
    match tests {
        Some(command) if !tree.text(CI).lines().any(|line| unlimited(line.trim()) == command) => {
            let message = format!("the README's test command `{command}` is not what this runs");
            violations.push(violation(RULE, CI, 0, message));
        }
        Some(_) => {}
        None => violations.push(violation(RULE, README, 0, "has no line `cargo test …`")),
    }
    violations
}

/// A line of the CI script without the time limit that it may carry there.
fn unlimited(line: &str) -> &str {
    let limited = line.strip_prefix("within ").and_then(|rest| rest.split_once(' '));
    limited.map_or(line, |(_seconds, command)| command)
}

/// A fenced block after `<!-- file: PATH -->` is that file.
fn quotes(tree: &Tree, page: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let mark = line.strip_prefix("<!-- file: ").and_then(|rest| rest.strip_suffix(" -->"));
        let Some(path) = mark else { continue };
        let block = lines[index + 1..].iter().skip_while(|line| !line.starts_with("```")).skip(1);
        let block: Vec<&str> = block.take_while(|line| !line.starts_with("```")).copied().collect();
        let file: Vec<&str> = tree.text(path).lines().collect();
        if block != file {
            let message = format!("the block below differs from `{path}`: copy the file anew");
            violations.push(violation(RULE, page, index + 1, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const COMMAND: &str = "cargo test --workspace\n";

    #[test]
    fn quoted_files_are_quoted_whole() {
        let readme = format!("<!-- file: a.rs -->\n```rust\nfn a() {{}}\n```\n{COMMAND}");
        let with = |file| check(&planted::tree(&[(README, &readme), ("a.rs", file), (CI, COMMAND)]));
        assert_eq!(with("fn a() {}\n"), []);
        assert_eq!(planted::lines(&with("fn b() {}\n")), [1]);
    }

    #[test]
    fn ci_runs_the_test_command() {
        let with = |ci| check(&planted::tree(&[(README, COMMAND), (CI, ci)]));
        assert_eq!(with("set -e\ncargo test --workspace\n"), []);
        assert_eq!(with("within 2400 cargo test --workspace\n"), []);
        assert_eq!(with("cargo test -p shape\n").len(), 1);
        assert_eq!(with("within 2400 cargo test -p shape\n").len(), 1);
        assert_eq!(check(&planted::tree(&[])).len(), 1);
    }
}
