//! Days and instants as text, in the proleptic Gregorian calendar, without leap seconds.
//!
//! Total over all of `i32` days and `i64` ticks: what a file may hold, a column can show.

use arrow_schema::TimeUnit;
use std::fmt::Write;

/// Appends `days` since 1970-01-01 as `YYYY-MM-DD` (years outside 0..=9999 carry a sign).
pub fn write_date(days: i64, out: &mut String) {
    let (year, month, day) = civil(days);
    if (0..=9999).contains(&year) {
        let _ = write!(out, "{year:04}-{month:02}-{day:02}");
    } else {
        let _ = write!(out, "{year:+05}-{month:02}-{day:02}");
    }
}

/// Appends ticks since 1970-01-01T00:00:00 as `YYYY-MM-DDTHH:MM:SS[.fraction][Z]`.
///
/// A column with a time zone stores UTC; it is shown as UTC, with a `Z`.
pub fn write_timestamp(ticks: i64, unit: &TimeUnit, zoned: bool, out: &mut String) {
    let per_second = ticks_per_second(unit);
    let (seconds, fraction) = (ticks.div_euclid(per_second), ticks.rem_euclid(per_second));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    write_date(days, out);
    let _ = write!(out, "T{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
    if fraction != 0 {
        let digits = per_second.ilog10() as usize;
        let _ = write!(out, ".{fraction:0digits$}");
    }
    if zoned {
        out.push('Z');
    }
}

/// Parses `YYYY-MM-DD` into days since 1970-01-01.
pub fn parse_date(text: &str) -> Option<i32> {
    let (days, rest) = date_prefix(text)?;
    (rest.is_empty()).then(|| i32::try_from(days).ok())?
}

/// Parses `YYYY-MM-DD[{T| }HH:MM[:SS[.fraction]]][Z|±HH[:]MM]` into ticks since 1970-01-01.
///
/// With an offset the instant is converted to UTC. A fraction finer than `unit` is refused
/// (`None`) rather than rounded.
pub fn parse_timestamp(text: &str, unit: &TimeUnit) -> Option<i64> {
    let parsed = Instant::parse(text)?;
    let per_second = i128::from(ticks_per_second(unit));
    let nanos_per_tick = 1_000_000_000 / per_second;
    if i128::from(parsed.nanos) % nanos_per_tick != 0 {
        return None;
    }
    let ticks = parsed.seconds * per_second + i128::from(parsed.nanos) / nanos_per_tick;
    i64::try_from(ticks).ok()
}

/// A timestamp's text taken apart.
pub struct Instant {
    /// Seconds since 1970-01-01T00:00:00, in UTC where the text gave an offset.
    pub seconds: i128,
    /// Nanoseconds of the second, 0 to 999,999,999.
    pub nanos: u32,
    /// Whether the text gave an offset (`Z` or `±HH:MM`).
    pub zoned: bool,
}

impl Instant {
    /// Parses a timestamp's text; `None` when it is none.
    pub fn parse(text: &str) -> Option<Instant> {
        let (days, rest) = date_prefix(text)?;
        let mut instant = Instant { seconds: i128::from(days) * 86_400, nanos: 0, zoned: false };
        if rest.is_empty() {
            return Some(instant);
        }
        let rest = rest.strip_prefix(['T', ' '])?;
        let (hour, rest) = two_digits(rest, 23)?;
        let (minute, mut rest) = two_digits(rest.strip_prefix(':')?, 59)?;
        let mut second = 0;
        if let Some(after) = rest.strip_prefix(':') {
            (second, rest) = two_digits(after, 59)?;
            if let Some(after) = rest.strip_prefix('.') {
                let digits = after.bytes().take_while(u8::is_ascii_digit).count();
                if digits == 0 || digits > 9 {
                    return None;
                }
                instant.nanos = after[..digits].parse::<u32>().ok()? * 10u32.pow(9 - digits as u32);
                rest = &after[digits..];
            }
        }
        instant.seconds += i128::from(hour * 3600 + minute * 60 + second);
        if !rest.is_empty() {
            instant.seconds -= i128::from(offset_seconds(rest)?);
            instant.zoned = true;
        }
        Some(instant)
    }
}

/// Ticks of one second in `unit`.
pub fn ticks_per_second(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Seconds of `Z`, `±HH`, `±HHMM` or `±HH:MM`; `None` when it is none of them.
pub(crate) fn offset_seconds(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let (hours, rest) = two_digits(text.strip_prefix(['+', '-'])?, 23)?;
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    let (minutes, rest) = if rest.is_empty() { (0, "") } else { two_digits(rest, 59)? };
    rest.is_empty().then_some(sign * (hours * 3600 + minutes * 60))
}

fn date_prefix(text: &str) -> Option<(i64, &str)> {
    let (negative, signed, body) = match text.as_bytes().first()? {
        b'-' => (true, true, &text[1..]),
        b'+' => (false, true, &text[1..]),
        _ => (false, false, text),
    };
    let digits = body.bytes().take_while(u8::is_ascii_digit).count();
    if digits < 4 || (digits > 4 && !signed) || digits > 12 {
        return None;
    }
    let year = body[..digits].parse::<i64>().ok()? * if negative { -1 } else { 1 };
    let (month, rest) = two_digits(body[digits..].strip_prefix('-')?, 12)?;
    let (day, rest) = two_digits(rest.strip_prefix('-')?, 31)?;
    let days = days_from_civil(year, month, day);
    (civil(days) == (year, month, day)).then_some((days, rest))
}

fn two_digits(text: &str, max: i64) -> Option<(i64, &str)> {
    let bytes = text.as_bytes();
    if bytes.len() < 2 || !bytes[0].is_ascii_digit() || !bytes[1].is_ascii_digit() {
        return None;
    }
    let value = i64::from(bytes[0] - b'0') * 10 + i64::from(bytes[1] - b'0');
    (value <= max).then(|| (value, &text[2..]))
}

/// Year, month, day of a day number (days since 1970-01-01), by 400-year eras from a 1st of March.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(days: i64) -> String {
        let mut out = String::new();
        write_date(days, &mut out);
        out
    }

    #[test]
    fn known_days() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(-719_528), "0000-01-01");
        assert_eq!(date(2_932_896), "9999-12-31");
        assert_eq!(parse_date("1992-01-02"), Some(8036));
        for bad in ["2001-02-29", "2001-13-01", "2001-1-1", "20010-01-01", "2001-01-01x", "", "-"] {
            assert_eq!(parse_date(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_day_and_the_extremes_parse_back() {
        let extremes = [i32::MIN, i32::MIN + 1, i32::MAX];
        for days in (-800_000..800_000).step_by(37).chain(extremes) {
            assert_eq!(parse_date(&date(days.into())), Some(days));
        }
    }

    #[test]
    fn timestamps_parse_back_in_every_unit() {
        let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
        for unit in units {
            for ticks in [0, 1, -1, 1_234_567_890_123_456_789, i64::MIN, i64::MAX] {
                for zoned in [false, true] {
                    let mut text = String::new();
                    write_timestamp(ticks, &unit, zoned, &mut text);
                    assert_eq!(parse_timestamp(&text, &unit), Some(ticks), "{text}");
                }
            }
        }
    }

    #[test]
    fn offsets_convert_to_utc_and_too_fine_fractions_are_refused() {
        let second = TimeUnit::Second;
        assert_eq!(parse_timestamp("1970-01-01T01:00:00+01:00", &second), Some(0));
        assert_eq!(parse_timestamp("1969-12-31 23:30-0030", &second), Some(0));
        assert_eq!(parse_timestamp("1970-01-01", &second), Some(0));
        assert_eq!(parse_timestamp("1970-01-01T00:00:00.5", &second), None);
        assert_eq!(parse_timestamp("1970-01-01T00:00:00.5", &TimeUnit::Millisecond), Some(500));
        assert_eq!(parse_timestamp("1970-01-01T24:00:00", &second), None);
        assert_eq!(parse_timestamp("1970-01-01T00:00:00 CET", &second), None);
    }
}
