//! Whether several shapes have a byte in common. Shuffles ask this of many bitmaps over the same columns, and asking it
//! of each pair would take longer than sending the rows: those are laid over one another once.

use crate::bitmapped::{Bitmapped, Column};
use crate::form::Form;
use crate::shape::Shape;

/// Two shapes and a byte that both name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// One of the shapes, by its place.
    pub first: usize,
    /// The other, behind it.
    pub second: usize,
    /// The byte.
    pub at: u64,
}

/// A byte that two of the shapes name, if there is one. What a shape names twice itself does not count.
pub fn shared_byte(shapes: &[&Shape]) -> Option<Shared> {
    if laid_over(shapes) == Some(true) {
        return None;
    }
    let mut pairs = (0..shapes.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    pairs.find_map(|(first, second)| {
        let at = shapes[first].common_byte(shapes[second])?;
        Some(Shared { first, second, at })
    })
}

/// Whether bitmaps over the rows of the same columns are apart; none where shapes are of another kind.
fn laid_over(shapes: &[&Shape]) -> Option<bool> {
    let full = shapes.iter().filter(|shape| shape.bytes > 0);
    let parts = full
        .map(|shape| if let Form::Bitmapped(b) = &shape.form { Some(b) } else { None })
        .collect::<Option<Vec<&Bitmapped>>>()?;
    let lowest = parts.iter().min_by_key(|part| part.columns[0].base)?;
    let rows_before = |part: &&Bitmapped| {
        let lead = (part.columns[0].base - lowest.columns[0].base) / lowest.columns[0].stride;
        let alike = |(column, low): (&Column, &Column)| {
            (column.stride, column.width) == (low.stride, low.width) && column.base == low.base + lead * low.stride
        };
        let same = part.columns.len() == lowest.columns.len();
        (same && part.columns.iter().zip(&lowest.columns).all(alike)).then_some(lead)
    };
    let leads = parts.iter().map(rows_before).collect::<Option<Vec<u64>>>()?;
    let rows = leads.iter().zip(&parts).map(|(lead, part)| lead + part.rows.rows()).max()?;
    // Values of different columns must not meet, whatever the rows.
    let mut extents: Vec<(u64, u64)> =
        lowest.columns.iter().map(|c| (c.base, c.base + (rows - 1) * c.stride + c.width)).collect();
    extents.sort_unstable();
    if extents.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return None;
    }
    let mut seen = vec![0u64; rows.div_ceil(64) as usize + 1];
    for (lead, part) in leads.iter().zip(&parts) {
        let (first, shift) = ((lead / 64) as usize, lead % 64);
        for i in 0..part.rows.word_count() {
            let word = part.rows.word(i);
            let (low, high) = (word << shift, if shift == 0 { 0 } else { word >> (64 - shift) });
            if seen[first + i] & low != 0 || seen[first + i + 1] & high != 0 {
                return Some(false);
            }
            seen[first + i] |= low;
            seen[first + i + 1] |= high;
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bitmap, Order, Run};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_finds_what_pairs_find(
            to in proptest::collection::vec(0usize..4, 1..300), twice in proptest::option::of((0usize..300, 0usize..4)),
            stray in any::<bool>(), close in any::<bool>(), gap in 0u64..3,
        ) {
            let rows = to.len() as u64;
            let pitch = if close { rows * (4 + gap) - 4 } else { rows * (4 + gap) + 7 };
            let columns = [Column::new(3, 4 + gap, 4), Column::new(3 + pitch, 4 + gap, 4)];
            let belongs = |row: u64, one: usize| to[row as usize] == one || twice == Some((row as usize, one));
            let mut shapes: Vec<Shape> = (0..4)
                .map(|one| Shape::bitmapped(&columns, &Bitmap::of(rows, |row| belongs(row, one)), Order::Rows).unwrap())
                .collect();
            if stray {
                shapes.push(Shape::list(&[Run::new(0, 5)]).unwrap());
            }
            let shapes: Vec<&Shape> = shapes.iter().collect();
            let pairs = (0..shapes.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
            let any = pairs.clone().any(|(a, b)| shapes[a].common_byte(shapes[b]).is_some());
            let found = shared_byte(&shapes);
            prop_assert_eq!(found.is_some(), any);
            if let Some(found) = found {
                let names = |shape: &Shape| shape.fragments().any(|r| r.at <= found.at && found.at < r.at + r.len);
                prop_assert!(found.first < found.second && names(shapes[found.first]) && names(shapes[found.second]));
            }
        }
    }
}
