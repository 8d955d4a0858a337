//! Writes the seeds.

use std::path::Path;

use overside_volume::files::seeds_entries;
use overside_volume::wire::{seeds_to_client, seeds_to_node};
use overside_volume::{seeds_intents, seeds_journal};

fn main() -> std::io::Result<()> {
    let stores = [("entries", seeds_entries()), ("intents", seeds_intents()), ("journal", seeds_journal())];
    for (target, seeds) in [("to_node", seeds_to_node()), ("to_client", seeds_to_client())].into_iter().chain(stores) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, bytes) in seeds.into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), bytes)?;
        }
    }
    Ok(())
}
