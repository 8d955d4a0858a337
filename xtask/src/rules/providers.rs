//! Nothing below the facade asks which provider it runs on.

use super::{Violation, violation};
use crate::tree::Tree;

const RULE: &str = "providers";
/// What differs between providers is in `Capabilities` and `Profile`.
const BELOW: [&str; 13] = [
    "overside-calibrate",
    "overside-disk",
    "overside-files",
    "overside-service",
    "overside-transfer",
    "overside-verbs",
    "overside-planner",
    "overside-memory",
    "overside-shape",
    "overside-bwtree",
    "overside-table",
    "overside-vault",
    "overside-volume",
];
const NAMES: [&str; 5] = ["shm", "tcp", "ibv", "rdma", "model"];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in tree.sources_of(&BELOW) {
        for literal in source.strings.iter().filter(|literal| source.is_shipped(literal.line)) {
            if NAMES.contains(&literal.text.trim_end_matches(':')) {
                let message = format!(
                    "\"{}\": no provider's name below the facade; state the difference in \
                     Capabilities or Profile",
                    literal.text
                );
                violations.push(violation(RULE, &source.path, literal.line, message));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn provider_names_are_refused_below_the_facade() {
        let code = "fn a(p: &str) {\n  match p { \"shm\" => 1, _ => 2 }\n}\n// \"tcp\"\n";
        let tree = planted::tree(&[("crates/table/src/lib.rs", code), ("crates/overside/src/lib.rs", code)]);
        let found = check(&tree);
        assert_eq!(planted::lines(&found), [2]);
        assert!(found[0].path.contains("table"));
    }
}
