//! Writes the seeds.

use std::path::Path;

use overside_vault::fronts::fuse::seeds_fuse;
use overside_vault::fronts::nbd::seeds_nbd;
use overside_vault::members::volatile::seeds_unflushed;

fn main() -> std::io::Result<()> {
    for (target, seeds) in [("fuse", seeds_fuse()), ("nbd", seeds_nbd()), ("unflushed", seeds_unflushed())] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, bytes) in seeds.into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
        }
    }
    Ok(())
}
