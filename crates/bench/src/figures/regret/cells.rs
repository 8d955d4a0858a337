//! Shapes of all kinds and sizes, from a seed of their own.

use anyhow::Result;
use overside::shape::{Bitmap, Column, Order, Run, Shape};
use overside_evidence::SplitMix64;
use std::sync::Arc;

/// A shape without its place.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    /// Pieces scattered anywhere, in this order.
    Scattered {
        /// Their lengths.
        lengths: Vec<u64>,
    },
    /// A run of every period.
    Strided {
        /// Bytes of a period.
        period: u64,
        /// Bytes of the run.
        run: u64,
        /// Periods.
        count: u64,
    },
    /// Some values of a column.
    Bitmapped {
        /// Bytes of a value.
        width: u64,
        /// Values, wanted or not.
        rows: u64,
        /// Of 100, so many are wanted.
        percent: u64,
    },
}

impl Cell {
    /// Bytes of a message.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Cell::Scattered { lengths } => lengths.iter().sum(),
            Cell::Strided { run, count, .. } => run * count,
            Cell::Bitmapped { width, rows, .. } => (0..*rows).filter(|row| self.wanted(*row)).count() as u64 * width,
        }
    }

    /// Bytes of the cache lines that its pieces lie in.
    pub(super) fn touched(&self) -> u64 {
        let lines = |bytes: u64| bytes.div_ceil(64) * 64;
        match self {
            Cell::Scattered { lengths } => lengths.iter().map(|bytes| lines(*bytes)).sum(),
            Cell::Strided { period, run, count } => count * lines(*run).min(*period),
            Cell::Bitmapped { width, rows, .. } => lines(width * rows),
        }
    }

    /// Bytes of the receive buffers that it shares with others about as long.
    pub(super) fn class(&self) -> usize {
        (self.bytes() as usize).next_power_of_two().max(4096)
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        match self {
            Cell::Scattered { lengths } => {
                let (least, most) = (lengths.iter().min(), lengths.iter().max());
                let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
                match least == most {
                    true => format!("{} scattered pieces of {least} B", lengths.len()),
                    false => format!("{} scattered pieces of {least} to {most} B", lengths.len()),
                }
            }
            Cell::Strided { period, run, count } => format!("{run} B of every {period}, {count} times"),
            Cell::Bitmapped { width, rows, percent } => format!("{percent} % of {rows} values of {width} B"),
        }
    }

    /// The shape at `count` places of a memory of `len` bytes.
    pub(super) fn shapes(&self, len: u64, count: usize) -> Result<Vec<Arc<Shape>>> {
        let mut random = SplitMix64(SEED ^ len);
        (0..count).map(|_| Ok(Arc::new(self.shape(len, &mut random)?.one_message()))).collect()
    }

    fn shape(&self, len: u64, random: &mut SplitMix64) -> Result<Shape> {
        Ok(match self {
            Cell::Scattered { lengths } => {
                let mut place = |bytes: u64| Run::new(random.below((len - bytes) / 64) * 64, bytes);
                let runs: Vec<Run> = lengths.iter().map(|bytes| place(*bytes)).collect();
                Shape::list(&runs)?
            }
            Cell::Strided { period, run, count } => {
                let base = random.below((len - period * count) / 64) * 64;
                Shape::strided(base, *period, *count, &[Run::new(0, *run)])?
            }
            Cell::Bitmapped { width, rows, .. } => {
                let base = random.below((len - width * rows) / 64) * 64;
                let column = Column { base, stride: *width, width: *width };
                Shape::bitmapped(&[column], &Bitmap::of(*rows, |row| self.wanted(row)), Order::Rows)?
            }
        })
    }

    fn wanted(&self, row: u64) -> bool {
        match self {
            Cell::Bitmapped { percent, .. } => SplitMix64(row).below(100) < *percent,
            _ => true,
        }
    }
}

/// `count` cells, of one seed always the same; that of 0 is the usual one.
pub(super) fn grid(count: usize, seed: u64) -> Vec<Cell> {
    let mut random = SplitMix64(SEED ^ seed.wrapping_mul(SPREAD));
    (0..count).map(|at| cell(at, &mut random)).collect()
}

fn cell(at: usize, random: &mut SplitMix64) -> Cell {
    match at % 8 {
        // One length throughout.
        0..=2 => {
            let bytes = length(random, 16, 64 << 10);
            let most = (BYTES_MAX / bytes).clamp(1, 256);
            Cell::Scattered { lengths: vec![bytes; length(random, 1, most) as usize] }
        }
        // Any lengths.
        3 | 4 => {
            let count = length(random, 2, 128);
            let most = (BYTES_MAX / count).clamp(32, 64 << 10);
            Cell::Scattered { lengths: (0..count).map(|_| length(random, 16, most)).collect() }
        }
        // A long piece with short ones, as a page with deltas.
        5 => {
            let mut lengths = vec![length(random, 4 << 10, 64 << 10)];
            let (short, count) = (length(random, 16, 1 << 10), length(random, 1, 64));
            lengths.extend((0..count).map(|_| short));
            Cell::Scattered { lengths }
        }
        6 => {
            let run = length(random, 4, 4 << 10);
            let period = run + length(random, 4, 4 << 10);
            Cell::Strided { period, run, count: length(random, 2, (BYTES_MAX / period).clamp(2, 4096)) }
        }
        _ => {
            let width = [4, 8, 16, 64][random.below(4) as usize];
            let rows = length(random, 64, BYTES_MAX / width);
            Cell::Bitmapped { width, rows, percent: length(random, 5, 95) }
        }
    }
}

/// Any order of magnitude is as likely as any other.
fn length(random: &mut SplitMix64, least: u64, most: u64) -> u64 {
    let part = random.below(1 << 32) as f64 / (1u64 << 32) as f64;
    let length = least as f64 * (most as f64 / least as f64).powf(part);
    (length.round() as u64).clamp(least, most)
}

const SEED: u64 = 0x5EED_0FAB_1E57_0CED;
/// 2^64 over the golden ratio: seeds that follow one another have nothing in common.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
const BYTES_MAX: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_always_the_same_and_every_shape_lies_in_its_memory() {
        let cells = grid(200, 0);
        assert_eq!(format!("{cells:?}"), format!("{:?}", grid(200, 0)));
        assert_ne!(format!("{cells:?}"), format!("{:?}", grid(200, 1)));
        let len = 64 << 20;
        for cell in &cells {
            for shape in cell.shapes(len, 3).unwrap() {
                assert!(shape.end() <= len && shape.bytes() == cell.bytes(), "{}", cell.describe());
                assert_eq!(shape.messages().count(), 1);
                assert!(shape.bytes() as usize <= cell.class() && shape.bytes() > 0, "{}", cell.describe());
            }
        }
        let sizes: Vec<u64> = cells.iter().map(Cell::bytes).collect();
        assert!(sizes.iter().min() < Some(&256) && sizes.iter().max() > Some(&(128 << 10)));
    }
}
