//! What holds once all has happened: all that was written is there, and members have the same.

use std::time::Duration;

use overside_volume::MemberState;
use overside_volume::wire::Role;

use super::{BYTES, Layout, SUMS, Serving, Stage, lock};
use crate::client::Client;

impl Stage {
    /// All members have all that was written.
    pub(super) fn settle(&self, node: &Serving) -> Result<(), String> {
        let Some(health) = lock(&node.current).clone() else { return Ok(()) };
        let until = self.world.passed() + Duration::from_secs(600);
        while health.unsettled() > 0 || (0..self.plan.members).any(|member| health.state(member) == MemberState::Stale)
        {
            if self.world.passed() > until {
                return Err("a member that is back does not get what it has missed".to_owned());
            }
            self.world.clock().sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// What was acknowledged is there after the last life, too; and members have the same.
    pub(super) fn finish(&self, node: Serving, life: u64) -> Result<(), String> {
        self.stop(&node);
        let node = self.serve(life + 1);
        self.read_all(&node)?;
        if self.plan.changes_under_load {
            self.run_client(&node, Client::check_all)?;
        }
        self.stop(&node);
        if let Some(why) = self.model.wrong() {
            return Err(why);
        }
        self.compare()?;
        if self.plan.sums {
            self.change_bytes();
            let node = self.serve(life + 2);
            self.read_all(&node)?;
            self.stop(&node);
            if let Some(why) = self.model.wrong() {
                return Err(why);
            }
        }
        Ok(())
    }

    /// A client reads all that was ever written.
    fn read_all(&self, node: &Serving) -> Result<(), String> {
        self.run_client(node, Client::read_all)
    }

    fn run_client(&self, node: &Serving, run: fn(Client)) -> Result<(), String> {
        let (_, running) = self.client("reader", Role::TakeOver, run);
        while !running.has_ended() {
            if let Some(why) = self.wrong(node) {
                return Err(why);
            }
            self.world.clock().sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Bits change on the disk while nobody has it open: of the same bytes on one member at most.
    fn change_bytes(&self) {
        let mut chance = self.world.chance("bytes");
        for block in 0..BYTES / 4096 {
            if chance.one_in(2) {
                let member = chance.below(self.plan.members as u64);
                let at = SUMS.data + block * 4096 + chance.below(4096);
                self.drive.flip(&format!("m{member}"), at, chance.below(8) as u32);
                self.world.note("bytes: changed", at);
            }
        }
        let may_be_lost = matches!(self.plan.layout, Layout::Single | Layout::Stripes);
        self.model.changed(may_be_lost);
    }

    /// Members have the same.
    fn compare(&self) -> Result<(), String> {
        let files: Vec<Vec<u8>> = (0..self.plan.members)
            .map(|member| {
                let mut bytes = self.drive.read(&format!("m{member}"));
                bytes.resize(self.member_bytes() as usize, 0);
                bytes.split_off(if self.plan.sums { SUMS.data as usize } else { 0 })
            })
            .collect();
        let differ = match self.plan.layout {
            Layout::Mirror => files.windows(2).any(|pair| pair[0] != pair[1]),
            Layout::Parity => (0..BYTES as usize).any(|at| files.iter().fold(0, |sum, file| sum ^ file[at]) != 0),
            Layout::Single | Layout::Stripes => false,
        };
        self.world.note("members: compared", 0);
        if differ { Err("members differ, although nothing is left to be settled".to_owned()) } else { Ok(()) }
    }
}
