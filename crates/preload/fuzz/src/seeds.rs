//! Writes the seeds.

use std::path::Path;

use overside_preload::remote::parts;

fn main() -> std::io::Result<()> {
    let placeholder = ("placeholder", overside_preload::seeds_placeholder());
    for (target, seeds) in [("datagrams", parts::datagram_seeds()), placeholder, ("ring", parts::ring_seeds())] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, bytes) in seeds.into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
        }
    }
    Ok(())
}
