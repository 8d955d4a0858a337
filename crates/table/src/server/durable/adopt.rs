//! Tables as a checkpoint has them: its pages become a tree's, without a row being searched for a place.

use std::cell::{Cell, RefCell};

use overside_bwtree::{AdoptError, AdoptLeaf, Part, Tree};
use overside_disk::Disk;
use overside_log::{self as log, Directory, PageRef, Refusal};

use crate::server::store::{Ground, Store};

/// Makes a table of a checkpoint's pages. Where damage is passed over, the directory notes it.
///
/// # Errors
/// The pages are damaged or missing, or do not fit the server's memory.
pub(super) fn table<D: Disk>(store: &Store, directory: &mut Directory<D>, table: &log::Table) -> Result<(), String> {
    let losses = RefCell::new(Vec::new());
    let rows = Cell::new(0);
    let plant = |ground: Ground| {
        let Ground { arena, options, waits, stamps } = ground;
        let adoption = Tree::adopt(arena, options, waits, stamps).map_err(|error| error.to_string())?;
        let mut part = adoption.part(&[]);
        take_pages(directory, table, &mut part, &rows, &mut losses.borrow_mut())?;
        adoption.finish([part]).map_err(|error| error.to_string())
    };
    let made = store.restore(table.number, &table.options, &plant).map_err(|fault| fault.text)?;
    if let Some(made) = made {
        made.count(rows.get());
    }
    losses.into_inner().into_iter().for_each(|text| directory.lose(text));
    Ok(())
}

fn take_pages<D: Disk>(
    directory: &Directory<D>,
    table: &log::Table,
    part: &mut Part,
    rows: &Cell<i64>,
    losses: &mut Vec<String>,
) -> Result<(), String> {
    let salvages = directory.salvages();
    let mut pass_over = |refusal: Refusal| match refusal {
        Refusal::Damage(_) if salvages => {
            losses.push(refusal.to_string());
            Ok(())
        }
        refusal => Err(refusal.to_string()),
    };
    let mut pages = match directory.pages(table) {
        Ok(pages) => pages,
        Err(refusal) => return pass_over(refusal),
    };
    let mut leaves = Vec::new();
    for number in 0..pages.parts().len() {
        let mut damaged = Vec::new();
        let read = pages.read(number, &mut |page: &PageRef<'_>| {
            let leaf = AdoptLeaf {
                base: page.base,
                rows: page.rows.start as usize..page.rows.end as usize,
                deltas: &page.deltas,
                extents: &page.extents,
            };
            match part.take(&leaf) {
                Ok(()) => rows.set(rows.get() + i64::from(page.count)),
                Err(error @ AdoptError::Leaf { .. }) if salvages => damaged.push(error.to_string()),
                Err(error) => return Err(error.to_string()),
            }
            Ok(())
        });
        read.or_else(&mut pass_over)?;
        leaves.extend(damaged);
    }
    losses.extend(leaves);
    Ok(())
}
