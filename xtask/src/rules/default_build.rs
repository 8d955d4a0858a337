//! What keeps the default build light, and each package's manifest in step.

use super::{Violation, violation};
use crate::tree::Tree;

const RULE: &str = "default-build";

/// Each costs about a minute of build on two cores (trials: 73 s without them, 266 to 367 s
/// with them).
const HEAVY: [&str; 3] = ["arrow-cast", "arrow-ord", "arrow-select"];
/// Crates that will run inside a preload library, where libc's wrappers are the hooks.
const PRELOADED: [&str; 6] =
    ["overside-memory", "overside-verbs", "overside-transfer", "overside-volume", "overside-shm", "overside-ibv"];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for heavy in HEAVY.iter().filter(|heavy| tree.default_graph.contains(**heavy)) {
        let message = format!(
            "the default members pull `{heavy}`, a minute of build: `cargo tree -i {heavy}` \
             shows who; switch that feature off or move the user to crates/peers"
        );
        violations.push(violation(RULE, "Cargo.toml", 0, message));
    }
    violations.extend(fat_lto(tree.text("Cargo.toml")));
    for package in &tree.packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        if tree.files.contains_key(&manifest) && !inherits_lints(tree.text(&manifest)) {
            let message = "add `[lints]` `workspace = true`: the lints are the house's";
            violations.push(violation(RULE, &manifest, 0, message));
        }
        let libc = package.edges.iter().any(|edge| edge.to == "libc" && !edge.dev);
        if PRELOADED.contains(&package.name.as_str()) && libc {
            let message = "uses libc, whose calls re-enter the preload hooks: use rustix";
            violations.push(violation(RULE, &manifest, 0, message));
        }
    }
    violations
}

fn inherits_lints(manifest: &str) -> bool {
    manifest.split("[lints]").nth(1).is_some_and(|rest| rest.trim_start().starts_with("workspace"))
}

fn fat_lto(manifest: &str) -> Vec<Violation> {
    let mut section = "";
    let mut violations = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
        }
        let value = line.strip_prefix("lto").map(|rest| rest.trim_start_matches([' ', '=']).trim());
        if section == "[profile.release]" && matches!(value, Some("true" | "\"fat\"")) {
            let message = "fat LTO costs minutes of the first build: use `\"thin\"` or none";
            violations.push(violation(RULE, "Cargo.toml", index + 1, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn heavy_packages_are_refused() {
        let mut tree = planted::tree(&[]);
        tree.default_graph = ["arrow-array", "arrow-ord"].map(str::to_string).into();
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("`arrow-ord`"));
    }

    #[test]
    fn fat_lto_is_refused_and_thin_is_not() {
        assert_eq!(planted::lines(&fat_lto("[profile.release]\nlto = true\n")), [2]);
        assert_eq!(planted::lines(&fat_lto("[profile.release]\nlto = \"fat\"\n")), [2]);
        assert_eq!(fat_lto("[profile.release]\nlto = \"thin\"\n[profile.x]\nlto = true\n"), []);
    }

    #[test]
    fn manifests_inherit_the_lints_and_shun_libc() {
        let mut tree = planted::tree(&[("crates/shm/Cargo.toml", "[package]\n")]);
        tree.packages = vec![planted::package_using("crates/shm", "libc", false)];
        let found = check(&tree);
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
