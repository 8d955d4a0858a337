//! The dependency table of docs/architecture.md against the manifests.

use super::{Violation, violation};
use crate::tree::{Package, Tree};

const RULE: &str = "dependencies";
const LAW: &str = "docs/architecture.md";
const MARK: &str = "<!-- tidy: dependencies -->";

/// A line of the table.
struct Row<'a> {
    line: usize,
    text: &'a str,
    name: &'a str,
    uses: Vec<&'a str>,
    tests_use: Vec<&'a str>,
    later: bool,
}

pub fn check(tree: &Tree) -> Vec<Violation> {
    let rows = rows(tree.text(LAW));
    if rows.is_empty() {
        let message = format!("has no dependency table after `{MARK}`");
        return vec![violation(RULE, LAW, 0, message)];
    }
    let mut violations = Vec::new();
    for package in &tree.packages {
        match rows.iter().find(|row| package_name(row.name) == package.name) {
            Some(row) => violations.extend(check_edges(tree, package, row)),
            None => violations.push(violation(
                RULE,
                &format!("{}/Cargo.toml", package.folder),
                0,
                format!("`{}` has no line in the table of {LAW}: add one first", package.name),
            )),
        }
    }
    for row in rows.iter().filter(|row| !row.later) {
        if !tree.packages.iter().any(|package| package.name == package_name(row.name)) {
            let message = format!("`{}` is no crate of the workspace: say *later*", row.name);
            violations.push(violation(RULE, LAW, row.line, message));
        }
    }
    violations
}

fn check_edges(tree: &Tree, package: &Package, row: &Row<'_>) -> Vec<Violation> {
    let ours = |name: &str| tree.packages.iter().any(|package| package.name == name);
    let allowed = |list: &[&str], to: &str| list.iter().any(|name| package_name(name) == to);
    let mut violations = Vec::new();
    for edge in package.edges.iter().filter(|edge| ours(&edge.to)) {
        let in_tests = edge.dev && (allowed(&row.tests_use, &edge.to) || edge.to == package.name);
        if allowed(&row.uses, &edge.to) || in_tests {
            continue;
        }
        let kind = if edge.dev { "dev-dependency" } else { "dependency" };
        let message = format!(
            "{kind} on `{}` is forbidden by {LAW} line {}: `{}`; drop it, or change that line \
             first, with the reason",
            edge.to, row.line, row.text
        );
        violations.push(violation(RULE, &format!("{}/Cargo.toml", package.folder), 0, message));
    }
    violations
}

fn rows(law: &str) -> Vec<Row<'_>> {
    let after = law.lines().enumerate().skip_while(|(_, line)| line.trim() != MARK);
    let table = after.skip(1).skip_while(|(_, line)| line.trim().is_empty());
    table
        .take_while(|(_, line)| line.starts_with('|'))
        .filter_map(|(index, text)| {
            let inner = text.trim().strip_prefix('|')?.strip_suffix('|')?;
            let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
            let [name, what, uses, tests_use] = cells[..] else {
                return None;
            };
            if name == "crate" || name.starts_with('-') {
                return None;
            }
            Some(Row {
                line: index + 1,
                text: text.trim(),
                name: name.trim_matches('`'),
                uses: uses.split_whitespace().collect(),
                tests_use: tests_use.split_whitespace().collect(),
                later: what.contains("*later*"),
            })
        })
        .collect()
}

/// The package name of a crate of the table: the last part of its folder, prefixed.
fn package_name(row: &str) -> String {
    match row.rsplit('/').next().unwrap_or(row) {
        own @ ("overside" | "guest" | "xtask") => own.to_string(),
        other => format!("overside-{other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const TABLE: &str = "<!-- tidy: dependencies -->\n\n| crate | what | may use | tests |\n\
                         |---|---|---|---|\n| `verbs` | qps | memory | |\n\
                         | `memory` | bytes | | |\n| `providers/shm` | x | verbs | conformance |\n\
                         | `conformance` | suite | verbs | |\n| `volume` | *later* | | |\n";

    fn tree(using: Package) -> Tree {
        let mut tree = planted::tree(&[(LAW, TABLE)]);
        let folders = ["verbs", "memory", "providers/shm", "conformance"];
        tree.packages = folders.map(|folder| planted::package(&format!("crates/{folder}"))).to_vec();
        tree.packages.retain(|package| package.name != using.name);
        tree.packages.push(using);
        tree
    }

    #[test]
    fn an_upward_edge_names_its_line() {
        let found = check(&tree(planted::package_using("crates/memory", "overside-verbs", false)));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("line 6: `| `memory` | bytes | | |`"), "{}", found[0]);
    }

    #[test]
    fn edges_of_the_table_pass() {
        let down = planted::package_using("crates/verbs", "overside-memory", false);
        assert_eq!(check(&tree(down)), []);
        let test = planted::package_using("crates/providers/shm", "overside-conformance", true);
        assert_eq!(check(&tree(test)), []);
        let built = planted::package_using("crates/providers/shm", "overside-conformance", false);
        assert_eq!(check(&tree(built)).len(), 1, "the suite is for tests only");
    }

    #[test]
    fn table_and_workspace_list_the_same_crates() {
        let mut tree = tree(planted::package("crates/verbs"));
        tree.packages.push(planted::package("crates/stray"));
        tree.packages.retain(|package| package.name != "overside-memory");
        let found = check(&tree);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|v| v.message.contains("`overside-stray` has no line")));
        assert!(found.iter().any(|v| v.message.contains("`memory` is no crate")));
    }
}
