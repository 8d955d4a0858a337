//! `overside help TOPIC`: what several commands have in common, said once.

use super::Cli;
use clap::{Command, CommandFactory};
use std::ffi::OsString;

/// A text of the manual that belongs to no single command.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// By which it is found; no command is called so.
    pub name: &'static str,
    about: &'static str,
    text: &'static str,
}

impl Topic {
    /// All topics, by name.
    pub const ALL: [Topic; 8] = [
        Topic { name: "addresses", about: "Where a server listens, and who may connect.", text: ADDRESSES },
        Topic { name: "durability", about: "What a crash, or a loss of power, costs.", text: DURABILITY },
        Topic { name: "environment", about: "Variables and folders that commands use.", text: ENVIRONMENT },
        Topic { name: "exit-status", about: "What a command's exit status means.", text: EXIT_STATUS },
        Topic { name: "figures", about: "What each figure of `overside bench` shows.", text: FIGURES },
        Topic { name: "keys", about: "How both sides prove who they are.", text: KEYS },
        Topic { name: "modes", about: "How the rows of a scan travel.", text: MODES },
        Topic { name: "prices", about: "What calibration measures, and who plans by it.", text: PRICES },
    ];

    /// The topic of this name.
    fn of(name: &str) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| topic.name == name)
    }

    /// All that it says.
    #[cfg(test)]
    pub fn text(self) -> &'static str {
        self.text
    }

    /// A command that has nothing but help: how the topic is shown, and its manual page.
    pub fn command(self) -> Command {
        Command::new(self.name)
            .display_name(format!("overside-{}", self.name))
            .about(self.about)
            .long_about(self.text)
            .max_term_width(100)
            .disable_help_flag(true)
            .help_template("{about-with-newline}")
    }
}

/// What a command line that asks for help gets where clap cannot answer it: a topic's text, or an
/// error that lists all topics.
pub fn answer(words: &[OsString]) -> Option<Result<String, clap::Error>> {
    let [_, help, name] = words else { return None };
    if help != "help" || name.to_string_lossy().starts_with('-') {
        return None;
    }
    let name = name.to_string_lossy();
    if let Some(topic) = Topic::of(&name) {
        return Some(Ok(topic.command().render_long_help().to_string()));
    }
    let mut cli = Cli::command();
    cli.build();
    let topics = Topic::ALL.map(|topic| topic.name).join(", ");
    let message = format!(
        "`{name}` is neither a command nor a topic; `overside help` lists the commands, and the \
         topics are {topics}"
    );
    cli.find_subcommand(&*name).is_none().then(|| Err(cli.error(clap::error::ErrorKind::InvalidSubcommand, message)))
}

const ADDRESSES: &str = "\
Where a server listens, and where its clients connect:

  shm:NAME          processes of the same host and the same user, over shared memory
  tcp:HOST:PORT     processes of any host
  rdma:HOST:PORT    the same over an RDMA device; `overside devices` shows whether there is one

`overside serve` and `overside volume serve` take --listen several times: a server may listen at all
kinds of addresses at once. It says where when it listens. NAME has up to 64 letters, digits, `-`,
`_` and `.`; PORT is from 1 to 65535.

A volume is named with its node: ADDR/NAME, for example shm:vault/pg.

Over tcp: and rdma: both sides have the same key (`overside help keys`). Without a key they take
addresses of this host alone, and processes of the same user; with --anyone those of every user.
Who may connect may read and change every table.";

const DURABILITY: &str = "\
Without --data, tables live in memory and end with the server. With `serve --data DIR`, every change
is in a log there before it is acknowledged. --durability says what an acknowledged change survives:

  sync     kill -9, a crash of the kernel, a loss of power; usual
  group    kill -9; of the others all changes but those of the last --group-ms
  none     a clean end of the server, and `overside checkpoint`

A server that starts from the directory has all of them, and listens once it has. A damaged
directory is refused with the place of the damage: copy it, then `serve --salvage` starts from what
is sound. Nothing in the directory is encrypted.

`overside check` reads a directory that no server has open, and `overside dump` writes its tables to
files. What volumes survive is said by their option --writes (`overside help volume serve`).";

const ENVIRONMENT: &str = "\
Variables that the commands read:

  XDG_DATA_HOME          the folder of overside/profiles (`overside calibrate`) and of
                         overside/volumes (`overside volume`); ~/.local/share without it
  XDG_RUNTIME_DIR        where `overside run` makes a link when its library's path has a space
  OVERSIDE_RDMA          for `overside run`: DEVICE,key-file=FILE carries TCP connections between
                         hosts over this RDMA device, where both hosts set it and have the key
  OVERSIDE_SOCKETS_SOON  for `overside run`: 1 leaves the kernel at the first call (for tests)

RDMA registers memory: `ulimit -l` must allow as much as a server's tables take.";

const EXIT_STATUS: &str = "\
  0      done
  1      failed: one line on standard error says why, and what to do
  2      wrong command line
  130    interrupted by Ctrl-C

`overside run` ends with its program's own status. `overside check` and `overside volume check` end
with 1 if they found damage that stays, and `overside volume bench` if a request failed or a byte
was wrong. A program that closes the output early (`| head`) makes no failure.";

const FIGURES: &str = "\
What `overside bench FIGURE` measures; `all` is all of them but the last two.

  verbs        requests a second by opcode and gather length
  transmit     rows copied out, gathered, or as planned
  delta        a page with deltas
  consolidate  chains of deltas: updates, sending, and the memory that is held back
  shuffle      a columnar table to 2, 8 and 32 receivers
  projection   rows without some columns
  regret       what the planner's choice loses against the best fixed strategy, known afterwards
  messages     round trips of small messages, with sockets and bare shared memory to compare
  sockets      unmodified programs under `overside run` and without it
  durability   tables that survive, tables in memory and the bare disk: requests, checkpoints,
               recovery
  mixed        gets and puts while full scans run in each mode, and what of a request is transfer
  scans        up to 15 clients of one table, and through an index, in each mode
  costs        what stands behind the papers' arguments
  blocks       a storage node: its cache and other servers, its disks and local ones
  policies     such a cache on several traces, and on --trace FILE
  clients      one read of a volume by each way to it
  oltp         TPC-C on PostgreSQL, whose disk is a volume or its own
  targets      a volume, nbdkit, qemu-nbd, tgt and a file, in memory and on a disk

The last two need root and other programs. Between two hosts (--to, and `receive` on
the other one) there are verbs, transmit, delta, consolidate, shuffle, projection, regret and
messages.";

const KEYS: &str = "\
A server that other hosts can reach needs a key: a file of 32 random bytes or more that its owner
alone can read. Make it once, and copy it to the other hosts by a way that you trust:

  head -c 32 /dev/urandom > key; chmod 600 key
  overside serve --listen tcp:0.0.0.0:7070 --key-file key
  overside scan tcp:10.0.0.1:7070 trips --key-file key

Both sides of a connection prove that they have the key. Over tcp: every frame carries a tag made
with it; over rdma: only the messages that set a connection up do, and what the device carries does
not. Nothing on the wire is encrypted. With --no-mac on both sides there are no tags: an attacker
who can write to the wire can then change what travels.

Every holder of the key may read and change every table. A node of volumes may ask for more: its
--access FILE has lines `VOLUME ro|rw KEYFILE`, and clients give the volume's key by --access-key.";

const MODES: &str = "\
`overside scan --mode` says how rows travel from the server to the client:

  auto      whichever is cheapest, page by page, by the prices of this machine; usual
  copy      the server copies the rows of a page together and sends the copy
  gather    the network, or the client, gathers them from where they lie
  delta     a page goes with its deltas, and the client merges them
  in-place  over shm: alone: such a page is lent and read where it lies, without a copy

All modes give the same rows. Only the load differs: copy takes processor time of the server, the
others hold pages back while they are on their way. docs/guide/choosing.md says when which is right.

With --one-sided the server says where its pages lie, and the client reads them by itself. Over shm:
and rdma: that takes no processor time of the server, which must be served with --one-sided.

`overside demo` compares the modes on this machine, `overside bench scans` and `mixed` under load.";

const PRICES: &str = "\
Overside decides by prices how bytes are sent: what a request costs, a gathered fragment, a packed
piece, and a byte. Where packing costs less than the requests that it saves, it packs.

Who measures. `overside calibrate` measures both ends of a connection between two threads of its own
process, and stores the prices. Where none are stored, serve, demo and bench measure a few at each
start, and say so. A program's own channels plan by the provider's usual prices, unless the program
asks for measured ones.

Where they are kept. In a text file for each host, transport and device, under overside/profiles in
$XDG_DATA_HOME or ~/.local/share. Over tcp, connections with a key have prices of their own. Delete
a file to forget it. One of another version is refused by its name: calibrate again.

How good they are. Samples that another program disturbed do not count. Some shapes are held out,
and `overside calibrate` prints how well the prices predict them. With --against PROFILE it says how
far they are from earlier ones. `overside bench regret` compares the choices that follow from the
prices with the best fixed strategy.

Two distances. Packing costs more between processors that share no cache, and a system or hypervisor
moves threads between both cases. Over shm a calibration that met both cases stores both prices. One
that met a single case keeps what an earlier one found of the other. A send is planned by the prices
of the case that holds then.";

#[cfg(test)]
mod tests {
    use super::*;
    use overside::table::wire::Mode;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_topic_is_answered_and_a_command_is_left_to_clap() {
        for topic in Topic::ALL {
            let text = answer(&words(&format!("overside help {}", topic.name))).unwrap().unwrap();
            assert!(text.lines().count() > 6, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            assert!(!text.contains("Usage"), "{text}");
            assert!(Cli::command().find_subcommand(topic.name).is_none(), "{} is a command", topic.name);
        }
        for other in [
            "overside help",
            "overside help scan",
            "overside help volume create",
            "overside scan modes",
            "overside help help",
            "overside help -h",
        ] {
            assert!(answer(&words(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn an_unknown_topic_lists_those_there_are() {
        let error = answer(&words("overside help mode")).unwrap().unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let said = error.to_string();
        assert!(said.contains("`mode` is neither"), "{said}");
        assert!(Topic::ALL.iter().all(|topic| said.contains(topic.name)), "{said}");
    }

    #[test]
    fn the_topics_name_every_mode_and_every_figure() {
        for figure in overside_bench::figures::NAMES {
            assert!(FIGURES.contains(&format!("\n  {figure} ")), "{figure}");
        }
        for mode in overside::table::wire::MODES.into_iter().chain([Mode::Auto]) {
            assert!(MODES.contains(&format!("\n  {} ", mode.name())), "{mode:?}");
        }
    }
}
