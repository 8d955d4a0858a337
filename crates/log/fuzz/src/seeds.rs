//! Writes the seeds.

use std::path::Path;

fn main() -> std::io::Result<()> {
    for (target, seeds) in overside_log_fuzz::seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, bytes) in seeds.into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
        }
    }
    Ok(())
}
