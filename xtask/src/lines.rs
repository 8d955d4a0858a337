//! `cargo xtask lines`: how much code there is, crate by crate.
//!
//! A line counts if a compiler sees anything on it: neither blank nor all comment. What ships and
//! what tests it stand in columns of their own. Tests are whatever only tests, fuzzing or a model
//! checker compile, and the folders `tests`, `benches`, `fuzz` and `examples`. Rust alone is
//! counted.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::source::Source;
use crate::tree::{Package, Tree};

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinesOptions {
    json: bool,
    /// The revision to compare with.
    against: Option<String>,
}

impl LinesOptions {
    /// None when the arguments mean nothing.
    pub fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--json" => options.json = true,
                "--against" => {
                    options.against = Some(arguments.next().filter(|rev| !rev.starts_with('-'))?.to_string())
                }
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Prints the lines of the tree at `root`, and how they differ from a revision's.
pub fn run(root: &Path, options: &LinesOptions) -> Result<()> {
    let now = count(&Tree::load(root)?);
    let before = match &options.against {
        Some(revision) => Some(count(&at_revision(root, revision)?)),
        None => None,
    };
    if options.json {
        println!("{}", as_json(&now, before.as_ref()));
    } else {
        print!("{}", as_table(&now, before.as_ref()));
    }
    Ok(())
}

/// Lines of code of one crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    tests: usize,
}

/// By the crate's folder, `crates/` left out.
type Crates = BTreeMap<String, Lines>;

fn count(tree: &Tree) -> Crates {
    let mut crates = Crates::new();
    for source in &tree.sources {
        let Some(package) = tree.package_of(&source.path) else { continue };
        let name = package.folder.strip_prefix("crates/").unwrap_or(&package.folder);
        let lines = crates.entry(name.to_string()).or_default();
        let of = of(source);
        *lines = Lines { code: lines.code + of.code, tests: lines.tests + of.tests };
    }
    crates
}

/// Lines of one file.
fn of(source: &Source) -> Lines {
    let mut lines = Lines::default();
    let commented: BTreeSet<usize> = source.comments.iter().map(|comment| comment.line).collect();
    for ((number, code), text) in source.code_lines().zip(source.text.lines()) {
        // A line within a literal is blank in `code` and is code all the same.
        let counts = !code.trim().is_empty() || !text.trim().is_empty() && !commented.contains(&number);
        match counts {
            true if source.is_shipped(number) => lines.code += 1,
            true => lines.tests += 1,
            false => {}
        }
    }
    lines
}

/// Shipped lines of a file, and of all files of its crate; none where there is no such file.
pub fn shipped(tree: &Tree, path: &str) -> Option<(usize, usize)> {
    let own = of(tree.sources.iter().find(|source| source.path == path)?).code;
    let folder = &tree.package_of(path)?.folder;
    let theirs =
        tree.sources.iter().filter(|source| tree.package_of(&source.path).is_some_and(|p| p.folder == *folder));
    Some((own, theirs.map(|source| of(source).code).sum()))
}

fn total(crates: &Crates) -> Lines {
    crates
        .values()
        .fold(Lines::default(), |sum, lines| Lines { code: sum.code + lines.code, tests: sum.tests + lines.tests })
}

fn as_table(now: &Crates, before: Option<&Crates>) -> String {
    let none = Crates::new();
    let names: BTreeSet<&String> = now.keys().chain(before.unwrap_or(&none).keys()).collect();
    let width = names.iter().map(|name| name.len()).chain(["crate".len()]).max().unwrap_or_default();
    let row = |name: &str, now: Lines, before: Option<Lines>| match before {
        None => format!("{name:width$} {:>8} {:>8}\n", now.code, now.tests),
        Some(before) => format!(
            "{name:width$} {:>8} {:>8} {:>+8} {:>8} {:>8} {:>+8}\n",
            before.code,
            now.code,
            difference(now.code, before.code),
            before.tests,
            now.tests,
            difference(now.tests, before.tests)
        ),
    };
    let mut table = match before {
        None => format!("{:width$} {:>8} {:>8}\n", "crate", "code", "tests"),
        Some(_) => format!(
            "{:width$} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
            "crate", "before", "code", "+/-", "before", "tests", "+/-"
        ),
    };
    for name in names {
        let of = |crates: &Crates| crates.get(name).copied().unwrap_or_default();
        table += &row(name, of(now), before.map(of));
    }
    table + &row("all", total(now), before.map(total))
}

fn as_json(now: &Crates, before: Option<&Crates>) -> Value {
    let Some(before) = before else { return side(now) };
    let (sum, was) = (total(now), total(before));
    json!({
        "before": side(before),
        "now": side(now),
        "difference": { "code": difference(sum.code, was.code), "tests": difference(sum.tests, was.tests) },
    })
}

fn side(crates: &Crates) -> Value {
    let lines = |lines: Lines| json!({ "code": lines.code, "tests": lines.tests });
    let each: serde_json::Map<String, Value> = crates.iter().map(|(name, of)| (name.clone(), lines(*of))).collect();
    json!({ "crates": each, "all": lines(total(crates)) })
}

fn difference(now: usize, before: usize) -> isize {
    now as isize - before as isize
}

/// The tree as a revision has it: its Rust files and the folders of its crates.
fn at_revision(root: &Path, revision: &str) -> Result<Tree> {
    let listed = Command::new("git")
        .args(["ls-tree", "-r", "-z", "--full-tree", "--name-only", "--end-of-options", revision])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    if !listed.status.success() {
        bail!("no revision `{revision}`: {}", String::from_utf8_lossy(&listed.stderr).trim());
    }
    let listed = String::from_utf8(listed.stdout).context("a file name is not UTF-8")?;
    let paths: Vec<&str> = listed.split('\0').filter(|path| path.ends_with(".rs")).collect();
    let manifests = listed.split('\0').filter_map(|path| path.strip_suffix("/Cargo.toml"));
    // The targets of a crate's fuzzing are of another workspace, and its tests.
    let folders = manifests.filter(|folder| !folder.ends_with("/fuzz"));
    let packages = folders.map(|folder| Package { folder: folder.to_string(), ..Package::default() }).collect();
    Ok(Tree::new(contents(root, revision, &paths)?, packages, BTreeSet::new()))
}

/// The text of each file at a revision.
fn contents(root: &Path, revision: &str, paths: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut git = Command::new("git")
        .args(["cat-file", "--batch"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start git")?;
    let mut names = git.stdin.take().context("git has no stdin")?;
    let mut said = BufReader::new(git.stdout.take().context("git has no stdout")?);
    let mut files = BTreeMap::new();
    for path in paths {
        writeln!(names, "{revision}:{path}")?;
        let mut head = String::new();
        said.read_line(&mut head)?;
        let length = head.trim_end().rsplit(' ').next().and_then(|word| word.parse().ok());
        let length: usize = length.with_context(|| format!("git says of {path}: {}", head.trim_end()))?;
        // A line end follows the file.
        let mut text = vec![0; length + 1];
        said.read_exact(&mut text)?;
        text.pop();
        files.insert(path.to_string(), String::from_utf8_lossy(&text).into_owned());
    }
    drop(names);
    git.wait()?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        let folders = ["crates/a", "crates/providers/b"];
        let packages = folders.map(|folder| Package { folder: folder.to_string(), ..Package::default() });
        Tree::new(files, packages.to_vec(), BTreeSet::new())
    }

    #[test]
    fn comments_blanks_and_tests_are_no_code() {
        let lib = "//! Doc.\n\nmod c;\n/* a\n b */\nfn a() {\n    x(\"one\n\n// two\n\"); // why\n}\n\
                   #[cfg(test)]\nmod tests {\n    // why\n    fn b() {}\n}\n";
        let counted = count(&tree(&[
            ("crates/a/src/lib.rs", lib),
            ("crates/a/src/c.rs", "#[cfg(any(test, fuzzing))]\npub mod parts;\nfn c() {}\n"),
            ("crates/a/src/c/parts.rs", "fn d() {}\n\n"),
            ("crates/a/tests/e.rs", "fn e() {}\n"),
            ("crates/a/examples/f.rs", "fn f() {}\n"),
            ("crates/a/fuzz/fuzz_targets/g.rs", "fn g() {}\n"),
            ("crates/providers/b/src/lib.rs", "fn h() {}\n"),
            ("elsewhere.rs", "fn i() {}\n"),
        ]));
        let (a, b) = (Lines { code: 7, tests: 10 }, Lines { code: 1, tests: 0 });
        assert_eq!(counted, Crates::from([("a".to_string(), a), ("providers/b".to_string(), b)]));
    }

    #[test]
    fn a_comparison_says_what_went_and_what_came() {
        let of = |name: &str, code, tests| (name.to_string(), Lines { code, tests });
        let (before, now) =
            (Crates::from([of("a", 10, 4), of("b", 5, 0)]), Crates::from([of("a", 7, 5), of("c", 1, 0)]));
        let table = as_table(&now, Some(&before));
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["a", "10", "7", "-3", "4", "5", "+1"]);
        assert_eq!(rows[2], ["b", "5", "0", "-5", "0", "0", "+0"]);
        assert_eq!(rows[4], ["all", "15", "8", "-7", "4", "5", "+1"]);
        let said = as_json(&now, Some(&before));
        assert_eq!(said["difference"], json!({ "code": -7, "tests": 1 }));
        assert_eq!(said["now"]["crates"]["c"], json!({ "code": 1, "tests": 0 }));
    }

    /// A repository of two revisions, in a folder that goes with it.
    struct Repository(std::path::PathBuf);

    impl Repository {
        fn new(revisions: &[&[(&str, &str)]]) -> Self {
            let folder = std::env::temp_dir().join(format!("overside-lines-{}", std::process::id()));
            let repository = Self(folder);
            std::fs::create_dir_all(&repository.0).unwrap();
            repository.git(&["init", "--quiet"]);
            for files in revisions {
                for (path, text) in *files {
                    let path = repository.0.join(path);
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    std::fs::write(path, text).unwrap();
                }
                repository.git(&["add", "--all"]);
                repository.git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=x"]);
            }
            repository
        }

        fn git(&self, arguments: &[&str]) {
            let run = Command::new("git").args(arguments).current_dir(&self.0).output().unwrap();
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_revision_is_counted_without_its_checkout() {
        let first = [
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "// \u{2014}\nfn a() {}\nfn b() {}"),
            ("crates/a/fuzz/Cargo.toml", ""),
            ("crates/a/fuzz/fuzz_targets/c.rs", "fn c() {}\n"),
        ];
        let repository = Repository::new(&[&first, &[("crates/a/src/lib.rs", "fn a() {}\n")]]);
        let of = |revision: &str| at_revision(&repository.0, revision).map(|tree| count(&tree));
        let a = |code| Crates::from([("a".to_string(), Lines { code, tests: 1 })]);
        assert_eq!((of("HEAD~1").unwrap(), of("HEAD").unwrap()), (a(2), a(1)));
        assert!(of("nothing").unwrap_err().to_string().contains("no revision `nothing`"));
        let options = LinesOptions { json: true, against: Some("nothing".to_string()) };
        assert!(run(&crate::root(), &options).is_err());
    }

    #[test]
    fn arguments_that_mean_nothing_are_refused() {
        let options = LinesOptions::parse(&["--json", "--against", "HEAD~3"]).unwrap();
        assert_eq!(options, LinesOptions { json: true, against: Some("HEAD~3".to_string()) });
        for wrong in [&["--against"][..], &["--against", "--json"], &["HEAD"]] {
            assert_eq!(LinesOptions::parse(wrong), None);
        }
    }
}
