//! Writes the seeds.

use std::path::Path;

use overside_vault::fronts::nbd::seeds_nbd;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/nbd");
    std::fs::create_dir_all(&folder)?;
    for (number, bytes) in seeds_nbd().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
