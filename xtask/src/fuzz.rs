//! `cargo xtask fuzz`: every fuzz target of the repository for a while, guided by coverage, on the
//! stable compiler.
//!
//! libFuzzer needs counters in the code and nothing else that only a nightly compiler gives; the
//! targets check their promises themselves. With `--sanitize` they are built under the address
//! sanitizer as well, which the stable compiler has behind a nightly flag: where its library is
//! absent, that is said and nothing is run. Each target starts from its committed corpus. What it
//! finds stays under `target/fuzz/found`, an input that fails under `target/fuzz/failed`. `--keep`
//! adds to the committed corpus those found inputs that reach code which nothing committed reaches.
//! The crates' own tests replay them from then on. `--no-run` builds them alone. `--but FOLDER`
//! leaves out a crate's targets. `--minimize` runs nothing new: it drops committed inputs that
//! reach no code which the others do not. Those with a name (`seed-*`, `crash-*` and what somebody
//! named) stay.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuzzOptions {
    /// Of each target.
    seconds: u32,
    keep: bool,
    /// Under the address sanitizer.
    sanitize: bool,
    /// Nothing new: what of the committed corpus the others make superfluous goes.
    minimize: bool,
    /// They are built, and not run.
    only_builds: bool,
    /// Names of targets, as `tcp/frames`; all, when there is none.
    targets: Vec<String>,
    /// Folders of crates whose targets are left out.
    but: Vec<String>,
}

impl FuzzOptions {
    /// None when the arguments mean nothing.
    pub fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self {
            seconds: 60,
            keep: false,
            sanitize: false,
            minimize: false,
            only_builds: false,
            targets: Vec::new(),
            but: Vec::new(),
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--seconds" => options.seconds = arguments.next()?.parse().ok().filter(|seconds| *seconds > 0)?,
                "--keep" => options.keep = true,
                "--sanitize" => options.sanitize = true,
                "--minimize" => options.minimize = true,
                "--no-run" => options.only_builds = true,
                "--but" => options.but.push((*arguments.next()?).to_owned()),
                flag if flag.starts_with('-') => return None,
                target => options.targets.push(target.to_owned()),
            }
        }
        (!options.minimize || !(options.keep || options.sanitize)).then_some(options)
    }
}

/// One target.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    /// `tcp/frames`: the crate's folder and the target.
    name: String,
    /// The folder of the crate's targets.
    folder: PathBuf,
    source: String,
}

impl Target {
    fn corpus(&self) -> PathBuf {
        self.folder.join("corpus").join(&self.source)
    }

    /// What cargo calls it: no other crate's target has that name.
    fn program(&self) -> String {
        self.name.replace('/', "-")
    }

    fn package(&self) -> String {
        format!("overside-{}-fuzz", self.name.split('/').next().unwrap_or_default())
    }
}

/// Runs the targets, as many at a time as keep the processors busy.
pub fn run(root: &Path, options: &FuzzOptions) -> Result<()> {
    let mut targets = find(root)?;
    if let Some(unknown) = options.targets.iter().find(|name| !targets.iter().any(|target| target.name == **name)) {
        let known: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        bail!("there is no fuzz target {unknown}; there are: {}", known.join(", "));
    }
    let of = |target: &Target, folder: &String| target.name.split('/').next() == Some(folder);
    if let Some(unknown) = options.but.iter().find(|folder| !targets.iter().any(|target| of(target, folder))) {
        bail!("no crate's folder with fuzz targets is called {unknown}");
    }
    targets.retain(|target| options.targets.is_empty() || options.targets.contains(&target.name));
    targets.retain(|target| !options.but.iter().any(|folder| of(target, folder)));
    if options.sanitize && !has_sanitizer()? {
        println!("fuzz: skipped, this compiler comes without the address sanitizer's library (librustc-*_rt.asan.a)");
        return Ok(());
    }
    let place = crate::target(root).join(if options.sanitize { "fuzz-sanitized" } else { "fuzz" });
    let built = build(root, &place, &targets, options.sanitize)?;
    if options.only_builds {
        return Ok(());
    }
    let at_once = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    let (queue, failed) = (Mutex::new(VecDeque::from(built)), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some((target, program)) = lock(&queue).pop_front() else { return };
                    let done = match options.minimize {
                        true => minimize(&place, &target, &program),
                        false => one(&place, &target, &program, options),
                    };
                    match done {
                        Ok(line) => println!("{line}"),
                        Err(error) => {
                            eprintln!("fuzz {}: {error:#}", target.name);
                            lock(&failed).push(target.name);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    if !failed.is_empty() {
        bail!("fuzz targets failed: {}; the inputs lie in {}", failed.join(", "), place.join("failed").display());
    }
    Ok(())
}

/// All targets: the files of every `fuzz/fuzz_targets` below `crates`.
fn find(root: &Path) -> Result<Vec<Target>> {
    let (mut folders, mut targets) = (vec![root.join("crates")], Vec::new());
    while let Some(folder) = folders.pop() {
        let fuzz = folder.join("fuzz");
        if fuzz.join("Cargo.toml").is_file() {
            let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for source in entries(&fuzz.join("fuzz_targets"))? {
                let source = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                targets.push(Target { name: format!("{package}/{source}"), folder: fuzz.clone(), source });
            }
        } else if !folder.join("Cargo.toml").is_file() {
            folders.extend(entries(&folder)?.into_iter().filter(|path| path.is_dir()));
        }
    }
    targets.sort_by(|a, b| a.name.cmp(&b.name));
    if targets.is_empty() {
        bail!("no fuzz target below {}", root.display());
    }
    Ok(targets)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?)
}

/// Builds the targets; where each is.
fn build(root: &Path, place: &Path, targets: &[Target], sanitize: bool) -> Result<Vec<(Target, PathBuf)>> {
    let host = triple()?;
    let flags: Vec<&str> = FLAGS.iter().copied().chain(sanitize.then_some(SANITIZE)).collect();
    let workspace = root.join("fuzz");
    // The same versions as everywhere; what only fuzzing needs is added by cargo.
    let lock = workspace.join("Cargo.lock");
    std::fs::copy(root.join("Cargo.lock"), &lock).with_context(|| lock.display().to_string())?;
    let mut cargo = Command::new(env!("CARGO"));
    if sanitize {
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    cargo.args(["build", "--release", "--quiet", "--target", &host, "--target-dir"]).arg(place);
    for of_one in targets.chunk_by(|a, b| a.folder == b.folder) {
        cargo.args(["--package", &of_one[0].package()]);
    }
    targets.iter().for_each(|target| _ = cargo.args(["--bin", &target.program()]));
    let status = cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")).current_dir(workspace).status()?;
    if !status.success() {
        bail!("the fuzz targets do not build");
    }
    let programs = place.join(host).join("release");
    Ok(targets.iter().map(|target| (target.clone(), programs.join(target.program()))).collect())
}

/// Whether the compiler can build under the address sanitizer.
fn has_sanitizer() -> Result<bool> {
    let said = Command::new("rustc").args(["--print", "target-libdir"]).output().context("cannot start rustc")?.stdout;
    let folder = PathBuf::from(String::from_utf8_lossy(&said).trim());
    Ok(entries(&folder)?.iter().any(|path| path.to_string_lossy().ends_with("_rt.asan.a")))
}

fn triple() -> Result<String> {
    let said = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?.stdout;
    let said = String::from_utf8_lossy(&said);
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say what it builds for")
}

/// Runs one target; a line about it.
fn one(place: &Path, target: &Target, program: &Path, options: &FuzzOptions) -> Result<String> {
    let label = target.program();
    let (found, failed) = (place.join("found").join(&label), place.join("failed"));
    std::fs::create_dir_all(&found)?;
    std::fs::create_dir_all(&failed)?;
    let fuzzer = || {
        let mut command = Command::new(program);
        command.current_dir(place).stdin(Stdio::null()).args(LIMITS);
        if options.sanitize {
            // What is freed is overwritten: the kernel's reads of it, which the sanitizer does not see, show it to whoever looks.
            command.env("ASAN_OPTIONS", ASAN_OPTIONS).arg(SANITIZED_LIMIT);
        }
        command
    };
    let output = fuzzer()
        .arg(format!("-max_total_time={}", options.seconds))
        .arg(format!("-artifact_prefix={}/{label}-", failed.display()))
        .arg(&found)
        .arg(target.corpus())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let tail: Vec<&str> = said.lines().rev().take(TAIL_LINES).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("{}\n{}", output.status, tail.join("\n"));
    }
    if options.keep {
        let merged = fuzzer().arg("-merge=1").arg(target.corpus()).arg(&found).output()?;
        if !merged.status.success() {
            bail!("merging what was found: {}", merged.status);
        }
    }
    Ok(format!("fuzz {:24} {}", target.name, summary(&said)))
}

/// Drops the inputs of a target's corpus that have no name of their own and reach no code that the
/// others do not; a line about it.
fn minimize(place: &Path, target: &Target, program: &Path) -> Result<String> {
    let folder = place.join("least").join(target.program());
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let (found, named): (Vec<PathBuf>, Vec<PathBuf>) =
        entries(&target.corpus())?.into_iter().partition(|path| is_found(path));
    // What stays in any case comes first: of the others, the fewest that add all there is to add.
    for path in &named {
        std::fs::copy(path, folder.join(path.file_name().unwrap_or_default()))?;
    }
    let mut command = Command::new(program);
    command.current_dir(place).stdin(Stdio::null()).args(LIMITS);
    let merged = command.arg("-set_cover_merge=1").arg(&folder).arg(target.corpus()).output()?;
    if !merged.status.success() {
        bail!("merging its corpus: {}", merged.status);
    }
    let kept = entries(&folder)?.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?;
    let mut dropped = 0;
    for path in &found {
        let bytes = std::fs::read(path)?;
        if !kept.contains(&bytes) {
            std::fs::remove_file(path)?;
            dropped += 1;
        }
    }
    let before = found.len() + named.len();
    Ok(format!("fuzz {:24} {} of {before} inputs are kept", target.name, before - dropped))
}

/// Whether an input has the name that the fuzzer gives to what it finds: a hash.
fn is_found(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// How many inputs ran, and how much of the code they reached.
fn summary(said: &str) -> String {
    let done = said.lines().rev().find(|line| line.starts_with("Done ")).unwrap_or("ended without a count");
    let reached = said.lines().rev().find_map(|line| line.split_once(" cov: ")?.1.split_whitespace().next());
    format!("{done}, {} places of the code reached", reached.unwrap_or("no"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Counters at every edge and every comparison, and checks that release builds leave out.
const FLAGS: [&str; 9] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions=yes",
    "-Coverflow-checks=yes",
    "-Cpanic=unwind",
];
/// Every load and store of our own code is checked.
const SANITIZE: &str = "-Zsanitizer=address";
const ASAN_OPTIONS: &str = "detect_leaks=0:max_free_fill_size=1048576:free_fill_byte=219";
/// Freed memory is kept for a while, so that its use is found.
const SANITIZED_LIMIT: &str = "-rss_limit_mb=4096";
/// No input takes longer or more memory; on a loaded machine everything takes long.
const LIMITS: [&str; 3] = ["-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=0"];
const TAIL_LINES: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_corpus() {
        let root = crate::root();
        let targets = find(&root).unwrap();
        for name in [
            "bwtree/leaf",
            "files/parquet",
            "table/row",
            "tcp/frames",
            "tcp/one_sided",
            "tcp/two_ends",
            "verbs/handshake",
            "shm/ring",
            "preload/datagrams",
        ] {
            assert!(targets.iter().any(|target| target.name == name), "{name} is not found");
        }
        for target in targets {
            assert!(entries(&target.corpus()).is_ok_and(|inputs| !inputs.is_empty()), "{} has no seed", target.name);
        }
    }

    #[test]
    fn arguments_that_mean_nothing_are_refused() {
        let options = FuzzOptions::parse(&["--seconds", "5", "--but", "files", "tcp/frames"]).unwrap();
        assert_eq!(
            options,
            FuzzOptions {
                seconds: 5,
                keep: false,
                sanitize: false,
                minimize: false,
                only_builds: false,
                targets: vec!["tcp/frames".to_owned()],
                but: vec!["files".to_owned()]
            }
        );
        assert!(FuzzOptions::parse(&["--sanitize"]).unwrap().sanitize);
        assert!(FuzzOptions::parse(&["--minimize"]).unwrap().minimize);
        assert!(FuzzOptions::parse(&["--no-run"]).unwrap().only_builds);
        assert_eq!(FuzzOptions::parse(&["--minimize", "--keep"]), None);
        assert_eq!(FuzzOptions::parse(&["--seconds"]), None);
        assert_eq!(FuzzOptions::parse(&["--but"]), None);
        assert_eq!(FuzzOptions::parse(&["--seconds", "0"]), None);
        assert_eq!(FuzzOptions::parse(&["--forever"]), None);
    }

    #[test]
    fn only_what_the_fuzzer_named_is_found() {
        let hash = "a3".repeat(20);
        for (name, found) in [(hash.as_str(), true), ("seed-0", false), (&format!("crash-{hash}"), false)] {
            assert_eq!(is_found(Path::new(name)), found, "{name}");
        }
    }

    #[test]
    fn a_run_is_told_in_a_line() {
        let said = "#8 INITED cov: 11 ft: 5\n#200\tNEW    cov: 311 ft: 512 corp: 6\nDone 2660 runs in 9 second(s)\n";
        assert_eq!(summary(said), "Done 2660 runs in 9 second(s), 311 places of the code reached");
    }
}
