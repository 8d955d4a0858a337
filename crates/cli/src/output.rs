//! What commands print: lines, tables, JSON values, progress.

use crate::values::write_value_ref;
use anyhow::Result;
use arrow_schema::DataType;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use overside::table::row::ValueRef;
use std::io::{ErrorKind, IsTerminal, Write};

/// Prints a line at once.
///
/// # Errors
/// Standard output is closed.
pub fn line(line: &str) -> Result<()> {
    text(&format!("{line}\n"))
}

/// Prints text at once.
///
/// # Errors
/// Standard output is closed.
pub fn text(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(refused)?;
    Ok(())
}

/// An error of standard output, said to be one.
pub fn refused(error: std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("standard output cannot be written: {error}"))
}

/// An error and its causes, none said twice: many an error's text has its cause's in it. Flags have
/// the command line's names, and what the system refused says what to do.
pub fn reason(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut causes = error.chain().map(ToString::to_string).peekable();
    while let Some(cause) = causes.next() {
        // What the Parquet library calls an error that is not its own.
        let foreign = causes.peek().is_some_and(|inner| cause.strip_suffix(inner.as_str()) == Some("External: "));
        let cause = by_its_flag(cause);
        if foreign || text.contains(&cause) {
            continue;
        }
        let separator = if text.is_empty() { "" } else { ": " };
        text = text + separator + &cause;
    }
    let refused = error.root_cause().downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    let unknown = text.contains("failed to lookup address").then_some("check the host's name");
    match refused.and_then(what_to_do).or(unknown) {
        // The sentence says it already.
        Some(advice) if !text.contains(';') => text + "; " + advice,
        _ => text,
    }
}

/// What the library says of a field, said of the flag that sets it.
fn by_its_flag(cause: String) -> String {
    let of = |(field, flag): (&str, &str)| Some(format!("{flag}: {}", cause.strip_prefix(field)?.strip_prefix(": ")?));
    FLAGS.into_iter().find_map(of).unwrap_or(cause)
}

fn what_to_do(refused: ErrorKind) -> Option<&'static str> {
    match refused {
        ErrorKind::NotFound => Some("check the path"),
        ErrorKind::PermissionDenied => Some("check whose it is, and its mode"),
        ErrorKind::AlreadyExists => Some("choose another name"),
        ErrorKind::NotADirectory => Some("name a folder"),
        ErrorKind::IsADirectory => Some("name a file"),
        ErrorKind::FileTooLarge => Some("make it smaller, or raise the limit of the file system or of `ulimit -f`"),
        _ => None,
    }
}

const FLAGS: [(&str, &str); 4] =
    [("key_file", "--key-file"), ("tags", "--no-mac"), ("anyone", "--anyone"), ("rdma_device", "--rdma-device")];

/// A number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Appends a value as JSON. Integers, finite floats and booleans are JSON's own; all else is text
/// as the command line writes it, so that no digit of a decimal is lost.
pub fn json_value(value: &ValueRef<'_>, ty: &DataType, out: &mut String) {
    let finite = match value {
        ValueRef::Null => return out.push_str("null"),
        ValueRef::Float32(v) => v.is_finite(),
        ValueRef::Float64(v) => v.is_finite(),
        _ => ty.is_integer() || matches!(ty, DataType::Boolean),
    };
    if finite {
        return write_value_ref(value, ty, out);
    }
    let mut text = String::new();
    write_value_ref(value, ty, &mut text);
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// A table of text.
pub struct Grid {
    names: Vec<String>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
    head: bool,
    cell_max: usize,
}

impl Grid {
    /// A table with these columns; those of `right` are aligned to the right.
    pub fn new(names: &[&str], right: &[bool]) -> Grid {
        let widths = names.iter().map(|name| width(name)).collect();
        let names = names.iter().map(|name| printable(name)).collect();
        Grid { names, right: right.to_vec(), rows: Vec::new(), widths, head: true, cell_max: usize::MAX }
    }

    /// Cuts long cells, for a terminal.
    pub fn limit_cells(&mut self) {
        self.cell_max = 40;
    }

    /// Adds a row.
    pub fn push(&mut self, mut cells: Vec<String>) {
        for (cell, widest) in cells.iter_mut().zip(&mut self.widths) {
            *cell = printable(cell);
            if width(cell) > self.cell_max {
                *cell = cell.chars().take(self.cell_max - 1).chain(['\u{2026}']).collect();
            }
            *widest = (*widest).max(width(cell));
        }
        self.rows.push(cells);
    }

    /// Rows that were added.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Forgets the rows and the head, which have been printed, and keeps the widths.
    pub fn continue_below(&mut self) {
        self.rows.clear();
        self.head = false;
    }

    /// The table as lines.
    pub fn render(&self) -> String {
        let mut out = String::new();
        if self.head {
            self.render_row(&self.names, &mut out);
            let rules = self.widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>();
            self.render_row(&rules, &mut out);
        }
        for row in &self.rows {
            self.render_row(row, &mut out);
        }
        out
    }

    fn render_row(&self, cells: &[String], out: &mut String) {
        let start = out.len();
        for (index, cell) in cells.iter().enumerate() {
            let padding = " ".repeat(self.widths[index].saturating_sub(width(cell)));
            out.push_str(if index == 0 { "" } else { "  " });
            if self.right[index] {
                out.push_str(&padding);
                out.push_str(cell);
            } else {
                out.push_str(cell);
                out.push_str(&padding);
            }
        }
        out.truncate(start + out[start..].trim_end().len());
        out.push('\n');
    }
}

/// A bar on standard error, where that is a terminal.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar that is full at `total`.
    pub fn new(what: &'static str, total: u64) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress::none();
        }
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {percent:>3} %  {msg}, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(what);
        Progress(bar)
    }

    /// Says what is waited for: with the time that has passed on a terminal, else as a line.
    pub fn waiting(what: &'static str) -> Progress {
        if !std::io::stderr().is_terminal() {
            // Nobody may be listening there.
            let _ = writeln!(std::io::stderr(), "{what}");
            return Progress::none();
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(what);
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
        Progress(bar)
    }

    /// Counts what has no known end.
    pub fn counting(what: &'static str) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress::none();
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {prefix}: {msg}, {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(what);
        Progress(bar)
    }

    /// None at all.
    pub fn none() -> Progress {
        Progress(ProgressBar::hidden())
    }

    /// Shows how far it is.
    pub fn at(&self, done: u64, message: impl FnOnce() -> String) {
        if !self.0.is_hidden() {
            self.0.set_position(done);
            self.0.set_message(message());
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// Text on one line that moves no cursor.
fn printable(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_string();
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let full = || std::io::Error::other("the disk is full");
        let error = anyhow::Error::new(parquet::errors::ParquetError::External(Box::new(full()))).context("column `a`");
        assert_eq!(reason(&error), "column `a`: the disk is full");
        let error = anyhow::Error::new(full()).context("a.csv: the disk is full; free some of it").context("load");
        assert_eq!(reason(&error), "load: a.csv: the disk is full; free some of it");
        assert_eq!(reason(&anyhow::Error::new(full()).context("a.csv")), "a.csv: the disk is full");
    }

    #[test]
    fn what_the_system_refuses_says_what_to_do_and_a_flag_has_its_name() {
        let absent = || std::io::Error::from(ErrorKind::NotFound);
        let text = reason(&anyhow::Error::new(absent()).context("a.csv"));
        assert!(text.starts_with("a.csv: ") && text.ends_with("; check the path"), "{text}");
        let text = reason(&anyhow::Error::new(absent()).context("a.csv cannot be read; bring it back"));
        assert_eq!(text.matches(';').count(), 1, "{text}");
        let network = overside::Network { rdma_device: Some("x".into()), ..overside::Network::default() };
        let refused = overside::at("shm:x").network(&network).client(Default::default()).map(drop).unwrap_err();
        assert!(reason(&refused.into()).starts_with("--rdma-device: shm:x "));
    }

    #[test]
    fn thousands_are_grouped() {
        let shown: Vec<_> = [0, 999, 1000, 600_572, 1_234_567].map(grouped).into();
        assert_eq!(shown, ["0", "999", "1,000", "600,572", "1,234,567"]);
    }

    #[test]
    fn a_table_aligns_its_columns_and_shows_no_control_character() {
        let mut grid = Grid::new(&["id", "name"], &[true, false]);
        grid.push(vec!["1".into(), "one\ntwo\u{1b}[2J".into()]);
        grid.push(vec!["1000".into(), "\u{e9}".into()]);
        let expected = "  id  name\n----  -----------------\n   1  one\\ntwo\\u{1b}[2J\n1000  \u{e9}\n";
        assert_eq!(grid.render(), expected);
        grid.continue_below();
        grid.limit_cells();
        grid.push(vec!["2".into(), "x".repeat(100)]);
        assert_eq!(grid.render(), format!("   2  {}\u{2026}\n", "x".repeat(39)));
    }

    #[test]
    fn json_keeps_what_numbers_cannot_hold_as_text() {
        let shown = |value: ValueRef<'_>, ty: DataType| {
            let mut out = String::new();
            json_value(&value, &ty, &mut out);
            out
        };
        assert_eq!(shown(ValueRef::Null, DataType::Utf8), "null");
        assert_eq!(shown(ValueRef::UInt64(u64::MAX), DataType::UInt64), "18446744073709551615");
        assert_eq!(shown(ValueRef::Float64(0.5), DataType::Float64), "0.5");
        assert_eq!(shown(ValueRef::Float64(f64::NAN), DataType::Float64), "\"NaN\"");
        assert_eq!(shown(ValueRef::Decimal128(1230), DataType::Decimal128(9, 2)), "\"12.30\"");
        assert_eq!(shown(ValueRef::Boolean(true), DataType::Boolean), "true");
        assert_eq!(shown(ValueRef::Utf8("a\"\n"), DataType::Utf8), "\"a\\\"\\n\"");
        assert_eq!(shown(ValueRef::Binary(&[255]), DataType::Binary), "\"0xff\"");
    }
}
