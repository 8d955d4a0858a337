//! Writes the seeds.

use std::path::Path;

fn main() -> std::io::Result<()> {
    for (number, (target, bytes)) in overside_shm::parts::seeds().into_iter().enumerate() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
