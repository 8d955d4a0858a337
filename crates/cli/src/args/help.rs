//! What `overside help` and the manual pages say beyond a line: what each command does, with
//! examples.

pub(super) const OVERVIEW: &str = "\
Your own file, from another process. One terminal serves:
  overside serve --listen shm:mine
Another one, once the first says that it listens, loads and scans:
  overside load shm:mine trips trips.parquet --key id
  overside scan shm:mine trips --from 1000 --to 2000 --out part.csv

Addresses: shm:NAME reaches processes of the same host and user, tcp:HOST:PORT processes of any host
that have the same key (head -c 32 /dev/urandom > key; chmod 600 key). Nothing on the wire is
secret. Exit status: 0 done, 1 failed, 2 wrong command line, 130 interrupted.

Topics, for `overside help TOPIC`: addresses, durability, environment, exit-status, figures, keys,
modes, prices.";

pub(super) const DEMO: &str = "\
Generate TPC-H lineitem, serve it from another process, load it, and keep a third process updating
rows. Run full, range, projection and hot scans in each mode (`overside help modes`), and in the one
that the planner chooses. Every row of every scan is checked. Prints a table and writes a report
that opens offline. Ctrl-C leaves no process and no memory behind.";
pub(super) const DEMO_EXAMPLES: &str = "\
Examples:
  overside demo
  overside demo --scale 1 --report big.html
  overside demo --json > demo.json";

pub(super) const BENCH: &str = "\
Measure a figure of the papers on this machine: between processes, sides alternating within one
run, with the limit for copies beside it and the papers' own points where their texts state them.
Prints a table and what of the papers' claims holds here, and writes a report that opens offline.
A full run takes some minutes a figure; --quick all of them a few. Other programs disturb it.
Ctrl-C leaves no process and no memory behind.

`overside help figures` says what each figure shows. Two of them, oltp and targets, need root and
other programs, and are not part of all.

With two hosts, `receive` waits on one of them, and --to sends a figure's bytes there from the
other.";
pub(super) const BENCH_EXAMPLES: &str = "\
Examples:
  overside bench transmit --quick
  overside bench all --quick --report figures.html
  overside bench delta --json > delta.json
  overside bench sockets --report sockets.html
  overside bench sockets --quick --only pgbench
  overside bench durability --dir /var/tmp
  sudo overside bench oltp --quick --dir /var/tmp
  sudo overside bench targets --dir /var/tmp
  overside bench verbs --over rdma --rdma-device mlx5_1
  overside bench receive --listen tcp:10.0.0.2:7000 --key-file key
  overside bench transmit --to tcp:10.0.0.2:7000 --key-file key";

pub(super) const RUN: &str = "\
Run an unmodified program. Its stream sockets (TCP and Unix) go over shared memory after the first
few messages, if the other end also runs under `overside run`, on this host and as the same user.
All others go through the kernel, as ever. `overside help environment` has the variable that lets
TCP connections between hosts go over RDMA. With --volume the program's data files lie on a volume;
docs/guide/files.md leads through it.

The program keeps its real sockets. What is not covered brings a connection back to them: fork,
exec, passing the descriptor on, and what docs/reference/sockets.md lists.

Nothing is printed unless --verbose asks for it. The exit status is the program's.";
pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  overside run -- postgres -D data
  overside run --verbose -- psql -h localhost
  overside run --volume data=rdma:10.0.0.1:7070/db --key-file key -- postgres -D data
  overside run --print-library";

pub(super) const SERVE: &str = "\
Serve tables on each address until Ctrl-C or SIGTERM. The first lines of the output say where.

Over shm: any process of the same user may connect, read and change every table; over tcp: and rdma:
every holder of the key. Without a key, which is for this host alone, any process of the same user
may, or with --anyone of every user. Both sides of a connection prove the key, and nothing on the
wire is secret (`overside help keys`).

Tables live in memory: they are gone when the server ends, unless --data names a directory. Then
every change is in a log there before it is acknowledged, and a server that starts from the
directory has all of them. Nothing in the directory is encrypted. The server ends with status 1 if a
bug, or a disk that fails, keeps it from going on.

Where `overside calibrate` has stored no prices, it measures some before it listens, which takes a
second or two, and more on a busy machine. It says so on standard error meanwhile.";
pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  overside serve --listen shm:mine
  overside serve --listen shm:mine --data tables
  overside serve --listen shm:mine --data tables --durability group --group-ms 50
  overside serve --listen shm:mine --memory 8G --workers 2 --max-connections 100
  overside serve --listen shm:mine --listen tcp:0.0.0.0:7070 --key-file key";

pub(super) const STATUS: &str = "\
Show a server's tables, its connections and memory, and, where it keeps tables in a directory (serve
--data), how its files are written, how far its log has come, and what its checkpoints have done.
With --watch and --json: one object a line.";
pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  overside status shm:mine
  overside status shm:mine --watch
  overside status shm:mine --json";

pub(super) const TABLES: &str = "\
List a server's tables: their keys, rows, pages and bytes of memory.";
pub(super) const TABLES_EXAMPLES: &str = "\
Examples:
  overside tables shm:mine
  overside tables shm:mine --json";

pub(super) const DESCRIBE: &str = "\
Show a table's columns with their types, which of them are its key and in which order, which may be
null, which indexes it has, and how many rows, pages and bytes of memory.";
pub(super) const DESCRIBE_EXAMPLES: &str = "\
Examples:
  overside describe shm:mine trips
  overside describe shm:mine trips --json";

pub(super) const DROP: &str = "\
Drop a table with all its rows. On a terminal it asks first; elsewhere it needs --yes. With `serve
--data` the table is dropped for good once this command says so.";
pub(super) const DROP_EXAMPLES: &str = "\
Examples:
  overside drop shm:mine trips
  overside drop shm:mine trips --yes";

pub(super) const COMPLETIONS: &str = "\
Print a script that completes this command's names and flags in a shell, for the folder in which
the shell looks for such scripts.";
pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  overside completions bash > ~/.local/share/bash-completion/completions/overside
  overside completions zsh > ~/.zfunc/_overside
  overside completions fish > ~/.config/fish/completions/overside.fish";

pub(super) const MAN: &str = "\
Write the manual pages to a folder: overside.1, and one for each command and each topic of `help`.";
pub(super) const MAN_EXAMPLES: &str = "\
Examples:
  overside man man1
  overside man ~/.local/share/man/man1";

pub(super) const CHECKPOINT: &str = "\
Write a checkpoint of each table that has changed since its last one, and wait until it is on the
disk. The server goes on meanwhile. A recovery then reads the checkpoint in place of the log before
it.";
pub(super) const CHECKPOINT_EXAMPLES: &str = "\
Examples:
  overside checkpoint shm:mine
  overside checkpoint shm:mine --json";

pub(super) const CHECK: &str = "\
Read all that counts in a data directory: its checkpoint, and the log behind it. Every checksum is
checked, and nothing is changed. Prints a line for each fault, and ends with status 1 if there is
one. No server may have the directory open meanwhile.";
pub(super) const CHECK_EXAMPLES: &str = "\
Examples:
  overside check /var/lib/overside
  overside check /var/lib/overside --json";

pub(super) const DUMP: &str = "\
Write a table of a data directory to a file, without a server. The table is recovered in memory, as
a server that starts from the directory would do it: every acknowledged change is in the file. It is
one state of the table, which a scan of a table that is being changed is not. Nothing in the
directory is changed, and no server may have it open meanwhile.

Without a table: which tables there are, and their rows.";
pub(super) const DUMP_EXAMPLES: &str = "\
Examples:
  overside dump /var/lib/overside
  overside dump /var/lib/overside trips --out trips.parquet
  overside dump /var/lib/overside trips --out part.csv --from 1000 --to 2000 --columns id,price --json";

pub(super) const LOAD: &str = "\
Load files into a table. A table that is not there is created with the first file's columns; --key
names its primary key, which holds no nulls and no value twice. Parquet and Arrow files say their
types. A CSV file needs a header row; its types are those of the table, or those of --schema, or
guessed from its first 10,000 rows. A field with nothing in it is a null, and \"\" is the empty
text. Standard input (-) may be a pipe that carries CSV, or a file of any of the formats.

A row is loaded whole or not at all, but a load that fails keeps the rows it has loaded, and says
how many. Rows whose key is there already are refused; --replace replaces them.

Types: int8 to int64, uint8 to uint64, float32, float64, decimal(P,S), date, timestamp[s|ms|us|ns],
timestamp[unit,zone], boolean, utf8, binary, fixed(N).";
pub(super) const LOAD_EXAMPLES: &str = "\
Examples:
  overside load shm:mine trips trips-01.parquet trips-02.parquet --key id
  overside load shm:mine lines lines.csv --key order,line --schema 'price:decimal(15,2)'
  overside load shm:mine trips more.arrow --replace --json
  overside load shm:mine trips - --key id
  overside load shm:mine trips trips.parquet --key id --index street --index price";

pub(super) const SCAN: &str = "\
Read rows in key order and print them, or write them to a file. On a terminal the first rows are
shown, with the number of all. A scan is no snapshot: every row was current at some moment of the
scan, and rows present throughout come exactly once.

--from and --to take values of the key's first columns, both ends included; --where-key-prefix those
whose key begins so. With --index they take values of the index's columns, and rows come in its
order. Then a row that others changed meanwhile may come twice or not at all.

--mode says how rows travel: copy, gather, delta, in-place or auto, which is the cheapest for each
page (`overside help modes`). With --one-sided the server says where its pages lie, and the client
reads them by itself, from the first page of the table on.";
pub(super) const SCAN_EXAMPLES: &str = "\
Examples:
  overside scan shm:mine trips --limit 10
  overside scan shm:mine trips --from 1000 --to 2000 --columns id,price
  overside scan shm:mine lines --from 17 --to 17,3
  overside scan shm:mine lines --where-key-prefix 17
  overside scan shm:mine streets --where-key-prefix 'Main*'
  overside scan shm:mine trips --index price --from 10 --to 20
  overside scan shm:mine trips --out trips.parquet --mode delta --json
  overside scan shm:open trips --one-sided --out trips.parquet";

pub(super) const GET: &str = "\
Print the row with this key. A key that is not there is an error (exit status 1).";
pub(super) const GET_EXAMPLES: &str = "\
Examples:
  overside get shm:mine trips 1000
  overside get shm:mine lines 17,3 --json";

pub(super) const PUT: &str = "\
Put a row: the key, and the other columns either comma-separated in the table's order (an empty
field is a null) or as a JSON object by name (what it leaves out is null). A row with the same key
is replaced. Dates are written 2024-02-29, timestamps 2024-02-29T12:30:00Z, bytes 0xc0ffee.";
pub(super) const PUT_EXAMPLES: &str = "\
Examples:
  overside put shm:mine trips 1000 'Main Street,12.50,2024-02-29'
  overside put shm:mine trips 1000 '{\"street\": \"Main Street\", \"price\": 12.5}'
  overside put shm:mine trips 1000 --file row.json";

pub(super) const DELETE: &str = "\
Delete the row with this key. A key that is not there is an error (exit status 1).";
pub(super) const DELETE_EXAMPLES: &str = "\
Examples:
  overside delete shm:mine trips 1000
  overside delete shm:mine lines 17,3";

pub(super) const CALIBRATE: &str = "\
Measure what sending costs on this machine, and store the prices for this user, host and device.
Sends, servers and figures plan by them from then on. Do it once, and again after a change of
machine, kernel or NIC, or when a stored profile is refused.

It takes up to half a minute a provider, and shows the prices and their error. When other programs
disturbed it, it stores nothing: stop them and run it again, or give --force. Ctrl-C stores nothing.
Give --key-file for tcp if your servers have one: every frame then carries a tag, and the prices are
others.

`overside help prices` says what is measured, where the prices are kept and when they are used.";
pub(super) const CALIBRATE_EXAMPLES: &str = "\
Examples:
  overside calibrate
  overside calibrate shm --json
  overside calibrate tcp --dry-run
  overside calibrate shm --against yesterday.profile";

pub(super) const DEVICES: &str = "\
Show what carries bytes on this host: shm: and tcp:, which are always there, and the RDMA devices
for rdma:. Where there is no device, it says what is missing: the library, its drivers, the
kernel's, or the device itself.";
pub(super) const DEVICES_EXAMPLES: &str = "\
Examples:
  overside devices
  overside devices --json";
