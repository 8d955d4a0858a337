//! What a peer has said on the side channel so far: a state machine without a device.

use crate::messages::{Attach, Message, Mode};
use crate::pair::SHARED;
use crate::process::Process;
use crate::status::Fate;

/// What a peer has said.
#[derive(Debug)]
pub(crate) struct Said {
    /// How to reach it.
    pub(crate) attach: Option<Attach>,
    /// Its queue pairs take what comes.
    pub(crate) ready: bool,
    /// From where it takes receives.
    pub(crate) mode: Mode,
    /// Whose end to watch; taken by whoever does.
    pub(crate) process: Option<Process>,
    /// What it says of the oldest request that our device had.
    pub(crate) blame: Option<Fate>,
}

impl Said {
    pub(crate) fn nothing() -> Self {
        Self { attach: None, ready: false, mode: Mode::Undecided, process: None, blame: None }
    }

    /// Whether it may ever take from a shared queue.
    pub(crate) fn shares(&self) -> bool {
        self.attach.is_some_and(|peer| peer.shares)
    }

    /// The next message. An error is the connection's end.
    pub(crate) fn hear(&mut self, message: Message) -> Result<(), Fate> {
        match message {
            Message::Attach(attach) if self.attach.is_none() => {
                self.mode = if attach.shares { attach.mode } else { Mode::Own };
                self.process = attach.process;
                self.attach = Some(attach);
            }
            Message::Second { number } => match &mut self.attach {
                Some(peer) if peer.numbers[SHARED] == 0 => peer.numbers[SHARED] = number,
                _ => return Err(OUT_OF_TURN),
            },
            Message::Ready if self.attach.is_some() && !self.ready => self.ready = true,
            Message::Mode(mode) if self.attach.is_some_and(|peer| peer.shares || mode == Mode::Own) => self.mode = mode,
            Message::Close { fate } => {
                let fate = Fate::from_byte(fate);
                self.blame = Some(fate);
                return Err(fate);
            }
            Message::Attach(_) | Message::Ready | Message::Mode(_) => return Err(OUT_OF_TURN),
        }
        Ok(())
    }
}

pub(crate) const OUT_OF_TURN: Fate = Fate::Malformed("the peer said on the side channel what must not be said then");

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(shares: bool, second: u32) -> Message {
        let (numbers, mode) = ([17, second], Mode::Undecided);
        Message::Attach(Attach {
            numbers,
            psn: 1,
            gid: [7; 16],
            lid: 3,
            mtu: 5,
            reads: 16,
            shares,
            mode,
            process: None,
        })
    }

    #[test]
    fn everything_has_its_turn() {
        let (second, own, shared) =
            (Message::Second { number: 9 }, Message::Mode(Mode::Own), Message::Mode(Mode::Shared));
        let taken: [&[Message]; 3] = [
            &[attach(true, 0), second, Message::Ready, own, shared],
            &[attach(false, 0), own, Message::Ready],
            &[attach(true, 18), shared, own, shared],
        ];
        for messages in taken {
            let mut said = Said::nothing();
            assert!(messages.iter().all(|message| said.hear(*message).is_ok()), "{messages:?}");
        }
        let refused: [&[Message]; 7] = [
            &[second],
            &[Message::Ready],
            &[own],
            &[attach(true, 0), attach(true, 0)],
            &[attach(true, 18), second],
            &[attach(true, 0), Message::Ready, Message::Ready],
            &[attach(false, 0), shared],
        ];
        for messages in refused {
            let mut said = Said::nothing();
            let (last, first) = messages.split_last().unwrap();
            assert!(first.iter().all(|message| said.hear(*message).is_ok()), "{messages:?}");
            assert_eq!(said.hear(*last), Err(OUT_OF_TURN), "{messages:?}");
        }
    }

    #[test]
    fn the_end_says_why() {
        let mut said = Said::nothing();
        assert_eq!(said.hear(Message::Close { fate: 2 }), Err(Fate::TooLong));
        assert_eq!(said.blame, Some(Fate::TooLong));
    }
}
