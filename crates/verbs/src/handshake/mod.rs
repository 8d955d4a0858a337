//! Who is there: version, what both can do, and proof on both sides that they hold the same key.
//!
//! Connector and listener each bring a nonce. Each proves the key over everything that was said, in
//! a role of its own. So nothing of it can be played back, on this transport or another. The
//! connector proves first: a stranger that only reaches the port gets nothing that depends on the
//! key. The listener's proof says that the connector's was taken; zeros in its place say that it
//! was not. The same words, in two more roles, are the keys of the tags that may follow.
//!
//! [`Handshake`] is one side of it as bytes that come and go, whatever carries them;
//! [`stream`] carries them over a socket. Nothing here is secret but the key: a reader of the
//! wire reads everything on it.

#[cfg(test)]
mod corpus;
mod hello;
mod key;
#[cfg(any(test, fuzzing))]
pub mod parts;
mod party;
mod proof;
pub mod stream;
mod strength;

pub use key::{Key, KeyError};
pub use party::{Party, Wiring};
pub use proof::{Keys, TAG_BYTES, same, tag};
pub use strength::WeakKey;

use hello::{HELLO_BYTES, Hello};
use proof::{Exchange, PROOF_BYTES, Role};

/// What a side asks for.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The transport, as its addresses begin; up to 8 letters.
    pub protocol: &'static str,
    /// Version of all that travels on such a connection.
    pub version: u32,
    /// Both sides have the same one or none.
    pub key: Option<Key>,
    /// Whether what follows carries tags made with the key.
    pub tags: bool,
}

impl Terms {
    /// Whether what follows the handshake carries tags.
    pub fn has_tags(&self) -> bool {
        self.tags && self.key.is_some()
    }
}

/// One side of a handshake. Its peer may say anything: what is kept of it has a fixed size.
#[derive(Debug)]
pub struct Handshake {
    terms: Terms,
    listens: bool,
    ours: Hello,
    /// The peer has greeted, properly; what is missing is its proof.
    exchange: Option<Exchange>,
    heard: [u8; HELLO_BYTES],
    heard_bytes: usize,
    unsent: [u8; HELLO_BYTES],
    sent_bytes: usize,
    unsent_bytes: usize,
}

/// How far it has come.
#[derive(Debug)]
pub enum Turn {
    /// There is more to say or to hear.
    More,
    /// The peer holds the key, and these are the keys of the tags. What is unsent must still be
    /// said.
    Known(Keys),
    /// The peer is refused, and why, for our user. What is unsent tells the peer.
    Refused(String),
    /// The same for its key, or because one side has none: known of a connector's peer alone.
    OtherKey(String),
}

impl Handshake {
    /// The side that connects; it has something to say at once.
    pub fn connect(terms: &Terms, nonce: [u8; 32]) -> Self {
        let mut side = Self::new(terms, nonce, false);
        let said = side.ours.encode();
        side.say(&said);
        side
    }

    /// The side that listens.
    pub fn listen(terms: &Terms, nonce: [u8; 32]) -> Self {
        Self::new(terms, nonce, true)
    }

    fn new(terms: &Terms, nonce: [u8; 32], listens: bool) -> Self {
        Self {
            terms: terms.clone(),
            listens,
            ours: Hello::new(terms, nonce),
            exchange: None,
            heard: [0; HELLO_BYTES],
            heard_bytes: 0,
            unsent: [0; HELLO_BYTES],
            sent_bytes: 0,
            unsent_bytes: 0,
        }
    }

    /// A listener that takes no more connections for now says so to each connector.
    pub fn decline(&mut self) {
        self.ours.declines = true;
    }

    /// Whether the peer has said properly who it is; its proof may be missing.
    pub fn has_greeted(&self) -> bool {
        self.exchange.is_some()
    }

    /// What it means that the peer hangs up now.
    pub fn hung_up(&self) -> &'static str {
        match (self.listens, self.has_greeted(), &self.terms.key) {
            (true, ..) => "it hung up",
            (false, true, Some(_)) => "it hung up on our proof",
            (false, _, None) => {
                "it hung up: without a key it takes its own user's processes only, unless it has --anyone"
            }
            (false, false, Some(_)) => "it hung up",
        }
    }

    /// What is to be said.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent[self.sent_bytes..self.unsent_bytes]
    }

    /// So much of it was.
    pub fn sent(&mut self, bytes: usize) {
        self.sent_bytes = (self.sent_bytes + bytes).min(self.unsent_bytes);
    }

    /// Where the peer's next bytes go; not one byte more than it may say now.
    pub fn room(&mut self) -> &mut [u8] {
        let wanted = self.wanted();
        &mut self.heard[self.heard_bytes..wanted]
    }

    /// So many came.
    pub fn heard(&mut self, bytes: usize) -> Turn {
        let wanted = self.wanted();
        self.heard_bytes = (self.heard_bytes + bytes).min(wanted);
        if self.heard_bytes < wanted {
            return Turn::More;
        }
        self.heard_bytes = 0;
        match (self.listens, self.exchange.take()) {
            (true, None) => self.greeted(),
            (true, Some(exchange)) => self.proved(&exchange),
            (false, None) => self.answered(),
            (false, Some(exchange)) => self.welcomed(&exchange),
        }
    }

    fn wanted(&self) -> usize {
        if self.has_greeted() { PROOF_BYTES } else { HELLO_BYTES }
    }

    /// The listener hears the greeting, and greets. A connector that differs
    /// learns how from our greeting.
    fn greeted(&mut self) -> Turn {
        let said = self.heard;
        let Some(theirs) = Hello::decode(&said, self.terms.version) else {
            return Turn::Refused("it does not speak this protocol".to_owned());
        };
        let ours = self.ours.encode();
        self.say(&ours);
        match theirs.differs(&self.ours, &self.terms) {
            Some(why) => Turn::Refused(why),
            None if self.ours.declines => Turn::Refused("there are as many connections as may be".to_owned()),
            None => {
                self.exchange = Some(Exchange::new(self.terms.key.as_ref(), &said, &ours));
                Turn::More
            }
        }
    }

    /// The listener hears the proof, and proves.
    fn proved(&mut self, exchange: &Exchange) -> Turn {
        if !exchange.holds(Role::Connector, &self.heard[..PROOF_BYTES]) {
            // Else the connector could not tell this from a listener that is gone.
            self.say(&[0; PROOF_BYTES]);
            return Turn::Refused("its key is another one".to_owned());
        }
        self.say(&exchange.proof(Role::Listener));
        Turn::Known(exchange.keys(true))
    }

    /// The connector hears the greeting, and proves.
    fn answered(&mut self) -> Turn {
        let said = self.heard;
        let Some(theirs) = Hello::decode(&said, self.terms.version) else {
            return Turn::Refused("it does not speak this protocol".to_owned());
        };
        if let Some(why) = theirs.differs(&self.ours, &self.terms) {
            let in_key = theirs.key != self.ours.key
                && (theirs.protocol, theirs.version) == (self.ours.protocol, self.ours.version);
            return if in_key { Turn::OtherKey(why) } else { Turn::Refused(why) };
        }
        if theirs.declines {
            return Turn::Refused("it takes no more connections now; try again later".to_owned());
        }
        let exchange = Exchange::new(self.terms.key.as_ref(), &self.ours.encode(), &said);
        self.say(&exchange.proof(Role::Connector));
        self.exchange = Some(exchange);
        Turn::More
    }

    /// The connector hears the listener's proof.
    fn welcomed(&mut self, exchange: &Exchange) -> Turn {
        let proof = &self.heard[..PROOF_BYTES];
        if !exchange.holds(Role::Listener, proof) {
            let why = "its key is another one; give the same --key-file on both sides".to_owned();
            // A listener says so by zeros. Anything else may be a stranger's, or noise.
            return if proof.iter().all(|byte| *byte == 0) { Turn::OtherKey(why) } else { Turn::Refused(why) };
        }
        Turn::Known(exchange.keys(false))
    }

    fn say(&mut self, bytes: &[u8]) {
        self.unsent[..bytes.len()].copy_from_slice(bytes);
        (self.sent_bytes, self.unsent_bytes) = (0, bytes.len());
    }
}

/// Why nobody listens for other hosts without a key.
pub const NEEDS_KEY: &str = "other hosts can reach it, so it needs a key: give --key-file, or listen on 127.0.0.1";

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(key: Option<u8>) -> Terms {
        Terms { protocol: "tcp", version: 3, key: key.map(parts::key), tags: true }
    }

    /// Lets both talk until neither has more to say: what came of the connector and of the
    /// listener.
    fn talk(mut connector: Handshake, mut listener: Handshake) -> (Turn, Turn) {
        fn carry(from: &mut Handshake, to: &mut Handshake) -> Option<Turn> {
            let mut last = None;
            while !from.unsent().is_empty()
                && !matches!(last, Some(Turn::Known(_) | Turn::Refused(_) | Turn::OtherKey(_)))
            {
                let bytes = from.unsent().len().min(to.room().len()).min(7);
                let (said, room) = (from.unsent()[..bytes].to_vec(), to.room());
                room[..bytes].copy_from_slice(&said);
                from.sent(bytes);
                last = Some(to.heard(bytes));
            }
            last
        }
        let (mut up, mut down) = (Turn::More, Turn::More);
        for _ in 0..4 {
            down = carry(&mut connector, &mut listener).unwrap_or(down);
            up = carry(&mut listener, &mut connector).unwrap_or(up);
        }
        (up, down)
    }

    fn told(turn: &Turn) -> &str {
        match turn {
            Turn::Refused(why) | Turn::OtherKey(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_sides_know_each_other_by_the_key() {
        for key in [None, Some(7)] {
            let terms = terms(key);
            let (up, down) = talk(Handshake::connect(&terms, [1; 32]), Handshake::listen(&terms, [2; 32]));
            let (Turn::Known(up), Turn::Known(down)) = (up, down) else { panic!("{key:?}") };
            assert!(up.out == down.into && up.into == down.out && up.out != up.into);
        }
    }

    #[test]
    fn another_key_or_none_is_refused_on_both_sides() {
        let with = |ours: Option<u8>, theirs: Option<u8>| {
            talk(Handshake::connect(&terms(ours), [1; 32]), Handshake::listen(&terms(theirs), [2; 32]))
        };
        let (up, down) = with(Some(7), Some(8));
        assert!(matches!(up, Turn::OtherKey(_)) && told(&up).contains("--key-file"), "{up:?}");
        assert!(told(&down).contains("another one"), "{down:?}");
        let (up, down) = with(None, Some(8));
        assert!(told(&up).contains("asks for a key") && told(&down).contains("no key"), "{up:?} {down:?}");
        let (up, down) = with(Some(8), None);
        assert!(told(&up).contains("it has no key") && told(&down).contains("asks for a key"), "{up:?} {down:?}");
    }

    /// Gives a side what its peer may say now: what came of it, and what the side says then.
    fn hears(side: &mut Handshake, said: &[u8]) -> (Turn, Vec<u8>) {
        let room = side.room();
        let bytes = room.len().min(said.len());
        room[..bytes].copy_from_slice(&said[..bytes]);
        let turn = side.heard(bytes);
        let unsent = side.unsent().to_vec();
        side.sent(unsent.len());
        (turn, unsent)
    }

    fn greeting(terms: &Terms) -> [u8; HELLO_BYTES] {
        Hello::new(terms, [1; 32]).encode()
    }

    /// A wrong proof is answered by zeros, a wrong greeting by a greeting that is the same
    /// whatever the key.
    #[test]
    fn nothing_that_a_listener_says_before_it_heard_a_proof_depends_on_its_key() {
        for first in [greeting(&terms(Some(1))), greeting(&terms(None)), [0; HELLO_BYTES]] {
            for second in [vec![], vec![0; 31], vec![0; 32], first[..32].to_vec()] {
                let says = |key: u8| {
                    let mut listener = Handshake::listen(&terms(Some(key)), [2; 32]);
                    let mut said = Vec::new();
                    for word in [&first[..], &second] {
                        let (turn, answer) = hears(&mut listener, word);
                        said.extend(answer);
                        if matches!(turn, Turn::Refused(_)) {
                            break;
                        }
                        assert!(!matches!(turn, Turn::Known(_)));
                    }
                    said
                };
                assert_eq!(says(7), says(8));
                assert!(says(7).get(HELLO_BYTES..).is_none_or(|proof| proof.iter().all(|byte| *byte == 0)));
            }
        }
    }

    /// Without the key there is nothing to say that was not said: to play it back to either side
    /// proves nothing.
    #[test]
    fn what_was_said_proves_nothing_when_it_is_said_back_or_again() {
        let terms = terms(Some(7));
        let (mut up, mut down) = (Handshake::connect(&terms, [1; 32]), Handshake::listen(&terms, [2; 32]));
        let hello = up.unsent().to_vec();
        up.sent(HELLO_BYTES);
        let (_, answer) = hears(&mut down, &hello);
        let (_, proof) = hears(&mut up, &answer);
        // The connector's proof is no listener's.
        assert!(matches!(hears(&mut up, &proof).0, Turn::Refused(_)));
        // Nor is its greeting that of a listener which could prove anything with it.
        let mut reflected = Handshake::connect(&terms, [1; 32]);
        let (_, theirs) = hears(&mut reflected, &hello);
        assert!(matches!(hears(&mut reflected, &theirs).0, Turn::Refused(_)));
        // The next connection has another nonce.
        let mut next = Handshake::listen(&terms, [3; 32]);
        hears(&mut next, &hello);
        assert!(matches!(hears(&mut next, &proof).0, Turn::Refused(_)));
        assert!(matches!(hears(&mut down, &proof), (Turn::Known(_), proof) if proof.len() == PROOF_BYTES));
    }

    /// A man in the middle cannot talk them out of tags or into another version: the
    /// proofs are over the greetings.
    #[test]
    fn a_greeting_that_was_changed_on_its_way_is_noticed() {
        let terms = terms(Some(7));
        for at in 0..HELLO_BYTES {
            let (mut up, mut down) = (Handshake::connect(&terms, [1; 32]), Handshake::listen(&terms, [2; 32]));
            let mut hello = up.unsent().to_vec();
            hello[at] ^= 1;
            let (turn, answer) = hears(&mut down, &hello);
            if matches!(turn, Turn::Refused(_)) {
                continue;
            }
            let (_, proof) = hears(&mut up, &answer);
            assert!(matches!(hears(&mut down, &proof).0, Turn::Refused(_)), "byte {at}");
        }
    }

    #[test]
    fn a_listener_that_declines_says_so_and_proves_nothing() {
        let terms = terms(Some(7));
        let mut listener = Handshake::listen(&terms, [2; 32]);
        listener.decline();
        let (up, down) = talk(Handshake::connect(&terms, [1; 32]), listener);
        assert!(told(&up).contains("try again later") && told(&down).contains("as many"), "{up:?} {down:?}");
    }

    #[test]
    fn a_listener_of_another_transport_is_told_apart() {
        let ours = Terms { protocol: "rdma", ..terms(None) };
        let (up, down) = talk(Handshake::connect(&ours, [1; 32]), Handshake::listen(&terms(None), [2; 32]));
        assert!(told(&up).contains("tcp: addresses") && told(&down).contains("rdma: addresses"), "{up:?} {down:?}");
    }
}
