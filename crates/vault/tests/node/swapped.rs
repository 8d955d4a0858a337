//! A volume's device becomes another one while clients use it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use overside_memory::{Bytes, Segment};
use overside_vault::server::{Keeper, Reopened};
use overside_volume::client::{Link, LinkOptions};
use overside_volume::wire::Alteration;
use overside_volume::{Completion, Request, Work};

use super::*;

/// Opens the volume's file again, which is nobody else's then.
#[derive(Debug)]
struct Reopening {
    folder: PathBuf,
    times: AtomicUsize,
}

impl Keeper for Reopening {
    fn allows(&self, _: &str, _: &Alteration) -> Result<(), String> {
        Ok(())
    }

    fn change(&self, _: &Arc<Node>, _: &str, _: &Alteration) -> Result<String, String> {
        Err("it is in use".to_owned())
    }

    fn replace(&self, _: &str, _: &str, new: &str) -> (Result<String, String>, Reopened) {
        let times = self.times.fetch_add(1, Ordering::Relaxed);
        // As long as a home folder takes.
        std::thread::sleep(Duration::from_millis(times as u64 % 3 * 20));
        let about = About { layout: new.to_owned(), ..About::default() };
        (Ok(format!("{new} is there")), Ok((file(&self.folder, BYTES), about)))
    }
}

const BYTES: u64 = 1 << 20;
const BLOCK: u64 = 8192;
const SWAPS: usize = 20;

/// Every answer is right, and every request gets one.
#[test]
fn requests_wait_while_the_device_becomes_another_one() {
    for (transport, cached) in [("shm", false), ("shm", true), ("tcp", false)] {
        let folder = tempfile::tempdir().unwrap();
        let name = fresh_name(transport);
        let keeper = Arc::new(Reopening { folder: folder.path().to_owned(), times: AtomicUsize::new(0) });
        let cache = if cached { small_cache() } else { NodeOptions::default().cache };
        let options = NodeOptions { keeper: Some(keeper), cache, ..NodeOptions::default() };
        let _served = serve(transport, &name, file(folder.path(), BYTES), options);
        let its_name = name.clone();
        let changing = std::thread::spawn(move || {
            for time in 0..SWAPS {
                let what = Alteration::Replace { old: "a".to_owned(), new: format!("b{time}") };
                let done = overside_vault::server::change(provider(transport), &its_name, "v", what, None, PATIENCE);
                assert_eq!(done.unwrap(), format!("b{time} is there"));
            }
        });
        let mut client = Link::attach(provider(transport), &name, "v", LinkOptions::default()).unwrap();
        let (mut written, mut round) = (vec![0u8; (BYTES / BLOCK) as usize], 0u64);
        let buffer = || Segment::private(BLOCK as usize).unwrap().carve(BLOCK as usize).pop().unwrap();
        while !changing.is_finished() {
            round += 1;
            let mut batch = std::collections::VecDeque::new();
            // Each block once: written, or read and as it was written last.
            for block in 0..BYTES / BLOCK {
                let at = block * BLOCK;
                let work = if (block + round).is_multiple_of(3) {
                    written[block as usize] = (round * 31 + block) as u8;
                    let mut from = buffer();
                    from.fill(written[block as usize]);
                    Work::Write { at, from: Bytes::prefix(from, BLOCK as usize), fua: false }
                } else {
                    Work::Read { at, length: BLOCK as usize, into: buffer() }
                };
                batch.push_back(Request { tag: block, work });
            }
            let (mut done, count) = (Vec::new(), batch.len());
            let until = Instant::now() + PATIENCE;
            while done.len() < count {
                assert!(Instant::now() < until, "{transport}, cached {cached}: {} of {count} ended", done.len());
                client.submit(&mut batch);
                if client.poll(&mut done) == 0 && done.len() < count {
                    overside_volume::wait(&mut client, &SystemClock, Some(until)).unwrap();
                }
            }
            for Completion { tag, work, result } in done {
                assert_eq!(result, Ok(()), "{transport}, cached {cached}");
                if let Work::Read { into, .. } = work {
                    let expected = written[tag as usize];
                    assert!(into[..BLOCK as usize].iter().all(|byte| *byte == expected), "{transport}: block {tag}");
                }
            }
        }
        changing.join().unwrap();
        let report = overside_vault::server::status(provider(transport), &name, "v", PATIENCE).unwrap();
        assert_eq!(report.volumes[0].layout, format!("b{}", SWAPS - 1), "what it lies on is told as it is");
        client.close(PATIENCE);
    }
}
