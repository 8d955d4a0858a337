//! What the rules look at: the files of the workspace and its packages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::source::Source;
use crate::syntax;

/// The workspace as it lies on disk, or as a test made it up.
#[derive(Debug, Default)]
pub struct Tree {
    /// Every file that git tracks or would track, binary ones left out, by path.
    pub files: BTreeMap<String, String>,
    /// The Rust files among them.
    pub sources: Vec<Source>,
    pub packages: Vec<Package>,
    /// Names of all packages that the default members pull, features resolved.
    pub default_graph: BTreeSet<String>,
}

/// A member of the workspace.
#[derive(Debug, Clone, Default)]
pub struct Package {
    pub name: String,
    /// Folder from the workspace's root.
    pub folder: String,
    pub targets: Vec<Target>,
    pub edges: Vec<Edge>,
}

/// A library, binary, test, example or bench of a package.
#[derive(Debug, Clone)]
pub struct Target {
    pub kind: String,
    /// Path of its root file.
    pub root: String,
}

/// A dependency as the manifest declares it.
#[derive(Debug, Clone)]
pub struct Edge {
    pub to: String,
    pub dev: bool,
}

impl Tree {
    /// Reads the workspace at `root`.
    pub fn load(root: &Path) -> Result<Tree> {
        let mut files = BTreeMap::new();
        for path in listed(root)? {
            // Unreadable and binary files hold nothing that a rule could judge; a listed file
            // may also be gone, deleted and not yet committed.
            if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
                files.insert(path, text);
            }
        }
        Ok(Tree::new(files, packages(root)?, default_graph(root)?))
    }

    /// A tree of these parts.
    pub fn new(files: BTreeMap<String, String>, packages: Vec<Package>, default_graph: BTreeSet<String>) -> Tree {
        let rust = files.iter().filter(|(path, _)| path.ends_with(".rs"));
        let sources = rust.map(|(path, text)| Source::new(path, text)).collect();
        let mut tree = Tree { files, sources, packages, default_graph };
        tree.mark_test_modules();
        tree
    }

    /// The text of a file, empty if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }

    /// The package whose folder holds `path`.
    pub fn package_of(&self, path: &str) -> Option<&Package> {
        self.packages
            .iter()
            .find(|package| path.strip_prefix(&package.folder).is_some_and(|rest| rest.starts_with('/')))
    }

    /// The Rust files of the packages named.
    pub fn sources_of<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a Source> {
        self.sources
            .iter()
            .filter(move |source| self.package_of(&source.path).is_some_and(|p| names.contains(&p.name.as_str())))
    }

    /// Files in which `mod name;` at `from` may lie, first the usual one.
    pub fn module_candidates(&self, from: &Source, module: &syntax::ModuleFile) -> Vec<String> {
        let (folder, file) = from.path.rsplit_once('/').unwrap_or(("", &from.path));
        if let Some(named) = path_attribute(from, module.at) {
            return vec![format!("{folder}/{named}")];
        }
        let is_target = self.packages.iter().flat_map(|p| &p.targets).any(|target| target.root == from.path);
        let mut base = folder.to_string();
        if !(is_target || matches!(file, "mod.rs" | "lib.rs" | "main.rs")) {
            base = format!("{base}/{}", file.trim_end_matches(".rs"));
        }
        for inside in &module.inside {
            base = format!("{base}/{inside}");
        }
        let name = &module.name;
        vec![format!("{base}/{name}.rs"), format!("{base}/{name}/mod.rs")]
    }

    /// Marks files whose `mod` stands under `#[cfg(test)]`, and the files below those.
    fn mark_test_modules(&mut self) {
        loop {
            // A module may stand twice, for tests and fuzzing with more of it to be seen: then its file is shipped.
            let (mut found, mut shipped) = (BTreeSet::new(), BTreeSet::new());
            for source in &self.sources {
                for module in &source.modules {
                    let for_tests = module.test || source.is_test(source.line_of(module.at));
                    let set = if for_tests { &mut found } else { &mut shipped };
                    set.extend(self.module_candidates(source, module));
                }
            }
            let mut changed = false;
            for source in &mut self.sources {
                let only_for_tests = found.contains(&source.path) && !shipped.contains(&source.path);
                if only_for_tests && !source.is_test(1) {
                    source.mark_test();
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }
}

/// The file that a `#[path = "..."]` before the `mod` at `at` names.
fn path_attribute(source: &Source, at: usize) -> Option<String> {
    let before = source.text[..at].trim_end();
    let before = before.strip_suffix("pub").unwrap_or(before).trim_end();
    let quoted = before.strip_suffix("\"]")?;
    let (rest, name) = quoted.rsplit_once('"')?;
    rest.trim_end().ends_with("#[path =").then(|| name.to_string())
}

/// Paths of all files that git tracks or would track.
fn listed(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
            Ok(text.split('\0').filter(|path| !path.is_empty()).map(str::to_string).collect())
        }
        // Not a checkout (an unpacked archive): everything but build output.
        _ => {
            let mut paths = Vec::new();
            walk(root, "", &mut paths)?;
            Ok(paths)
        }
    }
}

fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_dir() {
            if name != ".git" && !name.starts_with("target") {
                walk(root, &path, paths)?;
            }
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    let output =
        Command::new(env!("CARGO")).args(arguments).current_dir(root).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("`cargo {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("cargo's output is not UTF-8")
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = cargo(root, &["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: Value = serde_json::from_str(&output).context("cargo metadata")?;
    let root = metadata["workspace_root"].as_str().context("no workspace_root")?.to_string();
    let relative = |path: &str| path.strip_prefix(&root).unwrap_or(path).trim_start_matches('/').to_string();
    let list = metadata["packages"].as_array().context("no packages")?;
    Ok(list.iter().map(|package| read_package(package, &relative)).collect())
}

fn read_package(package: &Value, relative: &dyn Fn(&str) -> String) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let manifest = relative(package["manifest_path"].as_str().unwrap_or_default());
    Package {
        name: text(&package["name"]),
        folder: manifest.trim_end_matches("Cargo.toml").trim_end_matches('/').to_string(),
        targets: list(&package["targets"])
            .iter()
            .map(|target| Target {
                kind: text(&target["kind"][0]),
                root: relative(target["src_path"].as_str().unwrap_or_default()),
            })
            .collect(),
        edges: list(&package["dependencies"])
            .iter()
            .map(|edge| Edge { to: text(&edge["name"]), dev: edge["kind"] == "dev" })
            .collect(),
    }
}

/// What `cargo build` of the default members compiles, by package name.
fn default_graph(root: &Path) -> Result<BTreeSet<String>> {
    let output = cargo(root, &["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"])?;
    Ok(output.lines().filter_map(|line| line.split(' ').next()).map(str::to_string).collect())
}
