//! The suite of sentences over each kind of device that this crate has.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use overside_verbs::watch::Signal;
use overside_volume::{Array, Completion, Device, Geometry, MemoryDevice, Request, Sectors};

fn memory(bytes: u64) -> Box<dyn Device> {
    Box::new(MemoryDevice::new(bytes).unwrap())
}

/// Memory that carries requests out in any order, by units of its own choice: what a disk may do.
#[derive(Debug)]
struct Unruly {
    memory: MemoryDevice,
    unit_bytes: u64,
    waiting: Vec<Request>,
    signal: Signal,
    chance: u64,
}

impl Unruly {
    fn boxed(unit_bytes: u64, seed: u64) -> Box<dyn Device> {
        let memory = MemoryDevice::new(1 << 20).unwrap();
        Box::new(Unruly { memory, unit_bytes, waiting: Vec::new(), signal: Signal::new().unwrap(), chance: seed })
    }
}

impl Device for Unruly {
    fn geometry(&self) -> Geometry {
        Geometry { unit_bytes: self.unit_bytes, ..self.memory.geometry() }
    }
    fn submit(&mut self, batch: &mut VecDeque<Request>) {
        while self.waiting.len() < 40
            && let Some(request) = batch.pop_front()
        {
            self.waiting.push(request);
        }
        self.signal.notify();
    }
    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.signal.drain();
        let before = out.len();
        for _ in 0..self.waiting.len().min(2) {
            self.chance = self.chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let request = self.waiting.swap_remove((self.chance >> 33) as usize % self.waiting.len());
            match self.geometry().check(&request.work) {
                Ok(()) => self.memory.submit(&mut [request].into()),
                Err(error) => out.push(request.ended(Err(error))),
            }
            self.memory.poll(out);
        }
        if !self.waiting.is_empty() {
            self.signal.notify();
        }
        out.len() - before
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signal.as_fd())
    }
}

mod of_unruly_memory {
    use super::*;

    fn open() -> Box<dyn Device> {
        Unruly::boxed(4096, 1)
    }

    overside_conformance::device_tests!(open);
}

mod of_a_mirror_of_unruly_members {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Array::mirror(vec![Unruly::boxed(512, 1), Unruly::boxed(512, 2)]).unwrap())
    }

    overside_conformance::device_tests!(open);
}

mod of_sectors_over_an_unruly_member {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Sectors::over(Unruly::boxed(4096, 3)))
    }

    overside_conformance::device_tests!(open);
}

mod of_memory {
    use super::*;

    struct Harness;

    impl overside_conformance::device::DeviceHarness for Harness {
        fn open(&self) -> Box<dyn Device> {
            memory(1 << 20)
        }
        fn frozen(&self) -> Option<Box<dyn Device>> {
            Some(Box::new(MemoryDevice::new(1 << 20).unwrap().frozen()))
        }
    }

    overside_conformance::device_tests!(Harness);
}

mod of_a_concatenation {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Array::concat(vec![memory(700 * 512), memory(512), memory(1 << 20)]).unwrap())
    }

    overside_conformance::device_tests!(open);
}

mod of_stripes {
    use super::*;

    fn open() -> Box<dyn Device> {
        Box::new(Array::stripes(vec![memory(1 << 19), memory(1 << 20), memory(1 << 19)], 1024).unwrap())
    }

    overside_conformance::device_tests!(open);
}

mod of_a_mirror {
    use super::*;

    struct Harness;

    impl overside_conformance::device::DeviceHarness for Harness {
        fn open(&self) -> Box<dyn Device> {
            Box::new(Array::mirror(vec![memory(1 << 20), memory((1 << 20) + 512)]).unwrap())
        }
        fn frozen(&self) -> Option<Box<dyn Device>> {
            let frozen = Box::new(MemoryDevice::new(1 << 20).unwrap().frozen());
            Some(Box::new(Array::mirror(vec![memory(1 << 20), frozen]).unwrap()))
        }
    }

    overside_conformance::device_tests!(Harness);
}

mod of_a_mirror_of_stripes {
    use super::*;

    fn open() -> Box<dyn Device> {
        let stripes = || Box::new(Array::stripes(vec![memory(1 << 20), memory(1 << 20)], 4096).unwrap());
        Box::new(Array::mirror(vec![stripes(), stripes()]).unwrap())
    }

    overside_conformance::device_tests!(open);
}
