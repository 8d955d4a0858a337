//! What is run in the guest: which programs are built here, and the script that runs them there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::archive::Archive;
use crate::host::output;
use crate::image::add_program;
use crate::kernel::Series;

/// A test that runs in a guest.
#[derive(Debug)]
pub struct Job {
    pub name: &'static str,
    /// How cargo builds its programs, one command after another.
    builds: &'static [&'static [&'static str]],
    /// Which of what that builds are needed: a target's name, behind its package's folder where
    /// other packages have one of that name, and the program's name in the guest.
    programs: &'static [(&'static str, &'static str)],
    /// Programs of this host that come along where they are installed; the script does without
    /// those that are not.
    borrowed: &'static [&'static str],
    /// Run by each machine, with `$NODE` its number.
    script: &'static str,
    /// Whose kernel it runs on.
    pub series: Series,
    /// Machines with a wire between them.
    pub machines: u8,
    /// It has hung when it takes longer: many times what it takes on a host with nothing else to
    /// do.
    pub limit_s: u64,
}

pub const JOBS: [Job; 7] = [
    Job {
        name: "conformance",
        builds: &[&[
            "test",
            "--no-run",
            "--workspace",
            "--exclude",
            "overside-peers",
            "--test",
            "conformance",
            "--test",
            "declared",
            "--test",
            "holds",
            "--test",
            "hostile",
            "--test",
            "fork",
        ]],
        programs: &[
            ("ibv/conformance", "conformance"),
            ("ibv/declared", "declared"),
            ("ibv/holds", "holds"),
            ("ibv/hostile", "hostile"),
            ("ibv/fork", "fork"),
        ],
        borrowed: &[],
        script: include_str!("conformance.sh"),
        series: Series::Stable,
        machines: 1,
        limit_s: 600,
    },
    Job {
        name: "scan",
        builds: &[COMMAND],
        programs: &[("overside", "overside"), ("overside_preload", "liboverside_preload.so")],
        borrowed: &["cp", "cmp", "dd", "dash", "sqlite3"],
        script: include_str!("scan.sh"),
        series: Series::Stable,
        machines: 1,
        limit_s: 600,
    },
    Job {
        name: "death",
        builds: &[COMMAND],
        programs: &[("overside", "overside")],
        borrowed: &[],
        script: include_str!("death.sh"),
        series: Series::Stable,
        machines: 1,
        limit_s: 600,
    },
    Job {
        name: "sockets",
        builds: &[PAIRS],
        programs: &[("pairs", "pairs"), ("allocations", "allocations"), ("overside_preload", "liboverside_preload.so")],
        borrowed: &[],
        script: include_str!("sockets.sh"),
        series: Series::Stable,
        machines: 1,
        limit_s: 900,
    },
    Job {
        name: "apart",
        builds: &[COMMAND],
        programs: &[("overside", "overside"), ("overside_preload", "liboverside_preload.so")],
        borrowed: &["redis-server", "redis-benchmark", "redis-cli"],
        script: include_str!("apart.sh"),
        series: Series::Stable,
        machines: 2,
        limit_s: 900,
    },
    Job {
        name: "between",
        builds: &[&["test", "--no-run", "--workspace", "--exclude", "overside-peers", "--test", "between"], COMMAND],
        programs: &[("between", "between"), ("overside", "overside"), ("declare", "declare")],
        borrowed: &[],
        script: include_str!("between.sh"),
        series: Series::Stable,
        machines: 2,
        limit_s: 600,
    },
    Job {
        name: "ublk",
        builds: &[COMMAND],
        programs: &[("overside", "overside")],
        borrowed: &["fio", "mke2fs", "e2fsck", "blkdiscard"],
        script: include_str!("ublk.sh"),
        series: Series::Later,
        machines: 1,
        limit_s: 900,
    },
];
/// Its machines are killed, so it is no test like the others: `power` runs it.
pub const POWER: Job = Job {
    name: "power",
    builds: &[&["test", "--release", "--no-run", "--package", "overside-table", "--test", "power"]],
    programs: &[("power", "power")],
    borrowed: &[],
    script: include_str!("power.sh"),
    series: Series::Stable,
    machines: 1,
    limit_s: 600,
};
/// Optimised: the processor is emulated. All at once, as `.ci/run` has them: a package alone has
/// dependencies with other features, and would be built again.
const COMMAND: &[&str] = &["build", "--release", "--bins", "--lib", "--examples"];
const PAIRS: &[&str] =
    &["test", "--release", "--no-run", "--package", "overside-preload", "--test", "pairs", "--test", "allocations"];

/// Builds a job's programs and packs them with their libraries; where the archive is.
pub fn pack(root: &Path, folder: &Path, job: &Job) -> Result<PathBuf> {
    let messages = job.builds.iter().map(|arguments| build(root, arguments)).collect::<Result<Vec<_>>>()?.concat();
    let mut archive = Archive::default();
    for (target, name) in job.programs {
        let program = executable(&messages, target)
            .with_context(|| format!("cargo has built no program of the target {target}"))?;
        // Its debugging information would only fill the guest's memory.
        let scratch = folder.join(format!("{name}.stripped"));
        output(Command::new("strip").arg("-o").args([&scratch, &program]))?;
        add_program(&mut archive, &format!("job/{name}"), &scratch)?;
        std::fs::remove_file(scratch)?;
    }
    for name in job.borrowed {
        let places = ["/usr/bin", "/usr/sbin"].map(|folder| Path::new(folder).join(name));
        if let Some(program) = places.into_iter().find(|program| program.exists()) {
            add_program(&mut archive, &format!("job/{name}"), &program)?;
        }
    }
    archive.file("job/run", true, job.script);
    archive.file("job/test.sh", false, include_str!("test.sh"));
    let packed = folder.join(format!("job-{}.cpio", job.name));
    std::fs::write(&packed, archive.bytes())?;
    Ok(packed)
}

/// Cargo's messages about what it has built.
fn build(root: &Path, arguments: &[&str]) -> Result<String> {
    let built = Command::new(env!("CARGO"))
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo cannot be started")?;
    if !built.status.success() {
        bail!("`cargo {}` failed", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&built.stdout).into_owned())
}

/// The program, or the library to be loaded, that cargo says it has built of a target.
fn executable(messages: &str, target: &str) -> Option<PathBuf> {
    let (folder, target) = target.rsplit_once('/').unwrap_or(("", target));
    let manifest = format!("/{folder}/Cargo.toml");
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == target)
        .filter(|message| {
            folder.is_empty() || message["manifest_path"].as_str().is_some_and(|path| path.ends_with(&manifest))
        })
        .find_map(|message| {
            let files = message["filenames"].as_array().into_iter().flatten().filter_map(|file| file.as_str());
            let library = files.into_iter().find(|file| file.ends_with(".so")).map(PathBuf::from);
            message["executable"].as_str().map(PathBuf::from).or(library)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_target_is_found_among_cargos_messages() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"conformance\"},\"executable\":null}\n",
            "not json\n",
            "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"conformance\"},\"executable\":\"/t/conformance-1\"}\n",
        );
        assert_eq!(executable(messages, "conformance"), Some(PathBuf::from("/t/conformance-1")));
        assert_eq!(executable(messages, "other"), None);
        let two = concat!(
            "{\"target\":{\"name\":\"fork\"},\"manifest_path\":\"/r/tcp/Cargo.toml\",\"executable\":\"/t/fork-1\"}\n",
            "{\"target\":{\"name\":\"fork\"},\"manifest_path\":\"/r/ibv/Cargo.toml\",\"executable\":\"/t/fork-2\"}\n",
        );
        assert_eq!(executable(two, "ibv/fork"), Some(PathBuf::from("/t/fork-2")));
        assert_eq!(executable(two, "bv/fork"), None);
        let library =
            "{\"target\":{\"name\":\"l\"},\"executable\":null,\"filenames\":[\"/t/libl.rlib\",\"/t/libl.so\"]}";
        assert_eq!(executable(library, "l"), Some(PathBuf::from("/t/libl.so")));
    }

    #[test]
    fn every_job_has_a_name_of_its_own_and_programs() {
        for (i, job) in JOBS.iter().enumerate() {
            assert!(!JOBS[..i].iter().any(|other| other.name == job.name));
            assert!(!job.programs.is_empty() && job.script.starts_with("#!/bin/sh\n"));
        }
    }
}
