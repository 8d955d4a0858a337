//! A scan answer, by rows and as a record batch.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overside_table::arrow::BatchBuilder;
use overside_table::block::RowBlock;
use overside_table_fuzz::{projection, schema};

fuzz_target!(|data: &[u8]| {
    let Some((choice, message)) = data.split_first() else { return };
    let projection = projection(*choice);
    let Ok(block) = RowBlock::parse(message, &projection) else { return };
    let mut bytes = 0;
    block.rows().for_each(|row| {
        bytes += row.len() as u64;
        let broken = (0..row.layout().columns().len()).filter(|&column| row.value(column).is_err());
        std::hint::black_box(broken.count());
    });
    assert_eq!(bytes, block.row_bytes());
    assert_eq!(block.rows().count(), block.len());
    let mut builder = BatchBuilder::new(&schema(), &projection);
    if builder.push(&block).is_ok() {
        if let Ok(batch) = builder.finish() {
            assert_eq!(batch.num_rows(), block.len());
        }
    }
});
