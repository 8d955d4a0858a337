//! Channels and fans: what is declared arrives as single messages, whatever way was planned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use overside::memory::Buffer;
use overside::planner::{Force, Terms};
use overside::shape::{Bitmap, Column, Mask, Order, Run, Shape};
use overside::{Channel, Fan, Gate, Way};

fn gate() -> Gate {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("shm:channel-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Gate::listen(&name).unwrap()
}

fn pair() -> (Channel, Channel) {
    let mut gate = gate();
    let address = gate.address().to_string();
    let connecting = std::thread::spawn(move || Channel::connect(&address).unwrap());
    let there = gate.accept(PATIENCE).unwrap();
    (connecting.join().unwrap(), there)
}

fn patterned(mut buffer: Buffer) -> Arc<Buffer> {
    buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + (i >> 8)) as u8);
    Arc::new(buffer)
}

fn messages(memory: &[u8], shape: &Shape) -> Vec<Vec<u8>> {
    let messages = shape.messages();
    let bytes = |run: Run| &memory[run.at as usize..][..run.len as usize];
    (0..messages.count()).map(|i| messages.message(i).flat_map(bytes).copied().collect()).collect()
}

fn shapes() -> Vec<Shape> {
    let columns = [0, 8192, 16384].map(|at| Shape::column(at, 4, 1000).unwrap());
    let bits = Bitmap::of(1000, |row| row % 3 != 1);
    vec![
        Shape::contiguous(100, 5000).unwrap(),
        Shape::strided(0, 64, 100, &[Run::new(0, 8), Run::new(24, 4)]).unwrap(),
        Shape::set(columns.to_vec(), Mask::Rows).unwrap(),
        Shape::bitmapped(&[Column::dense(0, 4), Column::dense(8192, 8)], &bits, Order::Rows).unwrap(),
        Shape::mapped(vec![300u64, 20_000, 64, 7000], &[Run::new(0, 16), Run::new(40, 3)]).unwrap(),
        Shape::variable(500, vec![0u64, 10, 10, 3000, 3001, 9000], None).unwrap(),
        Shape::list(&[Run::new(0, 20_000), Run::new(25_000, 3), Run::new(25_010, 3)]).unwrap(),
    ]
}

#[test]
fn messages_of_every_kind_of_region_arrive_one_by_one() {
    let (mut here, mut there) = pair();
    let memory = patterned(here.allocate(32 << 10).unwrap());
    for shape in shapes().into_iter().map(Arc::new) {
        let ways = [None, Some(Force::Way(Way::Copy)), Some(Force::Threshold(64)), Some(Force::Threshold(1))];
        for force in ways {
            let declared = here.declare_with(&memory, &shape, &Terms { force, ..Terms::default() }).unwrap();
            // The receiver moves the bytes: it must be at work while more is sent than a queue holds.
            std::thread::scope(|scope| {
                scope.spawn(|| here.send(declared).and_then(|()| here.flush()).unwrap());
                for expected in messages(&memory, &shape) {
                    let message = there.receive(PATIENCE).unwrap();
                    assert!(message[..] == expected[..], "{shape:?} by {force:?}");
                    there.recycle(message).unwrap();
                }
            });
        }
        assert!(there.receive(Duration::ZERO).is_err(), "and no others");
    }
}

#[test]
fn messages_that_arrive_together_are_a_batch() {
    let (mut here, mut there) = pair();
    let memory = patterned(here.allocate(32 << 10).unwrap());
    let shape = Shape::strided(0, 16, 2000, &[Run::new(0, 4)]).unwrap();
    let declared = here.declare(&memory, &shape).unwrap();
    here.send(declared).unwrap();
    let mut came = Vec::new();
    while came.len() < 2000 {
        let batch = there.receive_batch(PATIENCE).unwrap();
        assert_eq!(batch.messages().len() * 4, batch.bytes().len());
        came.extend(batch.messages().map(<[u8]>::to_vec));
        there.recycle_batch(batch).unwrap();
    }
    assert!(came == messages(&memory, &shape));
}

#[test]
fn a_region_that_leaves_its_memory_is_refused() {
    let (mut here, _there) = pair();
    let memory = Arc::new(here.allocate(4096).unwrap());
    let outside = Shape::contiguous(4000, 97).unwrap();
    let error = here.declare(&memory, &outside).unwrap_err().to_string();
    assert_eq!(error, "the region ends at byte 4097 but its memory has 4096; declare it over the memory it lies in");
}

#[test]
fn a_fan_brings_each_destination_its_rows() {
    let gates: Vec<Gate> = (0..3).map(|_| gate()).collect();
    let addresses: Vec<String> = gates.iter().map(|gate| gate.address().to_string()).collect();
    let accepting: Vec<_> =
        gates.into_iter().map(|mut gate| std::thread::spawn(move || gate.accept(PATIENCE).unwrap())).collect();
    let mut fan = Fan::connect(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let mut there: Vec<Channel> = accepting.into_iter().map(|thread| thread.join().unwrap()).collect();
    let memory = patterned(fan.allocate(2 * 4 * 30_000).unwrap());
    let rows_of = |to: u64| {
        let column = |at: u64| Shape::strided(at + to * 4, 12, 10_000, &[Run::new(0, 4)]).unwrap();
        Arc::new(Shape::set(vec![column(0), column(120_000)], Mask::Rows).unwrap())
    };
    let shapes: Vec<Arc<Shape>> = (0..3).map(rows_of).collect();
    assert_eq!(fan.send(&memory, &shapes).unwrap().len(), 3);
    for (channel, shape) in there.iter_mut().zip(&shapes) {
        for expected in messages(&memory, shape) {
            let message = channel.receive(PATIENCE).unwrap();
            assert!(message[..] == expected[..]);
            channel.recycle(message).unwrap();
        }
    }
    fan.flush().unwrap();
    let twice = [shapes[0].clone(), shapes[1].clone(), shapes[0].clone()];
    let error = fan.send(&memory, &twice).unwrap_err().to_string();
    assert!(error.starts_with("destinations 0 and 2 overlap"), "{error}");
    let error = fan.send(&memory, &shapes[..2]).unwrap_err().to_string();
    assert!(error.starts_with("shapes: 2 for 3 destinations; give one for each"), "{error}");
    assert!(there[0].receive(Duration::ZERO).is_err(), "nothing was sent");
}

const PATIENCE: Duration = Duration::from_secs(10);
