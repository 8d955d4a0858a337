//! Writes the seeds.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/side_channel");
    std::fs::create_dir_all(&folder)?;
    for (number, bytes) in overside_ibv::parts::seeds().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
