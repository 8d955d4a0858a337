//! `cargo xtask`: the house rules as a command.
//!
//! - `cargo xtask tidy` holds the tree against the rules of docs/architecture.md and
//!   CONTRIBUTING.md and prints each breach as `path:line: [rule] what to do`.
//! - `cargo xtask instructions` counts the hot paths' instructions under callgrind and holds them
//!   against their record.
//! - `cargo xtask lines` counts lines of code by crate, and how they differ from a revision's.
//! - `cargo xtask papers` renders docs/reference/claims.md and what docs/reference/results.md has
//!   of results; `--check` fails where they are stale.
//! - `cargo xtask fuzz` runs every fuzz target for a while, guided by coverage.
//! - `cargo xtask guest` runs tests on a real RDMA device, in a throw-away machine.
//! - `cargo xtask sim` runs the systems in simulated worlds, over many seeds.
//! - `cargo xtask torture` runs random programs plainly and under the sockets library.
//! - `cargo xtask check` formats, lints, tidies and tests: what to run before a commit.
//!
//! The same rules run as a test of this crate, so that the test command alone guards them.

#![forbid(unsafe_code)]

mod fuzz;
mod instructions;
mod lines;
mod mutants;
mod papers;
mod rules;
mod sim;
mod source;
mod syntax;
mod torture;
mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::tree::Tree;

const USAGE: &str = "usage: cargo xtask tidy | cargo xtask papers [--check] | cargo xtask check | cargo xtask instructions [--record] | \
     cargo xtask lines [--json] [--against REV] | cargo xtask guest [--keep] [TEST]... | cargo xtask fuzz [--seconds N] [--keep] [--sanitize] [--minimize] [--no-run] [--but CRATE]... [CRATE/TARGET]... | \
     cargo xtask torture --help | cargo xtask sim --help";

/// The packages of the README's test command: what is built of all of them at once need not be
/// built again for one alone.
const TESTED: [&str; 3] = ["--workspace", "--exclude", "overside-peers"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(),
        ["papers"] => papers::run(&root(), false),
        ["papers", "--check"] => papers::run(&root(), true),
        ["check"] => check(),
        ["instructions"] => instructions::run(&root(), false),
        ["instructions", "--record"] => instructions::run(&root(), true),
        ["lines", ref rest @ ..] => match lines::LinesOptions::parse(rest) {
            Some(options) => lines::run(&root(), &options),
            None => return usage(),
        },
        ["guest", ref rest @ ..] => cargo(&[&["run", "--quiet", "--package", "guest", "--"], rest].concat()),
        ["fuzz", ref rest @ ..] => match fuzz::FuzzOptions::parse(rest) {
            Some(options) => fuzz::run(&root(), &options),
            None => return usage(),
        },
        ["sim", "--help"] => {
            println!("{}", sim::HELP);
            Ok(())
        }
        ["sim", ref rest @ ..] => match sim::SimOptions::parse(rest) {
            Some(options) => sim::run(&root(), &options),
            None => {
                eprintln!("{}", sim::HELP);
                return ExitCode::from(2);
            }
        },
        ["torture", "--help"] => {
            println!("{}", torture::HELP);
            Ok(())
        }
        ["torture", ref rest @ ..] => match torture::TortureOptions::parse(rest) {
            Some(options) => torture::run(&root(), &options),
            None => {
                eprintln!("{}", torture::HELP);
                return ExitCode::from(2);
            }
        },
        _ => return usage(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn tidy() -> Result<()> {
    let tree = Tree::load(&root())?;
    for warning in rules::warnings(&tree) {
        println!("warning: {warning}");
    }
    let violations = rules::check(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    if !violations.is_empty() {
        bail!("{} breaches of the house rules", violations.len());
    }
    println!("tidy: no breach");
    Ok(())
}

fn check() -> Result<()> {
    cargo(&["fmt", "--all"])?;
    cargo(&["clippy", "--workspace", "--exclude", "overside-peers", "--all-targets", "--", "-D", "warnings"])?;
    tidy()?;
    cargo(&["test", "--workspace", "--exclude", "overside-peers"])
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let status =
        Command::new(env!("CARGO")).args(arguments).current_dir(root()).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed", arguments.join(" "));
    }
    Ok(())
}

/// Where cargo puts what it builds.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// The workspace's root: the folder above this crate.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree itself keeps the house rules.
    #[test]
    fn tree_is_tidy() {
        let violations = rules::check(&Tree::load(&root()).expect("the tree can be read"));
        let listed: Vec<String> = violations.iter().map(|v| v.to_string()).collect();
        assert!(listed.is_empty(), "\n{}\n", listed.join("\n"));
    }
}
