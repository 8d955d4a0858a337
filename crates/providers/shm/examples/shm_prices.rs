//! Prints what transfers cost on this machine: `cargo run --release -p overside-shm --example shm_prices`.

fn main() {
    let provider = overside_shm::ShmProvider::new().unwrap();
    let start = std::time::Instant::now();
    let profile = provider.calibrate().unwrap();
    println!("{profile:#?}\nin {:?}", start.elapsed());
}
