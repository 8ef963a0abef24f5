//! What the demo shows: the first message of each receiver step by step, one line for the rest.

use std::io::{IsTerminal, stdout};
use std::net::SocketAddr;

use anyhow::Result;
use posthaste_core::Timestamp;
use posthaste_core::time::human;

use super::Cast;
use super::ledger::Ledger;
use crate::say::{self, say};
use crate::simulate::chart::{self, Picture};

/// The terminal, with one line that is written over and over.
pub(super) struct Screen {
    /// Where each receiver's story has come to.
    told: Vec<usize>,
    is_terminal: bool,
    messages: usize,
}

impl Screen {
    pub(super) fn open(server: SocketAddr, scale: u32, messages: usize, cast: &[Cast]) -> Result<Self> {
        say!("A server on http://{server} and {} receivers, on real sockets, over a real file.", cast.len())?;
        say!("Its clock runs {scale} times as fast: a minute of waiting takes a second.\n")?;
        for one in cast {
            say!("  {:8} {} ({})", one.name, one.does, one.event_type)?;
        }
        say!("\n{messages} messages through the API. The first of each receiver, step by step:\n")?;
        Ok(Self { told: vec![0; cast.len()], is_terminal: stdout().is_terminal(), messages })
    }

    /// Tells what is new.
    pub(super) fn show(&mut self, sent: usize, cast: &[Cast]) -> Result<()> {
        for (one, told) in cast.iter().zip(&mut self.told) {
            tell(one, told, self.is_terminal)?;
        }
        if self.is_terminal {
            say::part(format_args!("\r\x1b[K  {}", progress(sent, self.messages, cast)))?;
        }
        Ok(())
    }

    /// The ledger.
    pub(super) fn close(&self, ledger: &Ledger, states: usize) -> Result<()> {
        let clear = if self.is_terminal { "\r\x1b[K" } else { "" };
        say!("{clear}\n  accepted    {:>5}   each after its commit was on the disk", ledger.accepted)?;
        say!("  delivered   {:>5}   by the receivers' own count, every signature good", ledger.delivered)?;
        say!("              {states:>5}   by the API's")?;
        say!("  attempts    {:>5}", ledger.attempts)?;
        say!("  duplicates  {:>5}", ledger.duplicates)?;
        say!("  lost        {:>5}\n", ledger.lost())
    }

    /// What an outage does to a receiver, and what to do next.
    pub(super) fn outage(picture: &Picture) -> Result<()> {
        say!("And a receiver that is down for five minutes, simulated with the same code:\n")?;
        say!("{}", chart::terminal(picture))?;
        say!("Next: `posthaste serve --dev` runs a server to try, `posthaste policy preview webhook` shows when")?;
        say!("it tries again, `posthaste simulate --svg outage.svg` draws that picture for an outage of your own,")?;
        say!("`posthaste bench` measures this machine.")
    }
}

/// The story of a receiver's first message, a line an attempt.
fn tell(one: &Cast, told: &mut usize, is_terminal: bool) -> Result<()> {
    let arrivals = one.receiver.arrivals();
    let Some(first) = arrivals.first() else { return Ok(()) };
    let story: Vec<_> = arrivals.iter().filter(|arrival| arrival.message == first.message).collect();
    let clear = if is_terminal { "\r\x1b[K" } else { "" };
    for (number, arrival) in story.iter().enumerate().skip(*told) {
        let after = since(first.at, arrival.at);
        say!("{clear}  {:8} attempt {} {after}: {}", one.name, number + 1, arrival.answered.as_u16())?;
    }
    *told = story.len();
    Ok(())
}

fn since(first: Timestamp, at: Timestamp) -> String {
    if at == first { "at once".to_owned() } else { format!("after {}", human(at.since(first))) }
}

fn progress(sent: usize, messages: usize, cast: &[Cast]) -> String {
    let taken = |one: &Cast| one.receiver.arrivals().iter().filter(|arrival| arrival.answered.is_success()).count();
    let arrived: Vec<String> = cast.iter().map(|one| format!("{} {}", one.name, taken(one))).collect();
    format!("sent {sent} of {messages}, arrived: {}", arrived.join(", "))
}
