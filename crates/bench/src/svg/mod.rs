//! Small charts as SVG text: grouped bars with whiskers, lines, stacked shares.
//!
//! Colours, strokes and fonts are classes, set by the page that holds the chart ([`STYLE`]), so the
//! same chart reads in light and dark, on screen and in print. Nothing is loaded from elsewhere.

mod axis;
mod bars;
mod canvas;
mod curves;
mod lines;
mod shares;

pub use axis::{Axis, Scale};
pub use bars::{Bar, Bars, Group, Reference};
pub use canvas::escape;
pub use curves::{Curve, Curves, Mark};
pub use lines::{Line, Lines};
pub use shares::{ShareBar, Shares};

/// What the classes look like. Series are `s0` to `s5`.
pub const STYLE: &str = "
svg text{font:11px var(--sans);fill:var(--ink)}
svg .title{font-weight:600}
svg .on{fill:#fff}
svg .faint{fill:var(--faint)}
svg .axis{stroke:var(--ink);stroke-width:1;fill:none}
svg .grid{stroke:var(--rule);stroke-width:.6;fill:none}
svg .whisker{stroke:var(--ink);stroke-width:1;fill:none}
svg .reference{stroke:var(--ink);stroke-width:1;stroke-dasharray:5 3;fill:none}
svg .line{fill:none;stroke-width:1.8}
svg .dashed{stroke-width:1.2;stroke-dasharray:5 3}
svg .mark{fill:var(--paper);stroke:var(--ink);stroke-width:1.4}
svg .marked{fill:var(--faint);font-size:10px;paint-order:stroke;stroke:var(--paper);stroke-width:3px}
svg .s0{fill:var(--s0)} svg .s1{fill:var(--s1)} svg .s2{fill:var(--s2)}
svg .s3{fill:var(--s3)} svg .s4{fill:var(--s4)} svg .s5{fill:var(--s5)}
svg .l0{stroke:var(--s0)} svg .l1{stroke:var(--s1)} svg .l2{stroke:var(--s2)}
svg .l3{stroke:var(--s3)} svg .l4{stroke:var(--s4)} svg .l5{stroke:var(--s5)}
";
