//! The house rules, one file for each kind.
//!
//! A rule is a function from the tree to its violations. Each has a test beside it that
//! plants a violation and expects it to be found.

use std::fmt;

use crate::tree::Tree;

mod dead_files;
mod default_build;
mod dependencies;
mod layers;
mod lengths;
mod links;
mod names;
mod papers;
mod preload_safe;
mod prose;
mod providers;
mod readme;
mod rustdoc;
mod sim_safe;
mod unsafety;
mod words;

/// A breach of a rule: where, which, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub path: String,
    /// From 1; 0 when the file as a whole is meant.
    pub line: usize,
    pub rule: &'static str,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: [{}] {}", self.path, self.rule, self.message),
            line => write!(f, "{}:{line}: [{}] {}", self.path, self.rule, self.message),
        }
    }
}

/// All violations in `tree`, by path and line.
pub fn check(tree: &Tree) -> Vec<Violation> {
    const RULES: [fn(&Tree) -> Vec<Violation>; 16] = [
        dependencies::check,
        default_build::check,
        names::check,
        unsafety::check,
        preload_safe::check,
        providers::check,
        sim_safe::check,
        layers::check,
        lengths::check,
        words::check,
        dead_files::check,
        papers::check,
        readme::check,
        links::check,
        prose::check,
        rustdoc::check,
    ];
    let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    violations.sort();
    violations.dedup();
    violations
}

/// What is worth a look and fails nothing.
pub fn warnings(tree: &Tree) -> Vec<Violation> {
    lengths::warnings(tree)
}

fn violation(rule: &'static str, path: &str, line: usize, message: impl Into<String>) -> Violation {
    Violation { path: path.to_string(), line, rule, message: message.into() }
}

/// Made-up trees for the rules' tests.
#[cfg(test)]
pub(crate) mod planted {
    use std::collections::{BTreeMap, BTreeSet};

    use super::Violation;
    use crate::tree::{Edge, Package, Target, Tree};

    /// A tree of the given files; each `crates/…` folder with a `src` is a package.
    pub fn tree(files: &[(&str, &str)]) -> Tree {
        let files: BTreeMap<String, String> =
            files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        let folders: BTreeSet<String> =
            files.keys().filter_map(|path| path.split_once("/src/")).map(|(folder, _)| folder.to_string()).collect();
        let packages = folders.iter().map(|folder| package(folder)).collect();
        Tree::new(files, packages, BTreeSet::new())
    }

    /// The package that belongs in `folder`, with its library's root.
    pub fn package(folder: &str) -> Package {
        let last = folder.rsplit('/').next().unwrap_or(folder);
        let name = match last {
            "overside" | "guest" | "xtask" => last.to_string(),
            other => format!("overside-{other}"),
        };
        let root = format!("{folder}/src/lib.rs");
        let targets = vec![Target { kind: "lib".to_string(), root }];
        Package { name, folder: folder.to_string(), targets, edges: Vec::new() }
    }

    /// A package with a dependency.
    pub fn package_using(folder: &str, to: &str, dev: bool) -> Package {
        Package { edges: vec![Edge { to: to.to_string(), dev }], ..package(folder) }
    }

    /// The lines of violations, for short assertions.
    pub fn lines(violations: &[Violation]) -> Vec<usize> {
        violations.iter().map(|violation| violation.line).collect()
    }
}
