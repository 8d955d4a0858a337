//! A client's words without a client, for fuzzing.

use overside_volume::Geometry;

use super::negotiation::{Agreed, Negotiation, Next, Offers};
use super::wire::{Command, NbdRequest, OptionHeader, PAYLOAD_BYTES_MAX, REQUEST_BYTES, Refusal};

#[derive(Debug)]
struct Two;

impl Offers for Two {
    fn names(&self) -> Vec<String> {
        vec!["pg".into(), "frozen".into()]
    }

    fn look(&mut self, name: &str) -> Result<(u64, Geometry), (Refusal, String)> {
        let geometry = Geometry { bytes: 1 << 20, unit_bytes: 512, read_only: name == "frozen" };
        let number = self.names().iter().position(|known| known == name);
        number.map(|number| (number as u64, geometry)).ok_or((Refusal::Unknown, "unknown".into()))
    }
}

/// What the words come to: all that was said, what was agreed on, and how many bytes were used.
type Outcome = (Vec<u8>, Option<Agreed>, usize);

/// Takes the words, `most` at a time. None: they are no client's.
fn negotiated(words: &[u8], most: usize) -> Option<Outcome> {
    let (mut negotiation, mut said, mut used) = (Negotiation::default(), Vec::new(), 0);
    let mut seen = most.min(words.len());
    loop {
        let (step, next) = negotiation.step(&words[used..seen], &mut Two, &mut said).ok()?;
        used += step;
        assert!(used <= seen && said.len() <= 64 * words.len() + 4096, "an answer without a bound");
        match next {
            Next::Requests(agreed) => return Some((said, Some(agreed), used)),
            Next::End => return Some((said, None, used)),
            Next::More if step > 0 => {}
            Next::More if seen < words.len() => seen = (seen + most).min(words.len()),
            Next::More => return Some((said, None, used)),
        }
    }
}

/// Takes a client's words as the server does, whole and piece by piece, and holds what it finds
/// against what the protocol allows. Whether they are a client's.
#[doc(hidden)]
pub fn fuzz_nbd(words: &[u8]) -> bool {
    let whole = negotiated(words, words.len().max(1));
    // Byte by byte only what is short: each piece of a long option is looked at again.
    for most in [if words.len() < 1024 { 1 } else { 509 }, 7 + words.len() / 16] {
        assert_eq!(negotiated(words, most), whole, "it matters how the words come");
    }
    let Some((_, agreed, used)) = whole else { return false };
    let Some(agreed) = agreed else { return true };
    let mut rest = &words[used..];
    while let Some((bytes, behind)) = rest.split_first_chunk::<REQUEST_BYTES>() {
        let Ok(request) = NbdRequest::parse(*bytes) else { break };
        assert_eq!(request.bytes(), bytes, "a request says itself again");
        if request.check(agreed.geometry, agreed.allocation).is_ok()
            && !matches!(request.command, Some(Command::Flush | Command::Disconnect))
        {
            assert!(request.at + u64::from(request.length) <= agreed.geometry.bytes, "past the end");
            assert!(request.length > 0 && request.payload() <= PAYLOAD_BYTES_MAX);
        }
        rest = behind.get(request.payload() as usize..).unwrap_or_default();
    }
    true
}

/// What clients say, for fuzzing to begin with.
#[doc(hidden)]
pub fn seeds_nbd() -> Vec<Vec<u8>> {
    let option = |option, data: &[u8]| [&OptionHeader { option, length: data.len() as u32 }.bytes()[..], data].concat();
    let text = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let go = |name: &str| option(7, &[&text(name)[..], &[0, 1, 0, 3]].concat());
    let contexts = [&text("pg")[..], &[0, 0, 0, 1], &text("base:allocation")].concat();
    let request = |flags: u8, kind: u8, at: u32, length: u32| {
        let head = [0x25, 0x60, 0x95, 0x13, 0, flags, 0, kind, 0, 0, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0];
        [&head[..], &at.to_be_bytes(), &length.to_be_bytes()].concat()
    };
    let (plain, fixed) = ([0, 0, 0, 0], [0, 0, 0, 3]);
    let ordinary = [
        &fixed[..],
        &option(8, &[]),
        &option(10, &contexts),
        &go("pg"),
        &request(1, 1, 512, 4),
        b"data",
        &request(0, 0, 0, 4096),
        &request(8, 7, 0, 4096),
        &request(0x13, 6, 0, 4096),
        &request(0, 3, 0, 0),
        &request(0, 2, 0, 0),
    ];
    vec![
        ordinary.concat(),
        [&plain[..], &option(3, &[]), &option(1, b"frozen"), &request(0, 4, 0, 512)].concat(),
        [&fixed[..], &option(9, &contexts), &option(6, &[&text("pg")[..], &[0, 2, 0, 1, 0, 3]].concat()), &go("pg")]
            .concat(),
        [&fixed[..], &option(5, &[]), &option(99, &[7; 9000]), &option(11, b"x"), &go(""), &option(2, &[])].concat(),
        [&fixed[..], &go("frozen"), &request(0, 1, 0, u32::MAX), &request(0xff, 0xff, u32::MAX, 0)].concat(),
    ]
}
