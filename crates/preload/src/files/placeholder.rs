//! What stands at a file's path in its stead: 64 bytes of text that name it.

/// Bytes of a placeholder; so long is no other file that is looked into.
pub(crate) const BYTES: usize = 64;

/// A file on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) id: u32,
    pub(crate) token: u64,
}

impl Name {
    /// As its placeholder has it.
    pub(crate) fn text(self) -> [u8; BYTES] {
        let mut text = *b"overside file 00000000 0000000000000000 lies on a volume       \n";
        put(&mut text, ID_AT, 8, u64::from(self.id));
        put(&mut text, TOKEN_AT, 16, self.token);
        text
    }

    /// From a file's bytes. None: it is no placeholder.
    pub(crate) fn parse(text: &[u8; BYTES]) -> Option<Name> {
        let name = Name { id: hex(text, ID_AT, 8)? as u32, token: hex(text, TOKEN_AT, 16)? };
        (name.text() == *text && name.id != 0 && name.token != 0).then_some(name)
    }
}

fn put(text: &mut [u8; BYTES], at: usize, digits: usize, value: u64) {
    for (place, byte) in text.iter_mut().skip(at).take(digits).enumerate() {
        let digit = (value >> (4 * (digits - 1 - place)) & 15) as u8;
        *byte = if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
    }
}

fn hex(text: &[u8; BYTES], at: usize, digits: usize) -> Option<u64> {
    let digits = std::str::from_utf8(text.get(at..at + digits)?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

/// Placeholders.
#[cfg(any(test, fuzzing))]
pub fn seeds_placeholder() -> Vec<Vec<u8>> {
    [(1, 1), (u32::MAX, u64::MAX)].map(|(id, token)| Name { id, token }.text().to_vec()).into()
}

/// Reads a file that may be a placeholder. One says itself again. Whether it is one.
#[cfg(any(test, fuzzing))]
pub fn fuzz_placeholder(input: &[u8]) -> bool {
    let name = input.try_into().ok().and_then(Name::parse);
    name.inspect(|name| assert_eq!(name.text(), input, "it says itself again")).is_some()
}

const ID_AT: usize = 14;
const TOKEN_AT: usize = 23;

#[cfg(test)]
mod tests {
    use super::*;
    use overside_corpus::Corpus;
    use proptest::prelude::*;

    #[test]
    fn the_seeds_are_those_of_this_version_and_what_is_near_them_is_taken_or_refused() {
        let corpus = Corpus::of(env!("CARGO_MANIFEST_DIR"), "placeholder");
        seeds_placeholder().iter().for_each(|seed| corpus.holds(seed));
        corpus.replay(fuzz_placeholder);
        corpus.near_seeds(BYTES, |near| assert!(!fuzz_placeholder(near.bytes) || near.bytes.len() == BYTES));
    }

    proptest! {
        #[test]
        fn a_placeholder_names_its_file_and_other_text_names_none(id in 1u32.., token in 1u64.., at in 0..BYTES, byte: u8) {
            let name = Name { id, token };
            let mut text = name.text();
            prop_assert_eq!(Name::parse(&text), Some(name));
            text[at] = byte;
            let read = Name::parse(&text);
            prop_assert!(read.is_none_or(|read| read.text() == text));
            prop_assert!(read.is_none_or(|_| (ID_AT..ID_AT + 8).contains(&at) || (TOKEN_AT..TOKEN_AT + 16).contains(&at) || text == name.text()));
        }
    }
}
