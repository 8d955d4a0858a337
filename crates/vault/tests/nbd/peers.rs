//! Programs that nobody here wrote. Where one is not installed, its test says that it is skipped.

use std::process::{Command, Output};

use overside_disk::Open;
use overside_vault::cache::{Cache, CacheOptions, PolicyKind};
use overside_vault::members::FileMember;
use overside_volume::Sectors;

use super::*;

/// Runs a program on the served export; none where it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> Option<String> {
    let output = run(program, arguments)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    Some(said)
}

impl Served {
    fn uri(&self) -> String {
        format!("nbd+unix:///v?socket={}", self.path().display())
    }
}

/// A file of 16 MiB, in sectors, under a cache that is much smaller.
fn file() -> (Served, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = overside_disk::open(folder.path()).unwrap();
    let file = disk.open("member", Open::Create { direct: true }).unwrap();
    let options = CacheOptions { bytes: 64 * 8192, block_bytes: 8192, policy: PolicyKind::Mq };
    let cache = Cache::over(FileMember::new(disk, file, 0, 16 << 20), options).unwrap();
    (Served::of(Box::new(Sectors::over(cache))), folder)
}

/// Whether this fio was built with its NBD engine.
fn has_fio() -> bool {
    run("fio", &["--enghelp"]).is_some_and(|output| {
        let knows = String::from_utf8_lossy(&output.stdout).lines().any(|line| line.trim() == "nbd");
        if !knows {
            println!("skipped: this fio has no NBD engine");
        }
        knows
    })
}

#[test]
fn fio_finds_every_byte_that_it_wrote() {
    if !has_fio() {
        return;
    }
    let (served, _folder) = file();
    let uri = format!("--uri={}", served.uri());
    for (rw, bs) in [("--rw=randwrite", "--bs=8k"), ("--rw=randrw", "--bs=512"), ("--rw=write", "--bs=256k")] {
        let common = ["--name=v", "--ioengine=nbd", &uri, "--iodepth=32", "--size=16M", "--io_size=2M"];
        let more =
            ["--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1", "--do_verify=1", "--fsync=64", rw, bs];
        succeeds("fio", &[&common[..], &more[..]].concat());
    }
    let log = served.log();
    assert!(log.iter().any(|said| said == "flush") && log.len() > 1000, "{} requests", log.len());
}

#[test]
fn four_fio_jobs_share_an_export() {
    if !has_fio() {
        return;
    }
    let (served, _folder) = file();
    let uri = format!("--uri={}", served.uri());
    let common =
        ["--name=v", "--ioengine=nbd", &uri, "--iodepth=8", "--size=4M", "--offset_increment=4M", "--numjobs=4"];
    let more = ["--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1", "--rw=randwrite", "--bs=4k"];
    succeeds("fio", &[&common[..], &more[..]].concat());
}

#[test]
fn qemu_writes_reads_trims_and_zeroes() {
    let (served, _folder) = file();
    let steps = [
        "write -P 0x5a 0 1M",
        "write -f -P 0x77 1M 64k",
        "flush",
        "discard 512k 256k",
        "write -z 0 128k",
        "write -z -u 128k 128k",
        "read -P 0 0 256k",
        "read -P 0x5a 256k 256k",
        "read -P 0 512k 256k",
        "read -P 0x77 1M 64k",
        "write -P 0x11 5000 700",
        "read -P 0x11 5000 700",
    ];
    let mut arguments = vec!["-f", "raw"];
    steps.iter().for_each(|step| arguments.extend(["-c", step]));
    let uri = served.uri();
    arguments.push(&uri);
    let Some(said) = succeeds("qemu-io", &arguments) else { return };
    assert!(!said.contains("failed") && !said.contains("error"), "{said}");
    let log = served.log();
    for wanted in
        ["flush", "write 1048576 65536 fua", "discard 524288 262144", "zero 0 131072", "discard 131072 131072"]
    {
        assert!(log.iter().any(|said| said == wanted), "no {wanted} among {log:?}");
    }
}

#[test]
fn qemu_img_copies_an_image_in_and_out_again() {
    let (served, folder) = file();
    let [image, back] = ["image", "back"].map(|name| folder.path().join(name).display().to_string());
    let bytes: Vec<u8> =
        (0..16usize << 20).map(|i| if i >> 18 & 1 == 0 { (i / 4096 * 13 + i) as u8 } else { 0 }).collect();
    std::fs::write(&image, &bytes).unwrap();
    let uri = served.uri();
    if succeeds("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &uri]).is_none() {
        return;
    }
    succeeds("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri]);
    succeeds("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &back]);
    assert!(std::fs::read(&back).unwrap() == bytes, "what came back is another image");
    let told = succeeds("qemu-img", &["map", "--output=json", "-f", "raw", &uri]).unwrap();
    assert!(told.contains("\"data\": true") && !told.contains("\"data\": false"), "{told}");
}

#[test]
fn libnbd_lists_and_copies_over_several_connections() {
    let (served, folder) = file();
    let uri = served.uri();
    let Some(told) = succeeds("nbdinfo", &["--json", &uri]) else { return };
    for wanted in
        ["\"can_multi_conn\": true", "\"can_fua\": true", "\"base:allocation\"", "\"block_size_minimum\": 512"]
    {
        assert!(told.contains(wanted), "no {wanted} in {told}");
    }
    let listed = succeeds("nbdinfo", &["--list", &format!("nbd+unix://?socket={}", served.path().display())]).unwrap();
    assert!(listed.contains("export=\"v\""), "{listed}");
    let image = folder.path().join("image").display().to_string();
    let bytes: Vec<u8> = (0..16usize << 20).map(|i| (i / 512 * 3 + i) as u8).collect();
    std::fs::write(&image, &bytes).unwrap();
    let back = folder.path().join("back").display().to_string();
    if succeeds("nbdcopy", &["--connections=4", "--flush", &image, &uri]).is_some() {
        succeeds("nbdcopy", &["--connections=4", &uri, &back]);
        assert!(std::fs::read(&back).unwrap() == bytes, "what came back is another image");
    }
}
