//! Iteration over a shape's fragments, without storing them.

use crate::run::Run;
use crate::walk::Walk;

/// Fragments in message order, each as large as it can be. See [`Shape::fragments`](crate::Shape::fragments).
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    walk: Walk<'a>,
    /// Bytes still to come, `held` not among them.
    left: u64,
    held: Option<Run>,
}

impl<'a> Fragments<'a> {
    /// `bytes` bytes from where `walk` stands.
    pub(crate) fn new(walk: Walk<'a>, bytes: u64) -> Self {
        Self { walk, left: bytes, held: None }
    }

    #[inline]
    fn pull(&mut self) -> Option<Run> {
        if self.left == 0 {
            return None;
        }
        let run = self.walk.take(self.left)?;
        self.left -= run.len;
        Some(run)
    }
}

impl Iterator for Fragments<'_> {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
        let mut out = match self.held.take() {
            Some(run) => run,
            None => self.pull()?,
        };
        if self.walk.folds() {
            while let Some(run) = self.pull() {
                if out.at + out.len != run.at {
                    self.held = Some(run);
                    break;
                }
                out.len += run.len;
            }
        }
        Some(out)
    }
}
