//! Workers that halt or fail between a change and its record, and what a crash at that moment leaves.

use std::path::Path;
use std::sync::{Arc, Mutex};

use overside_reference as reference;
use overside_table::client::{Client, ClientError};
use overside_table::server::parts::World;
use overside_table::server::{DataOptions, OnFailure, Server, ServerOptions};
use overside_table::wire::{Durability, FaultCode};
use overside_verbs::Clock;

use super::halting::{Halting, until};
use super::{count, get, put, schema};

/// A server on a folder of its own, or on what a crash of another one left.
fn served_from(clock: &Arc<Halting>, data: &Path, durability: Durability) -> (Server, reference::World) {
    served_by(clock.clone(), data, durability, None)
}

fn served_by(
    clock: Arc<dyn Clock>,
    data: &Path,
    durability: Durability,
    on_failure: Option<OnFailure>,
) -> (Server, reference::World) {
    let world = reference::World::by(clock);
    let options = ServerOptions {
        workers: 2,
        on_failure,
        data: Some(DataOptions { durability, ..DataOptions::new(data) }),
        world: World { log_segment_bytes: Some(1 << 20), ..World::default() },
        ..ServerOptions::default()
    };
    (Server::start(Arc::new(world.provider()), &["tables"], options).unwrap(), world)
}

fn client_of(world: &reference::World) -> Client {
    Client::connect(Arc::new(world.provider()), "tables").unwrap()
}

/// The files as a crash at this moment leaves them.
fn crashed(data: &Path, copy: &Path) {
    std::fs::create_dir(copy).unwrap();
    std::fs::set_permissions(copy, std::fs::metadata(data).unwrap().permissions()).unwrap();
    for entry in std::fs::read_dir(data).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), copy.join(entry.unwrap().file_name()));
        if from.is_dir() {
            crashed(&from, &to);
        } else {
            // What a server takes away meanwhile is not there.
            let _ = std::fs::copy(&from, &to);
        }
    }
}

/// The worker that carries out `first` halts when it has changed which tables there are, and goes on when `then` is done. Others,
/// of which one goes to the other worker, make the calls of `then`.
fn while_halted<T: Send>(
    clock: &Halting,
    world: &reference::World,
    first: impl FnOnce(&mut Client) + Send,
    then: impl Fn(&mut Client) -> Option<T> + Sync,
    crash: impl FnOnce(),
) -> T {
    let mut client = client_of(world);
    let others = (0..4).map(|_| client_of(world)).collect();
    clock.halted(move || first(&mut client), others, then, crash)
}

/// A drop takes a name away, and somebody else gives it to another table, before the drop has gone further: what is
/// acknowledged is in the log behind the drop.
/// Faults: tables-logged-late
#[test]
fn a_name_that_is_given_again_at_once_is_one_tables_after_a_crash() {
    for durability in [Durability::Sync, Durability::Group] {
        let folder = tempfile::tempdir().unwrap();
        let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
        let clock = Arc::new(Halting::new("installed"));
        let (server, world) = served_from(&clock, &data, durability);
        let mut client = client_of(&world);
        let old = client.create_table("t", &schema()).unwrap();
        put(&mut client, &old, 1, "old").unwrap();
        let again = |client: &mut Client| client.create_table("t", &schema()).ok().map(|table| table.info().id);
        let dropped = |client: &mut Client| client.drop_table("t").unwrap();
        let number = while_halted(&clock, &world, dropped, again, || crashed(&data, &copy));
        drop(server);
        let (_server, world) = served_from(&clock, &copy, durability);
        let mut client = client_of(&world);
        let table = client.table("t").unwrap();
        assert_eq!((table.info().id, count(&mut client, &table)), (number, 0), "{durability:?}");
        assert_ne!(number, old.info().id);
    }
}

/// Somebody finds a table, and puts a row, before its creator has heard of it: the log has the create before the put.
#[test]
fn a_row_of_a_table_that_is_just_being_created_is_there_after_a_crash() {
    for durability in [Durability::Sync, Durability::Group] {
        let folder = tempfile::tempdir().unwrap();
        let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
        let clock = Arc::new(Halting::new("installed"));
        let (server, world) = served_from(&clock, &data, durability);
        let created = |client: &mut Client| drop(client.create_table("t", &schema()).unwrap());
        // In `sync` the name is not shown before all before it is on the disk, so nobody finds it meanwhile.
        let found = |client: &mut Client| match durability {
            Durability::Sync => Some(0),
            _ => client.table("t").ok().map(|table| put(client, &table, 1, "new").unwrap()),
        };
        let there = while_halted(&clock, &world, created, found, || crashed(&data, &copy));
        drop(server);
        let (_server, world) = served_from(&clock, &copy, durability);
        let mut client = client_of(&world);
        if there > 0 {
            let table = client.table("t").unwrap();
            assert_eq!(get(&mut client, &table, 1).as_deref(), Some("new"), "{durability:?}");
        }
    }
}

/// A crash may cost a create where less than `sync` was asked for. Whoever still has the table's number never meets another table.
#[test]
fn a_tables_number_is_given_once_whatever_a_crash_costs() {
    for durability in [Durability::Group, Durability::None, Durability::Sync] {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(Halting::new("installed"));
        let mut data = folder.path().join("data");
        let mut numbers = std::collections::BTreeSet::new();
        let mut stale = None;
        for life in 0..4 {
            let (server, world) = served_from(&clock, &data, durability);
            let mut client = client_of(&world);
            let copy = folder.path().join(format!("copy{life}"));
            // More than are set aside at once, of which the disk has heard then.
            let many = life == 1 && durability == Durability::None;
            if durability != Durability::Sync && !many {
                // The power goes before anything of it is on the disk.
                crashed(&data, &copy);
            }
            for _ in 0..if many { 1100 } else { 2 } {
                let table = client.create_table("t", &schema()).unwrap();
                assert!(numbers.insert(table.info().id), "{durability:?}: {} was given twice", table.info().id);
                client.drop_table("t").unwrap();
                stale = Some(table);
            }
            let other = client.create_table(&format!("u{life}"), &schema()).unwrap();
            assert!(numbers.insert(other.info().id), "{durability:?}: {} was given twice", other.info().id);
            let refused = put(&mut client, stale.as_ref().unwrap(), 1, "lost");
            assert!(matches!(refused, Err(ClientError::Refused { code: FaultCode::UnknownTable, .. })), "{refused:?}");
            if durability == Durability::Sync || many {
                crashed(&data, &copy);
            }
            drop(server);
            data = copy;
        }
    }
}

/// In `none` a clean end needs no numbers set aside, so those that come next follow.
#[test]
fn numbers_follow_each_other_behind_a_clean_end() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let clock = Arc::new(Halting::new("installed"));
    for expected in 1..4 {
        let (server, world) = served_from(&clock, &data, Durability::None);
        let table = client_of(&world).create_table(&format!("t{expected}"), &schema()).unwrap();
        assert_eq!(table.info().id, expected);
        server.shutdown();
    }
}

/// A table may then have what the log never will, so the server does not serve on. What it acknowledged is there at the next start.
#[test]
fn a_bug_between_a_change_and_its_record_ends_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let (clock, failures) = (Arc::new(Halting::failing("installed")), Arc::new(Mutex::new(Vec::new())));
    let told = failures.clone();
    let on_failure = OnFailure::new(move |why| told.lock().unwrap().push(why.to_owned()));
    let (server, world) = served_by(clock.clone(), &data, Durability::Sync, Some(on_failure));
    let mut client = client_of(&world);
    let table = client.create_table("t", &schema()).unwrap();
    put(&mut client, &table, 1, "acknowledged").unwrap();
    clock.expect();
    assert!(put(&mut client, &table, 2, "lost").is_err());
    until("its owner is told", || !failures.lock().unwrap().is_empty());
    let said = failures.lock().unwrap().join("\n");
    assert!(said.contains("in the middle of a change; start the server again"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    drop((client, server));
    let (_server, world) = served_by(clock, &data, Durability::Sync, None);
    let mut client = client_of(&world);
    let table = client.table("t").unwrap();
    let rows = [1, 2].map(|id| get(&mut client, &table, id));
    assert_eq!(rows, [Some("acknowledged".to_owned()), None]);
}
