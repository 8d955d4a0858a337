//! What a server reports to its operator of peers that it turned away, closed or lost: a line each,
//! and never a flood of them.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Takes the lines. Lines in excess of a few in ten seconds are counted and not passed on.
#[derive(Clone)]
pub struct Notices {
    to: Arc<dyn Fn(&str) + Send + Sync>,
    said: Arc<Mutex<Said>>,
}

/// Told why a server cannot go on.
#[derive(Clone)]
pub struct OnFailure(Arc<dyn Fn(&str) + Send + Sync>);

impl OnFailure {
    /// The reason goes to `to`, from any thread of the server.
    pub fn new(to: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(to))
    }

    /// Tells it.
    pub fn tell(&self, why: &str) {
        (self.0)(why);
    }
}

impl fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnFailure").finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Said {
    /// None before the first line.
    since: Option<Instant>,
    lines: u32,
    withheld: u64,
}

impl Notices {
    /// Lines go to `to`, from any thread of the server.
    pub fn new(to: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let said = Said { since: None, lines: 0, withheld: 0 };
        Self { to: Arc::new(to), said: Arc::new(Mutex::new(said)) }
    }

    /// Something that happened.
    pub(crate) fn say(&self, now: Instant, line: &str) {
        self.say_at(now, Some(line));
    }

    /// Nothing happened; what was withheld before is reported once its time has come.
    pub(crate) fn look(&self, now: Instant) {
        self.say_at(now, None);
    }

    fn say_at(&self, now: Instant, line: Option<&str>) {
        let mut said = self.said.lock().unwrap_or_else(|e| e.into_inner());
        if now.duration_since(*said.since.get_or_insert(now)) >= PERIOD {
            if said.withheld > 0 {
                (self.to)(&format!("and {} more lines like these in {} s", said.withheld, PERIOD.as_secs()));
            }
            *said = Said { since: Some(now), lines: 0, withheld: 0 };
        }
        let Some(line) = line else { return };
        if said.lines < LINES_MAX {
            said.lines += 1;
            (self.to)(line);
        } else {
            said.withheld += 1;
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").field("said", &self.said).finish_non_exhaustive()
    }
}

/// So many lines within this time are passed on.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_said() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let notices = {
            let lines = lines.clone();
            Notices::new(move |line| lines.lock().unwrap().push(line.to_owned()))
        };
        let start = Instant::now();
        (0..5000).for_each(|i| notices.say_at(start, Some(&format!("line {i}"))));
        assert_eq!(lines.lock().unwrap().len(), 10);
        notices.say_at(start + Duration::from_secs(9), None);
        assert_eq!(lines.lock().unwrap().len(), 10, "its time has not come");
        notices.say_at(start + PERIOD, None);
        assert_eq!(lines.lock().unwrap().last().unwrap(), "and 4990 more lines like these in 10 s");
        notices.say_at(start + PERIOD, Some("later"));
        notices.say_at(start + 2 * PERIOD, None);
        assert_eq!(lines.lock().unwrap()[11..], ["later"]);
    }
}
