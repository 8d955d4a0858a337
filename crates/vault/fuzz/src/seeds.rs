//! Writes the seeds.

use std::path::Path;

use overside_vault::files::seeds_files;
use overside_vault::fronts::fuse::seeds_fuse;
use overside_vault::fronts::nbd::seeds_nbd;
use overside_vault::fronts::ublk::seeds_ublk;
use overside_vault::home::seeds_superblock;
use overside_vault::members::volatile::seeds_unflushed;
use overside_vault::server::seeds_access;
use overside_vault::trace::seeds_trace;

fn main() -> std::io::Result<()> {
    let targets = [
        ("access", seeds_access()),
        ("files", seeds_files()),
        ("fuse", seeds_fuse()),
        ("nbd", seeds_nbd()),
        ("superblock", seeds_superblock()),
        ("trace", seeds_trace()),
        ("ublk", seeds_ublk()),
        ("unflushed", seeds_unflushed()),
    ];
    for (target, seeds) in targets {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, bytes) in seeds.into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
        }
    }
    Ok(())
}
