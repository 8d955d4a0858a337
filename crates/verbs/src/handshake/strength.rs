//! Whether bytes can be a key: 32 or more of randomness, as they are, in hex or in base64.
//!
//! Keys are not stretched, so an attacker that hears one connection, or answers one, can try words
//! as fast as it can count. Only a key that cannot be guessed withstands that. This is an estimate:
//! it finds pass phrases and patterns, not every weak key.

/// Why bytes are no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeakKey {
    /// Less than 32 bytes in their form.
    #[error("it is too short: a key has 32 random bytes or more, as they are, in hex or in base64")]
    Short,
    /// More than 4,096 bytes.
    #[error("it is too long: a key has 32 to {BYTES_MAX} bytes")]
    Long,
    /// Words, or other text.
    #[error(
        "it looks like text, which can be guessed: a key has 32 random bytes or more, as they are, in hex or in base64"
    )]
    Text,
    /// The same again and again, or one after the other.
    #[error(
        "it repeats itself, so it can be guessed: a key has 32 random bytes or more, as they are, in hex or in base64"
    )]
    Repeats,
}

/// What the key is made of: the bytes, without line ends where they are hex or base64.
pub(super) fn strong(bytes: &[u8]) -> Result<Vec<u8>, WeakKey> {
    if bytes.len() > BYTES_MAX {
        return Err(WeakKey::Long);
    }
    let line: Vec<u8> = bytes.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
    let written = line.strip_suffix(b"=").map_or(&line[..], |line| line.strip_suffix(b"=").unwrap_or(line));
    for (alphabet, value) in [(16, hex as fn(u8) -> Option<u8>), (64, base64)] {
        if !written.is_empty()
            && let Some(symbols) = written.iter().map(|byte| value(*byte)).collect::<Option<Vec<u8>>>()
        {
            // Neighbours of one case are rare in base64 and most of a word.
            let case = if alphabet == 64 { neighbours(written) } else { 0 };
            return random(&symbols, alphabet, case, WeakKey::Text).map(|()| line);
        }
    }
    let printable = bytes.iter().filter(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r')).count();
    // Of random bytes a third is printable.
    if std::str::from_utf8(bytes).is_ok_and(|text| !text.is_empty() && !text.contains('\0'))
        || printable * 8 > bytes.len() * 7
    {
        return Err(WeakKey::Text);
    }
    random(bytes, 256, 0, WeakKey::Repeats).map(|()| bytes.to_vec())
}

/// Whether symbols of an alphabet are enough and look random: neither they nor their distances come
/// in the same value much more often than chance has it. `more` counts as so many pairs of equal
/// ones.
fn random(symbols: &[u8], alphabet: u16, more: usize, words: WeakKey) -> Result<(), WeakKey> {
    if symbols.len() * (alphabet.ilog2() as usize) < BITS_MIN {
        return Err(WeakKey::Short);
    }
    let distance = |pair: &[u8]| ((u16::from(pair[1]) + alphabet - u16::from(pair[0])) % alphabet) as u8;
    let distances: Vec<u8> = symbols.windows(2).map(distance).collect();
    if equal_pairs(&distances) > equal_pairs_max(distances.len(), alphabet) {
        return Err(WeakKey::Repeats);
    }
    if equal_pairs(symbols) + more > equal_pairs_max(symbols.len(), alphabet) { Err(words) } else { Ok(()) }
}

/// Twice what is expected of chance, and so many more that a random key is not refused in a
/// million.
fn equal_pairs_max(symbols: usize, alphabet: u16) -> usize {
    symbols * symbols.saturating_sub(1) / usize::from(alphabet) + PAIRS_BY_CHANCE
}

fn equal_pairs(symbols: &[u8]) -> usize {
    let mut counts = [0usize; 256];
    symbols.iter().for_each(|symbol| counts[usize::from(*symbol)] += 1);
    counts.iter().map(|count| count * count.saturating_sub(1) / 2).sum()
}

/// Neighbours that are both lower-case letters, or both capitals if there are more of those.
fn neighbours(text: &[u8]) -> usize {
    let both = |is: fn(&u8) -> bool| text.windows(2).filter(|pair| pair.iter().all(is)).count();
    both(u8::is_ascii_lowercase).max(both(u8::is_ascii_uppercase))
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Of the usual alphabet or the one for addresses.
fn base64(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

/// 32 bytes.
const BITS_MIN: usize = 256;
/// Longest key.
pub(super) const BYTES_MAX: usize = 4096;
const PAIRS_BY_CHANCE: usize = 28;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same bytes in each run: a random key is refused once in a great while.
    fn noise(number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn written_in(alphabet: &[u8], bytes: &[u8]) -> Vec<u8> {
        let bits = alphabet.len().ilog2();
        let count = (bytes.len() * 8).div_ceil(bits as usize);
        let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
        let symbol = |at: usize| (0..bits as usize).fold(0, |sum, i| sum << 1 | bit(at * bits as usize + i));
        (0..count).map(|at| alphabet[usize::from(symbol(at))]).collect()
    }

    const HEX: &[u8] = b"0123456789abcdef";
    const BASE64: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    fn forms(bytes: &[u8]) -> [Vec<u8>; 4] {
        let wrapped = written_in(BASE64, bytes).chunks(76).collect::<Vec<_>>().join(&b'\n');
        let hex = written_in(HEX, bytes);
        [bytes.to_vec(), hex.to_ascii_uppercase(), hex, [&wrapped[..], b"=\n"].concat()]
    }

    #[test]
    fn random_bytes_are_keys_in_each_form() {
        for number in 0..20_000 {
            let bytes = noise(number, 32 + number as usize % 40);
            for form in forms(&bytes) {
                assert!(strong(&form).is_ok(), "{:?}: {}", strong(&form), String::from_utf8_lossy(&form));
            }
        }
        for len in [64, 1000, 2000] {
            forms(&noise(7, len)).iter().for_each(|form| assert!(strong(form).is_ok(), "{len}"));
        }
    }

    #[test]
    fn one_byte_less_is_too_short_and_one_more_than_fits_too_long() {
        for form in forms(&noise(1, 31)) {
            assert_eq!(strong(&form), Err(WeakKey::Short), "{form:?}");
        }
        assert!(strong(&noise(1, BYTES_MAX)).is_ok());
        assert_eq!(strong(&noise(1, BYTES_MAX + 1)), Err(WeakKey::Long));
        assert!(strong(b"").is_err() && strong(b"=\n").is_err());
    }

    #[test]
    fn a_line_end_counts_in_random_bytes_and_not_in_text() {
        let mut raw = noise(3, 32);
        let hex = written_in(HEX, &raw);
        assert_eq!(strong(&[&hex[..], b"\r\n"].concat()), strong(&hex));
        raw[31] = b'\n';
        assert_eq!(strong(&raw), Ok(raw));
    }

    #[test]
    fn text_and_patterns_are_refused() {
        let counting: Vec<u8> = (0..64).collect();
        for weak in [
            &b"the key of this very test, which is long enough for anybody"[..],
            b"correct horse battery staple correct horse battery staple",
            b"correct-horse-battery-staple-correct-horse-battery-staple",
            b"CorrectHorseBatteryStapleCorrectHorseBatteryStaple",
            b"correcthorsebatterystaplecorrecthorsebatterystaple",
            b"CORRECTHORSEBATTERYSTAPLECORRECTHORSEBATTERYSTAPLE",
            b"It was the best of times, it was the worst of times\n",
            "Пароль для базы данных, который никто не угадает".as_bytes(),
            "数据库的密码，谁也猜不到，真的谁也猜不到".as_bytes(),
            b"la cl\xe9 secr\xe8te de la base de donn\xe9es, que personne ne devine",
            &[7; 32],
            &[0; 64],
            &counting,
            b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            b"deadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeefdeadbeef",
            BASE64,
            &noise(9, 8).repeat(4),
        ] {
            assert!(strong(weak).is_err(), "{}", String::from_utf8_lossy(weak));
        }
    }

    const WORDS: [&str; 32] = [
        "database",
        "password",
        "correct",
        "horse",
        "battery",
        "staple",
        "summer",
        "winter",
        "monday",
        "secret",
        "server",
        "purple",
        "monkey",
        "dragon",
        "master",
        "letter",
        "garden",
        "silver",
        "coffee",
        "orange",
        "planet",
        "mother",
        "father",
        "window",
        "yellow",
        "always",
        "before",
        "people",
        "little",
        "number",
        "nothing",
        "everybody",
    ];

    proptest! {
        /// However words are joined, and whatever their case.
        #[test]
        fn sentences_of_words_are_refused(
            words in prop::collection::vec(prop::sample::select(&WORDS[..]), 8..60),
            joint in prop::sample::select(&["", " ", "-", "_", ", ", "\n", "."][..]),
            case in 0..3,
        ) {
            let written = |word: &&str| match case {
                0 => (*word).to_owned(),
                1 => word[..1].to_uppercase() + &word[1..],
                _ => word.to_uppercase(),
            };
            let text = words.iter().map(written).collect::<Vec<_>>().join(joint);
            prop_assert!(strong(text.as_bytes()).is_err(), "{}", text);
        }

        #[test]
        fn any_byte_again_and_again_is_refused(byte: u8, len in 0..5000usize) {
            prop_assert!(strong(&vec![byte; len]).is_err());
        }

        #[test]
        fn a_short_pattern_again_and_again_is_refused(pattern in prop::collection::vec(any::<u8>(), 1..8), times in 0..400usize) {
            prop_assert!(strong(&pattern.repeat(times)).is_err());
        }

        /// Whatever it is given it answers, and what it takes has the bytes that it was given.
        #[test]
        fn any_bytes_have_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(key) = strong(&bytes) {
                prop_assert!(bytes.len() >= 32 && key.len() <= bytes.len());
            }
        }
    }
}
