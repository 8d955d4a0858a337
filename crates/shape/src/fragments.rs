//! Iteration over a shape's fragments, without storing them.

use crate::run::Run;
use crate::walk::Walk;

/// Fragments in message order, each as large as it can be. See
/// [`Shape::fragments`](crate::Shape::fragments).
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

impl Fragments<'_> {
    /// The next bytes that lie together, `most` at most, not folded with what follows them.
    ///
    /// # Panics
    /// When `most` is 0.
    #[inline]
    pub fn take_bytes(&mut self, most: u64) -> Option<Run> {
        assert!(most > 0, "a piece has a byte at least");
        if let Some(held) = &mut self.held {
            let len = held.len.min(most);
            let out = Run::new(held.at, len);
            *held = Run::new(out.at + len, held.len - len);
            if held.len == 0 {
                self.held = None;
            }
            return Some(out);
        }
        let run = self.walk.take(self.left.min(most).max(1)).filter(|_| self.left > 0)?;
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
