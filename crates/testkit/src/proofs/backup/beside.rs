//! Measures how much a backup slows down accepts: the time of an accept during a backup, and without one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_core::{Key, MessageId, TenantId, Timestamp};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::sqlite::backup::back_up;
use posthaste_store::{Accepted, Message, Outbox, Session};
use tokio::time::Instant;

use crate::fixtures::block_on;
use crate::master_key;
use crate::prove::{CannotRun, Context};

const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
/// How often the two measurements take turns, so that other work of the machine affects both.
const ROUNDS: u32 = 3;
/// The size of the messages with which the store is filled: large, so that it is fast.
const FILL_BYTES: usize = 64 * 1024;
const FILL_MESSAGES: u64 = 32;
/// The size of the producer's messages.
const BODY_BYTES: usize = 600;
/// The least number of accepts without a backup in a turn.
const ACCEPTS: usize = 100;

/// The 99th percentile of the time of an accept, without a backup and during one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beside {
    pub(super) alone: Duration,
    pub(super) beside: Duration,
}

/// Backs up a store of this size while a producer sends each message as soon as the last one is answered.
pub(super) fn measure(folder: &Path, bytes: u64) -> Result<Beside, CannotRun> {
    block_on(async {
        let data = folder.join("large");
        let store = Sqlite::open_folder(&data, master_key())?;
        let session = store.open(NOW).await?.session;
        let mut producer = Producer { store: &store, data, session, made: 0 };
        producer.fill(bytes).await?;
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            producer.beside_a_backup(&folder.join("large-copy"), &mut beside).await?;
            let until = beside.len().max(alone.len() + ACCEPTS);
            while alone.len() < until {
                alone.push(producer.send().await?);
            }
        }
        store.close().await;
        Ok(Beside { alone: p99(alone), beside: p99(beside) })
    })
}

struct Producer<'s> {
    store: &'s Sqlite,
    data: PathBuf,
    session: Session,
    made: u64,
}

impl Producer<'_> {
    fn message(&mut self, bytes: usize) -> Accepted {
        self.made += 1;
        let id = MessageId(Key::new(self.session.writer, self.made));
        Accepted::new(Message::new(id, TenantId::from_raw(1), NOW, vec![b'x'; bytes]), Vec::new())
    }

    async fn fill(&mut self, bytes: u64) -> Result<(), CannotRun> {
        for _ in 0..bytes / (FILL_MESSAGES * FILL_BYTES as u64) {
            let messages = (0..FILL_MESSAGES).map(|_| self.message(FILL_BYTES)).collect();
            _ = self.store.accept(self.session, messages).await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<Duration, CannotRun> {
        let message = self.message(BODY_BYTES);
        let began = Instant::now();
        _ = self.store.accept(self.session, vec![message]).await?;
        Ok(began.elapsed())
    }

    async fn beside_a_backup(&mut self, to: &Path, took: &mut Vec<Duration>) -> Result<(), CannotRun> {
        let (data, copy) = (self.data.clone(), to.to_owned());
        let mut backup = tokio::task::spawn_blocking(move || back_up(&data, &copy, NOW, |_| true));
        loop {
            tokio::select! {
                biased;
                made = &mut backup => {
                    let made = made?;
                    made.context("there is no backup to measure")?;
                    break;
                }
                one = self.send() => took.push(one?),
            }
        }
        Ok(fs::remove_dir_all(to)?)
    }
}

fn p99(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get(took.len() * 99 / 100).copied().unwrap_or_default()
}
