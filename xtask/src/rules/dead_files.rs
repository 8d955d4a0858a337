//! Every Rust file is compiled by something.

use std::collections::BTreeSet;

use super::{Violation, violation};
use crate::tree::Tree;

const RULE: &str = "dead-files";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut reached: BTreeSet<String> =
        tree.packages.iter().flat_map(|p| &p.targets).map(|target| target.root.clone()).collect();
    let mut waiting: Vec<String> = reached.iter().cloned().collect();
    while let Some(path) = waiting.pop() {
        let Some(source) = tree.sources.iter().find(|source| source.path == path) else {
            continue;
        };
        for module in &source.modules {
            for candidate in tree.module_candidates(source, module) {
                if tree.files.contains_key(&candidate) && reached.insert(candidate.clone()) {
                    waiting.push(candidate);
                }
            }
        }
    }
    let unreached = tree.sources.iter().filter(|source| !reached.contains(&source.path));
    unreached
        .filter(|source| !named_elsewhere(tree, &source.path))
        .map(|source| {
            let message = "no target and no `mod` reaches this file: declare it, or delete it";
            violation(RULE, &source.path, 0, message)
        })
        .collect()
}

/// Cases of a compile-fail suite, included files and fuzz targets are named, or their folder
/// is, by a string of the same package or by a manifest above them.
fn named_elsewhere(tree: &Tree, path: &str) -> bool {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let folder_name = format!("{}/", folder.rsplit('/').next().unwrap_or(folder));
    let package = tree.package_of(path).map(|package| package.folder.as_str()).unwrap_or(folder);
    let strings =
        tree.sources.iter().filter(|source| source.path.starts_with(package)).flat_map(|source| &source.strings);
    let in_strings = strings.into_iter().any(|s| s.text.ends_with(file) || s.text.contains(&folder_name));
    let in_manifests = tree.files.iter().any(|(other, text)| {
        let above = other.strip_suffix("/Cargo.toml");
        above.is_some_and(|above| folder.starts_with(above)) && text.contains(&format!("{file}\""))
    });
    in_strings || in_manifests
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn a_file_without_a_mod_is_dead() {
        let tree = planted::tree(&[
            ("crates/table/src/lib.rs", "mod alive;\n// mod dead;\n"),
            ("crates/table/src/alive.rs", "mod deeper;"),
            ("crates/table/src/alive/deeper.rs", ""),
            ("crates/table/src/dead.rs", ""),
        ]);
        let paths: Vec<String> = check(&tree).into_iter().map(|v| v.path).collect();
        assert_eq!(paths, ["crates/table/src/dead.rs"]);
    }

    #[test]
    fn cases_named_by_a_string_live() {
        let tree = planted::tree(&[
            ("crates/table/src/lib.rs", "fn a() { run(\"tests/compile_fail/*.rs\") }"),
            ("crates/table/tests/compile_fail/case.rs", ""),
        ]);
        assert_eq!(check(&tree), []);
    }
}
