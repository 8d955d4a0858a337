//! What the protocol says, command by command.

use super::client::*;
use super::*;

const UNSUPPORTED: u32 = 1 << 31 | 1;
const INVALID: u32 = 1 << 31 | 3;
const UNKNOWN: u32 = 1 << 31 | 6;

#[test]
fn an_export_says_what_it_is_by_every_way_of_asking() {
    let served = Served::memory();
    for canonical in [false, true] {
        let mut client = Client::greeted(&served.path());
        let infos: &[u8] = if canonical { &[0, 2, 0, 1, 0, 3] } else { &[0, 0] };
        let answers = client.ask(6, &name("v", infos));
        let export = &answers[0].data;
        assert_eq!((number(&export[..2]), number(&export[2..10])), (0, BYTES));
        let flags = number(&export[10..12]);
        // Flags, flush, FUA, trim, write zeroes, several connections, cache, fast zero; neither read-only nor DF.
        assert_eq!(flags, 1 | 4 | 8 | 32 | 64 | 256 | 1024 | 2048, "{flags:b}");
        let sizes: Vec<u64> = answers[1].data[2..].chunks(4).map(number).collect();
        assert_eq!(sizes, [512, 4096, 32 << 20]);
        assert_eq!(answers.iter().any(|answer| answer.data == [0, 1, b'v']), canonical);
        assert_eq!(client.ask(6, &name("w", infos)).last().unwrap().kind, UNKNOWN);
        let listed = client.ask(3, &[]);
        assert_eq!(listed[0], Answer { kind: 2, data: name("v", &[]) });
        // Without a name the only one there is.
        assert_eq!(client.ask(GO, &name("", infos)).last().unwrap().kind, ACK);
        assert_eq!(client.read(0, 512), [0; 512]);
    }
    let mut old = Client::greeted(&served.path());
    old.say(&[&b"IHAVEOPT"[..], &[0, 0, 0, 1], &[0, 0, 0, 1], b"v"].concat());
    assert_eq!(number(&old.bytes(8)), BYTES);
    old.bytes(2);
    assert_eq!(old.read(512, 512), [0; 512], "no zeros came before");
    let mut unknown = Client::greeted(&served.path());
    unknown.say(&[&b"IHAVEOPT"[..], &[0, 0, 0, 1], &[0, 0, 0, 1], b"w"].concat());
    assert!(unknown.ended());
    let mut ends = Client::greeted(&served.path());
    assert_eq!(ends.ask(2, &[]).last().unwrap().kind, ACK);
    assert!(ends.ended());
}

#[test]
fn options_that_there_are_not_are_refused_and_the_next_one_is_heard() {
    let served = Served::memory();
    let mut client = Client::greeted(&served.path());
    assert_eq!(client.ask(5, &[]).last().unwrap().kind, UNSUPPORTED, "TLS");
    assert_eq!(client.ask(11, &[]).last().unwrap().kind, UNSUPPORTED, "extended headers");
    assert_eq!(client.ask(u32::MAX, &[9; 300]).last().unwrap().kind, UNSUPPORTED);
    assert_eq!(client.ask(99, &[9; 100_000]).last().unwrap().kind, 1 << 31 | 9, "too big");
    assert_eq!(
        client.ask(GO, &[0, 0, 0, 9, b'v', 0, 0]).last().unwrap().kind,
        INVALID,
        "a name longer than its option"
    );
    assert_eq!(client.ask(GO, &name("v", &[0, 9, 0, 0])).last().unwrap().kind, INVALID, "fewer infos than it says");
    assert_eq!(client.ask(GO, &name("v", &[0, 0, 0])).last().unwrap().kind, INVALID, "more than it says");
    assert_eq!(client.ask(GO, &name("\u{fffd}\0", &[0, 0])).last().unwrap().kind, INVALID);
    assert_eq!(client.ask(GO, &[0, 0, 0, 1, 0xff, 0, 0]).last().unwrap().kind, INVALID, "no text");
    assert_eq!(client.ask(3, &[1]).last().unwrap().kind, INVALID);
    assert_eq!(client.ask(10, &name("v", &[0xff; 4])).last().unwrap().kind, INVALID, "absurdly many contexts");
    assert_eq!(client.ask(GO, &name("v", &[0, 0])).last().unwrap().kind, ACK);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn what_is_written_is_read_by_every_connection_in_both_kinds_of_replies() {
    let served = Served::memory();
    let mut clients = [Client::connected(&served.path(), false), Client::connected(&served.path(), true)];
    for (round, length) in [512, 4096, 8192, 100 << 10, 512 << 10].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..length).map(|i| (i / 512 * 7 + i + round) as u8).collect();
        clients[round % 2].write(0, 4096, &bytes);
        for client in &mut clients {
            assert!(client.read(4096, length as u32) == bytes, "{length}");
            assert_eq!(client.read(4096 - 512, 512), [0; 512]);
        }
    }
}

#[test]
fn flush_fua_trim_zeros_and_hints_reach_the_device() {
    let served = Served::memory();
    let mut client = Client::connected(&served.path(), true);
    client.write(0, 0, &[1; 1024]);
    client.write(FUA, 1024, &[2; 512]);
    let mut done = |flags, kind, at, length| assert_eq!(client.carry_out(flags, kind, at, length, &[]).error, 0);
    done(0, FLUSH, 0, 0);
    done(0, TRIM, 0, 512);
    done(0, WRITE_ZEROES, 512, 512);
    done(2, WRITE_ZEROES, 1024, 512);
    done(FUA, TRIM, 0, 512);
    done(FUA | 2, WRITE_ZEROES, 0, 512);
    done(FUA, CACHE, 0, 4096);
    let expected = [
        "write 0 1024",
        "write 1024 512 fua",
        "flush",
        "discard 0 512",
        "discard 512 512",
        "zero 1024 512",
        "discard 0 512",
        "flush",
        "zero 0 512",
        "flush",
        "hint 0 4096 WillNeed",
    ];
    assert_eq!(served.log(), expected);
    assert_eq!(client.read(0, 2048), [0; 2048]);
    assert_eq!(client.carry_out(16, WRITE_ZEROES, 0, 512, &[]).error, 95, "nothing zeroes faster than it writes");
}

#[test]
fn block_status_is_told_to_who_chose_it() {
    let served = Served::memory();
    let mut client = Client::greeted(&served.path());
    let queries = |of: &str| name("v", &[&[0, 0, 0, 1], &name(of, &[])[..]].concat());
    assert_eq!(client.ask(10, &queries("base:allocation")).last().unwrap().kind, INVALID, "no structured replies yet");
    let mut client = Client::greeted(&served.path());
    client.ask(STRUCTURED, &[]);
    for (option, of, found) in [(9, "base:", 1), (9, "qemu:", 0), (10, "base:", 0), (10, "base:allocation", 1)] {
        let answers = client.ask(option, &queries(of));
        assert_eq!((answers.len(), answers.last().unwrap().kind), (1 + found, ACK), "{of}");
        assert!(found == 0 || answers[0].data[4..] == *b"base:allocation");
    }
    let mut plain = Client::connected(&served.path(), true);
    assert_eq!(plain.carry_out(0, BLOCK_STATUS, 0, 4096, &[]).error, 22, "it chose no context");
    let mut chosen = client;
    assert_eq!(chosen.ask(GO, &name("v", &[0, 0])).last().unwrap().kind, ACK);
    let cookie = 77;
    for flags in [0, 8] {
        chosen.request(flags, BLOCK_STATUS, cookie, 512, 4096, &[]);
        chosen.bytes(4 + 2);
        assert_eq!(number(&chosen.bytes(2)), 5);
        assert_eq!((number(&chosen.bytes(8)), number(&chosen.bytes(4))), (cookie, 12));
        let context = number(&chosen.bytes(4));
        assert_eq!((context, number(&chosen.bytes(4)), number(&chosen.bytes(4))), (1, 4096, 0));
    }
}

#[test]
fn a_device_that_cannot_be_written_says_so_first() {
    let served = Served::of(Box::new(MemoryDevice::new(BYTES).unwrap().frozen()));
    let mut client = Client::greeted(&served.path());
    let answers = client.ask(GO, &name("v", &[0, 0]));
    let flags = number(&answers[0].data[10..12]);
    assert_eq!(flags & (2 | 32 | 64), 2, "{flags:b}");
    assert_eq!(client.carry_out(0, WRITE, 0, 512, &[1; 512]).error, 1);
    assert_eq!(client.carry_out(0, TRIM, 0, 512, &[]).error, 1);
    assert_eq!(client.carry_out(0, WRITE_ZEROES, 0, 512, &[]).error, 1);
    assert_eq!(client.read(0, 512), [0; 512]);
}

/// Replies carry the number of their request, whatever order they come in.
#[test]
fn many_requests_at_once_are_each_answered_as_themselves() {
    let served = Served::memory();
    let mut client = Client::connected(&served.path(), true);
    for sector in 0..256u64 {
        client.write(0, sector * 512, &[sector as u8; 512]);
    }
    let all: Vec<u8> = (0..256u64).flat_map(|sector| request(0, READ, sector << 40 | 5, sector * 512, 512)).collect();
    client.say(&all);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..256 {
        let reply = client.reply(512);
        let sector = reply.cookie >> 40;
        assert_eq!(number(&reply.data[..8]), sector * 512);
        assert_eq!(reply.data[8..], [sector as u8; 512], "the bytes of another request");
        assert!(reply.error == 0 && seen.insert(sector));
    }
}

#[test]
fn a_client_that_disconnects_gets_its_replies_first() {
    let served = Served::memory();
    let mut client = Client::connected(&served.path(), false);
    let both = [request(0, READ, 1, 0, 512), request(0, DISCONNECT, 2, 0, 0), request(0, READ, 3, 0, 512)].concat();
    client.say(&both);
    assert_eq!(client.reply(512).cookie, 1);
    assert!(client.ended(), "what comes behind the goodbye is not looked at");
    let mut half = Client::connected(&served.path(), false);
    half.say(&request(0, READ, 4, 0, 512));
    half.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(half.reply(512).cookie, 4, "who only stops speaking may still hear");
    assert!(half.ended());
}
