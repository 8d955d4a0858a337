//! Makes a program from a seed.
//!
//! Every program is legal whatever the timing, so that its outcome is one. A reader knows how much
//! there is, or reads to the end. What is written before anything reads fits into the kernel. One
//! thread at a time sends in a direction. States are looked at only when a barrier and a pause have
//! made the connection quiet.

use std::collections::{BTreeMap, BTreeSet};

use super::phases;
use super::program::{List, Program, Side, Step};
use super::random::SplitMix64;

pub struct Builder {
    pub random: SplitMix64,
    pub program: Program,
    /// Lists of threads that own connections, of each side.
    owners: [Vec<usize>; 2],
    barriers: i64,
    phase: u32,
    /// Numbers that a side has given to a copy of a connection.
    numbers: [Vec<i64>; 2],
    /// Connections whose buffers have been given a size.
    bounded: BTreeSet<usize>,
    /// Lists of children that have a side's end of a connection from its beginning on.
    children: BTreeMap<(Side, usize), usize>,
}

/// Both ends of a connection: who owns it on each side.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub connection: usize,
    pub a: usize,
    pub b: usize,
}

impl Link {
    /// The sender's list, then the receiver's.
    pub fn from(self, sender: Side) -> (usize, usize) {
        if sender == Side::A { (self.a, self.b) } else { (self.b, self.a) }
    }
}

pub fn generate(seed: u64) -> Program {
    let mut random = SplitMix64::new(seed);
    let program = Program {
        family: random.pick(&["tcp", "tcp", "tcp", "unix", "unix", "unix", "tcp6"]).to_owned(),
        under: random.pick(&["both", "both", "both", "both", "both", "both", "both", "both", "A", "B"]).to_owned(),
        soon: random.percent(60),
        nofile: if random.percent(15) { -1 } else { 0 },
        ending: random.pick(&["return", "return", "_exit"]).to_owned(),
        lists: Vec::new(),
    };
    let (owners, numbers) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut builder = Builder {
        random,
        program,
        owners,
        barriers: 0,
        phase: 0,
        numbers,
        bounded: BTreeSet::new(),
        children: BTreeMap::new(),
    };
    for side in [Side::A, Side::B] {
        for _ in 0..*builder.random.pick(&[&1, &1, &1, &2, &3]) {
            let list = builder.list(side, false);
            builder.owners[side as usize].push(list);
        }
    }
    phases::fill(&mut builder);
    builder.program
}

impl Builder {
    /// A new list.
    pub fn list(&mut self, side: Side, child: bool) -> usize {
        self.program.lists.push(List { side, child, steps: Vec::new() });
        self.program.lists.len() - 1
    }

    pub fn side(&self, list: usize) -> Side {
        self.program.lists[list].side
    }

    pub fn main(&self, side: Side) -> usize {
        self.owners[side as usize][0]
    }

    pub fn is_alone(&self, side: Side) -> bool {
        self.program.lists.iter().filter(|list| list.side == side).count() == 1
    }

    pub fn link(&self, connection: usize) -> Link {
        let owner = |side: Side| {
            let owners = &self.owners[side as usize];
            self.children.get(&(side, connection)).copied().unwrap_or(owners[connection % owners.len()])
        };
        Link { connection, a: owner(Side::A), b: owner(Side::B) }
    }

    /// From now on a child of this side has its end of the connection; the list that the child
    /// takes.
    pub fn give_to_child(&mut self, side: Side, connection: usize) -> usize {
        let child = self.list(side, true);
        self.children.insert((side, connection), child);
        child
    }

    pub fn is_with_child(&self, side: Side, connection: usize) -> bool {
        self.children.contains_key(&(side, connection))
    }

    pub fn has_children(&self) -> bool {
        !self.children.is_empty()
    }

    /// One more thread in the process of this list; none if it is a child, which has one thread.
    pub fn beside(&mut self, list: usize) -> Option<usize> {
        let List { side, child, .. } = self.program.lists[list];
        (!child).then(|| self.list(side, false))
    }

    /// Whether there is place for more lists.
    pub fn has_room(&self) -> bool {
        self.program.lists.len() + 4 < LISTS_MAX && self.program.steps().count() + 60 < STEPS_MAX
    }

    /// What is added from now on goes together.
    pub fn begin_phase(&mut self) {
        self.phase += 1;
    }

    pub fn add(&mut self, list: usize, step: Step) {
        self.program.lists[list].steps.push(Step { phase: self.phase, ..step });
    }

    /// All of these lists wait for one another.
    pub fn barrier(&mut self, lists: &[usize]) {
        self.meet("barrier", lists);
    }

    /// The same, and after it nothing is on its way any more.
    pub fn settle(&mut self, lists: &[usize]) {
        self.meet("settle", lists);
    }

    pub fn barrier_of_all(&mut self) {
        let all: Vec<usize> = (0..self.program.lists.len()).filter(|list| !self.program.lists[*list].child).collect();
        self.barrier(&all);
    }

    fn meet(&mut self, verb: &str, lists: &[usize]) {
        let number = self.barriers;
        self.barriers += 1;
        for list in lists {
            self.add(*list, Step::new(verb, 0).n(number));
        }
    }

    /// A number for a copy of a connection that this side has not given yet.
    pub fn number(&mut self, side: Side) -> i64 {
        let given = &mut self.numbers[side as usize];
        let number = if given.is_empty() && self.random.percent(40) { 0 } else { 40 + 7 * given.len() as i64 };
        given.push(number);
        number
    }

    pub fn is_unix(&self) -> bool {
        self.program.family == "unix"
    }

    /// From now on a connection's buffers do not grow by themselves.
    pub fn bounded(&mut self, connection: usize) {
        self.bounded.insert(connection);
    }

    /// How much the kernel takes, and in which pieces, while nobody reads.
    pub fn unread(&mut self, connection: usize) -> (i64, i64) {
        let piece = if self.random.percent(50) { self.random.size(1, 65536) } else { 65536 };
        let most = match () {
            () if self.is_unix() => piece * UNIX_UNREAD_MAX / (piece + UNIX_PIECE_COST),
            () if self.bounded.contains(&connection) => (piece * 20).min(TCP_BOUNDED_UNREAD_MAX),
            () => (piece * 400).min(TCP_UNREAD_MAX),
        };
        (self.random.size(1, most), piece)
    }

    /// The same, once all that was sent before is read: together they may be more.
    pub fn unread_alone(&mut self, link: Link) -> (i64, i64) {
        self.barrier(&[link.a, link.b]);
        self.unread(link.connection)
    }

    /// How much while somebody reads, in pieces that are not too many.
    pub fn flow(&mut self) -> i64 {
        self.random.size(1, 400_000)
    }

    pub fn piece(&mut self, n: i64) -> i64 {
        let fewest = (n / 150).max(1);
        self.random.size(fewest, 100_000)
    }
}

/// What the interpreter has place for.
const LISTS_MAX: usize = 24;
const STEPS_MAX: usize = 512;
/// A Unix socket counts what a piece costs, beside its bytes, against its 208 KiB.
const UNIX_UNREAD_MAX: i64 = 160_000;
const UNIX_PIECE_COST: i64 = 1400;
/// What TCP takes with its buffers growing by themselves, half of it to be sure.
const TCP_UNREAD_MAX: i64 = 1_000_000;
/// With the smallest buffers that programs ask for.
const TCP_BOUNDED_UNREAD_MAX: i64 = 16_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_one_program() {
        for seed in 0..100 {
            assert_eq!(generate(seed), generate(seed));
        }
        let texts: BTreeSet<String> = (0..100).map(|seed| generate(seed).to_string()).collect();
        assert!(texts.len() > 95, "{} different programs of 100", texts.len());
    }

    #[test]
    fn programs_fit_into_the_interpreter() {
        for seed in 0..2000 {
            let program = generate(seed);
            assert!(program.lists.len() <= LISTS_MAX, "seed {seed}");
            assert!(program.steps().count() < STEPS_MAX, "seed {seed}");
            assert!(
                program.steps().all(|step| !["barrier", "settle"].contains(&step.verb.as_str()) || step.n < 256),
                "seed {seed}"
            );
        }
    }

    /// Every call, way of waiting and disturbance that the interpreter knows is asked for by some
    /// program.
    #[test]
    fn everything_is_generated() {
        let mut words = BTreeSet::new();
        for seed in 0..3000 {
            for step in generate(seed).steps() {
                words.extend([step.verb.clone(), step.call.clone(), step.wait.clone()]);
            }
        }
        for word in EVERYTHING.split_whitespace() {
            assert!(words.contains(word), "`{word}` is never generated");
        }
    }

    const EVERYTHING: &str = "open send recv share sum echo pump serve talk shut look zero empty poke timeout barrier settle ticks \
        close dup option stream many closeall file visible run spawn sleep kill \
        write writev sendmsg sendto more sendfile splice sendmmsg read readv recvmsg recvfrom waitall peek recvmmsg fread \
        block poll ppoll select pselect epoll pwait newset edge oneshot timeo spin first-poll first-select first-epoll \
        fork hold vfork system popen exec stdin plainly pass lowat oobinline sndbuf rcvbuf nodelay cork linger keepalive \
        rd wr rdwr trunc urge urged rest range raw";
}
