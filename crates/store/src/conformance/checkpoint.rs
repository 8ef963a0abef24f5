//! Checkpoints: signed for the journal's last row, and only if the journal has grown.

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after};
use crate::row::Session;
use crate::{Signed, Store, StoreError};

impl<S: Store> StoreCase<S> {
    async fn sign(&self, grown: u64) -> Option<Signed> {
        self.sign_in(self.session(), grown).await
    }

    async fn sign_in(&self, session: Session, grown: u64) -> Option<Signed> {
        self.done("sign", self.store.sign(session, grown, after(5)).await)
    }
}

pub(super) async fn checkpoint_covers_the_last_row<S: Store>(case: &StoreCase<S>) {
    case.accept(&[DeliveryDraft::to(1)]).await;
    let Some(signed) = case.sign(1).await else { case.fail("there are rows to sign") };
    let rows = case.done("journal", case.store.journal(0, MANY).await);
    let last = &rows[rows.len() - 1];
    let Ok(checkpoint) = case.store.public_key().verify(&signed.line) else { case.fail("its own key verifies it") };
    case.same("the last row", (checkpoint.row, checkpoint.chain), (last.number, last.hash()));
    case.same("its time", (signed.row, checkpoint.at_ms), (last.number, after(5).as_millis()));
    case.same("it is kept", case.done("read", case.store.checkpoints(0, MANY).await), vec![signed.clone()]);
    let again = case.done("sign now", case.store.sign_now(case.session(), after(9)).await);
    case.same("a second request gets the same checkpoint", again, Some(signed.clone()));
    case.same("none after it", case.done("read", case.store.checkpoints(signed.row, MANY).await), vec![]);
}

pub(super) async fn rows_already_covered_are_not_signed_again<S: Store>(case: &StoreCase<S>) {
    case.check(case.sign(2).await.is_none(), "one row is not two");
    case.check(case.sign(0).await.is_some(), "a session has begun");
    case.same("nothing since", (case.sign(0).await, case.sign(1).await), (None, None));
    case.accept(&[DeliveryDraft::to(1)]).await;
    case.check(case.sign(2).await.is_none(), "one more is not two more");
    case.accept(&[DeliveryDraft::to(1)]).await;
    let key = case.store.public_key();
    case.check(case.sign(2).await.is_some(), "two more");
    let newer = case.reopen().await.session;
    let Some(next) = case.sign_in(newer, 1).await else { case.fail("another session has begun") };
    case.check(case.store.public_key() == key && key.verify(&next.line).is_ok(), "one key for the store's life");
    let rows: Vec<u64> = case.done("read", case.store.checkpoints(0, MANY).await).iter().map(|one| one.row).collect();
    case.same("in order", rows, vec![1, 3, 4]);
}

pub(super) async fn sign_now_covers_the_current_last_row<S: Store>(case: &StoreCase<S>) {
    case.same("nothing is signed yet", case.done("last", case.store.last_checkpoint().await), None);
    for row in 1..=3 {
        let signed = case.done("sign now", case.store.sign_now(case.session(), after(5)).await);
        case.same("for the last row", signed.as_ref().map(|signed| signed.row), Some(row));
        case.same("and it is kept", case.done("last", case.store.last_checkpoint().await), signed);
        case.accept(&[DeliveryDraft::to(1)]).await;
    }
}

pub(super) async fn fenced_session_signs_nothing<S: Store>(case: &StoreCase<S>) {
    let newer = case.reopen().await.session;
    let refused = case.store.sign(case.session(), 1, NOW).await;
    case.check(matches!(refused, Err(StoreError::Fenced { .. })), "an older session is fenced");
    case.same("nothing is stored", case.done("read", case.store.checkpoints(0, MANY).await), vec![]);
    case.check(case.sign_in(newer, 1).await.is_some(), "the newer one signs");
}
