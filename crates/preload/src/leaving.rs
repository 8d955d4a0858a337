//! How a direction of a connection leaves its ring: what an end does next, and nothing else.
//!
//! Each procedure is a machine. It says one action: one access to a word that both ends share, or
//! one call on the kernel's stream. It is told what came of it, and says the next one. There is no
//! system call here, no atomic and no pointer: `drain` and `resend` do what is said. What the words
//! mean is said in `layout`, the rules in `drain`; `explore` walks all of it.

use crate::layout::{SWITCHED, UNREAD_MAX};

/// One access to what both ends share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    LookLeft,
    LookHead,
    LookTail,
    LookPushed,
    LookGiven,
    /// Up to where the ring is read: what the receiver shares with its relatives since a fork.
    LookBorder,
    SayBorder(u64),
    /// The receiver says that it has left.
    SayLeft,
    /// The sender takes back what it has published behind this.
    SayHead(u64),
    /// So far the bytes behind the border have gone another way.
    SayPushed(u64),
    /// Puts the border where the tail is, unless there is one. The word of before comes of it.
    Switch,
    /// The same, at this position. The word of afterwards comes of it.
    SwitchAt(u64),
    /// The receiver takes its wake requests back. How many wake bytes were issued comes of it.
    Disarm,
    /// Becomes the one who sends again; refused while somebody else is, broken where
    /// nobody knows how far one came.
    Claim,
    Release,
    /// Puts one wake byte into the kernel's stream.
    GiveWakeByte,
    SayGiven,
    /// Has a descriptor of the sender's socket.
    Borrow,
    /// Asks whether the kernel takes so many bytes.
    Room(u64),
    /// Puts bytes of the ring into the kernel's stream. How many it took comes of it.
    Give {
        from: u64,
        until: u64,
    },
}

/// What came of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// Nothing yet; or it is done.
    Done,
    Word(u64),
    Refused,
    /// The kernel says that its stream is over.
    Broken,
}

/// Something that says one action after the other.
pub(crate) trait Machine {
    /// The next action; None when there is none any more.
    fn next(&mut self, event: Event) -> Option<Action>;
}

/// Does all of it.
pub(crate) fn run(machine: &mut impl Machine, mut act: impl FnMut(Action) -> Event) {
    let mut event = Event::Done;
    while let Some(action) = machine.next(event) {
        event = act(action);
    }
}

/// Where the receiver puts the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Unread {
    /// At the head: this process reads it from the ring.
    TakenAlong,
    /// Before what is unread, which is sent again through the kernel.
    SentAgain,
}

/// The receiver leaves. The border and the wake bytes are known in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leave {
    unread: Unread,
    /// Its position.
    tail: u64,
    at: AtLeave,
    pub(crate) border: u64,
    pub(crate) wake_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AtLeave {
    Begin,
    Left,
    Head,
    Border,
    Switched,
    Disarmed,
}

impl Leave {
    pub(crate) fn new(unread: Unread, tail: u64) -> Self {
        Self { unread, tail, at: AtLeave::Begin, border: tail, wake_bytes: 0 }
    }
}

impl Machine for Leave {
    fn next(&mut self, event: Event) -> Option<Action> {
        let (at, action) = match (self.at, self.unread, event) {
            (AtLeave::Begin, Unread::TakenAlong, _) => (AtLeave::Left, Action::SayLeft),
            // A sender that does not see this yet has published before, and that is seen here.
            (AtLeave::Left, ..) => (AtLeave::Head, Action::LookHead),
            (AtLeave::Head, _, Event::Word(head)) => {
                // One that makes no sense is noticed when it is read.
                let unread = head.checked_sub(self.tail).filter(|unread| *unread <= UNREAD_MAX);
                (AtLeave::Border, Action::SwitchAt(self.tail + unread.unwrap_or(0)))
            }
            (AtLeave::Begin, Unread::SentAgain, _) => (AtLeave::Switched, Action::Switch),
            (AtLeave::Switched, _, Event::Word(word)) => {
                self.border = word & !SWITCHED;
                (AtLeave::Border, Action::SayLeft)
            }
            (AtLeave::Border, _, event) => {
                if let Event::Word(word) = event {
                    self.border = word & !SWITCHED;
                }
                (AtLeave::Disarmed, Action::Disarm)
            }
            (AtLeave::Disarmed, _, event) => {
                if let Event::Word(wake_bytes) = event {
                    self.wake_bytes = wake_bytes;
                }
                return None;
            }
            _ => return None,
        };
        self.at = at;
        Some(action)
    }
}

/// The sender finds the border, or puts it somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Find {
    head: u64,
    at: AtFind,
    /// The tail word that has the border, once it is known; none if the receiver has not left.
    pub(crate) word: Option<u64>,
    /// The kernel takes what is unread.
    pub(crate) fits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AtFind {
    Published,
    LeftFirst,
    Responding,
    TailFirst,
    LeftLast,
    TailLast,
    Stopping,
    Unread,
    Room,
    Border,
}

impl Find {
    /// It has published bytes up to `head`, and looks whether the receiver has left.
    pub(crate) fn published(head: u64) -> Self {
        Self { head, at: AtFind::Published, word: None, fits: false }
    }

    /// It looks whether the receiver has left.
    pub(crate) fn responding(head: u64) -> Self {
        Self { head, at: AtFind::Responding, word: None, fits: false }
    }

    /// It leaves.
    pub(crate) fn stopping(head: u64) -> Self {
        Self { head, at: AtFind::Stopping, word: None, fits: false }
    }
}

impl Machine for Find {
    fn next(&mut self, event: Event) -> Option<Action> {
        let word = if let Event::Word(word) = event { word } else { 0 };
        let (at, action) = match self.at {
            AtFind::Published => (AtFind::LeftFirst, Action::LookLeft),
            AtFind::Responding => (AtFind::TailFirst, Action::LookTail),
            AtFind::LeftFirst | AtFind::LeftLast if word == 0 => return None,
            AtFind::LeftFirst => (AtFind::TailLast, Action::LookTail),
            AtFind::TailFirst | AtFind::TailLast if word & SWITCHED != 0 => {
                self.word = Some(word);
                return None;
            }
            AtFind::TailFirst => (AtFind::LeftLast, Action::LookLeft),
            // The receiver is just leaving, and does not mind who says where the border is.
            AtFind::LeftLast | AtFind::TailLast => (AtFind::Border, Action::SwitchAt(self.head)),
            AtFind::Stopping => (AtFind::Unread, Action::LookTail),
            AtFind::Unread => match self.head.checked_sub(word & !SWITCHED).filter(|unread| *unread <= UNREAD_MAX) {
                None | Some(0) => {
                    self.fits = true;
                    (AtFind::Border, Action::Switch)
                }
                Some(unread) => (AtFind::Room, Action::Room(unread)),
            },
            AtFind::Room => {
                self.fits = event == Event::Done;
                (AtFind::Border, if self.fits { Action::Switch } else { Action::SwitchAt(self.head) })
            }
            AtFind::Border => {
                self.word = Some(word | SWITCHED);
                return None;
            }
        };
        self.at = at;
        Some(action)
    }
}

/// From where on the sender has to send again. A receiver that lies about its position gets what it
/// has not said to have taken, or nothing.
pub(crate) fn resend(word: u64, head: u64, in_ring_at_most: u64) -> u64 {
    let tail = word & !SWITCHED;
    if head.checked_sub(tail).is_some_and(|unread| unread <= in_ring_at_most) { tail } else { head }
}

/// The sender sends again what lies behind the border. Its own last bytes it takes back instead,
/// where the kernel does not take them: they have not been sent then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Push {
    pub(crate) head: u64,
    pub(crate) resend: u64,
    /// Wake bytes that must be in the stream first.
    pub(crate) owed: u32,
    /// Bytes that may be taken back, and those that were.
    own: u64,
    pub(crate) unsent: u64,
    /// Bytes that the receiver has sent in its place.
    pub(crate) in_place: u64,
    pub(crate) result: Pushed,
    at: AtPush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pushed {
    All,
    /// The kernel takes no more now.
    Full,
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AtPush {
    Begin,
    WakeByte,
    Given,
    Claimed,
    Looked,
    Gave,
    Said,
    TakenBack,
    Released,
}

impl Push {
    pub(crate) fn new(head: u64, resend: u64, owed: u32, own: u64) -> Self {
        let (unsent, in_place) = (0, 0);
        Self { head, resend, owed, own, unsent, in_place, result: Pushed::All, at: AtPush::Begin }
    }

    fn wake_byte_or_claim(&mut self) -> Option<(AtPush, Action)> {
        if self.owed > 0 {
            return Some((AtPush::WakeByte, Action::GiveWakeByte));
        }
        self.claim()
    }

    fn claim(&mut self) -> Option<(AtPush, Action)> {
        (self.resend < self.head).then_some((AtPush::Claimed, Action::Claim))
    }

    fn give(&mut self) -> (AtPush, Action) {
        if self.resend < self.head && self.result == Pushed::All {
            return (AtPush::Gave, Action::Give { from: self.resend, until: self.head });
        }
        // Before anybody else may send them.
        self.unsent = (self.head - self.resend).min(self.own);
        if self.unsent > 0 {
            self.head -= self.unsent;
            return (AtPush::TakenBack, Action::SayHead(self.head));
        }
        (AtPush::Released, Action::Release)
    }
}

impl Machine for Push {
    fn next(&mut self, event: Event) -> Option<Action> {
        let (at, action) = match (self.at, event) {
            (AtPush::Begin, _) => self.wake_byte_or_claim()?,
            (AtPush::WakeByte, Event::Done) => {
                self.owed -= 1;
                (AtPush::Given, Action::SayGiven)
            }
            (AtPush::WakeByte, Event::Broken) => {
                self.result = Pushed::Broken;
                return None;
            }
            // Nothing may go before the wake byte; but bytes can be taken back.
            (AtPush::WakeByte, _) => {
                self.result = Pushed::Full;
                if self.own == 0 {
                    return None;
                }
                self.claim()?
            }
            (AtPush::Given, _) => self.wake_byte_or_claim()?,
            (AtPush::Claimed, Event::Refused) => {
                self.result = Pushed::Full;
                return None;
            }
            (AtPush::Claimed, Event::Broken) => {
                (self.resend, self.result) = (self.head, Pushed::Broken);
                return None;
            }
            (AtPush::Claimed, _) => (AtPush::Looked, Action::LookPushed),
            (AtPush::Looked, Event::Word(pushed)) if pushed > self.resend && pushed <= self.head => {
                (self.in_place, self.resend) = (pushed - self.resend, pushed);
                self.give()
            }
            (AtPush::Looked, _) => self.give(),
            (AtPush::Gave, Event::Word(bytes)) => {
                self.resend = self.resend.saturating_add(bytes).min(self.head);
                (AtPush::Said, Action::SayPushed(self.resend))
            }
            (AtPush::Gave, Event::Broken) => {
                // Nobody will have them.
                (self.resend, self.result) = (self.head, Pushed::Broken);
                (AtPush::Released, Action::Release)
            }
            (AtPush::Gave, _) => {
                self.result = Pushed::Full;
                self.give()
            }
            (AtPush::Said, _) => self.give(),
            (AtPush::TakenBack, _) => (AtPush::Released, Action::Release),
            (AtPush::Released, _) => return None,
        };
        self.at = at;
        Some(action)
    }
}

/// Bytes behind the border that nobody has put into the kernel yet, as the receiver sees it.
pub(crate) fn due(border: u64, head: u64, pushed: u64) -> u64 {
    // A sender whose own bytes the kernel did not take has taken its head back.
    head.checked_sub(border.max(pushed)).filter(|due| *due <= UNREAD_MAX).unwrap_or(0)
}

/// The receiver sends in the sender's place what is due: all of it, or partly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InPlace {
    border: u64,
    wake_bytes: u64,
    partly: bool,
    head: u64,
    position: u64,
    /// It is all there.
    pub(crate) there: bool,
    at: AtInPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AtInPlace {
    Begin,
    Head,
    Pushed,
    Given,
    Borrowed,
    Room,
    Claimed,
    HeadAgain,
    PushedAgain,
    Gave,
    Said,
    Released,
}

impl InPlace {
    pub(crate) fn new(border: u64, wake_bytes: u64, partly: bool) -> Self {
        let (head, position) = (border, border);
        Self { border, wake_bytes, partly, head, position, there: false, at: AtInPlace::Begin }
    }

    fn give(&mut self) -> (AtInPlace, Action) {
        self.there = self.position >= self.head;
        if self.there {
            return (AtInPlace::Released, Action::Release);
        }
        (AtInPlace::Gave, Action::Give { from: self.position, until: self.head })
    }
}

impl Machine for InPlace {
    fn next(&mut self, event: Event) -> Option<Action> {
        let word = if let Event::Word(word) = event { word } else { 0 };
        let (at, action) = match self.at {
            AtInPlace::Begin => (AtInPlace::Head, Action::LookHead),
            AtInPlace::Head | AtInPlace::HeadAgain => {
                self.head = word;
                let again = self.at == AtInPlace::HeadAgain;
                (if again { AtInPlace::PushedAgain } else { AtInPlace::Pushed }, Action::LookPushed)
            }
            AtInPlace::Pushed | AtInPlace::PushedAgain => {
                let due = due(self.border, self.head, word);
                self.position = self.head - due;
                if self.at == AtInPlace::PushedAgain {
                    self.give()
                } else if due == 0 {
                    self.there = true;
                    return None;
                } else {
                    (AtInPlace::Given, Action::LookGiven)
                }
            }
            // A wake byte that is counted, and not in the stream yet, would come behind.
            AtInPlace::Given if word < self.wake_bytes => return None,
            AtInPlace::Given => (AtInPlace::Borrowed, Action::Borrow),
            AtInPlace::Borrowed if event == Event::Refused => return None,
            AtInPlace::Borrowed => (AtInPlace::Room, Action::Room(self.head - self.position)),
            AtInPlace::Room if event == Event::Refused && !self.partly => return None,
            AtInPlace::Room => (AtInPlace::Claimed, Action::Claim),
            AtInPlace::Claimed if matches!(event, Event::Refused | Event::Broken) => return None,
            // Once more, now that nobody else does it.
            AtInPlace::Claimed => (AtInPlace::HeadAgain, Action::LookHead),
            AtInPlace::Gave => match event {
                Event::Word(bytes) => {
                    self.position = self.position.saturating_add(bytes).min(self.head);
                    (AtInPlace::Said, Action::SayPushed(self.position))
                }
                _ => (AtInPlace::Released, Action::Release),
            },
            AtInPlace::Said => self.give(),
            AtInPlace::Released => return None,
        };
        self.at = at;
        Some(action)
    }
}

/// Nobody has sent again what is due, and nobody will in time: the receiver takes it from the ring
/// after all, and the sender finds that it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TakeAlong {
    border: u64,
    /// How many there are.
    pub(crate) bytes: u64,
    /// False while the sender is at it, or was.
    pub(crate) taken: bool,
    at: AtAlong,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum AtAlong {
    #[default]
    Begin,
    Claimed,
    Border,
    Pushed,
    Head,
    Known,
    Said,
    Released,
}

impl Machine for TakeAlong {
    fn next(&mut self, event: Event) -> Option<Action> {
        let word = if let Event::Word(word) = event { word } else { 0 };
        let (at, action) = match self.at {
            AtAlong::Begin => (AtAlong::Claimed, Action::Claim),
            AtAlong::Claimed if matches!(event, Event::Refused | Event::Broken) => return None,
            // A relative may have done it just now.
            AtAlong::Claimed => (AtAlong::Border, Action::LookBorder),
            AtAlong::Border => {
                self.border = word;
                (AtAlong::Pushed, Action::LookPushed)
            }
            AtAlong::Pushed if word > self.border => (AtAlong::Released, Action::Release),
            AtAlong::Pushed => (AtAlong::Head, Action::LookHead),
            AtAlong::Head => {
                self.bytes = due(self.border, word, 0);
                self.border += self.bytes;
                (AtAlong::Known, Action::SayBorder(self.border))
            }
            AtAlong::Known => (AtAlong::Said, Action::SayPushed(self.border)),
            AtAlong::Said => {
                self.taken = true;
                (AtAlong::Released, Action::Release)
            }
            AtAlong::Released => return None,
        };
        self.at = at;
        Some(action)
    }
}
