//! Calls on files of a volume allocate nothing, once each was made: a program may make them within its own allocator.
//!
//! This executable is the node; and, once more, a program with the library preloaded, whose `malloc` counts: the library's
//! calls find it too. No harness: nothing else may allocate meanwhile.

use std::ffi::c_void;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use overside_ibv::IbvProvider;
use overside_service::{Listening, ServiceOptions};
use overside_shm::ShmProvider;
use overside_vault::cache::CacheOptions;
use overside_vault::server::{About, Node, NodeOptions};
use overside_verbs::{Provider, SystemClock};
use overside_volume::MemoryDevice;
use overside_volume::files::Preset;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn counted<T>(real: impl FnOnce() -> T) -> T {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    real()
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(from: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
}

// SAFETY: the C library's own, under another name.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's arguments.
    counted(|| unsafe { __libc_malloc(size) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's arguments.
    counted(|| unsafe { __libc_calloc(count, size) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(from: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's arguments.
    counted(|| unsafe { __libc_realloc(from, size) })
}

// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(into: *mut *mut c_void, align: usize, size: usize) -> i32 {
    // SAFETY: the caller's arguments.
    counted(|| unsafe { *into = __libc_memalign(align, size) });
    // SAFETY: it was just written.
    if unsafe { (*into).is_null() } { libc::ENOMEM } else { 0 }
}

fn main() {
    match std::env::args().nth(1) {
        Some(folder) if folder.starts_with('/') => program(&folder),
        // What a harness would be asked, so that `cargo test NAME` and `--list` do no harm.
        Some(other) if !other.starts_with("--") || other == "--list" => {}
        _ => calls_allocate_nothing(),
    }
}

/// A program: what each kind of call allocates, one line each.
fn program(folder: &str) {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let path = format!("{folder}/some.db");
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    let connecting = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert!(connecting > 10, "the library's allocations are not seen: {connecting}");
    let (mut buffer, mut long) = (vec![7; 8192], vec![7; 600 << 10]);
    file.write_all_at(&long, 0).unwrap();
    file.write_all_at(&buffer, long.len() as u64).unwrap();
    let mut stat = Box::new(std::mem::MaybeUninit::<libc::stat>::zeroed());
    for (name, call) in CALLS {
        let mut each = [0; TIMES];
        for allocations in &mut each {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            match call {
                Call::Pread => file.read_exact_at(&mut buffer, 8192).unwrap(),
                Call::PreadLong => file.read_exact_at(&mut long, 100).unwrap(),
                Call::Pwrite => file.write_all_at(&buffer, 16384).unwrap(),
                Call::PwriteLong => file.write_all_at(&long, 100).unwrap(),
                Call::Lseek => drop(file.seek(SeekFrom::End(-8192)).unwrap()),
                Call::Read => file.read_exact(&mut buffer[..4096]).unwrap(),
                Call::Write => file.write_all(&buffer).unwrap(),
                // SAFETY: a descriptor and a place for what is said of it.
                Call::Fstat => assert_eq!(unsafe { libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()) }, 0),
                Call::Statx => assert!(file.metadata().unwrap().len() >= 600 << 10),
                Call::Fsync => file.sync_all().unwrap(),
            }
            *allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
            if matches!(call, Call::Read | Call::Write) {
                file.seek(SeekFrom::Start(0)).unwrap();
            }
        }
        // SAFETY: zeroed, and perhaps written since.
        assert!(name != "fstat" || unsafe { stat.assume_init_ref() }.st_size >= 600 << 10);
        println!("{name}: {:?} then {}", &each[..WARM], each[WARM..].iter().sum::<u64>());
    }
}

#[derive(Clone, Copy)]
enum Call {
    Pread,
    PreadLong,
    Pwrite,
    PwriteLong,
    Lseek,
    Read,
    Write,
    Fstat,
    Statx,
    Fsync,
}

const CALLS: [(&str, Call); 10] = [
    ("pread", Call::Pread),
    ("pread of much", Call::PreadLong),
    ("pwrite", Call::Pwrite),
    ("pwrite of much", Call::PwriteLong),
    ("lseek", Call::Lseek),
    ("read", Call::Read),
    ("write", Call::Write),
    ("fstat", Call::Fstat),
    ("statx", Call::Statx),
    ("fsync", Call::Fsync),
];

fn calls_allocate_nothing() {
    let exe = std::env::current_exe().unwrap();
    let library = exe.parent().unwrap().join("liboverside_preload.so");
    assert!(library.exists(), "{} is built with this test", library.display());
    // In the guest: the same over an RDMA device.
    let device = std::env::var("OVERSIDE_ALLOCATIONS_DEVICE").ok();
    let (provider, transport, name): (Arc<dyn Provider>, _, _) = match &device {
        None => (ShmProvider::new().unwrap(), "shm", format!("allocations-{}", std::process::id())),
        Some(_) => {
            let options = overside_ibv::Options { device: device.clone(), ..Default::default() };
            (IbvProvider::with_options(options).unwrap(), "rdma", "127.0.0.1:7074".to_owned())
        }
    };
    let cache = CacheOptions { bytes: 4 << 20, ..CacheOptions::default() };
    let node = Node::new(SystemClock::handle(), NodeOptions { cache, ..NodeOptions::default() }).unwrap();
    let about = About { files: Some(Preset::Sqlite), ..About::default() };
    node.add_described("v", Box::new(MemoryDevice::new(16 << 20).unwrap()), about, None).unwrap();
    let listening = Listening::open(provider, &[&*name]).unwrap();
    let _served = node.serve(vec![listening], ServiceOptions { workers: 1, ..ServiceOptions::default() }).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let device = device.unwrap_or_default();
    let files = format!("sqlite\n{transport}\n{name}\nv\n1\n{device}\n\n\n{}", folder.display());
    let output = Command::new(exe).arg(&folder).env("LD_PRELOAD", library).env("OVERSIDE_FILES", files).output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::metadata(folder.join("some.db")).unwrap().len(), 64, "the file is not on the volume");
    assert_eq!(said.lines().count(), CALLS.len(), "{said}");
    let later = |line: &str| line.rsplit(' ').next().and_then(|number| number.parse::<usize>().ok());
    let allocates = said.lines().find(|line| later(line).is_none_or(|later| later > RARE));
    assert!(allocates.is_none(), "calls allocate, the first ones or later ones:\n{said}");
    println!("test result: ok. 1 passed");
}

const TIMES: usize = 1000;
/// Calls after which there is all the memory that they want.
const WARM: usize = 20;
/// But this: how many answers of a call come at once is chance, and more than ever before want memory once more.
const RARE: usize = 16;
