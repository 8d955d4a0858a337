//! From the first byte of a connection to its first request, without a socket.

use overside_volume::Geometry;

use super::wire::{
    self, ALLOCATION, ALLOCATION_NUMBER, Answer, FLAGS_BYTES, Malformed, OPTION_BYTES, OPTION_BYTES_MAX, OptionHeader,
    Refusal, Wanted,
};

/// What a server has to offer.
pub(super) trait Offers {
    fn names(&self) -> Vec<String>;

    /// An export's number and geometry.
    ///
    /// # Errors
    /// Why it is not to be had, and what to do.
    fn look(&mut self, name: &str) -> Result<(u64, Geometry), (Refusal, String)>;
}

/// How far a connection has come.
#[derive(Debug, Default)]
pub(super) struct Negotiation {
    stage: Stage,
    no_zeroes: bool,
    structured: bool,
    /// The export for which the client chose the one context that there is.
    allocation: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Flags,
    Options,
    /// An option too long to look at.
    Skipping {
        option: u32,
        left: u32,
    },
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// More of the client's words.
    More,
    /// Requests.
    Requests(Agreed),
    /// Nothing.
    End,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) export: u64,
    pub(super) geometry: Geometry,
    pub(super) structured: bool,
    pub(super) allocation: bool,
}

impl Negotiation {
    /// Takes at most one step: how many bytes of `input` it used, what it has to say, and what
    /// comes next. A step that uses nothing wants more bytes than there are.
    pub(super) fn step(
        &mut self,
        input: &[u8],
        offers: &mut dyn Offers,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Next), Malformed> {
        match self.stage {
            Stage::Flags => {
                let Some(flags) = input.first_chunk::<FLAGS_BYTES>() else { return Ok((0, Next::More)) };
                self.no_zeroes = wire::client_flags(*flags)?;
                self.stage = Stage::Options;
                Ok((FLAGS_BYTES, Next::More))
            }
            Stage::Skipping { option, left } => {
                let skipped = (left as usize).min(input.len());
                let left = left - skipped as u32;
                self.stage = Stage::Skipping { option, left };
                if left == 0 {
                    self.stage = Stage::Options;
                    let answer = Answer::Refused(Refusal::TooBig, "the option is longer than any that is known here");
                    wire::say(out, option, answer);
                }
                Ok((skipped, Next::More))
            }
            Stage::Options => {
                let Some(header) = input.first_chunk::<OPTION_BYTES>() else { return Ok((0, Next::More)) };
                let OptionHeader { option, length } = OptionHeader::parse(*header)?;
                if length > OPTION_BYTES_MAX {
                    if option == wire::EXPORT_NAME {
                        return Ok((OPTION_BYTES, Next::End));
                    }
                    self.stage = Stage::Skipping { option, left: length };
                    return Ok((OPTION_BYTES, Next::More));
                }
                let whole = OPTION_BYTES + length as usize;
                let Some(data) = input.get(OPTION_BYTES..whole) else { return Ok((0, Next::More)) };
                Ok((whole, self.option(option, data, offers, out)))
            }
        }
    }

    fn option(&mut self, option: u32, data: &[u8], offers: &mut dyn Offers, out: &mut Vec<u8>) -> Next {
        let wanted = match Wanted::parse(option, data) {
            // This one has no way to say why.
            Err(_) if option == wire::EXPORT_NAME => return Next::End,
            Err(refusal) => {
                wire::say(out, option, Answer::Refused(refusal, why(refusal)));
                return Next::More;
            }
            Ok(wanted) => wanted,
        };
        match wanted {
            Wanted::Abort => {
                wire::say(out, option, Answer::Done);
                Next::End
            }
            Wanted::List => {
                offers.names().iter().for_each(|name| wire::say(out, option, Answer::Server(name)));
                wire::say(out, option, Answer::Done);
                Next::More
            }
            Wanted::StructuredReplies => {
                self.structured = true;
                wire::say(out, option, Answer::Done);
                Next::More
            }
            Wanted::ExportName(name) => {
                let Ok((export, geometry)) = offers.look(name) else { return Next::End };
                wire::say_export(out, geometry, self.flags(geometry), !self.no_zeroes);
                Next::Requests(self.agreed(name, export, geometry))
            }
            Wanted::Info { go, name, canonical } => match offers.look(name) {
                Ok((export, geometry)) => {
                    wire::say(out, option, Answer::Export(geometry, self.flags(geometry)));
                    wire::say(out, option, Answer::BlockSizes(geometry));
                    if canonical {
                        wire::say(out, option, Answer::Name(name));
                    }
                    wire::say(out, option, Answer::Done);
                    if go { Next::Requests(self.agreed(name, export, geometry)) } else { Next::More }
                }
                Err((refusal, why)) => {
                    wire::say(out, option, Answer::Refused(refusal, &why));
                    Next::More
                }
            },
            Wanted::Contexts { set, name, queries } => {
                self.contexts(option, set, name, &queries, offers, out);
                Next::More
            }
        }
    }

    fn contexts(
        &mut self,
        option: u32,
        set: bool,
        name: &str,
        queries: &[&str],
        offers: &mut dyn Offers,
        out: &mut Vec<u8>,
    ) {
        if set {
            self.allocation = None;
        }
        if set && !self.structured {
            let answer = Answer::Refused(Refusal::Invalid, "contexts need structured replies; ask for those first");
            return wire::say(out, option, answer);
        }
        if let Err((refusal, why)) = offers.look(name) {
            return wire::say(out, option, Answer::Refused(refusal, &why));
        }
        let all = !set && (queries.is_empty() || queries.contains(&NAMESPACE));
        if all || queries.contains(&ALLOCATION) {
            let number = if set { ALLOCATION_NUMBER } else { 0 };
            wire::say(out, option, Answer::Context(number, ALLOCATION));
            if set {
                self.allocation = Some(name.to_owned());
            }
        }
        wire::say(out, option, Answer::Done);
    }

    fn flags(&self, geometry: Geometry) -> u16 {
        wire::transmission_flags(geometry, self.structured)
    }

    fn agreed(&self, name: &str, export: u64, geometry: Geometry) -> Agreed {
        let allocation = self.structured && self.allocation.as_deref() == Some(name);
        Agreed { export, geometry, structured: self.structured, allocation }
    }
}

fn why(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Unsupported => "this server does not know the option",
        _ => "the option's data is not what the protocol says",
    }
}

/// Asks for all contexts whose names begin so.
const NAMESPACE: &str = "base:";
