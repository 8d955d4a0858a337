//! The programs by name.

use crate::programs::{
    broken_pipe, close_with_unread, connect_again, duplicates, echo, exec_without_the_library, flags,
    fork_after_accept, fork_in_the_middle, half_close, killed_peer, late_accept, noise, nonblocking, queues, sizes,
    stream, threads, timeouts, urgent, vectors,
};
use crate::sock::{Log, Side};
use crate::waiting::{one_way, polled, polled_full, selected, set_before_connect};
use crate::{sets, shared_sets};

type Program = fn(Side, &mut Log);

pub(crate) const PROGRAMS: &[(&str, Program)] = &[
    ("echo", echo),
    ("sizes", sizes),
    ("stream", stream),
    ("one_way", one_way),
    ("flags", flags),
    ("vectors", vectors),
    ("half_close", half_close),
    ("close_with_unread", close_with_unread),
    ("broken_pipe", broken_pipe),
    ("killed_peer", killed_peer),
    ("timeouts", timeouts),
    ("nonblocking", nonblocking),
    ("queues", queues),
    ("duplicates", duplicates),
    ("threads", threads),
    ("fork_after_accept", fork_after_accept),
    ("fork_in_the_middle", fork_in_the_middle),
    ("exec_without_the_library", exec_without_the_library),
    ("polled", polled),
    ("polled_full", polled_full),
    ("selected", selected),
    ("set_before_connect", set_before_connect),
    ("set_level", sets::set_level),
    ("set_edge", sets::set_edge),
    ("set_oneshot", sets::set_oneshot),
    ("set_end", sets::set_end),
    ("set_half_close", sets::set_half_close),
    ("two_sets", shared_sets::two_sets),
    ("nested_sets", shared_sets::nested_sets),
    ("set_with_odd_data", sets::set_with_odd_data),
    ("bytes_before_the_set", sets::bytes_before_the_set),
    ("set_full", sets::set_full),
    ("set_timeouts", sets::set_timeouts),
    ("close_in_a_set", shared_sets::close_in_a_set),
    ("fork_with_a_set", shared_sets::fork_with_a_set),
    ("threads_in_a_set", shared_sets::threads_in_a_set),
    ("change_under_a_sleeper", shared_sets::change_under_a_sleeper),
    ("set_of_many", shared_sets::set_of_many),
    ("set_with_a_pipe", shared_sets::set_with_a_pipe),
    ("late_accept", late_accept),
    ("urgent", urgent),
    ("connect_again", connect_again),
    ("vfork_first", echo),
    ("noise", noise),
];
