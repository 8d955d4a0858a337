//! Where unsafe code may stand, and which invariant each piece names.

use std::collections::{BTreeMap, BTreeSet};

use super::{Violation, violation};
use crate::source::Source;
use crate::syntax;
use crate::tree::Tree;

const RULE: &str = "unsafe";
const ENTRIES: &str = "docs/reference/unsafe.md";
/// Packages that may hold unsafe code; every other crate root forbids it.
const MAY_HOLD_UNSAFE: [&str; 11] = [
    "overside-memory",
    "overside-verbs",
    "overside-shm",
    "overside-tcp",
    "overside-ibv",
    "overside-model",
    "overside-reference",
    "overside-bwtree",
    "overside-preload",
    "overside-corpus",
    "overside-disk",
];

/// What each entry says, a paragraph each.
const PARTS: [&str; 3] = ["**Holds:**", "**Kept by:**", "**Broken by:**"];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let entries = entries(tree.text(ENTRIES));
    let mut violations = forbidden_roots(tree);
    let mut named = BTreeSet::new();
    // tidy itself spells out what it looks for.
    for source in tree.sources.iter().filter(|source| !source.path.starts_with("xtask/")) {
        violations.extend(check_source(source, &entries));
        named.extend(safety_comments(source).flat_map(|(_, ids)| ids));
    }
    for (id, line) in entries.iter().filter(|(id, _)| !named.contains(*id)) {
        let message = format!("no SAFETY comment names `{id}`: drop the entry, or name it");
        violations.push(violation(RULE, ENTRIES, *line, message));
    }
    violations.extend(unformed(tree.text(ENTRIES), &entries));
    violations
}

/// Entries that lack a part of the form: what holds, who keeps it, what would break it.
fn unformed(text: &str, entries: &BTreeMap<String, usize>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (id, line) in entries {
        let body = text.lines().skip(*line).take_while(|line| !line.starts_with('#'));
        let body: Vec<&str> = body.collect();
        for part in PARTS.iter().filter(|part| !body.iter().any(|line| line.starts_with(**part))) {
            let message = format!("`{id}` has no `{part}`: an entry has {}", PARTS.join(", "));
            violations.push(violation(RULE, ENTRIES, *line, message));
        }
    }
    violations
}

/// Entry ids of docs/reference/unsafe.md and their lines; fenced examples do not count.
fn entries(text: &str) -> BTreeMap<String, usize> {
    let mut fenced = false;
    let mut found = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        fenced ^= line.starts_with("```");
        if let (false, Some(id)) = (fenced, line.strip_prefix("### ")) {
            found.insert(id.trim().trim_matches('`').to_string(), index + 1);
        }
    }
    found
}

fn forbidden_roots(tree: &Tree) -> Vec<Violation> {
    let packages = tree.packages.iter();
    packages
        .filter(|package| !MAY_HOLD_UNSAFE.contains(&package.name.as_str()))
        .flat_map(|package| &package.targets)
        .filter(|target| matches!(target.kind.as_str(), "lib" | "bin" | "rlib"))
        .filter_map(|target| {
            let source = tree.sources.iter().find(|source| source.path == target.root)?;
            let forbids = source.code.contains("#![forbid(unsafe_code)]");
            (!forbids).then(|| {
                let message = "add `#![forbid(unsafe_code)]` to this crate root";
                violation(RULE, &source.path, 1, message)
            })
        })
        .collect()
}

fn check_source(source: &Source, entries: &BTreeMap<String, usize>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line, ids) in safety_comments(source) {
        for id in ids.iter().filter(|id| !entries.contains_key(*id)) {
            let message = format!("`{id}` is no entry of {ENTRIES}: add `### {id}` there");
            violations.push(violation(RULE, &source.path, line, message));
        }
        if ids.is_empty() && !source.is_test(line) {
            let message = format!("SAFETY comment names no entry of {ENTRIES}: `SAFETY: [id] …`");
            violations.push(violation(RULE, &source.path, line, message));
        }
    }
    let lines: Vec<&str> = source.code.lines().collect();
    for at in syntax::words(&source.code, "unsafe") {
        let line = source.line_of(at);
        if source.is_test(line) {
            continue;
        }
        let after = source.code[at + "unsafe".len()..].trim_start();
        if let Some(complaint) = complaint(source, &lines, line, after) {
            violations.push(violation(RULE, &source.path, line, complaint));
        }
    }
    violations
}

/// What is missing at an `unsafe` that is followed by `after`.
fn complaint(source: &Source, lines: &[&str], line: usize, after: &str) -> Option<String> {
    let word = syntax::identifier(after);
    if after.starts_with('{') || word == "impl" {
        let kind = if word == "impl" { "unsafe impl" } else { "unsafe block" };
        return (!comment_above(source, lines, line).contains("SAFETY:"))
            .then(|| format!("{kind} without `// SAFETY: [id] …` right above; ids are in {ENTRIES}"));
    }
    // A public `unsafe fn` or an `unsafe trait` tells its user what to keep. Methods of an
    // `impl` inherit what their trait tells; an `unsafe fn(…)` without a name is a type.
    let named_fn = word == "fn" && !syntax::identifier(&after[2..]).is_empty();
    let before = lines[line - 1].split("unsafe").next().unwrap_or("");
    let public = before.contains("pub") || is_inside_trait(lines, line);
    if !(word == "trait" || named_fn && public) {
        return None;
    }
    (!comment_above(source, lines, line).contains("# Safety"))
        .then(|| format!("`unsafe {word}` without a `# Safety` section in its documentation"))
}

fn is_inside_trait(lines: &[&str], line: usize) -> bool {
    let indent = |text: &str| text.len() - text.trim_start().len();
    let own = indent(lines[line - 1]);
    let mut outer = lines[..line - 1].iter().rev().filter(|text| !text.trim().is_empty());
    let encloses = outer.find(|text| indent(text) < own);
    encloses.is_some_and(|text| syntax::words(text, "trait").next().is_some())
}

/// The comments on `line` and right above the statement that it belongs to.
fn comment_above(source: &Source, lines: &[&str], line: usize) -> String {
    let comments_on = |line: usize| source.comments.iter().filter(move |c| c.line == line);
    let mut text: String = comments_on(line).map(|c| c.text.as_str()).collect();
    let mut in_comment = false;
    for above in (1..line).rev() {
        let code = lines[above - 1].trim();
        let is_comment = code.is_empty() && comments_on(above).next().is_some();
        let continues = code.starts_with("#[") || !(code.is_empty() || code.ends_with([';', '{', '}', ',']));
        if !is_comment && (in_comment || !continues) {
            break;
        }
        in_comment = is_comment;
        text.extend(comments_on(above).map(|c| format!("{}\n", c.text)));
    }
    text
}

/// Lines with `SAFETY:` and the entry ids that they name.
fn safety_comments(source: &Source) -> impl Iterator<Item = (usize, Vec<String>)> + '_ {
    source.comments.iter().filter_map(|comment| {
        // Documentation may talk about SAFETY comments; only plain comments are ones.
        let body = comment.text.strip_prefix("// ")?;
        let mut rest = body.strip_prefix("SAFETY:")?.trim_start();
        let mut ids = Vec::new();
        while let Some((id, tail)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            ids.extend(id.split(',').map(|id| id.trim().to_string()));
            rest = tail.trim_start();
        }
        Some((comment.line, ids))
    })
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const LIB: &str = "crates/memory/src/lib.rs";

    fn found(code: &str, entries: &str) -> Vec<Violation> {
        let entries: String = entries.lines().map(|line| format!("{line}\n{}", formed(line))).collect();
        check(&planted::tree(&[(LIB, code), (ENTRIES, &entries)]))
    }

    /// The rest of an entry that begins with `line`.
    fn formed(line: &str) -> &'static str {
        if line.starts_with("###") { "**Holds:** a\n**Kept by:** b\n**Broken by:** c\n" } else { "" }
    }

    #[test]
    fn entries_have_their_form() {
        let code = "fn a() {\n    // SAFETY: [x] one\n    // [y] two\n    unsafe { b() };\n}\n";
        let entries = "### x\n**Holds:** a\n**Kept by:** b\n**Broken by:** c\n### y\n**Holds:** a\n**Broken by:** c\n";
        let found = check(&planted::tree(&[(LIB, code), (ENTRIES, entries)]));
        let found: Vec<_> = found.iter().filter(|found| found.message.contains("Kept by")).collect();
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn blocks_and_impls_name_their_entry() {
        let bare = "fn a() {\n    unsafe { b() }\n}\nunsafe impl Send for C {}\n";
        assert_eq!(planted::lines(&found(bare, "")), [2, 4]);
        let named = "fn a() {\n    // SAFETY: [x] it holds\n    // here.\n    let y =\n        \
                     unsafe { b() };\n}\n";
        assert_eq!(found(named, "### x\n"), []);
        let without_id = "// SAFETY: trust me\nunsafe impl Send for C {}\n";
        assert_eq!(planted::lines(&found(without_id, "")), [1]);
    }

    #[test]
    fn a_comment_covers_its_own_statement_only() {
        let code = "fn a() {\n    // SAFETY: [x] one\n    unsafe { b() };\n    unsafe { b() };\n}\n";
        assert_eq!(planted::lines(&found(code, "### x\n")), [4]);
    }

    #[test]
    fn entries_exist_and_are_used() {
        let code = "// SAFETY: [x] [z] here\nunsafe impl Send for C {}\n";
        let violations = found(code, "```\n### fenced\n```\n### x\n### y\n");
        assert_eq!(violations.len(), 2, "{violations:?}");
        assert!(violations[0].message.contains("`z` is no entry"));
        assert_eq!((violations[1].path.as_str(), violations[1].line), (ENTRIES, 11));
    }

    #[test]
    fn unsafe_functions_document_their_contract() {
        let code = "pub unsafe fn a() {}\n/// # Safety\n/// x\npub unsafe fn b() {}\n\
                    struct S(unsafe fn(u8));\nimpl T for S {\n    unsafe fn c() {}\n}\n\
                    pub trait T {\n    unsafe fn c();\n}\nunsafe trait U {}\n";
        assert_eq!(planted::lines(&found(code, "")), [1, 10, 12]);
    }

    #[test]
    fn other_crates_forbid_unsafe() {
        let tree = planted::tree(&[("crates/planner/src/lib.rs", "//! x\n")]);
        assert_eq!(planted::lines(&check(&tree)), [1]);
        let tree = planted::tree(&[("crates/planner/src/lib.rs", "#![forbid(unsafe_code)]\n")]);
        assert_eq!(check(&tree), []);
    }
}
