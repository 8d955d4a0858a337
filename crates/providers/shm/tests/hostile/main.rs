//! A peer that shakes hands properly and then does what no peer does. In every case the victim
//! lives, its other connections work, and what it posted comes back.
//!
//! Everything that a peer can say, what follows, and when that is true. Tests without a file are in this folder.
//!
//! | word | what it does here | when | hostile test |
//! |---|---|---|---|
//! | hello | lets the peer be attached | the kernel vouches for its user; no descriptor with it | `handshake`: `silent_and_babbling_connections_hold_up_nobody`, `strangers_neither_squat_a_name_nor_connect` |
//! | attach | maps its control memory for as long as the connection lasts | once; a sealed memory file whose pages are there | `socket`: `messages_that_are_cut_replayed_or_out_of_place_close_their_connection` |
//! | segment | maps a segment until forget or the end | a new name; within the bounds | `socket`: `descriptors_of_the_wrong_kind_are_refused`; `passing`: `mappings_are_bounded_and_named_once`, `memory_whose_pages_lie_elsewhere_is_refused` |
//! | grant | maps memory that this side may read or write by the key | a new key; within the bounds | the same; `socket`: as attach |
//! | revoke | unmaps; requests with the key end as RemoteAccess from then on | any key; one that is not known is nobody's | `ring`: `segments_and_keys_that_are_taken_back_are_void` |
//! | forget | unmaps; a message that still names it ends the connection | any name, as above | the same |
//! | bell | ends a sleep, and nothing else | at any time | `socket`: `a_flood_of_doorbells_and_more_memory_than_allowed_disturb_nobody` |
//! | bye, end of the socket, death | flushes what is pending | the `closed` word, if it says something, says how | `ring`: `a_goodbye_ends_what_is_pending`; `tests/death.rs` |
//! | a descriptor that is passed | is closed where nobody waits | unless it is a memory file's and its message takes one | `passing`: `a_socket_that_lingers_stops_nobody` |
//! | many of them | use up this process' or its user's | an error with the reason, of this connection | `passing`: `a_lack_of_descriptors_is_an_error_with_its_reason` |
//! | `rung` | ends a sleep of some milliseconds | at any value | `ring`: `garbage_in_each_word_in_turn_harms_nobody_else` |
//! | `armed` | makes this side wake the peer once for each value | when it publishes anyway | the same |
//! | `consumed` | completes sends, releases their holds and their places in the ring | never less than before, never more than was published | `ring`: `consumed_completes_what_was_published_and_nothing_else` |
//! | `closed` | ends the connection; makes bytes just copied worthless | 1 to 3 | `ring`: `a_goodbye_ends_what_is_pending`, `garbage_in_each_word_in_turn_harms_nobody_else` |
//! | a stamp | makes a descriptor the next message | of its lap; the descriptor is copied out whole then | `ring`: `words_that_move_while_they_are_read_harm_nobody_else` |
//! | operation, flags, count, length | complete a receive, with that many bytes and that immediate data | the message was copied whole into the receive and `closed` is still 0 | `ring`: `descriptors_that_lie_close_their_connection` |
//! | immediate data | is handed on | the user's to check | conformance: `immediate` |
//! | a lent message | gives its ranges to the receive's user, who reads copies of them | the receive takes loans, and there is a place to return it; checked as a gather entry is; else it is copied | `loans`: `loans_that_lie_close_their_connection`, `more_loans_than_there_are_places_are_copied`; `mangled` (unit tests) |
//! | bytes of a lent range | are what the user reads, who checks the copy | at any time, also after the connection has ended; `closed` says whether they are what was sent | `loans`: `a_lender_that_scribbles_takes_back_and_goes_harms_nobody`; `tests/loans.rs` |
//! | a return | releases what the SEND of that number holds | a loan that was offered and not returned yet, once | `loans`: `what_was_not_lent_and_what_was_returned_already_close_the_connection`, `garbage_among_the_returns_releases_nothing_twice`; unit tests of `lending` |
//! | no return | keeps this side's memory as it is, within the bound | until it ends the connection | `loans`: `a_peer_that_never_returns_gets_copies_and_holds_a_bounded_number` |
//! | `returns` | makes this side wake the peer | when it returns a loan anyway | `ring`: `garbage_in_each_word_in_turn_harms_nobody_else` |
//! | a gather entry | copies bytes of a segment | the segment is known, the range within it, the sum that of the message | `ring`: as above; `mangled` (unit tests) |
//! | inline bytes, cells, bytes of a segment | are copied as they are at that moment | what changes meanwhile may be what arrives | `ring`: `words_that_move_while_they_are_read_harm_nobody_else` |
//! | a region | makes SENDs in one receive each, until its last message | the port takes regions; description, memory and work are within the bounds | `regions`: both tests; `crates/shape/tests/describe.rs` |
//! | bytes of a granted window | are what a READ brings and an atomic finds | the user's to check | conformance: `keys`, `atomic` |
//!
//! What a peer may make this process keep and do:
//!
//! | what | at most |
//! |---|---|
//! | loans of a connection that a peer keeps | four times the depth of its ring (16,384 at most); what is sent beyond that is copied |
//! | loans of a peer's that this side keeps | four times the depth of its own ring, within what its user keeps; their segments stay mapped, and counted, after forget |
//! | segments of a connection, and as many granted regions | 1,024 of a peer that connected; of one that was connected to, as many as all of them may have |
//! | mappings for all peers | a quarter of `vm.max_map_count` for peers that connected, none of which takes more than 8 and an eighth of what is left; three quarters for all |
//! | bytes mapped | 1 TiB for each of a connection's two kinds, 32 TiB for all peers that connected, 64 TiB for all |
//! | pages | none: every page of what is passed must be there, and touched where the kernel does not tell (before Linux 6.5) |
//! | a region's description | 32 MiB, 256 MiB of all connections together, charged before it is read |
//! | words of bitmaps that a description says again | 2^20, and 64 for each word of the description, and a word for each 64 bytes of the region's memory |
//! | steps of one poll | one SEND of a region, 512 messages of the socket, and the mapping of 1 GiB or of one segment |
//! | messages that wait because it does not read | 65,536 |
//! | descriptors whose close waits | 512, with 8 threads to close them; then they stay open, are counted, and no connection is accepted |
//!
//! A sender meets the bounds of a peer that it connected to as errors of its own. They come of a request that would
//! pass a segment beyond 895, of a registration beyond 1,024 granted regions, and of a region whose bitmaps are said
//! again too often.

#[path = "../ends/mod.rs"]
mod ends;
mod handshake;
mod loans;
mod passing;
mod raw;
mod regions;
mod ring;
mod socket;
