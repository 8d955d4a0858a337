//! A system that does as its clients say: the first byte of a request says what.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use overside_service::{Attended, BadMessage, Context, Produced, RequestOrder, Session, System, Ticket};

/// Requests that wait for their test, by the byte that follows the first.
#[derive(Default)]
pub struct Obedient {
    waiting: Mutex<Vec<(u8, Ticket)>>,
    /// Bodies in the order in which they were carried out.
    pub carried_out: Mutex<Vec<Vec<u8>>>,
    /// Why connections ended.
    pub ended: Mutex<Vec<String>>,
    /// What the worker of the next request attends to from then on.
    pub attended: Mutex<Option<Arc<dyn Attended>>>,
}

impl Obedient {
    pub fn new() -> Arc<Obedient> {
        Arc::default()
    }

    /// The ticket of the request that was called so.
    pub fn ticket(&self, called: u8) -> Ticket {
        let mut found = None;
        super::until("such a request waits", || {
            let mut waiting = self.waiting.lock().unwrap();
            found = waiting.iter().position(|(other, _)| *other == called).map(|at| waiting.remove(at).1);
            found.is_some()
        });
        found.unwrap()
    }

    /// Answers the request that was called so, from this thread.
    pub fn finish(&self, called: u8) {
        self.ticket(called).complete(|body| body.push(called));
    }
}

impl System for Obedient {
    type Session = Obeying;

    fn session(self: &Arc<Self>) -> Obeying {
        Obeying { system: self.clone(), timed: None, streams: Vec::new(), lendable: Vec::new() }
    }

    fn unfinished(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(b"dropped");
    }
}

pub struct Obeying {
    system: Arc<Obedient>,
    timed: Option<(u8, Ticket)>,
    /// Of the running stream: its number, messages left.
    streams: Vec<(u32, u8)>,
    /// The same, of messages that may be lent.
    lendable: Vec<(u32, u8)>,
}

impl Session for Obeying {
    fn opened(&mut self, context: &mut Context<'_>) {
        context.admit();
    }

    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        self.system.carried_out.lock().unwrap().push(body.to_vec());
        if let Some(what) = self.system.attended.lock().unwrap().take() {
            context.attend(what);
        }
        let order = match body {
            // Answer now.
            [b'n' | b'o', ..] => {
                context.reply(number, |out| out.extend_from_slice(&body[1..]));
                return Ok(());
            }
            // Answer after a while that the worker is busy for.
            [b'w'] => {
                std::thread::sleep(Duration::from_millis(1));
                context.reply(number, |_| ());
                return Ok(());
            }
            // Answer in many bytes: so many times 64 KiB.
            [b'l', count] => {
                context.reply(number, |out| out.extend(std::iter::repeat_n(*count, usize::from(*count) << 16)));
                return Ok(());
            }
            // Answer when some milliseconds have passed, by the worker's own hand.
            [b't', called, ms] => {
                self.timed = Some((*called, context.later(number, RequestOrder::Free)));
                context.wake_at(context.clock().now() + Duration::from_millis(u64::from(*ms)));
                return Ok(());
            }
            // Send so many messages and then the reply.
            [b's', count] => {
                self.streams.push((number, *count));
                context.stream();
                return Ok(());
            }
            // Send so many messages that may be lent, and then the reply.
            [b'g', count] => {
                self.lendable.push((number, *count));
                context.stream();
                return Ok(());
            }
            // Answer when the test says so.
            [b'f', _] => RequestOrder::Free,
            [b'r', _] => RequestOrder::Replies,
            [b'q', _] => RequestOrder::Requests,
            [b'p'] => panic!("planted"),
            _ => return Err(BadMessage("an unknown word")),
        };
        let ticket = context.later(number, order);
        self.system.waiting.lock().unwrap().push((body[1], ticket));
        Ok(())
    }

    fn overtakes(&self, body: &[u8]) -> bool {
        body.first() == Some(&b'o')
    }

    fn woken(&mut self, context: &mut Context<'_>) -> Result<(), BadMessage> {
        if let Some((called, ticket)) = self.timed.take() {
            context.complete(ticket, |body| body.push(called));
        }
        Ok(())
    }

    fn produce(&mut self, context: &mut Context<'_>) -> Produced {
        if let Some((number, left)) = self.lendable.first_mut() {
            if *left > 0 {
                let Some(mut taken) = context.take(100) else { return Produced::Wait };
                *left -= 1;
                taken[..100].fill(*left);
                context.send(context.message(taken, 100).lendable());
                return Produced::Message;
            }
            context.reply(*number, |body| body.extend_from_slice(b"end"));
            self.lendable.clear();
            return Produced::End;
        }
        let Some((number, left)) = self.streams.first_mut() else { return Produced::End };
        if *left > 0 {
            *left -= 1;
            context.send_bytes(vec![*left; 100]);
            return Produced::Message;
        }
        context.reply(*number, |body| body.extend_from_slice(b"end"));
        self.streams.remove(0);
        if self.streams.is_empty() { Produced::End } else { Produced::Message }
    }

    fn ended(&mut self, why: &str) {
        self.system.ended.lock().unwrap().push(why.to_owned());
    }
}
