//! What things cost over a provider: as stored, as measured now, or by the provider's own word.

use std::sync::{Arc, Mutex, PoisonError};

use overside_planner::Profile;
use overside_verbs::Provider;

use crate::{Calibration, Doubt, Effort, Error, Store, StoreError, calibrate};

/// The stored prices, else the provider's own, whose source says why. Nothing is measured.
///
/// `label` is what they are stored as: the transport, or what prices it apart from that.
pub fn known(label: &str, provider: &Arc<dyn Provider>) -> Profile {
    own_unless(stored(Store::of_user(), label, provider), provider)
}

fn own_unless(stored: Result<Profile, String>, provider: &Arc<dyn Provider>) -> Profile {
    match stored {
        Ok(profile) => profile,
        Err(note) => {
            let own = provider.profile();
            Profile { source: format!("{}; {note}", own.source), ..own }
        }
    }
}

/// The stored prices, else figures measured now and once in this process, whose source says why.
/// Who calls this says so to its user: [`Effort::Quick`] takes a tenth of a second or a few,
/// [`Effort::Full`] some seconds. `name` is as for [`calibrate`].
///
/// # Errors
/// When nothing is stored and there is no room to measure in.
pub fn measured(label: &str, provider: &Arc<dyn Provider>, name: &str, effort: Effort) -> Result<Profile, Error> {
    /// By label and effort. Held while measuring: two calibrations at once would measure each
    /// other.
    static MEASURED: Mutex<Vec<(String, Effort, Profile)>> = Mutex::new(Vec::new());
    let note = match stored(Store::of_user(), label, provider) {
        Ok(profile) => return Ok(profile),
        Err(note) => note,
    };
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., known)) = measured.iter().find(|(of, with, _)| *of == label && *with == effort) {
        provider.learn(known);
        return Ok(known.clone());
    }
    let measure = |doubt: fn(&Calibration) -> Option<Doubt>| {
        let found = calibrate(provider, name, effort, &mut |_| true)?;
        let doubt = doubt(&found);
        Ok((found.profile, doubt))
    };
    let found = match effort {
        Effort::Quick => quick(provider.profile(), || measure(Calibration::quick_doubt))?,
        Effort::Full => steadiest(provider.profile(), || measure(Calibration::doubt))?,
    };
    let profile = Profile { source: format!("{}; {note}", found.source), ..found };
    measured.push((label.to_owned(), effort, profile.clone()));
    provider.learn(&profile);
    Ok(profile)
}

/// The stored prices, told to the provider; else why there are none.
fn stored(store: Result<Store, StoreError>, label: &str, provider: &Arc<dyn Provider>) -> Result<Profile, String> {
    match store.and_then(|store| store.load(label)) {
        Ok(Some(profile)) => {
            provider.learn(&profile);
            Ok(profile)
        }
        Ok(None) => Err("no profile is stored: run `overside calibrate`".to_owned()),
        Err(error) => Err(format!("the stored profile is not used: {error}")),
    }
}

/// A quick calibration that no program disturbed, else the provider's own figures. What is started
/// beside busy programs must not take its wait for a processor as the price of a message, for as
/// long as it runs.
fn quick(
    known: Profile,
    mut measure: impl FnMut() -> Result<(Profile, Option<Doubt>), Error>,
) -> Result<Profile, Error> {
    let mut disturbed = None;
    for _ in 0..QUICK_TRIES {
        match measure()? {
            (found, None) => return Ok(found),
            (_, doubt) => disturbed = doubt,
        }
    }
    let why = disturbed.map_or_else(String::new, |doubt| format!(", since {doubt}"));
    Ok(Profile { source: format!("{}{why}", known.source), ..known })
}

/// A careful calibration that nothing speaks against, else the steadiest of a few that nobody
/// disturbed; else the provider's own figures.
fn steadiest(
    known: Profile,
    mut measure: impl FnMut() -> Result<(Profile, Option<Doubt>), Error>,
) -> Result<Profile, Error> {
    let (mut best, mut why): (Option<(f64, Profile)>, _) = (None, String::new());
    for _ in 0..CAREFUL_TRIES {
        let (found, doubt) = measure()?;
        let Some(doubt) = doubt else { return Ok(found) };
        if let Doubt::Unsteady { median, .. } = doubt
            && best.as_ref().is_none_or(|(least, _)| median < *least)
        {
            best = Some((median, Profile { source: format!("{}, though {doubt}", found.source), ..found }));
        }
        why = format!(", since {doubt}");
    }
    Ok(best.map_or_else(|| Profile { source: format!("{}{why}", known.source), ..known }, |(_, found)| found))
}

/// A tenth of a second each.
const QUICK_TRIES: usize = 3;
/// Some ten seconds each.
const CAREFUL_TRIES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        overside_shm::ShmProvider::new().unwrap().profile()
    }

    #[test]
    fn without_a_stored_profile_the_provider_is_believed_and_the_source_says_why() {
        let directory = std::env::temp_dir().join(format!("overside-prices-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let (store, provider) = (Store::at(&directory), overside_shm::ShmProvider::new().unwrap() as Arc<dyn Provider>);
        let known = || own_unless(stored(Ok(store.clone()), "shm", &provider), &provider);
        let own = |known: &Profile| Profile { source: profile().source, ..known.clone() } == profile();
        let unknown = known();
        assert!(own(&unknown) && unknown.source.ends_with("; no profile is stored: run `overside calibrate`"));
        let kept = Profile { row_ns: 77.0, source: "measured on this machine".into(), ..profile() };
        let path = store.save("shm", &kept).unwrap();
        assert_eq!(known(), kept);
        std::fs::write(&path, kept.to_string().replace("profile = 4", "profile = 9")).unwrap();
        let other = known();
        assert!(own(&other) && other.source.contains("this build reads 4"), "{}", other.source);
        assert!(other.source.contains(path.to_str().unwrap()), "{}", other.source);
        let _ = std::fs::remove_dir_all(&directory);
    }

    #[test]
    fn what_others_disturbed_is_measured_again_and_then_not_believed() {
        let wrong = Profile { send_request_ns: 1e6, ..profile() };
        let right = Profile { send_request_ns: 321.0, ..profile() };
        let doubt = Some(Doubt::Disturbed { points: 20, of: 25 });
        let mut calls = 0;
        let found = quick(profile(), || {
            calls += 1;
            Ok(if calls < 3 { (wrong.clone(), doubt) } else { (right.clone(), None) })
        });
        assert_eq!(found.unwrap(), right);
        let never = quick(profile(), || Ok((wrong.clone(), doubt))).unwrap();
        assert_eq!(never.send_request_ns, profile().send_request_ns);
        assert!(never.source.contains("other programs took processor time from 20 of 25"), "{}", never.source);
        assert!(quick(profile(), || Err(Error::Stopped)).is_err());
    }

    #[test]
    fn of_careful_ones_the_steadiest_is_taken_and_none_that_was_disturbed() {
        let of = |ns: f64| Profile { send_request_ns: ns, ..profile() };
        let unsteady = |median| Some(Doubt::Unsteady { median, p90: 0.5 });
        let disturbed = Some(Doubt::Disturbed { points: 20, of: 25 });
        for (doubts, taken, says) in [
            ([None, None], 100.0, None),
            ([disturbed, None], 101.0, None),
            ([unsteady(0.2), unsteady(0.1)], 101.0, Some("10 % apart")),
            ([unsteady(0.1), unsteady(0.2)], 100.0, Some("10 % apart")),
            ([unsteady(0.2), disturbed], 100.0, Some("20 % apart")),
            ([disturbed; 2], profile().send_request_ns, Some("20 of 25")),
        ] {
            let mut tries = doubts.into_iter().enumerate();
            let found = steadiest(profile(), || {
                let (at, doubt) = tries.next().unwrap();
                Ok((of(100.0 + at as f64), doubt))
            })
            .unwrap();
            assert_eq!(found.send_request_ns, taken, "{doubts:?}");
            assert!(
                says.map_or(found.source == profile().source, |says| found.source.contains(says)),
                "{}",
                found.source
            );
        }
    }
}
