//! Iteration over a shape's fragments, without storing them.

use crate::shape::{Form, Run, wraps};

/// The fragments of a [`Shape`](crate::Shape) in message order.
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    form: &'a Form,
    period: u64,
    run: usize,
    wraps: bool,
}

impl<'a> Fragments<'a> {
    pub(crate) fn new(form: &'a Form) -> Self {
        let wraps = match form {
            Form::Strided { period, runs, .. } => wraps(*period, runs),
            _ => false,
        };
        Self { form, period: 0, run: 0, wraps }
    }

    fn next_strided(&mut self, base: u64, period: u64, count: u64, runs: &[Run]) -> Option<Run> {
        if self.period == count {
            return None;
        }
        let start = base + self.period * period;
        let run = runs[self.run];
        let mut out = Run::new(start + run.at, run.len);
        self.run += 1;
        if self.run == runs.len() {
            (self.run, self.period) = (0, self.period + 1);
            if self.wraps && self.period < count {
                // The last run of this period touches the first of the next.
                out.len += runs[0].len;
                self.run = 1;
            }
        }
        Some(out)
    }
}

impl Iterator for Fragments<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        match self.form {
            Form::Contiguous(run) => {
                let first = self.run == 0 && run.len > 0;
                self.run = 1;
                first.then_some(*run)
            }
            Form::Strided { base, period, count, runs } => self.next_strided(*base, *period, *count, runs),
            Form::List(runs) => {
                self.run += 1;
                runs.get(self.run - 1).copied()
            }
        }
    }
}
