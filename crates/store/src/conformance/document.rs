//! Documents: tenants, API keys, policies.

use bytes::Bytes;
use posthaste_core::{Key, TenantId};

use super::fixture::{MANY, NOW, STRANGER, StoreCase, TENANT, after, api_key, call};
use crate::journal::JournalEntry;
use crate::{
    AuditStamp, ChangeKind, Document, DocumentKind, Filed, FirstAnswer, Idempotency, KeyHash, ListOrder, OPERATOR,
    Store, StoreError,
};

fn document(kind: DocumentKind, id: u64, tenant: TenantId, name: Option<&str>) -> Document {
    let body = Bytes::from(format!("content of {id}"));
    Document { kind, id: Key::from_raw(id), tenant, name: name.map(str::to_owned), at: NOW, body }
}

async fn file<S: Store>(case: &StoreCase<S>, document: &Document) -> Filed {
    case.done("file", case.store.file(case.session(), document.clone(), None, AuditStamp::at(NOW)).await)
}

async fn named<S: Store>(case: &StoreCase<S>, kind: DocumentKind, tenant: TenantId, name: &str) -> Option<Key> {
    let found = case.store.document_named(kind, tenant, name.to_owned()).await;
    case.done("document_named", found).map(|found| found.id)
}

pub(super) async fn a_document_comes_back_as_it_was_filed<S: Store>(case: &StoreCase<S>) {
    for kind in DocumentKind::ALL {
        for (id, tenant, name) in [(1, TENANT, Some("a name")), (2, OPERATOR, None)] {
            let mut changing = document(kind, id, tenant, name);
            for body in ["", "first", "then something longer"] {
                changing.body = Bytes::from_static(body.as_bytes());
                changing.at = after(i64::try_from(body.len()).unwrap_or(0));
                case.same("filed", file(case, &changing).await, Filed::Done);
                let found = case.done("document", case.store.document(kind, changing.id).await);
                case.same("the document", found, Some(changing.clone()));
            }
        }
        let none = case.done("document", case.store.document(kind, Key::from_raw(77)).await);
        case.same("a document that was never filed", none, None);
    }
    let deed = |entry| if let JournalEntry::Document { deed, .. } = entry { Some(deed) } else { None };
    let filed: Vec<_> = case.entries().await.into_iter().filter_map(deed).collect();
    let each = [ChangeKind::Made, ChangeKind::Changed, ChangeKind::Changed];
    case.same("entries in the journal", filed, each.repeat(DocumentKind::ALL.len() * 2));
}

pub(super) async fn a_name_belongs_to_one_document<S: Store>(case: &StoreCase<S>) {
    use DocumentKind::{ApiKey, Policy, Tenant};
    for (taken, expected) in [
        (document(Tenant, 1, TENANT, Some("crm")), Filed::Done),
        (document(Tenant, 2, STRANGER, Some("crm")), Filed::NameTaken),
        (document(ApiKey, 3, TENANT, Some("crm")), Filed::Done),
        (document(Policy, 4, TENANT, Some("crm")), Filed::Done),
        (document(Policy, 5, TENANT, Some("crm")), Filed::NameTaken),
        (document(Policy, 6, STRANGER, Some("crm")), Filed::Done),
        (document(Policy, 6, STRANGER, Some("shop")), Filed::Done),
        (document(Policy, 7, STRANGER, Some("crm")), Filed::Done),
    ] {
        case.same(&format!("{taken:?}"), file(case, &taken).await, expected);
    }
    case.same("a tenant by name", named(case, Tenant, STRANGER, "crm").await, Some(Key::from_raw(1)));
    case.same("a policy of one", named(case, Policy, TENANT, "crm").await, Some(Key::from_raw(4)));
    case.same("a policy of another", named(case, Policy, STRANGER, "crm").await, Some(Key::from_raw(7)));
    case.same("one that was renamed", named(case, Policy, STRANGER, "shop").await, Some(Key::from_raw(6)));
    case.same("an unknown name", named(case, ApiKey, TENANT, "shop").await, None);
}

pub(super) async fn documents_come_by_id_in_pages<S: Store>(case: &StoreCase<S>) {
    for id in [3, 1, 2] {
        let tenant = if id == 2 { STRANGER } else { TENANT };
        case.same("filed", file(case, &document(DocumentKind::Policy, id, tenant, None)).await, Filed::Done);
    }
    case.same("filed", file(case, &document(DocumentKind::Tenant, 4, TENANT, None)).await, Filed::Done);
    let (oldest, newest) = (ListOrder::OldestFirst, ListOrder::NewestFirst);
    for (order, tenant, after, limit, expected) in [
        (oldest, None, None, MANY, vec![1, 2, 3]),
        (oldest, None, Some(1), 1, vec![2]),
        (oldest, Some(TENANT), None, MANY, vec![1, 3]),
        (oldest, Some(TENANT), Some(1), MANY, vec![3]),
        (oldest, Some(OPERATOR), None, MANY, vec![]),
        (newest, None, None, MANY, vec![3, 2, 1]),
        (newest, None, Some(3), 1, vec![2]),
        (newest, Some(TENANT), None, MANY, vec![3, 1]),
        (newest, Some(TENANT), Some(3), MANY, vec![1]),
    ] {
        let after = after.map(Key::from_raw);
        let page = case.store.documents(DocumentKind::Policy, tenant, order, after, limit).await;
        let ids: Vec<u64> = case.done("documents", page).iter().map(|document| document.id.raw()).collect();
        case.same(&format!("{tenant:?} behind {after:?}, {order:?}"), ids, expected);
    }
}

pub(super) async fn a_removed_document_is_gone_and_its_name_is_free<S: Store>(case: &StoreCase<S>) {
    let first = document(DocumentKind::ApiKey, 1, TENANT, Some("hash"));
    case.same("filed", file(case, &first).await, Filed::Done);
    let act = AuditStamp { at: after(9), by: api_key(1) };
    for expected in [true, false] {
        let removed = case.done("unfile", case.store.unfile(case.session(), first.kind, first.id, act).await);
        case.same("removed", removed, expected);
    }
    case.same("by name", named(case, first.kind, TENANT, "hash").await, None);
    case.same("by id", case.done("document", case.store.document(first.kind, first.id).await), None);
    case.same("its name", file(case, &document(first.kind, 2, STRANGER, Some("hash"))).await, Filed::Done);
    let is_removal = |entry: &JournalEntry| matches!(entry, JournalEntry::Document { deed: ChangeKind::Removed, .. });
    let expected = vec![JournalEntry::document(&first, ChangeKind::Removed, act)];
    case.same("its entry in the journal", case.entries_that(is_removal).await, expected);
}

pub(super) async fn a_document_is_filed_once_under_a_key<S: Store>(case: &StoreCase<S>) {
    let once = |digest, text: &'static str| {
        let answer = FirstAnswer { status: 201, body: text.into() };
        Idempotency { tenant: OPERATOR, digest: [digest; 32], answer, ..call(7, NOW, "") }
    };
    let first = once(1, "first").answer;
    let file = |id, name, call| {
        let document = document(DocumentKind::Tenant, id, TENANT, Some(name));
        async move { case.done("file", case.store.file(case.session(), document, Some(call), AuditStamp::at(NOW)).await) }
    };
    case.same("the first", file(1, "crm", once(1, "first")).await, Filed::Done);
    case.same("the same call again", file(2, "crm", once(1, "second")).await, Filed::Replayed(first));
    case.same("another with its key", file(3, "shop", once(2, "third")).await, Filed::KeyReused);
    let other = Idempotency { key: KeyHash([8; 16]), ..once(1, "fourth") };
    case.same("a taken name", file(4, "crm", other.clone()).await, Filed::NameTaken);
    case.same("the key of a call that did nothing is free", file(4, "shop", other).await, Filed::Done);
}

pub(super) async fn fenced_session_files_nothing<S: Store>(case: &StoreCase<S>) {
    let fenced = case.session();
    case.done("open", case.store.open(NOW).await);
    let document = document(DocumentKind::Tenant, 1, TENANT, None);
    let filed = case.store.file(fenced, document.clone(), None, AuditStamp::at(NOW)).await;
    case.same("filed", matches!(filed, Err(StoreError::Fenced { .. })), true);
    let removed = case.store.unfile(fenced, document.kind, document.id, AuditStamp::at(NOW)).await;
    case.same("removed", matches!(removed, Err(StoreError::Fenced { .. })), true);
    case.same("nothing is there", case.done("document", case.store.document(document.kind, document.id).await), None);
}
