//! Names: packages after their folders, nothing called after what it is not.

use super::{Violation, violation};
use crate::source::Source;
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "names";
/// What a file is called when nobody knew what it is.
const MEANINGLESS: [&str; 7] = ["common", "util", "utils", "helper", "helpers", "misc", "stuff"];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = package_names(tree);
    for path in tree.files.keys() {
        let named = path.split('/').map(|part| part.trim_end_matches(".rs"));
        for part in named.filter(|part| MEANINGLESS.contains(part)) {
            let message = format!("`{part}` names no idea: name the file for what it holds");
            violations.push(violation(RULE, path, 0, message));
        }
    }
    for source in &tree.sources {
        violations.extend(inline_modules(source));
    }
    violations
}

fn package_names(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &tree.packages {
        let folder = package.folder.rsplit('/').next().unwrap_or("");
        let expected = match folder {
            "overside" | "guest" | "xtask" => folder.to_string(),
            other => format!("overside-{other}"),
        };
        if package.name != expected {
            let message = format!("is called `{}`: its folder makes it `{expected}`", package.name);
            let manifest = format!("{}/Cargo.toml", package.folder);
            violations.push(violation(RULE, &manifest, 0, message));
        }
    }
    violations
}

fn inline_modules(source: &Source) -> Vec<Violation> {
    syntax::words(&source.code, "mod")
        .filter_map(|at| {
            let name = syntax::identifier(&source.code[at + 3..]);
            MEANINGLESS.contains(&name).then(|| {
                let message = format!("`mod {name}` names no idea: name it for what it holds");
                violation(RULE, &source.path, source.line_of(at), message)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn packages_are_named_for_their_folders() {
        let mut tree = planted::tree(&[]);
        tree.packages = vec![planted::package("crates/verbs")];
        tree.packages[0].name = "verbs".to_string();
        assert!(check(&tree)[0].message.contains("`overside-verbs`"));
    }

    #[test]
    fn meaningless_names_are_refused() {
        let tree = planted::tree(&[
            ("crates/verbs/src/utils.rs", ""),
            ("crates/verbs/tests/common/mod.rs", ""),
            ("crates/verbs/src/lib.rs", "\nmod helpers {}\nmod common_key {}\n"),
        ]);
        let found = check(&tree);
        assert_eq!(planted::lines(&found), [0, 0, 2], "{found:?}");
    }
}
