//! `overside run --volume`: programs that nobody here wrote keep their files on a volume, while its node is killed.

use super::server::told;
use super::volumes::{ANOTHER, KEY, Node};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, SystemTime};

/// A node with a volume of files, `db`, and a folder for a program.
struct Kept {
    node: Node,
    folder: PathBuf,
}

impl Kept {
    fn new(preset: &str, size: &str) -> Kept {
        let mut node = Node::new("shm");
        let (member, home) = (node.path("a"), node.home());
        node.ok(&["create", "db", "--size", size, "--on", &member, "--files", preset, "--home", &home]);
        node.start();
        let folder = PathBuf::from(node.path("data"));
        std::fs::create_dir(&folder).unwrap();
        Kept { node, folder }
    }

    /// A program with its files below the folder on the volume.
    fn run(&self, program: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overside"));
        let volume = format!("{}={}/db", self.folder.display(), self.node.address);
        command.args(["run", "--verbose", "--volume", &volume, "--"]).args(program).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn ok(&self, program: &[&str]) -> String {
        let mut output = self.run(program).output().unwrap();
        // After a kill a node keeps the writer's place for a while.
        for _ in 0..150 {
            if !said(&output).contains("another client writes the volume") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            output = self.run(program).output().unwrap();
        }
        assert!(output.status.success(), "{program:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Bytes of the volume that no file has, as the client of it says.
    fn free(&self) -> u64 {
        let mut client = overside::at(&self.node.address).files("db", Default::default()).unwrap();
        let free = client.about().unwrap().free_bytes;
        client.close(Duration::from_secs(10));
        free
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// A build of everything leaves the library among what others depend on; what lies beside the command
/// may be from before. Where neither is as new as the code, it is built here.
fn build_library() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_overside")).parent().unwrap();
        let name = "liboverside_preload.so";
        let (beside, built) = (folder.join(name), folder.join("deps").join(name));
        let made = |path: &Path| fs::metadata(path).and_then(|of| of.modified()).ok();
        if made(&beside).max(made(&built)) < Some(newest(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())) {
            let done = Command::new(env!("CARGO")).args(["build", "--package", "overside-preload"]).status().unwrap();
            assert!(done.success());
        }
        if made(&built) > made(&beside) {
            // Whoever loads it has the one or the other.
            let new = folder.join(format!("{name}.{}", std::process::id()));
            fs::copy(&built, &new).unwrap();
            fs::rename(&new, &beside).unwrap();
        }
    });
}

/// When the last of the code below a folder was changed; tests are none.
fn newest(folder: &Path) -> SystemTime {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of = entries.filter(|path| !path.ends_with("tests")).filter_map(|path| match path.is_dir() {
        true => Some(newest(&path)),
        false if path.extension() == Some("rs".as_ref()) => fs::metadata(path).unwrap().modified().ok(),
        false => None,
    });
    of.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// As many bytes as this, none like its neighbours.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

const CALLS: &str = r#"
import ctypes, os, fcntl, errno, mmap, random
IO_URING_SETUP = 425
p, q = 'a.db', 'b.db'
f = os.open(p, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
try: os.open(p, os.O_RDWR | os.O_CREAT | os.O_EXCL); assert False
except FileExistsError: pass
model, r = bytearray(), random.Random(7)
for i in range(300):
    at, n = r.randrange(400000), r.randrange(1, 9000)
    kind = i % 6
    if kind == 5:
        os.ftruncate(f, at); model = model[:at].ljust(at, b'\0')
    else:
        b = bytes([i % 255 + 1]) * n
        if kind == 0: assert os.pwrite(f, b, at) == n
        elif kind == 1: os.lseek(f, at, 0); assert os.write(f, b) == n and os.lseek(f, 0, 1) == at + n
        elif kind == 2: assert os.pwritev(f, [b[:n // 2], b[n // 2:]], at) == n
        elif kind == 3: os.lseek(f, at, 0); assert os.writev(f, [b[:1], b[1:]]) == n
        else: at = os.lseek(f, 0, 2); assert at == len(model); assert os.write(f, b) == n
        model = model.ljust(at + n, b'\0'); model[at:at + n] = b
    assert os.fstat(f).st_size == os.stat(p).st_size == os.lstat(p).st_size == os.path.getsize(p) == len(model)
    at = r.randrange(len(model) + 10)
    assert os.pread(f, 5000, at) == bytes(model[at:at + 5000]), i
os.fsync(f); os.fdatasync(f)
os.lseek(f, 0, 0)
g = os.dup(f)
assert os.read(g, 10) == bytes(model[:10]) and os.read(f, 10) == bytes(model[10:20])
buffers = [bytearray(7), bytearray(9000)]
assert os.preadv(f, buffers, 3) == 9007 and b''.join(buffers) == bytes(model[3:9010])
os.close(g)
# One place for two processes, and bytes of a child.
os.lseek(f, 100, 0)
child = os.fork()
if child == 0:
    os.write(f, b'child'); os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert os.lseek(f, 0, 1) == 105 and os.pread(f, 5, 100) == b'child'
model[100:105] = b'child'
a = os.open(p, os.O_WRONLY | os.O_APPEND)
os.write(a, b'end'); os.pwrite(a, b'END', 0); model += b'endEND'
assert os.pread(f, 6, len(model) - 6) == b'endEND'
try: os.read(a, 1); assert False
except OSError as e: assert e.errno == errno.EBADF
os.close(a)
ro = os.open(p, os.O_RDONLY)
try: os.write(ro, b'x'); assert False
except OSError as e: assert e.errno == errno.EBADF
# Locks are the kernel's, and looking at the file gives none up.
fcntl.lockf(f, fcntl.LOCK_EX, 1, 1 << 30)
os.stat(p)
if os.fork() == 0:
    h = os.open(p, os.O_RDWR)
    try: fcntl.lockf(h, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 << 30); os._exit(1)
    except OSError: os._exit(0)
assert os.wait()[1] == 0
os.close(ro)
os.posix_fallocate(f, len(model), 70000); model += bytes(70000)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
os.truncate(p, 150000); model = model[:150000]
assert os.lseek(f, 0, os.SEEK_HOLE) == 150000 and os.lseek(f, 5, os.SEEK_DATA) == 5
c = ctypes.CDLL(None, use_errno=True)
def by_c(call):
    if call() == -1: raise OSError(ctypes.get_errno(), 'refused')
# A block for asynchronous I/O begins with the descriptor.
block = ctypes.create_string_buffer(f.to_bytes(4, 'little'), 256)
ring = ctypes.create_string_buffer(120)
for refused in (lambda: c.syscall(IO_URING_SETUP, 8, ring), lambda: c.aio_read(block), lambda: c.aio_write(block)):
    try: by_c(refused); assert False
    except OSError as e: assert e.errno == errno.ENOTSUP, e
for refused in (lambda: mmap.mmap(f, 0), lambda: os.sendfile(1, f, 0, 10), lambda: os.splice(f, 1, 10)):
    try: refused(); assert False
    except OSError as e: assert e.errno in (errno.ENODEV, errno.EINVAL, errno.ENOTSUP), e
# Renamed over, and unlinked while it is open.
with open(q, 'wb') as b: b.write(b'old' * 1000)
held = os.open(q, os.O_RDONLY)
os.rename(p, q)
assert os.read(held, 3) == b'old' and open(q, 'rb').read() == bytes(model)
os.close(held)
# With a fork's descriptor nobody knows who is the last: its room is not given back.
os.close(f); f = os.open(q, os.O_RDWR)
os.unlink(q)
assert os.pread(f, 200000, 0) == bytes(model) and os.fstat(f).st_nlink == 0
os.write(f, b'still'); os.close(f)
assert os.listdir('.') == []
with open('t.db', 'w+b') as t: t.write(b'x' * 10)
with open('t.db', 'wb') as t: pass
assert os.path.getsize('t.db') == 0
os.remove('t.db')
# What no preset matches is the kernel's.
open('plain.txt', 'w').write('local')
assert open('plain.txt').read() == 'local'
os.remove('plain.txt')
print('all well')
"#;

#[test]
fn calls_do_what_they_do_on_a_file() {
    build_library();
    let kept = Kept::new("sqlite", "64M");
    let before = kept.free();
    for round in 0..2 {
        assert_eq!(kept.ok(&["python3", "-c", CALLS]), "all well\n", "{round}");
    }
    assert_eq!(kept.free(), before, "all is given back");
}

/// Honest, and unlike others. What it prints is the same on a file of the kernel.
const ODD: &str = r#"
import ctypes, fcntl, os, resource, signal, socket, subprocess, sys
signal.alarm(60)
c, p = ctypes.CDLL(None, use_errno=True), 'a.db'
here = os.getcwd() + '/' + p
def fresh(more=0, text=b''):
    f = os.open(p, os.O_RDWR | os.O_CREAT | os.O_TRUNC | more, 0o644)
    os.write(f, text)
    return f
def text():
    f = os.open(p, os.O_RDONLY)
    found = os.read(f, 1000)
    os.close(f)
    return found
# Appends below a lock of its own on all of the file.
f = fresh(os.O_APPEND)
fcntl.lockf(f, fcntl.LOCK_EX)
os.write(f, b'locked'); print(text()); os.close(f)
# By an older C library's calls, and by a name alone.
f = fresh(text=b'123456')
for call, at in (c.__fxstat64, f), (c.__fxstat, f), (c.__xstat64, p.encode()), (c.__lxstat64, p.encode()):
    stat = ctypes.create_string_buffer(256)
    version = 1 if os.uname().machine == 'x86_64' else 0
    print(call(version, at, stat), int.from_bytes(stat[48:56], 'little'))
print(os.fstat(os.open(p, os.O_PATH)).st_size)
# A path that needs no folder.
g = os.open(here, os.O_RDWR, dir_fd=-1)
print(os.read(g, 100)); os.close(g)
# When it was changed.
for change in (lambda: os.write(f, b'x'), lambda: os.pwrite(f, b'y', 0), lambda: os.ftruncate(f, 3)):
    os.utime(f, (1000, 1000)); change(); print(os.fstat(f).st_mtime > 1000)
os.close(os.open(p, os.O_RDONLY | os.O_TRUNC)); print(text())
# By number, where the C library has a function for it.
raw = {'x86_64': 257, 'aarch64': 56}[os.uname().machine]
g = c.syscall(raw, -100, p.encode(), os.O_RDWR)
os.write(g, b'by number'); print(text()); os.close(g)
# To another process, in a message.
ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    os.close(f)
    _, [got], _, _ = socket.recv_fds(theirs, 1, 1)
    print(os.pread(got, 100, 0), os.fstat(got).st_size, flush=True)
    os.pwrite(got, b'BY', 0)
    os._exit(0)
socket.send_fds(ours, [b'x'], [f]); os.waitpid(child, 0); print(text())
# A lock lives through exec.
(r, w), (s, e) = os.pipe(), os.pipe()
holder = os.fork()
if holder == 0:
    fcntl.lockf(f, fcntl.LOCK_EX, 4)
    for fd in f, s, w: os.set_inheritable(fd, True)
    os.close(e)
    os.execlp('dd', 'dd', f'if=/proc/self/fd/{s}', f'of=/proc/self/fd/{w}', 'bs=1', 'status=none')
os.close(s); os.write(e, b'x'); os.read(r, 1)
try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 4); print('free')
except OSError as error: print(error.errno)
for fd in e, f: os.close(fd)
os.waitpid(holder, 0)
# Closes what it does not know, and goes on.
f = fresh(text=b'before')
os.closerange(3, 60000)
null = [os.open('/dev/null', os.O_RDWR) for _ in range(12)]
f = os.open(p, os.O_RDWR | os.O_APPEND); os.write(f, b' one'); print(text())
for fd in range(3, 200):
    try: os.close(fd)
    except OSError: pass
null = [os.open('/dev/null', os.O_RDWR) for _ in range(12)]
f = os.open(p, os.O_RDWR | os.O_APPEND); os.write(f, b' two'); print(text()); os.close(f)
# The lowest number that is free is a new file's, and no standard stream's is the session's.
os.unlink(p); os.close(0)
f = fresh(text=b'out'); print(f, os.fstat(f).st_size); os.close(f)
null = os.open('/dev/null', os.O_RDWR); print(null)
# Room is made beside what another process writes there, and where there is only a hole.
f = fresh(); os.close(f)
for _ in range(5):
    f = os.open(p, os.O_RDWR | os.O_TRUNC)
    child = os.fork()
    if child == 0:
        g = os.open(p, os.O_RDWR); os.pwrite(g, b'kept', 3000000); os._exit(0)
    os.posix_fallocate(f, 0, 4000000); os.waitpid(child, 0)
    print(os.pread(f, 4, 3000000), os.fstat(f).st_size); os.close(f)
f = fresh(); os.ftruncate(f, 1000000); os.posix_fallocate(f, 70000, 500000)
print(os.fstat(f).st_blocks * 512 >= 500000, os.fstat(f).st_size); os.close(f)
# Looking at what is as long as a placeholder gives up no lock on it.
f = os.open('same', os.O_RDWR | os.O_CREAT); os.write(f, bytes(64)); fcntl.lockf(f, fcntl.LOCK_EX)
os.stat('same'); os.fstat(f); os.truncate('same', 64)
child = os.fork()
if child == 0:
    try: fcntl.lockf(os.open('same', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB); print('free', flush=True)
    except OSError as error: print(error.errno, flush=True)
    os._exit(0)
os.waitpid(child, 0); os.close(f); os.unlink('same')
# A descriptor far from others goes on into another program.
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
f = fresh(text=b'inherited'); os.dup2(f, 3000, inheritable=True)
if os.fork() == 0: os.execl(sys.executable, 'python3', '-c', 'import os; print(os.pread(3000, 100, 0), flush=True)')
os.wait(); os.close(3000); os.close(f)
# Arguments in registers and on the stack, to another program.
digits, nothing = [str(digit).encode() for digit in range(9)], (ctypes.c_char_p * 2)(b'only=this', None)
for call in (lambda: c.execl(b'/bin/echo', b'echo', *digits, None), lambda: c.execlp(b'echo', b'echo', None),
             lambda: c.execle(b'/usr/bin/env', b'env', *[b'-u', b'none'] * 4, None, nothing)):
    sys.stdout.flush(); child = os.fork()
    if child == 0: call(); os._exit(1)
    print(os.waitpid(child, 0)[1])
# Its output on the volume, and programs' elsewhere.
f = fresh(); sys.stdout.flush(); out = os.dup(1); os.dup2(f, 1)
said = subprocess.run(['/bin/echo', 'piped'], stdout=subprocess.PIPE).stdout
subprocess.run(['dd', 'if=/proc/sys/kernel/ostype', 'bs=99', 'status=none'], stderr=subprocess.STDOUT)
os.write(1, b'last')
# It takes locks, modes and times as every other one, also after a program that is not there.
for turn in 'before', 'after':
    fcntl.flock(1, fcntl.LOCK_EX); fcntl.lockf(1, fcntl.LOCK_EX, 4); os.fchmod(1, 0o600); os.fchown(1, -1, -1)
    os.utime(1, (1000, 1000)); mode = fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE
    os.write(out, f'{turn} {mode == os.O_RDWR} {os.fstat(1).st_mode & 0o777} {os.fstat(1).st_mtime}\n'.encode())
    try: os.execv('/none', ['none'])
    except OSError as error: os.write(out, f'{error.errno}\n'.encode())
os.dup2(out, 1); print(said, text())
"#;

#[test]
fn odd_programs_find_what_they_find_on_a_file() {
    build_library();
    let kept = Kept::new("sqlite", "64M");
    let plain = tempfile::tempdir().unwrap();
    let output = Command::new("python3").args(["-c", ODD]).current_dir(plain.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let before = kept.free();
    assert_eq!(kept.ok(&["python3", "-c", ODD]), String::from_utf8_lossy(&output.stdout));
    // What would go past this library into the placeholder fails, and the file is there.
    let prints = "import ctypes, os
f = os.open('a.db', os.O_RDWR)
print(ctypes.CDLL(None).dprintf(f, b'over'), os.read(f, 5))";
    assert_eq!(kept.ok(&["python3", "-c", prints]), "-1 b'Linux'\n");
    let streams = "import ctypes, os
out = os.dup(1); f = os.open('a.db', os.O_RDWR); os.dup2(f, 1)
c = ctypes.CDLL(None)
EXEC
stream = ctypes.c_void_p.in_dll(c, 'stdout')
fails = c.puts(b'over') < 0 or c.fflush(stream) < 0; c.__fpurge(stream); os.dup2(out, 1); print(fails)";
    for call in [
        "c.execv(b'/none', (ctypes.c_char_p * 2)(b'none', None))",
        "c.execl(b'/none', b'none', None)",
        "c.execlp(b'/none', b'none', None)",
        "c.execle(b'/none', b'none', None, (ctypes.c_char_p * 1)(None))",
    ] {
        assert_eq!(kept.ok(&["python3", "-c", &streams.replace("EXEC", call)]), "True\n", "{call}");
    }
    assert_eq!(kept.ok(&["python3", "-c", "import os; print(os.read(os.open('a.db', 0), 5))"]), "b'Linux'\n");
    if rustix::process::geteuid().is_root() {
        let write = "import os
os.chmod('.', 0o777); os.chmod('a.db', 0o222); os.setuid(65534)
os.open('a.db', os.O_WRONLY)";
        let refused = kept.run(&["python3", "-c", write]).output().unwrap();
        assert!(said(&refused).contains("PermissionError"), "{}", said(&refused));
    }
    kept.ok(&["rm", "a.db"]);
    assert_eq!(kept.free(), before, "all is given back");
}

const FULL: &str = r#"
import errno, os
f, g = [os.open(name, os.O_RDWR | os.O_CREAT) for name in ('a.db', 'b.db')]
block, written = bytes(range(1, 251)) * 40, 0
def full(call):
    try: call()
    except OSError as error: assert error.errno == errno.ENOSPC, error; return True
while not full(lambda: os.write(f, block)): written = os.lseek(f, 0, 1)
rest = os.fstat(f).st_size
assert rest == written, 'of the last write, what there was room for'
for call in (lambda: os.write(f, block), lambda: os.pwrite(f, b'x', 1 << 30), lambda: os.write(g, b'x'), lambda: os.posix_fallocate(g, 0, 1)):
    assert full(call)
assert os.fstat(f).st_size == rest and os.fstat(g).st_size == 0
found = os.pread(f, rest + 1, 0)
assert found == (block * (rest // len(block) + 1))[:rest]
# Over what is there, and again once there is room.
assert os.pwrite(f, b'over', 5) == 4 and os.pread(f, 6, 4) == b'\x05over\x0a'
os.ftruncate(f, 100000)
assert os.write(g, block) == len(block) and os.pread(g, 20000, 0) == block
print('full after', rest)
"#;

#[test]
fn a_full_volume_fails_that_write_and_nothing_else() {
    build_library();
    let kept = Kept::new("sqlite", "2M");
    let (before, said) = (kept.free(), kept.ok(&["python3", "-c", FULL]));
    assert_eq!(said, format!("full after {before}\n"), "all of the room is used");
    kept.ok(&["rm", "a.db", "b.db"]);
    assert_eq!(kept.free(), before);
}

/// A disk that brings nothing to stable storage any more: what is promised of names fails, and no file goes before its name.
const NO_SYNCS: &str = r#"
import ctypes, os, struct
for name in 'a.db', 'b.db':
    with open(name, 'wb') as f: f.write(bytes(200000))
number = {'x86_64': 74, 'aarch64': 82}[os.uname().machine]
# Loads the call's number; fsync fails with EIO, and all else goes on.
filter = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50005), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *one) for one in filter))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(filter), ctypes.addressof(code)))
c = ctypes.CDLL(None)
assert c.prctl(38, 1, 0, 0, 0) == 0 and c.prctl(22, 2, program, 0, 0) == 0
f, g = os.open('a.db', os.O_RDWR | os.O_DSYNC), os.open('b.db', os.O_RDWR)
for call in (lambda: os.fsync(g), lambda: os.write(f, b'x'), lambda: os.pwritev(g, [b'x'], 0, os.RWF_DSYNC)):
    try: call(); print('done')
    except OSError as error: print(error.errno)
os.close(f); os.close(g)
os.remove('b.db')
"#;

#[test]
fn no_file_goes_before_its_name_is_gone_for_good() {
    build_library();
    let kept = Kept::new("sqlite", "16M");
    let before = kept.free();
    assert_eq!(kept.ok(&["python3", "-c", NO_SYNCS]), "5\n5\n5\n");
    kept.ok(&["rm", "a.db"]);
    assert_eq!((before - kept.free()) / 200_000, 1, "the other one has its room");
}

const ROWS: &str = r#"
import sqlite3, sys, os
mode, n = sys.argv[1], int(sys.argv[2])
c = sqlite3.connect('s.db', isolation_level=None, timeout=60)
c.execute('pragma journal_mode=' + mode)
c.execute('create table if not exists t(a integer primary key, b blob)')
first = c.execute('select coalesce(max(a), 0) from t').fetchone()[0]
for i in range(first, first + n):
    c.execute('insert into t values(?, ?)', (i + 1, bytes([i % 251]) * (i % 3000)))
    print(i + 1, flush=True)
found = c.execute('select a, b from t order by a').fetchall()
assert [a for a, _ in found] == list(range(1, first + n + 1))
assert all(b == bytes([(a - 1) % 251]) * ((a - 1) % 3000) for a, b in found)
assert c.execute('pragma integrity_check').fetchone() == ('ok',)
"#;

#[test]
fn sqlite_goes_on_while_the_node_is_killed() {
    build_library();
    let mut kept = Kept::new("sqlite", "64M");
    for (mode, first) in [("delete", 0), ("wal", 120)] {
        kept.ok(&["true"]);
        let mut running = kept.run(&["python3", "-c", ROWS, mode, "120"]).spawn().unwrap();
        // It has begun: before that, a node that is away ends it.
        running.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(400));
            kept.node.kill();
            kept.node.start();
        }
        let output = running.wait_with_output().unwrap();
        assert!(output.status.success(), "{mode}: {}", said(&output));
        assert!(String::from_utf8_lossy(&output.stdout).ends_with(&format!("{}\n", first + 120)));
    }
    // By another program, and with nothing of it in the kernel's file system.
    assert_eq!(kept.ok(&["python3", "-c", "import os; print(os.path.getsize('s.db') > 20000)"]), "True\n");
    assert_eq!(std::fs::metadata(kept.folder.join("s.db")).unwrap().len(), 64);
}

/// Cuts in a vfork child, opens by number, and doubles a descriptor in a handler that interrupts its own calls: what is not
/// covered fails.
const ODD_CALLS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static int file;

static void ring(int signal) {
    static int rings;
    if (rings++ > 300)
        return;
    int before = errno, double_ = dup(file);
    if (double_ >= 0) {
        write(double_, "lost", 4);
        close(double_);
    }
    errno = before;
}

int main(int count, char **arguments) {
    const char *path = arguments[1];
    pid_t child = vfork();
    if (child == 0) {
        int fd = open(path, O_WRONLY | O_TRUNC);
        _exit(fd < 0 ? errno : 0);
    }
    int status;
    waitpid(child, &status, 0);
    long opened = syscall(SYS_openat2, AT_FDCWD, path, &(unsigned long[3]){O_RDWR}, 24);
    int by_number = opened < 0 ? errno : 0;
    long cut = syscall(SYS_truncate, path, 7L);
    int by_cut = cut < 0 ? errno : 0;
    file = open(path, O_RDWR);
    struct sigaction action = {.sa_handler = ring, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    char bytes[4096];
    for (int i = 0; i < 3000; i++)
        pread(file, bytes, sizeof bytes, 4096L * (i % 100));
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%d %d %d\n", WEXITSTATUS(status), by_number, by_cut);
    return 0;
}
"#;

#[test]
fn tools_copy_and_compare_and_what_is_not_covered_fails() {
    build_library();
    let kept = Kept::new("sqlite", "64M");
    std::fs::write(kept.folder.join("noise"), noise(3_000_001)).unwrap();
    for command in [
        "cp noise a.db && cmp noise a.db",
        "dd if=a.db of=back bs=7777 status=none && cmp noise back",
        "dd if=noise of=b.db bs=64k conv=fsync status=none && cmp a.db b.db",
        "cp a.db c.db && cat c.db | cmp - noise && mv c.db b.db && cmp b.db noise",
        "dd if=noise of=b.db bs=1000 skip=100 seek=5 count=3 conv=notrunc status=none && cmp -n 5000 b.db noise",
        "cat noise > c.db && cmp c.db noise && cat < c.db | cmp - noise",
        "test $(wc -c < a.db) = 3000001 && head -c 1000 a.db | cmp -n 1000 - noise",
        "test $(stat -c %s a.db) = 3000001 && test $(wc -c a.db | cut -d' ' -f1) = 3000001",
    ] {
        kept.ok(&["sh", "-c", command]);
    }
    // Streams of the C library would read the placeholder.
    for command in ["sort a.db", "sort < a.db", "sha1sum a.db"] {
        let output = kept.run(&["sh", "-c", command]).output().unwrap();
        assert!(
            !output.status.success() && !said(&output).contains("lies on a volume"),
            "{command}: {}",
            said(&output)
        );
    }
    // So would what the C library opens in another process, and what has its parent's memory, or interrupts a call.
    let spawns = "import os
try: os.posix_spawn('/bin/true', ['true'], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, 'a.db', os.O_WRONLY | os.O_TRUNC, 0)])
except OSError as error: print(error.errno)";
    assert_eq!(kept.ok(&["python3", "-c", spawns]), "95\n");
    std::fs::write(kept.folder.join("odd.c"), ODD_CALLS).unwrap();
    let built = Command::new("cc").args(["-o", "odd", "odd.c"]).current_dir(&kept.folder).status().unwrap();
    assert!(built.success());
    kept.ok(&["cp", "a.db", "d.db"]);
    assert_eq!(kept.ok(&["./odd", "d.db"]), "95 95 95\n");
    assert!(std::fs::read(kept.folder.join("d.db")).unwrap().starts_with(b"overside file "));
    kept.ok(&["sh", "-c", "test $(stat -c %s d.db) = 3000001"]);
    let refused = kept.run(&["sort", "a.db"]).output().unwrap();
    assert!(told(&refused).contains("is not covered for files on a volume"), "{}", told(&refused));
    // The placeholders have survived all of that.
    kept.ok(&["cmp", "a.db", "noise"]);
    // One that was put aside names nothing once its file is gone, and no other one that may come.
    std::fs::copy(kept.folder.join("a.db"), kept.folder.join("old.db")).unwrap();
    let stale = "import os
f = os.open('old.db', os.O_RDWR)
for call in (lambda: os.pwrite(f, b'x', 0), lambda: os.read(f, 1), lambda: os.ftruncate(f, 1), lambda: os.posix_fallocate(f, 0, 1)):
    try: call(); print('done')
    except OSError as error: print(error.errno)";
    kept.ok(&["rm", "a.db"]);
    assert_eq!(kept.ok(&["python3", "-c", stale]), "5\n5\n5\n5\n");
}

#[test]
fn what_cannot_be_is_one_line() {
    build_library();
    let kept = Kept::new("sqlite", "1M");
    let (member, home, address) = (kept.node.path("b"), kept.node.home(), &kept.node.address);
    kept.node.ok(&["create", "blocks", "--size", "1M", "--on", &member, "--home", &home]);
    let line = |volume: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overside"));
        let output =
            command.args(["run", "--volume", volume, "--", "true"]).current_dir(&kept.folder).output().unwrap();
        let text = told(&output);
        assert!(!output.status.success() && text.lines().count() == 1, "{text}");
        text
    };
    let tcp = line("x=tcp:127.0.0.1:9/db");
    assert!(
        tcp.contains("not tcp:") && tcp.contains("the kernel's sockets") && tcp.contains("serve the volume on rdma:")
    );
    // Whether this host has a device or not.
    let rdma = line("x=rdma:127.0.0.1:9/db");
    assert!(rdma.contains("RDMA device") || rdma.contains("nobody listens"), "{rdma}");
    let with = |option: &str, value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overside"));
        command.args(["run", "--volume", &format!("x={address}/db"), option, value, "--", "true"]);
        told(&command.current_dir(&kept.folder).output().unwrap())
    };
    for (option, field) in [("--key-file", "--key-file: "), ("--rdma-device", "--rdma-device: ")] {
        let text = with(option, "none");
        assert!(text.contains(field) && text.contains("leave it out"), "{text}");
    }
    assert!(line("x").contains("PREFIX=ADDR/NAME"));
    assert!(line(&format!("x={address}/none")).contains("no such volume"));
    let mut blocks = String::new();
    for _ in 0..100 {
        blocks = line(&format!("x={address}/blocks"));
        if !blocks.contains("no such volume") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(blocks.contains("--files"), "{blocks}");
    let attach = kept.node.fails(&[
        "bench",
        &format!("{address}/db"),
        "--rw",
        "randread",
        "--bs",
        "4K",
        "--depth",
        "1",
        "--time",
        "1",
    ]);
    assert!(attach.contains("keeps files"), "{attach}");

    // One program has the volume, with all its processes.
    let holds = "f = open('a.db', 'wb', 0); f.write(b'x'); print('on', flush=True); input()";
    let mut running = kept.run(&["python3", "-c", holds]).stdin(Stdio::piped()).spawn().unwrap();
    let mut on = [0; 3];
    running.stdout.as_mut().unwrap().read_exact(&mut on).unwrap();
    assert!(line(&format!("x={address}/db")).contains("another client writes the volume"));
    drop(running.stdin.take());
    running.wait().unwrap();

    // A placeholder of another volume is no file.
    std::fs::write(kept.folder.join("other.db"), "overside file 00000007 00000000000000ff lies on a volume       \n")
        .unwrap();
    let output = kept.run(&["cat", "other.db"]).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", said(&output));
}

#[test]
fn a_volume_with_a_key_is_its_holders() {
    build_library();
    let mut kept = Kept::new("sqlite", "16M");
    let [key, other] = [("key", KEY), ("other", ANOTHER)].map(|(name, key)| kept.node.key(name, key));
    let access = kept.node.path("access");
    std::fs::write(&access, "db rw key\n").unwrap();
    kept.node.end();
    kept.node.options = vec!["--access".into(), access];
    kept.node.start();
    let with = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_overside"));
        let volume = format!("{}={}/db", kept.folder.display(), kept.node.address);
        let program = ["--", "sh", "-c", "cp ../key a.db && cmp a.db ../key"];
        let command = command.args(["run", "--volume", &volume]).args(options).args(program);
        command.current_dir(&kept.folder).output().unwrap()
    };
    assert!(told(&with(&[])).contains("give it with --access-key FILE"));
    assert!(told(&with(&["--access-key", &other])).contains("the key is another one"));
    // Each process proves it for itself.
    let output = with(&["--access-key", &key]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::metadata(kept.folder.join("a.db")).unwrap().len(), 64);
}

/// Trying again would find no more, so a program would hang without a word.
#[test]
fn who_has_no_memory_for_a_session_gets_the_errno() {
    build_library();
    let kept = Kept::new("sqlite", "16M");
    let mut command = Command::new("timeout");
    let volume = format!("{}={}/db", kept.folder.display(), kept.node.address);
    let options = ["30", env!("CARGO_BIN_EXE_overside"), "run", "--volume", &volume, "--", "python3", "-c", SHORT];
    let output = command.args(options).current_dir(&kept.folder).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ENOMEM\nopened\n", "{}", said(&output));
}

const SHORT: &str = r#"
import errno, resource
size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), -1))
try: open("a.db", "wb")
except OSError as error: print(errno.errorcode[error.errno], flush=True)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
open("a.db", "wb")
print("opened", flush=True)
"#;

/// As PostgreSQL's own user, which may not be root.
const DATABASE: &str = r#"
set -eEu
trap 'echo "failed: $BASH_COMMAND"' ERR
export HOME="$PWD" PGHOST="$PWD" PGDATABASE=postgres PGUSER=me
pg=/usr/lib/postgresql/15/bin
run() { ./overside run --verbose --volume data=shm:$1/db -- "${@:2}"; }
serve() { ./overside volume serve --listen shm:$1 --home home > serve.log 2>> serve.err & node=$!; until grep -q listening serve.log; do sleep 0.1; done; }
start() {
    for turn in $(seq 150); do
        ./overside run --volume data=shm:$1/db -- $pg/postgres -D data -k "$PWD" -c listen_addresses= >> pg.log 2>&1 & server=$!
        for look in $(seq 300); do
            $pg/pg_isready -q && return
            kill -0 $server 2>> kill.log || break
            sleep 0.1
        done
        sleep 0.2
    done
    exit 1
}
./overside volume create db --size 512M --on member.img --files postgresql --home home
serve $1
run $1 $pg/initdb -D data -A trust -N -U me > initdb.log 2>&1
start $1
$pg/psql -q -c "create table a as select g as id, 0 as n from generate_series(1, 2000) g" -c "create unique index on a(id)" -c "create table h(id int, d int)"
cat > tx.sql <<'EOS'
\set id random(1, 2000)
\set d random(1, 9)
begin;
update a set n = n + :d where id = :id;
insert into h values (:id, :d);
commit;
EOS
$pg/pgbench -n -f tx.sql -c 4 -T 6 > bench.log 2>&1 & bench=$!
for turn in 1 2; do sleep 2; kill -9 $node; wait $node || true; rm serve.log; serve $1; done
wait $bench
done=$(sed -n 's/^number of transactions actually processed: //p' bench.log)
test "$done" -gt 10
grep -q 'failed transactions: 0 ' bench.log
check() { test "$($pg/psql -At -c "select sum(n) - (select sum(d) from h), (select count(*) from h) from a")" = "0|$done"; }
check
# All of it at once: what was committed is there.
kill -9 $(head -1 data/postmaster.pid) $node
wait $server || true; wait $node || true; rm serve.log
for look in $(seq 100); do pgrep -f "postgres: .*[c]heckpointer" -u $(id -u) >> kill.log || break; sleep 0.1; done
serve $1
start $1
check
$pg/psql -At -c "select count(*) from pg_class" >> kill.log
kill -INT $(head -1 data/postmaster.pid); wait $server
test $(stat -c %s data/base/5/1259) = 64
kill $node; wait $node
echo all well
"#;

#[test]
fn postgresql_keeps_its_data_there_while_all_is_killed() {
    if !Path::new("/usr/lib/postgresql/15/bin/initdb").exists() {
        return eprintln!("passed over: there is no PostgreSQL 15");
    }
    build_library();
    let folder = tempfile::tempdir().unwrap();
    let exe = Path::new(env!("CARGO_BIN_EXE_overside"));
    let beside = exe.with_file_name("liboverside_preload.so");
    let library = if beside.exists() { beside } else { exe.with_file_name("deps").join("liboverside_preload.so") };
    for from in [exe, &library] {
        let copied = Command::new("cp").arg(from).arg(folder.path()).status().unwrap();
        assert!(copied.success());
    }
    let name = format!("kept-{}", std::process::id());
    let mut command = Command::new("bash");
    if rustix::process::geteuid().is_root() {
        let given = Command::new("chown").args(["-R", "nobody:nogroup"]).arg(folder.path()).status().unwrap();
        assert!(given.success());
        command = Command::new("setpriv");
        command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "bash"]);
    }
    let output = command.args(["-c", DATABASE, "bash", &name]).current_dir(folder.path()).stdin(Stdio::null()).output();
    let output = output.unwrap();
    let log = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let logs = ["initdb.log", "serve.err", "bench.log", "pg.log"].map(log).join("\n");
    assert!(output.status.success() && output.stdout.ends_with(b"all well\n"), "{}\n{logs}", said(&output));
}
