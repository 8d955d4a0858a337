//! A profile as text: one `key = value` a line, for files and for people.
//!
//! The first line is the version. Every figure is checked: whatever is not a cost is refused by its
//! name, and so is a key that is missing, unknown or there twice. `#` begins a comment line.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::curve::{Curve, is_cost};
use crate::profile::{Bends, Profile};

/// Why a text is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The first line names no version.
    #[error("no profile: the first line must be \"{VERSION_KEY} = {VERSION}\"; run `overside calibrate` again")]
    NoVersion,
    /// Another version.
    #[error("{VERSION_KEY} is {found:?}, this build reads {VERSION}; run `overside calibrate` again")]
    Version {
        /// What stands there.
        found: String,
    },
    /// A line that is not `key = value`.
    #[error("line {0} is not `key = value`; run `overside calibrate` again")]
    Line(usize),
    /// A key that this version does not have, or has once only.
    #[error("{field} is {what}; run `overside calibrate` again")]
    Field {
        /// The key.
        field: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{VERSION_KEY} = {VERSION}")?;
        writeln!(f, "source = {}", self.source.replace(['\n', '\r'], " "))?;
        write_prices(self, "", f)?;
        self.elsewhere.as_ref().map_or(Ok(()), |prices| write_prices(prices, ELSEWHERE, f))
    }
}

fn write_prices(profile: &Profile, prefix: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (key, ns) in costs(profile).into_iter().chain(SINGLE.into_iter().zip(singles(&profile.bends))) {
        writeln!(f, "{prefix}{key} = {ns}")?;
    }
    for (key, curve) in curves(&profile.bends) {
        for (bytes, ns) in curve.points() {
            writeln!(f, "{prefix}{key}.{bytes} = {ns}")?;
        }
    }
    Ok(())
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let mut fields = fields(text)?;
        let mut elsewhere = BTreeMap::new();
        fields.retain(|key, value| match key.strip_prefix(ELSEWHERE) {
            Some(key) => elsewhere.insert(key, *value).is_some(),
            None => true,
        });
        let source = fields.remove("source").unwrap_or("a file").to_owned();
        let named = |error| match error {
            ProfileError::Field { field, what } => ProfileError::Field { field: format!("{ELSEWHERE}{field}"), what },
            error => error,
        };
        let other = if elsewhere.is_empty() { None } else { Some(prices(elsewhere, &source).map_err(named)?) };
        Ok(Profile { elsewhere: other.map(Box::new), ..prices(fields, &source)? })
    }
}

fn prices(mut fields: BTreeMap<&str, &str>, source: &str) -> Result<Profile, ProfileError> {
    let mut take = |key: &'static str| {
        let value = fields.remove(key).ok_or(ProfileError::Field { field: key.into(), what: "missing" })?;
        cost(key, value)
    };
    let mut profile = Profile {
        send_request_ns: take("send_request_ns")?,
        send_fragment_ns: take("send_fragment_ns")?,
        send_byte_ns: take("send_byte_ns")?,
        pack_byte_ns: take("pack_byte_ns")?,
        pack_piece_ns: take("pack_piece_ns")?,
        pack_request_ns: take("pack_request_ns")?,
        row_ns: take("row_ns")?,
        receive_request_ns: take("receive_request_ns")?,
        receive_fragment_ns: take("receive_fragment_ns")?,
        receive_byte_ns: take("receive_byte_ns")?,
        wire_byte_ns: take("wire_byte_ns")?,
        bends: Bends::default(),
        source: source.to_owned(),
        elsewhere: None,
    };
    // 0 where it was not measured.
    for (key, place) in SINGLE.into_iter().zip(singles_mut(&mut profile.bends)) {
        *place = fields.remove(key).map_or(Ok(0.0), |value| cost(key, value))?;
    }
    let mut points: BTreeMap<&str, BTreeMap<u64, f64>> = BTreeMap::new();
    for (key, value) in fields {
        let unknown = || ProfileError::Field { field: key.into(), what: "no field of this version" };
        let (curve, bytes) = key.split_once('.').ok_or_else(unknown)?;
        if !CURVES.contains(&curve) {
            return Err(unknown());
        }
        let bytes = bytes.parse().map_err(|_| unknown())?;
        points.entry(curve).or_default().insert(bytes, cost(key, value)?);
    }
    for (key, curve) in CURVES.into_iter().zip(curves_mut(&mut profile.bends)) {
        let what = "no curve: its points must be 4, 5, 6 or 7 times powers of two up to 1 GiB";
        let points = points.remove(key).unwrap_or_default();
        *curve = Curve::new(points).map_err(|_| ProfileError::Field { field: key.into(), what })?;
    }
    Ok(profile)
}

fn fields(text: &str) -> Result<BTreeMap<&str, &str>, ProfileError> {
    let lines = text.lines().map(str::trim).enumerate();
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let version = lines.next().and_then(|(_, line)| key_and_value(line)).filter(|(key, _)| *key == VERSION_KEY);
    let (_, found) = version.ok_or(ProfileError::NoVersion)?;
    if found != VERSION {
        return Err(ProfileError::Version { found: found.chars().take(SHOWN_CHARS).collect() });
    }
    let mut fields = BTreeMap::new();
    for (index, line) in lines {
        let (key, value) = key_and_value(line).ok_or(ProfileError::Line(index + 1))?;
        if fields.insert(key, value).is_some() {
            return Err(ProfileError::Field { field: key.into(), what: "there twice" });
        }
    }
    Ok(fields)
}

fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    Some((key.trim(), value.trim()))
}

fn cost(key: &str, value: &str) -> Result<f64, ProfileError> {
    let what = "no cost: a number of nanoseconds from 0 to 1e12";
    let parsed = value.parse().ok().filter(|ns| is_cost(*ns));
    parsed.ok_or(ProfileError::Field { field: key.into(), what })
}

fn costs(profile: &Profile) -> [(&'static str, f64); 11] {
    [
        ("send_request_ns", profile.send_request_ns),
        ("send_fragment_ns", profile.send_fragment_ns),
        ("send_byte_ns", profile.send_byte_ns),
        ("pack_byte_ns", profile.pack_byte_ns),
        ("pack_piece_ns", profile.pack_piece_ns),
        ("pack_request_ns", profile.pack_request_ns),
        ("row_ns", profile.row_ns),
        ("receive_request_ns", profile.receive_request_ns),
        ("receive_fragment_ns", profile.receive_fragment_ns),
        ("receive_byte_ns", profile.receive_byte_ns),
        ("wire_byte_ns", profile.wire_byte_ns),
    ]
}

fn singles(bends: &Bends) -> [f64; SINGLE.len()] {
    let Bends { pack_begin_ns, pack_run_ns, mixture_ns, deal_value_ns, copied_bytes, both_busy, line_ns, .. } = *bends;
    [pack_begin_ns, pack_run_ns, mixture_ns, deal_value_ns, copied_bytes, both_busy, line_ns]
}

fn singles_mut(bends: &mut Bends) -> [&mut f64; SINGLE.len()] {
    [
        &mut bends.pack_begin_ns,
        &mut bends.pack_run_ns,
        &mut bends.mixture_ns,
        &mut bends.deal_value_ns,
        &mut bends.copied_bytes,
        &mut bends.both_busy,
        &mut bends.line_ns,
    ]
}

pub(crate) fn curves(bends: &Bends) -> impl Iterator<Item = (&'static str, &Curve)> {
    CURVES.into_iter().zip([
        &bends.send,
        &bends.send_near,
        &bends.send_packed,
        &bends.pack,
        &bends.pack_warm,
        &bends.pack_near,
        &bends.pack_far,
        &bends.bitmap_row,
        &bends.bitmap_run,
        &bends.receive,
        &bends.receive_near,
        &bends.receive_far,
        &bends.receive_packed,
        &bends.receive_beside,
        &bends.lend,
    ])
}

pub(crate) fn curves_mut(bends: &mut Bends) -> [&mut Curve; CURVES.len()] {
    [
        &mut bends.send,
        &mut bends.send_near,
        &mut bends.send_packed,
        &mut bends.pack,
        &mut bends.pack_warm,
        &mut bends.pack_near,
        &mut bends.pack_far,
        &mut bends.bitmap_row,
        &mut bends.bitmap_run,
        &mut bends.receive,
        &mut bends.receive_near,
        &mut bends.receive_far,
        &mut bends.receive_packed,
        &mut bends.receive_beside,
        &mut bends.lend,
    ]
}

const VERSION_KEY: &str = "overside profile";
const VERSION: &str = "4";
/// What is no curve.
const SINGLE: [&str; 7] =
    ["pack_begin_ns", "pack_run_ns", "mixture_ns", "deal_value_ns", "copied_bytes", "both_busy", "line_ns"];
/// Before each key of the prices where processors are otherwise apart.
const ELSEWHERE: &str = "elsewhere.";
const CURVES: [&str; 15] = [
    "send_ns",
    "send_near_ns",
    "send_packed_ns",
    "pack_ns",
    "pack_warm_ns",
    "pack_near_ns",
    "pack_far_ns",
    "bitmap_row_ns",
    "bitmap_run_ns",
    "receive_ns",
    "receive_near_ns",
    "receive_far_ns",
    "receive_packed_ns",
    "receive_beside_ns",
    "lend_ns",
];
/// Of a version that is not ours, no more is repeated.
const SHOWN_CHARS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn profile() -> Profile {
        let curve = |by| Curve::new((0..17).map(|k| (1 << k, by + 0.1 * f64::from(1 << k)))).unwrap();
        Profile {
            send_request_ns: 61.5,
            send_fragment_ns: 6.0,
            send_byte_ns: 0.0,
            pack_byte_ns: 0.08,
            pack_piece_ns: 1.0 / 3.0,
            pack_request_ns: 300.0,
            row_ns: 4.0,
            receive_request_ns: 80.0,
            receive_fragment_ns: 12.0,
            receive_byte_ns: 0.08,
            wire_byte_ns: 0.0,
            bends: Bends {
                pack: curve(1.0),
                receive: curve(5.0),
                receive_beside: curve(2.0),
                mixture_ns: 70.5,
                deal_value_ns: 0.6,
                ..Bends::default()
            },
            source: "measured, somewhere = here".into(),
            elsewhere: None,
        }
    }

    #[test]
    fn a_profile_reads_what_it_wrote() {
        let text = profile().to_string();
        assert_eq!(text.parse::<Profile>(), Ok(profile()));
        let earlier = text.lines().filter(|line| !line.starts_with("mixture_ns")).collect::<Vec<_>>().join("\n");
        let without = Profile { bends: Bends { mixture_ns: 0.0, ..profile().bends }, ..profile() };
        assert_eq!(earlier.parse::<Profile>(), Ok(without), "what an earlier build did not write");
        let spaced = format!("# mine\n\n  {}", text.replacen(" = ", "=", 1).replace("_ns = ", "_ns="));
        assert_eq!(spaced.parse::<Profile>(), Ok(profile()), "comments and spaces do not matter");
    }

    #[test]
    fn prices_of_elsewhere_are_read_with_the_others() {
        let other = Profile { row_ns: 9.0, bends: Bends { line_ns: 220.0, ..profile().bends }, ..profile() };
        let both = Profile { elsewhere: Some(Box::new(other)), ..profile() };
        let text = both.to_string();
        assert_eq!(text.parse::<Profile>(), Ok(both));
        let says = |text: String| text.parse::<Profile>().unwrap_err().to_string();
        assert!(says(text.replace("elsewhere.row_ns = 9\n", "")).starts_with("elsewhere.row_ns is missing"));
        assert!(says(text.replace("\nrow_ns = 4\n", "\n")).starts_with("row_ns is missing"));
        assert!(
            says(format!("{text}elsewhere.elsewhere.row_ns = 4")).starts_with("elsewhere.elsewhere.row_ns is no field")
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = profile().to_string();
        let says = |text: String| text.parse::<Profile>().unwrap_err().to_string();
        assert!(says(String::new()).contains("first line"));
        assert!(says("\u{7f}ELF nonsense".into()).contains("first line"));
        assert!(says(good.replacen("profile = 4", "profile = 2", 1)).contains("\"2\", this build reads 4"));
        assert!(says(good.replace("row_ns = 4", "row_ns = NaN")).starts_with("row_ns is no cost"));
        assert!(says(good.replace("row_ns = 4", "row_ns = -4")).starts_with("row_ns is no cost"));
        assert!(says(good.replace("row_ns = 4", "row_ns = inf")).starts_with("row_ns is no cost"));
        assert!(says(good.replace("row_ns = 4\n", "")).starts_with("row_ns is missing"));
        assert!(says(good.replace("row_ns = 4", "row_ns = 4\nrow_ns = 4")).starts_with("row_ns is there twice"));
        assert!(says(good.replace("mixture_ns = 70.5", "mixture_ns = -1")).starts_with("mixture_ns is no cost"));
        assert!(says(format!("{good}speed = 9")).starts_with("speed is no field"));
        assert!(says(format!("{good}pack_ns.9 = 9")).starts_with("pack_ns is no curve"));
        assert!(says(format!("{good}pack_warm_ns.4 = x")).starts_with("pack_warm_ns.4 is no cost"));
        assert!(says(format!("{good}what?")).contains("is not `key = value`"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(overside profile = 4\n)?(([a-z_]{1,8}|pack_ns\\.[0-9]{1,20}) = [-0-9eNa.]{0,6}\n){0,5}") {
            let _ = text.parse::<Profile>();
        }
    }
}
