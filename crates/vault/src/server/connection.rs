//! One connection of a client: its greeting, its requests.

use std::sync::Arc;

use overside_memory::{Buffer, Bytes};
use overside_service::{BadMessage, CONTROL_HEADER, Context, RequestOrder, Session, Ticket};
use overside_verbs::RemoteToken;
use overside_volume::wire::{
    self, Change, Changed, HEADER, Hello, Inquiry, NONCE_BYTES, Operation, Proof, Reply, RequestHeader, Role, Status,
    Welcome,
};
use overside_volume::{DeviceError, SECTOR_BYTES, Work};

use super::attachment::Attachment;
use super::blocks::{self, Block, Blocks, ReadBlock};
use super::ledger::{Admitted, Credits};
use super::reads::Reads;
use super::volume::{Route, To, answer};
use super::{Node, Who, lock, writer_of};

/// A connection's session with the service.
#[derive(Debug)]
pub struct Connection {
    node: Arc<Node>,
    attached: Option<Attached>,
    /// It was greeted, and waits for what must end first.
    greeted: Option<Greeted>,
    /// It must prove the volume's key: what it said, and what it was told.
    challenged: Option<Challenged>,
    reads: Reads,
}

/// What a WRITE writes.
enum Payload<'a> {
    Came(&'a [u8]),
    Read(ReadBlock),
}

#[derive(Debug)]
enum Challenged {
    Greeting(Hello, Welcome),
    Change(Change, Changed),
}

#[derive(Debug)]
struct Attached {
    to: Arc<Attachment>,
    credits: Credits,
    request_bytes_max: u32,
    read_only: bool,
    /// It may mend what is wrong on disks.
    mends: bool,
}

#[derive(Debug)]
struct Greeted {
    attached: Attached,
    /// What these have in flight must end before the client is welcome.
    before: Vec<Arc<Attachment>>,
    ticket: Ticket,
    welcome: Welcome,
}

impl Connection {
    pub(super) fn new(node: Arc<Node>) -> Connection {
        Connection { node, attached: None, greeted: None, challenged: None, reads: Reads::default() }
    }

    /// Says nothing before the key is proved, where there are keys: not even
    /// whether there is such a volume.
    fn challenge(&mut self, context: &mut Context<'_>, hello: Hello) -> Result<(), BadMessage> {
        if self.node.options.access.is_none() {
            return self.greet(context, &hello, true);
        }
        let mut nonce = [0; 16];
        context.clock().fill(&mut nonce).map_err(|_| BadMessage("the system has no chance to give"))?;
        let (session, bytes) = nonce.split_at(8);
        let [session, bytes] = [session, bytes].map(|half| u64::from_le_bytes(std::array::from_fn(|i| half[i])));
        let challenge = Welcome { session, bytes, ..self.refused(&hello, Status::Prove) };
        context.reply(hello.number, |body| body.extend_from_slice(&challenge.bytes()[CONTROL_HEADER..]));
        self.challenged = Some(Challenged::Greeting(hello, challenge));
        Ok(())
    }

    /// The same of a change.
    fn challenge_change(&mut self, context: &mut Context<'_>, change: Change) -> Result<(), BadMessage> {
        if self.challenged.is_some() {
            return Err(BadMessage("a second question before a proof"));
        }
        if self.node.options.access.is_none() {
            self.node.change_later(context, change.number, change);
            return Ok(());
        }
        let mut nonce = [0; NONCE_BYTES];
        context.clock().fill(&mut nonce).map_err(|_| BadMessage("the system has no chance to give"))?;
        let challenge = Changed { number: change.number, status: Status::Prove, nonce, text: String::new() };
        context.reply(change.number, |body| body.extend_from_slice(&challenge.bytes()[CONTROL_HEADER..]));
        self.challenged = Some(Challenged::Change(change, challenge));
        Ok(())
    }

    /// One answer for a client without the volume's key, and for one that asks for a
    /// volume that is not there.
    fn proved(&mut self, context: &mut Context<'_>, proof: &Proof) -> Result<(), BadMessage> {
        let challenged = self.challenged.take().ok_or(BadMessage("a proof that nobody asked for"))?;
        let access = self.node.options.access.as_ref();
        let permits =
            |volume: &str, said: (&[u8], &[u8])| access.and_then(|access| access.permits(volume, said, proof));
        let (hello, challenge) = match challenged {
            Challenged::Greeting(hello, _) if hello.number != proof.number => {
                return Err(BadMessage("a proof that nobody asked for"));
            }
            Challenged::Greeting(hello, challenge) => (hello, challenge),
            Challenged::Change(change, challenge) => {
                let status = match permits(&change.volume, (&change.bytes()[..], &challenge.bytes()[..])) {
                    Some(true) => {
                        self.node.change_later(context, proof.number, change);
                        return Ok(());
                    }
                    Some(false) => Status::Device(DeviceError::ReadOnly),
                    None => Status::Unknown,
                };
                let refused = Changed { number: proof.number, status, nonce: [0; NONCE_BYTES], text: String::new() };
                context.reply(proof.number, |body| body.extend_from_slice(&refused.bytes()[CONTROL_HEADER..]));
                return Ok(());
            }
        };
        let refused = match permits(&hello.name, (&hello.bytes()[..], &challenge.bytes()[..])) {
            Some(true) => return self.greet(context, &hello, true),
            Some(false) if hello.role == Role::Reader => return self.greet(context, &hello, false),
            Some(false) => Status::Device(DeviceError::ReadOnly),
            None => Status::Unknown,
        };
        let refused = self.refused(&hello, refused);
        context.reply(hello.number, |body| body.extend_from_slice(&refused.bytes()[CONTROL_HEADER..]));
        Ok(())
    }

    fn refused(&self, hello: &Hello, status: Status) -> Welcome {
        Welcome {
            number: hello.number,
            status,
            session: 0,
            generation: hello.generation,
            incarnation: self.node.incarnation,
            bytes: 0,
            unit_bytes: SECTOR_BYTES as u32,
            read_only: true,
            requests_max: 0,
            request_bytes_max: 0,
            features: 0,
        }
    }

    fn greet(&mut self, context: &mut Context<'_>, hello: &Hello, mends: bool) -> Result<(), BadMessage> {
        let refused = |status| self.refused(hello, status);
        let (to, before) = match self.attach(context, hello)? {
            Ok(found) => found,
            Err(status) => {
                context.reply(hello.number, |body| body.extend_from_slice(&refused(status).bytes()[CONTROL_HEADER..]));
                return Ok(());
            }
        };
        context.admit();
        context.set_buffer_bytes(hello.buffer_bytes as usize);
        let options = &self.node.options;
        let request_bytes_max = options.request_bytes_max.min(hello.buffer_bytes.saturating_sub(HEADER as u32));
        let request_bytes_max = to.volume.request_bytes_max(request_bytes_max);
        let geometry = to.volume.geometry();
        let read_only = geometry.read_only || !to.writes;
        let welcome = Welcome {
            session: to.session,
            bytes: geometry.bytes,
            unit_bytes: geometry.unit_bytes as u32,
            read_only,
            requests_max: options.requests_max,
            request_bytes_max,
            features: match to.is_through() {
                _ if to.volume.files.is_some() => wire::FILES | hello.features & wire::GRANTS,
                false => hello.features & wire::FEATURES,
                true => hello.features & wire::GRANTS,
            },
            ..refused(Status::Done)
        };
        let requests = usize::from(options.requests_max);
        let credits = Credits { requests, bytes: requests as u64 * u64::from(options.request_bytes_max) };
        to.connected();
        let attached = Attached { to, credits, request_bytes_max, read_only, mends };
        let ticket = context.later(hello.number, RequestOrder::Free);
        self.greeted = Some(Greeted { attached, before, ticket, welcome });
        self.look(context);
        Ok(())
    }

    /// Whose client it is, and whose requests must end before it is welcome.
    #[expect(clippy::type_complexity, reason = "an answer, a refusal or a fault")]
    fn attach(
        &self,
        context: &Context<'_>,
        hello: &Hello,
    ) -> Result<Result<(Arc<Attachment>, Vec<Arc<Attachment>>), Status>, BadMessage> {
        let now = context.clock().now();
        // Held until the client is among them: the node lets no volume go meanwhile.
        let mut attachments = lock(&self.node.attachments);
        let Some(volume) = self.node.volume(&hello.name) else { return Ok(Err(self.node.why_not(&hello.name))) };
        if volume.files.is_some() != (hello.features & wire::FILES != 0) {
            return Ok(Err(Status::Kind));
        }
        if let Some(found) = attachments.get(&hello.session).filter(|found| Arc::ptr_eq(&found.volume, &volume)) {
            if found.is_fenced() {
                return Ok(Err(Status::Device(DeviceError::Fenced)));
            }
            let Some(begins) = found.with(|ledger| ledger.renew(hello.generation)) else {
                return Err(BadMessage("a greeting of an older generation"));
            };
            let before = if begins { vec![found.clone()] } else { Vec::new() };
            return Ok(Ok((found.clone(), before)));
        }
        // What this life gave and knows no more was replaced. If it came in as a new session, it would
        // write again what it never saw the answer to, over what the other writer wrote since.
        let is_old = hello.session != 0 && hello.role != Role::Reader;
        let is_of_this_life = hello.incarnation == self.node.incarnation;
        let writer = writer_of(hello.session, hello.group);
        if is_old && (is_of_this_life || volume.has_replaced(writer)) {
            return Ok(Err(Status::Device(DeviceError::Fenced)));
        }
        if hello.session == 0 && hello.generation != 1 {
            return Err(BadMessage("a new session begins with its first generation"));
        }
        let goes_on = (is_old && volume.goes_on_with(writer)).then_some(hello.session);
        let Hello { role, process, group, .. } = *hello;
        let who = Who { role, process, group, vouched: context.peer_process(), goes_on, returns: true };
        Ok(self.node.attach(&mut attachments, &volume, who, now).inspect(|(new, _)| {
            new.with(|ledger| ledger.renew(hello.generation));
        }))
    }

    /// Welcomes the client once nothing is in the way.
    fn look(&mut self, context: &mut Context<'_>) {
        let Some(greeted) = &self.greeted else { return };
        if !greeted.before.iter().all(|other| other.is_quiet_or_wakes(|| context.waker())) {
            return;
        }
        if let Some(Greeted { attached, ticket, welcome, .. }) = self.greeted.take() {
            self.attached = Some(attached);
            context.complete(ticket, |body| body.extend_from_slice(&welcome.bytes()[CONTROL_HEADER..]));
        }
    }

    /// A WRITE comes whose bytes are to be read from the client's memory.
    fn read_first(
        &mut self,
        context: &mut Context<'_>,
        request: RequestHeader,
        token: RemoteToken,
    ) -> Result<(), BadMessage> {
        let (Some(attached), Some(blocks)) = (&self.attached, self.node.blocks()) else {
            return Err(BadMessage("a request before a welcome"));
        };
        if !(1..=attached.request_bytes_max).contains(&request.length) {
            return Err(BadMessage("a grant of more bytes than a request may have"));
        }
        if request.session != attached.to.session {
            return Err(OTHER_SESSION);
        }
        // Who may not write takes no buffer of those who may.
        if attached.read_only || attached.to.is_fenced() {
            return self.carry_out(context, &request, Payload::Came(&[]));
        }
        attached.to.with(|ledger| ledger.announce(&request))?;
        self.reads.ask(request, token, attached.credits.requests)?;
        self.reads.begin(context, blocks);
        Ok(())
    }

    fn carry_out(
        &mut self,
        context: &mut Context<'_>,
        request: &RequestHeader,
        payload: Payload<'_>,
    ) -> Result<(), BadMessage> {
        let Some(Attached { to, credits, request_bytes_max, read_only, mends }) = &self.attached else {
            return Err(BadMessage("a request before a welcome"));
        };
        if request.session != to.session {
            return Err(OTHER_SESSION);
        }
        let admitted = to.with(|ledger| {
            if let Payload::Came(_) = payload {
                ledger.announce(request)?;
            }
            ledger.enter(request, *credits, context.clock().now())
        })?;
        let reply = self.reply_to(request);
        let ticket = context.later(request.number as u32, RequestOrder::Free);
        if let Admitted::Again(status) = admitted {
            answer(ticket, &Reply { status, ..reply }, Some(context));
            return Ok(());
        }
        if request.operation == Operation::Goodbye {
            to.end(request.number, Status::Done, false);
            self.leave();
            answer(ticket, &reply, Some(context));
            return Ok(());
        }
        let moves = request.operation.moves();
        let takes_memory = moves || matches!(request.operation, Operation::Check { .. });
        let (length, block) = (request.length as usize, moves.then_some(request.length));
        let refuse = |error| {
            to.end(request.number, Status::Device(error), false);
            Err(Reply { status: Status::Device(error), ..reply })
        };
        let prepared = match (request.lba.checked_mul(to.volume.lba_bytes()), block) {
            (None, _) => refuse(DeviceError::Invalid),
            _ if to.is_fenced() => refuse(DeviceError::Fenced),
            _ if takes_memory && !(1..=*request_bytes_max).contains(&request.length) => refuse(DeviceError::Invalid),
            _ if is_refused(request.operation, *read_only, *mends) => refuse(DeviceError::ReadOnly),
            (Some(at), _) => {
                let registered = &self.node.registered;
                if let Some(parts) = to.volume.lookup(request.operation, at, length, registered.parts_max()) {
                    let found = Reply { length: request.length, ..reply };
                    to.end(request.number, Status::Done, false);
                    let message = blocks::pinned(context, registered, found.bytes(), parts);
                    context.answer(ticket, message);
                    return Ok(());
                }
                let (block, payload) = self.block_of(payload, block);
                match self.work(request.operation, at, length, payload, to.is_through(), block) {
                    Some(prepared) => Ok(prepared),
                    None => refuse(DeviceError::NoMemory),
                }
            }
        };
        match (prepared, self.node.blocks()) {
            (Ok((work, block)), Some(blocks)) => {
                let flushes = matches!(work, Work::Zero { .. } | Work::Discard { .. }) && to.is_through();
                let route = Route { attachment: to.clone(), to: To::Client { ticket, reply, block }, flushes };
                to.volume.submit(work, route, blocks, Some(context));
            }
            (Err(reply), _) => answer(ticket, &reply, Some(context)),
            // It is served, so there are blocks.
            (Ok(_), None) => drop(ticket),
        }
        Ok(())
    }

    /// The block of a request that moves so many bytes, and what is to be copied into it.
    fn block_of<'a>(&self, payload: Payload<'a>, bytes: Option<u32>) -> (Option<Block>, Option<&'a [u8]>) {
        match (payload, bytes) {
            (Payload::Read(read), Some(bytes)) => (read.into_block(bytes as usize), None),
            (Payload::Came(payload), Some(bytes)) => {
                // A READ's has none.
                let take = if payload.is_empty() { Blocks::take } else { Blocks::take_to_write };
                (self.node.blocks().and_then(|blocks| take(blocks, bytes as usize)), Some(payload))
            }
            (_, None) => (None, None),
        }
    }

    fn reply_to(&self, request: &RequestHeader) -> Reply {
        let RequestHeader { session, generation, number, .. } = *request;
        let incarnation = self.node.incarnation;
        Reply { status: Status::Done, session, generation, number, incarnation, length: 0, wrong: 0 }
    }

    /// What the device is asked for.
    fn work(
        &self,
        operation: Operation,
        at: u64,
        length: usize,
        payload: Option<&[u8]>,
        through: bool,
        block: Option<Block>,
    ) -> Option<(Work, Option<Block>)> {
        let bytes = length as u64;
        Some(match operation {
            Operation::Read => {
                let mut block = block?;
                let into = block.lend()?;
                (Work::Read { at, length, into }, Some(block))
            }
            Operation::Write { fua } | Operation::WriteGranted { fua } => {
                let mut block = block?;
                if let Some(payload) = payload {
                    block.get_mut(..length)?.copy_from_slice(payload);
                }
                let from = Bytes::prefix(block.lend()?, length);
                (Work::Write { at, from, fua: fua || through }, Some(block))
            }
            Operation::Flush | Operation::Goodbye => (Work::Flush, None),
            Operation::Discard => (Work::Discard { at, length: bytes }, None),
            Operation::Zero => (Work::Zero { at, length: bytes }, None),
            Operation::Hint(hint) => (Work::Hint { at, length: bytes, hint }, None),
            Operation::Check { mend } => (Work::Check { at, length: bytes, mend, wrong: 0 }, None),
        })
    }

    /// The client says goodbye: its place is free.
    fn leave(&self) {
        if let Some(Attached { to, .. }) = &self.attached {
            self.node.leave(to);
        }
    }
}

impl Session for Connection {
    fn request(&mut self, context: &mut Context<'_>, number: u32, body: &[u8]) -> Result<(), BadMessage> {
        let (header, payload) = wire::enveloped(number, body).map_err(bad)?;
        if Hello::greets(&header) {
            if self.attached.is_some() || self.greeted.is_some() || self.challenged.is_some() {
                return Err(BadMessage("a second greeting"));
            }
            let hello = Hello::of(&header, payload).map_err(bad)?;
            return self.challenge(context, hello);
        }
        if Proof::proves(&header) {
            let proof = Proof::of(&header, payload).map_err(bad)?;
            return self.proved(context, &proof);
        }
        if Inquiry::inquires(&header) {
            let inquiry = Inquiry::of(&header, payload).map_err(bad)?;
            context.admit();
            let report = self.node.report(number, &inquiry.volume, context.clock().now());
            context.reply(number, |body| body.extend_from_slice(&report.bytes()[CONTROL_HEADER..]));
            return Ok(());
        }
        if Change::changes(&header) {
            return self.challenge_change(context, Change::of(&header, payload).map_err(bad)?);
        }
        let request = RequestHeader::of(&header, payload).map_err(bad)?;
        match request.granted(payload) {
            Some(token) => self.read_first(context, request, token),
            None => self.carry_out(context, &request, Payload::Came(payload)),
        }
    }

    fn read(&mut self, context: &mut Context<'_>, id: u64, buffer: Buffer) -> Result<(), BadMessage> {
        let blocks = self.node.blocks().ok_or(BadMessage("memory that nobody asked for"))?.clone();
        let read = ReadBlock::new(blocks.clone(), buffer);
        let request = self.reads.ended(id).ok_or(BadMessage("memory that nobody asked for"))?;
        self.carry_out(context, &request, Payload::Read(read))?;
        self.reads.begin(context, &blocks);
        Ok(())
    }

    fn woken(&mut self, context: &mut Context<'_>) -> Result<(), BadMessage> {
        self.look(context);
        // Buffers may be free again that a WRITE waited for.
        if let Some(blocks) = self.node.blocks() {
            self.reads.begin(context, blocks);
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let attached = self.attached.take().or(self.greeted.take().map(|greeted| greeted.attached));
        if let Some(Attached { to, .. }) = attached {
            to.disconnected(self.node.clock.now());
        }
    }
}

const OTHER_SESSION: BadMessage = BadMessage("a request of another session");

fn is_refused(operation: Operation, read_only: bool, mends: bool) -> bool {
    match operation {
        Operation::Check { mend } => mend && !mends,
        Operation::Write { .. } | Operation::WriteGranted { .. } | Operation::Discard | Operation::Zero => read_only,
        _ => false,
    }
}

fn bad(wire::Malformed(what): wire::Malformed) -> BadMessage {
    BadMessage(what)
}
