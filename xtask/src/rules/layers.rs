//! The modules of `preload` form layers: each names those of its own and of lower ones alone, and
//! none in a circle.
//!
//! The layers are the groups of `mod` lines in the crate's `lib.rs`, each under a comment that says
//! what it is, the lowest first.

use std::collections::{BTreeMap, BTreeSet};

use super::{Violation, violation};
use crate::source::Source;
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "layers";
const FOLDER: &str = "crates/preload/src/";

/// Who names whom, and where first.
type Uses<'a> = BTreeMap<String, BTreeMap<String, (&'a Source, usize)>>;

pub fn check(tree: &Tree) -> Vec<Violation> {
    let Some(root) = tree.sources.iter().find(|source| source.path == format!("{FOLDER}lib.rs")) else {
        return Vec::new();
    };
    let layers = layers(root);
    let uses = uses(tree, &layers);
    let mut violations = Vec::new();
    for (module, named) in &uses {
        for (other, (source, line)) in named {
            if layers[other] > layers[module] {
                let message =
                    format!("`{module}` names `{other}`, which is of a layer above (lib.rs): move what it needs down");
                violations.push(violation(RULE, &source.path, *line, message));
            }
        }
    }
    if let Some(circle) = circle(&uses) {
        let (source, line) = uses[&circle[0]][&circle[1]];
        let message = format!("modules name each other in a circle, {}: cut it", circle.join(" → "));
        violations.push(violation(RULE, &source.path, line, message));
    }
    violations
}

/// The layer of each module that is shipped.
fn layers(root: &Source) -> BTreeMap<String, usize> {
    let (mut layers, mut layer, mut in_comment) = (BTreeMap::new(), 0, false);
    for (index, line) in root.text.lines().enumerate() {
        let is_comment = line.starts_with("// ");
        layer += usize::from(is_comment && !in_comment);
        in_comment = is_comment;
        let name = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ").map(syntax::identifier);
        if let Some(name) = name.filter(|_| !root.is_test(index + 1) || line.starts_with("pub ")) {
            layers.entry(name.to_string()).or_insert(layer);
        }
    }
    layers
}

fn uses<'a>(tree: &'a Tree, layers: &BTreeMap<String, usize>) -> Uses<'a> {
    let mut uses = Uses::new();
    for source in &tree.sources {
        let Some(path) = source.path.strip_prefix(FOLDER) else { continue };
        let module = syntax::identifier(path);
        if !layers.contains_key(module) {
            continue;
        }
        let mut found: Vec<(usize, String)> = syntax::use_paths(&source.code);
        found.extend(syntax::words(&source.code, "crate").map(|at| {
            let end = source.code[at..].find(|c: char| !(c == '_' || c == ':' || c.is_alphanumeric()));
            (at, source.code[at..at + end.unwrap_or(source.code.len() - at)].to_string())
        }));
        for (at, path) in found {
            let line = source.line_of(at);
            let Some(rest) = path.strip_prefix("crate::").filter(|_| source.is_shipped(line)) else { continue };
            let other = syntax::identifier(rest);
            if other != module && layers.contains_key(other) {
                let named: &mut BTreeMap<_, _> = uses.entry(module.to_string()).or_default();
                named.entry(other.to_string()).or_insert((source, line));
            }
        }
    }
    uses
}

/// Modules that name one another, the first of them again at the end.
fn circle(uses: &Uses<'_>) -> Option<Vec<String>> {
    fn follow(uses: &Uses<'_>, path: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
        let last = path[path.len() - 1].clone();
        for next in uses.get(&last).into_iter().flat_map(BTreeMap::keys) {
            if let Some(at) = path.iter().position(|module| module == next) {
                path.drain(..at);
                path.push(next.clone());
                return true;
            }
            path.push(next.clone());
            if !done.contains(next) && follow(uses, path, done) {
                return true;
            }
            path.pop();
        }
        done.insert(last);
        false
    }
    let mut done = BTreeSet::new();
    uses.keys().find_map(|module| {
        let mut path = vec![module.clone()];
        (!done.contains(module) && follow(uses, &mut path, &mut done)).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const ROOT: &str =
        "//! All.\n\n// Below.\nmod low;\nmod other;\n\n// Above.\nmod high;\n\n#[cfg(test)]\nmod walk;\n";

    fn found(low: &str, other: &str, high: &str) -> Vec<Violation> {
        let file = |name: &str| format!("{FOLDER}{name}");
        check(&planted::tree(&[
            (&file("lib.rs"), ROOT),
            (&file("low.rs"), low),
            (&file("other/mod.rs"), other),
            (&file("high.rs"), high),
            (&file("walk.rs"), "use crate::high;"),
        ]))
    }

    #[test]
    fn a_module_that_names_one_above_is_found() {
        for low in ["\nuse crate::{other, high::Thing};\n", "\nfn a() { crate::high::b(); }\n"] {
            let found = found(low, "", "use crate::low;\n");
            assert!(found.iter().any(|found| found.path.ends_with("low.rs") && found.line == 2), "{found:?}");
        }
        assert_eq!(
            found("use crate::other;\n#[cfg(test)]\nmod tests {\n use crate::high;\n}\n", "", "use crate::low;"),
            []
        );
    }

    #[test]
    fn a_circle_within_a_layer_is_found() {
        let found = found("use crate::other;\n", "use crate::low;\n", "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("low → other → low"), "{found:?}");
    }
}
