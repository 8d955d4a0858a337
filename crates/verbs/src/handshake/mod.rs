//! Who is there: version, what both can do, and proof on both sides that they hold the same key.
//!
//! Connector and listener each bring a nonce; each proves the key over everything that was said, in a role of its own, so that
//! nothing of it can be played back, on this transport or another. The listener proves first, and the connector hears that
//! its own proof was taken before it goes on. The same words, in two more roles, are the keys of the tags that may follow.
//!
//! [`Handshake`] is one side of it as bytes that come and go, whatever carries them; [`stream`] carries them over a
//! socket. Nothing here is secret but the key: whoever sees the wire reads everything on it.

mod hello;
mod key;
#[doc(hidden)]
pub mod parts;
mod proof;
pub mod stream;

pub use key::{Key, KeyError};
pub use proof::{Keys, TAG_BYTES, same, tag};

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

/// One side of a handshake. Its peer may say anything: what is kept of it has a fixed size.
#[derive(Debug)]
pub struct Handshake {
    terms: Terms,
    listens: bool,
    ours: Hello,
    /// Both greetings were said; what is missing is the last proof.
    exchange: Option<Exchange>,
    heard: [u8; ANSWER_BYTES],
    heard_bytes: usize,
    unsent: [u8; ANSWER_BYTES],
    sent_bytes: usize,
    unsent_bytes: usize,
}

/// How far it has come.
#[derive(Debug)]
pub enum Turn {
    /// There is more to say or to hear.
    More,
    /// The peer holds the key, and these are the keys of the tags. What is unsent must still be said.
    Known(Keys),
    /// The peer is refused, and why, for our user. What is unsent tells the peer.
    Refused(String),
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
            heard: [0; ANSWER_BYTES],
            heard_bytes: 0,
            unsent: [0; ANSWER_BYTES],
            sent_bytes: 0,
            unsent_bytes: 0,
        }
    }

    /// A listener that takes no more connections for now says so to whoever comes.
    pub fn decline(&mut self) {
        self.ours.declines = true;
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
        match (self.listens, &self.exchange) {
            (_, Some(_)) => PROOF_BYTES,
            (true, None) => HELLO_BYTES,
            (false, None) => ANSWER_BYTES,
        }
    }

    /// The listener hears the greeting, greets and proves. Whoever differs is told how by our greeting, and gets no proof.
    fn greeted(&mut self) -> Turn {
        let said = self.greeting();
        let ours = self.ours.encode();
        let Some(theirs) = Hello::decode(&said, self.terms.version) else {
            return Turn::Refused("it does not speak this protocol".to_owned());
        };
        let mut answer = [0; ANSWER_BYTES];
        answer[..HELLO_BYTES].copy_from_slice(&ours);
        let why = match theirs.differs(&self.ours, &self.terms) {
            None if self.ours.declines => Some("there are as many connections as may be".to_owned()),
            why => why,
        };
        if let Some(why) = why {
            self.say(&answer);
            return Turn::Refused(why);
        }
        let exchange = Exchange::new(self.terms.key.as_ref(), &said, &ours);
        answer[HELLO_BYTES..].copy_from_slice(&exchange.proof(Role::Listener));
        self.say(&answer);
        self.exchange = Some(exchange);
        Turn::More
    }

    /// The listener hears the proof.
    fn proved(&mut self, exchange: &Exchange) -> Turn {
        if !exchange.holds(Role::Connector, &self.heard[..PROOF_BYTES]) {
            return Turn::Refused("its key is another one".to_owned());
        }
        self.say(&exchange.proof(Role::Welcome));
        Turn::Known(exchange.keys(true))
    }

    /// The connector hears greeting and proof, and proves.
    fn answered(&mut self) -> Turn {
        let said = self.greeting();
        let Some(theirs) = Hello::decode(&said, self.terms.version) else {
            return Turn::Refused("it does not speak this protocol".to_owned());
        };
        if let Some(why) = theirs.differs(&self.ours, &self.terms) {
            return Turn::Refused(why);
        }
        if theirs.declines {
            return Turn::Refused("it takes no more connections now; try again later".to_owned());
        }
        let exchange = Exchange::new(self.terms.key.as_ref(), &self.ours.encode(), &said);
        if !exchange.holds(Role::Listener, &self.heard[HELLO_BYTES..]) {
            return Turn::Refused("its key is another one; give the same --key-file on both sides".to_owned());
        }
        self.say(&exchange.proof(Role::Connector));
        self.exchange = Some(exchange);
        Turn::More
    }

    /// The connector hears that its proof was taken.
    fn welcomed(&mut self, exchange: &Exchange) -> Turn {
        if !exchange.holds(Role::Welcome, &self.heard[..PROOF_BYTES]) {
            return Turn::Refused("it did not take our proof".to_owned());
        }
        Turn::Known(exchange.keys(false))
    }

    fn greeting(&self) -> [u8; HELLO_BYTES] {
        std::array::from_fn(|i| self.heard[i])
    }

    fn say(&mut self, bytes: &[u8]) {
        self.unsent[..bytes.len()].copy_from_slice(bytes);
        (self.sent_bytes, self.unsent_bytes) = (0, bytes.len());
    }
}

/// Why nobody listens for other hosts without a key.
pub const NEEDS_KEY: &str = "other hosts can reach it, so it needs a key: give --key-file, or listen on 127.0.0.1";
/// The listener's greeting with its proof.
const ANSWER_BYTES: usize = HELLO_BYTES + PROOF_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(key: Option<&[u8]>) -> Terms {
        Terms { protocol: "tcp", version: 3, key: key.and_then(Key::from_bytes), tags: true }
    }

    /// Lets both talk until neither has more to say: what came of the connector and of the listener.
    fn talk(mut connector: Handshake, mut listener: Handshake) -> (Turn, Turn) {
        fn carry(from: &mut Handshake, to: &mut Handshake) -> Option<Turn> {
            let mut last = None;
            while !from.unsent().is_empty() && !matches!(last, Some(Turn::Known(_) | Turn::Refused(_))) {
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
            Turn::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_sides_know_each_other_by_the_key() {
        for key in [None, Some(&[7u8; 32][..])] {
            let terms = terms(key);
            let (up, down) = talk(Handshake::connect(&terms, [1; 32]), Handshake::listen(&terms, [2; 32]));
            let (Turn::Known(up), Turn::Known(down)) = (up, down) else { panic!("{key:?}") };
            assert!(up.out == down.into && up.into == down.out && up.out != up.into);
        }
    }

    #[test]
    fn another_key_or_none_is_refused_on_both_sides_before_any_proof() {
        let with = |ours: Option<&[u8]>, theirs: Option<&[u8]>| {
            talk(Handshake::connect(&terms(ours), [1; 32]), Handshake::listen(&terms(theirs), [2; 32]))
        };
        let (up, down) = with(Some(&[7; 32]), Some(&[8; 32]));
        assert!(told(&up).contains("another one") && matches!(down, Turn::More), "{up:?} {down:?}");
        let (up, down) = with(None, Some(&[8; 32]));
        assert!(told(&up).contains("asks for a key") && told(&down).contains("no key"), "{up:?} {down:?}");
        let (up, down) = with(Some(&[8; 32]), None);
        assert!(told(&up).contains("it has no key") && told(&down).contains("asks for a key"), "{up:?} {down:?}");
    }

    #[test]
    fn whoever_differs_gets_no_proof() {
        let mut listener = Handshake::listen(&terms(Some(&[7; 32])), [2; 32]);
        let said = Hello::new(&terms(None), [1; 32]).encode();
        listener.room().copy_from_slice(&said);
        assert!(matches!(listener.heard(HELLO_BYTES), Turn::Refused(_)));
        assert_eq!(listener.unsent().len(), ANSWER_BYTES);
        assert_eq!(listener.unsent()[HELLO_BYTES..], [0; PROOF_BYTES]);
    }

    #[test]
    fn a_listener_that_declines_says_so_and_proves_nothing() {
        let terms = terms(Some(&[7; 32]));
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
