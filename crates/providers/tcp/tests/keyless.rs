//! Without a key, both ends take processes of their own user only. Needs root, to be another user
//! for a while; where it is not, each test says so and passes.

mod ends;

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ends::*;
use overside_tcp::Options;
use overside_verbs::{Listener, Provider, VerbsError};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

/// What `what` gives on a thread of another user. A thread that it starts is that user's, too.
fn as_user<T: Send>(user: u32, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let user = Uid::from_raw(user);
            set_thread_res_uid(user, user, user).unwrap();
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn is_root() -> bool {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can be another user for a while; run as root");
    }
    geteuid().is_root()
}

fn anyone(key: Option<&[u8]>) -> Options {
    Options { anyone: true, ..options(key) }
}

fn listens(name: &str, options: Options) -> Box<dyn Listener> {
    let end = End::new(options);
    end.provider.listen(&end.domain, name).unwrap()
}

/// What becomes of a connection of one user to another's listener; and what the listener says of
/// it, if it refused.
fn meets(listener: (u32, Options), connector: (u32, Options)) -> (Result<(), VerbsError>, Option<String>) {
    let name = fresh_name();
    let name = &name;
    let mut listening = as_user(listener.0, || listens(name, listener.1));
    std::thread::scope(|scope| {
        let (answered, over) = std::sync::mpsc::channel::<()>();
        let accepting = scope.spawn(move || {
            as_user(listener.0, move || {
                let end = Instant::now() + PATIENCE;
                let (mut links, mut refused) = (Vec::new(), None);
                while over.try_recv().is_err() {
                    links.extend(listening.accept(Duration::from_millis(10)).unwrap());
                    refused = listening.refused().map(|refused| refused.last).or(refused);
                    assert!(Instant::now() < end, "nothing comes of it");
                }
                refused
            })
        });
        let connected = as_user(connector.0, || {
            let client = End::new(connector.1);
            client.provider.connect(&client.domain, name, Duration::from_secs(20)).map(drop)
        });
        // Whatever is to be said of it was said before it was answered.
        _ = answered.send(());
        (connected, accepting.join().unwrap())
    })
}

const ALICE: u32 = 54_001;
const BOB: u32 = 54_002;

#[test]
fn processes_of_one_user_meet_and_strangers_do_not() {
    if !is_root() {
        return;
    }
    let own = || options(None);
    assert!(meets((ALICE, own()), (ALICE, own())).0.is_ok());
    for (listener, connector) in [(0, ALICE), (ALICE, BOB), (ALICE, 0)] {
        let (connected, refused) = meets((listener, own()), (connector, own()));
        let said = connected.unwrap_err().to_string();
        assert!(said.contains("its own user's processes"), "{said}");
        let refused = refused.unwrap();
        assert!(refused.contains(&format!("user {connector}")) && refused.contains("--anyone"), "{refused}");
    }
}

/// The connector asks as well: somebody else may have taken the port.
#[test]
fn a_listener_of_another_user_is_not_talked_to_but_roots_is() {
    if !is_root() {
        return;
    }
    let (connected, _) = meets((BOB, anyone(None)), (ALICE, options(None)));
    let said = connected.unwrap_err().to_string();
    assert!(said.contains("user 54002") && said.contains("user 54001") && said.contains("--anyone"), "{said}");
    assert!(meets((0, anyone(None)), (ALICE, options(None))).0.is_ok());
    assert!(meets((BOB, anyone(None)), (ALICE, anyone(None))).0.is_ok());
}

/// With a key it says who is there, whoever the user.
#[test]
fn a_key_opens_to_every_user_that_has_it() {
    if !is_root() {
        return;
    }
    assert!(meets((BOB, options(Some(SECRET))), (ALICE, options(Some(SECRET)))).0.is_ok());
}

/// Not one byte is said to a stranger, nor read.
#[test]
fn a_stranger_hears_nothing() {
    if !is_root() {
        return;
    }
    let server = Server::start(&fresh_name(), options(None));
    let bystander = Bystander::start(&server.name, options(None));
    let heard = as_user(ALICE, || {
        let mut raw = Raw::dial(&server.name);
        _ = std::io::Write::write_all(&mut raw.stream, &greeting(0));
        raw.stream.read(&mut [0; 64]).map_err(|error| error.kind())
    });
    assert!(matches!(heard, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{heard:?}");
    bystander.goes_on();
}

/// A stranger's socket that was closed at once belongs to nobody, which some kernels write as root.
#[test]
fn what_was_closed_at_once_is_nobodys_and_not_roots() {
    if !is_root() {
        return;
    }
    let name = fresh_name();
    let mut listener = listens(&name, options(None));
    as_user(ALICE, || {
        let stream = TcpStream::connect(&name).unwrap();
        std::io::Write::write_all(&mut &stream, &greeting(0)).unwrap();
    });
    let end = Instant::now() + PATIENCE;
    let refused = loop {
        assert!(listener.accept(Duration::from_millis(10)).unwrap().is_none() && Instant::now() < end);
        if let Some(refused) = listener.refused() {
            break refused.last;
        }
    };
    assert!(refused.contains("hung up") || refused.contains("user 54001"), "{refused}");
}
