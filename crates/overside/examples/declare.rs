//! Declare a region, look at the plan, send it. Both ends in one process, or each in one of its own:
//! `declare --listen tcp:HOST:PORT --key-file KEY` and `declare --connect tcp:HOST:PORT --key-file KEY`.
use overside::shape::{Run, Shape};
use overside::{Builder, Channel, at};
use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

const WITHIN: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    run().map_or_else(|error| (eprintln!("{error}"), ExitCode::FAILURE).1, |()| ExitCode::SUCCESS)
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let address = format!("shm:declare-{}", std::process::id());
            let mut listener = at(&address).listen()?;
            let connecting = std::thread::spawn(move || at(address).connect(WITHIN));
            let there = listener.accept(WITHIN)?;
            let mut here = connecting.join().expect("the connecting thread does not panic")?;
            let receiving = std::thread::spawn(move || receive(there).map_err(|error| error.to_string()));
            send(&mut here)?;
            Ok(receiving.join().expect("the receiving thread does not panic")?)
        }
        ["--listen", address, ref key @ ..] => receive(keyed(at(address), key)?.listen()?.accept(WITHIN)?),
        ["--connect", address, ref key @ ..] => send(&mut keyed(at(address), key)?.connect(WITHIN)?),
        _ => Err("usage: declare [--listen ADDR | --connect ADDR] [--key-file FILE]".into()),
    }
}

fn keyed(builder: Builder, arguments: &[&str]) -> Result<Builder, Box<dyn Error>> {
    match arguments {
        [] => Ok(builder),
        ["--key-file", path] => Ok(builder.key_file(*path)),
        _ => Err("after the address comes --key-file FILE, or nothing".into()),
    }
}

fn send(here: &mut Channel) -> Result<(), Box<dyn Error>> {
    let mut rows = here.allocate(ROWS * 64)?; // rows of 64 bytes
    rows.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
    let two_columns = Arc::new(Shape::strided(0, 64, ROWS as u64, &[Run::new(0, 8), Run::new(24, 4)])?);
    let declared = here.declare(&Arc::new(rows), &two_columns)?;
    println!("{declared}");
    here.send(&declared, WITHIN)?;
    Ok(here.flush(WITHIN)?)
}

fn receive(mut there: Channel) -> Result<(), Box<dyn Error>> {
    for row in 0..ROWS {
        let message = there.receive(WITHIN)?; // a row each
        assert_eq!((message.len(), message[0]), (12, (row * 64) as u8));
        there.recycle(message)?;
    }
    println!("{ROWS} messages of 12 bytes");
    Ok(())
}

const ROWS: usize = 100;
