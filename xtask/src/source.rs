//! One Rust file split into code, comments and string literals.
//!
//! The rules look for words, and a word means something else in a comment or a string than
//! in code. This is a scanner, not a parser: it knows comments, literals and braces.

use crate::syntax;

/// A Rust file, its comments and literals told apart.
#[derive(Debug)]
pub struct Source {
    /// Path from the workspace's root, with forward slashes.
    pub path: String,
    /// The file as it is.
    pub text: String,
    /// The file with comments and the contents of literals blanked, byte for byte.
    pub code: String,
    /// Comments, one entry a line of comment.
    pub comments: Vec<Fragment>,
    /// Contents of string literals.
    pub strings: Vec<Fragment>,
    /// Modules that it declares to lie in files of their own.
    pub modules: Vec<syntax::ModuleFile>,
    /// True for each line (from 0) that is compiled for tests alone.
    test_lines: Vec<bool>,
    line_starts: Vec<usize>,
}

/// A piece of a file and the line (from 1) on which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    pub line: usize,
    pub text: String,
}

impl Source {
    /// Splits `text`.
    pub fn new(path: &str, text: &str) -> Source {
        let mut scanner = Scanner::new(text);
        scanner.run();
        let code = scanner.code();
        let mut source = Source {
            path: path.to_string(),
            text: text.to_string(),
            modules: syntax::module_files(&code),
            code,
            comments: scanner.comments,
            strings: scanner.strings,
            test_lines: Vec::new(),
            line_starts: line_starts(text),
        };
        source.test_lines = vec![is_test_path(path); source.line_starts.len()];
        for range in syntax::test_ranges(&source.code) {
            let (first, last) = (source.line_of(range.start), source.line_of(range.end));
            source.test_lines[first - 1..last].fill(true);
        }
        source
    }

    /// The line (from 1) that holds the byte at `offset`.
    pub fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset).max(1)
    }

    /// How many lines the file has.
    pub fn line_count(&self) -> usize {
        self.text.lines().count()
    }

    /// Whether the line (from 1) is compiled for tests alone.
    pub fn is_test(&self, line: usize) -> bool {
        self.test_lines.get(line - 1).copied().unwrap_or(false)
    }

    /// Whether the line (from 1) is part of what is shipped: neither test nor example.
    pub fn is_shipped(&self, line: usize) -> bool {
        !self.is_test(line) && !self.path.contains("/examples/")
    }

    /// Declares the whole file to be test code (its `mod` stands under `#[cfg(test)]`).
    pub fn mark_test(&mut self) {
        self.test_lines.fill(true);
    }

    /// Lines (from 1) of code, comments and literals blanked.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

fn is_test_path(path: &str) -> bool {
    path.split('/').rev().skip(1).any(|part| part == "tests" || part == "benches" || part == "fuzz")
        || path.ends_with("/tests.rs")
}

fn line_starts(text: &str) -> Vec<usize> {
    let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    std::iter::once(0).chain(breaks.map(|(index, _)| index + 1)).collect()
}

struct Scanner<'a> {
    bytes: &'a [u8],
    code: Vec<u8>,
    at: usize,
    line: usize,
    comments: Vec<Fragment>,
    strings: Vec<Fragment>,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        Scanner { bytes, code: bytes.to_vec(), at: 0, line: 1, comments: vec![], strings: vec![] }
    }

    fn code(&mut self) -> String {
        String::from_utf8_lossy(&self.code).into_owned()
    }

    fn run(&mut self) {
        while self.at < self.bytes.len() {
            let rest = &self.bytes[self.at..];
            if rest.starts_with(b"//") {
                let end = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                self.comment(end);
            } else if rest.starts_with(b"/*") {
                self.comment(block_comment_len(rest));
            } else if let Some((open, close)) = raw_string(rest, self.previous()) {
                self.string(open, &close, false);
            } else if rest[0] == b'"' {
                self.string(1, b"\"", true);
            } else if let Some(length) = char_literal_len(rest) {
                self.blank(self.at + 1, self.at + length - 1);
                self.advance(length);
            } else {
                self.advance(1);
            }
        }
    }

    fn previous(&self) -> u8 {
        if self.at == 0 { b' ' } else { self.bytes[self.at - 1] }
    }

    fn comment(&mut self, length: usize) {
        let text = String::from_utf8_lossy(&self.bytes[self.at..self.at + length]).into_owned();
        for (index, line) in text.lines().enumerate() {
            self.comments.push(Fragment { line: self.line + index, text: line.to_string() });
        }
        self.blank(self.at, self.at + length);
        self.advance(length);
    }

    fn string(&mut self, open: usize, close: &[u8], escapes: bool) {
        let start = self.at + open;
        let mut end = start;
        while end < self.bytes.len() && !self.bytes[end..].starts_with(close) {
            end += if escapes && self.bytes[end] == b'\\' { 2 } else { 1 };
        }
        let end = end.min(self.bytes.len());
        let text = String::from_utf8_lossy(&self.bytes[start..end]).into_owned();
        self.strings.push(Fragment { line: self.line, text });
        self.blank(start, end);
        self.advance((end + close.len()).min(self.bytes.len()) - self.at);
    }

    fn blank(&mut self, from: usize, to: usize) {
        for byte in &mut self.code[from..to] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }

    fn advance(&mut self, length: usize) {
        let passed = &self.bytes[self.at..self.at + length];
        self.line += passed.iter().filter(|byte| **byte == b'\n').count();
        self.at += length;
    }
}

/// Length of a (nested) block comment at the start of `rest`.
fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Opening length and closing bytes of a raw string at the start of `rest`.
fn raw_string(rest: &[u8], previous: u8) -> Option<(usize, Vec<u8>)> {
    if previous.is_ascii_alphanumeric() || previous == b'_' {
        return None;
    }
    let prefix = [&b"br"[..], b"cr", b"r"].into_iter().find(|prefix| rest.starts_with(prefix))?;
    let hashes = rest[prefix.len()..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(prefix.len() + hashes) != Some(&b'"') {
        return None;
    }
    let close = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    Some((prefix.len() + hashes + 1, close))
}

/// Length of a character literal at the start of `rest`; `None` for a lifetime.
fn char_literal_len(rest: &[u8]) -> Option<usize> {
    if rest[0] != b'\'' {
        return None;
    }
    if rest.get(1) == Some(&b'\\') {
        return rest.iter().skip(3).position(|byte| *byte == b'\'').map(|at| at + 4);
    }
    let text = std::str::from_utf8(&rest[1..rest.len().min(6)]);
    let first = match text {
        Ok(text) => text.chars().next(),
        Err(error) => std::str::from_utf8(&rest[1..1 + error.valid_up_to()]).ok().and_then(|t| t.chars().next()),
    }?;
    let end = 1 + first.len_utf8();
    (rest.get(end) == Some(&b'\'')).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_leave_the_code() {
        let source = Source::new(
            "a.rs",
            "let a = \"unsafe { // x\"; // unsafe here\nlet b = r#\"a \" b\"#; /* x /* y */ z */ fn f<'a>() { '\\'' ; '{' }\n",
        );
        assert!(!source.code.contains("unsafe"));
        assert_eq!(source.code.len(), source.text.len());
        assert!(source.code.contains("fn f<'a>()"));
        assert_eq!(source.code.matches('{').count(), 1);
        let strings: Vec<_> = source.strings.iter().map(|s| (s.line, s.text.as_str())).collect();
        assert_eq!(strings, [(1, "unsafe { // x"), (2, "a \" b")]);
        assert_eq!(source.comments[0].text, "// unsafe here");
        assert_eq!(source.comments[1].line, 2);
    }

    #[test]
    fn test_code_is_told_apart() {
        let source = Source::new("a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n");
        let tests: Vec<bool> = (1..=6).map(|line| source.is_test(line)).collect();
        assert_eq!(tests, [false, true, true, true, true, false]);
        assert!(Source::new("crates/a/tests/b.rs", "fn a() {}").is_test(1));
    }
}
