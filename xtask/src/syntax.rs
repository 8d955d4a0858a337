//! Finding functions, modules, `use` paths and test code in blanked code.

use std::ops::Range;

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// From `fn` to the closing brace.
    pub range: Range<usize>,
}

/// A module that lies in a file of its own: `mod name;`.
#[derive(Debug, PartialEq, Eq)]
pub struct ModuleFile {
    pub name: String,
    /// Inline modules around it, outermost first.
    pub inside: Vec<String>,
    /// Offset of `mod`.
    pub at: usize,
    /// Whether it, or an inline module around it, is compiled for tests alone.
    pub test: bool,
}

/// Offsets at which `word` stands as a whole word.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = code[..*at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The identifier at the start of `code`, leading blanks skipped; empty if there is none.
pub fn identifier(code: &str) -> &str {
    let code = code.trim_start();
    &code[..code.find(|c| !is_word(c)).unwrap_or(code.len())]
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Every function with a body.
pub fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for at in words(code, "fn") {
        let name = identifier(&code[at + 2..]);
        if name.is_empty() {
            continue;
        }
        if let Some(body) = body_after(code, at) {
            found.push(Function { name: name.to_string(), range: at..body.end });
        }
    }
    found
}

/// The braced body of the item that starts at `at`; `None` if a `;` ends it first.
pub fn body_after(code: &str, at: usize) -> Option<Range<usize>> {
    let mut depth = 0isize;
    for (offset, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth <= 0 => return None,
            b'{' if depth <= 0 => return Some(offset..closing_brace(code, offset)),
            _ => {}
        }
    }
    None
}

/// The offset of the brace that closes the one at `open` (or the end of the code).
pub fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return offset;
                }
            }
            _ => {}
        }
    }
    code.len().saturating_sub(1)
}

/// Ranges of code that only tests, fuzzing or a model checker compile.
pub fn test_ranges(code: &str) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, _) in code.match_indices("#[cfg(").chain(code.match_indices("#[test]")) {
        let past = at + attribute_len(&code[at..]);
        if code[at..].starts_with("#[test]") || is_for_tests(&code[at + 6..past]) {
            ranges.push(at..item_end(code, past));
        }
    }
    for (at, _) in code.match_indices("#![cfg(") {
        if is_for_tests(&code[at + 7..]) {
            ranges.push(0..code.len().saturating_sub(1));
        }
    }
    ranges
}

/// Whether the predicate at the start of `code` is false wherever code is shipped.
fn is_for_tests(code: &str) -> bool {
    predicate(&mut { code }) == Some(false)
}

/// What a `cfg` predicate says of shipped code, if that can be known; `code` then starts past it.
fn predicate(code: &mut &str) -> Option<bool> {
    let name = identifier(code);
    *code = code.trim_start().strip_prefix(name)?.trim_start();
    let mut inner = Vec::new();
    if let Some(rest) = code.strip_prefix('(') {
        *code = rest.trim_start();
        while !name.is_empty() && !code.starts_with(')') && !code.is_empty() {
            inner.push(predicate(code));
            *code = code.trim_start().trim_start_matches(',').trim_start();
        }
        *code = code.strip_prefix(')').unwrap_or(code);
    } else {
        // The value of `name = "value"` is no part of what is decided here.
        *code = &code[code.find([',', ')']).unwrap_or(code.len())..];
    }
    match name {
        "test" | "fuzzing" | "shuttle" => Some(false),
        "not" => inner.first().copied().flatten().map(|said| !said),
        "any" if inner.iter().all(|said| *said == Some(false)) => Some(false),
        "all" if inner.contains(&Some(false)) => Some(false),
        _ => None,
    }
}

/// Where the item, field, variant or statement that starts at `at` ends.
fn item_end(code: &str, at: usize) -> usize {
    const ITEMS: [&str; 15] = [
        "fn",
        "mod",
        "struct",
        "enum",
        "union",
        "impl",
        "use",
        "const",
        "static",
        "trait",
        "type",
        "unsafe",
        "async",
        "extern",
        "macro_rules",
    ];
    let mut start = at + code[at..].len() - code[at..].trim_start().len();
    while code[start..].starts_with("#[") {
        start += attribute_len(&code[start..]);
        start += code[start..].len() - code[start..].trim_start().len();
    }
    let mut item = &code[start..];
    if identifier(item) == "pub" {
        item = item[3..].trim_start();
        if item.starts_with('(') {
            item = item.find(')').map_or(item, |close| &item[close + 1..]);
        }
    }
    if !ITEMS.contains(&identifier(item)) {
        return field_end(code, start);
    }
    match body_after(code, start) {
        Some(body) => body.end,
        None => start + code[start..].find(';').unwrap_or(0),
    }
}

/// Where a field, variant, arm or statement ends: with its comma or semicolon, or before what holds
/// it closes.
fn field_end(code: &str, start: usize) -> usize {
    let mut depth = 0isize;
    for (offset, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth == 0 => return offset.saturating_sub(1),
            b')' | b']' | b'}' => depth -= 1,
            b',' | b';' if depth == 0 => return offset,
            _ => {}
        }
    }
    code.len().saturating_sub(1)
}

fn attribute_len(code: &str) -> usize {
    let mut depth = 0usize;
    for (offset, byte) in code.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => {
                depth -= 1;
                if depth == 0 {
                    return offset + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Every `mod name;`.
pub fn module_files(code: &str) -> Vec<ModuleFile> {
    let tests = test_ranges(code);
    let inline: Vec<(String, Range<usize>)> = words(code, "mod")
        .filter_map(|at| {
            let name = identifier(&code[at + 3..]);
            let after = code[at + 3..].trim_start().strip_prefix(name)?.trim_start();
            let body = after.starts_with('{').then(|| body_after(code, at)).flatten()?;
            Some((name.to_string(), body))
        })
        .collect();
    words(code, "mod")
        .filter_map(|at| {
            let name = identifier(&code[at + 3..]);
            let after = code[at + 3..].trim_start().strip_prefix(name)?.trim_start();
            if name.is_empty() || !after.starts_with(';') {
                return None;
            }
            let around = inline.iter().filter(|(_, body)| body.contains(&at));
            Some(ModuleFile {
                name: name.to_string(),
                inside: around.map(|(name, _)| name.clone()).collect(),
                at,
                test: tests.iter().any(|range| range.contains(&at)),
            })
        })
        .collect()
}

/// Every path that a `use` brings in, groups written out, with its offset.
pub fn use_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for at in words(code, "use") {
        let end = at + code[at..].find(';').unwrap_or(code.len() - at);
        let tree: String = code[at + 3..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let mut expanded = Vec::new();
        expand(&tree.replace(' ', ""), "", &mut expanded);
        paths.extend(expanded.into_iter().map(|path| (at, path)));
    }
    paths
}

fn expand(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let Some(open) = tree.find('{') else {
        paths.push(format!("{prefix}{tree}"));
        return;
    };
    let inner = tree[open + 1..].strip_suffix('}').unwrap_or(&tree[open + 1..]);
    let prefix = format!("{prefix}{}", &tree[..open]);
    let (mut depth, mut start) = (0usize, 0);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                expand(&inner[start..at], &prefix, paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < inner.len() {
        expand(&inner[start..], &prefix, paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_span_their_bodies() {
        let code = "fn a(x: [u8; 3]) -> u8 {\n  if x { 1 } else { 2 }\n}\nfn b();\nlet f: fn(u8) = c;";
        let found = functions(code);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), &code[found[0].range.end..][..1]), ("a", "}"));
    }

    #[test]
    fn test_code_is_known_by_what_it_is_compiled_for() {
        let of = |code: &str| test_ranges(code).into_iter().map(|r| code[r].to_string()).collect::<Vec<_>>();
        let held = "#[cfg(any(test, fuzzing))] pub mod a { fn b() {} ";
        assert_eq!(of(&format!("fn x() {{}}\n{held}}}\nfn y() {{}}")), [held]);
        assert_eq!(of("#[cfg(all(shuttle, unix))] use a;"), ["#[cfg(all(shuttle, unix))] use a"]);
        assert_eq!(of("struct A { #[cfg(test)] a: u8, b: B<u8> }\nfn x() {}"), ["#[cfg(test)] a: u8"]);
        assert_eq!(
            of("#[cfg(fuzzing)]\n#[inline] pub(crate) fn a<A, B>() { b() }"),
            ["#[cfg(fuzzing)]\n#[inline] pub(crate) fn a<A, B>() { b() "]
        );
        for shipped in ["not(test)", "any(test, unix)", "all(unix, a = \"  \")", "not(any(test, fuzzing))"] {
            assert!(of(&format!("#[cfg({shipped})] fn a() {{}}")).is_empty(), "{shipped}");
        }
    }

    #[test]
    fn use_groups_are_written_out() {
        let paths: Vec<String> =
            use_paths("use std::{fs, os::unix::{net, fs as f}, io};").into_iter().map(|(_, path)| path).collect();
        assert_eq!(paths, ["std::fs", "std::os::unix::net", "std::os::unix::fsasf", "std::io"]);
    }

    #[test]
    fn module_files_know_where_they_stand() {
        let code = "mod a;\nmod b { mod c; }\n#[cfg(test)]\nmod d;\n";
        let found: Vec<_> = module_files(code).into_iter().map(|m| (m.name, m.inside, m.test)).collect();
        let b = vec!["b".to_string()];
        let expected = [("a", vec![], false), ("c", b, false), ("d", vec![], true)];
        assert_eq!(found, expected.map(|(name, inside, test)| (name.to_string(), inside, test)));
    }
}
