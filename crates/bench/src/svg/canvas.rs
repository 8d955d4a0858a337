//! The text of an SVG picture.

use std::fmt::Write;

/// A picture being drawn, in user units that are pixels at full width.
pub(super) struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text is held.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Canvas {
        Canvas { width, height, body: String::new() }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    /// A rectangle with a text that shows when pointed at.
    pub(super) fn rect(&mut self, class: &str, corner: (f64, f64), size: (f64, f64), hint: &str) {
        let ((x, y), (width, height)) = (corner, (size.0.max(0.0), size.1.max(0.0)));
        self.push(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}">"#
        ));
        if !hint.is_empty() {
            self.push(format_args!("<title>{}</title>", escape(hint)));
        }
        self.push(format_args!("</rect>"));
    }

    pub(super) fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, hint: &str) {
        let (x, y) = at;
        let hint = escape(hint);
        self.push(format_args!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{hint}</title></circle>"#
        ));
    }

    /// A square on its corner with a text that shows when pointed at.
    pub(super) fn diamond(&mut self, class: &str, (x, y): (f64, f64), half: f64, hint: &str) {
        let (left, right, top, bottom) = (x - half, x + half, y - half, y + half);
        self.push(format_args!(
            r#"<path class="{class}" d="M{x:.1} {top:.1}L{right:.1} {y:.1}L{x:.1} {bottom:.1}L{left:.1} {y:.1}Z"><title>{}</title></path>"#,
            escape(hint)
        ));
    }

    /// An entry of a legend: a square for a series, a dashed line for a limit, a
    /// diamond for others' points.
    pub(super) fn key(&mut self, class: &str, at: (f64, f64), name: &str) {
        match class.as_bytes().first() {
            Some(b'l') => {
                self.path(&format!("line {class} dashed"), &[(at.0 - 2.0, at.1 - 3.5), (at.0 + 10.0, at.1 - 3.5)])
            }
            Some(b'm') => self.diamond(class, (at.0 + 4.5, at.1 - 3.5), 4.6, name),
            _ => self.rect(class, (at.0, at.1 - 8.0), (9.0, 9.0), ""),
        }
        self.text("", (at.0 + 13.0, at.1), Anchor::Start, name);
    }

    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let mut data = String::new();
        for (at, (x, y)) in points.iter().enumerate() {
            let verb = if at == 0 { 'M' } else { 'L' };
            let _ = write!(data, "{verb}{x:.1} {y:.1}");
        }
        self.push(format_args!(r#"<path class="{class}" d="{data}"/>"#));
    }

    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let ((x, y), anchor, text) = (at, anchor.name(), escape(text));
        self.push(format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#));
    }

    /// A text that reads upwards.
    pub(super) fn text_up(&mut self, class: &str, at: (f64, f64), text: &str) {
        let ((x, y), text) = (at, escape(text));
        self.push(format_args!(
            r#"<text class="{class}" transform="translate({x:.1} {y:.1}) rotate(-90)" text-anchor="middle">{text}</text>"#
        ));
    }

    /// A row of coloured squares with names, from the left.
    pub(super) fn legend(&mut self, mut at: (f64, f64), entries: &[(String, String)]) {
        for (class, name) in entries {
            self.rect(class, (at.0, at.1 - 8.0), (9.0, 9.0), "");
            self.text("", (at.0 + 13.0, at.1), Anchor::Start, name);
            at.0 += KEY + width(name);
        }
    }

    pub(super) fn finish(self, label: &str) -> String {
        let (width, height, label) = (self.width, self.height, escape(label));
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{}</svg>"#,
            self.body
        )
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.body.write_fmt(text);
    }
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// How wide a text of the charts' size is at most, in user units: its width in the widest of the
/// fonts that a page asks for. So no text runs into its neighbour, whichever font there is.
pub(super) fn width(text: &str) -> f64 {
    let em = |letter: char| match letter {
        'i' | 'j' | 'l' | '\'' | '|' => 0.28,
        ' ' | ',' | '.' | ':' | ';' | '-' | '/' => 0.34,
        'f' | 'r' | 't' | '(' | ')' | '[' | ']' => 0.41,
        'm' | 'M' | 'W' | '%' => 0.98,
        'w' | '+' | '=' | '<' | '>' | '×' => 0.84,
        letter if letter.is_uppercase() => 0.75,
        _ => 0.64,
    };
    text.chars().map(em).sum::<f64>() * FONT
}

/// What an entry of a legend takes beside its name: the square before it, and the gap behind it.
pub(super) const KEY: f64 = 27.0;
/// The size of the charts' letters, as [`super::STYLE`] sets it.
const FONT: f64 = 11.0;

/// Text that can stand in markup, between tags and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_break_out() {
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.text("", (0.0, 0.0), Anchor::Start, "<script>'\"&");
        canvas.rect("s0", (0.0, 0.0), (1.0, -1.0), "a<b");
        let svg = canvas.finish("\"><b>");
        assert!(svg.contains("&lt;script&gt;&#39;&quot;&amp;") && svg.contains("a&lt;b"));
        assert!(!svg.contains("<script") && !svg.contains("<b>") && !svg.contains("height=\"-"));
    }
}
