//! The page: style and skeleton.

use super::{model::Report, sections};
use crate::svg;

/// The report as one HTML file that needs nothing else.
pub fn html(report: &Report) -> String {
    page("Overside: a table in memory, scanned by another process", &sections::body(report))
}

/// A page around `body` that needs nothing else.
pub fn page(title: &str, body: &str) -> String {
    let style = STYLE.replace("/*svg*/", svg::STYLE);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title>\
         <style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )
}

const STYLE: &str = r#"
:root{--ink:#1a1a1a;--faint:#5c5c5c;--paper:#fff;--rule:#d5d5d5;--box:#f6f5f1;--bad:#b3261e;--good:#2e6b34;
--s0:#3b6ea5;--s1:#d98032;--s2:#3f8f5f;--s3:#8a4f9e;--s4:#9a9a9a;--s5:#b0413e;
--serif:Charter,"Bitstream Charter","Source Serif 4","Iowan Old Style","Palatino Linotype",Palatino,Georgia,serif;
--sans:"Helvetica Neue",Helvetica,Arial,"Liberation Sans","DejaVu Sans",sans-serif;
--mono:"SFMono-Regular",Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace}
@media(prefers-color-scheme:dark){:root{--ink:#e4e2dd;--faint:#a3a19b;--paper:#17181a;--rule:#3a3b3e;--box:#202124;
--bad:#f2857d;--good:#8fc796;--s0:#6f9fd6;--s1:#e39a55;--s2:#63b384;--s3:#b583c9;--s4:#7d7d7d;--s5:#d97b78}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 var(--serif);
font-feature-settings:"kern","liga";hyphens:auto}
main{max-width:46rem;margin:0 auto;padding:3.2rem 1.4rem 4rem}
h1{font-size:1.72rem;line-height:1.22;text-align:center;margin:0 0 .5rem;font-weight:700;hyphens:none}
.by{text-align:center;color:var(--faint);margin:0 0 1.8rem;font-size:.95rem}
.abstract{margin:0 2.4rem 2rem;font-size:.94rem;text-align:justify}
h2{font-size:1.16rem;margin:2.1rem 0 .6rem}
p{margin:0 0 .8rem;text-align:justify}
figure{margin:1.6rem 0 1.8rem;break-inside:avoid}
figure svg{display:block;width:100%;height:auto}
figcaption{font-size:.88rem;margin-top:.6rem;line-height:1.42;text-align:justify}
figure.table figcaption{margin:0 0 .5rem}
.panel{font:600 11px var(--sans);margin:.7rem 0 .1rem 3.2rem;color:var(--faint)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.83rem;font-variant-numeric:tabular-nums lining-nums;
border-top:1.6px solid var(--ink);border-bottom:1.6px solid var(--ink);line-height:1.35}
th{font-weight:600;text-align:right;padding:.3rem .45rem;border-bottom:.8px solid var(--ink);vertical-align:bottom}
td{padding:.12rem .45rem;text-align:right;white-space:nowrap}
table.wide th,table.wide td{padding-left:.28rem;padding-right:.28rem}table.wide{font-size:.79rem}
tr.block td{padding-top:.34rem}
tbody tr:last-child td{padding-bottom:.34rem}
th:first-child,td:first-child,.figures:not(.one) th:nth-child(2),.figures:not(.one) td:nth-child(2){text-align:left}
table.machine td{text-align:left;white-space:normal}
table.machine td:first-child{font-weight:600;padding-right:1.2rem;white-space:nowrap}
table.two tr.block td,table.machine tr.block td,table.one tr.block td{padding-top:.16rem}
pre{background:var(--box);border:1px solid var(--rule);border-radius:3px;padding:.7rem .9rem;overflow-x:auto;
font:.8rem/1.55 var(--mono);hyphens:none;margin:.6rem 0 1rem}
code{font:.86em var(--mono);hyphens:none}
ul{margin:0 0 .8rem;padding-left:1.2rem}li{margin:.15rem 0}
table.claims td{white-space:normal;text-align:left;vertical-align:top}table.claims td:first-child{white-space:nowrap}
table.claims th{text-align:left}table.claims td.whole{white-space:nowrap}
table.bars td:first-child{white-space:normal}table.bars th{white-space:nowrap}.open{color:var(--faint);font-weight:600}
details{margin:.6rem 0 1.4rem;font-size:.9rem}summary{cursor:pointer;color:var(--faint)}
.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}
.end{margin-top:2.6rem;border-top:.8px solid var(--rule);padding-top:.7rem;font-size:.84rem;color:var(--faint)}
@media print{body{font-size:10.5pt}main{max-width:none;padding:0}}
@media(max-width:34rem){.abstract{margin:0 0 1.6rem}main{padding-top:1.6rem}}
/*svg*/
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::sample::report;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = html(&report());
        for loader in ["<script", "<link", "@import", "url(", "src=", "<iframe"] {
            assert!(!page.contains(loader), "{loader}");
        }
        // The one address is the name of SVG's namespace, which nothing fetches.
        let addresses = page.matches("http://").count() + page.matches("https://").count();
        assert_eq!(addresses, page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    }

    #[test]
    fn figures_and_tables_are_numbered_and_tags_are_closed() {
        let page = html(&report());
        for name in ["Fig. 1.", "Fig. 2.", "Fig. 3.", "Fig. 4.", "Table 1.", "Table 2.", "Table 3."] {
            assert!(page.contains(&format!("<b>{name}</b>")), "{name}");
        }
        for tag in ["p", "figure", "figcaption", "table", "svg", "h2", "div", "pre", "ul", "li", "main", "td", "tr"] {
            let open = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
