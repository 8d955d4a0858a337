//! The real command, in processes of its own: what it prints, what it exits with, what it leaves.

mod bad_input;
mod demo;
mod durable;
mod ends;
mod network;
mod rows;
mod run;
mod server;
