//! Writes the seeds.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/handshake");
    std::fs::create_dir_all(&folder)?;
    for (number, bytes) in overside_verbs::handshake::parts::seeds().into_iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
