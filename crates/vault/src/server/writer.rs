//! Who writes a volume, known beyond one life of its node.
//!
//! A client whose node was restarted comes again with what it had no answer to, and with
//! what it keeps. If another has written since, that would be older than what is there:
//! such a client is fenced off.

use std::fmt;

/// The session that wrote a volume last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastWriter {
    /// Its number.
    pub session: u64,
    /// It has not said that it is over.
    pub returns: bool,
}

/// Keeps who wrote a volume last, where it outlives the node.
pub struct WriterRecord {
    last: Option<LastWriter>,
    note: Box<dyn FnMut(LastWriter) -> bool + Send>,
}

impl WriterRecord {
    /// With what is known; `note` says whether it has brought a new one to stable storage.
    pub fn new(last: Option<LastWriter>, note: impl FnMut(LastWriter) -> bool + Send + 'static) -> WriterRecord {
        WriterRecord { last, note: Box::new(note) }
    }

    /// Whether somebody else has had the volume since this session wrote it.
    pub(crate) fn is_replaced(&self, session: u64) -> bool {
        self.last.is_some_and(|last| last != LastWriter { session, returns: true })
    }

    /// Whether this session wrote it last, and may go on.
    pub(crate) fn goes_on(&self, session: u64) -> bool {
        self.last == Some(LastWriter { session, returns: true })
    }

    /// Whether somebody may come again.
    pub(super) fn is_awaited(&self) -> bool {
        self.last.is_some_and(|last| last.returns)
    }

    /// Whether it is noted.
    pub(crate) fn note(&mut self, last: LastWriter) -> bool {
        let noted = self.last == Some(last) || (self.note)(last);
        if noted {
            self.last = Some(last);
        }
        noted
    }
}

impl LastWriter {
    /// As a file has it.
    pub fn text(&self) -> String {
        format!("{FIRST}\n{:016x} {}\n", self.session, if self.returns { "returns" } else { "left" })
    }

    /// From a file. What no program of this version writes says that nobody returns.
    pub fn parse(text: &str) -> LastWriter {
        let nobody = LastWriter { session: 0, returns: false };
        let Some((session, state)) = text.split_once('\n').and_then(|(_, line)| line.split_once(' ')) else {
            return nobody;
        };
        let found =
            u64::from_str_radix(session, 16).map(|session| LastWriter { session, returns: state == "returns\n" });
        found.ok().filter(|found| found.text() == text).unwrap_or(nobody)
    }
}

impl fmt::Debug for WriterRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterRecord").field("last", &self.last).finish_non_exhaustive()
    }
}

const FIRST: &str = "overside-writer 1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_it_was_written_and_nothing_else_is() {
        let nobody = LastWriter { session: 0, returns: false };
        for last in [nobody, LastWriter { session: 7, returns: true }, LastWriter { session: u64::MAX, returns: false }]
        {
            let text = last.text();
            assert_eq!(LastWriter::parse(&text), last);
            (0..text.len()).for_each(|cut| assert_eq!(LastWriter::parse(&text[..cut]), nobody));
            assert_eq!(LastWriter::parse(&format!("{text} ")), nobody);
            assert_eq!(LastWriter::parse(&text.replace('r', "R")), nobody);
        }
    }
}
