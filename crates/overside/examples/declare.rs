//! Declare a region, look at the plan, send it.
use overside::shape::{Run, Shape};
use overside::{Channel, Gate};
use std::{sync::Arc, time::Duration};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = format!("shm:declare-{}", std::process::id());
    let mut gate = Gate::listen(&address)?;
    let connecting = std::thread::spawn(move || Channel::connect(&address));
    let mut there = gate.accept(Duration::from_secs(5))?;
    let mut here = connecting.join().expect("the connecting thread does not panic")?;

    let mut rows = here.allocate(100 * 64)?; // 100 rows of 64 bytes
    rows.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
    let two_columns = Shape::strided(0, 64, 100, &[Run::new(0, 8), Run::new(24, 4)])?;
    let declared = here.declare(&Arc::new(rows), &two_columns)?;
    println!("{declared}");
    here.send(declared)?;
    println!("first message: {} bytes", there.receive(Duration::from_secs(5))?.len()); // a row each
    Ok(())
}
