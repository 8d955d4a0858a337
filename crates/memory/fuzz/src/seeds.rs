//! Writes the seeds.

#[path = "../../tests/region/mod.rs"]
#[allow(dead_code)]
mod region;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/region");
    std::fs::create_dir_all(&folder)?;
    for (number, bytes) in region::seeds().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
