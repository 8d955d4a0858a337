//! Whether several shapes have a byte in common. Shuffles ask this of many bitmaps over the same
//! columns, and asking it of each pair would take longer than sending the rows: those are laid over
//! one another once.

use crate::shape::Shape;
use crate::table::OneTable;

/// Two shapes and a byte that both name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// One of the shapes, by its place.
    pub first: usize,
    /// The other, behind it.
    pub second: usize,
    /// The byte.
    pub at: u64,
}

/// A byte that two of the shapes name, if there is one. What a shape names twice itself does not
/// count.
pub fn shared_byte(shapes: &[&Shape]) -> Option<Overlap> {
    if laid_over(shapes) == Some(true) {
        return None;
    }
    let mut pairs = (0..shapes.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
    pairs.find_map(|(first, second)| {
        let at = shapes[first].common_byte(shapes[second])?;
        Some(Overlap { first, second, at })
    })
}

/// Whether bitmaps over the rows of the same columns are apart; none where shapes are of another
/// kind.
fn laid_over(shapes: &[&Shape]) -> Option<bool> {
    let table = OneTable::of(shapes)?;
    let rows = table.rows();
    // Values of different columns must not meet, whatever the rows.
    let mut extents: Vec<(u64, u64)> =
        table.columns().iter().map(|c| (c.base, c.base + (rows - 1) * c.stride + c.width)).collect();
    extents.sort_unstable();
    if extents.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return None;
    }
    let mut seen = [0u64; CHUNK_WORDS];
    let words = rows.div_ceil(64);
    for from in (0..words).step_by(CHUNK_WORDS) {
        let seen = &mut seen[..CHUNK_WORDS.min((words - from) as usize)];
        seen.fill(0);
        if !table.parts().iter().all(|wanted| wanted.lay_over(from, seen)) {
            return Some(false);
        }
    }
    Some(true)
}

/// Words of rows that are laid over one another at a time: few enough for the nearest cache.
const CHUNK_WORDS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitmapped::Column;
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
