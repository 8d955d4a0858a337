//! docs/claims.toml: what the papers describe and assert, and what stands behind each here.

use crate::verdict::Says;
use std::sync::LazyLock;
use toml_span::{DeserError, Value, de_helpers::TableHelper, value::ValueInner};

/// A mechanism or a claim of a paper.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// Paper, kind and number: `TC-M01`, `DR-C12`.
    pub id: String,
    /// The line in claims.toml on which it begins, from 1.
    pub line: usize,
    /// Where the paper says it.
    pub place: String,
    /// What the paper says.
    pub states: String,
    /// Every number of `states`.
    pub numbers: Vec<String>,
    /// How it can be checked; of claims alone.
    pub check: String,
    /// Files that hold it.
    pub code: Vec<String>,
    /// Files whose lines of code are the evidence: the page has each one's, beside those of its
    /// crate.
    pub counted: Vec<String>,
    /// What fails when it breaks.
    pub tests: Vec<String>,
    /// What shows it: `bench FIGURE[: what]`, `demo[: what]`.
    pub figures: Vec<String>,
    /// Of a mechanism that is built: `path:symbol`, where shipped code uses it.
    pub caller: Option<String>,
    /// The mechanism is an experiment.
    pub measurement: bool,
    /// built, partly, not yet, not applicable.
    pub state: String,
    /// As the rule says of committed full results, else of quick runs.
    pub verdict: Option<Says>,
    /// What is missing, or what to know.
    pub note: String,
}

impl Claim {
    /// Whether it asserts something, rather than describing a mechanism.
    pub fn asserts(&self) -> bool {
        self.id.contains("-C")
    }
}

/// All of a file that reads like docs/claims.toml, in its order.
///
/// # Errors
/// It is no TOML, lacks a field or has one that nobody knows: `line: what`.
pub fn parse(text: &str) -> Result<Vec<Claim>, String> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let told = |error: DeserError| {
        let first = error.errors.first();
        first.map_or_else(String::new, |error| format!("{}: {error}", line(error.span.start)))
    };
    let mut value = toml_span::parse(text).map_err(|error| format!("{}: {error}", line(error.span.start)))?;
    let mut table = TableHelper::new(&mut value).map_err(told)?;
    let claims = table.take("claim");
    table.finalize(None).map_err(told)?;
    let Some((_, mut claims)) = claims else { return Ok(Vec::new()) };
    let ValueInner::Array(claims) = claims.take() else { return Err("1: `claim` is no list of tables".into()) };
    claims.into_iter().map(|claim| one(claim, &line).map_err(told)).collect()
}

fn one(mut value: Value<'_>, line: &dyn Fn(usize) -> usize) -> Result<Claim, DeserError> {
    let begins = line(value.span.start);
    let mut table = TableHelper::new(&mut value)?;
    let verdict = table.optional_s::<String>("verdict");
    let mut claim = Claim {
        line: begins,
        id: table.required("id")?,
        place: table.required("where")?,
        states: table.required("states")?,
        numbers: table.optional("numbers").unwrap_or_default(),
        check: table.optional("check").unwrap_or_default(),
        code: table.optional("code").unwrap_or_default(),
        counted: table.optional("counted").unwrap_or_default(),
        tests: table.optional("test").unwrap_or_default(),
        figures: table.optional("figure").unwrap_or_default(),
        caller: table.optional("caller"),
        measurement: table.optional("measurement").unwrap_or_default(),
        state: table.required("state")?,
        verdict: None,
        note: table.optional("note").unwrap_or_default(),
    };
    table.finalize(None)?;
    if let Some(verdict) = verdict {
        let kind = toml_span::ErrorKind::UnexpectedValue {
            expected: &["agrees", "differs", "cannot tell"],
            value: Some(verdict.value.clone()),
        };
        let unknown = || DeserError::from(toml_span::Error::from((kind, verdict.span)));
        claim.verdict = Some(Says::parse(&verdict.value).ok_or_else(unknown)?);
    }
    Ok(claim)
}

/// The numbers of a text, each once, in order. What hangs on a name (`TC-M11`, `E5-2450`) is none.
pub fn numbers(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut before = ' ';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let part_of_number = |c: char| c.is_ascii_digit() || c == ',' || c == '.';
        if !first.is_ascii_digit() {
            (before, rest) = (first, &rest[first.len_utf8()..]);
            continue;
        }
        let end = rest.find(|c| !part_of_number(c)).unwrap_or(rest.len());
        let number = rest[..end].trim_end_matches([',', '.']);
        let stands_alone = !(before.is_alphanumeric() || matches!(before, '-' | '_' | '.'));
        if stands_alone && !found.iter().any(|other| other == number) {
            found.push(number.to_owned());
        }
        (before, rest) = ('0', &rest[end..]);
    }
    found
}

/// What the paper says, by a claim's id; empty for what is no claim.
pub fn states(id: &str) -> &'static str {
    CLAIMS.iter().find(|claim| claim.id == id).map_or("", |claim| &claim.states)
}

static CLAIMS: LazyLock<Vec<Claim>> =
    LazyLock::new(|| parse(include_str!("../../../docs/claims.toml")).expect("a test parses it"));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    const ONE: &str = "[[claim]]\nid = \"TC-C01\"\nwhere = \"§1\"\nstates = \"1.7×\"\nstate = \"built\"\n";

    #[test]
    fn a_claim_is_read_with_its_line() {
        let all = parse(&format!("# all\n\n{ONE}\n{}", ONE.replace("C01", "C02"))).unwrap();
        assert_eq!((all[0].line, all[1].line), (3, 9));
        assert_eq!((all[0].id.as_str(), all[0].verdict, all[0].asserts()), ("TC-C01", None, true));
        let with = parse(&format!("{ONE}verdict = \"cannot tell\"\nfigure = [\"bench delta\"]\n")).unwrap();
        assert_eq!((with[0].verdict, &with[0].figures[..]), (Some(Says::CannotTell), &["bench delta".to_owned()][..]));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        assert!(parse(&format!("{ONE}verdict = \"perhaps\"\n")).unwrap_err().starts_with("6: "));
        assert!(parse(&format!("{ONE}verdikt = \"agrees\"\n")).unwrap_err().contains("verdikt"));
        assert!(parse("[[claim]]\nid = \"TC-C01\"\n").unwrap_err().contains("where"));
        assert!(parse(&ONE[..30]).unwrap_err().starts_with("3: "), "{:?}", parse(&ONE[..30]));
    }

    #[test]
    fn numbers_stand_alone() {
        assert_eq!(
            numbers("5.7 GB/s against 3.4: 1.7×, 6–8 % of 340,000. TC-M11, E5-2450, 64 B"),
            ["5.7", "3.4", "1.7", "6", "8", "340,000", "64"]
        );
        assert_eq!(numbers("falls as 1/d, 1 in 4"), ["1", "4"]);
    }

    #[test]
    fn every_rule_has_its_claim() {
        for rule in rules() {
            assert!(!states(rule.claim).is_empty(), "docs/claims.toml has no `{}`", rule.claim);
        }
        assert_eq!(states("XX-C00"), "");
    }
}
