//! The real command, in processes of its own: what it prints, what it exits with, what it leaves.

mod attached;
mod bad_input;
mod changed;
mod demo;
mod directory;
mod dump;
mod durable;
mod ends;
mod full;
mod history;
mod kept_files;
mod killed;
mod mirrored;
mod network;
mod pulled;
mod rows;
mod run;
mod salvaged;
mod server;
mod tables;
mod volumes;
