//! What the sender may do next.

use super::*;

impl World {
    pub(super) fn steps_of_sender(&self, bound: &Bound, next: &mut Vec<Self>) {
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut world = *self;
            change(&mut world);
            next.push(world);
        };
        if self.sending == Sending::Gone {
            return;
        }
        // Killed: its end of the stream is closed, and the ring is there.
        step(&|world| {
            world.killed = true;
            world.go();
        });
        match self.sending {
            Sending::Idle => {
                if usize::from(self.message) < bound.messages.len() {
                    step(&|world| world.send(bound, true));
                    step(&|world| world.send(bound, false));
                }
                if self.left || self.tail & SWITCHED != 0 {
                    step(&|world| world.find(Find::responding(world.out_head), 0, Then::Respond));
                }
                if self.leaves && bound.leaves && self.resend.is_none() {
                    step(&|world| {
                        world.leaves = false;
                        world.find(Find::stopping(world.out_head), 0, Then::Leave);
                    });
                }
                step(&|world| match world.resend {
                    None => world.find(Find::stopping(world.out_head), 0, Then::Close),
                    Some(_) => world.push(0, Then::Close),
                });
            }
            Sending::Published(bytes) => step(&|world| {
                let wake = world.bells(|word| bells::claim(word, bells::DATA));
                world.owed += u32::from(wake.bell);
                world.sending = Sending::Rung(bytes);
            }),
            Sending::Rung(bytes) if self.owed > 0 => step(&|world| match world.act(1, Action::GiveBell, bound) {
                Event::Done => world.sending = Sending::BellGiven(bytes),
                _ => world.find(Find::published(world.out_head), bytes, Then::Sent),
            }),
            Sending::BellGiven(bytes) => step(&|world| {
                world.act(1, Action::SayGiven, bound);
                world.owed -= 1;
                world.sending = Sending::Rung(bytes);
            }),
            Sending::Rung(bytes) => step(&|world| world.find(Find::published(world.out_head), bytes, Then::Sent)),
            Sending::Find(find, bytes, then) => step(&|world| world.finding(find, bytes, then, bound)),
            Sending::Push(push, bytes, then) => step(&|world| world.pushing(push, bytes, then, bound)),
            Sending::Closing => step(&Self::go),
            Sending::Gone => {}
        }
    }

    /// Its end of the stream is closed. What it knew is of no matter any more.
    fn go(&mut self) {
        let new = Self::new();
        (self.sending, self.ended, self.sent_event) = (Sending::Gone, true, new.sent_event);
        (self.out_head, self.seen, self.resend, self.owed) = (0, 0, None, 0);
        (self.leaves, self.message) = (false, 0);
    }

    fn find(&mut self, find: Find, bytes: u8, then: Then) {
        (self.sending, self.sent_event) = (Sending::Find(find, bytes, then), Event::Done);
    }

    fn push(&mut self, bytes: u8, then: Then) {
        let resend = self.resend.unwrap_or(self.out_head);
        let push = Push::new(self.out_head, resend, self.owed, u64::from(bytes));
        (self.sending, self.sent_event) = (Sending::Push(push, bytes, then), Event::Done);
    }

    fn note(&mut self, word: u64) {
        if self.resend.is_none() {
            self.resend = Some(resend(word, self.out_head, RING as u64));
            (self.seen, self.leaves) = (0, false);
        }
    }

    /// `send::once`, up to the publication.
    fn send(&mut self, bound: &Bound, looks: bool) {
        if looks && self.resend.is_none() {
            self.seen = self.tail & !SWITCHED;
            if self.tail & SWITCHED != 0 {
                self.note(self.tail);
            }
        }
        if self.resend.is_some() {
            return self.push(0, Then::ToKernel);
        }
        let room = RING as u64 - (self.out_head - self.seen);
        let bytes = room.min(u64::from(bound.messages[usize::from(self.message)])) as u8;
        if bytes == 0 {
            return;
        }
        for i in 0..bytes {
            self.ring[(self.out_head as usize + usize::from(i)) % RING] = self.sent + i;
        }
        self.out_head += u64::from(bytes);
        self.head = self.out_head;
        self.sending = Sending::Published(bytes);
    }

    fn finding(&mut self, mut find: Find, bytes: u8, then: Then, bound: &Bound) {
        if let Some(action) = find.next(self.sent_event) {
            self.sent_event = self.act(1, action, bound);
            self.sending = Sending::Find(find, bytes, then);
            return;
        }
        let Some(word) = find.word else {
            return self.after(bytes, 0, then, bound);
        };
        self.note(word);
        match then {
            Then::Close if bound.wrong == Wrong::ClosedWithout => self.sending = Sending::Closing,
            _ => self.push(bytes, then),
        }
    }

    fn pushing(&mut self, mut push: Push, bytes: u8, then: Then, bound: &Bound) {
        if let Some(action) = push.next(self.sent_event) {
            self.sent_event = self.act(1, action, bound);
            self.sending = Sending::Push(push, bytes, then);
            return;
        }
        (self.out_head, self.resend, self.owed) = (push.head, Some(push.resend), push.owed);
        if bound.wrong == Wrong::UnsentLate && push.unsent > 0 {
            self.head = push.head;
        }
        if then == Then::ToKernel && push.result == Pushed::All {
            let wanted = bound.messages[usize::from(self.message)];
            let bytes = usize::from(wanted).min(bound.stream - self.len) as u8;
            (self.sent..self.sent + bytes).for_each(|byte| self.put(byte));
            return self.after(bytes, 0, then, bound);
        }
        if then == Then::Close && (push.owed > 0 || push.resend < push.head) {
            self.reset = true;
        }
        self.after(bytes, push.unsent as u8, then, bound);
    }

    /// A call comes back.
    fn after(&mut self, bytes: u8, unsent: u8, then: Then, bound: &Bound) {
        self.sent_event = Event::Done;
        self.sending = if then == Then::Close { Sending::Closing } else { Sending::Idle };
        self.sent += bytes - unsent;
        // What is left of a message is the next one.
        let mut end = 0;
        self.message = bound.messages.iter().take_while(|len| (end += **len, end <= self.sent).1).count() as u8;
    }
}
